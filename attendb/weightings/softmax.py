"""Weightings that are sums in one pass and normalise: Softmax, Normalized, Uniform."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from ..columns import pool
from ..errors import InputError
from ..positive import Positive
from .base import Cell, Done, Fold, Pooling, State, centred


class _Summed(Pooling):
    """State: (ref, Σ w p, Σ w p v); sums are kept in float64, so long ones do not stop growing."""

    refinements = 1

    @abstractmethod
    def level(self, scores: Tensor) -> Tensor:
        """ref (b, n) of one cell's masked scores."""

    @abstractmethod
    def kernel(self, z: Tensor) -> Tensor:
        """p before it is normalised; may overwrite z."""

    @abstractmethod
    def decay(self, ref: Tensor, new: Tensor) -> Tensor:
        """What sums relative to ``ref`` are multiplied by to become relative to ``new`` ≥ ref."""

    def lift(self, cell: Cell) -> State:
        scores = cell.masked(self.fill)
        return self._sums(cell, scores, self.level(scores))

    def _sums(self, cell: Cell, scores: Tensor, ref: Tensor) -> State:
        p = cell.times(self.kernel(self.centre(scores, ref)))
        return ref, p.sum(-1).double(), pool(p, cell.values).double()

    def merge(self, a: State, b: State) -> State:
        ref = torch.maximum(a[0], b[0])
        fa, fb = self.decay(a[0], ref), self.decay(b[0], ref)
        return ref, a[1] * fa + b[1] * fb, a[2] * fa[..., None] + b[2] * fb[..., None]

    def absorb(self, state: State, cell: Cell) -> State:
        scores = cell.masked(self.fill)
        ref = torch.maximum(state[0], self.level(scores))
        _, total, pooled = self._sums(cell, scores, ref)
        f = self.decay(state[0], ref)
        return ref, torch.addcmul(total, state[1], f), torch.addcmul(pooled, state[2], f[..., None])

    def state_of(self, value: Tensor, empty: Tensor, ref: Tensor, tau: Tensor) -> State:
        total = tau.exp().masked_fill(empty, 0.0)
        return ref, total, value.double() * total[..., None]

    def run(self, fold: Fold) -> Done:
        ref, total, pooled = fold(self, last=True)
        empty = total == 0
        value = pooled / total.masked_fill(empty, 1.0)[..., None]
        return Done(value, empty, ref, total.log(), slope=torch.ones_like(total), center=value)

    def refine(self, tau: Tensor, total: Tensor, slope: Tensor) -> Tensor:
        return tau + total.log()


class Softmax(_Summed):
    """Softmax: α_i = w_i exp(a_i/T) / Σ_j w_j exp(a_j/T).

    ``temperature`` T, dimensionless, > 0: divides the scores; large T tends to the average, small T to the
    best row. It learns with ``learn=True``. log_normalizer = log Σ_j w_j exp(a_j/T).
    Raises InputError when T is ≤ 0, NaN or infinite. Cost: one pass; state 2 + v numbers a query.

    >>> import attendb as ad
    >>> ad.attend([[1.0]], [[0.0], [1.0]], [0.0, 1.0], score=ad.Dot(), weighting=ad.Softmax()).value.round(4).tolist()
    [[0.7311]]

    Source: Bridle 1990; Vaswani et al. 2017, equation 1. One-pass form: Milakov and Gimelshein 2018.
    """

    def __init__(self, temperature: object = 1.0, *, learn: bool = False):
        super().__init__()
        self.scale = Positive(temperature, "temperature", learn=learn, max_axes=0)
        self._unit = not learn and float(self.scale.start) == 1.0

    @property
    def temperature(self) -> Tensor:
        return self.scale()

    def needs_float64(self) -> bool:
        return float(self.scale.start) < 1e-30  # a score over it overflows

    def temper(self, scores: Tensor) -> Tensor:
        if self._unit and not self.scale.theta.requires_grad:
            return scores
        return scores / self.temperature.to(device=scores.device, dtype=scores.dtype)

    def level(self, scores: Tensor) -> Tensor:
        return _max(scores)

    def kernel(self, z: Tensor) -> Tensor:
        return z.exp_()  # z is new: `centred` subtracts

    def decay(self, ref: Tensor, new: Tensor) -> Tensor:
        return torch.where(ref == new, 0.0, ref - new).double().exp()

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return (z - tau).exp_()

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        return p, p

    def rank(self, cell: Cell) -> Tensor:
        scores = cell.masked(-torch.inf)
        if cell.multiplicity is None:
            return scores
        logs = cell.multiplicity.clamp(min=torch.finfo(scores.dtype).tiny).log()
        return torch.where(scores == torch.inf, scores, scores + logs)

    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        z = centred(rank, done.ref)
        return (z.double() - done.tau[..., None]).exp()


