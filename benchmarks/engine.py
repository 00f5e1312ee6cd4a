"""The engine against torch at its best: dot softmax, Gaussian regression, Laplacian and Additive scores.

    python benchmarks/engine.py [--threads 2] [--only TEXT] [--write]

Each peer is the code that a careful torch user would write; where it works in chunks of queries, the chunk size is the
fastest of several, chosen in the same run. Errors are against float64 on the first queries. Peak memory is what a fresh
process needs above its inputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import compare
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import attendb as ad

CHUNKS = (8, 16, 32, 64, 128, 256)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    """One row of the table: the same sum by attendb and by plain torch."""

    name: str
    inputs: Callable[[], tuple[Tensor, Tensor, Tensor]]
    ours: Attend
    one_chunk: Attend  # the peer on a chunk of queries
    chunks: tuple[int, ...] | None  # None: the peer takes all queries at once
    target: float | None
    exact: Attend | None = None
    backward: bool = False
    repeats: int = 3
    checked: int = 200  # queries whose error is measured

    def run(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> object:
        if not self.backward:
            return attend(q, k, v)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(*leaves).square().sum(), leaves)

    def peer(self, chunk: int | None) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if chunk is None:
                return self.one_chunk(q, k, v)
            one = partial(checkpoint, self.one_chunk, use_reentrant=False) if self.backward else self.one_chunk
            return torch.cat([one(q[i : i + chunk], k, v) for i in range(0, len(q), chunk)])

        return attend

    def best_chunk(self, q: Tensor, k: Tensor, v: Tensor) -> int | None:
        """The fastest chunk size on the first 1 024 queries, by the better of two runs each."""
        if self.chunks is None:
            return None
        some, seconds = q[:1024], {}
        for chunk in self.chunks:
            for _ in range(2):
                start = time.perf_counter()
                self.run(self.peer(chunk), some, k, v)
                seconds[chunk] = min(seconds.get(chunk, 1e9), time.perf_counter() - start)
        return min(seconds, key=seconds.__getitem__)

    def error(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> float | None:
        if self.exact is None:
            return None
        some = slice(0, self.checked)
        exact = self.exact(q[some].double(), k.double(), v.double())
        return float((attend(q, k, v)[some].double() - exact).abs().max())


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def by_plain_softmax(scores: Callable[[Tensor, Tensor], Tensor]) -> Attend:
    return lambda q, k, v: torch.softmax(scores(q, k), -1) @ v


def ours(score: ad.Score, plan: str | None = None) -> Attend:
    return lambda q, k, v: ad.attend(q, k, v, score=score, plan=plan).value


def random(n: int, m: int, d: int, v: int) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(n, d), torch.randn(m, d), torch.randn(m, v)

    return inputs


def gaussian_by_cdist(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: torch.cdist(q, k).square_().mul_(-0.5 / h**2)


def gaussian_exactly(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    mode = "donot_use_mm_for_euclid_dist"
    return lambda q, k: torch.cdist(q, k, compute_mode=mode).square_().mul_(-0.5 / h**2)


def gaussian_expanded(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: torch.addmm(-0.5 * k.square().sum(-1) / h**2, q, k.T / h**2)


def works() -> list[Work]:
    torch.manual_seed(1)
    additive = ad.Additive(16, 16, 16)

    def tanh(q: Tensor, k: Tensor) -> Tensor:
        wq, wk, w = (x.detach().to(q.dtype) for x in (additive.query_weight, additive.key_weight, additive.weight))
        return torch.tanh((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ w

    def l1(q: Tensor, k: Tensor) -> Tensor:
        return torch.cdist(q, k, p=1.0) / -2.0

    dot, h = "dot softmax 2 048 × 65 536, d = v = 64", 0.1
    kernel = "Gaussian h = .1, 20 000 × 200 000, d = 3"
    exact = by_plain_softmax(gaussian_exactly(h))
    gauss = partial(Work, inputs=random(20_000, 200_000, 3, 1), exact=exact, repeats=2)
    lap = partial(Work, inputs=random(4_000, 20_000, 16, 4), ours=ours(ad.Laplacian(2.0)), target=1.0)
    lap = partial(lap, one_chunk=by_plain_softmax(l1), exact=by_plain_softmax(l1), chunks=CHUNKS)
    add = partial(Work, inputs=random(2_000, 10_000, 16, 4), ours=ours(additive), target=1.0)
    add = partial(add, one_chunk=by_plain_softmax(tanh), exact=by_plain_softmax(tanh), chunks=(1, 2, 4, 8, 16, 32))
    by_dot = partial(Work, inputs=random(2_048, 65_536, 64, 64), ours=ours(ad.ScaledDot()), one_chunk=sdpa, chunks=None)
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


def peak_of(work: Work, side: str, chunk: int | None) -> None:
    """Print how far one run lifts this process's peak above what it holds with its inputs."""
    q, k, v = work.inputs()
    tiny = [x[:64].contiguous() for x in (q, k, v)]
    work.run(work.ours if side == "ours" else work.peer(chunk), *tiny)  # libraries and thread pools
    before = compare.resident_now()
    work.run(work.ours if side == "ours" else work.peer(chunk), q, k, v)
    print(max(0.0, compare.peak_now() - before))


def measure(work: Work, threads: int) -> compare.Row:
    q, k, v = work.inputs()
    chunk = work.best_chunk(q, k, v)
    peer = work.peer(chunk)
    error, peer_error = work.error(work.ours, q, k, v), work.error(peer, q, k, v)
    arguments = ("--threads", str(threads), "--peak", work.name, "--chunk", str(chunk or 0), "--side")
    memory = [compare.peak_memory(__file__, *arguments, side) for side in ("ours", "peer")]
    times = compare.interleave(lambda: work.run(work.ours, q, k, v), lambda: work.run(peer, q, k, v), work.repeats)
    return compare.row(work.name, times, work.target, errors=(error, peer_error), memory=(memory[0], memory[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="run the rows whose name holds this text")
    parser.add_argument("--write", action="store_true", help="write the table to results.md")
    parser.add_argument("--busy-is-fine", action="store_true", help="measure although other processes are running")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "peer"), default="ours", help=argparse.SUPPRESS)
    parser.add_argument("--chunk", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        return peak_of(next(w for w in works() if w.name == options.peak), options.side, options.chunk or None)
    print(compare.HEADER)
    rows = []
    for work in works():
        if options.only in work.name:
            if not options.busy_is_fine:
                compare.stop_when_busy()
            rows.append(measure(work, options.threads))
            print(rows[-1], flush=True)
    if options.write and rows:
        command = f"python benchmarks/engine.py --threads {options.threads}"
        compare.write_section(f"Engine against torch, threads: {options.threads}", command, compare.table(rows))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
