"""Pictures of weights: `show_heatmaps`, and what `Answer.heatmap` draws.

Figures are made without pyplot, so nothing is registered that somebody would have to close, and no figure of the
caller's is touched. Notebooks show the returned figure; scripts save it with ``figure.savefig("name.png")``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from .errors import InputError, KindError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PANELS = 100  # beyond it a panel of an ordinary figure is too small to read
MAX_CELLS = 2000  # cells along an axis that are drawn one by one
DPI = 100  # of a figure on a screen
MISSING = "0.75"  # neutral grey: in no sequential colour map


def show_heatmaps(
    matrices: Any,
    xlabel: str,
    ylabel: str,
    titles: Sequence[Any] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: Any = "Reds",
) -> Figure:
    """Draw matrices of weights as rows and columns of heatmaps, queries downwards and keys to the right.

    colour of cell (i, j) of a panel = cmap((w_ij − min) / (max − min)), min and max over the finite cells of all panels

    ``matrices``: array, tensor or nested list (rows, columns, queries, keys); (columns, queries, keys) is one row of
    panels, (queries, keys) one panel. Tensors may require gradients, be half precision, sparse, or on a device: they
    are read, never changed. ``xlabel`` and ``ylabel`` name the keys and the queries at the outer edge. ``titles``: one
    for each column, or one for each panel. ``figsize``: width and height of the whole figure, inches. ``cmap``: name
    of a matplotlib colour map, or one.

    NaN is drawn grey, infinities take the end colours, and panels that are constant to rounding are drawn against
    zero, so that their value stands on the colour bar. A panel with more than 2 000 cells along an axis is reduced to
    about two cells a pixel, each showing the largest entry of its block: single high weights stay visible, and the
    bar keeps the limits of the whole matrix. Panels are images, in SVG and PDF too.

    Returns a matplotlib ``Figure``, made without pyplot: it is nobody's to close.
    Raises InputError for another number of axes, empty panels, titles that match neither columns nor panels, and more
    than 100 panels; KindError for entries that are no real numbers.
    Cost: time and memory of one copy of the matrices.

    >>> import numpy as np
    >>> figure = show_heatmaps(np.eye(10), xlabel="Keys", ylabel="Queries")
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['Queries', '']

    Source: the picture of attention weights in Bahdanau, Cho and Bengio 2015, figure 3.
    """
    panels = _read_panels(matrices)
    rows, columns = panels.shape[:2]
    names = _read_titles(titles, rows, columns)
    low, high = _limits(panels)
    figure = new_figure(_read_size(figsize), "compressed")
    grid = figure.subplots(rows, columns, sharex="col", sharey="row", squeeze=False)
    room = figsize[0] / columns * DPI, figsize[1] / rows * DPI
    _frame(grid, panels.shape[2:], room)
    style = {"vmin": low, "vmax": high, "cmap": _colours(cmap)}
    image = None
    for (i, j), axes in np.ndenumerate(grid):
        image = _draw(axes, panels[i, j], max(room), style)
        if names is not None and names[i][j] is not None:
            axes.set_title(names[i][j])
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    if image is not None:
        figure.colorbar(image, ax=grid, shrink=0.8)
    return figure


def answer_heatmap(
    weights: Any,
    *,
    xlabel: str = "Keys",
    ylabel: str = "Queries",
    titles: Sequence[Any] | None = None,
    figsize: tuple[float, float] | None = None,
    cmap: Any = "Reds",
) -> Figure:
    """Draw the weights (..., n, m) of an answer, one panel for each entry of the leading axes.

    The last leading axis runs along the columns, all others down the rows; weights (m,) of one query are one row of
    cells. ``figsize`` in inches; None gives each panel 2.5 by 2.5, and the figure at most 20 by 20. The rest is as in
    `show_heatmaps`, which also says what it raises and costs.

    >>> import numpy as np
    >>> figure = answer_heatmap(np.ones((3, 4, 2, 5)) / 5)
    >>> len(figure.axes), figure.get_size_inches().tolist()
    (13, [10.0, 7.5])

    Source: as `show_heatmaps`.
    """
    matrices = _to_array(weights)
    if matrices.ndim == 1:
        matrices = matrices[None]
    if matrices.ndim > 4:
        matrices = matrices.reshape(-1, *matrices.shape[-3:])
    if figsize is None and matrices.ndim >= 2:
        rows, columns = (1, 1, *matrices.shape[:-2])[-2:]
        figsize = (min(20.0, 2.5 * max(columns, 1)), min(20.0, 2.5 * max(rows, 1)))
    return show_heatmaps(matrices, xlabel, ylabel, titles, figsize or (2.5, 2.5), cmap)


def new_figure(size: tuple[float, float], layout: Literal["compressed", "constrained"] | None = None) -> Figure:
    """An empty figure of a width and a height in inches, made without pyplot, that notebooks know how to show."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    # Without pyplot no notebook knows how to show a figure; an instance attribute is where IPython looks next.
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010 (Figure does not declare it)
    return figure


def _png(figure: Figure) -> bytes:
    """The figure as a notebook shows it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=1.5 * DPI)
    return buffer.getvalue()


def _to_array(matrices: Any) -> np.ndarray:
    """A float array that shares nothing with the caller's graph; float32 unless it came in float64."""
    if isinstance(matrices, Tensor):
        tensor = matrices.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            tensor = tensor.to(torch.float32)
        matrices = tensor.cpu().numpy()
    elif isinstance(matrices, list | tuple):
        matrices = _stack([_to_array(part) for part in matrices])
    if isinstance(matrices, np.ma.MaskedArray):
        matrices = np.where(np.ma.getmaskarray(matrices), np.nan, matrices.data)
    array = np.asarray(matrices)
    if array.dtype.kind not in "fiub":
        raise KindError(f"matrices hold {array.dtype} but a heatmap needs real numbers: convert them to float")
    keep = array.dtype in (np.float32, np.float64)
    return array if keep else array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise InputError(
            f"matrices hold parts of shapes {first} and {second}: all panels of one call must have the same queries "
            "and keys; draw the others in a call of their own"
        )
    return np.stack(parts) if parts else np.zeros(0)


