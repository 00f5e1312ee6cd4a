"""How every benchmark here measures: ours and the peer interleaved in one run, same threads, minimum and median.

Each side runs in turn, so that a slow spell of the machine meets both. Peak memory is taken in a fresh process a side.
Import this file before any numerical library: it sets the number of threads that they read when they are loaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results.md"
HEADER = (
    "| work | ours, s | peer, s | ratio | ratio of medians | target | max error: ours / peer | MiB: ours / peer |\n"
    "|---|---|---|---|---|---|---|---|"
)
Times = tuple[list[float], list[float]]
Row = str
Inputs = tuple[Any, ...]  # queries, keys and, where there are any, values: arrays with one row a query or key
Run = Callable[..., Any]  # of the inputs
TINY = 64  # rows of the run that loads the libraries before memory is measured


class Errors(NamedTuple):
    """The largest error of each side; None: not measured."""

    ours: float | None = None
    peer: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Work:
    """One row of the table: the same numbers by attendb and by the peer at its best.

    ``peers``: settings of the peer by name; the one that is fastest on the first ``trial`` queries is timed.
    ``part``: the queries that the peer is timed on, where all of them would take minutes; its seconds are scaled.
    ``errors`` is given the inputs, our result and the peer's (of its part).
    """

    name: str
    inputs: Callable[[], Inputs]
    ours: Run
    peers: Mapping[str, Run]
    target: float | None = None
    errors: Callable[[Inputs, Any, Any], Errors] | None = None
    repeats: int = 3
    trial: int = 1024
    part: int | None = None

    def for_peer(self, inputs: Inputs) -> Inputs:
        return inputs if self.part is None else (inputs[0][: self.part], *inputs[1:])

    def scale(self, inputs: Inputs) -> float:
        """What the peer's seconds are multiplied by."""
        return len(inputs[0]) / len(self.for_peer(inputs)[0])

    def best_setting(self, inputs: Inputs) -> str:
        """The peer's fastest setting, by the better of two runs each."""
        if len(self.peers) == 1:
            return next(iter(self.peers))
        some = (inputs[0][: self.trial], *inputs[1:])
        found = {setting: min(seconds(run, some) for _ in range(2)) for setting, run in self.peers.items()}
        return min(found, key=found.__getitem__)

    def label(self, inputs: Inputs, setting: str) -> str:
        """The name, how the peer was set, and on how many queries it was timed."""
        said = [setting] if len(self.peers) > 1 else []
        if self.scale(inputs) > 1:
            said.append(f"{count(len(self.for_peer(inputs)[0]))} queries, scaled")
        return f"{self.name} [peer: {', '.join(said)}]" if said else self.name


def seconds(run: Run, inputs: Inputs) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    run(*inputs)
    return time.perf_counter() - start


def interleave(ours: Callable[[], object], peer: Callable[[], object], repeats: int, *, warm_up: bool = True) -> Times:
    """Seconds of each run, in turn, after one warm-up each."""
    times: Times = ([], [])
    for side in (ours, peer) if warm_up else ():
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
    note: str = "",
) -> Row:
    """One line of the table; the target is met or missed by the ratio of the minima."""
    a, b = times
    ratio, medians = min(a) / min(b), statistics.median(a) / statistics.median(b)
    wanted = "" if target is None else f"≤ {target:g} {'✓' if ratio <= target else '✗'}"
    wrong = "" if errors[0] is None else " / ".join(f"{e:.1e}" for e in errors if e is not None)
    peak = "" if memory is None else f"{memory[0]:.0f} / {memory[1]:.0f}"
    cells = [name, f"{min(a):.3f}", f"{min(b):.3f}", f"**{ratio:.2g}**", f"{medians:.2g}", wanted]
    return f"| {' | '.join(cells)} | {'; '.join(x for x in (wrong, note) if x)} | {peak} |"


def table(rows: Sequence[Row]) -> str:
    return "\n".join([HEADER, *rows])


def count(x: float) -> str:
    """A number of rows; powers of ten from 10⁵ on are written as such."""
    digits = f"{x:.0f}"
    if len(digits) > 5 and digits.rstrip("0") == "1":
        return "10" + str(len(digits) - 1).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{x:,.0f}".replace(",", " ")


# The command line


