"""`attendb export`: the rows of a stored table as a file."""

from __future__ import annotations

import typer

from . import options as o
from .app import app, examples
from .files import open_stored
from .printing import note, print_json, progress, result
from .rows import stored_batches
from .writing import TABLES, check_writable, print_rows, write_rows


@app.command(
    epilog=examples(
        "attendb export plant.adb plant.parquet",
        "attendb export plant.adb high.csv --where 'output > 470' --column temperature --column output",
        "attendb export plant.adb - --version 1",
    )
)
def export(
    table: o.TableName,
    out: o.ExportOut,
    where: o.Where = None,
    columns: o.Columns = None,
    version: o.AtVersion = None,
    overwrite: o.Overwrite = False,
    as_json: o.AsJson = False,
) -> None:
    """Write the rows of a table, of any version, to a file: in order of position, whole or not at all."""
    if out == "-" and as_json:
        raise typer.BadParameter("--json and rows on stdout would mix: give a file, or leave --json out")
    if out != "-":
        check_writable(out, TABLES, overwrite=overwrite)
    database = open_stored(table, version)
    schema, every, batches = stored_batches(database, columns, where)
    if out == "-":
        print_rows(batches, schema)
        return
    with progress("writing") as advance:
        rows = write_rows(batches, schema, out, overwrite=overwrite, rows=every, advance=advance)
    if as_json:
        print_json({"table": table, "version": database.version, "file": out, "rows": rows})
    else:
        result(f"{out}: {rows:,} rows")
    if not rows:
        note(f"no row of {table} satisfies the condition" if where else f"{table} has no rows")
