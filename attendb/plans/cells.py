"""The problem that every plan is given, and how it is cut into cells of pairs.

A cell is a slice of the batch × a slice of the queries × a slice of the keys. Each tensor that the answer depends
on has a layout that says which of the three axes it is cut along; the gradients come back by the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..columns import Parts, Values, map_leaves, tensors, with_tensors
from ..errors import InputError, KindError
from ..scores.base import Score
from ..weightings.base import Cell, Weighting

PAIRS_IN_CACHE = 256 * 1920  # scores of one cell: 2 MB in float32; rows of 2048 would share cache lines
KEYS_ALIKE = 192  # blocks are multiples of it: matrix products then round equal keys alike
SCRATCH_BYTES = 1 << 21  # temporaries of one cell: past 2–4 MB they ran five times slower

QUERY, KEY, PAIR, WHOLE, PARAMETER = "query", "key", "pair", "whole", "parameter"

_forced: ContextVar[tuple[int, int] | None] = ContextVar("forced_block_sizes", default=None)


@contextmanager
def block_sizes(*, queries: int, keys: int) -> Iterator[None]:
    """Force how plan "dense" cuts cells (for law checks: the answer must not depend on it)."""
    token = _forced.set((queries, keys))
    try:
        yield
    finally:
        _forced.reset(token)


def forced_blocks() -> tuple[int, int] | None:
    """The block sizes that are forced at the moment, if any."""
    return _forced.get()


class Place(NamedTuple):
    """Where a cell lies."""

    batch: slice
    queries: slice
    keys: slice


def cut(tensor: Tensor, layout: str, place: Place) -> Tensor:
    """The part of a tensor that a cell needs; axes of size 1 are shared."""
    if layout in (WHOLE, PARAMETER):
        return tensor
    axes = {QUERY: (place.batch, place.queries), KEY: (place.batch, place.keys), PAIR: place}[layout]
    return tensor[tuple(slice(None) if size == 1 else axis for size, axis in zip(tensor.shape, axes, strict=False))]


PairFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of `attend`, read and checked: b batch entries, n queries, m keys."""

    score: Score
    weighting: Weighting
    queries: Parts  # embedded, (b, n, ·)
    keys: Parts  # embedded, (b or 1, m, ·)
    values: Values  # (b or 1, m, v)
    positions: Tensor  # (m,) int64, ascending
    query_positions: Tensor  # (n,) int64
    batch: int
    n: int
    m: int
    dtype: torch.dtype  # of the arithmetic
    device: torch.device
    result_dtype: torch.dtype  # of the answer: where it is narrower, float64 serves only to keep its digits
    where: Tensor | PairFunction | None = None  # (b or 1, n or 1, m or 1) bool
    bias: Tensor | PairFunction | None = None  # (b or 1, n or 1, m or 1)
    key_weights: Tensor | None = None  # (b or 1, 1, m)
    exclude: Tensor | None = None  # (b or 1, n, 1) positions
    top: int = 0
    tol: float | None = None  # |value − exact| ≤ tol · (max − min of the value column), |log-normaliser − exact| ≤ tol
    blocks: tuple[int, int] | None = None
    rows_in_all: int = 0  # of the table that the keys are a block of, where they are one

    @staticmethod
    def plain(
        score: Score,
        weighting: Weighting,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        bias: Tensor | None = None,
        key_weights: Tensor | None = None,
        exclude: Tensor | None = None,
    ) -> Problem:
        """The problem of embedded tensors that agree in batch, dtype and device."""
        b, n, m = queries.shape[0], queries.shape[1], keys.shape[1]
        return Problem(
            score=score,
            weighting=weighting,
            queries=queries,
            keys=keys,
            values=values,
            positions=torch.arange(m, device=queries.device),
            query_positions=torch.arange(n, device=queries.device),
            batch=b,
            n=n,
            m=m,
            dtype=queries.dtype,
            device=queries.device,
            result_dtype=queries.dtype,
            bias=bias,
            key_weights=key_weights,
            exclude=exclude,
        )

    def of_queries(self, rows: Tensor) -> Problem:
        """The same question for some of the queries; for a problem without batch, where= and bias=."""
        keep = map_leaves(lambda x: x[:, rows] if isinstance(x, Tensor) else x.take(rows.cpu().numpy()), self.queries)
        exclude = self.exclude
        if exclude is not None and exclude.shape[1] > 1:
            exclude = exclude[:, rows]
        return replace(self, queries=keep, n=len(rows), exclude=exclude, query_positions=self.query_positions[rows])

    @property
    def width(self) -> int:
        return self.values.shape[-1]

    @property
    def masked(self) -> bool:
        return self.where is not None or self.exclude is not None or self.key_weights is not None

    def inputs(self) -> tuple[list[Tensor], list[str]]:
        """Every tensor that the answer depends on, in one order, with its layout."""
        return self._inputs

    @cached_property
    def _inputs(self) -> tuple[list[Tensor], list[str]]:
        q, k = tensors(self.queries), tensors(self.keys)
        found = [(x, QUERY) for x in q] + [(x, KEY) for x in k]
        if isinstance(self.values, Tensor):
            found.append((self.values, KEY))
        found += [(x, PAIR) for x in (self.bias, self.key_weights) if isinstance(x, Tensor)]
        found += [(x, PARAMETER) for x in self.parameters()]
        return [x for x, _ in found], [layout for _, layout in found]

    @cached_property
    def _query_index(self) -> Tensor:
        return torch.arange(self.batch * self.n, device=self.device).view(self.batch, self.n)

    def tempered_rows(self, power: int) -> tuple[Tensor, Tensor]:
        """Queries (n, d) and keys (m, d) of the first batch entry, float64, with the temperature in them.

        For a score that grows with distance ** power: the temperature has then no further part to play.
        """
        q, k = self.queries, self.keys
        assert isinstance(q, Tensor) and isinstance(k, Tensor)
        inverse = self.weighting.temper(torch.ones((), dtype=torch.float64, device=q.device))
        factor = inverse.sqrt() if power == 2 else inverse
        if not factor.requires_grad and float(factor) == 1.0:
            return q[0].double(), k[0].double()
        return q[0].double() * factor, k[0].double() * factor

    @property
    def wants_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in self._inputs[0])

    def parameters(self) -> list[Tensor]:
        return [p for module in (self.score, self.weighting) for p in module.parameters() if p.requires_grad]

    def sizes(self, scale: int = 1) -> tuple[int, int, int]:
        """(batch entries, queries, keys) of one cell; ``scale`` > 1 asks for larger cells."""
        if self.blocks is not None:
            return 1, self.blocks[0], self.blocks[1]
        itemsize = torch.finfo(self.dtype).bits // 8
        scratch = self.score.scratch(self.queries, self.keys)
        area = min(PAIRS_IN_CACHE, SCRATCH_BYTES // (itemsize * scratch)) if scratch > 2 else PAIRS_IN_CACHE * scale
        area = max(area, 1024)
        n = max(1, min(self.n, 256 if area >= 1 << 16 else 64))
        m = max(1, area // n)
        m = min(self.m, max(m - m % KEYS_ALIKE, 1) if m > KEYS_ALIKE else m) or 1
        n = max(1, min(self.n, max(n, min(area // m, 4096))))
        return max(1, min(self.batch, area // (n * m))), n, m

    def places(self, scale: int = 1) -> Iterator[tuple[int, Place]]:
        """Every cell, keys in the outer loop, with the number of its tile of queries."""
        b, n, m = self.sizes(scale)
        tiles = [(i, j) for i in _slices(self.batch, b) for j in _slices(self.n, n)]
        for keys in _slices(self.m, m):
            for number, (batch, queries) in enumerate(tiles):
                yield number, Place(batch, queries, keys)

    def cell(self, place: Place, cuts: Sequence[Tensor] | None = None, context: Sequence[Tensor] = ()) -> Cell:
        """Score the pairs of a place; ``cuts`` replaces the cut `inputs` (to differentiate with respect to them)."""
        if cuts is None:
            cuts = [cut(x, layout, place) for x, layout in zip(*self.inputs(), strict=True)]
        given = iter(cuts)
        q, k = (self._parts(parts, place, given) for parts in (self.queries, self.keys))
        values: Values = next(given) if isinstance(self.values, Tensor) else self.values.cut(place.batch, place.keys)
        bias = next(given) if isinstance(self.bias, Tensor) else self.function_at(self.bias, place, "bias")
        multiplicity = next(given) if self.key_weights is not None else None
        present = self.present(place, multiplicity)
        scores = self._scores(place, q, k, bias)
        return Cell(
            scores=scores,
            values=values,
            present=present,
            multiplicity=multiplicity,
            positions=self.positions[place.keys],
            query_index=self._query_index[place.batch, place.queries],
            context=tuple(x[place.batch, place.queries] for x in context),
        )

    def _parts(self, parts: Parts, place: Place, given: Iterator[Tensor]) -> Parts:
        rows = place.queries if parts is self.queries else place.keys
        own = map_leaves(lambda leaf: leaf if isinstance(leaf, Tensor) else leaf.take(rows), parts)
        return with_tensors(own, [next(given) for _ in tensors(parts)])

    def _scores(self, place: Place, q: Parts, k: Parts, bias: Tensor | None) -> Tensor:
        shape = tuple(_length(s, size) for s, size in zip(place, (self.batch, self.n, self.m), strict=True))
        if not self.weighting.uses_scores:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        scores = self.score.pair(q, k)
        if scores.ndim != 3 or scores.shape[-2:] != shape[1:] or scores.shape[0] not in (1, shape[0]):
            raise InputError(
                f"the score returned shape {tuple(scores.shape)} for {shape[1]} queries and {shape[2]} keys: "
                "return (..., n, m)"
            )
        scores = scores.to(dtype=self.dtype, device=self.device)
        if bias is not None:
            scores = scores + bias
        scores = self.weighting.temper(scores)
        return scores if scores.shape[0] == shape[0] else scores.expand(shape)

    def present(self, place: Place, multiplicity: Tensor | None) -> Tensor | None:
        masks: list[Tensor] = []
        if isinstance(self.where, Tensor):
            masks.append(cut(self.where, PAIR, place))
        elif self.where is not None:
            mask = self.function_at(self.where, place, "where")
            if mask is not None:
                masks.append(mask)
        if self.exclude is not None:
            masks.append(cut(self.exclude, PAIR, place) != self.positions[place.keys])
        if multiplicity is not None:
            masks.append(multiplicity.detach() > 0)
        if not masks:
            return None
        present = masks[0]
        for mask in masks[1:]:
            present = present & mask
        return present

    def function_at(self, fn: PairFunction | Tensor | None, place: Place, name: str) -> Tensor | None:
        if fn is None or isinstance(fn, Tensor):
            return None
        out = fn(self.query_positions[place.queries][:, None], self.positions[place.keys][None, :])
        if not isinstance(out, Tensor):
            out = torch.as_tensor(out, device=self.device)
        shape = (_length(place.queries, self.n), _length(place.keys, self.m))
        if name == "where" and out.dtype != torch.bool:
            raise KindError(f"the function where= returned dtype {out.dtype}: return bool (True = may attend)")
        if name == "bias" and out.requires_grad:
            raise InputError("the function bias= returns a tensor that requires a gradient: give bias= as a tensor")
        try:
            return out.expand(shape)[None] if name == "where" else out.to(self.dtype).expand(shape)[None]
        except RuntimeError:
            raise InputError(
                f"the function {name}= returned shape {tuple(out.shape)} for {shape[0]} query and {shape[1]} key "
                "positions: return one that broadcasts to (n, m)"
            ) from None


def _length(s: slice, size: int) -> int:
    return len(range(*s.indices(size)))


def _slices(size: int, step: int) -> list[slice]:
    """At least one, so that an empty table gives the identity of the fold."""
    return [slice(start, min(start + step, size)) for start in range(0, max(size, 1), step)]
