"""AttentionRegressor: numbers from a table of past cases."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from ..errors import InputError
from .base import AttentionEstimator
from .cases import Cases
from .conformal import Calibration
from .encoding import Encoder
from .members import Predicted
from .tables import read_numbers, read_weights

LOSSES = ("squared_error", "huber")
CALIBRATING = 8192  # rows at most that intervals are calibrated on


class AttentionRegressor(RegressorMixin, AttentionEstimator):
    """Predict numbers from a table of past cases, each case voting by how alike it is.

        y^(x) = Σ_i α(x, x_i) v_i,    α = softmax of −½ ‖φ(x) − φ(x_i)‖²,    v_i = y_i

    φ is learned. For "deep" the score is −‖φ(x) − φ(x_i)‖, the nearest 48 cases vote, and a network corrects what a
    case votes by what the two rows differ in: v_i = y_i + g(x) − g(x_i) + T(φ(x) − φ(x_i)); for equal rows it is y_i.

    ``similarity``: what rows are compared by, learned by leaving each row out of its own prediction: "bandwidth" (one
    bandwidth a column), "linear" (a linear map of the columns), "deep" (a network).
    ``local``: "constant" (the weighted mean of the cases) or "linear" (a line fitted to them, read off at the row);
    "deep" corrects its votes instead, and has no local lines.
    ``loss``: what learning makes small: "squared_error" leads to means; in "huber" errors beyond 3σ count by their size
    only, which serves outcomes that are wild now and then, and predicts too little where few outcomes make the mean.
    ``missing``: "encode" makes a missing cell a value of its own, "raise" refuses it.
    ``max_seconds``: of learning; the same seed gives the same model only where the time suffices.
    ``n_models``: so many similarities are learned from seeds of their own, and their predictions averaged.
    ``dropout``: of the features of the network of "deep", in learning: more for noisy outcomes, less for outcomes
    that follow the columns closely.
    ``validation_fraction``: of the rows, held out of learning for early stopping (they vote all the same), in tables
    where that is at least 100 rows; for "deep" up to a quarter of smaller ones. ``verbose``: a progress bar, where
    stderr is a terminal. ``random_state``: a seed.
    ``device``: of torch, such as "cuda"; None: the CPU.

    Attributes: ``bandwidths_``, for "bandwidth" what each column is divided by; ``table_``, the cases, in the order of
    the rows that `explain` names; ``n_features_in_`` and, where columns have names, ``feature_names_in_``.
    Columns of numbers, text, categories, dates and bool are read as `attendb.estimators.encoding` says.
    Rows far from all cases are answered by the nearest ones: weights are relative, so none is ever 0/0.
    Cost: to learn, O(4096) scores a row and step; to predict, n·m scores, memory O(block).

    >>> import numpy as np
    >>> from attendb.estimators import AttentionRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = AttentionRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.01)
    True
    >>> model.explain([[1.5]], top=2)[["row", "value"]].round(3).values.tolist()
    [[50.0, 0.998], [49.0, 0.996]]

    Source: Nadaraya 1964; Watson 1964; bandwidths by leaving one out: Hall, Racine and Li 2004;
    the loss "huber": Huber 1964.
    """

    _classes = False

    def __init__(
        self,
        similarity: str = "bandwidth",
        *,
        local: str = "constant",
        loss: str = "squared_error",
        missing: str = "encode",
        max_seconds: float = 300.0,
        n_models: int = 1,
        dropout: float = 0.3,
        validation_fraction: float = 0.1,
        verbose: bool = False,
        random_state: Any = None,
        device: Any = None,
    ):
        super().__init__(
            similarity,
            local=local,
            missing=missing,
            max_seconds=max_seconds,
            n_models=n_models,
            dropout=dropout,
            validation_fraction=validation_fraction,
            verbose=verbose,
            random_state=random_state,
            device=device,
        )
        self.loss = loss

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, eval_set: tuple[Any, Any] | None = None
    ) -> Self:
        """Learn the similarity from the cases ``X`` (n, columns) with the outcomes ``y`` (n,) or (n, v).

        ``X``: an array or a table of pandas, polars or pyarrow. ``sample_weight`` (n,) ≥ 0: 2 = the row twice, 0 = the
        row absent. ``groups`` (n,): rows of one group do not vote for each other while the similarity is learned and
        intervals are calibrated; give it where rows of a group (a patient, a day) will not be there for new rows.
        ``eval_set`` (X, y): rows for early stopping only, in place of ``validation_fraction``.

        Raises ValueError (InputError, MissingValueError) for no rows, infinite numbers, missing or infinite outcomes,
        with their count and column, TypeError (KindError) for cells that are no numbers, text, dates or bool.
        """
        table = self._read(X)
        array = self._numbers(y, len(table), first=True)
        weights = read_weights(sample_weight, len(table))
        self.encoder_ = Encoder.of(table.loc[weights > 0])
        self._fit(table, array, weights, groups, eval_set)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The outcomes (n,) expected for the rows ``X``, float64; (n, v) where y had v columns.

        Raises NotFittedError before `fit`, ValueError for other columns than `fit` saw, and as `fit` does.
        """
        value = (self._predicted(self._encoded(X)) * self._scale + self._centre).numpy()
        return value[:, 0] if self._flat else value

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Low and high of an interval that holds the outcome of a new case with probability ``level``.

        Calibrated on past cases that leave themselves out (`attendb.estimators.conformal`): in the long run a share
        ``level`` of new cases that are drawn as the past ones were lies inside, not of each kind of case by itself.
        Returns (n, 2) float64, or (n, v, 2) where y had v columns; infinite where there are too few cases to know.
        Raises InputError for a level outside (0, 1), and as `predict` does.
        Cost: that of `predict`; at the first call, and the first after `append`, that of predicting up to 8192 cases.
        """
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
            raise InputError(f"level must be a number between 0 and 1, got {level!r}: 0.9 for nine cases of ten")
        rows = self._encoded(X)
        if self._calibration is None:
            self._calibration = self._calibrated()
        value, variance = _mean([member.predict(rows, spread=True) for member in self._members])
        found = torch.from_numpy(self._calibration.interval(value.numpy(), variance.numpy(), level))
        found = (found * self._scale[:, None] + self._centre[:, None]).numpy()
        return found[:, 0] if self._flat else found

    def _checked_parameters(self) -> None:
        super()._checked_parameters()
        if self.loss not in LOSSES:
            raise InputError(f"loss is {self.loss!r}: choose one of {', '.join(map(repr, LOSSES))}")

    def _calibrated(self) -> Calibration:
        """From rows that leave themselves out, or from the rows of eval_set where they judged what was learned."""
        first = self._members[0]
        judges, weights = self._judges, first.memory.weights.cpu()
        memorises = first.similarity.memorises
        if memorises and isinstance(judges, Cases):
            found = [member.predict(judges.rows, spread=True) for member in self._members]
            targets, weights = judges.targets.cpu(), judges.weights
        else:
            may = weights > 0
            if memorises and isinstance(judges, Tensor):
                may = may & judges
            own = may.nonzero()[:, 0]
            own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(0))[:CALIBRATING]]
            found = [member.leave_out(own, spread=True) for member in self._members]
            targets, weights = first.targets[own].cpu(), weights[own]
        value, variance = _mean(found)
        told = ~found[0].empty
        return Calibration.of(*((x[told]).numpy() for x in (targets - value, variance, weights)))

    def _numbers(self, y: Any, rows: int, *, first: bool) -> Tensor:
        """(n, v) float64."""
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None: give outcomes")
        array, names = read_numbers(y, rows)
        if first:
            self._flat = array.ndim == 1
            width = 1 if self._flat else array.shape[1]
            self._names = names or (["value"] if width == 1 else [f"value {i}" for i in range(width)])
        array = array[:, None] if array.ndim == 1 else array
        if array.shape[1] != len(self._names):
            raise InputError(f"y has {array.shape[1]} columns but had {len(self._names)} when the model was fitted")
        return torch.from_numpy(array)

    def _units_of(self, cases: Cases) -> tuple[Tensor, Tensor]:
        share = (cases.weights / cases.weights.sum())[:, None]
        peak = cases.targets.abs().amax(0).clamp(min=torch.finfo(torch.float64).tiny)
        small = cases.targets / peak  # squares of large numbers overflow
        centre = (share * small).sum(0)
        deviation = (share * (small - centre).square()).sum(0).sqrt()
        flat = ~(deviation > 4 * torch.finfo(torch.float64).eps * centre.abs())
        if not (cases.targets.amax(0) - cases.targets.amin(0)).isfinite().all():
            raise InputError("y holds numbers so far apart that float64 has no difference: divide y by a number")
        return torch.where(flat, cases.targets[0], centre * peak), torch.where(flat, 1.0, deviation * peak)

    def _outcomes_of(self, y: Any, rows: int) -> Tensor:
        return self._numbers(y, rows, first=False)

    def _own_state(self) -> dict[str, Any]:
        return {"flat": self._flat, "names": self._names}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        self._flat, self._names = state["flat"], state["names"]

    def _values_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        values = (self._members[0].targets[torch.from_numpy(positions)].cpu() * self._scale + self._centre).numpy()
        return {name: values[:, i] for i, name in enumerate(self._names)}


def _mean(found: list[Predicted]) -> tuple[Tensor, Tensor]:
    """Value and variance, averaged over the members."""
    variances = [one.variance for one in found if one.variance is not None]
    return torch.stack([one.value for one in found]).mean(0), torch.stack(variances).mean(0)
