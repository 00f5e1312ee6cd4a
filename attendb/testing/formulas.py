"""Every score of attendb written out once more, naively: all pairs, float64, plain torch. Nothing of the engine."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Rows: TypeAlias = "Tensor | list[str | None] | dict[str, Rows]"

UNSEEN = re.compile("[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")


def read_rows(data: Any) -> Rows:
    """Numbers as a float64 tensor (..., rows, width), text as a list (None: missing), mixed columns as a dict."""
    if isinstance(data, Mapping):
        return {name: read_rows(column) for name, column in data.items()}
    if hasattr(data, "columns"):  # a data frame
        return {str(name): read_rows(data[name]) for name in data.columns}
    if isinstance(data, Tensor):
        numbers = data.to(torch.float64)
    else:
        array = np.asarray(data)
        if array.dtype.kind not in "biuf":
            return [text if isinstance(text, str) else None for text in array.ravel().tolist()]
        numbers = torch.from_numpy(array.astype(np.float64))
    return numbers[:, None] if numbers.ndim == 1 else numbers


def count(rows: Rows) -> int:
    """How many rows there are."""
    if isinstance(rows, dict):
        return count(next(iter(rows.values())))
    return rows.shape[-2] if isinstance(rows, Tensor) else len(rows)


def batch_of(rows: Rows) -> torch.Size:
    """The leading axes; text has none."""
    if isinstance(rows, dict):
        return torch.broadcast_shapes(*(batch_of(column) for column in rows.values()))
    return rows.shape[:-2] if isinstance(rows, Tensor) else torch.Size()


def without(rows: Rows, dead: Tensor) -> Rows:
    """The same rows with zeros where ``dead`` (..., rows), so that a NaN nobody may see cannot spread."""
    if isinstance(rows, dict):
        return {name: without(column, dead) for name, column in rows.items()}
    if isinstance(rows, Tensor):
        return torch.where(dead[..., None], torch.zeros((), dtype=rows.dtype), rows)
    return rows


def all_scores(score: Any, queries: Rows, keys: Rows) -> Tensor:
    """a(q, k) of every pair, (..., n, m), from the formula that belongs to the name of the score's class."""
    kind = type(score)
    if kind.__module__.startswith("attendb."):
        if kind.__name__ in FORMULAS:
            return FORMULAS[kind.__name__](score, queries, keys)
        score = getattr(score, "fn", score)  # a function of the user's, wrapped
    if isinstance(queries, Tensor) and isinstance(keys, Tensor):
        batch = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        queries, keys = (x.expand(*batch, *x.shape[-2:]) for x in (queries, keys))
    scores = score(queries, keys)
    return torch.as_tensor(scores).to(torch.float64)


def _differences(queries: Any, keys: Any) -> Tensor:
    return queries[..., :, None, :] - keys[..., None, :, :]


def _length(x: Tensor) -> Tensor:
    """‖x‖ over the last axis, with gradient 0 at x = 0."""
    squared = (x * x).sum(-1)
    zero = squared == 0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, squared)))


def _scaled(score: Any, queries: Any, keys: Any) -> Tensor:
    """H⁻¹(q − k) for a full matrix, (q − k)/h otherwise: (..., n, m, d)."""
    h = score.bandwidth.to(torch.float64)
    if h.ndim == 2:
        return torch.einsum("ij,...j->...i", torch.linalg.inv(h), _differences(queries, keys))
    return _differences(queries, keys) / h


def _dot(score: Any, queries: Any, keys: Any) -> Tensor:
    return (queries[..., :, None, :] * keys[..., None, :, :]).sum(-1)


def _scaled_dot(score: Any, queries: Any, keys: Any) -> Tensor:
    return _dot(score, queries, keys) / max(1, keys.shape[-1]) ** 0.5


def _cosine(score: Any, queries: Any, keys: Any) -> Tensor:
    lengths = _length(queries)[..., :, None] * _length(keys)[..., None, :]
    zero = lengths == 0
    dots = torch.where(zero, 0.0, _dot(score, queries, keys))
    return dots / torch.where(zero, 1.0, lengths)


def _bilinear(score: Any, queries: Any, keys: Any) -> Tensor:
    return torch.einsum("...ni,ij,...mj->...nm", queries, score.weight.to(torch.float64), keys)


def _additive(score: Any, queries: Any, keys: Any) -> Tensor:
    w, w_q, w_k = (x.to(torch.float64) for x in (score.weight, score.query_weight, score.key_weight))
    projected = torch.einsum("hi,...ni->...nh", w_q, queries)[..., :, None, :]
    hidden = torch.tanh(projected + torch.einsum("hj,...mj->...mh", w_k, keys)[..., None, :, :])
    return (hidden * w).sum(-1)


def _gaussian(score: Any, queries: Any, keys: Any) -> Tensor:
    return -(_scaled(score, queries, keys) ** 2).sum(-1) / 2


def _laplacian(score: Any, queries: Any, keys: Any) -> Tensor:
    return -_scaled(score, queries, keys).abs().sum(-1)


