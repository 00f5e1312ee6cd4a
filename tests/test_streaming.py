"""A source that is read block by block gives the answers of the same rows in memory: values, best rows, gradients."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, KEYS, Case, multiplicities, normal, seeded
from torch import Tensor

import attendb as ad
from attendb import streaming
from attendb.plans import best_rows
from attendb.sources.base import Block
from attendb.sources.memory import Memory
from attendb.sources.overlay import Overlay

NUMBERS = [c for c in CASES if c.score.has_gradient and not c.score.name.startswith("per column")]


class Cut(Memory):
    """Rows in memory, handed out as a stored table would: a few at a time, and not in the order of their ids."""

    streamed = True
    rows = 4
    shuffled = 0

    def blocks(
        self, values: Sequence[str] | None = None, where: str | None = None, *, size: int | None = None
    ) -> Iterator[Block]:
        found = list(super().blocks(values, where, size=size or self.rows))
        random.Random(self.shuffled).shuffle(found)
        yield from found


def in_blocks(db: ad.Database, rows: int = 4, shuffled: int = 0) -> ad.Database:
    source = db._source
    assert isinstance(source, Memory)
    (block,) = source.blocks()
    cut = Cut(source.schema, block.keys, block.values, block.positions.numpy())
    cut.rows, cut.shuffled = rows, shuffled
    other = ad.Database(keys=[1.0], values=[1.0])
    other._source = cut
    return other


def same(found: Any, expected: Any, tolerance: float = 1e-11) -> None:
    if expected is None:
        assert found is None
        return
    found, expected = (np.asarray(x.detach() if isinstance(x, Tensor) else x) for x in (found, expected))
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.dtype == object:
        assert (found == expected).all()
    else:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_the_comparison_rejects_another_answer() -> None:
    with pytest.raises(AssertionError):
        same(np.ones(3), np.ones(3) + 1e-9)
    with pytest.raises(AssertionError):
        same(np.ones(3), np.ones((3, 1)))


def tables(case: Case) -> tuple[Any, ad.Database]:
    queries, keys, values = case.inputs()
    if isinstance(keys, dict):
        queries = {name: part.numpy() if isinstance(part, Tensor) else part for name, part in queries.items()}
        keys = {name: part.numpy() if isinstance(part, Tensor) else part for name, part in keys.items()}
    return queries, ad.Database(keys, values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_score_and_weighting_in_blocks(case: Case) -> None:
    queries, db = tables(case)
    rows = (1, 4, 11)[CASES.index(case) % 3]  # by turns: each score and each weighting meets all of them
    cut = in_blocks(db, rows, shuffled=rows)
    for options in ({}, {"key_weights": multiplicities()}, {"where": "id <> 3 AND value_0 > -1"}):
        expected = db.attend(queries, top=3, **case.options(), **options)
        found = cut.attend(queries, top=3, **case.options(), **options)
        for name in ("value", "log_normalizer", "empty", "log_prob"):
            same(getattr(found, name), getattr(expected, name))
        assert expected.top is not None and found.top is not None
        same(found.top.weights, expected.top.weights)
        same(found.top.positions, expected.top.positions)
        same(found.weights(), expected.weights())


@pytest.mark.parametrize("case", NUMBERS, ids=lambda case: case.name)
def test_gradients_of_every_score_and_weighting_in_blocks(case: Case) -> None:
    queries, keys, values = case.inputs()
    db = ad.Database(keys, values)
    cut = in_blocks(db, 4, shuffled=1)
    options = case.options()
    for module in options.values():
        if isinstance(module, torch.nn.Module):
            module.requires_grad_()
    given = [queries.clone().requires_grad_(), multiplicities().requires_grad_()]
    bias = normal(seeded("bias " + case.name), queries.shape[0], KEYS)
    given.append((bias.abs() if case.weighting.needs_nonnegative else bias).requires_grad_())
    learned = [p for m in options.values() if isinstance(m, torch.nn.Module) for p in m.parameters()]
    generator = seeded("cotangent " + case.name)
    found: list[list[Tensor | None]] = []
    for table in (db, cut):
        answer = table.attend(given[0], key_weights=given[1], bias=given[2], **options)
        seed = normal(generator.manual_seed(3), *answer.value.shape)
        total = (answer.value * seed).sum()
        if answer.log_normalizer is not None:
            total = total + answer.log_normalizer[~answer.empty].square().sum()
        if not total.requires_grad:
            found.append([])
            continue
        found.append(list(torch.autograd.grad(total, [*given, *learned], allow_unused=True)))
    for one, other in zip(found[1], found[0], strict=True):
        if other is None or not other.abs().sum():
            assert one is None or not one.abs().sum()
        else:
            same(one, other, 1e-9)


def test_queries_that_come_from_the_same_parameter_as_the_score_count_once_on_each_way() -> None:
    generator = seeded("twice")

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = torch.nn.Parameter(normal(generator, 3))

        def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
            return (queries * self.theta) @ keys.transpose(-1, -2)

    scored = Scaled()
    db = ad.Database(normal(generator, KEYS, 3), normal(generator, KEYS, 2))
    grads = []
    for table in (db, in_blocks(db)):
        queries = torch.ones(4, 3, dtype=torch.float64) * scored.theta
        (grad,) = torch.autograd.grad(table.attend(queries, score=scored).value.square().sum(), [scored.theta])
        grads.append(grad)
    same(grads[1], grads[0])


def test_columns_of_tensors_carry_gradients() -> None:
    generator = seeded("columns")
    keys = {"x": normal(generator, 9, 1).numpy(), "name": [f"key {i % 4}" for i in range(9)]}
    db = ad.Database(keys, {"y": normal(generator, 9, 2).numpy()})
    score = ad.PerColumn({"x": ad.Gaussian(0.7, learn=True), "name": ad.EditSimilarity()}, learn=True)
    found = []
    for table in (db, in_blocks(db, 2, shuffled=5)):
        x = normal(generator.manual_seed(1), 3, 1).requires_grad_()
        answer = table.attend({"x": x, "name": ["key 1", "kay 2", "lock"]}, score=score)
        found.append(torch.autograd.grad(answer.value.square().sum(), [x, *score.parameters()], allow_unused=True))
    for one, other in zip(found[1], found[0], strict=True):
        same(one, other)


@pytest.mark.parametrize("weighting", [ad.Softmax(0.4), ad.Nearest(), ad.TopK(3), ad.Sparsemax(), ad.Exact()])
def test_texts_as_values(weighting: ad.Weighting) -> None:
    keys = [f"key {i}" for i in range(12)]
    db = ad.Database(keys, [f"value {i // 3}" for i in range(12)])
    cut = in_blocks(db, 3, shuffled=2)
    options = {} if isinstance(weighting, ad.Exact) else {"score": ad.EditSimilarity()}
    asked = ["key 11", "kez 4", "value"]
    expected, found = (table.attend(asked, weighting=weighting, **options) for table in (db, cut))
    same(found.value, expected.value)
    a, b = expected.distribution(), found.distribution()
    for i in range(len(asked)):  # the names of rows without weight may be left out
        one, other = (dict(zip(d.names, d.probabilities[i], strict=True)) for d in (a, b))
        assert {name: p for name, p in other.items() if p} == pytest.approx({name: p for name, p in one.items() if p})


def test_sampled_draws_the_same_rows_and_knows_their_probability() -> None:
    generator = seeded("sampled")
    db = ad.Database(normal(generator, 300, 2), normal(generator, 300, 1))
    asked = normal(generator, 40, 2).requires_grad_()
    found = [t.attend(asked, score=ad.Dot(), weighting=ad.Sampled(seed=5)) for t in (db, in_blocks(db, 64, 3))]
    grads = [torch.autograd.grad(answer.log_prob.sum(), [asked])[0] for answer in found]
    for name in ("value", "log_prob", "log_normalizer"):
        same(getattr(found[1], name).detach(), getattr(found[0], name).detach())
    same(grads[1], grads[0], 1e-10)


def test_masks_biases_and_excluded_rows_follow_the_ids() -> None:
    generator = seeded("masks")
    ids = np.array([3, 4, 7, 20, 21, 40, 55, 56, 80])
    db = ad.Database(normal(generator, 9, 2), normal(generator, 9, 1), ids=ids)
    cut = in_blocks(db, 2, shuffled=4)
    asked = normal(generator, 5, 2)
    where = torch.rand(5, 9, generator=generator) > 0.4
    every: list[dict[str, Any]] = [
        {"where": where},
        {"where": where[0]},
        {"where": lambda q, k: (q + k) % 3 != 0},
        {"bias": normal(generator, 5, 9)},
        {"bias": normal(generator, 9)},
        {"bias": lambda q, k: (q - k) / 50},
        {"exclude": torch.tensor([3, -1, 56, 80, 21])},
        {"key_weights": torch.arange(9)},
        {"where": "value > 0", "exclude": torch.tensor([3, -1, 56, 80, 21]), "bias": normal(generator, 5, 9)},
    ]
    for options in every:
        for weighting in (ad.Softmax(), ad.TopK(2), ad.Entmax15()):
            expected, found = (t.attend(asked, weighting=weighting, top=2, **options) for t in (db, cut))
            same(found.value, expected.value)
            same(found.top.positions, expected.top.positions)  # type: ignore[union-attr]
            same(found.weights(), expected.weights())


def test_wrong_options_are_refused_with_the_size_of_the_table() -> None:
    cut = in_blocks(ad.Database([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5), 2)
    with pytest.raises(ad.InputError, match=r"there are 5 keys"):
        cut.attend([1.0], where=np.ones((1, 4), dtype=bool))
    with pytest.raises(ad.InputError, match=r"there are 5 keys"):
        cut.attend([1.0], key_weights=[1.0, 2.0])
    with pytest.raises(ad.NotFoundError, match="the id 9"):
        cut.attend([1.0], exclude=[9])
    with pytest.raises(ad.PlanError, match="no plan"):
        cut.attend([1.0], plan="fast")
    with pytest.raises(ad.PlanError, match="cannot serve"):
        cut.attend([1.0], plan="fused", score=ad.Laplacian(1.0))


def test_rows_that_are_equal_go_to_the_lowest_id_over_all_blocks() -> None:
    generator = seeded("ties")
    rows = (normal(generator, 3, 2) * 100).float().repeat(7, 1)
    db = ad.Database(rows, torch.arange(21.0))
    for score in (ad.Dot(), ad.Gaussian(3.0), ad.Euclidean(), ad.Cosine()):
        for shuffled in range(3):
            for k in (2, 8):
                found = in_blocks(db, 4, shuffled).attend(rows[:3], score=score, weighting=ad.TopK(k), top=k)
                expected = db.attend(rows[:3], score=score, weighting=ad.TopK(k), top=k)
                assert torch.equal(found.top.positions, expected.top.positions)  # type: ignore[union-attr]


def test_a_tolerance_holds_over_all_blocks() -> None:
    generator = seeded("tolerance")
    x = torch.rand(30_000, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(9 * x) + 0.1 * normal(generator, 30_000, 1)
    db = ad.Database(x, y)
    asked = torch.linspace(0.05, 0.95, 2_000, dtype=torch.float64)[:, None]
    exact = db.attend(asked, score=ad.Gaussian(0.01))
    spread = float(y.max() - y.min())
    for tol in (1e-2, 1e-5):
        found = in_blocks(db, 8_000, 1).attend(asked, score=ad.Gaussian(0.01), tol=tol)
        assert found.error_bound.max() <= tol
        assert bool(((found.value - exact.value).abs()[:, 0] <= spread * found.error_bound + 1e-9).all())
        assert bool(((found.log_normalizer - exact.log_normalizer).abs() <= tol).all())


@pytest.mark.parametrize("weighting", [ad.TopK(7), ad.Nearest(), ad.Sampled(seed=3)], ids=lambda w: type(w).__name__)
def test_rows_that_tie_over_blocks_of_any_order_by_compiled_loops(
    weighting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the blocks before have found is a floor for the next: rows that equal it must still be seen."""
    monkeypatch.setattr(best_rows, "FEWEST_PAIRS", 1)
    generator = seeded("ties over blocks")
    keys, queries = (torch.randint(-2, 3, (rows, 3), generator=generator).float() for rows in (400, 20))
    db = ad.Database(keys, torch.arange(400.0))
    for score in (ad.Dot(), lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)):
        expected = db.attend(queries, score=score, weighting=weighting, top=7)
        for rows, shuffled in ((60, 0), (60, 1), (5, 2)):
            found = in_blocks(db, rows, shuffled).attend(queries, score=score, weighting=weighting, top=7)
            assert found.top is not None and expected.top is not None
            assert torch.equal(found.top.positions, expected.top.positions)
            same(found.value, expected.value, 1e-6)


