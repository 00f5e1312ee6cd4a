"""The oracle gives numbers computed by hand, and its comparator rejects wrong answers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import attendb as ad
from attendb.testing import OracleAnswer, compare, oracle


def column(*numbers: float, grad: bool = False) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None].requires_grad_(grad)


def known(x: Tensor | None) -> Tensor:
    """The tensor, where it must be there."""
    assert x is not None
    return x


def of_scores(scores: list[float], weighting: Any, values: list[float] | None = None, **options: Any) -> OracleAnswer:
    """The oracle's answer where the scores of one query are given: q = 1, k = score."""
    rows = values if values is not None else [0.0] * len(scores)
    return oracle(column(1.0), column(*scores), column(*rows), score=ad.Dot(), weighting=weighting, **options)


@pytest.fixture
def right() -> OracleAnswer:
    """Three queries: one of distinct weights, one with two tied rows, one with no row."""
    keys = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 5.0]], dtype=torch.float64)
    where = torch.tensor([[True] * 4, [True] * 4, [False] * 4])
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    return oracle(queries, keys, column(10, 20, 30, 40), score=ad.Dot(), where=where, top=4)


def changed(answer: OracleAnswer, field: str, at: tuple[int, ...], by: Any) -> OracleAnswer:
    array = getattr(answer, field).detach().clone()
    array[at] = by(array[at])
    return dataclasses.replace(answer, **{field: array})


def test_comparator_accepts_the_answer_itself(right: OracleAnswer) -> None:
    compare(right, right, weights=True)


