"""The k best of each query, block of scores after block of scores, in one pass behind a running threshold.

Scores that do not beat the k-th best so far are passed over 64 at a time. The others are appended to a short list of
candidates in the order of their rows; a full list is cut back to its k best by quickselect, which keeps the order of
the rows, so that of equal scores the first rows stay. Work is O(1) a score on average, also where every score is
better than all before it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from .threads import in_threads

FAST = {"nsz", "arcp", "contract", "reassoc"}  # never "nnan": NaN must stay NaN
AT_ONCE = 64  # scores that are compared with the threshold before any of them is looked at
ROWS_IN_CACHE = 64  # keys that `inner_products` holds while all queries pass over them
PAIRS_PER_THREAD = 1 << 18  # fewer are not worth waking a thread for


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _kth_largest(x: np.ndarray, k: int) -> Any:
    """The k-th largest number of x, by quickselect (Hoare 1961), in place."""
    low, high, place = 0, len(x) - 1, k - 1
    while low < high:
        a, b, c = x[low], x[(low + high) // 2], x[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while x[i] > pivot:
                i += 1
            while x[j] < pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return x[place]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _cut_back(scores: np.ndarray, rows: np.ndarray, held: int, k: int, spare: np.ndarray) -> Any:
    """Keep the k best of ``held`` candidates, in the order of their rows; return the worst score kept."""
    spare[:held] = scores[:held]
    least = _kth_largest(spare[:held], k)
    ties = k
    for i in range(held):
        ties -= scores[i] > least
    kept = 0
    for i in range(held):
        if scores[i] > least or (scores[i] == least and ties > 0):
            ties -= scores[i] == least
            scores[kept], rows[kept] = scores[i], rows[i]
            kept += 1
    return least


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _absorb(
    block: np.ndarray,
    width: int,
    first: int,
    start: int,
    stop: int,
    k: int,
    scores: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    least: np.ndarray,
) -> None:
    """Candidates among the scores (n, ≥ width) of rows ``first`` …, for the queries start … stop − 1."""
    room = scores.shape[1]
    spare = np.empty(room, scores.dtype)
    zero, one = scores.dtype.type(0), scores.dtype.type(1)  # counted in the dtype of the scores: as many to a vector
    for i in range(start, stop):
        threshold, count = least[i], held[i]
        for left in range(0, width, AT_ONCE):
            right = min(left + AT_ONCE, width)
            part, above = block[i][left:right], zero
            for j in range(len(part)):
                above += zero if part[j] <= threshold else one
            if above == zero:
                continue
            for j in range(left, right):
                x = block[i, j]
                if x > threshold:
                    scores[i, count], rows[i, count] = x, first + j
                    count += 1
                    if count == room:
                        threshold, count = _cut_back(scores[i], rows[i], count, k, spare), k
                elif x != x:
                    threshold = x  # NaN: nothing beats it, and the caller finds it
        least[i], held[i] = threshold, count


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _absorb_by_key(
    block: np.ndarray,
    first: int,
    start: int,
    stop: int,
    k: int,
    scores: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    least: np.ndarray,
) -> None:
    """Candidates among the scores (rows, n) of rows ``first`` …, for the queries start … stop − 1."""
    room = scores.shape[1]
    spare = np.empty(room, scores.dtype)
    thresholds = least[start:stop]
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    for j in range(len(block)):
        row = block[j][start:stop]
        above = zero
        for i in range(len(thresholds)):
            above += zero if row[i] <= thresholds[i] else one
        if above == zero:
            continue
        for i in range(len(thresholds)):
            x = row[i]
            if x > thresholds[i]:
                count = held[start + i]
                scores[start + i, count], rows[start + i, count] = x, first + j
                count += 1
                if count == room:
                    thresholds[i], count = _cut_back(scores[start + i], rows[start + i], count, k, spare), k
                held[start + i] = count
            elif x != x:
                thresholds[i] = x  # NaN: nothing beats it, and the caller finds it


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _finish(
    start: int, stop: int, k: int, scores: np.ndarray, rows: np.ndarray, held: np.ndarray, least: np.ndarray
) -> None:
    """Cut every list back to k, with −∞ and row −1 where there are fewer."""
    spare = np.empty(scores.shape[1], scores.dtype)
    for i in range(start, stop):
        if held[i] > k:
            _cut_back(scores[i], rows[i], held[i], k, spare)
        for j in range(held[i], k):
            scores[i, j], rows[i, j] = -np.inf, -1
        if least[i] != least[i]:
            scores[i, 0] = np.nan


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _inner_products(queries: np.ndarray, keys: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    width = keys.shape[1]
    for left in range(start, stop, ROWS_IN_CACHE):
        right = min(left + ROWS_IN_CACHE, stop)
        for i in range(len(queries)):
            for j in range(left, right):
                total = keys.dtype.type(0)
                for c in range(width):
                    total += queries[i, c] * keys[j, c]
                out[i, j] = total


class BestRows:
    """The k best rows of n queries: `absorb` blocks of scores whose rows ascend, then `finish`.

    A score of −∞ is no row, nor one below ``floor`` (n,). Memory: about 2k candidates a query.
    """

    def __init__(self, n: int, k: int, dtype: torch.dtype, floor: Tensor | None = None):
        self.n, self.k = n, k
        room = 2 * k + AT_ONCE
        self._scores, self._rows = torch.empty(n, room, dtype=dtype), torch.empty(n, room, dtype=torch.int64)
        self._held = torch.zeros(n, dtype=torch.int64)
        self._least = torch.full((n,), -torch.inf, dtype=dtype)
        if floor is not None:
            self._least = torch.nextafter(floor.reshape(n).to(dtype), self._least)
        self._state = [x.numpy() for x in (self._scores, self._rows, self._held, self._least)]

    def absorb(self, block: Tensor, first: int, width: int, start: int = 0) -> None:
        """Scores (queries, ≥ width), contiguous, of rows first … first + width − 1, for queries ``start`` and on."""
        scores, state = block.detach().numpy(), [x[start : start + len(block)] for x in self._state]
        least = max(1, PAIRS_PER_THREAD // max(1, width))
        in_threads(lambda i, j: _absorb(scores, width, first, i, j, self.k, *state), len(block), least=least)

    def absorb_by_key(self, block: Tensor, first: int) -> None:
        """Scores (rows, n), contiguous, of rows first …, for all queries."""
        scores = block.detach().numpy()
        least = max(1, PAIRS_PER_THREAD // max(1, len(block)))
        in_threads(lambda i, j: _absorb_by_key(scores, first, i, j, self.k, *self._state), self.n, least=least)

    def finish(self) -> tuple[Tensor, Tensor]:
        """(scores, rows), (n, k) each, best first, equal scores by row; −∞ and −1 where there are fewer rows.

        A query that has met NaN has it among its scores.
        """
        _finish(0, self.n, self.k, *self._state)
        scores, rows = self._scores[:, : self.k], self._rows[:, : self.k]
        scores, order = scores.sort(dim=-1, descending=True, stable=True)
        return scores, rows.gather(-1, order)


def inner_products(queries: Tensor, keys: Tensor, out: Tensor) -> None:
    """out (n, m) = queries (n, d) · keys (m, d), for few queries: one pass over the keys, equal keys scored equally."""
    q, k, o = (x.detach().numpy() for x in (queries, keys, out))
    least = max(1, PAIRS_PER_THREAD // max(1, queries.numel()))
    in_threads(lambda start, stop: _inner_products(q, k, start, stop, o), len(keys), least=least)