def arguments(description: str | None, *more: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """What every benchmark can be told; ``more``: options of one of them, as `add_argument` takes them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--only", default="", help="run the rows whose name holds this text")
    parser.add_argument("--write", action="store_true", help="write the table to results.md")
    parser.add_argument("--busy-is-fine", action="store_true", help="measure although other processes are running")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)  # of the sizes, to try a file out
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "peer"), default="ours", help=argparse.SUPPRESS)
    parser.add_argument("--setting", default="", help=argparse.SUPPRESS)
    for name, how in more:
        parser.add_argument(name, **how)
    options = parser.parse_args()
    if options.write and options.scale != 1:
        parser.error("sizes that are scaled are no results: leave out --write or --scale")
    return options


def main(title: str, description: str | None, works: Callable[[float], list[Work]], *, body: str = "") -> None:
    """Measure the works of a file, given the scale of its sizes; print the table, and write it when asked for."""
    options = arguments(description)
    chosen = works(options.scale)
    if options.peak:
        return peak_of(next(w for w in chosen if w.name == options.peak), options.side, options.setting)
    print(HEADER)
    rows = []
    for work in chosen:
        if options.only in work.name:
            stop_when_busy(options)
            rows.append(measure(work, options))
            print(rows[-1], flush=True)
    if rows:
        write(options, title, "\n\n".join(x for x in (body, table(rows)) if x))


def measure(work: Work, options: argparse.Namespace) -> Row:
    inputs = work.inputs()
    setting = work.best_setting(inputs)
    peer, for_peer = work.peers[setting], work.for_peer(inputs)
    results = work.ours(*inputs), peer(*for_peer)  # the warm-up
    errors = Errors() if work.errors is None else work.errors(inputs, *results)
    del results
    memory = tuple(peak_in_fresh_process(work.name, options, side, setting) for side in ("ours", "peer"))
    times = interleave(lambda: work.ours(*inputs), lambda: peer(*for_peer), work.repeats, warm_up=False)
    scaled = times[0], [x * work.scale(inputs) for x in times[1]]
    return row(
        work.label(inputs, setting),
        scaled,
        work.target,
        errors=(errors.ours, errors.peer),
        memory=(memory[0], memory[1]),
        note=errors.note,
    )


def write(options: argparse.Namespace, title: str, body: str) -> None:
    """Write a section of results.md when it was asked for."""
    if options.write:
        only = f' --only "{options.only}"' if options.only else ""
        command = f"python benchmarks/{Path(sys.argv[0]).name} --threads {options.threads}{only}"
        write_section(f"{title}, threads: {options.threads}", command, body)


# Memory


def peak_in_fresh_process(name: str, options: argparse.Namespace, side: str = "ours", setting: str = "") -> float:
    """MiB that one run needs above its inputs: this script again, with ``--peak name``."""
    sizes = ("--threads", str(options.threads), "--scale", str(options.scale))
    return peak_memory(sys.argv[0], *sizes, "--peak", name, "--side", side, "--setting", setting)


def peak_of(work: Work, side: str, setting: str) -> None:
    """Print how far one run lifts this process's peak above what it holds with its inputs."""
    inputs = work.inputs()
    run = work.ours if side == "ours" else work.peers[setting]
    print_peak(run, inputs if side == "ours" else work.for_peer(inputs))


def print_peak(run: Run, inputs: Inputs) -> None:
    """The same of any run."""
    run(*(x[:TINY] for x in inputs))  # libraries and thread pools
    forget_peak()
    before = resident_now()
    run(*inputs)
    print(max(0.0, peak_now() - before))


def peak_memory(script: str, *arguments: str) -> float:
    """MiB by which a side's peak grows above its inputs, printed last by ``script arguments`` in a fresh process."""
    out = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True).stdout
    return float(out.strip().splitlines()[-1])


def forget_peak() -> None:
    """Let the peak start from what is held now, where the system allows it: making the inputs may have needed more."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_now() -> float:
    """The process's peak resident memory so far, MiB."""
    return _status("VmHWM")  # not ru_maxrss: a child inherits that of its parent


def resident_now() -> float:
    """The process's resident memory, MiB."""
    return _status("VmRSS")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


# The machine


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


def stop_when_busy(options: argparse.Namespace | None = None, limit: float = 0.3) -> None:
    """End with a message when foreign load would spoil the ratios, unless that was said to be fine."""
    if options is not None and options.busy_is_fine:
        return
    loads = [foreign_load() for _ in range(3)]
    if min(loads) > limit:
        raise SystemExit(
            f"machine busy: other processes use {min(loads):.1f} cores; try again later, or pass --busy-is-fine"
        )


def _cpu_info() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""


def machine() -> str:
    """The processor's name and the number of cores."""
    lines = _cpu_info().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
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


def _set_environment() -> int:
    """The number of threads for every library, read by them when they are loaded; returns it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_known_args()[0].threads
    threads = asked or int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "avx512" in _cpu_info():  # FAISS's bundled OpenBLAS else takes a kernel of the 1990s
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    return threads


THREADS = _set_environment()