@pytest.mark.parametrize(
    ("field", "at", "by", "message"),
    [
        ("value", (0, 0), lambda x: x + 1e-6, r"value\[0, 0\]"),
        ("value", (0, 0), lambda x: x * math.nan, r"value\[0, 0\] is .*nan"),
        ("value", (2, 0), lambda x: x + 1e-6, r"value\[2, 0\]"),
        ("log_normalizer", (1,), lambda x: x + 1e-6, r"log_normalizer\[1\]"),
        ("log_normalizer", (2,), lambda x: x * 0 - 1e30, r"log_normalizer\[2\]"),
        ("log_normalizer", (2,), lambda x: -x, r"log_normalizer\[2\]"),
        ("empty", (0,), lambda x: ~x, "empty"),
        ("empty", (2,), lambda x: ~x, "empty"),
        ("weights", (0, 1), lambda x: x + 1e-6, r"weights\[0, 1\]"),
        ("top_weights", (0, 0), lambda x: x + 1e-6, r"top.weights\[0, 0\]"),
        ("top_positions", (0, 1), lambda x: x - 1, r"top.positions\[0, 1\]"),
        ("top_positions", (0, 3), lambda x: x * 0 - 1, "top.positions"),
        ("top_positions", (2, 0), lambda x: x * 0, "top.positions"),
        ("top_positions", (1, 1), lambda x: x * 0 + 1, "lists a row twice"),
    ],
)
def test_comparator_rejects_one_wrong_number(
    right: OracleAnswer, field: str, at: tuple[int, ...], by: Any, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        compare(changed(right, field, at, by), right, weights=True)


def test_comparator_names_the_worst_entry(right: OracleAnswer) -> None:
    wrong = changed(changed(right, "value", (0, 0), lambda x: x + 1e-6), "value", (1, 0), lambda x: x + 1.0)
    with pytest.raises(AssertionError, match=r"value\[1, 0\] .* 2 of 3 entries"):
        compare(wrong, right)


def test_comparator_accepts_tied_rows_in_either_order(right: OracleAnswer) -> None:
    assert right.top_positions[1].tolist() == [3, 0, 1, 2]  # rows 0 and 1 score the same
    swapped = right.top_positions.clone()
    swapped[1, 1], swapped[1, 2] = 1, 0
    compare(dataclasses.replace(right, top_positions=swapped), right)


def test_comparator_rejects_untied_rows_in_another_order(right: OracleAnswer) -> None:
    swapped = right.top_positions.clone()
    swapped[0, 0], swapped[0, 1] = right.top_positions[0, 1], right.top_positions[0, 0]
    with pytest.raises(AssertionError, match=r"top\.positions"):
        compare(dataclasses.replace(right, top_positions=swapped), right)


def test_comparator_rejects_shapes_and_missing_parts(right: OracleAnswer) -> None:
    with pytest.raises(AssertionError, match="value has shape"):
        compare(dataclasses.replace(right, value=known(right.value)[:2]), right)
    with pytest.raises(AssertionError, match="log_normalizer is None"):
        compare(dataclasses.replace(right, log_normalizer=None), right)
    with pytest.raises(AssertionError, match=r"top\.positions has shape"):
        compare(dataclasses.replace(right, top_positions=right.top_positions[:, :2]), right)


def test_masked_query_is_empty_and_leaves_the_other_gradients_alone() -> None:  # N01
    q, k, v = column(1, 2, grad=True), column(0, 1, 2, grad=True), column(10, 20, 30, grad=True)
    answer = oracle(q, k, v, score=ad.Dot(), where=torch.tensor([[True] * 3, [False] * 3]))
    assert known(answer.value).flatten().tolist() == pytest.approx([25.752103826044415, 0.0], abs=1e-13)
    assert answer.empty.tolist() == [False, True]
    assert known(answer.log_normalizer)[1] == -math.inf
    known(answer.value)[0].sum().backward()
    assert known(v.grad).flatten().tolist() == pytest.approx([0.09003057, 0.24472847, 0.66524096], abs=1e-8)
    assert known(q.grad).flatten().tolist() == pytest.approx([4.2440, 0.0], abs=1e-4)
    assert known(k.grad).flatten().tolist() == pytest.approx([-1.4182, -1.4077, 2.8259], abs=1e-4)


def test_nan_in_a_row_that_nobody_may_see_stays_there() -> None:  # N02
    q, k, v = column(1, grad=True), column(0, math.nan, grad=True), column(5, math.nan, grad=True)
    answer = oracle(q, k, v, score=ad.Gaussian(1.0), where=[True, False])
    assert known(answer.value).item() == 5.0
    grads = torch.autograd.grad(known(answer.value).sum(), (q, k, v))
    assert [grad.isfinite().all().item() for grad in grads] == [True] * 3
    with pytest.raises(ValueError, match="NaN"):
        oracle(q, k, v, score=ad.Gaussian(1.0))


def inverse_distance(queries: Tensor, keys: Tensor) -> Tensor:
    return 1 / (queries[..., :, None, :] - keys[..., None, :, :]).square().sum(-1).sqrt()


def test_infinite_scores_share_the_weight() -> None:  # N05
    top3 = ad.TopK(3, then=ad.Normalized())
    answer = oracle(column(2), column(1, 2, 2, 3), column(1, 2, 6, 3), score=inverse_distance, weighting=top3)
    assert known(answer.value).item() == 4.0
    assert known(answer.log_normalizer).item() == math.inf
    square = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.float64)
    second = oracle(square[:1], square, column(1, 0, 0, 0), score=inverse_distance, weighting=ad.Normalized())
    assert known(second.value).item() == 1.0
    assert of_scores([math.inf, math.inf, 0.0], ad.Softmax()).weights.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("query", [100.0, 1e3, 1e5, 1e7])
def test_far_query_takes_the_nearest_key(query: float) -> None:  # N06
    answer = oracle(column(query), column(0, 1), column(10, 20), score=ad.Gaussian(1.0))
    assert known(answer.value).item() == pytest.approx(20.0, abs=1e-12)
    compact = oracle(column(query), column(0, 1), column(10, 20), score=ad.Boxcar(1.0))
    assert (known(compact.value).item(), compact.empty.item()) == (0.0, True)


@pytest.mark.parametrize(
    ("score", "gradient"),
    [(ad.Gaussian, [1.11798762e-05, 1.49065016e-05]), (ad.Euclidean, [0.003988834, 0.0053184453])],
)
def test_gradient_at_distance_zero(score: Any, gradient: list[float]) -> None:  # N09
    q = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    keys = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    value = oracle(q, keys, column(1, 2), score=score(1.0)).value
    (grad,) = torch.autograd.grad(known(value).sum(), q)
    assert grad.flatten().tolist() == pytest.approx(gradient, rel=1e-7)


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([1e8, 0.0], [1, 0]),
        ([1e8, 1e8], [0.5, 0.5]),
        ([0.5, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]),
        ([1.0, 1.0, 0.0], [0.5, 0.5, 0]),
        ([-math.inf, 0.0], [0, 1]),
    ],
)
def test_sparsemax_by_hand(scores: list[float], weights: list[float]) -> None:  # N14
    assert of_scores(scores, ad.Sparsemax()).weights[0].tolist() == pytest.approx(weights, abs=1e-15)


