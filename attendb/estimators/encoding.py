"""From a table with columns of any kind to numbers and codes, by rules that are written down here.

| column | becomes |
|---|---|
| numbers, bool, timedelta | one number (True = 1, a timedelta in days) |
| dates and times | days since 1970 in UTC; sine and cosine of each cycle (day, week, year) that the rows span twice |
| pandas categories; text with few distinct values | a code: one level for each value |
| other text | numbers: character n-grams inside words (TF–IDF), reduced by a truncated SVD |

Few: at most `MOST_LEVELS` distinct values, each in two rows on average. Categories beyond the `MOST_LEVELS` most
frequent ones share the level "other". A missing cell is NaN in numbers; in categories it is a level of its own.
A category that no training row has is the code −1. Numbers keep their units here: a similarity standardises them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..errors import InputError, KindError, MissingValueError, StorageError
from ..reading import is_missing

MOST_LEVELS = 64
OTHER, MISSING = "other", "missing"
NUMBERS_OF_TEXT = 16
NGRAMS = {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True}
MOST_NGRAMS = 8192
CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}  # days
MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Encoded rows: ``numbers`` (n, p) float64, NaN = missing; ``codes`` (n, c) int64, −1 = an unseen category."""

    numbers: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return self.numbers.shape[0]

    def take(self, index: Tensor) -> Rows:
        """The rows at these positions."""
        return Rows(self.numbers[index], self.codes[index])

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on a device."""
        return Rows(self.numbers.to(device), self.codes.to(device))


class Encoder:
    """How the columns of one table become `Rows`; ``parts`` holds one rule a column, in the order of the columns.

    ``numbers``: the name of each column of `Rows.numbers`; ``levels``: {categorical column: its levels in the order of
    their codes}, in the order of the columns of `Rows.codes`.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [20.0, None], "town": pd.Categorical(["Ulm", "Bonn"])})
    >>> encoder = Encoder.of(table)
    >>> encoder.encode(table).numbers.tolist(), encoder.encode(table).codes.tolist(), encoder.levels
    ([[20.0], [nan]], [[1], [0]], {'town': ('Bonn', 'Ulm')})
    """

    def __init__(self, parts: Sequence[Part]):
        self.parts = tuple(parts)
        self.numbers: tuple[str, ...] = tuple(name for part in self.parts for name in part.numbers)
        self.levels: dict[str, tuple[str, ...]] = {
            part.name: part.levels for part in self.parts if isinstance(part, Categories)
        }

    @staticmethod
    def of(table: pd.DataFrame) -> Encoder:
        """The rules for a table, from its rows. Raises KindError for a column that is no table cell's kind."""
        return Encoder([_part_of(str(name), *read_cells(column, str(name))) for name, column in table.items()])

    def encode(self, table: pd.DataFrame, *, missing: str = "encode") -> Rows:
        """The rows of a table with the same columns. ``missing``: "raise" refuses missing cells.

        Raises InputError for infinite numbers, MissingValueError for a refused missing cell, KindError for a column
        of another kind than the rules were made from.
        """
        numbers, codes = [np.zeros((len(table), 0))], [np.zeros((len(table), 0), dtype=np.int64)]
        for position, part in enumerate(self.parts):
            column = table.iloc[:, position]
            if missing == "raise":
                _refuse_missing(column, part.name)
            kind, cells = read_cells(column, part.name)
            found = part.encode(part.checked(kind, cells))
            (codes if isinstance(part, Categories) else numbers).append(found)
        return Rows(torch.from_numpy(np.hstack(numbers)), torch.from_numpy(np.hstack(codes)))

    def state(self) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        """What JSON can hold, and tensors by name: `Encoder.made` makes the encoder from them again."""
        tensors = {f"{i}.{key}": x for i, part in enumerate(self.parts) for key, x in part.tensors().items()}
        return [{"kind": part.kind, **part.description()} for part in self.parts], tensors

    @staticmethod
    def made(descriptions: Sequence[dict[str, Any]], tensors: dict[str, Tensor]) -> Encoder:
        """The encoder that `state` describes."""
        parts = []
        for i, description in enumerate(descriptions):
            own = {key.split(".", 1)[1]: x for key, x in tensors.items() if key.split(".", 1)[0] == str(i)}
            given = {key: x for key, x in description.items() if key != "kind"}
            if description["kind"] not in _PARTS:
                raise StorageError(f"a column is encoded as {description['kind']!r}: install a newer attendb")
            parts.append(_PARTS[description["kind"]](**given, **own))
        return Encoder(parts)


class Part:
    """The rule for one column."""

    kind: ClassVar[str]
    takes: ClassVar[tuple[str, ...]]  # kinds of cells
    name: str
    numbers: tuple[str, ...] = ()

    def checked(self, kind: str, cells: np.ndarray) -> np.ndarray:
        """The cells, when they are of a kind that the rule can take; cells that are all missing always are."""
        if kind in self.takes:
            return cells
        if kind == "empty" or kind == "numbers" and np.isnan(cells).all():
            return self.nothing(len(cells))
        raise KindError(
            f"X column {self.name!r} holds {kind} but held {self.takes[0]} when the model was fitted: convert it"
        )

    def nothing(self, n: int) -> np.ndarray:
        """As many missing cells."""
        return np.full(n, None, dtype=object)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def description(self) -> dict[str, Any]:
        return {"name": self.name}

    def tensors(self) -> dict[str, Tensor]:
        return {}


