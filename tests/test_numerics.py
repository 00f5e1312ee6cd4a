"""Numbers that systems of this kind have got wrong, with the right value: masks, infinities, far points, ties, draws.

Each test carries its right value as a number that was worked out apart from the engine, or as a law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attendb as ad
from attendb.plans.cells import block_sizes

SEEN = 25.752103826044415  # softmax of the scores 0, 1, 2 over the values 10, 20, 30
SOFTMAX = (0.09003057317038046, 0.24472847105479764, 0.6652409557748218)
INF, NAN = math.inf, math.nan
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CUTS: list[tuple[int, int] | None] = [None, (1, 1)]

POOLING: dict[str, Callable[[], Any]] = {
    "softmax": ad.Softmax,
    "normalized": ad.Normalized,
    "conic": ad.Conic,
    "linear": ad.Linear,
    "uniform": ad.Uniform,
    "sparsemax": ad.Sparsemax,
    "entmax15": ad.Entmax15,
}
SELECTING: dict[str, Callable[[], Any]] = {
    "nearest": ad.Nearest,
    "top 2": lambda: ad.TopK(2),
    "top 9, uniform": lambda: ad.TopK(9, then=ad.Uniform()),
    "sampled": lambda: ad.Sampled(seed=1),
}
EVERY = {**POOLING, **SELECTING}
each_weighting = pytest.mark.parametrize("make", list(EVERY.values()), ids=list(EVERY))
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))
each_cut = pytest.mark.parametrize("cut", CUTS, ids=str)


@contextmanager
def cut_into(cut: tuple[int, int] | None) -> Iterator[None]:
    if cut is None:
        yield
    else:
        with block_sizes(queries=cut[0], keys=cut[1]):
            yield


def column(*numbers: float, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)[:, None].requires_grad_(grad)


def near(got: Any, expected: Any, room: float = 1e-12) -> None:
    got = got.detach().double().numpy() if isinstance(got, Tensor) else np.asarray(got, dtype=np.float64)
    np.testing.assert_allclose(got.reshape(np.shape(expected)), expected, rtol=room, atol=room)


def room_of(dtype: torch.dtype) -> float:
    return max(1e-10, 8 * torch.finfo(dtype).eps)


def weights_of(scores: Any, weighting: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Tensor:
    """The weights of one query whose scores are these numbers."""
    keys = torch.tensor(scores, dtype=dtype)[:, None]
    ones = torch.ones(1, 1, dtype=dtype)
    return ad.attend(ones, keys, torch.ones_like(keys), score=ad.Dot(), weighting=weighting, **options).weights()[0]


# A query that may see no key


def masked_row(plan: str | None, cut: tuple[int, int] | None, dtype: torch.dtype) -> tuple[Any, list[Tensor]]:
    leaves = [column(1, 2, dtype=dtype, grad=True), column(0, 1, 2, dtype=dtype, grad=True)]
    leaves.append(column(10, 20, 30, dtype=dtype, grad=True))
    where = torch.tensor([[True] * 3, [False] * 3])
    with cut_into(cut):
        return ad.attend(*leaves, score=ad.Dot(), where=where, plan=plan), leaves


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize(
    ("plan", "cut"), [("dense", None), ("dense", (1, 1)), ("dense", (2, 2)), ("fused", None), (None, None)]
)
def test_all_masked_query_is_empty_and_poisons_nothing(
    plan: str | None, cut: tuple[int, int] | None, dtype: torch.dtype
) -> None:
    answer, (q, k, v) = masked_row(plan, cut, dtype)
    room = room_of(dtype)
    near(answer.value, [[SEEN], [0.0]], room)
    assert answer.value[1, 0] == 0
    assert answer.empty.tolist() == [False, True]
    assert answer.log_normalizer[1] == -INF
    near(answer.weights(), [SOFTMAX, (0, 0, 0)], room)
    answer.value[0].sum().backward()
    near(v.grad, SOFTMAX, room)
    near(q.grad, [4.244045446892546, 0.0], 10 * room)
    near(k.grad, [p * (x - SEEN) for p, x in zip(SOFTMAX, (10, 20, 30), strict=True)], 10 * room)


@pytest.mark.parametrize("plan", ["dense", "fused"])
def test_all_masked_query_has_zero_gradient_when_the_loss_reads_it(plan: str) -> None:
    answer, leaves = masked_row(plan, None, torch.float64)
    (answer.value[1].sum() + answer.value[1].square().sum()).backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("plan", ["dense", "fused"])
def test_log_normalizer_of_the_others_has_a_finite_gradient_beside_an_empty_query(plan: str) -> None:
    answer, (q, k, v) = masked_row(plan, None, torch.float64)
    answer.log_normalizer[0].backward()
    near(k.grad, SOFTMAX)
    near(q.grad, [SOFTMAX[1] + 2 * SOFTMAX[2], 0.0])
    assert v.grad is None or not v.grad.any()


@each_weighting
@each_cut
def test_row_is_the_same_with_and_without_an_all_masked_row(make: Any, cut: tuple[int, int] | None) -> None:
    where = torch.tensor([[True, True, True], [False, False, False]])
    found = []
    for rows in (slice(0, 1), slice(0, 2)):
        q, k, v = column(1, 2)[rows].requires_grad_(), column(0.5, 1, 2, grad=True), column(10, 20, 30, grad=True)
        with cut_into(cut):
            answer = ad.attend(q, k, v, score=ad.Dot(), weighting=make(), where=where[rows], plan="dense")
        grads = torch.autograd.grad(answer.value[0].sum(), (k, v), allow_unused=True)
        found.append([answer.value[0], *(torch.zeros(1) if g is None else g for g in grads)])
        assert answer.empty.tolist() == [False, True][: len(q)]
    for alone, together in zip(*found, strict=True):
        near(together, alone.detach().numpy())


@each_weighting
@pytest.mark.parametrize("kind", ["where", "where, a function", "key_weights", "exclude", "no rows"])
def test_every_way_of_masking_all_rows_is_empty(make: Any, kind: str) -> None:
    rows = 0 if kind == "no rows" else 1 if kind == "exclude" else 3
    options: dict[str, Any] = {
        "where": {"where": torch.zeros(2, 3, dtype=torch.bool)},
        "where, a function": {"where": lambda i, j: (i + j) < 0},
        "key_weights": {"key_weights": torch.zeros(3)},
        "exclude": {"exclude": torch.tensor([0, 0])},
        "no rows": {},
    }[kind]
    leaves = [column(1, 2, grad=True), column(*range(rows), grad=True), column(*[7.0] * rows, grad=True)]
    answer = ad.attend(*leaves, score=ad.Dot(), weighting=make(), top=2, **options)
    assert answer.value.tolist() == [[0.0], [0.0]]
    assert answer.empty.tolist() == [True, True]
    assert answer.weights().shape == (2, rows) and not answer.weights().any()
    assert answer.top.positions.tolist() == [[-1, -1]] * 2 and not answer.top.weights.any()
    grads = torch.autograd.grad(answer.value.sum(), leaves, allow_unused=True)
    assert all(g is None or not g.any() for g in grads)


# NaN and infinities in rows that nobody may see

HIDES: dict[str, dict[str, Any]] = {
    "where, one row": {"where": torch.tensor([True, False])},
    "where, by query": {"where": torch.tensor([[True, False], [True, False]])},
    "where, a function": {"where": lambda i, j: j < 1},
    "key_weights": {"key_weights": torch.tensor([1.0, 0.0])},
    "exclude": {"exclude": torch.tensor([1, 1])},
}


@each_weighting
@pytest.mark.parametrize("hidden", list(HIDES))
@pytest.mark.parametrize(("what", "bad"), [("key", INF), ("value", -INF), ("both", NAN)])
def test_nan_in_a_masked_row_does_not_leak(make: Any, hidden: str, bad: float, what: str) -> None:
    q = column(1, 2, grad=True)
    k = column(1, 3 if what == "value" else bad, grad=True)
    v = column(5, 6 if what == "key" else bad, grad=True)
    answer = ad.attend(q, k, v, score=ad.Dot(), weighting=make(), **HIDES[hidden])
    scale = torch.tensor([[1.0], [2.0]]) if type(answer._question.problem.weighting) in (ad.Conic, ad.Linear) else 1.0
    assert torch.equal(answer.value.detach(), 5.0 * scale * torch.ones(2, 1, dtype=torch.float64))
    weights = answer.weights()
    assert not weights[:, 1].any()
    for output in (answer.value, weights):
        if not output.requires_grad:
            continue
        dq, dk, dv = torch.autograd.grad(output.sum(), (q, k, v), allow_unused=True, retain_graph=True)
        assert dq is None or torch.isfinite(dq).all()
        for grad in (dk, dv):
            assert grad is None or (torch.isfinite(grad).all() and grad[1] == 0)


@pytest.mark.parametrize("score", [ad.Gaussian(1.0), ad.Laplacian(1.0), ad.Euclidean(1.0), ad.Triangular(9.0)])
@pytest.mark.parametrize("hidden", list(HIDES))
def test_nan_in_a_masked_row_does_not_move_the_centre_of_a_distance(score: Any, hidden: str) -> None:
    q, k = column(1, 2, grad=True), column(1, NAN, grad=True)
    answer = ad.attend(q, k, column(5, NAN), score=score, **HIDES[hidden])
    near(answer.value, [[5.0], [5.0]])
    near(answer.weights(), [[1.0, 0.0]] * 2)
    for grad in torch.autograd.grad(answer.value.sum(), (q, k), allow_unused=True):
        assert grad is None or (grad.abs().max() < 1e-15 and not grad[2:].any())


@pytest.mark.parametrize("plan", ["dense", "fused"])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_nan_in_the_padded_tail_of_each_batch_entry(plan: str, dtype: torch.dtype) -> None:
    lengths = torch.tensor([3, 1, 4])
    where = torch.arange(4) < lengths[:, None, None]
    full = [torch.randn(3, 4, 2, dtype=dtype) for _ in range(2)]
    k, v = (x.masked_fill(~where.mT, NAN).requires_grad_() for x in full)
    q = torch.randn(3, 2, 2, dtype=dtype)
    answer = ad.attend(q, k, v, where=where, plan=plan)
    for i, length in enumerate(lengths.tolist()):
        alone = ad.attend(q[i], full[0][i, :length], full[1][i, :length])
        near(answer.value[i], alone.value.numpy(), room_of(dtype))
    answer.value.sum().backward()
    for leaf in (k, v):
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all()
        assert not leaf.grad.masked_select(~where.mT).any()


@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_nan_in_the_bias_of_a_masked_pair_does_not_leak(plan: str | None) -> None:
    bias = torch.tensor([[0.0, NAN], [NAN, 0.0]])
    where = ~bias.isnan()
    q, k = column(1, 2, grad=True), column(1, 3, grad=True)
    answer = ad.attend(q, k, column(5, 6), score=ad.Dot(), bias=bias, where=where, plan=plan)
    assert answer.value.flatten().tolist() == [5.0, 6.0]
    for grad in torch.autograd.grad(answer.value.sum(), (q, k)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("plan", ["dense", None])
@pytest.mark.parametrize("make", list(POOLING.values()), ids=list(POOLING))
def test_nan_query_that_may_see_nothing_does_not_poison_the_keys(make: Any, plan: str | None) -> None:
    q, k, v = column(1, NAN, grad=True), column(1, 3, grad=True), column(5, 6, grad=True)
    where = torch.tensor([[True, True], [False, False]])
    answer = ad.attend(q, k, v, score=ad.Dot(), weighting=make(), where=where, plan=plan)
    assert answer.empty.tolist() == [False, True] and answer.value[1] == 0
    for grad in torch.autograd.grad(answer.value.sum(), (k, v), allow_unused=True):
        assert grad is None or torch.isfinite(grad).all()


# No number stands for a mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("make", [ad.Softmax, ad.Sparsemax, ad.Entmax15, ad.Nearest, lambda: ad.TopK(1)])
@pytest.mark.parametrize("low", [-2e6])
def test_masked_row_never_wins_against_a_very_low_score(make: Any, low: float, dtype: torch.dtype) -> None:
    if abs(low) > torch.finfo(dtype).max:
        low = -6e4
    for options in (
        {"where": torch.tensor([[True, False]])},
        {"where": lambda i, j: j == 0},
        {"key_weights": torch.tensor([1.0, 0.0])},
        {"exclude": torch.tensor([1])},
    ):
        assert weights_of([low, 0.3], make(), dtype, **options).tolist() == [1.0, 0.0]


@each_weighting
def test_all_masked_rows_share_no_uniform_weight(make: Any) -> None:
    weights = weights_of([0.0, 1.0, 2.0], make(), where=torch.zeros(1, 3, dtype=torch.bool))
    assert weights.tolist() == [0.0, 0.0, 0.0]


def test_lowest_float16_score_plus_a_bias_stays_finite() -> None:
    bias = torch.tensor([[-20.0, 0.0]], dtype=torch.float16)
    weights = weights_of([-65504.0, -65504.0], ad.Softmax(), torch.float16, bias=bias)
    assert torch.isfinite(weights).all()
    near(weights, [math.exp(-20), 1.0], 1e-3)


@each_dtype
def test_masks_are_joined_by_and(dtype: torch.dtype) -> None:
    options = {
        "where": torch.tensor([[True, True, False, True]]),
        "exclude": torch.tensor([0]),
        "key_weights": torch.tensor([1.0, 1.0, 1.0, 0.0]),
    }
    assert weights_of([0.0, -9.0, 5.0, 5.0], ad.Softmax(), dtype, **options).tolist() == [0.0, 1.0, 0.0, 0.0]
    options["where"] = torch.tensor([[True, False, True, True]])
    options["exclude"] = torch.tensor([2])
    options["key_weights"] = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert not weights_of([0.0, 1.0, 2.0, 3.0], ad.Softmax(), dtype, **options).any()


# Infinite scores

SHARING = {name: EVERY[name] for name in ("softmax", "normalized", "sparsemax", "entmax15")}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@each_cut
@pytest.mark.parametrize("make", list(SHARING.values()), ids=list(SHARING))
@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0, INF, 0], [0, 1, 0]), ([INF, INF, 0], [0.5, 0.5, 0]), ([INF], [1]), ([INF, 3, 1, INF], [0.5, 0, 0, 0.5])],
    ids=str,
)
def test_infinite_scores_share_the_weight(
    make: Any, scores: list[float], expected: list[float], cut: tuple[int, int] | None, dtype: torch.dtype
) -> None:
    with cut_into(cut):
        near(weights_of(scores, make(), dtype), expected, room_of(dtype))
        zeros = torch.zeros(len(scores), 1, dtype=torch.float64, requires_grad=True)
        values = torch.arange(1.0, len(scores) + 1, dtype=torch.float64)[:, None].requires_grad_()
        bias = torch.tensor([scores], dtype=torch.float64)
        answer = ad.attend(zeros[:1], zeros, values, score=ad.Dot(), bias=bias, weighting=make())
    near(answer.value, [[sum(w * (i + 1) for i, w in enumerate(expected))]])
    grads = torch.autograd.grad(answer.value.sum(), (zeros, values))
    assert torch.isfinite(grads[0]).all()
    near(grads[1], expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [(ad.Nearest, [0, 1, 0, 0]), (lambda: ad.TopK(2), [0, 0.5, 0, 0.5]), (lambda: ad.TopK(1), [0, 1, 0, 0])],
)
def test_infinite_scores_are_selected_first(make: Any, expected: list[float]) -> None:
    assert weights_of([5, INF, 0, INF], make()).tolist() == expected


@pytest.mark.parametrize("make", [ad.Softmax, ad.Sparsemax, ad.Entmax15, ad.Nearest, lambda: ad.TopK(2), ad.Sampled])
@each_cut
def test_a_score_of_minus_infinity_is_an_absent_row(make: Any, cut: tuple[int, int] | None) -> None:
    with cut_into(cut):
        assert weights_of([-INF, 1.0, -INF], make()).tolist() == [0, 1, 0]
        bias = torch.tensor([[-INF, -INF], [0.0, -INF]])
        leaves = [column(1, 1, grad=True), column(1, 1, grad=True), column(3, 4, grad=True)]
        answer = ad.attend(*leaves, score=ad.Dot(), bias=bias, weighting=make())
    assert answer.empty.tolist() == [True, False]
    assert answer.value.flatten().tolist() == [0.0, 3.0]
    for grad in torch.autograd.grad(answer.value.sum(), leaves, allow_unused=True):
        assert grad is None or torch.isfinite(grad).all()


@pytest.mark.parametrize("plan", ["dense", None])
def test_infinite_scores_in_the_weighted_sums_are_never_nan(plan: str | None) -> None:
    for make in (ad.Conic, ad.Linear):
        answer = ad.attend([[1.0]], [[1.0], [INF]], [1.0, 2.0], score=ad.Dot(), weighting=make(), plan=plan)
        assert answer.value.tolist() == [[INF]]
        with pytest.raises(ad.InputError):
            ad.attend([[1.0]], [[1.0], [INF]], [1.0, 0.0], score=ad.Dot(), weighting=make(), plan=plan)


# A query that equals a key, and one far from all keys


def inverse_distance(queries: Tensor, keys: Tensor) -> Tensor:
    return 1 / torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize(
    ("x", "y", "query", "expected"),
    [
        ([[1], [2], [2], [3]], [1, 2, 6, 3], [[2]], 4.0),
        ([[0, 0], [1, 0], [0, 1], [1, 1]], [1, 0, 0, 0], [[0, 0]], 1.0),
        ([[0], [1e-12], [1e-12], [1e-12]], [1, 0, 0, 0], [[0]], 1.0),  # a crowd beside the match
    ],
)
@each_cut
def test_exact_match_under_one_over_distance(
    x: Any, y: Any, query: Any, expected: float, cut: tuple[int, int] | None
) -> None:
    x, y, query = (np.array(part, dtype=np.float64) for part in (x, y, query))
    with cut_into(cut):
        for weighting in (ad.TopK(3, then=ad.Normalized()), ad.Normalized()):
            answer = ad.attend(query, x, y, score=inverse_distance, weighting=weighting)
            assert answer.value.tolist() == [[expected]]
        assert ad.attend(query, x, y, weighting=ad.Exact()).value.tolist() == [[expected]]
        assert ad.attend(query, x, y, score=ad.Equal()).value.tolist() == [[expected]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("query", [100.0, -100.0, 1e3, 1e5, 1e7, 1e15])
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Laplacian, ad.Euclidean])
@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_query_far_from_all_keys(score: Any, query: float, dtype: Any, plan: str | None) -> None:
    keys = np.array([0, 1], dtype=dtype)
    if plan == "fused" and score is not ad.Gaussian:
        pytest.skip("no inner product")
    if score is not ad.Gaussian and query > 1e7:
        pytest.skip("in one dimension the two distances round to one number")
    try:
        answer = ad.attend([[query]], keys, np.array([10, 20], dtype=dtype), score=score(0.01), plan=plan)
    except ad.PlanError:
        assert plan == "fused"
        return
    near(answer.value, [[10.0 if query < 0 else 20.0]], 1e-6)
    assert not answer.empty.any()


@pytest.mark.parametrize("query", [3.0, 100.0, 1e7, 1e30])
@pytest.mark.parametrize("score", [ad.Boxcar, ad.Triangular, ad.Epanechnikov])
def test_query_out_of_reach_of_a_compact_kernel_is_empty(score: Any, query: float) -> None:
    answer = ad.attend([[query], [0.0]], [[0.0], [1.0]], [10.0, 20.0], score=score(1.0))
    assert answer.empty.tolist() == [True, False]
    assert answer.value[0].tolist() == [0.0] and answer.log_normalizer[0] == -INF


# Distances in float32


@pytest.mark.parametrize("plan", ["dense", "fused", None])
@pytest.mark.parametrize("rows", [2, 60])
@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_squared_distance_does_not_cancel(plan: str | None, rows: int, offset: float) -> None:
    near_keys = np.array([offset, offset + 1], dtype=np.float32)
    keys = np.concatenate([near_keys, np.full(rows - 2, offset + 1000, np.float32)])
    queries = np.full(rows, offset, np.float32)
    answer = ad.attend(queries, keys, np.arange(rows, dtype=np.float32), score=ad.Gaussian(1.0), plan=plan)
    assert answer.weights().dtype == np.float32
    near(answer.weights()[:, :2], [[0.6224593312, 0.3775406688]] * rows, 1e-6)
    near(answer.value, [[0.3775406688]] * rows, 1e-6)


@pytest.mark.parametrize("score", [ad.Euclidean, ad.Laplacian, ad.Gaussian])
def test_small_distance_in_many_columns(score: Any) -> None:
    query, key = np.ones((1, 1000), np.float32), np.full((1, 1000), 1.001, np.float32)
    gap = float(key[0, 0]) - 1.0
    assert abs(gap * math.sqrt(1000) - 0.0316242543) < 1e-9
    expected = {ad.Euclidean: gap * math.sqrt(1000), ad.Laplacian: gap * 1000, ad.Gaussian: gap**2 * 500}[score]
    answer = ad.attend(query, key, [1.0], score=score(1.0))
    near(-answer.log_normalizer, [expected], 1e-8)
    again = ad.attend(query, key, np.ones(1, np.float32), score=score(1.0))
    np.testing.assert_allclose(-again.log_normalizer, [expected], rtol=2e-5)


@pytest.mark.parametrize("width", [1, 3, 4, 5, 16, 17, 64])
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Euclidean, ad.Laplacian])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_distance_of_a_row_to_itself_is_zero_and_none_is_negative(score: Any, width: int, dtype: torch.dtype) -> None:
    x = 10 * torch.randn(67, width, dtype=dtype)
    scores = score(1.0)(x, x)
    assert (scores <= 0).all()
    assert not scores.diagonal().any(), f"largest {scores.diagonal().abs().max():.3g}"


@pytest.mark.parametrize("width", [1, 2, 5, 20])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Laplacian, ad.Euclidean, ad.Triangular, ad.Epanechnikov])
def test_float32_distances_agree_with_differences_in_float64(score: Any, width: int, offset: float) -> None:
    keys = (torch.randn(300, width) + offset).numpy()
    queries = (torch.randn(40, width) + offset).numpy()
    values = torch.randn(300, 2).numpy()
    h = 1.3 * math.sqrt(width)
    gaps = (queries[:, None].astype(np.float64) - keys[None].astype(np.float64)) / h
    square, u = (gaps**2).sum(-1), np.sqrt((gaps**2).sum(-1))
    weights = {
        ad.Gaussian: np.exp(-square / 2),
        ad.Laplacian: np.exp(-np.abs(gaps).sum(-1)),
        ad.Euclidean: np.exp(-u),
        ad.Triangular: np.maximum(0, 1 - u),
        ad.Epanechnikov: np.maximum(0, 1 - square),
    }[score]
    total = weights.sum(1)
    answer = ad.attend(queries, keys, values, score=score(h))
    expected = weights @ values / np.where(total > 0, total, 1)[:, None]
    loose = np.where(total > 1e-3, 1.0, 1e3)[:, None]  # a lone row at the rim of a compact kernel
    assert (np.abs(answer.value - expected) <= 2e-5 * loose).all()


# Gradients at distance 0


@pytest.mark.parametrize("plan", ["dense", "fused", None])
@pytest.mark.parametrize("cut", [None, (1, 1)])
def test_gradient_at_a_stored_row(plan: str | None, cut: tuple[int, int] | None) -> None:
    if plan == "fused" and cut:
        pytest.skip("plan fused has no blocks of its own")
    keys, values = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64), column(1, 2)
    cases = [(ad.Gaussian(1.0), [1.11798762e-05, 1.49065016e-05]), (ad.Euclidean(1.0), [0.003988834, 0.0053184453])]
    for score, expected in cases[: 1 if plan == "fused" else 2]:
        q = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        with cut_into(cut):
            answer = ad.attend(q, keys, values, score=score, plan=plan)
        (grad,) = torch.autograd.grad(answer.value.sum(), q)
        np.testing.assert_allclose(grad.numpy(), [expected], rtol=2e-8)


@pytest.mark.parametrize("width", [1, 2, 6, 20])
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Euclidean, ad.Laplacian, ad.Triangular, ad.Epanechnikov, ad.Boxcar])
def test_gradients_of_repeated_rows_are_finite_to_second_order(score: Any, width: int) -> None:
    rows = torch.randn(3, width, dtype=torch.float64)[torch.tensor([0, 0, 1, 2, 2])]
    q, k = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    module = score(3.0, learn=True)
    answer = ad.attend(q, k, torch.randn(5, 2, dtype=torch.float64), score=module)
    inputs = (q, k, module.scale.theta)
    first = torch.autograd.grad(answer.value.square().sum(), inputs, create_graph=True, allow_unused=True)
    assert all(g is None or torch.isfinite(g).all() for g in first)
    total = sum(g.square().sum() for g in first if g is not None)
    if isinstance(total, Tensor) and total.requires_grad:
        second = torch.autograd.grad(total, inputs, allow_unused=True)
        assert all(g is None or torch.isfinite(g).all() for g in second)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_cosine_of_a_zero_row_has_zero_gradient(dtype: torch.dtype) -> None:
    q = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=dtype, requires_grad=True)
    k = torch.tensor([[0.0, 0.0], [1e-30, 1e-30], [1e30, 0.0]], dtype=dtype, requires_grad=True)
    answer = ad.attend(q, k, column(1, 2, 3, dtype=dtype), score=ad.Cosine())
    answer.value.sum().backward()
    assert q.grad is not None and k.grad is not None
    assert torch.isfinite(k.grad).all() and torch.isfinite(q.grad).all()
    assert not q.grad[0].any() and not k.grad[0].any()


# Bandwidths


@pytest.mark.parametrize("bad", [0, 0.0, -1, -0.022, NAN, INF, -INF, [1.0, 0.0], [NAN, 1.0], [[1.0, 1.0], [1.0, 1.0]]])
def test_bandwidth_that_is_no_positive_number_is_refused(bad: Any) -> None:
    with pytest.raises(ad.InputError, match=r"bandwidth"):
        ad.Gaussian(bad)
    if np.ndim(bad) < 2:
        for score in (ad.Laplacian, ad.Euclidean, ad.Boxcar, ad.Triangular, ad.Epanechnikov):
            with pytest.raises(ad.InputError, match=r"bandwidth must be > 0 and finite, got"):
                score(bad)


@pytest.mark.parametrize("c", [1e-6, 0.001, 20.0, 1e6])
@pytest.mark.parametrize(
    ("score", "h"),
    [
        (ad.Gaussian, 0.7),
        (ad.Gaussian, [0.5, 2.0]),
        (ad.Gaussian, [[0.9, 0.3], [0.0, 1.2]]),
        (ad.Laplacian, 0.7),
        (ad.Euclidean, [0.5, 2.0]),
        (ad.Boxcar, 1.5),
        (ad.Triangular, 1.5),
        (ad.Epanechnikov, [1.5, 2.5]),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_unit_of_the_data_does_not_matter(score: Any, h: Any, c: float, dtype: torch.dtype) -> None:
    x, q, y = (torch.randn(n, 2, dtype=dtype) for n in (100, 9, 100))
    plain = ad.attend(q, x, y, score=score(h))
    scaled = ad.attend(c * q, c * x, y, score=score((c * torch.tensor(h, dtype=torch.float64)).tolist()))
    room = 1e-9 if dtype == torch.float64 else 1e-4
    near(scaled.value, plain.value.numpy(), room)
    near(scaled.log_normalizer, plain.log_normalizer.numpy(), room)
    assert torch.equal(scaled.empty, plain.empty)


@pytest.mark.parametrize("plan", ["dense", "fused"])
def test_log_density_above_zero_at_a_tiny_bandwidth_is_right(plan: str) -> None:
    h, x = 1e-5, np.linspace(0.0, 1.0, 1000)
    answer = ad.attend(x[499:500], x, np.zeros(1000), score=ad.Gaussian(h), plan=plan)
    density = math.exp(answer.log_normalizer[0]) / (1000 * h * math.sqrt(2 * math.pi))
    assert math.isclose(density, 39.8942280401, rel_tol=1e-8)
    assert math.log(density) > 0


@pytest.mark.parametrize("plan", ["dense", "fused", None])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_leave_one_out_by_position(plan: str | None, dtype: Any) -> None:
    x, y = np.array([0, 1, 3], dtype), np.array([0, 1, 5], dtype)
    value = ad.attend(x, x, y, score=ad.Gaussian(1.0), exclude=[0, 1, 2], plan=plan).value
    room = 1e-8 if dtype == np.float64 else 1e-6
    near(value, [1.07194484, 0.91212762, 0.92414182], room)
    assert math.isclose(float(((value[:, 0].astype(np.float64) - y) ** 2).mean()), 5.9231357329, rel_tol=room)


@pytest.mark.parametrize("h", [1e-2, 1e-3, 1e-9])
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Laplacian, ad.Boxcar])
def test_a_duplicate_of_the_excluded_row_stays(score: Any, h: float) -> None:
    x, y = np.array([0.0, 0.0, 1.0]), np.array([2.0, 4.0, 9.0])
    answer = ad.attend(x, x, y, score=score(h), exclude=np.arange(3))
    near(answer.value[:2, 0], [4.0, 2.0])
    assert answer.empty.tolist() == [False, False, score is ad.Boxcar]


def test_isolated_row_of_a_compact_kernel_is_empty_when_it_is_excluded() -> None:
    x, y = np.array([0.0, 0.5, 10.0]), np.array([1.0, 2.0, 9.0])
    answer = ad.attend(x, x, y, score=ad.Boxcar(1.0), exclude=[0, 1, 2])
    assert answer.value.flatten().tolist() == [2.0, 1.0, 0.0]
    assert answer.empty.tolist() == [False, False, True]


# Sparse weights, and parameters at their limits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@each_cut
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([6e4, 0], [1, 0]),
        ([6e4, 6e4], [0.5, 0.5]),
        ([0.5, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]),
        ([1, 1, 0], [0.5, 0.5, 0]),
        ([-1000, -1000, -1004], [0.5, 0.5, 0]),
        ([-1000.0, -INF], [1, 0]),
        ([-INF, 2, -INF, 2], [0, 0.5, 0, 0.5]),
    ],
    ids=str,
)
def test_sparsemax(scores: list[float], expected: list[float], cut: Any, dtype: torch.dtype) -> None:
    with cut_into(cut):
        near(weights_of(scores, ad.Sparsemax(), dtype), expected, room_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("make", [ad.Sparsemax, ad.Entmax15])
def test_sparse_weights_of_large_scores(make: Any, dtype: torch.dtype) -> None:
    near(weights_of([1e8, 0], make(), dtype), [1, 0], 1e-6)
    near(weights_of([1e8, 1e8], make(), dtype), [0.5, 0.5], 1e-6)
    near(weights_of([1e30, 1e30, -1e30], make(), dtype), [0.5, 0.5, 0], 1e-6)


@each_dtype
def test_entmax_of_low_scores(dtype: torch.dtype) -> None:
    for scores, expected in (([-1000, -1000, -1016], [0.5, 0.5, 0]), ([-1000, -INF], [1, 0]), ([0, 0, 9], [0, 0, 1])):
        near(weights_of(scores, ad.Entmax15(), dtype), expected, room_of(dtype))


@pytest.mark.parametrize("rows", [31, 32, 33, 40, 1000])
@pytest.mark.parametrize("make", [ad.Sparsemax, ad.Entmax15])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_support_larger_than_the_rows_that_are_kept(make: Any, rows: int, dtype: torch.dtype) -> None:
    """Equal scores keep all rows; one row a little above keeps its lead."""
    near(weights_of([3.0] * rows, make(), dtype), [1 / rows] * rows, room_of(dtype))
    weights = weights_of([3.0] * (rows - 1) + [3.0 + 2**-10], make(), dtype).double()
    assert weights[-1] > weights[0] > 0
    near(weights.sum(), 1.0, room_of(dtype))
    if make is ad.Sparsemax:
        near(weights[-1] - weights[0], 2.0**-10, room_of(dtype))


def test_softmax_of_the_limit() -> None:
    near(weights_of([0, 0, 1], ad.Softmax()), [0.2119415576, 0.2119415576, 0.5761168848], 1e-10)


@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-30, 1e-37, 1e-44])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("plan", ["dense", None])
def test_temperature_to_zero_is_the_best_row(temperature: float, dtype: torch.dtype, plan: str | None) -> None:
    weighting = ad.Softmax(temperature)
    near(weights_of([0, 1, 2], weighting, dtype, plan=plan), [0, 0, 1])
    near(weights_of([2, 1, 2], weighting, dtype, plan=plan), [0.5, 0, 0.5])
    near(weights_of([-2, -1, -3], weighting, dtype, plan=plan), [0, 1, 0])
    learned = ad.Softmax(temperature, learn=True)
    near(weights_of([0, 1, 2], learned, dtype, plan=plan), [0, 0, 1])


@pytest.mark.parametrize("temperature", [1e6, 1e30, 1e45, 1e300])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_temperature_to_infinity_is_the_average(temperature: float, dtype: torch.dtype) -> None:
    near(weights_of([0, 1, 2], ad.Softmax(temperature), dtype), [1 / 3] * 3, 1e-6)


@pytest.mark.parametrize("bandwidth", [1e6, 1e30, 1e45, 1e300])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Laplacian, ad.Euclidean, ad.Boxcar, ad.Triangular, ad.Epanechnikov])
@pytest.mark.parametrize("plan", ["dense", None])
def test_bandwidth_to_infinity_is_the_average(score: Any, bandwidth: float, dtype: torch.dtype, plan: str) -> None:
    answer = ad.attend(
        column(5, dtype=dtype), column(0, 1, 2, dtype=dtype), column(1, 2, 6, dtype=dtype), score=score(bandwidth),
        plan=plan,
    )  # fmt: skip
    near(answer.value, [[3.0]], 1e-5)


@pytest.mark.parametrize("bandwidth", [1e-3, 1e-9, 1e-20, 1e-30, 1e-45, 1e-150])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("score", [ad.Gaussian, ad.Laplacian, ad.Euclidean, ad.Boxcar])
def test_bandwidth_to_zero_is_the_equal_rows(score: Any, bandwidth: float, dtype: torch.dtype) -> None:
    """A query that is a stored row gets that row's value, however small the window."""
    keys = column(0, 1, 2, 1, dtype=dtype)
    answer = ad.attend(keys[:2], keys, column(1, 2, 6, 4, dtype=dtype), score=score(bandwidth))
    near(answer.value, [[1.0], [3.0]], 1e-6)


