"""Local lines: a line is fitted in the window of each query, and read off at the query.

    value map   v_i → (u_i, u_i u_iᵀ, t_i, t_i u_i)          u_i: leading columns of the embedded row, t_i its target
    read-out    t̄ + βᵀ(u − ū),    β = (C + λI)⁻¹ c           C, c: covariances of u with u, and of u with t, under α

One bandwidth is one unit of u, so C is about 1 where the window is full of rows, and λ ≪ 1 then hardly matters. Where a
few rows hold nearly all weight C tends to 0 and β with it. A window with fewer than `FEWEST` effective rows,
(Σα)² / Σα², is thin: its answer is t̄, the local constant. Σα² comes from a second pooling, at the scores 2a:
Σα² = exp(lse(2a) − 2 lse(a)). Scores are ≤ 0, so Σ exp(2a) ≤ Σ exp(a), and a window has at least exp(lse(a)) effective
rows: only queries with fewer are asked again.

Source: Cleveland 1979; Fan and Gijbels 1996, section 3.1; Kish 1965, section 11.7 (effective number of rows).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..scores.base import Score
from .pooling import Memory, Pooled, pool

FEWEST = 3.0  # effective rows of a window: with fewer, a line would be drawn through one or two rows
MOST_SLOPES = 9  # with one target, what is pooled is then as wide as fast plans serve


def value_map(slopes: Tensor, targets: Tensor) -> Tensor:
    """(m, r + r(r+1)/2 + v + r·v) of the slope columns (m, r) and the targets (m, v)."""
    m, r = slopes.shape
    upper = torch.triu_indices(r, r, device=slopes.device)
    squares = slopes[:, upper[0]] * slopes[:, upper[1]]
    products = (slopes[:, :, None] * targets[:, None, :]).reshape(m, -1)
    return torch.cat([slopes, squares, targets, products], 1)


def read_out(pooled: Tensor, at: Tensor, v: int, ridge: float, alone: Tensor) -> Tensor:
    """Targets (n, v) at the slope columns ``at`` (n, r) of the queries; ``alone`` (n,) bool: local constant there."""
    n, r = at.shape
    wide = r * (r + 1) // 2
    mean, squares, target, products = pooled.split([r, wide, v, r * v], 1)
    covariance = _symmetric(squares, r) - mean[:, :, None] * mean[:, None, :]
    with_target = products.view(n, r, v) - mean[:, :, None] * target[:, None, :]
    regular = covariance + ridge * torch.eye(r, dtype=at.dtype, device=at.device)
    slope = torch.linalg.solve(regular, with_target)
    line = target + ((at - mean)[:, :, None] * slope).sum(1)
    return torch.where(alone[:, None], target, line)


def thin_windows(score: Score, queries: Tensor, memory: Memory, pooled: Pooled, own: Tensor | None) -> Tensor:
    """Which windows (n,) have fewer than `FEWEST` effective rows; ``score`` grows with the square of embedded rows."""
    out = torch.zeros(len(queries), dtype=torch.bool, device=queries.device)
    doubtful = (~(pooled.log_normalizer >= math.log(FEWEST))).nonzero()[:, 0]
    if len(doubtful):
        mine = None if own is None else own[doubtful]
        some = replace(pooled, log_normalizer=pooled.log_normalizer[doubtful])
        out[doubtful] = ~(effective_rows(score, queries[doubtful], memory, some, mine) >= FEWEST)
    return out


def effective_rows(score: Score, queries: Tensor, memory: Memory, pooled: Pooled, own: Tensor | None) -> Tensor:
    """(Σα)² / Σα² (n,) of the windows, where ``score`` grows with the square of the embedded rows."""
    root2 = 2.0**0.5
    sharp = Memory(memory.keys * root2, memory.weights, memory.groups)
    nothing = queries.new_zeros(len(memory.keys), 1)
    twice = pool(score, queries * root2, sharp, nothing, own=own).log_normalizer
    return (2 * pooled.log_normalizer - twice).exp()


def squared_weights(pooled: Tensor, twice: Tensor, at: Tensor, share: Tensor, ridge: float, thin: Tensor) -> Tensor:
    """Σ l² (n,), l the weights of the rows in the answer: its variance, in units of the variance of one target.

        l_i = α_i (1 + e·(u_i − ū)),    e = (C + λI)⁻¹ (u − ū), 0 where ``thin``

    ``pooled`` and ``twice``: the means of the first r + r(r+1)/2 columns of `value_map` under α and under α² / Σα²;
    ``share`` (n,): Σα².
    """
    r = at.shape[1]
    (mean, squares), (mean2, squares2) = (x[:, : r + r * (r + 1) // 2].tensor_split([r], 1) for x in (pooled, twice))
    covariance = _symmetric(squares, r) - mean[:, :, None] * mean[:, None, :]
    regular = covariance + ridge * torch.eye(r, dtype=at.dtype, device=at.device)
    tilt = torch.linalg.solve(regular, (at - mean)[:, :, None])[:, :, 0].masked_fill(thin[:, None], 0.0)
    cross = mean2[:, :, None] * mean[:, None, :]
    about = _symmetric(squares2, r) - cross - cross.mT + mean[:, :, None] * mean[:, None, :]
    bent = 1 + 2 * (tilt * (mean2 - mean)).sum(1) + torch.einsum("ni,nij,nj->n", tilt, about, tilt)
    return share * bent.clamp(min=0)


def _symmetric(upper: Tensor, r: int) -> Tensor:
    """(n, r, r) of the upper triangles (n, r(r+1)/2)."""
    i, j = torch.triu_indices(r, r, device=upper.device)
    full = upper.new_zeros(len(upper), r, r)
    full[:, i, j] = upper
    full[:, j, i] = upper
    return full
