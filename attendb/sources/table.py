"""The source on disk: a Lance table, of which a `Table` is one version.

Positions are Lance's stable row ids: never given twice, kept by upsert, update, compaction and restore. Rows are found
by the hash of their key (`key_hash`), or by the id column where there is one; both are indexed. Each change is one
commit on the newest version, made under the table's lock (`table_writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..errors import InputError, NotFoundError
from .arrow import as_table, pc
from .base import ID, Block, Change, Data, Matches, Rows, Schema, Source
from .exact import Codes, fit_numbers
from .key_hash import key_hashes
from .layout import HASH, Layout, fitted, stored_name, width_in_bytes
from .rows import count, some
from .table_changes import append_batches, delete_rows, sql_literal, upsert_stored
from .table_filter import TableFilter
from .table_opening import (
    change_number,
    check_process,
    newest_number,
    open_change,
    open_newest_whole,
    open_version,
    table_folder,
)
from .table_reading import Fragment, Part, Reader, ahead, parts_of, rows_of_a_block
from .table_writing import batches_of, locked, told, with_retries

T = TypeVar("T")

CACHE_BYTES = 1 << 30
FEW = 1000  # keys or ids that are looked up one by one; above, the whole column is read
SELECTIVE = 0.05  # share of the rows below which they are taken one by one
TAKEN = 1 << 16  # rows taken at a time


class Table(Source):
    """One version of a stored table."""

    streamed: ClassVar[bool] = True

    def __init__(self, dataset: Any, layout: Layout, reader: Reader):
        self._dataset = dataset
        self.layout = layout
        self.reader = reader
        self.folder = reader.folder
        self.version = change_number(dataset)

    @staticmethod
    def open(path: Any, version: int | str | None = None, cache_bytes: int = CACHE_BYTES) -> Table:
        """The table in the folder ``path``; where its newest version is damaged the one before, with a warning."""
        check_process()
        folder = table_folder(path)
        with told(folder, "opened"):
            dataset, layout = open_newest_whole(folder) if version is None else open_change(folder, version)
        return Table(dataset, layout, Reader(folder, cache_bytes))

    @property
    def dataset(self) -> Any:
        check_process()
        return self._dataset

    @property
    def schema(self) -> Schema:
        return self.layout.schema

    @property
    def row_name(self) -> str:
        return ID if self.layout.id is None else "position"

    def __len__(self) -> int:
        return sum(fragment.live for fragment in self.fragments)

    @cached_property
    def fragments(self) -> list[Fragment]:
        stored = {stored_name(name): name for name in self.layout.types}
        names = {field.id(): stored.get(field.name(), HASH) for field in self.dataset.lance_schema.fields()}
        return [Fragment(fragment, names) for fragment in self.dataset.get_fragments()]

    @cached_property
    def positions(self) -> Tensor:  # type: ignore[override]
        with self._reading():
            found = [Part((x,), 0, x.rows).positions() for x in self.fragments if x.live]
        return torch.from_numpy(np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64))

    @cached_property
    def filter(self) -> TableFilter:
        return TableFilter(self.layout)

    def blocks(
        self, values: Sequence[str] | None = None, where: str | None = None, *, size: int | None = None
    ) -> Iterator[Block]:
        names = self.schema.values.names if values is None else tuple(values)
        wanted = self.matching(where) if where is not None else None
        check_process()
        if wanted is not None and len(wanted) <= SELECTIVE * len(self):
            step = max(1, size) if size is not None else min(rows_of_a_block(self.layout), TAKEN)
            cuts = range(0, max(1, len(wanted)), step)
            yield from ahead([partial(self._taken, wanted[cut : cut + step], names) for cut in cuts])
            return
        parts = self._parts(size)
        held = all(self.reader.holds(part, [*self.layout.keys, *names]) for part in parts)
        some_rows = False
        for block in ahead([partial(self._block, part, names, wanted) for part in parts], in_thread=not held):
            if len(block.positions):
                some_rows = True
                yield block
        if not some_rows:
            yield self._taken(np.zeros(0, dtype=np.int64), names)

    def _parts(self, size: int | None) -> list[Part]:
        """The rows of each block. A table that the cache holds has few blocks, since each costs about a millisecond."""
        if size is not None:
            return parts_of(self.fragments, max(1, size), breaks=self._breaks)
        rows, cache = rows_of_a_block(self.layout), self.reader.cache_bytes
        alone = rows // 6
        if len(self) * (self.layout.row_bytes + 8) <= cache:
            rows = max(rows, rows_of_a_block(self.layout, cache // 4))
        return parts_of(self.fragments, rows, alone=alone, breaks=self._breaks)

    def _breaks(self, fragment: Fragment) -> list[int]:
        """Rows before which the widest key column lies elsewhere in the file."""
        kinds = {name: self.layout.types[name] for name in self.layout.keys}
        widest = max(kinds, key=lambda name: width_in_bytes(kinds[name]))
        with self._reading():
            return self.reader.breaks(fragment, widest, kinds[widest])

    def _block(self, part: Part, values: Sequence[str], wanted: np.ndarray | None) -> Block:
        keys = self.layout.keys
        with self._reading():
            positions, columns = self.reader.read(self._dataset, self.layout, part, [*keys, *values])
        block = Block(positions, {n: columns[n] for n in keys}, {n: columns[n] for n in values})
        return block if wanted is None else block.taken(np.flatnonzero(_is_among(positions.numpy(), wanted)))

    def take(self, ids: np.ndarray) -> Block:
        return self._taken(ids, self.schema.values.names)

    def _taken(self, ids: np.ndarray, values: Sequence[str]) -> Block:
        keys = self.layout.keys
        if not len(ids):
            return Block(torch.zeros(0, dtype=torch.int64), self._empty(keys), self._empty(values))
        table = self.stored_rows(ids, [*keys, *values])
        return Block(
            torch.from_numpy(np.ascontiguousarray(ids)),
            self.layout.rows_of(table, keys),
            self.layout.rows_of(table, values),
        )

    def stored_rows(self, positions: np.ndarray, names: Sequence[str]) -> pa.Table:
        """The rows at these positions, in this order. Raises NotFoundError for one that no row has."""
        return self._take_stored(positions, [stored_name(name) for name in names])

    def _take_stored(self, positions: np.ndarray, columns: Sequence[str]) -> pa.Table:
        inside = (positions >= 0).all()
        with self._reading():
            found = self.dataset._take_rows(np.maximum(positions, 0).tolist(), columns=[*columns, "_rowid"])
        if not inside or found.num_rows != len(positions):
            have = found["_rowid"].to_numpy()
            lost = positions[~np.isin(positions, have) | (positions < 0)]
            fix = "" if self.layout.id is None else f": ids of column {self.layout.id!r} are no positions, see get(ids)"
            raise NotFoundError(f"no row has the {self.row_name} {some(lost)}{fix}")
        return found

    def find(self, keys: Rows) -> Matches:
        own, fits = self._fitted(keys)
        hashes, present = key_hashes(own)
        asked = np.flatnonzero(present & fits)
        found = self._with_hashes(np.unique(hashes[asked]))
        own_hashes = found[HASH].fill_null(0).to_numpy()
        order = np.argsort(own_hashes, kind="stable")
        stored = own_hashes[order]
        low = np.searchsorted(stored, hashes[asked], "left")
        counts = np.searchsorted(stored, hashes[asked], "right") - low
        wanted = np.repeat(asked, counts)
        starts = np.repeat(low - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) if len(counts) else low
        rows = order[starts + np.arange(len(wanted))]
        codes = Codes(own, np.ones(len(hashes), dtype=bool))
        others = Codes(self.layout.rows_of(found, self.layout.keys), np.ones(found.num_rows, dtype=bool))
        same = codes.same(wanted, others, rows)
        positions = found["_rowid"].to_numpy().astype(np.int64)[rows[same]]
        wanted = wanted[same]
        order = np.lexsort((positions, wanted))
        return Matches(wanted[order], positions[order])

    def _fitted(self, keys: Rows) -> tuple[Rows, np.ndarray]:
        """Keys in the order and the dtypes of the columns, and which of them these can hold."""
        fits = np.ones(count(next(iter(keys.values()))), dtype=bool)
        own: Rows = {}
        for name in self.layout.keys:
            data, like = keys[name], self._no_keys[name]
            if isinstance(data, Tensor) and isinstance(like, Tensor):
                data, same = fit_numbers(data.detach().cpu(), like.dtype)
                fits &= (same & ~data.isnan()).all(1).numpy()
            own[name] = data
        return own, fits

    def _with_hashes(self, hashes: np.ndarray) -> pa.Table:
        """The key columns, hashes and positions of the rows whose hash is one of these, each row once."""
        columns = [HASH, *(stored_name(name) for name in self.layout.keys)]
        with self._reading():
            if 0 < len(hashes) <= FEW:
                among = f"{HASH} IN ({', '.join(map(str, hashes.tolist()))})"
                found = self.dataset.scanner(columns=columns, filter=among, with_row_id=True).to_table()
            else:
                chosen = np.zeros(0, dtype=np.int64)
                if len(hashes):
                    every = self.dataset.scanner(columns=[HASH], with_row_id=True).to_table()
                    own = every[HASH].fill_null(0).to_numpy()
                    chosen = every["_rowid"].to_numpy().astype(np.int64)[np.isin(own, hashes)]
                found = self._take_stored(chosen, columns)
        # a row that was given another key may be found twice: by its old key in the index, and by a scan of new rows
        _, once = np.unique(found["_rowid"].to_numpy(), return_index=True)
        return found if len(once) == found.num_rows else found.take(pa.array(once))

    @cached_property
    def _no_keys(self) -> Rows:
        return self._empty(self.layout.keys)

    def _empty(self, names: Sequence[str]) -> Rows:
        """No rows, in the columns' kinds."""
        nothing = pa.table({stored_name(name): pa.array([], self.layout.types[name]) for name in names})
        return self.layout.rows_of(nothing, names)

    def mask(self, text: str) -> np.ndarray:
        return _is_among(self.positions.numpy(), self.matching(text))

    def matching(self, text: str) -> np.ndarray:
        """The positions of the rows that satisfy a condition, ascending."""
        self.filter.check(text)
        pushed = self.filter.pushed_down(text)
        if pushed is not None:
            with self._reading():
                found = self.dataset.scanner(columns=[], filter=pushed, with_row_id=True).to_table()
            return np.sort(found["_rowid"].to_numpy().astype(np.int64))
        names = self.filter.named(text)
        found = [
            positions[self.filter.select(text, positions, rows)] for positions, rows in self.streamed_columns(names)
        ]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)

    def streamed_columns(self, names: Sequence[str]) -> Iterator[tuple[np.ndarray, dict[str, Data]]]:
        """All rows of any columns of numbers, text or times, part by part."""
        for part in parts_of(self.fragments, 1 << 16):
            with self._reading():
                positions, rows = self.reader.read(self.dataset, self.layout, part, names)
            yield positions.numpy(), rows

    def to_reader(self, names: Sequence[str] | None = None, where: str | None = None) -> pa.RecordBatchReader:
        """All rows, or those that satisfy a condition, in batches and in order of position, under the user's names.

        ``names``: the columns; None: the id, the keys, the values, the others.
        """
        names = self.layout.listed if names is None else tuple(names)
        schema = pa.schema([pa.field(name, self.layout.types[name]) for name in names])
        wanted = None if where is None else self.matching(where)
        return pa.RecordBatchReader.from_batches(schema, self._batches(names, schema, wanted))

    def _batches(self, names: Sequence[str], schema: pa.Schema, wanted: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        stored = [stored_name(name) for name in names]
        with self._reading():
            scanned = wanted is None and self._in_order
            found: Iterator[pa.RecordBatch] | Iterator[pa.Table]
            if scanned:
                found = self.dataset.scanner(columns=stored, scan_in_order=True).to_batches()
            else:
                every = self.positions.numpy() if wanted is None else wanted
                cuts = range(0, len(every), TAKEN)
                found = (self.stored_rows(every[cut : cut + TAKEN], names).select(stored) for cut in cuts)
            for rows in found:
                for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.combine_chunks().to_batches():
                    arrays = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @property
    def _in_order(self) -> bool:
        """Whether rows lie in order of position, as they do until one is replaced."""
        last = -1
        for fragment in self.fragments:
            own = Part((fragment,), 0, fragment.rows).positions() if fragment.live else np.zeros(0, dtype=np.int64)
            if len(own) and (own[0] < last or (own[1:] < own[:-1]).any()):
                return False
            last = own[-1] if len(own) else last
        return True

    def by_id(self, ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Of ids of the id column: the positions (r,) of their rows, −1 where there is none, and their order of ids."""
        name = stored_name(cast(str, self.layout.id))
        with self._reading():
            if len(ids) <= FEW:
                if not len(ids):
                    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
                listed = ", ".join(sql_literal(x) for x in ids.to_pylist())
                among = f"`{name}` IN ({listed})"
                found = self.dataset.scanner(columns=[name], filter=among, with_row_id=True).to_table()
            else:
                found = self.dataset.scanner(columns=[name], with_row_id=True).to_table()
        places = pc.index_in(ids, value_set=found[name].combine_chunks()).fill_null(-1).to_numpy(zero_copy_only=False)
        rows = found["_rowid"].to_numpy().astype(np.int64)
        positions = np.where(places >= 0, rows[places], -1) if len(rows) else np.full(len(ids), -1, dtype=np.int64)
        return positions, places

    def read_ids(self, ids: Any) -> pa.Array:
        """Ids that the user gave, as the id column stores them. Raises InputError where there is no such column."""
        if self.layout.id is None:
            raise InputError("the table has no id column: leave ids out, or name one with id= when creating it")
        table = as_table({self.layout.id: ids}, "ids")
        array = fitted(table.column(0).combine_chunks(), self.layout.types[self.layout.id], self.layout.id)
        if array.null_count:
            raise InputError("ids lack an id in some row: give every row its own")
        return array

    def positions_of_ids(self, ids: pa.Array) -> np.ndarray:
        """Where the rows with these ids stand. Raises NotFoundError for one that no row has."""
        positions, _ = self.by_id(ids)
        if (positions < 0).any():
            raise NotFoundError(f"no row has the id {some(ids.filter(pa.array(positions < 0)).to_pylist())}")
        return positions

    def latest(self) -> Table:
        """The newest version. Raises StorageError where it is damaged."""
        check_process()
        with told(self.folder, "read"):
            if newest_number(self.folder, self._dataset) == self._dataset.version:
                return self
            dataset, layout = open_version(self.folder, session=self._dataset.session())
        return Table(dataset, layout, self.reader)

    def _reading(self) -> AbstractContextManager[None]:
        return told(self.folder, "read", self._dataset.version, self.version)

    def at(self, dataset: Any) -> Table:
        """Another version of the table."""
        return Table(dataset, Layout.read(dataset.schema, self.folder), self.reader)

    def changed(self, work: Callable[[Table], T]) -> T:
        """Do work on the newest version under the table's lock, again where others got in between."""

        def once() -> T:
            with locked(self.folder):
                return work(self.latest())

        check_process()
        with told(self.folder, "changed"):
            return with_retries(once, self.folder)

    def append(self, schema: Schema, keys: Rows, values: Rows, ids: Any | None) -> Change:
        return append_batches(self, batches_of(self.layout.sides(keys, values, ids), self.layout))

    def upsert(self, schema: Schema, keys: Rows, values: Rows, ids: Any | None) -> Change:
        batches = batches_of(self.layout.sides(keys, values, ids), self.layout)
        return upsert_stored(self, pa.Table.from_batches(list(batches), self.layout.stored))

    def delete(self, ids: np.ndarray) -> Source:
        return delete_rows(self, lambda newest: ids)[0] if len(ids) else self


def _is_among(positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which positions are among ``wanted``, which ascend."""
    if not len(wanted):
        return np.zeros(len(positions), dtype=bool)
    return wanted[np.minimum(np.searchsorted(wanted, positions), len(wanted) - 1)] == positions
