"""As many threads as torch may use, for compiled loops that hold no lock of Python."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

MOST, WAITING = 8, 4  # threads of `in_order`, and results that may wait so that they go on while the last one is used

T = TypeVar("T")
R = TypeVar("R")
Task = Callable[[int, int], object]  # of rows start … stop − 1


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="attendb")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: the child makes its own
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_threads(task: Task, rows: int, *, least: int = 1, parts: int | None = None) -> None:
    """Run ``task(start, stop)`` over 0 … rows, cut into ``parts`` (None: one a thread) of at least ``least`` rows each.

    The task must release the lock of Python and write only to what belongs to its rows. Raises what a task raises.
    """
    threads = torch.get_num_threads()
    parts = max(1, min(threads if parts is None else parts, rows // max(1, least)))
    cuts = [rows * i // parts for i in range(parts + 1)]
    if threads == 1 or parts == 1:
        for start, stop in pairwise(cuts):
            task(start, stop)
        return
    jobs = [_pool(threads - 1).submit(task, start, stop) for start, stop in pairwise(cuts[1:])]
    try:
        task(cuts[0], cuts[1])
    finally:
        for job in jobs:
            job.exception()
    for job in jobs:
        job.result()


def in_order(task: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
    """``task`` of each item, in their order; the next ones are computed in threads while the last one is used.

    Memory: one item a thread and a few more, and what the task makes of them. Raises what a task or the items raise.
    """
    threads = min(MOST, torch.get_num_threads())
    if threads == 1:
        yield from map(task, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="attendb-stream")
    try:
        coming: deque[Future[R]] = deque()
        for item in items:
            coming.append(pool.submit(task, item))
            if len(coming) > threads + WAITING:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
