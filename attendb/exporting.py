"""A stream of record batches → a Parquet or CSV file, whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_PACKING = {".gz": "gzip", ".zst": "zstd"}
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv"}
ROW_GROUP, GROUP_BYTES = 1 << 18, 128 << 20  # of a group of rows in Parquet, whichever comes first


def export(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    path: str | Path,
    *,
    format: str | None = None,
    overwrite: bool = False,
    rows: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> int:
    """Write batches of one schema to a file; how many rows were written.

    ``path``: .parquet, .csv or .tsv, the last two also .csv.gz, .csv.zst; ``format`` says it where the name does not.
    ``overwrite``: replace a file that is there. ``rows``: how many will come, for ``progress(done, rows)``.

    The file is written beside its place under another name, forced to disk and renamed: after an error or a crash the
    old file is there, or none. CSV is written so that `open_table` gives back the same types: fractions keep a point,
    text that looks like something else is the exception, since CSV has no types.

    Raises InputError for a name that tells no format, a file that is there, a folder that is not, and columns that the
    format cannot hold. Cost: O(batch) memory; Parquet keeps a group of rows.

    >>> import tempfile, pathlib
    >>> import pyarrow as pa
    >>> from attendb.importing import open_table
    >>> table = open_table({"site": ["a", "b"], "output": [480.5, 439.0]})
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "plant.csv"
    >>> export(table.batches(), table.schema, file)
    2
    >>> print(file.read_text())
    "site","output"
    "a",480.5
    "b",439.0
    <BLANKLINE>

    Source: RFC 4180 for CSV.
    """
    path = Path(path)
    kind, packing = _format(path, format)
    if kind != "parquet":
        _only_scalars(schema, path)
    if not overwrite and path.exists():
        raise InputError(f"{path} is already there: choose another name, or say overwrite=True (--overwrite)")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with open(beside, "xb") as file:
            done = _write(batches, schema, file, path, kind, packing, rows, progress)
            file.flush()
            os.fsync(file.fileno())
        _publish(beside, path, overwrite=overwrite)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}): nothing was changed") from None
    finally:
        with suppress(OSError):
            beside.unlink()
    return done


def _write(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    file: Any,
    path: Path,
    kind: str,
    packing: str | None,
    rows: int | None,
    progress: Callable[[int, int | None], None] | None,
) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done, mark = 0, "\t" if kind == "tsv" else ","
    writer: Any = None
    with ExitStack() as stack:
        sink = stack.enter_context(pa.PythonFile(_Unclosed(file), mode="w"))
        if kind == "parquet":
            writer = stack.enter_context(pq.ParquetWriter(sink, schema, compression="zstd"))
        else:
            if packing is not None:
                sink = stack.enter_context(pa.CompressedOutputStream(sink, packing))
            sink.write(_line(schema.names, mark))
        waiting: list[pa.RecordBatch] = []
        size = count = 0
        for batch in batches:
            if kind != "parquet":
                sink.write(_lines(batch, mark, path))
            else:
                # Small batches would make small groups, which read slowly.
                waiting.append(batch)
                size, count = size + batch.nbytes, count + batch.num_rows
                if count >= ROW_GROUP or size >= GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=ROW_GROUP)
                    waiting, size, count = [], 0, 0
            done += batch.num_rows
            if progress is not None:
                progress(done, rows)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=ROW_GROUP)
    return done


class _Unclosed:
    """A file that outlives the writer, so that it can be forced to disk."""

    def __init__(self, file: Any) -> None:
        self.write, self.flush, self.tell, self.closed = file.write, file.flush, file.tell, False

    def close(self) -> None:
        """Left to the owner."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """No."""
        return False

    def seekable(self) -> bool:
        """No."""
        return False


def _publish(beside: Path, path: Path, *, overwrite: bool) -> None:
    """Give the file its name in one step, and force the folder to disk."""
    if overwrite:
        os.replace(beside, path)
    else:
        try:
            os.link(beside, path)  # unlike a rename, it fails where another process was faster
        except FileExistsError:
            raise InputError(f"{path} is already there: choose another name, or say overwrite=True") from None
        except OSError:  # a file system without links
            if path.exists():
                raise InputError(f"{path} is already there: choose another name, or say overwrite=True") from None
            os.replace(beside, path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _format(path: Path, wanted: str | None) -> tuple[str, str | None]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = _PACKING.get(suffixes[-1]) if suffixes else None
    if packing:
        suffixes.pop()
    kind = wanted or (_SUFFIXES.get(suffixes[-1]) if suffixes else None)
    if kind not in ("parquet", "csv", "tsv"):
        raise InputError(f"{path} cannot be written: end its name in {', '.join(_SUFFIXES)}, or give format=")
    if kind == "parquet" and packing:
        raise InputError(f"{path} cannot be written: Parquet packs its columns itself, so end its name in .parquet")
    return kind, packing


def _only_scalars(schema: pa.Schema, path: Path) -> None:
    import pyarrow as pa

    for field in schema:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise InputError(
                f"{path} cannot hold column {field.name!r} ({field.type}): write .parquet, or leave the column out"
            )


def _line(names: Iterable[str], mark: str) -> bytes:
    return (mark.join('"' + name.replace('"', '""') + '"' for name in names) + "\n").encode()


def _lines(batch: pa.RecordBatch, mark: str, path: Path) -> bytes:
    """The rows as lines of text: text in quotation marks, so that an empty one is told from a missing one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return b""
    columns = [_cells(column, field, path) for column, field in zip(batch.columns, batch.schema, strict=True)]
    null = pc.JoinOptions(null_handling="replace", null_replacement="")
    rows = pc.call_function("binary_join_element_wise", [*columns, pa.scalar(mark, pa.large_string())], null)
    offsets = pa.array([0, len(rows)], pa.int64())
    whole = pa.LargeListArray.from_arrays(offsets, rows)
    text = pc.call_function("binary_join", [whole, pa.scalar("\n", pa.large_string())])
    return text[0].as_buffer().to_pybytes() + b"\n"


def _cells(column: pa.Array, field: pa.Field, path: Path) -> pa.Array:
    """A column as cells of CSV; null stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t, text = pa.types, pa.large_string()
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    if t.is_string(column.type) or t.is_large_string(column.type) or t.is_string_view(column.type):
        doubled = pc.call_function("replace_substring", [column.cast(text)], pc.ReplaceSubstringOptions('"', '""'))
        quote, none = pa.scalar('"', text), pa.scalar("", text)
        return pc.call_function("binary_join_element_wise", [quote, doubled, quote, none])
    if t.is_float16(column.type):
        column = column.cast(pa.float32())
    try:
        cells = column.cast(text)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} cannot hold column {field.name!r} ({error}): write .parquet") from None
    if not t.is_floating(column.type):
        return cells
    # 439.0 and not 439: the type of the column shall be seen in every cell.
    bare = pc.call_function("is_finite", [column])
    for sign in ".e":
        at = pc.call_function("find_substring", [cells], pc.MatchSubstringOptions(sign))
        bare = pc.call_function("and", [bare, pc.call_function("less", [at, pa.scalar(0, at.type)])])
    pointed = pc.call_function("binary_join_element_wise", [cells, pa.scalar(".0", text), pa.scalar("", text)])
    return pc.call_function("if_else", [bare, pointed, cells])
