"""Plan "pruned": softmax and compact kernels of a distance in few columns, without the pairs that cannot matter.

Queries and keys are sorted into small boxes. For a box of queries, boxes of keys are skipped from the farthest inwards
as long as all that is skipped weighs less than half a rounding of every query's sum, or less than ``tol`` of it; what
is left is summed by compiled loops (`compiled/near.py`) from differences of centred rows, so that float32 keeps its
digits although the table is a hundred bandwidths wide. Of a compact kernel exactly the pairs within its reach count.

Without ``tol`` a row counts for more the farther its value lies from the median of all, so that a skipped row is below
rounding whatever its value. What was skipped weighs at most ρ of the sum, so a value moves by at most ρ · (max − min)
and the log-normaliser by at most ρ. Cost: O((n + m) log) to sort, a look at the larger boxes for each box of queries,
and the pairs that are near; a few queries cost the sorting of the keys. Memory: O(n + m), in backward once a thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..columns import Labels
from ..compiled.kinds import BOXCAR, GAUSSIAN
from ..compiled.threads import in_threads
from ..scores.base import Score
from ..scores.distance import Boxcar, Epanechnikov, Euclidean, Gaussian, Laplacian, Triangular
from ..weightings.base import Done
from ..weightings.softmax import Normalized, Softmax
from .cells import Problem
from .higher import second_gradients
from .precision import own_precision
from .sampling import near_share
from .solution import Solution, excluded_rows

KINDS: tuple[type[Score], ...] = (Gaussian, Laplacian, Euclidean, Boxcar, Triangular, Epanechnikov)
MOST_COLUMNS = 4
FEWEST_PAIRS = 1 << 22
QUERIES_IN_BOX = 16
FAR = 12.0  # log2 of a sum below which its scores would lose digits in float32
SINGLE_ROUNDING = 2e-5  # of a weight in float32, at most: scores of 2^±16, rows of a box 8 units apart
SAMPLED_VALUES = 10_000  # from which their usual distance from the median is taken
TOGETHER = 8  # neighbouring boxes of queries that one thread takes


@dataclass(frozen=True, eq=False)
class _Layout:
    """Everything about a pruned problem that carries no gradient."""

    kind: int
    query_order: NDArray[np.int64]
    key_order: NDArray[np.int64]
    q: NDArray[Any]  # (d, n) sorted, in units of base-2 exponents
    k: NDArray[Any]  # (d, m)
    values: NDArray[np.float64]  # (v, m) sorted, relative to `middle`
    middle: NDArray[np.float64]  # (v,)
    scale: NDArray[np.float64]  # (2, m or 0)
    own: NDArray[np.int64]  # (n or 0,)
    boxes: tuple[Any, ...]
    slack: float
    unit: float  # what scaled rows were multiplied by

    def blocks(self) -> NDArray[np.int64]:
        return np.arange(-(-self.q.shape[1] // QUERIES_IN_BOX))


class Pruned:
    """Plan "pruned" (see the top of this file)."""

    name = "pruned"

    def __init__(self, problem: Problem):
        self.problem = problem

    def refusal(self) -> str | None:
        problem = self.problem
        reason = _refuses_kernel(problem)
        if reason is not None:
            return reason
        if problem.device.type != "cpu" or problem.dtype not in (torch.float32, torch.float64):
            return f"its loops are compiled for the CPU, not for {problem.device.type} and {problem.dtype}"
        if not problem.n * problem.m:
            return "there are no pairs"
        if problem.batch > 1:
            return "several batch entries"
        if problem.where is not None or problem.bias is not None:
            return "where= or bias= between single queries and keys"
        if isinstance(problem.values, Labels):
            return "values are labels"
        if problem.top:
            return "top= needs the scores, which are not kept"
        if problem.blocks is not None:
            return "block sizes are forced"
        if not all(torch.isfinite(x.detach()).all() for x in (problem.queries, problem.keys, problem.values)):  # type: ignore[union-attr]
            return "a query, a key or a value is NaN or infinite"
        return None

    def cost(self) -> float:
        problem = self.problem
        if problem.n * problem.m < FEWEST_PAIRS:
            return math.inf
        with torch.no_grad():
            q, k = self._scaled()
            share = near_share(q.double() * self._unit, k.double() * self._unit, self._kind, self._slack())
        wide = 1.0 if self._work() == torch.float32 else 2.2
        pairs = problem.n * problem.m * share * (1 + 0.1 * problem.width)
        return 5e-3 + 2e-7 * (problem.n + problem.m) + pairs * wide * 1.3e-9

    @property
    def _kind(self) -> int:
        return KINDS.index(type(self.problem.score))

    @property
    def _unit(self) -> float:
        """Scaled rows × unit: their lengths are exponents of 2."""
        if self._kind >= BOXCAR:
            return 1.0
        return math.sqrt(0.5 / math.log(2)) if self._kind == GAUSSIAN else 1 / math.log(2)

    def _work(self) -> torch.dtype:
        """The dtype of the arithmetic: half precision and float32 in float32, unless the tolerance is too small."""
        problem = self.problem
        if self._kind >= BOXCAR:
            return problem.dtype
        fine = problem.tol is not None and problem.tol < 5 * SINGLE_ROUNDING
        return torch.float64 if problem.result_dtype == torch.float64 or fine else torch.float32

    def _slack(self) -> float:
        """log2 of what may be skipped, ÷ the sum."""
        problem = self.problem
        exact = 0.5 * torch.finfo(torch.float64 if problem.result_dtype == torch.float64 else torch.float32).eps
        if problem.tol is None:
            return math.log2(exact)
        rounding = SINGLE_ROUNDING if self._work() == torch.float32 else 0.0
        return math.log2(max(min(problem.tol, 0.5) - rounding, 1e-15))

    def _scaled(self) -> tuple[Tensor, Tensor]:
        """Queries and keys, into which the temperature has gone."""
        q, k = self.problem.queries, self.problem.keys
        assert isinstance(q, Tensor) and isinstance(k, Tensor)
        if self._kind >= BOXCAR:
            return q[0], k[0]
        tempered = self.problem.tempered_rows(2 if self._kind == GAUSSIAN else 1)
        return tempered[0].to(q.dtype), tempered[1].to(k.dtype)

    def solve(self) -> Solution:
        problem = self.problem
        assert isinstance(problem.values, Tensor)
        w = None if problem.key_weights is None else problem.key_weights[0, 0]
        inputs = (*self._scaled(), problem.values[0], w)
        value, log, rest = _Pooled.apply(self._layout(*inputs), self._work(), problem, *inputs)  # type: ignore[misc]
        bound = None
        if problem.tol is not None:
            rounding = SINGLE_ROUNDING if self._work() == torch.float32 and self._kind < BOXCAR else 0.0
            bound = (rest + rounding).to(problem.dtype)[None]
        return Solution(value[None], log.detach()[None] == -torch.inf, log[None], error_bound=bound)

    def _layout(self, q: Tensor, k: Tensor, v: Tensor, w: Tensor | None) -> _Layout:
        from ..compiled.boxes import Boxes, box_order
        from ..compiled.near import KEYS_IN_BOX

        problem, unit = self.problem, self._unit
        rows = [(x.detach().double() * unit).numpy() for x in (q, k)]
        query_order, key_order = box_order(rows[0], QUERIES_IN_BOX), box_order(rows[1], KEYS_IN_BOX)
        kind = np.float32 if problem.dtype == torch.float32 else np.float64
        sorted_q, sorted_k = (
            np.ascontiguousarray(x[o].T, kind) for x, o in zip(rows, (query_order, key_order), strict=True)
        )
        weights = None if w is None else w.detach().double().numpy()[key_order]
        values = v.detach().double().numpy()
        sample = values[:: max(1, len(values) // SAMPLED_VALUES)]
        middle = np.median(sample, 0)
        mass = weights
        if problem.tol is None and self._kind < BOXCAR:
            odd = _oddness(values, sample, middle)[key_order]
            mass = odd if weights is None else weights * odd
        boxes = Boxes.of(sorted_k.astype(np.float64), mass, KEYS_IN_BOX)
        return _Layout(
            kind=self._kind,
            query_order=query_order,
            key_order=key_order,
            q=sorted_q,
            k=sorted_k,
            values=np.ascontiguousarray((values - middle)[key_order].T),
            middle=middle,
            scale=_scale(weights, compact=self._kind >= BOXCAR),
            own=_own_rows(problem, query_order, key_order),
            boxes=(boxes.low, boxes.high, boxes.mass, boxes.starts),
            slack=self._slack(),
            unit=unit,
        )


def _refuses_kernel(problem: Problem) -> str | None:
    """Why the pair of score and weighting cannot be served."""
    score, weighting = type(problem.score), type(problem.weighting)
    if score not in KINDS:
        return f"{score.__name__} is not one of {', '.join(kind.__name__ for kind in KINDS)}"
    wanted = Softmax if KINDS.index(score) < BOXCAR else Normalized
    if weighting is not wanted:
        return f"{weighting.__name__} is not {wanted.__name__}, which {score.__name__} is pruned under"
    width = problem.queries.shape[-1]  # type: ignore[union-attr]
    if not 0 < width <= MOST_COLUMNS:
        return f"boxes of more than {MOST_COLUMNS} columns overlap too much to skip any"
    return None


def _oddness(
    values: NDArray[np.float64], sample: NDArray[np.float64], middle: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(m,) ≥ 1: how many usual distances from the median the values of a row lie. So much heavier is it to skip.

    Without it a row of value 10¹⁰ among values of 1 would be skipped where it still makes the answer.
    """
    apart = np.abs(sample - middle)
    usual = np.ones_like(middle)
    for better in (apart.mean(0), np.abs(middle), np.median(apart, 0)):
        usual = np.where(better > 0, better, usual)
    return np.maximum(1.0, (np.abs(values - middle) / usual).max(1, initial=1.0))


