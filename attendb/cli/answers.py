"""Answers as words, as JSON and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from .printing import aligned, cell, note, print_json, result
from .queries import Queries
from .writing import write_rows

if TYPE_CHECKING:
    import pyarrow

SHOWN_COLUMNS = 8  # of an explained row, in words
PREFIX = "answer_"
BOUND = "answer_error_bound"


@dataclass
class Answers:
    """What every query got: value columns (n,) or (n, width), and which queries reached no row."""

    queries: Queries
    keys: tuple[str, ...]
    names: tuple[str, ...]  # of the value columns
    values: dict[str, Any] = field(default_factory=dict)
    empty: Any = None
    error_bound: Any = None
    captured: Any = None
    weights: Any = None  # (n, r) of the best rows
    rows: list[list[dict[str, Any]]] = field(default_factory=list)  # of each query, the best first

    def __len__(self) -> int:
        return len(self.empty)

    def of(self, i: int) -> dict[str, Any]:
        """The answer to query i; None where no row was in reach, or where it is text that nobody has."""
        return {name: None if self.empty[i] else _scalar(x[i]) for name, x in self.values.items()}

    def explained(self, i: int) -> list[dict[str, Any]]:
        """The best rows for query i, each with its weight before its columns."""
        return [
            {"id": row["id"], "weight": float(weight), "columns": {k: v for k, v in row.items() if k != "id"}}
            for row, weight in zip(self.rows[i], self.weights[i], strict=False)
        ]


def print_words(answers: Answers) -> None:
    """One query: the answer alone. Several: a table, the answers beside the queries. Then the rows behind them."""
    if answers.queries.single:
        found = answers.of(0)
        for name, value in found.items():
            result(cell(value) if len(found) == 1 else f"{name}  {cell(value)}")
    else:
        asked = answers.queries.table.select(list(answers.keys)).to_pylist()
        names = [*answers.keys, *(PREFIX + name for name in answers.values)]
        rows = [[*query.values(), *answers.of(i).values()] for i, query in enumerate(asked)]
        for line in aligned(names, rows):
            result(line)
    for i in range(len(answers.rows)):
        result("")
        if not answers.queries.single:
            asked = answers.queries.table.select(list(answers.keys)).slice(i, 1).to_pylist()[0]
            result(f"query {i + 1}: " + ", ".join(f"{name} {cell(value)}" for name, value in asked.items()))
        _print_explained(answers, i)


def _print_explained(answers: Answers, i: int) -> None:
    rows = answers.explained(i)
    if not rows:
        result("no row has weight")
        return
    first = [name for name in (*answers.keys, *answers.values) if name in rows[0]["columns"]]
    names = [*first, *(name for name in rows[0]["columns"] if name not in first)]
    shown = names[: max(SHOWN_COLUMNS, len(first))]
    table = [[row["id"], _percent(row["weight"]), *(row["columns"][name] for name in shown)] for row in rows]
    for line in aligned(["id", "weight", *shown], table):
        result(line)
    hidden = f"; {len(names) - len(shown)} more columns with --json" if len(names) > len(shown) else ""
    result(f"these {len(rows)} rows carry {_percent(float(answers.captured[i]))} of the weight{hidden}")


def _percent(share: float) -> str:
    return f"{share:.2%}"


def print_as_json(answers: Answers, about: Mapping[str, Any]) -> None:
    """One JSON object: what was asked, and the answers in the order of the queries."""
    asked = answers.queries.table.select(list(answers.keys)).to_pylist()
    print_json({**about, "answers": [_as_dict(answers, i, query) for i, query in enumerate(asked)]})


def _as_dict(answers: Answers, i: int, query: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"query": dict(query), "answer": answers.of(i), "empty": bool(answers.empty[i])}
    if answers.error_bound is not None:
        found["error_bound"] = _scalar(answers.error_bound[i])
    if answers.rows:
        found["rows"] = answers.explained(i)
        found["captured"] = float(answers.captured[i])
    return found


def write_answers(answers: Answers, path: str, *, overwrite: bool) -> None:
    """The columns of the queries, then the answers: CSV, Parquet or JSON Lines by the end of the name."""
    import pyarrow as pa

    table = answers.queries.table
    columns = {PREFIX + name: x for name, x in answers.values.items()}
    if answers.error_bound is not None:
        columns[BOUND] = answers.error_bound
    for name, x in columns.items():
        if name in table.column_names:
            raise InputError(f"{answers.queries.name} has a column {name!r}, the name of an answer: rename it")
        table = table.append_column(name, _arrow(x, answers.empty, pa))
    write_rows(table.to_batches(), table.schema, path, overwrite=overwrite)
    note(f"{path}: {len(table):,} answers beside their queries")


def _arrow(x: Any, empty: Any, pa: Any) -> pyarrow.Array:
    x = np.asarray(x)
    if x.ndim == 1:
        return pa.array(x, mask=empty if x.dtype != object else None, from_pandas=True)
    rows = [None if gone else row.tolist() for row, gone in zip(x, empty, strict=True)]
    return pa.array(rows, type=pa.list_(pa.from_numpy_dtype(x.dtype), x.shape[1]))


def _scalar(x: Any) -> Any:
    return x.tolist() if isinstance(x, (np.ndarray, np.generic)) else x


def rows_of(rows: Sequence[dict[str, Any]], positions: np.ndarray) -> list[list[dict[str, Any]]]:
    """Rows (of all positions ≥ 0, in order) as one list a query; positions are (n, r), −1 where there is none."""
    found = iter(rows)
    return [[next(found) for position in one if position >= 0] for one in positions.tolist()]
