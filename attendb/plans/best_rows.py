"""The best rows of every query by compiled loops: from the cells of a fold, or from large matrix products.

The products have one shape throughout, with a width that is a multiple of `KEYS_ALIKE` (the last block is filled up
with rows of zeros), so that equal keys get equal scores, bit for bit, wherever they lie. For few queries a compiled
loop reads the keys once, at the rate of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..weightings.base import Cell, State
from ..weightings.selecting import Best
from .cells import KEYS_ALIKE, PAIR, Place, Problem, cut

if TYPE_CHECKING:
    from ..compiled.best import BestRows

FEWEST_PAIRS = 1 << 18  # a batch entry; fewer do not pay for loading the compiled loops
QUERIES_AT_ONCE = 256
SCORES_AT_ONCE = QUERIES_AT_ONCE * KEYS_ALIKE * 8  # 1.5 MB in float32
FEW_QUERIES = 12  # up to here the compiled loop beats a matrix product

# seconds on two cores in float32
SECONDS_PER_NUMBER = 1.6e-10  # of the keys, read once
SECONDS_PER_PRODUCT = 8e-12
SECONDS_PER_SCORE = 2.5e-10  # compared with the threshold


def worth_compiling(problem: Problem) -> bool:
    """Whether compiled loops can serve, and save more than it takes to load them."""
    return (
        problem.device.type == "cpu"
        and problem.dtype in (torch.float32, torch.float64)
        and problem.n * max(problem.m, problem.rows_in_all) >= FEWEST_PAIRS
    )


def products_cost(problem: Problem) -> float:
    """Estimated seconds of `Products.best`."""
    pairs, width = problem.batch * problem.n * problem.m, problem.queries.shape[-1]  # type: ignore[union-attr]
    wide = torch.finfo(problem.dtype).bits / 32
    reads = problem.batch * problem.m * width * -(-problem.n // QUERIES_AT_ONCE)
    return wide * (reads * SECONDS_PER_NUMBER + pairs * (SECONDS_PER_SCORE + SECONDS_PER_PRODUCT * width))


class BestOfCells:
    """The fold of `Best` over cells whose keys ascend, by compiled loops."""

    def __init__(self, problem: Problem, best: Best):
        self.problem, self.best = problem, best
        self._rows: object | None = None

    @staticmethod
    def serves(problem: Problem, accumulator: object) -> bool:
        return isinstance(accumulator, Best) and not accumulator.with_multiplicity and worth_compiling(problem)

    def take(self, place: Place, cell: Cell) -> None:
        """Absorb one cell."""
        from ..compiled.best import BestRows

        problem, rank = self.problem, self.best.rank(cell).contiguous()
        if self._rows is None:
            self._rows = BestRows(problem.batch * problem.n, self.best.k, rank.dtype, self.best.floor)
        assert isinstance(self._rows, BestRows)
        entries = range(*place.batch.indices(problem.batch))
        for entry, scores in zip(entries, rank, strict=True):
            start = entry * problem.n + place.queries.start
            self._rows.absorb(scores, place.keys.start, scores.shape[-1], start)

    def state(self) -> State:
        """(rank, position) of the k best of every query."""
        from ..compiled.best import BestRows

        assert isinstance(self._rows, BestRows)
        scores, rows = self._rows.finish()
        shape = (self.problem.batch, self.problem.n, self.best.k)
        return scores.view(shape), positions_of(self.problem, rows).view(shape)


def positions_of(problem: Problem, rows: Tensor) -> Tensor:
    """The positions of rows 0 … m − 1; −1 (none) stays."""
    return torch.where(rows < 0, -1, problem.positions[rows.clamp(min=0)])


@dataclass(frozen=True, eq=False)
class Products:
    """The ranks φ·ψ + column of a problem's pairs, with its bias and masks."""

    problem: Problem
    phi: Tensor  # (b or 1, n, w)
    psi: Tensor  # (b or 1, m, w)
    column: Tensor | None = None  # (b or 1, 1, m), for all queries

    def best(self, k: int, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(ranks, positions), (b, n, k) each, best first, ties by position; rank −∞ and position −1 = none.

        ``floor`` (b, n): rows that rank below it may be left out.
        """
        from ..compiled.best import BestRows

        problem = self.problem
        parts: list[tuple[Tensor, Tensor]] = []
        for b in range(problem.batch):
            phi, psi = (x.detach()[b if x.shape[0] > 1 else 0].contiguous() for x in (self.phi, self.psi))
            for start in range(0, problem.n, QUERIES_AT_ONCE):
                queries = slice(start, min(start + QUERIES_AT_ONCE, problem.n))
                best = BestRows(len(phi[queries]), k, phi.dtype, None if floor is None else floor[b, queries])
                parts.append(self._best_of_tile(best, slice(b, b + 1), queries, phi[queries], psi))
        ranks, rows = (torch.cat(column).view(problem.batch, problem.n, k) for column in zip(*parts, strict=True))
        return ranks, positions_of(problem, rows)

    def _best_of_tile(
        self, best: BestRows, batch: slice, queries: slice, phi: Tensor, psi: Tensor
    ) -> tuple[Tensor, Tensor]:
        from ..compiled.best import inner_products

        n, m = len(phi), len(psi)
        size = min(-(-m // KEYS_ALIKE), max(1, SCORES_AT_ONCE // (n * KEYS_ALIKE))) * KEYS_ALIKE
        few, by_key = n <= FEW_QUERIES, phi.T.contiguous()
        block = phi.new_empty(n, size) if few else phi.new_empty(size, n)
        for start in range(0, m, size):
            keys = slice(start, min(start + size, m))
            width = keys.stop - start
            near = psi[keys]
            if few:
                inner_products(phi, near, block)
                self._finish(block[:, :width], Place(batch, queries, keys))
                best.absorb(block, start, width)
            else:  # keys first: the matrix product is a quarter faster than with queries first
                near = near if width == size else pad(near, (0, 0, 0, size - width))
                torch.mm(near, by_key, out=block)
                self._finish(block[:width].T, Place(batch, queries, keys))
                best.absorb_by_key(block[:width], start)
        return best.finish()

    def _finish(self, scores: Tensor, place: Place) -> None:
        """Add the bias and the column, and hide what a query may not see, in place."""
        problem = self.problem
        if problem.bias is not None:
            bias = problem.bias
            added = cut(bias, PAIR, place) if isinstance(bias, Tensor) else problem.function_at(bias, place, "bias")
            assert added is not None
            scores += problem.weighting.temper(added.detach())[0]
        if self.column is not None:
            scores += cut(self.column, PAIR, place)[0]
        if problem.masked:
            weights = None if problem.key_weights is None else cut(problem.key_weights, PAIR, place)
            present = problem.present(place, weights)
            if present is not None:
                scores.masked_fill_(~present[0], -torch.inf)
