"""Rows of a stored table as a pandas frame, with any of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from .layout import stored_name
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(table: Table, positions: np.ndarray, columns: Sequence[str] | None) -> DataFrame:
    """The rows at these positions, in this order, as the index; a column x of some width is x_0, x_1, …

    The index is called "id" where positions are the ids, else "position".

    Columns (None: all): the id, the keys, the values, then the others. Raises NotFoundError for a position that no row
    has, InputError for a name that no column has.
    """
    import pandas

    layout = table.layout
    names = layout.listed if columns is None else tuple(columns)
    unknown = [name for name in names if name not in layout.types]
    if unknown:
        raise InputError(f"there is no column {unknown[0]!r}: choose among {', '.join(map(repr, layout.types))}")
    found = table.stored_rows(positions, names)
    cells: dict[str, Any] = {}
    for name in names:
        cells.update(_cells(name, found.column(stored_name(name)).combine_chunks(), layout.types[name]))
    return pandas.DataFrame(cells, index=pandas.Index(positions, name=table.row_name))


def _cells(name: str, array: Any, kind: pa.DataType) -> dict[str, Any]:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {name: array.to_numpy(zero_copy_only=False)}  # objects, with None where a text is missing
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_primitive(kind.value_type):
        return {name: array.to_pandas().array}  # a Series would be aligned by its own index
    width = kind.list_size
    flat = array.values.slice(array.offset * width, len(array) * width).to_numpy(zero_copy_only=False)
    rows = flat.reshape(-1, width)
    if array.null_count:
        rows = rows.astype(np.float64 if rows.dtype.kind != "f" else rows.dtype)
        rows[np.asarray(array.is_null())] = np.nan
    names = (name,) if width == 1 else tuple(f"{name}_{i}" for i in range(width))
    return {one: rows[:, i].copy() for i, one in enumerate(names)}
