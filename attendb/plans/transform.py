"""Sums of Gaussians by non-uniform Fourier transforms: S(t) = Σ_i c_i exp(−½‖t − s_i‖²) in O(sources + targets).

A Gaussian repeated with period P is a Fourier series whose coefficients fall like exp(−½ω²). The sources are gathered
into that series (a type-1 transform of finufft), the coefficients are multiplied, and the series is evaluated at the
targets (type 2). Two real channels of strengths travel as the real and imaginary part of one.

Error of every sum: at most tails · ‖c‖₁ for the repetition and the cut of the series (proved below), and about
accuracy · magnitude for the transforms, where magnitude = Σ |coefficient| bounds what the type-2 transform can get
wrong. finufft promises no bound for a single target; TRANSFORM_SAFETY and the rounding terms were set so that 4 × the
largest error seen on lattices, duplicates, clusters and heavy-tailed weights stays inside.

Source: Barnett, Magland and af Klinteberg 2019 (finufft); Greengard and Strain 1991 (the fast Gauss transform).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

TRANSFORM_SAFETY = 4.0
ROUNDING = 5e-14  # of a transform, relative to its magnitude
ROUNDING_PER_MODE = 3.5e-17  # 0.15 eps: phases of high modes lose digits
ROWS_AT_ONCE = 1 << 21
LARGEST_HALF = 2.0**40  # more modes than any memory holds
FINEST = 1e-13  # accuracy that finufft is asked for at most
Array = np.ndarray
Strengths = Callable[[Array], Array]  # rows of the sources (p,) → their strengths (C, p)


def reach_of(tails: float, d: int) -> float:
    """R such that repetition at a distance R and a series cut at frequency R change no sum by more than tails · ‖c‖₁.

    In one column the nearest repetition adds at most 2.1 exp(−R²/2), the cut at most exp(−R²/2) for periods ≥ 6;
    the product over d columns at most 4 d exp(−R²/2) of ‖c‖₁. Sources beyond R weigh less than that too.
    """
    return max(6.0, math.sqrt(2 * math.log(4 * d / tails)))


@dataclass(frozen=True, eq=False)
class Points:
    """Some rows (p,) of a table of coordinates (m, d), without a copy of them."""

    table: Array
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)

    def parts(self) -> Iterator[tuple[slice, Points]]:
        """A run of rows after the other, few enough that what is made for them takes little memory."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, len(self)))
            yield part, Points(self.table, self.rows[part])

    def column(self, c: int) -> Array:
        return self.table[:, c] if len(self) == len(self.table) else self.table[self.rows, c]


@dataclass(frozen=True)
class Frame:
    """The Fourier series over a box that holds sources and targets."""

    modes: tuple[int, ...]  # even, a number for each column
    period: Array  # (d,)
    middle: Array  # (d,)

    @staticmethod
    def of_boxes(low: Array, high: Array, other_low: Array, other_high: Array, reach: float) -> Frame:
        """The shortest series for points in two boxes; either may be the sources."""
        apart = np.maximum(np.maximum(high - other_low, other_high - low), 0.0)
        period = apart + reach
        half = np.ceil(np.minimum(period * reach / (2 * np.pi), LARGEST_HALF)).astype(np.int64) + 1
        middle = (np.minimum(low, other_low) + np.maximum(high, other_high)) / 2
        return Frame(tuple(int(2 * n) for n in half), period, middle)

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return math.prod(self.modes)

    def frequencies(self, column: int) -> Array:
        """ω of each mode along one column, shaped to broadcast over the series."""
        n = self.modes[column]
        omega = (np.arange(n) - n // 2) * (2 * np.pi / self.period[column])
        return omega.reshape([-1 if axis == column else 1 for axis in range(len(self.modes))])

    def angles(self, points: Points) -> list[Array]:
        angles = []
        for c in range(len(self.modes)):
            x = points.column(c) - self.middle[c]
            x *= 2 * np.pi / self.period[c]
            angles.append(x)
        return angles


@dataclass(frozen=True)
class Sums:
    """What `gaussian_sums` returns for C channels and n targets."""

    values: Array  # (C, n)
    slopes: Array | None  # (d, C, n): derivatives along the columns of the targets
    error: float  # of every value, without the tails


def gaussian_sums(
    frame: Frame,
    sources: Points,
    targets: Points,
    strengths: Strengths,
    channels: int,
    *,
    accuracy: float,
    slopes: bool = False,
) -> Sums:
    """S_c(t) = Σ_i c_i exp(−½‖t − s_i‖²): m sources and n targets in the boxes of the frame, C strengths each; d ≤ 3.

    Cost: O((m + n) C log(1/accuracy)^d) and an FFT of 2^d · Π (period · reach / π) numbers a pair of channels.
    """
    import finufft

    n, d = len(targets), len(frame.modes)
    values = np.zeros((channels, n))
    gradient = np.zeros((d, channels, n)) if slopes else None
    options = {"eps": accuracy, "dtype": "complex128", "nthreads": torch.get_num_threads()}
    gather = finufft.Plan(1, frame.modes, 1, isign=-1, **options)
    series: list[Array] = []
    for _, part in sources.parts():
        gather.setpts(*frame.angles(part))
        given = strengths(part.rows)
        for pair in range(-(-channels // 2)):
            found = gather.execute(_packed(given, 2 * pair)).reshape(frame.modes)
            if pair < len(series):
                series[pair] += found
            else:
                series.append(found)
    del gather
    magnitude = 0.0
    for coefficients in series:
        for column in range(d):
            omega = frame.frequencies(column)
            coefficients *= math.sqrt(2 * math.pi) / frame.period[column] * np.exp(-0.5 * omega * omega)
        magnitude = max(magnitude, _magnitude(coefficients))
    evaluate = finufft.Plan(2, frame.modes, 1, isign=1, **options)
    for run, part in targets.parts():
        evaluate.setpts(*frame.angles(part))
        for pair, coefficients in enumerate(series):
            _unpack(values[:, run], pair, evaluate.execute(coefficients))
            for column in range(d if gradient is not None else 0):
                assert gradient is not None
                slope = evaluate.execute(coefficients * (1j * frame.frequencies(column)))
                _unpack(gradient[column][:, run], pair, slope)
    rounding = ROUNDING + ROUNDING_PER_MODE * max(frame.modes)
    return Sums(values, gradient, TRANSFORM_SAFETY * (accuracy + rounding) * magnitude)


def _packed(strengths: Array, first: int) -> Array:
    """Channels ``first`` and the next one, where there is one, as one complex channel."""
    packed = strengths[first].astype(np.complex128)
    if first + 1 < len(strengths):
        packed += 1j * strengths[first + 1]
    return packed


def _unpack(into: Array, pair: int, found: Array) -> None:
    into[2 * pair] = np.real(found)
    if 2 * pair + 1 < len(into):
        into[2 * pair + 1] = np.imag(found)


def _magnitude(coefficients: Array) -> float:
    """Σ |coefficient|, without a copy of the whole series."""
    flat = coefficients.reshape(-1)
    return float(sum(np.abs(flat[i : i + (1 << 20)]).sum() for i in range(0, len(flat), 1 << 20)))
