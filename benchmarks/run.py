"""Every benchmark of this folder, with its section of results.md; stops at the first that finds the machine busy.

    python benchmarks/run.py [--threads 2]

Those that take seconds are measured with one thread as well. `prediction.py`, which takes a day, is run by itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compare

CHEAP = ("engine.py", "topk.py", "density.py")  # also with one thread
LONG = ("sums.py", "regression.py", "smoothing.py", "growth.py", "planner.py", "tables.py", "larger_than_memory.py")


def main() -> None:
    options = compare.arguments(__doc__)
    jobs = [(name, options.threads) for name in (*CHEAP, *LONG)] + [(name, 1) for name in CHEAP if options.threads > 1]
    for name, threads in jobs:
        script = Path(__file__).with_name(name)
        print(f"\n{name}, threads: {threads}", flush=True)
        arguments = ["--threads", str(threads), "--write", *(["--busy-is-fine"] if options.busy_is_fine else [])]
        code = subprocess.run([sys.executable, str(script), *arguments]).returncode
        if code:
            raise SystemExit(f"{name} ended with status {code}: the benchmarks after it were not run")


if __name__ == "__main__":
    main()
