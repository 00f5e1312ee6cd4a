"""Which queries share one Fourier series: boxes of queries with the keys that reach them, and the queries left over.

One series over everything would be huge where a few rows lie far away, and larger than memory in three columns. A box
of queries is halved while that saves work or the series would not fit; queries that are cheaper asked one by one
(alone, far from all others) are left over for an exact plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .transform import Array, Frame, Points

LARGEST_GRID = 1 << 30  # bytes of one fine grid and its series
SECONDS_PER_SERIES = 4e-3
SECONDS_PER_CELL = 5e-8  # of a fine grid, both transforms of one packed channel
SECONDS_PER_POINT = 4e-8, 5e-10  # of a packed channel: once, and for each cell that the point is spread over
SECONDS_PER_PAIR = 4e-9  # of what is left over
MOST_LOOKS = 128  # boxes that are looked at: scattered rows would else be cut for ever
SAVING = 0.8  # halves must cost less than this share of the whole


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows of queries, the rows of keys within reach of their box, and what one series for them costs."""

    queries: Array
    keys: Array
    frame: Frame | None  # of the series; None where no key is within reach
    seconds: float
    direct_seconds: float

    @property
    def best(self) -> float:
        return min(self.seconds, self.direct_seconds)


@dataclass(frozen=True)
class Effort:
    """What a series is asked for: its reach, channels packed in pairs, and the accuracy of its transforms."""

    reach: float
    pairs: int
    accuracy: float

    @property
    def width(self) -> int:
        """Cells of the fine grid that a point is spread over, in each column."""
        return math.ceil(-math.log10(self.accuracy)) + 2

    @property
    def finer(self) -> float:
        """Cells of the fine grid for each coefficient, in each column; finufft takes the coarser one where it can."""
        return 2.0 if self.accuracy < 1e-9 else 1.25

    def seconds(self, frame: Frame, points: int) -> float:
        fine = frame.size * self.finer ** len(frame.modes)
        if 16 * (fine + frame.size * (self.pairs + 1)) > LARGEST_GRID:
            return math.inf
        once, a_cell = SECONDS_PER_POINT
        spread = points * (once + a_cell * self.width ** len(frame.modes))
        return SECONDS_PER_SERIES + self.pairs * (fine * SECONDS_PER_CELL + spread)


def tiles(queries: Array, keys: Array, effort: Effort) -> tuple[list[Tile], Array]:
    """(boxes that get a series, rows of queries left over) for queries (n, d) and keys (m, d).

    Cost: O((n + m) · depth), at most MOST_LOOKS boxes; what is then still too large is left over.
    """
    chosen: list[Tile] = []
    rest: list[Array] = []
    open_tiles = [_tile(queries, keys, np.arange(len(queries)), np.arange(len(keys)), effort)]
    looks = 0
    while open_tiles:
        open_tiles.sort(key=lambda tile: len(tile.queries))
        tile = open_tiles.pop()  # the fullest first: a few scattered rows must not use up the looks
        looks += 1
        halves = _halves(queries, keys, tile, effort) if looks < MOST_LOOKS else []
        if halves and sum(half.best for half in halves) < SAVING * tile.best:
            open_tiles += halves
        elif tile.direct_seconds <= tile.seconds and not (halves and math.isinf(tile.seconds)) or tile.frame is None:
            rest.append(tile.queries)
        elif math.isinf(tile.seconds):
            open_tiles += halves
        else:
            chosen.append(tile)
    return chosen, np.sort(np.concatenate(rest)) if rest else np.zeros(0, dtype=np.int64)


def _tile(queries: Array, keys: Array, rows: Array, candidates: Array, effort: Effort) -> Tile:
    low, high = _box(queries, rows)
    near = np.ones(len(candidates), dtype=bool)
    for column in range(queries.shape[1]):
        x = Points(keys, candidates).column(column)
        near &= (x >= low[column] - effort.reach) & (x <= high[column] + effort.reach)
    reached = candidates if near.all() else candidates[near]
    direct = 1e-5 + SECONDS_PER_PAIR * len(rows) * len(keys)
    if not len(reached):
        return Tile(rows, reached, None, math.inf, direct)
    frame = Frame.of_boxes(low, high, *_box(keys, reached), effort.reach)
    return Tile(rows, reached, frame, effort.seconds(frame, len(rows) + len(reached)), direct)


def _box(table: Array, rows: Array) -> tuple[Array, Array]:
    columns = [Points(table, rows).column(c) for c in range(table.shape[1])]
    return np.array([x.min() for x in columns]), np.array([x.max() for x in columns])


def _halves(queries: Array, keys: Array, tile: Tile, effort: Effort) -> list[Tile]:
    """The tile cut in the middle of its longest side; none where the queries are all in one place."""
    if len(tile.queries) < 2 or not len(tile.keys):
        return []
    low, high = _box(queries, tile.queries)
    column = int((high - low).argmax())
    below = Points(queries, tile.queries).column(column) < (low[column] + high[column]) / 2
    if below.all() or not below.any():
        return []
    return [_tile(queries, keys, tile.queries[side], tile.keys, effort) for side in (below, ~below)]
