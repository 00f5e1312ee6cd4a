"""Rows sorted into small boxes, and boxes into larger ones.

The order is that of a balanced tree: rows are split at a middle along their widest column, again and again, until a
part is one box. Parts are whole boxes, and every part but the last holds a power of two of them, so that each aligned
run of 2^j boxes is itself a part, hence small. Source: Friedman, Bentley and Finkel 1977.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from .threads import in_threads

FAN = 32  # boxes in the next larger box
SPLITS_FIRST = 4  # splits made by one thread before the parts are shared out


@numba.njit(nogil=True, cache=True)
def _swap(points, order, i, j):  # type: ignore[no-untyped-def]
    for c in range(points.shape[1]):
        points[i, c], points[j, c] = points[j, c], points[i, c]
    order[i], order[j] = order[j], order[i]


@numba.njit(nogil=True, cache=True)
def _partition(points, order, start, stop, place, column):  # type: ignore[no-untyped-def]
    """Reorder rows start … stop − 1 so that those before ``place`` are not above those behind it in a column."""
    low, high = start, stop - 1
    while low < high:
        a, b, c = points[low, column], points[(low + high) // 2, column], points[high, column]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while points[i, column] < pivot:
                i += 1
            while points[j, column] > pivot:
                j -= 1
            if i <= j:
                _swap(points, order, i, j)
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            return


@numba.njit(nogil=True, cache=True)
def _split(points, order, parts, size, depth):  # type: ignore[no-untyped-def]
    """Split each part (first box, last box + 1) at most ``depth`` times; returns what is larger than one box."""
    rows = len(points)
    todo = [(parts[i, 0], parts[i, 1], depth) for i in range(len(parts))]
    left = []
    while todo:
        first, last, deep = todo.pop()
        if last - first < 2:
            continue
        if deep == 0:
            left.append((first, last))
            continue
        start, stop = first * size, min(last * size, rows)
        widest, column = -1.0, 0
        for c in range(points.shape[1]):
            low = high = points[start, c]
            for i in range(start, stop):
                low, high = min(low, points[i, c]), max(high, points[i, c])
            if high - low > widest:
                widest, column = high - low, c
        middle = 1
        while 2 * middle < last - first:
            middle *= 2
        _partition(points, order, start, stop, (first + middle) * size, column)
        todo.append((first, first + middle, deep - 1))
        todo.append((first + middle, last, deep - 1))
    found = np.empty((len(left), 2), np.int64)
    for i, (first, last) in enumerate(left):
        found[i, 0], found[i, 1] = first, last
    return found


def box_order(x: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """An order of the rows (m, d) in which every run of ``size`` rows lies in a small box. Cost O(m log m)."""
    points, order = np.array(x, dtype=np.float64, order="C"), np.arange(len(x))
    parts = np.array([[0, -(-len(x) // size)]])
    parts = _split(points, order, parts, size, SPLITS_FIRST)
    in_threads(lambda a, b: _split(points, order, parts[a:b], size, 64), len(parts))
    return order


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of ``size`` sorted rows, runs of `FAN` boxes, runs of those, …: level after level in one array."""

    low: NDArray[np.float64]  # (d, all boxes): the least corner
    high: NDArray[np.float64]
    mass: NDArray[np.float64]  # log2 of the summed multiplicities, rounded up a little
    starts: NDArray[np.int64]  # (levels + 1,): level l is boxes starts[l] … starts[l + 1] − 1
    size: int

    @staticmethod
    def of(columns: NDArray[np.float64], weights: NDArray[np.float64] | None, size: int) -> Boxes:
        """The boxes of sorted rows, given by column (d, m)."""
        low, high = _runs(np.minimum, columns, size), _runs(np.maximum, columns, size)
        w = np.ones(columns.shape[1]) if weights is None else weights
        total = _runs(np.add, w[None], size)
        levels = [(low, high, total)]
        while levels[-1][2].shape[1] > FAN:
            low, high, total = levels[-1]
            levels.append((_runs(np.minimum, low, FAN), _runs(np.maximum, high, FAN), _runs(np.add, total, FAN)))
        starts = np.cumsum([0, *(total.shape[1] for _, _, total in levels)])
        low, high, total = (np.ascontiguousarray(np.concatenate(x, 1)) for x in zip(*levels, strict=True))
        return Boxes(low, high, np.log2(total[0]) + 1e-9, starts, size)


def _runs(add: np.ufunc, x: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    return add.reduceat(x, np.arange(0, x.shape[1], size), axis=1)
