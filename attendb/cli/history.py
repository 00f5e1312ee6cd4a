"""`attendb info | versions | restore | verify | compact`: what a table is, was, and can be again."""

from __future__ import annotations

from . import options as o
from .app import app, examples


@app.command(epilog=examples("attendb info plant.adb", "attendb info plant.adb --json"))
def info(table: o.TableName, version: o.AtVersion = None, as_json: o.AsJson = False) -> None:
    """Say what a table holds: rows, columns and their roles, version, size on disk, saved scores."""


@app.command(epilog=examples("attendb versions plant.adb"))
def versions(table: o.TableName, as_json: o.AsJson = False) -> None:
    """List the versions of a table, the newest last."""


@app.command(epilog=examples("attendb restore plant.adb 1"))
def restore(table: o.TableName, version: o.OldVersion, as_json: o.AsJson = False) -> None:
    """Make an old version the newest one again. The versions between stay, so this too can be undone."""


@app.command(epilog=examples("attendb verify plant.adb"))
def verify(table: o.TableName, as_json: o.AsJson = False) -> None:
    """Look whether all files of a table are there and whole. Exit code 1 where they are not."""


@app.command(epilog=examples("attendb compact plant.adb"))
def compact(table: o.TableName, as_json: o.AsJson = False) -> None:
    """Join small files and drop what deleted rows have left, as one new version."""
