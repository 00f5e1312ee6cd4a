"""Between Arrow arrays and the columns of a source: tensors (r, width), or texts with None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import InputError, KindError
from .base import Data
from .rows import is_frame

pc: Any = pyarrow.compute  # whose functions are made when it is imported


class Missing(Exception):
    """What a column lacks, as a short fact."""


def flat_list(number: pa.DataType, width: int) -> pa.DataType:
    """Rows of some width, none of whose numbers is missing alone."""
    return pa.list_(pa.field("item", number, nullable=False), width)


def array_of(data: Data) -> pa.Array:
    """A source's column as Arrow: width 1 is a plain column. Numbers are not copied."""
    if isinstance(data, Opaque):
        present = [x for x in data.rows if x is not None]
        if not present:
            return pa.nulls(len(data))
        text = all(isinstance(x, str) for x in present)
        return pa.array(data.rows, pa.string(), from_pandas=True) if text else pa.array(list(data.rows))
    if data.dtype == torch.bfloat16:
        raise KindError("a table on disk cannot hold bfloat16: convert it to float32")
    numbers = data.detach().cpu().contiguous().numpy()
    flat = pa.array(numbers.reshape(-1))
    width = numbers.shape[1]
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, type=flat_list(flat.type, width))


def data_of(array: pa.Array, kind: pa.DataType) -> Data:
    """A stored column as a source hands it out; a missing number is NaN. Numbers are copied only where need be."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Opaque(array.to_numpy(zero_copy_only=False))
    if not is_number(kind) and not is_vector(kind):
        return _objects(array)
    if pa.types.is_fixed_size_list(kind):
        width, missing = kind.list_size, None
        if array.null_count:
            missing = np.asarray(array.is_null())
        flat = array.values.slice(array.offset * width, len(array) * width)
        numbers = _numbers(flat).reshape(-1, width)
        return _with_nan(numbers, missing) if missing is not None else tensor_of(numbers)
    if not array.null_count:
        return tensor_of(_numbers(array).reshape(-1, 1))
    missing = np.asarray(array.is_null())
    filled = array.fill_null(False if pa.types.is_boolean(kind) else 0)
    return _with_nan(_numbers(filled).reshape(-1, 1), missing)


def is_number(kind: pa.DataType) -> bool:
    """Whole or decimal numbers, and bools."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_vector(kind: pa.DataType) -> bool:
    """A fixed number of numbers a row."""
    return pa.types.is_fixed_size_list(kind) and is_number(kind.value_type)


def _objects(array: pa.Array) -> Opaque:
    """Days, times, bytes and lists as Python has them; lists as tuples, which can be told apart and counted."""
    rows = np.empty(len(array), dtype=object)
    rows[:] = [_as_tuple(x) for x in array.to_pylist()]
    return Opaque(rows)


def _as_tuple(x: Any) -> Any:
    return tuple(map(_as_tuple, x)) if isinstance(x, list) else x


def text_of(column: Opaque, kind: pa.DataType) -> Opaque:
    """Days and times in ISO 8601."""
    array = pa.array(list(column.rows), kind).cast(pa.string())
    return Opaque(array.to_numpy(zero_copy_only=False))


