"""`attendb query`: ask a stored table or a file by attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..answer import Top
from ..errors import InputError, MissingValueError
from . import options as o
from .answers import Answers, print_as_json, print_words, rows_of, write_answers
from .app import app, examples
from .asked import Asked, open_asked
from .files import Reading, tell_notes
from .kinds import find_columns, is_measure, kind_of
from .printing import listed, note, shell_word
from .queries import Queries, key_columns, read_queries
from .rows import ID, not_missing
from .scoring import Chosen, choose
from .writing import PICTURES, TABLES, check_writable, whole_file

if TYPE_CHECKING:
    from ..database import Database


@app.command(
    epilog=examples(
        "attendb query plant.adb --at temperature=20 vacuum=40",
        "attendb query plant.csv --value output --at temperature=20 vacuum=40 --explain 3",
        "attendb query plant.csv --key temperature --key vacuum --value output --at queries.csv --out answers.csv",
        "attendb query plant.csv --value output --at queries.csv --weights top:5:uniform --json",
        "attendb query people.csv --key name --value city --at name=Lu",
    )
)
def query(
    table: o.TableOrFile,
    more: o.MorePairs = None,
    at: o.At = None,
    key: o.Key = None,
    value: o.Value = None,
    score: o.Score = None,
    bandwidth: o.Bandwidth = None,
    weights: o.Weights = None,
    where: o.Where = None,
    explain: o.Explain = 0,
    out: o.AnswersOut = None,
    overwrite: o.Overwrite = False,
    heatmap: o.Heatmap = None,
    tol: o.Tolerance = None,
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
    """Answer queries from a stored table, or straight from a file.

    The answer to a query q is Σ α(q, k) v over the rows: their values v, weighted by how near their keys k are.
    """
    words = [*(at or []), *(more or [])]
    if out is not None:
        check_writable(out, TABLES, inputs=[table, *words], overwrite=overwrite)
    if heatmap is not None:
        check_writable(heatmap, PICTURES, inputs=[table, *words])
    reading = Reading(delimiter, decimal, encoding, tuple(types or ()), tuple(missing or ()), ragged, date_format, sql)
    asked = open_asked(table, version, reading)
    if not words:
        raise InputError(_what_to_ask(asked, key, value))
    queries = read_queries(words, asked.columns, table, reading)
    values = _values(asked, value)
    keys = _keys(asked, key, values, queries)
    tell_notes(table, asked.notes, list(asked.columns), [*keys, *values])
    tell_notes(queries.name, queries.notes, queries.table.column_names, keys)
    columns = key_columns(queries, keys, asked.columns)
    database, left = asked.database(keys, values, where)
    chosen = choose(
        database, left, score or [], bandwidth or [], weights, saved=asked.saved_scores, load=asked.saved_score
    )
    for line in chosen.assumed:
        note(f"assumed: {line}")
    options = {"where": left, "tol": tol}
    answers = Answers(queries, keys, values)
    _ask(asked, database, columns, answers, chosen, options, explain=explain, heatmap=heatmap)
    if int(answers.empty.sum()):
        note(f"{int(answers.empty.sum()):,} of {len(answers):,} queries reach no row: they have no answer")
    if out is not None:
        write_answers(answers, out, overwrite=overwrite)
    if as_json:
        about = {"table": table, "keys": list(keys), "values": list(values), "where": where, **chosen.words}
        print_as_json(answers, about)
    elif out is None or explain:
        print_words(answers)


def _what_to_ask(asked: Asked, key: o.Texts, value: o.Texts) -> str:
    """The sentence for a question without queries: what could be asked, with numbers from the first row."""
    measures = [name for name, kind in asked.columns.items() if is_measure(kind) and name != ID]
    values = value or list(asked.values or measures[-1:])
    keys = [name for name in key or list(asked.keys or measures) if name not in values]
    first = asked.example()
    pairs = " ".join(shell_word(f"{name}={first[name]}") for name in keys[:3] if first.get(name) is not None)
    columns = ", ".join(asked.columns)
    shown = f"--at {pairs}" if pairs else "--at NAME=VALUE"
    if asked.values is None and not value:
        shown = f"--value {shell_word(values[0]) if values else 'COLUMN'} {shown}"
    return f"nothing was asked of {asked.name}, whose columns are {columns}: give {shown}, or --at FILE"


def _values(asked: Asked, given: o.Texts) -> tuple[str, ...]:
    """The columns to answer."""
    if asked.values is not None:
        if given:
            find_columns(given, list(asked.values), f"the values of {asked.name}")
        return tuple(given or asked.values)
    usable = [name for name, kind in asked.columns.items() if kind_of(kind) != "other" and name != ID]
    if not given:
        raise InputError(f"no column was named to answer: give --value, one of {listed(usable)}")
    find_columns(given, list(asked.columns), asked.name)
    for name in given:
        if kind_of(asked.columns[name]) == "other":
            raise InputError(
                f"column {name!r} of {asked.name} holds {asked.columns[name]}: choose one of {listed(usable)}"
            )
        if kind_of(asked.columns[name]) == "text":
            note(f"{name} holds text: the answer is the text of most weight")
    return tuple(given)


def _keys(asked: Asked, given: o.Texts, values: tuple[str, ...], queries: Queries) -> tuple[str, ...]:
    """The columns that queries and rows are compared in."""
    names = queries.table.column_names
    if asked.keys is not None:
        if given and set(given) != set(asked.keys):
            raise InputError(
                f"{asked.name} is stored with the key {', '.join(asked.keys)}, got --key {', '.join(given)}: leave "
                "--key out, or store the rows again under another key: attendb create"
            )
        keys = asked.keys
    elif given:
        find_columns(given, list(asked.columns), asked.name)
        keys = tuple(given)
    else:
        keys = _assumed_keys(asked, values, queries)
    both = [name for name in keys if name in values]
    if both:
        raise InputError(f"column {both[0]!r} is asked for, so it cannot be in the key: leave it out of --at or --key")
    extra = [name for name in names if name not in keys] if queries.single else []
    if extra:
        raise InputError(f"{extra[0]!r} is no column of the key ({', '.join(keys)}): leave it out of --at")
    return keys


def _assumed_keys(asked: Asked, values: tuple[str, ...], queries: Queries) -> tuple[str, ...]:
    names = queries.table.column_names
    if queries.single:
        note(f"assumed: key = {', '.join(names)} (the columns of --at)")
        return tuple(names)
    free = [name for name in asked.columns if name not in values and name != ID]
    measures = [name for name in free if is_measure(asked.columns[name])]
    keys = [name for name in measures if name in names]
    what = "all other numeric columns"
    if not keys:
        keys = [name for name in free if name in names and kind_of(asked.columns[name]) == "text"]
        what = "the columns of text that both have"
    if not keys:
        raise InputError(
            f"{queries.name} has none of the columns {listed(free)} ({asked.name}): it has {listed(names)}; name "
            "columns with --key"
        )
    absent = [name for name in measures if name not in names]
    without = f", without {', '.join(absent)}, which {queries.name} lacks" if absent and measures else ""
    note(f"assumed: key = {', '.join(keys)} ({what}{without})")
    return tuple(keys)


def _ask(
    asked: Asked,
    database: Database,
    columns: dict[str, Any],
    answers: Answers,
    chosen: Chosen,
    options: dict[str, Any],
    *,
    explain: int,
    heatmap: str | None,
) -> None:
    """Ask for all numbers at once, and for each column of text by itself."""
    kinds = database.columns["values"]
    numbers = [name for name in answers.names if kinds[name] != "text"]
    groups = [numbers] * bool(numbers) + [[name] for name in answers.names if kinds[name] == "text"]
    first = None
    top = max(explain, 1) if chosen.one_row else explain
    for group in groups:
        with _where_offered(group, options["where"]):
            answer = database.attend(
                columns, values=group, score=chosen.score, weighting=chosen.weighting, top=top, **options
            )
        answers.values.update(_split(_array(answer.value), group, kinds))
        first = answer if first is None else first
    assert first is not None  # there is a value column
    answers.values = {name: answers.values[name] for name in answers.names}
    answers.empty = _array(first.empty)
    answers.error_bound = None if first.error_bound is None or not numbers else _array(first.error_bound)
    best = None if first.top is None else Top(*map(_array, first.top))
    if chosen.one_row and best is not None:
        _whole_numbers(asked, answers, best.positions[:, 0])
    if explain and best is not None:
        positions = best.positions[:, :explain]
        answers.weights, answers.captured = best.weights, best.captured
        answers.rows = rows_of(asked.rows(positions[positions >= 0]), positions)
    if heatmap is not None:
        _draw(first, heatmap)


@contextmanager
def _where_offered(values: list[str], where: str | None) -> Iterator[None]:
    """Values that are missing are refused; here with the condition that leaves those rows out."""
    try:
        yield
    except MissingValueError as error:
        if not str(error).startswith("values"):
            raise
        condition = shell_word(not_missing(values, where))
        raise MissingValueError(
            f"{listed(values)} has no value in rows that a query may see: leave them out with --where {condition}"
        ) from None


def _array(x: Any) -> np.ndarray:
    """An answer of the library, which is a tensor where text asks for numbers."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


