"""The engine against torch at its best: dot softmax, Gaussian regression, Laplacian and Additive scores.

    python benchmarks/engine.py [--threads 2] [--repeats 5] [--only NAME] [--write]

Each peer is the code that a careful torch user would write, with the chunk size that was fastest on this machine
(chosen in the same run among several). Errors are against float64.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compare
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import attendb as ad

Chunked = Callable[[int], Tensor]


def best_chunk(run: Callable[[int], object], chunks: tuple[int, ...]) -> int:
    """The fastest chunk size, by the better of two runs each."""
    seconds = {}
    for chunk in chunks:
        run(chunk)
        times = []
        for _ in range(2):
            start = time.perf_counter()
            run(chunk)
            times.append(time.perf_counter() - start)
        seconds[chunk] = min(times)
    return min(seconds, key=seconds.__getitem__)


def chunked(n: int, chunk: int, one: Callable[[slice], Tensor]) -> Tensor:
    return torch.cat([one(slice(i, i + chunk)) for i in range(0, n, chunk)])


def worst(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).abs().max())


def dot_softmax() -> dict[str, Callable[[], compare.Row]]:
    torch.manual_seed(0)
    q, k, v = torch.randn(2048, 64), torch.randn(65536, 64), torch.randn(65536, 64)
    exact = scaled_dot_product_attention(q[None, None].double(), k[None, None].double(), v[None, None].double())[0, 0]

    def ours() -> Tensor:
        return ad.attend(q, k, v).value

    def peer() -> Tensor:
        return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]

    def both(fn: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def step() -> object:
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            return torch.autograd.grad(fn(*leaves).square().sum(), leaves)

        return step

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]

    return {
        "dot softmax 2 048 × 65 536, d = v = 64": lambda: compare.measure(
            "dot softmax 2 048 × 65 536, d = v = 64", ours, peer, error=worst(ours(), exact), target=1.10
        ),
        "the same, forward + backward": lambda: compare.measure(
            "the same, forward + backward", both(lambda q, k, v: ad.attend(q, k, v).value), both(theirs), target=1.25
        ),
    }


def gaussian() -> dict[str, Callable[[], compare.Row]]:
    torch.manual_seed(1)
    h = 0.1
    q, k, v = torch.randn(20_000, 3), torch.randn(200_000, 3), torch.randn(200_000, 1)
    some = slice(0, 500)

    def ours(plan: str | None = None) -> Tensor:
        return ad.attend(q, k, v, score=ad.Gaussian(h), plan=plan).value

    def by_differences(chunk: int) -> Tensor:
        return chunked(len(q), chunk, lambda s: torch.softmax(torch.cdist(q[s], k).square_().mul_(-0.5 / h**2), -1) @ v)

    half = -0.5 * k.square().sum(-1) / h**2
    scaled = k.T / h**2

    def expanded(chunk: int) -> Tensor:
        return chunked(len(q), chunk, lambda s: torch.softmax(torch.addmm(half, q[s], scaled), -1) @ v)

    kd = k.double()
    far = torch.cdist(q[some].double(), kd, compute_mode="donot_use_mm_for_euclid_dist")
    exact = torch.softmax(far.square_().mul_(-0.5 / h**2), -1) @ v.double()
    name = "Gaussian h = .1, 20 000 × 200 000, d = 3"

    def against(label: str, peer: Chunked, target: float | None) -> compare.Row:
        chunk = best_chunk(lambda c: chunked(2000, c, lambda s: peer_part(peer, s)), (8, 16, 32, 64, 128))
        print(f"  peer's chunk: {chunk}; its error {worst(peer(chunk)[some], exact):.1e}", flush=True)
        error = worst(ours()[some], exact)
        return compare.measure(label, ours, lambda: peer(chunk), repeats=3, error=error, target=target)

    def peer_part(peer: Chunked, s: slice) -> Tensor:
        rows = q[s]
        if peer is expanded:
            return torch.softmax(torch.addmm(half, rows, scaled), -1) @ v
        return torch.softmax(torch.cdist(rows, k).square_().mul_(-0.5 / h**2), -1) @ v

    def rule8() -> compare.Row:
        chunk = 32
        error = worst(ours("fused")[some], exact)
        return compare.measure(
            f"{name}: plan fused (float64 by rule 8) / expanded square",
            lambda: ours("fused"),
            lambda: expanded(chunk),
            repeats=2,
            error=error,
        )

    return {
        f"{name} / cdist": lambda: against(f"{name} / cdist", by_differences, 0.25),
        f"{name} / expanded square": lambda: against(f"{name} / expanded square", expanded, 0.25),
        f"{name}: rule 8": rule8,
    }


def pairwise(
    name: str,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    score: ad.Score,
    plain: Callable[[Tensor, Tensor], Tensor],
    chunks: tuple[int, ...],
) -> dict[str, Callable[[], compare.Row]]:
    """A score without a faster plan, against the same score in chunks of queries, forward and forward + backward."""
    n = len(queries)

    def ours() -> Tensor:
        return ad.attend(queries, keys, values, score=score).value

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(plain(q, k), -1) @ v

    def peer(chunk: int, part: int = n) -> Tensor:
        return chunked(part, chunk, lambda s: one(queries[s], keys, values))

    def backward_ours() -> object:
        leaves = [x.clone().requires_grad_() for x in (queries, keys, values)]
        return torch.autograd.grad(ad.attend(*leaves, score=score).value.square().sum(), leaves)

    def backward_peer(chunk: int, part: int = n) -> object:
        q, k, v = (x.clone().requires_grad_() for x in (queries[:part], keys, values))
        out = [checkpoint(one, q[i : i + chunk], k, v, use_reentrant=False) for i in range(0, part, chunk)]
        return torch.autograd.grad(torch.cat(out).square().sum(), (q, k, v))  # type: ignore[arg-type]

    def forward() -> compare.Row:
        chunk = best_chunk(lambda c: peer(c, 1024), chunks)
        some = slice(0, 64)
        exact = torch.softmax(plain(queries[some].double(), keys.double()), -1) @ values.double()
        return compare.measure(name, ours, lambda: peer(chunk), repeats=3, error=worst(ours()[some], exact), target=1.0)

    def both() -> compare.Row:
        chunk = best_chunk(lambda c: backward_peer(c, 1024), chunks)
        return compare.measure(
            f"{name}, forward + backward", backward_ours, lambda: backward_peer(chunk), repeats=3, target=1.0
        )

    return {name: forward, f"{name}, forward + backward": both}


def laplacian() -> dict[str, Callable[[], compare.Row]]:
    torch.manual_seed(2)
    q, k, v = torch.randn(4_000, 16), torch.randn(20_000, 16), torch.randn(20_000, 4)
    return pairwise(
        "Laplacian 4 000 × 20 000, d = 16", q, k, v, ad.Laplacian(2.0), lambda a, b: torch.cdist(a, b, p=1.0) / -2.0,
        (8, 16, 32, 64, 128, 256),
    )  # fmt: skip


def additive() -> dict[str, Callable[[], compare.Row]]:
    torch.manual_seed(3)
    q, k, v = torch.randn(1_000, 16), torch.randn(10_000, 16), torch.randn(10_000, 4)
    score = ad.Additive(16, 16, 16)

    def plain(a: Tensor, b: Tensor) -> Tensor:
        wq, wk, w = (x.detach().to(a.dtype) for x in (score.query_weight, score.key_weight, score.weight))
        return torch.tanh((a @ wq.T)[:, None] + (b @ wk.T)[None]) @ w

    return pairwise("Additive 1 000 × 10 000, hidden 16", q, k, v, score, plain, (1, 2, 4, 8, 16, 32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="run the rows whose name holds this text")
    parser.add_argument("--write", action="store_true", help="write the table to results.md")
    parser.add_argument("--busy-is-fine", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.busy_is_fine:
        compare.stop_when_busy()
    print(compare.HEADER)
    rows = []
    for family in (dot_softmax, gaussian, laplacian, additive):
        for name, run in family().items():
            if options.only in name:
                rows.append(run())
    if options.write and rows:
        command = f"python benchmarks/engine.py --threads {options.threads}"
        body = compare.HEADER + "\n" + "\n".join(row.markdown() for row in rows)
        compare.write_section(f"Engine against torch, {options.threads} threads", command, body)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