WEIGHTINGS = [ad.Softmax(), ad.TopK(4), ad.Sparsemax(), ad.Uniform(), ad.Linear(), ad.Nearest()]


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=repr)
@pytest.mark.parametrize("where", [None, "y > 0"])
def test_rows_that_learn_get_the_gradients_of_a_table_in_memory(weighting: ad.Weighting, where: str | None) -> None:
    generator = seeded("overlay")
    keys, values = normal(generator, 13, 2), normal(generator, 13, 1)
    stored = in_blocks(ad.Database({"x": keys}, {"y": values}), 3, shuffled=2)
    rows = torch.tensor([1, 4, 5, 12])
    own = [x[rows].clone().requires_grad_() for x in (keys, values)]
    learning = ad.Database(keys=[1.0], values=[1.0])
    learning._source = Overlay(stored._source, rows, {"x": own[0]}, {"y": own[1]})
    every = [x.clone().requires_grad_() for x in (keys, values)]
    asked = normal(generator, 5, 2)
    mask = torch.ones(13, dtype=torch.bool) if where is None else values[:, 0] > 0
    found = learning.attend({"x": asked}, weighting=weighting, where=where, top=2)
    expected = ad.attend(asked, *every, weighting=weighting, where=mask, top=2)
    same(found.value, expected.value)
    same(found.top.positions, expected.top.positions)  # type: ignore[union-attr]
    grads = torch.autograd.grad(found.value.square().sum(), own, allow_unused=True)
    wanted = torch.autograd.grad(expected.value.square().sum(), every, allow_unused=True)
    for grad, other in zip(grads, wanted, strict=True):
        none = torch.zeros(())
        same(none if grad is None else grad, none if other is None else other[rows])


