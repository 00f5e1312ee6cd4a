"""From what users hold to the typed columns of a table.

Columns are matched by name, integers are kept whole, and no number is missing in keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..columns import Opaque
from ..errors import InputError, KindError, MissingValueError
from ..reading import is_missing, read_columns, read_vector
from .base import Column, Data, Rows, Side

FRAMES = ("pandas", "polars", "pyarrow")
EXACT = 2**53  # whole numbers beyond it do not all fit a float64
LARGEST_ID = 2**63 - 2
SHOWN = 5  # rows named in a message


def is_frame(data: Any) -> bool:
    """A table with named columns: pandas, polars or pyarrow."""
    return type(data).__module__.split(".")[0] in FRAMES and hasattr(data, "columns")


def is_named(data: Any) -> bool:
    """A dict of columns or a frame."""
    return isinstance(data, Mapping) or is_frame(data)


def read_side(data: Any, role: Literal["keys", "values"], expected: Side | None = None) -> tuple[Side, Rows]:
    """The columns of ``data``, which must be those of ``expected`` where that is given.

    Raises InputError for names, widths and lengths, KindError for kinds, MissingValueError for numbers that are
    missing in keys.
    """
    raw, named = _columns(data, role)
    if expected is not None and not expected.undecided:
        raw = _by_name(raw, named, role, expected)
        named = expected.named
    known = {} if expected is None else {column.name: column for column in expected.columns}
    columns: list[Column] = []
    rows: Rows = {}
    for name, part in raw.items():
        what = f"{role} column {name!r}" if named else role
        if name in known and known[name].kind == "objects":
            rows[name] = _objects(part, what)
            columns.append(known[name])
            continue
        rows[name] = read_column(part, what)
        if name in known and known[name].kind == "text":
            rows[name] = _text_if_missing(rows[name])
        found = _spec(name, rows[name], part)
        want = known.get(name, found)
        if want.kind != "unknown" and found.kind != "unknown":
            found = _checked(found, want, rows, what)
        elif found.kind == "unknown":
            found = _nothing_given(found, want, rows, what)
        columns.append(found)
        if role == "keys":
            _refuse_nan(rows[name], what)
    lengths = {name: count(part) for name, part in rows.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{role} have columns of different lengths: {lengths}")
    return Side(role, tuple(columns), named), rows


def _objects(data: Any, what: str) -> Opaque:
    """Rows that are neither numbers nor text, with None where one is missing; their table checks their type."""
    if isinstance(data, (str, bytes)) or not hasattr(data, "__len__"):
        raise KindError(f"{what} is a {type(data).__name__}: give a list with one entry a row")
    found = data.to_pylist() if hasattr(data, "to_pylist") else list(data)
    rows = np.empty(len(found), dtype=object)
    rows[:] = [None if is_missing(x) else x for x in found]
    return Opaque(rows)


def read_column(data: Any, what: str) -> Data:
    """Numbers (m, width) in the dtype they were given in, or text with None where it is missing."""
    whole = _whole_numbers(data, what)
    column = read_columns(data if whole is None else whole, what, stack=False)
    if isinstance(column, dict):
        raise KindError(f"{what} is itself a table of columns {list(column)}: give each as a column of its own")
    if isinstance(column, Opaque):
        rows = np.empty(len(column), dtype=object)
        rows[:] = [None if is_missing(x) else x for x in column.rows]
        return Opaque(rows)
    if whole is not None:
        column = whole.reshape(-1, 1) if whole.ndim < 2 else whole
    if column.ndim != 2:
        raise InputError(f"{what} has shape {tuple(column.shape)}: a table has (rows, width)")
    if column.shape[1] == 0:
        raise InputError(f"{what} has width 0: give every row at least one number")
    if isinstance(data, Tensor):
        return column
    return column if whole is not None else column.clone()  # an array that the caller may write to later


def read_ids(ids: Any, m: int) -> np.ndarray | None:
    """Ids (m,) int64, each given once. Raises KindError for others than whole numbers, InputError else."""
    if ids is None:
        return None
    x = read_vector(ids, "ids")
    if x.numel() == 0:
        x = x.long()
    if x.is_floating_point() or x.dtype == torch.bool:
        raise KindError(f"ids have dtype {x.dtype}: give whole numbers ≥ 0")
    out = x.detach().cpu().reshape(-1).numpy().astype(np.int64)
    if x.ndim > 1 or len(out) != m:
        raise InputError(f"ids have shape {tuple(x.shape)} but there are {m} rows: give every row one id")
    bad = np.flatnonzero((out < 0) | (out > LARGEST_ID))
    if len(bad):
        raise InputError(f"id {out[bad[0]]} (row {bad[0]}) is out of range: give whole numbers from 0 to {LARGEST_ID}")
    different, counts = np.unique(out, return_counts=True)
    if len(different) < m:
        raise InputError(f"ids name {some(different[counts > 1])} more than once: give every row its own id")
    return out


def count(column: Data) -> int:
    """Number of rows."""
    return len(column) if isinstance(column, Opaque) else int(column.shape[0])


def same_length(keys: Rows, values: Rows) -> int:
    """The number of rows of both sides. Raises InputError where they differ."""
    m, given = (count(next(iter(rows.values()))) for rows in (keys, values))
    if m != given:
        raise InputError(f"keys have {m} rows but values have {given}: give every key one value")
    return m


def some(items: Any) -> str:
    """The first few of a list, for messages."""
    shown = ", ".join(str(x) for x in list(items)[:SHOWN])
    return shown + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")


def _columns(data: Any, role: str) -> tuple[dict[str, Any], bool]:
    if data is None:
        raise KindError(f"{role} are None: give an array, a tensor, a list, a dict of columns or a DataFrame")
    if is_frame(data):
        found = list(getattr(data, "column_names", data.columns))
        names = [str(name) for name in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"{role} have two columns named {twice[0]!r}: give each its own name")
        raw = {str(name): data[name] for name in found}
    elif isinstance(data, Mapping):
        raw = {str(name): part for name, part in data.items()}
    else:
        name = getattr(data, "name", None) if type(data).__module__.split(".")[0] in FRAMES else None
        return ({str(name): data}, True) if name not in (None, "") else ({role[:-1]: data}, False)
    if not raw:
        raise InputError(f"{role} have no columns: give at least one")
    return raw, True


def _by_name(raw: dict[str, Any], named: bool, role: str, expected: Side) -> dict[str, Any]:
    """The same columns, in the table's order. One column without a name is the table's one column."""
    names = expected.names
    if len(names) == 1 and (not named or not expected.named and len(raw) == 1 and type_name(raw)):
        return {names[0]: next(iter(raw.values()))}
    if not named:
        raise InputError(
            f"{role} have no column names but the table has the columns {', '.join(map(repr, names))}, which are "
            "matched by name: give a dict of columns or a DataFrame"
        )
    lacks = [name for name in names if name not in raw]
    extra = [name for name in raw if name not in names]
    if lacks or extra:
        parts = [f"lack {', '.join(map(repr, lacks))}"] if lacks else []
        parts += [f"have an extra {', '.join(map(repr, extra))}"] if extra else []
        raise InputError(
            f"{role} {' and '.join(parts)}: expected the columns {', '.join(map(repr, names))}, "
            f"found {', '.join(map(repr, raw))}"
        )
    return {name: raw[name] for name in names}


def type_name(raw: dict[str, Any]) -> bool:
    """Whether the one column is a Series, whose name says nothing to a table without names."""
    return type(next(iter(raw.values()))).__module__.split(".")[0] in FRAMES


def _text_if_missing(column: Data) -> Data:
    """NaN alone, in a column of text, is missing text."""
    if isinstance(column, Opaque) or column.shape[1] != 1 or not bool(column.isnan().all()):
        return column
    return Opaque(np.full(len(column), None, dtype=object))


def _spec(name: str, column: Data, given: Any) -> Column:
    if isinstance(column, Opaque):
        known = any(x is not None for x in column.rows)
        return Column(name, "text" if known else "unknown")
    untyped = isinstance(given, (list, tuple)) and len(given) == 0
    return Column(name, "unknown" if untyped else "numbers", int(column.shape[1]))


def _checked(found: Column, want: Column, rows: Rows, what: str) -> Column:
    if found.kind != want.kind:
        raise KindError(f"{what}: expected {want}, found {found}: give every row the kind that the table has")
    if found.width != want.width:
        hint = f" (one row is [[…]], of {want.width} numbers)" if found.width == 1 else ""
        raise InputError(f"{what}: expected width {want.width}, found width {found.width}{hint}")
    return want


def _nothing_given(found: Column, want: Column, rows: Rows, what: str) -> Column:
    """No row, or only missing text: the table says what it would have been."""
    m = count(rows[found.name])
    if want.kind == "text":
        rows[found.name] = Opaque(np.full(m, None, dtype=object))
        return want
    if m:
        fix = "fill them in, or leave the column out" if want.kind == "unknown" else f"expected {want}"
        raise MissingValueError(f"{what} has no value in any of its {m} rows: {fix}")
    rows[found.name] = torch.zeros(0, want.width, dtype=torch.float64)
    return want


def _refuse_nan(column: Data, what: str) -> None:
    if isinstance(column, Opaque) or not column.is_floating_point():
        return
    nan = column.detach().isnan().any(1).cpu().numpy()
    if nan.any():
        rows = np.flatnonzero(nan)
        raise MissingValueError(
            f"{what} has NaN in {len(rows)} of {len(nan)} rows (rows {some(rows)}): drop them or fill them in"
        )


def _whole_numbers(data: Any, what: str) -> Tensor | None:
    """A copy of the column as integers or bools, when it holds nothing else."""
    if isinstance(data, Tensor):
        if data.dtype in (torch.uint16, torch.uint32, torch.uint64):
            data = data.to(torch.int64)  # torch can hardly compute with the wide unsigned kinds
            if bool((data < 0).any()):
                raise InputError(f"{what} has numbers above 2⁶³ − 1, which do not fit 64 bits: give them as text")
        return None if data.is_floating_point() or data.is_complex() or data.is_quantized else data
    if isinstance(data, (str, Opaque, Mapping)) or is_frame(data):
        return None
    if isinstance(data, (list, tuple)):
        flat = list(data)
        while flat and isinstance(flat[0], (list, tuple)):
            flat = [x for row in flat if isinstance(row, (list, tuple)) for x in row]
        if any(isinstance(x, (float, np.floating)) for x in flat):
            large = [x for x in flat if isinstance(x, int) and abs(x) > EXACT]
            if large:
                raise InputError(
                    f"{what} has {large[0]} among decimal numbers, whose 53 bits it does not fit: give whole numbers "
                    "only, or text"
                )
            return None
        if not flat or not all(isinstance(x, (int, np.integer, np.bool_)) for x in flat):
            return None
    try:
        array = np.asarray(getattr(data, "to_numpy", lambda: data)())
    except (ValueError, TypeError):
        return None  # ragged, or no array at all: read_columns says so
    if array.dtype == object:
        if not array.size or not all(type(x) is int for x in array.reshape(-1)):
            return None
    elif array.dtype.kind not in "iub":
        return None
    if array.dtype == object or array.dtype == np.uint64:
        bad = [x for x in array.reshape(-1) if not -(2**63) <= int(x) < 2**63]
        if bad:
            raise InputError(f"{what} has {bad[0]}, which does not fit 64 bits: give it as text")
        array = array.astype(np.int64)
    small = {"uint16": np.int32, "uint32": np.int64}
    return torch.from_numpy(np.array(array, dtype=small.get(array.dtype.name, array.dtype.newbyteorder("="))))
