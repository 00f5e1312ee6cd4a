"""`attendb predict`: learn from a table of past cases, answer new ones, and show the rows behind each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, KindError
from . import options as o
from .answers import Answers, print_as_json, print_words, rows_of, write_answers
from .app import app, examples
from .asked import Asked, open_asked, refuse_missing
from .files import Reading, tell_notes
from .kinds import find_columns, is_time, kind_of, missing, name_of
from .printing import cell, listed, note
from .queries import Queries, read_queries
from .writing import PICTURES, TABLES, check_writable, whole_file

if TYPE_CHECKING:
    import pandas
    import pyarrow

MOST_PICTURED = 100  # predictions of one page
BEHIND = 5  # rows of a picture, where --explain says nothing


@app.command(
    epilog=examples(
        "attendb predict houses.csv --value price --at area=12",
        "attendb predict plant.csv --value output --at february.csv --out answers.csv --interval 0.9",
        "attendb predict plant.csv --value output --at temperature=20 vacuum=40 pressure=1015 humidity=60 --explain 5",
        "attendb predict plant.csv --value output --at february.csv --similarity linear --picture why.html",
        "attendb predict plant.adb --at february.csv --json",
    )
)
def predict(
    table: o.TableOrFile,
    more: o.MorePairs = None,
    at: o.At = None,
    value: o.Predicted = None,
    key: o.Features = None,
    ids: o.IdColumns = None,
    similarity: o.Similarity = "bandwidth",
    where: o.Where = None,
    explain: o.Explain = 0,
    interval: o.Interval = None,
    picture: o.Picture = None,
    out: o.AnswersOut = None,
    overwrite: o.Overwrite = False,
    seed: o.Seed = 0,
    max_seconds: o.MaxSeconds = 300.0,
    version: o.AtVersion = None,
    delimiter: o.Delimiter = None,
    decimal: o.Decimal = None,
    encoding: o.Encoding = None,
    types: o.Types = None,
    missing: o.Missing = None,
    ragged: o.Ragged = None,
    date_format: o.DateFormat = None,
    sql: o.Sql = None,
    as_json: o.AsJson = False,
) -> None:
    """Predict a column for new rows from a table of past ones, and say which of those each answer came from.

    Likeness is learned from the table: rows are predicted from one another, each without itself. Cells may be missing.
    """
    words = [*(at or []), *(more or [])]
    if out is not None:
        check_writable(out, TABLES, inputs=[table, *words], overwrite=overwrite)
    if picture is not None:
        check_writable(picture, (".html", *PICTURES), inputs=[table, *words])
    reading = Reading(delimiter, decimal, encoding, tuple(types or ()), tuple(missing or ()), ragged, date_format, sql)
    asked = open_asked(table, version, reading)
    task = _read(asked, words, reading, value, key or [], ids or [], where)
    _check_interval(interval, task)
    model = _learned(task, similarity, seed, max_seconds)
    _tell_unseen(model, task, asked)
    answers = _answer(model, task, interval)
    if explain:
        _explain(model, task, answers, asked, explain)
    errors = _errors(task, answers)
    if out is not None:
        write_answers(answers, out, overwrite=overwrite)
    if picture is not None:
        _draw(model, task, picture, explain or BEHIND, interval)
    if as_json:
        about = {"table": table, "keys": list(task.keys), "values": [task.target], "where": where,
                 "similarity": similarity, "rows": len(task.past), "seed": seed, **errors}  # fmt: skip
        print_as_json(answers, about)
    elif out is None or explain:
        print_words(answers)


@dataclass(frozen=True)
class Task:
    """What is to be predicted from what: the past rows, by what each is found again, and the new ones."""

    target: str
    classes: bool
    keys: tuple[str, ...]
    named_by: tuple[str, ...]
    past: pyarrow.Table
    positions: np.ndarray
    queries: Queries
    new: pandas.DataFrame


def _read(
    asked: Asked,
    words: Sequence[str],
    reading: Reading,
    value: str | None,
    key: list[str],
    ids: Sequence[str],
    where: str | None,
) -> Task:
    """The past rows and the new ones, checked against each other."""
    target = _target(asked, value)
    if not words:
        raise InputError(
            f"nothing was asked of {asked.name}: give the new rows with --at FILE, or one with --at NAME=VALUE"
        )
    queries = read_queries(words, asked.columns, asked.name, reading, times=True)
    past, positions = asked.table(where)
    refuse_missing(asked.name, past, [target], where)
    names = _naming(asked, past, target, ids, key)
    keys = _keys(asked, target, names, key, queries)
    tell_notes(asked.name, asked.notes, list(asked.columns), [*keys, target])
    tell_notes(queries.name, queries.notes, queries.table.column_names, keys)
    named_by = tuple(name for name in names if name in queries.table.column_names)
    new = _new_rows(queries, keys, named_by, asked)
    return Task(target, _is_class(asked.columns[target]), keys, named_by, past, positions, queries, new)


# Columns


def _target(asked: Asked, given: str | None) -> str:
    """The column to predict."""
    if given is None and asked.values is not None and len(asked.values) == 1:
        given = asked.values[0]
    usable = [name for name, kind in asked.columns.items() if _is_number(kind) or _is_class(kind)]
    if given is None:
        raise InputError(f"no column was named to predict: give --value, one of {listed(usable)}")
    find_columns([given], list(asked.columns), asked.name)
    if given not in usable:
        raise InputError(
            f"column {given!r} of {asked.name} holds {name_of(asked.columns[given])}, which cannot be predicted: "
            f"choose one of {listed(usable)}"
        )
    return given


def _is_class(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    return kind_of(kind) == "text" or types.is_boolean(kind)


def _is_number(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    return kind_of(kind) == "numbers" and not types.is_fixed_size_list(kind) and not types.is_boolean(kind)


def _is_feature(kind: pyarrow.DataType) -> bool:
    return _is_number(kind) or _is_class(kind) or is_time(kind)


def _naming(asked: Asked, past: pyarrow.Table, target: str, given: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The columns that name rows, and say nothing about the value."""
    find_columns(list(given), list(asked.columns), asked.name)
    both = [name for name in given if name in (target, *keys)]
    if both:
        raise InputError(
            f"column {both[0]!r} names rows (--id), so it is no --key and no --value: leave one of them out"
        )
    if given:
        return list(given)
    found = [] if asked.id_column is None else [asked.id_column]
    found += [name for name, kind in asked.columns.items() if kind_of(kind) == "text" and _names_rows(past[name])]
    found = [name for name in dict.fromkeys(found) if name != target and name not in keys]
    if found:
        note(f"assumed: {', '.join(found)} only names rows, so nothing is learned from it (--key uses it)")
    return found


