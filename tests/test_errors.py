"""Every refusal says in one sentence what is wrong, where, what was given, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor

import attendb as ad

NAN, INF = float("nan"), float("inf")
Q = np.array([[0.0, 1.0], [2.0, 0.5]])
K = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
V = np.array([1.0, 2.0, 3.0])
GRAD = torch.ones(2, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Iterator[None]:
    """The types in the signatures are checked in the tests alone: here the library must refuse by itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def ask(**changes: Any) -> Any:
    given: dict[str, Any] = {"queries": Q, "keys": K, "values": V}
    return ad.attend(**(given | changes))


def with_nan(x: np.ndarray, *at: int) -> np.ndarray:
    x = x.copy()
    x[at] = NAN
    return x


def on_meta(x: np.ndarray) -> Tensor:
    return torch.zeros(x.shape, device="meta")


def here(x: np.ndarray) -> Tensor:
    return torch.zeros(x.shape)


Refusal = tuple[str, type[Exception], str, Callable[[], Any]]


def shapes() -> Iterator[Refusal]:
    wide = np.zeros((2, 3))
    yield (
        "widths",
        ad.InputError,
        r"keys have width 2 but queries have width 3 \(score=Dot\): project one of them or use Bilinear\(3, 2\)",
        lambda: ask(queries=wide, score=ad.Dot()),
    )
    yield (
        "widths of Equal",
        ad.InputError,
        r"keys have width 2 but queries have width 3 \(score=Equal\): give queries every column of the keys",
        lambda: ask(queries=wide, score=ad.Equal()),
    )
    yield (
        "width of a parameter",
        ad.InputError,
        r"queries have width 2 but Bilinear was made for width 3.*: .+",
        lambda: ask(score=ad.Bilinear(3, 2)),
    )
    yield (
        "width of a parameter, keys",
        ad.InputError,
        r"keys have width 2 but Additive was made for width 5.*: .+",
        lambda: ask(score=ad.Additive(2, 5, 4)),
    )
    yield (
        "lengths",
        ad.InputError,
        r"keys have 3 rows but values have 2: give every key one value",
        lambda: ask(values=[1.0, 2.0]),
    )
    yield (
        "uneven lists",
        ad.InputError,
        r"keys has rows of different lengths \(row 2: 1; the others 2\): give every row one length",
        lambda: ask(keys=[[1.0, 2.0], [1.0, 2.0], [1.0]]),
    )
    yield (
        "uneven columns",
        ad.InputError,
        r"keys has columns of different lengths \(\{'x': 2, 'y': 3\}\): give every column one length",
        lambda: ask(keys={"x": [1.0, 2.0], "y": [1.0, 2.0, 3.0]}, score=ad.Equal()),
    )
    yield (
        "batch axes",
        ad.InputError,
        r"the batch axes .*\(2,\).*\(3,\).* do not broadcast together.*",
        lambda: ask(queries=np.zeros((2, 1, 2)), keys=np.zeros((3, 3, 2))),
    )
    yield (
        "bandwidth of another length",
        ad.InputError,
        r"bandwidth has length 3 but keys have width 2: give one number, or one for each column",
        lambda: ask(score=ad.Gaussian([1.0, 2.0, 3.0])),
    )
    yield (
        "given parameter",
        ad.InputError,
        r"weight has shape \(2, 2\).*\(3, 2\).*",
        lambda: ad.Bilinear(3, 2, weight=torch.zeros(2, 2)),
    )


