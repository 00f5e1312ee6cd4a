"""A 64-bit hash of a key that is the same in every process and version, so that it can be stored.

Numbers go by their bits in the dtype of the column (−0 as 0), texts by their form NFC. Rows that hash alike are
compared in full by whoever asks, so that two keys of one hash are never mistaken for each other.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import numpy as np
from torch import Tensor

from .base import Data, Rows
from .exact import nfc

WORDS = 1 << 13  # hashed at once, so that they stay in cache; of wide rows ROWS
ROWS = 1024
MANY = 1 << 30  # bytes hashed by a process, from where on compiling the loop pays
SMALL = 1 << 20  # bytes at once, below which numpy is as fast as need be
SEED = 0x9E3779B97F4A7C15

_hashed_bytes = 0


def key_hashes(keys: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (r,) int64 of rows of key columns, and which rows have a key at all: a missing text equals nothing.

    Numbers must be in the dtype of the column. Cost: about 0.4 ns a byte of numbers, 0.15 ns compiled, 1 µs a text.
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
    sums = _compiled(numbers.nbytes)
    rows = max(ROWS, WORDS // max(1, words))
    raw = np.zeros((rows, 8 * words), dtype=np.uint8)  # the same memory for all rows: new pages cost more than the hash
    bits, shifted = np.empty((2, rows, words), dtype=np.uint64)
    for start in range(0, len(numbers), rows):
        part = numbers[start : start + rows]
        m = len(part)
        own, spread, moved = raw[:m].view("<u8"), bits[:m], shifted[:m]
        if part.dtype.kind == "f":
            np.add(part, part.dtype.type(0), out=raw[:m, :row].view(part.dtype))  # −0 + 0 = 0
        else:
            raw[:m, :row].view(part.dtype)[...] = part
        if sums is not None:
            sums(own, factors, out[start : start + m])
            continue
        np.right_shift(own, np.uint64(32), out=spread)
        spread ^= own
        spread *= factors
        np.right_shift(spread, np.uint64(29), out=moved)
        spread ^= moved
        np.sum(spread, axis=1, dtype=np.uint64, out=out[start : start + m])
    return _mixed(out)


def _compiled(size: int) -> Callable[..., None] | None:
    """The compiled loop, where it is at hand already or pays in the long run: importing it takes half a second."""
    global _hashed_bytes
    _hashed_bytes += size
    if _hashed_bytes < MANY and "numba" not in sys.modules or size < SMALL:
        return None
    from ..compiled.hashing import sums_of_words

    return sums_of_words


def _factors(width: int) -> np.ndarray:
    steps = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(SEED)
    return _mixed(steps) | np.uint64(1)


def _mixed(code: np.ndarray) -> np.ndarray:
    """A one-to-one scrambling of 64 bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    code = code ^ (code >> np.uint64(30))
    code *= np.uint64(0xBF58476D1CE4E5B9)
    code ^= code >> np.uint64(27)
    code *= np.uint64(0x94D049BB133111EB)
    code ^= code >> np.uint64(31)
    return code
