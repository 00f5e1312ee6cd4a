"""Weightings whose threshold is found, not written down: Sparsemax, Entmax15, and the base for your own."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..columns import pool
from .base import Cell, Done, Fold, Pooling, State, by_row, centred
from .selecting import Best

CANDIDATES = 32  # rows that the first pass keeps: most supports are smaller
MAX_PASSES = 100


class Thresholded(Pooling):
    """A weighting given by one elementwise function: α_i = w_i p(a_i − max a, τ), with τ such that Σ w p = 1.

    A subclass defines `weight(z, tau)`, which must grow with z, fall with tau and be convex in tau, and ``start``,
    the tau at which p(0, tau) = 1. Everything else (threshold, pooling, gradients, the best rows) follows.

    The threshold is solved on the best 32 rows; where a row beyond them could have weight, Newton's method from
    below goes on over all rows, one pass a step. Then one pass pools. No log_normalizer.
    Cost: two passes while the support has fewer than 32 rows, else a few more; state 1 + v numbers a query.
    """

    has_log_normalizer = False
    start: ClassVar[float]

    def run(self, fold: Fold) -> Done:
        best, multiplicity = fold(Best(min(CANDIDATES, fold.rows), Best.by_score, with_multiplicity=True))[::2]
        ref = best[..., 0] if best.shape[-1] else best.new_full(best.shape[:-1], -torch.inf)
        tau, certain = self._solve(best, multiplicity, ref)
        empty = ref == -torch.inf
        tau = torch.where(empty, torch.inf, tau)
        tau = self._all_rows(fold, ref, tau, certain | empty)
        total, pooled, slope, leaned = fold(_Pool(self, fold.needs_grad), ref, tau, last=True)
        if not fold.needs_grad:
            return Done(pooled, empty, ref, tau, slope=torch.ones_like(total))
        slope = slope.masked_fill(slope == 0, 1.0)
        return Done(pooled, empty, ref, tau, slope=slope, center=leaned / slope[..., None])

    def _solve(self, best: Tensor, multiplicity: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
        """τ (float64) on the candidates alone, and whether no other row can have weight."""
        z = centred(best.double(), ref.double())
        w = multiplicity.double()
        tau = torch.full_like(ref, self.start, dtype=torch.float64)
        for _ in range(MAX_PASSES):
            column = tau[..., None].expand_as(z)
            p = self.weight(z, column)
            step = ((p * w).sum(-1) - 1) / (self.slopes(z, column, p)[1] * w).sum(-1)
            step = torch.where(torch.isfinite(step), step, 0.0)
            tau = tau + step
            if not (step.abs() > 1e-15 * tau.abs().clamp(min=1.0)).any():
                break
        full = best.shape[-1] == CANDIDATES
        certain = torch.ones_like(ref, dtype=torch.bool)
        if full:
            last = self.weight(z[..., -1:], tau[..., None])[..., 0]
            certain = (last == 0) | (best[..., -1] == -torch.inf)
        return tau, certain

    def _all_rows(self, fold: Fold, ref: Tensor, tau: Tensor, certain: Tensor) -> Tensor:
        """Newton steps from below over all rows, until the total is 1 to rounding."""
        close = 8 * torch.finfo(ref.dtype).eps
        for _ in range(MAX_PASSES):
            if certain.all():
                break
            total, slope = fold(_Sums(self), ref, tau)
            step = (total - 1) / slope
            moving = ~certain & torch.isfinite(step)
            tau = torch.where(moving, tau + step, tau)
            certain = ~moving | ((total - 1).abs() <= close)
        return tau

    def rank(self, cell: Cell) -> Tensor:
        ref, tau = cell.context
        z = self.centre(cell.masked(-torch.inf), ref)
        weights = cell.times(self.weight(z, by_row(tau, z)))
        return weights.masked_fill(weights == 0, -torch.inf)

    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        return rank.masked_fill(rank == -torch.inf, 0.0).double()


class _Sums:
    """State: (Σ w p, Σ w r) at a given τ."""

    def __init__(self, weighting: Pooling):
        self.weighting = weighting

    def _parts(self, cell: Cell) -> tuple[Tensor, Tensor]:
        ref, tau = cell.context
        z = self.weighting.centre(cell.masked(-torch.inf), ref)
        column = by_row(tau, z)
        p = self.weighting.weight(z, column)
        r = self.weighting.slopes(z, column, p)[1]
        return cell.times(p), cell.times(r)

    def lift(self, cell: Cell) -> State:
        p, r = self._parts(cell)
        return p.sum(-1).double(), r.sum(-1).double()

    def merge(self, a: State, b: State) -> State:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def absorb(self, state: State, cell: Cell) -> State:
        return self.merge(state, self.lift(cell))


class _Pool(_Sums):
    """State: (Σ w p, Σ w p v, Σ w r, Σ w r v) at a given τ; the last two only when a gradient will be asked for."""

    def __init__(self, weighting: Pooling, slopes: bool):
        super().__init__(weighting)
        self.slopes = slopes

    def lift(self, cell: Cell) -> State:
        if not self.slopes:
            ref, tau = cell.context
            z = self.weighting.centre(cell.masked(-torch.inf), ref)
            p = cell.times(self.weighting.weight(z, by_row(tau, z)))
            total = p.sum(-1).double()
            return total, pool(p, cell.values).double(), total, total[..., None]
        p, r = self._parts(cell)
        sums = [x.sum(-1).double() for x in (p, r)]
        pooled = [pool(x, cell.values).double() for x in (p, r)]
        return sums[0], pooled[0], sums[1], pooled[1]


class Sparsemax(Thresholded):
    """Sparsemax: α_i = w_i max(0, a_i − max a − τ), Σ α = 1: the projection of the scores onto the simplex.

    Rows far below the best get weight exactly 0. No log_normalizer. Cost: see Thresholded.

    >>> import attendb as ad
    >>> answer = ad.attend([[1.0]], [[0.0], [1.0], [1.5]], [0.0, 1.0, 2.0], score=ad.Dot(), weighting=ad.Sparsemax())
    >>> answer.weights().tolist()
    [[0.0, 0.25, 0.75]]

    Source: Martins and Astudillo 2016, equation 2 and proposition 1.
    """

    start = -1.0

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return (z - tau).clamp(min=0)

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        support = (p > 0).to(p.dtype)
        return support, support


class Entmax15(Thresholded):
    """Entmax with exponent 1.5: α_i = w_i max(0, (a_i − max a)/2 − τ)², Σ α = 1.

    Between softmax and sparsemax: smooth, and exactly 0 for rows far below the best. No log_normalizer.
    Cost: see Thresholded.

    >>> import attendb as ad
    >>> answer = ad.attend([[1.0]], [[0.0], [0.0], [9.0]], [1.0, 1.0, 2.0], score=ad.Dot(), weighting=ad.Entmax15())
    >>> answer.weights().tolist()
    [[0.0, 0.0, 1.0]]

    Source: Peters, Niculae and Martins 2019, equation 5.
    """

    start = -1.0

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return (z / 2 - tau).clamp(min=0).square()

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        root = p.sqrt()
        return root, 2 * root
