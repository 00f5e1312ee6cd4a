"""Plan "pruned" against sums over all pairs in float64: kernels, points, bandwidths, tolerances, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attendb as ad
from attendb.plans import pruned
from attendb.testing.comparison import close

SOFT = {"gaussian": ad.Gaussian, "laplacian": ad.Laplacian, "euclidean": ad.Euclidean}
COMPACT = {"boxcar": ad.Boxcar, "triangular": ad.Triangular, "epanechnikov": ad.Epanechnikov}
KERNELS: dict[str, Any] = {**SOFT, **COMPACT}
DTYPES = [torch.float32, torch.float64]
ROOM = {torch.float32: 4e-6, torch.float64: 1e-12}


def kernel(name: str, q: Tensor, k: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """(reference exponent (n, 1), kernel ÷ its exponential (n, m)) of all pairs, in float64."""
    u = (q.double()[:, None] - k.double()[None]) / h
    square = u.square().sum(-1)
    if name in SOFT:
        scores = {"gaussian": -0.5 * square, "laplacian": -u.abs().sum(-1), "euclidean": -square.sqrt()}[name]
        ref = scores.amax(1, keepdim=True)
        return ref, (scores - ref).exp()
    p = {"boxcar": (square <= 1).double(), "triangular": 1 - square.sqrt(), "epanechnikov": 1 - square}[name]
    return torch.zeros(len(q), 1, dtype=torch.float64), p.clamp(min=0)


def all_pairs(
    name: str, q: Tensor, k: Tensor, v: Tensor, h: float, w: Tensor | None = None, exclude: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(value (n, v), log-normaliser (n,))."""
    if exclude is not None:  # before the reference is taken: the row does not exist for the query
        parts = [
            all_pairs(name, q[i : i + 1], *(x[torch.arange(len(k)) != exclude[i]] for x in (k, v)), h,
                      None if w is None else w[torch.arange(len(k)) != exclude[i]])
            for i in range(len(q))
        ]  # fmt: skip
        return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])
    if not len(k):
        return torch.zeros(len(q), v.shape[1], dtype=torch.float64), torch.full((len(q),), -torch.inf).double()
    ref, p = kernel(name, q, k, h)
    p = p if w is None else p * w.double()
    total = p.sum(1)
    value = p @ v.double() / total.masked_fill(total == 0, 1.0)[:, None]
    return value, ref[:, 0] + total.log()


def check(name: str, q: Tensor, k: Tensor, v: Tensor, h: float, **options: Any) -> None:
    answer = ad.attend(q, k, v, score=KERNELS[name](h), plan="pruned", **options)
    w, exclude = options.get("key_weights"), options.get("exclude")
    value, log = all_pairs(name, q, k, v, h, w, exclude)
    room, spread = ROOM[q.dtype], float(v.max() - v.min())
    assert torch.equal(answer.empty, log == -torch.inf)
    close(answer.value.double(), value, "value", room * spread, room)
    seen = ~answer.empty
    close(answer.log_normalizer.double()[seen], log[seen], "log-normaliser", room, room)
    assert (answer.log_normalizer[answer.empty] == -torch.inf).all()


