"""What is done to a problem once it is read: unseen rows neutralised, the batch folded, queries and keys embedded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any, cast

import torch
from torch import Tensor

from .columns import Columns, Parts, map_leaves, tensors
from .errors import InputError
from .plans.cells import PairFunction, Problem

LOST_TOLERANCE = 1e-4  # below it float32 may lose fewer digits in the embedding: it counts against a tolerance
LARGEST_COPY = 1 << 26  # numbers of a mask that may be copied to fold the batch into the queries


def without_unseen(problem: Problem) -> Problem:
    """Rows that hold NaN or infinities and that nobody may see become 0: 0 · NaN is NaN, in every gradient too."""
    if not problem.masked:
        return problem
    numbers = [x for x in (*_tensors_of(problem.keys), problem.values) if isinstance(x, Tensor)]
    odd = torch.zeros(problem.m, dtype=torch.bool, device=problem.device)
    for x in numbers:
        odd |= (~torch.isfinite(x.detach())).flatten(2).any(2).any(0)
    blind = [x for x in _tensors_of(problem.queries) if not torch.isfinite(x.detach()).all()]
    if not odd.any() and not blind:
        return problem
    looking = torch.zeros(problem.batch, problem.n, dtype=torch.bool, device=problem.device)
    seen = torch.zeros(problem.batch, problem.m, dtype=torch.bool, device=problem.device)
    for _, place in problem.places():
        w = problem.key_weights
        present = problem.present(
            place, None if w is None else w[place.batch if w.shape[0] > 1 else slice(None), :, place.keys]
        )
        if present is not None:
            seen[place.batch, place.keys] |= present.any(-2)
            looking[place.batch, place.queries] |= present.any(-1)

    def hide(x: Any, some: Tensor) -> Any:
        if isinstance(x, dict):
            return {name: hide(part, some) for name, part in x.items()}
        if not isinstance(x, Tensor):
            return x
        visible = some.any(0, keepdim=True) if x.shape[0] == 1 else some
        return torch.where(visible[..., None], x, 0.0)

    queries = hide(problem.queries, looking) if blind else problem.queries
    return replace(problem, queries=queries, keys=hide(problem.keys, seen), values=hide(problem.values, seen))


def _tensors_of(columns: Any) -> list[Tensor]:
    return (
        [x for part in columns.values() for x in _tensors_of(part)] if isinstance(columns, dict) else tensors(columns)
    )


def fold_batch(problem: Problem) -> Problem:
    """A batch of queries to one shared table is one longer list of queries."""
    shared = [*_tensors_of(problem.keys), problem.values, problem.key_weights]
    if problem.batch <= 1 or any(isinstance(x, Tensor) and x.shape[0] > 1 for x in shared):
        return problem
    b, n = problem.batch, problem.n
    folded: dict[str, Any] = {}
    for name in ("where", "bias", "exclude"):
        x: Tensor | PairFunction | None = getattr(problem, name)
        if isinstance(x, Tensor) and (x.shape[0] > 1 or x.shape[1] > 1):
            if b * n * x.shape[2] > LARGEST_COPY and x.shape[:2] != (b, n):
                return problem
            folded[name] = x.expand(b, n, x.shape[2]).reshape(1, b * n, x.shape[2])
    lengthen: Callable[[Tensor], Tensor] = lambda x: x.expand(b, n, x.shape[2]).reshape(1, b * n, x.shape[2])  # noqa: E731
    queries = problem.queries
    if isinstance(queries, Tensor):
        queries = lengthen(queries)
    elif isinstance(queries, dict):
        return problem
    return replace(
        problem, queries=queries, batch=1, n=b * n, query_positions=problem.query_positions.repeat(b), **folded
    )


def embed(problem: Problem, anchor: Any = None) -> Problem:
    """Embed queries and keys, in float64 where float32 would lose the answer.

    ``anchor``: what the score has found out about the table; None: it finds it out from these keys.
    """
    score = problem.score
    raw_q, raw_k = cast(Columns, problem.queries), cast(Columns, problem.keys)
    given, anchor = anchor, score.anchor(raw_k) if anchor is None else anchor
    q, k = score.embed_queries(raw_q, anchor), score.embed_keys(raw_k, anchor)
    eps = torch.finfo(problem.dtype).eps
    lost = 1.0 if problem.tol is None else min(1.0, problem.tol / LOST_TOLERANCE)
    wide = problem.weighting.needs_float64() or not score.lost_digits(q, k) * eps <= lost
    if problem.dtype != torch.float64 and wide:
        del q, k  # one copy at a time: rows in float64 are most of the memory of a large problem in few columns
        wide_k = _double(raw_k)
        anchor = score.anchor(wide_k) if given is None else given
        k = score.embed_keys(wide_k, anchor)
        del wide_k
        q = score.embed_queries(_double(raw_q), anchor)
        changed = {
            name: x.double()
            for name in ("values", "bias", "key_weights")
            if isinstance(x := getattr(problem, name), Tensor)
        }
        problem = replace(problem, dtype=torch.float64, **changed)
    overflown = problem.dtype == torch.float64 and not isfinite(score.lost_digits(q, k))
    if overflown and all(_finite(x) for raw in (raw_q, raw_k) for x in _tensors_of(raw)):
        raise InputError(
            f"the rows lie more bandwidths apart than float64 can square (score={type(score).__name__}): "
            "give a larger bandwidth"
        )
    return replace(problem, queries=_as_float(q, problem.dtype), keys=_as_float(k, problem.dtype))


def _double(columns: Any) -> Any:
    if isinstance(columns, dict):
        return {name: _double(part) for name, part in columns.items()}
    return columns.double() if isinstance(columns, Tensor) and columns.is_floating_point() else columns


def _as_float(parts: Parts, dtype: torch.dtype) -> Parts:
    return map_leaves(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, parts)


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x.detach()).all())
