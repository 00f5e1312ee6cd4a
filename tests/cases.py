"""The one table: scores × weightings × dtypes × cuts into blocks. A new component is a new row here.

Each row is run against the dense oracle for values, log-normaliser, weights, best rows and gradients by
`test_against_oracle.py`, and against the laws by `test_laws.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

import attendb as ad

QUERIES, KEYS, WIDTH, VALUE_WIDTH = 5, 11, 3, 2
WORDS = "zhang lipton li smola hu werness lu liang lipson small smith".split()
ASKED = "li lu smile lipton wern".split()

Make = Callable[[], Any]
Data = Callable[[Generator], tuple[Any, Any]]


def seeded(name: str) -> Generator:
    """A generator that depends on the name of the case and on nothing else."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def points(generator: Generator) -> tuple[Tensor, Tensor]:
    return normal(generator, QUERIES, WIDTH), normal(generator, KEYS, WIDTH)


def far_points(generator: Generator) -> tuple[Tensor, Tensor]:
    """As `points`, with one query that no compact kernel reaches."""
    queries, keys = points(generator)
    queries[-1] = 50.0
    return queries, keys


def zero_row(generator: Generator) -> tuple[Tensor, Tensor]:
    queries, keys = points(generator)
    queries[1] = 0.0
    keys[2] = 0.0
    return queries, keys


def coincident(generator: Generator) -> tuple[Tensor, Tensor]:
    """As `points`, with two queries that are stored rows and two rows that repeat."""
    queries, keys = points(generator)
    keys[4] = keys[3]
    queries[0], queries[1] = keys[3], keys[6]
    return queries, keys


def two_widths(generator: Generator) -> tuple[Tensor, Tensor]:
    return normal(generator, QUERIES, 2), normal(generator, KEYS, WIDTH)


def grid(generator: Generator) -> tuple[Tensor, Tensor]:
    """Few distinct rows, so that keys equal queries; the last query equals none."""
    queries = torch.randint(0, 2, (QUERIES, 2), generator=generator).double()
    queries[-1] = 7.0
    return queries, torch.randint(0, 2, (KEYS, 2), generator=generator).double()


def words(generator: Generator) -> tuple[list[str], list[str]]:
    return list(ASKED), list(WORDS)


def mixed(generator: Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {"x": normal(generator, QUERIES, 1), "name": list(ASKED)},
        {"x": normal(generator, KEYS, 1), "name": list(WORDS)},
    )


def multiplicities() -> Tensor:
    """Key weights, irrational: with rational ones a sparse weight can lie on the edge of its support, where the
    gradient of one side is as right as that of the other."""
    return torch.linspace(-0.7, 0.7, KEYS, dtype=torch.float64).exp()


def closeness(queries: Tensor, keys: Tensor) -> Tensor:
    """A plain function of the user's, positive everywhere."""
    differences = queries[..., :, None, :] - keys[..., None, :, :]
    return 1 / (1 + differences.square().sum(-1))


