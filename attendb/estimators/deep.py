"""A learned encoder: rows are alike where the network says so, and neighbours' outcomes are corrected on the way.

    y^(x) = Σ_i α(x, x_i) (y_i + g(x) − g(x_i) + T(φ(x) − φ(x_i))),     α = softmax of −‖φ(x) − φ(x_i)‖

over the `NEIGHBOURS` nearest cases; equal rows share their votes (`places.py`). g(x) is what the row says alone; T
corrects by pair, and T(0) = 0. A neighbour votes for its own outcome, moved by what the network expects from the
difference between the two rows, so the answer follows a slope between the cases instead of stepping from one to the
next.

Learning has two parts. First a mini-batch is a table of its own: each row is predicted from all the others, so every
row that is encoded is a query and a key, and gradients reach it as both. Keys kept from earlier steps were tried:
without gradients to them learning took several times as long. Then rows are predicted from candidates drawn from the
whole table, whose neighbours are about as near as those that predictions will be made from.

Numbers are learned by squared errors, so that means are predicted; by Huber's loss where the user chooses it. The loss
that says when to stop is always Huber's: else a few cases that nothing explains would decide. To learn by it too is no
default: it predicted 29 where the mean was 50 (1000 in one of 20 cases, else 0).

Source: Gorishniy et al. 2023 (TabR: values that see the label and the difference of query and key); Ye et al. 2024
(ModernNCA: softmax of learned distances over sampled candidates); Goldberger et al. 2005 (neighbourhood components);
Huber 1964 (the loss).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..scores.distance import Euclidean
from .cases import Cases
from .encoding import Rows
from .networks import Network
from .pooling import Memory, Pooled, pool_neighbours
from .similarity import Similarity
from .training import Effort, losses, weighted_mean

NEIGHBOURS = 48  # that a prediction is made from
LEARNED_FROM = 32  # neighbours, in learning: candidates are a part of the table
BATCH = 512  # rows that are predicted from each other
ASKED = 1024  # rows that are predicted from candidates
CANDIDATES = 6144
LOGITS = 4.0  # one-hot votes become logits: all votes for a class make it exp(4) times as likely as one without votes
VOTERS = 1 << 15  # rows that the judged ones are predicted from
JUDGED = 2048
SCALES = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5)  # a whole table is denser than a mini-batch, and bears narrower windows


@dataclass(frozen=True)
class Recipe:
    """How the network is trained: AdamW, an exponential moving average of its weights, early stopping.

    ``alone``: weight of the loss of the votes without g and T, which keeps the distances meaningful. ``patience``: in
    each part of learning so many checks without an improvement end it, and the next part starts from the best state, at
    its ``rate``. ``dropout``: of g and T, at most; that of the block is the estimator's.
    """

    rates: tuple[float, float] = (3e-3, 1e-3)
    patience: tuple[int, int] = (8, 6)
    decay: float = 1.0
    average: float = 0.99
    dropout: float = 0.1
    alone: float = 0.3
    checks: int = 400  # at most
    unjudged: int = 25  # checks of a table so small that no rows can be spared to judge


class Deep(Similarity):
    """φ, g and T by one network (see the top of this file)."""

    score = Euclidean(1.0)
    neighbours = NEIGHBOURS
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
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = cls(Network(**shape), classes=cases.classes, shape=shape)
        made.network.gaps.copy_(gaps)
        with torch.no_grad():
            made.network.bins.place(rows.numbers)
        return made

    def embed(self, rows: Rows) -> Tensor:
        return _in_pieces(self.network, rows)[0]

    def prior(self, rows: Rows) -> Tensor:
        return _in_pieces(self.network, rows)[1]

    def moved(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.network.moved(queries - keys)

    def probabilities(self, pooled: Tensor) -> Tensor:
        return (LOGITS * pooled).softmax(-1)

    def learn(self, cases: Cases, effort: Effort) -> None:
        if len(cases) < 3 or cases.groups is not None and bool((cases.groups == cases.groups[0]).all()):
            return self.learn_nothing()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(effort.seed)
            _Training(self, cases, effort, Recipe()).run()
        if not cases.classes:
            self._correct_nothing(~(cases.targets != cases.targets[0]).any(0))
        self.double()  # in float32 a row alone and in a batch would differ in the seventh digit

    def learn_nothing(self) -> None:
        self._correct_nothing(torch.ones(self.network.outputs, dtype=torch.bool))
        self.double()

    @torch.no_grad()
    def _correct_nothing(self, outputs: Tensor) -> None:
        """Let g and T be 0 for these outputs (v,): what is drawn at the start says nothing."""
        g, t = (cast(nn.Linear, head[-1]) for head in (self.network.alone, self.network.correction))
        for drawn in (g.weight, g.bias, t.weight):
            drawn[outputs.to(drawn.device)] = 0.0

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
        network.drop(effort.dropout, min(effort.dropout, recipe.dropout))
        decays = {id(p): p.ndim > 1 and p is not network.straight.weight for p in network.parameters()}
        matrices = [p for p in network.parameters() if decays[id(p)]]
        others = [p for p in network.parameters() if not decays[id(p)]]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.rates[0])
        self.average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))
        self.part = 0

    def run(self) -> None:
        """Learn; the network is then the average that was judged best, at the scale that was judged best."""
        network, recipe, average = self.similarity.network, self.recipe, cast(Network, self.average.module)
        best, kept, since = math.inf, _state(network), 0
        network.train()
        checks = recipe.unjudged if self.judges is None else recipe.checks
        for check in range(1, checks + 1):
            loss = self._epoch()
            judged = loss if self.judges is None else self._judge(average, 1.0)
            since = 0 if judged < best * (1 - 1e-4) else since + 1
            if judged < best:
                best, kept = judged, _state(average)
            self.effort.shown(check, checks, best)
            if self.effort.spent:
                break
            if since >= recipe.patience[self.part]:
                if self.part + 1 == len(recipe.rates):
                    break
                since = 0
                self._go_on_from(kept)
        network.load_state_dict(kept)
        if self.judges is not None:
            scales = {self._judge(network, scale): scale for scale in reversed(SCALES)}
            network.sharpen(scales[min(scales)])

    def _epoch(self) -> float:
        """Every row is predicted once; of a small table again, until there were 8 steps."""
        m, total, steps = len(self.cases), 0.0, 0
        size = ASKED if self.part else BATCH
        while steps < 8:
            for some in torch.randperm(m).tensor_split(max(1, round(m / size))):
                voters = some
                if self.part:
                    others = torch.ones(m, dtype=torch.bool)
                    others[some] = False
                    rest = others.nonzero()[:, 0]
                    voters = torch.cat([some, rest[torch.randperm(len(rest))[: max(0, CANDIDATES - len(some))]]])
                total += self._step(self.cases.take(voters), len(some))
                steps += 1
                if self.effort.spent:
                    return total / steps
        return total / steps

    def _step(self, voters: Cases, asked: int) -> float:
        """Predict the first rows from all but themselves, and learn from it."""
        network, own = self.similarity.network, torch.arange(asked)
        keys, prior = network(voters.rows)
        found = self._found(network, LEARNED_FROM, keys[:asked], (keys, prior), voters, own)
        loss = self._loss(found, prior[:asked], voters.take(own))
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        self.optimiser.step()
        self.average.update_parameters(network)
        return float(loss.detach())

    @torch.no_grad()
    def _judge(self, network: Network, scale: float) -> float:
        assert self.judges is not None
        was = network.training
        network.eval()
        network.sharpen(scale)
        keys, prior = _in_pieces(network, self.voters.rows)
        queries, own_prior = _in_pieces(network, self.judges.rows)
        found = self._found(network, NEIGHBOURS, queries, (keys, prior), self.voters, None)
        loss = float(self._loss(found, own_prior, self.judges, judging=True))
        network.sharpen(1 / scale)
        network.train(was)
        return loss if math.isfinite(loss) else math.inf

    def _found(
        self,
        network: Network,
        neighbours: int,
        queries: Tensor,
        known: tuple[Tensor, Tensor],
        voters: Cases,
        own: Tensor | None,
    ) -> Pooled:
        """Votes, g and T pooled for φ of the queries; ``known``: φ and g of the voters."""
        memory, values = Memory(known[0], voters.weights, voters.groups), torch.cat([voters.targets, known[1]], 1)
        moved = lambda q, k: network.moved(q - k)  # noqa: E731
        return pool_neighbours(self.similarity.score, queries, memory, values, moved, neighbours=neighbours, own=own)

    def _loss(self, found: Pooled, g: Tensor, asked: Cases, *, judging: bool = False) -> Tensor:
        """The mean loss of what was asked; in learning also that of the votes without g and T, times ``alone``."""
        votes, expected, correction = found.value.split(g.shape[1], 1)
        weights = asked.weights.to(votes.dtype).masked_fill(found.empty, 0.0)
        pooled, targets = votes + g - expected + correction, asked.targets
        if asked.classes:
            each = -(targets * (LOGITS * pooled).log_softmax(1)).sum(1)
        else:
            each = losses("huber" if judging else self.effort.loss, pooled, targets, weights)
        if not judging:
            each = each + self.recipe.alone * losses(self.effort.loss, votes, targets, weights)
        return weighted_mean(each, weights)

    def _go_on_from(self, state: dict[str, Tensor]) -> None:
        self.similarity.network.load_state_dict(state)
        self.average.module.load_state_dict(state)
        self.part += 1
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rates[self.part]


def _in_pieces(network: Network, rows: Rows) -> tuple[Tensor, Tensor]:
    """φ and g; the bins of a piece stay in cache."""
    found = [network(rows.take(piece)) for piece in torch.arange(len(rows)).split(4 * BATCH)]
    return torch.cat([keys for keys, _ in found]), torch.cat([prior for _, prior in found])


def _state(network: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in network.state_dict().items()}
