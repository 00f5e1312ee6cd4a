"""Exact kernel sums against KeOps on the CPU.

    python benchmarks/sums.py [--threads 2] [--only TEXT] [--write]

Both sides answer Σ α v with v of width 1 in float32. KeOps compiles its formulas on first use, here for this processor
and with fast arithmetic (CXXFLAGS). The peer is the faster of two formulas: plain sums of exp(a)·[v, 1], whose quotient
is the answer only where no exponential underflows (an error of nan says that some did), and its own stable softmax.
KeOps would take minutes: it is timed on the first 10 000 queries and scaled. Errors are of the first 500 queries,
against float64.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any

import compare
import exact
import torch
from torch import Tensor

import attendb as ad

CHECKED = 500
FLAGS = "-march=native -ffast-math"
SCORES = {"Gaussian": "-IntInv(2)*SqDist(x,y)", "Laplacian": "-Sum(Abs(x-y))"}  # of rows divided by the bandwidth
PLAIN, STABLE = "sums of exp", "SumSoftMaxWeight"


def inputs(n: int, m: int, d: int) -> compare.Inputs:
    torch.manual_seed(0)
    return torch.randn(n, d), torch.randn(m, d), torch.randn(m, 1)


@cache
def reduction(kernel: str, d: int, formula: str) -> Any:
    os.environ.setdefault("CXXFLAGS", FLAGS)
    import pykeops

    pykeops.set_verbose(False)
    from pykeops.torch import Genred

    score, columns = SCORES[kernel], [f"x = Vi({d})", f"y = Vj({d})"]
    if formula == PLAIN:
        return Genred(f"Exp({score})*b", [*columns, "b = Vj(2)"], reduction_op="Sum", axis=1)
    return Genred(score, [*columns, "b = Vj(1)"], reduction_op="SumSoftMaxWeight", axis=1, formula2="b")


def by_keops(kernel: str, formula: str, h: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = reduction(kernel, q.shape[1], formula)
    if formula == STABLE:
        return found(q / h, k / h, v, backend="CPU")
    both = found(q / h, k / h, torch.cat([v, torch.ones_like(v)], 1), backend="CPU")
    return both[:, :1] / both[:, 1:]


def ours(score: ad.Score, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ad.attend(q, k, v, score=score).value


def forward_backward(attend: compare.Run, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attend(*leaves).square().sum(), leaves)


def errors(h: float, inputs: compare.Inputs, ours: Tensor, peer: Tensor) -> compare.Errors:
    q, k, v = inputs
    truth = exact.gaussian(q[:CHECKED], k, v, h)[0]
    return compare.Errors(*(float((x[:CHECKED].double() - truth).abs().max()) for x in (ours, peer)))


def errors_backward(h: float, inputs: compare.Inputs, ours: Any, peer: Any) -> compare.Errors:
    """Of the gradient to the queries, by its largest entry."""
    q, k, v = inputs
    some = q[:CHECKED].double().requires_grad_()
    (truth,) = torch.autograd.grad(exact.laplacian(some, k, v, h)[0].square().sum(), [some])
    found = (float((x[0][:CHECKED].double() - truth).abs().max() / truth.abs().max()) for x in (ours, peer))
    return compare.Errors(*found, note="of the queries' gradient")


def works(scale: float) -> list[compare.Work]:
    def sizes(n: int, m: int) -> tuple[str, int, int]:
        n, m = round(n * scale), round(m * scale)
        return f"{compare.count(n)} × {compare.count(m)}", n, m

    def peers(kernel: str, h: float) -> dict[str, compare.Run]:
        return {formula: partial(by_keops, kernel, formula, h) for formula in (PLAIN, STABLE)}

    h, wide = 0.1, 2.0
    size, n, m = sizes(200_000, 20_000)
    size_10, n_10, m_10 = sizes(100_000, 10_000)
    both = {formula: partial(forward_backward, run) for formula, run in peers("Laplacian", wide).items()}
    return [
        compare.Work(
            f"Gaussian sum {size}, d = 3, h = {h:g}, exact / KeOps",
            inputs=partial(inputs, n, m, 3),
            ours=partial(ours, ad.Gaussian(h)),
            peers=peers("Gaussian", h),
            target=0.05,
            errors=partial(errors, h),
            part=10_000,
        ),
        compare.Work(
            f"Laplacian {size_10}, d = 10, h = {wide:g}, exact, forward + backward / KeOps",
            inputs=partial(inputs, n_10, m_10, 10),
            ours=partial(forward_backward, partial(ours, ad.Laplacian(wide))),
            peers=both,
            target=0.3,
            errors=partial(errors_backward, wide),
            part=10_000,
        ),
    ]


if __name__ == "__main__":
    compare.main("Exact kernel sums against KeOps", __doc__, works)
