"""Rows as scikit-learn hands them over: checked, in float64, with what is missing counted and named."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from ..errors import InputError, KindError, MissingValueError
from .tables import read_weights

Array = NDArray[Any]


def read_rows(estimator: BaseEstimator, X: Any, *, reset: bool = False) -> Array:
    """X (n, d) in float64; with ``reset`` the names and the number of its columns are kept, else compared."""
    _refuse_shape_and_text(X)
    options = {"dtype": np.float64, "ensure_all_finite": False, "reset": reset}
    x: Any = validate_data(estimator, X, ensure_min_samples=1 if reset else 0, **options)
    refuse_missing(x, "X", names_of(estimator, x.shape[1]))
    return x


def read_table(estimator: BaseEstimator, X: Any, y: Any) -> tuple[Array, Array]:
    """X (m, d) and y (m,) in float64, with the names of the columns kept."""
    _refuse_shape_and_text(X)
    refuse_missing(_numbers(y), "y")
    table: Any = validate_data(estimator, X, y, dtype=np.float64, ensure_all_finite=False, y_numeric=True)
    refuse_missing(table[0], "X", names_of(estimator, table[0].shape[1]))
    return table[0], np.asarray(table[1], dtype=np.float64)


def read_counts(sample_weight: Any, x: Array) -> Array | None:
    """How many times each row is there (m,) ≥ 0; None: once each."""
    if sample_weight is None:
        return None
    w = read_weights(sample_weight, len(x))
    return None if (w == 1).all() else w


def names_of(estimator: Any, d: int) -> list[str]:
    """The names of the columns; without names "x", or "x0", "x1" and so on."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return ["x"] if d == 1 else [f"x{j}" for j in range(d)]
    return [str(name) for name in names]


def one_column(x: Array) -> Array:
    """(m,) of a table (m, 1), for a plot."""
    if x.shape[1] != 1:
        raise InputError(f"plot draws one column but X has {x.shape[1]}: give one, or draw what the model predicts")
    return x[:, 0]


def refuse_missing(x: Array | None, what: str, names: list[str] | None = None) -> None:
    """Raise an error that counts NaN and infinite numbers and names the first column that has any."""
    if x is None or np.isfinite(x).all():
        return
    table = x.reshape(len(x), -1)
    column = int((~np.isfinite(table)).any(0).argmax())
    bad = ~np.isfinite(table[:, column])
    missing = int(np.isnan(table[:, column]).sum())
    where = f"{what} column {names[column]!r}" if names is not None else what
    kinds = [f"{count} {kind}" for count, kind in ((missing, "NaN"), (int(bad.sum()) - missing, "inf")) if count]
    error = MissingValueError if missing else InputError
    raise error(f"{where} has {' and '.join(kinds)} (first: row {int(bad.argmax())}): drop these rows or fill them in")


def _refuse_shape_and_text(X: Any) -> None:
    """Say how one column is given, and which column holds text."""
    shape = getattr(X, "shape", None)
    if shape is not None and len(shape) == 1:
        fix = "X.to_frame()" if hasattr(X, "to_frame") else "X[:, None]"
        raise InputError(f"X has one axis, shape {tuple(shape)}. Reshape your data: {fix} is a table of one column")
    if not hasattr(X, "columns") or not hasattr(X, "__getitem__"):
        return
    for name in X.columns:
        cells = np.asarray(X[name])
        if cells.dtype.kind in "OUST" and cells.ndim == 1:
            for row, cell in enumerate(cells.tolist()):
                if isinstance(cell, str) and not _is_number(cell):
                    fix = "give numbers, or leave the column out"
                    raise KindError(f"X column {str(name)!r} holds {cell!r} in row {row}: {fix}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(y: Any) -> Array | None:
    """y as numbers where it can be, for a first look; what cannot is left to scikit-learn's own words."""
    try:
        numbers = np.asarray(y)
        numbers = None if numbers.ndim != 1 or numbers.dtype.kind == "c" else numbers.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return numbers