def test_sparsemax_and_entmax_with_multiplicities() -> None:
    doubled = of_scores([1.0, 0.6, 0.6, 0.1], ad.Sparsemax()).weights[0]
    counted = of_scores([1.0, 0.6, 0.1], ad.Sparsemax(), key_weights=[1, 2, 1]).weights[0]
    assert counted.tolist() == pytest.approx([doubled[0].item(), 2 * doubled[1].item(), doubled[3].item()], abs=1e-15)
    # entmax-1.5 of two scores: y = a/2, (y1 - t)² + (y2 - t)² = 1, solved by hand for a = (1, 0)
    t = 0.25 - math.sqrt(0.5 - 0.0625)
    pair = of_scores([1.0, 0.0], ad.Entmax15()).weights[0]
    assert pair.tolist() == pytest.approx([(0.5 - t) ** 2, t**2], abs=1e-15)


def test_ties_go_to_the_lowest_position() -> None:  # N15
    for k, rows in ((1, [0]), (2, [0, 2]), (3, [0, 2, 1]), (4, [0, 2, 1, 3])):
        answer = of_scores([3, 2, 3, 2, 1, 1], ad.TopK(k), top=k)
        assert answer.top_positions[0].tolist() == rows
    assert of_scores([1, 2, 5, 4, 5], ad.TopK(2), top=3).top_positions[0].tolist() == [2, 4, -1]
    assert of_scores([1, 2, 5, 4, 5], ad.Nearest(), values=[1, 2, 3, 4, 5]).weights[0].tolist() == [0, 0, 1, 0, 0]


def test_one_row_far_above_the_others() -> None:  # N18
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    answer = of_scores([0, 1, 2, -700, 900], ad.Softmax(), values=values)
    assert known(answer.value).item() == pytest.approx(5.0, abs=1e-13)
    assert known(answer.log_normalizer).item() == pytest.approx(900.0, abs=1e-12)
    three = of_scores([0, 1, 2], ad.Softmax(), values=[10, 20, 30])
    assert known(three.value).item() == pytest.approx(25.752103826044415, abs=1e-13)


def test_second_derivative_of_the_sigmoid() -> None:  # N19
    q = column(1, grad=True)
    value = oracle(q, column(0, 1), column(0, 1), score=ad.Dot()).value
    (first,) = torch.autograd.grad(known(value).sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), q)
    assert (first.item(), second.item()) == pytest.approx((0.1966119332, -0.0908577477), abs=1e-10)


class Entmax125(ad.Thresholded):
    """A weighting as a user would write it: the oracle needs nothing but its elementwise function."""

    start = -1.0

    def weight(self, z: Tensor, tau: Tensor) -> Tensor:
        return (z / 4 - tau).clamp(min=0) ** 4


@pytest.mark.parametrize("weighting", [ad.Sparsemax(), ad.Entmax15(), Entmax125()], ids=lambda w: type(w).__name__)
def test_thresholds_are_differentiable_twice(weighting: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    counts = (torch.rand(5, dtype=torch.float64, generator=generator) + 0.5).requires_grad_()
    values = torch.arange(5, dtype=torch.float64)

    def value(scores: Tensor, counts: Tensor) -> Tensor:
        unit = torch.eye(2, dtype=torch.float64)
        answer = oracle(unit, scores.T, values, score=ad.Dot(), weighting=weighting, key_weights=counts)
        assert torch.allclose(answer.weights.sum(-1), torch.ones(2, dtype=torch.float64), atol=1e-14, rtol=0)
        return known(answer.value)

    assert torch.autograd.gradcheck(value, (scores, counts))
    assert torch.autograd.gradgradcheck(value, (scores, counts))


def test_negative_scores_are_refused_where_they_make_no_weight() -> None:
    for weighting in (ad.Normalized(), ad.Conic()):
        with pytest.raises(ValueError, match="negative"):
            of_scores([1.0, -1.0], weighting)
    assert of_scores([1.0, -1.0], ad.Linear(), values=[1.0, 5.0]).value == -4.0
