"""Every row of `cases.py` against the dense float64 oracle: values, weights, best rows, gradients, masks, plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from cases import (
    BLOCKS,
    CASES,
    DTYPES,
    KEYS,
    QUERIES,
    SCORES,
    VALUE_WIDTH,
    WEIGHTINGS,
    WIDTH,
    Case,
    Dtype,
    ScoreCase,
    WeightingCase,
    multiplicities,
    normal,
    seeded,
)
from torch import Tensor, nn

import attendb as ad
from attendb.plans.cells import block_sizes
from attendb.testing import compare, oracle
from attendb.testing.comparison import close

TOP = 4
DOT = next(score for score in SCORES if score.name == "dot")
FUNCTION = next(score for score in SCORES if score.name == "function")
SMALL_CUT = (3, 4)


def named(cases: list[Any]) -> Any:
    return {"argvalues": cases, "ids": [case.name for case in cases]}


def cut(blocks: tuple[int, int] | None) -> AbstractContextManager[None]:
    return nullcontext() if blocks is None else block_sizes(queries=blocks[0], keys=blocks[1])


def fitting(weighting: WeightingCase) -> Case:
    """The weighting with a score that it can take."""
    return Case(FUNCTION if weighting.needs_nonnegative else DOT, weighting)


EACH_WEIGHTING = [fitting(weighting) for weighting in WEIGHTINGS]


def turn(case: Case, dtype: Dtype = DTYPES[0]) -> tuple[tuple[int, int] | None, ...]:
    """One cut by turns and the engine's own, so that every score and weighting meets every dtype in every cut."""
    weighting = WEIGHTINGS.index(case.weighting) if case.weighting in WEIGHTINGS else 0
    place = SCORES.index(case.score) + weighting + DTYPES.index(dtype)
    return BLOCKS[place % (len(BLOCKS) - 1)], BLOCKS[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.dtype).removeprefix("torch."))
@pytest.mark.parametrize("case", **named(CASES))
def test_values(case: Case, dtype: Dtype) -> None:
    """In float64 in every cut, in the other dtypes by turns."""
    queries, keys, values = case.inputs(dtype.dtype)
    options = case.options()
    expected = oracle(queries, keys, values, **options, top=TOP)
    room = dtype.tolerance * case.weighting.rounding
    for blocks in BLOCKS if dtype.dtype == torch.float64 else turn(case, dtype):
        with cut(blocks):
            answer = ad.attend(queries, keys, values, **options, top=TOP, plan="dense")
            compare(answer, expected, atol=room, rtol=room, weights=blocks is None)


def leaves_of(*columns: Any) -> list[Tensor]:
    """Every tensor in these columns, made a leaf that wants a gradient."""
    found: list[Tensor] = []
    for column in columns:
        parts = column.values() if isinstance(column, dict) else [column]
        found += [part.requires_grad_() for part in parts if isinstance(part, Tensor)]
    return found


def parameters_of(*modules: Any) -> list[Tensor]:
    """Every parameter of score and weighting, frozen or not, made to learn."""
    return [p for module in modules if isinstance(module, nn.Module) for p in module.requires_grad_().parameters()]