def _split(value: Any, names: list[str], kinds: dict[str, str]) -> dict[str, Any]:
    """The columns of an answer."""
    if kinds[names[0]] == "text":
        return {names[0]: np.asarray(value, dtype=object).reshape(-1)}
    out, start = {}, 0
    for name in names:
        width = int(kinds[name].split()[0]) if kinds[name][:1].isdigit() else 1
        part = value[:, start : start + width]
        out[name], start = part[:, 0] if width == 1 else part, start + width
    return out


def _whole_numbers(asked: Asked, answers: Answers, positions: np.ndarray) -> None:
    """Whole numbers of the one row that answers, in all their digits: a weighted sum has 53 bits of them."""
    from pyarrow import types

    whole = [name for name in answers.names if types.is_integer(asked.columns[name])]
    if not whole:
        return
    found = iter(asked.rows(positions[positions >= 0]))
    rows = [next(found) if position >= 0 else None for position in positions.tolist()]
    for name in whole:
        answers.values[name] = np.array([0 if row is None else int(row[name]) for row in rows])


def _draw(answer: Any, path: str) -> None:
    """The weights, queries downwards and rows to the right."""
    figure = answer.heatmap(xlabel="Keys: rows of the table", ylabel="Queries")
    with whole_file(path) as beside:
        figure.savefig(beside, dpi=150)
    note(f"{path}: the weights, a line of cells a query")
