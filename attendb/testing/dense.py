"""The dense oracle: every pair at once, float64, under autograd. It shares no code with the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .formulas import FORMULAS, Rows, all_scores, batch_of, count, read_rows, without
from .rules import Pooled, name_of, pool


@dataclass(frozen=True, eq=False)
class OracleAnswer:
    """What `oracle` returns: float64 tensors with a graph to whichever inputs require a gradient.

    ``value`` (..., n, v), None for `Sampled`; ``log_normalizer`` (..., n) or None; ``empty`` (..., n) bool;
    ``weights`` (..., n, m), for `Sampled` the probability of each row of being drawn; ``top_positions`` (−1 = none)
    and ``top_weights`` (..., n, top).
    """

    value: Tensor | None
    log_normalizer: Tensor | None
    empty: Tensor
    weights: Tensor
    top_positions: Tensor
    top_weights: Tensor


def oracle(
    queries: Any,
    keys: Any,
    values: Any,
    *,
    score: Any,
    weighting: Any = None,
    where: Any = None,
    bias: Any = None,
    key_weights: Any = None,
    exclude: Any = None,
    top: int = 0,
) -> OracleAnswer:
    """Answer by attention with all n·m pairs at once, to compare a score, a weighting or a plan with.

        value = Σ_i α(q, k_i) v_i

    The arguments are those of `attendb.attend`; ``queries`` (..., n, d), ``keys`` (..., m, d) and ``values``
    (..., m, v) are numbers (one axis = width 1), text, or dicts of columns. Gradients of ``value`` and
    ``log_normalizer`` reach every float64 tensor that requires one, and the parameters of score and weighting.
    A score or weighting of yours is called on all pairs: a score as a function, a weighting by its
    ``weight(z, tau)``, decreasing in τ, with z = a − max.

    Raises ValueError for a NaN score of an allowed pair, a NaN value of a visible row, or a negative score under
    Normalized or Conic. Cost: O(n·m·d) time and memory.

    >>> import attendb as ad
    >>> from attendb.testing import oracle
    >>> answer = oracle([[1.0]], [[0.0], [1.0], [2.0]], [10.0, 20.0, 30.0], score=ad.Dot())
    >>> round(float(answer.value), 10)
    25.752103826

    Source: Bahdanau, Cho and Bengio 2015, equations 5 and 6.
    """
    q, k, v = read_rows(queries), read_rows(keys), read_rows(values)
    if not isinstance(v, Tensor):
        raise TypeError("the oracle pools numbers: give numeric values")
    name = name_of(weighting) if weighting is not None else getattr(score, "default_weighting", "Softmax")
    n, m = count(q), count(k)
    w = _multiplicities(n, m, where, key_weights, exclude)
    added = None if bias is None else _pairwise(bias, n, m).to(torch.float64)
    batch = torch.broadcast_shapes(batch_of(q), batch_of(k), v.shape[:-2], w.shape[:-2])
    if added is not None:
        batch = torch.broadcast_shapes(batch, added.shape[:-2])
    w = w.expand(*batch, n, m)
    present = w > 0
    q, k, v = _visible(q, ~present.any(-1)), _visible(k, ~present.any(-2)), _visible(v, ~present.any(-2))
    assert isinstance(v, Tensor)
    a = FORMULAS["Equal"](None, q, k) if name == "Exact" else all_scores(score, q, k)
    a = (a if added is None else a + torch.where(present, added, 0.0)).expand(*batch, n, m)
    a = torch.where(present, a, 0.0)
    if bool(a.isnan().any()) or bool(v.isnan().any()):
        raise ValueError("a score of an allowed pair or a value of a visible row is NaN")
    pooled = pool(weighting, name, a, w)
    positions, weights = _top(pooled, top)
    value = None if name == "Sampled" else _sum_of(pooled.weights, v)
    return OracleAnswer(value, pooled.log_normalizer, pooled.empty, pooled.weights, positions, weights)


def _sum_of(weights: Tensor, values: Tensor) -> Tensor:
    return torch.einsum("...nm,...mv->...nv", weights, values)


def _visible(rows: Rows, dead: Tensor) -> Rows:
    return rows if isinstance(rows, list) else without(rows, dead)


def _tensor(data: Any) -> Tensor:
    return data if isinstance(data, Tensor) else torch.from_numpy(np.array(data))


def _pairwise(given: Any | Callable[[Tensor, Tensor], Any], n: int, m: int) -> Tensor:
    """An array broadcastable to (..., n, m), or a function of query positions (n, 1) and key positions (1, m)."""
    if callable(given):
        given = given(torch.arange(n)[:, None], torch.arange(m)[None, :])
    full = _tensor(given)
    return full.expand(*full.shape[:-2], n, m)


def _multiplicities(n: int, m: int, where: Any, key_weights: Any, exclude: Any) -> Tensor:
    """key_weights times the mask, (..., n, m)."""
    allowed = torch.ones(n, m, dtype=torch.bool) if where is None else _pairwise(where, n, m).to(torch.bool)
    if exclude is not None:
        dropped = _tensor(exclude).to(torch.int64)
        dropped = dropped.expand(*dropped.shape[:-1], n)
        allowed = allowed & (dropped[..., :, None] != torch.arange(m))
    w = torch.ones(m, dtype=torch.float64) if key_weights is None else _tensor(key_weights).to(torch.float64)
    return torch.where(allowed, w[..., None, :], 0.0)


def _top(pooled: Pooled, top: int) -> tuple[Tensor, Tensor]:
    """The ``top`` heaviest rows of each query, the lowest position first where they tie."""
    rank, order = torch.sort(pooled.rank, dim=-1, descending=True, stable=True)
    rank, order = rank[..., :top], order[..., :top]
    listed = rank > -torch.inf
    positions = torch.where(listed, order, -1)
    weights = torch.where(listed, torch.gather(pooled.weights, -1, order), 0.0)
    missing = top - positions.shape[-1]
    pad = torch.nn.functional.pad
    return pad(positions, (0, missing), value=-1), pad(weights, (0, missing), value=0.0)
