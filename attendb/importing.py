"""Files → columns. Here: a CSV file → its numeric columns, with nothing lost in silence."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import InputError

DELIMITERS = (",", ";", "\t", "|")
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
EXACT = 2**53  # whole numbers beyond it do not fit a float64
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CODE = re.compile(r"[+-]?0\d+")  # a leading zero: a code such as 02116, no quantity


@dataclass(frozen=True)
class NumericTable:
    """The numeric columns of a file, and an account of everything that is not in them."""

    names: tuple[str, ...]
    rows: np.ndarray  # (m, d) float64, no NaN
    lines: np.ndarray  # (m,) int64: the line of the file where each row ends, from 1
    skipped: tuple[int, ...]  # lines of the rows that lacked a number
    left_out: dict[str, str]  # columns that are not numeric: why

    def column(self, name: str) -> int:
        """The place of a column; InputError lists the columns when there is no such one."""
        if name in self.names:
            return self.names.index(name)
        why = f", and {name!r} was left out: {self.left_out[name]}" if name in self.left_out else ""
        raise InputError(f"there is no numeric column {name!r}{why}: choose one of {', '.join(self.names)}")


def read_numeric_csv(path: str | Path) -> NumericTable:
    """Read the columns of a CSV file that hold numbers.

    The first line names the columns. The delimiter is the one of comma, semicolon, tab and bar that cuts the first
    line most often. A column is numeric when every cell that is not missing (empty, ?, NA, NaN, null, none) is a number
    with a decimal point; columns of text, of codes with leading zeros, of whole numbers beyond 2⁵³, and columns without
    a name are left out and listed in ``left_out`` with the reason. A row that lacks a number in a numeric column is
    skipped and listed in ``skipped``. The file is UTF-8, with or without a byte-order mark, or UTF-16 with one.

    Raises InputError, naming the line, for no such file, other encodings, names that repeat or are absent, rows with
    more or fewer cells than names, and when no numeric column or no whole row is left.
    Cost: the file is held in memory as text, about 10 µs a row of five cells.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "plant.csv"
    >>> _ = file.write_text("hour,site,output\\n1,a,480.5\\n2,b,\\n3,c,438.8\\n")
    >>> table = read_numeric_csv(file)
    >>> table.names, table.rows.tolist(), table.skipped
    (('hour', 'output'), [[1.0, 480.5], [3.0, 438.8]], (3,))
    >>> table.left_out
    {'site': "line 2 has 'a'"}

    Source: RFC 4180, with the byte-order mark.
    """
    path = Path(path)
    names, cells, lines = _cells(path)
    columns: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    for j, name in enumerate(names):
        values = [row[j].strip() for row in cells]
        reason = _why_not_numeric(name, values, lines)
        if reason is None:
            numbers = [np.nan if value.lower() in MISSING else float(value) for value in values]
            columns[name] = np.array(numbers, dtype=np.float64)
        else:
            left_out[name or f"column {j + 1}"] = reason
    if not columns:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"{path} has no numeric column ({reasons}): at least one must hold numbers only")
    rows = np.stack(list(columns.values()), axis=1)
    whole = ~np.isnan(rows).any(axis=1)
    if not whole.any():
        counts = ", ".join(f"{name} in {int(n)}" for name, n in zip(columns, np.isnan(rows).sum(0), strict=True) if n)
        raise InputError(
            f"{path} has no row with a number in every numeric column: of {len(rows)} rows, missing {counts}"
        )
    places = np.array(lines, dtype=np.int64)
    return NumericTable(tuple(columns), rows[whole], places[whole], tuple(places[~whole].tolist()), left_out)


def _why_not_numeric(name: str, values: list[str], lines: list[int]) -> str | None:
    if not name:
        return "it has no name"
    some = False
    for value, line in zip(values, lines, strict=True):
        if value.lower() in MISSING:
            continue
        some = True
        if _CODE.fullmatch(value):
            return f"line {line} has {value!r}, a code with a leading zero"
        if not _NUMBER.fullmatch(value):
            comma = ", a decimal comma" if re.fullmatch(r"[+-]?[\d.]*,\d+", value) else ""
            return f"line {line} has {value!r}{comma}"
        number = float(value)
        if not np.isfinite(number) or (abs(number) > EXACT and value.lstrip("+-").isdigit()):
            return f"line {line} has {value}, which does not fit a 64-bit float exactly"
    return None if some else "every cell is missing"


def _cells(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Names, rows of as many cells, and the line on which each row ends."""
    text = _text(path)
    head = text.split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=lambda mark: len(next(csv.reader([head], delimiter=mark), [])))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row:
                if names is None or len(names) > 1:
                    continue
                row = [""]  # in a file of one column, an empty line is a missing cell
            if names is None:
                names = _names(path, row)
            elif len(row) == len(names):
                cells.append(row)
                lines.append(reader.line_num)
            else:
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} cells where the first line names {len(names)} columns"
                    f" (delimiter {delimiter!r}): give every row as many cells as there are names"
                )
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}: close or double the quotation marks") from None
    if names is None or not cells:
        raise InputError(f"{path} holds no rows: it must have a line of column names and at least one row below it")
    return names, cells, lines


def _names(path: Path, row: list[str]) -> list[str]:
    names = [cell.strip() for cell in row]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{path}, line 1: the column name {twice[0]!r} stands there twice: give each its own")
    if all(_NUMBER.fullmatch(name) for name in names):
        raise InputError(f"{path}, line 1: {', '.join(names[:3])} are numbers where the column names must stand")
    return names


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): give the path of a CSV file") from None
    encoding = "UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "UTF-8"
    try:
        return raw.decode(encoding).removeprefix("\ufeff")  # the byte-order mark is no part of the first name
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} at position {error.start} is not {encoding}: "
            "save the file as UTF-8"
        ) from None
