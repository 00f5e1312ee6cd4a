"""Sums of kernels over near keys: Σ w p and Σ w p v of each query, and their gradients, by boxes of sorted rows.

For a box of queries, boxes of keys are skipped from the farthest inwards while all that is skipped weighs less than
``slack`` times the sum of every query of the box: a skipped box weighs at most its multiplicities × the kernel at the
least distance between the boxes. The first sum is that of one near box; near boxes are then added before far ones, and
the loop ends as soon as what has been added outweighs what is left. Compact kernels skip what they do not reach.

Lengths are in units of base-2 exponents: a softmax kernel is 2^−s with s = Σ u² (Gaussian), Σ |u| (Laplacian) or √Σ u²
(Euclidean) of the scaled difference u; a compact one is a function of s = Σ u². Each query has a whole number ``ref``:
p = 2^(−s − ref), so that changing it loses no digit and no sum overflows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from .boxes import FAN
from .exponential import exp2

GAUSSIAN, LAPLACIAN, EUCLIDEAN, BOXCAR, TRIANGULAR, EPANECHNIKOV = range(6)
KEYS_IN_BOX = 32
MOST_COLUMNS = 4

FAST = {"nsz", "arcp", "contract", "reassoc"}
BINS, BIN = 256, 0.5  # exponents of bounds are sorted into bins of this width, from −64 to 64 of what may be skipped
UPPER_SHARE = 0.25  # of the slack, for boxes that are skipped without a look at their parts
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
def _tile(size, width, like):  # type: ignore[no-untyped-def]
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
def _enter(q, first, last, corner, point, same, tile):  # type: ignore[no-untyped-def]
    """Take a box of queries into the tile; whether rows relative to its middle keep their digits."""
    radius = 0.0
    for c in range(q.shape[0]):
        radius += (corner[1, c] - corner[0, c]) ** 2
        point[c] = 0.0 if same else 0.5 * corner[0, c] + 0.5 * corner[1, c]
    _centre_rows(q, first, last - first, point, tile.q)
    return same or radius <= (2.0 * WIDEST) ** 2


@numba.njit(nogil=True, cache=True)
def _measure(kind, q, k, v, scale, own, first, last, start, close, point, tile):  # type: ignore[no-untyped-def]
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
def _weigh(kind, tile, ref, weighted, rows):  # type: ignore[no-untyped-def]
    """w p of what `_measure` has found; exactly 0 where s is infinite."""
    if kind >= BOXCAR:
        _windows(kind, tile.s, tile.weights, 0, rows, tile.p)
    else:
        _powers(tile.s, ref, tile.weights, weighted, 0, rows, tile.p)


@numba.njit(nogil=True, cache=True)
def _hide(own, first, last, start, count, p):  # type: ignore[no-untyped-def]
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


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _gaps(kind, low, high, corner, nodes, count, gaps):  # type: ignore[no-untyped-def]
    """The least s between a box of queries, corner (2, d), and each box of keys."""
    gaps[:count] = 0.0
    for c in range(len(low)):
        least, most = corner[0, c], corner[1, c]
        for i in range(count):
            gap = max(low[c, nodes[i]] - most, least - high[c, nodes[i]], 0.0)
            gaps[i] += gap if kind == LAPLACIAN else gap * gap
    if kind == EUCLIDEAN:
        for i in range(count):
            gaps[i] = math.sqrt(gaps[i])


@numba.njit(nogil=True, cache=True)
def _corners(q, first, last, corner):  # type: ignore[no-untyped-def]
    """The least and the greatest corner of a box of queries."""
    for c in range(q.shape[0]):
        low = high = np.float64(q[c, first])
        for i in range(first, last):
            low, high = min(low, np.float64(q[c, i])), max(high, np.float64(q[c, i]))
        corner[0, c], corner[1, c] = low, high


@numba.njit(nogil=True, cache=True)
def _bin_of(bound):  # type: ignore[no-untyped-def]
    return int(min(max((bound + BINS * BIN / 2) / BIN, 0.0), BINS - 1.0))


@numba.njit(nogil=True, cache=True)
def _edge(b):  # type: ignore[no-untyped-def]
    """The most that a bound in a bin can be, in units of what may be skipped."""
    return 2.0 ** ((b + 1) * BIN - BINS * BIN / 2)


@numba.njit(nogil=True, cache=True)
def _skip(uppers, base, nodes, count, counts, spent):  # type: ignore[no-untyped-def]
    """Drop the least of the boxes as long as `UPPER_SHARE` is not spent: (how many stay, spent)."""
    counts[:] = 0
    for i in range(count):
        counts[_bin_of(uppers[i] - base)] += 1
    least = 0
    while least < BINS and spent + counts[least] * _edge(least) <= UPPER_SHARE:
        spent += counts[least] * _edge(least)
        least += 1
    kept = 0
    for i in range(count):
        if _bin_of(uppers[i] - base) >= least:
            nodes[kept] = nodes[i]
            kept += 1
    return kept, spent


@numba.njit(nogil=True, cache=True)
def _near_first(gaps, base, nodes, count, counts, order, uppers):  # type: ignore[no-untyped-def]
    """Sort boxes by bin, the highest exponents (in ``gaps``) first; ``counts`` becomes how many lie in each bin."""
    counts[:] = 0
    for i in range(count):
        counts[_bin_of(gaps[i] - base)] += 1
    place = np.empty(BINS, np.int64)
    total = 0
    for b in range(BINS - 1, -1, -1):
        place[b] = total
        total += counts[b]
    for i in range(count):
        b = _bin_of(gaps[i] - base)
        order[place[b]], uppers[place[b]] = nodes[i], gaps[i]
        place[b] += 1


@numba.njit(nogil=True, cache=True)
def _descend(kind, low, high, starts, corner, nodes, gaps):  # type: ignore[no-untyped-def]
    """One near box of the lowest level: from the top down, the part nearest to the middle of a box of queries."""
    middle = np.empty_like(corner)
    middle[0] = middle[1] = 0.5 * corner[0] + 0.5 * corner[1]
    first, last = starts[-2], starts[-1]
    for level in range(len(starts) - 2, -1, -1):
        for i in range(last - first):
            nodes[i] = first + i
        _gaps(kind, low, high, middle, nodes, last - first, gaps)
        best = first + np.argmin(gaps[: last - first])
        if level == 0:
            return best
        first = starts[level - 1] + (best - starts[level]) * FAN
        last = min(first + FAN, starts[level])
    return first


@numba.njit(nogil=True, cache=True)
def _survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts):  # type: ignore[no-untyped-def]
    """Boxes of the lowest level that may matter, near ones first: (how many, what has been skipped in units of 2^base).

    Writes the boxes to ``order``, the highest exponent that each can have to ``uppers``, and how many lie in each bin
    to ``counts``; uses ``nodes`` and ``gaps``.
    """
    top = len(starts) - 2
    count, spent = starts[top + 1] - starts[top], 0.0
    for i in range(count):
        nodes[i] = starts[top] + i
    for level in range(top, -1, -1):
        _gaps(kind, low, high, corner, nodes, count, gaps)
        if kind >= BOXCAR:
            count = _reached(gaps, nodes, count)
        else:
            for i in range(count):
                gaps[i] = mass[nodes[i]] - gaps[i]
            if level > 0:
                count, spent = _skip(gaps, base, nodes, count, counts, spent)
        if level > 0:
            parts = 0
            for i in range(count):
                first = starts[level - 1] + (nodes[i] - starts[level]) * FAN
                for node in range(first, min(first + FAN, starts[level])):
                    order[parts] = node
                    parts += 1
            count = parts
            nodes[:count] = order[:count]
    if kind >= BOXCAR:
        order[:count] = nodes[:count]
    else:
        _near_first(gaps, base, nodes, count, counts, order, uppers)
    return count, spent


@numba.njit(nogil=True, cache=True)
def _reached(gaps, nodes, count):  # type: ignore[no-untyped-def]
    """Keep the boxes that a compact kernel reaches: (how many)."""
    kept = 0
    for i in range(count):
        if gaps[i] <= 1.0 + 1e-6:
            nodes[kept] = nodes[i]
            kept += 1
    return kept


@numba.njit(nogil=True, cache=True)
def _least_sum(ref, total, first, last):  # type: ignore[no-untyped-def]
    """log2 of the least sum of the queries first … last − 1."""
    least = np.inf
    for i in range(first, last):
        least = min(least, ref[i] + math.log2(total[i]) if total[i] > 0 else -np.inf)
    return least


@numba.njit(nogil=True, cache=True)
def _add_up(spent, counts, below):  # type: ignore[no-untyped-def]
    """``below``: the most that all boxes of lower bins weigh, for each bin; returns it for all bins."""
    for b in range(BINS):
        below[b] = spent
        spent += counts[b] * _edge(b)
    return spent


@numba.njit(nogil=True, cache=True)
def _next_bin(b, counts):  # type: ignore[no-untyped-def]
    """The next lower bin that holds boxes, or −1."""
    b -= 1
    while b >= 0 and counts[b] == 0:
        b -= 1
    return b


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
    tile, weighted, seen = _tile(size, v.shape[0], v), scale.shape[1] > 0, 0
    for box in todo:
        first, last = box * size, min(box * size + size, q.shape[1])
        _corners(q, first, last, corner)
        close = _enter(q, first, last, corner, point, q.dtype == v.dtype, tile)
        ref[first:last] = -np.inf if kind < BOXCAR else 0.0
        total[first:last] = rest[first:last] = 0.0
        pooled[first:last] = 0.0
        extra, base, left, bin_, done, taken = -1, 0.0, 0.0, BINS, 0, 1
        nearest = _descend(kind, low, high, starts, corner, nodes, gaps)
        order[0], uppers[0] = nearest, np.inf
        if kind >= BOXCAR:
            taken = _survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)[0]
        while True:
            for i in range(done, taken):
                if bin_ < BINS and (order[i] == nearest or order[i] == extra):
                    continue
                start = order[i] * KEYS_IN_BOX
                count = _measure(kind, q, k, v, scale, own, first, last, start, close, point, tile)
                if kind < BOXCAR:
                    _raise(tile, weighted, uppers[i], first, last, ref, total, pooled)
                _weigh(kind, tile, ref[first:last], weighted, last - first)
                _hide(own, first, last, start, count, tile.p)
                _add(tile.p, tile.v, 0, last - first, first, total, pooled)
                seen += count * (last - first)
            if kind >= BOXCAR:
                break
            least = _least_sum(ref, total, first, last)
            if bin_ == BINS and least == -np.inf and extra < 0 and nearest > 0:
                extra = nearest - 1  # all that the nearest box holds is a row that a query may not see
                order[0] = extra
                continue
            if bin_ == BINS:
                base, taken = least + slack, 0
                left = _survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)[1]
                left = _add_up(left, counts, below)
            if left <= 0.0 or left <= 2.0 ** min(least + slack - base, 1000.0):
                break
            bin_ = _next_bin(bin_, counts)
            if bin_ < 0:
                break
            done, taken, left = taken, taken + counts[bin_], below[bin_]
        if left > 0.0:
            for i in range(first, last):
                rest[i] = left / total[i] * 2.0 ** min(base - ref[i], 1000.0)
    return seen


@numba.njit(nogil=True, cache=True)
def _enough(counts, below, taken):  # type: ignore[no-untyped-def]
    """How many of the sorted boxes do not fit into what may be skipped."""
    for b in range(BINS):
        if below[b] + counts[b] * _edge(b) > 1.0:
            return taken
        taken -= counts[b]
    return taken


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _slopes(kind, tile, i, inverse, f):  # type: ignore[no-untyped-def]
    """From the gradients ``f`` of the weights' logarithms, ÷ the weights: those of differences, ÷ (u or its sign)."""
    one, zero, ln2 = f.dtype.type(1), f.dtype.type(0), f.dtype.type(math.log(2.0))
    for j in range(KEYS_IN_BOX):
        s = tile.s[i, j]
        if kind == GAUSSIAN:
            f[j] *= -2 * ln2 * tile.p[i, j]
        elif kind == LAPLACIAN:
            f[j] *= -ln2 * tile.p[i, j]
        elif kind == EUCLIDEAN:
            f[j] *= -ln2 * tile.p[i, j] / s if s > zero else zero
        elif kind == TRIANGULAR:
            f[j] *= -inverse * tile.weights[1, j] / math.sqrt(s) if zero < s <= one else zero
        elif kind == EPANECHNIKOV:
            f[j] *= -2 * inverse * tile.weights[1, j] if s <= one else zero
        else:
            f[j] = zero


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _back(kind, tile, rows, first, total, dvalue, shift, dq, dk, dv, dw, f):  # type: ignore[no-untyped-def]
    """Gradients of a tile whose weights w p are known, to the queries and to ``dk``, ``dv``, ``dw`` of the box."""
    zero = f.dtype.type(0)
    for i in range(rows):
        if not total[first + i] > 0:
            continue
        inverse = f.dtype.type(1.0 / total[first + i])
        f[:] = shift[first + i]
        for j in range(KEYS_IN_BOX):
            tile.p[i, j] *= inverse
        for c in range(dvalue.shape[1]):
            seed = dvalue[first + i, c]
            for j in range(KEYS_IN_BOX):
                f[j] += seed * tile.v[c, j]
                dv[c, j] += seed * tile.p[i, j]
        for j in range(KEYS_IN_BOX):
            dw[j] += f[j] * tile.p[i, j]
        _slopes(kind, tile, i, inverse, f)
        for c in range(dq.shape[0]):
            summed, mine = zero, tile.q[c, i]
            for j in range(KEYS_IN_BOX):
                u = mine - tile.k[c, j]
                g = f[j] * (u if kind != LAPLACIAN else np.sign(u))
                summed += g
                dk[c, j] -= g
            dq[c, first + i] += np.float64(summed)