class Number(Part):
    """One number, as it is."""

    kind, takes = "number", ("numbers",)

    def __init__(self, name: str):
        self.name, self.numbers = name, (name,)

    def nothing(self, n: int) -> np.ndarray:
        return np.full(n, np.nan)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        infinite = np.isinf(cells)
        if infinite.any():
            count = int(infinite.sum())
            raise InputError(
                f"X has {count} infinite number{'s' * (count != 1)} in column {self.name!r} (first: row "
                f"{int(infinite.argmax())}): drop the row{'s' * (count != 1)} or make the cells missing (NaN)"
            )
        return cells[:, None]


class Dates(Part):
    """Days since 1970, and sine and cosine of the cycles that the training rows span at least twice."""

    kind, takes = "dates", ("dates",)

    def __init__(self, name: str, cycles: Sequence[str]):
        self.name, self.cycles = name, tuple(cycles)
        waves = [f"{name}: {cycle}, {wave}" for cycle in self.cycles for wave in ("sine", "cosine")]
        self.numbers = (f"{name}: days", *waves)

    @staticmethod
    def of(name: str, cells: np.ndarray) -> Dates:
        days = _days(cells)
        span = float(np.nanmax(days) - np.nanmin(days)) if np.isfinite(days).any() else 0.0
        return Dates(name, [cycle for cycle, period in CYCLES.items() if span >= 2 * period])

    def nothing(self, n: int) -> np.ndarray:
        return np.full(n, np.datetime64("NaT", "us"))

    def encode(self, cells: np.ndarray) -> np.ndarray:
        days = _days(cells)
        angles = [2 * np.pi * np.remainder(days / CYCLES[cycle], 1.0) for cycle in self.cycles]
        return np.stack([days, *(wave(angle) for angle in angles for wave in (np.sin, np.cos))], 1)

    def description(self) -> dict[str, Any]:
        return {"name": self.name, "cycles": list(self.cycles)}


class Categories(Part):
    """A code for each level: the position of the level in ``levels``."""

    kind, takes = "categories", ("categories", "texts", "numbers")

    def __init__(self, name: str, levels: Sequence[str], *, missing: bool, other: bool):
        self.name, self.missing, self.other = name, missing, other
        self._own = tuple(levels)
        self.levels = (*self._own, *([MISSING] if missing else []), *([OTHER] if other else []))
        self._code = {level: code for code, level in enumerate(self._own)}

    @staticmethod
    def of(name: str, cells: np.ndarray) -> Categories:
        present = [text for cell in cells if (text := _as_text(cell)) is not None]
        counts = Counter(present)
        kept = sorted(sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS])
        return Categories(name, kept, missing=len(present) < len(cells), other=len(counts) > len(kept))

    def encode(self, cells: np.ndarray) -> np.ndarray:
        missing = len(self._own) if self.missing else -1
        other = len(self.levels) - 1 if self.other else -1
        texts = [_as_text(cell) for cell in cells]
        codes = [missing if text is None else self._code.get(text, other) for text in texts]
        return np.array(codes, dtype=np.int64).reshape(-1, 1)

    def description(self) -> dict[str, Any]:
        return {"name": self.name, "levels": list(self._own), "missing": self.missing, "other": self.other}


class Text(Part):
    """TF–IDF of the character n-grams inside words, reduced to a few numbers by a truncated SVD.

    Source: Salton and Buckley 1988 (weights); Deerwester et al. 1990 (latent semantic analysis).
    """

    kind, takes = "text", ("texts", "categories")

    def __init__(self, name: str, ngrams: Sequence[str], *, idf: Tensor, components: Tensor):
        self.name, self._ngrams, self._idf, self._components = name, list(ngrams), idf, components
        self.numbers = tuple(f"{name}: {i + 1}" for i in range(components.shape[0]))

    @staticmethod
    def of(name: str, cells: np.ndarray) -> Text:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = sorted({cell for cell in cells if cell is not None and cell.strip()})
        if len(texts) < 2:  # nothing tells them apart
            return Text(name, [], idf=torch.zeros(0), components=torch.zeros(1, 0))
        vectorizer = TfidfVectorizer(**NGRAMS, max_features=MOST_NGRAMS)
        weights = vectorizer.fit_transform(texts)
        wanted = min(NUMBERS_OF_TEXT, *weights.shape)
        with np.errstate(invalid="ignore"):  # texts that are all alike explain 0 of a variance of 0
            svd = TruncatedSVD(wanted, random_state=0).fit(weights)
        return Text(
            name,
            vectorizer.get_feature_names_out().tolist(),
            idf=torch.from_numpy(np.array(vectorizer.idf_)),
            components=torch.from_numpy(np.array(svd.components_)),
        )

    def encode(self, cells: np.ndarray) -> np.ndarray:
        out = np.full((len(cells), len(self.numbers)), np.nan)
        present = np.array([cell is not None for cell in cells], dtype=bool)
        if present.any():
            texts, which = np.unique(cells[present].astype(str), return_inverse=True)
            out[present] = self._numbers_of(texts.tolist())[which]
        return out

    def _numbers_of(self, texts: list[str]) -> np.ndarray:
        from sklearn.feature_extraction.text import TfidfVectorizer

        if not self._ngrams:
            return np.zeros((len(texts), len(self.numbers)))
        vectorizer = TfidfVectorizer(**NGRAMS, vocabulary=self._ngrams)
        vectorizer.idf_ = self._idf.numpy()
        return vectorizer.transform(texts) @ self._components.numpy().T

    def description(self) -> dict[str, Any]:
        return {"name": self.name, "ngrams": self._ngrams}

    def tensors(self) -> dict[str, Tensor]:
        return {"idf": self._idf, "components": self._components}


