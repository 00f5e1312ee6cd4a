"""`attendb demo`: what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app, examples
from .printing import print_json, progress

SHOWN_COLUMNS = 5  # of an explained answer: more would not fit a terminal


@app.command(epilog=examples("attendb demo --table houses.csv --value price --out weights.png"))
def demo(
    table: Annotated[Path | None, typer.Option(help="CSV file to use in place of the power plant.")] = None,
    value: Annotated[str | None, typer.Option(help="Numeric column to answer; the other ones are the key.")] = None,
    out: Annotated[Path, typer.Option(help="Where the heatmap goes: .png, .svg or .pdf.")] = Path("heatmap.png"),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Chooses held-out rows and mini-batches.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of words.")] = False,
) -> None:
    """Learn how near is near in each column, answer rows that were held out, and explain one answer."""
    from ..demo import run_demo

    with progress("learning bandwidths") as on_step:
        report = run_demo(table, value, out=out, seed=seed, on_step=on_step)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)


def _print_report(report: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    unit = f" {report.units[report.value]}" if report.value in report.units else ""
    plant = report.table == "power_plant"
    row = "hour" if plant else "row"
    console.print(
        "Combined Cycle Power Plant (UCI 294, Tüfekci and Kaya 2014, CC BY 4.0)" if plant else report.table,
    )
    console.print(f"{report.stored:,} {row}s are stored: key = {', '.join(report.bandwidth)}; value = {report.value}.")
    console.print(f"{report.held_out:,} other {row}s were held out: they ask for their {report.value}.")
    for name, reason in report.left_out.items():
        console.print(f"Column {name!r} is not used: {reason}.")
    if report.skipped_lines:
        shown = ", ".join(map(str, report.skipped_lines[:5])) + (", …" if len(report.skipped_lines) > 5 else "")
        console.print(f"Rows skipped because a number is missing: {len(report.skipped_lines):,} (line {shown}).")
    console.print(_errors_table(report, row, unit))
    console.print(_bandwidth_table(report, row))
    _print_example(console, report.example, report, row, unit)
    console.print(
        f"\n{report.heatmap}: each line of cells is a held-out {row}, each column a group of stored {row}s, both from"
        f" low to high {report.value};\ndark is where the weight went. A dark diagonal: {row}s of about the same"
        f" {report.value} gave the answers.",
    )
    console.print(f"{report.seconds:.1f} seconds.")


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name.startswith("what") else "right", no_wrap=i == 0)
    return table


def _errors_table(report: Any, row: str, unit: str) -> Any:
    table = _table(
        f"\nError on the held-out {row}s (RMSE: the typical size of an error{',' * bool(unit)}{unit})",
        "answer",
        "RMSE",
        "what it is",
    )
    words = {
        "attention": ("attention, learned", f"mean of all stored {row}s, near ones weighted more, as learned below"),
        "nearest_5": (f"5 nearest {row}s", "their plain mean; every column divided by its standard deviation"),
        "average": (f"average of all {row}s", "the same answer to every query"),
    }
    for name, (short, long) in words.items():
        table.add_row(short, f"{report.rmse[name]:.4g}{unit}", long)
    return table


def _bandwidth_table(report: Any, row: str) -> Any:
    table = _table(
        "\nBandwidths: the difference in a column that counts as one step away",
        "column",
        "start",
        "learned",
        "what changed",
    )
    for name, learned in report.bandwidth.items():
        start, unit = report.start[name], f" {report.units[name]}" if name in report.units else ""
        ratio = learned / start
        if 0.8 <= ratio <= 1.25:
            change = "about as it was"
        else:
            change = f"{row}s must agree {1 / ratio:.1f} × closer" if ratio < 1 else f"matters {ratio:.1f} × less"
        table.add_row(name, f"{start:.3g}{unit}", f"{learned:.3g}{unit}", change)
    return table


def _print_example(console: Any, example: Any, report: Any, row: str, unit: str) -> None:
    decisive = sorted(report.bandwidth, key=lambda name: report.bandwidth[name] / report.start[name])[:SHOWN_COLUMNS]
    shown = [name for name in report.bandwidth if name in decisive]
    asked = ", ".join(f"{name} {example.asked[name]:g}" for name in shown)
    hidden = len(report.bandwidth) - len(shown)
    rest = f", and {hidden} columns that decide less" if hidden else ""
    table = _table(
        f"\nOne answer explained (line {example.line} of the table, the median error): {asked}{rest}",
        "stored " + row,
        "weight",
        *shown,
        report.value,
    )
    for part in example.rows:
        cells = [f"{part.columns[name]:g}" for name in shown]
        table.add_row(f"line {part.line}", f"{part.weight:.1%}", *cells, f"{part.value:g}")
    console.print(table)
    console.print(
        f"Answer {example.answer:.5g}{unit}, truth {example.truth:.5g}{unit}. These {len(example.rows)} {row}s carry"
        f" {example.captured:.0%} of the weight, all the others together {1 - example.captured:.0%}."
    )
