"""The bandwidth that predicts each row best from the others, against statsmodels and against dense sums of torch.

    python benchmarks/smoothing.py [--threads 2] [--only TEXT] [--write]

Rows lie uniformly on a line, and y is a wave of ten turns with noise. statsmodels minimises the same error by a
simplex; its seconds grow with the square of the rows, so its tables are small. torch adds up all pairs, in float64, for
25 bandwidths; it is timed on the first rows left out, and its seconds are scaled. The error of ours is that of the
predictions at its bandwidth, by the range of y, against float64 by brute force; the note has both bandwidths.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import compare
import exact
import numpy as np
import torch

from attendb.estimators import KernelSmoother

TRIED = 25  # bandwidths of the dense peer: about as many as ours
PART = 200  # rows that it leaves out
CHECKED = 1_000


def inputs(m: int) -> compare.Inputs:
    """Places, and y as the only column of values; places come twice, as queries and as keys."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(m, 1))
    return x, x, np.sin(20 * math.pi * x) + 0.5 * rng.normal(size=(m, 1))


def ours(_: np.ndarray, x: np.ndarray, y: np.ndarray) -> KernelSmoother:
    return KernelSmoother().fit(x, y[:, 0])


def by_statsmodels(_: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    return abs(float(KernelReg(y[:, 0], x, "c", reg_type="lc", bw="cv_ls", rng=0).bw[0]))  # its simplex knows no sign


def by_torch(q: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The best of some bandwidths, the first rows left out in turn."""
    keys, values = torch.from_numpy(x), torch.from_numpy(y)
    own = torch.arange(len(q))
    apart = torch.cdist(torch.from_numpy(q), keys).square_().mul_(-0.5)
    apart[own, own] = -torch.inf
    losses = {}
    for h in np.geomspace(1e-3, 1, TRIED):
        alpha = torch.softmax(apart / h**2, 1)
        losses[float(h)] = float((values[: len(q)] - alpha @ values).square().mean())
    return min(losses, key=lambda h: losses[h])


def errors(inputs: compare.Inputs, model: KernelSmoother, peer: Any) -> compare.Errors:
    _, x, y = (torch.from_numpy(given) for given in inputs)
    own, h = torch.arange(min(CHECKED, len(x))), float(model.bandwidth_[0])
    truth = torch.empty(len(own), 1, dtype=torch.float64)
    for i in own:
        others = torch.arange(len(x)) != i
        truth[i] = exact.gaussian(x[i][None], x[others], y[others], h)[0][0]
    near = KernelSmoother(bandwidth=h, tol=1e-6).fit(*(given.numpy() for given in (x, y[:, 0])))
    wrong = np.abs(near.leave_one_out()[: len(own)] - truth[:, 0].numpy()).max() / float(y.max() - y.min())
    tried = len(model.search_.losses) if model.search_ is not None else 0
    return compare.Errors(float(wrong), None, f"{tried} tried; h = {h:.4g}, peer {peer:.4g}")


def works(scale: float) -> list[compare.Work]:
    found = []
    for m, peer, run, part in (
        (500, "statsmodels KernelReg", by_statsmodels, None),
        (2_000, "statsmodels KernelReg", by_statsmodels, None),
        (100_000, "torch in float64", by_torch, PART),
        (1_000_000, "torch in float64", by_torch, PART // 10),
    ):
        m = round(m * scale)
        name = f"Leave-one-out bandwidth of {compare.count(m)} rows, d = 1 / {peer}"
        work = partial(compare.Work, name, inputs=partial(inputs, m), ours=ours, peers={"": run}, errors=errors)
        found.append(work(target=0.1, part=part, repeats=2))
    return found


if __name__ == "__main__":
    compare.main("Leave-one-out bandwidths", __doc__, works)
