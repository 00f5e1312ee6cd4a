"""Changes of a stored table: append, upsert, delete, update. Each is one commit on the newest version, or nothing.

A row that is replaced is marked as gone where it lies and written again under its old row id, in the same commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from ..columns import Opaque
from ..errors import ConflictError, InputError, NotFoundError, StorageError
from .arrow import array_of, pc
from .base import Block, Change, Rows
from .exact import duplicates
from .layout import Layout, fitted, stored_name
from .rows import some
from .table_batches import NAME, appended_rows, begin_batch, end_batch
from .table_filter import refuse_vector
from .table_index import tend_indexes
from .table_opening import check_process
from .table_writing import (
    Written,
    addresses_of,
    batches_of,
    commit,
    fragments_without,
    row_ids_of,
    sync_version,
    told,
    write_data,
)

if TYPE_CHECKING:
    from .table import Table

ROWS = 1 << 16  # computed and written again at a time


def append_batches(table: Table, batches: Iterable[pa.RecordBatch], batch: str | None = None) -> Change:
    """Add conformed rows. The data is written before the lock is taken. ``batch``: a name under which only once."""
    import lance

    own = table.layout.id
    seen: list[pa.Array] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if own is not None:
                seen.append(batch.column(stored_name(own)))
            yield batch

    check_process()
    with Written(table.folder) as written:
        with told(table.folder, "appended to"):
            written.fragments = write_data(table.folder, table.layout, noted())
        if not written.fragments:
            return Change(table, np.zeros(0, dtype=np.int64))
        ids = None if own is None else joined(seen)
        count = sum(fragment.physical_rows for fragment in written.fragments)
        if ids is not None:
            check_once(ids, "ids")

        def work(newest: Table) -> Change:
            if newest.layout.stored != table.layout.stored:
                raise InputError("the columns of the table were changed meanwhile: refresh() and append again")
            rows = None if batch is None else appended_rows(newest, batch)
            if rows is not None:
                written.drop()
                _check_same(rows, count, batch)
                return Change(newest, rows if ids is None else ids.to_numpy(zero_copy_only=False))
            if ids is not None:
                taken = np.flatnonzero(newest.by_id(ids)[0] >= 0)
                if len(taken):
                    shown = some(ids.take(pa.array(taken[:6])).to_pylist())
                    raise InputError(f"the ids {shown} exist already: use upsert to replace their rows")
            properties = {}
            if batch is not None:
                begin_batch(newest, batch)
                properties = {NAME: batch}
            operation = lance.LanceOperation.Append(written.fragments)
            dataset = written.commit(newest.dataset, operation, "append", **properties)
            version, new = dataset.version, positions_of(dataset, written.fragments)
            after = newest.at(tended(dataset, newest.layout))
            if batch is not None:
                end_batch(table.folder, batch, version, new)
            return Change(after, new if ids is None else ids.to_numpy(zero_copy_only=False))

        return table.changed(work)


def _check_same(rows: np.ndarray, count: int, batch: str | None) -> None:
    if len(rows) != count:
        raise InputError(
            f"the batch {batch!r} was appended with {len(rows)} rows but now has {count}: give other rows another name"
        )


def upsert_stored(table: Table, conformed: pa.Table) -> Change:
    """The same for rows as they are stored."""
    if table.layout.id is not None:
        check_once(joined([conformed.column(stored_name(table.layout.id))]), "ids")

    def work(newest: Table) -> Change:
        if newest.layout.stored != table.layout.stored:
            raise InputError("the columns of the table were changed meanwhile: refresh() and upsert again")
        positions = _positions_to_replace(newest, conformed)
        dataset, positions = _upserted(newest, conformed, positions)
        ids = None if table.layout.id is None else joined([conformed.column(stored_name(table.layout.id))])
        return Change(newest.at(dataset), positions if ids is None else ids.to_numpy(zero_copy_only=False))

    if not conformed.num_rows:
        return Change(table, np.zeros(0, dtype=np.int64))
    return table.changed(work)


def _positions_to_replace(table: Table, rows: pa.Table) -> np.ndarray:
    """Where rows with the same id or key stand, −1 where there is none."""
    if table.layout.id is not None:
        return table.by_id(joined([rows.column(stored_name(table.layout.id))]))[0]
    keys = table.layout.rows_of(rows, table.layout.keys)
    twice = duplicates(keys)
    if len(twice):
        raise InputError(f"rows {some(twice)} of keys repeat the key of an earlier row: give every key once")
    wanted, found = table.find(keys)
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


def _upserted(table: Table, rows: pa.Table, positions: np.ndarray) -> tuple[Any, np.ndarray]:
    """Commit rows in place of those at ``positions`` (−1: new ones); the new version, and where each row stands."""
    old, new = np.flatnonzero(positions >= 0), np.flatnonzero(positions < 0)
    order = old[np.argsort(positions[old], kind="stable")]
    dataset, added = _replaced(
        table,
        rows.take(pa.array(order)).to_batches(),
        positions[order],
        rows.take(pa.array(new)).to_batches(),
        "upsert",
    )
    out = positions.copy()
    out[new] = added
    return dataset, out


def _replaced(
    table: Table, rows: Iterable[pa.RecordBatch], positions: np.ndarray, new: Iterable[pa.RecordBatch], message: str
) -> tuple[Any, np.ndarray]:
    """Commit rows in place of those at ``positions``, in that order, and new ones; returns where these stand."""
    import lance
    from lance.fragment import RowIdSequence

    with Written(table.folder) as written:
        old = write_data(table.folder, table.layout, rows) if len(positions) else []
        written.fragments += old
        start = 0
        for fragment in old:
            ids = positions[start : start + fragment.physical_rows]
            fragment.row_id_meta = RowIdSequence(ids.tolist()).to_inline_metadata()
            start += fragment.physical_rows
        added = write_data(table.folder, table.layout, new)
        written.fragments += added
        operation: Any = lance.LanceOperation.Append(added)
        if len(positions):
            updated, removed = fragments_without(table.dataset, addresses_of(table.dataset, positions))
            operation = lance.LanceOperation.Update(removed, updated, written.fragments, update_mode="rewrite_rows")
        dataset = written.commit(table.dataset, operation, message)
    return tended(dataset, table.layout), positions_of(dataset, added)


def delete_rows(table: Table, which: Callable[[Table], np.ndarray]) -> tuple[Table, int]:
    """Remove the rows at the positions that ``which`` names of the newest version; how many there were."""
    import lance

    def work(newest: Table) -> tuple[Table, int]:
        updated, removed, gone = _without(newest, which(newest))
        if not gone:
            return newest, 0
        operation = lance.LanceOperation.Delete(updated, removed, "delete")
        return newest.at(commit(newest.dataset, operation, "delete")), gone

    return table.changed(work)


def _without(table: Table, positions: np.ndarray) -> tuple[list[Any], list[int], int]:
    """The fragments that a table has without these rows, and how many of them there were."""
    addresses = addresses_of(table.dataset, np.unique(positions[positions >= 0]))
    return (*fragments_without(table.dataset, addresses), sum(len(rows) for rows in addresses.values()))


def update_rows(table: Table, changes: Mapping[str, Any], where: str | None) -> tuple[Table, int]:
    """Set columns, by name, to what an expression of SQL gives for each row that satisfies the condition."""
    expressions = _expressions(table, changes)
    if where is not None:
        table.filter.check(where)

    def work(newest: Table) -> tuple[Table, int]:
        positions = newest.positions.numpy() if where is None else newest.matching(where)
        if not len(positions):
            return newest, 0
        batches = _computed(newest, expressions, positions)
        return newest.at(_replaced(newest, batches, positions, (), "update")[0]), len(positions)

    return table.changed(work)


def write_rows(table: Table, before: Block, keys: Rows, values: Rows) -> tuple[Table, Block]:
    """Give the rows of ``before`` these keys and values, and keep their other columns; those rows as they are stored.

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
        after = newest.at(_replaced(newest, batches, positions, (), "learn")[0])
        return after, after.take(positions)

    return table.changed(work)