def kinds() -> Iterator[Refusal]:
    usual = r"convert it to float64, float32, float16"
    for name in ("queries", "keys", "values"):
        bad = {"queries": Q, "keys": K, "values": V}[name]
        yield (
            f"complex {name}",
            ad.KindError,
            rf"{name} has dtype complex128: {usual}.*",
            lambda name=name, bad=bad: ask(**{name: bad.astype(complex)}),
        )
        yield (
            f"complex tensor {name}",
            ad.KindError,
            rf"{name} has dtype torch.complex64: {usual}.*",
            lambda name=name, bad=bad: ask(**{name: torch.zeros(bad.shape, dtype=torch.complex64)}),
        )
        yield (
            f"dates as {name}",
            ad.KindError,
            rf"{name} has dtype datetime64\[D\]: {usual}.*",
            lambda name=name, bad=bad: ask(**{name: np.zeros(bad.shape, "M8[D]")}),
        )
        yield (
            f"long double {name}",
            ad.KindError,
            rf"{name} has dtype {np.dtype(np.longdouble)}, wider than any tensor: convert it to float64",
            lambda name=name, bad=bad: ask(**{name: bad.astype(np.longdouble)}),
        )
    yield (
        "a list of tensors",
        ad.KindError,
        r"queries is a list of tensors: join them with torch.stack, which keeps their gradients",
        lambda: ask(queries=[torch.zeros(2), torch.zeros(2)]),
    )
    yield (
        "text queries to numbers",
        ad.KindError,
        r"queries are text but ScaledDot compares numbers: use EditSimilarity, .*",
        lambda: ask(queries=["a"]),
    )
    yield (
        "numbers to text",
        ad.KindError,
        r"queries are numbers but EditSimilarity compares text: use .*",
        lambda: ask(score=ad.EditSimilarity()),
    )
    yield (
        "text against numbers by Equal",
        ad.KindError,
        r"queries are text but keys are numbers \(score=Equal\): give both as numbers",
        lambda: ask(queries=["a"], score=ad.Equal()),
    )
    yield (
        "text values under signed weights",
        ad.KindError,
        r"values are text, which Linear cannot weigh: use a convex weighting such as Softmax\(\), or Nearest\(\)",
        lambda: ask(values=["a", "b", "c"], weighting=ad.Linear()),
    )
    yield ("an object", ad.KindError, r"keys .*object.*: .+", lambda: ask(keys=object()))
    yield (
        "two devices",
        ad.InputError,
        r"inputs lie on different devices \(queries on cpu, keys on meta, values on cpu\): move them to one with .+",
        lambda: ask(queries=here(Q), keys=on_meta(K), values=here(V)),
    )
    yield (
        "two devices, a mask",
        ad.InputError,
        r"inputs lie on different devices \(.*where on meta.*\): move them to one with .+",
        lambda: ask(where=torch.ones(2, 3, dtype=torch.bool, device="meta"), queries=here(Q)),
    )


def missing() -> Iterator[Refusal]:
    fix = r"drop the row, fill it in, or mask it with where="
    yield (
        "NaN in a query",
        ad.MissingValueError,
        rf"the score of query 1 and key 0 is NaN \(score=ScaledDot\): {fix}",
        lambda: ask(queries=with_nan(Q, 1, 0)),
    )
    yield (
        "NaN in a key",
        ad.MissingValueError,
        rf"the score of query 0 and key 2 is NaN \(score=Gaussian\): {fix}",
        lambda: ask(keys=with_nan(K, 2, 1), score=ad.Gaussian(1.0)),
    )
    yield (
        "NaN in the values",
        ad.MissingValueError,
        r"values has NaN .*\(first: row 1\).*: drop the rows?, fill (it|them) in, or mask (it|them) with where=",
        lambda: ask(values=with_nan(V, 1)),
    )
    yield (
        "NaN in the bias",
        ad.MissingValueError,
        r".*query 1 and key 2 is NaN.*",
        lambda: ask(bias=with_nan(np.zeros((2, 3)), 1, 2)),
    )
    yield (
        "None among the values",
        ad.MissingValueError,
        r"values has 1 rows? with missing numbers \(first: row 1\): drop (it|them) or fill (it|them) in",
        lambda: ask(values=[1.0, None, 3.0]),
    )
    yield (
        "None in a list of rows",
        ad.MissingValueError,
        r"keys has 1 rows? with missing numbers \(first: row 1\): drop (it|them) or fill (it|them) in",
        lambda: ask(keys=[[0.0, 0.0], [1.0, None], [2.0, 2.0]]),
    )
    yield (
        "None among text values",
        ad.MissingValueError,
        r"values has no value in row 1: drop the row or fill it in",
        lambda: ask(values=["a", None, "c"]),
    )
    yield (
        "rows without columns",
        ad.InputError,
        r"keys has no columns: give at least one",
        lambda: ask(keys={}, score=ad.Equal()),
    )
    yield (
        "unknown column",
        ad.InputError,
        r"queries have no column 'y' \(score=PerColumn\): their columns are 'x'",
        lambda: ask(
            queries={"x": [1.0]},
            keys={"x": [1.0], "y": [1.0]},
            values=[1.0],
            score=ad.PerColumn({"x": ad.Gaussian(1.0), "y": ad.Equal()}),
        ),
    )
    yield (
        "columns without names",
        ad.KindError,
        r"queries are numbers without names but PerColumn compares columns by name: give a dict with the columns? 'x'",
        lambda: ask(score=ad.PerColumn({"x": ad.Gaussian(1.0)})),
    )
    yield (
        "a list without numbers",
        ad.InputError,
        r"keys .*(no rows|empty).*: .+",
        lambda: ask(keys=[], values=[]),
    )


