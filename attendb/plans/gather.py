"""Explicit weights: of the rows that a selecting weighting has named, and of all pairs when they are asked for.

Everything here is plain torch, so gradients of any order come by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..columns import Labels, Opaque, Parts, leaves, map_leaves, tensors, with_tensors
from ..weightings.base import Accumulator, Cell, Done, Pooling, Selecting, State, by_row
from .cells import PAIR, Problem, cut
from .solution import Solution, index_of, padded_top, refuse_nan, whole

NUMBERS_AT_ONCE = 1 << 22  # gathered keys and values of one slice of the queries (16 MB in float32)


def weights_of_cell(weighting: Pooling, cell: Cell) -> tuple[Tensor, Done, Tensor]:
    """(weights (b, n, m), what the weighting found, differentiable τ) of one cell that holds all rows."""
    frozen = replace(cell, scores=cell.scores.detach())
    if frozen.multiplicity is not None:
        frozen = replace(frozen, multiplicity=frozen.multiplicity.detach())
    with torch.no_grad():
        done = weighting.run(_OneCell(frozen))
    ref = done.ref.to(cell.scores.dtype)
    # an absent row gets a finite score before the arithmetic and weight 0 after it: no 0 · ∞ in any gradient
    scores = cell.scores if cell.present is None else torch.where(cell.present, cell.scores, ref[..., None])
    z = weighting.centre(scores, ref)
    tau = done.tau.masked_fill(done.empty, 0.0)
    slope = torch.ones_like(tau)
    for _ in range(weighting.refinements):
        column = by_row(tau, z)
        p = weighting.weight(z, column)
        if weighting.refinements > 1:
            slope = cell.times(weighting.slopes(z, column, p)[1]).detach().sum(-1, dtype=torch.float64)
        total = cell.times(p).sum(-1, dtype=torch.float64)
        tau = weighting.refine(tau, torch.where(done.empty, 1.0, total), slope.masked_fill(slope == 0, 1.0))
    weights = cell.times(weighting.weight(z, by_row(tau, z)))
    return weights.masked_fill(done.empty[..., None], 0.0), done, tau


class _OneCell:
    """The fold over a single cell."""

    needs_grad = False

    def __init__(self, cell: Cell):
        self.cell = cell
        self.rows = cell.scores.shape[-1]

    def __call__(self, accumulator: Accumulator, *context: Tensor, last: bool = False) -> State:
        return accumulator.lift(replace(self.cell, context=context))


def pool_selected(problem: Problem, weighting: Selecting, positions: Tensor) -> Solution:
    """Gather the selected rows (b, n, k) and pool them by ``then``."""
    if any(isinstance(leaf, Opaque) for leaf in leaves(problem.keys)):
        step = 16  # text has no batch axis: the rows of a few queries are scored against those queries together
    else:
        row = sum(x.shape[-1] for x in tensors(problem.keys)) + problem.width + 4
        step = max(1, NUMBERS_AT_ONCE // max(1, row * positions.shape[-1] * problem.batch))
    xs = problem.inputs()[0]
    recompute = torch.is_grad_enabled() and problem.n > step and any(x.requires_grad for x in xs)
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, max(problem.n, 1), step):
        queries = slice(start, min(start + step, problem.n))
        if recompute:  # memory stays O(slice): gathered rows are gathered again in backward
            parts.append(checkpoint(_pool_slice, problem, weighting, positions, queries, *xs, use_reentrant=False))
        else:
            parts.append(_pool_slice(problem, weighting, positions, queries, *xs))
    value, log_normalizer, weights, empty = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    refuse_nan(problem, value.detach())
    top = None
    if problem.top:
        top = _best_selected(positions, weights.detach(), problem.top)
    log = log_normalizer if weighting.then.has_log_normalizer else None
    return Solution(value, empty, log, top=top)


def selected_scores(problem: Problem, positions: Tensor, queries: slice, xs: Sequence[Tensor]) -> Tensor:
    """Scores (b, n, k) of the rows at these positions, with gradients."""
    rows = index_of(problem, positions)
    b, n, k = rows.shape
    given = iter(xs)
    q = with_tensors(problem.queries, [next(given) for _ in tensors(problem.queries)])
    keys = with_tensors(problem.keys, [next(given) for _ in tensors(problem.keys)])
    if any(isinstance(leaf, Opaque) for leaf in leaves(keys)):
        union, place = rows.unique(return_inverse=True)
        near = _rows_of(keys, union)
        tile = map_leaves(lambda x: x[:, queries] if isinstance(x, Tensor) else x.take(queries), q)
        scores = problem.score.pair(tile, near).to(problem.dtype).expand(b, n, -1).gather(-1, place.view(b, n, k))
    else:
        tile = map_leaves(lambda x: _flat(x[:, queries].expand(b, n, -1)[:, :, None]), q)  # type: ignore[union-attr]
        near = map_leaves(lambda x: _flat(gather_rows(x, rows)), keys)  # type: ignore[arg-type]
        scores = problem.score.pair(tile, near).to(problem.dtype).view(b, n, k)
    if isinstance(problem.bias, Tensor):
        bias = xs[problem.inputs()[1].index(PAIR)]
        scores = scores + _pair_at(bias, queries, rows)
    elif problem.bias is not None:
        mine = problem.query_positions[queries][:, None]
        at = [torch.as_tensor(problem.bias(mine, entry)) for entry in positions.clamp(min=0)]
        scores = scores + torch.stack([x.to(problem.dtype).expand(n, k) for x in at])
    return scores


def _pool_slice(
    problem: Problem, weighting: Selecting, all_positions: Tensor, queries: slice, *xs: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(value, log-normaliser, weights, empty) of a slice of the queries."""
    positions = all_positions[:, queries]
    rows = index_of(problem, positions)
    b, n, k = rows.shape
    then = weighting.then
    if problem.m == 0 or k == 0:
        nothing = torch.zeros(b, n, problem.width, dtype=problem.dtype, device=problem.device)
        graph = sum((x[..., :0].sum() for x in xs), nothing.new_zeros(()))  # 0, and it hangs on every input
        empty = torch.ones(b, n, dtype=torch.bool, device=problem.device)
        return nothing + graph, nothing.new_full((b, n), -torch.inf) + graph, nothing.new_zeros(b, n, k), empty
    scores = then.temper(selected_scores(problem, positions, queries, xs))
    multiplicity = None
    if problem.key_weights is not None and not weighting.one_hot:
        multiplicity = _flat(_pair_at(xs[-1 - len(problem.parameters())], queries, rows)[:, :, None])
    present = _flat((positions >= 0)[:, :, None])
    flat = _flat(scores[:, :, None])
    cell = Cell(flat, flat.new_zeros(1, k, 0), present, multiplicity, torch.arange(k), torch.zeros(1), ())
    weights, done, tau = weights_of_cell(then, cell)
    weights = weights.view(b, n, k)
    log = (done.ref.double() + tau).masked_fill(done.empty, -torch.inf).to(problem.dtype).view(b, n)
    if isinstance(problem.values, Labels) and weighting.one_hot:
        value = problem.values.codes[rows].masked_fill(positions < 0, -1)  # a code, not a distribution
    elif isinstance(problem.values, Labels):
        value = weights.new_zeros(b, n, problem.width).scatter_add(-1, problem.values.codes[rows], weights)
    else:
        near = gather_rows(xs[problem_values_slot(problem)], rows)
        near = near.masked_fill((positions < 0)[..., None], 0.0)
        value = (weights[..., None] * near).sum(-2) if problem.width == 1 else (weights[:, :, None] @ near)[:, :, 0]
    return value, log, weights, done.empty.view(b, n)


