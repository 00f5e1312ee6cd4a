"""Files that are written: whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .printing import to_json

if TYPE_CHECKING:
    import pyarrow

TABLES = (".csv", ".parquet", ".jsonl")
PICTURES = (".png", ".svg", ".pdf")


def check_writable(path: str, ends: Sequence[str], option: str, *, not_over: Iterable[str] = ()) -> None:
    """Found out before the work, not after it: the end of the name, the folder, and that no input is overwritten."""
    place = Path(path)
    if place.suffix.lower() not in ends:
        raise InputError(f"{option} {path} has an unknown end: end the name in {', '.join(ends)}")
    if place.is_dir():
        raise InputError(f"{option} {path} is a folder: give the name of a file")
    if not place.parent.is_dir():
        raise InputError(f"{option} {path} cannot be written: there is no folder {place.parent}")
    for other in not_over:
        if place.exists() and Path(other).exists() and place.samefile(other):
            raise InputError(f"{option} {path} is a file that is read: give another name")


@contextmanager
def whole_file(path: str) -> Iterator[Path]:
    """A name beside ``path`` to write to; it takes the place of ``path`` at the end, and goes away after an error."""
    place = Path(path)
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}{place.suffix}")
    try:
        yield beside
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_table(table: pyarrow.Table, path: str) -> None:
    """CSV, Parquet or JSON Lines, by the end of the name."""
    end = Path(path).suffix.lower()
    writers: dict[str, Callable[[Any, Path], None]] = {".csv": _csv, ".parquet": _parquet, ".jsonl": _json_lines}
    with whole_file(path) as beside:
        writers[end](table, beside)


def _csv(table: pyarrow.Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv
    from pyarrow import types

    for i, column in enumerate(table.schema):
        if types.is_nested(column.type):  # a cell of CSV is text: a vector stands there as JSON
            cells = [None if x is None else to_json(x) for x in table[column.name].to_pylist()]
            table = table.set_column(i, column.name, pa.array(cells, pa.string()))
    pyarrow.csv.write_csv(table, path)


def _parquet(table: pyarrow.Table, path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


def _json_lines(table: pyarrow.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches():
            for row in batch.to_pylist():
                file.write(to_json(row) + "\n")
