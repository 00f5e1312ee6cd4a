"""The source on disk: a Lance table, of which a `Table` is one version.

Positions are Lance's stable row ids: never given twice, kept by upsert, update, compaction and restore. Rows are found
by the hash of their key (`key_hash`), or by the id column where there is one; both are indexed. Each change is one
commit on the newest version, made under the table's lock (`table_writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import ConflictError, InputError, NotFoundError
from .arrow import array_of, as_table, pc
from .base import Block, Change, Data, Matches, Rows, Schema, Source
from .exact import Codes, duplicates, fit_numbers
from .key_hash import key_hashes
from .layout import HASH, Layout, fitted, stored_name
from .rows import count, some
from .table_filter import TableFilter, refuse_vector
from .table_index import tend_indexes
from .table_opening import check_process, open_newest_whole, open_version, table_folder
from .table_reading import Fragment, Part, Reader, ahead, parts_of, rows_of_a_block
from .table_writing import (
    addresses_of,
    batches_of,
    commit,
    discard,
    fragments_without,
    locked,
    row_ids_of,
    sync_version,
    told,
    with_retries,
    write_data,
)

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

    @staticmethod
    def open(path: Any, version: int | str | None = None, cache_bytes: int = CACHE_BYTES) -> Table:
        """The table in the folder ``path``; where its newest version is damaged the one before, with a warning."""
        check_process()
        folder = table_folder(path)
        with told(folder, "opened"):
            dataset, layout = open_newest_whole(folder) if version is None else open_version(folder, version)
        return Table(dataset, layout, Reader(folder, cache_bytes))

    @property
    def dataset(self) -> Any:
        check_process()
        return self._dataset

    @property
    def version(self) -> int:
        return int(self._dataset.version)

    @property
    def schema(self) -> Schema:
        return self.layout.schema

    def __len__(self) -> int:
        return sum(fragment.live for fragment in self.fragments)

    @cached_property
    def fragments(self) -> list[Fragment]:
        stored = {stored_name(name): name for name in self.layout.types}
        names = {field.id(): stored.get(field.name(), HASH) for field in self.dataset.lance_schema.fields()}
        return [Fragment(fragment, names) for fragment in self.dataset.get_fragments()]

    @cached_property
    def positions(self) -> Tensor:  # type: ignore[override]
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
        rows = rows_of_a_block(self.layout, size)
        if wanted is not None and len(wanted) <= SELECTIVE * len(self):
            step = min(rows, TAKEN) if size is None else rows
            cuts = range(0, max(1, len(wanted)), step)
            yield from ahead([partial(self._taken, wanted[cut : cut + step], names) for cut in cuts])
            return
        parts = parts_of(self.fragments, rows)
        some_rows = False
        for block in ahead([partial(self._block, part, names, wanted) for part in parts]):
            if len(block.positions):
                some_rows = True
                yield block
        if not some_rows:
            yield self._taken(np.zeros(0, dtype=np.int64), names)

    def _block(self, part: Part, values: Sequence[str], wanted: np.ndarray | None) -> Block:
        keys = self.layout.keys
        with told(self.folder, "read"):
            positions, columns = self.reader.read(self._dataset, self.layout, part, [*keys, *values])
        block = Block(positions, {n: columns[n] for n in keys}, {n: columns[n] for n in values})
        return block if wanted is None else _chosen(block, np.flatnonzero(_is_among(positions.numpy(), wanted)))

    def take(self, ids: np.ndarray) -> Block:
        return self._taken(ids, self.schema.values.names)

    def _taken(self, ids: np.ndarray, values: Sequence[str]) -> Block:
        keys = self.layout.keys
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
        with told(self.folder, "read"):
            found = self.dataset._take_rows(np.maximum(positions, 0).tolist(), columns=[*columns, "_rowid"])
        if not inside or found.num_rows != len(positions):
            have = found["_rowid"].to_numpy()
            lost = positions[~np.isin(positions, have) | (positions < 0)]
            raise NotFoundError(f"no row has the id {some(lost)}")
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
            own[name], like = keys[name], self._empty[name]
            data = keys[name]
            if isinstance(data, Tensor) and isinstance(like, Tensor):
                own[name], same = fit_numbers(data.detach().cpu(), like.dtype)
                fits &= (same & ~own[name].isnan()).all(1).numpy()
        return own, fits

    def _with_hashes(self, hashes: np.ndarray) -> pa.Table:
        """The key columns, hashes and positions of the rows whose hash is one of these, each row once."""
        columns = [HASH, *(stored_name(name) for name in self.layout.keys)]
        with told(self.folder, "read"):
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
    def _empty(self) -> Rows:
        return self._taken(np.zeros(0, dtype=np.int64), ()).keys

    def mask(self, text: str) -> np.ndarray:
        return _is_among(self.positions.numpy(), self.matching(text))

    def matching(self, text: str) -> np.ndarray:
        """The positions of the rows that satisfy a condition, ascending."""
        self.filter.check(text)
        pushed = self.filter.pushed_down(text)
        if pushed is not None:
            with told(self.folder, "read"):
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
            with told(self.folder, "read"):
                positions, rows = self.reader.read(self.dataset, self.layout, part, names)
            yield positions.numpy(), rows

    def by_id(self, ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Of ids of the id column: the positions (r,) of their rows, −1 where there is none, and their order of ids."""
        name = stored_name(cast(str, self.layout.id))
        with told(self.folder, "read"):
            if len(ids) <= FEW:
                if not len(ids):
                    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
                listed = ", ".join(_sql_literal(x) for x in ids.to_pylist())
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
            if self._dataset.latest_version == self._dataset.version:
                return self
            dataset, layout = open_version(self.folder, session=self._dataset.session())
        return Table(dataset, layout, self.reader)

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
        return self.append_batches(batches_of(self.layout.sides(keys, values, ids), self.layout))

    def append_batches(self, batches: Iterable[pa.RecordBatch]) -> Change:
        """Add conformed rows. The data is written before the lock is taken."""
        import lance

        own = self.layout.id
        seen: list[pa.Array] = []

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if own is not None:
                    seen.append(batch.column(stored_name(own)))
                yield batch

        check_process()
        with told(self.folder, "appended to"):
            fragments = write_data(self.folder, self.layout, noted())
        if not fragments:
            return Change(self, np.zeros(0, dtype=np.int64))
        committed = False
        try:
            ids = None if own is None else _joined(seen)
            if ids is not None:
                check_once(ids, "ids")

            def work(newest: Table) -> Change:
                nonlocal committed
                if newest.layout.stored != self.layout.stored:
                    raise InputError("the columns of the table were changed meanwhile: refresh() and append again")
                if ids is not None:
                    taken = np.flatnonzero(newest.by_id(ids)[0] >= 0)
                    if len(taken):
                        shown = some(ids.take(pa.array(taken[:6])).to_pylist())
                        raise InputError(f"the ids {shown} exist already: use upsert to replace their rows")
                dataset = commit(newest.dataset, lance.LanceOperation.Append(fragments), "append")
                committed = True
                written = positions_of(dataset, fragments) if ids is None else ids.to_numpy(zero_copy_only=False)
                return Change(newest.at(tended(dataset, newest.layout)), written)

            return self.changed(work)
        finally:
            if not committed:
                discard(self.folder, fragments)

    def upsert(self, schema: Schema, keys: Rows, values: Rows, ids: Any | None) -> Change:
        return self.upsert_table(self.layout.sides(keys, values, ids))

    def upsert_table(self, table: pa.Table) -> Change:
        """Replace the rows with the same id, or, without an id column, with the equal key; add the others."""
        return self.upsert_stored(pa.Table.from_batches(list(batches_of(table, self.layout)), self.layout.stored))

    def upsert_stored(self, conformed: pa.Table) -> Change:
        """The same for rows as they are stored."""
        if self.layout.id is not None:
            check_once(_joined([conformed.column(stored_name(self.layout.id))]), "ids")

        def work(newest: Table) -> Change:
            if newest.layout.stored != self.layout.stored:
                raise InputError("the columns of the table were changed meanwhile: refresh() and upsert again")
            positions = newest._positions_to_replace(conformed)
            dataset, positions = newest._upserted(conformed, positions)
            ids = None if self.layout.id is None else _joined([conformed.column(stored_name(self.layout.id))])
            return Change(newest.at(dataset), positions if ids is None else ids.to_numpy(zero_copy_only=False))

        if not conformed.num_rows:
            return Change(self, np.zeros(0, dtype=np.int64))
        return self.changed(work)

    def _positions_to_replace(self, rows: pa.Table) -> np.ndarray:
        """Where rows with the same id or key stand, −1 where there is none."""
        if self.layout.id is not None:
            return self.by_id(_joined([rows.column(stored_name(self.layout.id))]))[0]
        keys = self.layout.rows_of(rows, self.layout.keys)
        twice = duplicates(keys)
        if len(twice):
            raise InputError(f"rows {some(twice)} of keys repeat the key of an earlier row: give every key once")
        wanted, found = self.find(keys)
        several = np.unique(wanted[1:][wanted[1:] == wanted[:-1]])
        if len(several):
            of_one = found[wanted == several[0]]
            raise InputError(
                f"the key in row {several[0]} belongs to {len(of_one)} rows (ids {some(of_one)}): "
                "create the table with an id column to say which to replace"
            )
        positions = np.full(rows.num_rows, -1, dtype=np.int64)
        positions[wanted] = found
        return positions

    def _upserted(self, rows: pa.Table, positions: np.ndarray) -> tuple[Any, np.ndarray]:
        """Commit rows in place of those at ``positions`` (−1: new ones); the new version, and where each row stands."""
        old, new = np.flatnonzero(positions >= 0), np.flatnonzero(positions < 0)
        order = old[np.argsort(positions[old], kind="stable")]
        dataset, added = self._replaced(
            rows.take(pa.array(order)).to_batches(), positions[order], rows.take(pa.array(new)).to_batches(), "upsert"
        )
        out = positions.copy()
        out[new] = added
        return dataset, out

    def _replaced(
        self, rows: Iterable[pa.RecordBatch], positions: np.ndarray, new: Iterable[pa.RecordBatch], message: str
    ) -> tuple[Any, np.ndarray]:
        """Commit rows in place of those at ``positions``, in that order, and new ones; returns where these stand."""
        import lance
        from lance.fragment import RowIdSequence

        written: list[Any] = []
        committed = False
        try:
            written += write_data(self.folder, self.layout, rows) if len(positions) else []
            start = 0
            for fragment in written:
                ids = positions[start : start + fragment.physical_rows]
                fragment.row_id_meta = RowIdSequence(ids.tolist()).to_inline_metadata()
                start += fragment.physical_rows
            added = write_data(self.folder, self.layout, new)
            written += added
            operation: Any = lance.LanceOperation.Append(added)
            if len(positions):
                updated, removed = fragments_without(self.dataset, positions)
                operation = lance.LanceOperation.Update(removed, updated, written, update_mode="rewrite_rows")
            dataset = commit(self.dataset, operation, message)
            committed = True
        finally:
            if not committed:
                discard(self.folder, written)
        return tended(dataset, self.layout), positions_of(dataset, added)

    def rewritten(self, before: Block, keys: Rows, values: Rows) -> tuple[Table, Block]:
        """The next version, in which the rows of ``before`` have these keys and values; and those rows as stored.

        Raises ConflictError where one of the rows is not as it was ``before``.
        """
        positions = before.positions.numpy()

        def work(newest: Table) -> tuple[Table, Block]:
            try:
                now = newest.take(positions)
            except NotFoundError as error:
                raise ConflictError(f"{error} any more: it was deleted since it was read") from None
            changed = positions[_changed(now, before)]
            if len(changed):
                raise ConflictError(
                    f"the rows {some(changed)} were changed by others since they were read: read them again"
                )
            rows = newest.stored_rows(positions, list(newest.layout.types))
            columns = {name: rows.column(stored_name(name)) for name in newest.layout.types}
            columns |= {name: array_of(x) for name, x in {**keys, **values}.items()}
            batches = batches_of(pa.table(columns), newest.layout)
            after = newest.at(newest._replaced(batches, positions, (), "learn")[0])
            return after, after.take(positions)

        return self.changed(work)

    def delete(self, ids: np.ndarray) -> Source:
        return self.delete_rows(lambda newest: ids)[0] if len(ids) else self

    def delete_rows(self, which: Callable[[Table], np.ndarray]) -> tuple[Table, int]:
        """Remove the rows at the positions that ``which`` names of the newest version; how many there were."""
        import lance

        def work(newest: Table) -> tuple[Table, int]:
            updated, removed, gone = newest._without(which(newest))
            if not gone:
                return newest, 0
            operation = lance.LanceOperation.Delete(updated, removed, "delete")
            return newest.at(commit(newest.dataset, operation, "delete")), gone

        return self.changed(work)

    def _without(self, positions: np.ndarray) -> tuple[list[Any], list[int], int]:
        positions = np.unique(positions[positions >= 0])
        addresses = addresses_of(self.dataset, positions)
        gone = sum(len(rows) for rows in addresses.values())
        return (*fragments_without(self.dataset, positions), gone) if gone else ([], [], 0)

    def update(self, changes: Mapping[str, Any], where: str | None) -> tuple[Table, int]:
        """Set columns, by name, to what an expression of SQL gives for each row that satisfies the condition."""
        expressions = self._expressions(changes)
        if where is not None:
            self.filter.check(where)

        def work(newest: Table) -> tuple[Table, int]:
            positions = newest.positions.numpy() if where is None else newest.matching(where)
            if not len(positions):
                return newest, 0
            batches = newest._computed(expressions, positions)
            return newest.at(newest._replaced(batches, positions, (), "update")[0]), len(positions)

        return self.changed(work)

    def _computed(self, expressions: Mapping[str, str], positions: np.ndarray) -> Iterator[pa.RecordBatch]:
        """The rows at these positions with some columns computed anew."""
        named = list(dict.fromkeys(name for text in expressions.values() for name in self.filter.named(text)))
        for start in range(0, len(positions), TAKEN):
            part = positions[start : start + TAKEN]
            rows = self.stored_rows(part, list(self.layout.types))
            known = self.layout.rows_of(rows, named)
            columns = {name: rows.column(stored_name(name)) for name in self.layout.types}
            for name, text in expressions.items():
                columns[name] = column_of_sql(self.filter.compute(text, part, known), self.layout, name)
            yield from batches_of(pa.table(columns), self.layout)

    def _expressions(self, changes: Mapping[str, Any]) -> dict[str, str]:
        out: dict[str, str] = {}
        for name, text in changes.items():
            if name not in self.layout.types or name == self.layout.id:
                what = "is the id, which names a row for ever" if name == self.layout.id else "is no column"
                raise InputError(f"{name!r} {what}: update one of {', '.join(map(repr, self.layout.types))}")
            refuse_vector(self.layout, name)
            out[name] = text if isinstance(text, str) else _sql_literal(text)
            self.filter.check_expression(out[name])
        if not out:
            raise InputError("update was given nothing to change: give {column: expression}")
        return out


