"""From the columns of a table to a question: keys, queries and values by name, rows by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .attention import DEFAULT_SCORE
from .columns import Columns, Labels, Opaque
from .errors import InputError, KindError, MissingValueError, NotFoundError
from .question import Options, Question, read_question, resolve
from .reading import as_labels, read_columns, read_pairwise, read_vector, stacked
from .sources.base import Data, Rows, Side, Source, kinds
from .sources.rows import is_named, some
from .weightings.base import Weighting


def read_table_question(
    source: Source,
    queries: Any,
    *,
    values: str | Sequence[str] | None,
    score: Any,
    weighting: Weighting | None,
    options: Options,
) -> Question:
    """Read and check a question to all rows of a table, whose positions are their ids."""
    chosen_score, chosen_weighting = resolve(score, weighting, default=DEFAULT_SCORE)
    (block,) = source.blocks()
    side = source.schema.keys
    by_column = chosen_score.takes == "columns"
    if side.undecided:
        keys = keys_of_no_row(queries)
    else:
        keys = keys_to_ask(block.keys, by_column=by_column)
        queries = queries_by_name(queries, side, by_column=by_column)
    device = device_of(block.keys, block.values, queries)
    where, exclude = options.where, options.exclude
    if isinstance(where, str):
        where = torch.from_numpy(source.mask(where))
    if where is not None and (isinstance(where, Tensor) or not callable(where)):
        where = read_pairwise(where, "where", boolean=True)
        where = where.to(device) if where.device.type == "cpu" else where
    if exclude is not None:
        exclude = ids_to_exclude(exclude, block.positions).to(device)
    return read_question(
        queries,
        keys,
        values_to_pool(source.schema.values, block.values, values, where, block.positions),
        score=chosen_score,
        weighting=chosen_weighting,
        options=replace(options, where=where, exclude=exclude),
        positions=block.positions,
    )


def keys_to_ask(keys: Rows, *, by_column: bool) -> Columns:
    """The key columns as a score takes them: by name, as the one column, or all numbers side by side."""
    if by_column:
        return dict(keys)
    if len(keys) == 1:
        return next(iter(keys.values()))
    return _side_by_side(keys) if all(isinstance(x, Tensor) for x in keys.values()) else dict(keys)


def keys_of_no_row(queries: Any) -> Columns:
    """The keys of a table that no row was ever given to: they are as the queries are."""

    def none_of(x: Columns) -> Columns:
        if isinstance(x, dict):
            return {name: none_of(part) for name, part in x.items()}
        return x.take(slice(0)) if isinstance(x, Opaque) else x.detach()[..., :0, :]

    return none_of(read_columns(queries, "queries"))


def queries_by_name(queries: Any, side: Side, *, by_column: bool) -> Any:
    """Queries with named columns in the order of the key columns; others as they are."""
    if not side.named or by_column or not is_named(queries):
        return queries
    raw = {str(name): queries[name] for name in getattr(queries, "column_names", getattr(queries, "columns", queries))}
    lacks = [name for name in side.names if name not in raw]
    extra = [name for name in raw if name not in side.names]
    if lacks or extra:
        problem = f"lack the column {lacks[0]!r}" if lacks else f"have a column {extra[0]!r} that is no key column"
        expected, found = (", ".join(map(repr, names)) for names in (side.names, raw))
        raise InputError(f"queries {problem}: expected {expected}, found {found}")
    if len(raw) == 1:
        return next(iter(raw.values()))
    columns = cast(dict[str, Any], read_columns({name: raw[name] for name in side.names}, "queries"))
    for column in side.columns:
        found = "text" if isinstance(columns[column.name], Opaque) else "numbers"
        if column.kind not in ("unknown", found):
            raise KindError(f"queries column {column.name!r}: expected {column}, found {found}")
    if not all(isinstance(x, Tensor) for x in columns.values()):
        return columns
    together = stacked(columns)
    return together if any(isinstance(x, Tensor) for x in raw.values()) else together.numpy()


def values_to_pool(
    side: Side, rows: Rows, names: str | Sequence[str] | None, where: Any, positions: Tensor
) -> Tensor | Labels:
    """The value columns that were chosen: numbers side by side, or the labels of one text column."""
    chosen = side.names if names is None else (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in chosen if name not in rows]
    if unknown or not chosen:
        found = f"no value column {unknown[0]!r}" if unknown else "no value column chosen"
        raise InputError(f"there is {found}: choose among {', '.join(map(repr, side.names))}")
    columns = {name: rows[name] for name in chosen}
    if all(isinstance(x, Tensor) for x in columns.values()):
        return _side_by_side(columns)
    if len(columns) > 1:
        raise KindError(
            f"one question pools numbers or one text column, but the values are {kinds(columns)}: "
            f"choose with values=, such as values={chosen[0]!r}"
        )
    name, column = next(iter(columns.items()))
    return as_labels(_without_missing(name, cast(Opaque, column), where, positions), f"values column {name!r}")


def ids_to_exclude(exclude: Any, positions: Tensor) -> Tensor:
    """Row ids, each of which exists (−1 = none)."""
    x = read_vector(exclude, "exclude")
    if x.is_floating_point() or x.dtype == torch.bool:
        raise KindError(f"exclude has dtype {x.dtype}: give the id of one row for each query, −1 for none")
    absent = ~torch.isin(x.cpu(), positions) & (x.cpu() != -1)
    if bool(absent.any()):
        raise NotFoundError(f"exclude names the id {some(x.cpu()[absent].tolist())}, which no row has (−1 = none)")
    return x


def device_of(*parts: Any) -> torch.device:
    """Where the tensors lie that are not on the CPU, else the CPU."""
    found = [y for x in parts for y in (x.values() if isinstance(x, dict) else [x]) if isinstance(y, Tensor)]
    return next((x.device for x in found if x.device.type != "cpu"), torch.device("cpu"))


def _side_by_side(columns: dict[str, Data]) -> Tensor:
    parts = [cast(Tensor, x) for x in columns.values()]
    if len(parts) == 1:
        return parts[0]
    return stacked({str(i): x if x.is_floating_point() else x.double() for i, x in enumerate(parts)})


def _without_missing(name: str, column: Opaque, where: Any, positions: Tensor) -> Opaque:
    """The texts, with any text in place of the missing ones that no query may see."""
    missing = np.array([x is None for x in column.rows], dtype=bool)
    if not missing.any():
        return column
    seen = missing
    if isinstance(where, Tensor) and prod(where.shape[:-1]) == 1 and where.shape[-1] == len(column):
        seen = missing & where.reshape(-1).cpu().numpy()
    if seen.any():
        raise MissingValueError(
            f"values column {name!r} has no text in {int(seen.sum())} rows that a query may see "
            f"(ids {some(positions.numpy()[seen])}): fill them in, or leave them out with where='{name} IS NOT NULL'"
        )
    rows = column.rows.copy()
    rows[missing] = next((x for x in column.rows if x is not None), "")
    return Opaque(rows)
