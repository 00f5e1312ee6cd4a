"""Parquet (a file, a folder, a pattern), Arrow and Feather files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import InputError
from .base import BATCH_ROWS, type_name
from .normal import ArrowImport, arrow_import
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa

_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def open_parquet(
    paths: Sequence[Path],
    *,
    where: str,
    root: Path | None,
    types: Mapping[str, pa.DataType] | None,
    text: Sequence[str],
    progress: Progress | None,
) -> ArrowImport:
    """Parquet files as one table: columns by name; folders named column=value give a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    partitions = [_partition(path, root) for path in paths]
    schemas, rows = [], 0
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                schemas.append(file.schema_arrow)
                rows += file.metadata.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet ({_first_line(error)}): check the file") from None
    notes: list[str] = []
    index = sorted({name for schema in schemas for name in pandas_index(schema)})
    unified = _unified(schemas, paths, notes)
    extra = _partition_fields(partitions, unified.names, where)
    schema = pa.schema([*(pa.field(f.name, f.type) for f in unified), *extra])

    def read() -> Iterator[pa.RecordBatch]:
        for path, values in zip(paths, partitions, strict=True):
            try:
                with pq.ParquetFile(path, memory_map=True) as file:
                    for batch in file.iter_batches(batch_size=BATCH_ROWS):
                        yield _conformed(batch, schema, values, path)
            except (pa.ArrowInvalid, OSError) as error:
                raise InputError(f"{path} cannot be read to its end ({_first_line(error)}): check the file") from None

    return arrow_import(
        schema, read, where=where, rows=rows, types=types, text=text, index=index, notes=notes, progress=progress
    )


def open_arrow(
    path: Path, *, types: Mapping[str, pa.DataType] | None, text: Sequence[str], progress: Progress | None
) -> ArrowImport:
    """An Arrow file (Feather 2) or an Arrow stream."""
    import pyarrow as pa

    with open(path, "rb") as file:
        magic = file.read(6)
    if magic[:4] == b"FEA1":
        raise InputError(
            f"{path} has the first Feather format, which is no longer read: write it as Feather 2 or Parquet"
        )

    def read() -> Iterator[pa.RecordBatch]:
        try:
            with pa.memory_map(str(path)) as source:
                if magic == b"ARROW1":
                    reader: Any = pa.ipc.open_file(source)
                    for i in range(reader.num_record_batches):
                        yield reader.get_batch(i)
                else:
                    yield from pa.ipc.open_stream(source)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} cannot be read as Arrow ({_first_line(error)}): check the file") from None

    try:
        with pa.memory_map(str(path)) as source:
            reader: Any = pa.ipc.open_file(source) if magic == b"ARROW1" else pa.ipc.open_stream(source)
            schema = reader.schema
            rows = None
            if magic == b"ARROW1":
                rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as Arrow ({_first_line(error)}): check the file") from None
    return arrow_import(
        pa.schema([pa.field(f.name, f.type) for f in schema]), read, where=str(path), rows=rows, types=types, text=text,
        index=pandas_index(schema), progress=progress,
    )  # fmt: skip


def pandas_index(schema: pa.Schema) -> list[str]:
    """The columns of a file or table that were the index of a pandas frame."""
    raw = (schema.metadata or {}).get(b"pandas")
    if raw is None:
        return []
    try:
        columns = json.loads(raw).get("index_columns", [])
    except (ValueError, AttributeError):
        return []
    return [name for name in columns if isinstance(name, str) and name in schema.names]


def _unified(schemas: Sequence[pa.Schema], paths: Sequence[Path], notes: list[str]) -> pa.Schema:
    """One schema for files that agree, or whose types one of them can hold."""
    import pyarrow as pa

    plain = [pa.schema([pa.field(f.name, _decoded(f.type)) for f in schema]) for schema in schemas]
    first = plain[0]
    for schema, path in zip(plain[1:], paths[1:], strict=True):
        if schema == first:
            continue
        for field in schema:
            if field.name not in first.names:
                notes.append(f"column {field.name!r} is not in every file: it is missing in the rows of the others")
            elif first.field(field.name).type != field.type:
                was = type_name(first.field(field.name).type)
                found = f"{was} in {paths[0].name}, {type_name(field.type)} in {path.name}"
                notes.append(f"column {field.name!r} has several types, {found}: the wider one is used")
        notes += [
            f"column {name!r} is not in every file: it is missing in the rows of the others"
            for name in first.names
            if name not in schema.names
        ]
    try:
        unified = pa.unify_schemas(plain, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"the files of {paths[0].parent} do not agree ({error}): import them one by one") from None
    notes[:] = dict.fromkeys(notes)
    return unified


def _decoded(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _conformed(
    batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None], path: Path
) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at >= 0:
            column = batch.column(at)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            try:
                columns.append(column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"{path}: column {field.name!r} does not fit {type_name(field.type)}, the type it needs beside the"
                    f" other files ({_first_line(error)}): import the files one by one, or give types="
                ) from None
        else:
            value = values.get(field.name)
            if value is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(pa.repeat(pa.scalar(value, pa.large_string()).cast(field.type), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _partition(path: Path, root: Path | None) -> dict[str, str | None]:
    """The column=value folders between the root and a file."""
    if root is None:
        return {}
    found: dict[str, str | None] = {}
    for part in path.relative_to(root).parts[:-1]:
        name, mark, value = part.partition("=")
        if mark:
            found[unquote(name)] = None if value == _NO_PARTITION else unquote(value)
    return found


def _partition_fields(
    partitions: Sequence[Mapping[str, str | None]], taken: Sequence[str], where: str
) -> list[pa.Field]:
    """The types of the columns that folders name: whole numbers only where no value has a leading zero."""
    import pyarrow as pa

    fields = []
    for name in dict.fromkeys(name for values in partitions for name in values):
        if name in taken:
            raise InputError(f"{where} has {name!r} both as a column and in the names of its folders: rename one")
        values = [v for values in partitions if (v := values.get(name)) is not None]
        whole = bool(values) and all(str(_whole(v)) == v for v in values)
        fields.append(pa.field(name, pa.int64() if whole else pa.large_string()))
    return fields


def _whole(text: str) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -(2**63) <= value < 2**63 else None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
