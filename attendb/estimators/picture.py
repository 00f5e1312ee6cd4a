"""The picture of one prediction: the answer, the rows that it came from, and what kept them apart from the query.

A face: all numbers come from `explaining`. Figures are made without pyplot, as in `attendb.plots`; pages are single
files of HTML that fetch nothing and run nothing. Names and texts come from files of strangers: they are escaped in
pages, and never read as formulas in figures.
"""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..plots import new_figure
from .explaining import Explanation, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 7  # of a figure; more would not be read
LETTERS = 16  # of a cell of a figure, which is the length of a date with its time
FULL = 12  # letters of the usual size that fit into a cell; more are smaller
WIDTH, HEIGHT = 1.25, 0.36  # of a cell, inches
LABELS, WEIGHTS = 1.6, 1.6  # widths of the first column and of that of the weights, in cells
INK, FAINT, LINE = "#222222", "#6b6b6b", "#d9d9d9"
WEIGHT, APART, NEARER = "#2b6cb0", (203, 24, 29), (33, 113, 181)  # of bars; of cells that keep a row apart, or near
BROUGHT = "What a row brings: its own value, corrected for the difference between it and the query."
ENDS = (".html", ".png", ".svg", ".pdf")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(value: Any) -> str:
    """A cell in words: numbers in six digits, dates without zeros of a clock, what is missing as a dash, control
    characters as escapes."""
    if value is None or isinstance(value, float) and math.isnan(value) or str(value) in ("<NA>", "NaT"):
        return "–"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if isinstance(value, datetime) and text.endswith(" 00:00:00"):
        text = text.removesuffix(" 00:00:00")
    elif isinstance(value, datetime) and text.endswith(":00") and value.tzinfo is None:
        text = text.removesuffix(":00")
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def answer_in_words(explained: Explanation) -> str:
    """The answer with its interval, or with the share of the weight that stands behind a class."""
    words = f"{shown(explained.value)}: {shown(explained.answer)}"
    if explained.interval is not None:
        low, high = explained.interval
        words += f"  ({explained.level:.0%} interval {low:.6g} to {high:.6g})"
    if explained.probability is not None:
        words += f"  (probability {explained.probability:.0%})"
    return words


def carried(explained: Explanation) -> str:
    """How much of the weight the rows that are shown have."""
    n = len(explained.rows)
    if not n:
        return "no row has weight"
    rows = "this row carries" if n == 1 else f"these {n} rows carry"
    return f"{rows} {explained.captured:.0%} of the weight"


def legend(explained: Explanation) -> str:
    """What the shades of the cells mean."""
    words = "The darker a red cell, the more this column keeps the row apart from the query"
    if any(change < 0 for row in explained.rows for change in row.changes.values()):
        words += "; blue: this difference makes up for others"
    return words + "."


# Figures


