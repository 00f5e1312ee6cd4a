"""Scores of texts: EditSimilarity by edit distance, NGramSimilarity by shared runs of characters.

Both sides get the same treatment, so that the same word in two Unicode forms is one word; the stored text stays
as it is. A pair scores the same alone and in a batch, to the last bit.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from ..columns import Columns, Opaque, Parts
from ..errors import InputError, KindError
from ..reading import is_missing
from .base import Score

PARALLEL_PAIRS = 1 << 17  # below, starting threads costs more than they save (measured, 2 cores)
CHUNK_CHARACTERS = 1 << 21  # n-grams are counted in chunks: about 100 bytes of temporary memory a character
CHARACTER_BITS = 21  # the largest code point is 0x10FFFF: three characters fit into 63 bits

# Characters that are not to be seen (Unicode's Default_Ignorable_Code_Point).
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def fold(text: str) -> str:
    """The form in which texts are matched: NFKC, case folded, without invisible characters."""
    if text.isascii():
        return text.lower()
    visible = INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return unicodedata.normalize("NFKC", visible.casefold())


class TextScore(Score):
    """A similarity of texts: a subclass gives ``similarity``, and ``features`` where texts are prepared once.

        a(q, k) = similarity(features(q), features(k)) in [0, 1]

    ``raw``: compare the texts as they are; otherwise both sides are compared in the form NFKC, case folded, without
    invisible characters. Missing text (None, NaN, NaT, pandas.NA) scores −∞, which no softmax gives a weight;
    ``one_missing`` and ``both_missing`` give a number instead. Raises KindError for rows that are no text.

    >>> import attendb as ad
    >>> class SameLength(ad.scores.text.TextScore):
    ...     def similarity(self, queries, keys):
    ...         return [[float(len(q) == len(k)) for k in keys.rows] for q in queries.rows]
    >>> SameLength()(["Li"], ["Mu", "Aston"]).flatten().tolist()
    [1.0, 0.0]
    """

    takes: ClassVar[str] = "text"
    same_width: ClassVar[bool] = False

    def __init__(self, *, raw: bool = False, one_missing: float | None = None, both_missing: float | None = None):
        super().__init__()
        self.raw = bool(raw)
        self.one_missing = _number_or_none(one_missing, "one_missing")
        self.both_missing = _number_or_none(both_missing, "both_missing")

    def check(self, queries: Columns, keys: Columns) -> None:
        name = type(self).__name__
        for columns, what in ((queries, "queries"), (keys, "keys")):
            if isinstance(columns, Tensor):
                raise KindError(
                    f"{what} are numbers but {name} compares text: use a score of numbers such as Gaussian, or Equal"
                )
            if isinstance(columns, dict):
                raise KindError(
                    f"{what} are mixed columns but {name} compares one text column: "
                    f"use PerColumn({{column: {name}(), …}})"
                )

    def embed_queries(self, queries: Any, anchor: Any) -> Parts:
        return self._embed(queries, "queries")

    def embed_keys(self, keys: Any, anchor: Any) -> Parts:
        name = f"{type(self).__qualname__}({self.extra_repr()})"
        if name not in keys.made:
            keys.made[name] = self._embed(keys, "keys")
        return keys.made[name]

    def _embed(self, column: Opaque, what: str) -> Parts:
        texts = np.empty(len(column), dtype=object)
        missing = np.zeros(len(column), dtype=bool)
        for row, value in enumerate(column.rows):
            if isinstance(value, str):
                texts[row] = str(value) if self.raw else fold(value)
            elif is_missing(value):
                texts[row], missing[row] = "", True
            else:
                raise KindError(
                    f"{what} have {type(value).__name__} {repr(value)[:40]} in row {row} but {type(self).__name__} "
                    "compares text: turn the column into text with str"
                )
        return self.features(texts), Opaque(missing)

    def features(self, texts: np.ndarray) -> Parts:
        """What `similarity` sees of the texts: an array of str, "" where one is missing."""
        return Opaque(texts)

    @abstractmethod
    def similarity(self, queries: Any, keys: Any) -> np.ndarray:
        """Similarities (n, m) of the features of n queries and m keys."""

    def pair(self, queries: Any, keys: Any) -> Tensor:
        (queries, no_query), (keys, no_key) = queries, keys
        scores = torch.as_tensor(np.asarray(self.similarity(queries, keys), dtype=np.float64))
        lacks_query, lacks_key = torch.from_numpy(no_query.rows)[:, None], torch.from_numpy(no_key.rows)
        if lacks_query.any() or lacks_key.any():
            scores = scores.masked_fill(lacks_query | lacks_key, _minus_infinity(self.one_missing))
            scores = scores.masked_fill(lacks_query & lacks_key, _minus_infinity(self.both_missing))
        return scores[None]

    def scratch(self, queries: Parts, keys: Parts) -> int:
        return 2

    def extra_repr(self) -> str:
        options = {"raw": self.raw or None, "one_missing": self.one_missing, "both_missing": self.both_missing}
        return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)


class EditSimilarity(TextScore):
    """Similarity by edits, in [0, 1]: a(q, k) = 1 − edits(q, k)/max(|q|, |k|), 1 for equal texts.

    ``measure``: "levenshtein" (insert, delete, replace; the equation above), "indel" (insert and delete only,
    divided by |q| + |k|), "jaro_winkler" (for names: common characters near their places, a common start counts
    more) or "partial" (indel of the shorter text and the best window of the longer). Texts are compared as NFKC,
    case folded, without invisible characters, unless ``raw``. Missing text scores −∞ unless ``one_missing`` or
    ``both_missing`` gives a number. Raises KindError for columns that are no text, InputError for another measure.
    Scores lie close together: under the default softmax almost all rows share the weight. Ask with `Nearest()` or
    `TopK(k)`, or sharpen it, `Softmax(0.05)`.
    Cost: n·m comparisons of O(|q|·|k|/64) each; memory one block.

    >>> import attendb as ad
    >>> ad.EditSimilarity()(["Lu"], ["Li", "Zhang"]).flatten().tolist()
    [0.5, 0.0]

    Source: Levenshtein 1966; Winkler 1990; computed by rapidfuzz.
    """

    measures: ClassVar[tuple[str, ...]] = ("levenshtein", "indel", "jaro_winkler", "partial")

    def __init__(
        self,
        measure: str = "levenshtein",
        *,
        raw: bool = False,
        one_missing: float | None = None,
        both_missing: float | None = None,
    ):
        super().__init__(raw=raw, one_missing=one_missing, both_missing=both_missing)
        if measure not in self.measures:
            raise InputError(f"measure must be one of {', '.join(map(repr, self.measures))}, got {measure!r}")
        self.measure = measure

    def similarity(self, queries: Opaque, keys: Opaque) -> np.ndarray:
        from rapidfuzz import process

        scorer, largest = self._scorer()
        n, m = len(queries), len(keys)
        workers = torch.get_num_threads() if n > 1 and n * m >= PARALLEL_PAIRS else 1
        out = process.cdist(
            cast(Any, queries.rows), cast(Any, keys.rows), scorer=scorer, dtype=np.float64, workers=workers
        )
        return np.divide(out, largest, out=out).reshape(n, m)

    def _scorer(self) -> tuple[Callable[..., Any], float]:
        from rapidfuzz import distance, fuzz

        if self.measure == "partial":
            return fuzz.partial_ratio, 100.0
        classes = {"levenshtein": distance.Levenshtein, "indel": distance.Indel}
        return classes.get(self.measure, distance.JaroWinkler).normalized_similarity, 1.0

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (repr(self.measure), super().extra_repr())))


class NGramSimilarity(TextScore):
    """Similarity by shared runs of characters, in [0, 1]: a(q, k) = c_q·c_k/(‖c_q‖‖c_k‖), c the n-gram counts.

    ``n``: the length of the runs, a number or (shortest, longest). A text is padded with n − 1 spaces at both ends,
    so that texts of one character have n-grams and a word is found wherever it stands in a longer text, also in
    scripts without spaces. Equal texts score exactly 1, an empty text 0 with every other. n-grams of up to three
    characters are compared exactly; longer ones by 62 bits, so that two different ones agree with probability
    2e-19. Texts are compared as NFKC, case folded, without invisible characters, unless ``raw``. Missing text scores
    −∞ unless ``one_missing`` or ``both_missing`` gives a number. Raises KindError for columns that are no text,
    InputError for another ``n``.
    Scores lie close together: under the default softmax almost all rows share the weight. Ask with `Nearest()` or
    `TopK(k)`, or sharpen it, `Softmax(0.05)`.
    Cost: one sort of the n-grams of all texts, 12 bytes kept for each, then n·m sparse products; a `Database`
    keeps them from call to call, until it changes.

    >>> import attendb as ad
    >>> ad.NGramSimilarity(2)(["night"], ["night", "nacht", "Mu"]).flatten().round(decimals=2).tolist()
    [1.0, 0.5, 0.0]

    Source: Damashek 1995 (n-gram vectors and their cosine).
    """

    def __init__(
        self,
        n: int | tuple[int, int] = (2, 3),
        *,
        raw: bool = False,
        one_missing: float | None = None,
        both_missing: float | None = None,
    ):
        super().__init__(raw=raw, one_missing=one_missing, both_missing=both_missing)
        ends = tuple(n) if isinstance(n, (tuple, list)) else (n, n)
        whole = len(ends) == 2 and all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if not whole or not 1 <= ends[0] <= ends[1]:
            raise InputError(f"n must be a whole number ≥ 1 or (shortest, longest), got {n!r}")
        self.n: tuple[int, int] = (ends[0], ends[1])

    def features(self, texts: np.ndarray) -> Parts:
        counts = count_ngrams(texts.tolist(), *self.n)
        rows = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))
        squares = np.bincount(rows, weights=counts.data.astype(np.float64) ** 2, minlength=len(texts))
        return Opaque(counts), Opaque(squares)

    def similarity(self, queries: Any, keys: Any) -> np.ndarray:
        (queries, q_square), (keys, k_square) = queries, keys
        product = _products(queries.rows, keys.rows)
        # Counts are whole numbers, so the product and the squares are exact and equal texts give exactly 1.
        norm = np.sqrt(q_square.rows[:, None] * k_square.rows[None, :])
        both_empty = (q_square.rows == 0)[:, None] & (k_square.rows == 0)[None, :]
        similar = np.divide(product, norm, out=np.zeros_like(product), where=norm > 0)
        return np.where(both_empty, 1.0, np.minimum(similar, 1.0))

    def scratch(self, queries: Parts, keys: Parts) -> int:
        return 5

    def extra_repr(self) -> str:
        shown = self.n[0] if self.n[0] == self.n[1] else self.n
        return ", ".join(filter(None, (str(shown), super().extra_repr())))


def count_ngrams(texts: list[str], shortest: int, longest: int) -> Any:
    """Counts of the padded n-grams of every text, a scipy CSR array (rows, n-gram codes); "" has none."""
    from scipy import sparse

    counts, codes, per_row = [], [], [np.zeros(1, dtype=np.int64)]
    for chunk in _chunks(texts):
        rows, grams = _ngrams(chunk, shortest, longest)
        order = grams.argsort()
        order = order[rows[order].argsort(kind="stable")]  # by row, then by code; 16-bit rows: a counting sort
        rows, grams = rows[order], grams[order]
        changes = (grams[1:] != grams[:-1]) | (rows[1:] != rows[:-1])
        first = np.flatnonzero(np.concatenate([np.ones(min(1, len(grams)), dtype=bool), changes]))
        counts.append(np.diff(first, append=len(grams)).astype(np.float32))
        codes.append(grams[first])
        per_row.append(np.bincount(rows[first], minlength=len(chunk)))
    ends = np.cumsum(np.concatenate(per_row))
    shape = (len(texts), sys.maxsize)
    return sparse.csr_array((np.concatenate(counts), np.concatenate(codes), ends), shape=shape)


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    begin = size = 0
    for row, text in enumerate(texts):
        if row > begin and (size + len(text) > CHUNK_CHARACTERS or row - begin == 1 << 16):
            yield texts[begin:row]
            begin, size = row, 0
        size += len(text)
    yield texts[begin:]


def _ngrams(texts: list[str], shortest: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Row (uint16) and code (int64, ≥ 0) of every n-gram of at most 65 536 texts."""
    padding = " " * (longest - 1)
    joined = (padding + padding.join(texts) + padding).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(joined, dtype=np.uint32).astype(np.uint64) + np.uint64(1)  # 0 = no character
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    starts = np.cumsum(lengths + len(padding)) - lengths
    all_rows, all_codes = [], []
    for n in range(shortest, longest + 1):
        amount = np.where(lengths > 0, lengths + n - 1, 0)
        rows = np.repeat(np.arange(len(texts)), amount)
        at = np.arange(len(rows)) + np.repeat(starts - (n - 1) - (np.cumsum(amount) - amount), amount)
        code = np.zeros(len(rows), dtype=np.uint64)
        for place in range(n):
            if place < 3:
                code |= characters[at + place] << np.uint64(CHARACTER_BITS * place)
            else:
                code = _mixed(code) + characters[at + place]
        all_rows.append(rows.astype(np.uint16))
        if n > 3:  # mixed once more: neighbouring last characters must not differ in the lost bits only
            code = _mixed(code) >> np.uint64(2)
        all_codes.append(code.astype(np.int64))
    return np.concatenate(all_rows), np.concatenate(all_codes)


