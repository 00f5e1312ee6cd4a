"""A comparison that knows ties: rows of equal weight may be listed in any order, everything else must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dense import OracleAnswer


def compare(
    answer: Any,
    expected: OracleAnswer,
    *,
    atol: float = 1e-10,
    rtol: float = 1e-10,
    top_atol: float | None = None,
    weights: bool = False,
) -> None:
    """Raise AssertionError with the worst entry where an answer differs from the oracle's.

        |got − expected| ≤ atol + rtol·|expected|        for value, log_normalizer, top weights and weights

    ``answer``: an `attendb.Answer` or an `OracleAnswer`. Infinite numbers must be equal, NaN never is, ``empty``
    must be equal, ``log_normalizer`` must be None on both sides or on neither. Where the answer carries top rows,
    each listed position must hold the weight expected at its place, within ``top_atol`` (default ``atol``), so that
    only rows tied within it may change places. ``weights=True`` also asks the answer for all its weights.

    Raises AssertionError. Cost: that of the arrays compared.

    >>> import attendb as ad
    >>> from attendb.testing import compare, oracle
    >>> expected = oracle([[1.0]], [[0.0], [1.0]], [10.0, 20.0], score=ad.Dot())
    >>> compare(ad.attend([[1.0]], [[0.0], [1.0]], [10.0, 20.0], score=ad.Dot()), expected)

    Source: the tie rule follows rule 4 of the design; see docs/architecture.md.
    """
    if expected.value is not None:
        close(answer.value, expected.value, "value", atol, rtol)
    if (answer.log_normalizer is None) != (expected.log_normalizer is None):
        raise AssertionError(f"log_normalizer is {answer.log_normalizer}, expected {expected.log_normalizer}")
    if expected.log_normalizer is not None:
        close(answer.log_normalizer, expected.log_normalizer, "log_normalizer", atol, rtol)
    got_empty, want_empty = _array(answer.empty), _array(expected.empty)
    if got_empty.shape != want_empty.shape or (got_empty != want_empty).any():
        raise AssertionError(f"empty is {got_empty.tolist()}, expected {want_empty.tolist()}")
    if weights:
        got = answer.weights if isinstance(answer, OracleAnswer) else answer.weights()
        close(got, expected.weights, "weights", atol, rtol)
    top = _top_of(answer)
    if top is not None and expected.value is not None:  # what `Sampled` draws is not the oracle's
        _compare_top(*top, expected, atol if top_atol is None else top_atol, rtol)


def close(got: Any, expected: Any, what: str, atol: float, rtol: float) -> None:
    """Raise AssertionError naming the worst entry where |got − expected| > atol + rtol·|expected|."""
    got, expected = _array(got).astype(np.float64), _array(expected).astype(np.float64)
    if got.shape != expected.shape:
        raise AssertionError(f"{what} has shape {got.shape}, expected {expected.shape}")
    if got.size == 0:
        return
    with np.errstate(invalid="ignore"):
        error = np.abs(got - expected)
        room = atol + rtol * np.abs(expected)
    finite = np.isfinite(got) & np.isfinite(expected)
    over = np.where(finite, error - np.where(finite, room, 0.0), np.where(got == expected, -np.inf, np.inf))
    worst = np.unravel_index(np.argmax(over), over.shape)
    if over[worst] > 0:
        raise AssertionError(
            f"{what}{[int(i) for i in worst]} is {got[worst]!r}, expected {expected[worst]!r} "
            f"(error {error[worst]:.3g}, allowed {room[worst]:.3g}; {int((over > 0).sum())} of {over.size} entries)"
        )


def _array(x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x if x.dtype == torch.bool else x.to(torch.float64) if x.is_floating_point() else x).numpy()
    return np.asarray(x)


def _top_of(answer: Any) -> tuple[np.ndarray, np.ndarray] | None:
    if isinstance(answer, OracleAnswer):
        return _array(answer.top_positions), _array(answer.top_weights)
    top = getattr(answer, "top", None)
    return None if top is None else (_array(top.positions), _array(top.weights))


def _compare_top(positions: np.ndarray, weights: np.ndarray, expected: OracleAnswer, atol: float, rtol: float) -> None:
    want_positions, want_weights = _array(expected.top_positions), _array(expected.top_weights)
    close(-np.sort(-weights, -1), -np.sort(-want_weights, -1), "top.weights", atol, rtol)
    if positions.shape != want_positions.shape:
        raise AssertionError(f"top.positions has shape {positions.shape}, expected {want_positions.shape}")
    if ((positions < 0) != (want_positions < 0)).any():
        raise AssertionError(f"top.positions lists {positions.tolist()}, expected {want_positions.tolist()}")
    everything = _array(expected.weights)
    held = np.take_along_axis(everything, np.maximum(positions, 0), -1) if positions.size else want_weights
    wrong = (positions != want_positions) & (np.abs(held - want_weights) > atol + rtol * np.abs(want_weights))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"top.positions{list(at)} is {int(positions[at])}, of weight {held[at]!r}, "
            f"expected {int(want_positions[at])}, of weight {want_weights[at]!r}"
        )
    for row in positions.reshape(-1, positions.shape[-1]):
        listed = row[row >= 0]
        if len(set(listed.tolist())) < len(listed):
            raise AssertionError(f"top.positions lists a row twice: {row.tolist()}")
