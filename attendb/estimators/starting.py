"""Where the search for bandwidths starts: at the common scale that predicts best, of two shapes.

The loss of rows that leave themselves out has many local minima: with narrow windows each row sees its neighbours only,
with wide ones the mean. So several scales around Scott's rule are judged, for all columns alike and for columns
weighted by what they tell about y alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..scores.distance import Gaussian
from .cases import Cases
from .pooling import Memory, pool

SAMPLE = 1024
OFFSETS = (-0.8, 0.0, 0.8, 1.6)  # of the logarithm of 1 / h
LEAST = 0.02  # usefulness: no column is wholly left out at the start


@torch.no_grad()
def usefulness(z: Tensor, scale_of: Tensor, cases: Cases, seed: int) -> Tensor:
    """What each column tells about y alone: 1 − (squared error, each row left out) / variance, 0 to 1, for each scale.

    ``z`` (m, f): features; ``scale_of`` (f,): which scale each belongs to.
    Cost: one pooling of `SAMPLE`² pairs a scale.
    """
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(cases), generator=random)[:SAMPLE]
    some, keys = cases.take(rows), z[rows] * len(rows) ** 0.2
    targets, weights = some.targets, some.weights[:, None]
    centre = (weights * targets).sum(0) / weights.sum()
    total = (weights * (targets - centre).square()).sum()
    scales = int(scale_of.max()) + 1 if len(scale_of) else 0
    widths = torch.bincount(scale_of, minlength=scales).tolist()
    out = torch.zeros(scales, dtype=torch.float64, device=z.device)
    for width in sorted(set(widths)):  # columns of one width are asked together
        of_width = [scale for scale in range(scales) if widths[scale] == width]
        columns = torch.stack([keys[:, scale_of == scale] for scale in of_width])
        memory = Memory(columns, some.weights, some.groups)
        found = pool(Gaussian(1.0), columns, memory, targets, own=torch.arange(len(rows)))
        left = weights * (targets - found.value).square() * ~found.empty[..., None]
        out[of_width] = 1 - left.sum((1, 2)) / total
    return out.clamp(0.0, 1.0)


@torch.no_grad()
def start(log_inverse: Tensor, useful: Tensor, judge: Callable[[], float]) -> None:
    """Set ``log_inverse`` (scales,) to the start that ``judge`` likes best, of those around its value."""
    base = log_inverse.clone()
    shapes = [torch.zeros_like(base)]
    if bool((useful > LEAST).any()) and len(useful) > 1:
        weighted = 0.5 * useful.clamp(min=LEAST).log()
        shapes.append(weighted - weighted.max())
    tried = []
    for shape in shapes:
        for offset in OFFSETS:
            log_inverse.copy_(base + shape + offset)
            tried.append((judge(), log_inverse.clone()))
    log_inverse.copy_(min(tried, key=lambda pair: pair[0])[1])
