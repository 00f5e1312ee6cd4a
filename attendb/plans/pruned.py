"""Plan "pruned": softmax of a Gaussian over few columns, without the pairs that cannot matter.

Queries and keys are sorted into small boxes. A box of keys is skipped for a box of queries when its best possible
score lies so far below the worst possible best score that everything skipped weighs less than the rounding of the
answer: the result is exact to rounding. What is left is one flash attention a box of queries, centred on that box,
so that float32 keeps its digits although the table is a hundred bandwidths wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..scores.distance import Gaussian
from .cells import Problem
from .flash import flash_softmax
from .fused import log_weights, refuses_flash
from .solution import Solution, Unserved

KEYS_IN_BOX = 256
QUERIES_IN_BOX = 256
MOST_COLUMNS = 4
FEWEST_PAIRS = 1 << 22


class Pruned:
    """Plan "pruned" (see the top of this file)."""

    name = "pruned"

    def __init__(self, problem: Problem):
        self.problem = problem
        self._boxes: tuple[Tensor, Tensor, Tensor] | None = None

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
            return "where= and bias= between single queries and keys"
        if problem.n * problem.m < FEWEST_PAIRS:
            return f"fewer than {FEWEST_PAIRS} pairs are faster done all"
        if not all(torch.isfinite(x.detach()).all() for x in (problem.queries, problem.keys)):  # type: ignore[arg-type]
            return "a query or a key is NaN or infinite"
        return None

    def cost(self) -> float:
        _, _, near = self._sorted()
        problem = self.problem
        share = float(near.double().mean())
        masked = 1.6 if problem.exclude is not None else 1.0
        return 5e-3 + 3e-7 * (problem.n + problem.m) + share * problem.n * problem.m * masked * 1.6e-9

    def _sorted(self) -> tuple[Tensor, Tensor, Tensor]:
        """(order of the queries, order of the keys, which boxes of keys matter to which boxes of queries)."""
        if self._boxes is None:
            problem = self.problem
            k = problem.keys.detach()[0].double()  # type: ignore[union-attr]
            temperature = problem.weighting.temper(torch.ones((), dtype=torch.float64))
            q = problem.queries.detach()[0].double()  # type: ignore[union-attr]
            q_order, k_order = box_order(q, QUERIES_IN_BOX), box_order(k, KEYS_IN_BOX)
            near = _near(_boxes(q[q_order], QUERIES_IN_BOX), _boxes(k[k_order], KEYS_IN_BOX), temperature, problem)
            self._boxes = q_order, k_order, near
        return self._boxes

    def solve(self) -> Solution:
        problem = self.problem
        q_order, k_order, near = self._sorted()
        q, k, v = problem.queries[0, q_order], problem.keys[0, k_order], problem.values[0, k_order]  # type: ignore[index]
        positions = problem.positions[k_order]
        logs = None if problem.key_weights is None else log_weights(problem)[0, k_order]
        exclude = None
        if problem.exclude is not None:
            exclude = problem.exclude.expand(1, problem.n, 1)[0, q_order]
        values, totals = [], []
        narrow = problem.result_dtype if problem.result_dtype == torch.float32 else problem.dtype
        starts = torch.arange(0, problem.m, KEYS_IN_BOX, device=k.device)
        for box, start in enumerate(range(0, problem.n, QUERIES_IN_BOX)):
            mine = q[start : start + QUERIES_IN_BOX]
            rows = (starts[near[box]][:, None] + torch.arange(KEYS_IN_BOX, device=k.device)).reshape(-1)
            rows = rows[rows < problem.m]
            mask = None
            if exclude is not None:
                own = exclude[start : start + QUERIES_IN_BOX] == positions[rows]
                mask = torch.zeros(own.shape, dtype=narrow, device=k.device).masked_fill_(own, -torch.inf)[None]
            if torch.is_grad_enabled():  # memory stays O(box): its rows are gathered again in backward
                parts = checkpoint(_attend_box, problem, mine, k, v, logs, rows, mask, narrow, use_reentrant=False)
            else:
                parts = _attend_box(problem, mine, k, v, logs, rows, mask, narrow)
            values.append(parts[0])
            totals.append(parts[1])
        back = q_order.argsort()
        value, total = torch.cat(values)[back][None], torch.cat(totals)[back][None]
        if value.isnan().any() or total.isnan().any():
            raise Unserved("a value is NaN or infinite")
        empty = total.detach() == -torch.inf
        if empty.any():
            # the nearest row may be the excluded one: what is left could lie in a skipped box
            raise Unserved("a query has all its near rows excluded")
        return Solution(value.to(problem.dtype), empty, total.to(problem.dtype))


def _attend_box(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    rows: Tensor,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(value, log-normaliser in float64) of one box of queries against the rows that matter to it."""
    k, v = k[rows], v[rows]
    centre = q.detach().mean(0)
    q, k = q - centre, k - centre
    offset = problem.weighting.temper(q.square().sum(-1).mul(-0.5)).double()
    phi = torch.cat([q, torch.ones_like(q[:, :1])], -1)
    half = k.square().sum(-1, keepdim=True).mul(-0.5)
    phi = problem.weighting.temper(phi)
    if logs is not None:
        phi, half = torch.cat([phi, torch.ones_like(q[:, :1])], -1), torch.cat([half, logs[rows]], -1)
    psi = torch.cat([k, half], -1)
    value, total = flash_softmax(phi.to(dtype)[None], psi.to(dtype)[None], v.to(dtype)[None], mask)
    return value[0], total[0].double() + offset


def box_order(x: Tensor, size: int) -> Tensor:
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


def _boxes(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Lowest and highest corners (boxes, d) of runs of ``size`` rows."""
    short = -len(x) % size
    padded = torch.cat([x, x[-1:].expand(short, -1)]).view(-1, size, x.shape[-1])
    return padded.amin(1), padded.amax(1)


def _near(q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], temperature: Tensor, problem: Problem) -> Tensor:
    """Which boxes of keys (columns) can hold more than rounding for a box of queries (rows)."""
    lowest, weights = 1.0, problem.key_weights
    if weights is not None:
        lowest = float(weights.detach().amin() / weights.detach().amax())
    eps = torch.finfo(problem.result_dtype).eps
    margin = math.log(problem.m / (0.05 * eps * lowest))  # all that is skipped weighs less than 0.05 eps
    near = [_closer(low, high, k, margin / float(0.5 * temperature), problem) for low, high in _runs(q)]
    return torch.cat(near)


def _runs(corners: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(corners[0]), 256):
        yield corners[0][start : start + 256, None], corners[1][start : start + 256, None]


def _closer(low: Tensor, high: Tensor, k: tuple[Tensor, Tensor], margin: float, problem: Problem) -> Tensor:
    """Where the least squared distance of two boxes is within ``margin`` of the surest largest one."""
    apart = torch.maximum(k[0] - high, low - k[1]).clamp(min=0).square().sum(-1)
    reach = torch.maximum(k[1] - low, high - k[0]).square().sum(-1)
    if problem.exclude is not None and reach.shape[1] > 1:
        sure = reach.kthvalue(2, dim=1, keepdim=True).values  # the nearest box may be one row, and that one excluded
    else:
        sure = reach.amin(1, keepdim=True)
    return apart <= sure + margin
