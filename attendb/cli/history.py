"""`attendb info | versions | restore | verify | compact`: what a table is, was, and can be again."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import typer

from . import options as o
from .app import app, examples
from .change import show_types
from .files import Reading, is_stored, open_stored, version_of
from .printing import aligned, print_json, progress, result, shell_word
from .rows import stored_columns

UNITS = ("bytes", "kB", "MB", "GB", "TB")


@app.command(epilog=examples("attendb info plant.adb", "attendb info plant.adb --json", "attendb info plant.csv"))
def info(table: o.TableOrFile, version: o.AtVersion = None, as_json: o.AsJson = False) -> None:
    """Say what a table holds: rows, columns and what they serve as, version, size, saved scores.

    Of a file it says the columns and the types that they would get.
    """
    if not is_stored(table):
        _file_info(table, as_json)
        return
    from ..importing.base import type_name

    database = open_stored(table, version)
    found = database.info()
    types = stored_columns(database)
    for name, column in found["columns"].items():
        column["type"] = type_name(types[name])
    if as_json:
        print_json(found)
        return
    result(f"{table}: {found['rows']:,} rows, version {found['version']}, {_size(found['bytes'])}")
    rows = [(name, column["type"], column["role"]) for name, column in found["columns"].items()]
    for line in aligned(["column", "type", "serves as"], rows):
        result(f"  {line}")
    result(f"rows are named by {found['id'] or 'their position'}")
    if found["scores"]:
        result(f"saved scores: {', '.join(found['scores'])}")
    if found["deleted"] or found["fragments"] > 1:
        result(f"{found['fragments']:,} pieces, {found['deleted']:,} deleted rows in them: attendb compact joins them")


def _file_info(path: str, as_json: bool) -> None:
    with progress("reading") as advance:
        found = Reading().open(path, advance)
    if as_json:
        from ..importing.base import type_name

        columns = {field.name: {"type": type_name(field.type)} for field in found.schema}
        print_json({"path": path, "rows": found.rows, "columns": columns, "notes": list(found.notes)})
        return
    result(f"{path}: {'rows not counted' if found.rows is None else f'{found.rows:,} rows'}")
    show_types(found, {}, say=result)


def _size(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


@app.command(epilog=examples("attendb versions plant.adb", "attendb versions plant.adb --json"))
def versions(table: o.TableName, as_json: o.AsJson = False) -> None:
    """List the versions of a table, the newest last: when each was made, by what change, its rows and tags."""
    database = open_stored(table)
    rows = database.versions().reset_index().to_dict("records")
    for row in rows:
        row["time"] = row["time"].isoformat(timespec="seconds")
        row["tags"] = [tag for tag in row["tags"].split(", ") if tag]
    if as_json:
        print_json({"table": table, "version": database.version, "versions": rows})
        return
    for line in aligned(
        ["version", "time", "change", "rows", "tags"],
        [(row["version"], row["time"], row["change"], row["rows"], ", ".join(row["tags"])) for row in rows],
    ):
        result(line)


@app.command(epilog=examples("attendb restore plant.adb 1"))
def restore(table: o.TableName, version: o.OldVersion, as_json: o.AsJson = False) -> None:
    """Make an old version the newest one again. Those between stay, so this too can be undone."""
    database = open_stored(table)
    new = database.restore(version_of(version))
    if as_json:
        print_json({"table": table, "version": new, "restored": version_of(version), "rows": len(database)})
    else:
        result(f"{table}: version {version} is restored as version {new}, {len(database):,} rows")


@app.command(epilog=examples("attendb verify plant.adb"))
def verify(table: o.TableName, as_json: o.AsJson = False) -> None:
    """Look whether all files of a table are there and whole, and say what to do. Exit code 1 where they are not."""
    from ..sources.table_opening import damages, table_folder

    found = [
        {"file": one.file, "problem": one.problem, "repair": _as_command(one.repair, table)}
        for one in damages(table_folder(table))
    ]
    if as_json:
        print_json({"table": table, "whole": not found, "damages": found})
    elif not found:
        result(f"{table}: all files are there and whole")
    for one in found if not as_json else ():
        result(f"{one['file']}: {one['problem']}")
    if found:
        typer.echo(f"attendb: {table} is damaged: {found[0]['repair']}", err=True)
        raise typer.Exit(1)


def _as_command(repair: str, table: str) -> str:
    """The repair as it is typed here: restore(3) is `attendb restore plant.adb 3`."""
    return re.sub(r"restore\((\d+)\)", rf"attendb restore {shell_word(table)} \1", repair)


@app.command(
    epilog=examples("attendb compact plant.adb", "attendb compact plant.adb --drop-older-than 30"),
)
def compact(table: o.TableName, days: o.DropOlder = None, as_json: o.AsJson = False) -> None:
    """Join small pieces and drop deleted rows for good, as one new version. Ids stay as they are."""
    database = open_stored(table)
    before = database.info()
    version = database.compact(None if days is None else timedelta(days=days))
    after: dict[str, Any] = database.info()
    sizes = {"pieces_before": before["fragments"], "pieces": after["fragments"], "bytes": after["bytes"]}
    if as_json:
        print_json({"table": table, "version": version, "rows": after["rows"], **sizes})
    else:
        pieces = f"{before['fragments']:,} pieces became {after['fragments']:,}"
        result(f"{table}: {pieces}, {_size(after['bytes'])}, version {version}")
