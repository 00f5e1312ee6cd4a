"""The whole idea: a database that answers a query by attention.

    Attention(q, D) = Σ_i α(q, k_i) v_i          D = {(k_1, v_1), …, (k_m, v_m)}

A score says how compatible a query and a key are, a weighting turns the scores of one query into weights, the answer
is the weighted sum of the values. One-hot weights make it a lookup, equal weights an average, softmax weights the
attention of neural networks, a Gaussian score the Nadaraya–Watson regression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .answer import Answer, check_distribution_size
from .columns import Labels
from .errors import KindError, TooLargeError
from .plans import planner
from .plans.cells import Problem
from .plans.precision import own_precision
from .question import Options, Question, read_question, resolve
from .scores.base import Score
from .scores.dot import ScaledDot
from .weightings.base import Selecting, Weighting

DEFAULT_SCORE: Score = ScaledDot()
LARGEST_TOP = 1 << 28  # rows named by top=, over all queries: 4 GiB of positions and weights


def attend(
    queries: Any,
    keys: Any,
    values: Any,
    *,
    score: Score | nn.Module | Callable[..., Tensor] = DEFAULT_SCORE,
    weighting: Weighting | None = None,
    where: Any = None,
    bias: Any = None,
    key_weights: Any = None,
    exclude: Any = None,
    tol: float | None = None,
    plan: str | None = None,
    top: int = 0,
) -> Answer:
    """Ask a table of key–value pairs: Attention(q, D) = Σ_i α(q, k_i) v_i for every query.

    ``queries`` (..., n, d), ``keys`` (..., m, d), ``values`` (..., m, v): numpy arrays, tensors, nested lists,
    DataFrames, or text. Leading axes broadcast; 1-D means width 1, but a 1-D query to wider keys is one query.
    ``score`` a(q, k), dimensionless, and ``weighting`` (None: the score's own) make the weights α. The default is the
    attention of transformers; for rows of measurements a `Gaussian` with one bandwidth a column is the usual choice.
    ``where``: bool, True = may attend; ``bias``: numbers added to the scores; both broadcast to (..., n, m) or are
    functions of (query positions, key positions). ``key_weights`` (..., m) ≥ 0: multiplicities, 0 = the row does not
    exist. ``exclude`` (..., n): one row per query, by position, that it may not see (−1 = none).
    ``tol`` > 0: an error that you accept, |value − exact| ≤ tol · (max − min of that value column) and
    |log_normalizer − exact| ≤ tol, before the answer is rounded to its dtype; ``error_bound`` says what was certified
    for each query, 0 where it was computed exactly. It makes softmax of a Gaussian in up to 3 columns O(n + m).
    Gradients are then of the same order, and not certified. None: exact to rounding.
    ``plan``: force a plan by name.
    ``top``: how many of the rows with the highest weights to return.

    Returns an `Answer` with numpy where the queries are numpy, lists or frames, tensors where they are tensors; only
    tensors carry gradients. Not for the transforms of torch.func (vmap, jacrev).
    Raises InputError for shapes, values and options that cannot be served, KindError for wrong types,
    MissingValueError for a NaN that a query may see, PlanError for a forced plan that cannot serve.
    Cost: O(n·m) scores at most, memory O(block), forward and backward; docs/how_fast_how_sure.md has the exceptions.

    >>> import attendb as ad
    >>> answer = ad.attend([[1.0]], [[0.0], [1.0], [2.0]], [10.0, 20.0, 30.0], score=ad.Dot(), top=2)
    >>> answer.value.round(3).tolist(), answer.top.positions.tolist()
    ([[25.752]], [[2, 1]])

    Source: Vaswani et al. 2017, equation 1, for the softmax; Nadaraya 1964 and Watson 1964 for kernels.
    """
    chosen_score, chosen_weighting = resolve(score, weighting, default=DEFAULT_SCORE)
    with own_precision():
        question = read_question(
            queries,
            keys,
            values,
            score=chosen_score,
            weighting=chosen_weighting,
            options=Options(where, bias, key_weights, exclude, tol, plan, top),
        )
        return ask(question)


def ask(question: Question) -> Answer:
    """Answer a question that has been read and checked."""
    check_size(question.problem)
    solution, report = planner.solve(question.problem, question.plan)
    return Answer(question, solution, report)


def check_size(problem: Problem) -> None:
    """Refuse answers that would not fit, and weightings that text values cannot take, before anything is computed."""
    rows = problem.batch * problem.n * problem.top
    if rows > LARGEST_TOP:
        raise TooLargeError(
            f"top={problem.top} for {problem.batch * problem.n} queries names {rows:,} rows: ask for fewer"
        )
    if isinstance(problem.values, Labels) and not (
        isinstance(problem.weighting, Selecting) and problem.weighting.one_hot
    ):
        if not problem.weighting.convex:
            raise KindError(
                f"values are text, which {type(problem.weighting).__name__} cannot weigh: use a convex weighting "
                "such as Softmax(), or Nearest()"
            )
        check_distribution_size(problem.batch * problem.n, len(problem.values.names))
