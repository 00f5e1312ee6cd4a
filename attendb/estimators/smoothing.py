"""KernelSmoother: a curve or a surface through noisy rows, as the attention of a kernel."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from .kernels import Array, Kernel, Pooled, Window, read_kernel
from .local_linear import read_out, squared_weights, value_map
from .reading import names_of, one_column, read_counts, read_rows, read_table
from .rules import NARROWEST, Search, read_bandwidth, read_cap, rows_to_leave_out, scott, search, silverman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIDGE = 1e-8  # in squared bandwidths: it only decides where the rows of a window do not spread
WIDEST = 1e4  # of a table, in bandwidths from its mean: beyond it the means of u uᵀ lose the digits of the window
SEARCH_TOL = 1e-6  # of the range of y: an error that no choice of a bandwidth notices


@dataclass(frozen=True, eq=False)
class _Curve:
    """What the smoother says at n places."""

    value: Array  # (n,)
    squares: Array | None  # (n,) Σ l²; None where it was not asked for
    empty: Array  # (n,)


class KernelSmoother(RegressorMixin, BaseEstimator):
    """A smooth curve through noisy rows: kernel regression, for one to three columns.

        f(x) = Σ_i α_i(x) y_i        α_i(x) = w_i K((x − x_i)/h) / Σ_j w_j K((x − x_j)/h)

    with ``local="constant"`` (Nadaraya–Watson); with ``local="linear"`` f(x) is the height at x of the plane that fits
    the rows best under these weights, which has no bias from a slope, least of all at the ends.

    ``kernel``: "gaussian", "laplacian", "euclidean", "boxcar", "triangular", "epanechnikov", the class of such a score,
    or a function of yours from a bandwidth to a score of q − k. ``bandwidth``: a number or one a column, in the units
    of the columns, > 0; or how to choose it:

    - "loo": the one that predicts each row best from the others. A row is left out by its position, so rows with equal
      columns still see each other. Up to three columns get a bandwidth each, more share one factor of Scott's rule.
    - "scott", "silverman": from the spread of the columns alone. They give the standard deviation of the kernel, so
      for other kernels than the Gaussian h is larger or smaller by a constant.

    A column without spread tells no row from another: a rule leaves it out, and its ``bandwidth_`` is ∞. Where no
    column is left the curve is the mean of y. ``tol``: an error that you accept in `predict`, times the range of y; for
    the Gaussian and ``local="constant"`` it makes many predictions fast, see docs/how_fast_how_sure.md.
    ``max_evaluations``: after so many bandwidths a search stops with a warning.

    Attributes: ``bandwidth_`` (d,); ``search_``, what "loo" has tried (None for other bandwidths), its losses in
    squares of y (of y over its largest, where squares of y leave float64); ``n_features_in_``, ``feature_names_in_``.
    Cost: `predict` is one `attend` of n queries on m rows, local-linear two. A search takes 20 to 35 of them for one
    column, up to 150 for three, of m rows on m: for the Gaussian and ``local="constant"`` O(m) each, within 10⁻⁶ of
    the range of y; else the rows that are left out in turn are a sample once there are more than 6 000.

    >>> import numpy as np
    >>> from attendb.estimators import KernelSmoother
    >>> x = np.linspace(0, 6, 61)[:, None]
    >>> model = KernelSmoother(bandwidth=0.2).fit(x, np.sin(x[:, 0]))
    >>> model.predict([[1.5], [3.0]]).round(2).tolist()
    [0.98, 0.14]

    Source: Nadaraya 1964; Watson 1964; Stone 1977 and Cleveland 1979 for local-linear; Clark 1975 for leaving one out.
    """

    def __init__(
        self,
        kernel: Any = "gaussian",
        bandwidth: Any = "loo",
        *,
        local: str = "constant",
        tol: float | None = None,
        max_evaluations: int = 150,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.local = local
        self.tol = tol
        self.max_evaluations = max_evaluations

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelSmoother:
        """Keep the rows, and choose the bandwidth.

        ``X`` (m, d) numbers, ``y`` (m,) numbers. ``sample_weight`` (m,) ≥ 0: how many times a row counts; 2 is the row
        twice, 0 a row that is not there. The copies of a row stay when "loo" leaves one out, and know its y: where
        weights are no counts, give a bandwidth.
        Raises InputError for a bandwidth that is ≤ 0, NaN or infinite, and for NaN or infinities in the table.
        """
        if self.local not in ("constant", "linear"):
            raise InputError(f"local must be 'constant' or 'linear', got {self.local!r}")
        read_cap(self.max_evaluations)
        kernel = read_kernel(self.kernel)
        x, values = read_table(self, X, y)
        chosen = read_bandwidth(self.bandwidth, x.shape[1])
        weights = read_counts(sample_weight, x)
        if weights is not None:
            there = weights > 0
            x, values, weights = x[there], values[there], weights[there]
        self._kernel, self._x, self._y, self._weights = kernel, x, values, weights
        self._y_name = str(getattr(y, "name", None) or "y")
        self._deviation: float | None = None
        self.search_: Search | None = None
        if not isinstance(chosen, str):
            self.bandwidth_ = chosen
        elif chosen == "silverman":
            self.bandwidth_ = silverman(x, weights) / _width(kernel, x)
        else:
            self.bandwidth_ = scott(x, weights) / _width(kernel, x)
            if chosen == "loo" and np.isfinite(self.bandwidth_).any():
                self.search_ = self._search(self.bandwidth_)
                self.bandwidth_ = self.search_.bandwidth
        return self

    def predict(self, X: Any) -> Array:
        """The curve at the rows of X (n, d): (n,) float64; NaN, with a warning that counts them, where no row is near.

        A compact kernel reaches as far as its bandwidth; to the others the nearest row is always near.
        """
        check_is_fitted(self)
        return _or_nan(self._curve(self._window(self.bandwidth_, self.tol), read_rows(self, X)))

    def leave_one_out(self) -> Array:
        """What the other rows predict for each row of the table: (m,); NaN, with a warning, where none is near.

        Rows of weight 0 are no rows of it. Cost: one `attend` of m queries on m rows, with the error ``tol``.
        """
        check_is_fitted(self)
        own = np.arange(len(self._x))
        return _or_nan(self._curve(self._window(self.bandwidth_, self.tol), self._x, own=own))

    def confidence_band(self, X: Any, level: float = 0.95) -> Array:
        """A pointwise band around the curve at the rows of X (n, d): (n, 2), the low end and the high end.

            f(x) ± z σ √(Σ_i l_i²)        σ² = Σ_i w_i (y_i − f_−i(x_i))² / Σ_i w_i (1 + Σ_j l_j²)

        l are the weights of the rows in f(x) (for ``local="constant"`` l = α), f_−i the curve without row i, and z the
        normal quantile. Rows without another in reach do not count in σ.

        What it covers: at any one x, the *mean curve* E f(x) = Σ l_i E y_i, in ``level`` of all samples, where the
        errors of the rows are independent, of one variance at all x and not far from normal. It knows nothing of the
        bias, which is how far that mean curve lies from the truth: a large bandwidth flattens peaks, and there the band
        does not cover the truth. It is no band for the whole curve at once, nor an interval for a new y, and it takes
        the bandwidth as given.

        ``level`` in (0, 1). Raises InputError where no row has another in reach. Cost: two predictions; the first call
        after a fit also leaves out each row in turn (a sample of the rows, as in the search).

        Source: Wand and Jones 1995, section 5.4; Hastie, Tibshirani and Friedman 2009, section 6.1.
        """
        check_is_fitted(self)
        curve, half = self._curve_and_half_width(read_rows(self, X), level)
        middle = _or_nan(curve)
        return np.stack([middle - half, middle + half], 1)

    def plot(self, *, level: float = 0.95, places: int = 300) -> Figure:
        """The rows, the curve and its confidence band over the range of the one column: a matplotlib Figure.

        ``level``: of the band, see `confidence_band`. ``places``: at how many x the curve is drawn. Where no row is
        near, the curve has a gap. Raises InputError for more than one column.
        """
        check_is_fitted(self)
        from .pictures import draw_curve

        x = one_column(self._x)
        at = np.linspace(x.min(), x.max(), places)
        curve, half = self._curve_and_half_width(at[:, None], level)
        middle = np.where(curve.empty, np.nan, curve.value)
        names = names_of(self, 1)[0], self._y_name, f"{100 * level:.4g} %"
        return draw_curve((x, self._y), at, (middle, half), names)

    def _window(self, bandwidth: Array, tol: float | None) -> Window:
        return Window(self._kernel, bandwidth, self._x, self._weights, tol if self.local == "constant" else None)

    def _curve(self, window: Window, x: Array, *, own: Array | None = None, squares: bool = False) -> _Curve:
        """At the rows x; ``own``: which row each of them is, to be left out."""
        y = self._y[:, None]
        if self.local == "linear" and window.used.any():
            return _linear(window, x, own, self._y)
        found = window.pool(x, y, own=own)
        twice = window.pool(x, y[:, :0], own=own, squared=True) if squares else None
        return _Curve(found.value[:, 0], None if twice is None else _sum_of_squares(found, twice), found.empty)

    def _curve_and_half_width(self, x: Array, level: float) -> tuple[_Curve, Array]:
        if isinstance(level, bool) or not isinstance(level, Real) or not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level!r}: 0.95 is usual")
        from scipy.stats import norm

        curve = self._curve(self._window(self.bandwidth_, self.tol), x, squares=True)
        assert curve.squares is not None
        return curve, norm.ppf((1 + level) / 2) * self._noise() * np.sqrt(curve.squares)

    def _left_out(self, window: Window) -> tuple[Array, Array]:
        """The rows that are left out in turn, and how many times each is there."""
        own = rows_to_leave_out(len(self._x), all_at_once=self.local == "constant" and window.has_series)
        return own, np.ones(len(own)) if self._weights is None else self._weights[own]

    def _noise(self) -> float:
        """The standard deviation of one y around the curve."""
        if self._deviation is None:
            window = self._window(self.bandwidth_, SEARCH_TOL)
            own, w = self._left_out(window)
            curve = self._curve(window, self._x[own], own=own, squares=True)
            assert curve.squares is not None
            w = np.where(curve.empty, 0.0, w)
            if not w.any():
                raise InputError(
                    "no row has another within reach, so nothing is known of the noise: a band needs more rows, or a "
                    "larger bandwidth"
                )
            unit = _unit(self._y)
            apart = w @ ((self._y[own] - curve.value) / unit) ** 2
            self._deviation = unit * float(np.sqrt(apart / (w @ (1 + curve.squares))))
        return self._deviation

    def _search(self, start: Array) -> Search:
        reach = np.ptp(self._x, axis=0) / _width(self._kernel, self._x)
        own, w = self._left_out(self._window(start, SEARCH_TOL))
        unit = _unit(self._y)

        def loss(bandwidth: Array) -> tuple[float, int]:
            curve = self._curve(self._window(bandwidth, SEARCH_TOL), self._x[own], own=own)
            return float(w @ ((self._y[own] - curve.value) / unit) ** 2 / w.sum()), int(curve.empty.sum())

        low = (4 / WIDEST if self.local == "linear" else NARROWEST) * reach
        return search(loss, start, np.minimum(low, start), np.maximum(4 * reach, start), self.max_evaluations)


def _unit(y: Array) -> float:
    """1, or the largest |y| where squares in units of y would overflow or vanish."""
    largest = float(np.abs(y).max())
    return 1.0 if largest == 0 or 1e-100 < largest < 1e100 else largest


def _width(kernel: Kernel, x: Array) -> float:
    """What a standard deviation is divided by to become a bandwidth, for the columns that vary."""
    return kernel.width(max(1, int((np.ptp(x, axis=0) > 0).sum())))


def _linear(window: Window, x: Array, own: Array | None, y: Array) -> _Curve:
    """The height of the weighted plane, from means of u, u uᵀ, y and y u under the weights and under their squares."""
    used, d = window.used, int(window.used.sum())
    h, middle = window.bandwidth[used], y.mean()
    centre = window.keys[:, used].mean(0)
    u, at = (torch.from_numpy((rows[:, used] - centre) / h) for rows in (window.keys, x))
    widest = float(u.abs().amax())
    if widest > WIDEST:
        raise InputError(
            f"rows lie up to {widest:.3g} bandwidths from their mean, but a local-linear answer keeps its digits only "
            f"up to {WIDEST:.0e}: give a larger bandwidth, or local='constant'"
        )
    summed = value_map(u, torch.from_numpy(y - middle)[:, None]).numpy()
    found = window.pool(x, summed, own=own)
    twice = window.pool(x, summed[:, : d + d * (d + 1) // 2], own=own, squared=True)
    share = torch.from_numpy(_sum_of_squares(found, twice))
    thin = ~(share * (d + 2) <= 1 + 1e-9)  # just d + 2 equal weights are enough, whatever their rounding
    means, means2 = torch.from_numpy(found.value), torch.from_numpy(twice.value)
    value = read_out(means, at, 1, RIDGE, thin)[:, 0].numpy() + middle
    squares = squared_weights(means, means2, at, share, RIDGE, thin).numpy()
    return _Curve(value, squares, found.empty)


def _sum_of_squares(found: Pooled, twice: Pooled) -> Array:
    """Σ α² = exp(λ₂ − 2 λ) of the log-normalisers under K and K²."""
    return np.exp(twice.log_total - 2 * np.where(found.empty, 0.0, found.log_total))


def _or_nan(curve: _Curve) -> Array:
    """The values, NaN where no row is near, with a warning that counts those."""
    if curve.empty.any():
        warnings.warn(
            f"{int(curve.empty.sum())} of {len(curve.empty)} rows have no row of the table within the bandwidth: their "
            "predictions are NaN; a larger bandwidth or the Gaussian kernel reaches them",
            UserWarning,
            stacklevel=3,
        )
    return np.where(curve.empty, np.nan, curve.value)
