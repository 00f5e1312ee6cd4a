"""Plan "topk": the best rows of a score that is an inner product, by matrix products of large blocks.

Scores come in blocks at matrix-multiply rate, and one compiled pass keeps the k best of each query behind a running
threshold. One query reads the keys once, at the rate of the memory.
"""

from __future__ import annotations

import torch

from ..weightings.base import Accumulator, Fold, Selecting, State
from ..weightings.selecting import Best
from .best_rows import Products, products_cost, worth_compiling
from .cells import Problem
from .dense import CellFold, select_and_pool
from .solution import Solution

LARGER = 4  # cells of 256 × 4096 where the cells of plan "dense" are folded: the fewer blocks, the fewer thresholds


class BlockTopK:
    """Plan "topk" (see the top of this file)."""

    name = "topk"

    def __init__(self, problem: Problem):
        self.problem = problem

    def refusal(self) -> str | None:
        problem = self.problem
        if not isinstance(problem.weighting, Selecting):
            return f"{type(problem.weighting).__name__} selects no rows"
        if problem.blocks is not None:
            return "block sizes are forced"
        factors = problem.score.factors(problem.queries, problem.keys)
        if factors is None:
            return f"{type(problem.score).__name__} is no inner product of embedded queries and keys"
        if factors.offset is not None:
            return f"{type(problem.score).__name__} orders near rows exactly only by differences"
        return None

    def cost(self) -> float:
        return 5e-4 + products_cost(self.problem)

    def fold(self) -> Fold:
        """The pass over all pairs by which a weighting selects rows."""
        return _ProductFold(self.problem)

    def solve(self) -> Solution:
        return select_and_pool(self.problem, self.fold())


class _ProductFold:
    """One pass over all keys by large products; what is not ranked by the score itself is folded cell by cell."""

    needs_grad = False

    def __init__(self, problem: Problem):
        self.problem = problem
        self.rows = problem.m

    def __call__(self, accumulator: Accumulator, *context: torch.Tensor, last: bool = False) -> State:
        problem = self.problem
        by_score = isinstance(accumulator, Best) and accumulator.rank is Best.by_score
        if not (by_score and worth_compiling(problem)):
            return CellFold(problem, scale=LARGER)(accumulator, *context, last=last)
        factors = problem.score.factors(problem.queries, problem.keys)
        assert factors is not None and isinstance(accumulator, Best)
        return Products(problem, factors.phi, factors.psi).best(accumulator.k, accumulator.floor)
