"""The one equation of the estimators, for new rows and for rows that leave themselves out.

    pooled(x) = Σ_i α(x, x_i) v_i

Over the r nearest rows only, v_i may depend on the query too: what a case votes for is then moved by its difference
from the query (`pool_neighbours`).

A row of weight w stands for w equal rows. Leaving itself out, it takes one of them away and keeps w − 1, whose score is
0: with Z the sum over all others, the share of the copies is s = (w − 1) / (Z + w − 1), and the answer is
(1 − s) · pooled + s · v. Rows of a group leave out the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding  # gathers rows; unlike an index, its gradients are the same each time

from ..answer import Top
from ..attention import attend
from ..scores.base import Score
from ..scores.distance import Gaussian
from ..weightings.selecting import TopK

GATHERED = 1024  # queries whose nearest rows are gathered at once
NEAR = Gaussian(1.0)  # orders rows as every function of their distance does, and takes no root


@dataclass(frozen=True, eq=False)
class Memory:
    """Embedded rows that vote: ``keys`` (..., m, d), ``weights`` (m,) ≥ 0, ``groups`` (m,) int64 or None."""

    keys: Tensor
    weights: Tensor
    groups: Tensor | None = None

    @cached_property
    def weighted(self) -> bool:
        """Whether some row stands for more or fewer than one."""
        return bool((self.weights != 1).any())


@dataclass(frozen=True, eq=False)
class Pooled:
    """``value`` (n, w); ``log_normalizer`` (n,), −∞ where no row may vote; ``top`` rows where they were asked for."""

    value: Tensor
    log_normalizer: Tensor
    empty: Tensor
    top: Top | None = None

    @staticmethod
    def joined(parts: Sequence[Pooled]) -> Pooled:
        """One after another."""
        value, log, empty = (torch.cat([getattr(p, x) for p in parts]) for x in ("value", "log_normalizer", "empty"))
        tops = [p.top for p in parts if p.top is not None]
        return Pooled(value, log, empty, Top(*map(torch.cat, zip(*tops, strict=True))) if tops else None)


def pool(
    score: Score, queries: Tensor, memory: Memory, values: Tensor, *, own: Tensor | None = None, top: int = 0
) -> Pooled:
    """Pool ``values`` (m, w) for ``queries`` (n, d), in the dtype of the embedded rows.

    Queries and keys may have a batch axis in front. ``own`` (n,): the position of each query among the rows, which it
    leaves out (−1: it is a new row).
    Cost: n·m scores, memory O(block).
    """
    own = None if own is None else own.to(queries.device)
    values = values.to(queries.dtype)
    answer = attend(
        queries,
        memory.keys,
        values,
        score=score,
        key_weights=memory.weights.to(queries.dtype) if memory.weighted else None,
        top=top,
        **_left_out(memory, own),
    )
    found = Pooled(answer.value, answer.log_normalizer, answer.empty, answer.top)
    return _with_own_copies(found, memory, values, own)


def pool_neighbours(
    score: Score,
    queries: Tensor,
    memory: Memory,
    values: Tensor,
    moved: Callable[[Tensor, Tensor], Tensor],
    *,
    neighbours: int,
    own: Tensor | None = None,
) -> Pooled:
    """Pool ``values`` (m, w), and behind them ``moved(queries, keys)`` (n, r, v), over the r nearest rows (n, w + v).

    The nearest rows are those of the least ‖q − k‖, which ``score`` has to order as a Gaussian does; of equally near
    ones the first, so equal rows should come in random order (`places.py` lets them vote together).
    ``moved``: what each of the r = ``neighbours`` rows adds to its vote for the query, given queries (n, 1, d) and
    their rows (n, r, d); nothing for a row that equals the query. The weights of the r rows sum to 1.
    ``own`` as in `pool`. Gradients reach queries, keys, values and ``moved``.
    Cost: n·m scores to find the rows, without gradients; then n·r, memory O(`GATHERED` · r · d).
    """
    own = None if own is None else own.to(queries.device)
    values = values.to(queries.dtype)
    positions = nearest_rows(queries, memory.keys, min(neighbours, len(memory.keys)), _left_out(memory, own))
    found = []
    for some, at in zip(queries.split(GATHERED), positions.split(GATHERED), strict=True):
        rows = at.clamp(min=0)
        weights = memory.weights[rows] if memory.weighted else None
        found.append(pool_gathered(score, some, memory.keys, at, embedding(rows, values), weights, moved))
    pooled = Pooled.joined(found)
    nothing = values.new_zeros(len(values), pooled.value.shape[1] - values.shape[1])
    return _with_own_copies(pooled, memory, torch.cat([values, nothing], 1), own)


@torch.no_grad()
def nearest_rows(queries: Tensor, keys: Tensor, r: int, left_out: dict[str, Any]) -> Tensor:
    """Positions (n, r) of the nearest keys, −1 where there are fewer; ``left_out``: options of `attend`."""
    nothing = keys.new_zeros(len(keys), 0)
    nearest = attend(queries, keys, nothing, score=NEAR, weighting=TopK(r), top=r, **left_out)
    assert nearest.top is not None
    return nearest.top.positions


def pool_gathered(
    score: Score,
    queries: Tensor,
    keys: Tensor,
    positions: Tensor,
    values: Tensor,
    weights: Tensor | None,
    moved: Callable[[Tensor, Tensor], Tensor],
    top: int = 0,
) -> Pooled:
    """Pool the keys at positions (n, r), −1: none, with values (n, r, w) and weights (n, r) of each query's own."""
    near, asked = embedding(positions.clamp(min=0), keys), queries[:, None]
    answer = attend(
        asked,
        near,
        torch.cat([values, moved(asked, near)], -1),
        score=score,
        key_weights=None if weights is None else weights.to(queries.dtype),
        where=(positions >= 0)[:, None],
        top=top,
    )
    best = None
    if answer.top is not None:
        among = answer.top.positions[:, 0]
        rows = torch.where(among >= 0, positions.gather(1, among.clamp(min=0)), -1)
        best = Top(rows, answer.top.weights[:, 0], answer.top.captured[:, 0])
    return Pooled(answer.value[:, 0], answer.log_normalizer[:, 0], answer.empty[:, 0], best)


