"""Pairwise distances of rows, exact by differences, with gradients of any order and no NaN at distance 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

FEW_COLUMNS = 4  # up to here a loop over the columns beats torch.cdist (measured, 2 cores, blocks of 256 × 1024)


def _batched(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """torch.cdist and its backward want equal batch axes, in memory order."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    return q.expand(*batch, *q.shape[-2:]).contiguous(), k.expand(*batch, *k.shape[-2:]).contiguous()


def _difference(q: Tensor, k: Tensor, column: int) -> Tensor:
    return q[..., :, None, column] - k[..., None, :, column]


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    return x.sum_to_size(shape) if x.shape != shape else x


class _Squared(torch.autograd.Function):
    """‖q − k‖² by differences: never negative, exactly 0 for equal rows."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        width = q.shape[-1]
        if width > FEW_COLUMNS:
            return torch.cdist(*_batched(q, k), compute_mode="donot_use_mm_for_euclid_dist").square_()
        batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
        total = q.new_zeros(*batch, q.shape[-2], k.shape[-2]) if width == 0 else _difference(q, k, 0).square_()
        for column in range(1, width):
            total.add_(_difference(q, k, column).square_())
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        q, k = ctx.saved_tensors
        dq = dk = None
        if ctx.needs_input_grad[0]:
            dq = _sum_to(2 * (q * grad.sum(-1, keepdim=True) - grad @ k), q.shape)
        if ctx.needs_input_grad[1]:
            back = grad.transpose(-1, -2)
            dk = _sum_to(2 * (k * back.sum(-1, keepdim=True) - back @ q), k.shape)
        return dq, dk


class _Manhattan(torch.autograd.Function):
    """± ‖q − k‖₁; the subgradient at 0 is 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, sign: float) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.sign = sign
        distance = torch.cdist(*_batched(q, k), p=1.0)
        return distance.neg_() if sign < 0 else distance

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        q, k = ctx.saved_tensors
        sign = ctx.sign
        if torch.is_grad_enabled():  # a graph of this gradient is wanted: plain differentiable sums
            signs = [_difference(q, k, column).sign() * sign for column in range(q.shape[-1])]
            dq = torch.stack([(grad * sign).sum(-1) for sign in signs], -1) if signs else torch.zeros_like(q)
            dk = torch.stack([-(grad * sign).sum(-2) for sign in signs], -1) if signs else torch.zeros_like(k)
            return _sum_to(dq, q.shape), _sum_to(dk, k.shape), None
        full_q, full_k = _batched(q, k)
        grad = grad.contiguous()
        dq = dk = None
        if ctx.needs_input_grad[0]:
            dq = _sum_to(torch.ops.aten._cdist_backward(grad, full_q, full_k, 1.0, grad), q.shape).mul_(sign)
        if ctx.needs_input_grad[1]:
            back = grad.transpose(-1, -2).contiguous()
            dk = _sum_to(torch.ops.aten._cdist_backward(back, full_k, full_q, 1.0, back), k.shape).mul_(sign)
        return dq, dk, None


def squared_distance(q: Float[Tensor, "*#b n d"], k: Float[Tensor, "*#b m d"]) -> Float[Tensor, "*#b n m"]:
    """‖q − k‖², (..., n, d), (..., m, d) → (..., n, m). Cost O(n·m·d), no (n, m, d) temporary."""
    return _Squared.apply(q, k)  # type: ignore[no-any-return]


def manhattan(
    q: Float[Tensor, "*#b n d"], k: Float[Tensor, "*#b m d"], *, sign: float = 1.0
) -> Float[Tensor, "*#b n m"]:
    """sign · ‖q − k‖₁, (..., n, d), (..., m, d) → (..., n, m). Cost O(n·m·d), no (n, m, d) temporary."""
    return _Manhattan.apply(q, k, sign)  # type: ignore[no-any-return]


COLUMNS_ALIKE = 192  # matrix products of so many columns round every column alike; the edges of others differ


def inner_product(q: Float[Tensor, "*#b n d"], k: Float[Tensor, "*#b m d"]) -> Float[Tensor, "*#b n m"]:
    """q·k for all pairs, (..., n, d), (..., m, d) → (..., n, m), such that equal keys get equal scores, bit for bit.

    Matrix products handle the last few columns by other code, which rounds differently, and a tie would go to the wrong
    row: those columns are computed among rows of zeros.
    """
    m = k.shape[-2]
    if q.shape[-2] == 1 and m < COLUMNS_ALIKE:
        return (q * k).sum(-1).unsqueeze(-2)
    rest = m % COLUMNS_ALIKE
    if not rest:
        return q @ k.transpose(-1, -2)
    last = torch.nn.functional.pad(k[..., m - rest :, :], (0, 0, 0, COLUMNS_ALIKE - rest))
    edge = (q @ last.transpose(-1, -2))[..., :rest]
    return edge if rest == m else torch.cat([q @ k[..., : m - rest, :].transpose(-1, -2), edge], -1)


def safe_sqrt(squared: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """√x with gradient 0 at x = 0 (autograd's own is infinite there, and ∞ · 0 is NaN)."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), squared)
