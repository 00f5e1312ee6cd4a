"""Where words and numbers go: results on stdout, messages and progress on stderr.

Names and texts come from files of strangers, so whatever could steer a terminal is shown as an escape.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import typer

SHOWN_NAMES = 20  # of columns, in a message
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters, reversals of direction and broken Unicode as \\x.. or \\u....: tabs stay."""
    return _STEERING.sub(_escape, text)


def cell(value: Any) -> str:
    """A value on one line of words; a number in six digits, a whole number in all of its."""
    if value is None or isinstance(value, float) and math.isnan(value):
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(cell, value)) + "]"
    return _CONTROLS.sub(_escape, str(plain(value)))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def note(text: str) -> None:
    """A line on stderr: what was assumed, what was done."""
    typer.echo(printable(text), err=True)


def result(text: str) -> None:
    """A line on stdout."""
    typer.echo(printable(text))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON value on stdout; see `to_json`."""
    typer.echo(to_json(value, indent=indent))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with whole numbers in all their digits, decimal ones in the shortest form that reads back the same.

    NaN and infinities, which JSON does not have, are null; dates are ISO 8601; decimals are text; bytes are base64.
    """
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return _CONTROLS.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def plain(value: Any) -> Any:
    """What JSON can hold."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if hasattr(value, "tolist"):  # numpy
        return plain(value.tolist())
    return str(value)


def aligned(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Lines of a table: numbers to the right, text to the left."""
    cells = [[cell(name) for name in names], *([cell(x) for x in row] for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(names))]
    right = [all(_is_number(row[j]) for row in rows) for j in range(len(names))]
    for row in cells:
        parts = (x.rjust(w) if r else x.ljust(w) for x, w, r in zip(row, widths, right, strict=True))
        yield "  ".join(parts).rstrip()


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float)) and not isinstance(value, bool)


def closest_first(wanted: str, names: Sequence[str]) -> list[str]:
    """The names, those that are spelt most alike first."""
    lowered = {name.lower(): name for name in reversed(names)}
    close = [lowered[name] for name in get_close_matches(wanted.lower(), list(lowered), n=3, cutoff=0.5)]
    return [*close, *(name for name in names if name not in close)]


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first twenty."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def shell_word(text: str) -> str:
    """The text as it can be typed in a shell."""
    import shlex

    return shlex.quote(text)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on stderr, and only where stderr is a terminal. ``advance(done, total)``; total None: unknown."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