def masks() -> Iterator[Refusal]:
    for kind in (float, int):
        yield (
            f"mask of {kind.__name__}",
            ad.KindError,
            r"where has dtype \S+ but a mask is boolean \(True = may attend\): compare it .*, or use bias= .*",
            lambda kind=kind: ask(where=np.ones((2, 3), kind)),
        )
    yield (
        "shape of a mask",
        ad.InputError,
        r"where has shape \(2, 2\) but must broadcast to \(2 queries, 3 keys\).*",
        lambda: ask(where=np.ones((2, 2), bool)),
    )
    yield ("text as a mask", ad.KindError, r"where is text: only a Database .*", lambda: ask(where="x > 1"))
    yield (
        "boolean bias",
        ad.KindError,
        r"bias is boolean but is added to the scores: use where= for a mask",
        lambda: ask(bias=np.ones((2, 3), bool)),
    )
    yield (
        "shape of a bias",
        ad.InputError,
        r"bias has shape \(3, 3\) but must broadcast to \(2 queries, 3 keys\).*",
        lambda: ask(bias=np.ones((3, 3))),
    )
    yield (
        "kind of a mask function",
        ad.KindError,
        r"the function where= returned dtype torch.int64: return bool \(True = may attend\)",
        lambda: ask(where=lambda i, j: i + j),
    )
    for name, dtype in (("where", torch.bool), ("bias", torch.float64)):
        yield (
            f"shape of a {name} function",
            ad.InputError,
            rf"the function {name}= returned shape \(5, 7\) for 2 query and 3 key positions: return one that "
            r"broadcasts to \(n, m\)",
            lambda name=name, dtype=dtype: ask(**{name: lambda i, j: torch.ones(5, 7, dtype=dtype)}),
        )
    yield (
        "bias function that wants a gradient",
        ad.InputError,
        r"the function bias= returns a tensor that requires a gradient: give bias= as a tensor",
        lambda: ask(bias=lambda i, j: (i + j) * GRAD[0]),
    )
    for bad in (-1.0, NAN, INF):
        yield (
            f"key weight of {bad}",
            ad.InputError,
            rf"key_weights must be ≥ 0 and finite, got {bad} for key 1.*",
            lambda bad=bad: ask(key_weights=[1.0, bad, 1.0]),
        )
    yield (
        "number of key weights",
        ad.InputError,
        r"key_weights has shape \(2,\) but there are 3 keys: give one number for each key",
        lambda: ask(key_weights=[1.0, 1.0]),
    )
    for bad in (3, -2):
        yield (
            f"exclude {bad}",
            ad.InputError,
            rf"exclude names row {bad} but positions run from 0 to 2 \(−1 = none\): name one of those",
            lambda bad=bad: ask(exclude=[0, bad]),
        )
    yield (
        "kind of exclude",
        ad.KindError,
        r"exclude has dtype torch.float64: give the position of one row for each query, −1 for none",
        lambda: ask(exclude=[0.0, 1.0]),
    )
    yield (
        "length of exclude",
        ad.InputError,
        r"exclude has shape \(3,\) but there are 2 queries: give one position for each query",
        lambda: ask(exclude=[0, 1, 2]),
    )


