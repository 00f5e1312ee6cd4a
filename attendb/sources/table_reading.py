"""Reading a stored table in blocks: which rows go together, the pages of each, and the blocks that are kept.

A part is a run of rows of one large fragment, or several small fragments together. Its columns are read at once, by
`raw_pages` where they are plain numbers and by Lance otherwise, and kept in a cache of stated size under what
identifies their bytes on disk, so that versions of a table share what they have in common.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..columns import Opaque
from .base import Data
from .layout import Layout, stored_name
from .raw_pages import RawFile, Run

BLOCK_BYTES = 3 << 25
LEAST_ROWS, MOST_ROWS = 8_192, 1 << 24
MOST_RUNS = 64  # of a column in a fragment: shorter ones cost less to copy than blocks of their size cost to ask
BATCH_ROWS = 8_192  # what Lance decodes at a time: the fastest of the sizes tried

T = TypeVar("T")


class Fragment:
    """A fragment of the table as it is in one version: its files, and which of its rows are left."""

    def __init__(self, fragment: Any, columns: dict[int, str]):
        self.lance = fragment
        metadata = fragment.metadata
        self.id: int = metadata.id
        self.rows: int = metadata.physical_rows
        self.deletions = metadata.deletion_file
        self.deleted: int = self.deletions.num_deleted_rows if self.deletions is not None else 0
        self.plain = not metadata.overlays  # numbers of overlays stand in other files
        self.places = {
            columns[field]: (file.path, place)
            for file in metadata.files
            for field, place in zip(file.fields, file.column_indices, strict=True)
            if field in columns
        }
        self.files = [(file.path, file.file_size_bytes) for file in metadata.files]
        self._row_ids = metadata.row_id_meta

    @property
    def live(self) -> int:
        return self.rows - self.deleted

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        """Equal where the bytes on disk are."""
        gone = "" if self.deletions is None else self.deletions.path(self.id)
        return (tuple(path for path, _ in self.files), gone)

    @cached_property
    def row_ids(self) -> np.ndarray:
        """Of all its rows, also of those that are gone."""
        from lance.fragment import RowIdSequence

        return RowIdSequence.from_inline_metadata(self._row_ids).to_pyarrow().to_numpy().astype(np.int64)

    @cached_property
    def kept(self) -> np.ndarray | None:
        """The places of the rows that are left; None: all are."""
        if not self.deleted:
            return None
        found = self.lance.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_numpy()
        return np.sort((found & np.uint64(0xFFFFFFFF)).astype(np.int64))


@dataclass(frozen=True)
class Part:
    """Rows that are read together: rows [start, stop) of one fragment, or several fragments whole."""

    fragments: tuple[Fragment, ...]
    start: int
    stop: int

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        return (*(fragment.identity for fragment in self.fragments), self.start, self.stop)

    @cached_property
    def kept(self) -> np.ndarray | None:
        """The places, from ``start``, of the rows that are left of one fragment."""
        every = self.fragments[0].kept
        if every is None:
            return None
        low, high = np.searchsorted(every, [self.start, self.stop])
        return every[low:high] - self.start

    def positions(self) -> np.ndarray:
        found: list[np.ndarray] = []
        for fragment in self.fragments:
            ids = fragment.row_ids
            if len(self.fragments) == 1:
                ids = ids[self.start : self.stop]
                found.append(ids if self.kept is None else ids[self.kept])
            else:
                found.append(ids if fragment.kept is None else ids[fragment.kept])
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def parts_of(
    fragments: Sequence[Fragment],
    size: int,
    *,
    alone: int | None = None,
    breaks: Callable[[Fragment], Sequence[int]] = lambda fragment: (),
) -> list[Part]:
    """Fragments cut, or taken together, to about ``size`` rows.

    ``alone``: rows from which on a fragment is not taken together with others (None: a quarter of ``size``);
    ``breaks``: rows of a fragment before which a part must end.
    """
    parts: list[Part] = []
    small: list[Fragment] = []

    def flush() -> None:
        if small:
            parts.append(Part((*small,), 0, small[0].rows))
            small.clear()

    for fragment in fragments:
        if not fragment.live:
            continue
        if fragment.live >= max(1, size // 4 if alone is None else alone):
            flush()
            for start, stop in pairwise([0, *breaks(fragment), fragment.rows]):
                pieces = -(-(stop - start) // size)
                cuts = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
                parts += [Part((fragment,), low, high) for low, high in pairwise(cuts)]
            continue
        if sum(x.live for x in small) + fragment.live > size:
            flush()
        small.append(fragment)
    flush()
    return parts


class Reader:
    """Reads parts, and keeps the columns last used up to ``cache_bytes``. Threads may share it."""

    def __init__(self, folder: str, cache_bytes: int):
        self.folder = folder
        self.cache_bytes = cache_bytes
        self._cache: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._held = 0
        self._files: dict[str, RawFile] = {}
        self._lock = threading.Lock()
        self.raw = True  # False leaves everything to Lance's own reader

    def read(self, dataset: Any, layout: Layout, part: Part, names: Sequence[str]) -> tuple[Tensor, dict[str, Data]]:
        """The positions (r,) of the rows that are left, ascending, and the columns named, in that order."""
        key = part.identity
        order: tuple[Tensor, np.ndarray | None] | None = self._cached((key, None))
        if order is None:
            order = _ordered(part.positions())
            self._keep((key, None), order, order[0].nbytes * (1 if order[1] is None else 2))
        found = {name: self._cached((key, name)) for name in names}
        lacks = [name for name, data in found.items() if data is None]
        for name, data in self._fresh(dataset, layout, part, lacks):
            if order[1] is not None:
                data = data.take(order[1]) if isinstance(data, Opaque) else data[torch.from_numpy(order[1])]
            found[name] = data
            self._keep((key, name), data, _bytes(data))
        return order[0], {name: data for name, data in found.items() if data is not None}

    def breaks(self, fragment: Fragment, name: str, kind: pa.DataType) -> list[int]:
        """Rows before which a column of plain numbers lies elsewhere in its file: a part across one must be copied."""
        found = self._runs(fragment, name, kind)
        runs = () if found is None else found[1]
        return [run.start for run in runs[1:]] if len(runs) <= MOST_RUNS else []

    def holds(self, part: Part, names: Sequence[str]) -> bool:
        """Whether all of a part is in the cache."""
        with self._lock:
            return all((part.identity, name) in self._cache for name in (None, *names))

    def _fresh(self, dataset: Any, layout: Layout, part: Part, names: list[str]) -> Iterator[tuple[str, Data]]:
        rest: list[str] = []
        for name in names:
            data = self._raw(part, name, layout.types[name])
            if data is None:
                rest.append(name)
            else:
                yield name, data
        if rest:
            table = _scanned(dataset, part, [stored_name(name) for name in rest])
            yield from layout.rows_of(table, rest).items()

    def _raw(self, part: Part, name: str, kind: pa.DataType) -> Tensor | None:
        found = self._runs(part.fragments[0], name, kind) if len(part.fragments) == 1 else None
        if found is None:
            return None
        file, runs = found
        data = file.read(runs, kind, part.start, part.stop)
        return data if part.kept is None else data[torch.from_numpy(part.kept)]

    def _runs(self, fragment: Fragment, name: str, kind: pa.DataType) -> tuple[RawFile, tuple[Run, ...]] | None:
        """The file of a column, and its runs in it; None where it is not plain."""
        if not self.raw or not fragment.plain or name not in fragment.places:
            return None
        path, column = fragment.places[name]
        with self._lock:
            file = self._files.get(path)
        if file is None:
            file = RawFile(os.path.join(self.folder, "data", path), fragment.rows)
            with self._lock:
                self._files[path] = file
        runs = file.runs(column, kind)
        return None if runs is None else (file, runs)

    def _cached(self, key: Any) -> Any:
        with self._lock:
            held = self._cache.get(key)
            if held is None:
                return None
            self._cache.move_to_end(key)
            return held[0]

    def _keep(self, key: Any, data: Any, size: int) -> None:
        if size > self.cache_bytes:
            return
        with self._lock:
            before = self._cache.pop(key, None)
            self._held += size - (0 if before is None else before[1])
            self._cache[key] = data, size
            while self._held > self.cache_bytes:
                _, (_, gone) = self._cache.popitem(last=False)
                self._held -= gone


def ahead(jobs: Sequence[Callable[[], T]], *, in_thread: bool = True) -> Iterator[T]:
    """The results of jobs in order, the next one computed in a thread while the last one is used."""
    if len(jobs) < 2 or not in_thread:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="attendb-read") as pool:
        coming = pool.submit(jobs[0])
        for job in [*jobs[1:], None]:
            result = coming.result()
            if job is not None:
                coming = pool.submit(job)
            yield result
            del result


def rows_of_a_block(layout: Layout, most: int | None = None) -> int:
    """Rows of at most ``most`` bytes (None: those of a block), within bounds."""
    return min(MOST_ROWS, max(LEAST_ROWS, (BLOCK_BYTES if most is None else most) // layout.row_bytes))


def _scanned(dataset: Any, part: Part, columns: list[str]) -> pa.Table:
    options: dict[str, Any] = {"columns": columns, "batch_size": BATCH_ROWS}
    fragment, *more = part.fragments
    if more:
        own = [fragment.lance for fragment in part.fragments]
        return dataset.scanner(fragments=own, scan_in_order=True, **options).to_table()
    if part.start == 0 and part.stop == fragment.rows:
        return fragment.lance.scanner(**options).to_table()
    low, high = part.start, part.stop
    if fragment.kept is not None:
        low, high = map(int, np.searchsorted(fragment.kept, [low, high]))
    return fragment.lance.scanner(offset=low, limit=high - low, **options).to_table()


def _ordered(positions: np.ndarray) -> tuple[Tensor, np.ndarray | None]:
    if (positions[1:] > positions[:-1]).all():
        return torch.from_numpy(positions), None
    order = np.argsort(positions, kind="stable")
    return torch.from_numpy(positions[order]), order


def _bytes(data: Data) -> int:
    if isinstance(data, Tensor):
        return data.nbytes
    return 8 * len(data) + sum(49 + 4 * len(x) if hasattr(x, "__len__") else 48 for x in data.rows if x is not None)
