"""The contract of imported tables: a schema decided over whole columns, and a stream of record batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Import(ABC):
    """A table that is about to be read: its types, and what had to be assumed to find them.

    ``schema``: names and Arrow types; text is large_string, so that a column may exceed 2 GiB. ``notes``: one sentence
    for everything that was assumed, skipped, padded or turned into text. ``reasons``: column → why it has its type.
    ``index``: columns that were the index of a pandas frame; no default for keys or values takes them.
    """

    schema: pa.Schema
    notes: tuple[str, ...]
    reasons: dict[str, str]
    index: tuple[str, ...]

    @property
    @abstractmethod
    def rows(self) -> int | None:
        """How many rows there are; None where only reading them would tell."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows from the first on, in batches of the schema; each call starts anew. Memory is O(batch)."""

    def lines(self, rows: np.ndarray) -> np.ndarray | None:
        """The lines of a text file where these rows (counted from 0) start, from 1; None for other sources."""
        return None

    def describe(self) -> str:
        """One line for each column: its name, its type and why; then the notes."""
        width = max((len(name) for name in self.schema.names), default=0)
        types = {field.name: type_name(field.type) for field in self.schema}
        wide = max((len(text) for text in types.values()), default=0)
        lines = [f"{name:<{width}}  {types[name]:<{wide}}  {self.reasons.get(name, '')}".rstrip() for name in types]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def type_name(kind: pa.DataType) -> str:
    """The name of a type as users write it."""
    text = str(kind)
    return {"large_string": "text", "string": "text", "double": "float64", "float": "float32", "halffloat": "float16",
            "date32[day]": "date"}.get(text, text)  # fmt: skip


def read_types(types: dict[str, pa.DataType | str] | None) -> dict[str, pa.DataType]:
    """Types by name: Arrow types, or "text", "int64", "float64", "bool", "date", "timestamp", …"""
    import pyarrow as pa

    short = {"text": pa.large_string(), "string": pa.large_string(), "str": pa.large_string(), "date": pa.date32(),
             "timestamp": pa.timestamp("us"), "datetime": pa.timestamp("us"), "int": pa.int64(),
             "float": pa.float64(), "number": pa.float64(), "boolean": pa.bool_()}  # fmt: skip
    out: dict[str, pa.DataType] = {}
    for name, kind in (types or {}).items():
        if isinstance(kind, pa.DataType):
            out[name] = kind
        elif kind in short:
            out[name] = short[kind]
        else:
            try:
                out[name] = pa.type_for_alias(kind)
            except (ValueError, TypeError):
                raise InputError(
                    f"there is no type {kind!r} (types of column {name!r}): name one of {', '.join(short)}, int64, …"
                ) from None
        if pa.types.is_string(out[name]):
            out[name] = pa.large_string()
    return out


def known_columns(wanted: dict[str, str], names: list[str], where: str) -> None:
    """InputError for a column that is asked for but is not there; ``wanted``: column → the argument that names it."""
    for name, argument in wanted.items():
        if name not in names:
            raise InputError(f"{where} has no column {name!r} ({argument}): its columns are {', '.join(names)}")
