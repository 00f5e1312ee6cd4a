"""Making a stored table: beside its place first, then renamed, so that a crash leaves a whole table or none."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import InputError, StorageError
from .arrow import as_table, is_stream
from .layout import Layout, stored_name
from .table import CACHE_BYTES, Table
from .table_changes import check_once
from .table_index import create_indexes
from .table_opening import check_process, local_path
from .table_writing import (
    LOCK,
    OPTIONS,
    batch_rows,
    batches_of,
    noted,
    sync,
    sync_fragment,
    sync_tree,
    told,
    try_lock,
    watched,
)


def create_table(
    path: Any,
    table: Any,
    keys: Sequence[str] | str,
    values: Sequence[str] | str | None,
    id: str | None,
    cache_bytes: int = CACHE_BYTES,
) -> Table:
    """Write a table into the folder ``path``, which must not exist, in one commit. ``table`` may come in batches."""
    check_process()
    folder = local_path(path)
    if os.path.lexists(folder):
        raise InputError(f"{folder} exists already: open it with Database.open, or choose another path")
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent):
        raise InputError(f"the folder {parent}, in which the table should lie, does not exist: make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise StorageError(f"the table {folder} cannot be created: there is no permission to write into {parent}")
    layout, batches = _read(table, keys, values, id)
    _remove_left_over(folder)
    with told(folder, "created"):
        _create(folder, layout, batches)
    return Table.open(folder, cache_bytes=cache_bytes)


def _create(folder: str, layout: Layout, batches: Iterator[pa.RecordBatch]) -> None:
    import lance

    beside, lock = _made_beside(folder)
    failed: list[BaseException] = []
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="attendb-sync") as pool:  # the disk writes while others work
            synced: list[Future[None]] = []
            progress = noted(lambda fragment: synced.append(pool.submit(sync_fragment, beside, fragment)))
            reader = pa.RecordBatchReader.from_batches(layout.stored, watched(batches, failed))
            dataset = lance.write_dataset(
                reader, beside, schema=layout.stored, mode="create", progress=progress, **OPTIONS
            )
            if layout.id is not None:
                column = dataset.to_table(columns=[stored_name(layout.id)]).column(0)
                check_once(column.combine_chunks(), "ids")
            create_indexes(dataset, layout)
            for job in synced:
                job.result()
        sync_tree(beside)
        _rename(beside, folder)
        sync(os.path.dirname(folder))
    except BaseException as error:
        _remove(beside)
        if failed and failed[0] is not error:
            raise failed[0] from None
        raise
    finally:
        os.close(lock)


def _made_beside(folder: str) -> tuple[str, int]:
    """A new folder beside the place of the table, and its lock, by which others see that it is being filled."""
    while True:
        beside = _beside(folder) + secrets.token_hex(8)
        os.mkdir(beside)
        try:
            lock = os.open(os.path.join(beside, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process removed the folder while it was empty
            continue
        if try_lock(lock) and os.path.exists(os.path.join(beside, LOCK)):
            return beside, lock
        os.close(lock)  # and here it is removing it, or has done so


def _rename(beside: str, folder: str) -> None:
    try:
        if not os.path.lexists(folder):
            os.rename(beside, folder)
            return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    raise InputError(f"{folder} was made by another process meanwhile: open it with Database.open")


def _remove(place: str) -> None:
    """Remove a folder, its lock last, so that what a killed removal leaves is found again."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                os.remove(entry.path)
    shutil.rmtree(place, ignore_errors=True)


def _read(
    table: Any, keys: Sequence[str] | str, values: Sequence[str] | str | None, id: str | None
) -> tuple[Layout, Iterator[pa.RecordBatch]]:
    """The layout that the roles give, and the rows as they are stored."""
    if isinstance(table, (str, Path)):
        from ..importing import open_table  # type: ignore[attr-defined]

        table = open_table(table)
    if not is_stream(table):
        whole = as_table(table)
        layout = Layout.of(whole.schema, keys, values, id)
        return layout, batches_of(whole, layout)
    stream = iter(table.batches() if callable(getattr(table, "batches", None)) else table)
    first = next(stream, None)
    schema = table.schema if first is None else as_table(first).schema
    layout = Layout.of(schema, keys, values, id)
    return layout, stream_of(stream if first is None else chain([first], stream), layout)


def stream_of(batches: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    """Batches of any size in batches of the size that is written fastest, conformed one by one."""
    rows, first = batch_rows(layout), 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield layout.conform(batch.slice(start, rows), first + start)
        first += batch.num_rows


def _beside(folder: str) -> str:
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.new-")


def _remove_left_over(folder: str) -> None:
    """Remove what a creation that was killed left behind: nobody holds its lock any more."""
    start = os.path.basename(_beside(folder))
    for name in os.listdir(os.path.dirname(folder)):
        place = os.path.join(os.path.dirname(folder), name)
        if not name.startswith(start):
            continue
        with contextlib.suppress(OSError):
            os.rmdir(place)  # where it is empty: killed before it had its lock
        with contextlib.suppress(OSError):
            lock = os.open(os.path.join(place, LOCK), os.O_RDWR)
            try:
                if try_lock(lock):
                    _remove(place)
            finally:
                os.close(lock)
