"""A positive number, vector or matrix that can learn: start · exp(θ), θ = 0 at the start."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from .errors import InputError, KindError


class Positive(nn.Module):
    """A positive scale ``start · exp(θ)``; for a square matrix ``start @ matrix_exp(θ)``.

    θ starts at 0 in float64, so an unlearned scale is exactly the number given, and a gradient step
    can never make it negative. θ is frozen unless ``learn``.

    Raises InputError for a value that is ≤ 0, NaN or infinite (a matrix: singular), KindError for no number.
    """

    start: Tensor

    def __init__(self, start: object, name: str, *, learn: bool = False, max_axes: int = 1):
        super().__init__()
        value = _as_float64(start, name)
        if value.ndim > max_axes:
            most = ("one number", "one number, or one a column", "a number, a vector or a matrix")[max_axes]
            raise InputError(f"{name} has shape {tuple(value.shape)} but is the same for all rows: give {most}")
        if value.ndim == 2:
            if value.shape[0] != value.shape[1]:
                raise InputError(f"{name} is a matrix of shape {tuple(value.shape)}: give a square one")
            if not torch.isfinite(value).all() or torch.linalg.matrix_rank(value) < value.shape[0]:
                raise InputError(f"{name} is a singular or non-finite matrix: give an invertible one")
        elif not ((value > 0) & torch.isfinite(value)).all():
            raise InputError(
                f"{name} must be > 0 and finite, got {value.tolist()}: give it in the units of what it divides"
            )
        self.name = name
        self.register_buffer("start", value)
        self.theta = nn.Parameter(torch.zeros_like(value), requires_grad=learn)

    def forward(self) -> Tensor:
        start = self.start.double()
        theta = self.theta.double()
        if start.ndim == 2:
            return start @ torch.linalg.matrix_exp(theta)
        return start * theta.exp()

    def extra_repr(self) -> str:
        value = self().detach()
        shown = f"{value.item():.6g}" if value.numel() == 1 else f"shape {tuple(value.shape)}"
        return shown + (", learns" if self.theta.requires_grad else "")


def _as_float64(start: object, name: str) -> Tensor:
    if isinstance(start, Tensor) and start.requires_grad:
        raise InputError(f"{name} requires a gradient, which a start value cannot have: detach it, and say learn=True")
    if isinstance(start, (str, bytes, bool)) or start is None:
        raise KindError(f"{name} must be a number, got {start!r}")
    try:
        value = start.detach() if isinstance(start, Tensor) else torch.from_numpy(np.array(start))
    except (TypeError, ValueError, RuntimeError):
        raise KindError(f"{name} must be a number or an array of numbers, got {type(start).__name__}") from None
    if value.is_complex() or value.dtype == torch.bool:
        raise KindError(f"{name} must be real, got dtype {value.dtype}")
    return value.to(torch.float64).clone()
