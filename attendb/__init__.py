"""attendb: a database that you query with attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .answer import Answer
from .attention import attend
from .database import Database
from .errors import (
    AttendbError,
    ConflictError,
    InputError,
    KindError,
    MissingValueError,
    NotFoundError,
    PlanError,
    StorageError,
    TooLargeError,
)
from .plots import show_heatmaps
from .scores.additive import Additive, Constant
from .scores.base import Score
from .scores.columns import PerColumn
from .scores.distance import Boxcar, Epanechnikov, Euclidean, Gaussian, Laplacian, Triangular
from .scores.dot import Bilinear, Cosine, Dot, ScaledDot
from .scores.equal import Equal
from .scores.text import EditSimilarity, NGramSimilarity
from .weightings.base import Pooling, Weighting
from .weightings.linear import Conic, Linear
from .weightings.sampled import Sampled
from .weightings.selecting import Nearest, TopK
from .weightings.softmax import Exact, Normalized, Softmax, Uniform
from .weightings.sparse import Entmax15, Sparsemax, Thresholded

if TYPE_CHECKING:
    from . import estimators

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "Answer",
    "AttendbError",
    "Bilinear",
    "Boxcar",
    "ConflictError",
    "Conic",
    "Constant",
    "Cosine",
    "Database",
    "Dot",
    "EditSimilarity",
    "Entmax15",
    "Epanechnikov",
    "Equal",
    "Euclidean",
    "Exact",
    "Gaussian",
    "InputError",
    "KindError",
    "Laplacian",
    "Linear",
    "MissingValueError",
    "NGramSimilarity",
    "Nearest",
    "Normalized",
    "NotFoundError",
    "PerColumn",
    "PlanError",
    "Pooling",
    "Sampled",
    "ScaledDot",
    "Score",
    "Softmax",
    "Sparsemax",
    "StorageError",
    "Thresholded",
    "TooLargeError",
    "TopK",
    "Triangular",
    "Uniform",
    "Weighting",
    "attend",
    "estimators",
    "show_heatmaps",
]


def __getattr__(name: str) -> Any:
    """`attendb.estimators` is loaded when it is first used: it stands on scikit-learn and pandas."""
    if name == "estimators":
        from importlib import import_module

        return import_module(".estimators", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