def _changed(a: Block, b: Block) -> np.ndarray:
    """Which rows do not hold the same in both; NaN, a missing number, is the same as itself."""
    out = np.zeros(len(a.positions), dtype=bool)
    for x, y in zip((*a.keys.values(), *a.values.values()), (*b.keys.values(), *b.values.values()), strict=True):
        if isinstance(x, Opaque) or isinstance(y, Opaque):
            out |= np.asarray(cast(Opaque, x).rows != cast(Opaque, y).rows, dtype=bool)
        else:
            out |= (~((x == y) | (x.isnan() & y.isnan()))).any(1).numpy()
    return out


def _computed(table: Table, expressions: Mapping[str, str], positions: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The rows at these positions with some columns computed anew."""
    named = list(dict.fromkeys(name for text in expressions.values() for name in table.filter.named(text)))
    for start in range(0, len(positions), ROWS):
        part = positions[start : start + ROWS]
        rows = table.stored_rows(part, list(table.layout.types))
        known = table.layout.rows_of(rows, named)
        columns = {name: rows.column(stored_name(name)) for name in table.layout.types}
        for name, text in expressions.items():
            columns[name] = column_of_sql(table.filter.compute(text, part, known), table.layout, name)
        yield from batches_of(pa.table(columns), table.layout)


def _expressions(table: Table, changes: Mapping[str, Any]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, text in changes.items():
        if name not in table.layout.types or name == table.layout.id:
            what = "is the id, which names a row for ever" if name == table.layout.id else "is no column"
            raise InputError(f"{name!r} {what}: update one of {', '.join(map(repr, table.layout.types))}")
        refuse_vector(table.layout, name)
        out[name] = text if isinstance(text, str) else sql_literal(text)
        table.filter.check_expression(out[name])
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
    """The version, or the one after it that takes up new rows in the indexes.

    The change is made already: where the upkeep fails, new rows are scanned, and the next change tries again.
    """
    before = dataset.version
    with contextlib.suppress(OSError, RuntimeError, ValueError, StorageError):
        if tend_indexes(dataset, layout):
            sync_version(dataset, before)
    return dataset


def positions_of(dataset: Any, fragments: Sequence[Any]) -> np.ndarray:
    """The row ids that a version gave to the rows of fragments that were written for it."""
    paths = {fragment.files[0].path for fragment in fragments}
    return row_ids_of([x.metadata for x in dataset.get_fragments() if x.metadata.files[0].path in paths])


def joined(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Arrays of one type, one after the other."""
    chunks = [chunk for x in arrays for chunk in (x.chunks if isinstance(x, pa.ChunkedArray) else [x])]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())


def sql_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    return repr(value.item() if isinstance(value, np.generic) else value)


def column_of_sql(values: list[object], layout: Layout, name: str) -> pa.Array:
    """What SQLite gave for a column, in its type."""
    kind = layout.types[name]
    try:
        found = pa.array(values)
        return found.cast(pa.int64()).cast(kind) if pa.types.is_boolean(kind) else fitted(found, kind, name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"the expression for {name!r} does not give {kind} ({error}): convert it") from None
