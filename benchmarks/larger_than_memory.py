"""Attention over a stored table that is larger than the memory it may use: 12 GB of keys, a limit of 4 GB.

    python benchmarks/larger_than_memory.py [--threads 2] [--gigabytes 12] [--limit 4] [--folder DIR] [--write]

One process makes the table from a stream of rows; a second one asks it: softmax, the ten best rows, and one step
forward and backward, with gradients to the queries and to a bandwidth that learns. The peak of resident memory of both
(VmHWM, which counts mapped pages of files too) is watched, and the run fails when it passes the limit; RLIMIT_DATA
stops a process that would go far beyond. To bound what the system caches for them as well, run the whole under
``systemd-run --scope -p MemoryMax=4G``. Answers are compared with sums in float64 that are taken while the rows are
made. The folder needs room for the keys and a fifth more; it is removed at the end.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compare
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

import attendb as ad
from attendb.sources import table_reading

WIDTH, QUERIES, BEST = 128, 16, 10
BANDWIDTH = 4.0  # at which thousands of rows share the weights
BATCH = 1 << 14  # rows made at a time
RESERVED = 2e9  # bytes of addresses that stacks of threads and allocators take and do not use: RLIMIT_DATA counts them
HEADER = "| work | seconds | GB/s of keys | peak, MiB | largest error |\n|---|---|---|---|---|"
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--gigabytes", {"type": float, "default": 12.0, "help": "of keys"}),
    ("--limit", {"type": float, "default": 4.0, "help": "GB of memory of each process"}),
    ("--cache", {"type": float, "default": None, "help": "GB of the cache of blocks (default: that of attendb)"}),
    ("--block", {"type": float, "default": None, "help": "MB of a block (default: that of attendb)"}),
    ("--folder", {"type": Path, "help": "where the table is made (default: the system's temporary folder)"}),
    ("--child", {"help": "make or ask"}),
)


def queries() -> Tensor:
    return torch.randn(QUERIES, WIDTH, generator=torch.Generator().manual_seed(0))


def rows_in_batches(rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys (r, 128) and values (r,), the same at every call: what is asked for is a column of the key, and noise."""
    for start in range(0, rows, BATCH):
        generator = torch.Generator().manual_seed(1 + start)
        keys = torch.randn(min(BATCH, rows - start), WIDTH, generator=generator)
        yield keys, keys[:, 0] + 0.1 * torch.randn(len(keys), generator=generator)


class Expected:
    """The answers by sums over all rows in float64: Σ e, Σ e v and their moments, e = exp(a), and the best products."""

    def __init__(self) -> None:
        self.q = queries().double()
        self.sums = [torch.zeros(QUERIES, dtype=torch.float64) for _ in range(4)]
        self.moments = [torch.zeros(QUERIES, WIDTH, dtype=torch.float64) for _ in range(2)]
        self.best = torch.full((QUERIES, BEST), -torch.inf, dtype=torch.float64)
        self.positions = torch.full((QUERIES, BEST), -1)
        self.rows = 0

    def add(self, keys: Tensor, values: Tensor) -> None:
        k, v = keys.double(), values.double()
        products = self.q @ k.T
        scores = products - 0.5 * (self.q.square().sum(1)[:, None] + k.square().sum(1))
        scores /= BANDWIDTH**2
        e = scores.exp()
        ev = e * v
        for total, part in zip(self.sums, (e, ev, e * scores, ev * scores), strict=True):
            total += part.sum(1)
        for total, part in zip(self.moments, (e, ev), strict=True):
            total += part @ k
        numbers = torch.arange(self.rows, self.rows + len(k)).expand(QUERIES, -1)
        best = torch.cat([self.best, products], 1)
        self.best, places = best.topk(BEST)
        self.positions = torch.cat([self.positions, numbers], 1).gather(1, places)
        self.rows += len(k)

    def save(self, path: Path) -> None:
        """Values, the best rows, and the gradients of the sum of the values to the queries and to log h."""
        total, weighted, a, weighted_a = self.sums
        value = weighted / total
        to_queries = (self.moments[1] - value[:, None] * self.moments[0]) / total[:, None] / BANDWIDTH**2
        to_bandwidth = (-2 * (weighted_a - value * a) / total).sum()
        np.savez(path, value=value, rows=self.positions.sort(1).values, queries=to_queries, bandwidth=to_bandwidth)


def make(folder: Path, rows: int) -> str:
    """Write the table from a stream; the expected answers beside it."""
    expected = Expected()
    spent = 0.0
    schema = pa.schema([("key", pa.list_(pa.float32(), WIDTH)), ("value", pa.float32())])

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal spent
        start = time.perf_counter()
        for keys, values in rows_in_batches(rows):
            expected.add(keys, values)
            flat = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1).numpy()), type=schema.field(0).type)
            spent += time.perf_counter() - start
            yield pa.record_batch([flat, pa.array(values.numpy())], schema=schema)
            start = time.perf_counter()

    start = time.perf_counter()
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    made = ad.Database.create(folder / "large.adb", reader, keys="key", values="value")
    seconds = time.perf_counter() - start - spent
    if len(made) != rows:
        raise SystemExit(f"the table has {len(made)} rows of {rows}")
    expected.save(folder / "expected.npz")
    return line("create, from a stream of batches", seconds, rows, compare.peak_now())


