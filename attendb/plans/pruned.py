"""Plan "pruned": softmax of a Gaussian over few columns, without the pairs that cannot matter.

Queries and keys are sorted into small boxes. For a box of queries, boxes of keys are skipped from the farthest inwards
as long as all that is skipped weighs less than the rounding of the answer: an upper bound of their sum (rows × the
kernel at the least distance of the boxes) against a lower bound of every query's sum (the rows of one near box). The
result is exact to rounding. What is left is one flash attention a box of queries, centred on that box, so that
float32 keeps its digits although the table is a hundred bandwidths wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..scores.distance import Gaussian
from ..weightings.base import Done
from ..weightings.softmax import Softmax
from . import flash
from .cells import Problem
from .fused import log_weights, refuses_flash
from .higher import second_gradients
from .precision import own_precision
from .solution import Solution, Unserved

KEYS_IN_BOX = 128
QUERIES_IN_BOX = 64
BOXES_AT_ONCE = 64  # boxes of queries whose distances to all boxes of keys are held at once
MOST_COLUMNS = 4
FEWEST_PAIRS = 1 << 22
ROUNDING = 1e-5  # of a score, from eps · (radius of a box of queries)²: above it a box is done in float64


@dataclass(frozen=True, eq=False)
class _Boxes:
    """Rows sorted into boxes: the order, the rows by column (d, m), and the corners (boxes, d) of each run."""

    order: Tensor
    columns: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def sort(x: Tensor, size: int) -> _Boxes:
        order = box_order(x, size)
        columns = x[order].T.contiguous()
        runs = torch.cat([columns, columns[:, -1:].expand(-1, -columns.shape[1] % size)], 1).view(
            len(columns), -1, size
        )
        return _Boxes(order, columns, runs.amin(-1).T, runs.amax(-1).T)


@dataclass(frozen=True, eq=False)
class _Tile:
    """A run of sorted queries of one box, and the dtype that keeps their digits."""

    box: int
    queries: slice
    centre: Tensor  # (d, 1)
    dtype: torch.dtype

    @property
    def effort(self) -> float:
        """Queries, those in float64 counted 2.5 times."""
        return (self.queries.stop - self.queries.start) * (1.0 if self.dtype == torch.float32 else 2.5)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Everything about a pruned problem that carries no gradient."""

    queries: _Boxes
    keys: _Boxes
    near: list[Tensor]  # for each box of queries, the boxes of keys that matter
    exclude: Tensor | None  # (n,) positions, in sorted order
    positions: Tensor  # (m,) in sorted order
    tiles: list[_Tile]
    pairs: float

    def rows(self, box: int) -> Tensor:
        """The sorted rows of the keys that matter to a box of queries."""
        size = torch.arange(KEYS_IN_BOX, device=self.positions.device)
        rows = (self.near[box][:, None] * KEYS_IN_BOX + size).reshape(-1)
        return rows[: int((rows < len(self.positions)).sum())]  # only the last box can be short

    def mask(self, tile: _Tile, rows: Tensor) -> Tensor | None:
        if self.exclude is None:
            return None
        own = self.exclude[tile.queries, None] == self.positions[rows]
        return torch.zeros(own.shape, dtype=tile.dtype, device=own.device).masked_fill_(own, -torch.inf)[None]