def test_wide_blocks_are_embedded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE_BYTES", 8 * 20 * 7)  # seven rows
    generator = seeded("pieces")
    keys, values, asked = normal(generator, 50, 20), normal(generator, 50, 1), normal(generator, 6, 20)
    db = ad.Database(keys, values)
    for options in ({}, {"weighting": ad.TopK(5)}, {"weighting": ad.Sparsemax()}):
        found, expected = [], []
        for table, out in ((in_blocks(db, 23, 1), found), (db, expected)):
            given = asked.clone().requires_grad_()
            answer = table.attend(given, score=ad.Gaussian(3.0), top=3, **options)
            out += [answer.value, answer.top.positions, *torch.autograd.grad(answer.value.sum(), [given])]
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    assert "50 rows read in 9 blocks" in str(in_blocks(db, 23).attend(asked, score=ad.Gaussian(3.0)).plan)
    assert "50 rows read in 3 blocks" in str(in_blocks(db, 23).attend(asked, score=ad.Dot()).plan)


def test_an_infinite_bias_shares_the_weight_over_blocks() -> None:
    db = ad.Database(torch.zeros(6, 1), torch.arange(6.0))
    bias = torch.tensor([0.0, torch.inf, 0.0, 0.0, torch.inf, torch.inf])
    for table in (db, in_blocks(db, 2, 1)):
        assert table.attend(torch.zeros(1, 1), bias=bias).value.item() == pytest.approx(10 / 3)


