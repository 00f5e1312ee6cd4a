"""The rows that tables on disk are measured on, made once in a folder: vectors, a CSV, and a long table with ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from torch import Tensor

import attendb as ad

ROWS, WIDTH = 1_000_000, 128
LONG_ROWS = 10_000_000
CSV_BYTES = 1_000_000_000
CSV_ROWS = 200_000  # written at a time
SITES = np.array(["Ankara", "Berlin", "Cairo", "Dublin", "Essen", "Florence", "Geneva", "Hanoi"])


class Data:
    """What the runs share. ``scale``: of all sizes, to try a file out."""

    def __init__(self, folder: Path, scale: float):
        self.folder, self.scale = folder, scale
        self.rows, self.long_rows = round(ROWS * scale), round(LONG_ROWS * scale)
        self._appended = 0

    def place(self, name: str) -> Path:
        """A path at which nothing lies."""
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    # Vectors

    @cached_property
    def keys(self) -> Tensor:
        return torch.randn(self.rows, WIDTH, generator=torch.Generator().manual_seed(0))

    @cached_property
    def values(self) -> Tensor:
        return torch.randn(self.rows, generator=torch.Generator().manual_seed(1))

    def queries(self, n: int) -> Tensor:
        return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(2))

    @cached_property
    def arrow(self) -> pa.Table:
        """The vectors, without a copy."""
        keys = pa.FixedSizeListArray.from_arrays(pa.array(self.keys.reshape(-1).numpy()), WIDTH)
        return pa.table({"key": keys, "value": pa.array(self.values.numpy())})

    @cached_property
    def table(self) -> Path:
        """The vectors as a stored table."""
        path = self.folder / "vectors.adb"
        ad.Database.create(path, self.arrow, keys="key", values="value")
        return path

    # Text

    @cached_property
    def csv(self) -> Path:
        """Twelve columns: whole numbers, decimals of some digits, a date and two texts."""
        path = self.folder / "hours.csv"
        rng = np.random.default_rng(3)
        start = 0
        with open(path, "wb") as file:
            while file.tell() < CSV_BYTES * self.scale:
                options = pyarrow.csv.WriteOptions(include_header=start == 0)
                pyarrow.csv.write_csv(_hours(rng, start, CSV_ROWS), file, options)
                start += CSV_ROWS
        return path

    # Rows by id

    @property
    def long(self) -> pa.Table:
        number = np.arange(self.long_rows)
        return pa.table({"number": number, "hour": number.astype(np.float64), "output": np.sqrt(number)})

    def long_table(self, appends: int = 0) -> Path:
        """The long table, stored with its ids, after so many appends of one row each."""
        path = self.folder / "long.adb"
        if not path.exists():
            ad.Database.create(path, self.long, keys="hour", values="output", id="number")
        if self._appended < appends:
            table = ad.Database.open(path)
            for i in range(self._appended, appends):
                number = self.long_rows + i
                table.append({"number": [number], "hour": [float(number)], "output": [0.5]})
            self._appended = appends
        if self._appended != appends:
            raise ValueError("the rows of this file are measured in order: those without appends first")
        return path

    def ids(self) -> Iterator[int]:
        """Ids of the long table, at random, without end."""
        return cycle(np.random.default_rng(4).integers(0, self.long_rows, 100_000).tolist())


def _hours(rng: np.random.Generator, start: int, rows: int) -> pa.Table:
    columns: dict[str, Any] = {"hour": np.arange(start, start + rows)}
    columns["day"] = pa.array((start + np.arange(rows)) // 24 % 20_000, pa.int32()).cast(pa.date32())
    columns["site"] = SITES[rng.integers(0, len(SITES), rows)]
    columns["unit"] = np.char.add("unit ", rng.integers(1, 500, rows).astype(str))
    for name, digits in (("x", 4), ("y", 4), ("temperature", 2), ("vacuum", 2), ("pressure", 1), ("humidity", 2)):
        columns[name] = (rng.standard_normal(rows) * 100).round(digits)
    columns["alarms"] = rng.integers(0, 5, rows)
    columns["output"] = (450 + 20 * rng.standard_normal(rows)).round(3)
    return pa.table(columns)


def sync_files(folder: Path) -> None:
    """Wait until the disk has all files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def drop_from_page_cache(folder: Path) -> None:
    """Let the system forget the contents of all files of a folder, where it can be told to."""
    sync_files(folder)
    for path in folder.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