def ask(folder: Path, rows: int, cache: float | None) -> Iterator[str]:
    options = {} if cache is None else {"cache_bytes": round(cache * 1e9)}
    table = ad.Database.open(folder / "large.adb", **options)
    expected = dict(np.load(folder / "expected.npz"))
    softmax, dot = ad.Gaussian(BANDWIDTH), ad.Dot()

    def pooled() -> dict[str, Any]:
        return {"value": table.attend(queries(), score=softmax).value}

    def best() -> dict[str, Any]:
        top = table.attend(queries(), score=dot, weighting=ad.TopK(BEST), top=BEST).top
        return {"rows": np.sort(np.asarray(top.positions), 1)}

    def step() -> dict[str, Any]:
        q, score = queries().requires_grad_(), ad.Gaussian(BANDWIDTH, learn=True)
        value = table.attend(q, score=score).value
        value.sum().backward()
        return {"value": value.detach(), "queries": q.grad, "bandwidth": score.scale.theta.grad}

    works: tuple[tuple[str, int, Callable[[], dict[str, Any]]], ...] = (
        (f"softmax, {QUERIES} queries", 1, pooled),
        (f"top-{BEST}, {QUERIES} queries", 1, best),
        (f"forward and backward, {QUERIES} queries, to queries and bandwidth", 2, step),
    )
    for name, passes, run in works:
        compare.forget_peak()
        start = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - start
        peak = compare.peak_now()
        error = max(wrong(part, np.asarray(x), expected[part]) for part, x in found.items())
        yield line(name, seconds, passes * rows, peak, error)


def wrong(part: str, found: np.ndarray, expected: np.ndarray) -> float:
    """By the largest number of what was expected; of best rows: the share of queries whose rows are others."""
    if part == "rows":
        return float((found != expected).any(1).mean())
    return float(np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max())


def line(name: str, seconds: float, rows: int, peak: float, error: float | None = None) -> str:
    """One result as JSON, from the process that was limited to the one that judges it."""
    speed = rows * WIDTH * 4 / seconds / 1e9
    return json.dumps({"name": name, "seconds": seconds, "speed": speed, "peak": peak, "error": error})


def limited(folder: Path, options: Any, child: str) -> Iterator[dict[str, Any]]:
    """What a process under the limit prints, line by line. Ends the run where that process fails."""
    command = [sys.executable, __file__, "--child", child, "--folder", str(folder), "--threads", str(options.threads)]
    command += ["--gigabytes", str(options.gigabytes * options.scale), "--limit", str(options.limit)]
    for name, given in (("--cache", options.cache), ("--block", options.block)):
        command += [] if given is None else [name, str(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            yield json.loads(text)
    if process.returncode:
        raise SystemExit(f"the process that should {child} the table ended with status {process.returncode}")


def run_child(options: Any) -> None:
    limit = round(options.limit * 1e9 + RESERVED)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if options.block is not None:
        table_reading.BLOCK_BYTES = round(options.block * 1e6)
    rows = round(options.gigabytes * 1e9 / (4 * WIDTH))
    lines = [make(options.folder, rows)] if options.child == "make" else ask(options.folder, rows, options.cache)
    for text in lines:
        print(text, flush=True)


def judged(result: dict[str, Any], limit: float) -> tuple[str, str | None]:
    """The row of the table, and what is wrong with it."""
    error = result["error"]
    shown = "" if error is None else f"{error:.1e}"
    cells = [result["name"], f"{result['seconds']:.1f}", f"{result['speed']:.2f}", f"{result['peak']:.0f}", shown]
    fault = None
    if result["peak"] * 2**20 > limit * 1e9:
        fault = f"{result['name']}: the peak of {result['peak']:.0f} MiB is above the limit of {limit:g} GB"
    elif error is not None and not error < 1e-3:
        fault = f"{result['name']}: the answer is off by {error:.1e}"
    return f"| {' | '.join(cells)} |", fault


def main() -> None:
    options = compare.arguments(__doc__, *OPTIONS)
    torch.set_num_threads(options.threads)
    if options.child:
        return run_child(options)
    size = options.gigabytes * options.scale
    place = options.folder or Path(tempfile.gettempdir())
    if shutil.disk_usage(place).free < 1.2e9 * size:
        raise SystemExit(f"{place} has no room for {1.2 * size:.3g} GB: name another folder with --folder")
    print(HEADER, flush=True)
    rows, faults = [], []
    with tempfile.TemporaryDirectory(prefix="attendb-benchmark-", dir=place) as folder:
        for child in ("make", "ask"):
            for result in limited(Path(folder), options, child):
                row, fault = judged(result, options.limit)
                print(row, flush=True)
                rows, faults = [*rows, row], faults + ([fault] if fault else [])
    if faults:
        raise SystemExit("; ".join(faults))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    said = f"{size:g} GB of keys under a limit of {options.limit:g} GB, on a machine with {memory:.0f} GB of memory."
    print(said)
    compare.write(options, "Larger than memory", "\n\n".join([said, "\n".join([HEADER, *rows])]))


if __name__ == "__main__":
    main()