def _left_out(memory: Memory, own: Tensor | None) -> dict[str, Any]:
    """The options of `attend` by which rows leave themselves out, or their group."""
    if own is None:
        return {}
    groups = memory.groups
    if groups is None:
        return {"exclude": own}
    mine = torch.where(own >= 0, groups[own.clamp(min=0)], torch.iinfo(torch.int64).min)
    return {"where": lambda q, k: mine[q] != groups[k]}


def _with_own_copies(pooled: Pooled, memory: Memory, values: Tensor, own: Tensor | None) -> Pooled:
    """With the copies of each row that leaves itself out, where it stands for more than one."""
    if own is None or memory.groups is not None or not memory.weighted:
        return pooled
    copies = torch.where(own >= 0, memory.weights[own.clamp(min=0)] - 1, 0.0)
    if not bool((copies > 0).any()):
        return pooled
    own_values = values[own.clamp(min=0)]
    value, log, empty = with_copies(pooled.value, pooled.log_normalizer, own_values, copies.clamp(min=0.0))
    return replace(pooled, value=value, log_normalizer=log, empty=empty)


def with_copies(value: Tensor, log: Tensor, own_value: Tensor, copies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The answer with so many copies of the row itself, each of kernel 1, that is of score 0."""
    has = copies > 0
    extra = torch.where(has, copies, 1.0).log().to(log.dtype)
    alone = torch.isneginf(log.detach())
    share = torch.where(has, torch.where(alone, 1.0, torch.sigmoid(extra - torch.where(alone, 0.0, log))), 0.0)
    value = value + share[..., None] * (own_value - value)
    total = torch.where(has, torch.logaddexp(torch.where(alone, -1e30, log), extra), log)
    return value, total, torch.isneginf(total.detach())
