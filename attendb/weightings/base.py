"""What a weighting is: a fold over blocks of pairs.

    state = weighting.lift(cell)                  each cell: scores, values, positions, multiplicities
    state = weighting.merge(state, state')        associative; the identity is the lift of a cell without rows
    done  = weighting.run(fold)                   fold(accumulator) is one pass over all cells

A *pooling* weighting gives every pair the weight α = w · p(z, τ): w the multiplicity of the row, z the centred
score, τ one threshold per query, Σ w p = 1 (Conic and Linear have no τ). From p alone follow all gradients:

    g = ∂p/∂z,  r = −∂p/∂τ,  U = Σ w r v / Σ w r
    shift = dL / Σ w r − ⟨dO, U⟩
    dscores = w g (⟨dO, v⟩ + shift)     dw = p (⟨dO, v⟩ + shift)     dv = αᵀ dO

A *selecting* weighting names rows; the engine gathers them and pools them by another weighting, in plain torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..columns import Values

State: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Cell:
    """A block of pairs, scored: b batch entries × n queries × m rows."""

    scores: Tensor  # (b, n, m)
    values: Values  # (b or 1, m, v)
    present: Tensor | None  # bool, broadcastable to (b, n, m): the query may see the row; None: all of them
    multiplicity: Tensor | None  # (b or 1, 1, m), > 0 where present; None: every row counts once
    positions: Tensor  # (m,) int64
    query_index: Tensor  # (b, n) int64: the place of each query among all of them
    context: tuple[Tensor, ...] = ()  # per query (b, n): what an earlier pass has found

    def masked(self, fill: float) -> Tensor:
        """The scores, with ``fill`` where the query may not see the row."""
        return self.scores if self.present is None else self.scores.masked_fill(~self.present, fill)

    def times(self, weights: Tensor) -> Tensor:
        """``weights`` times multiplicities, 0 where the query may not see the row."""
        if self.multiplicity is not None:
            weights = weights * self.multiplicity
        return weights if self.present is None else weights.masked_fill(~self.present, 0.0)


@runtime_checkable
class Accumulator(Protocol):
    """One fold: `absorb(state, cell)` equals merge(state, lift(cell)), and may be faster."""

    def lift(self, cell: Cell) -> State: ...

    def merge(self, a: State, b: State) -> State: ...

    def absorb(self, state: State, cell: Cell) -> State: ...


@runtime_checkable
class Fold(Protocol):
    """One pass over all cells; the last pass of a weighting also carries the best rows, when asked for them."""

    needs_grad: bool
    rows: int  # of the table

    def __call__(self, accumulator: Accumulator, *context: Tensor, last: bool = False) -> State: ...


@dataclass(frozen=True, eq=False)
class Done:
    """What a pooling weighting has found, per query."""

    value: Tensor  # (b, n, v)
    empty: Tensor  # (b, n) bool
    ref: Tensor  # (b, n): z = a − ref
    tau: Tensor  # (b, n) float64; 0 where the weighting has no threshold
    slope: Tensor | None = None  # (b, n): Σ w r; None: the weighting has no threshold
    center: Tensor | None = None  # (b, n, v): U; None: 0


class Weighting(nn.Module, ABC):
    """Turns the scores of one query into its weights. Either pools (`Pooling`) or selects (`Selecting`)."""

    has_log_normalizer: ClassVar[bool] = True
    convex: ClassVar[bool] = True  # the weights are ≥ 0 and sum to 1
    uses_scores: ClassVar[bool] = True

    def needs_float64(self) -> bool:
        """Whether its parameters lie beyond float32."""
        return False

    def temper(self, scores: Tensor) -> Tensor:
        """What is done to each score first, with gradients (a temperature)."""
        return scores


class Pooling(Weighting):
    """A weighting with a weight for every row: subclasses give the equations of this file."""

    fill: ClassVar[float] = -torch.inf  # the score of a row that the query may not see
    refinements: ClassVar[int] = 2  # Newton steps that make τ differentiable: 2 give first and second derivatives

    @abstractmethod
    def run(self, fold: Fold) -> Done:
        """What this weighting finds in one or more passes over all cells."""

    def state_of(self, value: Tensor, empty: Tensor, ref: Tensor, tau: Tensor) -> State | None:
        """The state of rows whose answer is known, as `lift` would have made it; None: the answer does not tell it.

        ``value`` (b, n, v), ``empty`` (b, n); ref + τ is the log-normaliser, where the weighting has one.
        """
        return None

    @abstractmethod
    def weight(self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"]) -> Float[Tensor, "*q m"]:
        """p(z, τ), elementwise, differentiable; τ has a last axis of 1 or the shape of z."""

    def slopes(
        self, z: Float[Tensor, "*q m"], tau: Float[Tensor, "*q #m"], p: Float[Tensor, "*q m"]
    ) -> tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m"]]:
        """(∂p/∂z, −∂p/∂τ), by autograd of `weight` unless a subclass knows them."""
        with torch.enable_grad():
            z_, tau_ = z.detach().requires_grad_(), tau.expand_as(z).detach().clone().requires_grad_()
            g, minus_r = torch.autograd.grad(self.weight(z_, tau_).sum(), (z_, tau_), materialize_grads=True)
        return g, -minus_r

    def centre(self, scores: Float[Tensor, "*q m"], ref: Float[Tensor, "*q"]) -> Float[Tensor, "*q m"]:
        """z = a − ref; where ref is +∞ the infinite scores share z = 0, where it is −∞ (no row) z = −∞."""
        return centred(scores, ref)

    def refine(
        self, tau: Float[Tensor, "b n"], total: Float[Tensor, "b n"], slope: Float[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        """A better τ from Σ w p and Σ w r at τ, differentiably: one Newton step unless a closed form is known."""
        return tau + (total - 1) / slope

    @abstractmethod
    def rank(self, cell: Cell) -> Tensor:
        """What the best rows are ranked by: grows with the weight; −∞ for rows that have none."""

    @abstractmethod
    def weight_of_rank(self, rank: Tensor, done: Done) -> Tensor:
        """The weights (b, n, r) of rows whose `rank` is given."""


class Selecting(Weighting):
    """A weighting that names rows, pooled afterwards by ``then``."""

    one_hot: ClassVar[bool] = False  # one row with weight 1, whatever its multiplicity
    then: Pooling

    @abstractmethod
    def select(self, fold: Fold) -> tuple[Tensor, Tensor]:
        """(positions, scores) of the selected rows, (b, n, k) each; position −1 = none."""


def centred(scores: Float[Tensor, "*q m"], ref: Float[Tensor, "*q"]) -> Float[Tensor, "*q m"]:
    """a − ref; where ref is +∞ the infinite scores become 0 and the others −∞, where it is −∞ all stay −∞."""
    shift = ref[..., None]
    if not torch.isinf(ref).any():
        return scores - shift
    z = scores - shift.masked_fill(torch.isinf(shift), 0.0)
    shared = (scores == torch.inf).to(scores.dtype).log()  # 0 for infinite scores, −∞ for the others
    return torch.where(shift == torch.inf, shared, z)


def by_row(per_query: Float[Tensor, "*q"], like: Float[Tensor, "*q m"]) -> Float[Tensor, "*q 1"]:
    """A per-query number (b, n) as (b, n, 1) in the dtype of ``like``."""
    return per_query[..., None].to(like.dtype)
