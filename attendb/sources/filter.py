"""Which rows satisfy a condition written in SQL: the words that may follow WHERE, run by SQLite.

The table of a question is called ``rows``; its columns are ``id``, the key columns and the value columns (x_0, x_1, …
for a column x of some width). Comparisons are SQL's: with NULL (missing text, NaN) nothing is true but IS NULL, so
`x > 1` and `NOT x > 1` both leave such rows out. Texts are compared in Unicode's form NFC. The condition can read those
columns and call plain functions; everything else is refused before it runs.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing

import numpy as np
from torch import Tensor

from ..columns import Opaque
from ..errors import AttendbError, InputError, KindError
from .base import ID, Data, Rows, Schema
from .exact import nfc

TABLE = "rows"
AROUND = (("", ""), ("ifnull((", "\n), 0)"))  # text that closes a bracket it did not open fails in one of the two
FUNCTIONS = frozenset(
    "abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count date "
    "datetime degrees exp floor glob hex ifnull iif instr julianday length like ln log log10 log2 lower ltrim "
    "max min mod nullif pi pow power quote radians replace round rtrim sign sin sinh sqrt strftime substr "
    "substring sum tan tanh time total trim trunc typeof unicode unixepoch upper".split()
)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|$)|"((?:[^"]|"")*)\"""", re.DOTALL)


def select(text: str, ids: np.ndarray, schema: Schema, rows: Rows) -> np.ndarray:
    """Which rows (m,) satisfy the condition. Raises InputError for text that is none, with the columns there are.

    Only the columns that the text names are handed to SQLite. Cost: a few µs a row, and the memory of those columns.
    """
    if not isinstance(text, str):
        raise KindError(f"filter text must be a str, got {type(text).__name__}")
    text = unicodedata.normalize("NFC", text)
    columns = (*schema.keys.columns, *schema.values.columns)
    flat = {unicodedata.normalize("NFC", name): (c.name, i) for c in columns for i, name in enumerate(c.flat_names)}
    names = [ID, *flat]
    _check_names(text, names)
    lowered = text.lower(), text.lower().replace('""', '"')
    flat = {name: at for name, at in flat.items() if any(name.lower() in part for part in lowered)}
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            types = {name: _sql_type(rows[column]) for name, (column, _) in flat.items()}
            definitions = "".join(f", {_quoted(name)} {types[name]}" for name in flat)
            database.execute(f"CREATE TABLE {TABLE} ({ID} INTEGER PRIMARY KEY{definitions})")
            used = _compile(database, text, names)
            wanted = [name for name in flat if name in used]
            cells = [_cells(rows[flat[name][0]], flat[name][1]) for name in wanted]
            into = "".join(f", {_quoted(name)}" for name in wanted)
            marks = ", ?" * len(wanted)
            database.executemany(
                f"INSERT INTO {TABLE} ({ID}{into}) VALUES (?{marks})", zip(ids.tolist(), *cells, strict=True)
            )
            database.set_authorizer(_Authorizer())
            found = database.execute(_statement(text, *AROUND[0])).fetchall()
        except AttendbError:
            raise
        except _SQL_ERRORS as error:
            raise _bad(text, str(error), names) from None
    return np.isin(ids, np.array([row[0] for row in found], dtype=np.int64))


_SQL_ERRORS = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError)


class _Authorizer:
    """Lets a statement read the columns of the table and call plain functions; notes the columns and the refusals."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.refused: str | None = None

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and first == TABLE:
            self.used.add(second or "")
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            if (second or "").lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            self.refused = self.refused or f"the function {second} is not allowed"
        elif action == sqlite3.SQLITE_READ:
            self.refused = self.refused or f"it reads {first}, another table"
        else:
            self.refused = self.refused or "it does more than read this table"
        return sqlite3.SQLITE_DENY


def _compile(database: sqlite3.Connection, text: str, names: list[str]) -> set[str]:
    """Let SQLite read the condition, on the table without rows; the columns that it names."""
    authorizer = _Authorizer()
    database.set_authorizer(authorizer)
    try:
        for before, after in AROUND:
            database.execute(_statement(text, before, after))
    except _SQL_ERRORS as error:
        raise _bad(text, authorizer.refused or str(error), names) from None
    finally:
        database.set_authorizer(None)
    return authorizer.used


def _statement(text: str, before: str, after: str) -> str:
    return f"SELECT {ID} FROM {TABLE} WHERE ({before}{text}{after}\n)"


def _check_names(text: str, names: list[str]) -> None:
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in names if lowered.count(name.lower()) > 1})
    if twice:
        raise InputError(
            f"columns {', '.join(map(repr, twice))} differ in upper and lower case alone, which a filter does not see: "
            "rename one of them, or give where= as booleans"
        )
    for match in _QUOTED.finditer(text):
        name = match[1]
        # SQLite reads a quoted name that is no column as a text, and a misspelt column would compare as that
        if name is not None and name.replace('""', '"').lower() not in (*lowered, TABLE):
            text_in_quotes = "'" + name.replace("'", "''") + "'"
            raise _bad(text, f"no such column: {name} (a text stands in single quotes, {text_in_quotes})", names)


def _bad(text: str, reason: str, names: list[str]) -> InputError:
    return InputError(
        f"the filter {text!r} cannot be read ({reason}): give one condition, as after WHERE, over the columns "
        f"{', '.join(names)}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_type(column: Data) -> str:
    return "TEXT" if isinstance(column, Opaque) else "REAL" if column.is_floating_point() else "INTEGER"


def _cells(column: Data, part: int) -> Iterator[object]:
    if isinstance(column, Tensor):
        numbers = column.detach()[:, part].cpu()
        return iter((numbers.double() if numbers.is_floating_point() else numbers.long()).tolist())
    return iter(nfc(column.rows))
