"""The code of the pages, run as it stands there.

The ``python`` blocks of a Markdown page run in order in one namespace. A ``text`` block that stands right after one
is what that block prints. In a ``console`` block a line that starts with "$ " is a command, what follows is its standard
output; it runs where a shell is given. A block of another language is only read.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")  # passes
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page on which the text starts."""

    language: str
    text: str
    line: int
    follows: bool  # nothing but blank lines stand between the block before and this one


def read_blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text, blocks, end = page.read_text(encoding="utf-8"), [], 0
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start(2)) + 1
        follows = bool(blocks) and not text[end : found.start()].strip()
        blocks.append(Block(found[1], found[2], line, follows))
        end = found.end()
    return blocks


def run_page(page: Path, shell: Callable[[str], str] | None = None) -> dict[str, Any]:
    """Run the page in the current folder and return its names; AssertionError where it prints something else.

    ``shell``: runs a command and returns its standard output.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    blocks = read_blocks(page)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "console" and shell is not None:
            for command, shown in commands(block.text):
                _compare(page, block.line, command, shown, shell(command))
        if block.language != "python":
            continue
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")  # tracebacks name the page's lines
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        shown = after.text if after is not None and after.language == "text" and after.follows else ""
        _compare(page, block.line, "the block", shown, printed.getvalue())
    return names


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block; a backslash at the end of a line goes on with the next."""
    parts = re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]
    return [(command.strip(), shown) for command, _, shown in (part.partition("\n") for part in parts)]


def _compare(page: Path, line: int, what: str, shown: str, printed: str) -> None:
    shown_now, printed_now = (TIME.sub("time", "\n".join(x.rstrip() for x in y.splitlines())) for y in (shown, printed))
    if printed_now.strip() != shown_now.strip():
        raise AssertionError(f"{page}:{line}: the page shows\n{shown}\nbut {what} prints\n{printed}")
