"""Memory is O(block), forward and backward: the peak of a process hardly grows when queries and keys double.

Every measurement is a process of its own, forked from one that has attendb loaded and has computed nothing: its peak
resident memory after a small warm-up is the ground, and what the question adds above its inputs, output and gradients
is what counts. All n·m scores in float32 would be 100 MiB at 5 000 × 5 000 and 381 MiB at 10 000 × 10 000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read in Linux's units, after a fork")

MIB = 2**20
MORE = 32 * MIB  # what twice as many queries and keys may add
SCRIPT = """
import json, os, resource, sys
import torch
import attendb as ad

class Kernel(torch.nn.Module):
    # a positive score: exp of another
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, queries, keys):
        return self.inner(queries, keys).exp()

def all_pairs(q, k, v):
    return torch.softmax(-torch.cdist(q, k), -1) @ v

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def ask(name, n):
    torch.manual_seed(0)
    score, weighting, hidden = (name.split(", ") + ["8"])[:3]
    made = {
        "laplacian": lambda: ad.Laplacian(4.0, learn=True),
        "additive": lambda: ad.Additive(16, 16, int(hidden), learn=True),
        "epanechnikov": lambda: ad.Epanechnikov(6.0, learn=True),
        "all pairs": lambda: None,
    }[score]()
    rule = {
        "softmax": ad.Softmax,
        "normalized": ad.Normalized,
        "sparsemax": ad.Sparsemax,
        "top 10": lambda: ad.TopK(10),
    }[weighting]()
    if weighting == "normalized" and score != "epanechnikov":
        made = Kernel(made)

    def pool(n):
        q, k, v = (torch.randn(n, 16, requires_grad=True) for _ in range(3))
        yield
        value = all_pairs(q, k, v) if made is None else ad.attend(q, k, v, score=made, weighting=rule).value
        after_forward = peak()
        value.square().sum().backward()
        assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in (q, k, v))
        yield after_forward, sum(x.nbytes for x in (value, value, q, k, v))

    warm = pool(300)
    next(warm), next(warm)
    steps = pool(n)
    next(steps)
    ground = peak()
    forward, known = next(steps)
    return {"name": name, "n": n, "forward": forward - ground, "both": max(0, peak() - ground - known)}

for name, n in json.loads(sys.argv[1]):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            print(json.dumps(ask(name, n)), flush=True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, (name, n)
"""


def measure(wanted: list[tuple[str, int]], timeout: float) -> dict[tuple[str, int], dict[str, int]]:
    """{(case, n): bytes added by the forward pass, and by both} of each case, each in a process of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(wanted)], env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(one["name"], one["n"]): one for one in found}


FAST = {
    "laplacian, softmax": (5_000, 10_000),
    "laplacian, top 10": (2_500, 5_000),
    "laplacian, sparsemax": (2_500, 5_000),
    "epanechnikov, normalized": (2_500, 5_000),
    "additive, softmax": (2_500, 5_000),
    "additive, top 10": (2_500, 5_000),
}
TWIN = ("all pairs, softmax", (2_500, 5_000))


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, int], dict[str, int]]:
    return measure([(name, n) for name, sizes in [*FAST.items(), TWIN] for n in sizes], timeout=300)


def check_growth(found: dict[tuple[str, int], dict[str, int]], name: str, sizes: tuple[int, int], more: int) -> None:
    small, large = (found[name, n] for n in sizes)
    for what in ("forward", "both"):
        grown = large[what] - small[what]
        assert grown < more, (
            f"{name}: {what} added {small[what] / MIB:.1f} MiB at {sizes[0]}, {large[what] / MIB:.1f} MiB at {sizes[1]}"
        )


@pytest.mark.parametrize("name", list(FAST))
def test_peak_memory_does_not_grow_with_the_pairs(name: str, measured: dict[tuple[str, int], dict[str, int]]) -> None:
    check_growth(measured, name, FAST[name], MORE)


def test_the_measurement_sees_all_pairs(measured: dict[tuple[str, int], dict[str, int]]) -> None:
    """The twin: what does hold every score and weight must fail the same check."""
    with pytest.raises(AssertionError, match="all pairs"):
        check_growth(measured, *TWIN, MORE)


WEIGHTINGS = ("softmax", "normalized", "top 10", "sparsemax")
SLOW = [f"{score}, {weighting}" for score in ("laplacian", "additive") for weighting in WEIGHTINGS]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SLOW, "epanechnikov, normalized"])
def test_peak_memory_of_ten_thousand_by_ten_thousand(name: str) -> None:
    sizes = (5_000, 10_000)
    check_growth(measure([(name, n) for n in sizes], timeout=600), name, sizes, MORE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # Additive with 2 hidden units: with 8, tanh of 40 000² pairs takes four times the minutes and proves nothing more
    [
        *(f"laplacian, {weighting}" for weighting in WEIGHTINGS),
        *(f"additive, {weighting}, 2" for weighting in WEIGHTINGS),
        "epanechnikov, normalized",
    ],
)
def test_forty_thousand_by_forty_thousand_stays_far_below_one_gibibyte(name: str) -> None:
    """All scores would be 6 GiB. Four times the pairs of 20 000 × 20 000 add less than 128 MiB to its peak."""
    found = measure([(name, n) for n in (20_000, 40_000)], timeout=1800)
    assert found[name, 40_000]["both"] < 1024 * MIB
    check_growth(found, name, (20_000, 40_000), 4 * MORE)
