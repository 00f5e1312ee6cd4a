"""What a score is.

    a(q, k) = pair(embed_queries(q), embed_keys(k))

A score embeds each query and each key once, then compares embedded rows pairwise, block by block. What is
learned in the embedding gets its gradient from plain autograd; what is learned in `pair` from the fold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..columns import Columns, Opaque, Parts
from ..errors import InputError, KindError


class Factors(NamedTuple):
    """a(q, k) = phi(q) · psi(k) + offset(q)."""

    phi: Tensor  # (b, n, w)
    psi: Tensor  # (b, m, w)
    offset: Tensor | None  # (b, n)


class Score(nn.Module, ABC):
    """How compatible a query and a key are: any real number, higher = more compatible.

    A subclass gives `pair`, and whichever of the others it needs. Scores are created frozen; ``learn=True``
    or ``.requires_grad_()`` makes their parameters learn.
    """

    default_weighting: ClassVar[str] = "Softmax"
    takes: ClassVar[str] = "numbers"  # "numbers", "text", "any column" or "columns"
    same_width: ClassVar[bool] = True

    def check(self, queries: Columns, keys: Columns) -> None:
        """Raise a short fact when these columns cannot be compared."""
        for columns, what in ((queries, "queries"), (keys, "keys")):
            if not isinstance(columns, Tensor):
                kind = "mixed columns" if isinstance(columns, dict) else "text"
                raise KindError(
                    f"{what} are {kind} but {type(self).__name__} compares numbers: use EditSimilarity, "
                    "NGramSimilarity or Equal for text, PerColumn for mixed columns"
                )
        q, k = cast(Tensor, queries), cast(Tensor, keys)
        if self.same_width and q.shape[-1] != k.shape[-1]:
            raise InputError(
                f"keys have width {k.shape[-1]} but queries have width {q.shape[-1]} (score={type(self).__name__}): "
                f"project one of them or use Bilinear({q.shape[-1]}, {k.shape[-1]})"
            )

    def anchor(self, keys: Columns) -> Any:
        """What the embedding needs to know about the table, found once: a centre, a dictionary. Carries no gradient."""
        return None

    def embed_queries(self, queries: Columns, anchor: Any) -> Parts:
        return cast(Parts, queries)

    def embed_keys(self, keys: Columns, anchor: Any) -> Parts:
        return cast(Parts, keys)

    @abstractmethod
    def pair(self, queries: Any, keys: Any) -> Tensor:
        """Scores (b, n, m) of embedded queries (b, n, ·) and embedded keys (b, m, ·)."""

    def scratch(self, queries: Parts, keys: Parts) -> int:
        """Temporary numbers that `pair` needs for one pair, so that a block of pairs stays in cache."""
        return 1

    def factors(self, queries: Parts, keys: Parts) -> Factors | None:
        """The score as an inner product of embedded rows, where it is one."""
        return None

    def lost_digits(self, queries: Parts, keys: Parts) -> float:
        """Rounding error of the score in units of the machine epsilon ÷ what is tolerated: above 1, float64 is used."""
        return 0.0

    def forward(self, queries: Any, keys: Any) -> Tensor:
        """All scores (..., n, m) of queries (..., n, d) and keys (..., m, d), with gradients."""
        from ..reading import read_columns

        stack = self.takes != "columns"
        q, k = read_columns(queries, "queries", stack=stack), read_columns(keys, "keys", stack=stack)
        self.check(q, k)
        anchor = self.anchor(k)
        return self.pair(self.embed_queries(q, anchor), self.embed_keys(k, anchor))


class Custom(Score):
    """A pairwise function or module of yours: ``fn(queries (b, n, d), keys (b, m, d)) → scores (b, n, m)``.

    It is called on blocks of pairs, so it must score each pair by itself. Parameters of an `nn.Module` learn;
    a tensor that a plain function has closed over would lose its gradient, so it is refused with one error.
    """

    takes = "any column"
    same_width = False

    def __init__(self, fn: Callable[[Any, Any], Tensor]):
        super().__init__()
        self.fn = fn
        self._probed = isinstance(fn, nn.Module)

    def check(self, queries: Columns, keys: Columns) -> None:
        if isinstance(queries, dict) or isinstance(keys, dict):
            raise KindError("a function of yours scores one column: use PerColumn for mixed columns")
        if isinstance(queries, Tensor) and isinstance(keys, Tensor):
            self._probe(queries, keys)

    def _probe(self, queries: Tensor, keys: Tensor) -> None:
        if queries.shape[-2] == 0 or keys.shape[-2] == 0:
            return
        q, k = queries.detach()[..., :1, :], keys.detach()[..., :1, :]
        with torch.enable_grad():
            out = self.fn(q, k)
        if not isinstance(out, Tensor):
            raise KindError(
                f"the score function must return a tensor, got {type(out).__name__}: return scores (..., n, m)"
            )
        if not out.is_floating_point():
            raise KindError(
                f"the score function must return a floating tensor, got dtype {out.dtype}: convert it with .double()"
            )
        if out.shape[-2:] != (1, 1):
            raise InputError(
                f"the score function returned shape {tuple(out.shape)} for 1 query and 1 key: return (..., n, m)"
            )
        if out.requires_grad and not isinstance(self.fn, nn.Module):
            raise InputError(
                "the score function has closed over a tensor that requires a gradient, which blocks would lose: "
                "wrap the function in an nn.Module that holds the tensor as a Parameter"
            )

    def pair(self, queries: Any, keys: Any) -> Tensor:
        queries, keys = (x.rows if isinstance(x, Opaque) else x for x in (queries, keys))
        out = self.fn(queries, keys)
        return out if isinstance(out, Tensor) else torch.as_tensor(out)

    def scratch(self, queries: Parts, keys: Parts) -> int:
        return max(1, keys.shape[-1]) if isinstance(keys, Tensor) else 1

    def extra_repr(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def as_score(score: object) -> Score:
    """The score itself, or your function or module as a `Custom` score."""
    if isinstance(score, Score):
        return score
    if isinstance(score, type):
        raise KindError(f"score is the class {score.__name__}: create it, {score.__name__}(…)")
    if callable(score):
        return Custom(cast(Callable[[Any, Any], Tensor], score))
    raise KindError(f"score must be a Score, an nn.Module or a function of (queries, keys), got {type(score).__name__}")
