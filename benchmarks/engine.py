"""The engine against torch at its best: dot softmax, Gaussian regression, Laplacian and Additive scores.

    python benchmarks/engine.py [--threads 2] [--only TEXT] [--write]

Each peer is the code that a careful torch user would write; where it works in chunks of queries, the chunk size is the
fastest of several, chosen in the same run. Errors are against float64 on the first queries. Peak memory is what a fresh
process needs above its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import compare
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import attendb as ad

CHUNKS = (8, 16, 32, 64, 128, 256)
CHECKED = 200  # queries whose error is measured
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def work(
    name: str,
    *,
    inputs: Callable[[], compare.Inputs],
    ours: Attend,
    one_chunk: Attend,
    chunks: tuple[int, ...] | None,
    target: float | None,
    exact: Attend | None = None,
    backward: bool = False,
    repeats: int = 3,
) -> compare.Work:
    """One row of the table. ``one_chunk``: the peer on a chunk of queries; ``chunks`` None: it takes all at once."""

    def run(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> object:
        if not backward:
            return attend(q, k, v)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(*leaves).square().sum(), leaves)

    def chunked(chunk: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        one = partial(checkpoint, one_chunk, use_reentrant=False) if backward else one_chunk
        return torch.cat([one(q[i : i + chunk], k, v) for i in range(0, len(q), chunk)])

    def errors(inputs: compare.Inputs, ours: Tensor, peer: Tensor) -> compare.Errors:
        assert exact is not None
        q, k, v = inputs
        truth = exact(q[:CHECKED].double(), k.double(), v.double())
        return compare.Errors(*(float((x[:CHECKED].double() - truth).abs().max()) for x in (ours, peer)))

    peers = {"": one_chunk} if chunks is None else {f"chunks of {c}": partial(chunked, c) for c in chunks}
    return compare.Work(
        name,
        inputs=inputs,
        ours=partial(run, ours),
        peers={setting: partial(run, peer) for setting, peer in peers.items()},
        target=target,
        errors=None if exact is None else errors,
        repeats=repeats,
    )


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def by_plain_softmax(scores: Callable[[Tensor, Tensor], Tensor]) -> Attend:
    return lambda q, k, v: torch.softmax(scores(q, k), -1) @ v


def ours(score: ad.Score, plan: str | None = None) -> Attend:
    return lambda q, k, v: ad.attend(q, k, v, score=score, plan=plan).value


def random(scale: float, n: int, m: int, d: int, v: int) -> compare.Inputs:
    torch.manual_seed(0)
    n, m = round(n * scale), round(m * scale)
    return torch.randn(n, d), torch.randn(m, d), torch.randn(m, v)


def gaussian_by_cdist(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: torch.cdist(q, k).square_().mul_(-0.5 / h**2)


def gaussian_exactly(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    mode = "donot_use_mm_for_euclid_dist"
    return lambda q, k: torch.cdist(q, k, compute_mode=mode).square_().mul_(-0.5 / h**2)


def gaussian_expanded(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: torch.addmm(-0.5 * k.square().sum(-1) / h**2, q, k.T / h**2)


def works(scale: float) -> list[compare.Work]:
    torch.manual_seed(1)
    additive = ad.Additive(16, 16, 16)

    def tanh(q: Tensor, k: Tensor) -> Tensor:
        wq, wk, w = (x.detach().to(q.dtype) for x in (additive.query_weight, additive.key_weight, additive.weight))
        return torch.tanh((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ w

    def l1(q: Tensor, k: Tensor) -> Tensor:
        return torch.cdist(q, k, p=1.0) / -2.0

    sized = partial(random, scale)
    dot, h = "dot softmax 2 048 × 65 536, d = v = 64", 0.1
    kernel = "Gaussian h = .1, 20 000 × 200 000, d = 3"
    exact = by_plain_softmax(gaussian_exactly(h))
    gauss = partial(work, inputs=partial(sized, 20_000, 200_000, 3, 1), exact=exact, repeats=2)
    lap = partial(work, inputs=partial(sized, 4_000, 20_000, 16, 4), ours=ours(ad.Laplacian(2.0)), target=1.0)
    lap = partial(lap, one_chunk=by_plain_softmax(l1), exact=by_plain_softmax(l1), chunks=CHUNKS)
    add = partial(work, inputs=partial(sized, 2_000, 10_000, 16, 4), ours=ours(additive), target=1.0)
    add = partial(add, one_chunk=by_plain_softmax(tanh), exact=by_plain_softmax(tanh), chunks=(1, 2, 4, 8, 16, 32))
    by_dot = partial(
        work, inputs=partial(sized, 2_048, 65_536, 64, 64), ours=ours(ad.ScaledDot()), one_chunk=sdpa, chunks=None
    )
    by_cdist, expanded = by_plain_softmax(gaussian_by_cdist(h)), by_plain_softmax(gaussian_expanded(h))
    return [
        by_dot(dot, exact=sdpa, target=1.10, repeats=7),
        by_dot(f"{dot}, forward + backward", target=1.25, backward=True, repeats=5),
        gauss(f"{kernel} / chunks of cdist", ours=ours(ad.Gaussian(h)), one_chunk=by_cdist, chunks=CHUNKS, target=0.25),
        gauss(
            f"{kernel} / chunks of the expanded square",
            ours=ours(ad.Gaussian(h)),
            one_chunk=expanded,
            chunks=CHUNKS,
            target=0.25,
        ),
        gauss(
            f"{kernel}, plan fused in float64 (rule 8) / chunks of cdist",
            ours=ours(ad.Gaussian(h), "fused"),
            one_chunk=by_cdist,
            chunks=CHUNKS,
            target=None,
        ),
        lap("Laplacian 4 000 × 20 000, d = 16"),
        lap("Laplacian 4 000 × 20 000, d = 16, forward + backward", backward=True, exact=None),
        add("Additive 2 000 × 10 000, hidden 16"),
        add("Additive 2 000 × 10 000, hidden 16, forward + backward", backward=True, exact=None),
    ]


if __name__ == "__main__":
    compare.main("Engine against torch", __doc__, works)
