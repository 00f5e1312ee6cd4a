"""Writing a stored table: one writer at a time, data on disk before the commit that names it, one commit a change.

A writer holds the table's lock, a file whose lock ends with its process, while it reads the newest version, checks the
change against it and commits. Writers of other programs, which do not know the lock, are found by Lance when the
versions meet: the change is then made again on what they left, a bounded number of times.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import AttendbError, ConflictError, StorageError
from .layout import Layout
from .table_opening import damages, manifest_of, manifests, open_version

T = TypeVar("T")

LOCK = "_lock"
MESSAGE = "__lance_commit_message"
LOCK_WAIT = 120.0  # seconds that a writer waits for another
TRIES = 10
MOST_RUNS = 100  # of whole numbers in a condition: Lance needs the square of their number
VERSION = "2.0"  # newer ones decode key columns at a third of the speed
CACHED_PAGES = 1 << 27  # bytes of all columns that wait to be written, so that each column lies in long runs
BATCH_BYTES = 1 << 22
OPTIONS: dict[str, Any] = {
    "data_storage_version": VERSION,
    "enable_stable_row_ids": True,
    "data_cache_bytes": CACHED_PAGES,
}


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold the lock of the table in ``folder``. Raises ConflictError after two minutes, StorageError where it may not
    be written to."""
    with told(str(folder), "changed"):
        file = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        end = time.monotonic() + LOCK_WAIT
        while not try_lock(file):
            if time.monotonic() > end:
                raise ConflictError(
                    f"another process has been changing the table {folder} for {LOCK_WAIT:.0f} seconds: try again"
                )
            time.sleep(random.uniform(0.001, 0.01))
        yield
    finally:
        os.close(file)


