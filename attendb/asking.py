"""From the columns of a table to a question: keys, queries and values by name, rows by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, reduce
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
from .sources.base import ID, Block, Data, Rows, Side, Source, kinds
from .sources.rows import is_named, some
from .weightings.base import Weighting


class TableQuestion:
    """A question to the rows of a table, read once; `of` puts it to the rows of one block.

    Rows go by id. What names rows by their place (masks, biases, key weights) follows the ascending ids of the table.
    """

    def __init__(
        self,
        source: Source,
        queries: Any,
        *,
        values: str | Sequence[str] | None,
        score: Any,
        weighting: Weighting | None,
        options: Options,
    ):
        self.source = source
        self.score, self.weighting = resolve(score, weighting, default=DEFAULT_SCORE)
        self.names = _chosen(source.schema.values, values)
        side = source.schema.keys
        self._by_column = self.score.takes == "columns"
        self.queries = queries if side.undecided else queries_by_name(queries, side, by_column=self._by_column)
        self.filter = options.where if isinstance(options.where, str) else None
        self.options = self._read(options)
        self.labels: dict[Any, int] = {}  # of text values, in the order in which the blocks show them
        self._first_rows: dict[int, int] = {}

    def _read(self, options: Options) -> Options:
        """Masks as tensors with as many columns as there are rows; the filter text is kept apart."""
        where = None if self.filter is not None else read_pairwise(options.where, "where", boolean=True)
        exclude = options.exclude
        if exclude is not None:
            exclude = ids_to_exclude(exclude, self.source.positions, self.source.row_name)
        return replace(options, where=where, exclude=exclude)

    def of_all(self) -> Question:
        """The question to all rows, as one block."""
        block = _one_block(self.source.blocks(self.names))
        where = self.options.where if self.filter is None else torch.from_numpy(self.source.mask(self.filter))
        return self.of(block, replace(self.options, where=where))

    def of(self, block: Block, options: Options | None = None, *, queries: Any = None, anchor: Any = None) -> Question:
        """The question to the rows of a block; without ``options``, those of all rows are cut to the block."""
        options = self.options_of(block.positions, self.options) if options is None else options
        queries = self.queries if queries is None else queries
        keys = keys_of_no_row(queries) if self.source.schema.keys.undecided else self.keys_of(block)
        device = device_of(block.keys, block.values, queries)
        where, exclude = options.where, options.exclude
        if isinstance(where, Tensor) and where.device.type == "cpu":
            where = where.to(device)
        if isinstance(exclude, Tensor):
            exclude = exclude.to(device)
        values: Tensor | Labels
        if block.values:
            values = values_to_pool(block.values, where, block.positions, self.labels)
            if isinstance(values, Labels):
                self._note_first_rows(values, block.positions)
        else:
            values = torch.zeros(len(block.positions), 0, dtype=self.values_dtype)
        return read_question(
            queries,
            keys,
            values,
            score=self.score,
            weighting=self.weighting,
            options=replace(options, where=where, exclude=exclude),
            positions=block.positions,
            anchor=anchor,
        )

    def _note_first_rows(self, values: Labels, positions: Tensor) -> None:
        codes, at = np.unique(values.codes.cpu().numpy(), return_index=True)
        for code, position in zip(codes.tolist(), positions.numpy()[at].tolist(), strict=True):
            self._first_rows[code] = min(position, self._first_rows.get(code, position))

    def order_of_labels(self) -> np.ndarray:
        """The codes of all texts seen, by the first row that has each: among equally probable ones it decides."""
        return np.argsort([self._first_rows[code] for code in range(len(self.labels))], kind="stable")

    def keys_of(self, block: Block) -> Columns:
        """The keys of a block as the score takes them."""
        return keys_to_ask(block.keys, by_column=self._by_column)

    def anchor_of(self, block: Block) -> Any:
        """What the score finds out about the table, from one block for all: equal keys then score alike in each."""
        if self.source.schema.keys.undecided:
            return None
        return self.score.anchor(read_columns(self.keys_of(block), "keys", stack=not self._by_column))

    @cached_property
    def values_dtype(self) -> torch.dtype:
        """Of the values that are pooled, without reading them: it decides in which dtype pairs are scored."""
        rows = self.source.take(np.zeros(0, dtype=np.int64)).values
        numbers = [x.dtype for name in self.names if isinstance(x := rows[name], Tensor)]
        return reduce(torch.promote_types, numbers, torch.bool) if len(numbers) == len(self.names) else torch.bool

    def options_of(self, positions: Tensor, options: Options) -> Options:
        """The options, cut to the rows of a block."""
        exclude = options.exclude
        if isinstance(exclude, Tensor) and not bool(torch.isin(exclude.cpu(), positions).any()):
            exclude = None
        arrays = {name: getattr(options, name) for name in ("where", "bias", "key_weights")}
        arrays = {name: x for name, x in arrays.items() if x is not None and not callable(x)}
        if arrays:
            rows = torch.searchsorted(self.source.positions, positions)
            arrays = {name: self._columns(name, x, rows) for name, x in arrays.items()}
        return replace(options, exclude=exclude, **arrays)

    def _columns(self, name: str, x: Any, rows: Tensor) -> Tensor:
        """The columns of a mask, a bias or key weights that belong to some of the rows."""
        x = read_vector(x, name) if name == "key_weights" else read_pairwise(x, name, boolean=name == "where")
        m = len(self.source)
        if x.ndim == 0 or x.shape[-1] not in ((m,) if name == "key_weights" else (1, m)):
            raise InputError(f"{name} has shape {tuple(x.shape)} but there are {m} keys: give one column for each key")
        return x if x.shape[-1] == 1 != m else x.index_select(-1, rows.to(x.device))


def _one_block(blocks: Iterator[Block]) -> Block:
    """All rows in one block, in the order of their ids."""
    parts = list(blocks)
    if len(parts) == 1:
        return parts[0]
    positions, order = torch.cat([part.positions for part in parts]).sort()

    def joined(rows: list[Rows]) -> Rows:
        out: Rows = {}
        for name, first in rows[0].items():
            if isinstance(first, Opaque):
                texts = np.concatenate([cast(Opaque, part[name]).rows for part in rows])
                out[name] = Opaque(texts[order.numpy()])
            else:
                out[name] = torch.cat([cast(Tensor, part[name]) for part in rows])[order]
        return out

    return Block(positions, joined([part.keys for part in parts]), joined([part.values for part in parts]))


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


def _chosen(side: Side, names: str | Sequence[str] | None) -> tuple[str, ...]:
    """The value columns to pool: all of them numbers, or one of them text."""
    chosen = side.names if names is None else (names,) if isinstance(names, str) else tuple(names)
    columns = {column.name: column for column in side.columns}
    unknown = [name for name in chosen if name not in columns]
    if unknown or not chosen:
        found = f"no value column {unknown[0]!r}" if unknown else "no value column chosen"
        raise InputError(f"there is {found}: choose among {', '.join(map(repr, side.names))}")
    found = [columns[name] for name in chosen]
    if len(found) > 1 and any(column.kind in ("text", "objects") for column in found):
        raise KindError(
            f"one question pools numbers or one text column, but the values are {kinds(found)}: "
            f"choose with values=, such as values={chosen[0]!r}"
        )
    return chosen


def values_to_pool(columns: Rows, where: Any, positions: Tensor, codes: dict[Any, int]) -> Tensor | Labels:
    """Numbers side by side, or the labels of one text column; ``codes``: of the texts known so far, which grows."""
    if all(isinstance(x, Tensor) for x in columns.values()):
        return _side_by_side(columns)
    name, column = next(iter(columns.items()))
    return as_labels(_without_missing(name, cast(Opaque, column), where, positions), f"values column {name!r}", codes)


def ids_to_exclude(exclude: Any, positions: Tensor, what: str) -> Tensor:
    """Positions of rows, each of which exists (−1 = none); ``what``: what they are called in messages."""
    x = read_vector(exclude, "exclude")
    if x.is_floating_point() or x.dtype == torch.bool:
        raise KindError(f"exclude has dtype {x.dtype}: give the id of one row for each query, −1 for none")
    absent = ~torch.isin(x.cpu(), positions) & (x.cpu() != -1)
    if bool(absent.any()):
        fix = "" if what == ID else ": translate ids by positions(ids)"
        raise NotFoundError(
            f"exclude names the {what} {some(x.cpu()[absent].tolist())}, which no row has (−1 = none){fix}"
        )
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
