"""What a source is: the rows of a table, key and value, each with an id that stays its own.

A source is one state of a table and never changes; append, upsert and delete return the next state. Whoever
holds a source reads from one state, whatever others write, and a change that fails leaves nothing half done.

    source.blocks()  →  (positions, keys, values)                            what attention is a fold over
    source.take(ids) →  the rows with these ids
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import InputError

Data: TypeAlias = Tensor | Opaque  # a column: numbers (m, width), text or other objects (m,)
Rows: TypeAlias = dict[str, Data]
Kind = Literal["numbers", "text", "objects", "unknown"]  # objects: days, bytes, …, as values of a stored table

ID = "id"


@dataclass(frozen=True)
class Column:
    """A named column: numbers of some width, text, or not yet known because no row was ever given."""

    name: str
    kind: Kind
    width: int = 1

    @property
    def flat_names(self) -> tuple[str, ...]:
        """One name for every number of a row: x, or x_0, x_1, … where the width is not 1."""
        return (self.name,) if self.width == 1 else tuple(f"{self.name}_{i}" for i in range(self.width))

    def __str__(self) -> str:
        return f"{self.width} numbers" if self.width > 1 else self.kind


@dataclass(frozen=True)
class Side:
    """The columns of the keys, or of the values. ``named``: the user gave the names."""

    role: Literal["keys", "values"]
    columns: tuple[Column, ...]
    named: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def undecided(self) -> bool:
        """Empty lists were given: the first rows decide the columns."""
        return not self.named and self.columns[0].kind == "unknown"

    def __str__(self) -> str:
        return ", ".join(f"{column.name} ({column})" for column in self.columns)


@dataclass(frozen=True)
class Schema:
    """The columns of a table."""

    keys: Side
    values: Side

    def __post_init__(self) -> None:
        owner: dict[str, str] = {ID: "the row ids"}
        for side in (self.keys, self.values):
            for name in (name for column in side.columns for name in column.flat_names):
                if name.lower() == ID:
                    raise InputError(
                        f"{side.role} have a column {name!r}, the name of the row ids: pass it as ids=, or rename it"
                    )
                if name in owner:
                    raise InputError(f"{owner[name]} and {side.role} both have a column {name!r}: rename one of them")
                owner[name] = side.role

    @property
    def flat_names(self) -> tuple[str, ...]:
        columns = (*self.keys.columns, *self.values.columns)
        return tuple(name for column in columns for name in column.flat_names)


class Block(NamedTuple):
    """Rows of a table: positions (m,) are their ids, on the CPU, ascending within the block."""

    positions: Tensor
    keys: Rows
    values: Rows

    def taken(self, rows: np.ndarray) -> Block:
        """Some of its rows, by their places, ascending."""
        return Block(self.positions[torch.from_numpy(rows)], taken(self.keys, rows), taken(self.values, rows))

    def cut(self, part: slice) -> Block:
        """A run of its rows, over the same memory."""
        return Block(self.positions[part], cut(self.keys, part), cut(self.values, part))


def taken(rows: Rows, index: np.ndarray) -> Rows:
    """Rows of every column, by their places, with gradients."""

    def one(x: Data) -> Data:
        return x.take(index) if isinstance(x, Opaque) else x.index_select(0, torch.from_numpy(index).to(x.device))

    return {name: one(x) for name, x in rows.items()}


def cut(rows: Rows, part: slice) -> Rows:
    """A run of rows of every column, over the same memory."""
    return {name: x.take(part) if isinstance(x, Opaque) else x[part] for name, x in rows.items()}


class Matches(NamedTuple):
    """Pairs of a wanted key and a row that equals it, in order of the wanted keys, then of the ids."""

    wanted: np.ndarray
    positions: np.ndarray


class Change(NamedTuple):
    """The next state of a source, and the ids (m,) of the rows that were written, in the order given."""

    source: Source
    ids: np.ndarray


class Source(ABC):
    """One state of a table. Rows stand in ascending order of their ids, which are whole numbers ≥ 0.

    ``streamed``: its rows may not fit in memory, so a question reads them block by block; else they are one block.
    """

    streamed: ClassVar[bool] = False

    @property
    def row_name(self) -> str:
        """What a position is called: "id", or "position" where the rows have ids of their own beside it."""
        return ID

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns."""

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """The ids (m,) int64 of all rows, ascending."""

    @property
    def learning(self) -> Sequence[Rows]:
        """Rows in memory whose tensors may want a gradient."""
        return ()

    def mapped(self, fn: Callable[[Any], Any]) -> Source:
        """The same source with ``fn`` of the rows that are `learning`."""
        return self

    def __len__(self) -> int:
        return int(self.positions.shape[0])

    @abstractmethod
    def blocks(
        self, values: Sequence[str] | None = None, where: str | None = None, *, size: int | None = None
    ) -> Iterator[Block]:
        """All rows, or those that satisfy the condition ``where`` in SQL, with the value columns named (None: all).

        ``size``: rows of a block (None: everything, or up to 100 MB where the source is streamed). Blocks come in the
        same order each time, not always in that of their ids; a streamed source may cut a block short. At least one
        block comes, empty where there are no rows. Blocks are never written to again.
        """

    @abstractmethod
    def take(self, ids: np.ndarray) -> Block:
        """The rows with these ids, in this order. Raises NotFoundError for an id that no row has."""

    @abstractmethod
    def find(self, keys: Rows) -> Matches:
        """The rows whose keys equal these, column by column; a missing text equals nothing."""

    @abstractmethod
    def mask(self, text: str) -> np.ndarray:
        """Which rows (m,) satisfy a condition in SQL. Raises InputError for text that is none."""

    @abstractmethod
    def append(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        """Add rows under new ids (None: the next that no row ever had). Raises InputError for an id that is taken."""

    @abstractmethod
    def upsert(self, schema: Schema, keys: Rows, values: Rows, ids: np.ndarray | None) -> Change:
        """Replace the row with the same id, or (None) with the equal key; add a row where there is none.

        Raises InputError for an id or a key that is given twice, and for a key that several rows have.
        """

    @abstractmethod
    def delete(self, ids: np.ndarray) -> Source:
        """Remove the rows with these ids, each of which exists."""


def kinds(names: Mapping[str, Data] | Sequence[Column]) -> str:
    """Columns and their kinds, for messages."""
    if isinstance(names, Mapping):
        return ", ".join(f"{name!r} ({'text' if isinstance(x, Opaque) else 'numbers'})" for name, x in names.items())
    return ", ".join(f"{column.name!r} ({column})" for column in names)
