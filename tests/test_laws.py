"""The laws, for every weighting and score of `cases.py`, on tables that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases import SCORES, WEIGHTINGS, ScoreCase, WeightingCase, closeness, normal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attendb as ad
from attendb.plans.cells import block_sizes
from attendb.testing import check_score_laws, check_weighting_laws
from attendb.testing.comparison import close

ATOL = 1e-10
few = settings(max_examples=6, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True, eq=False)
class Table:
    """A small table and its queries; about one query in five may see no row."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    where: Tensor
    cut: tuple[int, int]
    generator: torch.Generator

    @property
    def rows(self) -> int:
        return self.keys.shape[0]


@st.composite
def tables(draw: Callable[..., Any], *, fewest: int = 0) -> Table:
    n, m, d = draw(st.integers(1, 4)), draw(st.integers(fewest, 9)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    where = torch.rand(n, m, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    where[torch.rand(n, generator=generator) < 0.2] = False
    scale = draw(st.sampled_from([0.1, 1.0, 30.0]))
    return Table(
        queries=scale * normal(generator, n, d),
        keys=normal(generator, m, d),
        values=normal(generator, m, 2),
        where=where,
        cut=(draw(st.integers(1, 4)), draw(st.integers(1, 9))),
        generator=generator,
    )


def ask(case: WeightingCase, table: Table, **changes: Any) -> Any:
    """The table asked by this weighting, in blocks of the table's cut."""
    given = {"queries": table.queries, "keys": table.keys, "values": table.values, "where": table.where}
    cut = changes.pop("cut", table.cut)
    given |= changes
    score = closeness if case.needs_nonnegative else ad.Dot()
    with block_sizes(queries=cut[0], keys=cut[1]):
        return ad.attend(**given, score=score, weighting=case.make(), plan="dense", top=3)


def same(got: Any, expected: Any) -> None:
    close(got.value, expected.value, "value", ATOL, ATOL)
    close(got.empty, expected.empty, "empty", 0.0, 0.0)
    if expected.log_normalizer is not None:
        close(got.log_normalizer, expected.log_normalizer, "log_normalizer", ATOL, ATOL)


def each_weighting(test: Any) -> Any:
    return pytest.mark.parametrize("case", WEIGHTINGS, ids=[case.name for case in WEIGHTINGS])(test)


@each_weighting
@few
@given(table=tables(), keys=st.integers(1, 9), queries=st.integers(1, 4))
def test_any_cut_gives_the_same_answer(case: WeightingCase, table: Table, keys: int, queries: int) -> None:
    got, expected = ask(case, table), ask(case, table, cut=(queries, keys))
    same(got, expected)
    close(got.weights(), expected.weights(), "weights", ATOL, ATOL)
    assert torch.equal(got.top.positions, expected.top.positions)
    close(got.top.weights, expected.top.weights, "top.weights", ATOL, ATOL)


@each_weighting
@few
@given(table=tables())
def test_order_of_rows_does_not_matter(case: WeightingCase, table: Table) -> None:
    order = torch.randperm(table.rows, generator=table.generator)
    moved = ask(case, table, keys=table.keys[order], values=table.values[order], where=table.where[:, order])
    still = ask(case, table)
    same(moved, still)
    close(moved.weights(), still.weights()[:, order], "weights", ATOL, ATOL)


@pytest.mark.parametrize(
    "case", [case for case in WEIGHTINGS if not hasattr(case.make(), "select")], ids=lambda case: case.name
)
@few
@given(table=tables(fewest=1), data=st.data())
def test_row_counted_twice_is_the_row_written_twice(case: WeightingCase, table: Table, data: st.DataObject) -> None:
    counts = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=table.rows, max_size=table.rows)))
    rows = torch.repeat_interleave(torch.arange(table.rows), counts)
    written = ask(case, table, keys=table.keys[rows], values=table.values[rows], where=table.where[:, rows])
    same(ask(case, table, key_weights=counts), written)


@each_weighting
@few
@given(table=tables(fewest=1))
def test_row_of_weight_zero_is_an_absent_row(case: WeightingCase, table: Table) -> None:
    keep = torch.rand(table.rows, generator=table.generator) < 0.6
    absent = ask(case, table, keys=table.keys[keep], values=table.values[keep], where=table.where[:, keep])
    for changes in ({"key_weights": keep.double()}, {"where": table.where & keep}):
        answer = ask(case, table, **changes)
        same(answer, absent)
        close(answer.weights()[:, keep], absent.weights(), "weights", ATOL, ATOL)
        assert not answer.weights()[:, ~keep].any()


