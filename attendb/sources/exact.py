"""Finding rows by exact key: numbers that are equal, texts that are equal in Unicode's form NFC.

Every row has a 64-bit hash; the hashes are kept sorted. A key is found by binary search among them, and the rows
found are then compared in full, so that two keys of one hash are never mistaken for each other.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import torch
from torch import Tensor

from ..columns import Opaque
from .base import Data, Rows

LARGEST_INT = 2.0**63


class Codes:
    """Rows in the form in which equal means the same bits, or the same text."""

    def __init__(self, rows: Rows, present: np.ndarray):
        numbers = [_bits(x) for x in rows.values() if isinstance(x, Tensor)]
        self.numbers = np.concatenate(numbers, 1) if numbers else np.zeros((len(present), 0), dtype=np.int64)
        self.texts = [nfc(x.rows) for x in rows.values() if isinstance(x, Opaque)]
        self.present = present.copy()
        for text in self.texts:
            self.present &= np.array([x is not None for x in text], dtype=bool)

    def hashes(self) -> np.ndarray:
        out = np.full(len(self.present), 0x9E3779B97F4A7C15, dtype=np.uint64)
        for column in self.numbers.T:
            out = _mixed(out ^ column.view(np.uint64))
        for text in self.texts:
            own = np.fromiter((hash(x) for x in text), dtype=np.int64, count=len(text))
            out = _mixed(out ^ own.view(np.uint64))
        return out

    def same(self, rows: np.ndarray, other: Codes, other_rows: np.ndarray) -> np.ndarray:
        out = (self.numbers[rows] == other.numbers[other_rows]).all(1)
        for text, other_text in zip(self.texts, other.texts, strict=True):
            out &= np.asarray(text[rows] == other_text[other_rows], dtype=bool)
        return out


class KeyIndex:
    """Sorted hashes of all keys. Building: O(m log m), about 0.2 s for 10⁶ rows; finding: O(log m)."""

    def __init__(self, keys: Rows):
        self.keys = keys
        self.versions = [x._version for x in keys.values() if isinstance(x, Tensor)]
        m = next((len(x) if isinstance(x, Opaque) else x.shape[0] for x in keys.values()), 0)
        self.codes = Codes(keys, np.ones(m, dtype=bool))
        rows = np.flatnonzero(self.codes.present)
        hashes = self.codes.hashes()[rows]
        order = np.argsort(hashes, kind="stable")
        self.rows, self.hashes = rows[order], hashes[order]

    @property
    def current(self) -> bool:
        """False once a tensor of keys was written to in place."""
        return self.versions == [x._version for x in self.keys.values() if isinstance(x, Tensor)]

    def find(self, wanted: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (wanted row, table row) that are equal, in order."""
        fitting = {name: _fitted(x, self.keys[name]) for name, x in wanted.items()}
        present = np.logical_and.reduce([fits for _, fits in fitting.values()])
        codes = Codes({name: x for name, (x, _) in fitting.items()}, present)
        hashes = codes.hashes()
        low = np.searchsorted(self.hashes, hashes, "left")
        counts = np.where(codes.present, np.searchsorted(self.hashes, hashes, "right") - low, 0)
        asked = np.repeat(np.arange(len(low)), counts)
        starts = np.repeat(low - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        rows = self.rows[starts + np.arange(len(asked))]
        same = codes.same(asked, self.codes, rows)
        return asked[same], rows[same]


def duplicates(keys: Rows) -> np.ndarray:
    """Rows whose key an earlier row has."""
    asked, rows = KeyIndex(keys).find(keys)
    return np.unique(asked[rows < asked])


def nfc(texts: np.ndarray) -> np.ndarray:
    """Texts in the form in which they are compared; None stays None."""
    out = np.empty(len(texts), dtype=object)
    out[:] = [x if x is None or x.isascii() else unicodedata.normalize("NFC", x) for x in texts]
    return out


def fit_numbers(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers in another dtype, and which of them stayed themselves; decimal fractions may be rounded."""
    if x.dtype == dtype or x.is_floating_point() and dtype.is_floating_point:
        out = x.to(dtype)
        return out, ~torch.isinf(out) | torch.isinf(x)
    if dtype.is_floating_point:  # whole numbers
        whole = x.to(torch.int64)
        out = whole.to(dtype)
        wide = out.double()
        return out, (wide.abs() < LARGEST_INT) & (torch.where(wide.abs() < LARGEST_INT, wide, 0.0).long() == whole)
    if x.is_floating_point():
        wide = x.double()
        inside = (wide == wide.floor()) & (wide >= -LARGEST_INT) & (wide < LARGEST_INT)
        whole = torch.where(inside, wide, 0.0).to(torch.int64)
        out = whole.to(dtype)
        return out, inside & (out.to(torch.int64) == whole)
    out = x.to(dtype)
    return out, out.to(torch.int64) == x.to(torch.int64)


def _fitted(wanted: Data, column: Data) -> tuple[Data, np.ndarray]:
    """A wanted key as the column would store it, and whether it can."""
    if isinstance(wanted, Opaque) or isinstance(column, Opaque):
        return wanted, np.ones(len(wanted) if isinstance(wanted, Opaque) else wanted.shape[0], dtype=bool)
    out, fits = fit_numbers(wanted.detach(), column.dtype)
    return out, (fits & ~out.isnan()).all(1).cpu().numpy()


def _bits(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    if x.is_floating_point():
        return (x.double() + 0.0).contiguous().numpy().view(np.int64)  # −0 + 0 = 0
    return x.to(torch.int64).contiguous().numpy()


def _mixed(code: np.ndarray) -> np.ndarray:
    """A one-to-one scrambling of 64 bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return code ^ (code >> np.uint64(31))
