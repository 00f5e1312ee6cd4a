"""A source with some of its rows replaced by tensors in memory, which may learn. The source beneath is not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import InputError
from .base import Block, Change, Data, Matches, Rows, Schema, Source


class Overlay(Source):
    """``base`` with the keys and values of the rows at ``rows`` (r,), ascending, replaced by others.

    Conditions and exact keys are those of the rows as they are stored.
    """

    streamed: ClassVar[bool] = True

    def __init__(self, base: Source, rows: Tensor, keys: Rows, values: Rows):
        self.base = base
        self.rows = rows
        self.keys = keys
        self.values = values

    @property
    def schema(self) -> Schema:
        return self.base.schema

    @property
    def positions(self) -> Tensor:
        return self.base.positions

    @property
    def row_name(self) -> str:
        return self.base.row_name

    def __len__(self) -> int:
        return len(self.base)

    @property
    def learning(self) -> Sequence[Rows]:
        return self.keys, self.values

    def mapped(self, fn: Callable[[Any], Any]) -> Overlay:
        return Overlay(self.base, self.rows, fn(self.keys), fn(self.values))

    def blocks(
        self, values: Sequence[str] | None = None, where: str | None = None, *, size: int | None = None
    ) -> Iterator[Block]:
        replaced = self.values if values is None else {name: self.values[name] for name in values}
        seen = np.zeros(len(self.rows), dtype=bool)
        for block in self.base.blocks(values, where, size=size):
            mine = torch.isin(block.positions, self.rows)
            if not bool(mine.any()):
                yield block
                continue
            seen[np.searchsorted(self.rows.numpy(), block.positions[mine].numpy())] = True
            yield block.taken(np.flatnonzero(~mine.numpy()))
        if seen.any():
            yield Block(self.rows, self.keys, replaced).taken(np.flatnonzero(seen))

    def take(self, ids: np.ndarray) -> Block:
        block = self.base.take(ids)
        at = np.searchsorted(self.rows.numpy(), ids).clip(max=max(0, len(self.rows) - 1))
        mine = np.flatnonzero(self.rows.numpy()[at] == ids) if len(self.rows) else np.zeros(0, dtype=np.int64)

        def put(stored: Rows, own: Rows) -> Rows:
            return {name: _put(stored[name], mine, own[name], at[mine]) for name in stored}

        return Block(block.positions, put(block.keys, self.keys), put(block.values, self.values))

    def find(self, keys: Rows) -> Matches:
        return self.base.find(keys)

    def mask(self, text: str) -> np.ndarray:
        return self.base.mask(text)

    def append(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        raise _refused()

    def upsert(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        raise _refused()

    def delete(self, ids: np.ndarray) -> Source:
        raise _refused()


def _refused() -> InputError:
    return InputError("rows that learn are changed by gradients and written by save(): change the table itself")


def _put(stored: Data, at: np.ndarray, own: Data, rows: np.ndarray) -> Data:
    """``stored`` with rows of ``own`` at some places."""
    if isinstance(stored, Opaque) or isinstance(own, Opaque):
        assert isinstance(stored, Opaque) and isinstance(own, Opaque)
        texts = stored.rows.copy()
        texts[at] = own.rows[rows]
        return Opaque(texts)
    return stored.index_copy(0, torch.from_numpy(at), own[torch.from_numpy(rows)].to(stored.dtype))