def normal(n: int, m: int, d: int, dtype: torch.dtype, width: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(n, d, dtype=dtype), torch.randn(m, d, dtype=dtype), torch.randn(m, width, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name: str, d: int, dtype: torch.dtype) -> None:
    for width, h in ((1, 0.3), (5, 0.05)):
        check(name, *normal(77, 1501, d, dtype, width), h)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("h", [1e-3, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("name", KERNELS)
def test_every_bandwidth(name: str, h: float, dtype: torch.dtype) -> None:
    check(name, *normal(65, 1200, 2, dtype), h)


def clusters(m: int) -> Tensor:
    return torch.randint(0, 4, (m, 1)) * 7.0 + 0.02 * torch.randn(m, 2)


POINTS: dict[str, Callable[[int], Tensor]] = {
    "clusters": clusters,
    "duplicates": lambda m: torch.randint(0, 3, (m, 2)).float(),
    "all equal": lambda m: torch.ones(m, 2),
    "collinear": lambda m: torch.linspace(-3, 3, m)[:, None] * torch.tensor([[1.0, 2.0]]),
    "outliers": lambda m: torch.cat([torch.randn(m - 3, 2), torch.tensor([[50.0, 0.0], [-900.0, 2.0], [3.0, 4e3]])]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("name", KERNELS)
def test_points_of_every_shape(name: str, points: str, dtype: torch.dtype) -> None:
    k = POINTS[points](1100).to(dtype)
    q = torch.cat([k[:40] + 0.01, k[-5:], torch.tensor([[30.0, -20.0], [0.5, 0.5]]).to(dtype)])
    check(name, q, k, torch.randn(1100, 2, dtype=dtype), 0.4)


def test_timestamps_keep_their_digits() -> None:
    k = 1.7e9 + torch.rand(2000, 1, dtype=torch.float64) * 1e6
    check("gaussian", k[:50] + 3.0, k, torch.randn(2000, 1, dtype=torch.float64), 900.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_multiplicities_of_every_size(name: str, dtype: torch.dtype) -> None:
    q, k, v = normal(60, 1300, 2, dtype, 2)
    check(name, q, k, v, 0.3, key_weights=torch.logspace(-6, 6, 1300, dtype=dtype)[torch.randperm(1300)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_row_that_may_not_be_seen(name: str, dtype: torch.dtype) -> None:
    q, k, v = normal(50, 900, 2, dtype)
    k[:2] = torch.tensor([[60.0, 0.0], [0.0, -70.0]])  # isolated rows, which leave-one-out makes far queries
    check(name, k[:50].clone(), k, v, 0.2, exclude=torch.arange(50) - (torch.arange(50) == 7) * 8)
    check(name, q, k[:1], v[:1], 5.0, exclude=torch.zeros(50, dtype=torch.int64))


@pytest.mark.parametrize("bandwidth", [[0.1, 0.5, 2.0], [[0.3, 0.0, 0.1], [0.0, 0.2, 0.0], [0.0, 0.1, 0.5]]])
def test_a_bandwidth_for_each_column_and_a_matrix(bandwidth: Any) -> None:
    q, k, v = normal(60, 1000, 3, torch.float64)
    score = ad.Gaussian(bandwidth)
    got, right = (ad.attend(q, k, v, score=score, plan=plan) for plan in ("pruned", "dense"))
    close(got.value, right.value, "value", 1e-12, 1e-12)
    close(got.log_normalizer, right.log_normalizer, "log-normaliser", 1e-12, 1e-12)


def test_the_edge_of_a_window_is_the_same_to_the_last_bit() -> None:
    step = torch.arange(60, dtype=torch.float32) * 0.1
    q = k = torch.cartesian_prod(step, step)[:1500]
    v = torch.ones(len(k), 1)
    got, right = (ad.attend(q, k, v, score=ad.Boxcar(0.3), plan=plan) for plan in ("pruned", "dense"))
    assert torch.equal(got.log_normalizer.exp().round(), right.log_normalizer.exp().round())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    q, k, v = normal(90, 1400, 2, dtype, 2)
    q[3], k[5] = 40.0, -40.0
    w = torch.rand(1400, dtype=dtype) + 0.1
    seeds = torch.randn(90, 2, dtype=dtype), torch.randn(90, dtype=dtype)
    found = []
    for plan, kind in (("pruned", dtype), ("dense", torch.float64)):
        score = KERNELS[name](0.4, learn=True)
        leaves = [x.to(kind).requires_grad_() for x in (q, k, v, w)]
        answer = ad.attend(*leaves[:3], score=score, key_weights=leaves[3], plan=plan)
        log = answer.log_normalizer.masked_fill(answer.empty, 0.0)
        loss = (answer.value * seeds[0].to(kind)).sum() + (log * seeds[1].to(kind)).sum()
        found.append(torch.autograd.grad(loss, [*leaves, score.scale.theta], allow_unused=True))
    for got, right in zip(*found, strict=True):
        assert got is not None and right is not None
        limit = 20 * ROOM[dtype] * float(right.abs().max())
        assert float((got.double() - right.double()).abs().max()) <= limit + 1e-14


@pytest.mark.parametrize("name", KERNELS)
def test_second_derivatives(name: str) -> None:
    leaves = [x.requires_grad_() for x in normal(4, 40, 2, torch.float64)]
    exclude = torch.tensor([3, -1, 0, 7])

    def ask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        answer = ad.attend(q, k, v, score=KERNELS[name](1.5), exclude=exclude, plan="pruned")
        return torch.cat([answer.value[:, 0], answer.log_normalizer])

    assert torch.autograd.gradgradcheck(ask, leaves, atol=1e-6)


def test_a_learned_temperature_gets_its_gradient() -> None:
    q, k, v = normal(30, 500, 2, torch.float64)
    for score in (ad.Gaussian(0.5), ad.Laplacian(0.5)):
        grads = []
        for plan in ("pruned", "dense"):
            weighting = ad.Softmax(2.0, learn=True)
            answer = ad.attend(q, k, v, score=score, weighting=weighting, plan=plan)
            grads.append(torch.autograd.grad(answer.value.square().sum(), weighting.scale.theta)[0])
        assert abs(float(grads[0] - grads[1])) < 1e-10


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOFT)
def test_the_bound_holds_for_every_query(name: str, dtype: torch.dtype, tol: float) -> None:
    for h in (0.05, 0.5):
        q, k, v = normal(300, 3000, 2, dtype, 2)
        q[:3] = torch.tensor([[40.0, 0.0], [9.0, 9.0], [-5.0, 0.0]])
        answer = ad.attend(q, k, v, score=KERNELS[name](h), plan="pruned", tol=tol)
        value, log = all_pairs(name, q, k, v, h)
        bound = answer.error_bound.double()
        assert (bound <= tol).all() and (h > 0.1 or tol < 1e-6 or bound.max() > 0)
        eps = torch.finfo(dtype).eps  # of the output
        rounding = 1e-13 + 2e-15 * log.abs()  # of float64, which an exact answer has too
        spread = v.double().amax(0) - v.double().amin(0)
        error = ((answer.value - value).abs() - eps * value.abs()).div(spread).amax(-1)
        assert (error <= bound + rounding).all()
        assert ((answer.log_normalizer - log).abs() <= bound + eps * log.abs() + rounding).all()


def test_compact_kernels_and_no_tolerance_have_no_error() -> None:
    q, k, v = normal(50, 800, 2, torch.float64)
    assert float(ad.attend(q, k, v, score=ad.Boxcar(0.3), plan="pruned", tol=0.1).error_bound.max()) == 0
    assert ad.attend(q, k, v, score=ad.Gaussian(0.3), plan="pruned").error_bound is None


def test_far_boxes_are_skipped() -> None:
    from attendb.compiled import near

    seen = []
    sums = near.sums
    near.sums = lambda *args: seen.append(sums(*args))
    try:
        ad.attend(*normal(2000, 20000, 2, torch.float32), score=ad.Gaussian(0.05), plan="pruned")
    finally:
        near.sums = sums
    assert 0 < sum(seen) < 0.1 * 2000 * 20000


def test_the_planner_takes_it_where_it_wins() -> None:
    q, k, v = normal(2000, 60000, 3, torch.float32)
    assert ad.attend(q, k, v, score=ad.Gaussian(0.05)).plan.name == "pruned"
    assert ad.attend(q, k, v, score=ad.Boxcar(0.1)).plan.name == "pruned"
    assert pruned.Pruned.name not in ad.attend(q[:64], k, v, score=ad.Gaussian(50.0)).plan.name


def test_a_huge_value_far_away_is_not_skipped() -> None:
    k = torch.linspace(0, 8, 4096)[:, None]
    v = torch.ones(4096, 1)
    v[-1] = 1e15
    q = torch.linspace(0, 2, 64)[:, None]
    answer = ad.attend(q, k, v, score=ad.Gaussian(1.0), plan="pruned")
    exact = torch.softmax(-0.5 * torch.cdist(q.double(), k.double()).square(), -1) @ v.double()
    assert float(exact.max()) > 2 and torch.allclose(answer.value.double(), exact, rtol=1e-5, atol=0)


def test_values_that_are_all_equal_stay_so() -> None:
    q, k, _ = normal(40, 700, 2, torch.float32)
    answer = ad.attend(q, k, torch.full((700, 1), 1 / 3), score=ad.Gaussian(0.1), plan="pruned")
    assert torch.equal(answer.value, torch.full((40, 1), 1 / 3))


def test_compiled_powers_of_two_are_right_to_two_units() -> None:
    import numba

    from attendb.compiled.exponential import exp2

    @numba.njit(fastmath={"nsz", "arcp", "contract", "reassoc"})
    def powers(x):  # type: ignore[no-untyped-def]
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = exp2(x[i])
        return out

    for dtype in (np.float32, np.float64):
        x = np.linspace(-125, 120, 200_001).astype(dtype)
        error = powers(x).astype(np.longdouble) / np.exp2(x.astype(np.longdouble)) - 1
        assert np.abs(error).max() <= 2 * np.finfo(dtype).eps
        assert np.isnan(powers(np.array([np.nan], dtype)))[0]
    with pytest.raises(NotImplementedError, match="compiled code"):
        exp2(1.0)


def test_every_run_of_the_order_is_a_small_box() -> None:
    from attendb.compiled.boxes import FAN, Boxes, box_order

    x = np.random.default_rng(0).random((5000, 2))
    order = box_order(x, 32)
    assert (np.sort(order) == np.arange(5000)).all()
    columns = np.ascontiguousarray(x[order].T)
    boxes = Boxes.of(columns, None, 32)
    side = (boxes.high - boxes.low)[:, : boxes.starts[1]]
    assert side.max() < 0.3 and side.mean() < 2 * (32 / 5000) ** 0.5
    assert len(boxes.starts) == 3 and boxes.starts[2] - boxes.starts[1] == -(-boxes.starts[1] // FAN)


def test_a_density_needs_no_values() -> None:
    q, k, _ = normal(300, 900, 2, torch.float64)
    q.requires_grad_()
    answer = ad.attend(q, k, k[:, :0], score=ad.Gaussian(0.2), plan="pruned")
    exact = torch.logsumexp(-0.5 * torch.cdist(q / 0.2, k / 0.2).square(), 1)
    assert answer.value.shape == (300, 0) and torch.allclose(answer.log_normalizer, exact, rtol=1e-9)
    found, wanted = (torch.autograd.grad(x.sum(), q)[0] for x in (answer.log_normalizer, exact))
    assert torch.allclose(found, wanted, rtol=1e-7, atol=1e-9)
