"""One prediction explained: its rows, their weights, and what each column does to their likeness to the query.

The effect of column c on row i is the change of the score a when the query takes the row's value in that column:

    change_ic = a(q with c from row i, k_i) − a(q, k_i)

It is in units of the score, so a row whose change is 1 would weigh e times as much beside the others. For the
similarity "bandwidth" it is ½ ((q_c − k_ic) / h_c)², a part of the scaled squared distance; for learned ones columns
act together, and a change may be negative: there the difference itself speaks for the row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .encoding import Encoder, Rows
from .tables import read_table

if TYPE_CHECKING:
    from .classifier import AttentionClassifier
    from .regressor import AttentionRegressor


@dataclass(frozen=True)
class Row:
    """A training row behind an answer: its weight, its columns and what they change, and its own value.

    ``brings``: the value corrected for the difference between row and query, where the similarity corrects.
    """

    name: str
    weight: float
    target: Any
    columns: Mapping[str, Any]
    changes: Mapping[str, float]
    brings: float | None = None


@dataclass(frozen=True)
class Explanation:
    """One answer: what was asked, the rows of highest weight, and an interval or a probability where there is one."""

    value: str  # the name of what is predicted
    answer: Any
    asked: Mapping[str, Any]
    rows: Sequence[Row]
    interval: tuple[float, float] | None = None
    level: float = 0.9
    probability: float | None = None

    @property
    def captured(self) -> float:
        """The share of the weight that the rows have."""
        return sum(row.weight for row in self.rows)

    @property
    def largest_weight(self) -> float:
        """The weight of the heaviest row."""
        return max((row.weight for row in self.rows), default=0.0)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Of each column in what keeps the rows apart from the query: Σ_i α_i max(0, change_ic), made to sum to 1."""
        apart = {
            name: sum(row.weight * max(0.0, _number(row.changes[name])) for row in self.rows) for name in self.asked
        }
        total = sum(apart.values())
        return {name: x / total if total > 0 else 0.0 for name, x in apart.items()}

    @property
    def largest_change(self) -> float:
        """The largest change of a score, of either sign."""
        return max((abs(_number(x)) for row in self.rows for x in row.changes.values()), default=0.0)

    def decisive(self, most: int) -> list[str]:
        """At most so many columns, those with the largest shares, in their own order."""
        best = sorted(self.asked, key=lambda name: -self.shares[name])[:most]
        return [name for name in self.asked if name in best]


def explanations(
    model: AttentionRegressor | AttentionClassifier,
    X: Any,
    *,
    top: int = 5,
    value: str | None = None,
    level: float | None = None,
    names: Sequence[Any] | None = None,
) -> list[Explanation]:
    """Every row of ``X`` (n, columns), predicted and explained by its ``top`` heaviest training rows.

    ``value``: what the predicted column is called; one of several targets, where the model has several. ``level``: of
    an interval that stands beside the answer, for a regressor. ``names``: what the training rows are called, one each;
    None: "row" and the position.
    Raises as `predict` does; InputError where several targets leave it open which one is meant, and for too many or too
    few names.
    Cost: that of `predict` and of `explain`, and n · top · columns embedded rows.
    """
    found = model.explain(X, top=top)
    table, past = read_table(model, X, reset=False), model.table_
    if names is not None and len(names) != len(past):
        raise InputError(f"names has {len(names)} names but the model has {len(past)} training rows: give one for each")
    name, target = _target(model, value)
    answers = np.asarray(model.predict(X))
    answers = answers if answers.ndim == 1 else answers[:, target]
    at, rows = found["query"].to_numpy(copy=True), found["row"].to_numpy(copy=True)
    changes, brings = _compared(model, table, at, rows, target)
    own = found.iloc[:, 4 + target].tolist()
    columns = [str(column) for column in past.columns]
    interval = probability = None
    if model._classes:
        probability = cast("AttentionClassifier", model).predict_proba(X).max(1)
    elif level is not None:
        interval = cast("AttentionRegressor", model).predict_interval(X, level=level).reshape(len(table), -1, 2)
    cells, cases = ([dict(zip(columns, row, strict=True)) for row in _cells(x)] for x in (table, past.iloc[rows]))
    made = [
        Row(
            f"row {row}" if names is None else str(names[row]),
            weight,
            own[i],
            cases[i],
            dict(zip(columns, changes[i], strict=True)),
            None if brings is None else brings[i],
        )
        for i, (row, weight) in enumerate(zip(rows.tolist(), found["weight"].tolist(), strict=True))
    ]
    return [
        Explanation(
            name,
            answers[i].item() if hasattr(answers[i], "item") else answers[i],
            cells[i],
            [made[j] for j in np.flatnonzero(at == i)],
            interval=None if interval is None else tuple(interval[i, target].tolist()),
            level=level or 0.9,
            probability=None if probability is None else float(probability[i]),
        )
        for i in range(len(table))
    ]


