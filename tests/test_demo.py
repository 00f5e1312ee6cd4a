"""The demo, through its command: what it prints, what it writes, what it refuses; and the CSV files that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attendb.cli import app
from attendb.demo import hold_out, learn_bandwidth, run_demo
from attendb.errors import InputError
from attendb.importing.numeric import NumericTable, read_numeric_csv


def invoke(*words: str | Path):
    return CliRunner().invoke(app, ["demo", *map(str, words)])


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """Price rises with the area; the hue of the door tells nothing; a text, a gap and a column that never varies."""
    rng = np.random.default_rng(0)
    lines = ["area,hue,town,planet,price"]
    for i in range(120):
        area, hue = rng.uniform(40, 200), rng.uniform(0, 360)
        lines.append(f"{area:.1f},{'' if i == 7 else f'{hue:.1f}'},Ulm,3,{2000 * area + 20000 * np.sin(area / 10):.0f}")
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(lines))
    return path


def test_demo_in_words(houses, tmp_path):
    out = tmp_path / "weights.png"
    result = invoke("--table", houses, "--value", "price", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    for words in ("108 rows are stored", "11 other rows", "key = area, hue; value = price", "RMSE", "5 nearest rows",
                  "'town' is not used: text such as 'Ulm' (line 2)",
                  "'planet' is not used: it is the same in every row",
                  "a number is missing: 1 (line 9)", "One answer explained", "matters", str(out)):  # fmt: skip
        assert words in result.stdout
    assert result.stderr == ""  # no progress bar where there is no terminal


def test_demo_as_json(houses, tmp_path):
    result = invoke("--table", houses, "--value", "price", "--out", tmp_path / "w.svg", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["rmse"]["attention"] < report["rmse"]["nearest_5"] < report["rmse"]["average"]
    assert report["bandwidth"]["hue"] > 3 * report["start"]["hue"]  # learned: the hue tells nothing
    assert report["bandwidth"]["area"] < report["start"]["area"]
    assert report["skipped_lines"] == [9]
    weights = [row["weight"] for row in report["example"]["rows"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(report["example"]["captured"])
    assert (tmp_path / "w.svg").stat().st_size > 0


def test_explained_rows_are_lines_of_the_file(houses, tmp_path):
    report = run_demo(houses, "price", out=tmp_path / "w.png")
    lines = houses.read_text().splitlines()
    for row in report.example.rows:
        area, hue, _, _, price = lines[row.line - 1].split(",")
        assert row.columns == {"area": float(area), "hue": float(hue)}
        assert row.value == float(price)
    assert report.example.line not in [row.line for row in report.example.rows]


def test_same_seed_same_report(houses, tmp_path):
    first, again, other = (run_demo(houses, "price", out=tmp_path / "w.png", seed=seed) for seed in (3, 3, 4))
    assert (first.rmse, first.bandwidth, first.example) == (again.rmse, again.bandwidth, again.example)
    assert first.rmse != other.rmse


def test_progress_is_told_step_by_step(houses):
    told: list[tuple[int, int]] = []
    split = hold_out(read_numeric_csv(houses), "price", seed=0)
    learn_bandwidth(split, split.spread, seed=0, on_step=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, len(told)) for i in range(len(told))]
    assert len(told) > 1


def test_held_out_rows_are_not_stored(houses):
    split = hold_out(read_numeric_csv(houses), "price", seed=0)
    assert not set(split.lines.tolist()) & set(split.query_lines.tolist())
    assert len(split.lines) + len(split.query_lines) == 119
    assert split.constant == ("planet",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--value", "rent"], "no numeric column 'rent': choose one of area, hue, planet, price"),
        (["--value", "town"], "'town' was left out: text such as 'Ulm' (line 2)"),
        ([], "give --value, one of area, hue, planet, price"),
        (["--value", "planet"], "'planet' is the same in every row"),
        (["--value", "price", "--out", "weights.txt"], "end its name in .png, .svg, .pdf"),
        (["--value", "price", "--out", "nowhere/w.png"], "there is no such folder"),
    ],
)
def test_errors_are_one_sentence(houses, options, message):
    result = invoke("--table", houses, *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("attendb: ")
    assert result.stderr.count("\n") == 1


def test_too_few_rows_or_columns(tmp_path):
    few = tmp_path / "few.csv"
    few.write_text("a,b\n1,2\n2,3\n")
    result = invoke("--table", few, "--value", "b")
    assert result.exit_code == 1
    assert "2 whole rows but the demo needs 20" in result.stderr
    lonely = tmp_path / "lonely.csv"
    lonely.write_text("a,b\n" + "\n".join(f"{i},1" for i in range(30)))
    assert "no column is left beside 'a'" in invoke("--table", lonely, "--value", "a").stderr


def test_help_shows_an_example():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "attendb demo --table houses.csv --value price" in result.stdout


def test_column_names_are_printed_as_they_are(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text("[b],[/red],x\n" + "\n".join(f"{i},{i % 7},{i * i}" for i in range(30)))
    result = invoke("--table", path, "--value", "x", "--out", tmp_path / "w.png")
    assert result.exit_code == 0, result.output
    assert "key = [b], [/red]; value = x" in result.stdout


def test_the_shipped_table_is_whole():
    from importlib.resources import as_file, files

    with as_file(files("attendb") / "data" / "power_plant.csv") as path:
        table = read_numeric_csv(path)
    assert table.names == ("temperature", "vacuum", "pressure", "humidity", "output")
    assert table.rows.shape == (9568, 5)
    assert (table.skipped, table.left_out) == ((), {})
    assert table.rows.mean(0) == pytest.approx([19.651231, 54.305804, 1013.259078, 73.308978, 454.365009])


@pytest.mark.slow
def test_power_plant_error_is_below_the_promise(tmp_path):
    report = run_demo(out=tmp_path / "w.png")
    assert report.rmse["attention"] <= 3.45
    assert report.rmse["attention"] < report.rmse["nearest_5"] < report.rmse["average"]


# What is read from a CSV file, and what is said about the rest


def table_of(tmp_path: Path, content: str | bytes) -> NumericTable:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_numeric_csv(path)


@pytest.mark.parametrize(
    "content",
    ["id,x\n1,2\n", b"\xef\xbb\xbfid,x\n1,2\n", "\ufeffid,x\n1,2\n".encode("utf-16-le"), "id,x\n1,2\n".encode("utf-16"),
     "id;x\n1;2\n", "id\tx\r\n1\t2\r\n", "id|x\n1|2", '"id", x\n"1",2\n\n'],
    ids="plain bom bom16 utf16 semicolon tab bar quoted".split(),
)  # fmt: skip
def test_encodings_and_delimiters(tmp_path, content):
    table = table_of(tmp_path, content)
    assert table.names == ("id", "x")
    assert table.rows.tolist() == [[1.0, 2.0]]


def test_one_column(tmp_path):
    table = table_of(tmp_path, "x\n1\n\nNA\n-2.5e1\n")
    assert table.rows.tolist() == [[1.0], [-25.0]]
    assert table.skipped == (3, 4)
    assert table.lines.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("02116", "'02116' (line 3) has a leading zero, so a code"),
        ("1234567890123456789", "does not fit a 64-bit float exactly"),
        ("1e999", "'1e999' (line 3) is a number beyond every 64-bit float"),
        ("1_000", "text such as '1_000' (line 3)"),
        ("inf", "line 3 has inf, which is no finite number"),
        ('"1,5"', "'1,5' (line 3) has a decimal comma"),
    ],
)
def test_cells_that_are_no_numbers_name_their_line(tmp_path, cell, reason):
    table = table_of(tmp_path, f"x,y\n1,1\n{cell},2\n")
    assert table.names == ("y",)
    assert reason in table.left_out["x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "holds no rows"),
        ("a,b\n1,2,3\n", "line 2: 3 cells where the first line names 2 columns"),
        ("a,b\n1,2\n3\n", "line 3: 1 cells where the first line names 2 columns"),
        ("a,a\n1,2\n", "the column name 'a' stands there twice"),
        ("1,2\n3,4\n", "numbers where the column names must stand"),
        (b"a\ncaf\xe9\n", "line 2: byte 0xe9 at position 5 is not UTF-8"),
        ('a,b\n"1,2\n', "close or double the quotation marks"),
        ("a\nx\n", r"no numeric column \(a: text such as 'x' \(line 2\)\)"),
        ("a,b\n,1\n2,\n", "of 2 rows, missing a in 1, b in 1"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        table_of(tmp_path, content)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"absent\.csv cannot be read \(No such file or directory\)"):
        read_numeric_csv(tmp_path / "absent.csv")
