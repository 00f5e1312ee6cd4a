"""Plan "fourier": every certified answer within its bound, against sums in float64, and gradients at the same order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import attendb as ad
from attendb.plans.transform import Frame, Points, gaussian_sums, reach_of

ROUNDING = 1e-11  # of the float64 sums that answers are compared with; and of scores, relative to the largest


def brute_force(
    q: Tensor, k: Tensor, v: Tensor, *, h: object = 1.0, w: Tensor | None = None, exclude: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(values, log-normalisers) in float64, queries one chunk after the other."""
    h = torch.as_tensor(h, dtype=torch.float64)
    q, k = q.double(), k.double()
    centre = k.mean(0)
    if h.ndim == 2:
        q, k = (torch.linalg.solve(h, (x - centre).T).T for x in (q, k))
    else:
        q, k = (q - centre) / h, (k - centre) / h
    values, totals = [], []
    for start in range(0, len(q), 256):
        scores = -0.5 * (q[start : start + 256, None] - k[None]).square().sum(-1)
        if w is not None:
            scores = scores + w.double().log()
        if exclude is not None:
            own = exclude[start : start + 256]
            scores = torch.where(own[:, None] == torch.arange(len(k)), -torch.inf, scores)
        totals.append(scores.logsumexp(1))
        values.append(torch.softmax(scores, 1) @ v.double())
    return torch.cat(values), torch.cat(totals)


def check(answer: ad.Answer, exact: tuple[Tensor, Tensor], v: Tensor, tol: float) -> None:
    """Every query within its bound, and every bound within the tolerance."""
    bound = answer.error_bound
    spread = (v.amax(0) - v.amin(0)).double()
    assert ((bound >= 0) & (bound <= tol)).all()
    rounding = ROUNDING + 1e-14 * exact[1].abs().max()
    wrong = ((answer.value - exact[0]).abs() - bound[:, None] * spread).amax(1)
    assert (wrong <= rounding * (1 + v.abs().max())).all(), (
        f"a value is off by {float(wrong.max()):.3g} above its bound"
    )
    wrong = (answer.log_normalizer - exact[1]).abs() - bound
    assert (wrong <= rounding).all(), f"a log-normaliser is off by {float(wrong.max()):.3g} above its bound"