def check_once(ids: pa.Array, what: str) -> None:
    """Raise InputError for an id that is given twice."""
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if len(twice):
        raise InputError(f"{what} name {some(twice.to_pylist())} more than once: give every row its own id")


def tended(dataset: Any, layout: Layout) -> Any:
    """The version, or the one after it that takes up new rows in the indexes."""
    if tend_indexes(dataset, layout):
        sync_version(dataset)
    return dataset


def positions_of(dataset: Any, fragments: Sequence[Any]) -> np.ndarray:
    """The row ids that a version gave to the rows of fragments that were written for it."""
    paths = {fragment.files[0].path for fragment in fragments}
    return row_ids_of([x.metadata for x in dataset.get_fragments() if x.metadata.files[0].path in paths])


def _joined(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    chunks = [chunk for x in arrays for chunk in (x.chunks if isinstance(x, pa.ChunkedArray) else [x])]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())


def _changed(a: Block, b: Block) -> np.ndarray:
    """Which rows do not hold the same in both; NaN, a missing number, is the same as itself."""
    out = np.zeros(len(a.positions), dtype=bool)
    for x, y in zip((*a.keys.values(), *a.values.values()), (*b.keys.values(), *b.values.values()), strict=True):
        if isinstance(x, Opaque) or isinstance(y, Opaque):
            out |= np.asarray(cast(Opaque, x).rows != cast(Opaque, y).rows, dtype=bool)
        else:
            out |= (~((x == y) | (x.isnan() & y.isnan()))).any(1).numpy()
    return out


def _chosen(block: Block, rows: np.ndarray) -> Block:
    index = torch.from_numpy(rows)

    def taken(columns: Rows) -> Rows:
        return {n: x.take(rows) if isinstance(x, Opaque) else x.index_select(0, index) for n, x in columns.items()}

    return Block(block.positions[index], taken(block.keys), taken(block.values))


def _is_among(positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which positions are among ``wanted``, which ascend."""
    if not len(wanted):
        return np.zeros(len(positions), dtype=bool)
    return wanted[np.minimum(np.searchsorted(wanted, positions), len(wanted) - 1)] == positions


def _sql_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    return repr(value.item() if isinstance(value, (np.generic, Tensor)) else value)


def column_of_sql(values: list[object], layout: Layout, name: str) -> pa.Array:
    """What SQLite gave for a column, in its type."""
    kind = layout.types[name]
    try:
        found = pa.array(values)
        return found.cast(pa.int64()).cast(kind) if pa.types.is_boolean(kind) else fitted(found, kind, name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"the expression for {name!r} does not give {kind} ({error}): convert it") from None