def _euclidean(score: Any, queries: Any, keys: Any) -> Tensor:
    return -_length(_scaled(score, queries, keys))


def _boxcar(score: Any, queries: Any, keys: Any) -> Tensor:
    return ((_scaled(score, queries, keys) ** 2).sum(-1) <= 1).to(torch.float64)


def _triangular(score: Any, queries: Any, keys: Any) -> Tensor:
    return torch.relu(1 - _length(_scaled(score, queries, keys)))


def _epanechnikov(score: Any, queries: Any, keys: Any) -> Tensor:
    return torch.relu(1 - (_scaled(score, queries, keys) ** 2).sum(-1))


def _constant(score: Any, queries: Rows, keys: Rows) -> Tensor:
    batch = torch.broadcast_shapes(batch_of(queries), batch_of(keys))
    return torch.ones(*batch, count(queries), count(keys), dtype=torch.float64)


def _equal(score: Any, queries: Rows, keys: Rows) -> Tensor:
    if isinstance(queries, dict) and isinstance(keys, dict):
        return torch.stack([_equal(score, queries[name], keys[name]) for name in keys]).prod(0)
    if isinstance(queries, Tensor) and isinstance(keys, Tensor):
        return (queries.detach()[..., :, None, :] == keys.detach()[..., None, :, :]).all(-1).to(torch.float64)

    def same(q: str | None, k: str | None) -> float:
        return float(
            q is not None and k is not None and unicodedata.normalize("NFC", q) == unicodedata.normalize("NFC", k)
        )

    return _pair_by_pair(same, queries, keys)


def _edit_similarity(score: Any, queries: Rows, keys: Rows) -> Tensor:
    from rapidfuzz import distance, fuzz

    measures: dict[str, Callable[[str, str], float]] = {
        "levenshtein": distance.Levenshtein.normalized_similarity,
        "indel": distance.Indel.normalized_similarity,
        "jaro_winkler": distance.JaroWinkler.normalized_similarity,
        "partial": lambda q, k: fuzz.partial_ratio(q, k) / 100,
    }
    return _texts(score, measures[score.measure], queries, keys)


def _ngram_similarity(score: Any, queries: Rows, keys: Rows) -> Tensor:
    shortest, longest = score.n

    def grams(text: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for n in range(shortest, longest + 1):
            padded = " " * (n - 1) + text + " " * (n - 1)
            found.update(padded[i : i + n] for i in range(len(padded) - n + 1) if text)
        return found

    def cosine(q: str, k: str) -> float:
        if not q and not k:
            return 1.0
        left, right = grams(q), grams(k)
        squares = sum(c * c for c in left.values()) * sum(c * c for c in right.values())
        return sum(c * right[gram] for gram, c in left.items()) / squares**0.5 if squares else 0.0

    return _texts(score, cosine, queries, keys)


def _texts(score: Any, similarity: Callable[[str, str], float], queries: Any, keys: Any) -> Tensor:
    """A similarity of texts, in one form unless raw; a missing text scores −∞ or what the score says."""
    form = (lambda text: text) if score.raw else _folded

    def one(q: str | None, k: str | None) -> float:
        if q is None or k is None:
            both = q is None and k is None
            given = score.both_missing if both else score.one_missing
            return -torch.inf if given is None else given
        return similarity(form(q), form(k))

    return _pair_by_pair(one, queries, keys)


def _folded(text: str) -> str:
    """NFKC, case folded, without the characters that are not to be seen."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", "".join(c for c in folded if not UNSEEN.match(c)))


def _per_column(score: Any, queries: Rows, keys: Rows) -> Tensor:
    if not isinstance(queries, dict) or not isinstance(keys, dict):
        raise TypeError("PerColumn compares mixed columns: give queries and keys as dicts of columns")
    parts = [all_scores(part, queries[name], keys[name]) for name, part in zip(score.names, score.parts, strict=True)]
    table = torch.stack(torch.broadcast_tensors(*parts), -1)
    never = (table == -torch.inf).any(-1)
    total = (torch.where(never[..., None], 0.0, table) * score.weights.to(torch.float64)).sum(-1)
    return torch.where(never, -torch.inf, total)


def _pair_by_pair(similarity: Callable[[Any, Any], float], queries: Any, keys: Any) -> Tensor:
    table = [[similarity(q, k) for k in keys] for q in queries]
    return torch.tensor(table, dtype=torch.float64).reshape(len(queries), len(keys))


FORMULAS: dict[str, Callable[[Any, Any, Any], Tensor]] = {
    "Dot": _dot,
    "ScaledDot": _scaled_dot,
    "Cosine": _cosine,
    "Bilinear": _bilinear,
    "Additive": _additive,
    "Gaussian": _gaussian,
    "Laplacian": _laplacian,
    "Euclidean": _euclidean,
    "Boxcar": _boxcar,
    "Triangular": _triangular,
    "Epanechnikov": _epanechnikov,
    "Constant": _constant,
    "Equal": _equal,
    "EditSimilarity": _edit_similarity,
    "NGramSimilarity": _ngram_similarity,
    "PerColumn": _per_column,
}
