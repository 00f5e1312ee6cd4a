"""The compiled distances against differences in float64: values, gradients, ties, NaN, threads; and within attend."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import attendb as ad
from attendb.compiled import distances
from attendb.scores import pairwise

INF, NAN = float("inf"), float("nan")
WIDTHS = (1, 2, 3, 4, 5, 16, 33)
each_width = pytest.mark.parametrize("width", WIDTHS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=("float32", "float64"))
SIZES = [((), 1, 1), ((), 1, 2500), ((), 7, 1037), ((3,), 5, 41), ((), 1500, 3)]  # batch, queries, keys


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops at every size that is not empty, cut into threads however small."""
    monkeypatch.setattr(pairwise, "LEAST_WORK", 1)
    monkeypatch.setattr(distances, "WORK_OF_A_THREAD", 1)


def differences(q: Tensor, k: Tensor, power: int) -> Tensor:
    """Σ |q − k|^power in float64."""
    return (q.double()[..., :, None, :] - k.double()[..., None, :, :]).abs().pow(power).sum(-1)


def rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def close(got: Tensor, expected: Tensor, dtype: torch.dtype, terms: int) -> None:
    room = (8 + terms**0.5) * torch.finfo(dtype).eps
    scale = expected[expected.isfinite()].abs().amax() if expected.isfinite().any() else 1.0
    torch.testing.assert_close(got.double(), expected.double(), rtol=room, atol=float(room * scale), equal_nan=True)


@each_dtype
@each_width
@pytest.mark.parametrize(("batch", "n", "m"), SIZES)
def test_values(batch: tuple[int, ...], n: int, m: int, width: int, dtype: torch.dtype, threads: int, always: None):
    q, k = rows((*batch, n, width), dtype), rows((*batch, m, width), dtype)
    close(pairwise.manhattan(q, k), differences(q, k, 1), dtype, width)
    close(pairwise.manhattan(q, k, sign=-1.0), -differences(q, k, 1), dtype, width)
    close(pairwise.squared_distance(q, k), differences(q, k, 2), dtype, width)


@each_dtype
@pytest.mark.parametrize(
    ("of_queries", "of_keys"), [((3,), (1,)), ((1,), (3,)), ((2, 1), (1, 3)), ((2, 3), ()), ((), (2,))]
)
def test_batches_are_broadcast(
    of_queries: tuple[int, ...], of_keys: tuple[int, ...], dtype: torch.dtype, threads: int, always: None
):
    q, k = rows((*of_queries, 6, 5), dtype), rows((*of_keys, 9, 5), dtype)
    given = rows((*torch.broadcast_shapes(of_queries, of_keys), 6, 9), dtype)
    close(pairwise.squared_distance(q, k), differences(q, k, 2), dtype, 5)
    compare_gradients(q, k, given, 1)
    compare_gradients(q, k, given, 2)


def compare_gradients(q: Tensor, k: Tensor, given: Tensor, power: int, sign: float = 1.0) -> None:
    ours, exact = ([x.detach().to(t).requires_grad_() for x in (q, k)] for t in (q.dtype, torch.float64))
    found = pairwise.manhattan(*ours, sign=sign) if power == 1 else pairwise.squared_distance(*ours)
    got = torch.autograd.grad(found, ours, given)
    expected = torch.autograd.grad(sign * differences(*exact, power), exact, given.double())
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape
        close(x, y, q.dtype, given.numel())


@each_dtype
@each_width
@pytest.mark.parametrize(("batch", "n", "m"), SIZES)
def test_gradients(batch: tuple[int, ...], n: int, m: int, width: int, dtype: torch.dtype, threads: int, always: None):
    q, k = rows((*batch, n, width), dtype), rows((*batch, m, width), dtype)
    given = rows((*batch, n, m), dtype)
    compare_gradients(q, k, given, 1)
    compare_gradients(q, k, given, 1, sign=-1.0)
    compare_gradients(q, k, given, 2)


def test_one_gradient_alone(always: None):
    q, k = rows((4, 3), torch.float64), rows((6, 3), torch.float64).requires_grad_()
    (dk,) = torch.autograd.grad(pairwise.manhattan(q, k).sum(), k)
    torch.testing.assert_close(dk, (k[None] - q[:, None]).sign().sum(0))


