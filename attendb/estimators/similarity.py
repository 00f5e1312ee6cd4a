"""How alike two rows are: the contract of a learned similarity, and two of them.

    a(x, x') = −½ ‖φ(x) − φ(x')‖²        y^(x) = Σ_i α(x, x_i) y_i,    α = softmax of a

`Bandwidth` divides each column by a bandwidth of its own, `Linear` applies a linear map. A similarity may have a score
of its own, and may correct what the cases vote for (`deep.py`). It is made from the rows that it will compare
(`begin`), then learns (`learn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..scores.base import Score
from ..scores.distance import Gaussian
from .cases import Cases
from .encoding import Encoder, Rows
from .features import Features
from .starting import start, usefulness
from .training import CANDIDATES, QUERIES, Effort, Recipe, Trial, train

SIMILARITIES: dict[str, str] = {"bandwidth": "similarity:Bandwidth", "linear": "similarity:Linear", "deep": "deep:Deep"}


class Similarity(nn.Module, ABC):
    """What an estimator needs to know about rows: φ, and how votes are corrected where they are.

    A subclass gives `begin`, `embed`, `config` and `made`; `prior` where it has a g, `moved` where it has
    ``neighbours``, and `learn` where the common loop does not serve it. ``score`` compares embedded rows, and gives a
    row and itself the score 0. All of its state is tensors (`state_dict`) and what JSON can hold (`config`), so that a
    model is saved without code.
    """

    score: Score = Gaussian(1.0)
    memorises: bool = True  # may know rows that it learned from by heart: intervals then go by rows that judged
    settles: bool = True  # its common scale is found by rows that leave themselves out, once it has learned
    neighbours: int = 0  # so many nearest rows vote, and `moved` corrects their votes; 0: all vote, and nothing does
    slopes: int = 0  # so many leading columns of φ may carry the slopes of a local line; 0: none

    @classmethod
    @abstractmethod
    def begin(cls, cases: Cases, seed: int) -> Self:
        """A similarity for these rows that has learned nothing yet."""

    @abstractmethod
    def embed(self, rows: Rows) -> Tensor:
        """φ (n, d) of encoded rows; differentiable."""

    def prior(self, rows: Rows) -> Tensor | None:
        """g (n, v) of encoded rows, in the units of the standardised targets; None: g = 0."""
        return None

    def moved(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(n, r, v): what is added to the votes of embedded rows (n, r, d) for queries (n, 1, d)."""
        raise NotImplementedError(f"{type(self).__name__} corrects no votes by pairs")

    def learn(self, cases: Cases, effort: Effort) -> None:
        """Learn from rows that leave themselves out."""
        train(self, cases, effort, Recipe())

    def learn_nothing(self) -> None:
        """In place of `learn` where the outcome is constant, or there are fewer than three different rows."""

    def probabilities(self, pooled: Tensor) -> Tensor:
        """Probabilities (n, classes) from what was pooled of one-hot targets; a local line may leave [0, 1]."""
        positive = pooled.clamp(min=0.0)
        return positive / positive.sum(-1, keepdim=True).clamp(min=torch.finfo(pooled.dtype).tiny)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What JSON can hold, for `made`."""

    @classmethod
    @abstractmethod
    def made(cls, config: dict[str, Any]) -> Self:
        """A similarity with room for the tensors of the one that gave this config."""


def similarity_named(name: object) -> type[Similarity]:
    """The class of that name. Raises InputError for an unknown one."""
    from importlib import import_module

    if not isinstance(name, str) or name not in SIMILARITIES:
        raise InputError(f"similarity is {name!r}: choose one of {', '.join(map(repr, SIMILARITIES))}")
    module, kind = SIMILARITIES[name].split(":")
    return getattr(import_module(f".{module}", __package__), kind)


class Bandwidth(Similarity):
    """One bandwidth a column: φ_j(x) = x_j / h_j; a category that differs costs ½ s², a missing cell likewise.

    h is kept as a logarithm. It starts at Scott's rule, h_j = σ_j m^(−1/(d+4)), of all columns or of those that tell
    something about y by themselves, at the common scale that predicts best. A constant column has no weight.

    Source: Scott 1992, equation 6.42; Hall, Racine and Li 2004 (bandwidths by cross-validation, irrelevant columns);
    Aitchison and Aitken 1976 (categories).
    """

    memorises = False
    order: Tensor

    def __init__(self, features: Features):
        super().__init__()
        self.features = features
        self.log_inverse = nn.Parameter(torch.zeros(features.scales, dtype=torch.float64))
        self.register_buffer("order", torch.arange(features.width))  # of the columns of φ: narrow bandwidths first

    @classmethod
    def begin(cls, cases: Cases, seed: int) -> Self:
        made = cls(Features.of(cases.rows, cases.weights))
        m, d = float(cases.weights.sum()), made.features.scales
        with torch.no_grad():
            made.log_inverse.fill_(torch.tensor(max(m, 1.0)).double().log() / (d + 4))
        return made

    @property
    def slopes(self) -> int:  # type: ignore[override]
        return self.features.width

    @property
    def inverse(self) -> Tensor:
        """1 / h of each feature (width,), in standard deviations."""
        return self.log_inverse.exp()[self.features.scale_of]

    def bandwidths(self, encoder: Encoder) -> dict[str, float]:
        """h of each scale by the name of its column, in its units; for a gap or a category, 1 / its distance."""
        features = self.features
        h = (features.units / self.log_inverse.detach().exp()).tolist()
        return dict(zip(features.names(encoder.numbers, tuple(encoder.levels)), h, strict=True))

    def embed(self, rows: Rows) -> Tensor:
        return (self.features(rows) * self.inverse)[:, self.order]

    def learn(self, cases: Cases, effort: Effort) -> None:
        if len(cases) > 2:
            with torch.no_grad():
                useful = usefulness(self.features(cases.rows), self.features.scale_of, cases, effort.seed)
                start(self.log_inverse, useful, partial(Trial(cases, effort, QUERIES, CANDIDATES).judge, self))
        train(self, cases, effort, Recipe())
        self.order.copy_(self.inverse.detach().argsort(descending=True, stable=True))

    def config(self) -> dict[str, Any]:
        return {"features": self.features.config()}

    @classmethod
    def made(cls, config: dict[str, Any]) -> Self:
        return cls(Features.made(config["features"]))


class Linear(Similarity):
    """A linear map of the columns: φ(x) = M (z / h), z the standardised features, h bandwidths that were learned first.

    M starts as the identity; with more than `MOST` features as the projection on the directions in which z / h differs
    most. When it has learned, φ is turned so that its first columns are those along which rows differ most.

    Source: Goldberger et al. 2005 and Weinberger and Tesauro 2007 (a metric learned by leaving one out).
    """

    MOST = 32
    inverse: Tensor

    def __init__(self, features: Features, width: int):
        super().__init__()
        self.features = features
        self.register_buffer("inverse", torch.ones(features.width, dtype=torch.float64))
        self.mixing = nn.Parameter(torch.zeros(width, features.width, dtype=torch.float64))

    @classmethod
    def begin(cls, cases: Cases, seed: int) -> Self:
        simple = Bandwidth.begin(cases, seed)
        made = cls(simple.features, min(cls.MOST, simple.features.width))
        made._start_at(simple, cases)
        return made

    @property
    def slopes(self) -> int:  # type: ignore[override]
        return len(self.mixing)

    def embed(self, rows: Rows) -> Tensor:
        return (self.features(rows) * self.inverse) @ self.mixing.T

    def learn(self, cases: Cases, effort: Effort) -> None:
        simple = Bandwidth.begin(cases, effort.seed).to(self.inverse.device)
        simple.learn(cases, effort)
        self._start_at(simple, cases)
        train(self, cases, effort, Recipe(rate=0.02, steps=150, iterations=20, pull=1.0))
        with torch.no_grad():
            _, lengths, directions = torch.linalg.svd(self.mixing * self.inverse, full_matrices=False)
            self.mixing.copy_(lengths[:, None] * directions / self.inverse)

    @torch.no_grad()
    def _start_at(self, simple: Bandwidth, cases: Cases) -> None:
        self.inverse.copy_(simple.inverse)
        self.mixing.copy_(torch.eye(*self.mixing.shape))
        if len(self.mixing) < len(self.inverse):
            scaled = self.features(cases.rows) * self.inverse
            scaled = scaled - (cases.weights[:, None] * scaled).sum(0) / cases.weights.sum()
            covariance = (scaled * cases.weights[:, None]).T @ scaled
            self.mixing.copy_(torch.linalg.eigh(covariance)[1].flip(1)[:, : len(self.mixing)].T)

    def config(self) -> dict[str, Any]:
        return {"features": self.features.config(), "width": len(self.mixing)}

    @classmethod
    def made(cls, config: dict[str, Any]) -> Self:
        return cls(Features.made(config["features"]), config["width"])
