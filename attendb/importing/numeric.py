"""The numeric columns of a text file as one matrix, with an account of everything that is not in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from .delimited import open_delimited

if TYPE_CHECKING:
    import pyarrow as pa

EXACT = 2**53  # whole numbers beyond it do not fit a float64


@dataclass(frozen=True)
class NumericTable:
    """The numeric columns of a file, and an account of everything that is not in them."""

    names: tuple[str, ...]
    rows: np.ndarray  # (m, d) float64, no NaN
    lines: np.ndarray  # (m,) int64: the line of the file where each row starts, from 1
    skipped: tuple[int, ...]  # lines of the rows that lacked a number
    left_out: dict[str, str]  # columns that are not numeric: why

    def column(self, name: str) -> int:
        """The place of a column; InputError lists the columns when there is no such one."""
        if name in self.names:
            return self.names.index(name)
        why = f", and {name!r} was left out: {self.left_out[name]}" if name in self.left_out else ""
        raise InputError(f"there is no numeric column {name!r}{why}: choose one of {', '.join(self.names)}")


def read_numeric_csv(path: str | Path) -> NumericTable:
    """Read the columns of a CSV file that hold numbers, as `open_table` tells them.

    Columns of text, of codes with leading zeros, of whole numbers beyond 2⁵³ and of infinite numbers are left out and
    listed in ``left_out`` with the reason. A row that lacks a number in a numeric column is skipped and listed in
    ``skipped``.

    Raises InputError as `open_table` does, and when no numeric column or no whole row is left.
    Cost: two passes over the file; the matrix is held in memory, 8 bytes a number.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "plant.csv"
    >>> _ = file.write_text("hour,site,output\\n1,a,480.5\\n2,b,\\n3,c,438.8\\n")
    >>> table = read_numeric_csv(file)
    >>> table.names, table.rows.tolist(), table.skipped
    (('hour', 'output'), [[1.0, 480.5], [3.0, 438.8]], (3,))
    >>> table.left_out
    {'site': "text such as 'a' (line 2)"}

    Source: RFC 4180, with the byte-order mark.
    """
    import pyarrow as pa

    path = Path(path)
    table = open_delimited(path)
    if not table.rows:
        raise InputError(f"{path} holds no rows: it must have a line of column names and at least one row below it")
    whole = pa.Table.from_batches(table.batches(), table.schema)
    lines = table.lines(np.arange(table.rows))
    columns: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    for field in table.schema:
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            column, reason = _as_float(whole[field.name], lines)
        else:
            column, reason = None, table.reasons[field.name].removeprefix("text: ")
        if column is None:
            left_out[field.name] = reason
        else:
            columns[field.name] = column
    if not columns:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"{path} has no numeric column ({reasons}): at least one must hold numbers only")
    rows = np.stack(list(columns.values()), axis=1)
    there = ~np.isnan(rows).any(axis=1)
    if not there.any():
        counts = ", ".join(f"{name} in {int(n)}" for name, n in zip(columns, np.isnan(rows).sum(0), strict=True) if n)
        raise InputError(
            f"{path} has no row with a number in every numeric column: of {len(rows)} rows, missing {counts}"
        )
    return NumericTable(tuple(columns), rows[there], lines[there], tuple(lines[~there].tolist()), left_out)


def _as_float(column: pa.ChunkedArray, lines: np.ndarray) -> tuple[np.ndarray | None, str]:
    """The numbers with NaN for missing ones; None and the reason where float64 would change one, or one is infinite."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type):
        big = (
            pc.call_function("greater", [column, pa.scalar(EXACT)]),
            pc.call_function("less", [column, pa.scalar(-EXACT)]),
        )
        bad = np.flatnonzero(pc.call_function("or", list(big)).fill_null(False).to_numpy())
        reason = "which does not fit a 64-bit float exactly"
    else:
        bad = np.flatnonzero(pc.call_function("is_inf", [column]).fill_null(False).to_numpy())
        reason = "which is no finite number"
    if len(bad):
        return None, f"line {int(lines[bad[0]])} has {column[int(bad[0])].as_py()}, {reason}"
    return column.cast(pa.float64()).to_numpy(), ""
