"""AttentionClassifier: classes from a table of past cases."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from ..errors import InputError, MissingValueError
from .base import AttentionEstimator, Member
from .cases import Cases
from .encoding import Encoder
from .saving import plain
from .tables import read_weights


class AttentionClassifier(ClassifierMixin, AttentionEstimator):
    """Predict classes from a table of past cases, each case voting by how alike it is.

        P(c | x) = Σ_i α(x, x_i) [y_i = c],    α = softmax of −½ ‖φ(x) − φ(x_i)‖²

    φ is learned. For "deep" the score is −‖φ(x) − φ(x_i)‖, the nearest 48 cases vote, and a network corrects what a
    case votes by what the two rows differ in; there P is the softmax of four times the corrected votes.

    ``similarity``: what rows are compared by, learned by leaving each row out of its own prediction: "bandwidth" (one
    bandwidth a column), "linear" (a linear map of the columns), "deep" (a network).
    ``local``: "constant" (the weighted mean of the cases) or "linear" (a line fitted to them, read off at the row);
    "deep" corrects its votes instead, and has no local lines.
    ``missing``: "encode" makes a missing cell a value of its own, "raise" refuses it.
    ``max_seconds``: of learning; the same seed gives the same model only where the time suffices.
    ``n_models``: so many similarities are learned from seeds of their own, and their predictions averaged.
    ``dropout``: of the features of the network of "deep", in learning: more for noisy outcomes, less for outcomes
    that follow the columns closely.
    ``validation_fraction``: of the rows, held out of learning for early stopping (they vote all the same), in tables
    where that is at least 100 rows; for "deep" up to a quarter of smaller ones. ``verbose``: a progress bar, where
    stderr is a terminal. ``random_state``: a seed.
    ``device``: of torch, such as "cuda"; None: the CPU.

    Attributes: ``classes_``, in the order of `predict_proba`, and those of `AttentionRegressor`.
    Columns, rows far from all cases, and cost are as there.

    >>> import pandas as pd
    >>> from attendb.estimators import AttentionClassifier
    >>> cases = pd.DataFrame({"age": [20, 30, 40, 50, 60, 70], "town": ["Ulm", "Bonn"] * 3})
    >>> model = AttentionClassifier(random_state=0).fit(cases, ["no", "no", "no", "yes", "yes", "yes"])
    >>> model.predict(pd.DataFrame({"age": [25, 65], "town": ["Ulm", "Bonn"]})).tolist()
    ['no', 'yes']

    Source: Nadaraya 1964; Watson 1964; Goldberger et al. 2005.
    """

    _classes = True
    loss = "log_loss"  # no parameter: there is no other

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, eval_set: tuple[Any, Any] | None = None
    ) -> Self:
        """Learn the similarity from the cases ``X`` (n, columns) with the classes ``y`` (n,).

        ``X``, ``sample_weight``, ``groups``, ``eval_set`` and errors as in `AttentionRegressor.fit`; a class is text, a
        whole number or bool, and one that has rows of weight 0 only is none.
        """
        table = self._read(X)
        labels = self._labels(y, len(table))
        weights = read_weights(sample_weight, len(table))
        self.classes_ = np.unique(labels[weights > 0])
        self.encoder_ = Encoder.of(table.loc[weights > 0])
        self._fit(table, self._one_hot(labels)[0], weights, groups, eval_set)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes) float64 for the rows ``X``, in the order of ``classes_``.

        Raises NotFittedError before `fit`, ValueError for other columns than `fit` saw, and as `fit` does.
        """
        return self._predicted(self._encoded(X)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class (n,) for the rows ``X``; of equally probable ones the first of ``classes_``."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _labels(self, y: Any, rows: int) -> np.ndarray:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None: give classes")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(np.empty(rows), labels)
        missing = np.asarray(pd.isna(labels), dtype=bool)
        if missing.any():
            count = int(missing.sum())
            raise MissingValueError(
                f"y has {count} missing class{'es' * (count != 1)} (first: row {int(missing.argmax())}): drop the rows"
            )
        if labels.dtype.kind == "f" and np.isinf(labels).any():
            raise InputError(
                f"y has {int(np.isinf(labels).sum())} infinite numbers, which are no classes: drop the rows"
            )
        try:
            check_classification_targets(labels)
        except ValueError as error:
            raise InputError(f"{error} For numbers, AttentionRegressor is the estimator.") from None
        return labels

    def _one_hot(self, labels: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """(n, classes), and which labels (n,) are no class, so that their rows are 0."""
        codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[codes] != labels
        found = torch.nn.functional.one_hot(torch.from_numpy(codes), len(self.classes_)).double()
        found[torch.from_numpy(unknown)] = 0.0
        return found, unknown

    def _units_of(self, cases: Cases) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(cases.targets.shape[1], dtype=torch.float64)
        return zero, zero + 1

    def _outcomes_of(self, y: Any, rows: int) -> Tensor:
        labels = self._labels(y, rows)
        found, unknown = self._one_hot(labels)
        if unknown.any():
            raise InputError(
                f"y holds the class {labels[unknown].tolist()[0]!r}, which fit has not seen: fit the model anew"
            )
        return found

    def _own_state(self) -> dict[str, Any]:
        classes = [plain(name, "classes_") for name in self.classes_]
        return {"classes": classes, "dtype": self.classes_.dtype.str}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        dtype = object if state["dtype"] == "|O" else state["dtype"]
        self.classes_ = np.array(state["classes"], dtype=dtype)

    def _values_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        return {"value": self.classes_[self._members[0].targets[torch.from_numpy(positions)].argmax(1).cpu().numpy()]}

    def _read_out(self, member: Member, value: Tensor) -> Tensor:
        return member.similarity.probabilities(value)
