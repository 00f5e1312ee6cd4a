"""What users give, as one table of columns, one array of targets and one weight a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data

from ..errors import InputError, KindError, MissingValueError
from ..sources.rows import some
from .encoding import as_float


def read_table(estimator: BaseEstimator, X: Any, *, reset: bool) -> pd.DataFrame:
    """A DataFrame of the columns, with a new index; names and number of columns are remembered, or checked."""
    if type(X).__name__ == "LazyFrame":
        raise KindError("X is a LazyFrame, whose rows are not there yet: give X.collect()")
    if _is_frame(X):
        names = [str(name) for name in getattr(X, "column_names", X.columns)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"X has {names.count(twice)} columns named {twice!r}: give each column a name of its own")
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        table = X if isinstance(X, pd.DataFrame) else X.to_pandas()
        if not table.shape[1]:
            raise InputError(f"X has 0 feature(s) (shape={table.shape}) while a minimum of 1 is required.")
        return table.reset_index(drop=True)
    if not hasattr(X, "dtype") and not hasattr(X, "__array__") and isinstance(X, (list, tuple)):
        X = _from_lists(X)
    array = validate_data(estimator, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=int(reset))
    return pd.DataFrame(array, copy=True)  # the caller may write into the array


def read_numbers(y: Any, rows: int) -> tuple[np.ndarray, list[str] | None]:
    """Targets (n,) or (n, v) float64, and their names where they have some.

    Raises MissingValueError and InputError with the count and the column of what is NaN or infinite.
    """
    names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
    array = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    if array.ndim not in (1, 2):
        raise InputError(f"y has {array.ndim} axes: give one number a row, or one column for each target")
    if array.dtype.kind not in "fiub":
        if array.dtype.kind == "c":
            raise InputError("Complex data not supported: y holds complex numbers, give real ones")
        try:
            array = np.array([[np.nan if pd.isna(x) else as_float(x) for x in np.atleast_1d(row)] for row in array])
        except (TypeError, ValueError):
            raise KindError(
                f"y has dtype {getattr(y, 'dtype', array.dtype)}: give numbers, or use AttentionClassifier for classes"
            ) from None
        array = array.reshape(len(array), -1) if np.ndim(y) == 2 else array.reshape(-1)
    array = array.astype(np.float64)
    check_consistent_length(np.empty(rows), array)
    if array.ndim == 2 and not array.shape[-1]:
        raise InputError("y has no column: give at least one target")
    _refuse_odd(array, names)
    return array, names


def read_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """One weight ≥ 0 a row, float64, not all of them 0."""
    from sklearn.utils.validation import _check_sample_weight  # type: ignore[attr-defined]

    w = _check_sample_weight(sample_weight, np.empty((rows, 1)), dtype=np.float64, allow_all_zero_weights=True)
    if (w < 0).any():
        raise InputError(f"sample_weight must be ≥ 0, got {w[w < 0][0]:g} for row {int((w < 0).argmax())}")
    if rows and not w.any():
        raise InputError("sample_weight must contain at least one non-zero number: all rows weigh 0")
    return w


def read_groups(groups: Any, rows: int, known: dict[Any, int] | None = None) -> tuple[np.ndarray, dict[Any, int]]:
    """The number (n,) of each row's group, and the groups by number; those ``known`` keep theirs."""
    array = groups.to_numpy() if hasattr(groups, "to_numpy") else np.asarray(groups)
    if array.shape != (rows,):
        raise InputError(f"groups has shape {array.shape} but X has {rows} rows: name one group for each row")
    missing = np.asarray(pd.isna(array), dtype=bool)
    if missing.any():
        raise MissingValueError(
            f"groups has no name in {int(missing.sum())} rows (first: row {int(missing.argmax())}): give each row one"
        )
    found = dict(known or {})
    return np.array([found.setdefault(name, len(found)) for name in array.tolist()], dtype=np.int64), found


def _refuse_odd(y: np.ndarray, names: list[str] | None) -> None:
    for test, what, error in ((np.isnan, "missing", MissingValueError), (np.isinf, "infinite", InputError)):
        odd = test(y.reshape(len(y), -1))
        if odd.any():
            column = int(odd.any(0).argmax())
            count, where = int(odd[:, column].sum()), odd[:, column].nonzero()[0]
            name = f"column {(names[column] if names else column)!r} of y" if y.ndim == 2 or names else "y"
            raise error(
                f"{name} has {count} {what} number{'s' * (count != 1)} (row{'s' * (count != 1)} {some(where)}): drop "
                "the rows, since a case without its outcome teaches nothing"
            )


def _is_frame(X: Any) -> bool:
    return type(X).__module__.split(".")[0] in ("pandas", "polars", "pyarrow") and hasattr(X, "columns")


def _from_lists(X: Any) -> Any:
    """Lists of cells of several kinds as objects: numpy would make text of numbers beside text."""
    rows = [row for row in X if isinstance(row, (list, tuple))]
    if len(rows) == len(X) and any(isinstance(cell, str) or cell is None for row in rows for cell in row):
        return np.array(X, dtype=object)
    return X
