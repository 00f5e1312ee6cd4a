"""What a plan returns, and what all plans share: NaN found in scores or values becomes one clear error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..columns import Labels
from ..errors import InputError, MissingValueError
from .cells import Place, Problem


@dataclass(frozen=True, eq=False)
class Solution:
    """The answer to a problem, in its batch layout."""

    value: Tensor  # (b, n, v); for labels under a one-hot weighting their codes (b, n, 1), int64, −1 = none
    empty: Tensor  # (b, n) bool
    log_normalizer: Tensor | None = None  # (b, n)
    log_prob: Tensor | None = None  # (b, n)
    top: tuple[Tensor, Tensor] | None = None  # positions, weights, (b, n, r) each
    ranks: Tensor | None = None  # (b, n, r): what `top` was ranked by, comparable between blocks of a table
    threshold: tuple[Tensor, Tensor] | None = None  # (ref, τ), (b, n) each, whose sum the log-normaliser is
    error_bound: Tensor | None = None  # (b, n), certified, in units of tol; None: exact to rounding
    rest: Tensor | None = None  # rows of queries that are left over for an exact plan (batch of 1)
    note: str = ""  # what the plan wants to say about how it answered


def joined(most: Solution, rest: Tensor, exact: Solution) -> Solution:
    """Both answers in one: ``rest`` are the rows that ``exact`` has answered."""

    def put(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        return None if x is None or y is None else x.index_copy(1, rest, y.to(x.dtype))

    value, empty = put(most.value, exact.value), put(most.empty, exact.empty)
    bound = torch.zeros_like(exact.empty, dtype=torch.float64) if exact.error_bound is None else exact.error_bound
    assert value is not None and empty is not None
    log_normalizer = put(most.log_normalizer, exact.log_normalizer)
    return Solution(value, empty, log_normalizer, error_bound=put(most.error_bound, bound), note=most.note)


def padded_top(positions: Tensor, weights: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Always r columns: −1 and weight 0 where there are fewer rows."""
    short = r - positions.shape[-1]
    if short > 0:
        positions = torch.nn.functional.pad(positions, (0, short), value=-1)
        weights = torch.nn.functional.pad(weights, (0, short))
    return positions, weights


def padded_ranks(ranks: Tensor, r: int) -> Tensor:
    """Always r columns: −∞ where there are fewer rows."""
    return torch.nn.functional.pad(ranks, (0, max(0, r - ranks.shape[-1])), value=-torch.inf)


def index_of(problem: Problem, positions: Tensor) -> Tensor:
    """Rows 0 … m−1 of ascending positions; −1 (none) becomes row 0."""
    if problem.m == 0:
        return torch.zeros_like(positions)
    return torch.searchsorted(problem.positions, positions.clamp(min=0).contiguous()).clamp(max=problem.m - 1)


def excluded_rows(problem: Problem) -> Tensor | None:
    """The row 0 … m−1 that each query may not see, (b or 1, n); −1 where there is none. None: exclude was not given."""
    if problem.exclude is None:
        return None
    wanted = problem.exclude[..., 0].expand(-1, problem.n)
    rows = index_of(problem, wanted)
    return torch.where(problem.positions[rows] == wanted, rows, -1)


def refuse_nan(problem: Problem, *results: Tensor) -> None:
    """Raise the error that names the first NaN, when a result holds one."""
    if any(x.isnan().any() for x in results):
        raise _diagnose(problem)


def refuse_overflow(problem: Problem, scores: Tensor) -> None:
    """Raise when an inner product of finite numbers has become infinite; an infinite bias or score of yours may be."""
    if problem.dtype == torch.float64 or problem.bias is not None or not (scores == torch.inf).any():
        return
    factors = problem.score.factors(problem.queries, problem.keys)
    if factors is not None and all(torch.isfinite(x.detach()).all() for x in factors[:2]):
        raise InputError(
            f"inner products of queries and keys overflow {problem.dtype} (score={type(problem.score).__name__}): "
            "give float64, or divide them by a common factor"
        )


def _diagnose(problem: Problem) -> InputError:
    for _, place in problem.places():
        cell = problem.cell(place)
        bad = cell.masked(0.0).isnan().nonzero()
        if len(bad):
            _, i, j = bad[0].tolist()
            query, key = int(problem.query_positions[place.queries][i]), int(cell.positions[j])
            return MissingValueError(
                f"the score of query {query} and key {key} is NaN (score={type(problem.score).__name__}): "
                "drop the row, fill it in, or mask it with where="
            )
    values = problem.values
    if not isinstance(values, Labels):
        for kind, flags in (("NaN", values.isnan()), ("infinite", values.isinf())):
            rows = flags.any(-1).any(0).nonzero()
            if len(rows):
                row = int(problem.positions[int(rows[0, 0])])
                return MissingValueError(
                    f"values has {kind} numbers in {len(rows)} rows (first: row {row}), and a query may see them: "
                    "drop the rows, fill them in, or mask them with where="
                )
    return InputError(
        f"the answer is not a number (score={type(problem.score).__name__}, "
        f"weighting={type(problem.weighting).__name__}): the scores are too large for {problem.dtype}, use float64"
    )


def whole(problem: Problem) -> Place:
    """The place of all pairs at once."""
    return Place(slice(0, problem.batch), slice(0, problem.n), slice(0, problem.m))


class Unserved(Exception):
    """A plan found while solving that it cannot serve the problem; the planner takes the next one and says so."""
