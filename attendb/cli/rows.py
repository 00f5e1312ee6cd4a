"""Rows with all their columns: of a stored table, in all digits, and of a file under a condition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from .kinds import find_columns

if TYPE_CHECKING:
    import pyarrow

ID = "id"


def stored_columns(database: Any) -> dict[str, pyarrow.DataType]:
    """The columns of a stored table and their types: the id, the keys, the values, then the others."""
    layout = database._source.layout
    return {name: layout.types[name] for name in layout.listed}


def stored_rows(database: Any, positions: np.ndarray, names: Sequence[str] | None = None) -> pyarrow.Table:
    """The rows at these positions, which may repeat, under the names of the columns."""
    from ..sources.layout import stored_name

    names = list(stored_columns(database)) if names is None else list(names)
    different, places = np.unique(positions, return_inverse=True)
    found = database._source.stored_rows(different, names)
    return found.select([stored_name(name) for name in names]).rename_columns(names).take(places)


def stored_batches(
    database: Any, names: Sequence[str] | None, where: str | None
) -> tuple[pyarrow.Schema, int | None, Iterator[pyarrow.RecordBatch]]:
    """Columns of all rows, or of those that satisfy a condition, in order of position: schema, rows of all, batches."""
    if names is not None:
        find_columns(list(names), list(stored_columns(database)), database.path)
    reader = database.table.to_reader(names, where)
    return reader.schema, len(database) if where is None else None, iter(reader)


def filter_rows(table: pyarrow.Table, text: str, where: str) -> np.ndarray:
    """Which rows (m,) of a file satisfy a condition over all its columns; it means what it means to a stored table.

    ``where`` is the file, for messages. `id` is the column of that name, else the place of the row, from 0.
    """
    from ..sources.arrow import data_of
    from ..sources.layout import Layout
    from ..sources.table_filter import TableFilter

    plain = _plain(table)
    types = {field.name: field.type for field in plain.schema}
    id_column = ID if ID in types and _can_be_named(plain[ID]) else None
    if id_column is None and ID in types:
        del types[ID]
    condition = TableFilter(Layout((), (), id_column, types))
    condition.check(text)
    if id_column is None and ID in table.column_names and _names_id(text):
        raise InputError(
            f"the filter {text!r} names id, but the column 'id' of {where} repeats or lacks one: rename it"
        )
    names = condition.named(text)
    rows = {name: data_of(_one_chunk(plain[name]), types[name]) for name in names}
    return condition.select(text, np.arange(len(table), dtype=np.int64), rows)


def not_missing(columns: Sequence[str], where: str | None) -> str:
    """The condition that these columns hold something, and that ``where`` is satisfied."""
    there = " AND ".join(f"{_sql_name(column)} IS NOT NULL" for column in columns)
    return there if where is None else f"({where}) AND {there}"


def _sql_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _plain(table: pyarrow.Table) -> pyarrow.Table:
    """Columns of types that a condition sees: categories as what they stand for, decimals as float64."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            table = table.set_column(i, field.name, table[field.name].cast(kind.value_type))
        elif pa.types.is_decimal(kind):
            table = table.set_column(i, field.name, table[field.name].cast(pa.float64()))
        elif pa.types.is_string_view(kind):
            table = table.set_column(i, field.name, table[field.name].cast(pa.large_string()))
    return table


def _can_be_named(column: pyarrow.ChunkedArray) -> bool:
    """Whether a column names rows: text, or whole numbers that are there and differ."""
    from pyarrow import types

    if types.is_integer(column.type):
        return not column.null_count and len(column.unique()) == len(column)
    return types.is_string(column.type) or types.is_large_string(column.type)


def _names_id(text: str) -> bool:
    """Whether the text names the column `id`, outside of texts in quotes."""
    bare = re.sub(r"'(?:[^']|'')*'", "''", text)
    return re.search(rf"\b{ID}\b", bare, re.IGNORECASE) is not None


def _one_chunk(column: pyarrow.ChunkedArray) -> Any:
    import pyarrow as pa

    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        return pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], column.type)
    return whole
