"""The one equation of the estimators, for new rows and for rows that leave themselves out.

    pooled(x) = Σ_i α(x, x_i) v_i

Over the r nearest rows only, v_i may depend on the query too: what a case votes for is then moved by its difference
from the query (`pool_neighbours`).

A row of weight w stands for w equal rows. Leaving itself out, it takes one of them away and keeps w − 1, whose score is
0: with Z the sum over all others, the share of the copies is s = (w − 1) / (Z + w − 1), and the answer is
(1 − s) · pooled + s · v. Rows of a group leave out the whole group.
"""

from __future__ import annotations

from collections.abc import Callable
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
    top: int = 0,
) -> Pooled:
    """Pool ``values`` (m, w), and behind them ``moved(queries, keys)`` (n, r, v), over the r nearest rows (n, w + v).

    The nearest rows are those of the least ‖q − k‖, which ``score`` has to order as a Gaussian does.
    ``moved``: what each of the r = ``neighbours`` rows adds to its vote for the query, given queries (n, 1, d) and
    their rows (n, r, d); nothing for a row that equals the query. The weights of the r rows sum to 1.
    ``own``, ``top`` as in `pool`. Gradients reach queries, keys, values and ``moved``.
    Cost: n·m scores to find the rows, without gradients; then n·r, memory O(`GATHERED` · r · d).
    """
    own = None if own is None else own.to(queries.device)
    values = values.to(queries.dtype)
    r = min(neighbours, len(memory.keys))
    with torch.no_grad():
        nothing = values.new_zeros(len(values), 0)
        nearest = attend(queries, memory.keys, nothing, score=NEAR, weighting=TopK(r), top=r, **_left_out(memory, own))
    assert nearest.top is not None
    pieces = zip(queries.split(GATHERED), nearest.top.positions.split(GATHERED), strict=True)
    found = [_pool_rows(score, some, memory, values, moved, positions, top) for some, positions in pieces]
    parts = ((one.value, one.log_normalizer, one.empty) for one in found)
    value, log, empty = (torch.cat(part) for part in zip(*parts, strict=True))
    tops = [one.top for one in found if one.top is not None]
    best = Top(*(torch.cat(part) for part in zip(*tops, strict=True))) if tops else None
    pooled = Pooled(value, log, empty, best)
    nothing = value.new_zeros(len(values), value.shape[1] - values.shape[1])
    return _with_own_copies(pooled, memory, torch.cat([values, nothing], 1), own)


def _pool_rows(
    score: Score,
    queries: Tensor,
    memory: Memory,
    values: Tensor,
    moved: Callable[[Tensor, Tensor], Tensor],
    positions: Tensor,
    top: int,
) -> Pooled:
    """The same over the rows at positions (n, r), −1: none."""
    at = positions.clamp(min=0)
    keys, asked = embedding(at, memory.keys), queries[:, None]
    answer = attend(
        asked,
        keys,
        torch.cat([embedding(at, values), moved(asked, keys)], -1),
        score=score,
        key_weights=memory.weights.to(queries.dtype)[at] if memory.weighted else None,
        where=(positions >= 0)[:, None],
        top=min(top, positions.shape[1]),
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