def gradients(answer: Any, leaves: list[Tensor], *, again: bool = False) -> list[Tensor]:
    """Gradients of value and log-normaliser together, from fixed cotangents, zeros where there is no path."""
    generator = seeded("cotangent")
    outputs = [x for x in (answer.value, answer.log_normalizer) if x is not None]
    cotangents = [normal(generator, *x.shape).to(x.dtype) for x in outputs]
    pairs = [(x, c) for x, c in zip(outputs, cotangents, strict=True) if x.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(
        [x for x, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True, retain_graph=again
    )
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def compare_gradients(answer: Any, wanted: list[Tensor], leaves: list[Tensor], atol: float = 1e-9) -> None:
    for place, (got, want) in enumerate(zip(gradients(answer, leaves), wanted, strict=True)):
        close(got, want, f"gradient {place} (shape {tuple(want.shape)})", atol, atol)


@pytest.mark.parametrize("case", **named(CASES))
def test_gradients(case: Case) -> None:
    queries, keys, values = case.inputs()
    options = case.options()
    key_weights = multiplicities()
    key_weights[5] = 0.0
    leaves = leaves_of(queries, keys, values, key_weights) + parameters_of(*options.values())
    expected = oracle(queries, keys, values, **options, key_weights=key_weights)
    wanted = gradients(expected, leaves)
    for blocks in turn(case):
        with cut(blocks):
            answer = ad.attend(queries, keys, values, **options, key_weights=key_weights, plan="dense")
            compare(answer, expected, atol=1e-10, rtol=1e-10)
            compare_gradients(answer, wanted, leaves)


@pytest.mark.parametrize("case", **named(EACH_WEIGHTING))
def test_gradient_of_all_weights(case: Case) -> None:
    queries, keys, values = case.inputs()
    options = case.options()
    leaves = leaves_of(queries, keys, values) + parameters_of(*options.values())
    expected = oracle(queries, keys, values, **options)
    with cut(SMALL_CUT):
        weights = ad.attend(queries, keys, values, **options).weights()
    for got, want in zip(*(weight_gradients(w, leaves) for w in (weights, expected.weights)), strict=True):
        close(got, want, "gradient of weights()", 1e-9, 1e-9)


def weight_gradients(weights: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not weights.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    cotangent = torch.randn(weights.shape, dtype=weights.dtype, generator=seeded("weights"))
    found = torch.autograd.grad(weights, leaves, cotangent, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def masks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every kind of mask and additive term; query 1 sees nothing."""
    some = torch.rand(QUERIES, KEYS, generator=seeded("where")) < 0.6
    some[1] = False
    added = normal(seeded("bias"), QUERIES, KEYS).abs()
    excluded = torch.tensor([3, -1, 0, KEYS - 1, 7])
    yield "where, an array", {"where": some}
    yield "where, one row for all queries", {"where": some[0]}
    yield "where, one column for all keys", {"where": some[:, :1]}
    yield "where, a function", {"where": lambda i, j: (i + j) % 3 > 0}
    yield "bias, an array", {"bias": added}
    yield "bias, one row", {"bias": added[0]}
    yield "bias, a function", {"bias": lambda i, j: 0.1 * (i * j % 4)}
    yield "exclude", {"exclude": excluded}
    yield "all at once", {"where": some, "bias": added, "exclude": excluded, "key_weights": torch.arange(KEYS) % 3}


@pytest.mark.parametrize(("mask", "given"), list(masks()), ids=[name for name, _ in masks()])
@pytest.mark.parametrize("case", **named(EACH_WEIGHTING))
def test_masks(case: Case, mask: str, given: dict[str, Any]) -> None:
    queries, keys, values = case.inputs()
    given = {name: x.clone() if isinstance(x, Tensor) else x for name, x in given.items()}
    options = {**case.options(), **given}
    bias = given.get("bias")
    leaves = leaves_of(queries, keys, values, bias) + parameters_of(options["score"], options["weighting"])
    expected = oracle(queries, keys, values, **options, top=TOP)
    wanted = gradients(expected, leaves)
    for blocks in (SMALL_CUT, None):
        with cut(blocks):
            answer = ad.attend(queries, keys, values, **options, top=TOP)
            compare(answer, expected, atol=1e-10, rtol=1e-10, weights=True)
            compare_gradients(answer, wanted, leaves)


BATCHES = {
    "equal batches": ((2, 3), (2, 3), (2, 3)),
    "keys shared": ((2, 3), (), ()),
    "heads": ((2, 1), (1, 3), (1, 3)),
    "values alone have a batch": ((), (), (2,)),
    "keys alone have a batch": ((), (2,), ()),
    "an axis of 1": ((2,), (1,), ()),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", **named(EACH_WEIGHTING))
def test_batch_axes_broadcast(case: Case, batch: str) -> None:
    generator = seeded(batch)
    shapes = zip(BATCHES[batch], ((QUERIES, WIDTH), (KEYS, WIDTH), (KEYS, VALUE_WIDTH)), strict=True)
    queries, keys, values = (normal(generator, *lead, *shape) for lead, shape in shapes)
    options = case.options()
    key_weights = multiplicities()
    leaves = leaves_of(queries, keys, values, key_weights) + parameters_of(*options.values())
    expected = oracle(queries, keys, values, **options, key_weights=key_weights, top=TOP)
    wanted = gradients(expected, leaves)
    for blocks in (SMALL_CUT, None):
        with cut(blocks):
            answer = ad.attend(queries, keys, values, **options, key_weights=key_weights, top=TOP)
            compare(answer, expected, atol=1e-10, rtol=1e-10, weights=True)
            compare_gradients(answer, wanted, leaves)


@pytest.mark.parametrize("case", **named(EACH_WEIGHTING))
def test_batch_axes_of_masks(case: Case) -> None:
    """Masks, terms, multiplicities and exclusions with batch axes of their own."""
    generator = seeded(case.name)
    queries, keys = normal(generator, 2, 1, QUERIES, WIDTH), normal(generator, KEYS, WIDTH)
    values = normal(generator, 3, KEYS, VALUE_WIDTH)
    given: dict[str, Any] = {
        "where": torch.rand(3, QUERIES, KEYS, generator=generator) < 0.7,
        "bias": normal(generator, 2, 1, 1, KEYS).abs(),
        "key_weights": torch.randint(0, 3, (3, KEYS), generator=generator).double(),
        "exclude": torch.randint(-1, KEYS, (2, 1, QUERIES), generator=generator),
    }
    options = {**case.options(), **given}
    leaves = leaves_of(queries, keys, values, given["bias"], given["key_weights"])
    expected = oracle(queries, keys, values, **options, top=TOP)
    wanted = gradients(expected, leaves)
    for blocks in (SMALL_CUT, None):
        with cut(blocks):
            answer = ad.attend(queries, keys, values, **options, top=TOP)
            compare(answer, expected, atol=1e-10, rtol=1e-10, weights=True)
            compare_gradients(answer, wanted, leaves)


FUSED = [
    score for score in SCORES if score.name.split(",")[0] in ("dot", "scaled dot", "cosine", "bilinear", "gaussian")
]
SOFTMAXES = [weighting for weighting in WEIGHTINGS if weighting.name.startswith("softmax")]
SELECTING = [weighting for weighting in WEIGHTINGS if weighting.name.startswith(("top", "nearest"))]
FORCED = [("fused", Case(score, weighting)) for score in FUSED for weighting in SOFTMAXES]
FORCED += [
    ("topk", Case(score, weighting))
    for score in FUSED
    for weighting in SELECTING
    if not weighting.needs_nonnegative and not score.name.startswith("gaussian")  # ordered by differences only
]


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda d: str(d.dtype).removeprefix("torch."))
@pytest.mark.parametrize(("plan", "case"), FORCED, ids=[f"{plan}: {case.name}" for plan, case in FORCED])
def test_plans_forced_by_name(plan: str, case: Case, dtype: Dtype) -> None:
    queries, keys, values = case.inputs(dtype.dtype)
    where = torch.rand(KEYS, generator=seeded("where")) < 0.8
    key_weights = multiplicities().to(dtype.dtype)
    room = 4 * dtype.tolerance * case.weighting.rounding
    double = [x.double() for x in (queries, keys, values, key_weights)]
    leaves, wide = leaves_of(queries, keys, values, key_weights), leaves_of(*double)
    options = case.options()
    expected = oracle(*double[:3], **options, key_weights=double[3], where=where)
    answer = ad.attend(queries, keys, values, **options, key_weights=key_weights, where=where, plan=plan)
    assert answer.plan.name == plan
    compare(answer, expected, atol=room, rtol=room, weights=True)
    compare_gradients(answer, gradients(expected, wide), leaves, atol=100 * room)


@pytest.mark.parametrize("case", **named([Case(score, SOFTMAXES[1]) for score in FUSED]))
def test_fused_learns_parameters(case: Case) -> None:
    queries, keys, values = case.inputs()
    options = case.options()
    leaves = leaves_of(queries, keys, values) + parameters_of(*options.values())
    expected = oracle(queries, keys, values, **options)
    answer = ad.attend(queries, keys, values, **options, plan="fused")
    compare(answer, expected, atol=1e-10, rtol=1e-10)
    compare_gradients(answer, gradients(expected, leaves), leaves)


@pytest.mark.parametrize("case", **named(EACH_WEIGHTING))
def test_more_pairs_than_one_cell_holds(case: Case) -> None:
    """Cut by the engine itself. The scores are close together, so that sparse weights have more rows than 32."""
    generator = seeded(case.name)
    queries, keys = (0.05 * normal(generator, count, WIDTH) for count in (270, 1100))
    values = normal(generator, 1100, VALUE_WIDTH)
    options = case.options()
    leaves = leaves_of(queries, keys, values)
    expected = oracle(queries, keys, values, **options, top=TOP)
    if "sparsemax" in case.name or "entmax" in case.name:
        assert "top" in case.name or ((expected.weights > 0).sum(-1) > 32).any()
    answer = ad.attend(queries, keys, values, **options, top=TOP, plan="dense")
    compare(answer, expected, atol=1e-10, rtol=1e-10, weights=True)
    compare_gradients(answer, gradients(expected, leaves), leaves)


def twice_differentiable() -> Iterator[Case]:
    """Each weighting once, and each smooth score under softmax."""
    yield from (Case(FUNCTION, weighting) for weighting in WEIGHTINGS)
    yield from (Case(score, SOFTMAXES[1]) for score in SCORES if score.has_gradient and score.smooth)


@pytest.mark.parametrize("case", **named(list(twice_differentiable())))
def test_first_and_second_derivatives_by_differences(case: Case) -> None:
    queries, keys, values = case.inputs()
    leaves = leaves_of(queries[2:3].clone(), keys[5:8].clone(), values[5:8].clone())
    leaves += leaves_of(torch.linspace(0.5, 2.0, 3, dtype=torch.float64))
    options = case.options()
    parameters = parameters_of(*options.values())

    def outputs(q: Tensor, k: Tensor, v: Tensor, w: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        with cut((1, 2)):
            answer = ad.attend(q, k, v, **options, key_weights=w)
        total = answer.log_normalizer
        finite = None if total is None else torch.where(answer.empty, 0.0, total)  # −∞ has no differences
        return tuple(x for x in (answer.value, finite) if x is not None and x.requires_grad)

    inputs = (*leaves, *parameters)
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, inputs, fast_mode=True)


def test_queries_keys_and_values_may_be_one_tensor() -> None:
    """Self-attention: the one tensor receives the sum of the three gradients, once, to second order."""
    x = normal(seeded("self"), KEYS, WIDTH).requires_grad_()
    for weighting in (ad.Softmax(), ad.Entmax15(), ad.TopK(3)):
        with cut(SMALL_CUT):
            answer = ad.attend(x, x, x, score=ad.Dot(), weighting=weighting)
        expected = oracle(x, x, x, score=ad.Dot(), weighting=weighting)
        close(*(gradients(y, [x], again=True)[0] for y in (answer, expected)), "gradient", 1e-9, 1e-9)
        seconds = []
        for output in (answer.value, expected.value):
            (first,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
            seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
        close(*seconds, "second derivative", 1e-8, 1e-8)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.dtype).removeprefix("torch."))
def test_sampled_draws_one_allowed_row_whatever_the_blocks(dtype: Dtype) -> None:
    queries, keys, values = Case(DOT, SOFTMAXES[0]).inputs(dtype.dtype)
    where = torch.rand(QUERIES, KEYS, generator=seeded("where")) < 0.6
    where[1] = False
    weighting = ad.Sampled(seed=5)
    expected = oracle(queries, keys, values, score=ad.Dot(), weighting=weighting, where=where)
    drawn = []
    for blocks in BLOCKS:
        with cut(blocks):
            answer = ad.attend(queries, keys, values, score=ad.Dot(), weighting=weighting, where=where, top=1)
            compare_normalizer(answer, expected, dtype.tolerance)
            one_hot = answer.weights()
        assert ((one_hot == 0) | (one_hot == 1)).all()
        assert (one_hot.sum(-1) == where.any(-1)).all()
        assert not one_hot[~where].any()
        close(answer.value, one_hot.double() @ values.double(), "value", 0.0, 0.0)
        probability = (one_hot.double() * expected.weights).sum(-1)
        shown = torch.where(where.any(-1), answer.log_prob.double().exp(), 0.0)
        close(shown, probability, "exp(log_prob)", dtype.tolerance, dtype.tolerance)
        drawn.append(one_hot)
    assert all(torch.equal(one, drawn[0]) for one in drawn)


def compare_normalizer(answer: Any, expected: Any, room: float) -> None:
    close(answer.log_normalizer, expected.log_normalizer, "log_normalizer", room, room)
    assert torch.equal(answer.empty, expected.empty)


@pytest.mark.parametrize("score", **named([score for score in SCORES if score.has_gradient]))
def test_gradients_in_float32_follow_the_oracle(score: ScoreCase) -> None:
    case = Case(score, SOFTMAXES[0])
    queries, keys, values = case.inputs(torch.float32)
    options = case.options()
    leaves = leaves_of(queries, keys, values)
    answer = ad.attend(queries, keys, values, **options)
    grads = torch.autograd.grad(answer.value.double().sum(), leaves, allow_unused=True)
    widened = [
        {name: part.detach().double() if isinstance(part, Tensor) else part for name, part in x.items()}
        if isinstance(x, dict)
        else x.detach().double()
        for x in (queries, keys, values)
    ]
    wide = leaves_of(*widened)
    expected = oracle(*widened, **options).value
    assert expected is not None
    for got, want in zip(grads, torch.autograd.grad(expected.sum(), wide, allow_unused=True), strict=True):
        assert (got is None) == (want is None) or want is None
        if want is not None:
            close(got, want, "gradient", 5e-5, 5e-5)
