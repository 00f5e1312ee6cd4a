"""Plan "topk": the best rows of a score that is an inner product, by matrix products of large blocks.

Scores come in blocks at matrix-multiply rate; a query whose best score of a block stays below its k-th best so far is
skipped, so only few rows are ever sorted.
"""

from __future__ import annotations

from ..weightings.base import Selecting
from .cells import Problem
from .dense import select_and_pool
from .solution import Solution

LARGER = 4  # cells of 256 × 4096: the fewer blocks, the fewer thresholds to compare


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
        problem = self.problem
        pairs = problem.batch * problem.n * problem.m
        return 5e-4 + pairs * (1e-9 + 2e-11 * problem.queries.shape[-1])  # type: ignore[union-attr]

    def solve(self) -> Solution:
        return select_and_pool(self.problem, scale=LARGER)
