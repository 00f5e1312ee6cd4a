"""The laws of weightings and scores as checks, for people who write their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from .comparison import close, compare
from .dense import oracle
from .formulas import Rows, all_scores, count, read_rows

CUTS: tuple[tuple[int, int], ...] = ((1, 1), (2, 3), (3, 2), (64, 64))


@dataclass(frozen=True, eq=False)
class _Trial:
    """One weighting over given scores: queries are the unit vectors, so that q·k is the table of scores itself."""

    weighting: Any
    scores: Tensor  # (n, m)
    values: Tensor  # (m, v)
    atol: float

    def asked(self, scores: Tensor, values: Tensor, cut: tuple[int, int], **options: Any) -> Any:
        from .. import Dot, attend
        from ..plans.cells import block_sizes

        unit = torch.eye(scores.shape[0], dtype=torch.float64)
        with block_sizes(queries=cut[0], keys=cut[1]):
            asked = {"score": Dot(), "weighting": self.weighting, "plan": "dense", "top": scores.shape[1], **options}
            return attend(unit, scores.T, values, **asked)

    def expected(self, scores: Tensor, values: Tensor, **options: Any) -> Any:
        from .. import Dot

        unit, top = torch.eye(scores.shape[0], dtype=torch.float64), scores.shape[1]
        return oracle(unit, scores.T, values, score=Dot(), weighting=self.weighting, top=top, **options)

    def agrees(self, answer: Any, expected: Any) -> None:
        compare(answer, expected, atol=self.atol, rtol=self.atol, weights=expected.value is not None)


def check_weighting_laws(
    weighting: Any,
    *,
    scores: Any = None,
    nonnegative: bool = False,
    gradients: bool = True,
    atol: float = 1e-9,
    seed: int = 0,
) -> None:
    """Check a weighting against the laws that every weighting must keep.

        merge(lift(∅), s) = s,   merge(merge(s, t), u) = merge(s, merge(t, u)),   order of rows: any

    Checked by asking through `attend`, the blocks cut in several ways: any cut gives the oracle's answer; rows that
    are absent, NaN in them or not, change nothing; a query without rows gives 0, flagged, without gradient; the order
    of the rows does not matter (not asked of `Sampled`, whose draw depends on positions); a row counted twice is the
    row written twice (not asked of selecting weightings, which count rows); ``gradients`` to scores, values and
    key_weights pass `torch.autograd.gradcheck`.

    ``scores``: a table (n, m) to try; by default random, ≥ 0 with ``nonnegative``. ``atol``: allowed absolute and
    relative difference. Raises AssertionError that names the law. Cost: under a second.

    >>> import attendb as ad
    >>> from attendb.testing import check_weighting_laws
    >>> check_weighting_laws(ad.Softmax(temperature=0.5))

    Source: the laws are those of a commutative monoid; Milakov and Gimelshein 2018 for softmax.
    """
    generator = torch.Generator().manual_seed(seed)
    if scores is None:
        table = torch.randn(3, 5, dtype=torch.float64, generator=generator)
        table = table.abs() + 0.05 if nonnegative else table
    else:
        table = torch.as_tensor(scores).to(torch.float64)
    values = torch.randn(table.shape[1], 2, dtype=torch.float64, generator=generator)
    trial = _Trial(weighting, table, values, atol)
    with _law("any cut into blocks gives the same answer"):
        for cut in CUTS:
            trial.agrees(trial.asked(table, values, cut), trial.expected(table, values))
    with _law("an absent row changes nothing"):
        _check_absent(trial)
    with _law("a query without rows gives 0, flagged, without gradient"):
        _check_empty(trial)
    if not hasattr(weighting, "seed"):
        with _law("the order of the rows does not matter"):
            _check_order(trial, generator)
    if not hasattr(weighting, "select"):
        with _law("a row counted twice is the row written twice"):
            _check_multiplicity(trial)
    if gradients:
        with _law("gradients agree with finite differences"):
            _check_gradients(trial)


@contextmanager
def _law(sentence: str) -> Iterator[None]:
    try:
        yield
    except (AssertionError, GradcheckError) as error:
        raise AssertionError(f"law broken: {sentence}: {error}") from error


def _check_absent(trial: _Trial) -> None:
    n, m = trial.scores.shape
    absent = 3
    scores = torch.cat([trial.scores, trial.scores.new_full((n, absent), torch.nan)], 1)
    values = torch.cat([trial.values, trial.values.new_full((absent, trial.values.shape[1]), torch.nan)])
    keep = torch.arange(m + absent) < m
    plain = trial.expected(trial.scores, trial.values, key_weights=torch.ones(m))
    for options in ({"where": keep}, {"key_weights": keep.double()}):
        for cut in CUTS:
            answer = trial.asked(scores, values, cut, **options)
            close(answer.empty, plain.empty, "empty", 0.0, 0.0)
            if plain.value is not None:
                close(answer.value, plain.value, "value", trial.atol, trial.atol)
            if plain.log_normalizer is not None:
                close(answer.log_normalizer, plain.log_normalizer, "log_normalizer", trial.atol, trial.atol)


def _check_empty(trial: _Trial) -> None:
    n, m = trial.scores.shape
    keep = torch.ones(n, m, dtype=torch.bool)
    keep[n // 2] = False
    for cut in CUTS:
        scores, values = trial.scores.clone().requires_grad_(), trial.values.clone().requires_grad_()
        answer = trial.asked(scores, values, cut, where=keep)
        if not answer.empty[n // 2]:
            raise AssertionError("the query is not flagged as empty")
        close(answer.value[n // 2], torch.zeros_like(answer.value[n // 2]), "value", 0.0, 0.0)
        if answer.log_normalizer is not None and answer.log_normalizer[n // 2] != -torch.inf:
            raise AssertionError(f"log_normalizer is {answer.log_normalizer[n // 2]}, expected -inf")
        if answer.value.requires_grad:
            for grad in torch.autograd.grad(answer.value[n // 2].sum(), (scores, values), allow_unused=True):
                if grad is not None:
                    close(grad, torch.zeros_like(grad), "gradient", 0.0, 0.0)


def _check_order(trial: _Trial, generator: torch.Generator) -> None:
    for cut in CUTS:
        order = torch.randperm(trial.scores.shape[1], generator=generator)
        answer = trial.asked(trial.scores[:, order], trial.values[order], cut)
        trial.agrees(answer, trial.expected(trial.scores[:, order], trial.values[order]))
        close(answer.value, trial.asked(trial.scores, trial.values, cut).value, "value", trial.atol, trial.atol)


def _check_multiplicity(trial: _Trial) -> None:
    m = trial.scores.shape[1]
    counts = torch.ones(m, dtype=torch.float64)
    counts[m // 2] = 2
    rows = torch.repeat_interleave(torch.arange(m), counts.long())
    for cut in CUTS:
        counted = trial.asked(trial.scores, trial.values, cut, key_weights=counts)
        written = trial.asked(trial.scores[:, rows], trial.values[rows], cut)
        trial.agrees(counted, trial.expected(trial.scores, trial.values, key_weights=counts))
        close(counted.value, written.value, "value", trial.atol, trial.atol)


def _check_gradients(trial: _Trial) -> None:
    weights = torch.linspace(0.5, 2.0, trial.scores.shape[1], dtype=torch.float64)
    inputs = tuple(x.clone().requires_grad_() for x in (trial.scores, trial.values, weights))

    def outputs(scores: Tensor, values: Tensor, key_weights: Tensor) -> tuple[Tensor, ...]:
        answer = trial.asked(scores, values, (2, 3), key_weights=key_weights, top=0)
        return tuple(x for x in (answer.value, answer.log_normalizer) if x is not None and x.requires_grad)

    torch.autograd.gradcheck(outputs, inputs)


def check_score_laws(score: Any, queries: Any, keys: Any, *, gradients: bool = True, atol: float = 1e-9) -> None:
    """Check that a score looks at each pair by itself, and that its gradients are right.

        a(q_i, k_j) is the same in every block that holds query i and key j

    ``score``: a `Score`, an `nn.Module` or a pairwise function; ``queries`` (n, d) and ``keys`` (m, d): numbers, text
    or dicts of columns, n, m ≥ 2, away from points where the score has no derivative. The scores are read through
    `attend` with the blocks cut in several ways and must equal those of all pairs at once. ``gradients`` to numeric
    queries and keys and to every parameter, frozen or not, pass `torch.autograd.gradcheck`. ``atol``: allowed absolute
    and relative difference. Raises AssertionError that names the law. Cost: under a second for a dozen rows.

    >>> import attendb as ad
    >>> from attendb.testing import check_score_laws
    >>> check_score_laws(ad.Gaussian(2.0), [[0.0], [1.0]], [[0.5], [2.0], [3.0]])

    Source: the contract of a score; see docs/architecture.md.
    """
    q, k = read_rows(queries), read_rows(keys)
    expected = all_scores(score, q, k)
    with _law("a score is a finite number"):
        if not bool(torch.isfinite(expected).all()):
            raise AssertionError(f"got {expected.tolist()}")
    with _law("a pair scores the same in every block"):
        for cut in CUTS:
            close(_scores_of(score, q, k, cut), expected, "score", atol, atol)
    if gradients:
        with _law("gradients agree with finite differences"):
            _check_score_gradients(score, q, k)


def _scores_of(score: Any, queries: Rows, keys: Rows, cut: tuple[int, int]) -> Tensor:
    """All scores as the engine sees them: under Linear, pooling the rows of the identity gives the scores."""
    from .. import Linear, attend
    from ..plans.cells import block_sizes

    unit = torch.eye(count(keys), dtype=torch.float64)
    with block_sizes(queries=cut[0], keys=cut[1]):
        return torch.as_tensor(attend(queries, keys, unit, score=score, weighting=Linear(), plan="dense").value)


def _check_score_gradients(score: Any, queries: Rows, keys: Rows) -> None:
    tried = copy.deepcopy(score).double() if isinstance(score, nn.Module) else score
    parameters = list(tried.requires_grad_().parameters()) if isinstance(tried, nn.Module) else []
    numbers: list[Tensor] = []

    def leaf(rows: Rows) -> Rows:
        if isinstance(rows, dict):
            return {name: leaf(column) for name, column in rows.items()}
        if isinstance(rows, list):
            return rows
        numbers.append(rows.detach().clone().requires_grad_())
        return numbers[-1]

    q, k = leaf(queries), leaf(keys)
    inputs = (*numbers, *parameters)

    def scores(*given: Tensor) -> Tensor:  # gradcheck moves the very tensors that q, k and the score hold
        return _scores_of(tried, q, k, (2, 3))

    if inputs and scores(*inputs).requires_grad:
        torch.autograd.gradcheck(scores, inputs)
