"""From what users hold (lists, numpy, torch, pandas, polars, text) to what the engine carries, and back.

Nothing missing becomes a number here: NaN in numbers passes and is found in the scores, None is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .columns import Columns, Labels, Opaque
from .errors import InputError, KindError, MissingValueError


def read_columns(data: Any, name: str, *, stack: bool = True) -> Columns:
    """A tensor (..., rows, width), a text column, or a dict of columns.

    A frame whose columns are all numbers is one tensor, unless ``stack`` is False (a score that needs the names).
    """
    if isinstance(data, (Tensor, Opaque)):
        return _numbers(data, name) if isinstance(data, Tensor) else data
    if _is_frame(data):
        data = {str(column): data[column] for column in getattr(data, "column_names", data.columns)}
        if not data:
            raise InputError(f"{name} is a table without columns: give at least one")
        columns = {column: read_columns(part, f"{name} column {column!r}") for column, part in data.items()}
        return stacked(columns) if stack and all(isinstance(c, Tensor) for c in columns.values()) else columns
    if isinstance(data, Mapping):
        if not data:
            raise InputError(f"{name} has no columns: give at least one")
        columns = {str(column): read_columns(part, f"{name} column {column!r}") for column, part in data.items()}
        lengths = {column: _rows(part) for column, part in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{name} has columns of different lengths ({lengths}): give every column one length")
        return columns
    if isinstance(data, str):
        return Opaque(np.array([data], dtype=object))
    return _from_array(_as_array(data, name), name)


def stacked(columns: Mapping[str, Columns]) -> Tensor:
    """Numeric columns of width 1 as one tensor (rows, columns)."""
    parts = [cast(Tensor, c) for c in columns.values()]
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    return torch.cat([part.to(dtype) for part in parts], -1)


def read_values(data: Any, name: str = "values") -> Tensor | Labels:
    """A tensor (..., m, v), or labels for text and categories."""
    if isinstance(data, Labels):
        return data
    columns = read_columns(data, name)
    if isinstance(columns, dict):
        if len(columns) == 1:
            columns = next(iter(columns.values()))
        elif all(isinstance(c, Tensor) for c in columns.values()):
            return stacked(columns)
        else:
            raise KindError(f"{name} mix text and numbers in {list(columns)}: pool one kind at a time")
    return as_labels(columns, name) if isinstance(columns, Opaque) else cast(Tensor, columns)


def as_labels(column: Opaque, name: str, known: dict[Any, int] | None = None) -> Labels:
    """Distinct values and their codes, in the order of first appearance; after those of ``known``, which grows."""
    lookup: dict[Any, int] = {} if known is None else known
    codes = np.empty(len(column), dtype=np.int64)
    for row, value in enumerate(column.rows):
        if is_missing(value):
            raise MissingValueError(f"{name} has no value in row {row}: drop the row or fill it in")
        codes[row] = lookup.setdefault(value, len(lookup))
    names = np.empty(len(lookup), dtype=object)
    names[:] = list(lookup)
    return Labels(torch.from_numpy(codes), names)


def read_pairwise(data: Any, name: str, *, boolean: bool) -> Any:
    """`where` or `bias`: a tensor, or the function of positions itself."""
    if data is None or (callable(data) and not isinstance(data, (Tensor, np.ndarray))):
        return data
    if isinstance(data, str):
        raise KindError(f"{name} is text: only a Database understands filter text")
    x = data if isinstance(data, Tensor) else _from_numeric_array(_as_array(data, name), name)
    if boolean and x.dtype != torch.bool:
        raise KindError(
            f"{name} has dtype {x.dtype} but a mask is boolean (True = may attend): "
            "compare it (mask == 1), or use bias= for numbers added to the scores"
        )
    if not boolean:
        if x.dtype == torch.bool:
            raise KindError(f"{name} is boolean but is added to the scores: use where= for a mask")
        x = x if x.is_floating_point() else x.double()
    return x


def read_vector(data: Any, name: str) -> Tensor:
    """Numbers of any shape (key_weights, exclude)."""
    x = data if isinstance(data, Tensor) else _from_numeric_array(_as_array(data, name), name)
    if x.is_complex():
        raise KindError(f"{name} has dtype {x.dtype}: give real numbers")
    return x


def is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas.NA."""
    if value is None:
        return True
    if isinstance(value, str):
        return False
    try:
        return bool(value != value)
    except TypeError:
        return True  # pandas.NA refuses to be compared
    except ValueError:
        return False  # an array


def _rows(columns: Columns) -> int:
    if isinstance(columns, dict):
        return _rows(next(iter(columns.values())))
    return columns.shape[-2] if isinstance(columns, Tensor) else len(columns)


def _is_frame(data: Any) -> bool:
    return type(data).__module__.split(".")[0] in ("pandas", "polars", "pyarrow") and hasattr(data, "columns")