def _scale(w: NDArray[np.float64] | None, *, compact: bool) -> NDArray[np.float64]:
    """Multiplicities as (whole part of their logarithm, what is left), so that no float32 range is left."""
    if w is None:
        return np.empty((2, 0))
    if compact:
        return np.stack([np.zeros_like(w), w])
    mantissa, exponent = np.frexp(w)
    return np.stack([exponent.astype(np.float64), mantissa])


def _own_rows(problem: Problem, query_order: NDArray[np.int64], key_order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which sorted row each sorted query may not see; −1: none."""
    found = excluded_rows(problem)
    if found is None:
        return np.empty(0, np.int64)
    rows, place = found[0].numpy(), np.empty_like(key_order)
    place[key_order] = np.arange(len(key_order))
    return np.where(rows >= 0, place[rows], -1)[query_order]


def _shared(blocks: NDArray[np.int64], run: Any) -> None:
    """``run(blocks, thread)`` in threads, neighbours together and all parts of the table in each thread."""
    threads = max(1, min(torch.get_num_threads(), len(blocks)))
    turn = np.arange(len(blocks)) // TOGETHER % threads
    in_threads(lambda a, b: [run(blocks[turn == t], t) for t in range(a, b)], threads)


class _Pooled(torch.autograd.Function):
    """(Σ α v (n, v), log Σ w p (n,), what was skipped ÷ the sum (n,)) of scaled rows."""

    @staticmethod
    def forward(
        ctx: Any,
        layout: _Layout,
        work: torch.dtype,
        problem: Problem,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, width = len(q), v.shape[-1]
        ref, total, pooled, rest = np.empty(n), np.empty(n), np.empty((n, width)), np.empty(n)
        blocks = layout.blocks()
        _sum(layout, work, blocks, (ref, total, pooled, rest))
        wide = blocks[:0]
        if work == torch.float32 and layout.kind < BOXCAR:
            with np.errstate(divide="ignore"):
                far = layout.scale[0].max(initial=0.0) - (ref + np.log2(total)) > FAR
            wide = np.unique(np.flatnonzero(far & (total > 0)) // QUERIES_IN_BOX)
            _sum(layout, torch.float64, wide, (ref, total, pooled, rest))
        empty = total == 0
        value = layout.middle + pooled / np.where(empty, 1.0, total)[:, None]
        value[empty] = 0.0
        with np.errstate(divide="ignore"):
            log = np.where(empty, -np.inf, np.log(total) + (ref * math.log(2) if layout.kind < BOXCAR else 0.0))
        ctx.layout, ctx.work, ctx.problem, ctx.wide = layout, work, problem, wide
        ctx.found = ref, total, value
        back = np.argsort(layout.query_order)
        results = [torch.from_numpy(x[back]) for x in (value, log, rest)]
        ctx.save_for_backward(q, k, v, w, results[1])
        ctx.mark_non_differentiable(results[2])
        ctx.set_materialize_grads(False)
        return results[0].to(v.dtype), results[1].to(v.dtype, copy=True), results[2]

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dlog: Tensor | None, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        layout: _Layout = ctx.layout
        q, k, v, w, log = ctx.saved_tensors
        dvalue = torch.zeros(len(q), v.shape[-1], dtype=v.dtype) if dvalue is None else dvalue
        dlog = torch.zeros(len(q), dtype=v.dtype) if dlog is None else dlog
        empty = log == -torch.inf
        dvalue, dlog = torch.where(empty[:, None], 0.0, dvalue), torch.where(empty, 0.0, dlog)
        if torch.is_grad_enabled():
            return (None, None, None, *_second(ctx.problem, (q, k, v, w), log, dvalue, dlog))
        seeds = [x.double().numpy()[layout.query_order] for x in (dvalue, dlog)]
        dq, dk, dv, dlogs = _gradients(layout, ctx.work, ctx.wide, ctx.found, *seeds)
        back, key_back = np.argsort(layout.query_order), np.argsort(layout.key_order)
        dw = None if w is None else (torch.from_numpy(dlogs[0][key_back]) / w.double()).to(w.dtype)
        grads = [
            torch.from_numpy(np.ascontiguousarray(x.T[o])) for x, o in ((dq, back), (dk, key_back), (dv, key_back))
        ]
        return (None, None, None, *(g.to(x.dtype) for g, x in zip(grads, (q, k, v), strict=True)), dw)


def _arithmetic(layout: _Layout, work: torch.dtype) -> tuple[NDArray[Any], NDArray[Any]]:
    kind = np.float32 if work == torch.float32 else np.float64
    return layout.values.astype(kind), layout.scale.astype(kind)


def _sum(layout: _Layout, work: torch.dtype, blocks: NDArray[np.int64], found: tuple[Any, ...]) -> None:
    from ..compiled import near

    if not len(blocks):
        return
    values, scale = _arithmetic(layout, work)
    rows = layout.kind, layout.q, layout.k, values, scale, layout.own, layout.boxes
    _shared(blocks, lambda some, _: near.sums(*rows, some, QUERIES_IN_BOX, layout.slack, *found))


def _gradients(
    layout: _Layout,
    work: torch.dtype,
    wide: NDArray[np.int64],
    found: tuple[Any, ...],
    dvalue: NDArray[Any],
    dlog: NDArray[Any],
) -> tuple[NDArray[np.float64], ...]:
    """Gradients to scaled rows, values and log w, sorted; those of keys are summed in a copy for each thread."""
    from ..compiled import near_gradients

    ref, total, value = found
    shift = dlog - (dvalue * (value - layout.middle)).sum(-1)
    shapes = layout.k.shape, layout.values.shape, (1, layout.k.shape[1])
    dq, summed = np.zeros(layout.q.shape), [np.zeros(shape) for shape in shapes]
    for dtype, blocks in ((work, np.setdiff1d(layout.blocks(), wide)), (torch.float64, wide)):
        if not len(blocks):
            continue
        values, scale = _arithmetic(layout, dtype)
        rows = layout.kind, layout.q, layout.k, values, scale, layout.own, layout.boxes
        seeds = dvalue.astype(values.dtype), shift.astype(values.dtype)
        parts = [[np.zeros(shape) for shape in shapes] for _ in range(torch.get_num_threads())]

        def run(some: NDArray[np.int64], thread: int, rows: Any = rows, seeds: Any = seeds, parts: Any = parts) -> None:
            given = *rows, some, QUERIES_IN_BOX, layout.slack, ref, total, *seeds, dq, *parts[thread]
            near_gradients.gradients(*given)

        _shared(blocks, run)
        for part in parts:
            for whole, mine in zip(summed, part, strict=True):
                whole += mine
    dk, dv, dlogs = summed
    return dq * layout.unit, dk * layout.unit, dv, dlogs


def _second(
    original: Problem, tensors: tuple[Any, ...], log: Tensor, dvalue: Tensor, dlog: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients with a graph, by the fold over all pairs."""
    q, k, v, w = tensors
    compact = KINDS.index(type(original.score)) >= BOXCAR
    own = excluded_rows(original)
    problem = Problem.plain(
        type(original.score)(1.0),  # type: ignore[call-arg]
        Normalized() if compact else Softmax(),
        q[None],
        k[None],
        v[None],
        key_weights=None if w is None else w[None, None],
        exclude=None if own is None else own[..., None],
    )
    inputs, layouts = problem.inputs()
    total = log[None]
    ref = torch.zeros_like(total) if compact else total
    done = Done(dvalue[None], total == -torch.inf, ref.to(q.dtype), total if compact else torch.zeros_like(total))
    wanted = [x.requires_grad for x in inputs]
    grads = [
        None if g is None else g[0]
        for g in second_gradients(problem, inputs, layouts, wanted, done, dvalue[None], dlog[None])
    ]
    return (*grads[:3], None if w is None or grads[3] is None else grads[3][0])