def is_time(kind: pa.DataType) -> bool:
    """Days and times, which a condition sees as text in ISO 8601."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind)


def tensor_of(numbers: np.ndarray) -> Tensor:
    """A tensor over the same memory, or over a copy where that may not be written to."""
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())


def _numbers(array: pa.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def _with_nan(numbers: np.ndarray, missing: np.ndarray) -> Tensor:
    wide = numbers.astype(np.float64 if numbers.dtype.kind != "f" else numbers.dtype, copy=True)
    wide[missing] = np.nan
    return torch.from_numpy(wide)


def numbers_missing(array: pa.Array) -> np.ndarray:
    """Rows (m,) that lack a number, or hold NaN."""
    out = np.asarray(array.is_null()) if array.null_count else np.zeros(len(array), dtype=bool)
    inner = (
        array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
        if (pa.types.is_fixed_size_list(array.type))
        else array
    )
    if pa.types.is_floating(inner.type) and len(inner):
        filled = inner.fill_null(0) if inner.null_count else inner
        nan = np.isnan(filled.to_numpy(zero_copy_only=False))
        if nan.any():
            out = out | nan.reshape(len(array), -1).any(1)
    return out


def is_stream(table: Any) -> bool:
    """Whether batches come one after the other: a pyarrow reader, or an import."""
    if isinstance(table, pa.RecordBatchReader):
        return True
    return isinstance(getattr(table, "schema", None), pa.Schema) and callable(getattr(table, "batches", None))


def as_table(data: Any, what: str = "the table") -> pa.Table:
    """A dict of columns or a frame of pandas, polars or pyarrow as an Arrow table; lists of one length are vectors.

    The named index of a pandas frame becomes a column, an unnamed one is left out.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        found = data
    elif isinstance(data, Mapping):
        found = _of_columns(data, what)
    elif is_frame(data) and hasattr(data, "to_arrow"):
        found = data.to_arrow()
    elif is_frame(data):
        found = _of_pandas(data, what)
    else:
        raise KindError(
            f"{what} is a {type(data).__name__}: give a dict of columns, a pandas, polars or pyarrow table, or a path"
        )
    if not found.num_columns:
        raise InputError(f"{what} has no columns: give at least one")
    arrays = [_vectors(found.column(i), name, what) for i, name in enumerate(found.schema.names)]
    return pa.Table.from_arrays(arrays, names=found.schema.names)


def _of_columns(data: Mapping[Any, Any], what: str) -> pa.Table:
    columns = {str(name): _column(part, f"{what}, column {name!r}") for name, part in data.items()}
    lengths = {name: len(part) for name, part in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{what} has columns of different lengths ({lengths}): give every column one length")
    return pa.table(columns)


def _column(data: Any, what: str) -> Any:
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data
    if isinstance(data, Opaque):
        return array_of(data)
    if isinstance(data, Tensor):
        data = data.detach().cpu()
        if data.dtype == torch.bfloat16:
            raise KindError(f"{what} is bfloat16, which a table on disk cannot hold: convert it to float32")
        data = data.numpy()
    if isinstance(data, np.ma.MaskedArray):
        data = data.filled(np.nan) if data.dtype.kind == "f" else data.tolist()
    if isinstance(data, np.ndarray) and data.dtype.kind in "fiub":
        if data.ndim not in (1, 2) or data.ndim == 2 and data.shape[1] == 0:
            raise InputError(f"{what} has shape {data.shape}: a table has (rows, width), of width 1 or more")
        own = np.ascontiguousarray(data.astype(data.dtype.newbyteorder("="), copy=False))
        try:
            flat = pa.array(own.reshape(-1))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise KindError(f"{what} has dtype {data.dtype}: convert it to float64") from None
        return (
            flat if own.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, type=flat_list(flat.type, own.shape[1]))
        )
    try:
        given = getattr(data, "to_arrow", lambda: data)()  # of polars
        return pa.array(given, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise KindError(f"{what} is no column of one kind ({reason}): give numbers, vectors or text") from None


def _of_pandas(data: Any, what: str) -> pa.Table:
    names = [str(name) for name in data.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{what} has two columns named {twice[0]!r}: give each its own name")
    if data.index.name is not None and str(data.index.name) not in names:
        data = data.reset_index()
    return _of_columns({str(name): data[name] for name in data.columns}, what)


def _vectors(column: pa.ChunkedArray, name: str, what: str) -> pa.ChunkedArray:
    """Lists of numbers that all have one length become vectors of that width; others stay as they are."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return column
    lengths = pc.unique(pc.list_value_length(column).drop_null()).to_pylist()
    if len(lengths) != 1 or lengths[0] == 0:
        return column
    try:
        return column.cast(pa.list_(kind.value_type, lengths[0]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise KindError(f"{what}, column {name!r}: rows of {kind} cannot become vectors ({error})") from None