def _names_rows(column: pyarrow.ChunkedArray) -> bool:
    """Whether each row has a word of its own; of texts with spaces the words may tell something."""
    if len(column) < 2 or column.null_count or len(column.unique()) < len(column):
        return False
    return not any(" " in text for text in column.to_pylist())


def _keys(asked: Asked, target: str, names: Sequence[str], given: list[str], queries: Queries) -> tuple[str, ...]:
    """The columns to predict from."""
    if given:
        find_columns(given, list(asked.columns), asked.name)
        for name in given:
            if name == target:
                raise InputError(f"column {name!r} is to be predicted, so it is no --key: leave it out of one of them")
            if not _is_feature(asked.columns[name]):
                held = name_of(asked.columns[name])
                raise InputError(f"column {name!r} of {asked.name} holds {held}: predict from numbers, text or dates")
        return tuple(given)
    free = [name for name in asked.keys or asked.columns if name != target and name not in names]
    odd = [name for name in free if not _is_feature(asked.columns[name])]
    if odd:
        note(f"assumed: without {', '.join(odd)}, which holds neither numbers nor text nor dates")
    keys = [name for name in free if name not in odd]
    if queries.single:
        keys = [name for name in keys if name in queries.table.column_names]
        note(f"assumed: key = {', '.join(keys)} (the columns of --at)")
    elif keys:
        note(f"assumed: key = {', '.join(keys)} (--key and --id choose others)")
    if not keys:
        raise InputError(
            f"{asked.name} has no column to predict {target!r} from: its columns are {listed([*asked.columns])}"
        )
    return tuple(keys)


def _check_interval(interval: float | None, task: Task) -> None:
    if interval is not None and not 0 < interval < 1:
        raise InputError(f"--interval {interval:g} is no share between 0 and 1: give 0.9 for nine rows of ten")
    if interval is not None and task.classes:
        raise InputError(f"--interval is for numbers, and {task.target} holds classes: leave it out")


def _new_rows(queries: Queries, keys: Sequence[str], named_by: Sequence[str], asked: Asked) -> pandas.DataFrame:
    """The columns to predict from of the new rows, of the kinds that the past rows have."""
    import pyarrow as pa

    there = queries.table.column_names
    lacks = [name for name in keys if name not in there]
    if lacks:
        found = f"it has {listed(there)}" if there else "it has no columns"
        raise InputError(
            f"{queries.name} lacks {listed(lacks)} of {asked.name} ({found}): add the column, or name those to predict "
            "from with --key"
        )
    table = queries.table
    for name in keys:
        column, kind = table[name], asked.columns[name]
        if missing(column).all():  # of such a column a file of text does not know the type
            nothing = pa.chunked_array([pa.nulls(len(column), kind)])
            table = table.set_column(there.index(name), name, nothing)
        elif kind_of(column.type) != kind_of(kind) or is_time(column.type) != is_time(kind):
            raise KindError(
                f"{queries.name} holds {name_of(column.type)} in {name!r}, where {asked.name} holds "
                f"{name_of(kind)}: give the same"
            )
    if queries.single:
        extra = [name for name in there if name not in (*keys, *named_by)]
        if extra:
            raise InputError(f"{extra[0]!r} is no column to predict from ({', '.join(keys)}): leave it out of --at")
    return _frame(table, keys)


