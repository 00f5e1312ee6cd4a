"""Inputs far from the ordinary: outliers, huge multiplicities, autocast, overflow, hidden numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attendb as ad


def exactly(q: Tensor, k: Tensor, v: Tensor, h: float) -> tuple[Tensor, Tensor]:
    d2 = (q.double()[:, None] - k.double()[None]).square().sum(-1)
    scores = -0.5 * d2 / h**2
    return torch.softmax(scores, -1) @ v.double(), scores.logsumexp(-1)


@pytest.mark.parametrize("far", [0.0, 1e3, 1e5])
def test_a_far_query_does_not_spoil_its_neighbours(far: float) -> None:
    n = 3000
    q, k = torch.rand(n, 2) * 10, torch.rand(n, 2) * 10
    v = k[:, :1].sin()
    if far:
        q[7] = torch.tensor([far, 5.0])
    answer = ad.attend(q, k, v, score=ad.Gaussian(0.2), plan="pruned")
    value, total = exactly(q, k, v, 0.2)
    assert (answer.value - value).abs().max() < 2e-5
    assert ((answer.log_normalizer - total) / total.abs().clamp(min=1)).abs().max() < 2e-5


def test_far_queries_and_keys_keep_their_gradients() -> None:
    q, k = torch.randn(2100, 2), torch.randn(2100, 2)
    q[3], k[5] = torch.tensor([1e5, 0.0]), torch.tensor([0.0, 1e5])
    v = torch.randn(2100, 1)
    grads = []
    for plan, dtype in (("pruned", torch.float32), ("dense", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        loss = ad.attend(*leaves, score=ad.Gaussian(0.3), plan=plan).value.square().sum()
        grads.append(torch.autograd.grad(loss, leaves))
    for got, right in zip(*grads, strict=True):
        assert (got.double() - right).abs().max() < 1e-3 * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("weighting", [ad.Sparsemax(), ad.Entmax15()], ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("many", [1e3, 1e6, 1e8])
def test_a_row_counted_many_times_takes_its_share_and_no_more(weighting: ad.Weighting, many: float) -> None:
    args: Any = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.9], [0.5]]), torch.tensor([1.0, 2.0, 3.0])
    answer = ad.attend(*args, score=ad.Dot(), weighting=weighting, key_weights=torch.tensor([1.0, many, 1.0]))
    weights = answer.weights()
    assert abs(float(weights.sum()) - 1) < 1e-5
    assert 1.89 < float(answer.value) < 2.0 + 1e-5


def test_multiplicities_beyond_float64_are_refused() -> None:
    args: Any = [[1.0]], [[1.0], [0.9]], [1.0, 2.0]
    with pytest.raises(ad.InputError, match=r"key_weights run from 1 to 1e.17"):
        ad.attend(*args, score=ad.Dot(), weighting=ad.Sparsemax(), key_weights=[1.0, 1e17])
    with pytest.raises(ad.InputError, match="key_weights run from"):
        ad.attend(*args, key_weights=[1e-320, 1.0])


def test_tiny_multiplicities_do_not_underflow() -> None:
    q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([1.0, 3.0])
    weights = torch.full((2,), 1e-60, dtype=torch.float64)
    assert float(ad.attend(q, k, v, key_weights=weights).value) == 2.0


@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_autocast_of_the_caller_changes_nothing(plan: str | None) -> None:
    q, k, v = (torch.randn(n, 16, requires_grad=True) for n in (20, 300, 300))
    plain = ad.attend(q, k, v, score=ad.Dot(), plan=plan)
    grads = torch.autograd.grad(plain.value.sum(), (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ad.attend(q, k, v, score=ad.Dot(), plan=plan)
        inside_grads = torch.autograd.grad(inside.value.sum(), (q, k, v))
        nearest = ad.attend(q, k, v, score=ad.Dot(), weighting=ad.Nearest())
        weights = inside.weights()
    assert torch.equal(plain.value, inside.value) and inside.value.dtype == torch.float32
    assert torch.equal(weights, plain.weights())
    assert torch.equal(nearest.value, ad.attend(q, k, v, score=ad.Dot(), weighting=ad.Nearest()).value)
    for a, b in zip(grads, inside_grads, strict=True):
        assert torch.equal(a, b)


def test_masked_arrays_are_missing_numbers() -> None:
    hidden = np.ma.masked_array([1.0, 1e6], mask=[0, 1])
    with pytest.raises(ad.MissingValueError, match="keys has 1 masked numbers"):
        ad.attend([1.0], hidden, [1.0, 99.0], score=ad.Constant())
    with pytest.raises(ad.MissingValueError, match="1 masked numbers"):
        ad.Database(hidden, [1.0, 2.0])


@pytest.mark.parametrize("weighting", [ad.Softmax(), ad.TopK(2)], ids=lambda w: type(w).__name__)
def test_overflowing_inner_products_are_refused(weighting: ad.Weighting) -> None:
    q, k = torch.full((2, 3), 1e25), torch.full((4, 3), 1e25)
    with pytest.raises(ad.InputError, match=r"overflow torch.float32 \(score=Dot\): give float64"):
        ad.attend(q, k, torch.ones(4), score=ad.Dot(), weighting=weighting)
    assert torch.isfinite(ad.attend(q.double(), k, torch.ones(4), score=ad.Dot(), weighting=weighting).value).all()


@pytest.mark.parametrize("h", [1e-200, 1e-300])
def test_a_bandwidth_too_small_to_square_is_refused(h: float) -> None:
    with pytest.raises(ad.InputError, match="more bandwidths apart"):
        ad.attend(torch.tensor([[1.0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]), score=ad.Gaussian(h))


def test_whole_numbers_that_float64_confuses_are_refused_by_equality() -> None:
    keys = np.array([2**53, 2**53 + 1])
    with pytest.raises(ad.InputError, match=r"numbers of 2\^53 or more"):
        ad.attend(keys[1:], keys, np.array([1.0, 2.0]), weighting=ad.Exact())
    assert ad.Database(keys, [1.0, 2.0]).lookup(2**53 + 1) == 2.0


def test_more_top_rows_than_memory_are_refused() -> None:
    with pytest.raises(ad.TooLargeError, match="top=1000000000000 for 1 queries"):
        ad.attend([[1.0]], [[1.0]], [1.0], top=10**12)


def test_odd_tensors_are_refused() -> None:
    with pytest.raises(ad.KindError, match="on the meta device"):
        ad.attend(*(torch.ones(1, 1, device="meta") for _ in range(3)))
    with pytest.raises(ad.InputError, match="too large for float64"):
        ad.attend([[10**400]], [[1.0]], [1.0])


def test_filter_functions_that_make_huge_texts_are_refused() -> None:
    db = ad.Database({"x": [1.0]}, {"y": [1.0]})
    with pytest.raises(ad.InputError):
        db.attend({"x": [1.0]}, score=ad.Gaussian(1.0), where="printf('%1000000000d', 1) > 'a'")