def draw(explained: Explanation) -> Figure:
    """The table of the query and its rows: a bar for each weight, a shade for each cell."""
    columns = explained.decisive(COLUMNS)
    corrected = any(row.brings is not None for row in explained.rows)
    cells = LABELS + len(columns) + WEIGHTS + 1 + corrected
    lines = len(explained.rows) + (7.2 if corrected else 6.5)
    figure = new_figure((max(6.0, cells * WIDTH), lines * HEIGHT))
    axes: Axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_axis_off()
    axes.set_xlim(0, cells)
    axes.set_ylim(lines, 0)
    _say(axes, 0.05, 0.7, answer_in_words(explained), size=13, weight="bold")
    at = {name: LABELS + i for i, name in enumerate(columns)}
    bars = LABELS + len(columns)
    heads = [*((name, x + 0.5) for name, x in at.items()), ("weight", bars + WEIGHTS / 2)]
    heads += [(explained.value, bars + WEIGHTS + 0.5)] + [("it brings", bars + WEIGHTS + 1.5)] * corrected
    for name, x in heads:
        _say(axes, x, 1.9, name, anchor="center", colour=FAINT)
    _say(axes, 0.05, 2.9, "asked")
    for name, x in at.items():
        _box(axes, x, 2.4)
        _say(axes, x + 0.5, 2.9, explained.asked[name], anchor="center", weight="bold")
    top = explained.largest_change
    for i, row in enumerate(explained.rows):
        y = 3.7 + i
        _say(axes, 0.05, y + 0.5, row.name)
        for name, x in at.items():
            _box(axes, x, y, _shade(row.changes[name], top))
            _say(axes, x + 0.5, y + 0.5, row.columns[name], anchor="center")
        _bar(axes, bars, y, row.weight, explained.largest_weight)
        _say(axes, bars + WEIGHTS + 0.5, y + 0.5, row.target, anchor="center")
        if row.brings is not None:
            _say(axes, bars + WEIGHTS + 1.5, y + 0.5, row.brings, anchor="center")
    y = 4.3 + len(explained.rows)
    hidden = len(explained.asked) - len(columns)
    more = f"; {hidden} columns that decide less are not shown" if hidden else ""
    _say(axes, 0.05, y, carried(explained) + more, size=9, whole=True)
    _say(axes, 0.05, y + 0.7, _apart(explained, columns), size=9, whole=True)
    _say(axes, 0.05, y + 1.4, legend(explained), size=9, colour=FAINT, whole=True)
    if corrected:
        _say(axes, 0.05, y + 2.1, BROUGHT, size=9, colour=FAINT, whole=True)
    return figure


def _apart(explained: Explanation, columns: Sequence[str]) -> str:
    """The share of each column in what keeps the rows apart from the query, the largest first."""
    shares = sorted(((explained.shares[name], name) for name in columns), key=lambda pair: -pair[0])
    parts = [f"{_cut(shown(name))} {share:.0%}" for share, name in shares if share >= 0.005]
    return "What keeps them apart: " + ", ".join(parts) if parts else "Nothing keeps them apart from the query"


def _say(
    axes: Axes,
    x: float,
    y: float,
    what: Any,
    *,
    anchor: Any = "left",
    size: float = 10,
    weight: str = "normal",
    colour: str = INK,
    whole: bool = False,
) -> None:
    text = shown(what)
    if not whole and size <= 10:
        text = _cut(text)
        size *= min(1.0, FULL / max(len(text), 1)) if anchor == "center" else 1.0
    style = {"fontsize": size, "fontweight": weight, "color": colour, "parse_math": False}  # $ is a letter here
    axes.text(x, y, text, ha=anchor, va="center", **style)


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _box(axes: Axes, x: float, y: float, fill: Any = "white") -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, facecolor=fill, edgecolor=LINE, linewidth=0.8))


def _bar(axes: Axes, x: float, y: float, weight: float, largest: float) -> None:
    from matplotlib.patches import Rectangle

    room = WEIGHTS - 0.75
    long = room * weight / largest if weight > 0 else 0.0
    axes.add_patch(Rectangle((x + 0.1, y + 0.2), long, 0.6, facecolor=WEIGHT, linewidth=0))
    _say(axes, x + 0.17 + long, y + 0.5, f"{weight:.1%}")


def _mixed(change: float, top: float) -> tuple[float, float, float]:
    """White where nothing changes, three quarters of the colour at the largest change: black text stays readable."""
    share = 0.75 * min(1.0, abs(change) / top) if top > 0 and math.isfinite(change) else 0.0
    red, green, blue = (255 - share * (255 - part) for part in (APART if change > 0 else NEARER))
    return red, green, blue


def _shade(change: float, top: float) -> tuple[float, float, float]:
    red, green, blue = _mixed(change, top)
    return red / 255, green / 255, blue / 255


