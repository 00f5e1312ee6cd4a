"""The pages and the examples: every block runs, prints what is shown, and every link leads somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import runpy
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ALL_TEXT = [*PAGES, *(path for path in (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md") if path.exists())]
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


blocks = load(ROOT / "docs" / "blocks.py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks.run_page(page, shell if "```console\n$ cp " in page.read_text(encoding="utf-8") else None)
    for picture in tmp_path.glob("*.png"):  # a page that draws shows the picture, of the size it draws
        shown = ROOT / "docs" / "images" / picture.name
        assert f"images/{picture.name}" in page.read_text(encoding="utf-8")
        assert size_of_png(shown) == size_of_png(picture), f"{name_of(shown)} is old: run docs/make_images.py"


def shell(command: str) -> str:
    """What a command of a page prints; `cp` and `head` are all it may be beside attendb."""
    import shlex
    import shutil

    from typer.testing import CliRunner

    from attendb.cli import app

    program, *arguments = shlex.split(command)
    if program == "cp":
        shutil.copy(ROOT / arguments[0], arguments[1])
        return ""
    if program == "head":
        return "".join(Path(arguments[2]).open(encoding="utf-8").readlines()[: int(arguments[1])])
    assert program == "attendb"
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def size_of_png(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no PNG"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_drawing_of_pooling_is_what_the_script_draws(tmp_path: Path) -> None:
    load(ROOT / "docs" / "make_images.py").draw_pooling(tmp_path / "pooling.svg")
    assert (tmp_path / "pooling.svg").read_text() == (ROOT / "docs" / "images" / "pooling.svg").read_text()


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nprint(2)\n```\n\n```text\n3\n```\n", "the page shows\n3\n"),
        ("```python\nprint(2)\n```\n", "the block prints\n2\n"),
        ("```python\nx = 1\n```\n\n```text\n1\n```\n", "the page shows\n1\n"),
        ("```python\nprint(2)\n```\nwords\n```text\n2\n```\n", "the block prints\n2\n"),
    ],
    ids=["other output", "output not shown", "nothing printed", "output not right after"],
)
def test_page_that_shows_other_output_is_rejected(page: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(AssertionError) as error:
        blocks.run_page(path)
    assert complaint in str(error.value)


def test_blocks_of_a_page_share_names_and_errors_name_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Title\n\n```python\nx = 2\n```\n\n```python\nprint(x)\n```\n```text\n2\n```\n")
    assert blocks.run_page(path)["x"] == 2
    path.write_text("# Title\n\n```python\n\nraise ValueError\n```\n")
    with pytest.raises(ValueError) as error:
        blocks.run_page(path)
    assert error.traceback[-1].lineno == 4  # counted from 0


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_example_runs_and_prints(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(example), run_name="__main__")
    assert len(printed.getvalue().splitlines()) >= 2
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("page", ALL_TEXT, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = [markdown or html for markdown, html in LINK.findall(text)]
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), f"{name_of(page)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors_of(path), f"{name_of(page)} links to {link}, a heading that does not exist"


def anchors_of(page: Path) -> set[str]:
    """The anchors that headings get on GitHub."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shell_session() -> tuple[str, str]:
    """(command, what it prints) of the session in the README."""
    (session,) = (block for block in blocks.read_blocks(ROOT / "README.md") if block.language == "console")
    command, printed = session.text.split("\n", 1)
    return command.removeprefix("$ "), printed


def shape_of(printed: str) -> list[str]:
    """The lines without their numbers, and without the spaces and rules that depend on the width of a column."""
    lines = (re.sub(r"[\d,.]*\d", "#", re.sub(r"─+", "", line)) for line in printed.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def run_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from typer.testing import CliRunner

    from attendb.cli import app

    monkeypatch.chdir(folder)
    program, *arguments = command.split()
    assert program == "attendb"
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_readme_session_has_the_parts_that_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small table, so that it is quick: the titles and the names of the columns must be there."""
    lines = (files("attendb") / "data" / "power_plant.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "small.csv").write_text("\n".join(lines[:201]) + "\n", encoding="utf-8")
    command, shown = shell_session()
    printed = run_command(f"{command} --table small.csv --value output", tmp_path, monkeypatch)
    shown = " ".join(shown.replace("hour", "row").split())
    title = re.compile(r"(Error on the held-out rows|Bandwidths: [\w -]+|One answer explained)", re.MULTILINE)
    header = re.compile(r"^ ?(stored row|answer|column) .*", re.MULTILINE)
    titles, headers = title.findall(printed), [found[0] for found in header.finditer(printed)]
    assert len(titles) == len(headers) == 3
    for part in titles + headers:
        assert " ".join(part.split()) in shown


@pytest.mark.slow
def test_readme_session_is_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, shown = shell_session()
    printed = shape_of(run_command(command, tmp_path, monkeypatch))
    assert printed[: len(shape_of(shown))] == shape_of(shown)
