"""A question to a stored table needs memory for some blocks, however many rows there are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import attendb as ad
from attendb.sources import table_reading

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "larger_than_memory.py"
WIDTH, BLOCK = 64, 1 << 21
MIB = 1 << 20


def resident(field: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at the peak."""
    return int(next(line for line in STATUS.read_text().splitlines() if line.startswith(field)).split()[1]) * 1024


def lifted(run: Callable[[], Any]) -> int:
    """Bytes by which a run lifts the peak above what is held before it."""
    CLEAR.write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def stored(path: Path, rows: int) -> ad.Database:
    schema = pa.schema([("key", pa.list_(pa.float32(), WIDTH)), ("value", pa.float32())])
    rng = np.random.default_rng(0)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 1 << 14):
            keys = rng.standard_normal((min(1 << 14, rows - start), WIDTH), dtype=np.float32)
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), type=schema.field(0).type)]
            yield pa.record_batch([*columns, pa.array(keys[:, 0].copy())], schema=schema)

    ad.Database.create(path, pa.RecordBatchReader.from_batches(schema, batches()), keys="key", values="value")
    return ad.Database.open(path, cache_bytes=0)


def softmax(table: ad.Database) -> None:
    table.attend(torch.ones(4, WIDTH), score=ad.Gaussian(8.0))


def top(table: ad.Database) -> None:
    table.attend(torch.ones(4, WIDTH), score=ad.Dot(), weighting=ad.TopK(5), top=5)


def filtered(table: ad.Database) -> None:
    table.attend(torch.ones(4, WIDTH), score=ad.Dot(), where="value > -1")


def step(table: ad.Database) -> None:
    queries = torch.ones(4, WIDTH, requires_grad=True)
    table.attend(queries, score=ad.Gaussian(8.0, learn=True)).value.sum().backward()
    assert queries.grad is not None


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ad.Database:
    """73 MiB of keys."""
    return stored(tmp_path_factory.mktemp("large") / "table", 300_000)


@pytest.mark.skipif(not CLEAR.exists(), reason="the peak of memory is read from Linux's /proc")
def test_memory_does_not_grow_with_the_rows(
    large: ad.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reading, "BLOCK_BYTES", BLOCK)
    small = stored(tmp_path / "small", 30_000)
    for ask in (softmax, top, filtered, step):
        ask(large)  # libraries, compiled loops, thread pools, and what malloc keeps
        # the least of several: threads that free a block late only add
        few, many = (min(lifted(partial(ask, table)) for _ in range(2)) for table in (small, large))
        assert many < few + 24 * MIB, f"{ask.__name__}: {few / MIB:.0f} MiB of 7, {many / MIB:.0f} MiB of 73"


@pytest.mark.skipif(not CLEAR.exists(), reason="the peak of memory is read from Linux's /proc")
def test_the_measure_sees_a_table_that_is_read_whole(large: ad.Database) -> None:
    assert lifted(lambda: list(large._source.blocks())) > 32 * MIB


@pytest.mark.slow
def test_a_table_larger_than_the_limit_is_asked_under_it(tmp_path: Path) -> None:
    """The benchmark at an eighth of its size and of its blocks; the libraries alone take half of the limit."""
    run = [sys.executable, str(BENCHMARK), "--gigabytes", "1.5", "--limit", "1.1", "--cache", "0.05", "--block", "8"]
    path = os.pathsep.join(x for x in (str(BENCHMARK.parents[1]), os.environ.get("PYTHONPATH")) if x)
    done = subprocess.run(
        [*run, "--folder", str(tmp_path), "--threads", "1"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "forward and backward" in done.stdout and not list(tmp_path.iterdir())