# Pages

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
h1 { font-size: 1.35rem } section { margin-bottom: 2.5rem } .table { overflow-x: auto }
table { border-collapse: collapse; white-space: nowrap } th { color: #6b6b6b; font-weight: 500 }
th, td { padding: .3rem .6rem; border: 1px solid #d9d9d9; text-align: right } th:first-child { text-align: left }
tr.asked td { font-weight: 600 } .bar { display: inline-block; height: .7rem; background: #2b6cb0; margin-right: .4rem }
p.small { color: #6b6b6b; font-size: .87rem; margin: .35rem 0 }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # the browser fetches nothing and runs nothing


def page(explanations: Sequence[Explanation], title: str = "Where the answer came from") -> str:
    """One file of HTML with the table of every prediction; all columns are there, and numbers stand behind shades."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(map(_section, explanations)) + "\n</body>\n</html>\n"


def _escaped(value: Any) -> str:
    return html.escape(shown(value), quote=True)


def _isolated(value: Any) -> str:
    """Text that is read from right to left turns nothing around it."""
    return f"<bdi>{_escaped(value)}</bdi>"


def _section(explained: Explanation) -> str:
    columns = explained.decisive(len(explained.asked))
    corrected = any(row.brings is not None for row in explained.rows)
    heads = [*columns, "weight", explained.value, *["it brings"] * corrected]
    asked = [f"<td>{_isolated(explained.asked[name])}</td>" for name in columns]
    lines = [
        f"<tr><th></th>{''.join(f'<th>{_isolated(name)}</th>' for name in heads)}</tr>",
        f'<tr class="asked"><th>asked</th>{"".join(asked)}</tr>',
        *(_line(row, columns, explained) for row in explained.rows),
        _shares_line(explained, columns),
    ]
    notes = [carried(explained) + ".", legend(explained) + " Point at a cell for its number: how much the score "
             "of the row would rise if the query had this cell's value."]  # fmt: skip
    if corrected:
        notes.append(BROUGHT)
    small = "\n".join(f'<p class="small">{_escaped(text)}</p>' for text in notes)
    table = '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"
    return f"<section>\n<h1>{_isolated(answer_in_words(explained))}</h1>\n{table}\n{small}\n</section>"


def _line(row: Row, columns: Sequence[str], explained: Explanation) -> str:
    cells = []
    for name in columns:
        colour = ",".join(f"{part:.0f}" for part in _mixed(row.changes[name], explained.largest_change))
        tip = f"{row.changes[name]:+.3g}"
        cells.append(f'<td style="background:rgb({colour})" title="{tip}">{_isolated(row.columns[name])}</td>')
    width = 6 * row.weight / explained.largest_weight if row.weight > 0 else 0.0
    bar = f'<td><span class="bar" style="width:{width:.3f}rem"></span>{row.weight:.1%}</td>'
    last = f"<td>{_isolated(row.target)}</td>" + (f"<td>{_isolated(row.brings)}</td>" if row.brings is not None else "")
    return f"<tr><th>{_isolated(row.name)}</th>{''.join(cells)}{bar}{last}</tr>"


def _shares_line(explained: Explanation, columns: Sequence[str]) -> str:
    cells = "".join(f"<td>{explained.shares[name]:.0%}</td>" for name in columns)
    return f'<tr><th title="of what keeps the rows apart from the query">keeps apart</th>{cells}</tr>'


def write(explanations: Sequence[Explanation], path: str | PathLike[str]) -> None:
    """Write a page of all predictions (.html), or the figure of one (.png, .svg, .pdf)."""
    place = check_end(path)
    if place.suffix.lower() == ".html":
        place.write_text(page(explanations), encoding="utf-8")
        return
    figure = draw(one(explanations))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters that the font lacks are drawn as boxes
        figure.savefig(place, dpi=150)


def check_end(path: str | PathLike[str]) -> Path:
    """The path, when its end names a kind of picture."""
    place = Path(path)
    if place.suffix.lower() not in ENDS:
        raise InputError(f"{place} cannot be written: end its name in {', '.join(ENDS)}")
    return place


def one(explanations: Sequence[Explanation]) -> Explanation:
    """The explanation, when there is one alone."""
    if len(explanations) != 1:
        raise InputError(f"a figure shows one prediction, got {len(explanations)} rows: give one, or a page (.html)")
    return explanations[0]
