"""Whether the planner takes the fastest plan: every candidate of a grid of problems, forced by name and timed.

    python benchmarks/planner.py [--threads 2] [--only TEXT] [--write]

A row is a problem: the plan that was chosen, its time over that of the fastest candidate (target: at most 1.3), and of
every candidate the estimated and the measured seconds, so that the constants of the cost model can be fitted.
A candidate whose estimate is more than 30 times the least, or above 4 s, is not timed; nor are problems with one
candidate, unless they are small. Where the choice looks wrong, both plans are timed again, in turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import compare
import torch

import attendb as ad

LIMIT = 1.3
BUDGET = 330.0  # seconds for the whole grid
LONGEST, UNLIKELY = 4.0, 30.0  # estimates, in seconds and by the least, above which a candidate is not timed
SHORT = 0.06  # seconds that a candidate is repeated for
SIZES = ((100, 100), (1, 100_000), (1_000, 1_000), (256, 20_000), (4_096, 100_000))
WIDTHS = (1, 3, 16, 64)
MOST_PAIRS = {
    "Dot": 1e9,
    "Gaussian": 1e9,
    "EditSimilarity": 1e6,
}  # others: 10⁷; larger ones have one plan and take long
WEIGHTINGS = {"Softmax": ad.Softmax(), "TopK(10)": ad.TopK(10), "Normalized": ad.Normalized()}
EXTRAS = ("", "top=5", "where", "backward", "tol=1e-6")
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
HEADER = "| problem | chosen | chosen / best | estimated → measured, ms |\n|---|---|---|---|"


def scores(d: int) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """The scores of width d, and the weightings that fit them."""
    softmax, both = ("Softmax",), ("Softmax", "TopK(10)")
    found = {
        "Dot": (ad.Dot(), both),
        "Gaussian": (ad.Gaussian(0.1 * d**0.5), both),
        "Laplacian": (ad.Laplacian(float(d)), softmax),
        "Euclidean": (ad.Euclidean(1.0), both),
        "Epanechnikov": (ad.Epanechnikov(0.5 * d**0.5), ("Normalized",)),
        "Additive": (ad.Additive(d, d, 16), softmax),
    }
    return found | ({"EditSimilarity": (ad.EditSimilarity(), both)} if d == 1 else {})


@dataclass(frozen=True)
class Case:
    """One problem of the grid."""

    score: str
    weighting: str
    n: int
    m: int
    d: int
    extra: str

    @property
    def name(self) -> str:
        width = "text" if self.score == "EditSimilarity" else f"d = {self.d}"
        said = f"{self.score}, {self.weighting}, {compare.count(self.n)} × {compare.count(self.m)}, {width}"
        return f"{said}, {self.extra}" if self.extra else said

    def call(self) -> Callable[..., ad.Answer]:
        """The question, which takes ``plan=``; with its backward pass where that is asked for."""
        torch.manual_seed(0)
        score = scores(self.d)[self.score][0]
        q, k, v = (torch.randn(rows, d) for rows, d in ((self.n, self.d), (self.m, self.d), (self.m, 4)))
        if self.score == "EditSimilarity":
            q, k = ([f"{x:.6f}" for x in rows[:, 0].tolist()] for rows in (q, k))
        options: dict[str, Any] = {"score": score, "weighting": WEIGHTINGS[self.weighting]}
        if self.extra == "top=5":
            options["top"] = 5
        if self.extra == "where":
            options["where"] = torch.randint(10, (self.n, self.m), dtype=torch.uint8) > 0
        if self.extra == "tol=1e-6":
            options["tol"] = 1e-6
        if self.extra == "backward":
            return partial(with_gradients, q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), options)
        return lambda plan=None: ad.attend(q, k, v, plan=plan, **options)


def with_gradients(q: Any, k: Any, v: Any, options: dict[str, Any], plan: str | None = None) -> ad.Answer:
    answer = ad.attend(q, k, v, plan=plan, **options)
    torch.autograd.grad(answer.value.square().sum(), [q, k, v])
    return answer


def grid(scale: float) -> Iterator[Case]:
    """Small problems first. At the largest sizes the extras are asked for at width 3 only."""
    for (n, m), d, extra in product(SIZES, WIDTHS, EXTRAS):
        n, m = max(1, round(n * scale)), max(16, round(m * scale))
        for name, (_, weightings) in scores(d).items():
            for weighting in weightings:
                if n * m > MOST_PAIRS.get(name, 1e7) or extra and n * m > 1e6 and d != 3:
                    continue
                if extra.startswith("tol") and (name != "Gaussian" or weighting != "Softmax"):
                    continue
                if extra == "backward" and name == "EditSimilarity" or extra == "top=5" and weighting == "TopK(10)":
                    continue
                yield Case(name, weighting, n, m, d, extra)


def estimates(answer: ad.Answer) -> dict[str, float]:
    """The estimated seconds of every candidate, read from the printed plan."""
    found = (
        (name, re.match(r"estimated ([\d.e+-]+) (s|ms|µs)(?!; gave up)", why)) for name, why in answer.plan.candidates
    )
    return {name: float(match[1]) * SECONDS[match[2]] for name, match in found if match}


def timed(call: Callable[..., Any], plans: list[str], chosen: str) -> dict[str, float]:
    """The least seconds of each plan, the plans in turn, each repeated for a while.

    The chosen one is not forced, so that plans which gave up before it count.
    """
    least: dict[str, float] = dict.fromkeys(plans, float("inf"))
    spent = dict.fromkeys(plans, 0.0)
    for turn in range(20):
        for plan in plans:
            if turn < 2 or spent[plan] < SHORT:
                seconds = compare.seconds(partial(call, None if plan == chosen else plan), ())
                least[plan], spent[plan] = min(least[plan], seconds), spent[plan] + seconds
    return least


def measure(case: Case) -> tuple[float, str] | None:
    """Chosen by best, and the row; None: there was nothing to compare."""
    call = case.call()
    answer = call()
    estimated = estimates(answer)
    least = min(estimated.values())
    plans = [p for p, s in estimated.items() if s <= min(LONGEST, UNLIKELY * least) or p == answer.plan.name]
    if len(plans) < 2 and case.n * case.m > 1e5:
        return None
    chosen = answer.plan.name
    measured = timed(call, plans, chosen)
    best = min(measured, key=measured.__getitem__)
    if measured[chosen] > LIMIT * measured[best]:
        again = timed(call, [chosen, best], chosen)
        measured |= {plan: min(measured[plan], seconds) for plan, seconds in again.items()}
    ratio = measured[chosen] / min(measured.values())
    each = ", ".join(f"{p} {1e3 * estimated[p]:.3g} → {1e3 * measured[p]:.3g}" for p in plans)
    return ratio, f"| {case.name} | {chosen} | {ratio:.2f} {'✓' if ratio <= LIMIT else '✗'} | {each} |"


def main() -> None:
    options = compare.arguments(__doc__)
    compare.stop_when_busy(options)
    print(HEADER)
    rows: list[tuple[float, str]] = []
    start, alone, late = time.perf_counter(), 0, 0
    for case in grid(options.scale):
        if options.only not in case.name:
            continue
        if time.perf_counter() - start > BUDGET:
            late += 1
            continue
        found = measure(case)
        if found is None:
            alone += 1
        else:
            rows.append(found)
            print(found[1], flush=True)
    missed = sum(ratio > LIMIT for ratio, _ in rows)
    summary = (
        f"{len(rows)} problems measured, {missed} slower than {LIMIT} × the best candidate; {alone} with one candidate "
        f"and {late} after the {BUDGET:.0f} s of this benchmark left out. Those with a choice, worst first:"
    )
    print(summary)
    several = [row for row in sorted(rows, reverse=True) if "," in row[1].split("|")[4]]
    if rows:
        compare.write(options, "Choice of the planner", "\n".join([summary, "", HEADER, *(row for _, row in several)]))


if __name__ == "__main__":
    main()