class Normalized(_Summed):
    """Scores over their sum: α_i = w_i a_i / Σ_j w_j a_j, for scores a ≥ 0 (kernels).

    log_normalizer = log Σ_j w_j a_j. Raises InputError for a negative score.
    Cost: one pass; state 1 + v numbers a query.

    >>> import attendb as ad
    >>> ad.attend([[0.0]], [[0.5], [0.75]], [0.0, 3.0], score=ad.Triangular(1.0)).value.tolist()
    [[1.0]]

    Source: Nadaraya 1964; Watson 1964.
    """

    fill = 0.0

    def level(self, scores: Tensor) -> Tensor:
        check_not_negative(scores, "Normalized")
        highest = _max(scores) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])
        return torch.where(highest == torch.inf, highest, highest * 0.0)  # 0, ∞ or NaN

    def centre(self, scores: Float[Tensor, "*q m"], ref: Float[Tensor, "*q"]) -> Float[Tensor, "*q m"]:
        if not (ref == torch.inf).any():
            return scores
        return torch.where(ref[..., None] == torch.inf, (scores == torch.inf).to(scores.dtype), scores)

    def kernel(self, z: Tensor) -> Tensor:
        return z

    def decay(self, ref: Tensor, new: Tensor) -> Tensor:
        return (ref == new).double()

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return z * (-tau).exp()

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        return (-tau).exp().expand_as(p), p

    def rank(self, cell: Cell) -> Tensor:
        products = cell.times(cell.masked(0.0))
        return products.masked_fill(products == 0, -torch.inf)

    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        z = self.centre(rank.clamp(min=0), done.ref).double()
        return z * (-done.tau).exp()[..., None]


class Exact(Normalized):
    """The classical lookup: `Normalized` over the score `Equal`: the mean of the values whose key equals the query.

    Cost: one pass. Source: Codd 1970 (selection by equality).

    >>> import attendb as ad
    >>> ad.attend([[2.0]], [[1.0], [2.0]], [10.0, 20.0], weighting=ad.Exact()).value.tolist()
    [[20.0]]
    """


class Uniform(_Summed):
    """Average pooling: α_i = w_i / Σ_j w_j over the allowed rows, whatever the scores.

    log_normalizer = log Σ_j w_j, the logarithm of the number of rows. Cost: one pass, no scores;
    state 1 + v numbers a query. Source: Lin, Chen and Yan 2014, section 3.2 (average pooling).

    >>> import attendb as ad
    >>> ad.attend([[0.0]], [[1.0], [2.0]], [10.0, 20.0], weighting=ad.Uniform()).value.tolist()
    [[15.0]]
    """

    fill = 0.0
    uses_scores = False

    def level(self, scores: Tensor) -> Tensor:
        return scores.new_zeros(scores.shape[:-1])

    def centre(self, scores: Float[Tensor, "*q m"], ref: Float[Tensor, "*q"]) -> Float[Tensor, "*q m"]:
        return torch.zeros_like(scores)

    def kernel(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def decay(self, ref: Tensor, new: Tensor) -> Tensor:
        return torch.ones_like(ref, dtype=torch.float64)

    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        return (z - tau).exp()

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        return torch.zeros_like(p), p

    def rank(self, cell: Cell) -> Tensor:
        ones = cell.times(torch.ones_like(cell.scores))
        return ones.masked_fill(ones == 0, -torch.inf)

    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        return rank.clamp(min=0).double() * (-done.tau).exp()[..., None]


def _max(scores: Tensor) -> Tensor:
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], -torch.inf)
    return scores.amax(-1)


def check_not_negative(scores: Tensor, name: str) -> None:
    """Raise InputError at a negative score."""
    if scores.numel() and scores.amin() < 0:
        raise InputError(
            f"a score is {float(scores.amin()):.6g} but {name} needs scores ≥ 0: use Softmax, or a kernel like Boxcar"
        )
