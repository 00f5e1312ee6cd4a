"""Gaussian density within a relative error of 1e-4, against the dual trees of mlpack and the trees of scikit-learn.

    python benchmarks/density.py [--threads 2] [--only TEXT] [--write]

The density of a query is exp(log-normaliser)/(m (h √2π)^d). mlpack is run with its three fastest trees, descended for
queries and keys together or for keys alone, scikit-learn with its two trees and two leaf sizes, and the fastest is
timed; both run in one thread, which is all that they have. Errors are relative, of the first 2 000 queries, against
float64.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import compare
import exact
import numpy as np
import torch
from torch import Tensor

import attendb as ad

TOL, H, D = 1e-4, 0.1, 3
CHECKED = 2_000
TREES = ("kd-tree", "ball-tree", "octree")
ALGORITHMS = ("dual-tree", "single-tree")
LEAVES = (20, 40)


def inputs(n: int, m: int) -> compare.Inputs:
    torch.manual_seed(0)
    return torch.randn(n, D), torch.randn(m, D)


def log_density(log_normalizer: Any, m: int) -> Any:
    return log_normalizer - math.log(m) - D * math.log(H * math.sqrt(2 * math.pi))


def ours(q: Tensor, k: Tensor) -> Any:
    answer = ad.attend(q, k, k[:, :0], score=ad.Gaussian(H), tol=TOL)
    return log_density(answer.log_normalizer, len(k))


def by_mlpack(tree: str, algorithm: str, q: Tensor, k: Tensor) -> np.ndarray:
    import mlpack

    options = {"bandwidth": H, "kernel": "gaussian", "tree": tree, "algorithm": algorithm, "rel_error": TOL}
    found = mlpack.kde(reference=k.double().numpy(), query=q.double().numpy(), **options)["predictions"]
    with np.errstate(divide="ignore"):  # a density of 0
        return np.log(found)


def by_sklearn(algorithm: str, leaf: int, q: Tensor, k: Tensor) -> np.ndarray:
    from sklearn.neighbors import KernelDensity

    found = KernelDensity(bandwidth=H, algorithm=algorithm, leaf_size=leaf, rtol=TOL, atol=0.0, breadth_first=True)
    return found.fit(k.double().numpy()).score_samples(q.double().numpy())


def errors(inputs: compare.Inputs, ours: Tensor, peer: np.ndarray) -> compare.Errors:
    q, k = inputs
    rows = slice(0, CHECKED)
    truth = log_density(exact.gaussian(q[rows], k, k[:, :0], H)[1], len(k))
    found = [(torch.as_tensor(x)[rows].double() - truth).expm1().abs() for x in (ours, peer)]
    beyond = " / ".join(f"{int((x > TOL).sum())}" for x in found)
    return compare.Errors(
        *(float(x.max()) for x in found), f"beyond tolerance: {beyond} of {compare.count(len(truth))}"
    )


def works(scale: float) -> list[compare.Work]:
    n, m = round(200_000 * scale), round(20_000 * scale)
    name = f"Gaussian density {compare.count(n)} × {compare.count(m)}, d = {D}, h = {H:g}, relative error {TOL:g}"
    mlpack = {f"{tree}, {algorithm}": partial(by_mlpack, tree, algorithm) for tree in TREES for algorithm in ALGORITHMS}
    sklearn = {
        f"{t}, leaves of {leaf}": partial(by_sklearn, t, leaf) for t in ("kd_tree", "ball_tree") for leaf in LEAVES
    }
    work = partial(compare.Work, inputs=partial(inputs, n, m), ours=ours, errors=errors, repeats=2)
    return [
        work(f"{name} / mlpack KDE", peers=mlpack, target=0.3, trial=10_000),
        work(f"{name} / scikit-learn KernelDensity", peers=sklearn, target=0.1),
    ]


if __name__ == "__main__":
    compare.main("Gaussian density within a relative error", __doc__, works)
