"""open_table(): from whatever holds a table to an Import."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .base import Import, read_types
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv", ".psv": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".arrows": "arrow",
    ".jsonl": "json", ".ndjson": "json", ".jsonlines": "json", ".json": "json",
    ".npy": "numpy", ".npz": "numpy", ".xlsx": "excel", ".xlsm": "excel",
}  # fmt: skip
PACKED = (".gz", ".zst", ".bz2")
_MAGIC = ((b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"FEA1", "arrow"), (b"\x93NUMPY", "numpy"))


def open_table(
    source: Any,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    types: Mapping[str, pa.DataType | str] | None = None,
    text: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    ragged: str = "error",
    date_format: str | Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    query: str | None = None,
    sheet: str | None = None,
    progress: Progress | None = None,
) -> Import:
    """Look at a table: its columns, their types over all rows, and what had to be assumed. Nothing is written.

    ``source``: a path, a folder or a pattern (CSV, TSV, JSON Lines, all of them also .gz, .zst, .bz2; Parquet; Arrow,
    Feather; .npy, .npz; .xlsx), a URI of a database with ``query`` (sqlite:///file.db, postgresql://…), a frame of
    pandas or polars, an Arrow table, reader or dataset, or a dict of columns (m values each, or (m, d) for vectors).
    ``format``: csv, parquet, arrow, json, numpy or excel, where the name of a file does not tell.

    For text files: ``delimiter``: None finds the one of comma, semicolon, tab and bar that cuts every row alike.
    ``decimal``: "." or ","; None is the point, or the comma where it is not the delimiter and the column has no point.
    ``encoding``: None is UTF-8, or UTF-16 with a byte-order mark. ``types``: column → type, "text", "float64", "date";
    ``text``: columns to keep as text. ``missing``: words that stand for a missing value in any column; None knows the
    usual ones (NA, NaN, null, …), and text columns keep those as they are. ``ragged``: "pad" fills short rows up.
    ``date_format``: as for strptime, for all columns of dates or by column. ``names``: of the columns, where the file
    has no line of them. ``sheet``: of a spreadsheet. ``progress(done, total)``: bytes while the file is looked through,
    rows while `Import.batches` runs.

    Returns an `Import`. A type holds for the whole column: whole numbers are exact or text, a leading zero makes a
    column text, dates have one order or stay text.

    Raises InputError, naming line and column, for what cannot be read; KindError for a source of no known kind.
    Cost: a text file is read once here, a gigabyte in some seconds, and again by `Import.batches`; memory is O(1).

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "sites.csv"
    >>> _ = file.write_text("zip,opened,output\\n02116,31/12/2014,480.5\\n94107,10/03/2011,\\n")
    >>> table = open_table(file)
    >>> [(name, str(kind)) for name, kind in zip(table.schema.names, table.schema.types)]
    [('zip', 'large_string'), ('opened', 'date32[day]'), ('output', 'double')]
    >>> next(table.batches()).to_pylist()[0]
    {'zip': '02116', 'opened': datetime.date(2014, 12, 31), 'output': 480.5}

    Source: RFC 4180 for the text files.
    """
    if isinstance(source, Import):
        return source
    kinds = read_types(dict(types) if types else None)
    text = [text] if isinstance(text, str) else list(text)
    common: dict[str, Any] = {"types": kinds, "text": text, "progress": progress}
    if isinstance(source, str) and "://" in source:
        from .sql import open_sql

        return open_sql(source, query, **common)
    if query is not None:
        raise InputError("query= needs the URI of a database: give one such as sqlite:///plant.db or postgresql://…")
    if not isinstance(source, (str, os.PathLike)):
        from .frames import open_frame

        return open_frame(source, **common)
    paths, root = _files(Path(source))
    kind = _format(paths, format)
    if kind == "parquet":
        from .columnar import open_parquet

        return open_parquet(paths, where=str(source), root=root, **common)
    if len(paths) != 1:
        raise InputError(f"{source} names {len(paths)} files: several files are one table only as Parquet")
    path = paths[0]
    if kind == "arrow":
        from .columnar import open_arrow

        return open_arrow(path, **common)
    if kind == "json":
        from .json_lines import open_json_lines

        return open_json_lines(path, encoding=encoding, **common)
    if kind == "numpy":
        from .arrays import open_arrays

        return open_arrays(path, **common)
    if kind == "excel":
        from .spreadsheet import open_spreadsheet

        return open_spreadsheet(path, sheet=sheet, **common)
    from .delimited import open_delimited

    if decimal not in (None, ".", ","):
        raise InputError(f"decimal={decimal!r}: give '.' or ','")
    return open_delimited(
        path, delimiter=delimiter, decimal=decimal, encoding=encoding, missing=missing, ragged=ragged,
        date_format=date_format, names=names, **common,
    )  # fmt: skip


def _files(path: Path) -> tuple[list[Path], Path | None]:
    """The files of a path, a folder or a pattern, and the folder that partitions are counted from."""
    text = str(path)
    if path.is_dir():
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
        parquet = [file for file in found if FORMATS.get(file.suffix.lower()) == "parquet"]
        if not parquet:
            raise InputError(f"{path} is a folder without Parquet files: give a file, or a folder of .parquet files")
        return parquet, path
    if not path.exists() and any(mark in text for mark in "*?["):
        found = sorted(Path(name) for name in glob.glob(text, recursive=True) if Path(name).is_file())
        if not found:
            raise InputError(f"no file fits {text}: check the pattern")
        fixed = [part for part in path.parts if not any(mark in part for mark in "*?[")]
        return found, Path(*path.parts[: len(fixed)]) if fixed and path.parts[: len(fixed)] == tuple(fixed) else None
    if not path.exists():
        raise InputError(f"{path} cannot be read (No such file or directory): give the path of a file")
    return [path], None


def _format(paths: Sequence[Path], wanted: str | None) -> str:
    known = sorted(set(FORMATS.values()))
    if wanted is not None:
        wanted = {"tsv": "csv", "feather": "arrow", "jsonl": "json", "ndjson": "json", "xlsx": "excel"}.get(
            wanted, wanted
        )
        if wanted not in known:
            raise InputError(f"there is no format {wanted!r}: give one of {', '.join(known)}")
        return wanted
    kinds = set()
    for path in paths:
        suffixes = [suffix.lower() for suffix in path.suffixes]
        if suffixes and suffixes[-1] in PACKED:
            suffixes.pop()
        kinds.add((FORMATS.get(suffixes[-1]) if suffixes else None) or _by_magic(path))
    if len(kinds) > 1:
        raise InputError(f"the files have several formats ({', '.join(sorted(kinds))}): give format=")
    return kinds.pop()


def _by_magic(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): give the path of a file") from None
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head.startswith(b"SQLite format 3"):
        raise InputError(f"{path} is an SQLite database: give sqlite:///{path} and query=")
    return "csv"
