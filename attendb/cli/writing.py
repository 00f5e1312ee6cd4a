"""Files that are written: whole, or not at all, and none in the place of another by mistake."""

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

TABLES = (".csv", ".tsv", ".csv.gz", ".csv.zst", ".tsv.gz", ".tsv.zst", ".parquet", ".jsonl")
PICTURES = (".png", ".svg", ".pdf")


def check_writable(
    path: str, ends: Sequence[str], *, inputs: Iterable[str] = (), overwrite: bool | None = None
) -> None:
    """Found out before the work, not after it: the end of the name, the folder, and that nothing is lost.

    ``overwrite``: whether the user said so; None: pictures, which are drawn anew each time.
    """
    place = Path(path)
    if not place.name.lower().endswith(tuple(ends)):
        raise InputError(f"{path} cannot be written: end its name in {', '.join(ends)}")
    if place.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder, give the name of a file")
    if not place.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {place.parent}")
    for other in inputs:
        if place.exists() and Path(other).exists() and place.samefile(other):
            raise InputError(f"{path} cannot be written, since it is read: give another name")
    if overwrite is False and place.exists():
        raise InputError(f"{path} is already there: give another name, or say --overwrite")


@contextmanager
def whole_file(path: str) -> Iterator[Path]:
    """A name beside ``path`` to write to; it takes the place of ``path`` at the end, and goes away after an error."""
    place = Path(path)
    beside = place.with_name(f".{place.name}.{secrets.token_hex(6)}{place.suffix}")
    try:
        yield beside
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_rows(
    batches: Iterable[pyarrow.RecordBatch],
    schema: pyarrow.Schema,
    path: str,
    *,
    overwrite: bool = False,
    rows: int | None = None,
    advance: Callable[[int, int | None], None] | None = None,
) -> int:
    """CSV, TSV, Parquet or JSON Lines, by the end of the name; how many rows were written."""
    from ..exporting import export

    if not path.lower().endswith(".jsonl"):
        return export(batches, schema, path, overwrite=overwrite, rows=rows, progress=advance)
    done = 0
    with whole_file(path) as beside, beside.open("x", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(to_json(row) + "\n" for row in batch.to_pylist())
            done += batch.num_rows
            if advance is not None:
                advance(done, rows)
        file.flush()
        os.fsync(file.fileno())
    return done


def print_rows(batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema) -> int:
    """The rows as CSV on stdout, a batch at a time."""
    import sys

    import pyarrow as pa
    import pyarrow.csv

    done = 0
    with pyarrow.csv.CSVWriter(_Stdout(sys.stdout), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            done += batch.num_rows
    assert isinstance(schema, pa.Schema)
    return done


class _Stdout:
    """Where bytes become text on stdout, whatever that is."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, data: Any) -> int:
        self.stream.write(bytes(data).decode("utf-8"))
        return len(data)

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        self.flush()
