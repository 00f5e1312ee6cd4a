"""Bytes of a text file as a stream of UTF-8: unpacked, decoded, checked, with rows mended on the way."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError

CHUNK = 4 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZ": "bz2"}
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))

Progress = Callable[[int, "int | None"], None]


@dataclass(frozen=True)
class TextFile:
    """A text file on disk: how it is packed and encoded, and its state when it was first looked at."""

    path: Path
    encoding: str  # as Python names it
    packing: str | None
    mark: int  # bytes of the byte-order mark
    size: int
    changed: int  # time of the last change, ns

    @property
    def plain(self) -> bool:
        """Whether the bytes of the file are the text as UTF-8."""
        return self.packing is None and self.encoding == "utf-8"

    def unchanged(self) -> None:
        """InputError where the file is no longer the one that was looked at."""
        state = _stat(self.path)
        if (state.st_size, state.st_mtime_ns) != (self.size, self.changed):
            raise InputError(f"{self.path} was changed while it was read: import it again")


def open_text(path: Path, encoding: str | None) -> TextFile:
    """Look at the first bytes of a file: its packing, its byte-order mark."""
    state = _stat(path)
    if not path.is_file():
        raise InputError(f"{path} is no regular file: save it first, and give the path of that file")
    if encoding is not None:
        try:
            encoding = codecs.lookup(encoding).name
        except LookupError:
            raise InputError(f"there is no encoding {encoding!r}: name one such as utf-8, utf-16, cp1252") from None
    with open(path, "rb") as file:
        head = file.read(4)
    packing = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    if packing == "bz2" and path.suffix != ".bz2":
        packing = None  # a text that starts with BZ
    start = _first_bytes(path, packing)
    for mark, name in _MARKS:
        if start.startswith(mark) and encoding in (None, name, "utf-16", "utf-8-sig"):
            return TextFile(path, name, packing, len(mark), state.st_size, state.st_mtime_ns)
    if encoding is None and b"\0" in start:
        raise InputError(
            f"{path} has zero bytes and no byte-order mark: if it is text, name its encoding, for example"
            " encoding='utf-16-le' (--encoding utf-16-le)"
        )
    encoding = {None: "utf-8", "utf-16": "utf-16-le", "utf-8-sig": "utf-8", "ascii": "utf-8"}.get(encoding, encoding)
    return TextFile(path, encoding or "utf-8", packing, 0, state.st_size, state.st_mtime_ns)


def utf8_chunks(file: TextFile, progress: Progress | None = None) -> Iterator[bytes]:
    """The text of a file as UTF-8, without its byte-order mark, in chunks of about 4 MiB.

    Raises InputError with position, line and a hint for bytes that are not of the encoding: nothing is replaced.
    """
    decoder = codecs.getincrementaldecoder(file.encoding)(errors="strict")
    position = file.mark
    plain = file.encoding == "utf-8"
    try:
        with _unpacked(file.path, file.packing) as (stream, done):
            stream.read(file.mark)
            while True:
                chunk = stream.read(CHUNK)
                waiting = len(decoder.getstate()[0])
                try:
                    if not (plain and not waiting and chunk and chunk.isascii()):
                        text = decoder.decode(chunk, final=not chunk)
                        out = chunk if plain else text.encode()
                    else:
                        out = chunk
                except UnicodeDecodeError as error:
                    raise _undecodable(file, error, position - waiting) from None
                if not chunk:
                    if out:
                        yield out
                    return
                if progress is not None:
                    progress(done(), file.size)
                position += len(chunk)
                yield out
    except OSError as error:
        raise InputError(f"{file.path} cannot be read to its end ({_reason(error)}): check the file") from None
    except EOFError:
        raise InputError(f"{file.path} cannot be read to its end (it was cut short): fetch it again") from None


def _undecodable(file: TextFile, error: UnicodeDecodeError, start: int) -> InputError:
    bad = bytes(error.object)[error.start]
    position = start + error.start
    line = _lines_before(file, position) + 1
    hint = (
        "name the encoding of the file, for example encoding='cp1252' (--encoding cp1252), or save it as UTF-8"
        if file.encoding == "utf-8"
        else "name another encoding, or save the file as UTF-8"
    )
    name = file.encoding.upper().removesuffix("-LE").removesuffix("-BE")
    return InputError(f"{file.path}, line {line}: byte 0x{bad:02x} at position {position} is not {name}: {hint}")


def _lines_before(file: TextFile, position: int) -> int:
    """Line ends before a byte of the unpacked file: counted only when an error names a line."""
    end = "\n".encode(file.encoding)
    lines, rest = 0, b""
    with _unpacked(file.path, file.packing) as (stream, _):
        while position and (chunk := stream.read(min(CHUNK, position))):
            position -= len(chunk)
            text = rest + chunk
            lines += text.count(end)
            rest = text[-1:] if len(end) > 1 and not text.endswith(end) else b""
    return lines


@dataclass
class Edits:
    """Where rows of a stream get delimiters that they lack, or lose empty cells that they have too many."""

    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    delimiters: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def apply(self, chunks: Iterator[bytes], delimiter: bytes) -> Iterator[bytes]:
        """The stream with the bytes of each edit replaced by that many delimiters."""
        offset, at, skip = 0, 0, 0
        for chunk in chunks:
            parts: list[bytes] = []
            place = min(skip, len(chunk))
            skip -= place
            end = offset + len(chunk)
            # An edit at the very end of a chunk waits for none: what it adds belongs before the next byte.
            while at < len(self.starts) and self.starts[at] <= end:
                start = int(self.starts[at]) - offset
                parts += [chunk[place:start], delimiter * int(self.delimiters[at])]
                stop = int(self.ends[at]) - offset
                place = min(stop, len(chunk))
                skip = stop - place
                at += 1
            parts.append(chunk[place:])
            offset = end
            yield b"".join(parts)


class ChunkReader(io.RawIOBase):
    """A readable file over chunks, for pyarrow."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        """At most ``size`` bytes; fewer only at the end."""
        parts: list[bytes] = []
        missing = size if size is not None and size >= 0 else 1 << 62
        while missing:
            if not len(self._rest):
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._rest = memoryview(chunk)
                continue
            part = self._rest[:missing]
            self._rest = self._rest[len(part) :]
            parts.append(bytes(part))
            missing -= len(part)
        return b"".join(parts)


class _unpacked:
    """Context: a stream of the unpacked bytes, and a function that tells how many bytes of the file were read."""

    def __init__(self, path: Path, packing: str | None) -> None:
        self._path, self._packing = path, packing

    def __enter__(self) -> tuple[Any, Callable[[], int]]:
        import pyarrow as pa

        self._raw = open(self._path, "rb", buffering=0)
        if self._packing is None:
            return self._raw, self._raw.tell
        if self._packing == "gzip":
            import gzip

            self._stream: Any = gzip.GzipFile(fileobj=self._raw)
        else:
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), self._packing)
        return self._stream, self._raw.tell

    def __exit__(self, *_: Any) -> None:
        if self._packing is not None:
            self._stream.close()
        self._raw.close()


def _first_bytes(path: Path, packing: str | None) -> bytes:
    try:
        with _unpacked(path, packing) as (stream, _):
            return stream.read(4096)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be unpacked ({_reason(error)}): check the file") from None


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}): give the path of a file") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