def options() -> Iterator[Refusal]:
    for bad in (0, -1.5, NAN, INF):
        shown = re.escape(str(float(bad)))
        for name, make in (("bandwidth", ad.Gaussian), ("bandwidth", ad.Boxcar), ("temperature", ad.Softmax)):
            yield (
                f"{make.__name__}({bad})",
                ad.InputError,
                rf"{name} must be > 0 and finite, got {shown}.*",
                lambda make=make, bad=bad: make(bad),
            )
    for bad in ("a", None, True):
        yield (
            f"Gaussian({bad!r})",
            ad.KindError,
            rf"bandwidth must be a number, got {bad!r}.*",
            lambda bad=bad: ad.Gaussian(bad),
        )
    yield (
        "singular bandwidth",
        ad.InputError,
        r"bandwidth is a singular or non-finite matrix: give an invertible one",
        lambda: ad.Gaussian([[1.0, 1.0], [1.0, 1.0]]),
    )
    yield (
        "two temperatures",
        ad.InputError,
        r"temperature has shape \(2,\).*: give one number",
        lambda: ad.Softmax([1.0, 2.0]),
    )
    for bad in (0, -1):
        yield f"TopK({bad})", ad.InputError, rf"k must be at least 1, got {bad}.*", lambda bad=bad: ad.TopK(bad)
    for bad in (1.5, True, "2", None):
        yield (
            f"TopK({bad!r})",
            ad.KindError,
            rf"k must be a whole number ≥ 1, got {bad!r}.*",
            lambda bad=bad: ad.TopK(bad),  # type: ignore[arg-type]
        )
    for bad in (ad.Nearest(), ad.Softmax):
        yield (
            f"TopK(then={bad!r})",
            ad.KindError,
            r"then must be a pooling weighting such as Softmax\(\) or Uniform\(\), got .+",
            lambda bad=bad: ad.TopK(2, then=bad),  # type: ignore[arg-type]
        )
    for bad in (NAN, "x", True):
        for make in (ad.Nearest, lambda at_least: ad.TopK(2, at_least=at_least)):
            yield (
                f"at_least={bad!r}",
                ad.AttendbError,
                rf"at_least must be a number, got {bad!r}.*",
                lambda make=make, bad=bad: make(at_least=bad),
            )
    yield "top=-1", ad.InputError, r"top must be ≥ 0, got -1.*", lambda: ask(top=-1)
    for bad in (1.5, True, "2", None):
        yield (
            f"top={bad!r}",
            ad.KindError,
            rf"top must be a whole number ≥ 0, got {bad!r}.*",
            lambda bad=bad: ask(top=bad),
        )
    for bad in (0, -1.0, NAN, INF, True, "1"):
        yield (
            f"tol={bad!r}",
            ad.InputError,
            rf"tol must be a number > 0, got {bad!r}: leave it out for an exact answer",
            lambda bad=bad: ask(tol=bad),
        )
    for bad in ("flash", 3):
        yield (
            f"plan={bad!r}",
            ad.PlanError,
            rf"there is no plan {bad!r}: take one of .*dense, fused.*",
            lambda bad=bad: ask(plan=bad),
        )
    reasons = {
        "fused": "Laplacian is no inner product of embedded queries and keys",
        "topk": "Softmax selects no rows",
        "pruned": r"top= needs the scores, which are not kept",
    }
    for name, reason in reasons.items():
        yield (
            f"plan {name} that cannot serve",
            ad.PlanError,
            rf"plan '{name}' cannot serve this call: {reason}.*",
            lambda name=name: ask(plan=name, score=ad.Laplacian(1.0), top=name == "pruned" and 1 or 0),
        )
    yield (
        "seed",
        ad.KindError,
        r"seed must be a whole number, got 1.5.*",
        lambda: ad.Sampled(seed=1.5),  # type: ignore[arg-type]
    )


def callables() -> Iterator[Refusal]:
    yield "score as a class", ad.KindError, r"score is the class Dot: create it, Dot\(…\)", lambda: ask(score=ad.Dot)
    yield (
        "module as a class",
        ad.KindError,
        r"score is the class Linear: create it, Linear\(…\)",
        lambda: ask(score=torch.nn.Linear),
    )
    for bad in ("dot", None, 3):
        yield (
            f"score={bad!r}",
            ad.KindError,
            rf"score must be a Score, an nn.Module or a function of \(queries, keys\), got {type(bad).__name__}",
            lambda bad=bad: ask(score=bad),
        )
    yield (
        "weighting as a class",
        ad.KindError,
        r"weighting is the class Softmax: create it, Softmax\(…\)",
        lambda: ask(weighting=ad.Softmax),
    )
    for bad in ("softmax", torch.softmax, 3):
        yield (
            f"weighting={getattr(bad, '__name__', bad)}",
            ad.KindError,
            rf"weighting must be a Weighting such as Softmax\(\), got {type(bad).__name__}",
            lambda bad=bad: ask(weighting=bad),
        )
    yield (
        "Exact over another score",
        ad.InputError,
        r"Exact\(\) is Normalized\(\) over the score Equal\(\) but score=Dot was given: leave score= out, or use .+",
        lambda: ask(score=ad.Dot(), weighting=ad.Exact()),
    )
    for name in ("Normalized", "Conic"):
        yield (
            f"negative score under {name}",
            ad.InputError,
            rf"a score is -2,? but {name} needs scores ≥ 0: use Softmax, or a kernel (like|such as) Boxcar",
            lambda name=name: ask(queries=[[0.0, -1.0]], score=ad.Dot(), weighting=getattr(ad, name)()),
        )
    yield (
        "closed-over tensor",
        ad.InputError,
        r"the score function has closed over a tensor that requires a gradient, which blocks would lose: wrap the "
        r"function in an nn.Module that holds the tensor as a Parameter",
        lambda: ask(score=lambda q, k: (q * GRAD) @ k.mT),
    )
    yield (
        "score of one axis",
        ad.InputError,
        r"the score function returned shape \(1,\) for 1 query and 1 key: return \(\.\.\., n, m\)",
        lambda: ask(score=lambda q, k: (q @ k.mT).sum(-1)),
    )
    yield (
        "score that is the same for all queries",
        ad.InputError,
        r"the score returned shape \(1, 1, 3\) for 2 queries and 3 keys: return \(\.\.\., n, m\)",
        lambda: ask(score=lambda q, k: k.sum(-1)[..., None, :]),
    )
    yield (
        "score of whole numbers",
        ad.KindError,
        r"the score function must return a floating tensor, got (dtype )?torch.int64.*",
        lambda: ask(score=lambda q, k: (q @ k.mT).long()),
    )
    yield (
        "score in numpy",
        ad.KindError,
        r"the score function must return a tensor, got ndarray.*",
        lambda: ask(score=lambda q, k: (q @ k.mT).numpy()),
    )
    yield (
        "mixed columns to a function",
        ad.KindError,
        r"a function of yours scores one column: use PerColumn for mixed columns",
        lambda: ask(queries={"x": [1.0], "y": ["a"]}, keys={"x": V, "y": ["a"] * 3}, score=lambda q, k: q @ k.mT),
    )
    yield (
        "all the weights",
        ad.TooLargeError,
        r"the weights of 2 queries and 3 keys need 48 bytes, above the bound of 40 bytes: ask for top=, for fewer "
        r"queries, or raise max_bytes",
        lambda: ask().weights(max_bytes=40),
    )
    yield (
        "distribution of numbers",
        ad.InputError,
        r"values are numbers, which have no distribution over names: read answer.value",
        lambda: ask().distribution(),
    )


