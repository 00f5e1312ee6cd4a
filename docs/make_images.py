"""Draw the pictures of README.md and docs/: python docs/make_images.py [FOLDER], by default docs/images.

The heatmaps and fits are drawn by the code blocks of queries_keys_values.md and smoothing.md, the picture of a
prediction by those of predict_and_see_why.md; this script runs those pages in the folder.
The two drawings in SVG are made here, from answers of the library.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from blocks import run_page

import attendb as ad
from attendb.demo import Report, run_demo

HERE = Path(__file__).resolve().parent
PAGES = ("queries_keys_values.md", "smoothing.md", "predict_and_see_why.md")
INK, FAINT, PAPER = "#222222", "#8a8a8a", "#ffffff"


class Drawing:
    """Boxes, words and arrows, written as SVG; lengths in pixels."""

    def __init__(self, width: int, height: int, title: str):
        self.size = width, height
        self.parts = [f"<title>{escape(title)}</title>", f'<rect width="{width}" height="{height}" fill="{PAPER}"/>']

    def words(self, x: float, y: float, text: str, *, anchor: str = "middle", size: int = 14, fill: str = INK) -> None:
        style = f'text-anchor="{anchor}" font-size="{size}" fill="{fill}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, text: str, *, fill: str = PAPER) -> None:
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{FAINT}"/>')
        self.words(x + width / 2, y + height / 2 + 5, text, fill=PAPER if is_dark(fill) else INK)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, tip: bool = True) -> None:
        head = ' marker-end="url(#tip)"' if tip else ""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{FAINT}"{head}/>')

    def save(self, path: Path) -> None:
        width, height = self.size
        tip = (
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Helvetica, Arial, sans-serif">'
        )
        path.write_text("\n".join([head, f"<defs>{tip}</defs>", *self.parts, "</svg>"]) + "\n", encoding="utf-8")


def red(weight: float) -> str:
    """White for 0, dark red for 1."""
    share = min(1.0, max(0.0, weight))
    return "#" + "".join(f"{round(255 + share * (end - 255)):02x}" for end in (165, 15, 21))


def is_dark(colour: str) -> bool:
    return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) < 400


def draw_pooling(path: Path) -> None:
    """A query, five keys, their weights, their values and the answer."""
    temperatures, outputs = [10.0, 18.0, 22.0, 26.0, 33.0], [478.0, 462.0, 452.0, 443.0, 433.0]
    answer = ad.attend([[21.0]], temperatures, outputs, score=ad.Gaussian(3.0))
    picture = Drawing(760, 330, "Queries, keys, values and attention pooling")
    for x, title, small in (
        (75, "query", "q"),
        (255, "keys", "k"),
        (415, "weights", "α(q, k)"),
        (555, "values", "v"),
        (695, "answer", "Σ α v"),
    ):
        picture.words(x, 26, title, size=16)
        picture.words(x, 45, small, fill=FAINT)
    picture.box(30, 162, 90, 36, "21 °C")
    picture.box(645, 162, 100, 36, f"{answer.value.item():.1f} MW")
    for row, (key, weight, value) in enumerate(zip(temperatures, answer.weights()[0], outputs, strict=True)):
        y = 62 + 50 * row
        picture.line(122, 180, 208, y + 18)
        picture.box(210, y, 90, 36, f"{key:g} °C")
        picture.line(302, y + 18, 368, y + 18)
        picture.box(370, y, 90, 36, f"{weight:.3f}", fill=red(weight))
        picture.words(482, y + 23, "×")
        picture.box(505, y, 100, 36, f"{value:g} MW")
        picture.line(607, y + 18, 633, 180, tip=False)
    picture.line(633, 180, 644, 180)
    picture.words(335, 322, "score a(q, k)  →  weighting", fill=FAINT)
    picture.save(path)


def draw_explanation(path: Path, report: Report) -> None:
    """One answer of the demo, and the stored hours that it came from."""
    example = report.example
    names = [*example.asked, "weight", report.value]
    units = [report.units.get(name, "") for name in names]
    height = 150 + 40 * len(example.rows)
    picture = Drawing(760, height, "One answer of the power plant demo and the hours that it came from")
    left = [150 + 98 * i for i in range(len(names))]

    def row_of_cells(y: float, title: str, cells: Sequence[str], shade: float = 0.0) -> None:
        picture.words(12, y + 21, title, anchor="start", fill=FAINT)
        for x, name, cell in zip(left, names, cells, strict=True):
            if cell:
                picture.box(x, y, 92, 32, cell, fill=red(shade) if name == "weight" else PAPER)

    for x, name, unit in zip(left, names, units, strict=True):
        picture.words(x + 46, 22, name)
        picture.words(x + 46, 39, unit, size=12, fill=FAINT)
    asked = [f"{number:g}" for number in example.asked.values()]
    row_of_cells(48, "query: one hour", [*asked, "", "?"])
    strongest = max(row.weight for row in example.rows)
    for place, row in enumerate(example.rows):
        cells = [f"{number:g}" for number in row.columns.values()]
        shown = [*cells, f"{row.weight:.1%}", f"{row.value:g}"]
        row_of_cells(96 + 40 * place, f"stored hour {row.line}", shown, shade=0.8 * row.weight / strongest)
    last = 106 + 40 * len(example.rows)
    row_of_cells(last, "answer", [*[""] * len(asked), f"{example.captured:.0%} shown", f"{example.answer:.5g}"])
    picture.words(left[0], last + 21, f"in truth the plant gave {example.truth:.5g} {units[-1]}", anchor="start")
    picture.save(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        for page in PAGES:
            run_page(HERE / page)
    draw_pooling(folder / "pooling.svg")
    with tempfile.TemporaryDirectory() as scratch:
        report = run_demo(out=Path(scratch) / "heatmap.png")
    draw_explanation(folder / "power_plant.svg", report)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images")
