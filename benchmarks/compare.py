"""How every benchmark here measures: ours and the peer interleaved in one run, same threads, minimum and median.

Each side runs in turn, so that a slow spell of the machine meets both. Peak memory is taken in a fresh process a side.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"
HEADER = (
    "| work | ours, s | peer, s | ratio | ratio of medians | target | max error: ours / peer | MiB: ours / peer |\n"
    "|---|---|---|---|---|---|---|---|"
)
Times = tuple[list[float], list[float]]
Row = str


def interleave(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> Times:
    """Seconds of each run, in turn, after one warm-up each."""
    times: Times = ([], [])
    for side in (ours, peer):
        side()
    for turn in range(repeats):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            (ours, peer)[i]()
            times[i].append(time.perf_counter() - start)
    return times


def row(
    name: str,
    times: Times,
    target: float | None,
    *,
    errors: tuple[float | None, float | None] = (None, None),
    memory: tuple[float, float] | None = None,
) -> Row:
    """One line of the table; the target is met or missed by the ratio of the minima."""
    a, b = times
    ratio, medians = min(a) / min(b), statistics.median(a) / statistics.median(b)
    wanted = "" if target is None else f"≤ {target:g} {'✓' if ratio <= target else '✗'}"
    wrong = "" if errors[0] is None else " / ".join(f"{e:.1e}" for e in errors if e is not None)
    peak = "" if memory is None else f"{memory[0]:.0f} / {memory[1]:.0f}"
    return f"| {name} | {min(a):.3f} | {min(b):.3f} | **{ratio:.2f}** | {medians:.2f} | {wanted} | {wrong} | {peak} |"


def table(rows: Sequence[Row]) -> str:
    return "\n".join([HEADER, *rows])


def peak_memory(script: str, *arguments: str) -> float:
    """MiB by which a side's peak grows above its inputs, printed last by ``script arguments`` in a fresh process."""
    out = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True).stdout
    return float(out.strip().splitlines()[-1])


def peak_now() -> float:
    """The process's peak resident memory so far, MiB."""
    return _status("VmHWM")  # not ru_maxrss: a child inherits that of its parent


def resident_now() -> float:
    """The process's resident memory, MiB."""
    return _status("VmRSS")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def foreign_load(seconds: float = 1.0) -> float:
    """Cores that other processes keep busy."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def busy() -> float:
        fields = [float(x) for x in stat.read_text().splitlines()[0].split()[1:]]
        return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK") - time.process_time()

    before = busy()
    time.sleep(seconds)
    return max(0.0, (busy() - before) / seconds)


def stop_when_busy(limit: float = 0.3) -> None:
    """End with a message when foreign load would spoil the ratios."""
    loads = [foreign_load() for _ in range(3)]
    if min(loads) > limit:
        raise SystemExit(
            f"machine busy: other processes use {min(loads):.1f} cores; try again later, or pass --busy-is-fine"
        )


def machine() -> str:
    """The processor's name and the number of cores."""
    model, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    return f"{model}, {os.cpu_count()} cores"


def commit() -> str:
    """The commit that was measured."""
    here = Path(__file__).parent
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=here).stdout
    return said.strip() or "unknown"


def write_section(title: str, command: str, body: str) -> None:
    """Replace (or add) one section of results.md, with commit, machine and date."""
    stamp = f"`{command}`, commit {commit()}, {machine()}, {time.strftime('%Y-%m-%d')}."
    section = f"## {title}\n\n{stamp}\n\n{body}\n"
    old = RESULTS.read_text() if RESULTS.exists() else "# Benchmark results\n"
    head, _, rest = old.partition(f"## {title}\n")
    tail = rest.partition("\n## ")[2]
    RESULTS.write_text(head.rstrip("\n") + "\n\n" + section + (f"\n## {tail}" if tail else ""))
