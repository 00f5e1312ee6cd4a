"""numpy files: .npy (one array) and .npz (one array a column), read in runs of rows and never unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from .frames import vectors
from .normal import ArrowImport, arrow_import
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 8 << 20  # bytes that are converted at once


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]


def open_arrays(
    path: Path, *, types: Mapping[str, pa.DataType] | None, text: Sequence[str], progress: Progress | None
) -> ArrowImport:
    """A column for each array, named as in the file; a single array has the name of the file.

    An array (m,) is a column of numbers or text, (m, d) one of vectors; an array of records has a column a field.
    """
    packed = zipfile.is_zipfile(path)
    members = _members(path) if packed else {path.stem: None}
    headers: dict[str, _Header] = {}
    for name, member in members.items():
        with ExitStack() as stack:
            headers[name] = _header(_open(path, member, stack), path, name)
    lengths = {name: header.shape[0] for name, header in headers.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{path} has arrays of different lengths ({lengths}): a table needs one length")
    rows = next(iter(lengths.values()))
    width = sum(header.dtype.itemsize * int(np.prod(header.shape[1:])) for header in headers.values())
    step = max(1, BLOCK // max(1, width))

    def read() -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            streams = {name: _open(path, member, stack) for name, member in members.items()}
            readers = [_rows(stream, _header(stream, path, name), step, path) for name, stream in streams.items()]
            for parts in zip(*readers, strict=True):
                yield _batch(dict(zip(members, parts, strict=True)), path)

    empty = {name: np.empty((0, *h.shape[1:]), h.dtype) for name, h in headers.items()}
    schema = _batch(empty, path).schema
    return arrow_import(schema, read, where=str(path), rows=rows, types=types, text=text, progress=progress)


def _members(path: Path) -> dict[str, str | None]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, str | None] = {n.removesuffix(".npy"): n for n in archive.namelist() if n.endswith(".npy")}
    if not found:
        raise InputError(f"{path} holds no arrays: write it with numpy.savez")
    return found


def _open(path: Path, member: str | None, stack: ExitStack) -> IO[bytes]:
    try:
        if member is None:
            return stack.enter_context(open(path, "rb"))
        return stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(member))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}): check the file") from None


def _header(stream: IO[bytes], path: Path, name: str) -> _Header:
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    except ValueError as error:
        raise InputError(f"{path} cannot be read as numpy's format ({error}): check the file") from None
    if dtype.hasobject:
        raise InputError(
            f"{path}: array {name!r} holds Python objects, which are never unpickled: save numbers or text"
        )
    if not 1 <= len(shape) <= 2:
        raise InputError(f"{path}: array {name!r} has shape {shape}: a column has the shape (rows,) or (rows, width)")
    if dtype.kind in "cV" and dtype.names is None:
        raise InputError(f"{path}: array {name!r} holds {dtype}, which no column can hold")
    return _Header(shape, by_columns and len(shape) == 2, dtype)


def _rows(stream: IO[bytes], header: _Header, step: int, path: Path) -> Iterator[np.ndarray]:
    """The array in runs of rows; one that lies by columns is read whole."""
    total = header.shape[0]
    width = int(np.prod(header.shape[1:]))
    if header.by_columns:
        array = np.frombuffer(_exactly(stream, total * width * header.dtype.itemsize, path), header.dtype)
        whole = array.reshape(header.shape[::-1]).T
        for start in range(0, total, step):
            yield whole[start : start + step]
        return
    for start in range(0, total, step):
        count = min(step, total - start)
        raw = _exactly(stream, count * width * header.dtype.itemsize, path)
        yield np.frombuffer(raw, header.dtype).reshape(count, *header.shape[1:])


def _exactly(stream: IO[bytes], size: int, path: Path) -> bytes:
    raw = stream.read(size)
    if len(raw) != size:
        raise InputError(f"{path} cannot be read to its end (it was cut short): write it again")
    return raw


def _batch(arrays: Mapping[str, np.ndarray], path: Path) -> pa.RecordBatch:
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name, array in arrays.items():
        parts = {field: array[field] for field in array.dtype.names} if array.dtype.names else {name: array}
        for column, part in parts.items():
            if column in columns:
                raise InputError(f"{path} has two columns {column!r}: rename one")
            columns[column] = _column(part)
    return pa.RecordBatch.from_pydict(columns)


def _column(array: np.ndarray) -> pa.Array:
    import pyarrow as pa

    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 2:
        return vectors(array)
    if array.dtype.kind == "U":
        return pa.array(array.astype(object), pa.large_string())
    if array.dtype.kind == "S":
        return pa.array(array.astype(object), pa.large_binary())
    return pa.array(np.ascontiguousarray(array))
