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
from .encoding import Encoder
from .tables import read_numbers, read_weights


class AttentionRegressor(RegressorMixin, AttentionEstimator):
    """Predict numbers: y^(x) = g(x) + Σ_i α(x, x_i) (y_i − g(x_i)), α = softmax of a learned similarity."""

    _classes = False

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, eval_set: tuple[Any, Any] | None = None
    ) -> Self:
        """Learn the similarity from the cases ``X`` (n, columns) with the outcomes ``y`` (n,) or (n, v)."""
        table = self._read(X)
        array = self._numbers(y, len(table), first=True)
        weights = read_weights(sample_weight, len(table))
        self.encoder_ = Encoder.of(table[weights > 0])
        self._fit(table, array, weights, groups, eval_set)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,) float64, or (n, v) where y had v columns."""
        value = (self._pooled(self._encoded(X)) * self._scale + self._centre).numpy()
        return value[:, 0] if self._flat else value

    def _numbers(self, y: Any, rows: int, *, first: bool) -> Tensor:
        """(n, v) float64."""
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None: give outcomes")
        array, names = read_numbers(y, rows)
        if first:
            self._flat = array.ndim == 1
            width = 1 if self._flat else array.shape[1]
            self._names = names or (["value"] if width == 1 else [f"value {i}" for i in range(width)])
        array = array.reshape(rows, -1)
        if array.shape[1] != len(self._names):
            raise InputError(f"y has {array.shape[1]} columns but had {len(self._names)} when the model was fitted")
        return torch.from_numpy(array)

    def _units_of(self, cases: Cases) -> tuple[Tensor, Tensor]:
        share = (cases.weights / cases.weights.sum())[:, None]
        centre = (share * cases.targets).sum(0)
        deviation = (share * (cases.targets - centre).square()).sum(0).sqrt()
        flat = ~(deviation > 4 * torch.finfo(torch.float64).eps * centre.abs())
        return torch.where(flat, cases.targets[0], centre), torch.where(flat, 1.0, deviation)

    def _outcomes_of(self, y: Any, rows: int) -> Tensor:
        return self._numbers(y, rows, first=False)

    def _values_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        values = (self._targets[torch.from_numpy(positions)] * self._scale + self._centre).numpy()
        return {name: values[:, i] for i, name in enumerate(self._names)}