def _as_array(data: Any, name: str) -> np.ndarray:
    module = type(data).__module__.split(".")[0]
    if module in ("pandas", "polars", "pyarrow"):
        if module == "pandas" and str(getattr(data, "dtype", "")) == "category":
            data = data.astype(object)
        data = data.to_numpy()
    if isinstance(data, np.ma.MaskedArray):
        if np.ma.is_masked(data):
            hidden = int(np.ma.getmaskarray(data).sum())
            raise MissingValueError(f"{name} has {hidden} masked numbers: drop their rows or fill them in")
        return data.filled()
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, (list, tuple)):
        return _from_list(list(data), name)
    if np.isscalar(data) or isinstance(data, np.generic):
        return np.asarray(data)
    try:
        return np.asarray(data)
    except Exception:
        raise KindError(f"{name} is a {type(data).__name__}: give an array, a tensor, a list or a table") from None


def _from_list(data: list[Any], name: str) -> np.ndarray:
    if data and all(isinstance(row, Tensor) for row in data):
        raise KindError(f"{name} is a list of tensors: join them with torch.stack, which keeps their gradients")
    lengths = [len(row) if isinstance(row, (list, tuple, np.ndarray)) else -1 for row in data]
    if len(set(lengths)) > 1:
        usual = max(set(lengths), key=lengths.count)
        odd = {row: length for row, length in enumerate(lengths) if length != usual}
        shown = ", ".join(f"row {row}: {'no list' if n < 0 else n}" for row, n in list(odd.items())[:5])
        raise InputError(
            f"{name} has rows of different lengths ({shown}; the others {usual}): give every row one length"
        )
    flat = data
    while flat and isinstance(flat[0], (list, tuple)):
        flat = [x for row in flat for x in row]
    odd = [x for x in flat if isinstance(x, str) or (is_missing(x) and not isinstance(x, float))]
    if odd and flat is not data and not any(isinstance(x, str) for x in odd):
        raise _missing_numbers(
            name, [row for row, cells in enumerate(data) if any(is_missing(x) for x in np.ravel(cells))]
        )
    if odd:
        out = np.empty(len(data), dtype=object)
        for row, value in enumerate(data):
            out[row] = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        return out
    try:
        return np.array(data)
    except ValueError:
        raise InputError(f"{name} is a nested list of uneven lengths: give every row one length") from None


def _from_array(array: np.ndarray, name: str) -> Columns:
    if array.dtype.kind in "US" or array.dtype == object or array.dtype.kind == "T":
        return _from_objects(array, name)
    return _numbers(_from_numeric_array(array, name), name)


def _from_objects(array: np.ndarray, name: str) -> Columns:
    flat = array.reshape(-1) if array.ndim != 2 or array.shape[1] == 1 else array
    present = [x for x in flat.reshape(-1) if not is_missing(x)]
    if present and all(isinstance(x, (bool, int, float, np.number, np.bool_)) for x in present):
        gaps = [i for i, row in enumerate(array) if any(is_missing(x) for x in np.atleast_1d(row))]
        if gaps:
            raise _missing_numbers(name, gaps)
        try:
            return _numbers(_from_numeric_array(array.astype(np.float64), name), name)
        except OverflowError:
            raise InputError(f"{name} has a whole number too large for float64: give it as text") from None
    if flat.ndim != 1:
        raise KindError(f"{name} is a table of objects: give a dict of columns or a DataFrame")
    bad = next((x for x in present if not isinstance(x, str)), None)
    if bad is not None:
        raise KindError(f"{name} mixes text with {type(bad).__name__}: give one kind, or a dict of columns")
    out = np.empty(len(flat), dtype=object)
    out[:] = [x if is_missing(x) else str(x) for x in flat]
    return Opaque(out)


def _missing_numbers(name: str, rows: list[int]) -> MissingValueError:
    count, it = ("1 row", "it") if len(rows) == 1 else (f"{len(rows)} rows", "them")
    return MissingValueError(
        f"{name} has {count} with missing numbers (first: row {rows[0]}): drop {it} or fill {it} in"
    )


def _from_numeric_array(array: np.ndarray, name: str) -> Tensor:
    if array.dtype.kind in "cMmVO" or array.dtype.kind not in "fiub":
        raise KindError(f"{name} has dtype {array.dtype}: convert it to float64, float32, float16, integers or bool")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise KindError(f"{name} has dtype {array.dtype}, wider than any tensor: convert it to float64")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.uint64 or not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.astype(np.float64) if array.dtype == np.uint64 else array.copy()
    return torch.from_numpy(array)


def _numbers(x: Tensor, name: str) -> Tensor:
    if x.is_nested:
        raise KindError(f"{name} is a nested tensor: give a padded one, and where= for its real rows")
    if x.is_complex() or x.is_quantized or "float8" in str(x.dtype):
        raise KindError(f"{name} has dtype {x.dtype}: convert it to float64, float32, float16 or integers")
    if x.layout != torch.strided:
        x = x.to_dense()
    if not x.is_floating_point():
        x = x.double()  # integers and bools become float64 before arithmetic
    if x.ndim == 0:
        x = x.reshape(1)
    return x[:, None] if x.ndim == 1 else x
