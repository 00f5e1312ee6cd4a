"""Kernels by name: the score of each, how wide it is, its integral, and draws from it; and rows weighed by one.

    K(u) = exp a(q, k) where the score goes through the softmax, a(q, k) where it is a compact kernel;  u = (q − k)/h

All but the Laplacian are functions g of r = ‖u‖₂. With M_p = ∫ g(r) r^p dr and S_d = 2 π^(d/2) / Γ(d/2) in d columns:

    ∫ K(u) du = S_d M_(d−1)      variance of one column of u = M_(d+1) / (d M_(d−1))

The Laplacian is a product over the columns, with ∫ K = 2^d and a variance of 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..attention import attend
from ..errors import InputError, KindError
from ..scores.additive import Constant
from ..scores.base import Score, as_score
from ..scores.distance import Boxcar, Epanechnikov, Euclidean, Gaussian, Laplacian, Triangular
from ..weightings.softmax import Normalized, Softmax
from .pooling import with_copies

Array = NDArray[Any]
SERIES_COLUMNS = 3  # up to here a tolerance makes sums of Gaussians cost O(n + m)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A family of scores with a bandwidth, and what its densities and rules need to know; None: not known."""

    name: str
    make: Callable[[Any], Score]
    variance: Callable[[int], float] | None = None
    log_integral: Callable[[int], float] | None = None
    draw: Callable[[np.random.RandomState, int, int], Array] | None = None

    def __reduce__(self) -> tuple[Any, ...]:  # known kernels hold functions that cannot be pickled
        return read_kernel, (self.make,)

    def width(self, d: int) -> float:
        """The standard deviation of one column of u, 1 where it is not known."""
        return 1.0 if self.variance is None else math.sqrt(self.variance(d))


def _radial(
    score: type[Score], log_moment: Callable[[int], float], radius: Callable[[np.random.RandomState, int, int], Array]
) -> Kernel:
    """``log_moment``: p → log M_p. ``radius``: n draws of r in d columns."""

    def log_integral(d: int) -> float:
        return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2) + log_moment(d - 1)

    def draw(rng: np.random.RandomState, n: int, d: int) -> Array:
        direction = rng.standard_normal((n, d))
        return direction * (radius(rng, n, d) / np.linalg.norm(direction, axis=1))[:, None]

    return Kernel(
        score.__name__.lower(),
        score,
        lambda d: math.exp(log_moment(d + 1) - log_moment(d - 1)) / d,
        log_integral,
        draw,
    )


KNOWN = (
    _radial(
        Gaussian,
        lambda p: (p - 1) / 2 * math.log(2) + math.lgamma((p + 1) / 2),
        lambda rng, n, d: np.sqrt(rng.chisquare(d, n)),
    ),
    Kernel(
        "laplacian",
        Laplacian,
        lambda d: 2.0,
        lambda d: d * math.log(2),
        lambda rng, n, d: rng.laplace(size=(n, d)),
    ),
    _radial(Euclidean, lambda p: math.lgamma(p + 1), lambda rng, n, d: rng.gamma(d, size=n)),
    _radial(Boxcar, lambda p: -math.log(p + 1), lambda rng, n, d: rng.uniform(size=n) ** (1 / d)),
    _radial(Triangular, lambda p: -math.log((p + 1) * (p + 2)), lambda rng, n, d: rng.beta(d, 2, n)),
    _radial(
        Epanechnikov,
        lambda p: math.log(2 / ((p + 1) * (p + 3))),
        lambda rng, n, d: np.sqrt(rng.beta(d / 2, 2, n)),
    ),
)
BY_NAME = {kernel.name: kernel for kernel in KNOWN}
BY_SCORE = {kernel.make: kernel for kernel in KNOWN}


