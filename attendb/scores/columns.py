"""The score of rows with named columns of different kinds: PerColumn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..columns import Columns, Parts, tensors
from ..errors import AttendbError, InputError, KindError
from .base import Score, as_score


class PerColumn(Score):
    """A weighted sum of one score a column: a(q, k) = Σ_c w_c a_c(q_c, k_c).

    ``scores``: {column: score, …}, a score being any Score, module or pairwise function. ``weights`` (C,) are the
    w_c, in the order of ``scores``, 1 at the start and frozen unless ``learn``; the parts learn by their own
    ``learn``. Columns that are not named are ignored. Where a part scores −∞ (a missing text) the sum is −∞, whatever
    the weight. Raises KindError where queries or keys have no columns, InputError for a column they lack, and
    what a part raises, with the name of its column. Cost: the sum of the parts.

    >>> import attendb as ad
    >>> score = ad.PerColumn({"name": ad.EditSimilarity(), "age": ad.Gaussian(10.0)})
    >>> score({"name": ["Li"], "age": [40.0]}, {"name": ["Li", "Lu"], "age": [50.0, 40.0]}).flatten().tolist()
    [0.5, 0.5]

    Source: Gower 1971 (a similarity of mixed columns as the weighted sum of one similarity each).
    """

    takes: ClassVar[str] = "columns"
    same_width: ClassVar[bool] = False

    def __init__(self, scores: Mapping[str, object], *, learn: bool = False):
        super().__init__()
        if not isinstance(scores, Mapping):
            raise KindError(f"PerColumn takes a dict of column: score, got {type(scores).__name__}")
        if not scores:
            raise InputError("PerColumn was given no column: name at least one, PerColumn({column: score})")
        self.names: tuple[str, ...] = tuple(map(str, scores))  # as the columns of data are named
        parts = []
        for name, part in scores.items():
            with _in_column(name):
                parts.append(as_score(part))
        self.parts = nn.ModuleList(parts)  # no ModuleDict: a column may be called "keys" or "a.b"
        self.weights = nn.Parameter(torch.ones(len(parts), dtype=torch.float64), requires_grad=learn)

    def _each(self) -> Iterator[tuple[str, Any]]:
        return zip(self.names, self.parts, strict=True)

    def check(self, queries: Columns, keys: Columns) -> None:
        for columns, what in ((queries, "queries"), (keys, "keys")):
            wanted = ", ".join(map(repr, self.names))
            if not isinstance(columns, dict):
                kind = "numbers" if isinstance(columns, Tensor) else "text"
                raise KindError(
                    f"{what} are {kind} without names but PerColumn compares columns by name: "
                    f"give a dict with the columns {wanted}"
                )
            for name in self.names:
                if name not in columns:
                    have = ", ".join(map(repr, columns)) or "none"
                    raise InputError(f"{what} have no column {name!r} (score=PerColumn): their columns are {have}")
        for name, part in self._each():
            with _in_column(name):
                part.check(queries[name], keys[name])  # type: ignore[index]

    def anchor(self, keys: Any) -> dict[str, Any]:
        return {name: part.anchor(keys[name]) for name, part in self._each()}

    def embed_queries(self, queries: Any, anchor: dict[str, Any]) -> Parts:
        return tuple(self._embed(name, part.embed_queries, queries, anchor) for name, part in self._each())

    def embed_keys(self, keys: Any, anchor: dict[str, Any]) -> Parts:
        return tuple(self._embed(name, part.embed_keys, keys, anchor) for name, part in self._each())

    def _embed(self, name: str, embed: Any, columns: dict[str, Columns], anchor: dict[str, Any]) -> Parts:
        with _in_column(name):
            return embed(columns[name], anchor[name])

    def pair(self, queries: Any, keys: Any) -> Tensor:
        scores: list[Tensor] = []
        for (name, part), query, key in zip(self._each(), queries, keys, strict=True):
            with _in_column(name):
                scores.append(part.pair(query, key))
        numeric = [score for score, query in zip(scores, queries, strict=True) if tensors(query)] or scores
        dtype, device = numeric[0].dtype, numeric[0].device
        for score in numeric[1:]:
            dtype = torch.promote_types(dtype, score.dtype)
        weights = self.weights.to(device=device, dtype=dtype)
        terms: list[Tensor] = []
        absent: Tensor | None = None
        for score, weight in zip(scores, weights, strict=True):
            score = score.to(device=device, dtype=dtype)
            never = score.detach().isneginf()
            if never.any():  # left out of the sum: 0 · −∞ is NaN, and so is its gradient to the weight
                score = score.masked_fill(never, 0.0)
                absent = never if absent is None else absent | never
            terms.append(weight * score)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        if absent is None:
            return total
        return total.masked_fill(absent & ~total.detach().isnan(), -torch.inf)  # a NaN is still to be reported

    def scratch(self, queries: Any, keys: Any) -> int:
        return max(part.scratch(q, k) for (_, part), q, k in zip(self._each(), queries, keys, strict=True))

    def lost_digits(self, queries: Any, keys: Any) -> float:
        lost = [part.lost_digits(q, k) for (_, part), q, k in zip(self._each(), queries, keys, strict=True)]
        return max(max(1.0, abs(weight)) * part for weight, part in zip(self.weights.tolist(), lost, strict=True))

    def __repr__(self) -> str:
        terms = zip(self.weights.tolist(), self._each(), strict=True)
        lines = "\n".join(f"{weight:g} × {name!r}: {part!r}" for weight, (name, part) in terms)
        end = "weights learn)" if self.weights.requires_grad else ")"
        return f"PerColumn(\n{textwrap.indent(lines, '  ')}\n{end}"


@contextmanager
def _in_column(name: str) -> Iterator[None]:
    try:
        yield
    except AttendbError as error:
        raise type(error)(f"column {name!r}: {error}") from error