@numba.njit(nogil=True, cache=True)
def _flush(box, start, count, whole):  # type: ignore[no-untyped-def]
    """Add the sums of a box of keys to those of all keys, and begin again."""
    for c in range(whole.shape[0]):
        for j in range(count):
            whole[c, start + j] += box[c, j]
    box[:] = 0


@numba.njit(nogil=True, cache=True)
def gradients(kind, q, k, v, scale, own, boxes, todo, size, slack, ref, total, dvalue, shift, dq, dk, dv, dw):  # type: ignore[no-untyped-def]
    """Gradients of Σ p v ÷ Σ p and log Σ p for the queries of the boxes ``todo``, from what `sums` has found.

    dvalue (n, v) and shift (n,) as in `weightings/base.py`, in the dtype of the arithmetic. Adds to dq (d, n), dk
    (d, m) of scaled rows, dv (v, m), and dw (1, m): the gradient of log w. Arrays of keys belong to one thread.
    """
    low, high, mass, starts = boxes
    d, width, many = q.shape[0], v.shape[0], starts[-1] + 1
    nodes, order, gaps, uppers = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many), np.empty(many)
    counts, below, corner, point = np.zeros(BINS, np.int64), np.empty(BINS), np.empty((2, d)), np.empty(d)
    tile, weighted, f = _tile(size, width, v), scale.shape[1] > 0, np.empty(KEYS_IN_BOX, v.dtype)
    own_k, own_v, own_w = np.zeros_like(tile.k), np.zeros_like(tile.v), np.zeros((1, KEYS_IN_BOX), v.dtype)
    for box in todo:
        first, last = box * size, min(box * size + size, q.shape[1])
        _corners(q, first, last, corner)
        least = _least_sum(ref, total, first, last)
        base = max(least, -1e300) + slack
        taken, left = _survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)
        if kind < BOXCAR:
            _add_up(left, counts, below)
            taken = _enough(counts, below, taken)
        close = _enter(q, first, last, corner, point, q.dtype == v.dtype, tile)
        step = last - first if close else 1
        for place in range(taken):
            start = order[place] * KEYS_IN_BOX
            count = min(KEYS_IN_BOX, k.shape[1] - start)
            for a in range(first, last, step):
                if not close:
                    _corners(q, a, a + 1, corner)
                    _enter(q, a, a + 1, corner, point, False, tile)
                _measure(kind, q, k, v, scale, own, a, a + step, start, True, point, tile)
                _weigh(kind, tile, ref[a : a + step], weighted, step)
                _hide(own, a, a + step, start, count, tile.p)
                _back(kind, tile, step, a, total, dvalue, shift, dq, own_k, own_v, own_w[0], f)
            _flush(own_k[:d], start, count, dk)
            _flush(own_v, start, count, dv)
            _flush(own_w, start, count, dw)