def read_kernel(kernel: Any) -> Kernel:
    """A kernel by its name, by its class, or by a function of yours from a bandwidth to a score."""
    if isinstance(kernel, str):
        if kernel not in BY_NAME:
            raise InputError(f"there is no kernel {kernel!r}: take one of {', '.join(BY_NAME)}")
        return BY_NAME[kernel]
    if isinstance(kernel, Score):
        raise KindError(
            f"kernel is a score whose bandwidth is fixed: give the class {type(kernel).__name__}, and bandwidth= beside"
        )
    if not callable(kernel):
        raise KindError(
            f"kernel must be a name such as 'gaussian', or a function from a bandwidth to a score, got {kernel!r}"
        )
    make = cast(Callable[[Any], Score], kernel)
    return BY_SCORE.get(make) or Kernel(getattr(kernel, "__name__", "yours"), make)


class Squared(Score):
    """The square of a kernel whose scores are its values: a(q, k) = K(q, k)²."""

    default_weighting = "Normalized"

    def __init__(self, kernel: Score):
        super().__init__()
        self.kernel = kernel

    def check(self, queries: Any, keys: Any) -> None:
        self.kernel.check(queries, keys)

    def anchor(self, keys: Any) -> Any:
        return self.kernel.anchor(keys)

    def embed_queries(self, queries: Any, anchor: Any) -> Any:
        return self.kernel.embed_queries(queries, anchor)

    def embed_keys(self, keys: Any, anchor: Any) -> Any:
        return self.kernel.embed_keys(keys, anchor)

    def pair(self, queries: Any, keys: Any) -> Tensor:
        return self.kernel.pair(queries, keys).square()

    def lost_digits(self, queries: Any, keys: Any) -> float:
        return self.kernel.lost_digits(queries, keys)


@dataclass(frozen=True, eq=False)
class Pooled:
    """Weighted means of some columns at n queries."""

    value: Array  # (n, v)
    log_total: Array  # (n,) log Σ w K, −inf where no row is within reach

    @property
    def empty(self) -> Array:
        return np.isneginf(self.log_total)


@dataclass(frozen=True, eq=False)
class Window:
    """Rows, each there ``weights`` times, weighed by a kernel of one bandwidth a column."""

    kernel: Kernel
    bandwidth: Array  # (d,), inf: the column is left out
    keys: Array  # (m, d)
    weights: Array | None  # (m,) > 0
    tol: float | None = None

    @property
    def used(self) -> Array:
        """The columns that tell rows apart."""
        return np.isfinite(self.bandwidth)

    @property
    def has_series(self) -> bool:
        """Whether a tolerance makes the work O(n + m)."""
        return self.kernel.name == "gaussian" and 1 <= self.used.sum() <= SERIES_COLUMNS

    def pool(self, queries: Array, values: Array, *, own: Array | None = None, squared: bool = False) -> Pooled:
        """Σ w K v / Σ w K of the values (m, v) at the queries (n, d), and log Σ w K; of K² where ``squared``.

        ``own`` (n,): the row that each query is, by position. One of it is left out: of a row that is there 2.5 times
        1.5 stay, of one that is there half a time nothing.
        """
        score, weighting = self._score(squared)
        answer = attend(
            queries[:, self.used],
            self.keys[:, self.used],
            values,
            score=score,
            weighting=weighting,
            key_weights=self.weights,
            exclude=own,
            tol=self.tol if self.has_series else None,
        )
        if own is None or self.weights is None or not (self.weights[own] > 1).any():
            return Pooled(answer.value, answer.log_normalizer)
        copies = np.maximum(self.weights[own] - 1, 0) * self._at_itself() ** (2 if squared else 1)
        given = (answer.value, answer.log_normalizer, values[own], copies)
        value, log_total, _ = with_copies(*(torch.from_numpy(x) for x in given))
        return Pooled(value.numpy(), log_total.numpy())

    def _score(self, squared: bool) -> tuple[Score, Softmax | Normalized | None]:
        if not self.used.any():
            return Constant(), None
        score = as_score(self.kernel.make(self.bandwidth[self.used]))
        if score.default_weighting == "Softmax":
            return score, Softmax(0.5 if squared else 1.0)
        if squared and not isinstance(score, Boxcar):
            score = Squared(score)
        return score, Normalized()

    def _at_itself(self) -> float:
        """K of a row and itself."""
        score, weighting = self._score(squared=False)
        found = float(score(self.keys[:1, self.used], self.keys[:1, self.used]))
        return math.exp(found) if isinstance(weighting, Softmax) else found