_PARTS: dict[str, type] = {part.kind: part for part in (Number, Dates, Categories, Text)}


def _part_of(name: str, kind: str, cells: np.ndarray) -> Part:
    if kind in ("numbers", "empty"):
        return Number(name)
    if kind == "dates":
        return Dates.of(name, cells)
    distinct = {cell for cell in cells if cell is not None}
    if kind == "categories" or len(distinct) <= min(MOST_LEVELS, len(cells) / 2):
        return Categories.of(name, cells)
    return Text.of(name, cells)


def read_cells(column: pd.Series, name: str) -> tuple[str, np.ndarray]:
    """The kind of a column's cells, and the cells.

    "numbers" float64, NaN = missing; "dates" datetime64 in UTC; "texts" and "categories" str or None.
    """
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "categories", _texts(column.astype(object))
    if pd.api.types.is_complex_dtype(dtype):
        raise InputError(f"Complex data not supported: X column {name!r} has dtype {dtype}: give real numbers")
    if pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_numeric_dtype(dtype):
        return "numbers", column.to_numpy(dtype=np.float64, na_value=np.nan)
    if isinstance(dtype, pd.PeriodDtype):
        column, dtype = column.dt.to_timestamp(), np.dtype("datetime64[ns]")
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "dates", _utc(column)
    if pd.api.types.is_timedelta64_dtype(dtype):
        days = column.to_numpy("timedelta64[us]")
        return "numbers", np.where(np.isnat(days), np.nan, days.astype(np.float64) / MICROSECONDS_A_DAY)
    return _read_objects(column, name)


def _read_objects(column: pd.Series, name: str) -> tuple[str, np.ndarray]:
    found = pd.api.types.infer_dtype(column, skipna=True)
    if found == "string":
        return "texts", _texts(column)
    if found == "empty":
        return "empty", np.full(len(column), np.nan)
    if found in ("integer", "floating", "mixed-integer-float", "boolean", "decimal"):
        return "numbers", np.array([np.nan if is_missing(x) else as_float(x) for x in column], dtype=np.float64)
    if found in ("datetime", "datetime64", "date"):
        return "dates", _utc(pd.to_datetime(column, utc=True))
    if found in ("timedelta", "timedelta64"):
        return read_cells(pd.to_timedelta(column), name)
    if found == "complex":
        raise InputError(f"Complex data not supported: X column {name!r} holds complex numbers: give real ones")
    odd = next(x for x in column if not isinstance(x, (int, float, np.number)) and not is_missing(x))
    if isinstance(odd, str):
        raise KindError(f"X column {name!r} mixes numbers and text (such as {odd[:40]!r}): make it one kind")
    kind = type(odd).__name__
    raise KindError(f"X column {name!r} holds a {kind}, but a cell's argument must be a string or a real number")


def _texts(column: pd.Series) -> np.ndarray:
    out = np.empty(len(column), dtype=object)
    out[:] = [_as_text(x) for x in column]
    return out


def _as_text(value: Any) -> str | None:
    """How a category is written; equal numbers are written alike, whatever their dtype."""
    if isinstance(value, str):
        return str(value)
    if is_missing(value):
        return None
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    return repr(float(value)) if isinstance(value, (int, float, np.number)) else str(value)


def as_float(value: Any) -> float:
    """The nearest float64; a whole number beyond all of them is infinite, as a decimal is."""
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _utc(column: pd.Series) -> np.ndarray:
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column.to_numpy(dtype="datetime64[us]")


def _days(cells: np.ndarray) -> np.ndarray:
    return np.where(np.isnat(cells), np.nan, cells.astype(np.int64) / MICROSECONDS_A_DAY)


def _refuse_missing(column: pd.Series, name: str) -> None:
    gaps = column.isna().to_numpy(dtype=bool)
    if gaps.any():
        count = int(gaps.sum())
        raise MissingValueError(
            f"X has {count} missing cell{'s' * (count != 1)} in column {name!r} (first: row {int(gaps.argmax())}): "
            'drop the rows, fill the cells in, or say missing="encode", which makes NaN a value of its own'
        )
