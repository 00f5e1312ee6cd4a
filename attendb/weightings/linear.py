"""Weightings that do not normalise: Conic and Linear."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..columns import pool
from .base import Cell, Done, Fold, Pooling, State
from .softmax import check_not_negative


class _Plain(Pooling):
    """State: (size, Σ w a v), size = 0 exactly where the neighbourhood is empty."""

    has_log_normalizer = False
    convex = False
    fill = 0.0
    refinements = 0
    not_negative: ClassVar[bool]

    def lift(self, cell: Cell) -> State:
        scores = cell.masked(0.0)
        if self.not_negative:
            check_not_negative(scores, type(self).__name__)
        weights = cell.times(scores)
        size = weights if self.not_negative else cell.times(torch.ones_like(scores))
        return size.sum(-1).double(), pool(weights, cell.values).double()

    def merge(self, a: State, b: State) -> State:
        return a[0] + b[0], a[1] + b[1]

    def absorb(self, state: State, cell: Cell) -> State:
        return self.merge(state, self.lift(cell))

    def state_of(self, value: Tensor, empty: Tensor, ref: Tensor, tau: Tensor) -> State:
        return (~empty).double(), value.double()

    def run(self, fold: Fold) -> Done:
        size, pooled = fold(self, last=True)
        return Done(pooled, size == 0, torch.zeros_like(size), torch.zeros_like(size))

    def centre(self, scores: Float[Tensor, "*q m"], ref: Float[Tensor, "*q"]) -> Float[Tensor, "*q m"]:
        return scores

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return z

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        return torch.ones_like(z), torch.zeros_like(z)

    def rank(self, cell: Cell) -> Tensor:
        weights = cell.times(cell.masked(0.0))
        return weights.masked_fill(weights == 0, -torch.inf)

    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        return rank.masked_fill(rank == -torch.inf, 0.0).double()


class Conic(_Plain):
    """The scores themselves, none negative: α_i = w_i a_i, a ≥ 0; the answer lies in the cone of the values.

    Raises InputError for a negative score. No log_normalizer. Cost: one pass; state 1 + v numbers a query.

    >>> import attendb as ad
    >>> ad.attend([[2.0]], [[1.0], [3.0]], [10.0, 1.0], score=ad.Dot(), weighting=ad.Conic()).value.tolist()
    [[26.0]]

    Source: Zhang, Lipton, Li and Smola 2023 (Dive into Deep Learning), section 11.1.
    """

    not_negative = True


class Linear(_Plain):
    """The scores themselves, of any sign: α_i = w_i a_i (linear attention without normalisation).

    No log_normalizer. Cost: one pass; state 1 + v numbers a query.

    >>> import attendb as ad
    >>> ad.attend([[1.0]], [[1.0], [-3.0]], [10.0, 1.0], score=ad.Dot(), weighting=ad.Linear()).value.tolist()
    [[7.0]]

    Source: Schlag, Irie and Schmidhuber 2021, section 3.1.
    """

    not_negative = False