ALL = [*shapes(), *kinds(), *missing(), *masks(), *options(), *callables()]


@pytest.mark.parametrize(("name", "kind", "sentence", "call"), ALL, ids=[one[0] for one in ALL])
def test_refusal_is_one_telling_sentence(name: str, kind: Any, sentence: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert re.fullmatch(sentence, message), message
    assert isinstance(caught.value, ad.AttendbError)
    assert "\n" not in message and not message.endswith(".")
    assert ". " not in message, "one sentence"


@pytest.mark.parametrize("given", [{"keys": K, "queries": Q}, {"keys": torch.tensor(K), "queries": torch.tensor(Q)}])
def test_numpy_and_tensors_are_refused_alike(given: dict[str, Any]) -> None:
    """The same sentence, whatever the container, and by a class that plain Python code can catch."""
    with pytest.raises(ValueError, match=r"keys have 3 rows but values have 2"):
        ask(**given, values=[1.0, 2.0])
    with pytest.raises(TypeError, match=r"where has dtype"):
        ask(**given, where=torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"query 0 and key 1 is NaN"):
        nan = torch.tensor(K).index_fill(0, torch.tensor(1), NAN)
        ask(**given | {"keys": nan if isinstance(given["keys"], Tensor) else nan.numpy()})


def test_error_of_a_score_function_keeps_its_own_kind() -> None:
    def broken(queries: Tensor, keys: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        ask(score=broken)


def test_refused_plans_keep_their_reasons() -> None:
    answer = ask(score=ad.Laplacian(1.0), weighting=ad.Sparsemax())
    said = dict(answer.plan.candidates)
    assert answer.plan.name == "dense"
    assert (
        said["fused"] == "refused: Laplacian is no inner product of embedded queries and keys"
        or "Sparsemax" in said["fused"]
    )
    assert said["topk"] == "refused: Sparsemax selects no rows"
    assert said["pruned"] == "refused: Sparsemax is not Softmax, which Laplacian is pruned under"
    lines = str(answer.plan).splitlines()
    assert len(lines) == len(said) and sum(line.startswith("→") for line in lines) == 1


def test_no_bound_is_passed_before_it_is_checked() -> None:
    """10⁶ × 10⁶ weights are refused by their size; nothing of that size is allocated, and the answer stands."""
    many = np.zeros((1_000_000, 1), dtype=np.float32)
    answer = ad.attend(many[:4], many, many[:, 0] + 1, score=ad.Dot())
    wide = ad.attend(many, many[:1], many[:1, 0], score=ad.Dot())
    assert answer.value.tolist() == [[1.0]] * 4
    with pytest.raises(
        ad.TooLargeError, match=r"the weights of 4 queries and 1000000 keys need 15.26 MiB, above .* 1 MiB"
    ):
        answer.weights(max_bytes=1 << 20)
    assert wide.weights().shape == (1_000_000, 1)
