"""Versions of a stored table and their upkeep: what changed when, going back, tags, compaction, new columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from .arrow import as_table
from .base import ID
from .layout import Layout, fitted, stored_name, stored_type_of_other
from .table import Table
from .table_batches import settle_batches
from .table_changes import column_of_sql
from .table_index import create_indexes, tend_indexes
from .table_opening import change_number, check_process, damaged_indexes, open_change, open_version, set_damaged_aside
from .table_writing import MESSAGE, commit, locked, sync, sync_version, told, with_retries

if TYPE_CHECKING:
    from pandas import DataFrame

ENCODED = '\\{}^%`"<>[]~#|*?'  # in the paths of Lance's object store, as are all characters that are not ASCII
INDEX = "index"
FOR_EVER = timedelta(days=36_500)
WORDS = {
    "CreateIndex": INDEX,
    "BaseOperation": INDEX,
    "Rewrite": "compact",
    "Overwrite": "create",
    "Merge": "add_column",
}


def versions(table: Table) -> DataFrame:
    """One row a change: its number (the index), when it was made, what it was, its rows, its tags.

    Versions that only index rows go with the change before them, so that numbers are left out.
    """
    import pandas

    dataset = table.dataset
    found: list[dict[str, Any]] = []
    with told(table.folder, "read"):
        tags: dict[int, list[str]] = {}
        for tag, what in dataset.tags.list().items():
            tags.setdefault(int(what["version"]), []).append(tag)
        for one in dataset.versions():
            own, change = tags.get(one["version"], []), _change(dataset, one["version"])
            if change == INDEX and found and found[-1]["last"] == one["version"] - 1:
                found[-1]["last"] += 1
                found[-1]["tags"] += own
                continue
            row = {"version": one["version"], "time": pandas.Timestamp(one["timestamp"]), "change": change}
            found.append({**row, "rows": int(one["metadata"]["total_rows"]), "tags": own, "last": one["version"]})
    for row in found:
        row["tags"] = ", ".join(sorted(row["tags"]))
    return pandas.DataFrame(found, columns=["version", "time", "change", "rows", "tags"]).set_index("version")


def _change(dataset: Any, version: int) -> str:
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance 14 cannot hand out a compaction that has also rewritten an index
        return "compact"
    except Exception:  # nor every other transaction that it wrote
        return ""
    if transaction is None:
        return ""
    name = type(transaction.operation).__name__
    return (transaction.transaction_properties or {}).get(MESSAGE) or WORDS.get(name, name.lower())


def restore(table: Table, version: int | str) -> Table:
    """Make an older version the newest, as a version of its own; nothing of those between is lost.

    Manifests that are damaged are moved aside first, so that this also repairs a table.
    """
    check_process()

    def once() -> Any:
        with locked(table.folder):
            moved = set_damaged_aside(table.folder)
            dataset, _ = open_change(table.folder, version)
            before = dataset.latest_version
            dataset.restore()
            newest, layout = open_version(table.folder)
            create_indexes(newest, layout, damaged_indexes(table.folder, newest))
            for path in moved:
                sync(os.path.dirname(path))
            sync_version(newest, before)
            return newest

    with told(table.folder, "restored"):
        return table.at(with_retries(once, table.folder))


def tag(table: Table, name: str) -> None:
    """Give this version a name. Raises InputError for one that is taken or no name."""
    if not isinstance(name, str) or not name or not all(x.isalnum() or x in "._-" for x in name) or not name.isascii():
        raise InputError(f"{name!r} cannot be a tag: use letters, digits, '.', '_' and '-'")
    with told(table.folder, "tagged"), locked(table.folder):
        have = table.dataset.tags.list()
        if name in have:
            number = change_number(table.dataset, have[name]["version"])
            raise InputError(f"the tag {name!r} is that of version {number}: choose another")
        with _nothing_beside(table.folder):
            table.dataset.tags.create(name, table.dataset.version)


@contextlib.contextmanager
def _nothing_beside(folder: str) -> Iterator[None]:
    """Remove the empty folders that Lance makes beside those whose names have characters that it encodes."""
    plain = (x.isascii() and x not in ENCODED for x in folder)
    coded = (x if ok else "".join(f"%{byte:02X}" for byte in x.encode()) for x, ok in zip(folder, plain, strict=True))
    place, *steps = ("".join(coded) + "/_refs/tags").split("/")
    made: list[str] = []
    for step in steps:
        place += f"/{step}"
        if not os.path.lexists(place):
            made.append(place)
    yield
    for left in made[::-1] if not place.startswith(folder) else ():
        with contextlib.suppress(OSError):
            os.rmdir(left)


def compact(table: Table, keep: timedelta | None = None) -> Table:
    """Join small fragments, drop deleted rows where they are more than a tenth, take up all rows in the indexes.

    ``keep``: remove versions that are older and have no tag, and the files that only they used. None: all stay.
    """

    def work(newest: Table) -> Table:
        dataset, before = newest.dataset, newest.dataset.version
        tend_indexes(dataset, newest.layout, all_rows=True)  # Lance joins rows that are indexed only with their like
        dataset.optimize.compact_files(num_threads=os.cpu_count())
        tend_indexes(dataset, newest.layout, all_rows=True)
        for fragment in dataset.get_fragments():
            for file in fragment.metadata.files:
                sync(os.path.join(newest.folder, "data", file.path))
        sync_version(dataset, before)
        after = newest.at(dataset)
        if keep is not None:
            settle_batches(after)
            _remove_versions(dataset, keep)
        return after

    return table.changed(work)


def _remove_versions(dataset: Any, keep: timedelta) -> None:
    """Remove versions that are older and have no tag, but none of the newest change, whose number it keeps."""
    oldest, kept = datetime.now() - keep, set(range(change_number(dataset), dataset.version + 1))
    for what in dataset.tags.list().values():
        kept |= set(range(change_number(dataset, what["version"]), what["version"] + 1))
    old = [one["version"] for one in dataset.versions() if one["timestamp"] <= oldest]
    old = [version for version in old if version not in kept]
    if old:
        dataset.cleanup_old_versions(versions=old, error_if_tagged_old_versions=False)
    else:  # but files that no version names
        dataset.cleanup_old_versions(older_than=FOR_EVER, error_if_tagged_old_versions=False)


def add_column(table: Table, name: str, data: Any) -> Table:
    """Add a column without a role: one value a row in order of positions, or an expression of SQL.

    Raises InputError for a name that is taken, or another number of values.
    """

    import lance

    def work(newest: Table) -> Table:
        if name in newest.layout.types or name.lower() == ID:
            raise InputError(f"the table has a column {name!r} already: choose another name, or update it")
        array = _column(newest, name, data)
        positions = newest.positions.numpy()
        stored = stored_name(name)
        added: list[Any] = []
        schema: Any = None
        for fragment in newest.fragments:
            own = _of_fragment(fragment, array, positions)
            reader = pa.RecordBatchReader.from_batches(
                pa.schema([pa.field(stored, array.type)]), iter([pa.record_batch([own], names=[stored])])
            )
            metadata, schema = fragment.lance.merge_columns(reader)
            added.append(metadata)
            sync(os.path.join(newest.folder, "data", metadata.files[-1].path))
        if schema is None:
            dataset = newest.dataset
            dataset.add_columns(pa.field(stored, array.type))
            return newest.at(dataset)
        operation = lance.LanceOperation.Merge(added, schema)
        return newest.at(commit(newest.dataset, operation, "add_column"))

    if not isinstance(name, str) or not name:
        raise InputError(f"{name!r} cannot be the name of a column: give a text")
    return table.changed(work)


def _column(table: Table, name: str, data: Any) -> pa.Array:
    """What each row holds, in order of positions."""
    if isinstance(data, str):
        table.filter.check_expression(data)
        found: list[object] = []
        positions: list[np.ndarray] = []
        for part, rows in table.streamed_columns(table.filter.named(data)):
            found += table.filter.compute(data, part, rows)
            positions.append(part)
        order = np.argsort(np.concatenate(positions)) if positions else np.zeros(0, dtype=np.int64)
        kinds = {type(x) for x in found if x is not None}
        kind = pa.int64() if kinds <= {int} and kinds else pa.float64() if kinds <= {int, float} else pa.string()
        layout = Layout(table.layout.keys, table.layout.values, table.layout.id, {**table.layout.types, name: kind})
        return column_of_sql(found, layout, name).take(pa.array(order))
    array = as_table({name: data}, "the new column").column(0).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if len(array) != len(table):
        raise InputError(f"the new column {name!r} has {len(array)} values but there are {len(table)} rows: one a row")
    return fitted(array, stored_type_of_other(array.type, name), name)


def _of_fragment(fragment: Any, array: pa.Array, positions: np.ndarray) -> pa.Array:
    """The values of the rows of a fragment that are left, as they lie."""
    own = fragment.row_ids if fragment.kept is None else fragment.row_ids[fragment.kept]
    return array.take(pa.array(np.searchsorted(positions, own)))
