"""Finding rows by one key: the key as the columns have it, what rows of one key say, and the keys closest to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .columns import Opaque
from .errors import InputError, KindError
from .scores.text import EditSimilarity
from .sources.base import Data, Side, Source
from .sources.rows import count, is_frame, read_side

SEARCHED_FOR_HELP = 20_000  # keys that are compared to name the closest ones in an error


def matching(source: Source, key: Any) -> np.ndarray:
    """The ids of the rows that have this one key."""
    side = source.schema.keys
    if side.undecided:
        return np.zeros(0, dtype=np.int64)
    _, rows = read_side(_one_key(key, side), "keys", side)
    most = max(map(count, rows.values()))
    if most != 1:
        raise InputError(f"lookup takes one key, got {most}: ask for one at a time")
    return source.find(rows).positions


def _one_key(key: Any, side: Side) -> Any:
    """One key as columns of one row."""
    if is_frame(key):
        return key
    names = ", ".join(map(repr, side.names))
    if isinstance(key, Mapping):
        parts = {str(name): part for name, part in key.items()}
    elif len(side.columns) == 1:
        parts = {side.names[0]: key}
    elif isinstance(key, (tuple, list, np.ndarray, Tensor)):
        if isinstance(key, (np.ndarray, Tensor)):
            key = key.reshape(-1)
        if len(key) != len(side.columns):
            raise InputError(f"the key has {len(key)} parts but there are {len(side.columns)} key columns: {names}")
        parts = dict(zip(side.names, key, strict=True))
    else:
        raise KindError(f"the key is a {type(key).__name__} but the key columns are {names}: give a dict or a tuple")
    width = {column.name: column.width for column in side.columns}
    return {name: _one_row(part) if width.get(name, 1) > 1 else part for name, part in parts.items()}


def _one_row(part: Any) -> Any:
    """A row of numbers as a table of one row."""
    if isinstance(part, (np.ndarray, Tensor)):
        return part.reshape(1, -1) if part.ndim == 1 else part
    flat = isinstance(part, (list, tuple)) and not any(isinstance(x, (list, tuple, np.ndarray)) for x in part)
    return [list(part)] if flat else part


def one_value(column: Data, name: str, key: Any) -> Any:
    """What rows with one key say: their text if it is one, the mean of their numbers."""
    if isinstance(column, Opaque):
        texts = list(dict.fromkeys(column.rows))
        if len(texts) > 1:
            raise InputError(
                f"{len(column)} rows have the key {shown(key)} and different texts in {name!r} "
                f"({', '.join(map(repr, texts[:3]))}): lookup_all returns them all"
            )
        return texts[0]
    row = column[0]
    if bool((column != row).any()):
        row = column.double().mean(0)
        row = row.to(column.dtype) if column.is_floating_point() else row
    if isinstance(key, Tensor):
        return row[0] if len(row) == 1 else row
    row = row.detach().cpu()
    return row.item() if len(row) == 1 else (row.float() if row.dtype == torch.bfloat16 else row).numpy().copy()


def closest(source: Source, key: Any) -> str:
    """For one column of text that is not too long: the keys that are most similar."""
    side = source.schema.keys
    key = next(iter(key.values())) if isinstance(key, Mapping) and len(key) == 1 else key
    if len(side.columns) != 1 or side.columns[0].kind != "text" or not isinstance(key, str):
        return ""
    if not 0 < len(source) <= SEARCHED_FOR_HELP:
        return ""
    parts = [cast(Opaque, next(iter(block.keys.values()))).rows for block in source.blocks(values=())]
    texts = np.concatenate(parts)
    scores = EditSimilarity()([key], Opaque(texts)).reshape(-1)
    best = [texts[i] for i in scores.argsort(descending=True, stable=True).tolist() if scores[i] > 0]
    close = list(dict.fromkeys(best))[:3]
    return f": the closest are {', '.join(map(repr, close))}" if close else ""


def shown(key: Any) -> str:
    """A key as a message shows it: not too long."""
    text = repr(key.tolist() if isinstance(key, (np.ndarray, Tensor)) else key)
    return text if len(text) <= 60 else f"{text[:57]}…"
