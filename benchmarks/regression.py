"""Gaussian regression of a million queries on a million keys within a tolerance, against flash attention.

    python benchmarks/regression.py [--threads 2] [--only TEXT] [--write]

Queries and keys are normal; 20 of each are three times too wide, and one stands at 1000. The peer is exact: torch's
flash attention of the Gaussian written as an inner product, φ(q) = [q/h, 1], ψ(k) = [k/h, −½‖k/h‖²], centred, in
float32, padded to the width that is fastest; it is timed on the first 2 000 queries and scaled. Errors are of the
queries that are farthest from the centre and of as many at random, by the range of the values, against float64. A
query is outside its bound when it is off by more than what its answer certifies and the rounding of float32.
"""

from __future__ import annotations

from functools import partial

import compare
import exact
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

import attendb as ad

TOL = 1e-6
PART = 2_000  # queries of the peer
CHECKED = 2_000
CHECKED_BACKWARD = 200
WIDTHS = (0, 4, 8, 16)  # that the peer is padded to
ROUNDING = torch.finfo(torch.float32).eps
EXACT_ROUNDING = 8 * ROUNDING  # of answers that certify 0: exact to rounding
CASES = ((1, 0.02, 1 / 400), (2, 0.05, 1 / 200), (3, 0.1, 1 / 20))


def points(n: int, d: int, seed: int) -> Tensor:
    """Normal points, 20 of them three times too wide and one at 1000."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    far = torch.randperm(n, generator=generator)[:21]
    x[far[:20]] *= 3
    x[far[20]] = 1000.0
    return x


def inputs(n: int, d: int) -> compare.Inputs:
    keys = points(n, d, 1)
    noise = torch.randn(n, generator=torch.Generator().manual_seed(2))
    return points(n, d, 0), keys, (torch.sin(3 * keys[:, 0]) + 0.1 * noise)[:, None]


def ours(h: float, q: Tensor, k: Tensor, v: Tensor) -> ad.Answer:
    return ad.attend(q, k, v, score=ad.Gaussian(h), tol=TOL)


def flash(width: int, h: Tensor | float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The exact answer as a careful torch user would have it computed."""
    centre = k.detach().mean(0)
    q, k = (q - centre) / h, (k - centre) / h
    phi = torch.cat([q, torch.ones_like(q[:, :1])], 1)
    psi = torch.cat([k, -0.5 * k.square().sum(1, keepdim=True)], 1)
    width = max(width, phi.shape[1], v.shape[1])
    wide = (pad(x, (0, width - x.shape[1]))[None, None] for x in (phi, psi, v))
    return scaled_dot_product_attention(*wide, scale=1.0)[0, 0, :, : v.shape[1]]


def backward(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves))


def ours_backward(h: float, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | slice = slice(None)) -> list[Tensor]:
    """Gradients of Σ value² over the rows to queries, values and the logarithm of the bandwidth."""
    score = ad.Gaussian(h, learn=True)
    q, v = (x.clone().requires_grad_() for x in (q, v))
    answer = ad.attend(q, k, v, score=score, tol=TOL)
    return backward(answer.value[rows].square().sum(), [q, v, *score.parameters()])


def flash_backward(width: int, h: float, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    q, v, log_h = (x.clone().requires_grad_() for x in (q, v, torch.tensor(h).log()))
    return backward(flash(width, log_h.exp(), q, k, v).square().sum(), [q, v, log_h])


def exact_backward(h: float, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    sums = [torch.zeros_like(v, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    of_queries = []
    for some in q.double().split(max(1, exact.NUMBERS // len(k))):
        leaves = [x.clone().requires_grad_() for x in (some, v.double(), torch.tensor(h, dtype=torch.float64).log())]
        value, _ = exact.gaussian(leaves[0], k, leaves[1], leaves[2].exp())
        grads = backward(value.square().sum(), leaves)
        of_queries.append(grads[0])
        sums = [a + b for a, b in zip(sums, grads[1:], strict=True)]
    return [torch.cat(of_queries), *sums]


def sample(q: Tensor, size: int) -> Tensor:
    """Rows of the queries farthest from the centre, and of as many others at random."""
    order = q.square().sum(1).argsort(descending=True)
    size = min(size, len(q))
    others = torch.randperm(len(q) - size // 2, generator=torch.Generator().manual_seed(3)) + size // 2
    return torch.cat([order[: size // 2], order[others[: size - size // 2]]])


def errors(h: float, inputs: compare.Inputs, answer: ad.Answer, peer: Tensor) -> compare.Errors:
    q, k, v = inputs
    rows = sample(q, CHECKED)
    spread = float(v.max() - v.min())
    value, log = exact.gaussian(q[rows], k, v, h)
    wrong = (answer.value[rows].double() - value).abs().amax(1) / spread
    wrong_log = (answer.log_normalizer[rows].double() - log).abs()
    bound = answer.error_bound[rows].double()
    slack = torch.where(bound > 0, ROUNDING, EXACT_ROUNDING)
    outside = (wrong > bound + slack) | (wrong_log > bound + slack * log.abs().clamp(min=1.0))
    few = slice(0, CHECKED_BACKWARD)
    wrong_peer = (peer[few].double() - exact.gaussian(q[few], k, v, h)[0]).abs().max() / spread
    note = f"{answer.plan.name}, {int(outside.sum())} of {compare.count(len(rows))} outside their bound"
    return compare.Errors(float(wrong.max()), float(wrong_peer), note)


def errors_backward(h: float, inputs: compare.Inputs, _: object, __: object) -> compare.Errors:
    """The worst of the three gradients, by its largest entry, of the loss over a sample of the queries."""
    q, k, v = inputs
    rows = sample(q, CHECKED_BACKWARD)
    truth = exact_backward(h, q[rows], k, v)
    of_queries, *rest = ours_backward(h, q, k, v, rows)
    peer = flash_backward(0, h, q[rows], k, v)

    def worst(found: list[Tensor]) -> float:
        pairs = zip(found, truth, strict=True)
        return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)

    return compare.Errors(worst([of_queries[rows], *rest]), worst(peer), "of gradients, by the largest")


def works(scale: float) -> list[compare.Work]:
    n = round(1_000_000 * scale)
    size = compare.count(n)
    found = []
    for d, h, target in CASES:
        name = f"Gaussian regression {size} × {size}, d = {d}, h = {h:g}, tol {TOL:g}"
        common = {"inputs": partial(inputs, n, d), "part": PART, "trial": 100}
        peers = {f"width {w or d + 1}": partial(flash, w, h) for w in WIDTHS}
        found.append(
            compare.Work(name, ours=partial(ours, h), peers=peers, target=target, errors=partial(errors, h), **common)
        )
        if d < 3:
            peers = {f"width {w or d + 1}": partial(flash_backward, w, h) for w in WIDTHS}
            found.append(
                compare.Work(
                    f"{name}, forward + backward to queries, values and bandwidth",
                    ours=partial(ours_backward, h),
                    peers=peers,
                    target=1 / 100,
                    errors=partial(errors_backward, h),
                    **common,
                )
            )
    return found


if __name__ == "__main__":
    compare.main("Gaussian regression within a tolerance", __doc__, works)
