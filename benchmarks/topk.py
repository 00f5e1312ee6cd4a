"""The best rows of a large table: FAISS IndexFlatIP, and torch attention followed by torch top-k.

    python benchmarks/topk.py [--threads 2] [--only TEXT] [--write]

FAISS is taken at its best: inner products of a batch by its matrix products (its own default from version 1.15 on is a
loop that took eight times as long), in the fastest of several block sizes, with the kernel of its OpenBLAS that fits
the machine. Errors are shares of queries whose rows differ from those of float64.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

KERNELS = {"avx512f": "SKYLAKEX", "avx2": "HASWELL"}  # of OpenBLAS, which takes the oldest on machines it does not know
info = Path("/proc/cpuinfo")
flags = info.read_text().split() if info.exists() else []
os.environ.setdefault("OPENBLAS_CORETYPE", next((core for flag, core in KERNELS.items() if flag in flags), ""))
if not os.environ["OPENBLAS_CORETYPE"]:
    del os.environ["OPENBLAS_CORETYPE"]

import compare  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attendb as ad  # noqa: E402

ROWS = 1_000_000
BLOCKS = (1024, 4096, 16_384)  # database rows of one of FAISS's matrix products
Rows = Tensor  # positions (n, k)


@dataclass(frozen=True)
class Work:
    """One row of the table: two sides that take (queries, keys, values) and return the best rows."""

    name: str
    queries: int
    width: int
    k: int
    target: float
    ours: Callable[[Tensor, Tensor, Tensor], Rows]
    peer: Callable[[Tensor, Tensor, Tensor], Rows]
    repeats: int = 7

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        keys = torch.randn(ROWS, self.width)
        return torch.randn(self.queries, self.width), keys, torch.randn(ROWS, self.width if self.k == 5 else 1)

    def wrong(self, rows: Rows, q: Tensor, k: Tensor) -> float:
        """The share of queries whose rows are not those of float64."""
        blocks = [q.double() @ block.double().T for block in k.split(100_000)]
        exact = torch.cat(blocks, -1).topk(self.k).indices
        return float((rows.sort(-1).values != exact.sort(-1).values).any(-1).double().mean())


def by_topk(q: Tensor, k: Tensor, v: Tensor, *, best: int) -> Rows:
    return ad.attend(q, k, v, score=ad.Dot(), weighting=ad.TopK(best), top=best).top.positions


def by_softmax(q: Tensor, k: Tensor, v: Tensor, *, best: int) -> Rows:
    """The value and the log-normaliser over all rows come in the same answer."""
    return ad.attend(q, k, v, score=ad.Dot(), top=best).top.positions


def torch_attention_and_topk(q: Tensor, k: Tensor, v: Tensor, *, best: int) -> Rows:
    scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], scale=1.0)
    return (q @ k.T).topk(best).indices


class Faiss:
    """IndexFlatIP over the keys that it first meets, in the block size that was fastest on the first queries."""

    def __init__(self) -> None:
        import faiss

        self.faiss: Any = faiss
        faiss.omp_set_num_threads(torch.get_num_threads())

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, best: int) -> Rows:
        return self._search(q, self._index(k, len(q), best), best)

    @cache  # noqa: B019
    def _index(self, k: Tensor, queries: int, best: int) -> Any:
        index = self.faiss.IndexFlatIP(k.shape[1])
        index.add(k.numpy())
        some, seconds = k[:queries], {}
        settings = self.faiss.cvar
        settings.distance_compute_blas_threshold = 20
        for block in BLOCKS if queries >= 20 else BLOCKS[:1]:
            settings.distance_compute_blas_database_bs = block
            for _ in range(2):
                start = time.perf_counter()
                self._search(some, index, best)
                seconds[block] = min(seconds.get(block, 1e9), time.perf_counter() - start)
        settings.distance_compute_blas_database_bs = min(seconds, key=seconds.__getitem__)
        return index

    def _search(self, q: Tensor, index: Any, best: int) -> Rows:
        return torch.from_numpy(index.search(q.numpy(), best)[1])


def works() -> list[Work]:
    faiss = Faiss()
    best = partial(Work, k=10, width=128, ours=partial(by_topk, best=10), peer=partial(faiss, best=10))
    return [
        best("top-10 of 10⁶ × 128, 1 query / FAISS IndexFlatIP", 1, target=0.3, repeats=25),
        best("top-10 of 10⁶ × 128, 256 queries / FAISS IndexFlatIP at its best", 256, target=1.0),
        Work(
            "dot softmax + top-5 + log-normaliser, 256 × 10⁶ × 64 / torch attention, then torch top-k",
            256,
            64,
            5,
            0.8,
            partial(by_softmax, best=5),
            partial(torch_attention_and_topk, best=5),
            repeats=5,
        ),
    ]


def peak_of(work: Work, side: str) -> None:
    """Print how far one run lifts this process's peak above what it holds with its inputs (and FAISS's index)."""
    q, k, v = work.inputs()
    run = work.ours if side == "ours" else work.peer
    run(q[:1], k[:4096].contiguous(), v[:4096].contiguous())  # libraries and thread pools
    if isinstance(getattr(run, "func", None), Faiss):
        run(q, k, v)
    before = compare.resident_now()
    run(q, k, v)
    print(max(0.0, compare.peak_now() - before))


def measure(work: Work, threads: int) -> compare.Row:
    q, k, v = work.inputs()
    wrong = [work.wrong(run(q, k, v), q, k) for run in (work.ours, work.peer)]
    arguments = ("--threads", str(threads), "--peak", work.name, "--side")
    memory = [compare.peak_memory(__file__, *arguments, side) for side in ("ours", "peer")]
    times = compare.interleave(lambda: work.ours(q, k, v), lambda: work.peer(q, k, v), work.repeats)
    return compare.row(work.name, times, work.target, errors=(wrong[0], wrong[1]), memory=(memory[0], memory[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="run the rows whose name holds this text")
    parser.add_argument("--write", action="store_true", help="write the table to results.md")
    parser.add_argument("--busy-is-fine", action="store_true", help="measure although other processes are running")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "peer"), default="ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        return peak_of(next(w for w in works() if w.name == options.peak), options.side)
    print(compare.HEADER)
    rows = []
    for work in works():
        if options.only in work.name:
            if not options.busy_is_fine:
                compare.stop_when_busy()
            rows.append(measure(work, options.threads))
            print(rows[-1], flush=True)
    if options.write and rows:
        command = f"python benchmarks/topk.py --threads {options.threads}"
        compare.write_section(f"Best rows, threads: {options.threads}", command, compare.table(rows))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