class Network(torch.nn.Module):
    """A module of the user's, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Parameter(normal(seeded("network"), WIDTH))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.sin(queries[..., :, None, :] * self.mix + keys[..., None, :, :]).sum(-1)


@dataclass(frozen=True)
class ScoreCase:
    """A score, the queries and keys that it is tried on, and what may be asked of it."""

    name: str
    make: Make
    data: Data = points
    has_gradient: bool = True  # to queries and keys
    nonnegative: bool = False
    smooth: bool = True  # has second derivatives at the data


@dataclass(frozen=True)
class WeightingCase:
    """A weighting, what it asks of the scores, and how much more rounding than Softmax it may show."""

    name: str
    make: Make
    needs_nonnegative: bool = False
    rounding: float = 1.0
    takes_scores: bool = True


def _weight(name: str, *shape: int) -> Tensor:
    return normal(seeded(name), *shape)


SCORES = [
    ScoreCase("dot", lambda: ad.Dot()),
    ScoreCase("scaled dot", lambda: ad.ScaledDot()),
    ScoreCase("cosine", lambda: ad.Cosine(), zero_row, smooth=False),
    ScoreCase("bilinear", lambda: ad.Bilinear(2, WIDTH, weight=_weight("W", 2, WIDTH)), two_widths),
    ScoreCase(
        "additive",
        lambda: ad.Additive(
            2,
            WIDTH,
            4,
            query_weight=_weight("Wq", 4, 2),
            key_weight=_weight("Wk", 4, WIDTH),
            weight=_weight("w", 4),
        ),
        two_widths,
    ),
    ScoreCase("gaussian", lambda: ad.Gaussian(0.8), coincident),
    ScoreCase("gaussian, one bandwidth a column", lambda: ad.Gaussian([0.5, 1.0, 2.0])),
    ScoreCase("gaussian, full matrix", lambda: ad.Gaussian([[0.9, 0.2, 0.0], [0.0, 1.1, -0.3], [0.1, 0.0, 0.7]])),
    ScoreCase("laplacian", lambda: ad.Laplacian(0.7), coincident, smooth=False),
    ScoreCase("euclidean", lambda: ad.Euclidean([0.5, 1.0, 2.0]), coincident, smooth=False),
    ScoreCase("boxcar", lambda: ad.Boxcar(1.8), far_points, nonnegative=True, smooth=False),
    ScoreCase("triangular", lambda: ad.Triangular(2.2), far_points, nonnegative=True, smooth=False),
    ScoreCase("epanechnikov", lambda: ad.Epanechnikov([2.0, 2.5, 3.0]), far_points, nonnegative=True, smooth=False),
    ScoreCase("constant", lambda: ad.Constant(), nonnegative=True, has_gradient=False),
    ScoreCase("equal", lambda: ad.Equal(), grid, nonnegative=True, has_gradient=False),
    ScoreCase("equal, text", lambda: ad.Equal(), words, nonnegative=True, has_gradient=False),
    ScoreCase("edit similarity", lambda: ad.EditSimilarity(), words, nonnegative=True, has_gradient=False),
    ScoreCase("n-gram similarity", lambda: ad.NGramSimilarity(), words, nonnegative=True, has_gradient=False),
    ScoreCase(
        "per column", lambda: ad.PerColumn({"x": ad.Gaussian(0.7), "name": ad.EditSimilarity()}), mixed, smooth=False
    ),
    ScoreCase(
        "per column, kernels",
        lambda: ad.PerColumn({"x": ad.Triangular(1.5), "name": ad.Equal()}),
        mixed,
        nonnegative=True,
        smooth=False,
    ),
    ScoreCase("function", lambda: closeness, nonnegative=True),
    ScoreCase("module", Network),
]

WEIGHTINGS = [
    WeightingCase("softmax", lambda: ad.Softmax()),
    WeightingCase("softmax, T = 0.3", lambda: ad.Softmax(temperature=0.3), rounding=4),
    WeightingCase("normalized", lambda: ad.Normalized(), needs_nonnegative=True),
    WeightingCase("conic", lambda: ad.Conic(), needs_nonnegative=True),
    WeightingCase("linear", lambda: ad.Linear()),
    WeightingCase("uniform", lambda: ad.Uniform(), takes_scores=False),
    WeightingCase("sparsemax", lambda: ad.Sparsemax(), rounding=4),
    WeightingCase("entmax15", lambda: ad.Entmax15(), rounding=4),
    WeightingCase("nearest", lambda: ad.Nearest()),
    WeightingCase("nearest, at least 0.5", lambda: ad.Nearest(at_least=0.5)),
    WeightingCase("top 4", lambda: ad.TopK(4)),
    WeightingCase("top 3, uniform, at least -1", lambda: ad.TopK(3, then=ad.Uniform(), at_least=-1.0)),
    WeightingCase("top 20, sparsemax", lambda: ad.TopK(20, then=ad.Sparsemax()), rounding=4),
    WeightingCase("top 4, normalized", lambda: ad.TopK(4, then=ad.Normalized()), needs_nonnegative=True),
]


@dataclass(frozen=True)
class Dtype:
    """A dtype, and the absolute and relative difference from the float64 oracle that its rounding explains."""

    dtype: torch.dtype
    tolerance: float


DTYPES = [
    Dtype(torch.float64, 1e-12),
    Dtype(torch.float32, 5e-6),
    Dtype(torch.float16, 2e-3),
    Dtype(torch.bfloat16, 1.5e-2),
]

# Queries × keys of one cell: thin, uneven in both, long, and the engine's own. The laws try cells of one pair.
BLOCKS: list[tuple[int, int] | None] = [(64, 2), (2, 5), (3, 8), None]


@dataclass(frozen=True)
class Case:
    """One combination: a score, a weighting, and the numbers they are tried on."""

    score: ScoreCase
    weighting: WeightingCase

    @property
    def name(self) -> str:
        return f"{self.score.name} - {self.weighting.name}"

    def inputs(self, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Tensor]:
        """Queries, keys and values, rounded to the dtype."""
        generator = seeded(self.name)
        queries, keys = self.score.data(generator)
        values = normal(generator, KEYS, VALUE_WIDTH)
        return cast(queries, dtype), cast(keys, dtype), values.to(dtype)

    def options(self) -> dict[str, Any]:
        return {"score": self.score.make(), "weighting": self.weighting.make()}


def cast(columns: Any, dtype: torch.dtype) -> Any:
    if isinstance(columns, dict):
        return {name: cast(column, dtype) for name, column in columns.items()}
    return columns.to(dtype) if isinstance(columns, Tensor) else columns


def combinations() -> Iterator[Case]:
    """Every score with every weighting that can take it."""
    for score in SCORES:
        for weighting in WEIGHTINGS:
            if score.nonnegative or not weighting.needs_nonnegative:
                yield Case(score, weighting)


CASES = list(combinations())
CASES += [Case(score, WeightingCase("exact", lambda: ad.Exact())) for score in SCORES if score.name.startswith("equal")]
