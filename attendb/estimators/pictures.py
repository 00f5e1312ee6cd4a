"""What `plot` of the smoothers draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..plots import new_figure
from .kernels import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (6.4, 4.0)  # inches
INK, ROWS = "#a50f15", "0.45"
MOST_ROWS = 5_000  # that are drawn; of more a sample


def draw_curve(rows: tuple[Array, Array], at: Array, curve: tuple[Array, Array], names: tuple[str, str, str]) -> Figure:
    """Points (x, y), a curve at the places ``at`` with half the width of its band, and names of x, y and the level."""
    x, y = _some(*rows)
    drawn = "rows" if len(x) == len(rows[0]) else f"{len(x):,} of {len(rows[0]):,} rows"
    middle, half = curve
    figure = new_figure(SIZE, "constrained")
    axes = figure.subplots()
    axes.plot(x, y, ".", color=ROWS, markersize=_size(len(x)), markeredgewidth=0, rasterized=True, label=drawn)
    axes.fill_between(at, middle - half, middle + half, color=INK, alpha=0.25, linewidth=0, label=f"{names[2]} band")
    axes.plot(at, middle, color=INK, label="mean curve")
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.legend(frameon=False)
    return figure


def draw_density(x: Array, at: Array, density: Array, name: str) -> Figure:
    """A density at the places ``at``, and a tick for each row x."""
    figure = new_figure(SIZE, "constrained")
    axes = figure.subplots()
    (some,) = _some(x)
    axes.plot(some, np.zeros(len(some)), "|", color=ROWS, markersize=9, markeredgewidth=0.5, rasterized=True)
    axes.fill_between(at, density, color=INK, alpha=0.25, linewidth=0)
    axes.plot(at, density, color=INK)
    axes.set(xlabel=name, ylabel="density")
    return figure


def _some(*columns: Array) -> list[Array]:
    """The columns, or the same sample of each where there are too many rows to draw."""
    m = len(columns[0])
    if m <= MOST_ROWS:
        return list(columns)
    rows = np.sort(np.random.default_rng(0).choice(m, MOST_ROWS, replace=False))
    return [column[rows] for column in columns]


def _size(rows: int) -> float:
    return float(np.clip(60 / np.sqrt(rows), 2.5, 6))
