"""JSON Lines: one object a line. Numbers are exact: whole ones never pass through float64."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .deciding import shortened
from .normal import ArrowImport, arrow_import
from .streams import Progress, TextFile, open_text, utf8_chunks

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 8_192
EXACT = 2**53


def open_json_lines(
    path: Path,
    *,
    encoding: str | None,
    types: Mapping[str, pa.DataType] | None,
    text: Sequence[str],
    progress: Progress | None,
) -> ArrowImport:
    """A file with one object a line: columns by name, in the order of their first appearance; absent ones are null.

    The file is read once for its types, and once more for its rows.
    """
    import pyarrow as pa

    file = open_text(path, encoding)
    kinds: dict[str, _Kind] = {}
    rows = 0
    for block, line in _blocks(file, progress):
        for name in dict.fromkeys(chain.from_iterable(block)):
            kinds.setdefault(name, _Kind(name, file.path)).see([row.get(name) for row in block], line)
        rows += len(block)
    if not rows:
        raise InputError(f"{path} is empty: it must have one JSON object a line")
    wanted = dict(types or {}) | dict.fromkeys(text, pa.large_string())
    for name, kind in kinds.items():
        if name in wanted:
            kind.as_text = kind.as_text or (pa.types.is_large_string(wanted[name]) and not kind.nested)
    schema = pa.schema([(name, kind.arrow()) for name, kind in kinds.items()])
    notes = [note for kind in kinds.values() for note in kind.notes()]

    def read() -> Iterator[pa.RecordBatch]:
        file.unchanged()
        for block, line in _blocks(file, None):
            columns = [kinds[f.name].column([row.get(f.name) for row in block], f.type, line) for f in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return arrow_import(
        schema, read, where=str(path), rows=rows, types=types, text=text, notes=notes, progress=progress,
        reasons={name: kind.reason() for name, kind in kinds.items() if name not in wanted},
    )  # fmt: skip


class _Kind:
    """What the values of one name are, over all rows."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.as_text = False
        self.nested: pa.DataType | None = None
        self._seen: dict[str, tuple[int, Any]] = {}  # kind of value → line and value of the first one
        self._least, self._most = 0, 0

    def see(self, values: list[Any], line: int) -> None:
        """Take note of a run of values, the first of which stands in ``line``."""
        import pyarrow as pa

        for at, value in enumerate(values):
            if value is None:
                continue
            what = type(value).__name__
            if what not in self._seen:
                self._seen[what] = (line + at, value)
            if what == "int":
                self._least, self._most = min(self._least, value), max(self._most, value)
        if not self._seen.keys() & {"list", "dict"}:
            return
        try:
            found = pa.array(values).type
            self.nested = found if self.nested is None else _wider(self.nested, found)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise InputError(
                f"{self.path}: column {self.name!r} mixes values of several kinds in lines {line:,} to"
                f" {line + len(values) - 1:,}: give every row the same kind"
            ) from None

    def arrow(self) -> pa.DataType:
        """The type that holds every value."""
        import pyarrow as pa

        if self.nested is not None:
            return self.nested
        if not self._seen:
            return pa.null()
        names = self._seen.keys()
        exact = -EXACT <= self._least and self._most <= EXACT
        if not self.as_text:
            if names == {"bool"}:
                return pa.bool_()
            if names == {"int"} and -(2**63) <= self._least and self._most < 2**63:
                return pa.int64()
            if names == {"int"} and self._least >= 0 and self._most < 2**64:
                return pa.uint64()
            if names <= {"int", "float"} and "float" in names and exact:
                return pa.float64()
        self.as_text = True
        return pa.large_string()

    def column(self, values: list[Any], kind: pa.DataType, line: int) -> pa.Array:
        """A run of values as an array."""
        import pyarrow as pa

        if self.as_text:
            values = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InputError(
                f"{self.path}, from line {line}: column {self.name!r} has another type ({error})"
            ) from None

    def reason(self) -> str:
        """Why the column has its type."""
        if not self._seen:
            return "no row has a value"
        what, (line, value) = next(iter(self._seen.items()))
        return f"{what} such as {shortened(json.dumps(value, ensure_ascii=False))} (line {line})"

    def notes(self) -> list[str]:
        """What was turned into text."""
        if not self.as_text or self.nested is not None or self._seen.keys() <= {"str"}:
            return []
        examples = ", ".join(f"{shortened(json.dumps(v))} (line {line})" for line, v in self._seen.values())
        return [f"column {self.name!r} is text, because no one type holds {examples}"]


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.unify_schemas([pa.schema([("x", a)]), pa.schema([("x", b)])], promote_options="permissive").field(0).type


def _blocks(file: TextFile, progress: Progress | None) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Runs of objects, and the line of the first one; empty lines count as rows of their own line only."""
    rest, line, first = b"", 0, 1
    block: list[dict[str, Any]] = []
    for chunk in chain(utf8_chunks(file, progress), [b"\n"]):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for text in lines:
            line += 1
            if not text.strip():
                if block:  # lines of a block follow each other
                    yield block, first
                    block = []
                continue
            if not block:
                first = line
            block.append(_object(text, file.path, line))
            if len(block) == ROWS:
                yield block, first
                block = []
    if block:
        yield block, first


def _object(text: bytes, path: Path, line: int) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}, line {line}: no JSON ({error}): write one object a line") from None
    if not isinstance(value, dict):
        raise InputError(f'{path}, line {line}: a {type(value).__name__} where an object must stand, as in {{"x": 1}}')
    return value
