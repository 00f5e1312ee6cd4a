"""Intervals that hold a stated share of new cases, calibrated on rows that leave themselves out.

    r_i = (y_i − y^_{−i}(x_i)) / s_{−i}(x_i)        interval = y^(x) + s(x) · [Q(½ − ½ level), Q(½ + ½ level)]

s² is the variance of the outcomes in the window plus the mean squared error of all: intervals are wider where like
cases differ. With n calibration rows the quantiles Q are those of the ranks ⌊(n+1)(1−level)/2⌋ and ⌈(n+1)(1+level)/2⌉,
so that each side misses at most (1−level)/2 of new cases where these are drawn as the rows were; with too few rows for
a rank the interval is infinite on that side.

Source: Papadopoulos et al. 2002 (normalised residuals); Vovk, Gammerman and Shafer 2005; Barber et al. 2021 (leaving
one out: the share is exact on average where one row more or less hardly changes a prediction).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scaled residuals (n, v), sorted in each column, the weights (n, v) up to each, and the least s² (v,)."""

    residuals: np.ndarray
    cumulative: np.ndarray
    floor: np.ndarray

    @staticmethod
    def of(errors: np.ndarray, variance: np.ndarray, weights: np.ndarray) -> Calibration:
        """From the errors (n, v) of rows left out, the variance (n, v) in their windows, and their weights (n,)."""
        floor = np.average(errors**2, axis=0, weights=weights) if len(errors) else np.ones(errors.shape[1])
        scaled = errors / np.sqrt(variance + np.where(floor > 0, floor, 1.0))
        order = scaled.argsort(axis=0, kind="stable")
        return Calibration(np.take_along_axis(scaled, order, 0), weights[order].cumsum(axis=0), floor)

    def interval(self, value: np.ndarray, variance: np.ndarray, level: float) -> np.ndarray:
        """(n, v, 2): low and high."""
        spread = np.sqrt(variance + np.where(self.floor > 0, self.floor, 1.0))
        low, high = self._quantiles((1 - level) / 2)
        return np.stack([value + spread * low, value + spread * high], -1)

    def _quantiles(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """The residuals (v,) below and above which so large a share of new ones lies."""
        n, v = self.residuals.shape
        total = self.cumulative[-1, 0] if n else 0.0
        below, above = math.floor((total + 1) * tail + 1e-9), math.ceil((total + 1) * (1 - tail) - 1e-9)
        low, high = np.full(v, -np.inf), np.full(v, np.inf)
        for j in range(v):
            if below >= 1:
                low[j] = self.residuals[np.searchsorted(self.cumulative[:, j], below).clip(max=n - 1), j]
            if above <= total:
                high[j] = self.residuals[np.searchsorted(self.cumulative[:, j], above).clip(max=n - 1), j]
        return low, high
