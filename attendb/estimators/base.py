"""What the estimators share: reading tables, learning, pooling, explaining, appending.

An estimator is a thin face: rows are encoded (`encoding.py`), embedded by a learned similarity (`similarity.py`), and
the answer is one call of `attend` (`pooling.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

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
from .members import Member, heaviest, settled
from .progress import shown
from .saving import load, save
from .similarity import Bandwidth, similarity_named
from .tables import read_groups, read_table, read_weights
from .training import Effort, learns_as_a_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCAL = ("constant", "linear")


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
        dropout: float = 0.3,
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
        self.dropout = dropout
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "encode"
        return tags

    @property
    def bandwidths_(self) -> dict[str, float]:
        """What each column is divided by, in its units, for similarity="bandwidth"; the mean of several models.

        A missing cell, and a category that differs, count as a distance of one unit over theirs. Columns without spread
        have none.
        """
        check_is_fitted(self)
        found = [member.similarity for member in self._members]
        if not all(isinstance(one, Bandwidth) for one in found):
            raise AttributeError(f"similarity={self.similarity!r} has no bandwidths: it is no division of the columns")
        each = [one.bandwidths(self.encoder_) for one in found if isinstance(one, Bandwidth)]
        sharpness = [member.sharpness for member in self._members]
        return {
            name: float(np.exp(np.mean([np.log(h[name] / s) for h, s in zip(each, sharpness, strict=True)])))
            for name in each[0]
        }

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
        numbers = None
        if groups is not None:
            array, self._groups = read_groups(groups, len(table), self._groups)
            numbers = torch.from_numpy(array)
        rows = self.encoder_.encode(table, missing=self.missing)
        cases = Cases(rows, targets, weights, numbers, self._classes).to(self._device())
        self._members = [member.with_more(cases) for member in self._members]
        self.table_ = pd.concat([self.table_, table.set_axis(self.table_.columns, axis=1)], ignore_index=True)
        if isinstance(self._judges, Tensor):
            self._judges = torch.cat([self._judges, torch.zeros(len(table), dtype=torch.bool)])
        self._forget()
        return self

    def explain(self, X: Any, top: int = 5) -> pd.DataFrame:
        """The past cases that a prediction came from: the rows of the highest attention weights.

        ``X``: rows to predict; ``top``: how many cases for each. One row a case: ``query`` (position in X), ``rank``
        (0 = the heaviest), ``row`` (position among the training rows, appended ones after them), ``weight`` α
        (dimensionless, ≥ 0, all together 1), ``value`` (what happened: its y), then the columns of the case. A training
        column of one of these names is called "X: " and its name.

        With local="constant" and another similarity than "deep" the prediction is Σ weight · value over all cases.
        "deep" corrects what a case votes for; for numbers `picture` shows what it brings.
        Raises as `predict` does, and InputError for top < 1.
        """
        check_is_fitted(self)
        if isinstance(top, bool) or not hasattr(top, "__index__") or int(top) < 1:
            raise InputError(f"top must be a whole number ≥ 1, got {top!r}: ask for at least one case")
        rows = self._encoded(X)
        positions, weights = (x.numpy() for x in heaviest(self._members, rows, min(int(top), len(self.table_))))
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, with its cases; no code is stored.

        A file of that name is replaced when the new one is complete. ``random_state`` is kept where it is a number.
        Raises StorageError where it cannot be written, KindError for classes or groups that are no text or numbers.
        """
        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote: it predicts the same numbers.

        Raises StorageError for a file that is no saved model or damaged, InputError for one of another class.
        """
        return load(cls, path)

    def picture(
        self,
        X: Any,
        top: int = 5,
        *,
        value: str | None = None,
        level: float | None = None,
        names: Sequence[Any] | None = None,
    ) -> Figure:
        """Draw where the prediction for one row came from: its heaviest cases, and what kept each of them apart.

        The shade of a cell is the change of the score a of its case, if the row asked had the value of that cell:
        a(x with column c of x_i, x_i) − a(x, x_i); for "bandwidth" the part of column c in ½ ‖(x − x_i) / h‖².

        ``X``: one row, (1, columns); ``top``: how many cases; ``value``: what the predicted column is called, or which
        of several targets is drawn; ``level``: of an interval beside the answer, for a regressor; ``names``: what the
        training rows are called, one each.
        Returns a matplotlib ``Figure``, made without pyplot. Raises as `predict` and `explain` do, and InputError for
        more rows than one. Cost: that of `explain`, and top · columns embedded rows.
        """
        from .explaining import explanations
        from .picture import draw, one

        return draw(one(explanations(cast(Any, self), X, top=top, value=value, level=level, names=names)))

    def save_picture(
        self,
        X: Any,
        path: str | os.PathLike[str],
        top: int = 5,
        *,
        value: str | None = None,
        level: float | None = None,
        names: Sequence[Any] | None = None,
    ) -> None:
        """Write `picture` to ``path``: one row to .png, .svg or .pdf, any number of rows to one page of .html.

        A page is one file that fetches and runs nothing; it has all columns, and numbers behind the shades.
        The rest is as in `picture`. Raises InputError for another end of the name too.
        """
        from .explaining import explanations
        from .picture import check_end, write

        check_end(path)
        write(explanations(cast(Any, self), X, top=top, value=value, level=level, names=names), path)

    def _fit(self, table: pd.DataFrame, outcomes: Tensor, weights: np.ndarray, groups: Any, eval_set: Any) -> None:
        """Learn, and remember the rows; ``outcomes`` (n, v) float64, one-hot for classes."""
        self._groups: dict[Any, int] | None = None
        numbers = None
        if groups is not None:
            array, self._groups = read_groups(groups, len(table))
            numbers = torch.from_numpy(array)
        rows = self.encoder_.encode(table, missing=self.missing)
        every = Cases(rows, outcomes, torch.from_numpy(weights), numbers, self._classes)
        cases, which = every.distinct()
        self._centre, self._scale = self._units_of(cases)
        every = replace(every, targets=self._standardised(outcomes))
        cases = replace(cases, targets=self._standardised(cases.targets))
        random, judges, judging = check_random_state(self.random_state), None, None
        if eval_set is not None:
            judges = self._judging(eval_set)
        elif self._worth_learning(cases):
            needed = not similarity_named(self.similarity).settles
            judging = cases.judges(self.validation_fraction, _seed(random), needed=needed)
            judges = None if judging is None else cases.take(judging.nonzero()[:, 0])
        learning = cases if judging is None else cases.take((~judging).nonzero()[:, 0])
        every = every.to(self._device())
        learned = [self._learned(learning, cases, judges, _seed(random)) for _ in range(self.n_models)]
        self._members: list[Member] = [member.remembering(every) for member in learned]
        self._judges = judges if judging is None else judging[which.clamp(min=0)] & (which >= 0)
        self.table_ = table
        self._forget()

    def _learned(self, learning: Cases, cases: Cases, judges: Cases | None, seed: int) -> Member:
        """One member: a similarity that has learned, at the common scale that all rows bear."""
        device = self._device()
        similarity = similarity_named(self.similarity).begin(learning, seed).to(device)
        worth = self._worth_learning(cases)
        if worth:
            with shown(f"{type(self).__name__} learns", visible=self.verbose) as advance:
                judging = None if judges is None else judges.to(device)
                seconds = self.max_seconds / self.n_models
                effort = Effort(seconds, seed, judging, self.loss, self.dropout, advance)
                similarity.learn(learning.to(device), effort)
        else:
            similarity.learn_nothing()
        similarity.requires_grad_(False).eval()
        cases = cases.to(device)
        member = Member.of(similarity, cases)
        line = self.local == "linear"
        if not (worth and similarity.settles) or learns_as_a_whole(learning, judges) and not line:
            return member
        return settled(member, cases, loss=self.loss, line=line, seed=seed)

    def _worth_learning(self, cases: Cases) -> bool:
        """Whether anything can be learned: there are three different rows, and y is not constant."""
        return len(cases) >= 3 and bool((cases.targets != cases.targets[0]).any())

    def _checked_parameters(self) -> None:
        self._device()
        if self.local not in LOCAL:
            raise InputError(f"local is {self.local!r}: choose one of {', '.join(map(repr, LOCAL))}")
        if self.missing not in ("encode", "raise"):
            raise InputError(f"missing is {self.missing!r}: choose 'encode' or 'raise'")
        if isinstance(self.n_models, bool) or not isinstance(self.n_models, int) or self.n_models < 1:
            raise InputError(f"n_models must be a whole number ≥ 1, got {self.n_models!r}")
        for name, least, most in (
            ("max_seconds", 0.0, np.inf),
            ("dropout", 0.0, 0.9),
            ("validation_fraction", 0.0, 0.5),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise KindError(f"{name} must be a number, got {value!r}")
            if not least <= value <= most:
                raise InputError(f"{name} must be between {least:g} and {most:g}, got {value:g}")
        if self.local == "linear" and not similarity_named(self.similarity).slopes:
            raise InputError(f"similarity={self.similarity!r} has no local lines: use local='constant'")

    def _forget(self) -> None:
        """Drop what was found out about the rows that voted until now."""
        self._calibration: Any = None

    def _device(self) -> torch.device:
        try:
            return torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise InputError(f"device is {self.device!r}, which torch does not know: say 'cpu', or 'cuda'") from None

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

    def _predicted(self, rows: Rows) -> Tensor:
        """Standardised outcomes, or probabilities: (n, v) float64, the mean of the members."""
        return torch.stack([self._read_out(m, m.predict(rows).value) for m in self._members]).mean(0)

    def _standardised(self, outcomes: Tensor) -> Tensor:
        return (outcomes - self._centre) / self._scale

    def _judging(self, eval_set: Any) -> Cases:
        """Rows for early stopping."""
        if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
            raise KindError(f"eval_set must be a pair (X, y), got {type(eval_set).__name__}")
        X, y = eval_set
        table = read_table(self, X, reset=False)
        if not len(table):
            raise InputError("eval_set has 0 rows: leave it out, or give at least one")
        rows = self.encoder_.encode(table, missing=self.missing)
        targets = self._standardised(self._outcomes_of(y, len(table)))
        return Cases(rows, targets, torch.ones(len(table), dtype=torch.float64), None, self._classes)

    # what the two estimators differ in

    _classes: bool
    loss: str  # of `training.losses`
    _centre: Tensor
    _scale: Tensor
    encoder_: Encoder
    n_features_in_: int
    feature_names_in_: np.ndarray

    def _own_state(self) -> dict[str, Any]:
        """What JSON can hold of what the others do not know."""
        raise NotImplementedError

    def _set_own_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

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


def _seed(random: np.random.RandomState) -> int:
    return int(random.randint(2**31 - 1))
