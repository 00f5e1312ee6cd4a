"""What the estimators share: reading tables, learning, pooling, explaining, appending.

An estimator is a thin face: rows are encoded (`encoding.py`), embedded by a learned similarity (`similarity.py`), and
the answer is one call of `attend` (`pooling.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..errors import InputError, KindError
from .cases import Cases
from .encoding import Encoder, Rows
from .pooling import Memory, pool
from .similarity import Similarity, similarity_named
from .tables import read_groups, read_table, read_weights
from .training import Effort

LOCAL = ("constant", "linear")


@dataclass(frozen=True, eq=False)
class Member:
    """One learned similarity, and the training rows as it sees them."""

    similarity: Similarity
    memory: Memory
    prior: Tensor | None  # g of the training rows

    def query(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """φ and g of new rows."""
        with torch.no_grad():
            return self.similarity.embed(rows), self.similarity.prior(rows)


class AttentionEstimator(BaseEstimator):
    """Predicts from a table of past cases by attention; see the subclasses."""

    def __init__(
        self,
        similarity: str = "bandwidth",
        *,
        local: str = "constant",
        missing: str = "encode",
        max_seconds: float = 300.0,
        n_models: int = 1,
        validation_fraction: float = 0.1,
        verbose: bool = False,
        random_state: Any = None,
        device: Any = None,
    ):
        self.similarity = similarity
        self.local = local
        self.missing = missing
        self.max_seconds = max_seconds
        self.n_models = n_models
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "encode"
        return tags

    def append(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Add rows to the cases that vote, without learning anew: the next prediction sees them.

        ``X``, ``y``, ``sample_weight``, ``groups`` as in `fit`; a category that `fit` has not seen is as far from all
        others. Raises as `fit` does, and InputError for a class that `fit` has not seen.
        Cost: that of encoding the new rows, and one copy of the table.
        """
        check_is_fitted(self)
        table = read_table(self, X, reset=False)
        targets = self._standardised(self._outcomes_of(y, len(table)))
        weights = torch.from_numpy(read_weights(sample_weight, len(table)))
        if (groups is None) != (self._groups is None):
            raise InputError("groups must be given to append where they were given to fit, and only there")
        if groups is not None:
            numbers, self._groups = read_groups(groups, len(table), self._groups)
            groups = torch.from_numpy(numbers)
        rows = self.encoder_.encode(table, missing=self.missing)
        self._members = [_longer(member, rows, weights, groups) for member in self._members]
        self._targets = torch.cat([self._targets, targets])
        self.table_ = pd.concat([self.table_, _labelled(table, self.table_)], ignore_index=True)
        self._calibration = None
        return self

    def explain(self, X: Any, top: int = 5) -> pd.DataFrame:
        """The past cases that a prediction came from: the rows of the highest attention weights.

        ``X``: rows to predict; ``top``: how many cases for each. One row a case: ``query`` (position in X), ``rank``
        (0 = the heaviest), ``row`` (position among the training rows, appended ones after them), ``weight`` α
        (dimensionless, ≥ 0, all together 1), ``value`` (what happened: its y), then the columns of the case. A training
        column of one of these names is called "X: " and its name.

        With local="constant", and without a prior, the prediction is Σ weight · value over all cases.
        Raises as `predict` does, and InputError for top < 1.
        """
        check_is_fitted(self)
        if isinstance(top, bool) or not hasattr(top, "__index__") or int(top) < 1:
            raise InputError(f"top must be a whole number ≥ 1, got {top!r}: ask for at least one case")
        rows = self._encoded(X)
        positions, weights = self._best(rows, min(int(top), len(self.table_)))
        r = positions.shape[1]
        at = positions.ravel()
        found = {
            "query": np.repeat(np.arange(len(rows)), r),
            "rank": np.tile(np.arange(r), len(rows)),
            "row": at,
            "weight": weights.ravel(),
            **self._values_at(at),
        }
        keep = at >= 0
        own = pd.DataFrame(found)[keep].reset_index(drop=True)
        cases = self.table_.iloc[at[keep]].reset_index(drop=True)
        cases.columns = [f"X: {name}" if name in found else name for name in cases.columns]
        return pd.concat([own, cases], axis=1)

    def _fit(self, table: pd.DataFrame, outcomes: Tensor, weights: np.ndarray, groups: Any, eval_set: Any) -> None:
        """Learn, and remember the rows; ``outcomes`` (n, v) float64, one-hot for classes."""
        numbers = None
        self._groups: dict[Any, int] | None = None
        if groups is not None:
            array, self._groups = read_groups(groups, len(table))
            numbers = torch.from_numpy(array)
        w = torch.from_numpy(weights)
        rows = self.encoder_.encode(table, missing=self.missing)
        cases = Cases(rows, outcomes, w, numbers, self._classes).distinct()
        self._centre, self._scale = self._units_of(cases)
        cases = replace(cases, targets=self._standardised(cases.targets))
        held_out = None if eval_set is None else self._held_out(*eval_set)
        kind, device = similarity_named(self.similarity), self._device()
        random = check_random_state(self.random_state)
        self._members: list[Member] = []
        for number in range(self.n_models):
            seed = int(random.randint(2**31 - 1))
            effort = Effort(self.max_seconds / self.n_models, seed, held_out, self.validation_fraction)
            similarity = kind.begin(cases, seed).to(device)
            if self._worth_learning(cases):
                similarity.learn(cases.to(device), effort)
            similarity.requires_grad_(False).eval()
            self._members.append(_member(similarity, rows, w, numbers))
        self._targets = self._standardised(outcomes)
        self.table_ = table
        self._calibration = None

    def _worth_learning(self, cases: Cases) -> bool:
        """Whether anything can be learned: there are three different rows, and y is not constant."""
        return len(cases) >= 3 and bool((cases.targets != cases.targets[0]).any())

    def _checked_parameters(self) -> None:
        if self.local not in LOCAL:
            raise InputError(f"local is {self.local!r}: choose one of {', '.join(map(repr, LOCAL))}")
        if self.missing not in ("encode", "raise"):
            raise InputError(f"missing is {self.missing!r}: choose 'encode' or 'raise'")
        if isinstance(self.n_models, bool) or not isinstance(self.n_models, int) or self.n_models < 1:
            raise InputError(f"n_models must be a whole number ≥ 1, got {self.n_models!r}")
        for name, least, most in (("max_seconds", 0.0, np.inf), ("validation_fraction", 0.0, 0.5)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise KindError(f"{name} must be a number, got {value!r}")
            if not least <= value <= most:
                raise InputError(f"{name} must be between {least:g} and {most:g}, got {value:g}")
        similarity_named(self.similarity)

    def _device(self) -> torch.device:
        return torch.device("cpu" if self.device is None else self.device)

    def _read(self, X: Any) -> pd.DataFrame:
        """The table to fit; the encoder is made from its rows."""
        self._checked_parameters()
        table = read_table(self, X, reset=True)
        if not len(table):
            raise InputError("X has 0 rows (n_samples=0): give at least one case")
        return table

    def _encoded(self, X: Any) -> Rows:
        check_is_fitted(self)
        return self.encoder_.encode(read_table(self, X, reset=False), missing=self.missing)

    def _pooled(self, rows: Rows) -> Tensor:
        """Σ α (target − g) + g, averaged over the members: (n, v) float64."""
        total = torch.zeros(len(rows), self._targets.shape[1], dtype=torch.float64)
        for member in self._members:
            queries, prior = member.query(rows)
            values = self._targets if member.prior is None else self._targets - member.prior
            value = pool(member.similarity.score, queries, member.memory, values).value
            value = value if prior is None else value + prior
            total += self._read_out(member, value)
        return total / len(self._members)

    def _best(self, rows: Rows, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and weights (n, top) of the heaviest training rows."""
        member = self._members[0]
        queries, _ = member.query(rows)
        nothing = torch.zeros(len(self._targets), 1, dtype=torch.float64)
        found = pool(member.similarity.score, queries, member.memory, nothing, top=top).top
        assert found is not None
        return found.positions.numpy(), found.weights.numpy()

    def _standardised(self, outcomes: Tensor) -> Tensor:
        return (outcomes - self._centre) / self._scale

    def _held_out(self, X: Any, y: Any) -> Cases:
        """Rows for early stopping."""
        table = read_table(self, X, reset=False)
        rows = self.encoder_.encode(table, missing=self.missing)
        targets = self._standardised(self._outcomes_of(y, len(table)))
        return Cases(rows, targets, torch.ones(len(table), dtype=torch.float64), None, self._classes)

    # what the two estimators differ in

    _classes: bool

    def _units_of(self, cases: Cases) -> tuple[Tensor, Tensor]:
        """Centre and scale (v,) of the outcomes."""
        raise NotImplementedError

    def _outcomes_of(self, y: Any, rows: int) -> Tensor:
        """(n, v) of new rows, checked against those that were fitted."""
        raise NotImplementedError

    def _values_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _read_out(self, member: Member, value: Tensor) -> Tensor:
        return value


def _member(similarity: Similarity, rows: Rows, weights: Tensor, groups: Tensor | None) -> Member:
    with torch.no_grad():
        return Member(similarity, Memory(similarity.embed(rows), weights, groups), similarity.prior(rows))


def _longer(member: Member, rows: Rows, weights: Tensor, groups: Tensor | None) -> Member:
    """The member with more rows."""
    more, old = _member(member.similarity, rows, weights, groups), member.memory
    both_groups = None if old.groups is None else torch.cat([old.groups, cast(Tensor, groups)])
    memory = Memory(
        torch.cat([old.keys, more.memory.keys]), torch.cat([old.weights, weights]), both_groups
    )
    prior = None if member.prior is None else torch.cat([member.prior, cast(Tensor, more.prior)])
    return replace(member, memory=memory, prior=prior)


def _labelled(table: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The table with the column names of another."""
    table = table.copy(deep=False)
    table.columns = like.columns
    return table
