"""A bandwidth for each number of the key to start from, found in one pass over the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .database import Database


def scott_bandwidth(database: Database, *, where: str | None = None) -> dict[str, Tensor]:
    """A bandwidth for each number of the key, by Scott's rule.

        h_j = σ_j m^(−1/(d+4)),    σ_j the standard deviation of number j over the m rows, d numbers in the key

    ``where``: a condition in SQL; rows that do not satisfy it are left out. A column without spread, or of one row,
    gets h = 1: it tells no row from another, whatever its bandwidth.

    Returns {column: h (width,)} float64 for the key columns of numbers, in the units of each.
    Raises InputError for a condition that cannot be read. Cost: one pass over the keys; memory of one block.

    >>> import attendb as ad
    >>> scott_bandwidth(ad.Database({"age": [10.0, 20.0]}, [1, 2]))["age"].round(decimals=3).tolist()
    [6.156]

    Source: Scott 1992, equation 6.42; the merging of two parts: Chan, Golub and LeVeque 1979.
    """
    m, deviations = spread(database, where=where)
    d = sum(deviation.numel() for deviation in deviations.values())
    return {name: scott(deviation, m, d) for name, deviation in deviations.items()}


def scott(deviation: Tensor, m: int, d: int) -> Tensor:
    """A bandwidth for numbers of this standard deviation, 1 where it is 0, for m rows of d numbers."""
    return torch.where(deviation > 0, deviation * max(m, 1) ** (-1 / (d + 4)), torch.ones_like(deviation))


def spread(database: Database, *, where: str | None = None) -> tuple[int, dict[str, Tensor]]:
    """How many rows there are, and the standard deviation (width,) of the numbers of each key column.

    It is 0 where no row differs from another by more than rounding, and of one row.
    """
    source = database._source
    names = [column.name for column in source.schema.keys.columns if column.kind != "text"]
    m, mean, squares = 0, dict.fromkeys(names, torch.zeros(1)), dict.fromkeys(names, torch.zeros(1))
    for block in source.blocks(values=[], where=where):
        r = len(block.positions)
        if not r:
            continue
        for name in names:
            rows = block.keys[name]
            assert isinstance(rows, Tensor)
            x = rows.detach().cpu().double()
            centre = x.mean(0)
            apart = centre - mean[name]
            squares[name] = squares[name] + (x - centre).square().sum(0) + apart.square() * (m * r / (m + r))
            mean[name] = mean[name] + apart * (r / (m + r))
        m += r
    return m, {name: _deviation(squares[name], mean[name], m) for name in names}


def _deviation(squares: Tensor, mean: Tensor, m: int) -> Tensor:
    if m < 2:
        return torch.zeros_like(mean, dtype=torch.float64)
    deviation = (squares / (m - 1)).sqrt()
    flat = ~(deviation > 4 * torch.finfo(torch.float64).eps * mean.abs()) | ~deviation.isfinite()
    return torch.where(flat, torch.zeros_like(deviation), deviation)
