"""Rows of a query: SQLite by Python's own module, other databases through ADBC."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..errors import InputError
from .base import BATCH_ROWS
from .normal import ArrowImport, arrow_import
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa

_DRIVERS = {"postgresql": "adbc_driver_postgresql", "postgres": "adbc_driver_postgresql"}
_EXACT = 2**53
_VIEW = "attendb_query"


def open_sql(
    uri: str,
    query: str | None,
    *,
    types: Mapping[str, pa.DataType] | None,
    text: Sequence[str],
    progress: Progress | None,
) -> ArrowImport:
    """The rows that a query finds: sqlite:///file.db, sqlite:////absolute/file.db, postgresql://user@host/base."""
    scheme = uri.split("://", 1)[0]
    if scheme != "sqlite" and scheme not in _DRIVERS:
        raise InputError(f"{scheme}:// is no database that can be read: give sqlite:///FILE or postgresql://HOST/NAME")
    if query is None:
        raise InputError(f"{_public(uri)} is a database: say which rows with query=, such as 'SELECT * FROM plant'")
    options: dict[str, Any] = {"types": types, "text": text, "progress": progress}
    if scheme == "sqlite":
        return _open_sqlite(Path(unquote(uri.removeprefix("sqlite://")[1:])), query, **options)
    return _open_adbc(uri, query, importlib_driver(_DRIVERS[scheme]), **options)


def importlib_driver(name: str) -> Any:
    """The driver, or an InputError that names the command which installs it."""
    try:
        return importlib.import_module(f"{name}.dbapi")
    except ImportError:
        raise InputError(
            f"reading this database needs the package {name.replace('_', '-')}: pip install 'attendb[sql]'"
        ) from None


def _open_adbc(uri: str, query: str, driver: Any, **options: Any) -> ArrowImport:
    """A database whose columns have types of their own, so that the first batch tells them."""
    import pyarrow as pa

    where = _public(uri)

    def failed(error: Exception) -> InputError:
        return InputError(f"{where} cannot answer the query ({_first_line(error)}): check the URI and the query")

    def read() -> Iterator[pa.RecordBatch]:
        try:
            with closing(driver.connect(uri)) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(query)
                with closing(cursor.fetch_record_batch()) as reader:
                    yield from reader
        except (driver.Error, pa.ArrowException) as error:
            raise failed(error) from None

    try:
        with closing(driver.connect(uri)) as connection, closing(connection.cursor()) as cursor:
            schema = cursor.adbc_execute_schema(query)
    except (driver.Error, pa.ArrowException) as error:
        raise failed(error) from None
    numeric = [f.name for f in schema if getattr(f.type, "type_name", None) == "numeric"]
    wanted = options["types"] or {}
    notes = [
        f"column {name!r} is numeric in the database, exact decimals: it is kept as text unless types= names a type"
        for name in numeric
        if name not in wanted
    ]
    plain = pa.schema([pa.field(f.name, f.type) for f in schema])
    return arrow_import(plain, read, where=where, rows=None, notes=notes, **options)


def _open_sqlite(path: Path, query: str, **options: Any) -> ArrowImport:
    """SQLite has types by cell: one query counts them, so that a column gets the type that all its cells have."""
    import pyarrow as pa

    notes: list[str] = []
    with closing(_connect(path)) as connection:
        try:
            cursor = connection.execute(query)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _refused(path, error) from None
        if cursor.description is None:
            raise InputError(f"{path}: the query returns no rows: give a SELECT")
        names = [column[0] for column in cursor.description]
        cursor.close()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"{path}: the query returns two columns {twice[0]!r}: rename one with AS")
        wanted = {**dict.fromkeys(options["text"], pa.large_string()), **(options["types"] or {})}
        _one(connection, path, f"CREATE TEMP VIEW {_VIEW} AS {query}")  # in memory: the file is open for reading only
        kinds = [_sqlite_type(connection, path, name, notes, wanted) for name in names]
        rows = _one(connection, path, f"SELECT count(*) FROM temp.{_VIEW}")[0]
    schema = pa.schema(zip(names, kinds, strict=True))

    def read() -> Iterator[pa.RecordBatch]:
        with closing(_connect(path)) as connection:
            try:
                cursor = connection.execute(query)
                while run := cursor.fetchmany(BATCH_ROWS):
                    columns = [
                        _sqlite_column(list(column), f, path)
                        for column, f in zip(zip(*run, strict=True), schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
            except sqlite3.Error as error:
                raise _refused(path, error) from None

    return arrow_import(schema, read, where=str(path), rows=rows, notes=notes, **options)


def _sqlite_type(
    connection: sqlite3.Connection, path: Path, name: str, notes: list[str], wanted: Mapping[str, Any]
) -> pa.DataType:
    import pyarrow as pa

    column = '"' + name.replace('"', '""') + '"'
    sql = (
        f"SELECT sum(typeof({column}) = 'integer'), sum(typeof({column}) = 'real'), sum(typeof({column}) = 'text'),"
        f" sum(typeof({column}) = 'blob'), sum(typeof({column}) = 'integer' AND abs({column} / 2) > {_EXACT // 2})"
        f" FROM temp.{_VIEW}"
    )
    integers, reals, texts, blobs, wide = (count or 0 for count in _one(connection, path, sql))
    if not integers + reals + texts + blobs:
        return pa.null()
    if not reals + texts + blobs:
        return pa.int64()
    if not texts + blobs and not wide:
        return pa.float64()
    if not integers + reals + texts:
        return pa.large_binary()
    if blobs:
        raise InputError(f"{path}: column {name!r} holds {blobs:,} blobs beside other values: cast it in the query")
    if integers + reals and name not in wanted:
        notes.append(
            f"column {name!r} is text, because its {integers + reals:,} numbers and {texts:,} texts have no other type"
            if texts
            else f"column {name!r} is text, because a float64 would not keep the digits of {wide:,} whole numbers"
        )
    return pa.large_string()


def _sqlite_column(values: list[Any], field: pa.Field, path: Path) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_large_string(field.type):
        values = [value if value is None or isinstance(value, str) else repr(value) for value in values]
    try:
        return pa.array(values, pa.null() if pa.types.is_null(field.type) else field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: column {field.name!r} was changed while it was read ({error})") from None


def _connect(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise InputError(f"{path} cannot be read (no such file): give sqlite:///FILE, or sqlite:////FILE from the root")
    # A table that is written takes the rows in a thread of its own; never two threads at once.
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, check_same_thread=False)


def _one(connection: sqlite3.Connection, path: Path, sql: str) -> tuple[Any, ...]:
    try:
        return connection.execute(sql).fetchone()
    except sqlite3.Error as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot answer the query ({_first_line(error)}): check the query")


def _public(uri: str) -> str:
    """A URI without its password."""
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":…@")))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
