"""Pairwise distances of rows, exact by differences, with gradients of any order and no NaN at distance 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

LEAST_WORK = 1 << 19  # pairs × (columns + 1): below it, loading or compiling the loops would be felt


def _batched(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """torch.cdist and its backward want equal batch axes, in memory order."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    return q.expand(*batch, *q.shape[-2:]).contiguous(), k.expand(*batch, *k.shape[-2:]).contiguous()


def _stacked(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """One batch axis, and what it stood for; keys that are shared by the batch stay shared."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    if k.shape[:-2].numel() != 1:
        k = k.expand(*batch, *k.shape[-2:])
    q = q.expand(*batch, *q.shape[-2:])
    return q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:]), batch


def _difference(q: Tensor, k: Tensor, column: int) -> Tensor:
    return q[..., :, None, column] - k[..., None, :, column]


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    return x.sum_to_size(shape) if x.shape != shape else x


def _plain_cpu(q: Tensor, k: Tensor) -> bool:
    return q.device.type == k.device.type == "cpu" and q.dtype == k.dtype and q.dtype in (torch.float32, torch.float64)


def _large(q: Tensor, k: Tensor) -> bool:
    """Whether compiled loops are worth loading; never where something is empty."""
    batch = math.prod(np.broadcast_shapes(q.shape[:-2], k.shape[:-2]))
    return q.shape[-1] > 0 and batch * q.shape[-2] * k.shape[-2] * (q.shape[-1] + 1) >= LEAST_WORK


def _sum_in_order(terms: Float[Tensor, "*b d n m"]) -> Float[Tensor, "*b n m"]:
    """Σ over d in the order of the compiled loops: d mod 4 columns one by one, then four at a time. Overwrites.

    Small blocks are summed by this, large ones by those loops: equal pairs get the same bits in both, so that rows of
    equal scores stay tied when they lie in different blocks.
    """
    alone = terms.shape[-3] % 4
    parts = list(terms[..., :alone, :, :].unbind(-3))
    if terms.shape[-3] >= 4:
        pairs = terms[..., alone::2, :, :].add_(terms[..., alone + 1 :: 2, :, :])
        parts += pairs[..., ::2, :, :].add_(pairs[..., 1::2, :, :]).unbind(-3)
    total, *rest = parts
    for part in rest:
        total.add_(part)
    return total


def _differences(q: Tensor, k: Tensor) -> Float[Tensor, "*b d n m"]:
    left, right = (x.transpose(-1, -2).contiguous() for x in (q, k))  # else the result has the columns innermost
    return left[..., :, None] - right[..., None, :]


def _pooled(x: Tensor, weights: Tensor) -> Tensor:
    """weightsᵀ x, with the long axis last: up to three times faster for few columns."""
    return (x.transpose(-1, -2) @ weights).transpose(-1, -2)


class _Squared(torch.autograd.Function):
    """‖q − k‖² by differences: never negative, exactly 0 for equal rows."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        if not _plain_cpu(q, k) or not q.shape[-1]:
            return torch.cdist(*_batched(q, k), compute_mode="donot_use_mm_for_euclid_dist").square_()
        if not _large(q, k):
            return _sum_in_order(_differences(q, k).square_())
        from ..compiled import distances

        rows, keys, batch = _stacked(q, k)
        return distances.squared_distance(rows, keys).view(*batch, q.shape[-2], k.shape[-2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        q, k = ctx.saved_tensors
        dq = dk = None
        back = grad.transpose(-1, -2)
        if ctx.needs_input_grad[0]:
            dq = _sum_to(2 * (q * grad.sum(-1, keepdim=True) - _pooled(k, back)), q.shape)
        if ctx.needs_input_grad[1]:
            dk = _sum_to(2 * (k * back.sum(-1, keepdim=True) - _pooled(q, grad)), k.shape)
        return dq, dk


class _Manhattan(torch.autograd.Function):
    """± ‖q − k‖₁; the subgradient at 0 is 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, sign: float) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.sign = sign
        if not _plain_cpu(q, k) or not q.shape[-1]:
            distance = torch.cdist(*_batched(q, k), p=1.0)
        elif not _large(q, k):
            distance = _sum_in_order(_differences(q, k).abs_())
        else:
            from ..compiled import distances

            rows, keys, batch = _stacked(q, k)
            return distances.manhattan(rows, keys, sign).view(*batch, q.shape[-2], k.shape[-2])
        return 0.0 - distance if sign < 0 else distance  # never −0, as in the loops

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        q, k = ctx.saved_tensors
        sign = ctx.sign
        if torch.is_grad_enabled():  # a graph of this gradient is wanted: plain differentiable sums
            signs = [_difference(q, k, column).sign() * sign for column in range(q.shape[-1])]
            dq = torch.stack([(grad * sign).sum(-1) for sign in signs], -1) if signs else torch.zeros_like(q)
            dk = torch.stack([-(grad * sign).sum(-2) for sign in signs], -1) if signs else torch.zeros_like(k)
            return _sum_to(dq, q.shape), _sum_to(dk, k.shape), None
        if _plain_cpu(q, k) and _large(q, k):
            from ..compiled import distances

            rows, keys, batch = _stacked(q, k)
            dq, dk = distances.manhattan_gradients(rows, keys, grad.reshape(-1, *grad.shape[-2:]), sign)
            shared = dk.shape[0] == 1
            dk = dk.view(k.shape) if shared else _sum_to(dk.view(*batch, *k.shape[-2:]), k.shape)
            return _sum_to(dq.view(*batch, *q.shape[-2:]), q.shape), dk, None
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
