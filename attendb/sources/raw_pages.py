"""Reading numbers straight from the pages of a Lance file, where they lie as they do in memory.

In storage version 2.0 a column of numbers without compression and without missing ones is a run of plain bytes. Mapped
into memory it costs no copy, which is several times faster than decoding. Anything else than exactly that encoding is
left to Lance's own reader.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from ..errors import StorageError

POPULATE_READ = 22  # Linux 5.14: map the pages now, in this thread, rather than one by one where they are used
_FLAT = (
    "ArrayEncoding{array_encoding:Some(Nullable(Nullable{nullability:Some(NoNulls(NoNull{values:Some(ArrayEncoding{"
    "array_encoding:Some(@),},),},),),},),),}"
)
_NUMBER = "Flat(Flat{bits_per_value:#,buffer:Some(Buffer{buffer_index:0,buffer_type:Page,},),compression:None,},)"
_LIST = "FixedSizeList(FixedSizeList{dimension:#,has_validity:false,items:Some(" + _FLAT + ",),},)"
DTYPES = {
    pa.float16(): torch.float16,
    pa.float32(): torch.float32,
    pa.float64(): torch.float64,
    pa.int8(): torch.int8,
    pa.int16(): torch.int16,
    pa.int32(): torch.int32,
    pa.int64(): torch.int64,
    pa.uint8(): torch.uint8,
}


@dataclass(frozen=True)
class Run:
    """Rows [start, stop) of a column, which lie in the file one after the other from ``place`` on."""

    start: int
    stop: int
    place: int


class RawFile:
    """Where the plain columns of one Lance file lie. Cost of opening: one read of the file's footer."""

    def __init__(self, path: str, rows: int):
        from lance.file import LanceFileReader

        self.path, self.rows = path, rows
        self._columns = LanceFileReader(path).metadata().columns
        self._runs: dict[int, tuple[Run, ...] | None] = {}

    def runs(self, column: int, kind: pa.DataType) -> tuple[Run, ...] | None:
        """The runs of a column, or None where it is not plain bytes."""
        if column not in self._runs:
            self._runs[column] = self._found(column, kind)
        return self._runs[column]

    def _found(self, column: int, kind: pa.DataType) -> tuple[Run, ...] | None:
        number, width = (kind.value_type, kind.list_size) if pa.types.is_fixed_size_list(kind) else (kind, 1)
        if number not in DTYPES or sys.byteorder != "little":
            return None
        expected = _encoding(number.bit_width, width if pa.types.is_fixed_size_list(kind) else None)
        row_bytes = width * number.bit_width // 8
        runs: list[Run] = []
        for page in self._columns[column].pages:
            if re.sub(r"\s+", "", page.encoding) != expected or len(page.buffers) != 1:
                return None
            place, size = page.buffers[0].position, page.buffers[0].size
            if size % row_bytes or place % (number.bit_width // 8):
                return None
            rows = size // row_bytes
            before = runs[-1] if runs else Run(0, 0, place)
            if runs and before.place + (before.stop - before.start) * row_bytes == place:
                runs[-1] = Run(before.start, before.stop + rows, before.place)
            else:
                runs.append(Run(before.stop, before.stop + rows, place))
        return tuple(runs) if (runs[-1].stop if runs else 0) == self.rows else None

    def read(self, runs: tuple[Run, ...], kind: pa.DataType, start: int, stop: int) -> Tensor:
        """Rows [start, stop) (r, width): over the file's own pages where they lie in one run, else a copy."""
        number, width = (kind.value_type, kind.list_size) if pa.types.is_fixed_size_list(kind) else (kind, 1)
        row_bytes = width * number.bit_width // 8
        parts: list[Tensor] = []
        with open(self.path, "rb", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            for run in runs:
                low, high = max(start, run.start), min(stop, run.stop)
                if low >= high:
                    continue
                place, count = run.place + (low - run.start) * row_bytes, (high - low) * width
                if place + (high - low) * row_bytes > length:
                    raise StorageError(f"the data file {self.path} is cut short")
                parts.append(_mapped(file.fileno(), place, count, DTYPES[number]).reshape(-1, width))
        if not parts:
            return torch.empty(0, width, dtype=DTYPES[number])
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _encoding(bits: int, width: int | None) -> str:
    flat = _FLAT.replace("@", _NUMBER.replace("#", str(bits)) + ",")
    if width is None:
        return flat
    return _FLAT.replace("@", _LIST.replace("#", str(width)).replace("@", _NUMBER.replace("#", str(bits)) + ",") + ",")


def _mapped(file: int, place: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers of a file. The mapping is private, and ends with the last tensor that looks at it."""
    size = count * dtype.itemsize
    if sys.platform != "linux":
        os.lseek(file, place, os.SEEK_SET)
        data = bytearray()
        while len(data) < size and (part := os.read(file, size - len(data))):
            data += part
        return torch.frombuffer(data, dtype=dtype, count=count)
    aligned = place - place % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        file, place - aligned + size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=aligned
    )
    try:
        pages.madvise(POPULATE_READ)
    except OSError:
        pages.madvise(mmap.MADV_WILLNEED)  # an older kernel
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=place - aligned)
