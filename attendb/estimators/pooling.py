"""The one equation of the estimators, for new rows and for rows that leave themselves out.

    pooled(x) = Σ_i α(x, x_i) v_i

A row of weight w stands for w equal rows. Leaving itself out, it takes one of them away and keeps w − 1, whose score is
0: with Z the sum over all others, the share of the copies is s = (w − 1) / (Z + w − 1), and the answer is
(1 − s) · pooled + s · v. Rows of a group leave out the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..answer import Top
from ..attention import attend
from ..scores.base import Score


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
    groups, where = memory.groups, None
    own = None if own is None else own.to(queries.device)
    if own is not None and groups is not None:
        mine = torch.where(own >= 0, groups[own.clamp(min=0)], torch.iinfo(torch.int64).min)
        where = lambda q, k: mine[q] != groups[k]  # noqa: E731
    leaves_itself = own is not None and groups is None
    values = values.to(queries.dtype)
    answer = attend(
        queries,
        memory.keys,
        values,
        score=score,
        key_weights=memory.weights.to(queries.dtype) if memory.weighted else None,
        exclude=own if leaves_itself else None,
        where=where,
        top=top,
    )
    value, log, empty = answer.value, answer.log_normalizer, answer.empty
    if leaves_itself and memory.weighted:
        assert own is not None
        copies = torch.where(own >= 0, memory.weights[own.clamp(min=0)] - 1, 0.0)
        if bool((copies > 0).any()):
            value, log, empty = with_copies(value, log, values[own.clamp(min=0)], copies.clamp(min=0.0))
    return Pooled(value, log, empty, answer.top)


def with_copies(value: Tensor, log: Tensor, own_value: Tensor, copies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The answer with so many copies of the row itself, each of kernel 1, that is of score 0."""
    has = copies > 0
    extra = torch.where(has, copies, 1.0).log().to(log.dtype)
    alone = torch.isneginf(log.detach())
    share = torch.where(has, torch.where(alone, 1.0, torch.sigmoid(extra - torch.where(alone, 0.0, log))), 0.0)
    value = value + share[..., None] * (own_value - value)
    total = torch.where(has, torch.logaddexp(torch.where(alone, -1e30, log), extra), log)
    return value, total, torch.isneginf(total.detach())