def normal(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return rng.normal(size=(m, d))


def clustered(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return rng.normal(size=(5, d))[rng.integers(5, size=m)] + 1e-3 * rng.normal(size=(m, d))


def duplicates(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return rng.normal(size=(7, d))[rng.integers(7, size=m)]


def one_place(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return np.full((m, d), 0.3)


def collinear(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return rng.normal(size=(m, 1)) * np.arange(1, d + 1)


def lattice(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return np.round(rng.normal(size=(m, d)) * 3) / 3


def far_rows(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    x = rng.normal(size=(m, d))
    x[: m // 50 + 1] *= 30
    x[0] = 1e4
    return x


def timestamps(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    return 1.7e9 + rng.normal(size=(m, d))


SETS: list[Callable[[np.random.Generator, int, int], np.ndarray]] = [
    normal,
    clustered,
    duplicates,
    one_place,
    collinear,
    lattice,
    far_rows,
    timestamps,
]


def data(kind: Callable[..., np.ndarray], seed: int, n: int, m: int, d: int, v: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries near the keys, between them and far away."""
    rng = np.random.default_rng(seed)
    k = kind(rng, m, d)
    near = k[rng.integers(m, size=n - n // 4)] + 0.1 * rng.normal(size=(n - n // 4, d))
    between = rng.uniform(k.min(0) - 1, k.max(0) + 1, size=(n // 4, d))
    q = np.concatenate([near, between])
    values = np.sin(k.sum(1, keepdims=True) + np.arange(v)) + rng.normal(size=(m, v))
    return torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(values)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example(kind=far_rows, seed=0, d=2, log_h=-1.5, tol=1e-6, v=1)
@example(kind=timestamps, seed=1, d=1, log_h=-2.0, tol=1e-8, v=2)
@given(
    kind=st.sampled_from(SETS),
    seed=st.integers(0, 1000),
    d=st.integers(1, 2),
    log_h=st.floats(-3, 2),
    tol=st.sampled_from([1e-2, 1e-4, 1e-6, 1e-8]),
    v=st.integers(1, 3),
)
def test_every_certified_query_is_within_its_bound(
    kind: Callable[..., np.ndarray], seed: int, d: int, log_h: float, tol: float, v: int
) -> None:
    q, k, values = data(kind, seed, 400, 3000, d, v)
    h = 10**log_h * max(float(k.std(0).max()), 1e-3)
    answer = ad.attend(q, k, values, score=ad.Gaussian(h), tol=tol, plan="fourier")
    check(answer, brute_force(q, k, values, h=h), values, tol)


@pytest.mark.parametrize("d", [1, 2])
def test_nearly_every_query_among_the_keys_is_certified(d: int) -> None:
    _, k, values = data(normal, 2, 10, 3000, d, 1)
    answer = ad.attend(k, k, values, score=ad.Gaussian(0.1), tol=1e-6, plan="fourier")
    assert ((answer.error_bound > 0).double().mean() > 0.95).all()
    check(answer, brute_force(k, k, values, h=0.1), values, 1e-6)


@pytest.mark.parametrize("kind", SETS)
def test_three_columns(kind: Callable[..., np.ndarray]) -> None:
    q, k, values = data(kind, 3, 300, 8000, 3, 2)
    h = 0.4 * max(float(k.std(0).max()), 1e-3)
    answer = ad.attend(q, k, values, score=ad.Gaussian(h), tol=1e-5, plan="fourier")
    check(answer, brute_force(q, k, values, h=h), values, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", SETS)
def test_no_violation_in_a_hundred_thousand_queries(kind: Callable[..., np.ndarray], d: int) -> None:
    for seed, h in enumerate((0.01, 0.1, 1.0) if d < 3 else (0.3,)):
        q, k, values = data(kind, seed, 2500 if d < 3 else 1000, 20_000, d, 1)
        width = h * max(float(k.std(0).max()), 1e-3)
        answer = ad.attend(q, k, values, score=ad.Gaussian(width), tol=1e-6, plan="fourier")
        check(answer, brute_force(q, k, values, h=width), values, 1e-6)


@pytest.mark.parametrize("bandwidth", [[0.3, 0.05], [[0.3, 0.0], [0.2, 0.1]]])
def test_bandwidths_of_each_column_and_full_matrices(bandwidth: list) -> None:
    q, k, values = data(normal, 4, 400, 3000, 2, 1)
    answer = ad.attend(q, k, values, score=ad.Gaussian(bandwidth), tol=1e-6, plan="fourier")
    check(answer, brute_force(q, k, values, h=bandwidth), values, 1e-6)


@pytest.mark.parametrize("kind", [normal, far_rows, duplicates])
def test_key_weights_and_excluded_rows(kind: Callable[..., np.ndarray]) -> None:
    _, k, values = data(kind, 5, 10, 3000, 2, 2)
    rng = np.random.default_rng(5)
    w = torch.from_numpy(np.exp(rng.normal(size=3000) * 2))
    own = torch.arange(3000)
    own[::7] = -1
    h = 0.2 * float(k.std(0).max())
    answer = ad.attend(k, k, values, score=ad.Gaussian(h), key_weights=w, exclude=own, tol=1e-6, plan="fourier")
    check(answer, brute_force(k, k, values, h=h, w=w, exclude=own), values, 1e-6)


def test_isolated_rows_without_themselves_are_left_to_an_exact_plan() -> None:
    k = torch.cat([torch.linspace(0, 5, 1998), torch.tensor([9.0, 20.0])]).double()[:, None]
    values = torch.arange(2000.0).double()[:, None]
    own = torch.arange(2000)
    answer = ad.attend(k, k, values, score=ad.Gaussian(0.2), exclude=own, tol=1e-6, plan="fourier")
    check(answer, brute_force(k, k, values, h=0.2, exclude=own), values, 1e-6)
    assert (answer.error_bound[:1998] > 0).all() and (answer.error_bound[1998:] == 0).all()
    assert "1998 of 2000 queries certified, the others by plan" in str(answer.plan)


def gradients(plan: str, tol: float | None, **options: object) -> list[Tensor]:
    q, k, values = data(normal, 6, 500, 2000, 2, 2)
    rng = np.random.default_rng(6)
    w = torch.from_numpy(rng.uniform(0.5, 2, size=2000))
    inputs = [x.requires_grad_() for x in (q, k, values, w)]
    score, weighting = ad.Gaussian([0.3, 0.5], learn=True), ad.Softmax(1.3, learn=True)
    answer = ad.attend(q, k, values, score=score, weighting=weighting, key_weights=w, tol=tol, plan=plan, **options)
    loss = (answer.value * torch.arange(1, 3)).sin().sum() + (0.1 * answer.log_normalizer).cos().sum()
    return list(torch.autograd.grad(loss, [*inputs, *score.parameters(), *weighting.parameters()]))


@pytest.mark.parametrize("excluding", [False, True])
def test_gradients_are_those_of_plan_dense(excluding: bool) -> None:
    options = {"exclude": torch.arange(500) % 140} if excluding else {}
    for fast, exact in zip(gradients("fourier", 1e-8, **options), gradients("dense", None, **options), strict=True):
        assert torch.allclose(fast, exact, rtol=1e-6, atol=1e-6 * float(exact.detach().abs().max()))


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 1, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5))

    def pooled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ad.attend(q, k, v, score=ad.Gaussian(0.9), tol=1e-9, plan="fourier").value

    assert torch.autograd.gradgradcheck(pooled, (q, k, v), atol=1e-5, eps=1e-4)


def test_a_sum_of_gaussians_and_its_slopes() -> None:
    rng = np.random.default_rng(1)
    sources, targets, strengths = rng.normal(size=(50, 2)) * 4, rng.normal(size=(30, 2)) * 4, rng.normal(size=(3, 50))
    boxes = sources.min(0), sources.max(0), targets.min(0), targets.max(0)
    of, onto = Points(sources, np.arange(50)), Points(targets, np.arange(30))
    frame = Frame.of_boxes(*boxes, reach_of(1e-14, 2))
    found = gaussian_sums(frame, of, onto, lambda rows: strengths[:, rows], 3, accuracy=1e-12, slopes=True)
    apart = targets[:, None] - sources[None]
    kernel = np.exp(-0.5 * (apart**2).sum(-1))
    assert np.allclose(found.values, strengths @ kernel.T, rtol=0, atol=1e-10)
    assert found.slopes is not None
    assert np.allclose(found.slopes, -np.einsum("cm,nm,nmd->dcn", strengths, kernel, apart), rtol=0, atol=1e-10)
    assert np.abs(found.values - strengths @ kernel.T).max() <= found.error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "tol= would allow it"),
        ({"tol": 1e-3, "score": ad.Laplacian()}, "its Fourier series falls too slowly"),
        ({"tol": 1e-3, "score": ad.Dot()}, "Dot is not Gaussian"),
        ({"tol": 1e-3, "weighting": ad.TopK(2)}, "TopK is not Softmax"),
        ({"tol": 1e-3, "top": 1}, "top= needs"),
        ({"tol": 1e-3, "where": np.eye(4, dtype=bool)}, "where= or bias="),
    ],
)
def test_what_it_cannot_serve_is_said(options: dict, reason: str) -> None:
    x = np.arange(8.0).reshape(4, 2)
    with pytest.raises(ad.PlanError, match=reason):
        ad.attend(x, x, x, **{"score": ad.Gaussian(), "plan": "fourier", **options})


def test_more_than_three_columns_are_refused() -> None:
    x = np.zeros((4, 4))
    with pytest.raises(ad.PlanError, match="4 columns"):
        ad.attend(x, x, x, score=ad.Gaussian(), plan="fourier", tol=0.1)


def test_the_planner_takes_it_for_large_tables_only_with_a_tolerance() -> None:
    torch.manual_seed(0)
    x, v = torch.randn(30_000, 1), torch.randn(30_000, 1)
    fast = ad.attend(x, x, v, score=ad.Gaussian(0.05), tol=1e-4)
    assert fast.plan.name == "fourier"
    assert ad.attend(x[:50], x[:50], v[:50], score=ad.Gaussian(0.05), tol=1e-4).plan.name != "fourier"
    exact = ad.attend(x[:200], x, v, score=ad.Gaussian(0.05))
    assert exact.plan.name != "fourier" and exact.error_bound is None
    assert (fast.value[:200] - exact.value).abs().max() <= 1e-4 * float(v.max() - v.min()) + 1e-6


def test_second_derivatives_where_a_query_is_left_over() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 1, dtype=torch.float64) for n in (60, 300, 300))
    q[0] = 50.0
    found = []
    for plan, tol in (("fourier", 1e-8), ("dense", None)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        answer = ad.attend(*leaves, score=ad.Gaussian(0.8), tol=tol, plan=plan)
        first = torch.autograd.grad(answer.value.square().sum(), leaves, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    for fast, exact in zip(*found, strict=True):
        assert torch.allclose(fast, exact, rtol=1e-5, atol=1e-6 * float(exact.detach().abs().max()))


def test_scattered_rows_are_not_cut_for_ever() -> None:
    from attendb.plans import tiles

    rng = np.random.default_rng(0)
    rows = 10.0 ** rng.uniform(-2, 10, size=(3000, 3))
    chosen, rest = tiles.tiles(rows, rows, tiles.Effort(8.0, 1, 1e-12))
    assert len(chosen) < tiles.MOST_LOOKS
    assert np.array_equal(np.sort(np.concatenate([*(tile.queries for tile in chosen), rest])), np.arange(3000))


@pytest.mark.parametrize("h", [1e-18, 1e-20, 1e-150])
def test_bandwidths_far_below_the_spacing_overflow_nothing(h: float) -> None:
    _, k, values = data(normal, 7, 400, 2500, 1, 1)
    answer = ad.attend(k[:400], k, values, score=ad.Gaussian(h), tol=1e-6, plan="fourier")
    assert torch.equal(answer.value, values[:400])
