"""Sums of kernels over near keys: Σ w p and Σ w p v of each query, by boxes of sorted rows.

For a box of queries the first sum is that of one near box of keys. `search.py` then says which boxes matter; near
ones are added before far ones, and the loop ends as soon as what has been added outweighs what is left.

Lengths are in units of base-2 exponents: a softmax kernel is 2^−s with s = Σ u² (Gaussian), Σ |u| (Laplacian) or √Σ u²
(Euclidean) of the scaled difference u; a compact one is a function of s = Σ u². Each query has a whole number ``ref``:
p = 2^(−s − ref), so that changing it loses no digit and no sum overflows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from .exponential import exp2
from .kinds import BOXCAR, EUCLIDEAN, LAPLACIAN, TRIANGULAR
from .search import BINS, FAST, add_up, descend, least_sum, next_bin, survey

KEYS_IN_BOX = 32
MOST_COLUMNS = 4
RISE = 60.0  # how far an exponent may exceed ref
WIDEST = 4.0  # radius of a box of queries, in units of s ^ ½, above which centring loses digits


def _squares(kind, d, q, k, first, last, s):  # type: ignore[no-untyped-def]
    """s of the queries first … last − 1 of a box and a box of keys."""
    for i in range(first, last):
        q0, q1, q2, q3 = q[0, i], q[1, i], q[2, i], q[3, i]
        if d == 1:
            for j in range(KEYS_IN_BOX):
                a = q0 - k[0, j]
                s[i, j] = abs(a) if kind == LAPLACIAN else a * a
        elif d == 2:
            for j in range(KEYS_IN_BOX):
                a, b = q0 - k[0, j], q1 - k[1, j]
                s[i, j] = abs(a) + abs(b) if kind == LAPLACIAN else a * a + b * b
        elif d == 3:
            for j in range(KEYS_IN_BOX):
                a, b, c = q0 - k[0, j], q1 - k[1, j], q2 - k[2, j]
                s[i, j] = abs(a) + abs(b) + abs(c) if kind == LAPLACIAN else a * a + b * b + c * c
        else:
            for j in range(KEYS_IN_BOX):
                a, b, c, e = q0 - k[0, j], q1 - k[1, j], q2 - k[2, j], q3 - k[3, j]
                if kind == LAPLACIAN:
                    s[i, j] = abs(a) + abs(b) + abs(c) + abs(e)
                else:
                    s[i, j] = a * a + b * b + c * c + e * e
        if kind == EUCLIDEAN:
            for j in range(KEYS_IN_BOX):
                s[i, j] = math.sqrt(s[i, j])


_lengths = numba.njit(nogil=True, cache=True, fastmath=FAST)(_squares)
# rounded as `squared_distance` rounds them, so that the boundary of a window is the same
_exact_squares = numba.njit(nogil=True, cache=True)(_squares)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _powers(s, ref, weights, weighted, first, last, p):  # type: ignore[no-untyped-def]
    """w p of a softmax kernel."""
    for i in range(first, last):
        down = p.dtype.type(-ref[i])
        if weighted:
            for j in range(KEYS_IN_BOX):
                p[i, j] = exp2((weights[0, j] + down) - s[i, j]) * weights[1, j]
        else:
            for j in range(KEYS_IN_BOX):
                p[i, j] = exp2(down - s[i, j])


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _windows(kind, s, weights, first, last, p):  # type: ignore[no-untyped-def]
    """w p of a compact kernel."""
    one, zero = p.dtype.type(1), p.dtype.type(0)
    for i in range(first, last):
        if kind == BOXCAR:
            for j in range(KEYS_IN_BOX):
                p[i, j] = weights[1, j] if s[i, j] <= one else zero
        elif kind == TRIANGULAR:
            for j in range(KEYS_IN_BOX):
                p[i, j] = weights[1, j] * max(one - math.sqrt(s[i, j]), zero)
        else:
            for j in range(KEYS_IN_BOX):
                p[i, j] = weights[1, j] * max(one - s[i, j], zero)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _add(p, v, first, last, start, total, pooled):  # type: ignore[no-untyped-def]
    """Add Σ w p and Σ w p v of a box of keys to the queries that begin at ``start``."""
    for i in range(first, last):
        sum0, sum1 = p.dtype.type(0), p.dtype.type(0)
        for j in range(KEYS_IN_BOX):
            sum0 += p[i, j]
            sum1 += p[i, j] * v[0, j]
        total[start + i] += np.float64(sum0)
        pooled[start + i, 0] += np.float64(sum1)
        for c in range(1, v.shape[0]):
            sum1 = p.dtype.type(0)
            for j in range(KEYS_IN_BOX):
                sum1 += p[i, j] * v[c, j]
            pooled[start + i, c] += np.float64(sum1)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _centre_rows(x, start, count, centre, out):  # type: ignore[no-untyped-def]
    for c in range(x.shape[0]):
        for j in range(count):
            out[c, j] = x[c, start + j] - centre[c]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _copy_rows(x, start, count, out):  # type: ignore[no-untyped-def]
    """Rows of a box, with zeros where the box is not full."""
    for c in range(x.shape[0]):
        for j in range(count):
            out[c, j] = x[c, start + j]
        out[c, count:] = 0


class Tile(NamedTuple):
    """What is computed of one box of queries and one box of keys at a time."""

    q: Any  # (4, queries)
    k: Any  # (4, keys)
    v: Any  # (v, keys)
    weights: Any  # (2, keys)
    s: Any  # (queries, keys)
    p: Any


@numba.njit(nogil=True, cache=True)
def new_tile(size, width, like):  # type: ignore[no-untyped-def]
    """Room for ``size`` queries and values of a width, in the dtype of ``like``; multiplicities 1."""
    weights = np.ones((2, KEYS_IN_BOX), like.dtype)
    weights[0] = 0
    return Tile(
        np.zeros((4, size), like.dtype),
        np.zeros((4, KEYS_IN_BOX), like.dtype),
        np.zeros((width, KEYS_IN_BOX), like.dtype),
        weights,
        np.zeros((size, KEYS_IN_BOX), like.dtype),
        np.zeros((size, KEYS_IN_BOX), like.dtype),
    )


@numba.njit(nogil=True, cache=True)
def enter(q, first, last, corner, point, same, tile):  # type: ignore[no-untyped-def]
    """Take a box of queries into the tile; whether rows relative to its middle keep their digits."""
    radius = 0.0
    for c in range(q.shape[0]):
        radius += (corner[1, c] - corner[0, c]) ** 2
        point[c] = 0.0 if same else 0.5 * corner[0, c] + 0.5 * corner[1, c]
    _centre_rows(q, first, last - first, point, tile.q)
    return same or radius <= (2.0 * WIDEST) ** 2


@numba.njit(nogil=True, cache=True)
def measure(kind, q, k, v, scale, own, first, last, start, close, point, tile):  # type: ignore[no-untyped-def]
    """s of a box of queries and a box of keys; ∞ for a row that a query may not see, and where the box is not full."""
    d, count = q.shape[0], min(KEYS_IN_BOX, k.shape[1] - start)
    _copy_rows(v, start, count, tile.v)
    if scale.shape[1]:
        _copy_rows(scale, start, count, tile.weights)
    if close:
        _centre_rows(k, start, count, point, tile.k)
        if kind >= BOXCAR:
            _exact_squares(kind, d, tile.q, tile.k, 0, last - first, tile.s)
        else:
            _lengths(kind, d, tile.q, tile.k, 0, last - first, tile.s)
    else:  # a wide box: relative to each query
        tile.q[:] = 0
        for i in range(last - first):
            _centre_rows(k, start, count, q[:, first + i], tile.k)
            _lengths(kind, d, tile.q, tile.k, i, i + 1, tile.s)
    if count < KEYS_IN_BOX:
        tile.s[:, count:] = np.inf
    if len(own):
        for i in range(first, last):
            if 0 <= own[i] - start < count:
                tile.s[i - first, own[i] - start] = np.inf
    return count


@numba.njit(nogil=True, cache=True)
def weigh(kind, tile, ref, weighted, rows):  # type: ignore[no-untyped-def]
    """w p of what `measure` has found; exactly 0 where s is infinite."""
    if kind >= BOXCAR:
        _windows(kind, tile.s, tile.weights, 0, rows, tile.p)
    else:
        _powers(tile.s, ref, tile.weights, weighted, 0, rows, tile.p)


@numba.njit(nogil=True, cache=True)
def hide(own, first, last, start, count, p):  # type: ignore[no-untyped-def]
    """No weight for rows that a query may not see, nor where the box is not full."""
    if count < KEYS_IN_BOX:
        p[:, count:] = 0
    if len(own):
        for i in range(first, last):
            if 0 <= own[i] - start < count:
                p[i - first, own[i] - start] = 0


@numba.njit(nogil=True, cache=True)
def _raise(tile, weighted, upper, first, last, ref, total, pooled):  # type: ignore[no-untyped-def]
    """Move ref of the queries first … last − 1 up where an exponent would exceed it too far."""
    for i in range(first, last):
        if upper - ref[i] <= RISE:
            continue
        highest = -np.inf
        for j in range(KEYS_IN_BOX):
            exponent = (tile.weights[0, j] if weighted else 0.0) - np.float64(tile.s[i - first, j])
            highest = max(highest, exponent)
        if highest > ref[i] + RISE / 2:
            new = np.rint(highest)
            factor = 2.0 ** max(ref[i] - new, -1000.0) if total[i] > 0 else 0.0
            ref[i] = new
            total[i] *= factor
            for c in range(pooled.shape[1]):
                pooled[i, c] *= factor


@numba.njit(nogil=True, cache=True)
def corners(q, first, last, corner):  # type: ignore[no-untyped-def]
    """The least and the greatest corner of a box of queries."""
    for c in range(q.shape[0]):
        low = high = np.float64(q[c, first])
        for i in range(first, last):
            low, high = min(low, np.float64(q[c, i])), max(high, np.float64(q[c, i]))
        corner[0, c], corner[1, c] = low, high


@numba.njit(nogil=True, cache=True)
def sums(kind, q, k, v, scale, own, boxes, todo, size, slack, ref, total, pooled, rest):  # type: ignore[no-untyped-def]
    """Σ w p and Σ w p v of the queries of the boxes ``todo``; returns the number of pairs visited.

    q (d, n), k (d, m) sorted; v (v, m) and scale (2, m or 0: whole part of log2 w, and what is left; compact: w in the
    second row) in the dtype of the arithmetic; own (n or 0,): a row that the query may not see, or −1; slack: log2 of
    what may be skipped, ÷ the sum. Writes ref (n,), total (n,), pooled (n, v), and rest (n,): what was skipped,
    ÷ the sum, at most.
    """
    low, high, mass, starts = boxes
    many = starts[-1] + 1
    nodes, order, gaps, uppers = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many), np.empty(many)
    counts, below = np.zeros(BINS, np.int64), np.empty(BINS)
    corner, point = np.empty((2, q.shape[0])), np.empty(q.shape[0])
    tile, weighted, seen = new_tile(size, v.shape[0], v), scale.shape[1] > 0, 0
    for box in todo:
        first, last = box * size, min(box * size + size, q.shape[1])
        corners(q, first, last, corner)
        close = enter(q, first, last, corner, point, q.dtype == v.dtype, tile)
        ref[first:last] = -np.inf if kind < BOXCAR else 0.0
        total[first:last] = rest[first:last] = 0.0
        pooled[first:last] = 0.0
        extra, base, left, bin_, done, taken = -1, 0.0, 0.0, BINS, 0, 1
        nearest = descend(kind, low, high, starts, corner, nodes, gaps)
        order[0], uppers[0] = nearest, np.inf
        if kind >= BOXCAR:
            taken = survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)[0]
        while True:
            for i in range(done, taken):
                if bin_ < BINS and (order[i] == nearest or order[i] == extra):
                    continue
                start = order[i] * KEYS_IN_BOX
                count = measure(kind, q, k, v, scale, own, first, last, start, close, point, tile)
                if kind < BOXCAR:
                    _raise(tile, weighted, uppers[i], first, last, ref, total, pooled)
                weigh(kind, tile, ref[first:last], weighted, last - first)
                hide(own, first, last, start, count, tile.p)
                _add(tile.p, tile.v, 0, last - first, first, total, pooled)
                seen += count * (last - first)
            if kind >= BOXCAR:
                break
            least = least_sum(ref, total, first, last)
            if bin_ == BINS and least == -np.inf and extra < 0 and nearest > 0:
                extra = nearest - 1  # all that the nearest box holds is a row that a query may not see
                order[0] = extra
                continue
            if bin_ == BINS:
                base, taken = least + slack, 0
                left = survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)[1]
                left = add_up(left, counts, below)
            if left <= 0.0 or left <= 2.0 ** min(least + slack - base, 1000.0):
                break
            bin_ = next_bin(bin_, counts)
            if bin_ < 0:
                break
            done, taken, left = taken, taken + counts[bin_], below[bin_]
        if left > 0.0:
            for i in range(first, last):
                rest[i] = left / total[i] * 2.0 ** min(base - ref[i], 1000.0)
    return seen
