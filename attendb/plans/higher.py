"""Second derivatives, in bounded memory.

When a graph of the gradient is wanted (``create_graph=True``), the answer is written as sums over cells of
differentiable functions. Such a sum's gradient is again a sum over cells, of the vector–Jacobian product of that
function, and so on to any order; only one cell's graph is ever alive. About three times slower than the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..columns import pool
from ..weightings.base import Cell, Done, Pooling, by_row
from .cells import PARAMETER, QUERY, WHOLE, Place, Problem, cut
from .precision import own_precision

CellFunction = Callable[[Place, Sequence[Tensor]], Sequence[Tensor | None]]


class Slot(NamedTuple):
    """The layout and shape of a tensor that is summed into."""

    layout: str
    shape: torch.Size
    dtype: torch.dtype


class _BlockSum(torch.autograd.Function):
    """Σ over cells of fn(place, cuts): each output is added up along its layout."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, fn: CellFunction, ins: list[str], outs: list[Slot], *xs: Tensor) -> Any:
        ctx.problem, ctx.fn, ctx.ins, ctx.outs = problem, fn, ins, outs
        ctx.save_for_backward(*xs)
        totals = [torch.zeros(slot.shape, dtype=slot.dtype, device=problem.device) for slot in outs]
        for _, place in problem.places():
            own = iter(problem.parameters())  # a cell is scored by the modules' own parameters, not by aliases of them
            cuts = [
                next(own) if layout == PARAMETER else cut(x, layout, place).detach()
                for x, layout in zip(xs, ins, strict=True)
            ]
            parts = fn(place, cuts)
            for total, slot, part in zip(totals, outs, parts, strict=True):
                if part is not None:
                    target = cut(total, slot.layout, place)
                    target += part.sum_to_size(target.shape)
        return tuple(totals)

    @staticmethod
    @own_precision()
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # type: ignore[override]
        xs = ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed]
        filled = [
            torch.zeros(slot.shape, dtype=slot.dtype, device=ctx.problem.device) if g is None else g
            for g, slot in zip(grads, ctx.outs, strict=True)
        ]
        slots = [Slot(_summed(ctx.ins[i]), xs[i].shape, xs[i].dtype) for i in wanted]
        product = _vector_jacobian(ctx.fn, len(xs), wanted)
        ins = [*ctx.ins, *(slot.layout for slot in ctx.outs)]
        results = iter(_BlockSum.apply(ctx.problem, product, ins, slots, *xs, *filled))  # type: ignore[arg-type]
        return (None, None, None, None, *(next(results) if i in wanted else None for i in range(len(xs))))


def _summed(layout: str) -> str:
    return WHOLE if layout == PARAMETER else layout


def _vector_jacobian(fn: CellFunction, count: int, wanted: list[int]) -> CellFunction:
    def product(place: Place, cuts: Sequence[Tensor]) -> Sequence[Tensor | None]:
        again = torch.is_grad_enabled()
        xs, gs = list(cuts[:count]), cuts[count:]
        for i in wanted:
            if not xs[i].requires_grad:
                xs[i] = xs[i].detach().requires_grad_()
        with torch.enable_grad():
            ys = fn(place, xs)
            pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y is not None and y.requires_grad]
            if not pairs:
                return [None] * len(wanted)
            heads, seeds = zip(*pairs, strict=True)
            return torch.autograd.grad(
                heads, [xs[i] for i in wanted], seeds, create_graph=again, retain_graph=again, allow_unused=True
            )

    return product


def second_gradients(
    problem: Problem,
    tensors: list[Tensor],
    layouts: list[str],
    wanted: list[bool],
    done: Done,
    dvalue: Tensor,
    dlog: Tensor,
) -> list[Tensor | None]:
    """The gradients of the answer, with a graph."""
    # every input under its own name: with q = k = v one tensor would be counted thrice, and a parameter of the score
    # once more where the embedded queries and keys have come from it
    own = [x.view_as(x) if x.requires_grad else x for x in tensors]
    with torch.enable_grad():
        value, log_normalizer = _differentiable(problem, own, layouts, done)
        heads, seeds = [value], [dvalue]
        if log_normalizer is not None:
            heads.append(log_normalizer)
            seeds.append(dlog)
        sources = [x for x, want in zip(own, wanted, strict=True) if want]
        grads = iter(torch.autograd.grad(heads, sources, seeds, create_graph=True, allow_unused=True))
    return [next(grads) if want else None for want in wanted]


def _differentiable(problem: Problem, xs: list[Tensor], layouts: list[str], done: Done) -> tuple[Tensor, Tensor | None]:
    """(value, log-normaliser) as sums over cells; τ becomes differentiable by `refine`."""
    weighting = problem.weighting
    assert isinstance(weighting, Pooling)
    shape = (problem.batch, problem.n)
    tau = done.tau.masked_fill(done.empty, 0.0)
    empty = done.empty

    def weights(place: Place, cuts: Sequence[Tensor]) -> tuple[Cell, Tensor, Tensor, Tensor]:
        cell = problem.cell(place, cuts[:-1], context=(done.ref,))
        z = weighting.centre(cell.masked(weighting.fill), cell.context[0])
        column = by_row(cuts[-1], z)
        return cell, z, column, weighting.weight(z, column)

    def total(place: Place, cuts: Sequence[Tensor]) -> Sequence[Tensor]:
        cell, _, _, p = weights(place, cuts)
        return [cell.times(p).double().sum(-1)]

    def pooled(place: Place, cuts: Sequence[Tensor]) -> Sequence[Tensor]:
        cell, _, _, p = weights(place, cuts)
        return [pool(cell.times(p), cell.values)]

    ins = [*layouts, QUERY]
    per_query = Slot(QUERY, torch.Size(shape), torch.float64)
    slope = torch.ones_like(tau) if done.slope is None else done.slope.masked_fill(empty, 1.0)
    for _ in range(weighting.refinements):
        (found,) = _BlockSum.apply(problem, total, ins, [per_query], *xs, tau)  # type: ignore[misc]
        tau = weighting.refine(tau, torch.where(empty, 1.0, found), slope)
    per_value = Slot(QUERY, torch.Size((*shape, problem.width)), problem.dtype)
    (value,) = _BlockSum.apply(problem, pooled, ins, [per_value], *xs, tau)  # type: ignore[misc]
    log_normalizer = (done.ref.double() + tau).to(problem.dtype) if weighting.has_log_normalizer else None
    return torch.where(empty[..., None], 0.0, value), log_normalizer
