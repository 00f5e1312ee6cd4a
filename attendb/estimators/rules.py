"""Rules for a bandwidth: two that look at the columns alone, and a search that leaves each row out in turn.

Bandwidths are in the units of each column, so in metres and in millimetres the answers are the same. A column without
spread tells no row from another: it gets the bandwidth ∞, which stands for "left out".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, KindError

Array = NDArray[Any]
Loss = Callable[[Array], tuple[float, int]]
_Near = tuple[float, float, float]  # a logarithm of a factor between its neighbours

RULES = ("scott", "silverman", "loo")
FACTORS = range(3, -9, -1)  # the powers of 2, times the start, that are tried first
MOST_REFINED = 2  # of the least losses among these: a loss may have more than one
MOST_SEARCHED = 3  # columns that get a factor each; beyond, one factor serves them all
PAIRS = 4 * 10**7  # of rows that one evaluation compares where no series serves
FEWEST_LEFT_OUT = 2_000  # rows in turn, however large the table
NARROWEST = 1e-6  # bandwidth that is tried, of the range of a column
DIGITS = 10  # of a loss: what differs by rounding alone is a tie, and the larger bandwidth is taken


def scott(x: Array, weights: Array | None = None) -> Array:
    """Scott's rule, for the standard deviation of the kernel in each column.

        h_j = σ_j m^(−1/(d+4)),    σ_j the standard deviation of column j over the m rows, d columns that vary

    ``x`` (m, d): rows. ``weights`` (m,) ≥ 0: how many times each row is there; m is then their sum.
    Returns h (d,) in the units of the columns, ∞ where a column is constant. Cost: one pass.
    Raises InputError for weights that sum to 1 or less over rows that differ.

    >>> scott(np.array([[1.0], [3.0]])).round(3).tolist()
    [1.231]

    Source: Scott 1992, equation 6.42.
    """
    m, deviation = _spread(x, weights)
    d = int((deviation > 0).sum())
    return _or_left_out(deviation * m ** (-1 / (d + 4)))


def silverman(x: Array, weights: Array | None = None) -> Array:
    """Silverman's rule, for the standard deviation of the kernel in each column.

        h_j = c_d min(σ_j, IQR_j / 1.34) m^(−1/(d+4)),    c_1 = 0.9, c_d = (4 / (d + 2))^(1/(d+4)) else

    IQR_j is the distance between the quartiles; where it is 0, because half of the values are equal, σ_j stands alone.
    The rest is as in `scott`.

    >>> silverman(np.array([[1.0], [1.0], [1.0], [1.0], [2.0]])).round(10).tolist()
    [0.2917181874]

    Source: Silverman 1986, equations 3.31 and 4.14; with one column it is `bw.nrd0` of R.
    """
    m, deviation = _spread(x, weights)
    d = int((deviation > 0).sum())
    low, high = (_quantile(x, weights, p) for p in (0.25, 0.75))
    middle = (high - low) / 1.34
    scale = np.where(middle > 0, np.minimum(deviation, middle), deviation)
    factor = 0.9 if d == 1 else (4 / (d + 2)) ** (1 / (d + 4))
    return _or_left_out(factor * scale * m ** (-1 / (d + 4)))


def _or_left_out(h: Array) -> Array:
    return np.where(h > 0, h, inf)


def _spread(x: Array, weights: Array | None) -> tuple[float, Array]:
    """How many rows there are, and the standard deviation (d,) of each column, 0 where all its values are equal."""
    w = np.ones(len(x)) if weights is None else weights
    m = float(w.sum())
    low, high = x.min(0), x.max(0)
    varies = high > low
    if m <= 1:
        if varies.any():
            raise InputError(
                f"sample_weight sums to {m:g}, but a rule for the bandwidth reads weights as counts of rows: multiply "
                "them so that they sum to the number of rows, or give a number as bandwidth"
            )
        return m, np.zeros(x.shape[1])
    width = np.where(varies, high - low, 1.0)
    scaled = (x - low) / width
    apart = scaled - (w @ scaled) / m
    return m, np.where(varies, width * np.sqrt(w @ apart**2 / (m - 1)), 0.0)


def _quantile(x: Array, weights: Array | None, p: float) -> Array:
    """The quantile (d,) of rows that are there ``weights`` times, linear between the two nearest."""
    if weights is None:
        return np.quantile(x, p, axis=0)
    order = np.argsort(x, axis=0, kind="stable")
    ordered, counts = np.take_along_axis(x, order, 0), np.cumsum(weights[order], 0)
    place = max(0.0, (float(weights.sum()) - 1) * p)
    found = []
    for j in range(x.shape[1]):
        low, high = (
            ordered[min(int(np.searchsorted(counts[:, j], t, side="right")), len(x) - 1), j]
            for t in (np.floor(place), np.floor(place) + 1)
        )
        found.append(low + (place - np.floor(place)) * (high - low))
    return np.array(found)


def read_bandwidth(bandwidth: Any, d: int, *, rules: tuple[str, ...] = RULES) -> str | Array:
    """A rule by its name, or the numbers that were given, one a column (d,), unchanged."""
    if isinstance(bandwidth, str):
        if bandwidth not in rules:
            raise InputError(f"there is no rule {bandwidth!r} for a bandwidth: take one of {', '.join(rules)}")
        return bandwidth
    try:
        h = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        raise KindError(f"bandwidth must be a number, one a column, or a rule, got {bandwidth!r}") from None
    if isinstance(bandwidth, bool) or bandwidth is None:
        raise KindError(f"bandwidth must be a number, one a column, or a rule, got {bandwidth!r}")
    if not ((h > 0) & np.isfinite(h)).all():
        raise InputError(f"bandwidth must be > 0 and finite, got {h.tolist()}: give it in the units of the columns")
    if h.size != 1 and h.shape != (d,):
        got = f"length {len(h)}" if h.ndim == 1 else f"shape {h.shape}"
        raise InputError(f"bandwidth has {got} but X has {d} columns: give one number, or one for each column")
    return np.broadcast_to(h.reshape(-1), (d,)).copy()


def read_cap(max_evaluations: Any) -> None:
    """Raise InputError unless it is a whole number above 0."""
    if isinstance(max_evaluations, bool) or not isinstance(max_evaluations, Integral) or max_evaluations < 1:
        raise InputError(f"max_evaluations must be a whole number ≥ 1, got {max_evaluations!r}")


def rows_to_leave_out(m: int, *, all_at_once: bool) -> Array:
    """The rows of a table of m that are left out in turn: all of them, or a sample of a large table.

    ``all_at_once``: a series serves them all in O(m).
    """
    most = max(FEWEST_LEFT_OUT, PAIRS // m)
    if all_at_once or m <= most:
        return np.arange(m)
    return np.sort(np.random.default_rng(0).choice(m, most, replace=False))


@dataclass(frozen=True, eq=False)
class Search:
    """What a search has tried, in the order in which it did."""

    bandwidths: Array  # (trials, d)
    losses: Array  # (trials,) ∞ where some row had no other within reach
    empty: Array  # (trials,) how many rows had none

    @property
    def best(self) -> int:
        """Which trial has the least loss."""
        return choose(self.losses)

    @property
    def bandwidth(self) -> Array:
        """(d,) of the best trial."""
        return self.bandwidths[self.best]


def choose(losses: Any) -> int:
    """The position of the least loss; NaN and ∞ are never chosen, and of equal ones the first is.

    Raises InputError where no loss is finite.
    """
    found = np.asarray(losses, dtype=np.float64)
    found = np.where(np.isnan(found), inf, found)
    best = int(found.argmin()) if found.size else 0
    if not found.size or found[best] == inf:
        raise InputError(
            "bandwidth='loo' found none at which every row has another within reach: give a number, or take the "
            "Gaussian kernel, which reaches all rows"
        )
    return best


class _Capped(Exception):
    """As many trials as are allowed have been made."""


@dataclass(eq=False)
class _Trials:
    """The loss of one bandwidth after another."""

    loss: Loss
    start: Array  # (d,) ∞: left out
    most: int
    ceiling: float = inf  # what an optimiser sees in place of anything larger
    bandwidths: list[Array] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)

    def __call__(self, log_factors: Any) -> float:
        """At start · exp(log_factors): one for all columns that vary, or one each."""
        if len(self.losses) >= self.most:
            raise _Capped
        h = self.start.copy()
        h[np.isfinite(h)] *= np.exp(np.asarray(log_factors, dtype=np.float64))
        loss, empty = self.loss(h)
        loss = float(f"{loss:.{DIGITS}g}") if np.isfinite(loss) and not empty else inf
        self.bandwidths.append(h)
        self.losses.append(loss)
        self.empty.append(empty)
        return min(loss, self.ceiling)

    def found(self) -> Search:
        return Search(np.array(self.bandwidths), np.array(self.losses), np.array(self.empty))


def search(loss: Loss, start: Array, low: Array, high: Array, max_evaluations: int) -> Search:
    """The bandwidth of the least loss, sought on the logarithm, so that it is never negative.

    First start · 2^k for k = 3 … −8, and on beyond the best while it is the last one tried; then a bounded minimum
    between the neighbours of the best, and of a second least loss where there is one (one column, or more than three:
    one factor for all), or the simplex of Nelder and Mead with one factor a column (two and three columns).

    ``loss`` (d,) → (the loss, how many rows had no other within reach: the trial then counts as ∞). ``start``, ``low``
    and ``high`` (d,) > 0: where to begin and where to end; ∞ in ``start``: the column is left out.
    Warns with ConvergenceWarning where ``max_evaluations`` ended it; `Search.best` raises InputError where no trial has
    a finite loss.
    """
    trials = _Trials(loss, start, max_evaluations)
    used = np.isfinite(start)
    ends = np.log(low[used] / start[used]), np.log(high[used] / start[used])
    try:
        near = _common_factor(trials, float(ends[0].max()), float(ends[1].min()))
        if near and used.sum() in range(2, MOST_SEARCHED + 1):
            _factor_each(trials, near[0][1], ends)
        else:
            _refine(trials, near[:MOST_REFINED])
    except _Capped:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"bandwidth='loo' stopped after {max_evaluations} evaluations, before it settled, and takes the best of "
            "them: allow more by max_evaluations=, or give a bandwidth",
            ConvergenceWarning,
            stacklevel=4,
        )
    return trials.found()


def _common_factor(trials: _Trials, low: float, high: float) -> list[_Near]:
    """Every least loss among the factors for all columns that are tried, the best first; none where none is finite."""
    tried: dict[float, float] = {}

    def attempt(t: float) -> float:
        tried[t] = trials(t)
        return tried[t]

    step = float(np.log(2))
    for k in FACTORS:
        t = min(max(k * step, low), high)
        if t not in tried and attempt(t) == inf and trials.empty[-1] and min(tried.values()) < inf:
            break  # a window that was too small for some row stays so
    while max(tried) < high and (min(tried.values()) == inf or _best(tried) == max(tried)):
        attempt(min(max(tried) + step, high))
    while min(tried) > low and tried[min(tried)] < inf and _best(tried) == min(tried):
        attempt(max(min(tried) - step, low))
    finite = [loss for loss in tried.values() if loss < inf]
    if not finite:
        return []
    trials.ceiling = max(finite) + 10 * (max(finite) - min(finite))
    order = sorted(tried)
    found = []
    for i, t in enumerate(order):
        below, above = order[max(i - 1, 0)], order[min(i + 1, len(order) - 1)]
        if tried[t] < inf and tried[t] <= tried[below] and tried[t] <= tried[above]:
            found.append((below, t, above))
    return sorted(found, key=lambda near: (tried[near[1]], -near[1]))


def _best(tried: dict[float, float]) -> float:
    return max(tried, key=lambda t: (-tried[t], t))


def _refine(trials: _Trials, near: list[_Near]) -> None:
    from scipy.optimize import minimize_scalar

    for low, _, high in near:
        if low < high:
            minimize_scalar(trials, bounds=(low, high), method="bounded", options={"xatol": 1e-3})


def _factor_each(trials: _Trials, best: float, ends: tuple[Array, Array]) -> None:
    from scipy.optimize import minimize

    d = len(ends[0])
    corner = np.full(d, best)
    simplex = np.vstack([corner, corner + np.log(2) * np.eye(d)])
    too_far = simplex > ends[1]
    simplex[too_far] -= 2 * np.log(2)
    scale = abs(min(trials.losses))
    minimize(
        trials,
        corner,
        method="Nelder-Mead",
        bounds=list(zip(*ends, strict=True)),
        options={"initial_simplex": simplex, "xatol": 0.02, "fatol": 1e-5 * scale},
    )
