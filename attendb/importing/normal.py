"""Arrow tables of any origin → the types that attendb stores, whole columns at a time decided, batches converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError
from .base import BATCH_ROWS, Import, known_columns, type_name
from .streams import Progress

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowImport(Import):
    """A source of Arrow batches. ``read`` starts a new pass over it; ``original``: its own column names."""

    count: int | None
    where: str
    original: tuple[str, ...]
    read: Callable[[], Iterator[pa.RecordBatch]]
    progress: Progress | None

    @property
    def rows(self) -> int | None:
        """How many rows there are; None where only reading them would tell."""
        return self.count

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows from the first on, in batches of at most 65 536 rows."""
        import pyarrow as pa

        done = 0
        for whole in self.read():
            for start in range(0, whole.num_rows, BATCH_ROWS):
                part = whole.slice(start, BATCH_ROWS)
                columns = [
                    as_type(part.column(part.schema.get_field_index(name)), field, self.where, done)
                    for name, field in zip(self.original, self.schema, strict=True)
                ]
                done += part.num_rows
                if self.progress is not None:
                    self.progress(done, self.count)
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def arrow_import(
    schema: pa.Schema,
    read: Callable[[], Iterator[pa.RecordBatch]],
    *,
    where: str,
    rows: int | None,
    types: Mapping[str, pa.DataType] | None = None,
    text: Sequence[str] = (),
    index: Sequence[str] = (),
    notes: Sequence[str] = (),
    reasons: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ArrowImport:
    """What ``read`` yields as an import: text as large_string, categories as their values, equal lists as vectors.

    Columns of lists are read once to learn their lengths.
    """
    import pyarrow as pa

    names = [field.name for field in schema]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{where} has two columns {twice[0]!r}: rename one")
    types = types or {}
    known_columns({**dict.fromkeys(text, "text="), **dict.fromkeys(types, "types=")}, names, where)
    said = list(notes)
    why = dict(reasons or {})
    widths = _widths(schema, read, where, said, types)
    fields, kept_index = [], []
    for field in schema:
        name, kind = _public_name(field.name, names, said), field.type
        if field.name in types or field.name in text:
            wanted, reason = types.get(field.name, pa.large_string()), "as asked for"
        elif field.name in widths:
            wanted, reason = pa.list_(kind.value_type, widths[field.name]), "lists of one length: vectors"
        else:
            wanted, reason = stored_type(kind), f"{type_name(kind)} in the source"
        if pa.types.is_null(kind) and field.name not in types:
            said.append(f"column {name!r} has no value in any row: it is kept as text")
        why.setdefault(name, reason)
        fields.append(pa.field(name, wanted))
        if field.name in index or name != field.name:
            kept_index.append(name)
    if kept_index:
        said.append(f"column {', '.join(map(repr, kept_index))} was the index of a frame: no default takes it as a key")
    return ArrowImport(
        pa.schema(fields), tuple(said), why, tuple(kept_index), rows, where, tuple(names), read, progress
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column of this one gets: text with 64-bit offsets, categories as their values."""
    import pyarrow as pa

    t = pa.types
    if t.is_dictionary(kind):
        return stored_type(kind.value_type)
    if t.is_run_end_encoded(kind):
        return stored_type(kind.value_type)
    if t.is_null(kind) or t.is_string(kind) or t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary(kind) or t.is_binary_view(kind):
        return pa.large_binary()
    if t.is_large_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if t.is_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type)
    return kind


def as_type(column: pa.Array, field: pa.Field, where: str, first_row: int) -> pa.Array:
    """A column in its stored type; InputError names the row of a value that cannot have it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = field.type
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        # One word for "missing": pandas and numpy write it as NaN.
        column = pc.call_function(
            "if_else", [pc.call_function("is_nan", [column]), pa.scalar(None, column.type), column]
        )
    if column.type == kind:
        return column
    try:
        if pa.types.is_fixed_size_list(kind) and not pa.types.is_fixed_size_list(column.type):
            return _vectors(column, kind, field.name, where, first_row)
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{where}: column {field.name!r} does not fit {type_name(kind)} in rows {first_row:,} to"
            f" {first_row + len(column) - 1:,} ({error})"
        ) from None
    except pa.ArrowNotImplementedError:
        raise InputError(
            f"{where}: column {field.name!r} is {type_name(column.type)}, which cannot become {type_name(kind)}"
        ) from None


def _vectors(column: pa.Array, kind: pa.DataType, name: str, where: str, first_row: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.call_function("list_value_length", [column])
    wrong = pc.call_function("not_equal", [lengths, pa.scalar(kind.list_size, lengths.type)])
    if pc.call_function("any", [wrong]).as_py():
        rows = pc.call_function("indices_nonzero", [wrong.fill_null(False)]).to_pylist()[:5]
        found = ", ".join(f"{lengths[row].as_py()} (row {first_row + row})" for row in rows)
        raise InputError(
            f"{where}: column {name!r} must hold vectors of width {kind.list_size} but has lengths {found}"
        )
    return column.cast(kind)


def _widths(
    schema: pa.Schema,
    read: Callable[[], Iterator[pa.RecordBatch]],
    where: str,
    notes: list[str],
    types: Mapping[str, pa.DataType],
) -> dict[str, int]:
    """The widths of list columns of numbers whose lists all have one length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = [
        field.name
        for field in schema
        if (pa.types.is_list(field.type) or pa.types.is_large_list(field.type))
        and (pa.types.is_floating(field.type.value_type) or pa.types.is_integer(field.type.value_type))
        and field.name not in types
    ]
    seen: dict[str, dict[int, int]] = {name: {} for name in lists}  # length → the first row that has it
    done = 0
    if lists:
        for batch in read():
            for name in lists:
                lengths = pc.call_function("list_value_length", [batch.column(batch.schema.get_field_index(name))])
                for length in lengths.unique().to_pylist():
                    if length is not None and length not in seen[name] and len(seen[name]) < 5:
                        row = pc.index(lengths, pa.scalar(length, lengths.type)).as_py()
                        seen[name][length] = done + row
            done += batch.num_rows
    for name, lengths in seen.items():
        if len(lengths) > 1:
            found = ", ".join(f"{length} (row {row})" for length, row in lengths.items())
            notes.append(f"column {name!r} holds lists of several lengths, {found}: it is kept as lists, no vectors")
    return {name: next(iter(found)) for name, found in seen.items() if len(found) == 1 and next(iter(found)) > 0}


def _public_name(name: str, names: list[str], notes: list[str]) -> str:
    """The nameless index of a pandas frame is called "index"."""
    if not (name.startswith("__index_level_") and name.endswith("__")):
        return name
    level = name.removeprefix("__index_level_").removesuffix("__")
    new = "index" if level == "0" else f"index_{level}"
    return name if new in names else new
