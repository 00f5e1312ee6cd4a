"""What `query` asks: a stored table, or the rows of a file, held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InputError, MissingValueError
from .files import Reading, is_stored, open_stored, read_file
from .kinds import as_data, find_columns, missing
from .printing import shell_word
from .rows import ID, filter_rows, not_missing, stored_batches, stored_columns, stored_rows

if TYPE_CHECKING:
    import pyarrow

    from ..database import Database


class Asked(Protocol):
    """Rows that can be asked, and how their columns are called."""

    @property
    def name(self) -> str:
        """As it was typed."""
        ...

    @property
    def columns(self) -> Mapping[str, pyarrow.DataType]:
        """All columns."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was assumed to read it."""
        ...

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The key columns, where the table has decided them."""
        ...

    @property
    def values(self) -> tuple[str, ...] | None:
        """The value columns, where the table has decided them."""
        ...

    @property
    def saved_scores(self) -> Sequence[str]:
        """Names of scores that are stored with the rows."""
        ...

    @property
    def id_column(self) -> str | None:
        """The column that names the rows."""
        ...

    def saved_score(self, name: str) -> Any:
        """One of them."""
        ...

    def table(self, where: str | None) -> tuple[pyarrow.Table, np.ndarray]:
        """All columns of the rows that satisfy a condition, and what `rows` finds each by."""
        ...

    def database(self, keys: Sequence[str], values: Sequence[str], where: str | None) -> tuple[Database, str | None]:
        """The table to ask, and the condition that is left to give it."""
        ...

    def rows(self, positions: np.ndarray) -> list[dict[str, Any]]:
        """All columns of the rows at these positions, which may repeat."""
        ...

    def example(self) -> dict[str, Any]:
        """The first row, empty where there is none."""
        ...


def open_asked(path: str, version: str | None, reading: Reading) -> Asked:
    """A stored table by its folder, everything else as a file."""
    if is_stored(path):
        return _Stored(path, version)
    if version is not None:
        raise InputError(f"{path} is a file, which has no versions: leave --version out, or store it: attendb create")
    return _File(path, *read_file(path, reading))


class _Stored:
    keys: tuple[str, ...]
    values: tuple[str, ...]

    def __init__(self, path: str, version: str | None):
        self.name = path
        self.notes: Sequence[str] = ()
        self._database = open_stored(path, version)
        self.id_column = self._database.info()["id"]
        self.columns = stored_columns(self._database)
        self.keys = tuple(self._database.columns["keys"])
        self.values = tuple(self._database.columns["values"])

    @property
    def saved_scores(self) -> Sequence[str]:
        return tuple(self._database.scores)

    def saved_score(self, name: str) -> Any:
        return self._database.score(name)

    def table(self, where: str | None) -> tuple[pyarrow.Table, np.ndarray]:
        import pyarrow as pa

        positions = self._positions(where)
        schema, _, batches = stored_batches(self._database, None, where)
        return pa.Table.from_batches(batches, schema), positions

    def database(self, keys: Sequence[str], values: Sequence[str], where: str | None) -> tuple[Database, str | None]:
        self._positions(where)
        return self._database, where

    def _positions(self, where: str | None) -> np.ndarray:
        """Of the rows that satisfy a condition. Raises InputError where there is none."""
        if not len(self._database):
            raise InputError(_no_rows(self.name))
        if where is None:
            return self._database._source.positions.numpy()
        found = self._database._source.matching(where)
        if not len(found):
            raise InputError(_none_satisfies(self.name, where, len(self._database)))
        return found

    def rows(self, positions: np.ndarray) -> list[dict[str, Any]]:
        found = stored_rows(self._database, positions).to_pylist()
        own = self.id_column
        named = positions.tolist() if own is None else [row.pop(own) for row in found]
        return [{ID: name, **row} for name, row in zip(named, found, strict=True)]

    def example(self) -> dict[str, Any]:
        first = self._database._source.positions[:1].numpy()
        return self.rows(first)[0] if len(first) else {}


class _File:
    keys = None
    values = None
    saved_scores: Sequence[str] = ()

    def __init__(self, path: str, table: pyarrow.Table, notes: Sequence[str]):
        self.name = path
        self.notes = notes
        self._table = table
        self.columns = {field.name: field.type for field in table.schema}
        self.id_column = ID if ID in self.columns else None
        self._ids = _ids(table)

    def saved_score(self, name: str) -> Any:
        raise InputError(f"{self.name} is a file, which has no saved scores: name one that is built in, not {name!r}")

    def database(self, keys: Sequence[str], values: Sequence[str], where: str | None) -> tuple[Database, str | None]:
        from ..database import Database

        find_columns([*keys, *values], list(self.columns), self.name)
        if ID in (*keys, *values):
            raise InputError(f"{self.name}: the column {ID!r} names the rows, so it is no key and no value: rename it")
        table, ids = self.table(where)
        refuse_missing(self.name, table, [*keys, *values], where)
        sides = (
            {name: as_data(table[name], f"{role} column {name!r}") for name in names}
            for role, names in (("key", keys), ("value", values))
        )
        return Database(*sides, ids=ids), None

    def table(self, where: str | None) -> tuple[pyarrow.Table, np.ndarray]:
        table, ids = self._table, self._ids
        if where is not None:
            kept = filter_rows(table, where, self.name)
            table, ids = table.filter(kept), ids[kept]
            if not len(table):
                raise InputError(_none_satisfies(self.name, where, len(self._table)))
        if not len(table):
            raise InputError(_no_rows(self.name))
        return table, ids

    def rows(self, positions: np.ndarray) -> list[dict[str, Any]]:
        order = np.argsort(self._ids, kind="stable")
        at = order[np.searchsorted(self._ids, positions, sorter=order)]
        others = [name for name in self.columns if name != ID]
        found = self._table.select(others).take(at).to_pylist()
        return [{ID: int(position), **row} for position, row in zip(positions, found, strict=True)]

    def example(self) -> dict[str, Any]:
        return next(iter(self._table.slice(0, 1).to_pylist()), {})


def _no_rows(name: str) -> str:
    return f"{name} has no rows, only the names of columns: nothing can answer"


def _none_satisfies(name: str, where: str, rows: int) -> str:
    return f"no row of {name} satisfies {where!r}: {rows:,} rows were looked at"


def _ids(table: pyarrow.Table) -> np.ndarray:
    """The column ``id`` where it can name rows, else 0 … m − 1."""
    from pyarrow import types

    plain = np.arange(len(table), dtype=np.int64)
    if ID not in table.column_names or not types.is_integer(table[ID].type) or table[ID].null_count:
        return plain
    ids = table[ID].to_numpy()
    good = len(ids) == len(np.unique(ids)) and (not len(ids) or 0 <= int(ids.min()) and int(ids.max()) < 2**63 - 1)
    return ids.astype(np.int64) if good else plain


def refuse_missing(name: str, table: pyarrow.Table, columns: Sequence[str], where: str | None) -> None:
    """One sentence that says how many cells are missing, and the condition that leaves those rows out."""
    gaps = {column: missing(table[column]) for column in columns}
    lacking = {column: int(gap.sum()) for column, gap in gaps.items() if gap.any()}
    if not lacking:
        return
    rows = np.zeros(len(table), dtype=bool)
    for column in lacking:
        rows |= gaps[column]
    counts = ", ".join(f"{column} in {n:,}" for column, n in lacking.items())
    condition = not_missing(list(lacking), where)
    raise MissingValueError(
        f"{name} has {int(rows.sum()):,} of {len(table):,} rows with a missing value ({counts}): fill them in, or "
        f"leave those rows out with --where {shell_word(condition)}"
    )
