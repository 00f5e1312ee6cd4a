"""Tables on disk: questions against the same in memory, import, append, lookup and open, beside LanceDB and DuckDB.

    python benchmarks/tables.py [--threads 2] [--only TEXT] [--folder DIR] [--write]

Files are made in a temporary folder below ``--folder`` (about 12 GB with the copies of the peers) and removed at the
end. They are warm, that is in the page cache of the system, except where a row says otherwise. Peers are given the same
rows, a database file of their own, and an index where a row looks one up. pgvector is not in Debian's packages for the
machine that was measured, so it does not stand here.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import compare

os.environ["LANCE_CPU_THREADS"] = str(compare.THREADS)  # also LanceDB's; read when it is loaded

import numpy as np
import torch
from table_data import LONG_ROWS, ROWS, WIDTH, Data, drop_from_page_cache
from table_peers import (
    Side,
    Sides,
    duckdb_csv,
    duckdb_top,
    lance_append,
    lancedb_append,
    lancedb_top,
    lookups,
    pyarrow_csv,
)

import attendb as ad

HEADER = "| work | least, ms | median, ms | speed | target | beside it, median ms |\n|---|---|---|---|---|---|"
NOTE = "pgvector is not here: Debian's packages for this machine lack it."
FOLDER = ("--folder", {"type": Path, "help": "where files are made (default: the system's temporary folder)"})
Peers = Callable[[Data], Sides]


@dataclass(frozen=True)
class Against:
    """One row of the first table: the same work by attendb and by the faster of the peers.

    ``sides`` makes what the runs need in the folder, where it is not there yet, and returns our run and the peers'.
    ``same`` is given both results and says how far they agree. ``target``: of the ratio of seconds.
    """

    name: str
    sides: Callable[[Data], tuple[Side, Sides]]
    target: float | None = None
    same: Callable[[Any, Any], str] | None = None
    repeats: int = 5


@dataclass(frozen=True)
class Within:
    """One row of the second table: a time of its own. ``limit``: seconds of the median.

    ``size``: bytes that one run reads; ``least_speed``: of them a second in the fastest run, in place of a limit.
    """

    name: str
    sides: Callable[[Data], tuple[Side, Sides]]
    limit: float | None = None
    repeats: int = 5
    size: Callable[[Data], int] | None = None
    least_speed: float | None = None


# Questions


def asked(table: ad.Database, data: Data, n: int, weighting: ad.Weighting) -> ad.Answer:
    top = weighting.k if isinstance(weighting, ad.TopK) else 0
    return table.attend(data.queries(n), score=ad.Dot(), weighting=weighting, top=top)


def disk_or_memory(data: Data, *, n: int, weighting: ad.Weighting, cache_bytes: int) -> tuple[Side, Sides]:
    disk, memory = ad.Database.open(data.table, cache_bytes=cache_bytes), ad.Database(data.keys, data.values)
    ours, peer = (Side(partial(asked, table, data, n, weighting)) for table in (disk, memory))
    return ours, {"": peer}


def best_rows(data: Data, *, n: int, peers: Callable[[Data, int], Sides]) -> tuple[Side, Sides]:
    """Warm files, with the cache of blocks that a table has when it is not told otherwise."""
    disk = ad.Database.open(data.table)
    return Side(lambda: asked(disk, data, n, ad.TopK(10)).top.positions), peers(data, n)


def first_touch(data: Data, *, dropped: bool = False) -> tuple[Side, Sides]:
    def run() -> object:
        return asked(ad.Database.open(data.table), data, 1, ad.TopK(10))

    return Side(run, (lambda: drop_from_page_cache(data.table)) if dropped else None), {}


def same_answers(ours: ad.Answer, memory: ad.Answer) -> str:
    """The largest difference of values, and how many queries have other best rows."""
    apart = (torch.as_tensor(ours.value) - torch.as_tensor(memory.value)).abs().max()
    rows = "" if ours.top is None else "; " + same_rows(ours.top.positions, memory.top.positions)
    return f"largest difference {float(apart):.1e}{rows}"


def same_rows(ours: Any, peer: Any) -> str:
    a, b = (torch.tensor(np.asarray(x)).sort(-1).values for x in (ours, peer))
    return f"other rows: {int((a != b).any(-1).sum())} of {len(a)} queries"


# Changes


def imported(data: Data, *, peers: Peers) -> tuple[Side, Sides]:
    place, text = data.folder / "import.adb", data.csv

    def run() -> int:
        return len(ad.Database.create(place, text, keys=["x", "y"], values=["output"]))

    return Side(run, lambda: data.place(place.name)), peers(data)


def appended(data: Data, *, peers: Peers) -> tuple[Side, Sides]:
    """To a table of ten rows, made anew before each run."""
    held: dict[str, ad.Database] = {}

    def prepare() -> None:
        place = data.place("append.adb")
        held["table"] = ad.Database.create(place, data.arrow.slice(0, 10), keys="key", values="value")

    return Side(lambda: len(held["table"].append(data.arrow)), prepare), peers(data)


# Rows by id


def looked_up(data: Data, *, key: bool = False, appends: int = 0) -> tuple[Side, Sides]:
    """One row of the long table by its id or key, another one each time."""
    table = ad.Database.open(data.long_table(appends))
    ids = data.ids()
    run = (lambda: table.lookup(float(next(ids)))) if key else (lambda: table.get([next(ids)]))
    return Side(run), {} if key or appends else lookups(data)


def opened(data: Data) -> tuple[Side, Sides]:
    place = data.long_table()
    return Side(lambda: ad.Database.open(place)), {}


def opened_by_a_new_process(data: Data) -> tuple[Side, Sides]:
    def side(more: str) -> Side:
        command = [sys.executable, "-c", f"import attendb{more}"]
        return Side(lambda: subprocess.run(command, check=True))

    return side(f"; attendb.Database.open({str(data.long_table())!r})"), {"import attendb alone": side("")}


# The rows


def against(scale: float) -> list[Against]:
    m = f"{compare.count(ROWS * scale)} × {WIDTH}"
    top, softmax = ad.TopK(10), ad.Softmax()
    files = partial(disk_or_memory, n=256, cache_bytes=0)
    cached = partial(disk_or_memory, n=1, cache_bytes=1 << 31)
    csv = f"import of a CSV of {scale:g} GB"
    how = "warm files without cache of blocks / in memory"
    return [
        Against(f"top-10 of {m}, 256 queries, {how}", partial(files, weighting=top), 1.25, same_answers),
        Against(f"softmax of {m}, 256 queries, {how}", partial(files, weighting=softmax), 1.25, same_answers),
        Against(f"top-10 of {m}, 1 query, {how}", partial(files, n=1, weighting=top), None, same_answers, 9),
        Against(
            f"top-10 of {m}, 1 query, from the cache of blocks / in memory",
            partial(cached, weighting=top),
            1.2,
            same_answers,
            25,
        ),
        Against(
            f"softmax of {m}, 1 query, from the cache of blocks / in memory",
            partial(cached, weighting=softmax),
            None,
            same_answers,
            25,
        ),
        *(
            Against(f"top-10 of {m}, {queries} / {peer}", partial(best_rows, n=n, peers=peers), None, same_rows, 3)
            for peer, peers, most in (("LanceDB, flat search", lancedb_top, 256), ("DuckDB", duckdb_top, 16))
            for n, queries in ((1, "1 query"), (most, f"{most} queries"))
        ),
        Against(f"{csv} / pyarrow's reader alone", partial(imported, peers=pyarrow_csv), 2.0, repeats=3),
        Against(f"{csv} / DuckDB", partial(imported, peers=duckdb_csv), repeats=2),
        Against(f"append of {m} / a plain Lance write", partial(appended, peers=lance_append), 2.0),
        Against(
            f"append of {m} / a plain Lance write, then fsync",
            partial(appended, peers=partial(lance_append, synced=True)),
        ),
        Against(f"append of {m} / LanceDB", partial(appended, peers=lancedb_append), repeats=3),
    ]


def within(scale: float) -> list[Within]:
    m, long = f"{compare.count(ROWS * scale)} × {WIDTH}", f"{compare.count(LONG_ROWS * scale)} rows"
    touch = f"first touch: a table is opened, top-10 of {m}, 1 query, files"
    then = "after 100 appends of one row"
    return [
        Within(f"{touch} in the page cache", first_touch, None, 9, keys_in_bytes, 1.5e9),
        Within(f"{touch} dropped from it", partial(first_touch, dropped=True), None, 3, keys_in_bytes),
        Within(f"lookup by id in {long}", looked_up, 5e-3, 300),
        Within(f"lookup by key in {long}", partial(looked_up, key=True), None, 300),
        Within(f"open of {long} after their import", opened, 50e-3, 20),
        Within(f"open of {long} by a new process", opened_by_a_new_process),
        Within(f"lookup by id in {long}, {then}", partial(looked_up, appends=100), 5e-3, 300),
        Within(f"lookup by key in {long}, {then}", partial(looked_up, key=True, appends=100), None, 300),
    ]


def keys_in_bytes(data: Data) -> int:
    return data.rows * WIDTH * 4


# Measuring


def timed(side: Side) -> float:
    """Seconds of one run, after what it wants before."""
    if side.before is not None:
        side.before()
    start = time.perf_counter()
    side.run()
    return time.perf_counter() - start


def in_turn(ours: Side, peer: Side, repeats: int) -> compare.Times:
    times: compare.Times = ([], [])
    for turn in range(repeats):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            times[i].append(timed((ours, peer)[i]))
    return times


def lifted(side: Side) -> tuple[Any, float]:
    """The result, and the MiB by which one run lifts the peak; what earlier runs left is given back first."""
    import pyarrow as pa

    if side.before is not None:
        side.before()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    compare.forget_peak()
    before = compare.resident_now()
    result = side.run()
    return result, max(0.0, compare.peak_now() - before)


def measure(work: Against, data: Data) -> compare.Row:
    ours, peers = work.sides(data)
    timed(ours)  # the warm-up
    best = min(peers, key=lambda setting: min(timed(peers[setting]) for _ in range(min(2, work.repeats))))
    (mine, my_memory), (theirs, their_memory) = lifted(ours), lifted(peers[best])
    note = "" if work.same is None else work.same(mine, theirs)
    del mine, theirs
    times = in_turn(ours, peers[best], work.repeats)
    name = f"{work.name} [peer: {best}]" if best else work.name
    return compare.row(name, times, work.target, memory=(my_memory, their_memory), note=note)


def measure_within(work: Within, data: Data) -> compare.Row:
    ours, peers = work.sides(data)
    timed(ours)
    times = [timed(ours) for _ in range(work.repeats)]
    least, median = min(times), statistics.median(times)
    speed, target = "", "" if work.limit is None else f"median ≤ {1e3 * work.limit:g} {_mark(median <= work.limit)}"
    if work.size is not None:
        rate = work.size(data) / least
        speed = f"{rate / 1e9:.2f} GB/s"
        if work.least_speed is not None:
            target = f"≥ {work.least_speed / 1e9:g} GB/s {_mark(rate >= work.least_speed)}"
    beside = {name: statistics.median(timed(side) for _ in range(work.repeats)) for name, side in peers.items()}
    others = "; ".join(f"{name}: {1e3 * median:.3g}" for name, median in beside.items())
    cells = [work.name, f"{1e3 * least:.3g}", f"{1e3 * median:.3g}", speed, target, others]
    return f"| {' | '.join(cells)} |"


def _mark(met: bool) -> str:
    return "✓" if met else "✗"


def rows_of(works: Sequence[Any], header: str, run: Callable[[Any], compare.Row], options: Any) -> str:
    """The table of the works whose name holds the text asked for, printed row by row; empty where there is none."""
    lines = [header]
    for work in (work for work in works if options.only in work.name):
        compare.stop_when_busy(options)
        lines.append(run(work))
        print("\n".join(lines if len(lines) == 2 else lines[-1:]), flush=True)
    return "\n".join(lines) if len(lines) > 1 else ""


def main() -> None:
    options = compare.arguments(__doc__, FOLDER)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="attendb-benchmark-", dir=options.folder) as folder:
        data = Data(Path(folder), options.scale)
        first = rows_of(against(options.scale), compare.HEADER, lambda work: measure(work, data), options)
        second = rows_of(within(options.scale), HEADER, lambda work: measure_within(work, data), options)
    if first or second:
        compare.write(options, "Tables on disk", "\n\n".join(x for x in (first, second, NOTE) if x))


if __name__ == "__main__":
    main()
