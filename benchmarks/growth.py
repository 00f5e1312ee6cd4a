"""How the cost of Gaussian regression within a tolerance grows with the table: n = m = 10⁴ … 10⁷, d = 2.

    python benchmarks/growth.py [--threads 2] [--only TEXT] [--write]

An exact sum costs n·m pairs, so its time a pair is constant; an answer in O(n + m) has one that falls like 1/m.
Writes benchmarks/growth.png with ``--write``.
"""

from __future__ import annotations

from pathlib import Path

import compare
import torch
from torch import Tensor

import attendb as ad

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TOL, H, D = 1e-6, 0.05, 2
REPEATS = 3
HEADER = "| n = m | seconds | ns a pair | plan | largest certified bound | MiB |\n|---|---|---|---|---|---|"
PICTURE = Path(__file__).with_name("growth.png")


def inputs(n: int) -> compare.Inputs:
    torch.manual_seed(0)
    keys = torch.randn(n, D)
    return torch.randn(n, D), keys, torch.sin(3 * keys[:, :1]) + 0.1 * torch.randn(n, 1)


def ours(q: Tensor, k: Tensor, v: Tensor) -> ad.Answer:
    return ad.attend(q, k, v, score=ad.Gaussian(H), tol=TOL)


def measure(n: int, memory: float) -> tuple[float, str]:
    """Seconds, the least of several runs, and the row of the table."""
    given = inputs(n)
    answer = ours(*given)  # the warm-up
    seconds = min(compare.seconds(ours, given) for _ in range(REPEATS))
    pair, bound = 1e9 * seconds / n**2, float(answer.error_bound.max())
    return seconds, (
        f"| {compare.count(n)} | {seconds:.3f} | {pair:.3g} | {answer.plan.name} | {bound:.1e} | {memory:.0f} |"
    )


def draw(sizes: list[int], times: list[float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    pairs = [1e9 * t / n**2 for n, t in zip(sizes, times, strict=True)]
    left.loglog(sizes, times, "o-")
    left.set(xlabel="n = m", ylabel="seconds")
    right.loglog(sizes, pairs, "o-", label="measured")
    right.loglog(sizes, [pairs[0] * sizes[0] / n for n in sizes], ":", color="grey", label="∝ 1/m")
    right.set(xlabel="n = m", ylabel="ns a pair")
    right.legend(frameon=False)
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    options = compare.arguments(__doc__)
    if options.peak:
        return compare.print_peak(ours, inputs(int(options.peak)))
    print(HEADER)
    sizes, times, rows = [], [], []
    for n in (round(n * options.scale) for n in SIZES):
        if options.only in compare.count(n):
            compare.stop_when_busy(options)
            seconds, row = measure(n, compare.peak_in_fresh_process(str(n), options))
            sizes, times, rows = [*sizes, n], [*times, seconds], [*rows, row]
            print(row, flush=True)
    if options.write and rows:
        draw(sizes, times)
        title = f"Growth of the cost, Gaussian regression, d = {D}, h = {H:g}, tol {TOL:g}"
        compare.write(options, title, "\n".join([HEADER, *rows, "", f"![seconds and time a pair]({PICTURE.name})"]))


if __name__ == "__main__":
    main()