def try_lock(file: int) -> bool:
    """Lock an open file for this process until it is closed; False where another has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def told(folder: str, done: str, version: int | None = None, change: int | None = None) -> Iterator[None]:
    """What the storage says when it fails, as one sentence with what to do.

    ``version``: the one that is read, which goes by the number ``change``.
    """
    try:
        yield
    except AttendbError:
        raise
    except PermissionError as error:
        raise StorageError(
            f"the table {folder} cannot be {done}: there is no permission for {error.filename or folder}"
        ) from error
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split(", /")[0].split())
        raise StorageError(
            f"the table {folder} cannot be {done}{_why(folder, done, version, change, reason)}"
        ) from error


def _why(folder: str, done: str, version: int | None, change: int | None, reason: str) -> str:
    if "No space left" in reason or "StorageFull" in reason:
        return ": no space is left on the disk" + ("" if done == "created" else "; it is as it was before")
    if "ermission denied" in reason or "Read-only file system" in reason:
        return f": there is no permission for it ({reason[:200]})"
    if done != "created" and os.path.isdir(os.path.join(folder, "_versions")):
        if version is not None and not os.path.exists(manifest_of(folder, version)):
            return (
                f": version {change} was removed when the table was compacted; refresh() goes on to the newest, and a "
                "table opened at a version must be opened again"
            )
        first = next(iter(damages(folder, version)), None)
        if first is not None:
            return f": {first.problem} ({first.file}); {first.repair}, and verify() lists what is damaged"
    return f" ({reason[:300]}): verify() says what is damaged, restore(version) goes back to a whole version"


def with_retries(change: Callable[[], T], folder: str) -> T:
    """Make a change again, a bounded number of times, while others get in between."""
    from lance.commit import CommitConflictError

    for attempt in range(TRIES):
        try:
            return change()
        except CommitConflictError:
            time.sleep(random.uniform(0, 0.01 * 2**attempt))
    raise ConflictError(
        f"others changed the same rows of the table {folder} {TRIES} times in a row: nothing was written, try again"
    )


def batches_of(table: pa.Table, layout: Layout) -> Iterator[pa.RecordBatch]:
    """A table in batches of the size that is written fastest, conformed one by one."""
    rows = batch_rows(layout)
    for start in range(0, max(table.num_rows, 1), rows):
        yield layout.conform(table.slice(start, rows), start)


def batch_rows(layout: Layout) -> int:
    """Rows that are written at a time: about 4 MB of keys and values."""
    return max(1024, min(1 << 16, BATCH_BYTES // layout.row_bytes))


def write_data(folder: str, layout: Layout, batches: Iterable[pa.RecordBatch]) -> list[Any]:
    """Write rows as new fragments that no version names yet, and wait until the disk has them.

    What was written is removed again where this fails. Returns the fragments, none for no rows.
    """
    from lance.fragment import write_fragments

    whole: list[Any] = []
    failed: list[BaseException] = []
    reader = pa.RecordBatchReader.from_batches(layout.stored, watched(batches, failed))
    try:
        fragments = write_fragments(
            reader, folder, schema=layout.stored, mode="append", progress=noted(whole.append), **OPTIONS
        )
        fragments = [fragment for fragment in fragments if fragment.physical_rows]
        for fragment in fragments:
            sync_fragment(folder, fragment)
        return fragments
    except BaseException as error:
        discard(folder, files_of(whole))
        if failed and failed[0] is not error:
            raise failed[0] from None
        raise


def noted(each: Callable[[Any], object]) -> Any:
    """What has ``each`` called with every fragment that Lance has written whole."""
    from lance.progress import FragmentWriteProgress

    class Noted(FragmentWriteProgress):
        def begin(self, fragment: Any, multipart_id: str | None = None, **kwargs: Any) -> None:
            """Nothing is there yet."""

        def complete(self, fragment: Any, **kwargs: Any) -> None:
            each(fragment)

    return Noted()


def _made_ahead(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, the next one made in a thread while the last one is written."""
    source = iter(batches)
    with ThreadPoolExecutor(1, thread_name_prefix="attendb-write") as pool:
        coming = pool.submit(next, source, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield batch


def watched(batches: Iterable[pa.RecordBatch], failed: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """The batches; what goes wrong while they are made is kept, since the storage would wrap it in its own error."""
    try:
        yield from _made_ahead(batches)
    except BaseException as error:
        failed.append(error)
        raise


def discard(folder: str, files: Iterable[str]) -> None:
    for name in files:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(folder, "data", name))


def files_of(fragments: Iterable[Any]) -> set[str]:
    """The data files that fragments lie in."""
    return {file.path for fragment in fragments for file in fragment.files}


class Written:
    """Fragments that a change has written and no version names yet; as a context, they are removed where it fails.

    They stay where a version may name them all the same: where the commit failed in its last step, when others can see
    it already, or was cut short, since it may go on in a thread. What then stays without need goes with old versions.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.fragments: list[Any] = []
        self._before: int | None = None  # version that a commit was first tried on

    def commit(self, dataset: Any, operation: Any, message: str, **properties: str) -> Any:
        self._before = dataset.version if self._before is None else self._before
        return commit(dataset, operation, message, **properties)

    def drop(self) -> None:
        """Remove what was written: it is not needed."""
        discard(self.folder, files_of(self.fragments))
        self.fragments = []

    def __enter__(self) -> Written:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and (self._before is None or isinstance(error, Exception)):
            discard(self.folder, files_of(self.fragments) - self._named())

    def _named(self) -> set[str]:
        """The files that a later version names; all of them where such a version cannot be read."""
        own = files_of(self.fragments)
        found: set[str] = set()
        try:
            for version, _ in manifests(self.folder):
                if self._before is None or version <= self._before:
                    break
                dataset = open_version(self.folder, version)[0]
                found |= files_of(fragment.metadata for fragment in dataset.get_fragments())
        except (AttendbError, OSError):
            return own
        return found


def commit(dataset: Any, operation: Any, message: str, **properties: str) -> Any:
    """Commit on the version that ``dataset`` is, and wait until the disk has it. Returns the new version.

    ``properties`` are kept with the version. It stands as soon as Lance has returned: what fails then undoes nothing.
    """
    import lance

    transaction = lance.Transaction(dataset.version, operation, transaction_properties={MESSAGE: message, **properties})
    done = lance.LanceDataset.commit(dataset, transaction, max_retries=0)
    try:
        sync_version(done)
    except StorageError as error:
        raise StorageError(
            f"{error}: the change was made (version {done.version}), but a loss of power now could undo it"
        ) from error
    return done


def sync_version(dataset: Any, after: int | None = None) -> None:
    """Wait until the disk has the manifest of this version, and what its folders list.

    ``after``: the version before work that made indexes, and several versions perhaps: waits for these, too.
    """
    folder = str(dataset.uri)
    if after is not None:
        made: set[str] = set()
        for version in range(after + 1, dataset.version):
            made |= _index_folders(dataset.checkout_version(version))
            sync(manifest_of(folder, version))
        for name in made | _index_folders(dataset):
            sync_tree(os.path.join(folder, "_indices", name))
    sync(manifest_of(folder, dataset.version))
    for name in ("_versions", "data", "_deletions", "_indices", "."):
        sync(os.path.join(folder, name))


def _index_folders(dataset: Any) -> set[str]:
    return {str(segment.uuid) for index in dataset.describe_indices() for segment in index.segments}


def sync(path: str) -> None:
    """Wait until the disk has a file or, where systems can, what a folder lists."""
    if os.path.isdir(path) and os.name == "nt" or not os.path.exists(path):
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if not os.path.isdir(path):
            raise StorageError(f"{path} could not be written to the disk ({error.strerror})") from error
    finally:
        os.close(file)


def sync_fragment(folder: str, fragment: Any) -> None:
    """Wait until the disk has the rows of a fragment."""
    for file in fragment.files:
        sync(os.path.join(folder, "data", file.path))


def write_whole(path: str, data: bytes) -> None:
    """Write a small file beside its place, wait for the disk and rename it. The caller holds the lock of the table.

    The name beside is always the same, so that what a killed process leaves is written over.
    """
    place, name = os.path.split(path)
    beside = os.path.join(place, f".{name}.new")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(beside)
    sync(place)


def sync_tree(folder: str) -> None:
    """Wait until the disk has a folder and all that is in it."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)


def fragments_without(dataset: Any, addresses: dict[int, np.ndarray]) -> tuple[list[Any], list[int]]:
    """Fragments with rows marked as gone, {fragment id: positions}; and the ids of those that are empty then."""
    updated: list[Any] = []
    removed: list[int] = []
    for number, rows in addresses.items():
        fragment = dataset.get_fragment(number)
        if len(rows) == fragment.count_rows():
            removed.append(number)
            continue
        metadata = fragment.delete(_among("_rowid", rows))
        if metadata is None:
            removed.append(number)
        else:
            updated.append(metadata)
            if metadata.deletion_file is not None:
                sync(os.path.join(str(dataset.uri), metadata.deletion_file.path(number)))
    return updated, removed


def addresses_of(dataset: Any, positions: np.ndarray) -> dict[int, np.ndarray]:
    """Which of these rows each fragment holds: {fragment id: positions}."""
    options = {"columns": [], "with_row_id": True, "with_row_address": True}
    if len(positions) <= 1000:
        if not len(positions):
            return {}
        found = dataset.scanner(filter=_among("_rowid", positions), **options).to_table()
    else:
        found = dataset.scanner(**options).to_table()
    ids = found["_rowid"].to_numpy().astype(np.int64)
    numbers = (found["_rowaddr"].to_numpy() >> np.uint64(32)).astype(np.int64)
    wanted = np.isin(ids, positions)
    ids, numbers = ids[wanted], numbers[wanted]
    return {int(number): np.sort(ids[numbers == number]) for number in np.unique(numbers)}


def _among(column: str, numbers: np.ndarray) -> str:
    """A condition that names these whole numbers, as runs where they are dense."""
    numbers = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    if len(breaks) < MOST_RUNS and len(breaks) + 1 <= len(numbers) // 8:
        runs = np.split(numbers, breaks)
        return " OR ".join(f"({column} >= {run[0]} AND {column} <= {run[-1]})" for run in runs)
    return f"{column} IN ({', '.join(map(str, numbers.tolist()))})"


def row_ids_of(fragments: Iterable[Any]) -> np.ndarray:
    """The ids that committed fragments gave to their rows, in order."""
    from lance.fragment import RowIdSequence

    found = [RowIdSequence.from_inline_metadata(x.row_id_meta).to_pyarrow().to_numpy() for x in fragments]
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, dtype=np.int64)
