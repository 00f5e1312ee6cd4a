"""The score of a classical database: Equal."""

from __future__ import annotations

import unicodedata
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..columns import Columns, Opaque, Parts, tensors
from ..errors import InputError, KindError
from ..reading import is_missing
from .base import Score

NO_QUERY, NO_KEY = -1, -2  # codes that equal nothing, not even each other


class Equal(Score):
    """Equality: a(q, k) = 1 where the key equals the query in every column, else 0. Takes any columns.

    Numbers are equal when all columns of the row are (integers beyond 2⁵³ are compared as float64); NaN scores NaN,
    which is then reported as missing. Texts are equal in Unicode's form NFC; None, NaN and pandas.NA equal
    nothing. A dict of columns is equal when every column is. The gradient is 0. Raises KindError for text against
    numbers, InputError for other widths or other column names. Cost: n·m·d comparisons, until no pair is equal.

    >>> import attendb as ad
    >>> ad.Equal()(["Li"], ["Zhang", "Li", "Hu"]).flatten().tolist()
    [0.0, 1.0, 0.0]

    Source: Codd 1970 (selection by key).
    """

    default_weighting: ClassVar[str] = "Normalized"
    takes: ClassVar[str] = "any column"

    def check(self, queries: Columns, keys: Columns) -> None:
        _check_alike(queries, keys, "")
        for what, columns in (("queries", queries), ("keys", keys)):
            for x in columns.values() if isinstance(columns, dict) else [columns]:
                if isinstance(x, Tensor) and x.numel() and x.dtype == torch.float64 and _beyond_whole(x):
                    raise InputError(
                        f"{what} have numbers of 2^53 or more, which float64 cannot tell apart: "
                        "use Database.lookup, or give them as text"
                    )

    def anchor(self, keys: Columns) -> Any:
        """The order of the columns, which both sides follow."""
        return {name: self.anchor(column) for name, column in keys.items()} if isinstance(keys, dict) else None

    def embed_queries(self, queries: Columns, anchor: Any) -> Parts:
        return _embed(queries, anchor)

    def embed_keys(self, keys: Columns, anchor: Any) -> Parts:
        return _embed(keys, anchor)

    def pair(self, queries: Any, keys: Any) -> Tensor:
        numbers = tensors(queries) + tensors(keys)
        if not numbers:
            return _compare(queries, keys, torch.float64, torch.device("cpu"))
        dtype = torch.float64
        if any(x.is_floating_point() for x in numbers):
            dtype = torch.float16
            for x in numbers:
                dtype = torch.promote_types(dtype, x.dtype)
        return _compare(queries, keys, dtype, numbers[0].device)

    def scratch(self, queries: Parts, keys: Parts) -> int:
        return 2


def _check_alike(queries: Columns, keys: Columns, where: str) -> None:
    kinds = _kind(queries), _kind(keys)
    if kinds[0] != kinds[1]:
        raise KindError(f"{where}queries are {kinds[0]} but keys are {kinds[1]} (score=Equal): give both as {kinds[1]}")
    if isinstance(queries, dict) and isinstance(keys, dict):
        if not keys or set(queries) != set(keys):
            raise InputError(
                f"{where}queries have {_names(queries)} but keys have {_names(keys)} (score=Equal): "
                "give both the same columns, or name some of them in PerColumn"
            )
        for name in keys:
            _check_alike(queries[name], keys[name], f"{where}column {name!r}: ")
    elif isinstance(queries, Tensor) and isinstance(keys, Tensor) and queries.shape[-1] != keys.shape[-1]:
        raise InputError(
            f"{where}keys have width {keys.shape[-1]} but queries have width {queries.shape[-1]} (score=Equal): "
            "give queries every column of the keys"
        )


def _kind(columns: Columns) -> str:
    return "mixed columns" if isinstance(columns, dict) else "numbers" if isinstance(columns, Tensor) else "text"


def _names(columns: dict[str, Columns]) -> str:
    names = ", ".join(map(repr, columns))
    return f"columns {names}" if len(columns) > 1 else f"column {names}" if columns else "no columns"


def _embed(columns: Columns, anchor: Any) -> Parts:
    if isinstance(columns, dict):
        return tuple(_embed(columns[name], order) for name, order in anchor.items())
    if isinstance(columns, Tensor):
        return columns
    rows = np.empty(len(columns), dtype=object)
    for row, value in enumerate(columns.rows):
        if isinstance(value, str):
            rows[row] = str(value) if value.isascii() else unicodedata.normalize("NFC", value)
        else:
            rows[row] = None if is_missing(value) else value
    return Opaque(rows)


def _compare(queries: Any, keys: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(queries, tuple):
        out = _compare(queries[0], keys[0], dtype, device)
        for query, key in zip(queries[1:], keys[1:], strict=True):
            out = out * _compare(query, key, dtype, device)
        return out
    if isinstance(queries, Tensor):
        return _equal_numbers(queries.detach(), keys.detach(), dtype)
    return _equal_texts(queries, keys).to(device=device, dtype=dtype)


def _equal_numbers(queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    batch = np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
    equal = torch.ones(*batch, queries.shape[-2], keys.shape[-2], dtype=torch.bool, device=queries.device)
    for column in range(queries.shape[-1]):
        equal &= queries[..., :, None, column] == keys[..., None, :, column]
        if not equal.any():
            break
    out = equal.to(dtype)
    for nan in (queries.isnan().any(-1)[..., :, None], keys.isnan().any(-1)[..., None, :]):
        if nan.any():
            out = out.masked_fill(nan, torch.nan)
    return out


def _equal_texts(queries: Opaque, keys: Opaque) -> Tensor:
    """Booleans (1, n, m). Both sides get codes from a dictionary of this block, so that nothing need be kept."""
    codes: dict[Any, int] = {}
    try:
        q = [NO_QUERY if value is None else codes.setdefault(value, len(codes)) for value in queries.rows]
        k = [NO_KEY if value is None else codes.get(value, NO_KEY) for value in keys.rows]
    except TypeError:
        odd = next(value for column in (queries, keys) for value in column.rows if not _hashable(value))
        raise KindError(
            f"Equal cannot compare {type(odd).__name__} {repr(odd)[:40]}: give text, numbers or other hashable values"
        ) from None
    return torch.tensor(q, dtype=torch.int64)[None, :, None] == torch.tensor(k, dtype=torch.int64)[None, None, :]


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _beyond_whole(x: Tensor) -> bool:
    """Whether whole numbers of 64 bits may have been rounded to these."""
    size = x.abs()
    return bool(((size >= 2.0**53) & (size <= 2.0**64)).any())
