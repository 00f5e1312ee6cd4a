"""Shapes, dtypes, memory layouts and missing numbers at the door: what comes in odd comes out as a plain copy does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cases import WORDS, normal, seeded
from torch import Tensor

import attendb as ad
from attendb.plans.cells import block_sizes
from attendb.testing import compare, oracle

NAN = math.nan
WEIGHTINGS: dict[str, Callable[[], Any]] = {
    "softmax": ad.Softmax,
    "normalized": ad.Normalized,
    "conic": ad.Conic,
    "linear": ad.Linear,
    "uniform": ad.Uniform,
    "sparsemax": ad.Sparsemax,
    "entmax15": ad.Entmax15,
    "nearest": ad.Nearest,
    "top 3": lambda: ad.TopK(3),
    "sampled": lambda: ad.Sampled(seed=2),
}
SCORES: dict[str, Callable[[], Any]] = {
    "dot": ad.Dot,
    "scaled dot": ad.ScaledDot,
    "cosine": ad.Cosine,
    "gaussian": lambda: ad.Gaussian(2.0),
    "laplacian": lambda: ad.Laplacian(2.0),
    "euclidean": lambda: ad.Euclidean(2.0),
    "boxcar": lambda: ad.Boxcar(2.0),
    "triangular": lambda: ad.Triangular(3.0),
    "epanechnikov": lambda: ad.Epanechnikov(3.0),
    "equal": ad.Equal,
    "constant": ad.Constant,
}
each_weighting = pytest.mark.parametrize("make", list(WEIGHTINGS.values()), ids=list(WEIGHTINGS))
each_score = pytest.mark.parametrize("score", list(SCORES.values()), ids=list(SCORES))


def positive(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries @ keys.mT).exp()


def numbers(*shape: int, name: str = "numbers") -> np.ndarray:
    return normal(seeded(name), *shape).numpy()


# Nothing of something


@each_weighting
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("m", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_no_keys_and_no_queries(make: Any, kind: Any, m: int, n: int) -> None:
    q, k, v = (kind(numbers(rows, width)) for rows, width in ((n, 2), (m, 2), (m, 3)))
    answer = ad.attend(q, k, v, score=positive, weighting=make(), top=2)
    assert tuple(answer.value.shape) == (n, 3)
    assert tuple(answer.empty.shape) == (n,) and bool((answer.empty == (m == 0)).all())
    assert tuple(answer.weights().shape) == (n, m)
    assert tuple(answer.top.positions.shape) == (n, 2) and tuple(answer.top.captured.shape) == (n,)
    if m == 0:
        assert not answer.value.any() and (answer.top.positions == -1).all() and not answer.top.weights.any()
        if answer.log_normalizer is not None:
            assert (answer.log_normalizer == -math.inf).all()


@each_score
@pytest.mark.parametrize("plan", ["dense", None])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_no_keys_and_no_queries_of_every_score(score: Any, plan: str | None, shape: tuple[int, int]) -> None:
    n, m = shape
    leaves = [torch.randn(rows, 2, requires_grad=True) for rows in (n, m, m)]
    answer = ad.attend(*leaves, score=score(), plan=plan)
    assert answer.value.shape == (n, 2) and not answer.value.any()
    assert answer.weights().shape == (n, m)
    for leaf, grad in zip(leaves, torch.autograd.grad(answer.value.sum(), leaves, allow_unused=True), strict=True):
        assert grad is None or (grad.shape == leaf.shape and not grad.any())


@each_score
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_keys_of_width_zero_are_all_alike(score: Any, dtype: torch.dtype) -> None:
    q, k = torch.zeros(2, 0, dtype=dtype), torch.zeros(4, 0, dtype=dtype)
    v = torch.tensor([[1.0], [2.0], [3.0], [6.0]], dtype=dtype)
    answer = ad.attend(q, k, v, score=score(), weighting=ad.Softmax())
    torch.testing.assert_close(answer.value, torch.full((2, 1), 3.0, dtype=dtype))
    assert answer.weights().shape == (2, 4)


@each_weighting
def test_values_of_width_zero(make: Any) -> None:
    answer = ad.attend(numbers(2, 3), numbers(4, 3), np.zeros((4, 0)), score=positive, weighting=make(), top=1)
    assert answer.value.shape == (2, 0)
    assert answer.weights().shape == (2, 4) and answer.weights().any()


@each_weighting
@pytest.mark.parametrize("batch", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("shared", [True, False])
def test_batch_of_zero(make: Any, batch: tuple[int, ...], shared: bool) -> None:
    lead = () if shared else batch
    leaves = [torch.zeros(*axes, requires_grad=True) for axes in ((*batch, 2, 3), (*lead, 4, 3), (*lead, 4, 1))]
    answer = ad.attend(*leaves, score=positive, weighting=make(), top=2)
    assert answer.value.shape == (*batch, 2, 1) and answer.empty.shape == (*batch, 2)
    assert answer.weights().shape == (*batch, 2, 4) and answer.top.weights.shape == (*batch, 2, 2)
    for leaf, grad in zip(leaves, torch.autograd.grad(answer.value.sum(), leaves, allow_unused=True), strict=True):
        assert grad is None or grad.shape == leaf.shape


def test_one_axis_means_width_one_and_a_wide_key_makes_it_one_query() -> None:
    assert ad.attend([1.0, 2.0], [1.0, 2.0, 3.0], [5.0, 6.0, 7.0]).value.shape == (2, 1)
    assert ad.attend(numbers(3), numbers(4, 3), numbers(4)).value.shape == (1, 1)
    assert ad.attend(torch.zeros(3), torch.zeros(4, 3), torch.zeros(4, 2)).value.shape == (1, 2)


# Memory layouts and dtypes


def layouts() -> Iterator[tuple[str, Callable[[np.ndarray], Any]]]:
    """Ways to hold the same float64 numbers."""

    def embedded(x: np.ndarray) -> np.ndarray:
        big = np.full((2 * x.shape[0], x.shape[1] + 3), 99.0)
        big[::2, 1:-2] = x
        return big[::2, 1:-2]

    def tensor_of_columns(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(x.T)).T

    yield "transposed", lambda x: np.array(x.T).T
    yield "fortran", np.asfortranarray
    yield "every other row", embedded
    yield "reversed", lambda x: np.array(x[::-1, ::-1])[::-1, ::-1]
    yield "big-endian", lambda x: x.astype(">f8")
    yield "read-only", lambda x: np.frombuffer(x.tobytes()).reshape(x.shape)
    yield "objects", lambda x: x.astype(object)
    yield "lists", lambda x: x.tolist()
    yield "tuples", lambda x: tuple(map(tuple, x.tolist()))
    yield "a list of rows", list
    yield "a tensor", lambda x: torch.from_numpy(x.copy())
    yield "a transposed tensor", tensor_of_columns
    yield "a tensor cut from another", lambda x: torch.from_numpy(embedded(x))
    yield "a tensor with a stride", lambda x: torch.from_numpy(x.copy()).repeat_interleave(3, 0)[::3]
    yield "a flipped tensor", lambda x: torch.from_numpy(x.copy()).flip(0).flip(0)


LAYOUTS = dict(layouts())


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("score", [ad.Dot(), ad.Gaussian(2.0), ad.Laplacian(2.0)])
@pytest.mark.parametrize("rows", [33])
def test_layout_does_not_matter(layout: str, score: Any, rows: int) -> None:
    plain = numbers(7, 3, name="q"), numbers(rows, 3, name="k"), numbers(rows, 2, name="v")
    expected = oracle(*plain, score=score)
    held = [LAYOUTS[layout](x) for x in plain]
    for plan in ("dense", None):
        compare(ad.attend(*held, score=score, plan=plan), expected, atol=1e-12, rtol=1e-12, weights=True)
    again = ad.attend(*held, score=score, weighting=ad.TopK(4), top=4)
    compare(again, oracle(*plain, score=score, weighting=ad.TopK(4), top=4), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("plan", ["dense", "fused", None])
@pytest.mark.parametrize("score", [ad.Dot(), ad.Gaussian(2.0)])
def test_expanded_tensors_of_stride_zero(plan: str | None, score: Any) -> None:
    q, k, v = (torch.from_numpy(numbers(*shape)) for shape in ((1, 3), (1, 3), (1, 2)))
    q, v = q.expand(5, 3), v.expand(33, 2)
    k = k.expand(33, 3)
    compare(ad.attend(q, k, v, score=score, plan=plan), oracle(q, k, v, score=score), atol=1e-12, weights=True)
    batch = torch.from_numpy(numbers(1, 33, 3)).expand(4, 33, 3)
    ones = torch.from_numpy(numbers(4, 6, 3))
    answer = ad.attend(ones, batch, batch, score=score, plan=plan)
    compare(answer, oracle(ones, batch, batch, score=score), atol=1e-12, weights=True)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("score", [ad.Dot(), ad.Gaussian(2.0), ad.Laplacian(2.0)])
def test_dtype_of_the_answer_is_that_of_the_inputs(name: str, score: Any) -> None:
    dtype = getattr(torch, name)
    inputs = [torch.from_numpy(numbers(*shape)).to(dtype) for shape in ((4, 3), (33, 3), (33, 2))]
    answer = ad.attend(*inputs, score=score)
    assert answer.value.dtype == answer.log_normalizer.dtype == answer.weights().dtype == dtype
    room = 8 * torch.finfo(dtype).eps
    compare(answer, oracle(*(x.double() for x in inputs), score=score), atol=room, rtol=room, weights=True)
    leaves = [x.clone().requires_grad_() for x in inputs]
    ad.attend(*leaves, score=score).value.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == dtype for leaf in leaves)


def test_mixed_floats_promote() -> None:
    single, double = numbers(4, 3).astype(np.float32), numbers(4, 3)
    assert ad.attend(single, double, single).value.dtype == np.float64
    assert ad.attend(single, single, single).value.dtype == np.float32
    assert ad.attend(single, single, single.astype(np.float16)).value.dtype == np.float32
    assert ad.attend(single, single, np.arange(4)).value.dtype == np.float64
    half = torch.zeros(4, 3, dtype=torch.float16)
    assert ad.attend(half, half, half.bfloat16()).value.dtype == torch.float32
    mixed = ad.attend(single, double, single, score=ad.Gaussian(1.0))
    compare(
        mixed, oracle(single.astype(np.float64), double, single.astype(np.float64), score=ad.Gaussian(1.0)), atol=1e-12
    )


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, bool]
)
def test_whole_numbers_are_computed_in_float64(dtype: Any) -> None:
    x = np.array([[0], [1], [1], [0], [1]]).astype(dtype)
    answer = ad.attend(x[:2], x, x, score=ad.Gaussian(1.0))
    assert answer.value.dtype == np.float64
    compare(answer, oracle(x[:2].astype(float), x.astype(float), x.astype(float), score=ad.Gaussian(1.0)), weights=True)
    large = np.array([[100], [101], [120]]).astype(dtype)  # products and differences of bytes wrap around
    if dtype is not bool:
        spread = ad.attend(large[::-1], large, large, score=ad.Gaussian(20.0))
        floats = large.astype(float)
        compare(spread, oracle(floats[::-1].copy(), floats, floats, score=ad.Gaussian(20.0)), weights=True)


@pytest.mark.parametrize("what", ["queries", "keys", "values"])
@pytest.mark.parametrize("dtype", ["longdouble", "complex64", "M8[s]", "m8[s]", "V4"])
def test_dtype_that_cannot_be_held_is_named(what: str, dtype: str) -> None:
    given = {"queries": np.zeros((2, 1)), "keys": np.zeros((3, 1)), "values": np.zeros((3, 1))}
    given[what] = np.zeros(given[what].shape).astype(dtype) if dtype[0] != "V" else np.zeros(given[what].shape, dtype)
    with pytest.raises(ad.KindError, match=rf"{what} has dtype \S+"):
        ad.attend(**given)


def test_inputs_are_never_written_to() -> None:
    held = [numbers(4, 3), numbers(5, 3), numbers(5, 2)]
    held[1][2] = NAN
    copies = [x.copy() for x in held]
    where = np.array([True, True, False, True, True])
    for score in (ad.Dot(), ad.Gaussian(1.0)):
        ad.attend(*held, score=score, where=where, top=2).weights()
    for now, before in zip(held, copies, strict=True):
        np.testing.assert_array_equal(now, before)


# Masks


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
@pytest.mark.parametrize("dtype", [float, int, np.uint8, np.float32])
def test_true_means_may_attend_and_numbers_are_refused(kind: Any, dtype: Any) -> None:
    zeros = np.zeros((2, 1))
    keep_first = kind(np.array([[True, False]]))
    assert ad.attend([[1.0]], zeros, [7.0, 9.0], where=keep_first).value.tolist() == [[7.0]]
    with pytest.raises(ad.KindError, match=r"where has dtype .* a mask is boolean \(True = may attend\).*bias="):
        ad.attend([[1.0]], zeros, [7.0, 9.0], where=kind(np.array([[1, 0]], dtype=dtype)))
    added = ad.attend([[1.0]], zeros, [0.0, 1.0], bias=kind(np.array([[1, 0]], dtype=dtype))).weights()
    np.testing.assert_allclose(np.asarray(added), [[0.7310585786300049, 0.2689414213699951]], rtol=1e-6)


@pytest.mark.parametrize("mask", [(2, 2), (3, 3), (3,), (4, 2, 3), (2, 1, 3)])
def test_mask_of_a_wrong_shape_names_both_shapes(mask: tuple[int, ...]) -> None:
    q, k = numbers(2, 1), numbers(4, 1)
    with pytest.raises(ad.InputError, match=rf"where has shape {str(mask).replace('(', '.').replace(')', '.')}.*2.*4"):
        ad.attend(q, k, k, where=np.ones(mask, bool))


# Bandwidths


@pytest.mark.parametrize("kernel", [ad.Gaussian, ad.Laplacian, ad.Euclidean, ad.Boxcar, ad.Triangular, ad.Epanechnikov])
def test_forms_of_a_bandwidth(kernel: Any) -> None:
    q, k, v = numbers(5, 3, name="q"), numbers(9, 3, name="k"), numbers(9, name="v")
    expected = ad.attend(q, k, v, score=kernel(2.0)).value
    same = [2, np.float32(2), np.array(2.0), np.array([2]), [2.0], [2.0] * 3, np.full(3, 2), torch.tensor(2.0)]
    for h in same:
        np.testing.assert_allclose(ad.attend(q, k, v, score=kernel(h)).value, expected, rtol=1e-12)
    columns = [0.5, 2.0, 8.0]
    scaled = ad.attend(q / columns, k / columns, v, score=kernel(1.0)).value
    np.testing.assert_allclose(ad.attend(q, k, v, score=kernel(columns)).value, scaled, rtol=1e-9)
    assert ad.attend(q[:, :1], k[:, :1], v, score=kernel([2.0])).value.shape == (5, 1)
    for wrong in ([1.0, 2.0], [1.0] * 4):
        with pytest.raises(ad.InputError, match=rf"bandwidth has length {len(wrong)} but keys have width 3"):
            ad.attend(q, k, v, score=kernel(wrong))
    if kernel is ad.Gaussian:
        with pytest.raises(ad.InputError, match=r"bandwidth has length 2 but keys have width 3"):
            ad.attend(q, k, v, score=kernel(np.eye(2)))
        matrix = ad.attend(q, k, v, score=kernel(np.diag(columns))).value
        np.testing.assert_allclose(matrix, scaled, rtol=1e-9)


@pytest.mark.parametrize("h", [0.1, 1 / 3, 1e-7, [0.1, 0.7]])
def test_given_bandwidth_is_kept_to_the_bit(h: Any) -> None:
    given = np.array(h)
    score = ad.Gaussian(given, learn=True)
    ad.attend(numbers(3, given.size), numbers(4, given.size), numbers(4), score=score)
    assert score.bandwidth.tolist() == given.tolist() and given.tolist() == np.array(h).tolist()


# More rows than there are


@pytest.mark.parametrize("k", [3, 4, 5, 1000])
@pytest.mark.parametrize("cut", [None, (1, 1), (2, 2)])
def test_k_larger_than_the_table_takes_all_rows(k: int, cut: tuple[int, int] | None) -> None:
    keys, values = [[0.0], [1.0], [2.0]], [10.0, 20.0, 30.0]
    with block_sizes(queries=cut[0], keys=cut[1]) if cut else block_sizes(queries=64, keys=64):
        answer = ad.attend([[0.0]], keys, values, score=ad.Dot(), weighting=ad.TopK(k, then=ad.Uniform()), top=5)
        assert answer.value.tolist() == [[20.0]]
        assert answer.top.positions.tolist() == [[0, 1, 2, -1, -1]]
        np.testing.assert_allclose(answer.top.weights, [[1 / 3, 1 / 3, 1 / 3, 0, 0]])
        filtered = ad.attend(
            [[0.0]], keys, values, score=ad.Dot(), weighting=ad.TopK(k, then=ad.Uniform()), where=[[True, False, True]]
        )
        assert filtered.value.tolist() == [[20.0]] and filtered.weights()[0, 1] == 0
        one = ad.attend([[0.0]], keys, values, weighting=ad.TopK(k), where=[[False, False, True]], top=2)
    assert one.value.tolist() == [[30.0]] and one.top.positions.tolist() == [[2, -1]]


def test_last_row_is_never_used_in_place_of_a_missing_one() -> None:
    """−1 is the last row in Python: its value and its gradient must not come in."""
    values = torch.tensor([[1.0], [2.0], [1e30]], requires_grad=True)
    where = torch.tensor([[True, True, False]])
    for weighting in (ad.TopK(3, then=ad.Uniform()), ad.TopK(5), ad.TopK(3, then=ad.Sparsemax())):
        answer = ad.attend(torch.zeros(1, 1), torch.zeros(3, 1), values, weighting=weighting, where=where)
        assert answer.value.tolist() == [[1.5]]
        (grad,) = torch.autograd.grad(answer.value.sum(), values)
        assert grad.flatten().tolist() == [0.5, 0.5, 0.0]


# Broadcast batch axes

BATCHES = {
    "all different": ((2, 5, 3), (1, 4, 3), (4, 1)),
    "two leading axes": ((2, 1, 5, 3), (3, 4, 3), (1, 1, 4, 1)),
    "keys alone": ((5, 3), (2, 4, 3), (4, 1)),
    "values alone": ((5, 3), (4, 3), (2, 4, 1)),
    "queries alone": ((2, 5, 3), (4, 3), (4, 1)),
    "keys and values apart": ((5, 3), (2, 1, 4, 3), (3, 4, 1)),
}


@pytest.mark.parametrize("shapes", list(BATCHES.values()), ids=list(BATCHES))
@pytest.mark.parametrize("plan", ["dense", "fused", None])
@pytest.mark.parametrize("score", [ad.ScaledDot, lambda: ad.Gaussian(1.5), lambda: ad.Laplacian(1.5)])
def test_gradients_have_the_shapes_of_their_inputs(shapes: Any, plan: str | None, score: Any) -> None:
    if plan == "fused" and isinstance(score(), ad.Laplacian):
        pytest.skip("no inner product")
    leaves = [normal(seeded(str(shape)), *shape).requires_grad_() for shape in shapes]
    answer, expected = ad.attend(*leaves, score=score(), plan=plan), oracle(*leaves, score=score())
    compare(answer, expected, weights=True)
    assert expected.value is not None
    first = [torch.autograd.grad(x.square().sum(), leaves, create_graph=True) for x in (answer.value, expected.value)]
    second = [torch.autograd.grad(sum(g.square().sum() for g in grads), leaves) for grads in first]  # type: ignore[arg-type]
    for got, want, leaf in zip((*first[0], *second[0]), (*first[1], *second[1]), (*leaves, *leaves), strict=True):
        assert got.shape == leaf.shape
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@each_weighting
@pytest.mark.parametrize("shapes", list(BATCHES.values()), ids=list(BATCHES))
def test_numpy_and_torch_agree_over_batches(make: Any, shapes: Any) -> None:
    arrays = [numbers(*shape, name=str(shape)) for shape in shapes]
    tensors = [torch.from_numpy(x) for x in arrays]
    a, b = (ad.attend(*inputs, score=positive, weighting=make(), top=2) for inputs in (arrays, tensors))
    assert isinstance(a.value, np.ndarray) and isinstance(b.value, Tensor)
    for x, y in ((a.value, b.value), (a.empty, b.empty), (a.weights(), b.weights()), *zip(a.top, b.top, strict=True)):
        assert isinstance(x, np.ndarray) and isinstance(y, Tensor)
        np.testing.assert_array_equal(x, y.numpy())


# Asking for more


@each_weighting
@pytest.mark.parametrize("options", [{}, {"where": "causal"}, {"exclude": "own"}, {"key_weights": "some"}], ids=str)
@pytest.mark.parametrize("plan", ["dense", None])
def test_asking_for_weights_never_changes_the_answer(make: Any, options: dict[str, str], plan: str | None) -> None:
    q, k, v = numbers(9, 3, name="q"), numbers(9, 3, name="k"), numbers(9, 2, name="v")
    given: dict[str, Any] = {
        "where": np.tril(np.ones((9, 9), bool)),
        "exclude": np.arange(9),
        "key_weights": np.arange(9) % 3,
    }
    given = {name: given[name] for name in options}
    plain = ad.attend(q, k, v, score=positive, weighting=make(), plan=plan, **given)
    before = plain.value.copy()
    weights = plain.weights()
    assert np.array_equal(plain.value, before)
    again = ad.attend(q, k, v, score=positive, weighting=make(), plan=plan, top=4, **given)
    if again.plan.name == plain.plan.name:
        assert np.array_equal(again.value, plain.value)
    np.testing.assert_allclose(again.value, plain.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(weights @ v, plain.value, rtol=1e-12, atol=1e-12)
    if not isinstance(make(), (ad.Conic, ad.Linear)):
        np.testing.assert_allclose(weights.sum(-1), (~plain.empty).astype(float), rtol=1e-12)
    hidden = np.zeros((9, 9), bool)
    if "where" in given:
        hidden = ~given["where"]
    elif "exclude" in given:
        hidden = np.eye(9, dtype=bool)
    elif "key_weights" in given:
        hidden = np.broadcast_to(given["key_weights"] == 0, (9, 9))
    assert not weights[hidden].any()
    listed = again.top.positions >= 0
    found = np.take_along_axis(weights, np.maximum(again.top.positions, 0), -1)
    np.testing.assert_allclose(found[listed], again.top.weights[listed], rtol=1e-9, atol=1e-15)
    assert not np.take_along_axis(hidden, np.maximum(again.top.positions, 0), -1)[listed].any()


@pytest.mark.parametrize("score", [ad.ScaledDot(), ad.Gaussian(1.0)])
def test_weights_of_plan_fused_reproduce_its_answer(score: Any) -> None:
    q, k, v = numbers(9, 3, name="q"), numbers(70, 3, name="k"), numbers(70, 2, name="v")
    answer = ad.attend(q, k, v, score=score, plan="fused")
    np.testing.assert_allclose(answer.weights() @ v, answer.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(answer.weights().sum(-1), 1.0, rtol=1e-12)


# Averages of whole numbers


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_average_of_integers_is_a_float_and_nothing_is_no_sentinel(kind: Any) -> None:
    x, y = kind([[0], [1], [2]]), kind([0, 1, 2])
    answer = ad.attend(kind([[100], [1]]), x, y, score=ad.Boxcar(0.5))
    assert answer.value.flatten().tolist() == [0.0, 1.0] and answer.empty.tolist() == [True, False]
    half = ad.attend(kind([[0.5], [1.0]]), x, y, score=ad.Boxcar(0.5))
    assert half.value.flatten().tolist() == [0.5, 1.0] and not half.empty.any()
    assert "float64" in str(answer.value.dtype) and "float64" in str(half.value.dtype)


@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_large_integers_keep_their_average(plan: str | None) -> None:
    y = np.array([2**52, 2**52 + 2], dtype=np.int64)
    assert ad.attend([[0.0]], [[1.0], [1.0]], y, plan=plan).value.tolist() == [[2.0**52 + 1]]


def test_booleans_average_to_a_share() -> None:
    answer = ad.attend(np.zeros((1, 1)), np.zeros((4, 1)), np.array([True, False, True, True]))
    assert answer.value.tolist() == [[0.75]] and answer.value.dtype == np.float64


# Missing numbers


@each_score
def test_nan_in_a_query_names_the_query(score: Any) -> None:
    if isinstance(score(), ad.Constant):
        assert ad.attend([[NAN]], [[0.0], [1.0]], [2.0, 4.0], score=score()).value.tolist() == [[3.0]]
        return
    queries = numbers(5, 2)
    queries[3, 1] = NAN
    with pytest.raises(ad.MissingValueError, match=r"query 3\b"):
        ad.attend(queries, numbers(40, 2), numbers(40), score=score())


@each_score
@pytest.mark.parametrize("what", ["key", "value"])
def test_nan_in_a_row_names_the_row_and_is_harmless_where_nobody_sees_it(score: Any, what: str) -> None:
    queries, keys, values = numbers(5, 2, name="q"), numbers(40, 2, name="k"), numbers(40, name="v")
    (keys if what == "key" else values)[33] = NAN
    allowed = np.arange(40) != 33
    blind = isinstance(score(), ad.Constant) and what == "key"
    if not blind:
        with pytest.raises(ad.MissingValueError, match=r"(key|row) 33\b"):
            ad.attend(queries, keys, values, score=score(), weighting=ad.Softmax())
    for given in ({"where": allowed}, {"key_weights": allowed.astype(float)}, {"where": np.tile(allowed, (5, 1))}):
        hidden = ad.attend(queries, keys, values, score=score(), **given)
        without = ad.attend(queries, keys[allowed], values[allowed], score=score())
        np.testing.assert_allclose(hidden.value, without.value, rtol=1e-12, atol=1e-12)


def test_nan_that_one_query_may_see_names_that_query() -> None:
    keys = np.array([[0.0], [NAN], [1.0]])
    where = np.array([[True, False, True], [True, False, True], [True, True, True]])
    with pytest.raises(ad.MissingValueError, match=r"query 2 and key 1 is NaN"):
        ad.attend(np.ones((3, 1)), keys, np.ones(3), where=where)


@pytest.mark.parametrize("plan", ["dense", "fused", None])
def test_infinite_value_is_told_or_kept_but_never_nan(plan: str | None) -> None:
    values = np.array([1.0, math.inf, 3.0])
    try:
        answer = ad.attend([[1.0], [2.0]], [[0.0], [1.0], [-800.0]], values, score=ad.Dot(), plan=plan)
    except ad.InputError as error:
        assert "row 1" in str(error) or "infinite" in str(error)
    else:
        assert (answer.value == math.inf).all()


def test_vectors_of_uneven_length_name_the_rows() -> None:
    uneven = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0]]
    for name in ("queries", "keys", "values"):
        given: dict[str, Any] = {"queries": np.ones((3, 3)), "keys": np.ones((3, 3)), "values": np.ones((3, 3))}
        with pytest.raises(ad.InputError, match=rf"{name} has rows of different lengths \(row 2: 1; the others 3\)"):
            ad.attend(**given | {name: uneven})


@pytest.mark.parametrize("cells", [[[NAN]], [[NAN], [NAN]], [[None]], [[None], [None]]])
def test_rows_without_a_number_are_missing(cells: Any) -> None:
    with pytest.raises(ad.MissingValueError, match=r"NaN|missing"):
        ad.attend([[1.0]], cells, [1.0] * len(cells))
    with pytest.raises(ad.MissingValueError, match=r"values"):
        ad.attend([[1.0]], [[1.0]] * len(cells), cells)


# All weights, and what streams instead


@pytest.mark.parametrize(("n", "m", "size"), [(1_000_000, 1_000_000, r"3\.64 TiB"), (70_000, 40_000, r"10\.43 GiB")])
def test_weights_above_the_bound_are_refused_before_allocation(n: int, m: int, size: str) -> None:
    """The question is asked of one query and many rows; the refusal is by arithmetic alone."""
    queries, keys = torch.zeros(n, 0), torch.zeros(m, 0)
    answer = ad.attend(queries, keys, torch.zeros(m, 1), score=ad.Constant(), where=torch.zeros(m, dtype=torch.bool))
    with pytest.raises(ad.TooLargeError, match=rf"the weights of {n} queries and {m} keys need {size}"):
        answer.weights()
    with pytest.raises(ad.TooLargeError, match=rf"{size}"):
        answer.heatmap()


def test_distribution_above_the_bound_is_refused_before_allocation() -> None:
    names = [f"name {i}" for i in range(20_000)]
    queries = np.zeros((20_000, 1))
    with pytest.raises(ad.TooLargeError, match=r"20000 queries over 20000 distinct values needs 2\.98 GiB"):
        ad.attend(queries, np.zeros((20_000, 1)), names)
    best = ad.attend(queries[:3], np.zeros((20_000, 1)), names, weighting=ad.Nearest())
    assert best.value.tolist() == ["name 0"] * 3


def test_best_fuzzy_match_streams() -> None:
    """Every name finds itself among 3 000, in blocks, and the block size does not matter."""
    names = [f"{word} {i}" for i in range(300) for word in WORDS[:10]]
    asked = names[::37]
    expected = np.arange(len(names))[::37]
    for cut in (None, (16, 100)):
        with block_sizes(queries=cut[0], keys=cut[1]) if cut else block_sizes(queries=64, keys=4096):
            answer = ad.attend(asked, names, names, score=ad.EditSimilarity(), weighting=ad.Nearest(), top=1)
        assert answer.value.tolist() == asked
        assert answer.top.positions[:, 0].tolist() == expected.tolist()
