"""Distances of all pairs of rows, and the gradient of ‖q − k‖₁; CPU, float32 and float64.

A tile of keys is turned to (d, keys), so that the inner loop runs along the keys and nothing is added across a vector
register: 0.055 ns a pair and column in float32 on one core, where torch.cdist needs 0.4.

Every pair is summed in one order, that of small blocks in `scores/pairwise.py`, without contraction or reassociation:
a distance has the same bits wherever its pair lies, and ties stay ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .threads import in_threads

Rows = np.ndarray[Any, Any]

WORK_OF_A_THREAD = 3 << 20  # pairs × columns: 0.2 ms; handing a part to another thread costs 0.1 ms
IN_CACHE = 1 << 15  # numbers of a tile of keys
APART = 16  # numbers between the rows of a turned tile, so that they do not share cache lines


@numba.njit(nogil=True, cache=True)
def _fill(
    q: Rows,
    k: Rows,
    out: Rows,
    sign: Any,
    squares: bool,
    first: int,
    last: int,
    first_key: int,
    last_key: int,
    tile: int,
) -> None:
    """out = sign · Σ_c |q_c − k_c|, or of the squares, for a run of the rows of q (of all batches) and of keys."""
    n, d = q.shape[1:]
    turned = np.empty((d, tile + APART), q.dtype)
    for b in range(first // n, (last - 1) // n + 1):
        keys = k[min(b, len(k) - 1)]
        for start in range(first_key, last_key, tile):
            size = min(tile, last_key - start)
            for j in range(size):
                for c in range(d):
                    turned[c, j] = keys[start + j, c]
            for i in range(max(first - b * n, 0), min(last - b * n, n)):
                row = out[b, i, start : start + size]
                for j in range(size):
                    row[j] = 0
                for c in range(d % 4):
                    x, k0 = q[b, i, c], turned[c]
                    if squares:
                        for j in range(size):
                            row[j] += sign * _square(x - k0[j])
                    else:
                        for j in range(size):
                            row[j] += sign * abs(x - k0[j])
                for c in range(d % 4, d, 4):
                    x, y, z, w = q[b, i, c], q[b, i, c + 1], q[b, i, c + 2], q[b, i, c + 3]
                    k0, k1, k2, k3 = turned[c], turned[c + 1], turned[c + 2], turned[c + 3]
                    if squares:
                        for j in range(size):
                            near = _square(x - k0[j]) + _square(y - k1[j])
                            row[j] += sign * (near + (_square(z - k2[j]) + _square(w - k3[j])))
                    else:
                        for j in range(size):
                            near = abs(x - k0[j]) + abs(y - k1[j])
                            row[j] += sign * (near + (abs(z - k2[j]) + abs(w - k3[j])))


@numba.njit(cache=True)
def _square(x: Any) -> Any:
    return x * x


def _tile(width: int) -> int:
    return max(128, min(1024, IN_CACHE // width))


def _cut_longer(task: Callable[[int, int, int, int], object], rows: int, keys: int, work_of_pair: int) -> None:
    """Run task(first row, last row, first key, last key) in threads, cut along the longer of the two."""
    least = -(-WORK_OF_A_THREAD // (min(rows, keys) * work_of_pair))
    if rows > keys:
        in_threads(lambda start, stop: task(start, stop, 0, keys), rows, least=least)
    else:
        in_threads(lambda start, stop: task(0, rows, start, stop), keys, least=least)


def _all_pairs(q: Tensor, k: Tensor, sign: float, *, squares: bool) -> Tensor:
    (b, n, d), m = q.shape, k.shape[1]
    out = torch.empty(b, n, m, dtype=q.dtype)
    rows, keys, result = (x.detach().contiguous().numpy() for x in (q, k, out))
    given = result.dtype.type(sign)

    def fill(first: int, last: int, first_key: int, last_key: int) -> None:
        _fill(rows, keys, result, given, squares, first, last, first_key, last_key, _tile(d))

    _cut_longer(fill, b * n, m, d)
    return out


def squared_distance(q: Float[Tensor, "b n d"], k: Float[Tensor, "#b m d"]) -> Float[Tensor, "b n m"]:
    """‖q − k‖² by differences; nothing may be empty."""
    return _all_pairs(q, k, 1.0, squares=True)


def manhattan(q: Float[Tensor, "b n d"], k: Float[Tensor, "#b m d"], sign: float = 1.0) -> Float[Tensor, "b n m"]:
    """sign · ‖q − k‖₁; nothing may be empty."""
    return _all_pairs(q, k, sign, squares=False)


@numba.njit(nogil=True, cache=True, fastmath={"nsz", "arcp", "contract", "reassoc"})
def _pull(
    q: Rows,
    k: Rows,
    grad: Rows,
    dq: Rows,
    dk: Rows,
    sign: Any,
    first: int,
    last: int,
    first_key: int,
    last_key: int,
    tile: int,
) -> None:
    """dq += Σ_j g_ij sign(q_i − k_j), dk −= Σ_i of the same; two queries at a time. The sign of NaN is NaN."""
    n, d = q.shape[1:]
    zero = sign - sign
    turned, pulled = np.empty((d, tile + APART), q.dtype), np.empty((d, tile + APART), q.dtype)
    nothing = np.zeros(tile, q.dtype)
    for b in range(first // n, (last - 1) // n + 1):
        at = min(b, len(k) - 1)
        end = min(last - b * n, n)
        for start in range(first_key, last_key, tile):
            size = min(tile, last_key - start)
            stop = start + size
            for j in range(size):
                for c in range(d):
                    turned[c, j] = k[at, start + j, c]
            pulled[:] = 0
            for i in range(max(first - b * n, 0), end, 2):
                paired = i + 1 < end
                other = i + 1 if paired else i  # a query left over is paired with itself, at gradient 0
                g, h = grad[b, i, start:stop], grad[b, other, start:stop] if paired else nothing[:size]
                for c in range(d):
                    x, y, keys, sums = q[b, i, c], q[b, other, c], turned[c], pulled[c]
                    total, total_of_other = zero, zero
                    for j in range(size):
                        s, t = x - keys[j], y - keys[j]
                        s = g[j] * (sign if s > zero else (-sign if s < zero else s))
                        t = h[j] * (sign if t > zero else (-sign if t < zero else t))
                        total += s
                        total_of_other += t
                        sums[j] += s + t
                    dq[b, i, c] += total
                    if paired:
                        dq[b, other, c] += total_of_other
            for j in range(size):
                for c in range(d):
                    dk[at, start + j, c] -= pulled[c, j]


def manhattan_gradients(
    q: Float[Tensor, "b n d"], k: Float[Tensor, "#b m d"], grad: Float[Tensor, "b n m"], sign: float = 1.0
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "#b m d"]]:
    """(dq, dk) of ⟨grad, sign · ‖q − k‖₁⟩, in one pass; the subgradient at 0 is 0; nothing may be empty."""
    (b, n, d), m = q.shape, k.shape[1]
    rows, keys, given = (x.detach().contiguous().numpy() for x in (q, k, grad))
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by their place, so that the order of the sum is fixed

    def pull(first: int, last: int, first_key: int, last_key: int) -> None:
        dq, dk = torch.zeros(q.shape, dtype=q.dtype), torch.zeros(k.shape, dtype=k.dtype)
        place = first, last, first_key, last_key
        _pull(rows, keys, given, dq.numpy(), dk.numpy(), given.dtype.type(sign), *place, _tile(2 * d))
        parts[first, first_key] = dq, dk

    _cut_longer(pull, b * n, m, 2 * d)
    (dq, dk), *rest = (parts[place] for place in sorted(parts))
    for more_q, more_k in rest:
        dq += more_q
        dk += more_k
    return dq, dk
