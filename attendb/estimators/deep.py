"""A learned encoder: rows are alike where the network says so, and neighbours' outcomes are corrected on the way.

    y^(x) = Σ_i α(x, x_i) (y_i + g(x) − g(x_i)),     α = softmax of −½ ‖φ(x) − φ(x_i)‖²

g(x) is what the row says alone. A neighbour votes for its own outcome, moved by what the network expects from the
difference between the two rows, so the answer follows a slope between the cases instead of stepping from one to the
next.

A mini-batch is a table of its own: each row is predicted from all the others, so every row that is encoded is a query
and a key, and gradients reach it as both. Keys kept from earlier steps were tried: without gradients to them learning
took several times as long.

Source: Gorishniy et al. 2023 (TabR: values that see the label and the difference of query and key); Ye et al. 2024
(ModernNCA: softmax of learned distances over sampled candidates); Goldberger et al. 2005 (neighbourhood components).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..scores.distance import Gaussian
from .cases import Cases
from .encoding import Rows
from .networks import Network
from .pooling import Memory, pool
from .similarity import Similarity
from .training import Effort, losses

BATCH = 512
LOGITS = 4.0  # one-hot votes become logits: all votes for a class make it exp(4) times as likely as one without votes
VOTERS = 1 << 15  # rows that the judged ones are predicted from
JUDGED = 2048
SCALES = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5)  # a whole table is denser than a mini-batch, and bears narrower windows


@dataclass(frozen=True)
class Recipe:
    """How the network is trained: AdamW, an exponential moving average of its weights, early stopping.

    ``alone``: weight of the loss of the votes without g, which keeps the distances meaningful. After ``patience``
    checks without an improvement the rate falls to ``fall`` of itself and the batches grow by ``growth``, once, from
    the best state; then learning ends.
    """

    rate: float = 3e-3
    decay: float = 1.0
    average: float = 0.99
    dropout: float = 0.1
    alone: float = 0.3
    patience: int = 8
    fall: float = 0.3
    growth: int = 4
    checks: int = 400  # at most
    unjudged: int = 25  # checks of a table so small that no rows can be spared to judge


class _Learned(Gaussian):
    """A Gaussian of rows that learn, whose scores are not known to more than four digits: as long as they keep those,
    float32 serves, which is several times as fast."""

    def lost_digits(self, queries: Any, keys: Any) -> float:
        if not queries.numel() or not keys.numel():
            return 0.0
        a, b = (float(x.detach().square().sum(-1).amax()) for x in (queries, keys))
        return math.sqrt((1 + a) * (b + b * b / 4)) / 1e-4  # of the product of [q, 1] and [k, −½‖k‖²]


class Deep(Similarity):
    """φ and g by one network (see the top of this file)."""

    score = _Learned(1.0)
    settles = False  # a network knows the rows that it learned from: the rows that judge have found the scale

    def __init__(self, network: Network, *, classes: bool, shape: dict[str, Any]):
        super().__init__()
        self.network, self.classes, self._shape = network, classes, shape

    @classmethod
    def begin(cls, cases: Cases, seed: int) -> Self:
        rows = cases.rows
        missing = rows.numbers.isnan()
        gaps = (missing.any(0) & ~missing.all(0)).nonzero()[:, 0] if len(rows) else torch.zeros(0, dtype=torch.int64)
        levels = [int(codes.max()) + 1 if len(codes) else 0 for codes in rows.codes.T]
        shape = {
            "numbers": rows.numbers.shape[1],
            "gaps": len(gaps),
            "levels": levels,
            "outputs": cases.targets.shape[1],
            "dropout": Recipe().dropout,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = cls(Network(**shape), classes=cases.classes, shape=shape)
        made.network.gaps.copy_(gaps)
        with torch.no_grad():
            made.network.bins.place(rows.numbers)
        return made

    def embed(self, rows: Rows) -> Tensor:
        return self._in_pieces(rows, 0)

    def prior(self, rows: Rows) -> Tensor:
        return self._in_pieces(rows, 1)

    def _in_pieces(self, rows: Rows, which: int) -> Tensor:
        """φ or g; the bins of a piece stay in cache."""
        pieces = torch.arange(len(rows)).split(4 * BATCH) if len(rows) else [torch.arange(0)]
        return torch.cat([self.network(rows.take(piece))[which] for piece in pieces])

    def probabilities(self, pooled: Tensor) -> Tensor:
        return (LOGITS * pooled).softmax(-1)

    def learn(self, cases: Cases, effort: Effort) -> None:
        if len(cases) >= 3:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(effort.seed)
                _Training(self, cases, effort, Recipe()).run()
        self.double()  # in float32 a row alone and in a batch would differ in the seventh digit

    def config(self) -> dict[str, Any]:
        wide = self.network.norm.weight.dtype == torch.float64
        return {"classes": self.classes, "shape": self._shape, "wide": wide}

    @classmethod
    def made(cls, config: dict[str, Any]) -> Self:
        made = cls(Network(**config["shape"]), classes=config["classes"], shape=config["shape"])
        return made.double() if config["wide"] else made


class _Training:
    """One run: batches, the moving average, what was judged best."""

    def __init__(self, similarity: Deep, cases: Cases, effort: Effort, recipe: Recipe):
        self.similarity, self.effort, self.recipe = similarity, effort, recipe
        self.cases = replace(cases, targets=cases.targets.float())
        self.judges = None
        if effort.judges is not None:
            judged = effort.judges.take(torch.randperm(len(effort.judges))[:JUDGED])
            self.judges = replace(judged, targets=judged.targets.float())
        self.voters = self.cases.take(torch.randperm(len(cases))[:VOTERS])
        network = similarity.network
        matrices = [p for p in network.parameters() if p.ndim > 1]
        others = [p for p in network.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.rate)
        self.average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))
        self.batch = BATCH

    def run(self) -> None:
        """Learn; the network is then the average that was judged best, at the scale that was judged best."""
        network, recipe = self.similarity.network, self.recipe
        best, kept, since, falls = math.inf, _state(network), 0, 0
        network.train()
        checks = recipe.unjudged if self.judges is None else recipe.checks
        for check in range(1, checks + 1):
            loss = self._epoch()
            judged = loss if self.judges is None else self._judge(self.average.module, 1.0)
            since = 0 if judged < best * (1 - 1e-4) else since + 1
            if judged < best:
                best, kept = judged, _state(self.average.module)
            self.effort.shown(check, checks, best)
            if self.effort.spent:
                break
            if since >= recipe.patience:
                if falls:
                    break
                since, falls = 0, 1
                self._go_on_from(kept)
        network.load_state_dict(kept)
        if self.judges is not None:
            scales = {self._judge(network, scale): scale for scale in reversed(SCALES)}
            with torch.no_grad():
                network.log_sharpness.add_(math.log(scales[min(scales)]))

    def _epoch(self) -> float:
        """Every row once, in tables of `BATCH` rows; a small table again, until there were 8 steps."""
        m, total, steps = len(self.cases), 0.0, 0
        while steps < 8:
            for some in torch.randperm(m).tensor_split(max(1, round(m / self.batch))):
                total += self._step(self.cases.take(some))
                steps += 1
                if self.effort.spent:
                    return total / steps
        return total / steps

    def _step(self, batch: Cases) -> float:
        network = self.similarity.network
        keys, prior = network(batch.rows)
        loss = self._loss(keys, prior, batch, keys, prior, batch, torch.arange(len(batch)), self.recipe.alone)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        self.optimiser.step()
        self.average.update_parameters(network)
        return float(loss.detach())

    @torch.no_grad()
    def _judge(self, network: nn.Module, scale: float) -> float:
        assert self.judges is not None
        was = network.training
        network.eval()
        keys, prior = _in_pieces(network, self.voters.rows)
        queries, own_prior = _in_pieces(network, self.judges.rows)
        network.train(was)
        loss = self._loss(queries * scale, own_prior, self.judges, keys * scale, prior, self.voters, None, 0.0)
        return float(loss) if math.isfinite(float(loss)) else math.inf

    def _loss(
        self,
        queries: Tensor,
        g: Tensor,
        asked: Cases,
        keys: Tensor,
        prior: Tensor,
        voters: Cases,
        own: Tensor | None,
        alone: float,
    ) -> Tensor:
        """The mean loss of what was asked, and ``alone`` times that of the votes without g."""
        values = torch.cat([voters.targets, prior], 1)
        found = pool(self.similarity.score, queries, Memory(keys, voters.weights, voters.groups), values, own=own)
        votes, expected = found.value.split(prior.shape[1], 1)
        weights = asked.weights.to(votes.dtype).masked_fill(found.empty, 0.0)
        each = self._losses(votes + g - expected, asked.targets)
        if alone:
            each = each + alone * losses(votes, asked.targets, classes=asked.classes)
        return (each * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)

    def _losses(self, pooled: Tensor, targets: Tensor) -> Tensor:
        if self.similarity.classes:
            return -(targets * (LOGITS * pooled).log_softmax(1)).sum(1)
        return (pooled - targets).square().mean(1)

    def _go_on_from(self, state: dict[str, Tensor]) -> None:
        self.similarity.network.load_state_dict(state)
        self.average.module.load_state_dict(state)
        self.batch *= self.recipe.growth
        for group in self.optimiser.param_groups:
            group["lr"] *= self.recipe.fall


def _in_pieces(network: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
    found = [network(rows.take(piece)) for piece in torch.arange(len(rows)).split(4 * BATCH)]
    return torch.cat([keys for keys, _ in found]), torch.cat([prior for _, prior in found])


def _state(network: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in network.state_dict().items()}