def test_second_derivatives(always: None):
    q, k = rows((4, 5), torch.float64).requires_grad_(), rows((6, 5), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(pairwise.manhattan, (q, k))
    assert torch.autograd.gradgradcheck(pairwise.manhattan, (q, k))
    assert torch.autograd.gradgradcheck(pairwise.squared_distance, (q, k))


@each_dtype
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1.0, 1e30])
def test_the_gradient_is_the_sign_at_every_size(size: float, dtype: torch.dtype, always: None):
    k = torch.tensor([[size], [0.0], [-size]], dtype=dtype, requires_grad=True)
    q = torch.zeros(1, 1, dtype=dtype, requires_grad=True)
    dq, dk = torch.autograd.grad(pairwise.manhattan(q, k), (q, k), torch.tensor([[1.0, 2.0, 4.0]], dtype=dtype))
    assert dq.item() == 3.0
    assert dk[:, 0].tolist() == [1.0, 0.0, -4.0]


@each_dtype
@each_width
def test_equal_rows_have_distance_0_and_gradient_0(width: int, dtype: torch.dtype, always: None):
    k = rows((300, width), dtype)
    q = k[::7].clone().requires_grad_()
    own = torch.arange(len(q)), torch.arange(0, 300, 7)
    found = pairwise.manhattan(q, k, sign=-1.0)
    assert not found[own].any() and not pairwise.squared_distance(q, k)[own].any()
    (dq,) = torch.autograd.grad(found[own].sum(), q)
    assert not dq.any()


@each_dtype
@each_width
def test_a_distance_has_the_same_bits_wherever_its_pair_lies(
    width: int, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(distances, "WORK_OF_A_THREAD", 1)
    q, key = rows((5, width), dtype), rows((1, width), dtype)
    k = key.expand(1037, width).contiguous()
    for function in (pairwise.manhattan, pairwise.squared_distance):
        seen = []
        for least, n, m in itertools.product((1, 1 << 40), (1, 5), (1, 3, 1037)):
            monkeypatch.setattr(pairwise, "LEAST_WORK", least)
            seen.append(function(q[:n], k[:m]))
        for x in seen:
            assert torch.equal(x, seen[-1][: len(x), :1].expand_as(x))


@each_dtype
def test_infinities_and_nan(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    column = torch.tensor([0.0, 1.0, INF, -INF, NAN, 1e300], dtype=dtype)  # 1e300 is infinite in float32
    q = torch.stack([column, torch.ones_like(column)], -1)
    given = torch.ones(len(q), len(q), dtype=dtype)
    for power, function in ((1, pairwise.manhattan), (2, pairwise.squared_distance)):
        found = []
        for least in (1, 1 << 40):  # the loops, and what small blocks do
            monkeypatch.setattr(pairwise, "LEAST_WORK", least)
            leaves = [q.clone().requires_grad_() for _ in range(2)]
            out = function(*leaves)
            found.append((out, *torch.autograd.grad(out, leaves, given)))
            expected = (q[:, None] - q[None]).abs().pow(power).sum(-1)
            torch.testing.assert_close(out.detach(), expected, equal_nan=True)
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)


@each_dtype
def test_inputs_that_are_not_contiguous(dtype: torch.dtype, threads: int, always: None):
    q, k = rows((5, 40), dtype).T[::2], rows((90, 10), dtype)[::3, ::2]
    assert not q.is_contiguous() and not k.is_contiguous()
    given = rows((1, 1), dtype).expand(20, 30)
    compare_gradients(q, k, given, 1)
    compare_gradients(q, k, given, 2)


@pytest.mark.parametrize(("n", "m", "width"), [(0, 5, 2), (5, 0, 2), (5, 4, 0), (0, 0, 0)])
def test_nothing(n: int, m: int, width: int, always: None):
    q, k = torch.zeros(n, width, requires_grad=True), torch.zeros(m, width, requires_grad=True)
    for function in (pairwise.manhattan, pairwise.squared_distance):
        out = function(q, k)
        assert out.shape == (n, m) and not out.any()
        assert [x.shape for x in torch.autograd.grad(out.sum(), (q, k))] == [q.shape, k.shape]


def test_threads_agree(monkeypatch: pytest.MonkeyPatch):
    q, k, given = rows((300, 16), torch.float32), rows((2000, 16), torch.float32), rows((300, 2000), torch.float32)
    monkeypatch.setattr(distances, "WORK_OF_A_THREAD", 1 << 18)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for a, b, g in ((q, k, given), (k, q, given.T)):  # cut along the keys, and along the queries
                values = pairwise.manhattan(a, b), pairwise.squared_distance(a, b)
                found.append((*values, *distances.manhattan_gradients(a[None], b[None], g[None])))
    finally:
        torch.set_num_threads(before)
    for one, more in ((found[0], found[2::2]), (found[1], found[3::2])):
        for other in more:
            assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
            for x, y in zip(one[2:], other[2:], strict=True):
                torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-3)


