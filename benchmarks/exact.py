"""Float64 by brute force, from differences, a few queries at a time: what errors are measured against."""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS = 1 << 21  # of one block of scores


def gaussian(q: Tensor, k: Tensor, v: Tensor, h: Tensor | float) -> tuple[Tensor, Tensor]:
    """Values and log-normalisers of the softmax of −½‖(q − k)/h‖²; gradients where they are asked for."""
    return _softmax(q, k, v, h, 2)


def laplacian(q: Tensor, k: Tensor, v: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """The same of −‖(q − k)/h‖₁."""
    return _softmax(q, k, v, h, 1)


def _softmax(q: Tensor, k: Tensor, v: Tensor, h: Tensor | float, power: int) -> tuple[Tensor, Tensor]:
    q, k, v = q.double(), k.double(), v.double()
    step = max(1, NUMBERS // len(k))
    if len(q) <= step:
        scores = _scores(q, k, h, power)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)
    # one tensor for all: small ones between the blocks would pin the heap, and memory would grow
    values, logs = q.new_empty(len(q), v.shape[1]), q.new_empty(len(q))
    for i in range(0, len(q), step):
        scores = _scores(q[i : i + step], k, h, power)
        values[i : i + step] = torch.softmax(scores, -1) @ v
        logs[i : i + step] = torch.logsumexp(scores, -1)
    return values, logs


def _scores(q: Tensor, k: Tensor, h: Tensor | float, power: int) -> Tensor:
    total = q.new_zeros(len(q), len(k))
    for column in range(q.shape[1]):
        difference = (q[:, None, column] - k[:, column]) / h
        total = total - (0.5 * difference.square() if power == 2 else difference.abs())
    return total
