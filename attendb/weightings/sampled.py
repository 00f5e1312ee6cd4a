"""Non-differentiable attention: one row drawn from the softmax."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from ..errors import KindError
from .base import Cell, Fold, Selecting
from .selecting import PLAIN_SOFTMAX, Best


class Sampled(Selecting):
    """One row drawn with its softmax probability: α = 1 at row i with probability w_i exp(a_i) / Σ_j w_j exp(a_j).

    The draw is the maximum of a_i + log w_i + Gumbel noise; the noise is a hash of (seed, query, position), so every
    cut into blocks and every shard draws the same row, and another seed draws anew. `answer.log_prob` is the
    logarithm of the drawn row's probability; its gradient is the score-function (REINFORCE) gradient.
    log_normalizer as for Softmax. Raises KindError for a seed that is no whole number.
    Cost: two passes; state one row a query.

    >>> import attendb as ad
    >>> draw = ad.attend([[0.0]] * 1000, [[0.0], [0.0]], [0.0, 1.0], score=ad.Dot(), weighting=ad.Sampled(seed=3))
    >>> bool(450 < draw.value.sum() < 550)
    True

    Source: Williams 1992 (REINFORCE); Gumbel 1954; Maddison, Tarlow and Minka 2014 (Gumbel maximum).
    """

    one_hot = True
    then = property(lambda self: PLAIN_SOFTMAX)  # type: ignore[assignment]

    def __init__(self, seed: int = 0):
        super().__init__()
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise KindError(f"seed must be a whole number, got {seed!r}")
        self.seed = operator.index(seed)

    def select(self, fold: Fold) -> tuple[Tensor, Tensor]:
        rank, positions = fold(Best(min(1, fold.rows), self._perturbed))
        return positions, rank

    def _perturbed(self, cell: Cell) -> Tensor:
        scores = cell.masked(-torch.inf).double()
        if cell.multiplicity is not None:
            scores = scores + cell.multiplicity.double().clamp(min=torch.finfo(torch.float64).tiny).log()
        noise = gumbel(self.seed, cell.query_index[..., None], cell.positions)
        return torch.where(scores == torch.inf, torch.finfo(torch.float64).max * _unit_noise(noise), scores + noise)

    def extra_repr(self) -> str:
        return f"seed={self.seed}"


def _unit_noise(noise: Tensor) -> Tensor:
    """An increasing map of the noise into (½, 1): infinite scores are drawn among themselves, with equal chances."""
    return 0.5 + 0.5 * torch.sigmoid(noise / 4)


def gumbel(seed: int, query: Tensor, position: Tensor) -> Tensor:
    """−log(−log u) with u uniform in (0, 1) from a counter-based hash of (seed, query, position); float64."""
    state = _mix(_mix(_mix(torch.full_like(query, _signed(seed))) + query) + position)
    u = ((state >> 11) & ((1 << 53) - 1)).double().add(0.5) * 2.0**-53
    return -torch.log(-torch.log(u))


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >= 1 << 63 else number


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # int64 shifts are arithmetic: clear the copied sign


def _mix(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014) on wrapping int64."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)
