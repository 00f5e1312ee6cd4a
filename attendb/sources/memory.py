"""The source in memory: one tensor or one array of texts a column, in ascending order of the row ids.

Columns are never written to. A change makes new ones, which costs O(m) a call whatever its size: append rows
together, not one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import InputError, NotFoundError
from .base import Block, Change, Matches, Rows, Schema, Side, Source, taken
from .exact import KeyIndex, duplicates, fit_numbers
from .filter import select
from .rows import LARGEST_ID, count, some


class Memory(Source):
    """A table in memory. ``keys`` and ``values`` are columns of m rows, ``ids`` (m,) are theirs, each given once.

    Tensors are kept as they are, with their graph, until a change makes new ones.
    """

    def __init__(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None = None):
        m = count(next(iter(keys.values())))
        ids = np.arange(m, dtype=np.int64) if ids is None else ids
        if len(ids) and not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            keys, values, ids = taken(keys, order), taken(values, order), ids[order]
        self._fill(schema, keys, values, ids, int(ids[-1]) + 1 if len(ids) else 0)

    def _fill(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray, next_id: int) -> None:
        self._schema = schema
        self._keys = keys
        self._values = values
        self._ids = ids
        self._next_id = next_id  # above every id that a row ever had
        self._index: KeyIndex | None = None

    def _next(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray) -> Memory:
        """The next state, of rows in any order."""
        order = None if (ids[1:] > ids[:-1]).all() else np.argsort(ids, kind="stable")
        if order is not None:
            keys, values, ids = taken(keys, order), taken(values, order), ids[order]
        state = Memory.__new__(Memory)
        state._fill(schema, keys, values, ids, max(self._next_id, int(ids[-1]) + 1 if len(ids) else 0))
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Without the index, whose hashes hold in this process alone, and without graphs, which cannot be copied."""
        state = dict(self.__dict__, _index=None)
        for side in ("_keys", "_values"):
            state[side] = {
                name: x.detach() if isinstance(x, Tensor) and not x.is_leaf else x for name, x in state[side].items()
            }
        return state

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def positions(self) -> Tensor:
        return torch.from_numpy(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def blocks(
        self, values: Sequence[str] | None = None, where: str | None = None, *, size: int | None = None
    ) -> Iterator[Block]:
        chosen = self._values if values is None else {name: self._values[name] for name in values}
        every = Block(self.positions, self._keys, chosen)
        if where is not None:
            rows = np.flatnonzero(self.mask(where))
            every = every.taken(rows)
        if size is None:
            yield every
            return
        for start in range(0, max(len(every.positions), 1), size):
            part = slice(start, start + size)
            yield every.cut(part)

    def take(self, ids: np.ndarray) -> Block:
        rows = self._rows_of(ids)
        if (rows < 0).any():
            raise NotFoundError(f"no row has the id {some(ids[rows < 0])}")
        return Block(torch.from_numpy(ids), taken(self._keys, rows), taken(self._values, rows))

    def find(self, keys: Rows) -> Matches:
        if not len(self):
            nothing = np.zeros(0, dtype=np.int64)
            return Matches(nothing, nothing)
        index = self._index
        if index is None or not index.current:
            index = self._index = KeyIndex(self._keys)
        wanted, rows = index.find(keys)
        return Matches(wanted, self._ids[rows])

    def mask(self, text: str) -> np.ndarray:
        return select(text, self._ids, self._schema, {**self._keys, **self._values})

    def append(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        ids = self._new_ids(count(next(iter(keys.values())))) if ids is None else ids
        taken = ids[self._rows_of(ids) >= 0]
        if len(taken):
            raise InputError(f"the ids {some(taken)} exist already: use upsert to replace their rows")
        return Change(self._added(schema, keys, values, ids, np.ones(len(self), dtype=bool)), ids)

    def upsert(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        if ids is None:
            ids = self._ids_by_key(keys)
        kept = np.ones(len(self), dtype=bool)
        rows = self._rows_of(ids)
        kept[rows[rows >= 0]] = False
        return Change(self._added(schema, keys, values, ids, kept), ids)

    def delete(self, ids: np.ndarray) -> Source:
        if not len(ids):
            return self
        kept = np.ones(len(self), dtype=bool)
        kept[self._rows_of(ids)] = False
        rows = np.flatnonzero(kept)
        return self._next(self._schema, taken(self._keys, rows), taken(self._values, rows), self._ids[rows])

    def _rows_of(self, ids: np.ndarray) -> np.ndarray:
        """The places of rows by id, −1 where there is none."""
        if not len(self):
            return np.full(len(ids), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(self._ids, ids), len(self) - 1)
        return np.where(self._ids[rows] == ids, rows, -1)

    def _new_ids(self, m: int) -> np.ndarray:
        if self._next_id + m - 1 > LARGEST_ID:
            raise InputError(f"no ids are left above {self._next_id - 1}: give ids=")
        return np.arange(self._next_id, self._next_id + m, dtype=np.int64)

    def _ids_by_key(self, keys: Rows) -> np.ndarray:
        twice = duplicates(keys)
        if len(twice):
            raise InputError(f"rows {some(twice)} of keys repeat the key of an earlier row: give every key once")
        wanted, positions = self.find(keys)
        several = np.unique(wanted[1:][wanted[1:] == wanted[:-1]])
        if len(several):
            of_one = positions[wanted == several[0]]
            raise InputError(
                f"the key in row {several[0]} belongs to {len(of_one)} rows (ids {some(of_one)}): "
                "say which to replace with ids="
            )
        ids = np.full(count(next(iter(keys.values()))), -1, dtype=np.int64)
        ids[wanted] = positions
        new = ids < 0
        ids[new] = self._new_ids(int(new.sum()))
        return ids

    def _added(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray, kept: np.ndarray) -> Memory:
        """The next state: the kept rows, then the new ones."""
        rows = np.flatnonzero(kept)
        old_keys, old_values = self._keys, self._values
        if len(rows) < len(kept):
            old_keys, old_values = taken(old_keys, rows), taken(old_values, rows)
        keys, values = _joined(old_keys, keys, schema.keys), _joined(old_values, values, schema.values)
        return self._next(schema, keys, values, np.concatenate([self._ids[rows], ids]))


def _joined(old: Rows, new: Rows, side: Side) -> Rows:
    """The rows of both, in the column's dtype; a column that had no row takes the kind of the new one."""
    if set(old) != set(new):  # the table was made of empty lists
        return new
    out: Rows = {}
    for column in side.columns:
        before, after = old[column.name], new[column.name]
        if isinstance(before, Opaque) and isinstance(after, Opaque):
            out[column.name] = Opaque(np.concatenate([before.rows, after.rows]))
        elif isinstance(before, Opaque) or isinstance(after, Opaque) or before.shape[1] != after.shape[1]:
            out[column.name] = after
        else:
            out[column.name] = _joined_numbers(before, after, f"{side.role} column {column.name!r}")
    return out


def _joined_numbers(old: Tensor, new: Tensor, what: str) -> Tensor:
    new = new.to(old.device)
    dtype = old.dtype
    if not old.is_floating_point():
        if new.is_floating_point():
            dtype = torch.int64 if bool(fit_numbers(new.detach(), torch.int64)[1].all()) else torch.float64
        else:
            dtype = torch.promote_types(old.dtype, new.dtype)
    for x in (old, new):
        bad = ~fit_numbers(x.detach(), dtype)[1]
        if bool(bad.any()):
            number = x.detach()[bad][0].item()
            raise InputError(f"{what} cannot hold {number} in its dtype {dtype}: give numbers that fit it")
    return torch.cat([old.to(dtype), new.to(dtype)])
