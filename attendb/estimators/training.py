"""How a similarity learns: rows are predicted from all rows but themselves, in mini-batches.

Each step predicts `QUERIES` rows from `CANDIDATES` rows drawn from the table, never more, so a step costs the same
however long the table is. Rows that were held out judge; where there are none, the rows that learn do, each left out of
its own prediction. The state that was judged best is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .cases import Cases
from .pooling import Memory, Pooled, pool

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

    from .similarity import Similarity

QUERIES = 512
CANDIDATES = 4096
JUDGED = 2048  # rows that judge, each by its answer from up to `JURY` rows
JURY = 16384
TRUSTED = 3.0  # σ: up to here an error counts by its square in Huber's loss
SMOOTHING = 1e-3  # share of an even guess in the probabilities of the loss: a window without the class costs log K·10³


@dataclass(frozen=True, eq=False)
class Effort:
    """How long to learn, and by which rows to judge: ``judges`` do not learn; None: those that learn judge.

    ``loss``: what is to be small (`losses`). ``dropout``: of the features of a network, in learning.
    """

    max_seconds: float = 300.0
    seed: int = 0
    judges: Cases | None = None
    loss: str = "squared_error"
    dropout: float = 0.3
    shown: Callable[[int, int, float], None] = lambda done, total, loss: None  # progress
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self.started > self.max_seconds


@dataclass(frozen=True)
class Recipe:
    """How a similarity is trained.

    A table of up to `QUERIES` rows that judges itself is learned from as a whole, by L-BFGS in ``iterations``.
    Of a larger one mini-batches are drawn: Adam at ``rate``, which falls to 0 along a cosine over ``steps``; every
    ``check`` steps the state is judged, and learning ends after ``patience`` checks without an improvement of one in
    10³. ``pull``: strength of a pull back to where learning started, in units of 1 / rows.
    """

    rate: float = 0.2
    steps: int = 100
    check: int = 10
    patience: int = 3
    iterations: int = 30
    pull: float = 0.0


def losses(loss: str, predicted: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """(n,): the loss of each prediction, averaged over the targets (n, v); ``weights`` (n,) of the rows.

    "squared_error": e². "huber": e² up to δ = 3σ and 2δ|e| − δ² beyond, with the σ of normal errors, √(π/2) · the
    weighted mean of |e|; gradients pass δ by. "log_loss": of the right class, with some share of an even guess.

    Source: Huber 1964.
    """
    if loss == "log_loss":
        even = SMOOTHING / targets.shape[1]
        right = (predicted * targets).sum(1).clamp(min=0.0)
        return -((1 - SMOOTHING) * right + even).log()
    errors = predicted - targets
    if loss == "squared_error":
        return errors.square().mean(1)
    size = errors.abs()
    share = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    most = TRUSTED * math.sqrt(math.pi / 2) * (share[:, None] * size.detach()).sum(0)
    return torch.where(size <= most, size.square(), 2 * most * size - most.square()).mean(1)


def mean_loss(similarity: Similarity, loss: str, predicted: Tensor, empty: Tensor, asked: Cases) -> Tensor:
    """The weighted mean loss of what was pooled for the rows asked; rows that no other may vote for do not count."""
    if asked.classes:
        predicted = similarity.probabilities(predicted)
    weights = asked.weights.masked_fill(empty, 0.0)
    each = losses(loss, predicted, asked.targets.to(predicted.dtype), weights)
    return weighted_mean(each, weights)


def weighted_mean(each: Tensor, weights: Tensor) -> Tensor:
    """Of numbers (n,); 0 where no row has a weight."""
    return (each * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def predict_cases(
    similarity: Similarity, cases: Cases, queries: Cases | None, own: Tensor | None
) -> tuple[Tensor, Pooled]:
    """Targets (n, v) of new rows, or of rows ``own`` (n,) of the cases, each of which leaves itself out."""
    keys, prior = similarity.embed(cases.rows), similarity.prior(cases.rows)
    if own is not None:
        q, q_prior = keys[own], None if prior is None else prior[own]
    else:
        assert queries is not None
        q, q_prior = similarity.embed(queries.rows), similarity.prior(queries.rows)
    values = cases.targets.to(keys.dtype) if prior is None else cases.targets - prior
    pooled = pool(similarity.score, q, Memory(keys, cases.weights, cases.groups), values, own=own)
    return pooled.value if q_prior is None else pooled.value + q_prior, pooled


def loss_of(
    loss: str, similarity: Similarity, cases: Cases, queries: Cases | None = None, own: Tensor | None = None
) -> Tensor:
    """The mean loss of new rows, or of rows ``own`` of the cases."""
    asked = cases.take(own) if own is not None else queries
    assert asked is not None
    predicted, pooled = predict_cases(similarity, cases, queries, own)
    return mean_loss(similarity, loss, predicted, pooled.empty, asked)


class Trial:
    """What learns and what judges, drawn once with a seed of its own."""

    def __init__(self, cases: Cases, effort: Effort, judged: int = JUDGED, jury: int = JURY):
        self.random = torch.Generator().manual_seed(effort.seed)
        self.cases, self.judges, self.loss = cases, effort.judges, effort.loss
        self.judged = self.draw(len(cases if self.judges is None else self.judges), judged)
        self.jury = self.cases.take(self._with(self.judged if self.judges is None else None, jury))

    def draw(self, m: int, size: int) -> Tensor:
        """Up to ``size`` different positions of m, in random order."""
        return torch.randperm(m, generator=self.random)[:size]

    def _with(self, own: Tensor | None, size: int) -> Tensor:
        """Positions of rows to vote: first ``own``, then others, up to ``size``."""
        m = len(self.cases)
        if own is None:
            return self.draw(m, size)
        others = torch.ones(m, dtype=torch.bool)
        others[own] = False
        rest = others.nonzero()[:, 0]
        if len(rest) > size - len(own):
            rest = rest[self.draw(len(rest), size - len(own))]
        return torch.cat([own, rest])

    def batches(self) -> Iterator[tuple[Cases, Tensor]]:
        """Rows that vote, and the positions of those among them that are predicted: without end."""
        m = len(self.cases)
        while True:
            for some in torch.randperm(m, generator=self.random).split(min(m, QUERIES)):
                if len(some) < min(m, QUERIES) // 2:
                    continue
                if m <= CANDIDATES:
                    yield self.cases, some
                else:
                    yield self.cases.take(self._with(some, CANDIDATES)), torch.arange(len(some))

    @torch.no_grad()
    def judge(self, similarity: Similarity) -> float:
        """The loss of the rows that judge; infinite where it is no number."""
        if self.judges is None:
            loss = float(loss_of(self.loss, similarity, self.jury, own=torch.arange(len(self.judged))))
        else:
            loss = float(loss_of(self.loss, similarity, self.jury, self.judges.take(self.judged)))
        return loss if math.isfinite(loss) else math.inf


def learns_as_a_whole(cases: Cases, judges: Cases | None) -> bool:
    """Whether a table is so small that all of its rows learn from all others at once."""
    return len(cases) <= QUERIES and judges is None


def train(similarity: Similarity, cases: Cases, effort: Effort, recipe: Recipe) -> None:
    """Lower the loss of rows that leave themselves out; the best state that was judged is kept.

    Source: Liu and Nocedal 1989 (L-BFGS); Kingma and Ba 2015 (Adam).
    """
    parameters: list[Tensor] = [p for p in similarity.parameters() if p.requires_grad and p.numel()]
    if not parameters or len(cases) < 3:
        return
    origin = [p.detach().clone() for p in parameters]

    def loss_with_pull(voters: Cases, own: Tensor) -> Tensor:
        loss = loss_of(effort.loss, similarity, voters, own=own)
        if not recipe.pull:
            return loss
        away = sum((p - o).square().sum() for p, o in zip(parameters, origin, strict=True))
        return loss + recipe.pull / float(cases.weights.sum()) * away

    if learns_as_a_whole(cases, effort.judges):
        _by_lbfgs(parameters, lambda: loss_with_pull(cases, torch.arange(len(cases))), effort, recipe)
    else:
        _by_batches(similarity, parameters, Trial(cases, effort), loss_with_pull, effort, recipe)


def _by_lbfgs(parameters: list[Tensor], loss_now: Callable[[], Tensor], effort: Effort, recipe: Recipe) -> None:
    from scipy.optimize import minimize
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    done, device = 0, parameters[0].device

    def put(x: np.ndarray) -> None:
        vector_to_parameters(torch.from_numpy(x).to(device), parameters)

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal done
        done += 1
        put(x.copy())
        loss = loss_now()
        slopes = torch.autograd.grad(loss, parameters)
        effort.shown(min(done, recipe.iterations), recipe.iterations, float(loss.detach()))
        return float(loss.detach()), torch.cat([s.reshape(-1) for s in slopes]).cpu().numpy()

    def stop_in_time(intermediate_result: OptimizeResult) -> None:
        if effort.spent:
            raise StopIteration

    start = parameters_to_vector(parameters).detach().cpu().numpy().astype(np.float64)
    options = {"maxiter": recipe.iterations, "ftol": 1e-5, "gtol": 1e-5}
    found = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", callback=stop_in_time, options=options)
    better = np.isfinite(found.fun) and np.isfinite(found.x).all()
    put(found.x if better else start)


def _by_batches(
    similarity: Similarity,
    parameters: list[Tensor],
    trial: Trial,
    loss_of_batch: Callable[[Cases, Tensor], Tensor],
    effort: Effort,
    recipe: Recipe,
) -> None:
    optimiser = torch.optim.Adam(parameters, lr=recipe.rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    best, kept, since = trial.judge(similarity), _state(similarity), 0
    for step, (voters, own) in enumerate(trial.batches(), start=1):
        loss = loss_of_batch(voters, own)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        over = step >= recipe.steps or effort.spent
        if step % recipe.check == 0 or over:
            judged = trial.judge(similarity)
            since = 0 if judged < best * (1 - 1e-3) else since + 1
            if judged < best:
                best, kept = judged, _state(similarity)
            effort.shown(step, recipe.steps, best)
            if over or since >= recipe.patience:
                break
    similarity.load_state_dict(kept)


def _state(similarity: Similarity) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in similarity.state_dict().items()}
