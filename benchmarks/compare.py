"""How every benchmark here measures: ours and the peer interleaved in one run, same threads, minimum and median.

A claim is one `Comparison`: two callables that do the same work. Each runs in turn, so that a slow spell of the
machine meets both. Peak memory is the growth of VmHWM, taken in a fresh process per side.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"


@dataclass(frozen=True)
class Row:
    """One measured claim."""

    name: str
    ours: float  # seconds, minimum
    peer: float
    ratio: float  # of minima
    median_ratio: float
    error: float | None
    target: float | None
    ours_memory: float | None = None  # MiB above the inputs
    peer_memory: float | None = None

    def markdown(self) -> str:
        reached = (
            ""
            if self.target is None
            else (f"≤ {self.target:g} ✓" if self.ratio <= self.target else f"≤ {self.target:g} ✗")
        )
        memory = "" if self.ours_memory is None else f"{self.ours_memory:.0f} / {self.peer_memory or 0:.0f}"
        error = "" if self.error is None else f"{self.error:.1e}"
        return (
            f"| {self.name} | {self.ours:.3f} | {self.peer:.3f} | **{self.ratio:.2f}** | {self.median_ratio:.2f} "
            f"| {reached} | {error} | {memory} |"
        )


HEADER = (
    "| work | ours, s | peer, s | ratio | ratio of medians | target | max error | memory, MiB: ours / peer |\n"
    "|---|---|---|---|---|---|---|---|"
)


def interleave(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each run, in turn, after one warm-up each."""
    times: tuple[list[float], list[float]] = ([], [])
    for side in (ours, peer):
        side()
    for turn in range(repeats):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for i in order:
            start = time.perf_counter()
            (ours, peer)[i]()
            times[i].append(time.perf_counter() - start)
    return times


def measure(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    repeats: int = 5,
    error: float | None = None,
    target: float | None = None,
    memory: tuple[float, float] | None = None,
) -> Row:
    a, b = interleave(ours, peer, repeats)
    ratio, medians = min(a) / min(b), statistics.median(a) / statistics.median(b)
    row = Row(name, min(a), min(b), ratio, medians, error, target, *(memory or (None, None)))
    print(row.markdown(), flush=True)
    return row


def peak_memory(script: str, *arguments: str) -> float:
    """MiB by which a side's peak grows above its inputs, printed last by `script arguments` in a fresh process."""
    out = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True).stdout
    return float(out.strip().splitlines()[-1])


def peak_now() -> float:
    """The process's peak resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def foreign_load(seconds: float = 1.0) -> float:
    """Cores that other processes keep busy."""

    def busy() -> tuple[float, float]:
        fields = [float(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        own = time.process_time() * os.sysconf("SC_CLK_TCK")
        return sum(fields) - fields[3] - fields[4], own

    if not Path("/proc/stat").exists():
        return 0.0
    before = busy()
    time.sleep(seconds)
    after = busy()
    return max(0.0, (after[0] - before[0] - (after[1] - before[1])) / os.sysconf("SC_CLK_TCK") / seconds)


def stop_when_busy(limit: float = 0.3) -> None:
    """End with a message when foreign load would spoil the ratios."""
    load = foreign_load()
    if load > limit:
        raise SystemExit(f"machine busy: other processes use {load:.1f} cores; try again later, or pass --busy-is-fine")


def machine() -> str:
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    return f"{model}, {os.cpu_count()} cores"


def commit() -> str:
    out = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return out.stdout.strip() or "unknown"


def write_section(title: str, command: str, body: str) -> None:
    """Replace (or add) one section of results.md, with commit, machine and date."""
    stamp = f"`{command}`, commit {commit()}, {machine()}, {time.strftime('%Y-%m-%d')}."
    section = f"## {title}\n\n{stamp}\n\n{body}\n"
    old = RESULTS.read_text() if RESULTS.exists() else "# Benchmark results\n"
    head, _, rest = old.partition(f"## {title}\n")
    tail = rest.partition("\n## ")[2]
    RESULTS.write_text(head.rstrip("\n") + "\n\n" + section + (f"\n## {tail}" if tail else ""))
