"""The code of the pages, run as it stands there.

The ``python`` blocks of a Markdown page run in order in one namespace. A ``text`` block that stands right after one
is what that block prints; a block of another language is only read.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

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


def run_page(page: Path) -> dict[str, Any]:
    """Run the page in the current folder and return its names; AssertionError where it prints something else."""
    names: dict[str, Any] = {"__name__": "__page__"}
    blocks = read_blocks(page)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python":
            continue
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")  # tracebacks name the page's lines
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        shown = after.text if after is not None and after.language == "text" and after.follows else ""
        if printed.getvalue().strip() != shown.strip():
            raise AssertionError(
                f"{page}:{block.line}: the page shows\n{shown}\nbut the block prints\n{printed.getvalue()}"
            )
    return names
