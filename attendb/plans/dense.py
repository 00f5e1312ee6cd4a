"""Plan "dense": every score and every weighting, by one fold over cells that fit in cache.

The forward fold keeps one state per tile of queries; the backward fold scores each cell again and adds up the
gradients of the rule in `weightings/base.py`, so memory is O(block) in both directions. Selected rows are gathered
and pooled in plain torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..columns import pool_back, project, tensors
from ..weightings.base import Accumulator, Cell, Done, Fold, Pooling, Selecting, State, by_row
from ..weightings.sampled import Sampled
from ..weightings.selecting import Best
from ..weightings.softmax import Softmax
from .best_rows import BestOfCells
from .cells import KEY, PARAMETER, Place, Problem, cut
from .gather import pool_selected
from .higher import second_gradients
from .precision import own_precision
from .solution import Solution, padded_ranks, padded_top, refuse_nan, refuse_overflow

SECONDS_PER_NUMBER = 2e-10  # of keys, read and copied
SECONDS_PER_PAIR = 4e-9  # scoring, weighting and pooling, measured on 2 cores in float32; a rough guide


class CellFold:
    """One pass over all cells of a problem: the `Fold` that weightings are run on.

    The state of all queries lies in one tensor a component, and each tile writes to its part: small tensors of its own
    would pin the heap between the temporaries of the cells, and memory would grow with the number of tiles.
    """

    def __init__(self, problem: Problem, *, needs_grad: bool = False, scale: int = 1):
        self.problem = problem
        self.rows = problem.m
        self.needs_grad = needs_grad
        self.scale = scale
        self.best: State | None = None

    def __call__(self, accumulator: Accumulator, *context: Tensor, last: bool = False) -> State:
        weighting, top = self.problem.weighting, self.problem.top
        accumulators = [accumulator]
        if last and top > 0 and isinstance(weighting, Pooling):
            accumulators.append(Best(min(top, self.rows), weighting.rank))
        folds = [
            (BestOfCells if BestOfCells.serves(self.problem, one) else _OneFold)(self.problem, one)  # type: ignore[arg-type]
            for one in accumulators
        ]
        for _, place in self.problem.places(self.scale):
            cell = self.problem.cell(place, context=context)
            for fold in folds:
                fold.take(place, cell)
        self.best = folds[1].state() if len(folds) > 1 else None
        return folds[0].state()


class _OneFold:
    """The states of all queries under one accumulator."""

    def __init__(self, problem: Problem, accumulator: Accumulator):
        self.problem, self.accumulator = problem, accumulator
        self._state: State = ()

    def take(self, place: Place, cell: Cell) -> None:
        """Absorb one cell."""
        if place.keys.start == 0:
            new = self.accumulator.lift(cell)
            self._state = self._state or tuple(self._for_all_queries(x) for x in new)
            old = self._part(place)
        else:
            old = self._part(place)
            new = self.accumulator.absorb(old, cell)
        for target, x in zip(old, new, strict=True):
            if target is not x:
                target.copy_(x)

    def state(self) -> State:
        return self._state

    def _for_all_queries(self, x: Tensor) -> Tensor:
        return x.new_empty(self.problem.batch, self.problem.n, *x.shape[2:])

    def _part(self, place: Place) -> State:
        return tuple(x[place.batch, place.queries] for x in self._state)


class Dense:
    """Plan "dense" (see the top of this file)."""

    name = "dense"

    def __init__(self, problem: Problem):
        self.problem = problem

    def refusal(self) -> str | None:
        return None

    def cost(self) -> float:
        problem = self.problem
        pairs = problem.batch * problem.n * problem.m
        scratch = problem.score.scratch(problem.queries, problem.keys)
        wide = 1.0 if problem.dtype == torch.float32 else 2.0
        columns = sum(x.shape[-1] for x in tensors(problem.keys))
        read = problem.batch * problem.m * (10 + columns) * SECONDS_PER_NUMBER
        masked = 1.3 if problem.where is not None else 1.0
        return 1e-3 + wide * (read + masked * pairs * (SECONDS_PER_PAIR + 2e-9 * (scratch - 1) + 1e-10 * problem.width))

    def fold(self) -> Fold:
        """The pass over all pairs by which a weighting selects rows."""
        return CellFold(self.problem)

    def solve(self) -> Solution:
        if isinstance(self.problem.weighting, Selecting):
            return select_and_pool(self.problem, self.fold())
        return pool_all(self.problem)


def pool_all(problem: Problem) -> Solution:
    """A pooling weighting over all cells."""
    tensors, layouts = problem.inputs()
    value, log_normalizer, empty, positions, weights, ranks, ref, tau = _Pool.apply(problem, layouts, *tensors)  # type: ignore[misc]
    log = log_normalizer if problem.weighting.has_log_normalizer else None
    if not problem.top:
        return Solution(value, empty, log, threshold=(ref, tau))
    top, ranks = padded_top(positions, weights, problem.top), padded_ranks(ranks, problem.top)
    return Solution(value, empty, log, top=top, ranks=ranks, threshold=(ref, tau))


def select_and_pool(problem: Problem, fold: Fold) -> Solution:
    """A selecting weighting: the fold names the rows, which are gathered and pooled in plain torch."""
    weighting = problem.weighting
    assert isinstance(weighting, Selecting)
    with torch.no_grad():
        positions, scores = weighting.select(fold)
    refuse_nan(problem, scores)
    refuse_overflow(problem, scores)
    solution = pool_selected(problem, weighting, positions)
    if isinstance(weighting, Sampled):
        # the log-normaliser over all keys: the softmax of values of width 0
        nothing = torch.zeros(1, problem.m, 0, dtype=problem.dtype, device=problem.device)
        every = replace(problem, weighting=Softmax(), top=0, values=nothing)
        total = pool_all(every).log_normalizer
        assert total is not None and solution.log_normalizer is not None
        log_prob = (solution.log_normalizer - total).masked_fill(solution.empty, 0.0)
        return replace(solution, log_normalizer=total, log_prob=log_prob)
    return solution


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, layouts: list[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        weighting = problem.weighting
        assert isinstance(weighting, Pooling)
        fold = CellFold(problem, needs_grad=any(x.requires_grad for x in tensors))
        done = weighting.run(fold)
        refuse_nan(problem, done.value, done.ref)
        refuse_overflow(problem, done.ref)
        value = done.value.masked_fill(done.empty[..., None], 0.0).to(problem.dtype)
        log_normalizer = (done.ref.double() + done.tau).masked_fill(done.empty, -torch.inf).to(problem.dtype)
        if fold.best is None:
            positions = torch.zeros(0, dtype=torch.int64, device=problem.device)
            weights, ranks = positions.to(problem.dtype), positions.to(problem.dtype)
        else:
            ranks, positions = fold.best[0], fold.best[1]
            weights = weighting.weight_of_rank(ranks, done).to(problem.dtype)
            weights = weights.masked_fill(positions < 0, 0.0)
        ctx.problem, ctx.layouts, ctx.count = problem, layouts, len(tensors)
        found = [done.empty, done.ref, done.tau]
        if done.slope is not None:
            found.append(done.slope)
            if done.center is not None:
                found.append(done.center)
        ctx.save_for_backward(*tensors, *found)
        ref, tau = done.ref.clone(), done.tau.clone()
        ctx.mark_non_differentiable(done.empty, positions, weights, ranks, ref, tau)
        ctx.set_materialize_grads(False)
        return value, log_normalizer, done.empty, positions, weights, ranks, ref, tau

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dlog: Tensor | None, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        problem, layouts = ctx.problem, ctx.layouts
        saved = ctx.saved_tensors
        tensors, found = saved[: ctx.count], saved[ctx.count :]
        done = Done(found[2], *found[:3], *found[3:])  # value is not needed
        wanted = list(ctx.needs_input_grad[2:])
        if dvalue is None:
            dvalue = torch.zeros(problem.batch, problem.n, problem.width, dtype=problem.dtype, device=problem.device)
        if dlog is None:
            dlog = torch.zeros(problem.batch, problem.n, dtype=problem.dtype, device=problem.device)
        dvalue = torch.where(done.empty[..., None], 0.0, dvalue)
        dlog = torch.where(done.empty, 0.0, dlog)
        if torch.is_grad_enabled():
            grads = second_gradients(problem, list(tensors), layouts, wanted, done, dvalue, dlog)
        else:
            grads = cell_gradients(problem, list(tensors), layouts, wanted, done, dvalue, dlog)
        return (None, None, *grads)


def cell_gradients(
    problem: Problem,
    tensors: list[Tensor],
    layouts: list[str],
    wanted: list[bool],
    done: Done,
    dvalue: Tensor,
    dlog: Tensor,
) -> list[Tensor | None]:
    """The backward fold: every cell is scored again, and its share of each gradient is added up."""
    weighting = problem.weighting
    assert isinstance(weighting, Pooling)
    shift = torch.zeros_like(dlog, dtype=torch.float64)
    if done.slope is not None:
        shift = dlog.double() / done.slope.masked_fill(done.empty, 1.0)
        if done.center is not None:
            shift = shift - (dvalue.double() * done.center).sum(-1).masked_fill(done.empty, 0.0)
    tau = done.tau.masked_fill(done.empty, torch.inf if done.slope is not None else 0.0)
    # sums over keys are long, and those of parameters longer: float64
    sums = [
        torch.zeros_like(x, dtype=x.dtype if layout == KEY else torch.float64) if want else None
        for x, layout, want in zip(tensors, layouts, wanted, strict=True)
    ]
    values_at, weights_at = _value_and_weight_slots(problem)
    for _, place in problem.places():
        cuts = [cut(x, layout, place).detach() for x, layout in zip(tensors, layouts, strict=True)]
        through_score = [w and i not in (values_at, weights_at) for i, w in enumerate(wanted)]
        for i, through in enumerate(through_score):
            if through:
                cuts[i] = tensors[i] if layouts[i] == PARAMETER else cuts[i].requires_grad_()
        with torch.enable_grad():
            cell = problem.cell(place, cuts, context=(done.ref, tau, shift))
        parts = _parts_of_cell(weighting, cell, dvalue[place.batch, place.queries])
        if values_at is not None and wanted[values_at]:
            _add(sums[values_at], layouts[values_at], place, parts.values())
        if weights_at is not None and wanted[weights_at]:
            _add(sums[weights_at], layouts[weights_at], place, parts.multiplicity())
        leaves = [c for c, through in zip(cuts, through_score, strict=True) if through]
        if leaves and cell.scores.requires_grad:
            grads = iter(torch.autograd.grad(cell.scores, leaves, parts.scores(), allow_unused=True))
            for i, through in enumerate(through_score):
                if through:
                    _add(sums[i], layouts[i], place, next(grads))
    return [None if s is None else s.to(x.dtype) for s, x in zip(sums, tensors, strict=True)]


@dataclass(frozen=True, eq=False)
class _CellGradients:
    cell: Cell
    dvalue: Tensor
    inner: Tensor  # ⟨dO, v⟩ + shift, (b, n, m)
    p: Tensor
    g: Tensor

    def scores(self) -> Tensor:
        """Asked for last: overwrites ``inner``, since a new tensor costs more than the product."""
        grads = self.cell.times(self.inner.mul_(self.g))
        scores = self.cell.scores
        if scores.numel() and scores.amax() == torch.inf:  # a small change of an infinite score changes nothing
            grads = grads.masked_fill(scores == torch.inf, 0.0)
        return grads

    def values(self) -> Tensor:
        return pool_back(self.cell.times(self.p), self.dvalue)

    def multiplicity(self) -> Tensor:
        present = self.cell.present
        grads = self.p * self.inner
        return grads if present is None else grads.masked_fill(~present, 0.0)


def _parts_of_cell(weighting: Pooling, cell: Cell, dvalue: Tensor) -> _CellGradients:
    ref, tau, shift = cell.context
    scores = cell.masked(weighting.fill).detach()
    z = weighting.centre(scores, ref)
    column = by_row(tau, z)
    p = weighting.weight(z, column)
    g, _ = weighting.slopes(z, column, p)
    inner = project(dvalue, cell.values).add_(by_row(shift, z))
    return _CellGradients(replace(cell, scores=scores), dvalue, inner, p.detach(), g)


def _value_and_weight_slots(problem: Problem) -> tuple[int | None, int | None]:
    """Where `inputs` lists the values and the key weights, whose gradients do not pass through the score."""
    _, layouts = problem.inputs()
    embedded = len(layouts) - len(problem.parameters())
    weights = embedded - 1 if problem.key_weights is not None else None
    bias = isinstance(problem.bias, Tensor)
    values = embedded - 1 - (weights is not None) - bias if isinstance(problem.values, Tensor) else None
    return values, weights


def _add(total: Tensor | None, layout: str, place: Any, part: Tensor | None) -> None:
    if total is not None and part is not None:
        target = cut(total, layout, place)
        target += part.sum_to_size(target.shape)