def _target(model: AttentionRegressor | AttentionClassifier, value: str | None) -> tuple[str, int]:
    """What is predicted: its name, and which of the targets it is."""
    names: list[str] = getattr(model, "_names", ["value"])
    if len(names) == 1:
        return value or names[0], 0
    if value not in names:
        raise InputError(f"the model has the targets {', '.join(names)}: say which one with value=, got {value!r}")
    return value, names.index(value)


def _cells(table: Any) -> list[list[Any]]:
    """The cells of a frame, row by row, as Python has them."""
    columns = [table.iloc[:, j].tolist() for j in range(table.shape[1])]
    return [list(row) for row in zip(*columns, strict=True)]


def _compared(
    model: AttentionRegressor | AttentionClassifier, table: Any, at: np.ndarray, rows: np.ndarray, target: int
) -> tuple[list[list[float]], list[float] | None]:
    """For pairs of query and row: the changes (pairs, columns) of the score, and what each row brings.

    A row brings y_i + g(x) − g(x_i) + T(φ(x) − φ(x_i)), where the similarities correct votes; the mean of several.
    """
    encoder: Encoder = model.encoder_
    asked = encoder.encode(table, missing=model.missing).take(torch.from_numpy(at))
    there = encoder.encode(model.table_.iloc[rows].reset_index(drop=True), missing=model.missing)
    pairs, p = len(at), len(encoder.parts)
    mixed = _mixed(encoder, asked, there)
    changes = torch.zeros(pairs, p, dtype=torch.float64)
    corrections: list[Tensor] = []
    with torch.no_grad():
        for member in model._members:
            keys, before = member.embed(there)
            queries, prior = member.embed(asked)
            swapped, _ = member.embed(mixed)
            both = torch.cat([queries[:, None], swapped.view(pairs, p, swapped.shape[1])], 1)
            scores = member.similarity.score(both, keys[:, None])[..., 0].double()
            changes += (scores[:, 1:] - scores[:, :1]) / len(model._members)
            if prior is not None and before is not None and not model._classes:
                moved = member.moved(queries[:, None], keys[:, None])[:, 0] if member.similarity.neighbours else 0.0
                corrections.append((prior - before + moved)[:, target])
    if not corrections:
        return changes.tolist(), None
    own = model._members[0].targets[torch.from_numpy(rows), target]
    brought = (own + torch.stack(corrections).mean(0)) * model._scale[target] + model._centre[target]
    return changes.tolist(), brought.tolist()


def _mixed(encoder: Encoder, asked: Rows, there: Rows) -> Rows:
    """Each query once for every column, with the row's encoded cells in that column: (pairs · columns) rows."""
    pairs, p = len(asked), len(encoder.parts)
    numbers = asked.numbers[:, None].repeat(1, p, 1)
    codes = asked.codes[:, None].repeat(1, p, 1)
    number = code = 0
    for j, part in enumerate(encoder.parts):
        wide = len(part.numbers)
        numbers[:, j, number : number + wide] = there.numbers[:, number : number + wide]
        number += wide
        if part.name in encoder.levels and not wide:
            codes[:, j, code] = there.codes[:, code]
            code += 1
    return Rows(numbers.view(pairs * p, numbers.shape[2]), codes.view(pairs * p, codes.shape[2]))


def _number(x: float) -> float:
    return x if math.isfinite(x) else 0.0