def _frame(table: pyarrow.Table, names: Sequence[str]) -> pandas.DataFrame:
    return table.select(list(names)).to_pandas()


def _targets(column: pyarrow.ChunkedArray, classes: bool) -> np.ndarray:
    import pyarrow as pa

    if not classes:
        return column.cast(pa.float64()).to_numpy()
    return np.asarray(column.to_pylist(), dtype=object if kind_of(column.type) == "text" else bool)


# Answers


def _learned(task: Task, similarity: str, seed: int, max_seconds: float) -> Any:
    """The model, which has learned from the past rows."""
    from ..estimators import AttentionClassifier, AttentionRegressor

    kind = AttentionClassifier if task.classes else AttentionRegressor
    model = kind(similarity, random_state=seed, max_seconds=max_seconds, verbose=True)
    return model.fit(_frame(task.past, task.keys), _targets(task.past[task.target], task.classes))


def _tell_unseen(model: Any, task: Task, asked: Asked) -> None:
    """Categories that no past row has, perhaps misspelt: a model answers by the other columns."""
    for name in model.encoder_.levels:
        column = task.new[name].dropna()
        unseen = column[~column.isin(task.past[name].unique().to_pylist())]
        if len(unseen):
            words, rows = listed([*dict.fromkeys(map(str, unseen))]), len(unseen)
            of = f"{rows} row{'s' * (rows != 1)} of {task.queries.name}"
            note(f"{name} holds {words} in {of}, and in none of {asked.name}: the other columns decide there")


def _answer(model: Any, task: Task, interval: float | None) -> Answers:
    """Predictions, with the ends of their intervals, or with the probability of each class that is predicted."""
    predicted = np.asarray(model.predict(task.new))
    values = {task.target: predicted}
    if interval is not None:
        low, high = np.asarray(model.predict_interval(task.new, level=interval)).T
        values |= {f"{task.target}_low": low, f"{task.target}_high": high}
    if task.classes:
        values[f"{task.target}_probability"] = model.predict_proba(task.new).max(1)
    empty = np.isnan(predicted) if predicted.dtype.kind == "f" else np.zeros(len(predicted), dtype=bool)
    return Answers(task.queries, (*task.named_by, *task.keys), tuple(values), values, empty)


def _explain(model: Any, task: Task, answers: Answers, asked: Asked, top: int) -> None:
    """The past rows of most weight for each answer, with all their columns."""
    found, n = model.explain(task.new, top=top), len(task.new)
    rows, weights = np.full((n, top), -1, dtype=np.int64), np.zeros((n, top))
    at = found["query"].to_numpy(), found["rank"].to_numpy()
    rows[at], weights[at] = found["row"].to_numpy(), found["weight"].to_numpy()
    there = np.where(rows >= 0, task.positions[rows], -1)
    answers.weights, answers.captured = weights, weights.sum(-1)
    answers.rows = rows_of(asked.rows(there[there >= 0]), there)


def _errors(task: Task, answers: Answers) -> dict[str, Any]:
    """How far off the answers are, where the new rows say what came true."""
    from sklearn.metrics import accuracy_score, root_mean_squared_error

    if task.target not in task.queries.table.column_names:
        return {}
    column = task.queries.table[task.target]
    known = ~missing(column) & ~answers.empty
    if not known.any() or _is_class(column.type) != task.classes:
        return {}
    truth, found = np.asarray(column.to_pylist(), dtype=object)[known], answers.values[task.target][known]
    rows = f"{int(known.sum()):,} rows of {task.queries.name} that have {task.target}"
    if task.classes:
        share = float(accuracy_score(truth.astype(str), found.astype(str)))
        note(f"{share:.1%} of the answers are right, over {rows}")
        return {"accuracy": share}
    rmse = float(root_mean_squared_error(truth.astype(float), found))
    note(f"the error is {cell(rmse)} (RMSE), over {rows}")
    return {"rmse": rmse}


def _draw(model: Any, task: Task, path: str, top: int, interval: float | None) -> None:
    """One page of all answers, or the figure of the first."""
    rows = len(task.new)
    if not rows:
        raise InputError(f"{path} would show nothing: {task.queries.name} has no rows")
    n = min(MOST_PICTURED if path.lower().endswith(".html") else 1, rows)
    names = [f"row {position}" for position in task.positions.tolist()]
    with whole_file(path) as beside:
        model.save_picture(task.new.iloc[:n], beside, top=top, value=task.target, level=interval, names=names)
    shown = "where the answer came from" if n == 1 else f"where {n} answers came from"
    note(f"{path}: {shown}" + (f" (the first of {rows:,})" if n < rows else ""))
