"""Plan "reproducible": the same bits for a query, whoever is asked beside it. Taken only when forced by name.

Libraries of matrix products and sums choose their order of additions by shape, so a query alone and the same query in a
batch differ in the last digits. Here every query is answered alone, in float64, over blocks of one fixed shape (the
last one is filled up with absent rows), so that the same operations run on the same shapes in the same order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..columns import Labels, Opaque, leaves, map_leaves
from ..scores.additive import Additive
from ..scores.base import Custom
from ..scores.columns import PerColumn
from ..scores.dot import Bilinear, Cosine
from ..weightings.base import Selecting
from .cells import PAIR, QUERY, Place, Problem, cut
from .dense import CellFold, pool_all, select_and_pool
from .solution import Solution

KEYS_AT_ONCE = 1024


class Reproducible:
    """Plan "reproducible" (see the top of this file)."""

    name = "reproducible"

    def __init__(self, problem: Problem):
        self.problem = problem

    def refusal(self) -> str | None:
        problem = self.problem
        if isinstance(problem.score, (Additive, Bilinear, Cosine, Custom, PerColumn)):
            return f"{type(problem.score).__name__} embeds all queries together, in an order that their number decides"
        if any(isinstance(leaf, Opaque) for leaf in leaves(problem.keys)) or isinstance(problem.values, Labels):
            return "text needs no rounding"
        if callable(problem.where) or callable(problem.bias):
            return "where= and bias= as functions"
        if not problem.batch * problem.n:
            return "there are no queries"
        return None

    def cost(self) -> float:
        return float("inf")

    def solve(self) -> Solution:
        problem = self._filled_up()
        answers: list[Solution] = []
        for b in range(problem.batch):
            for i in range(problem.n):
                alone = _alone(problem, b, i)
                selects = isinstance(alone.weighting, Selecting)
                answers.append(select_and_pool(alone, CellFold(alone)) if selects else pool_all(alone))

        def joined(parts: list[Tensor | None]) -> Tensor | None:
            if any(part is None for part in parts):
                return None
            whole = torch.cat([part for part in parts if part is not None], 1)
            whole = whole.reshape(problem.batch, problem.n, *whole.shape[2:])
            return whole.to(self.problem.dtype) if whole.is_floating_point() else whole

        value, empty = joined([a.value for a in answers]), joined([a.empty for a in answers])
        assert value is not None and empty is not None
        top = None
        if problem.top:
            positions = joined([a.top[0] if a.top else None for a in answers])
            weights = joined([a.top[1] if a.top else None for a in answers])
            assert positions is not None and weights is not None
            top = positions, weights
        log_prob = joined([a.log_prob for a in answers])
        ranks = joined([a.ranks for a in answers])
        return Solution(value, empty, joined([a.log_normalizer for a in answers]), log_prob, top, ranks)

    def _filled_up(self) -> Problem:
        """In float64, with keys up to a multiple of the block size; rows past the table may not be seen."""
        problem = self.problem
        more = -problem.m % KEYS_AT_ONCE if problem.m else KEYS_AT_ONCE

        def rows(x: Tensor) -> Tensor:
            return pad(x.double() if x.is_floating_point() else x, (0, 0, 0, more))

        def pairs(x: object, fill: float) -> Tensor | None:
            if not isinstance(x, Tensor):
                return None
            full = x.expand(*x.shape[:2], problem.m)
            return pad(full if full.dtype == torch.bool else full.double(), (0, more), value=fill)

        real = torch.arange(problem.m + more, device=problem.device) < problem.m
        where = pairs(problem.where, False)
        assert isinstance(problem.values, Tensor)
        last = int(problem.positions[-1]) if problem.m else -1
        return replace(
            problem,
            queries=map_leaves(lambda x: x.double() if isinstance(x, Tensor) else x, problem.queries),
            keys=map_leaves(lambda x: rows(x) if isinstance(x, Tensor) else x, problem.keys),
            values=rows(problem.values),
            positions=torch.cat([problem.positions, last + 1 + torch.arange(more, device=problem.device)]),
            where=real[None, None] if where is None else where & real,
            bias=pairs(problem.bias, 0.0),
            key_weights=pairs(problem.key_weights, 1.0),
            m=problem.m + more,
            dtype=torch.float64,
            blocks=(1, KEYS_AT_ONCE),
        )


def _alone(problem: Problem, b: int, i: int) -> Problem:
    """The problem of one query of one batch entry."""
    place = Place(slice(b, b + 1), slice(i, i + 1), slice(0, problem.m))
    every = slice(0, None)

    def keys(x: Tensor) -> Tensor:
        return x[place.batch] if x.shape[0] > 1 else x

    def pairs(x: object) -> Tensor | None:
        return cut(x, PAIR, Place(place.batch, place.queries, every)) if isinstance(x, Tensor) else None

    assert isinstance(problem.values, Tensor)
    return replace(
        problem,
        queries=map_leaves(lambda x: cut(x, QUERY, place).clone() if isinstance(x, Tensor) else x, problem.queries),
        keys=map_leaves(lambda x: keys(x) if isinstance(x, Tensor) else x, problem.keys),
        values=keys(problem.values),
        where=pairs(problem.where),
        bias=pairs(problem.bias),
        key_weights=pairs(problem.key_weights),
        exclude=pairs(problem.exclude),
        query_positions=problem.query_positions[place.queries],
        batch=1,
        n=1,
    )
