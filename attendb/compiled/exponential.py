"""2^x for compiled loops: a polynomial that vectorises, where a call of the library's exp would not."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

# Chebyshev fits of 2^r on −½ … ½, highest power first, fitted with 40 digits: relative error 8e-8 and 1e-18
SINGLE = tuple(
    np.float32(c)
    for c in (
        0.0013390863364671234,
        0.009676031918322054,
        0.05550357114219078,
        0.2402210748530834,
        0.6931471880262288,
        1.0000000754548972,
    )
)
DOUBLE = (
    4.4558179083360645e-10,
    7.074194297288521e-09,
    1.0178057087733941e-07,
    1.3215432535912375e-06,
    1.5252733841556773e-05,
    0.00015403530463724353,
    0.001333355814640647,
    0.009618129107587256,
    0.055504108664821625,
    0.24022650695910158,
    0.6931471805599453,
    1.0,
)
LEAST_SINGLE, LEAST_DOUBLE = np.float32(-126.0), -1022.0
# adding 1.5 · 2^(digits) rounds to a whole number, which then stands in the last bits
ROUND_SINGLE, ROUND_DOUBLE = np.float32(1.5 * 2**23), 1.5 * 2.0**52


@intrinsic
def _bits(context, x):  # type: ignore[no-untyped-def]
    """The bits of a float as a whole number of the same size."""
    whole = types.int32 if x == types.float32 else types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(whole))

    return whole(x), generate


@intrinsic
def _from_bits(context, x):  # type: ignore[no-untyped-def]
    """The float whose bits are those of a whole number."""
    real = types.float32 if x == types.int32 else types.float64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(real))

    return real(x), generate


# no "reassoc" here: it would cancel the additions that round
@numba.njit(nogil=True, fastmath={"contract"})
def _exp2_single(x: Any) -> Any:
    x = max(x, LEAST_SINGLE)
    rounded = x + ROUND_SINGLE
    r = x - (rounded - ROUND_SINGLE)
    p = SINGLE[0]
    p = p * r + SINGLE[1]
    p = p * r + SINGLE[2]
    p = p * r + SINGLE[3]
    p = p * r + SINGLE[4]
    p = p * r + SINGLE[5]
    return _from_bits(np.int32(_bits(p) + (_bits(rounded) << 23)))  # pyright: ignore[reportCallIssue]  # sums of int32 are int64 here


@numba.njit(nogil=True, fastmath={"contract"})
def _exp2_double(x: Any) -> Any:
    x = max(x, LEAST_DOUBLE)
    rounded = x + ROUND_DOUBLE
    r = x - (rounded - ROUND_DOUBLE)
    p = DOUBLE[0]
    p = p * r + DOUBLE[1]
    p = p * r + DOUBLE[2]
    p = p * r + DOUBLE[3]
    p = p * r + DOUBLE[4]
    p = p * r + DOUBLE[5]
    p = p * r + DOUBLE[6]
    p = p * r + DOUBLE[7]
    p = p * r + DOUBLE[8]
    p = p * r + DOUBLE[9]
    p = p * r + DOUBLE[10]
    p = p * r + DOUBLE[11]
    return _from_bits(_bits(p) + (_bits(rounded) << 52))  # pyright: ignore[reportCallIssue]


def exp2(x):  # type: ignore[no-untyped-def]
    """2^x in the dtype of x, for x ≤ 127 (1023 in float64); below −126 (−1022) it stays at the least normal number.

    For compiled code only. Relative error at most 2 units in the last place.
    """
    raise NotImplementedError("exp2 is for compiled code: use numpy.exp2")


@overload(exp2, inline="never")
def _exp2(x):  # type: ignore[no-untyped-def]  # numba compares the signatures
    if x == types.float32:
        return lambda x: _exp2_single(x)
    return lambda x: _exp2_double(x)
