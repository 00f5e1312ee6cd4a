"""Gradients of the sums of `near.py`: the same boxes are visited again, and keys are summed once a thread."""

from __future__ import annotations

import math

import numba
import numpy as np

from .kinds import BOXCAR, EPANECHNIKOV, EUCLIDEAN, GAUSSIAN, LAPLACIAN, TRIANGULAR
from .near import KEYS_IN_BOX, corners, enter, hide, measure, new_tile, weigh
from .search import BINS, FAST, add_up, enough, least_sum, survey


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
    tile, weighted, f = new_tile(size, width, v), scale.shape[1] > 0, np.empty(KEYS_IN_BOX, v.dtype)
    own_k, own_v, own_w = np.zeros_like(tile.k), np.zeros_like(tile.v), np.zeros((1, KEYS_IN_BOX), v.dtype)
    for box in todo:
        first, last = box * size, min(box * size + size, q.shape[1])
        corners(q, first, last, corner)
        least = least_sum(ref, total, first, last)
        base = max(least, -1e300) + slack
        taken, left = survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts)
        if kind < BOXCAR:
            add_up(left, counts, below)
            taken = enough(counts, below, taken)
        close = enter(q, first, last, corner, point, q.dtype == v.dtype, tile)
        step = last - first if close else 1
        for place in range(taken):
            start = order[place] * KEYS_IN_BOX
            count = min(KEYS_IN_BOX, k.shape[1] - start)
            for a in range(first, last, step):
                if not close:
                    corners(q, a, a + 1, corner)
                    enter(q, a, a + 1, corner, point, False, tile)
                measure(kind, q, k, v, scale, own, a, a + step, start, True, point, tile)
                weigh(kind, tile, ref[a : a + step], weighted, step)
                hide(own, a, a + step, start, count, tile.p)
                _back(kind, tile, step, a, total, dvalue, shift, dq, own_k, own_v, own_w[0], f)
            _flush(own_k[:d], start, count, dk)
            _flush(own_v, start, count, dv)
            _flush(own_w, start, count, dw)