class Pruned:
    """Plan "pruned" (see the top of this file)."""

    name = "pruned"

    def __init__(self, problem: Problem):
        self.problem = problem
        self._found: _Layout | None = None

    def refusal(self) -> str | None:
        problem = self.problem
        if type(problem.score) is not Gaussian:
            return f"{type(problem.score).__name__} is not Gaussian"
        reason = refuses_flash(problem)
        if reason is not None:
            return reason
        if problem.top:
            return "top= needs the scores, which flash attention does not return"
        if problem.queries.shape[-1] > MOST_COLUMNS or not problem.queries.shape[-1]:  # type: ignore[union-attr]
            return f"boxes of more than {MOST_COLUMNS} columns overlap too much to skip any"
        if problem.batch > 1:
            return "several batch entries"
        if problem.where is not None or problem.bias is not None:
            return "where= or bias= between single queries and keys"
        w = problem.key_weights
        if w is not None and w.requires_grad and float(w.detach().amax()) > 1e6 * float(w.detach().amin()):
            return "gradients to key_weights that differ by more than a million"
        if problem.n * problem.m < FEWEST_PAIRS:
            return f"fewer than {FEWEST_PAIRS} pairs are faster done all"
        if not all(torch.isfinite(x.detach()).all() for x in (problem.queries, problem.keys)):  # type: ignore[arg-type]
            return "a query or a key is NaN or infinite"
        return None

    def cost(self) -> float:
        problem, layout = self.problem, self._layout()
        masked = 1.6 if problem.exclude is not None else 1.0
        return 5e-3 + 3e-7 * (problem.n + problem.m) + layout.pairs * masked * 1.3e-9

    def _scaled(self) -> tuple[Tensor, Tensor]:
        """Queries and keys divided by the root of the temperature: it then has no further part to play."""
        q, k = self.problem.queries, self.problem.keys
        assert isinstance(q, Tensor) and isinstance(k, Tensor)
        root = self.problem.weighting.temper(torch.ones((), dtype=torch.float64, device=q.device)).sqrt()
        return (q[0].double() * root).to(q.dtype), (k[0].double() * root).to(k.dtype)

    def _layout(self) -> _Layout:
        if self._found is None:
            problem = self.problem
            with torch.no_grad():
                q, k = (x.double() for x in self._scaled())
                queries, keys = _Boxes.sort(q, QUERIES_IN_BOX), _Boxes.sort(k, KEYS_IN_BOX)
                exclude = problem.exclude
                if exclude is not None:
                    exclude = exclude[0, :, 0].expand(problem.n)[queries.order]
                logs = None if problem.key_weights is None else log_weights(problem)[0, keys.order, 0].double()
                positions = problem.positions[keys.order]
                near = _near(queries, keys, logs, exclude, positions, torch.finfo(problem.result_dtype).eps)
            narrow = torch.float32 if problem.result_dtype == torch.float32 else problem.dtype
            tiles = [tile for box in range(len(near)) for tile in _tiles_of_box(queries.columns, box, narrow)]
            pairs = sum(
                len(near[t.box])
                * KEYS_IN_BOX
                * (t.queries.stop - t.queries.start)
                * (1 if t.dtype == torch.float32 else 2.5)
                for t in tiles
            )
            self._found = _Layout(queries, keys, near, exclude, positions, tiles, pairs)
        return self._found

    def solve(self) -> Solution:
        problem, layout = self.problem, self._layout()
        q, k = self._scaled()
        assert isinstance(problem.values, Tensor)
        logs = None if problem.key_weights is None else log_weights(problem)[0, :, 0]
        value, total = _PrunedSoftmax.apply(layout, q, k, problem.values[0], logs)  # type: ignore[misc]
        if value.isnan().any() or total.isnan().any():
            raise Unserved("a value is NaN or infinite")
        return Solution(value[None], total.detach()[None] == -torch.inf, total[None])


