"""Weightings that select rows: Nearest, TopK, and the fold that keeps the best rows, `Best`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import InputError, KindError
from .base import Cell, Fold, Pooling, Selecting, State
from .softmax import Softmax


class Best:
    """The fold that keeps the k rows of highest rank. State: (rank, position[, multiplicity]) of k rows, best first.

    Equal ranks are ordered by lowest position, whatever the blocks and their order. A row of rank −∞ is no row.
    ``floor`` (b, n): a rank that k other rows reach, so that rows below it may be left out; a hint that saves time.
    """

    def __init__(
        self,
        k: int,
        rank: Callable[[Cell], Tensor],
        *,
        with_multiplicity: bool = False,
        floor: Tensor | None = None,
    ):
        self.k = k
        self.rank = rank
        self.with_multiplicity = with_multiplicity
        self.floor = floor

    @staticmethod
    def by_score(cell: Cell) -> Tensor:
        return cell.masked(-torch.inf)

    def lift(self, cell: Cell) -> State:
        return self._best_of_cell(self.rank(cell), cell, slice(None))

    def merge(self, a: State, b: State) -> State:
        joined = tuple(torch.cat(pair, -1) for pair in zip(a, b, strict=True))
        return _first(joined, self.k)

    def absorb(self, state: State, cell: Cell) -> State:
        rank = self.rank(cell)
        if not self.k or rank.shape[-1] == 0:
            return state
        # queries whose best of this cell stays below their k-th best need no work; NaN must not be skipped
        improves = ~(rank.amax(-1) < state[0][..., -1])
        if improves.all():
            return self.merge(state, self._best_of_cell(rank, cell, slice(None)))
        if improves.any():
            better = self.merge(tuple(s[improves] for s in state), self._best_of_cell(rank[improves], cell, improves))
            state = tuple(s.index_put((improves,), x) for s, x in zip(state, better, strict=True))
        return state

    def _best_of_cell(self, rank: Tensor, cell: Cell, queries: slice | Tensor) -> State:
        """The k best of each query (boundary ties to the lowest position), unsorted among themselves."""
        size = rank.shape[-1]
        if size <= self.k:
            index = torch.arange(size, device=rank.device).expand(rank.shape)
        else:
            top = rank.topk(self.k + 1, -1)
            index = top.indices[..., : self.k]
            tied = (top.values[..., -1] == top.values[..., -2]) & (top.values[..., -1] > -torch.inf)
            if tied.any():  # torch.topk promises nothing about which of the equal rows it takes
                stable = rank[tied].sort(dim=-1, descending=True, stable=True).indices[..., : self.k]
                order = cell.positions.argsort(stable=True)
                if not torch.equal(order, torch.arange(size, device=order.device)):
                    stable = order[
                        rank[tied][..., order].sort(dim=-1, descending=True, stable=True).indices[..., : self.k]
                    ]
                index = index.index_put((tied,), stable)
        values = rank.gather(-1, index)
        positions = cell.positions[index].masked_fill(values == -torch.inf, -1)
        best: State = (values, positions)
        if self.with_multiplicity:
            w = (
                torch.ones_like(rank)
                if cell.multiplicity is None
                else cell.multiplicity.expand(cell.scores.shape)[queries]
            )
            best = (*best, w.gather(-1, index))
        return _padded(_first(best, self.k), self.k)


def _padded(state: State, k: int) -> State:
    """Always k rows: rank −∞ and position −1 where there are fewer."""
    short = k - state[0].shape[-1]
    if short <= 0:
        return state
    fills = (-torch.inf, -1, 1.0)
    return tuple(torch.nn.functional.pad(x, (0, short), value=fill) for x, fill in zip(state, fills, strict=False))


def _first(state: State, k: int) -> State:
    """The k first by (rank descending, position ascending)."""
    position_order = torch.where(state[1] < 0, torch.iinfo(torch.int64).max, state[1]).argsort(dim=-1, stable=True)
    state = tuple(x.gather(-1, position_order) for x in state)
    rank_order = state[0].argsort(dim=-1, descending=True, stable=True)[..., :k]
    return tuple(x.gather(-1, rank_order) for x in state)


PLAIN_SOFTMAX = Softmax()  # of a single row: weight 1, log-normaliser its score. Nobody's submodule: it cannot learn


class TopK(Selecting):
    """The k best rows, pooled by ``then``: α = then's weights over the k highest scores, 0 elsewhere.

    ``k`` ≥ 1 counts rows, not multiplicities; with fewer allowed rows, all of them. Equal scores go to the lowest
    position. ``at_least``: rows that score less are not selected. log_normalizer is ``then``'s, over the selected rows.
    Raises InputError for k < 1, KindError for a k that is no whole number.
    Cost: one pass; state k rows a query.

    >>> import attendb as ad
    >>> two = ad.TopK(2, then=ad.Uniform())
    >>> ad.attend([[0.0]], [[1.0], [2.0], [9.0]], [1.0, 2.0, 9.0], score=ad.Euclidean(), weighting=two).value.tolist()
    [[1.5]]

    Source: Fix and Hodges 1951 (k nearest neighbours); Gupta et al. 2021 (top-k attention).
    """

    def __init__(self, k: int, then: Pooling | None = None, at_least: float | None = None):
        super().__init__()
        self.k = whole_number(k, "k")
        self.then = Softmax() if then is None else then
        if not isinstance(self.then, Pooling):
            raise KindError(f"then must be a pooling weighting such as Softmax() or Uniform(), got {self.then!r}")
        self.at_least = threshold(at_least)

    @property
    def has_log_normalizer(self) -> bool:  # type: ignore[override]
        return self.then.has_log_normalizer

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.then.convex

    def select(self, fold: Fold) -> tuple[Tensor, Tensor]:
        return best_at_least(fold(Best(min(self.k, fold.rows), Best.by_score)), self.at_least)

    def extra_repr(self) -> str:
        return f"{self.k}" + ("" if self.at_least is None else f", at_least={self.at_least}")


class Nearest(Selecting):
    """The best row alone: α = 1 at the highest score, the lowest position among equals.

    ``at_least``: where the best row scores less, the neighbourhood is empty. log_normalizer is the score.
    Cost: one pass; state one row a query.

    >>> import attendb as ad
    >>> ad.attend([[0.0]], [[1.0], [-0.5]], [10.0, 20.0], score=ad.Euclidean(), weighting=ad.Nearest()).value.tolist()
    [[20.0]]

    Source: Cover and Hart 1967.
    """

    one_hot = True
    then = property(lambda self: PLAIN_SOFTMAX)  # type: ignore[assignment]

    def __init__(self, at_least: float | None = None):
        super().__init__()
        self.at_least = threshold(at_least)

    def select(self, fold: Fold) -> tuple[Tensor, Tensor]:
        return best_at_least(fold(Best(min(1, fold.rows), Best.by_score)), self.at_least)

    def extra_repr(self) -> str:
        return "" if self.at_least is None else f"at_least={self.at_least}"


def best_at_least(state: State, at_least: float | None) -> tuple[Tensor, Tensor]:
    """(positions, scores) of the best rows, none (−1) where they score less than ``at_least``."""
    scores, positions = state[0], state[1]
    if at_least is not None:
        positions = torch.where(scores < at_least, -1, positions)
    return positions, scores


def whole_number(k: object, name: str) -> int:
    """A whole number ≥ 1, or the error that says so."""
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise KindError(f"{name} must be a whole number ≥ 1, got {k!r}")
    number = operator.index(k)  # type: ignore[arg-type]
    if number < 1:
        raise InputError(f"{name} must be at least 1, got {number}: leave the weighting out to use all rows")
    return number


def threshold(at_least: float | None) -> float | None:
    """A number or None, or the error that says so."""
    if at_least is None:
        return None
    if isinstance(at_least, (bool, str, bytes)) or not hasattr(at_least, "__float__"):
        raise KindError(f"at_least must be a number, got {at_least!r}: give the lowest score that counts")
    if math.isnan(float(at_least)):
        raise InputError("at_least must be a number, got nan: give the lowest score that counts")
    return float(at_least)
