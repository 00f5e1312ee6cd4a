"""The best rows by compiled loops: against sorting, against plan "dense" and against the float64 oracle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import normal, seeded
from test_against_oracle import compare_gradients, gradients, leaves_of
from torch import Tensor

import attendb as ad
from attendb.compiled.best import BestRows, inner_products
from attendb.plans import best_rows
from attendb.testing import compare, oracle
from attendb.testing.comparison import close

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled loops in so many threads, however small the work."""
    monkeypatch.setattr("attendb.compiled.best.PAIRS_PER_THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops for small problems too, in tiles of 7 queries and blocks of 192 rows."""
    monkeypatch.setattr(best_rows, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(best_rows, "QUERIES_AT_ONCE", 7)
    monkeypatch.setattr(best_rows, "SCORES_AT_ONCE", 1)
    monkeypatch.setattr(best_rows, "FEW_QUERIES", 2)


def of_scores(n: int, m: int) -> dict[str, Tensor]:
    """Scores that are easy or hard for a running threshold."""
    generator = seeded("scores")
    some = torch.rand(n, m, generator=generator) < 0.5
    random, few = normal(generator, n, m), torch.randint(0, 3, (n, m), generator=generator).double()
    ascending = torch.arange(m, dtype=torch.float64).expand(n, m)
    return {
        "random": random,
        "ascending": ascending,
        "descending": -ascending,
        "equal": torch.zeros(n, m, dtype=torch.float64),
        "few distinct": few,
        "signed zeros": torch.where(some, 0.0, -0.0).double(),
        "half masked": random.masked_fill(some, -INF),
        "all masked": torch.full((n, m), -INF, dtype=torch.float64),
        "infinite": few.masked_fill(few == 2, INF),
    }


def sorted_stably(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best, rows = (x[:, :k] for x in scores.sort(dim=-1, descending=True, stable=True))
    short = k - best.shape[1]
    best, rows = (torch.nn.functional.pad(x, (0, short), value=fill) for x, fill in ((best, -INF), (rows, -1)))
    return best, rows.masked_fill(best == -INF, -1)


def kept(scores: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    best = BestRows(len(scores), k, scores.dtype)
    for start in range(0, scores.shape[1], block):
        part = scores[:, start : start + block].contiguous()
        best.absorb(part, start, part.shape[1])
    return best.finish()


@pytest.mark.parametrize("block", [1, 64, 333, 5000])
@pytest.mark.parametrize("k", [1, 5, 300, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", list(of_scores(1, 1)))
def test_best_rows_are_those_of_a_stable_sort(name: str, dtype: torch.dtype, k: int, block: int, threads: None) -> None:
    scores = of_scores(3, 1003)[name].to(dtype)
    found, expected = kept(scores, k, block), sorted_stably(scores, k)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", list(of_scores(1, 1)))
def test_rows_below_a_floor_alone_are_left_out(name: str, dtype: torch.dtype, threads: None) -> None:
    scores = of_scores(3, 1003)[name].to(dtype)
    floor = scores.sort(dim=-1, descending=True).values[:, 6]
    best = BestRows(3, 20, dtype, floor)
    best.absorb(scores.contiguous(), 0, 1003)
    found, expected = best.finish(), sorted_stably(scores.masked_fill(scores < floor[:, None], -INF), 20)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_columns_past_the_width_are_not_read() -> None:
    block = torch.tensor([[1.0, 3.0, 9.0, NAN]])
    best = BestRows(1, 2, block.dtype)
    best.absorb(block, 10, 2)
    assert [x.tolist() for x in best.finish()] == [[[3.0, 1.0]], [[11, 10]]]


@pytest.mark.parametrize("place", [0, 1, 70, 129])
def test_nan_is_reported_for_its_query_alone(place: int) -> None:
    scores = of_scores(3, 130)["random"]
    clean = kept(scores, 2, 64)
    scores[1, place] = NAN
    found = kept(scores, 2, 64)
    assert found[0].isnan().any(-1).tolist() == [False, True, False]
    assert torch.equal(found[1][[0, 2]], clean[1][[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("width", [0, 1, 7, 33, 128])
def test_inner_products_score_equal_keys_equally(width: int, dtype: torch.dtype, threads: None) -> None:
    generator = seeded("inner products")
    which = torch.randint(0, 9, (1003,), generator=generator)
    keys, queries = normal(generator, 9, width).to(dtype)[which], normal(generator, 3, width).to(dtype)
    found = keys.new_empty(3, 1003)
    inner_products(queries, keys, found)
    close(found, queries.double() @ keys.double().T, "inner products", *2 * [20 * torch.finfo(dtype).eps])
    assert all(len(found[i, which == row].unique()) == 1 for i in range(3) for row in range(9))


def repeated(n: int, m: int, width: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys of which every second one repeats another, and values."""
    generator = seeded(name)
    keys = normal(generator, m, width)
    keys[::2] = keys[torch.randint(0, m, (len(keys[::2]),), generator=generator)]
    return normal(generator, n, width), keys, normal(generator, m, 2)


def ascending(n: int, m: int, width: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Every row scores better than all before it."""
    queries, _, values = repeated(n, m, width, name)
    return queries.abs() + 0.1, torch.arange(m).double()[:, None].expand(m, width) / m, values


def equal(n: int, m: int, width: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = repeated(n, m, width, name)
    return queries, keys[:1].expand(m, width).contiguous(), values


def given(name: str, n: int, m: int) -> dict[str, Any]:
    """Masks and terms; query 1 of the first sees nothing."""
    generator = seeded(name)
    some = torch.rand(n, m, generator=generator) < 0.6
    some[min(1, n - 1)] = False
    return {
        "nothing": {},
        "where": {"where": some},
        "where, a function": {"where": lambda i, j: (i + j) % 3 > 0},
        "bias": {"bias": normal(generator, n, m)},
        "bias, one row": {"bias": normal(generator, 1, m)},
        "bias, a function": {"bias": lambda i, j: 0.1 * (i * j % 7)},
        "exclude": {"exclude": torch.arange(n) * (m - 1) // n},
        "key weights": {"key_weights": torch.arange(m) % 3},
        "all": {"where": some, "exclude": torch.zeros(n, dtype=torch.int64), "key_weights": 0.5 + torch.rand(m)},
    }[name]


MASKS = ["nothing", "where", "where, a function", "bias", "bias, one row", "bias, a function", "exclude"]
MASKS += ["key weights", "all"]
DATA = [repeated, ascending, equal]
SCORES = [ad.Dot(), ad.ScaledDot(), ad.Cosine(), ad.Bilinear(5, 5, weight=normal(seeded("W"), 5, 5))]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("n", [1, 2, 17])
@pytest.mark.parametrize("weighting", [ad.Nearest(), ad.TopK(5), ad.TopK(1003)], ids=repr)
def test_plan_topk_in_small_blocks(weighting: Any, n: int, mask: str, small: None, threads: None) -> None:
    queries, keys, values = repeated(n, 1001, 5, "small blocks")
    options: dict[str, Any] = {"score": ad.Dot(), "weighting": weighting, "top": 7, **given(mask, n, 1001)}
    answer = ad.attend(queries, keys, values, **options, plan="topk")
    dense = ad.attend(queries, keys, values, **options, plan="dense")
    compare(answer, oracle(queries, keys, values, **options), atol=1e-12, rtol=1e-12)
    assert torch.equal(answer.top.positions, dense.top.positions)


@pytest.mark.parametrize("k", [1, 5, 2000])
@pytest.mark.parametrize("data", DATA, ids=lambda data: data.__name__)
@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_plan_topk_finds_the_rows_of_dense(
    score: Any, data: Callable[..., Any], k: int, dtype: torch.dtype, small: None
) -> None:
    queries, keys, values = (x.to(dtype) for x in data(9, 700, 5, "rows"))
    options: dict[str, Any] = {"score": score, "weighting": ad.TopK(k), "top": k}
    answer = ad.attend(queries, keys, values, **options, plan="topk")
    dense = ad.attend(queries, keys, values, **options, plan="dense")
    assert torch.equal(answer.top.positions, dense.top.positions)
    assert torch.equal(answer.top.weights, dense.top.weights)
    assert torch.equal(answer.value, dense.value)
    assert torch.equal(answer.log_normalizer, dense.log_normalizer)


@pytest.mark.parametrize("lead", [((2, 3), (2, 3)), ((3,), ()), ((2, 1), (1, 3))], ids=str)
def test_plan_topk_with_batch_axes(lead: Any, small: None) -> None:
    generator = seeded("batch")
    queries, keys = normal(generator, *lead[0], 5, 3), normal(generator, *lead[1], 400, 3)
    values = normal(generator, *lead[1], 400, 2)
    options: dict[str, Any] = {"score": ad.Dot(), "weighting": ad.TopK(4), "top": 4}
    answer = ad.attend(queries, keys, values, **options, plan="topk")
    compare(answer, oracle(queries, keys, values, **options), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("plan", ["topk", "dense"])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_reach_the_rows_that_were_read(mask: str, plan: str, small: None) -> None:
    queries, keys, values = repeated(17, 500, 5, "gradients")
    options: dict[str, Any] = {"score": ad.Dot(), "weighting": ad.TopK(5), **given(mask, 17, 500)}
    leaves = leaves_of(queries, keys, values, options.get("bias"))
    answer = ad.attend(queries, keys, values, **options, plan=plan)
    read = gradients(answer, leaves, again=True)[1].abs().sum(-1) > 0
    compare_gradients(answer, gradients(oracle(queries, keys, values, **options), leaves), leaves)
    assert 0 < int(read.sum()) <= 17 * 5


@pytest.mark.parametrize("n", [1, 3, 19])
@pytest.mark.parametrize("width", [8, 33, 100, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_equal_keys_tie_wherever_they_lie_in_a_large_table(dtype: torch.dtype, width: int, n: int) -> None:
    """Several blocks of the sizes that are really used, the last one short."""
    generator = seeded("large")
    m = 2**18 + 77 if n == 1 else 2**17 + 77
    keys, queries = normal(generator, m, width).to(dtype), normal(generator, n, width).to(dtype)
    copies = torch.randperm(m, generator=generator)[:40].sort().values
    keys[copies] = 3 * queries[0] / queries[0].norm() * width**0.5
    answer = ad.attend(queries, keys, torch.ones(m, 1), score=ad.Dot(), weighting=ad.TopK(20), top=20, plan="topk")
    assert answer.top.positions[0].tolist() == copies[:20].tolist()
    assert len(answer.top.weights[0].unique()) == 1
    exact = queries.double() @ keys.double().T
    found = answer.top.positions
    close(exact.gather(-1, found), exact.topk(20).values, "best scores", *2 * [20 * torch.finfo(dtype).eps])
    for rows in found:
        taken = rows[torch.isin(rows, copies)].sort().values
        assert torch.equal(taken, copies[: len(taken)])


def test_nan_is_an_error_that_names_the_pair(small: None) -> None:
    queries, keys, values = repeated(4, 600, 5, "nan")
    keys[333] = NAN
    with pytest.raises(ad.MissingValueError, match="query 0 and key 333 is NaN"):
        ad.attend(queries, keys, values, score=ad.Dot(), weighting=ad.TopK(3), plan="topk")
    seen = torch.arange(600) != 333
    answer = ad.attend(queries, keys, values, score=ad.Dot(), weighting=ad.TopK(3), where=seen[None], plan="topk")
    assert torch.isfinite(answer.value).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("plan", ["fused", "dense"])
@pytest.mark.parametrize("weighting", [ad.Softmax(), ad.Softmax(0.3)], ids=["T = 1", "T = 0.3"])
def test_softmax_over_all_rows_with_its_best_rows(weighting: Any, plan: str, mask: str, small: None) -> None:
    """Value and log-normaliser over all rows, the best rows, their weights and the mass that they capture."""
    queries, keys, values = repeated(17, 601, 5, "softmax")
    options: dict[str, Any] = {"score": ad.ScaledDot(), "weighting": weighting, "top": 5, **given(mask, 17, 601)}
    leaves = leaves_of(queries, keys, values)
    expected = oracle(queries, keys, values, **options)
    answer = ad.attend(queries, keys, values, **options, plan=plan)
    assert answer.plan.name == plan
    compare(answer, expected, atol=1e-10, rtol=1e-10, weights=True)
    close(answer.top.captured, answer.top.weights.sum(-1), "captured mass", 0, 0)
    compare_gradients(answer, gradients(expected, leaves), leaves)
    if plan == "fused":
        bare = ad.attend(queries, keys, values, **{**options, "top": 0}, plan=plan)
        assert torch.equal(answer.value, bare.value)
        assert torch.equal(answer.log_normalizer, bare.log_normalizer)


@pytest.mark.parametrize("top", [1, 4, 900])
def test_softmax_with_its_best_rows_in_float32(top: int, small: None, threads: None) -> None:
    queries, keys, values = (x.float() for x in repeated(17, 601, 5, "float32"))
    options: dict[str, Any] = {"score": ad.Dot(), "top": top}
    answer = ad.attend(queries, keys, values, **options, plan="fused")
    compare(answer, oracle(queries, keys, values, **options), atol=1e-5, rtol=1e-5)


def test_plan_fused_says_why_it_gives_no_best_rows() -> None:
    queries, keys, values = repeated(3, 50, 5, "reasons")
    few = ad.attend(queries, keys, values, score=ad.Dot(), top=2)
    near = ad.attend(queries, keys, values, score=ad.Gaussian(2.0), top=2)
    assert "fewer than 262144 pairs" in dict(few.plan.candidates)["fused"]
    assert "only by differences" in dict(near.plan.candidates)["fused"]


@pytest.mark.parametrize("weighting", [ad.Softmax(), ad.Sparsemax(), ad.TopK(9), ad.Sampled(3)], ids=repr)
@pytest.mark.parametrize("score", [ad.Laplacian(2.0), ad.Euclidean()], ids=repr)
def test_cells_give_the_same_rows_by_compiled_loops(
    score: Any, weighting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys, values = repeated(300, 4000, 3, "cells")
    found = []
    for fewest in (1, 2**60):
        monkeypatch.setattr(best_rows, "FEWEST_PAIRS", fewest)
        found.append(ad.attend(queries, keys, values, score=score, weighting=weighting, top=6, plan="dense"))
    assert torch.equal(found[0].top.positions, found[1].top.positions)
    assert torch.equal(found[0].top.weights, found[1].top.weights)
    assert torch.equal(found[0].value, found[1].value)


def test_the_planner_takes_it_for_large_tables() -> None:
    keys = torch.randn(300_000, 16)
    answer = ad.attend(keys[:2], keys, keys[:, :1], score=ad.Dot(), weighting=ad.TopK(3))
    both = ad.attend(keys[:50], keys, keys[:, :8], score=ad.ScaledDot(), top=3)
    assert (answer.plan.name, both.plan.name) == ("topk", "fused")


def test_compiled_loops_are_not_loaded_before_they_are_needed() -> None:
    script = """
import sys, attendb as ad
ad.attend([[1.0]], [[1.0], [2.0]], [1.0, 2.0], score=ad.Dot(), weighting=ad.TopK(1), top=1)
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