def _read_panels(matrices: Any) -> np.ndarray:
    """(rows, columns, queries, keys), every axis at least 1 long."""
    array = _to_array(matrices)
    if array.ndim not in (2, 3, 4):
        raise InputError(
            f"matrices have shape {array.shape} but show_heatmaps takes (rows, columns, queries, keys), "
            "(columns, queries, keys) or (queries, keys): add or index away axes"
        )
    panels = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if 0 in panels.shape:
        raise InputError(
            f"matrices have shape {array.shape}, which has nothing to draw: each of rows, columns, queries and keys "
            "must be at least 1"
        )
    rows, columns = panels.shape[:2]
    if rows * columns > MAX_PANELS:
        raise InputError(
            f"matrices have shape {array.shape}, that is {rows * columns} panels, but at most {MAX_PANELS} are drawn: "
            "choose some, as in matrices[:2, :8], or average over an axis"
        )
    return panels


def _read_titles(titles: Sequence[Any] | None, rows: int, columns: int) -> list[list[str | None]] | None:
    """What stands over each panel: one title a column stands over the first row."""
    if titles is None:
        return None
    flat: list[Any] = []
    if not isinstance(titles, str):
        for title in titles:
            flat.extend(title if isinstance(title, list | tuple) else [title])
    words: list[str | None] = [str(title) for title in flat]
    if len(words) == rows * columns:
        return [words[i * columns : (i + 1) * columns] for i in range(rows)]
    if len(words) == columns:
        return [words] + [[None] * columns for _ in range(rows - 1)]
    got = f"the text {titles!r}" if isinstance(titles, str) else f"{len(words)}"
    raise InputError(
        f"titles must be a list with one title for each of the {columns} columns, or one for each of the "
        f"{rows * columns} panels, got {got}"
    )


def _read_size(figsize: tuple[float, float]) -> tuple[float, float]:
    size = tuple(figsize) if isinstance(figsize, list | tuple) else ()
    if len(size) != 2 or not all(isinstance(x, int | float) and 0 < x < math.inf for x in size):
        raise InputError(f"figsize must be a width and a height in inches, both above 0, got {figsize!r}")
    return size


def _colours(cmap: Any) -> Any:
    import matplotlib

    try:
        colours = matplotlib.colormaps.get_cmap(cmap)
    except (ValueError, TypeError):
        raise InputError(
            f"cmap must be a matplotlib colour map or the name of one, such as 'Reds' or 'viridis', got {cmap!r}"
        ) from None
    return colours.with_extremes(bad=MISSING)


def _limits(panels: np.ndarray) -> tuple[float, float]:
    """The ends of the colour bar."""
    finite = np.isfinite(panels)
    if not finite.any():
        return 0.0, 1.0
    low, high = float(panels.min(where=finite, initial=np.inf)), float(panels.max(where=finite, initial=-np.inf))
    # A spread of rounding errors is no picture: it would stretch noise over the whole map.
    if high - low > 1e-6 * max(abs(low), abs(high)):
        return low, high
    if low == high == 0:
        return 0.0, 1.0
    return min(low, 0.0), max(high, 0.0)


def _frame(grid: np.ndarray, shape: tuple[int, ...], room: tuple[float, float]) -> None:
    """Limits and ticks, once for each row and column: setting a shared axis visits all that share it."""
    from matplotlib.ticker import MaxNLocator

    queries, keys = shape
    wide = 16 * len(str(keys))  # pixels of the longest label with as much space beside it
    across, down = (max(1, min(5, int(pixels))) for pixels in (room[0] / wide, room[1] / 24))
    for axes in grid[-1]:
        axes.set_xlim(-0.5, keys - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=across, integer=True, min_n_ticks=1))
    for axes in grid[:, 0]:
        axes.set_ylim(queries - 0.5, -0.5)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=down, integer=True, min_n_ticks=1))
    for axes in grid.flat:
        axes.set_autoscale_on(False)


def _draw(axes: Any, panel: np.ndarray, pixels: float, style: dict[str, Any]) -> Any:
    cells, steps = _reduce(panel, pixels)
    longest, shortest = max(panel.shape), min(panel.shape)
    return axes.imshow(
        np.clip(cells, style["vmin"], style["vmax"]),
        extent=(-0.5, cells.shape[1] * steps[1] - 0.5, cells.shape[0] * steps[0] - 0.5, -0.5),
        aspect="equal" if longest <= 4 * shortest else "auto",
        interpolation="nearest" if max(cells.shape) <= pixels else "auto",  # "auto" would blur cells of a few pixels
        **style,
    )


def _reduce(panel: np.ndarray, pixels: float) -> tuple[np.ndarray, list[int]]:
    """The largest entry of each block of an axis that is too long, and how long the blocks are."""
    wanted = int(min(MAX_CELLS, max(2 * pixels, 200)))
    steps = [-(-size // wanted) if size > MAX_CELLS else 1 for size in panel.shape]
    for axis, step in enumerate(steps):
        if step > 1:  # fmax passes over NaN where a block has a number
            panel = np.fmax.reduceat(panel, np.arange(0, panel.shape[axis], step), axis=axis)
    return panel, steps
