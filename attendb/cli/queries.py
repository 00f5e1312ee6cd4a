"""From ``--at`` to queries: name=value pairs are one query, a file is as many as it has rows."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, KindError, MissingValueError
from .files import Reading, no_such_file, read_file
from .kinds import as_data, find_columns, is_time, kind_of, missing, name_of
from .printing import listed
from .scoring import number

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Queries:
    """The queries as a table of their columns, and where they come from."""

    table: pyarrow.Table
    name: str
    notes: tuple[str, ...]  # what was assumed to read them
    single: bool  # from name=value pairs: one query, whatever there is


def read_queries(
    at: Sequence[str], columns: Mapping[str, Any], table: str, reading: Reading, *, times: bool = False
) -> Queries:
    """The queries of ``--at``, over columns that the table has. InputError where there are none, or both kinds.

    ``times``: name=value pairs may be dates.
    """
    reading = replace(reading, types=(), sql=None)  # which speak of the columns and rows of the table
    pairs = [text for text in at if "=" in text and (text.split("=")[0] in columns or not Path(text).exists())]
    files = [text for text in at if text not in pairs]
    if pairs and files:
        raise InputError(f"queries are name=value pairs or a file, not both: got {pairs[0]!r} and {files[0]!r}")
    if len(files) > 1:
        raise InputError(f"queries come from one file, got {files[0]!r} and {files[1]!r}: ask twice, or join the files")
    if not files:
        return Queries(_one_query(pairs, columns, table, times), "--at", (), single=True)
    if files[0] == "-":
        return Queries(*_from_stdin(reading, columns), single=False)
    if not Path(files[0]).exists() and files[0] in columns:
        like = "1.5" if kind_of(columns[files[0]]) == "numbers" else "…"
        raise InputError(f"--at {files[0]} names a column: give its value too, as in --at {files[0]}={like}")
    if not Path(files[0]).exists():
        raise InputError(no_such_file(files[0]) + "; a query in place is name=value")
    found, notes = read_file(files[0], reading, columns)
    return Queries(found, files[0], notes, single=False)


def _one_query(pairs: Sequence[str], columns: Mapping[str, Any], table: str, times: bool) -> pyarrow.Table:
    import pyarrow as pa

    split = [text.partition("=") for text in pairs]
    names = [name for name, _, _ in split]
    find_columns(names, list(columns), table)
    cells = {name: _value(name, text, columns[name], times) for name, _, text in split}
    vectors = {name: pa.list_(pa.float64(), len(x)) for name, x in cells.items() if isinstance(x, list)}
    return pa.table({name: pa.array([x], vectors.get(name)) for name, x in cells.items()})


def _value(name: str, text: str, kind: pyarrow.DataType, times: bool) -> Any:
    from pyarrow import types

    if kind_of(kind) == "text":
        return text
    if times and is_time(kind):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise InputError(
                f"--at {name} must be a date such as 2026-11-30 or 2026-11-30T14:00, got {text!r}"
            ) from None
    if kind_of(kind) == "other":
        raise InputError(f"column {name!r} holds {name_of(kind)}, which cannot be compared: keys are numbers or text")
    if types.is_boolean(kind) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types.is_fixed_size_list(kind):
        return [number(part, f"--at {name}") for part in text.strip("[]").split(",")]
    if re.fullmatch(r"[+-]?\d+", text) and not types.is_floating(kind):
        return int(text)
    return number(text, f"--at {name}")


def _from_stdin(reading: Reading, columns: Mapping[str, Any]) -> tuple[pyarrow.Table, str, tuple[str, ...]]:
    """A CSV with a line of names, or JSON Lines."""
    with tempfile.TemporaryDirectory(prefix="attendb-") as folder:
        start = sys.stdin.buffer.read(1)
        path = Path(folder) / ("queries.jsonl" if start == b"{" else "queries.csv")
        with path.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
        table, notes = read_file(str(path), reading, columns)
        return table, "stdin", notes


def key_columns(queries: Queries, keys: Sequence[str], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The key columns of the queries, whole and of the kinds that the table has."""
    import pyarrow as pa

    names = queries.table.column_names
    lacks = [name for name in keys if name not in names]
    if lacks:
        found = f"found {listed(names)}" if names else "found none"
        fix = f"add --at {lacks[0]}=…" if queries.single else "add the column, or name fewer with --key"
        raise InputError(f"{queries.name} lacks the key column {lacks[0]!r} ({found}): {fix}")
    out = {}
    for name in keys:
        column = queries.table[name]
        if not len(column):  # without a row a file of text says nothing about types
            column = pa.chunked_array([pa.nulls(0, columns[name])])
        if kind_of(column.type) != kind_of(columns[name]):
            held, wanted = name_of(column.type), name_of(columns[name])
            raise KindError(f"{queries.name} holds {held} in {name!r}, where the table holds {wanted}: give the same")
        gaps = missing(column)
        if gaps.any():
            rows = gaps.nonzero()[0].tolist()
            shown = ", ".join(str(i + 1) for i in rows[:5]) + (", …" if len(rows) > 5 else "")
            raise MissingValueError(
                f"{queries.name} has no value of {name!r} in {len(rows):,} of {len(column):,} rows (row {shown}): "
                "fill them in, or leave those rows out"
            )
        out[name] = as_data(column, f"queries column {name!r}")
    return out
