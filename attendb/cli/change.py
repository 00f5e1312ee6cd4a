"""`attendb create | append | upsert | delete`: each is one new version of a table, or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import InputError, MissingValueError
from . import options as o
from .app import app, examples
from .files import Reading, open_files, open_stored
from .kinds import find_columns, is_measure, kind_of
from .printing import aligned, listed, note, print_json, progress, result, shell_word
from .rows import ID, not_missing, stored_columns
from .words import in_shell

if TYPE_CHECKING:
    import pyarrow


@app.command(
    epilog=examples(
        "attendb create plant.csv --out plant.adb --key temperature --key vacuum --value output",
        "attendb create january.csv february.csv --out year.adb --value output --id hour",
        "attendb create german.csv --out german.adb --value output --delimiter ';' --decimal ,",
    )
)
def create(
    files: o.Files,
    out: o.TableOut,
    key: o.Key = None,
    value: o.Value = None,
    id_column: o.IdColumn = None,
    where: o.Where = None,
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
    """Store the rows of files as a table, which can be asked and changed.

    The types of the columns are shown before anything is written.
    """
    from ..database import Database

    reading = Reading(delimiter, decimal, encoding, tuple(types or ()), tuple(missing or ()), ragged, date_format, sql)
    with progress("reading") as advance, _where_offered(where):
        table = open_files(files, reading, advance, where)
        keys, values, name = _roles(table.schema, key, value, id_column, " ".join(files))
        show_types(table, roles_of(keys, values, name))
        database = Database.create(out, table, keys=keys, values=values, id=name)  # type: ignore[attr-defined]
    about = {"keys": keys, "values": values, "id": name}
    _tell(out, database, f"{len(database):,} rows", {"rows": len(database), **about}, as_json)
    if not as_json:
        note(f"ask it: attendb query {shell_word(out)} --at {' '.join(shell_word(name) + '=…' for name in keys)}")


@app.command(
    epilog=examples(
        "attendb append plant.adb february.csv",
        "attendb append plant.adb 'parts/*.parquet' --json",
        "attendb append plant.adb february.csv --batch february",
    )
)
def append(
    table: o.TableName,
    files: o.Files,
    where: o.Where = None,
    delimiter: o.Delimiter = None,
    decimal: o.Decimal = None,
    encoding: o.Encoding = None,
    types: o.Types = None,
    missing: o.Missing = None,
    ragged: o.Ragged = None,
    date_format: o.DateFormat = None,
    sql: o.Sql = None,
    batch: o.Batch = None,
    as_json: o.AsJson = False,
) -> None:
    """Add the rows of files to a table. Columns are matched by name; an id that exists is an error."""
    reading = Reading(delimiter, decimal, encoding, tuple(types or ()), tuple(missing or ()), ragged, date_format, sql)
    database = open_stored(table)
    with progress("reading") as advance, _where_offered(where):
        before = len(database)
        ids = database.append(_rows_for(database, files, reading, advance, where), batch=batch)
    added = len(ids) if batch is None else max(0, min(len(ids), len(database) - before))
    _tell(table, database, f"{added:,} rows added", {"added": added, "rows": len(database)}, as_json)


@app.command(
    epilog=examples(
        "attendb upsert plant.adb corrected.csv",
    )
)
def upsert(
    table: o.TableName,
    files: o.Files,
    where: o.Where = None,
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
    """Replace rows of a table, and add those that it lacks.

    A row replaces the one with the same id, or, where the table has no id column, the one with the equal key.
    """
    reading = Reading(delimiter, decimal, encoding, tuple(types or ()), tuple(missing or ()), ragged, date_format, sql)
    database = open_stored(table)
    with progress("reading") as advance, _where_offered(where):
        before = len(database)
        written = len(database.upsert(_rows_for(database, files, reading, advance, where)))
    added = len(database) - before
    words = f"{written - added:,} rows replaced, {added:,} added"
    found = {"replaced": written - added, "added": added, "rows": len(database)}
    _tell(table, database, words, found, as_json)


@app.command(
    epilog=examples(
        "attendb delete plant.adb --where 'output < 430' --dry-run",
        "attendb delete plant.adb --where 'output < 430'",
        "attendb delete plant.adb --id 17 --id 18",
    )
)
def delete(
    table: o.TableName,
    where: o.Where = None,
    ids: o.Ids = None,
    dry_run: o.DryRun = False,
    as_json: o.AsJson = False,
) -> None:
    """Remove the rows that satisfy a condition, or that have one of the ids given.

    They are gone from the new version alone: `attendb restore` brings them back.
    """
    if (where is None) == (not ids):
        raise InputError(
            f"delete was given {'both --where and' if ids else 'neither --where nor'} --id: give one of them"
        )
    database = open_stored(table)
    before = database.version
    found: dict[str, Any]
    chosen = None if where is not None else [_id(text, database) for text in ids or ()]
    lost = [] if chosen is None else _not_there(database, chosen)
    if dry_run:
        n = int(database._source.mask(where if where is not None else _among(chosen or [])).sum())
        words, found = f"{n:,} of {len(database):,} rows would go", {"would_delete": n}
    else:
        n = database.delete(where) if where is not None else database.delete(ids=chosen)
        words, found = f"{n:,} rows deleted, {len(database):,} are left", {"deleted": n}
    if lost:
        found["not_found"] = lost
        note(f"no row has the id {listed([str(x) for x in lost])}")
    _tell(table, database, words, {**found, "rows": len(database)}, as_json)
    if n and not dry_run and not as_json:
        note(f"undo it: attendb restore {shell_word(table)} {before}")


def _rows_for(
    database: Any, files: Sequence[str], reading: Reading, advance: Callable[[int, int | None], None], where: str | None
) -> Any:
    """The rows of files in the types of a table; what they lack is said, since it is filled with nulls."""
    columns = stored_columns(database)
    rows = open_files(files, reading, advance, where, columns)
    roles = {*database.columns["keys"], *database.columns["values"], database.info()["id"]}
    lacks = [name for name in columns if name not in roles and name not in rows.schema.names]
    if lacks:
        note(f"{' '.join(files)} lacks {listed(lacks)}, which {'is' if len(lacks) == 1 else 'are'} null in these rows")
    return rows


@contextmanager
def _where_offered(where: str | None) -> Iterator[None]:
    """Rows without a number in their key are refused; here with the condition that leaves them out."""
    try:
        yield
    except MissingValueError as error:
        column = re.search(r"key column '(.+?)' has no number", str(error))
        if column is None:
            raise
        condition = not_missing([column[1]], where)
        raise MissingValueError(f"{error}, or leave them out with --where {shell_word(condition)}") from None


def _id(text: str, database: Any) -> int | str:
    """An id as the table holds it: a whole number, or text."""
    own = database.info()["id"]
    if own is not None and kind_of(stored_columns(database)[own]) == "text":
        return text
    if not re.fullmatch(r"-?\d+", text, re.ASCII):
        raise InputError(f"--id {text} is no whole number, which the ids of this table are")
    return int(text)


def _not_there(database: Any, ids: list[int | str]) -> list[int | str]:
    """The ids that no row has."""
    import numpy as np

    source = database._source
    if source.layout.id is None:
        there = np.isin(np.array(ids, dtype=object).astype(str), source.positions.numpy().astype(str))
    else:
        there = source.by_id(source.read_ids(ids))[0] >= 0
    return [x for x, is_there in zip(ids, there.tolist(), strict=True) if not is_there]


def _among(ids: Sequence[int | str]) -> str:
    """The condition that a row has one of these ids."""
    return f"id IN ({', '.join(str(x) if isinstance(x, int) else _quoted(x) for x in ids)})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _tell(table: str, database: Any, words: str, found: Mapping[str, Any], as_json: bool) -> None:
    """What was done, and the version that the table has now."""
    if as_json:
        print_json({"table": table, "version": database.version, **found})
    else:
        result(f"{table}: {words}, version {database.version}")


def _roles(
    schema: pyarrow.Schema, key: o.Texts, value: o.Texts, id_column: str | None, where: str
) -> tuple[list[str], list[str], str | None]:
    """The columns of the key and of the values, and the one of the ids; what was not said is assumed, and told."""
    names = list(schema.names)
    find_columns([*(key or ()), *(value or ()), *([id_column] if id_column else ())], names, where)
    if id_column is None and ID in names:
        id_column = ID
        note(f"assumed: id = {ID} (the column of that name)")
    free = [name for name in names if name != id_column]
    if not key and not value:
        usable = [name for name in free if kind_of(schema.field(name).type) != "other"]
        raise InputError(f"no column was named to answer: give --value, one of {listed(usable)}")
    if not key:
        key = [name for name in free if is_measure(schema.field(name).type) and name not in (value or ())]
        if not key:
            raise InputError(f"{where} has no numeric column beside {listed(value or [])}: name the key with --key")
        note(f"assumed: key = {', '.join(key)} (all other numeric columns)")
    if not value:
        value = [name for name in free if kind_of(schema.field(name).type) != "other" and name not in key]
        if not value:
            raise InputError(f"{where} has no column beside the key to answer: name it with --value")
        note(f"assumed: value = {', '.join(value)} (all other columns of numbers or text)")
    return key, value, id_column


def roles_of(keys: Sequence[str], values: Sequence[str], name: str | None) -> dict[str, str]:
    """What each column serves as."""
    return {**dict.fromkeys(keys, "key"), **dict.fromkeys(values, "value"), **({name: "id"} if name else {})}


def show_types(table: Any, roles: Mapping[str, str], *, say: Callable[[str], None] = note) -> None:
    """The columns, on stderr before anything is written: name, type, what it serves as, and why it has that type."""
    from ..importing.base import type_name

    names = list(table.schema.names)
    types = [type_name(field.type) for field in table.schema]
    rows = [
        (name, kind, roles.get(name, ""), table.reasons.get(name, "")) for name, kind in zip(names, types, strict=True)
    ]
    for line in list(aligned(["", "", "", ""], rows))[1:]:
        say(f"  {line}")
    for text in table.notes:
        if not any(reason and reason in text for reason in table.reasons.values()):
            say(f"note: {in_shell(text)}")
