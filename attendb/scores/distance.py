"""Scores that are functions of q − k: Gaussian, Laplacian, Euclidean and the compact kernels.

All of them see queries and keys centred on the keys and divided by the bandwidth, so data far from the origin
(timestamps, coordinates) lose no digits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..columns import Columns
from ..errors import InputError
from ..positive import Positive
from .base import Factors, Score
from .pairwise import inner_product, manhattan, safe_sqrt, squared_distance

COLUMNS_OF_DIFFERENCES = 32  # up to here differences beat the expanded square (measured, blocks of 256 × 1920)


class _Distance(Score):
    max_axes = 1
    power = 2  # of the scaled distance that the score grows with

    def __init__(self, bandwidth: object = 1.0, *, learn: bool = False):
        super().__init__()
        self.scale = Positive(bandwidth, "bandwidth", learn=learn, max_axes=self.max_axes)

    @property
    def bandwidth(self) -> Tensor:
        """h: a number, one per column, or a matrix; float64, in the units of the keys."""
        return self.scale()

    def check(self, queries: Columns, keys: Columns) -> None:
        super().check(queries, keys)
        width, shape = cast(Tensor, keys).shape[-1], self.scale.start.shape
        if len(shape) and shape[-1] not in (1, width) or len(shape) == 2 and shape[-1] != width:
            raise InputError(
                f"bandwidth has length {shape[-1]} but keys have width {width}: give one number, or one for each column"
            )

    def anchor(self, keys: Columns) -> Tensor:
        k = cast(Tensor, keys).detach()
        flat = k.flatten(0, -2)
        if flat.shape[0] == 0:
            return k.new_zeros(k.shape[-1])
        centre = flat.mean(0, dtype=torch.float64).to(k.dtype)
        return torch.where(torch.isfinite(centre), centre, torch.zeros_like(centre))

    def embed_queries(self, queries: Any, anchor: Tensor) -> Tensor:
        return self._scaled(queries - anchor.to(queries.dtype))

    def embed_keys(self, keys: Any, anchor: Tensor) -> Tensor:
        return self._scaled(keys - anchor.to(keys.dtype))

    def _scaled(self, x: Tensor) -> Tensor:
        h = self.bandwidth.to(x.device)
        if h.ndim < 2:
            h = h.to(x.dtype)
            return x / h if x.requires_grad or h.requires_grad else x.div_(h)  # x is new: a difference
        return torch.linalg.solve(h, x.double().transpose(-1, -2)).transpose(-1, -2).to(x.dtype)

    def lost_digits(self, queries: Any, keys: Any) -> float:
        spread = max((float(x.detach().abs().amax()) for x in (queries, keys) if x.numel()), default=0.0)
        return spread * spread * queries.shape[-1] / 1e-6 if self.power == 2 else spread / 1e-5


class Gaussian(_Distance):
    """Gaussian kernel, as the exponent: a(q, k) = −½‖(q − k)/h‖²; under softmax, Nadaraya–Watson regression.

    ``bandwidth`` h > 0, in the units of the keys: a number, one per column, or a matrix H with
    a = −½‖H⁻¹(q − k)‖², so that HHᵀ is the covariance of the kernel. Frozen unless ``learn``.
    Raises InputError when h is ≤ 0, NaN, infinite, or of another length than the keys are wide.
    Cost: n·m·d multiplications; memory one block.

    >>> import attendb as ad
    >>> float(ad.Gaussian(2.0)([[0.0]], [[2.0]]))
    -0.5

    Source: Nadaraya 1964; Watson 1964.
    """

    max_axes = 2

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        if queries.shape[-1] <= COLUMNS_OF_DIFFERENCES:
            return squared_distance(queries, keys).mul(-0.5)
        halves = [x.square().sum(-1).mul(-0.5) for x in (queries, keys)]
        both = halves[0][..., :, None] + halves[1][..., None, :]
        expanded = inner_product(queries, keys) + both
        # what is closer than rounding can tell is equal: a distance is never negative, and 0 for equal rows
        return torch.where(expanded > 4 * torch.finfo(both.dtype).eps * both, 0.0, expanded)

    def factors(self, queries: Any, keys: Any) -> Factors:
        halves = [x.square().sum(-1).mul(-0.5) for x in (queries, keys)]
        phi = torch.cat([queries, torch.ones_like(queries[..., :1])], -1) if queries.shape[-1] else None
        if phi is None:
            ones = queries.new_ones(*queries.shape[:-1], 1)
            return Factors(ones, keys.new_zeros(*keys.shape[:-1], 1), None)
        return Factors(phi, torch.cat([keys, halves[1][..., None]], -1), halves[0])


class Laplacian(_Distance):
    """Laplacian kernel, as the exponent: a(q, k) = −‖(q − k)/h‖₁.

    ``bandwidth`` h > 0, in the units of the keys: a number or one per column. Frozen unless ``learn``.
    Raises InputError as Gaussian does. Cost: n·m·d additions; memory one block.

    >>> import attendb as ad
    >>> float(ad.Laplacian(2.0)([[0.0, 0.0]], [[2.0, 4.0]]))
    -3.0

    Source: Rahimi and Recht 2007, table 1.
    """

    power = 1

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return manhattan(queries, keys, sign=-1.0)


class Euclidean(_Distance):
    """Negative distance: a(q, k) = −‖(q − k)/h‖₂; its gradient at q = k is 0.

    ``bandwidth`` h > 0, in the units of the keys: a number or one per column. Frozen unless ``learn``.
    Raises InputError as Gaussian does. Cost: n·m·d additions; memory one block.

    >>> import attendb as ad
    >>> float(ad.Euclidean()([[0.0, 0.0]], [[3.0, 4.0]]))
    -5.0

    Source: Hastie, Tibshirani and Friedman 2009, section 13.3 (nearest neighbours).
    """

    power = 1

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return safe_sqrt(squared_distance(queries, keys)).neg()


class _Compact(_Distance):
    default_weighting = "Normalized"


class Boxcar(_Compact):
    """Boxcar kernel: a(q, k) = 1 where ‖(q − k)/h‖ ≤ 1, else 0: the plain average of the window.

    ``bandwidth`` h > 0, in the units of the keys: a number or one per column. The boundary belongs to the window.
    Raises InputError as Gaussian does. Its gradient to queries, keys and h is 0. Cost: n·m·d additions.

    >>> import attendb as ad
    >>> ad.Boxcar(1.0)([[0.0]], [[1.0], [1.5]]).tolist()
    [[1.0, 0.0]]

    Source: Hastie, Tibshirani and Friedman 2009, section 6.1.
    """

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        squared = squared_distance(queries, keys)
        return torch.where(squared.isnan(), squared, (squared <= 1).to(squared.dtype))


class Triangular(_Compact):
    """Triangular kernel: a(q, k) = max(0, 1 − u), u = ‖(q − k)/h‖.

    ``bandwidth`` h > 0, in the units of the keys: a number or one per column. Frozen unless ``learn``.
    Raises InputError as Gaussian does. Cost: n·m·d additions; memory one block.

    >>> import attendb as ad
    >>> ad.Triangular(2.0)([[0.0]], [[1.0], [3.0]]).tolist()
    [[0.5, 0.0]]

    Source: Silverman 1986, table 3.1.
    """

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (1 - safe_sqrt(squared_distance(queries, keys))).clamp(min=0)


class Epanechnikov(_Compact):
    """Epanechnikov kernel: a(q, k) = max(0, 1 − u²), u = ‖(q − k)/h‖.

    ``bandwidth`` h > 0, in the units of the keys: a number or one per column. Frozen unless ``learn``.
    Raises InputError as Gaussian does. Cost: n·m·d additions; memory one block.

    >>> import attendb as ad
    >>> ad.Epanechnikov(2.0)([[0.0]], [[1.0], [3.0]]).tolist()
    [[0.75, 0.0]]

    Source: Epanechnikov 1969.
    """

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (1 - squared_distance(queries, keys)).clamp(min=0)
