"""A 64-bit hash of a key that is the same in every process and version, so that it can be stored.

Numbers go by their bits in the dtype of the column (−0 as 0), texts by their form NFC. Rows that hash alike are compared in full by whoever asks, so that two keys of one hash are never mistaken for each other.
"""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

from .base import Data, Rows
from .exact import nfc

ROWS = 2048  # at once, so that their bits stay in cache
SEED = 0x9E3779B97F4A7C15


def key_hashes(keys: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (r,) int64 of rows of key columns, and which rows have a key at all: a missing text equals nothing.

    Numbers must be in the dtype of the column. Cost: about 0.2 ns a byte of numbers, 1 µs a text.
    """
    present: np.ndarray | None = None
    total: np.ndarray | None = None
    for column in keys.values():
        own, has = _hashed(column)
        total = own if total is None else _mixed(total ^ _mixed(own + np.uint64(SEED)))
        present = has if present is None else present & has
    if total is None or present is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    return total.view(np.int64), present


def _hashed(column: Data) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(column, Tensor):
        return _of_numbers(column.detach().cpu()), np.ones(column.shape[0], dtype=bool)
    texts = nfc(column.rows)
    present = np.array([text is not None for text in texts], dtype=bool)
    codes = (0 if text is None else _of_text(text) for text in texts)
    return np.fromiter(codes, dtype=np.uint64, count=len(texts)), present


def _of_text(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _of_numbers(x: Tensor) -> np.ndarray:
    """Σ_c m_c f(bits_c) over words of 64 bits, m_c odd and random, f shifts and a product that spread the bits set.

    Source: Lemire and Kaser 2014 (multilinear hashing); the last step is the finaliser of SplitMix64.
    """
    row = x.shape[1] * x.element_size()
    words = -(-row // 8)
    factors = _factors(words)
    numbers = x.contiguous().numpy()
    out = np.empty(x.shape[0], dtype=np.uint64)
    for start in range(0, x.shape[0], ROWS):
        part = numbers[start : start + ROWS]
        part = part + part.dtype.type(0) if part.dtype.kind == "f" else part  # −0 + 0 = 0
        raw = part.view(np.uint8)
        if row % 8:
            raw = np.pad(raw, ((0, 0), (0, 8 * words - row)))
        bits = raw.view("<u8") >> np.uint64(32)
        bits ^= raw.view("<u8")
        bits *= factors
        bits ^= bits >> np.uint64(29)
        out[start : start + ROWS] = bits.sum(1, dtype=np.uint64)
    return _mixed(out)


def _factors(width: int) -> np.ndarray:
    steps = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(SEED)
    return _mixed(steps) | np.uint64(1)


def _mixed(code: np.ndarray) -> np.ndarray:
    """A one-to-one scrambling of 64 bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return code ^ (code >> np.uint64(31))
