"""Scores that are inner products: Dot, ScaledDot, Cosine, Bilinear."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..columns import Columns
from ..errors import InputError
from .base import Factors, Score
from .pairwise import inner_product


class _InnerProduct(Score):
    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return inner_product(queries, keys)

    def factors(self, queries: Any, keys: Any) -> Factors:
        return Factors(queries, keys, None)


class Dot(_InnerProduct):
    """Inner product: a(q, k) = q·k.

    Cost: n·m·d multiplications, at matrix-multiply rate.

    >>> import attendb as ad
    >>> float(ad.Dot()([[1.0, 2.0]], [[3.0, 4.0]]))
    11.0

    Source: Luong, Pham and Manning 2015, section 3.1.
    """


class ScaledDot(_InnerProduct):
    """Scaled inner product: a(q, k) = q·k/√d, d the width of the keys.

    Cost: n·m·d multiplications, at matrix-multiply rate. Source: Vaswani et al. 2017, equation 1.

    >>> import attendb as ad
    >>> float(ad.ScaledDot()([[1.0, 2.0, 3.0, 4.0]], [[1.0, 1.0, 1.0, 1.0]]))
    5.0
    """

    def embed_queries(self, queries: Any, anchor: Any) -> Tensor:
        return queries / math.sqrt(max(1, queries.shape[-1]))


class Cosine(_InnerProduct):
    """Cosine similarity: a(q, k) = q·k/(‖q‖‖k‖), in [−1, 1]; a zero vector scores 0 with zero gradient.

    Cost: n·m·d multiplications, at matrix-multiply rate.

    >>> import attendb as ad
    >>> float(ad.Cosine()([[3.0, 0.0]], [[5.0, 0.0]]))
    1.0

    Source: Graves, Wayne and Danihelka 2014 (Neural Turing Machines), equation 6.
    """

    def embed_queries(self, queries: Any, anchor: Any) -> Tensor:
        return _unit(queries)

    def embed_keys(self, keys: Any, anchor: Any) -> Tensor:
        return _unit(keys)


def _unit(x: Tensor) -> Tensor:
    largest = x.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_ones(*x.shape[:-1], 1)
    nonzero = largest > 0
    safe = torch.where(nonzero, x / torch.where(nonzero, largest, 1), torch.ones((), dtype=x.dtype, device=x.device))
    unit = safe / safe.square().sum(-1, keepdim=True).sqrt()  # scaled first: squares of 1e25 overflow in float32
    return torch.where(nonzero, unit, x.detach() * 0)


class Bilinear(_InnerProduct):
    """Bilinear form: a(q, k) = qᵀ W k, for queries of width d_q and keys of width d_k.

    ``weight`` gives W (d_q, d_k); without it W starts at random (uniform, Glorot). Frozen unless ``learn``.
    Cost: n·d_q·d_k once, then n·m·d_k multiplications at matrix-multiply rate.

    >>> import attendb as ad
    >>> float(ad.Bilinear(2, 1, weight=[[1.0], [10.0]])([[1.0, 2.0]], [[3.0]]))
    63.0

    Source: Luong, Pham and Manning 2015, section 3.1 ("general").
    """

    same_width = False

    def __init__(self, d_q: int, d_k: int, *, weight: object = None, learn: bool = False):
        super().__init__()
        self.weight = given_or_random(weight, (d_q, d_k), "weight", learn)

    def check(self, queries: Columns, keys: Columns) -> None:
        super().check(queries, keys)
        check_widths(self, queries, keys, *self.weight.shape)

    def embed_queries(self, queries: Any, anchor: Any) -> Tensor:
        return queries @ self.weight.to(queries.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


def check_widths(score: Score, queries: Any, keys: Any, d_q: int, d_k: int) -> None:
    """Raise when queries or keys have another width than the score was made for."""
    for what, got, want in (("queries", queries.shape[-1], d_q), ("keys", keys.shape[-1], d_k)):
        if got != want:
            made = f"{type(score).__name__}({queries.shape[-1]}, {keys.shape[-1]}, …)"
            raise InputError(
                f"{what} have width {got} but {type(score).__name__} was made for width {want}: "
                f"give {what} of width {want}, or create {made}"
            )


def given_or_random(given: object, shape: tuple[int, ...], name: str, learn: bool) -> nn.Parameter:
    """A parameter with the given numbers, or uniform in ±√(6 / (fan in + fan out)) (Glorot and Bengio 2010)."""
    if given is None:
        fans = sum(shape) + (len(shape) == 1)
        data = (torch.rand(shape) * 2 - 1) * math.sqrt(6 / max(1, fans))
    else:
        data = torch.as_tensor(given).detach().clone()
        data = data if data.is_floating_point() else data.double()
        if tuple(data.shape) != shape:
            raise InputError(f"{name} has shape {tuple(data.shape)}, expected {shape}")
    return nn.Parameter(data, requires_grad=learn)