def problem_values_slot(problem: Problem) -> int:
    """Where `Problem.inputs` lists the values."""
    return len(tensors(problem.queries)) + len(tensors(problem.keys))


def gather_rows(x: Float[Tensor, "#b m d"], rows: Int64[Tensor, "b n k"]) -> Float[Tensor, "b n k d"]:
    """Rows (b, n, k) of x (b or 1, m, d): (b, n, k, d)."""
    b, n, k = rows.shape
    if x.shape[0] == 1:
        return x[0].index_select(0, rows.reshape(-1)).view(b, n, k, x.shape[-1])
    index = (rows + x.shape[1] * torch.arange(b, device=rows.device)[:, None, None]).reshape(-1)
    return x.flatten(0, 1).index_select(0, index).view(b, n, k, x.shape[-1])


def _flat(x: Tensor) -> Tensor:
    """(b, n, …) → (b·n, …): every query becomes a batch entry of its own."""
    return x.flatten(0, 1)


def _rows_of(keys: Parts, rows: Tensor) -> Parts:
    return map_leaves(lambda x: x[:, rows] if isinstance(x, Tensor) else x.take(rows.cpu().numpy()), keys)


def _pair_at(pairwise: Tensor, queries: slice, rows: Tensor) -> Tensor:
    """Entries of a (b or 1, n or 1, m or 1) tensor at rows (b, n, k)."""
    b, n, k = rows.shape
    mine = pairwise if pairwise.shape[1] == 1 else pairwise[:, queries]
    if mine.shape[2] == 1:
        return mine.expand(b, n, k)
    return mine.expand(b, n, -1).gather(-1, rows)


def _best_selected(positions: Tensor, weights: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """The r selected rows of highest weight, ties to the lowest position."""
    weights = weights.masked_fill(positions < 0, -torch.inf)
    order = torch.where(positions < 0, torch.iinfo(torch.int64).max, positions).argsort(dim=-1, stable=True)
    weights, positions = weights.gather(-1, order), positions.gather(-1, order)
    order = weights.argsort(dim=-1, descending=True, stable=True)[..., :r]
    weights, positions = weights.gather(-1, order), positions.gather(-1, order)
    positions = positions.masked_fill(weights <= 0, -1)
    return padded_top(positions, weights.masked_fill(positions < 0, 0.0), r)


def all_weights(problem: Problem) -> Tensor:
    """All weights (b, n, m), differentiable."""
    if isinstance(problem.weighting, Selecting):
        return _selected_weights(problem, problem.weighting)
    xs, layouts = problem.inputs()
    place = whole(problem)
    cell = problem.cell(place, [cut(x, layout, place) for x, layout in zip(xs, layouts, strict=True)])
    return weights_of_cell(problem.weighting, replace(cell, values=cell.scores.new_zeros(1, problem.m, 0)))[0]  # type: ignore[arg-type]


def _selected_weights(problem: Problem, weighting: Selecting) -> Tensor:
    from .dense import CellFold

    with torch.no_grad():
        positions, _ = weighting.select(CellFold(problem))
    xs, _ = problem.inputs()
    weights = _pool_slice(problem, weighting, positions, slice(0, problem.n), *xs)[2]
    out = weights.new_zeros(problem.batch, problem.n, problem.m)
    return out.scatter_add(-1, index_of(problem, positions), weights) if problem.m else out
