"""Σ_h w_h tanh(q_h + k_h) for all pairs of rows, one unit at a time, without a temporary for each unit.

tanh(q + k) = 1 − 2/(1 + e^{2q} e^{2k}): the exponentials are taken once a row, not once a pair, which leaves a product,
a sum and a reciprocal for each pair: seven times faster than tanh. Where the exponentials could overflow, tanh itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

LARGEST = 40.0  # of |q_h| + |k_h|: e^{2·40} is finite in float32


class _TanhSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, weight)
        batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
        total = q.new_zeros(*batch, q.shape[-2], k.shape[-2])
        for tanh, w in zip(_units(q, k), weight.tolist(), strict=True):
            total.add_(tanh, alpha=w)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of this gradient is wanted: plain differentiable torch
            own = [x.view_as(x) for x in (q, k, weight)]
            plain = torch.tanh(own[0][..., :, None, :] + own[1][..., None, :, :]) @ own[2]
            wanted = [x for x, needed in zip(own, ctx.needs_input_grad, strict=True) if needed]
            grads = iter(torch.autograd.grad(plain, wanted, grad, create_graph=True))
            return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad)
        dq, dk, dw = (torch.zeros_like(x) for x in (q, k, weight))
        for unit, tanh in enumerate(_units(q, k)):
            if ctx.needs_input_grad[2]:
                dw[unit] = torch.dot(tanh.reshape(-1), grad.reshape(-1))
            slope = torch.addcmul(grad, grad, tanh.square_(), value=-1)  # grad · (1 − tanh²)
            w = weight[unit]
            dq[..., unit] = (slope.sum(-1) * w).sum_to_size(q.shape[:-1])
            dk[..., unit] = (slope.sum(-2) * w).sum_to_size(k.shape[:-1])
        return dq, dk, dw


def _units(q: Tensor, k: Tensor) -> Iterator[Tensor]:
    """tanh(q_h + k_h) (..., n, m) of each unit in turn, in one buffer that is overwritten."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    buffer = q.new_empty(*batch, q.shape[-2], k.shape[-2])
    safe = all(x.numel() for x in (q, k)) and float(q.abs().amax() + k.abs().amax()) < LARGEST
    rows, columns = ((2 * q).exp(), (2 * k).exp()) if safe else (q, k)
    rows, columns = rows.transpose(-1, -2).contiguous(), columns.transpose(-1, -2).contiguous()
    for unit in range(q.shape[-1]):
        left, right = rows[..., unit, :, None], columns[..., unit, None, :]
        if safe:
            yield torch.mul(left, right, out=buffer).add_(1).reciprocal_().mul_(-2).add_(1)
        else:
            yield torch.add(left, right, out=buffer).tanh_()


def tanh_sum(
    q: Float[Tensor, "*#b n hidden"], k: Float[Tensor, "*#b m hidden"], weight: Float[Tensor, " hidden"]
) -> Float[Tensor, "*#b n m"]:
    """Σ_h weight_h tanh(q_h + k_h): (..., n, hidden), (..., m, hidden), (hidden,) → (..., n, m)."""
    return _TanhSum.apply(q, k, weight)  # type: ignore[no-any-return]