def _mixed(code: np.ndarray) -> np.ndarray:
    """A one-to-one scrambling of 64 bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return code ^ (code >> np.uint64(31))


def _products(queries: Any, keys: Any) -> np.ndarray:
    """Inner products (n, m) of rows over n-gram codes: only the codes that the queries have are looked at."""
    from scipy import sparse

    grams, column = np.unique(queries.indices, return_inverse=True)
    if not len(grams) or not keys.nnz:
        return np.zeros((queries.shape[0], keys.shape[0]))
    place = np.minimum(np.searchsorted(grams, keys.indices), len(grams) - 1)
    hit = grams[place] == keys.indices
    ends = np.concatenate([[0], np.cumsum(hit)])[keys.indptr]
    width = len(grams)
    q = sparse.csr_array((queries.data.astype(np.float64), column, queries.indptr), shape=(queries.shape[0], width))
    k = sparse.csr_array((keys.data[hit].astype(np.float64), place[hit], ends), shape=(keys.shape[0], width))
    return (q @ k.T).toarray()


def _minus_infinity(score: float | None) -> float:
    return -math.inf if score is None else score


def _number_or_none(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise KindError(f"{name} must be a number or None, got {type(value).__name__}")
    if math.isnan(value):
        raise InputError(f"{name} must be a number or None, got NaN")
    return float(value)
