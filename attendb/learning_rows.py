"""LearningRows: chosen rows of a stored table as tensors that learn, written back in one commit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .database import Database
from .errors import InputError, KindError
from .reading import read_vector
from .sources.base import Block, Rows
from .sources.overlay import Overlay
from .sources.rows import some
from .sources.table_changes import write_rows
from .stored import StoredDatabase


class LearningRows(Database):
    """A stored table of which some rows are tensors in memory that learn; made by `StoredDatabase.learn`.

        Attention(q, D) = Σ_i α(q, k_i) v_i          ∂/∂k_i, ∂/∂v_i for the chosen rows i

    ``positions`` (r,): the chosen rows, ascending. ``keys``, ``values``: their numbers by column name, tensors
    (r, width) in float32 or float64 that require a gradient; columns of text and of whole numbers do not learn.
    `attend` asks the whole table with these rows in place of the stored ones, at the version that was read; conditions
    and `lookup` see the rows as they are stored. `save` writes the rows back.

    >>> import attendb as ad, tempfile, pathlib, torch
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "memory.adb"
    >>> db = ad.Database.create(path, {"k": [0.0, 1.0], "v": [0.0, 5.0]}, keys="k", values="v")
    >>> rows = db.learn([1])
    >>> rows.attend(torch.tensor([1.0]), score=ad.Gaussian(0.1)).value.sum().backward()
    >>> rows.values["v"].grad.round(decimals=3).tolist()
    [[1.0]]
    >>> with torch.no_grad():
    ...     _ = rows.values["v"].fill_(7.0)
    >>> rows.save(), db.refresh(), db.lookup(1.0)
    (3, 3, 7.0)

    Source: Weston, Chopra and Bordes 2015 (memory networks), for a memory that is written to by gradients.
    """

    def __init__(self, database: StoredDatabase, positions: Any):
        table = database.table
        rows = read_vector(positions, "positions").reshape(-1)
        if rows.is_floating_point() or rows.dtype == torch.bool:
            raise KindError(f"positions have dtype {rows.dtype}: give whole numbers, as top.positions has them")
        found = np.unique(rows.cpu().numpy().astype(np.int64))
        found = found[1:] if len(found) and found[0] == -1 else found  # top.positions holds −1 where there is no row
        if not len(found):
            raise InputError("learn was given no position: name at least one row")
        self._database = database
        self._before: Block = table.take(found)
        self.positions = torch.from_numpy(found)
        self.keys: dict[str, Tensor] = _leaves(self._before.keys)
        self.values: dict[str, Tensor] = _leaves(self._before.values)
        if not self.keys and not self.values:
            raise KindError("no key or value column holds decimal numbers: text and whole numbers do not learn")
        self._source = Overlay(table, self.positions, *self._rows())

    def parameters(self) -> list[Tensor]:
        """The tensors that learn, for an optimiser of torch."""
        return [*self.keys.values(), *self.values.values()]

    def save(self) -> int:
        """Write the rows back in one commit, and return the number of the new version; other columns are kept.

        Raises ConflictError where others have changed or deleted one of the rows since they were read, and
        MissingValueError for NaN in keys: then nothing is written. Cost: that of an upsert of r rows.
        """
        table, self._before = write_rows(self._database.table, self._before, *map(_detached, self._rows()))
        self._source = Overlay(table, self.positions, *self._rows())
        return table.version

    def append(self, *_: Any, **__: Any) -> np.ndarray:
        raise _refused()

    def upsert(self, *_: Any, **__: Any) -> np.ndarray:
        raise _refused()

    def delete(self, *_: Any, **__: Any) -> int:
        raise _refused()

    def __repr__(self) -> str:
        count = len(self.positions)
        return f"{count} learning row{'s' * (count != 1)} ({some(self.positions.tolist())}) of a {self._database!r}"

    def _rows(self) -> tuple[Rows, Rows]:
        """All columns of the chosen rows, with those that learn in place of the stored ones."""
        return {**self._before.keys, **self.keys}, {**self._before.values, **self.values}


def _refused() -> InputError:
    return InputError("learning rows are changed by gradients and written by save(): change the table itself")


def _leaves(rows: Rows) -> dict[str, Tensor]:
    numbers = {name: x for name, x in rows.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return {name: x.detach().clone().requires_grad_() for name, x in numbers.items()}


def _detached(rows: Rows) -> Rows:
    return {name: x.detach() if isinstance(x, Tensor) else x for name, x in rows.items()}
