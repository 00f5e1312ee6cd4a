"""How much of a table lies near: the share of pairs that plan "pruned" would visit, from a sample of rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..compiled.kinds import BOXCAR, GAUSSIAN, LAPLACIAN

QUERIES, KEYS = 64, 4096
ROWS_IN_BOX = 32.0


def near_share(queries: Float[Tensor, "n d"], keys: Float[Tensor, "m d"], kind: int, slack: float) -> float:
    """The estimated share of visited pairs, for rows in units of base-2 exponents and ``slack`` in log2.

    A sampled key stands for m ÷ sample keys; what lies closer than the sample can tell is taken to be spread evenly.
    A box of keys reaches as far as the sphere that holds its rows. Cost: 64 × 4096 distances.
    """
    (n, d), m = queries.shape, len(keys)
    generator = torch.Generator().manual_seed(0)
    sample = keys[torch.randint(m, (min(m, KEYS),), generator=generator)]
    asked = queries[torch.randint(n, (min(n, QUERIES),), generator=generator)]
    others = queries[torch.randint(n, (min(n, KEYS),), generator=generator)]
    p = 1.0 if kind == LAPLACIAN else 2.0
    apart = torch.cdist(asked, sample, p=p, compute_mode="donot_use_mm_for_euclid_dist").sort(-1).values
    each = m / len(sample)
    reach = _radius(apart, ROWS_IN_BOX / each, d)
    own = torch.cdist(asked, others, p=p, compute_mode="donot_use_mm_for_euclid_dist").sort(-1).values
    reach = reach + _radius(own, ROWS_IN_BOX / 2 * len(others) / n, d)
    if kind >= BOXCAR:
        cutoff = torch.ones_like(reach)
    else:
        s = apart.square() if kind == GAUSSIAN else apart
        nearest = _radius(apart, 1 / each, d)
        nearest = nearest.square() if kind == GAUSSIAN else nearest
        total = torch.maximum(torch.log2(torch.exp2(s[:, :1] - s).sum(-1) * each) - s[:, 0], -nearest)
        far = (torch.log2(torch.tensor(float(m))) * 0.5 - total - slack).clamp(min=0)
        cutoff = far.sqrt() if kind == GAUSSIAN else far
    edge = cutoff + reach
    inside = (apart <= edge[:, None]).sum(-1).double()
    below = (edge / apart[:, 0].clamp(min=1e-300)).clamp(max=1.0) ** d
    return float(torch.where(inside > 0, inside, below).mean() / len(sample))


def _radius(apart: Tensor, rows: float, d: int) -> Tensor:
    """The radius that holds so many of the sampled rows (less than one: spread evenly)."""
    if rows >= 1:
        return apart[:, min(int(rows), apart.shape[1]) - 1]
    return apart[:, 0] * rows ** (1 / d)
