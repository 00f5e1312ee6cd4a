"""Which boxes of keys matter to a box of queries: bounds of what each can weigh, over a hierarchy of boxes.

A box that is skipped weighs at most its multiplicities × the kernel at the least distance between the boxes. Boxes are
skipped from the farthest inwards while all of them together fit into what may be skipped; a histogram of exponents
replaces sorting. Compact kernels skip what they do not reach. Lengths are in units of base-2 exponents (`near.py`).
"""

from __future__ import annotations

import math

import numba
import numpy as np

from .boxes import FAN
from .kinds import BOXCAR, EUCLIDEAN, LAPLACIAN

FAST = {"nsz", "arcp", "contract", "reassoc"}
BINS, BIN = 256, 0.5  # exponents of bounds are sorted into bins of this width, from −64 to 64 of what may be skipped
UPPER_SHARE = 0.25  # of the slack, for boxes that are skipped without a look at their parts


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
def descend(kind, low, high, starts, corner, nodes, gaps):  # type: ignore[no-untyped-def]
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
def survey(kind, low, high, mass, starts, corner, base, nodes, order, gaps, uppers, counts):  # type: ignore[no-untyped-def]
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
def least_sum(ref, total, first, last):  # type: ignore[no-untyped-def]
    """log2 of the least sum of the queries first … last − 1."""
    least = np.inf
    for i in range(first, last):
        least = min(least, ref[i] + math.log2(total[i]) if total[i] > 0 else -np.inf)
    return least


@numba.njit(nogil=True, cache=True)
def add_up(spent, counts, below):  # type: ignore[no-untyped-def]
    """``below``: the most that all boxes of lower bins weigh, for each bin; returns it for all bins."""
    for b in range(BINS):
        below[b] = spent
        spent += counts[b] * _edge(b)
    return spent


@numba.njit(nogil=True, cache=True)
def next_bin(b, counts):  # type: ignore[no-untyped-def]
    """The next lower bin that holds boxes, or −1."""
    b -= 1
    while b >= 0 and counts[b] == 0:
        b -= 1
    return b


@numba.njit(nogil=True, cache=True)
def enough(counts, below, taken):  # type: ignore[no-untyped-def]
    """How many of the sorted boxes do not fit into what may be skipped."""
    for b in range(BINS):
        if below[b] + counts[b] * _edge(b) > 1.0:
            return taken
        taken -= counts[b]
    return taken