@each_weighting
@few
@given(table=tables())
def test_weights_reproduce_the_value(case: WeightingCase, table: Table) -> None:
    answer = ask(case, table)
    weights = answer.weights()
    close(weights @ table.values, answer.value, "weights @ values", ATOL, ATOL)
    assert not weights[~table.where].any()
    if case.name not in ("conic", "linear"):
        close(weights.sum(-1), (~answer.empty).double(), "sum of the weights", ATOL, ATOL)
    if case.name != "linear":
        assert (weights >= 0).all()


@each_weighting
@few
@given(table=tables())
def test_convex_weights_keep_the_value_in_the_hull(case: WeightingCase, table: Table) -> None:
    if case.name in ("conic", "linear"):
        values = torch.ones_like(table.values)  # the cone of one direction is its non-negative multiples
        answer = ask(case, table, values=values)
        close(answer.value[:, 0], answer.value[:, 1], "value", ATOL, ATOL)
        assert case.name == "linear" or (answer.value >= 0).all()
        return
    answer = ask(case, table)
    for query in range(table.queries.shape[0]):
        seen = table.values[table.where[query]]
        if answer.empty[query]:
            assert not answer.value[query].any()
        else:
            assert (answer.value[query] >= seen.amin(0) - ATOL).all()
            assert (answer.value[query] <= seen.amax(0) + ATOL).all()


@each_weighting
@few
@given(table=tables(), extra=st.integers(1, 4))
def test_masked_rows_of_nan_change_nothing(case: WeightingCase, table: Table, extra: int) -> None:
    keys, values = (torch.cat([x, x.new_full((extra, x.shape[1]), torch.nan)]) for x in (table.keys, table.values))
    hidden = torch.zeros(table.queries.shape[0], extra, dtype=torch.bool)
    where = torch.cat([table.where, hidden], 1)
    leaves = [x.clone().requires_grad_() for x in (table.queries, keys, values)]
    answer = ask(case, table, queries=leaves[0], keys=leaves[1], values=leaves[2], where=where)
    same(answer, ask(case, table))
    grads = torch.autograd.grad(answer.value.sum(), leaves, allow_unused=True)
    plain = [x.clone().requires_grad_() for x in (table.queries, table.keys, table.values)]
    before = ask(case, table, queries=plain[0], keys=plain[1], values=plain[2])
    wanted = torch.autograd.grad(before.value.sum(), plain, allow_unused=True)
    for got, want in zip(grads, wanted, strict=True):
        if got is not None and want is not None:
            close(got[: want.shape[0]], want, "gradient", ATOL, ATOL)
            assert not got[want.shape[0] :].any()


@each_weighting
def test_weighting_laws(case: WeightingCase) -> None:
    check_weighting_laws(case.make(), nonnegative=case.needs_nonnegative)


def test_weighting_laws_of_sampled() -> None:
    check_weighting_laws(ad.Sampled(seed=2), gradients=False)


def first_rows(columns: Any, rows: int = 4) -> Any:
    if isinstance(columns, dict):
        return {name: first_rows(column) for name, column in columns.items()}
    return columns[:rows]


@pytest.mark.parametrize("case", SCORES, ids=lambda case: case.name)
def test_score_laws(case: ScoreCase) -> None:
    queries, keys = (first_rows(columns) for columns in case.data(seeded(case.name)))
    check_score_laws(case.make(), queries, keys, gradients=case.smooth)


class Forgetful(ad.Softmax):
    """A softmax that breaks a law: merging drops the first state."""

    def merge(self, a: Any, b: Any) -> Any:
        return b

    def absorb(self, state: Any, cell: Any) -> Any:
        return self.lift(cell)


def test_law_checks_reject_a_weighting_that_forgets() -> None:
    with pytest.raises(AssertionError, match="law broken: any cut"):
        check_weighting_laws(Forgetful())


def test_law_checks_reject_a_score_that_looks_at_its_block() -> None:
    def centred(queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ (keys - keys.mean(-2, keepdim=True)).transpose(-1, -2)

    points = normal(seeded("block"), 4, 2)
    with pytest.raises(AssertionError, match="law broken: a pair scores the same"):
        check_score_laws(centred, points, points)


class Detached(torch.nn.Module):
    """A score that loses the gradient of its keys."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.detach().transpose(-1, -2)


def test_law_checks_reject_a_score_without_its_gradient() -> None:
    points = normal(seeded("gradient"), 4, 2)
    with pytest.raises(AssertionError, match="law broken: gradients"):
        check_score_laws(Detached(), points, points + 1)
