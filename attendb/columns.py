"""What a score is handed: columns of numbers, text or anything that can be cut by rows.

`Parts` is what the engine carries for queries and keys: a tensor (batch, rows, width), a column of
Python objects or sparse rows, or a nested tuple of these (mixed columns). The engine cuts and takes
rows; only the score looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Opaque:
    """A column of rows that are no numbers: text, or sparse vectors made from text. It has no batch axis.

    Its rows are never written to, so what a score has made of all of them is kept in ``made``, by the score's repr.
    """

    rows: Any  # numpy object array or scipy CSR matrix
    made: dict[str, Any] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[type[Opaque], tuple[Any]]:
        return Opaque, (self.rows,)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def take(self, index: slice | np.ndarray) -> Opaque:
        return Opaque(self.rows[index])


Parts: TypeAlias = "Tensor | Opaque | tuple[Any, ...]"  # nested tuples of Parts
Columns: TypeAlias = "Tensor | Opaque | dict[str, Columns]"


def leaves(parts: Parts) -> Iterator[Tensor | Opaque]:
    """Every tensor and opaque column, in order."""
    if isinstance(parts, tuple):
        for part in parts:
            yield from leaves(part)
    else:
        yield parts


def map_leaves(fn: Callable[[Tensor | Opaque], Tensor | Opaque], parts: Parts) -> Parts:
    """The same structure, with ``fn`` of every leaf."""
    if isinstance(parts, tuple):
        return tuple(map_leaves(fn, part) for part in parts)
    return fn(parts)


def tensors(parts: Parts) -> list[Tensor]:
    """Its tensors, in order."""
    return [leaf for leaf in leaves(parts) if isinstance(leaf, Tensor)]


def with_tensors(parts: Parts, new: list[Tensor]) -> Parts:
    """The same structure with its tensors, in order, replaced."""
    rest = iter(new)
    return map_leaves(lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf, parts)


def count_rows(columns: Columns | Parts) -> int:
    """Number of rows."""
    if isinstance(columns, dict):
        return count_rows(next(iter(columns.values())))
    if isinstance(columns, tuple):
        return count_rows(columns[0])
    return columns.shape[-2] if isinstance(columns, Tensor) else len(columns)


def cut(parts: Parts, batch: slice, rows: slice) -> Parts:
    """Rows of a slice of the batch; a leaf that is shared by the batch (batch size 1) stays shared."""

    def one(leaf: Tensor | Opaque) -> Tensor | Opaque:
        if isinstance(leaf, Opaque):
            return leaf.take(rows)
        return leaf[batch if leaf.shape[0] > 1 else slice(None), rows]

    return map_leaves(one, parts)


def take_rows(parts: Parts, index: Tensor) -> Parts:
    """The rows ``index`` (1-D) of every leaf, on the row axis."""

    def one(leaf: Tensor | Opaque) -> Tensor | Opaque:
        if isinstance(leaf, Opaque):
            return leaf.take(index.cpu().numpy())
        return leaf.index_select(-2, index.to(leaf.device))

    return map_leaves(one, parts)


@dataclass(frozen=True, eq=False)
class Labels:
    """Text or categorical values: row i holds ``names[codes[i]]``; pooled, they give a distribution over names."""

    codes: Tensor  # (m,) int64
    names: np.ndarray  # (L,) objects, in the order of first appearance

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1, self.codes.shape[0], len(self.names))

    def cut(self, batch: slice, rows: slice) -> Labels:
        return Labels(self.codes[rows], self.names)

    def take(self, index: Tensor) -> Labels:
        return Labels(self.codes.index_select(0, index), self.names)

    def one_hot(self, dtype: torch.dtype) -> Tensor:
        return torch.nn.functional.one_hot(self.codes, len(self.names)).to(dtype)[None]


Values: TypeAlias = Tensor | Labels


def pool(weights: Float[Tensor, "b n m"], values: Values) -> Float[Tensor, "b n v"]:
    """Σ_i weights[..., i] values[i]: (b, n, m), (b, m, v) → (b, n, v)."""
    if isinstance(values, Labels):
        out = weights.new_zeros(*weights.shape[:-1], len(values.names))
        return out.index_add(-1, values.codes, weights)
    if 1 < values.shape[-1] < 16:  # the matrix product is up to three times faster with the long axis last
        return (values.transpose(-1, -2) @ weights.transpose(-1, -2)).transpose(-1, -2)
    return weights @ values


def pool_back(weights: Float[Tensor, "b n m"], cotangent: Float[Tensor, "b n v"]) -> Float[Tensor, "b m v"]:
    """Σ_j weights[j, i] cotangent_j for every row: (b, n, m), (b, n, v) → (b, m, v)."""
    return (cotangent.transpose(-1, -2) @ weights).transpose(-1, -2)


def project(cotangent: Float[Tensor, "b n v"], values: Values) -> Float[Tensor, "b n m"]:
    """⟨cotangent, value_i⟩ for every row: (b, n, v), (b, m, v) → (b, n, m)."""
    if isinstance(values, Labels):
        return cotangent.index_select(-1, values.codes)
    if values.shape[-1] == 1:  # three times faster than a matrix product of one column
        return cotangent * values.transpose(-1, -2)
    return cotangent @ values.transpose(-1, -2)
