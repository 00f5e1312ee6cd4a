"""One sheet of an Excel workbook, by openpyxl: cells keep the types that they have there."""

from __future__ import annotations

import datetime
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .deciding import listed, shortened
from .frames import open_table_in_memory
from .normal import ArrowImport
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT = 2**53


def open_spreadsheet(
    path: Path,
    *,
    sheet: str | None,
    types: Mapping[str, pa.DataType] | None,
    text: Sequence[str],
    progress: Progress | None,
) -> ArrowImport:
    """The first sheet, or the one named; its first row holds the names. The sheet is held in memory."""
    import pyarrow as pa

    try:
        import openpyxl
    except ImportError:
        raise InputError(f"reading {path} needs the package openpyxl: pip install 'attendb[excel]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and charts, which are not read
            book = openpyxl.load_workbook(path, data_only=True)
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a workbook ({error}): save it as .xlsx") from None
    try:
        titles = [found.title for found in book.worksheets]
        if sheet is not None and sheet not in titles:
            raise InputError(f"{path} has no sheet {sheet!r}: its sheets are {', '.join(titles)}")
        notes = []
        if sheet is None and len(titles) > 1:
            notes.append(f"sheet {titles[0]!r} was read; the others ({listed(titles[1:])}) need sheet=")
        page = book[sheet or titles[0]]
        merged = [str(area) for area in page.merged_cells.ranges]
        if merged:
            notes.append(f"{len(merged):,} merged areas ({listed(merged, 3)}): only the first cell of each has a value")
        rows = list(_trimmed(page.iter_rows(values_only=True)))
    finally:
        book.close()
    where = f"{path}, sheet {sheet or titles[0]!r}"
    if not rows:
        raise InputError(f"{where} is empty: it must have a row of column names and rows below it")
    names = ["" if cell is None else str(cell).strip() for cell in rows[0]]
    columns: dict[str, pa.Array] = {}
    for at, name in enumerate(names):
        name = name or f"column {at + 1}"
        if name in columns:
            raise InputError(f"{where}: the column name {name!r} stands there twice: give each its own")
        columns[name] = _column(name, [row[at] for row in rows[1:]], where, notes)
    return open_table_in_memory(pa.table(columns), where=where, types=types, text=text, notes=notes, progress=progress)


def _trimmed(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Rows without those at the end, and without columns at the right, that hold nothing."""
    kept = list(rows)
    while kept and all(cell is None for cell in kept[-1]):
        kept.pop()
    width = max((at + 1 for row in kept for at, cell in enumerate(row) if cell is not None), default=0)
    return (row[:width] for row in kept)


def _column(name: str, cells: list[Any], where: str, notes: list[str]) -> pa.Array:
    """Cells of one type keep it; whole numbers among fractions become fractions, all else text."""
    import pyarrow as pa

    kinds = {type(cell) for cell in cells if cell is not None}
    for at, cell in enumerate(cells):
        if isinstance(cell, str) and cell.startswith("#") and cell.rstrip("!?").isupper() and len(cell) < 9:
            raise InputError(f"{where}, row {at + 2}: column {name!r} holds the error {cell}: mend the formula")
    if not kinds:
        return pa.array(cells, pa.null())
    if kinds == {datetime.datetime} and all(c is None or c.time() == datetime.time() for c in cells):
        return pa.array([c if c is None else c.date() for c in cells], pa.date32())
    whole = [cell for cell in cells if type(cell) is int]
    if kinds == {float} and all(cell is None or cell.is_integer() for cell in cells):
        cells = [cell if cell is None or abs(cell) > _EXACT else int(cell) for cell in cells]
        kinds = {type(cell) for cell in cells if cell is not None}
    if len(kinds) == 1 or (kinds == {int, float} and all(abs(cell) <= _EXACT for cell in whole)):
        try:
            return pa.array(cells, pa.float64() if kinds == {int, float} else None)
        except (pa.ArrowInvalid, OverflowError):
            pass  # whole numbers beyond 64 bits: text, as below
    examples = {
        type(cell).__name__: (at + 2, cell) for at, cell in reversed(list(enumerate(cells))) if cell is not None
    }
    found = ", ".join(
        f"{shortened(str(cell))!r} (row {row})" for row, cell in sorted(examples.values(), key=lambda x: x[0])
    )
    notes.append(f"column {name!r} is text, because no one type holds {found}")
    return pa.array([cell if cell is None else str(cell) for cell in cells], pa.large_string())
