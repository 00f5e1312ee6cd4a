"""KernelDensity: how densely rows lie, as the log-normaliser of attention."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError, KindError
from .kernels import Array, Window, read_kernel
from .reading import names_of, one_column, read_counts, read_rows
from .rules import NARROWEST, Search, read_bandwidth, read_cap, rows_to_leave_out, scott, search, silverman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEARCH_TOL = 1e-6  # of a log density


class KernelDensity(DensityMixin, BaseEstimator):
    """The density of rows, a kernel around each of them, for one to three columns.

        f(x) = Σ_i w_i K((x − x_i)/h) / (Σ_i w_i · ∫ K · Π_j h_j)        log f(x) = log-normaliser of attention − log(…)

    The parameters are as in `KernelSmoother`. ``bandwidth="loo"`` takes the one under which each row is most likely
    given the others, Σ_i w_i log f_−i(x_i); rows far from all others make it wide, and a table in which all rows repeat
    another has no such bandwidth, which is an error. ``tol``: an error that you accept in log f.

    Attributes: ``bandwidth_`` (d,); ``search_``, what "loo" has tried; ``n_features_in_`` and ``feature_names_in_``.
    Cost: as in `KernelSmoother`.

    >>> import numpy as np
    >>> from attendb.estimators import KernelDensity
    >>> model = KernelDensity(bandwidth=1.0).fit([[0.0], [0.0]])
    >>> np.exp(model.score_samples([[0.0], [1.0]])).round(4).tolist()
    [0.3989, 0.242]

    Source: Rosenblatt 1956; Parzen 1962; Habbema, Hermans and van den Broek 1974 for leaving one out.
    """

    def __init__(
        self,
        kernel: Any = "gaussian",
        bandwidth: Any = "scott",
        *,
        tol: float | None = None,
        max_evaluations: int = 150,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.tol = tol
        self.max_evaluations = max_evaluations

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KernelDensity:
        """Keep the rows, and choose the bandwidth.

        ``X`` (m, d) numbers. ``sample_weight`` (m,) ≥ 0: how many times a row is there. ``y`` is not used.
        Raises InputError for a bandwidth that is ≤ 0, NaN or infinite, for NaN or infinities in X, and, where a rule is
        to choose the bandwidth, for a column without spread: no density per unit of it exists.
        """
        read_cap(self.max_evaluations)
        kernel = read_kernel(self.kernel)
        if kernel.log_integral is None:
            raise KindError(
                f"the integral of the kernel {kernel.name!r} is not known, so its density cannot be normalised: take "
                "one by name, such as 'gaussian'"
            )
        x = read_rows(self, X, reset=True)
        chosen = read_bandwidth(self.bandwidth, x.shape[1])
        weights = read_counts(sample_weight, x)
        if weights is not None:
            x, weights = x[weights > 0], weights[weights > 0]
        self._kernel, self._x, self._weights = kernel, x, weights
        self._total = float(len(x)) if weights is None else float(weights.sum())
        self.search_: Search | None = None
        if not isinstance(chosen, str):
            self.bandwidth_ = chosen
            return self
        rule = silverman if chosen == "silverman" else scott
        self.bandwidth_ = rule(x, weights) / kernel.width(x.shape[1])
        if len(x) == 1:
            raise InputError(
                f"X has 1 sample, from which bandwidth={chosen!r} finds no scale: give more rows, or a number as "
                "bandwidth"
            )
        if not np.isfinite(self.bandwidth_).all():
            name = names_of(self, x.shape[1])[int(np.isinf(self.bandwidth_).argmax())]
            raise InputError(
                f"X column {name!r} has the same value in every row, so bandwidth={chosen!r} finds no scale for it: "
                "drop the column, or give a number as bandwidth"
            )
        if chosen == "loo":
            self.search_ = self._search(self.bandwidth_)
            self.bandwidth_ = self.search_.bandwidth
        return self

    def score_samples(self, X: Any) -> Array:
        """log f at the rows of X (n, d): (n,) float64; −∞ where a compact kernel reaches no row."""
        check_is_fitted(self)
        return self._log_density(self._window(self.bandwidth_, self.tol), read_rows(self, X))

    def score(self, X: Any, y: Any = None) -> float:
        """The log-likelihood of all rows of X together, Σ log f."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws (n_samples, d) from the density: a row by its weight, moved by a draw from its kernel.

        ``random_state``: a whole number, a RandomState, or None for another draw each time.

        >>> KernelDensity(bandwidth=1.0).fit([[0.0], [9.0]]).sample(3, random_state=0).shape
        (3, 1)
        """
        check_is_fitted(self)
        if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 0:
            raise InputError(f"n_samples must be a whole number ≥ 0, got {n_samples!r}")
        rng = check_random_state(random_state)
        share = None if self._weights is None else self._weights / self._total
        rows = rng.choice(len(self._x), int(n_samples), p=share)
        assert self._kernel.draw is not None
        return self._x[rows] + self.bandwidth_ * self._kernel.draw(rng, int(n_samples), self._x.shape[1])

    def plot(self, *, places: int = 300) -> Figure:
        """The density over the one column, and a tick for each row: a matplotlib Figure.

        ``places``: at how many x the density is drawn. Raises InputError for more than one column.
        """
        check_is_fitted(self)
        from .pictures import draw_density

        x = one_column(self._x)
        margin = 3 * self._kernel.width(1) * self.bandwidth_[0]
        at = np.linspace(x.min() - margin, x.max() + margin, places)
        log_density = self._log_density(self._window(self.bandwidth_, self.tol), at[:, None])
        return draw_density(x, at, np.exp(log_density), names_of(self, 1)[0])

    def _window(self, bandwidth: Array, tol: float | None) -> Window:
        return Window(self._kernel, bandwidth, self._x, self._weights, tol)

    def _log_density(self, window: Window, x: Array, own: Array | None = None) -> Array:
        """At the rows x; ``own``: which row each of them is, to be left out."""
        found = window.pool(x, self._x[:, :0], own=own)
        total = self._total
        if own is not None:
            total = total - (1.0 if self._weights is None else np.minimum(self._weights[own], 1.0))
        assert self._kernel.log_integral is not None
        volume = self._kernel.log_integral(x.shape[1]) + np.log(window.bandwidth).sum()
        return found.log_total - np.log(total) - volume

    def _search(self, start: Array) -> Search:
        window = self._window(start, SEARCH_TOL)
        own = rows_to_leave_out(len(self._x), all_at_once=window.has_series)
        w = np.ones(len(own)) if self._weights is None else self._weights[own]

        def loss(bandwidth: Array) -> tuple[float, int]:
            log_density = self._log_density(self._window(bandwidth, SEARCH_TOL), self._x[own], own)
            empty = np.isneginf(log_density)
            return -float(w @ np.where(empty, 0.0, log_density) / w.sum()), int(empty.sum())

        reach = np.ptp(self._x, axis=0) / self._kernel.width(self._x.shape[1])
        low = np.minimum(NARROWEST * reach, start)
        found = search(loss, start, low, np.maximum(4 * reach, start), self.max_evaluations)
        if (found.bandwidth <= 1.01 * low).any():  # the end of the search, and no maximum
            repeated = len(self._x) - len(np.unique(self._x, axis=0))
            raise InputError(
                f"bandwidth='loo' found no density: {repeated} of {len(self._x)} rows repeat another, and the narrower "
                "the kernel, the likelier they are; take bandwidth='silverman', or a number not below their rounding"
            )
        return found