# Ties

TIED = [3.0, 2.0, 3.0, 2.0, 1.0, 1.0]
RANKS = {
    (3.0, 2.0, 3.0, 2.0, 1.0, 1.0): [0, 2, 1, 3, 4, 5],
    (1.0, 2.0, 5.0, 4.0, 5.0): [2, 4, 3, 1, 0],
    (0.0, -0.0, 0.0): [0, 1, 2],
    (7.0, 7.0, 7.0, 7.0): [0, 1, 2, 3],
}


def chosen(scores: Any, weighting: Any, k: int, dtype: torch.dtype, n: int = 1, **options: Any) -> list[list[int]]:
    keys = torch.tensor(scores, dtype=dtype)[:, None]
    queries = torch.ones(n, 1, dtype=dtype)
    answer = ad.attend(queries, keys, torch.ones_like(keys), score=ad.Dot(), weighting=weighting, top=k, **options)
    return answer.top.positions.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("shards", [1, 2, 3, None])
@pytest.mark.parametrize("scores", list(RANKS), ids=str)
def test_ties_go_to_the_lowest_position(scores: tuple[float, ...], shards: int | None, dtype: torch.dtype) -> None:
    ranking = RANKS[scores]
    cut = None if shards is None else (2, -(-len(scores) // shards))
    for n in (1, 5) if shards is None else (5,):
        for k in range(1, len(scores) + 1):
            with cut_into(cut):
                found = [
                    chosen(scores, ad.TopK(k), k, dtype, n),
                    chosen(scores, ad.Softmax(), k, dtype, n),
                    chosen(scores, ad.TopK(k, then=ad.Uniform(), at_least=-9.0), len(scores), dtype, n),
                ]
                if cut is None:
                    found.append(chosen(scores, ad.TopK(k), k, dtype, n, plan="topk"))
                nearest = chosen(scores, ad.Nearest(), 1, dtype, n)
            by_weight = ranking[:k]
            assert found[0] == [by_weight] * n
            assert found[1] == [by_weight] * n
            assert found[2] == [sorted(ranking[:k]) + [-1] * (len(scores) - k)] * n
            assert all(rows == [by_weight] * n for rows in found[3:])
            assert nearest == [[ranking[0]]] * n


def duplicated(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(queries, keys, which distinct row each key is): 50 distinct rows, written many times in a mixed order."""
    generator = torch.Generator().manual_seed(rows + width)
    distinct = torch.randn(50, width, generator=generator).to(dtype)
    which = torch.randint(0, 50, (rows,), generator=generator)
    return torch.randn(19, width, generator=generator).to(dtype), distinct[which], which


@pytest.mark.parametrize("plan", ["topk", "dense", None])
@pytest.mark.parametrize("queries", [1, 19])
@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [
        (40_001, 8, torch.float32),
        (4_099, 33, torch.float64),
        (1_025, 128, torch.float32),
        (997, 17, torch.float64),
        (4_097, 64, torch.float16),
    ],
)
def test_equal_keys_are_scored_equally(rows: int, width: int, dtype: torch.dtype, queries: int, plan: Any) -> None:
    """The rows of the best distinct key come in the order of their positions, and with one weight."""
    q, keys, which = duplicated(rows, width, dtype)
    q = q[:queries]
    answer = ad.attend(q, keys, which[:, None].to(dtype), score=ad.Dot(), weighting=ad.TopK(5), top=5, plan=plan)
    scores = q.double() @ keys.double().T
    best = scores.max(-1).values
    for i in range(queries):
        same = (which == which[scores[i].argmax()]).nonzero()[:5, 0]
        runner_up = scores[i][which != which[same[0]]].max()
        assert best[i] - runner_up > 1e-3, "the case is no clear winner"
        assert answer.top.positions[i].tolist() == same.tolist()
        assert len(answer.top.weights[i].unique()) == 1


@pytest.mark.parametrize("score", [ad.Gaussian(4.0), ad.Euclidean(1.0), ad.Cosine(), ad.Laplacian(4.0)])
@pytest.mark.parametrize("width", [3, 20, 64])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_equal_keys_are_scored_equally_by_other_scores(score: Any, width: int, dtype: torch.dtype) -> None:
    q, keys, which = duplicated(4_099, width, dtype)
    for weighting in (ad.TopK(5), ad.Softmax()):
        answer = ad.attend(q, keys, which[:, None].to(dtype), score=score, weighting=weighting, top=5)
        for i in range(len(q)):
            taken = answer.top.positions[i]
            winner = which[taken[0]]
            assert taken.tolist() == (which == winner).nonzero()[:5, 0].tolist()


def test_equal_keys_have_equal_softmax_weights_in_every_cut() -> None:
    q, keys, which = duplicated(1_025, 33, torch.float32)
    for cut in (None, (19, 100), (7, 333)):
        with cut_into(cut):
            weights = ad.attend(q, keys, torch.ones(1_025, 1), score=ad.Dot()).weights()
        for row in range(50):
            same = weights[:, which == row]
            assert (same == same[:, :1]).all()


# NaN scores


@each_cut
@pytest.mark.parametrize("make", list(EVERY.values()), ids=list(EVERY))
def test_nan_score_is_an_error_that_names_the_pair(make: Any, cut: tuple[int, int] | None) -> None:
    scores = np.array([[1.0], [2.0], [NAN], [3.0], [5.0], [4.0]])
    values = np.arange(6.0)
    weighting = make()
    if isinstance(weighting, ad.Uniform):
        pytest.skip("asks for no scores")
    with cut_into(cut):
        with pytest.raises(ad.MissingValueError, match=r"query 0 and key 2 is NaN"):
            ad.attend([[1.0]], scores, values, score=ad.Dot(), weighting=weighting)
        with pytest.raises(ad.MissingValueError, match=r"query 1 and key 0 is NaN"):
            ad.attend([[1.0], [NAN]], scores[[0, 1]], values[:2], score=ad.Dot(), weighting=weighting)
        hidden = ad.attend([[1.0]], scores, values, score=ad.Dot(), weighting=weighting, where=~np.isnan(scores[:, 0]))
    assert np.isfinite(hidden.value).all()


def test_nan_score_never_ranks_first() -> None:
    scores, allowed = [1.0, 2.0, NAN, 3.0, INF, 4.0], torch.tensor([True, True, False, True, True, True])
    for cut in CUTS:
        with cut_into(cut):
            assert chosen(scores, ad.TopK(2), 2, torch.float64, where=allowed)[0][0] == 4
            picked = weights_of(scores, ad.TopK(2, then=ad.Uniform()), where=allowed)
            assert picked.tolist() == [0, 0, 0, 0, 0.5, 0.5]


@pytest.mark.parametrize("plan", ["dense", "fused", "topk", None])
def test_nan_score_is_an_error_on_every_plan(plan: str | None) -> None:
    weighting = ad.TopK(2) if plan == "topk" else ad.Softmax()
    for q, k in (([[1.0], [NAN]], [[1.0], [2.0]]), ([[1.0], [1.0]], [[1.0], [NAN]])):
        with pytest.raises(ad.InputError, match="NaN"):
            ad.attend(q, k, [1.0, 2.0], score=ad.Dot(), weighting=weighting, plan=plan)


# Merging partial results


@each_weighting
def test_empty_block_is_the_identity_bit_for_bit(make: Any) -> None:
    keys, values = [0.1, 1.3, 2.2, 0.7], [10.0, 20.0, 30.0, 40.0]
    padded_keys = [*keys[:2], 9.0, 9.0, *keys[2:], 9.0, 9.0]
    padded_values = [*values[:2], 7.0, 7.0, *values[2:], 7.0, 7.0]
    allowed = torch.tensor([True, True, False, False, True, True, False, False])
    found = []
    for k, v, where in (
        (keys, values, lambda i, j: (i + j) >= 0),
        (padded_keys, padded_values, lambda i, j: allowed[j] & (i >= 0)),
    ):
        leaves = [column(1, 2, grad=True), column(*k, grad=True), column(*v, grad=True)]
        with block_sizes(queries=2, keys=2):
            answer = ad.attend(*leaves, score=ad.Dot(), weighting=make(), where=where)
        (grad,) = torch.autograd.grad(answer.value.sum(), leaves[2])
        found.append((answer, grad[allowed] if len(k) == 8 else grad))
    if isinstance(make(), ad.Sampled):
        return  # the draw depends on the positions
    assert torch.equal(found[0][0].value, found[1][0].value)
    assert torch.equal(found[0][1], found[1][1])


@each_cut
def test_pieces_give_the_whole(cut: tuple[int, int] | None) -> None:
    leaves = [column(1, grad=True), column(0, 1, 2, grad=True), column(10, 20, 30, grad=True)]
    with cut_into(cut):
        answer = ad.attend(*leaves, score=ad.Dot())
        near(answer.value, [[SEEN]], 1e-15)
        near(answer.weights(), [SOFTMAX], 1e-14)
        far = ad.attend([[1.0]], [[0.0], [1.0], [2.0], [-700.0], [900.0]], [10.0, 20, 30, 40, 50], score=ad.Dot())
        back = ad.attend([[1.0]], [[900.0], [-700.0], [2.0], [1.0], [0.0]], [50.0, 40, 30, 20, 10], score=ad.Dot())
    assert far.value.tolist() == [[50.0]] and back.value.tolist() == [[50.0]]
    near(far.log_normalizer, [900.0])
    (grad,) = torch.autograd.grad(answer.log_normalizer.sum(), leaves[1])
    near(grad, SOFTMAX, 1e-14)


# Second derivatives


@each_cut
@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_second_derivative_of_the_sigmoid(plan: str | None, cut: tuple[int, int] | None) -> None:
    if plan == "fused" and cut:
        pytest.skip("plan fused has no blocks of its own")
    q = column(1, grad=True)
    with cut_into(cut):
        answer = ad.attend(q, column(0, 1), column(0, 1), score=ad.Dot(), plan=plan)
        (first,) = torch.autograd.grad(answer.value.sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), q, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), q)
    s = 1 / (1 + math.exp(-1.0))
    near(first, [[0.1966119332]], 1e-10)
    near(second, [[-0.0908577477]], 1e-10)
    near(third, [[s * (1 - s) * (1 - 6 * s + 6 * s * s)]], 1e-10)


def parameters() -> Iterator[tuple[str, Any, Any]]:
    yield "bilinear", ad.Bilinear(2, 2, learn=True), ad.Softmax()
    yield "additive", ad.Additive(2, 2, 3, learn=True), ad.Softmax()
    for name in ("Gaussian", "Laplacian", "Euclidean", "Triangular", "Epanechnikov"):
        yield name, getattr(ad, name)([2.0, 3.0], learn=True), None
    yield "matrix", ad.Gaussian([[2.0, 0.5], [0.0, 2.0]], learn=True), None
    yield "temperature", ad.Dot(), ad.Softmax(2.0, learn=True)
    yield "top k", ad.Gaussian(2.0, learn=True), ad.TopK(3, then=ad.Softmax(2.0, learn=True))
    yield "sparsemax", ad.Bilinear(2, 2, weight=[[0.1, 0.0], [0.0, 0.1]], learn=True), ad.Sparsemax()


@pytest.mark.parametrize(("name", "score", "weighting"), list(parameters()), ids=[p[0] for p in parameters()])
@pytest.mark.parametrize("cut", [None, (2, 2)])
def test_every_parameter_has_a_gradient_that_is_not_zero(name: str, score: Any, weighting: Any, cut: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, 2, dtype=torch.float64, generator=generator) for n in (4, 5, 5))
    with cut_into(cut):
        answer = ad.attend(q, k, v, score=score, weighting=weighting)
    modules = [m for m in (score, weighting) if m is not None]
    wanted = [p for m in modules for p in m.parameters() if p.requires_grad]
    assert wanted
    for grad in torch.autograd.grad(answer.value.square().sum(), wanted):
        assert grad.any() and torch.isfinite(grad).all()


# Draws


def test_equal_rows_in_half_precision_are_drawn_within_the_table() -> None:
    rows = 50_000
    keys, values = torch.zeros(rows, 1, dtype=torch.float16), torch.arange(rows, dtype=torch.float64)[:, None]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q = torch.ones(100, 1, dtype=dtype)
        answer = ad.attend(q, keys.to(dtype), values, score=ad.Dot(), weighting=ad.Sampled(seed=4))
        drawn = answer.value[:, 0]
        assert (drawn >= 0).all() and (drawn < rows).all()
        assert abs(float(drawn.mean()) / rows - 0.5) < 0.15  # five standard errors of 100 uniform draws
        assert len(drawn.unique()) > 90
        near(answer.log_prob, [-math.log(rows)] * 100, 1e-2 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [((0.0, 0.0), (-0.5, 0.5)), ((2.0, 0.0), (-0.2099871708, 0.2099871708)), ((100.0, 0.0), (0.0, 0.0))],
)
def test_mean_of_the_score_function_gradient(logits: tuple[float, float], expected: tuple[float, float]) -> None:
    """p · (r − E), within five standard errors of 20 000 draws over 20 seeds."""
    rewards = column(1, 3)
    seen = []
    for seed in range(20):
        bias = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        q = torch.zeros(1000, 1, dtype=torch.float64)
        answer = ad.attend(q, column(0, 0), rewards, score=ad.Dot(), bias=bias, weighting=ad.Sampled(seed=seed))
        assert torch.isfinite(answer.log_prob).all() and (answer.log_prob <= 0).all()
        (answer.log_prob * answer.value[:, 0].detach()).mean().backward()
        assert bias.grad is not None
        seen.append(bias.grad.clone())
    assert logits[0] == 100.0 or len({tuple(g.tolist()) for g in seen}) == len(seen), "seeds draw anew"
    near(torch.stack(seen).mean(0), expected, 5 * 1.5 / math.sqrt(20_000))


def test_draws_have_the_softmax_probabilities() -> None:
    q, k = torch.ones(20_000, 1), torch.tensor([[0.0], [1.0], [2.0]])
    values = torch.eye(3)
    drawn = ad.attend(q, k, values, score=ad.Dot(), weighting=ad.Sampled(seed=11)).value.mean(0)
    near(drawn, SOFTMAX, 5 * 0.5 / math.sqrt(20_000))
    doubled = ad.attend(
        q, k, values, score=ad.Dot(), weighting=ad.Sampled(seed=12), key_weights=[2.0, 1.0, 0.0]
    ).value.mean(0)
    near(doubled, [2 / (2 + math.e), math.e / (2 + math.e), 0.0], 5 * 0.5 / math.sqrt(20_000))


def test_masked_rows_are_never_drawn() -> None:
    where = torch.rand(2_000, 7) < 0.3
    values = torch.arange(7.0)[:, None]
    answer = ad.attend(
        torch.ones(2_000, 1),
        torch.linspace(0, 900, 7)[:, None],
        values,
        score=ad.Dot(),
        weighting=ad.Sampled(),
        where=where,
    )
    drawn = answer.value[:, 0].long()
    assert where[~answer.empty].gather(1, drawn[~answer.empty, None]).all()
    assert torch.equal(answer.empty, ~where.any(-1))
    with pytest.raises(ad.MissingValueError, match="NaN"):
        ad.attend(torch.ones(1, 1), torch.full((3, 1), NAN), values[:3], score=ad.Dot(), weighting=ad.Sampled())


# One query alone and in a batch


@pytest.mark.parametrize("score", [ad.ScaledDot(), ad.Gaussian(8.0), ad.Euclidean(1.0), ad.Additive(64, 64, 4)])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: str(d).removeprefix("torch."))
def test_one_query_alone_and_in_a_batch(score: Any, dtype: torch.dtype) -> None:
    """Within 64 machine epsilons of the values' scale; the best rows are the same, but for ties within that."""
    q, k, v = (torch.randn(n, 64, dtype=dtype) for n in (16, 1000, 1000))
    room = 64 * torch.finfo(dtype).eps
    for weighting in (ad.Softmax(), ad.TopK(10)):
        together = ad.attend(q, k, v, score=score, weighting=weighting, top=10)
        batches = ad.attend(q[:, None], k, v, score=score, weighting=weighting, top=10)
        weights = together.weights()
        for i in range(len(q)):
            alone = ad.attend(q[i : i + 1], k, v, score=score, weighting=weighting, top=10)
            for other in (alone.value[0], batches.value[i, 0]):
                assert (other - together.value[i]).abs().max() <= room
            moved = alone.top.positions[0] != together.top.positions[i]
            swapped = weights[i][alone.top.positions[0]] - weights[i][together.top.positions[i]]
            assert not moved.any() or (swapped[moved].abs() <= room).all()


@pytest.mark.parametrize("score", [ad.ScaledDot(), ad.Gaussian(8.0), ad.Laplacian(8.0)])
@pytest.mark.parametrize("weighting", [ad.Softmax(), ad.TopK(5), ad.Sparsemax()])
def test_plan_reproducible_gives_the_same_bits_alone_and_in_any_batch(score: Any, weighting: Any) -> None:
    q, k, v = (torch.randn(n, 24, dtype=torch.float64) for n in (4, 97, 97))

    def ask(queries: Tensor) -> Any:
        return ad.attend(queries, k, v, score=score, weighting=weighting, top=5, plan="reproducible")

    together, batches = ask(q), ask(q[:, None])
    assert together.plan.name == "reproducible"
    for i in range(len(q)):
        for other in (ask(q[i : i + 1]), ask(q[i:])):
            assert torch.equal(other.value[0], together.value[i])
            assert torch.equal(other.top.positions[0], together.top.positions[i])
        assert torch.equal(batches.value[i, 0], together.value[i])
    plain = ad.attend(q, k, v, score=score, weighting=weighting)
    near(together.value, plain.value.numpy(), 1e-12)