class _PrunedSoftmax(torch.autograd.Function):
    """(Σ α v (n, v), log Σ w exp a (n,)) for a = −½‖q − k‖²; memory O(box) beyond the results, in both directions."""

    @staticmethod
    def forward(
        ctx: Any, layout: _Layout, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, totals, offsets = [], [], []
        for tile, rows, (phi, psi, near_values) in _scored(layout, v, logs):
            value, total = flash.forward(phi, psi, near_values, layout.mask(tile, rows))
            values.append(value[0].to(v.dtype))
            totals.append(total[0].double())
            offsets.append(phi[0, :, :-1].double().square().sum(-1).mul(-0.5))
        value, total = torch.cat(values), torch.cat(totals)
        back = layout.queries.order.argsort()
        full = (total + torch.cat(offsets))[back].to(v.dtype)
        ctx.layout = layout
        ctx.save_for_backward(q, k, v, logs, value, total, full)
        ctx.set_materialize_grads(False)
        return value[back].to(v.dtype), full.clone()

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dtotal: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        layout: _Layout = ctx.layout
        q, k, v, logs, value, total, full = ctx.saved_tensors
        if dvalue is None:
            dvalue = torch.zeros(len(q), v.shape[-1], dtype=v.dtype, device=v.device)
        empty = full == -torch.inf
        dvalue = torch.where(empty[:, None], 0.0, dvalue)
        dtotal = torch.zeros_like(dvalue[:, 0]) if dtotal is None else torch.where(empty, 0.0, dtotal)
        if torch.is_grad_enabled():
            return (None, *_second(layout, (q, k, v, logs), full, dvalue, dtotal))
        d = q.shape[-1]
        dvalue, dtotal = (x[layout.queries.order] for x in (dvalue, dtotal))
        dq = torch.empty_like(q)
        dk, dv, dlogs = torch.zeros_like(k), torch.zeros_like(v), k.new_zeros(len(k))
        for tile, rows, (phi, psi, near_values) in _scored(layout, v, logs):
            mine = tile.queries
            seeds = dvalue[mine].to(tile.dtype)[None], dtotal[mine].to(tile.dtype)[None]
            held = value[mine].to(tile.dtype)[None], total[mine].to(tile.dtype)[None]
            dphi, dpsi, dnear = flash.backward(phi, psi, near_values, layout.mask(tile, rows), *held, *seeds)
            dq[mine] = (dphi[0, :, :d] - phi[0, :, :d] * seeds[1][0, :, None]).to(q.dtype)
            half = dpsi[0, :, d:]
            dk.index_add_(0, rows, (dpsi[0, :, :d] - psi[0, :, :d] * half).to(k.dtype))
            dlogs.index_add_(0, rows, half[:, 0].to(k.dtype))
            dv.index_add_(0, rows, dnear[0].to(v.dtype))
        back, key_back = layout.queries.order.argsort(), layout.keys.order.argsort()
        return None, dq[back], dk[key_back], dv[key_back], None if logs is None else dlogs[key_back].to(logs.dtype)


def _tiles_of_box(columns: Tensor, box: int, narrow: torch.dtype) -> list[_Tile]:
    """One tile, centred on the median, in float64 when it is wide; every query alone when even that loses digits."""
    start = box * QUERIES_IN_BOX
    queries = slice(start, min(start + QUERIES_IN_BOX, columns.shape[1]))
    mine = columns[:, queries]
    centre = mine.median(1, keepdim=True).values
    radius2 = float((mine - centre).square().sum(0).amax())
    if radius2 * torch.finfo(narrow).eps <= ROUNDING:
        return [_Tile(box, queries, centre, narrow)]
    if radius2 * torch.finfo(torch.float64).eps <= 1e-12:
        return [_Tile(box, queries, centre, torch.float64)]
    return [
        _Tile(box, slice(i, i + 1), columns[:, i : i + 1], torch.float64) for i in range(queries.start, queries.stop)
    ]


def _scored(layout: _Layout, v: Tensor, logs: Tensor | None) -> Any:
    """(tile, rows, (φ, ψ, values)) of each tile of queries: φ = (q − c, 1), ψ = (k − c, −½‖k − c‖² + log w)."""
    v = v[layout.keys.order]
    cast = {tile.dtype: v.to(tile.dtype) for tile in layout.tiles}
    logs = None if logs is None else logs[layout.keys.order].double()
    for tile in layout.tiles:
        rows = layout.rows(tile.box)
        q = (layout.queries.columns[:, tile.queries] - tile.centre).to(tile.dtype)
        k = (layout.keys.columns[:, rows] - tile.centre).to(tile.dtype)
        half = k.square().sum(0, keepdim=True).mul_(-0.5)
        if logs is not None:
            half += logs[rows]
        phi = torch.cat([q, torch.ones_like(q[:1])]).T[None]
        yield tile, rows, (phi, torch.cat([k, half]).T[None], cast[tile.dtype][rows][None])


def _second(
    layout: _Layout, tensors: tuple[Any, ...], total: Tensor, dvalue: Tensor, dtotal: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients with a graph, by the fold over all pairs."""
    q, k, v, logs = tensors
    weights = None if logs is None else logs.exp()[None, None]
    problem = Problem.plain(Gaussian(1.0), Softmax(), q[None], k[None], v[None], key_weights=weights)
    if layout.exclude is not None:
        back = layout.queries.order.argsort()
        own = layout.positions.sort().values
        rows = torch.searchsorted(own, layout.exclude[back].clamp(min=0)).masked_fill(layout.exclude[back] < 0, -1)
        problem = replace(problem, exclude=rows[None, :, None])
    inputs, layouts = problem.inputs()
    lse = total[None]
    done = Done(dvalue[None], lse == -torch.inf, lse.to(q.dtype), torch.zeros_like(lse, dtype=torch.float64))
    wanted = [x.requires_grad for x in inputs]
    grads = iter(second_gradients(problem, inputs, layouts, wanted, done, dvalue[None], dtotal[None]))
    found = [None if g is None else g[0] for g in grads]
    dlogs = None
    if logs is not None and found[3] is not None:
        dlogs = (found[3] * weights[0])[0]  # type: ignore[index]
    return found[0], found[1], found[2], dlogs


def box_order(x: Float[Tensor, "m d"], size: int) -> Int64[Tensor, " m"]:
    """An order of the rows (m, d) in which every run of ``size`` rows lies in a small box.

    Sort-tile-recursive packing: sort by the first column, cut into slabs, sort each slab by the next column, and so on.
    Source: Leutenegger, Lopez and Edgington 1997.
    """
    m, d = x.shape
    boxes = max(1, -(-m // size))
    cuts = max(1, math.ceil(boxes ** (1 / d)))
    columns = x.std(0, correction=0).argsort(descending=True)
    order = torch.arange(m, device=x.device)
    slab = torch.zeros(m, dtype=torch.int64, device=x.device)
    for level, column in enumerate(columns, start=1):
        order = order[x[order, column].argsort(stable=True)]
        order = order[slab[order].argsort(stable=True)]
        slab[order] = torch.arange(m, device=x.device) // (size * cuts ** (d - level))
    return order


def _near(
    queries: _Boxes, keys: _Boxes, logs: Tensor | None, exclude: Tensor | None, positions: Tensor, eps: float
) -> list[Tensor]:
    """For each box of queries the boxes of keys that are not skipped, ascending."""
    m = keys.columns.shape[1]
    heaviest = 0.0 if logs is None else float(logs.max())
    crowd = math.log(KEYS_IN_BOX) + heaviest
    small = math.log(0.05 * eps)  # all that is skipped weighs less than 0.05 eps of any query's sum
    found: list[Tensor] = []
    for start in range(0, len(queries.low), BOXES_AT_ONCE):
        low, high = queries.low[start : start + BOXES_AT_ONCE], queries.high[start : start + BOXES_AT_ONCE]
        apart = torch.zeros(len(low), len(keys.low), dtype=low.dtype, device=low.device)
        middle = torch.zeros_like(apart)
        for c in range(low.shape[1]):
            gap = torch.maximum(keys.low[:, c] - high[:, None, c], low[:, None, c] - keys.high[:, c]).clamp_(min=0)
            apart.addcmul_(gap, gap)
            between = (keys.low[:, c] + keys.high[:, c] - low[:, None, c] - high[:, None, c]) / 2
            middle.addcmul_(between, between)
        surest = _surest(queries, keys, logs, exclude, positions, start, middle.argmin(1), m)
        bound = crowd - apart / 2
        far_first = bound.sort(1)
        skipped = torch.logcumsumexp(far_first.values, 1) <= (small + surest)[:, None]
        keep = torch.ones_like(skipped).scatter(1, far_first.indices, ~skipped)
        found += [row.nonzero()[:, 0] for row in keep]
    return found


def _surest(
    queries: _Boxes,
    keys: _Boxes,
    logs: Tensor | None,
    exclude: Tensor | None,
    positions: Tensor,
    start: int,
    nearest: Tensor,
    m: int,
) -> Tensor:
    """A lower bound of every query's log-sum, a box: the least over its queries of the sum of one near box."""
    n, d = queries.columns.shape[1], len(queries.columns)
    boxes = len(nearest)
    mine = (torch.arange(start, start + boxes, device=nearest.device)[:, None] * QUERIES_IN_BOX) + torch.arange(
        QUERIES_IN_BOX, device=nearest.device
    )
    mine = mine.clamp(max=n - 1)
    rows = nearest[:, None] * KEYS_IN_BOX + torch.arange(KEYS_IN_BOX, device=nearest.device)
    real, rows = rows < m, rows.clamp(max=m - 1)
    scores = torch.zeros(boxes, QUERIES_IN_BOX, KEYS_IN_BOX, dtype=queries.columns.dtype, device=nearest.device)
    for c in range(d):
        gap = queries.columns[c][mine][:, :, None] - keys.columns[c][rows][:, None, :]
        scores.addcmul_(gap, gap, value=-0.5)
    if logs is not None:
        scores += logs[rows][:, None, :]
    absent = ~real[:, None, :]
    if exclude is not None:
        absent = absent | (exclude[mine][:, :, None] == positions[rows][:, None, :])
    return scores.masked_fill_(absent, -torch.inf).logsumexp(-1).amin(1)
