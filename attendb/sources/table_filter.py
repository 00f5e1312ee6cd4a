"""What conditions and expressions see of a stored table: every column of numbers, text, days or times, and `id`."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ..columns import Opaque
from ..errors import InputError
from .arrow import is_number, is_time, text_of
from .base import ID, Column, Data, Rows, Schema, Side
from .filter import compute, select
from .layout import Layout, described, stored_name
from .pushdown import Field, pushed_down


class TableFilter:
    """The columns of a layout as text in SQL may name them."""

    def __init__(self, layout: Layout):
        self.layout = layout
        names = [*layout.keys, *layout.values, *(name for name in layout.types if name not in layout.keys)]
        self.names = [name for name in dict.fromkeys(names) if name.lower() != ID and _seen(layout.types[name])]
        columns = [_described(name, layout.types[name]) for name in self.names]
        keys = tuple(column for column in columns if column.name in layout.keys)
        rest = tuple(column for column in columns if column.name not in layout.keys)
        self.schema = Schema(Side("keys", keys, True), Side("values", rest, True))

    def check(self, text: str) -> None:
        """Raise InputError for text that is no condition; nothing is read."""
        select(text, self._no_ids(), self.schema, self._no_rows())

    def check_expression(self, text: str) -> None:
        compute(text, self._no_ids(), self.schema, self._no_rows())

    def pushed_down(self, text: str) -> str | None:
        """The condition in the storage's own words, where it means the same there."""
        fields: dict[str, Field] = {}
        for name in self.names:
            kind = self.layout.types[name]
            if not is_time(kind) and not pa.types.is_fixed_size_list(kind):
                fields[unicodedata.normalize("NFC", name).lower()] = Field(stored_name(name), kind)
        own = self.layout.id
        fields[ID] = Field("_rowid", pa.uint64()) if own is None else Field(stored_name(own), self.layout.types[own])
        return pushed_down(text, fields)

    def named(self, text: str) -> list[str]:
        """The columns that the text may name, and the id column."""
        text = unicodedata.normalize("NFC", text).lower()
        both = text, text.replace('""', '"')
        found = [name for name in self.names if any(unicodedata.normalize("NFC", name).lower() in x for x in both)]
        own = self.layout.id
        return [*found, *([own] if own is not None and own not in found else [])]

    def select(self, text: str, positions: np.ndarray, rows: Mapping[str, Data]) -> np.ndarray:
        """Which of these rows satisfy the condition. ``rows``: the columns that `named` names."""
        return select(text, self._ids(positions, rows), self.schema, self._rows(rows))

    def compute(self, text: str, positions: np.ndarray, rows: Mapping[str, Data]) -> list[object]:
        """What the expression gives for each of these rows."""
        ids = self._ids(positions, rows)
        if ids.dtype == object or (ids[1:] > ids[:-1]).all():
            return compute(text, ids, self.schema, self._rows(rows))
        order = np.argsort(ids)
        sorted_rows = {name: x.take(order) if isinstance(x, Opaque) else x[order] for name, x in rows.items()}
        found = compute(text, ids[order], self.schema, self._rows(sorted_rows))
        out: list[object] = [None] * len(found)
        for place, value in zip(order.tolist(), found, strict=True):
            out[place] = value
        return out

    def _ids(self, positions: np.ndarray, rows: Mapping[str, Data]) -> np.ndarray:
        if self.layout.id is None:
            return positions
        own = rows[self.layout.id]
        return own.rows if isinstance(own, Opaque) else own.numpy().reshape(-1)

    def _rows(self, rows: Mapping[str, Data]) -> Rows:
        """Columns that the text does not name are never looked at, so anything of their kind will do."""
        return {**self._no_rows(), **{name: self._seen_as(name, x) for name, x in rows.items() if name in self.names}}

    def _seen_as(self, name: str, column: Data) -> Data:
        kind = self.layout.types[name]
        return text_of(column, kind) if isinstance(column, Opaque) and is_time(kind) else column

    def _no_rows(self) -> Rows:
        batch = pa.table({stored_name(n): pa.array([], self.layout.types[n]) for n in self.names})
        return self.layout.rows_of(batch, self.names) if self.names else {}

    def _no_ids(self) -> np.ndarray:
        own = self.layout.id
        text = own is not None and not is_number(self.layout.types[own])
        return np.zeros(0, dtype=object if text else np.int64)


def refuse_vector(layout: Layout, name: str) -> None:
    """Raise InputError for a column whose rows no expression gives."""
    if pa.types.is_fixed_size_list(layout.types[name]):
        raise InputError(f"the column {name!r} holds vectors, which no expression gives: upsert its rows instead")


def _seen(kind: pa.DataType) -> bool:
    vector = pa.types.is_fixed_size_list(kind) and is_number(kind.value_type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return vector or text or is_number(kind) or is_time(kind)


def _described(name: str, kind: pa.DataType) -> Column:
    return Column(name, "text") if is_time(kind) else described(name, kind)
