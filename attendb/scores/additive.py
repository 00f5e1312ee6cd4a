"""The additive score, and the one that is the same for every pair: Additive, Constant."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..columns import Columns, Parts
from .base import Score
from .dot import check_widths, given_or_random
from .tanh_sum import tanh_sum


class Additive(Score):
    """A small network on both: a(q, k) = wᵀ tanh(W_q q + W_k k).

    ``hidden``: the number of tanh units. ``query_weight`` (hidden, d_q), ``key_weight`` (hidden, d_k) and
    ``weight`` (hidden,) give the parameters; without them they start at random (uniform, Glorot). Frozen unless
    ``learn``. Cost: n·m·hidden evaluations of tanh; memory one block.

    >>> import attendb as ad
    >>> score = ad.Additive(1, 1, 1, query_weight=[[1.0]], key_weight=[[1.0]], weight=[2.0])
    >>> float(score([[0.5]], [[-0.5]]))
    0.0

    Source: Bahdanau, Cho and Bengio 2015, appendix A.1.2.
    """

    same_width = False

    def __init__(
        self,
        d_q: int,
        d_k: int,
        hidden: int,
        *,
        query_weight: object = None,
        key_weight: object = None,
        weight: object = None,
        learn: bool = False,
    ):
        super().__init__()
        self.query_weight = given_or_random(query_weight, (hidden, d_q), "query_weight", learn)
        self.key_weight = given_or_random(key_weight, (hidden, d_k), "key_weight", learn)
        self.weight = given_or_random(weight, (hidden,), "weight", learn)

    def check(self, queries: Columns, keys: Columns) -> None:
        super().check(queries, keys)
        check_widths(self, queries, keys, self.query_weight.shape[1], self.key_weight.shape[1])

    def embed_queries(self, queries: Any, anchor: Any) -> Tensor:
        return queries @ self.query_weight.to(queries.dtype).T

    def embed_keys(self, keys: Any, anchor: Any) -> Tensor:
        return keys @ self.key_weight.to(keys.dtype).T

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        return tanh_sum(queries, keys, self.weight.to(queries.dtype))

    def scratch(self, queries: Parts, keys: Parts) -> int:
        return 2

    def extra_repr(self) -> str:
        return f"{self.query_weight.shape[1]}, {self.key_weight.shape[1]}, {self.weight.shape[0]}"


class Constant(Score):
    """The same for every pair: a(q, k) = 1, so that the answer is the average of the table. Takes any columns.

    Cost: O(n·m). Source: Hastie, Tibshirani and Friedman 2009, section 6.1 (the limit of an infinite window).

    >>> import attendb as ad
    >>> ad.Constant()([[0.0]], [[1.0], [7.0]]).tolist()
    [[1.0, 1.0]]
    """

    default_weighting = "Normalized"
    takes = "any column"

    def check(self, queries: Columns, keys: Columns) -> None:
        """Every pair of columns will do."""

    def embed_queries(self, queries: Columns, anchor: Any) -> Parts:
        return _nothing(queries)

    def embed_keys(self, keys: Columns, anchor: Any) -> Parts:
        return _nothing(keys)

    def pair(self, queries: Tensor, keys: Tensor) -> Tensor:
        batch = np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        return queries.new_ones(*batch, queries.shape[-2], keys.shape[-2])


def _nothing(columns: Columns) -> Tensor:
    """Rows of width 0: their number and nothing else."""
    first: Columns = columns
    while isinstance(first, dict):
        first = cast(Columns, next(iter(first.values())))
    if isinstance(first, Tensor):
        return first[..., :0]
    return torch.zeros(1, len(first), 0, dtype=torch.float64)
