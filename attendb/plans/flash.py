"""The only caller of torch's raw flash attention on the CPU, which returns the log-sum-exp beside the output.

What the raw operator does not do, this file does: a fully masked row gives 0 and −∞ (the operator: lse 0), batches
are expanded and contiguous (else silent garbage), head widths are padded to be equal, second derivatives go through
the fold over cells, and a gradient of the log-sum-exp is served: the operator's backward computes
dscores = P ∘ (dP − D), D = rowsum(dO ∘ O), so a column with O = −1 and dO = dL turns it into P ∘ (dP − D + dL).
Empty inputs would end the process: callers keep them out.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..scores.dot import Dot
from ..weightings.base import Done
from ..weightings.softmax import Softmax
from .cells import Problem
from .higher import second_gradients
from .precision import own_precision

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flash_softmax(
    phi: Float[Tensor, "#b n w"],
    psi: Float[Tensor, "#b m w"],
    values: Float[Tensor, "#b m v"],
    mask: Float[Tensor, "#b n m"] | None = None,
) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n"]]:
    """(Σ α v (b, n, v), log Σ exp a (b, n)) for a = φ·ψ + mask, α = softmax(a); mask (b or 1, n, m), −∞ = absent."""
    b = max(x.shape[0] for x in (phi, psi, values))
    phi, psi, values = (x.expand(b, *x.shape[1:]) for x in (phi, psi, values))
    return _Flash.apply(phi, psi, values, mask)  # type: ignore[no-any-return]


def forward(
    phi: Float[Tensor, "b n w"],
    psi: Float[Tensor, "b m w"],
    values: Float[Tensor, "b m v"],
    mask: Float[Tensor, "#b n m"] | None,
) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n"]]:
    """`flash_softmax` without a graph, on batches that agree."""
    width = _padded(max(phi.shape[-1], values.shape[-1]))
    q, k, v = (_wide(x, width) for x in (phi, psi, values))
    out, lse = _forward(q, k, v, attn_mask=None if mask is None else mask.unsqueeze(1), scale=1.0)
    value, total = out[:, 0, :, : values.shape[-1]], lse[:, 0]
    if mask is not None:
        empty = (mask == -torch.inf).all(-1)
        value, total = value.masked_fill(empty[..., None], 0.0), total.masked_fill(empty, -torch.inf)
    return value, total


def backward(
    phi: Float[Tensor, "b n w"],
    psi: Float[Tensor, "b m w"],
    values: Float[Tensor, "b m v"],
    mask: Float[Tensor, "#b n m"] | None,
    value: Float[Tensor, "b n v"],
    total: Float[Tensor, "b n"],
    dvalue: Float[Tensor, "b n v"],
    dlog: Float[Tensor, "b n"] | None,
) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b m w"], Float[Tensor, "b m v"]]:
    """Gradients to φ, ψ and the values, from what `forward` returned and the gradients of both of its results."""
    width = _padded(max(phi.shape[-1], values.shape[-1] + (dlog is not None)))
    if dlog is not None:
        dvalue = torch.cat([dvalue, dlog[..., None]], -1)
        value = torch.cat([value, -torch.ones_like(dlog)[..., None]], -1)
    q, k, v, out, dout = (_wide(x, width) for x in (phi, psi, values, value, dvalue))
    lse = total if mask is None else total.masked_fill(total == -torch.inf, torch.inf)  # exp(a − ∞) = 0
    mask4 = None if mask is None else mask.unsqueeze(1)
    grads = _backward(dout, q, k, v, out, lse.unsqueeze(1), 0.0, False, attn_mask=mask4, scale=1.0)
    return tuple(g[:, 0, :, : x.shape[-1]] for g, x in zip(grads, (phi, psi, values), strict=True))  # type: ignore[return-value]


def _padded(width: int) -> int:
    """Rows of 16 numbers fill the operator's vectors: narrower ones took up to twice as long."""
    return max(16, -(-width // 8) * 8)


def _wide(x: Tensor, width: int) -> Tensor:
    """(b, rows, d) → (b, 1, rows, width), contiguous."""
    return (pad(x, (0, width - x.shape[-1])) if width > x.shape[-1] else x).unsqueeze(1).contiguous()


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, phi: Tensor, psi: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        value, total = forward(phi, psi, values, mask)
        ctx.save_for_backward(phi, psi, values, mask, value, total)
        ctx.set_materialize_grads(False)
        return value, total

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dlog: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        phi, psi, values, mask, value, total = ctx.saved_tensors
        if dvalue is None:
            dvalue = torch.zeros_like(value)
        empty = total == -torch.inf
        if mask is not None:
            dvalue = torch.where(empty[..., None], 0.0, dvalue)
            dlog = None if dlog is None else torch.where(empty, 0.0, dlog)
        if torch.is_grad_enabled():
            log = torch.zeros_like(total) if dlog is None else dlog
            return (*_second(phi, psi, values, mask, total, empty, list(ctx.needs_input_grad[:3]), dvalue, log), None)
        return (*backward(phi, psi, values, mask, value, total, dvalue, dlog), None)


def _second(
    phi: Tensor,
    psi: Tensor,
    values: Tensor,
    mask: Tensor | None,
    total: Tensor,
    empty: Tensor,
    wanted: list[bool],
    dvalue: Tensor,
    dlog: Tensor,
) -> list[Tensor | None]:
    problem = Problem.plain(Dot(), Softmax(), phi, psi, values, bias=mask)
    tensors, layouts = problem.inputs()
    done = Done(dvalue, empty, total.detach(), torch.zeros_like(total, dtype=torch.float64))
    flags = [*wanted, *([False] if mask is not None else [])]
    return second_gradients(problem, tensors, layouts, flags, done, dvalue, dlog)[:3]