def test_large_scores_keep_their_shares_over_blocks() -> None:
    """Folded into one float32 number, log-normalisers of 10⁵ would round shares by parts in a thousand."""
    keys = torch.tensor([[100_000.0], [100_000.25], [99_999.5], [100_000.125]])
    db = ad.Database(keys, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    z = (keys[:, 0] - 1e5).double()
    expected = (torch.softmax(z, 0) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()
    found = in_blocks(db, 1).attend(torch.ones(1, 1), score=ad.Dot(), plan="dense")
    assert found.value.item() == pytest.approx(float(expected), rel=1e-6)


def test_an_empty_table_and_a_filter_that_nothing_passes() -> None:
    db = ad.Database(torch.zeros(4, 2), torch.ones(4, 3))
    cut = in_blocks(db, 2)
    for weighting in (ad.Softmax(), ad.TopK(2), ad.Sparsemax(), ad.Conic()):
        answer = cut.attend(torch.ones(2, 2), weighting=weighting, where="value_0 > 5", top=2)
        assert answer.empty.all() and not answer.value.any() and answer.value.shape == (2, 3)
        assert (answer.top.positions == -1).all()  # type: ignore[union-attr]
    db.delete(ids=[0, 1, 2, 3])
    assert in_blocks(db).attend(torch.ones(2, 2)).empty.all()


def test_second_derivatives_are_refused_with_the_way_out() -> None:
    cut = in_blocks(ad.Database(torch.randn(6, 2), torch.randn(6, 1)), 2)
    asked = torch.randn(3, 2, requires_grad=True)
    with pytest.raises(ad.InputError, match="second derivatives"):
        torch.autograd.grad(cut.attend(asked).value.sum(), [asked], create_graph=True)


def test_the_plan_says_how_many_blocks_and_which_plans() -> None:
    cut = in_blocks(ad.Database(torch.randn(10, 2), torch.randn(10, 1)), 4)
    text = str(cut.attend(torch.randn(3, 2)).plan)
    assert "10 rows read in 3 blocks" in text and "dense" in text
