"""Predictions for tables: attendb's estimators beside kNN and gradient boosting, on eight public sets.

    python benchmarks/prediction.py --only california --models deep,CatBoost --seeds 0 --threads 2
    python benchmarks/prediction.py --resume runs.jsonl --write    # all of it takes a day; goes on where it stopped

Each model × set × seed runs in a fresh process, which prints its number on the test rows, the wall time of `fit` and of
`predict`, and its peak memory (VmHWM, with the libraries and the set). Rows for training, for early stopping and for
the number are never mixed; nothing is tuned on test rows. The sets are no part of the project: ``--data`` names their
folder, by default ../shared/data beside the project.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import compare
import numpy as np
from prediction_data import FOLDER, SETS, SPEED_ROWS, Parts, Set, Target, check_folder, speed_parts
from prediction_models import MODELS, Model

LEVEL, COVERAGE = 0.9, (0.87, 0.93)  # of intervals, and what share of the test rows they may cover
SPEED = "speed"  # the set of the runs that time predictions
SPEED_LIMITS = {"bandwidth": 2.0, "linear": 2.0, "deep": 5.0, "kNN": None}  # seconds
SPEED_FIT = 60.0  # seconds that a fit may learn there: only its predictions are timed


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


OPTIONS = (
    ("--data", {"type": Path, "default": FOLDER, "metavar": "FOLDER", "help": f"the sets (default: {FOLDER})"}),
    ("--models", {"default": "", "metavar": "LIST", "help": f"some of {','.join(m.name for m in MODELS)}"}),
    (
        "--seeds",
        {"type": whole_numbers, "default": [*range(5)], "metavar": "LIST", "help": "such as 0,1,2 (default: 0 to 4)"},
    ),
    ("--resume", {"type": Path, "metavar": "FILE", "help": "JSON lines: finished runs are read from it and added"}),
    ("--finished", {"action": "store_true", "help": "measure nothing: the tables of the runs that --resume has"}),
    ("--run", {"nargs": 3, "metavar": ("MODEL", "SET", "SEED"), "help": "one run alone, printed as JSON"}),
)
Run = Mapping[str, Any]
Key = tuple[str, str, int]  # model, set, seed


# One run, in a process of its own


def run_one(model: Model, one: Set, seed: int, options: Any) -> dict[str, Any]:
    """Fit, predict, and say how well, how fast and in how much memory."""
    parts = one.read(options.data, seed)
    load(model)
    start = time.perf_counter()
    settings = one.best if model.tuned else {}
    fitted = model.fit(parts, seed, options.threads, **settings)
    fit = time.perf_counter() - start
    start = time.perf_counter()
    predicted = fitted.predict(parts.test[0])
    found = {"number": one.number(predicted, parts.test[1]), "fit": fit, "predict": time.perf_counter() - start}
    found["MiB"] = compare.peak_now()
    if one.intervals and fitted.interval is not None:
        low, high = np.asarray(fitted.interval(parts.test[0])).T
        truth = parts.test[1].to_numpy()
        found["covered"] = float(((low <= truth) & (truth <= high)).mean())
        found["width"] = float((high - low).mean())
    return found


def load(model: Model) -> None:
    """The libraries of a model are not part of its seconds."""
    for library in model.libraries:
        import_module(library)


def run_speed(model: Model, seed: int, options: Any) -> dict[str, Any]:
    """Seconds of as many predictions as there are rows: the first call, the median of three more, and explanations."""
    stored, asked = speed_parts(options.data)
    val = asked[0].iloc[: len(stored[0]) // 10], asked[1].iloc[: len(stored[0]) // 10]
    limited = {"max_seconds": SPEED_FIT} if model.ours else {}
    fitted = model.fit(Parts(stored, val, asked), seed, options.threads, **limited)
    first, *more = (_seconds(fitted.predict, asked[0]) for _ in range(4))
    found = {"first": first, "predict": statistics.median(more)}
    if fitted.explain is not None:
        found["explain"] = statistics.median(_seconds(fitted.explain, asked[0]) for _ in range(3))
    return {**found, "MiB": compare.peak_now()}


def _seconds(work: Callable[[Any], Any], given: Any) -> float:
    start = time.perf_counter()
    work(given)
    return time.perf_counter() - start


def in_fresh_process(key: Key, options: Any) -> dict[str, Any] | None:
    """The same by this script in a new process; None, with its last line on stderr, where it fails."""
    words = ["--threads", str(options.threads), "--data", str(options.data), "--run", *map(str, key)]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(f"{' '.join(map(str, key))} failed: {last}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


# All of them


def keys_of(options: Any) -> list[Key]:
    """The runs that were asked for: seed by seed, so that a stop in between leaves every set with a number."""
    models, sets = chosen(options)
    keys = [(model.name, one.name, seed) for seed in options.seeds for one in sets for model in models]
    timed = [model.name for model in models if model.name in SPEED_LIMITS and options.only in SPEED]
    return [*((name, SPEED, 0) for name in timed), *keys]


def chosen(options: Any) -> tuple[list[Model], list[Set]]:
    names = [name.strip() for name in options.models.split(",") if name.strip()] or [m.name for m in MODELS]
    known = {model.name: model for model in MODELS}
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no model {name!r}: choose among {', '.join(known)}")
    sets = [one for one in SETS if options.only in one.name]
    if not sets and options.only not in SPEED:
        raise SystemExit(
            f"no set's name holds {options.only!r}: choose among {', '.join(s.name for s in SETS)}, {SPEED}"
        )
    return [model for model in MODELS if model.name in names], sets


def finished(path: Path | None, threads: int) -> dict[Key, Run]:
    """The runs of a file with so many threads; a line that was cut when a run was stopped is passed over, and said."""
    runs: dict[Key, Run] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    for i, line in enumerate(lines, 1):
        try:
            run = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}:{i} is no whole line: its run is made again", file=sys.stderr)
            continue
        if run["threads"] == threads:
            runs[run["model"], run["set"], run["seed"]] = run
    return runs


def keep(path: Path, run: Run) -> None:
    """Add a run to the file, on a line of its own though the line before was cut."""
    cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut + json.dumps(run) + "\n")


def measure(options: Any) -> tuple[list[Run], int]:
    """Every run that was asked for, from the file or made now; and how many failed."""
    there, runs, failed = finished(options.resume, options.threads), [], 0
    for key in keys_of(options):
        if key not in there and options.finished:
            continue
        if key not in there:
            compare.stop_when_busy(options)
            found = in_fresh_process(key, options)
            if found is None:
                failed += 1
                continue
            name, one, seed = key
            about = {"model": name, "set": one, "seed": seed, "threads": options.threads}
            there[key] = {**about, **found, "commit": compare.commit()}
            if options.resume is not None:
                keep(options.resume, there[key])
        runs.append(there[key])
        print(said(there[key]), flush=True)
    return runs, failed


def said(run: Run) -> str:
    if run["set"] == SPEED:
        return f"speed {run['model']}: {run['predict']:.2f} s, the first time {run['first']:.2f} s"
    covered = f", covered {run['covered']:.3f}" if "covered" in run else ""
    times = f"fit {run['fit']:.1f} s, predict {run['predict']:.2f} s, {run['MiB']:.0f} MiB"
    return f"{run['set']} {run['model']} seed {run['seed']}: {run['number']:.4f}, {times}{covered}"


# The tables


def tables(runs: Sequence[Run], options: Any) -> str:
    """The section: errors, what they cost, intervals, speed, and what was done."""
    models, sets = chosen(options)
    parts = [
        _grid("test rows", [*_errors(runs, models, sets)], ["published best", "target", *(m.name for m in models)]),
        _grid("median of `fit`, s / `predict`, s / MiB", [*_costs(runs, models, sets)], [m.name for m in models]),
        _intervals(runs, models, sets),
        _speed(runs),
        _protocol(runs, models),
    ]
    return "\n\n".join(part for part in parts if part)


def _grid(corner: str, rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    if not rows:
        return ""
    lines = [[corner, *heads], ["---"] * (1 + len(heads)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _errors(runs: Sequence[Run], models: Sequence[Model], sets: Sequence[Set]) -> Iterator[list[str]]:
    most = max((len(_of(runs, model, one)) for model in models for one in sets), default=0)
    for one in sets:
        what = "accuracy" if one.one.how == "≥" else "RMSE" + (f" / {one.unit:.2f}" if one.unit != 1 else "")
        targets = {"deep": one.one, "best": one.ensemble}
        cells = []
        for model in models:
            found = [run["number"] for run in _of(runs, model, one)]
            fewer = f" [{len(found)}]" if 0 < len(found) < most else ""
            cells.append(_spread(found, targets.get(model.name)) + fewer)
        yield [f"{one.name}, {what}", one.published, f"{one.one}; best {one.ensemble}", *cells]


def _costs(runs: Sequence[Run], models: Sequence[Model], sets: Sequence[Set]) -> Iterator[list[str]]:
    for one in sets:
        cells = []
        for model in models:
            found = _of(runs, model, one)
            fit, predict, peak = ([run[name] for run in found] for name in ("fit", "predict", "MiB"))
            cells.append(f"{_median(fit)} / {_median(predict)} / {max(peak):.0f}" if found else "")
        yield [one.name, *cells]


def _intervals(runs: Sequence[Run], models: Sequence[Model], sets: Sequence[Set]) -> str:
    rows = []
    for one in (one for one in sets if one.intervals):
        for model in models:
            found = [run for run in _of(runs, model, one) if "covered" in run]
            if found:
                share = statistics.mean(run["covered"] for run in found)
                met = f"{COVERAGE[0]}–{COVERAGE[1]} {_mark(COVERAGE[0] <= share <= COVERAGE[1])}"
                width = statistics.mean(run["width"] for run in found)
                rows.append(
                    [f"{one.name}, {model.name}", _spread([run["covered"] for run in found]), met, f"{width:.3g}"]
                )
    return _grid(f"{LEVEL:.0%} intervals", rows, ["share of test rows inside", "target", "mean width"])


def _speed(runs: Sequence[Run]) -> str:
    rows = []
    for run in (run for run in runs if run["set"] == SPEED):
        limit = SPEED_LIMITS[run["model"]]
        wanted = "" if limit is None else f"≤ {limit:g} {_mark(run['predict'] <= limit)}"
        explained = f"{run['explain']:.2f}" if "explain" in run else ""
        times = f"{run['predict']:.2f}", f"{run['first']:.2f}"
        rows.append([run["model"], *times, wanted, explained, f"{run['MiB']:.0f}"])
    n = compare.count(SPEED_ROWS)
    return _grid(
        f"{n} predictions against {n} rows of uci_kin40k",
        rows,
        ["median, s", "first, s", "target", "explain, s", "MiB"],
    )


def _protocol(runs: Sequence[Run], models: Sequence[Model]) -> str:
    commits = sorted({run["commit"] for run in runs})
    counted = sorted({run["seed"] for run in runs if run["set"] != SPEED})
    lines = [
        f"Means over seeds {', '.join(map(str, counted))} ± standard deviation; where fewer have run, how many stands "
        "in brackets. A tick or a cross says whether deep and best meet their targets. "
        f"Measured at commit {', '.join(commits)}.",
        *(f"- {model.name}: {model.protocol}." for model in models),
    ]
    return "\n".join(lines) if counted else ""


def _of(runs: Sequence[Run], model: Model, one: Set) -> list[Run]:
    return [run for run in runs if run["model"] == model.name and run["set"] == one.name]


def _spread(numbers: Sequence[float], target: Target | None = None) -> str:
    """mean ± standard deviation, and whether the mean meets the target."""
    if not numbers:
        return ""
    mean = statistics.mean(numbers)
    digits = 4 if abs(mean) < 1 else 3
    text = f"{mean:.{digits}f}"
    if len(numbers) > 1:
        text += f" ± {statistics.stdev(numbers):.{digits}f}"
    return text if target is None else f"{text} {_mark(target.met(mean))}"


def _median(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.3g}"


def _mark(met: bool) -> str:
    return "✓" if met else "✗"


def main() -> None:
    options = compare.arguments(__doc__, *OPTIONS)
    if options.run:
        name, one, seed = options.run
        model = next(m for m in MODELS if m.name == name)
        found = (
            run_speed(model, int(seed), options)
            if one == SPEED
            else run_one(model, next(s for s in SETS if s.name == one), int(seed), options)
        )
        print(json.dumps(found))
        return
    sets = chosen(options)[1]
    check_folder(options.data, sets or [s for s in SETS if s.name == "uci_kin40k"])
    runs, failed = measure(options)
    body = tables(runs, options)
    print("\n" + body)
    if body:
        compare.write(options, "Predictions for tables", body)
    if failed:
        raise SystemExit(f"{failed} runs failed: what they said stands above")


if __name__ == "__main__":
    main()
