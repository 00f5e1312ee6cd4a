"""What an Arrow column can serve as, and columns as the library takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..errors import InputError
from .printing import closest_first, listed

if TYPE_CHECKING:
    import pyarrow

Kind = Literal["numbers", "text", "other"]


def kind_of(kind: pyarrow.DataType) -> Kind:
    """Numbers, a vector of them or truth values; text; or anything else."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if types.is_fixed_size_list(kind):
        return "numbers" if types.is_floating(kind.value_type) or types.is_integer(kind.value_type) else "other"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    return "other"


def name_of(kind: pyarrow.DataType) -> str:
    """The name of a type as users write it."""
    from ..importing.base import type_name

    return type_name(kind)


def is_measure(kind: pyarrow.DataType) -> bool:
    """A column that is a key by default: numbers, one a row. Truth values and vectors must be named."""
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def is_time(kind: pyarrow.DataType) -> bool:
    """A column of dates or of times."""
    from pyarrow import types

    return types.is_date(kind) or types.is_timestamp(kind)


def find_columns(wanted: list[str], names: list[str], where: str) -> None:
    """Raise InputError for a column that does not exist, with the names that are spelt most alike first."""
    for name in wanted:
        if name not in names:
            raise InputError(f"{where} has no column {name!r}: choose among {listed(closest_first(name, names))}")
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise InputError(f"column {twice[0]!r} is named twice: name it once")


def missing(column: Any) -> Any:
    """Which cells (m,) of a column are null or NaN, as booleans of numpy."""
    from pyarrow import types

    gaps = column.is_null(nan_is_null=True) if types.is_floating(column.type) else column.is_null()
    return gaps.to_numpy(zero_copy_only=False) if hasattr(gaps, "buffers") else gaps.to_numpy()


def as_data(column: Any, what: str) -> Any:
    """A column as a source takes it: an array of numbers (m,) or (m, width), or a list of text.

    Whole numbers stay whole. Raises InputError for a column that is neither numbers nor text.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return as_data(column.cast(kind.value_type), what)
    if kind_of(kind) == "text":
        return column.to_pylist()
    if kind_of(kind) == "other":
        raise InputError(f"{what} holds {name_of(kind)}: choose a column of numbers or text")
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(chunk, pa.ChunkedArray):
        chunk = pa.concat_arrays(chunk.chunks)
    if types.is_fixed_size_list(kind):
        numbers = np.asarray(chunk.flatten().to_numpy(zero_copy_only=False))
        return numbers.reshape(len(chunk), kind.list_size)
    if types.is_decimal(kind):
        chunk = chunk.cast(pa.float64())
    return np.asarray(chunk.to_numpy(zero_copy_only=False))
