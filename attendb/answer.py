"""What a question gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .columns import Labels
from .errors import InputError, TooLargeError
from .plans.gather import all_weights
from .plans.planner import PlanReport
from .plans.precision import own_precision
from .plans.solution import Solution
from .question import Question

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = Any  # numpy where the queries were, a tensor where they were tensors

LARGEST_WEIGHTS = 1 << 31  # bytes


class Top(NamedTuple):
    """The rows of highest weight: positions (..., n, r), −1 = none; their weights; the mass (..., n) they capture."""

    positions: Array
    weights: Array
    captured: Array


class Distribution(NamedTuple):
    """How the weights fall on the distinct values: names (L,), probabilities (..., n, L)."""

    names: np.ndarray
    probabilities: Array


class Answer:
    """The answer to `attend`, and everything that can be asked about it.

    ``value`` (..., n, v): Σ_i α_i v_i; for text values the most probable one (one str for one text query).
    ``log_normalizer`` (..., n): see the weighting; −∞ for an empty neighbourhood; None where the weighting has none.
    ``empty`` (..., n): no row had weight; the value is then 0 with zero gradient (None for text values).
    ``log_prob`` (..., n): of the drawn row, for `Sampled`; else None.
    ``top``: the best rows, when asked for by ``top=``.
    ``error_bound`` (..., n): what is certified, when ``tol`` was given.
    ``plan``: how it was computed and why not otherwise; prints as a small table.
    """

    def __init__(
        self,
        question: Question,
        solution: Solution,
        plan: PlanReport,
        *,
        every_row: Callable[[], Question] | None = None,  # where ``question`` holds a part of the table only
    ):
        self._question = question
        self._every_row = every_row
        self._solution = solution
        self.plan = plan
        problem = question.problem
        labels = problem.values if isinstance(problem.values, Labels) else None
        self.empty: Array = self._out(solution.empty)
        self.value: Array = self._out(solution.value) if labels is None else self._names(labels)
        self.log_normalizer: Array = self._maybe(solution.log_normalizer)
        self.log_prob: Array = self._maybe(solution.log_prob)
        self.error_bound: Array = None
        if problem.tol is not None:
            bound = solution.error_bound
            self.error_bound = self._out(
                torch.zeros_like(solution.empty, dtype=torch.float64) if bound is None else bound
            )
        self.top: Top | None = None
        if solution.top is not None:
            positions, weights = solution.top
            self.top = Top(self._out(positions), self._out(weights), self._out(weights.sum(-1)))

    def __repr__(self) -> str:
        shape = tuple(np.shape(self.value)) if not isinstance(self.value, Tensor) else tuple(self.value.shape)
        return f"Answer(value of shape {shape}, {int(self._solution.empty.sum())} empty, plan={self.plan.name})"

    def weights(self, *, max_bytes: int = LARGEST_WEIGHTS) -> Array:
        """All weights α (..., n, m), differentiable where tensors were given; asking never changes the answer.

        They are computed now, from the queries and keys that were given: do not change those in place before.

        Raises TooLargeError, before anything is allocated, when they would need more than ``max_bytes``.
        Cost: n·m scores and n·m numbers of memory.
        """
        question = self._question
        problem = question.problem
        pairs = problem.batch * problem.n * question.rows
        size = pairs * (torch.finfo(question.problem.result_dtype).bits // 8)
        if size > max_bytes:
            raise TooLargeError(
                f"the weights of {problem.batch * problem.n} queries and {question.rows} keys need {_bytes(size)}, "
                f"above the bound of {_bytes(max_bytes)}: ask for top=, for fewer queries, or raise max_bytes"
            )
        with own_precision():
            if self._every_row is not None:
                question = self._every_row()
            weights = all_weights(question.problem)
        if question.kept is not None:
            full = weights.new_zeros(*weights.shape[:-1], question.rows)
            weights = full.index_copy(-1, question.kept.to(weights.device), weights)
        return self._out(weights)

    def distribution(self, *, max_bytes: int = LARGEST_WEIGHTS) -> Distribution:
        """For text values: the distinct values and their probabilities (..., n, L), Σ of the weights of equal values.

        Raises InputError for numeric values, TooLargeError above ``max_bytes``.
        """
        problem = self._question.problem
        if not isinstance(problem.values, Labels):
            raise InputError("values are numbers, which have no distribution over names: read answer.value")
        names, found = problem.values.names, self._solution.value
        if not found.is_floating_point():  # codes of a one-hot weighting
            check_distribution_size(problem.batch * problem.n, len(names), max_bytes)
            one_hot = torch.nn.functional.one_hot(found[..., 0].clamp(min=0), max(1, len(names))).to(problem.dtype)
            found = one_hot[..., : len(names)] * (found >= 0)
        return Distribution(names, self._out(found))

    def heatmap(self, **options: Any) -> Figure:
        """The weights as a picture, queries on the y axis and keys on the x axis: a matplotlib Figure."""
        from .plots import answer_heatmap

        weights = self.weights()
        return answer_heatmap(weights.detach() if isinstance(weights, Tensor) else weights, **options)

    def _maybe(self, x: Tensor | None) -> Array:
        return None if x is None else self._out(x)

    def _out(self, x: Tensor) -> Array:
        question = self._question
        x = question.shaped(x)
        if x.is_floating_point():
            x = x.to(question.problem.result_dtype)
        if question.as_tensor:
            return x
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()  # numpy has no bfloat16

    def _names(self, labels: Labels) -> Any:
        found = self._solution.value.detach().cpu()
        if found.is_floating_point():
            codes = np.argmax(found.numpy(), -1) if found.shape[-1] else np.full(found.shape[:-1], -1)
        else:
            codes = found[..., 0].numpy()
        nobody = np.array([None], dtype=object)  # stands for an empty neighbourhood
        names = np.concatenate([labels.names, nobody])
        empty = self._solution.empty.cpu().numpy()
        chosen = names[np.where(empty, len(names) - 1, codes)]
        chosen = chosen.reshape(*self._question.batch_shape, self._question.n)
        return chosen.item() if self._question.single_text else chosen


def check_distribution_size(n: int, names: int, max_bytes: int = LARGEST_WEIGHTS) -> None:
    """Refuse a distribution of n queries over the distinct names that would not fit, before it is allocated."""
    size = 8 * n * names
    if size > max_bytes:
        raise TooLargeError(
            f"the distribution of {n} queries over {names} distinct values needs {_bytes(size)}, above the bound of "
            f"{_bytes(max_bytes)}: use Nearest(), ask fewer queries, or give numeric values"
        )


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
