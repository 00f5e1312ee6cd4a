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
# what stands around the text when it is tried out: text that closes a bracket it did not open fails in one of them
AROUND = (("(", ")"), ("", ""), ("(ifnull((", "\n), 0))"))
FUNCTIONS = frozenset(
    "abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count date "
    "datetime degrees exp floor glob hex ifnull iif instr julianday length like ln log log10 log2 lower ltrim "
    "max min mod nullif pi pow power quote radians replace round rtrim sign sin sinh sqrt strftime substr "
    "substring sum tan tanh time total trim trunc typeof unicode unixepoch upper".split()
)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|$)|"((?:[^"]|"")*)\"""", re.DOTALL)


def select(text: str, ids: np.ndarray, schema: Schema, rows: Rows) -> np.ndarray:
    """Which rows (m,) satisfy the condition. Raises InputError for text that is none, with the columns there are.

    ``ids`` (m,) are what the column `id` holds, each given once: whole numbers or, as objects, texts.
    Only the columns that the text names are handed to SQLite. Cost: a few µs a row, and the memory of those columns.
    """
    places = np.arange(len(ids), dtype=np.int64) if ids.dtype == object else ids
    found = _asked(text, ids, schema, rows, condition=True)
    return np.isin(places, np.array([row[0] for row in found], dtype=np.int64))


def compute(text: str, ids: np.ndarray, schema: Schema, rows: Rows) -> list[object]:
    """What an expression of SQL gives for each row, in order; under the same rules and errors as a condition.

    ``ids`` (m,): as in `select`, but whole numbers must ascend.
    """
    return [row[0] for row in _asked(text, ids, schema, rows, condition=False)]


def _asked(text: str, ids: np.ndarray, schema: Schema, rows: Rows, *, condition: bool) -> list[tuple[object, ...]]:
    if not isinstance(text, str):
        raise KindError(f"{'filter text' if condition else 'an expression'} must be a str, got {type(text).__name__}")
    text = unicodedata.normalize("NFC", text)
    columns = (*schema.keys.columns, *schema.values.columns)
    flat = {unicodedata.normalize("NFC", name): (c.name, i) for c in columns for i, name in enumerate(c.flat_names)}
    names = [ID, *flat]
    what = "filter" if condition else "expression"
    _check_names(text, names, what)
    lowered = text.lower(), text.lower().replace('""', '"')
    flat = {name: at for name, at in flat.items() if any(name.lower() in part for part in lowered)}
    kind = "TEXT" if ids.dtype == object else "INTEGER PRIMARY KEY"
    place = ID if ids.dtype != object else next(x for x in ("rowid", "_rowid_", "oid") if x not in map(str.lower, flat))
    own = range(len(ids)) if ids.dtype == object else ids.tolist()
    marked = (ids.tolist(),) if ids.dtype == object else ()
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            types = {name: _sql_type(rows[column]) for name, (column, _) in flat.items()}
            definitions = "".join(f", {_quoted(name)} {types[name]}" for name in flat)
            database.execute(f"CREATE TABLE {TABLE} ({ID} {kind}{definitions})")
            statement = f"SELECT {place} FROM {TABLE} WHERE (@)" if condition else f"SELECT (@) FROM {TABLE}"
            used = _compile(database, text, names, statement, what)
            wanted = [name for name in flat if name in used]
            cells = [_cells(rows[flat[name][0]], flat[name][1]) for name in wanted]
            into = "".join(f", {_quoted(name)}" for name in ([ID] if marked else []) + wanted)
            marks = ", ?" * (len(wanted) + len(marked))
            database.executemany(
                f"INSERT INTO {TABLE} ({place}{into}) VALUES (?{marks})", zip(own, *marked, *cells, strict=True)
            )
            database.set_authorizer(_Authorizer())
            order = "" if condition else f" ORDER BY {place}"
            return database.execute(statement.replace("@", f"{text}\n") + order).fetchall()
        except AttendbError:
            raise
        except _SQL_ERRORS as error:
            raise _bad(text, str(error), names, what) from None


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


def _compile(database: sqlite3.Connection, text: str, names: list[str], statement: str, what: str) -> set[str]:
    """Let SQLite read the text, on the table without rows; the columns that it names."""
    authorizer = _Authorizer()
    database.set_authorizer(authorizer)
    try:
        for before, after in AROUND:
            database.execute(statement.replace("(@)", f"{before}{text}\n{after}"))
    except _SQL_ERRORS as error:
        raise _bad(text, authorizer.refused or str(error), names, what) from None
    finally:
        database.set_authorizer(None)
    return authorizer.used


def _check_names(text: str, names: list[str], what: str) -> None:
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
            raise _bad(text, f"no such column: {name} (a text stands in single quotes, {text_in_quotes})", names, what)


def _bad(text: str, reason: str, names: list[str], what: str) -> InputError:
    reason = reason.replace("\n) FROM rows", "").replace("\n)", "").replace("\n", " ")
    bare = re.fullmatch(r"no such column: (\w+)", reason)
    if bare is not None and re.search(rf"(=|<>|\bLIKE|\bIN\s*\([^()]*)\s*{bare[1]}\b", text, re.IGNORECASE):
        reason += f" (a text stands in single quotes, '{bare[1]}')"
    text = text if len(text) <= 200 else f"{text[:197]}…"
    fix = "give one condition, as after WHERE" if what == "filter" else "give one expression"
    return InputError(f"the {what} {text!r} cannot be read ({reason}): {fix}, over the columns {', '.join(names)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_type(column: Data) -> str:
    return "TEXT" if isinstance(column, Opaque) else "REAL" if column.is_floating_point() else "INTEGER"


def _cells(column: Data, part: int) -> Iterator[object]:
    if isinstance(column, Tensor):
        numbers = column.detach()[:, part].cpu()
        return iter((numbers.double() if numbers.is_floating_point() else numbers.long()).tolist())
    return iter(nfc(column.rows))