SCORES = {
    "Laplacian": lambda: ad.Laplacian(2.0),
    "Euclidean": lambda: ad.Euclidean(1.5),
    "Gaussian": lambda: ad.Gaussian(1.5),
    "Epanechnikov": lambda: ad.Epanechnikov(9.0),
    "Triangular": lambda: ad.Triangular(9.0),
}


def weights_by_formula(name: str, q: Tensor, k: Tensor) -> Tensor:
    if name == "Laplacian":
        return torch.softmax(-differences(q, k, 1) / 2.0, -1)
    squared = differences(q, k, 2)
    if name == "Euclidean":
        return torch.softmax(-squared.sqrt() / 1.5, -1)
    if name == "Gaussian":
        return torch.softmax(-0.5 * squared / 1.5**2, -1)
    kernel = 1 - squared / 81 if name == "Epanechnikov" else 1 - squared.sqrt() / 9
    kernel = kernel.clamp(min=0)
    return kernel / kernel.sum(-1, keepdim=True)


@each_dtype
@pytest.mark.parametrize("name", SCORES)
def test_attend_over_several_blocks(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """300 × 4 000 × 5: two tiles of queries, full blocks of keys by the loops and a last one below the threshold."""
    called = []
    for loop in ("manhattan", "squared_distance"):
        own = getattr(distances, loop)
        monkeypatch.setattr(distances, loop, lambda *a, own=own: called.append(a[1].shape[1]) or own(*a))
    q, k, v = rows((300, 5), dtype), rows((4000, 5), dtype), rows((4000, 2), dtype)
    ours, exact = ([x.detach().to(t).requires_grad_() for x in (q, k, v)] for t in (dtype, torch.float64))
    value = ad.attend(*ours, score=SCORES[name](), plan="dense").value
    expected = weights_by_formula(name, *exact[:2]) @ exact[2]
    room = 1e-10 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(value.double(), expected, rtol=room, atol=room)
    given = rows(tuple(value.shape), dtype)
    got = torch.autograd.grad(value, ours, given)
    for x, y in zip(got, torch.autograd.grad(expected, exact, given.double()), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=room, atol=room * float(y.abs().amax()))
    assert called and max(called) < 4000  # loops, and more than one block


def test_ties_between_blocks_go_to_the_lowest_position():
    """One row thrice: in full blocks, and in a last block that is too small for the loops."""
    torch.manual_seed(1)
    k = torch.randn(4000, 7)
    k[[1000, 3999]] = k[100].clone()
    q = k[100] + torch.randn(300, 7)
    for score in (ad.Laplacian(), ad.Euclidean(), ad.Gaussian()):
        answer = ad.attend(q, k, torch.arange(4000.0), score=score, weighting=ad.TopK(4000), plan="dense", top=4000)
        positions = answer.top.positions
        place = [(positions == row).nonzero()[:, 1] for row in (100, 1000, 3999)]
        assert ((place[0] < place[1]) & (place[1] < place[2])).all()


def test_small_problems_load_no_compiler():
    code = (
        "import sys, torch, attendb as ad; x = torch.randn(50, 8, requires_grad=True); "
        "[ad.attend(x, x, x, score=s).value.sum().backward() for s in (ad.Laplacian(), ad.Euclidean())]; "
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
