"""Float64 by brute force, from differences, a few queries at a time: what errors are measured against."""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS = 1 << 22  # of one block of scores


def gaussian(q: Tensor, k: Tensor, v: Tensor, h: Tensor | float) -> tuple[Tensor, Tensor]:
    """Values and log-normalisers of the softmax of −½‖(q − k)/h‖²; gradients where they are asked for."""
    return _softmax(q, k, v, h, 2)


def laplacian(q: Tensor, k: Tensor, v: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """The same of −‖(q − k)/h‖₁."""
    return _softmax(q, k, v, h, 1)


def _softmax(q: Tensor, k: Tensor, v: Tensor, h: Tensor | float, power: int) -> tuple[Tensor, Tensor]:
    q, k, v = q.double(), k.double(), v.double()
    values, logs = [], []
    for some in q.split(max(1, NUMBERS // len(k))):
        scores = _scores(some, k, h, power)
        logs.append(torch.logsumexp(scores, -1))
        values.append(torch.softmax(scores, -1) @ v)
    return torch.cat(values), torch.cat(logs)


def _scores(q: Tensor, k: Tensor, h: Tensor | float, power: int) -> Tensor:
    total = q.new_zeros(len(q), len(k))
    for column in range(q.shape[1]):
        difference = (q[:, None, column] - k[:, column]) / h
        total = total - (0.5 * difference.square() if power == 2 else difference.abs())
    return total
