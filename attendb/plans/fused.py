"""Plan "fused": softmax of a score that is an inner product of embedded rows, by flash attention.

a(q, k) = φ(q)·ψ(k) + c(q). The term c(q) is the same for all keys of a query, so it only shifts the log-normaliser;
log key weights are one more column of ψ. A mask or a bias is given to the operator as numbers, a few queries at a time.
The best rows come from a second pass over the scores, which takes half as long as the first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..columns import Labels
from ..scores.base import Factors
from ..scores.distance import Gaussian
from ..weightings.softmax import Softmax
from .best_rows import FEWEST_PAIRS, Products, products_cost, worth_compiling
from .cells import PAIR, Place, Problem, cut
from .flash import flash_softmax
from .solution import Solution, Unserved, padded_ranks, padded_top

MASK_NUMBERS = 1 << 22  # of one float mask (16 MB in float32)


class Fused:
    """Plan "fused" (see the top of this file)."""

    name = "fused"

    def __init__(self, problem: Problem):
        self.problem = problem

    def refusal(self) -> str | None:
        problem = self.problem
        reason = refuses_flash(problem)
        if reason is not None:
            return reason
        factors = problem.score.factors(problem.queries, problem.keys)
        if factors is None:
            return f"{type(problem.score).__name__} is no inner product of embedded queries and keys"
        if problem.top and factors.offset is not None:
            return f"top=: {type(problem.score).__name__} orders near rows exactly only by differences"
        if problem.top and not worth_compiling(problem):
            return f"top= of fewer than {FEWEST_PAIRS} pairs: a second pass over the scores does not pay"
        scaled = problem.weighting.temper(factors.phi), factors.psi
        largest = math.prod(float(x.detach().norm(dim=-1).amax()) for x in scaled)
        if math.isnan(largest):
            return "a query or a key is NaN"
        limit = 1e-4 if problem.tol is None or factors.offset is None else min(1e-4, 0.1 * problem.tol)
        if not largest * torch.finfo(problem.dtype).eps < limit:
            return f"scores up to {largest:.3g} lose digits in a {problem.dtype} log-sum-exp"
        return None

    def cost(self) -> float:
        problem = self.problem
        pairs = problem.batch * problem.n * problem.m
        width = max(problem.queries.shape[-1] + 1, problem.width)  # type: ignore[union-attr]
        wide = 1.0 if problem.dtype == torch.float32 else 2.5
        masked = 1.5 if problem.masked or problem.bias is not None else 1.0
        few = 2.0 if problem.batch * problem.n < 64 else 1.0  # one core works, and a block of queries is not full
        numbers = (problem.n + problem.m) * (30 + max(16, width))  # copied into padded rows
        expanded = 3.0 if isinstance(problem.score, Gaussian) else 1.0  # and squared first
        rows = problem.batch * numbers * expanded * wide * 1.1e-9
        seconds = 3e-4 + rows + pairs * wide * masked * few * (1e-9 + 2.5e-11 * width)
        return seconds + products_cost(problem) if problem.top else seconds

    def solve(self) -> Solution:
        problem = self.problem
        factors = problem.score.factors(problem.queries, problem.keys)
        assert factors is not None and isinstance(problem.values, Tensor)
        phi = problem.weighting.temper(factors.phi)
        psi = factors.psi
        if problem.key_weights is not None:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
            psi = torch.cat([psi, log_weights(problem).expand(psi.shape[0], -1, -1)], -1)
        value, total = self._attend(phi, psi, problem.values)
        if factors.offset is not None:
            total = total + problem.weighting.temper(factors.offset)
        if value.isnan().any() or total.isnan().any():
            raise Unserved("a score or a value is NaN or infinite")
        empty = total.detach() == -torch.inf
        if not problem.top:
            return Solution(value, empty, total)
        top, ranks = self._top(factors, total.detach())
        return Solution(value, empty, total, top=top, ranks=ranks)

    @torch.no_grad()
    def _top(self, factors: Factors, total: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Positions and weights of the rows of highest weight, and their scores."""
        problem = self.problem
        column = None if problem.key_weights is None else log_weights(problem).transpose(-1, -2)
        products = Products(problem, problem.weighting.temper(factors.phi), factors.psi, column)
        ranks, positions = products.best(min(problem.top, problem.m))
        weights = (ranks.double() - total.double()[..., None]).exp().to(problem.dtype)
        top = padded_top(positions, weights.masked_fill(positions < 0, 0.0), problem.top)
        return top, padded_ranks(ranks, problem.top)

    def _attend(self, phi: Tensor, psi: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        pairwise = problem.where is not None or problem.exclude is not None or problem.bias is not None
        if not pairwise:
            return flash_softmax(phi, psi, values)
        step = max(1, MASK_NUMBERS // max(1, problem.m * problem.batch))
        parts = []
        for start in range(0, problem.n, step):
            place = Place(slice(0, problem.batch), slice(start, min(start + step, problem.n)), slice(0, problem.m))
            parts.append(flash_softmax(phi[:, place.queries], psi, values, self._mask(place)))
        return torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts], 1)

    def _mask(self, place: Place) -> Tensor:
        problem = self.problem
        n = place.queries.stop - place.queries.start
        mask = torch.zeros(1, n, problem.m, dtype=problem.dtype, device=problem.device)
        if problem.bias is not None:
            bias = problem.bias
            added = cut(bias, PAIR, place) if isinstance(bias, Tensor) else problem.function_at(bias, place, "bias")
            assert added is not None
            mask = mask + problem.weighting.temper(added).detach()
        present = problem.present(place, None)
        return mask if present is None else mask.masked_fill(~present, -torch.inf)


def refuses_flash(problem: Problem) -> str | None:
    """What no plan that stands on flash attention can serve."""
    if type(problem.weighting) is not Softmax:
        return f"{type(problem.weighting).__name__} is not Softmax"
    if problem.device.type != "cpu":
        return f"flash attention with its log-sum-exp is used on the CPU, not on {problem.device.type}"
    if not problem.batch * problem.n * problem.m:
        return "there are no pairs"
    if isinstance(problem.values, Labels):
        return "values are labels"
    if problem.width > 4 * max(16, getattr(problem.queries, "shape", (0,))[-1]):
        return f"values of width {problem.width} would pad the keys too far"
    if isinstance(problem.bias, Tensor) and problem.bias.requires_grad:
        return "bias wants a gradient"
    if problem.key_weights is not None and problem.key_weights.shape[0] > 1:
        return "key_weights differ between batch entries"
    if problem.blocks is not None:
        return "block sizes are forced"
    return None


def log_weights(problem: Problem) -> Tensor:
    """log w as a column (1, m, 1); rows of weight 0 have been dropped before."""
    assert problem.key_weights is not None
    return problem.key_weights.transpose(-1, -2).log()
