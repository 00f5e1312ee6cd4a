"""The demo: bandwidths learned by leaving one out, held-out rows answered, one answer explained, a heatmap.

It runs on the table that ships with the package, or on the numeric columns of any CSV file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .answer import Answer, Top
from .attention import attend
from .errors import InputError
from .importing.numeric import NumericTable, read_numeric_csv
from .plots import show_heatmaps
from .scores.base import Score
from .scores.distance import Euclidean, Gaussian
from .weightings.base import Pooling
from .weightings.selecting import TopK
from .weightings.softmax import Uniform

PLANT = {"temperature": "°C", "vacuum": "cm Hg", "pressure": "mbar", "humidity": "%", "output": "MW"}
PICTURES = (".png", ".svg", ".pdf")
LEAST_ROWS = 20
MOST_HELD_OUT = 2_000  # enough for an error with three digits
MOST_LEARNED_ON = 20_000  # rows that bandwidths are learned on, so that a large table takes minutes and not hours
STEPS, BATCH, RATE = 60, 256, 0.2  # of Adam; the rate falls to 0 along a half cosine
SHOWN_ROWS, SHOWN_QUERIES, SHOWN_GROUPS = 5, 60, 40


@dataclass(frozen=True, eq=False)
class Split:
    """A table cut in two: rows to answer from, and rows to be asked about."""

    names: tuple[str, ...]  # of the columns of the keys
    keys: Tensor  # (m, d) float64
    values: Tensor  # (m,)
    lines: np.ndarray  # (m,) of the file
    queries: Tensor  # (n, d)
    truth: Tensor  # (n,)
    query_lines: np.ndarray  # (n,)
    constant: tuple[str, ...]  # columns without any spread, which tell rows apart by nothing

    @property
    def spread(self) -> Tensor:
        """Standard deviation of each column of the keys."""
        return self.keys.std(0)


@dataclass(frozen=True)
class ExplainedRow:
    """A stored row and its part in an answer."""

    line: int
    weight: float
    columns: dict[str, float]
    value: float


@dataclass(frozen=True)
class Example:
    """One held-out row, its answer, and the rows that the answer came from."""

    line: int
    asked: dict[str, float]
    answer: float
    truth: float
    captured: float  # weight of the rows below, together
    rows: list[ExplainedRow]


@dataclass(frozen=True)
class Report:
    """What the demo found; `rmse` in the units of the value, `bandwidth` in those of its column."""

    table: str
    value: str
    stored: int
    held_out: int
    learned_on: int
    skipped_lines: list[int]
    left_out: dict[str, str]
    rmse: dict[str, float]  # "attention", "nearest_5", "average"
    start: dict[str, float]
    bandwidth: dict[str, float]
    example: Example
    heatmap: str
    seconds: float
    units: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return asdict(self)


def run_demo(
    table: str | Path | None = None,
    value: str | None = None,
    *,
    out: str | Path = "heatmap.png",
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Report:
    """Learn one Gaussian bandwidth per column of a table, answer held-out rows and explain one answer.

    answer(q) = Σ_i α_i v_i,  α = softmax(−½‖(q − k_i)/h‖²),  h = argmin Σ_i (answer without row i (k_i) − v_i)²

    ``table``: a CSV file (see `read_numeric_csv`); None is the power plant that ships with attendb. ``value``: the
    column to answer, all other numeric columns are the key. ``out``: where the heatmap goes, .png, .svg or .pdf.
    ``seed`` chooses the held-out rows and the mini-batches. ``on_step(done, total)`` is called as learning goes on.

    Raises InputError for a table or column that cannot serve, fewer than 20 rows, and a picture that cannot be written.
    Cost: 60 steps of 256 leave-one-out answers over at most 20 000 rows; some seconds on two cores.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> lines = "\\n".join(f"{i},{i * i}" for i in range(40))
    >>> _ = (folder / "squares.csv").write_text("side,area\\n" + lines)
    >>> report = run_demo(folder / "squares.csv", "area", out=folder / "weights.png")
    >>> report.rmse["attention"] < report.rmse["nearest_5"] < report.rmse["average"]
    True

    Source: Nadaraya 1964 and Watson 1964; leave-one-out: Härdle 1990, section 5.1.
    """
    begin = time.perf_counter()
    picture = _writable(Path(out))
    numbers, units = _read(table)
    value = _value_column(numbers, value, builtin=table is None)
    split = hold_out(numbers, value, seed=seed)
    start = split.spread * len(split.keys) ** (-1 / (split.keys.shape[1] + 4))
    score, learned_on = learn_bandwidth(split, start, seed=seed, on_step=on_step)
    answer = attend(split.queries, split.keys, split.values, score=score, top=SHOWN_ROWS)
    rmse = {"attention": _rmse(answer, split)} | _baselines(split)
    _draw_weights(split, score, value, picture)
    constant = dict.fromkeys(split.constant, "it is the same in every row")
    return Report(
        table="power_plant" if table is None else str(table),
        value=value,
        stored=len(split.keys),
        held_out=len(split.queries),
        learned_on=learned_on,
        skipped_lines=list(numbers.skipped),
        left_out=numbers.left_out | constant,
        rmse=rmse,
        start=dict(zip(split.names, start.tolist(), strict=True)),
        bandwidth=dict(zip(split.names, score.bandwidth.tolist(), strict=True)),
        example=_explain(split, answer),
        heatmap=str(picture),
        seconds=time.perf_counter() - begin,
        units=units,
    )


def hold_out(table: NumericTable, value: str, *, seed: int) -> Split:
    """Set a tenth of the rows aside, 2 000 at most, chosen by ``seed``; columns without spread are left out."""
    rows = torch.from_numpy(table.rows)
    if len(rows) < LEAST_ROWS:
        raise InputError(f"the table has {len(rows)} whole rows but the demo needs {LEAST_ROWS}: give a longer one")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    count = min(len(rows) // 10, MOST_HELD_OUT)
    asked, stored = order[:count], order[count:]
    target = rows[:, table.column(value)]
    varies = (rows[stored] != rows[stored[0]]).any(0)
    columns = [j for j, name in enumerate(table.names) if name != value and varies[j]]
    if not varies[table.column(value)]:
        raise InputError(f"column {value!r} is the same in every row: choose a value that varies")
    if not columns:
        raise InputError(f"no column is left beside {value!r} that varies: the keys need at least one")
    return Split(
        names=tuple(table.names[j] for j in columns),
        keys=rows[stored][:, columns],
        values=target[stored],
        lines=table.lines[stored.numpy()],
        queries=rows[asked][:, columns],
        truth=target[asked],
        query_lines=table.lines[asked.numpy()],
        constant=tuple(name for j, name in enumerate(table.names) if name != value and not varies[j]),
    )


def learn_bandwidth(
    split: Split, start: Tensor, *, seed: int, on_step: Callable[[int, int], None] | None = None
) -> tuple[Gaussian, int]:
    """The Gaussian score whose bandwidths answer each stored row best from the others, and the rows it learned on.

    A row must not answer itself: with its own key in the table, h → 0 would look perfect. It is excluded by position,
    so that another row with an equal key still counts.
    """
    keys, values = split.keys[:MOST_LEARNED_ON], split.values[:MOST_LEARNED_ON]
    generator = torch.Generator().manual_seed(seed)
    score = Gaussian(start, learn=True)
    adam = torch.optim.Adam(score.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    variance = values.var()
    for step in range(STEPS):
        batch = torch.randperm(len(keys), generator=generator)[:BATCH]
        answer = attend(keys[batch], keys, values, score=score, exclude=batch).value.reshape(-1)
        loss = (answer - values[batch]).square().mean() / variance
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        if on_step is not None:
            on_step(step + 1, STEPS)
    return Gaussian(score.bandwidth.detach()), len(keys)


def _baselines(split: Split) -> dict[str, float]:
    """What the same table answers without weights that were learned."""

    def error(score: Score, weighting: Pooling | TopK) -> float:
        return _rmse(attend(split.queries, split.keys, split.values, score=score, weighting=weighting), split)

    standardised = Euclidean(split.spread)
    return {
        "nearest_5": error(standardised, TopK(SHOWN_ROWS, then=Uniform())),
        "average": error(standardised, Uniform()),
    }


def _rmse(answer: Answer, split: Split) -> float:
    return float((answer.value.reshape(-1) - split.truth).square().mean().sqrt())


def _explain(split: Split, answer: Answer) -> Example:
    """The held-out row whose error is the median one: neither the best nor the worst."""
    values = answer.value.reshape(-1)
    row = int((values - split.truth).abs().argsort(stable=True)[len(values) // 2])
    top = cast(Top, answer.top)
    found = [int(p) for p in top.positions[row] if p >= 0]
    rows = [
        ExplainedRow(
            line=int(split.lines[p]),
            weight=float(weight),
            columns=dict(zip(split.names, split.keys[p].tolist(), strict=True)),
            value=float(split.values[p]),
        )
        for p, weight in zip(found, top.weights[row].tolist(), strict=False)
    ]
    return Example(
        line=int(split.query_lines[row]),
        asked=dict(zip(split.names, split.queries[row].tolist(), strict=True)),
        answer=float(values[row]),
        truth=float(split.truth[row]),
        captured=float(top.captured[row]),
        rows=rows,
    )


def _draw_weights(split: Split, score: Gaussian, value: str, picture: Path) -> None:
    """Where the weight of held-out rows goes, both sides in the order of the value.

    The weights are pooled over groups of stored rows by asking for them: the value of a row is then its group.
    """
    groups = min(SHOWN_GROUPS, len(split.keys))
    group = torch.empty(len(split.keys), dtype=torch.int64)
    group[split.values.argsort(stable=True)] = torch.arange(len(split.keys)) * groups // len(split.keys)
    order = split.truth.argsort(stable=True)
    shown = order[torch.linspace(0, len(order) - 1, min(SHOWN_QUERIES, len(order))).round().long()]
    indicator = torch.nn.functional.one_hot(group, groups).double()
    shares = attend(split.queries[shown], split.keys, indicator, score=score).value
    figure = show_heatmaps(
        shares,
        xlabel=f"Keys: stored rows in {groups} groups, by {value}",
        ylabel=f"Queries: held-out rows, by {value}",
        titles=["Share of the attention weight"],
        figsize=(6.0, 5.0),
    )
    try:
        figure.savefig(picture, dpi=150)
    except OSError as error:
        raise InputError(f"{picture} cannot be written ({error.strerror or error}): choose another --out") from None


def _writable(picture: Path) -> Path:
    """Found out before the work, not after it."""
    if picture.suffix.lower() not in PICTURES:
        raise InputError(f"the heatmap cannot be written as {str(picture)!r}: end its name in {', '.join(PICTURES)}")
    if not picture.parent.is_dir():
        raise InputError(f"the heatmap cannot be written into {str(picture.parent)!r}: there is no such folder")
    return picture


def _read(table: str | Path | None) -> tuple[NumericTable, dict[str, str]]:
    if table is not None:
        return read_numeric_csv(table), {}
    with as_file(files("attendb") / "data" / "power_plant.csv") as path:
        return read_numeric_csv(path), PLANT


def _value_column(table: NumericTable, value: str | None, *, builtin: bool) -> str:
    if value is None and builtin:
        return "output"
    if value is None:
        raise InputError(f"no column was named to answer: give --value, one of {', '.join(table.names)}")
    return table.names[table.column(value)]
