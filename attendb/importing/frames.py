"""Tables in memory: pandas, polars, pyarrow, dicts of columns, and whatever offers an Arrow stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, KindError
from .columnar import pandas_index
from .normal import ArrowImport, arrow_import
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa


def open_frame(
    source: Any, *, types: Mapping[str, pa.DataType] | None, text: Sequence[str], progress: Progress | None
) -> ArrowImport:
    """A frame, an Arrow table or stream, or a dict of columns."""
    import pyarrow as pa

    module = type(source).__module__.split(".", 1)[0]
    options: dict[str, Any] = {"types": types, "text": text, "progress": progress}
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, Mapping):
        return open_table_in_memory(_from_dict(source), where="the table", **options)
    if isinstance(source, pa.Table):
        return open_table_in_memory(source, where="the table", **options)
    if isinstance(source, pa.RecordBatchReader):
        return _open_reader(source, where="the stream", **options)
    if module == "pandas" and hasattr(source, "columns"):
        return open_table_in_memory(_from_pandas(source), where="the frame", **options)
    if module == "polars" and hasattr(source, "collect") and not hasattr(source, "to_arrow"):
        source = source.collect()
    if module == "polars" and hasattr(source, "to_arrow") and hasattr(source, "columns"):
        return open_table_in_memory(source.to_arrow(), where="the frame", **options)
    if hasattr(source, "__arrow_c_stream__"):
        return _open_reader(pa.RecordBatchReader.from_stream(source), where="the stream", **options)
    if hasattr(source, "to_batches") and hasattr(source, "schema"):  # a pyarrow dataset

        def read() -> Iterator[pa.RecordBatch]:
            yield from source.to_batches()

        return arrow_import(
            pa.schema([pa.field(f.name, f.type) for f in source.schema]), read, where="the dataset",
            rows=source.count_rows(), index=pandas_index(source.schema), **options,
        )  # fmt: skip
    raise KindError(
        f"a {type(source).__name__} is no table: give a path, a dict of columns, a frame of pandas, polars or pyarrow"
    )


def open_table_in_memory(
    table: pa.Table,
    *,
    where: str,
    types: Mapping[str, pa.DataType] | None,
    text: Sequence[str],
    progress: Progress | None,
    notes: Sequence[str] = (),
) -> ArrowImport:
    """An Arrow table; chunks stay apart, so that text beyond 2 GiB is no special case."""
    import pyarrow as pa

    def read() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()

    schema = pa.schema([pa.field(field.name, field.type) for field in table.schema])
    return arrow_import(
        schema, read, where=where, rows=table.num_rows, types=types, text=text, index=pandas_index(table.schema),
        notes=notes, progress=progress,
    )  # fmt: skip


def _open_reader(reader: pa.RecordBatchReader, *, where: str, **options: Any) -> ArrowImport:
    """A stream that can be read once; lists in it are not measured first, so they stay lists."""
    import pyarrow as pa

    taken: list[bool] = []
    lists = [f.name for f in reader.schema if pa.types.is_list(f.type) or pa.types.is_large_list(f.type)]

    def read() -> Iterator[pa.RecordBatch]:
        if taken:
            raise InputError(f"{where} can be read only once: give a table, or a new stream")
        taken.append(True)
        yield from reader

    types = dict(options.pop("types") or {})
    notes = [
        f"column {name!r} holds lists, and a stream is read only once: they stay lists unless types= says vectors"
        for name in lists
        if name not in types
    ]
    for field in reader.schema:
        if field.name in lists and field.name not in types:
            types[field.name] = pa.list_(field.type.value_type)
    schema = pa.schema([pa.field(f.name, f.type) for f in reader.schema])
    return arrow_import(
        schema, read, where=where, rows=None, types=types, index=pandas_index(reader.schema), notes=notes, **options
    )


def _from_pandas(frame: Any) -> pa.Table:
    import pyarrow as pa

    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"the frame has two columns {twice[0]!r}: rename one")
    try:
        return pa.Table.from_pandas(frame, preserve_index=None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"the frame has a column of mixed types ({'; '.join(map(str, error.args))}): give each column one type"
        ) from None


def _from_dict(columns: Mapping[Any, Any]) -> pa.Table:
    import pyarrow as pa

    if not columns:
        raise InputError("the table has no columns: give at least one")
    arrays = {str(name): _array(str(name), column) for name, column in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"the columns have different lengths ({lengths}): give every column one length")
    return pa.table(arrays)


def _array(name: str, column: Any) -> Any:
    import pyarrow as pa

    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return column
    if isinstance(column, str):
        raise KindError(f"column {name!r} is one text: give a list with one value for each row")
    try:
        if isinstance(column, np.ndarray) and column.ndim > 1:
            return vectors(column)
        to_arrow = getattr(column, "to_arrow", None)  # of polars
        if to_arrow is not None:
            return to_arrow()
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise InputError(f"column {name!r} has no single type ({error}): give it values of one type") from None


def vectors(array: np.ndarray) -> pa.Array:
    """(m, d) numbers → m lists of d."""
    import pyarrow as pa

    if array.ndim != 2:
        raise InputError(f"an array of shape {array.shape} is no column: give (rows,) or (rows, width)")
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
