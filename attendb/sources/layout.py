"""How the columns of a stored table are laid out: which are keys, values and the id, and of what Arrow type each is.

The roles stand as JSON in the metadata of the Arrow schema, so that a reader knows them. Key columns hold no missing
number. A hidden column holds the hash of each key, by which rows are found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ..errors import InputError, KindError, MissingValueError, StorageError
from .arrow import Missing, array_of, data_of, flat_list, is_number, is_vector, numbers_missing, pc
from .base import ID, Column, Rows, Schema, Side
from .key_hash import key_hashes

FORMAT = 1
META = b"attendb"
HASH = "_key"  # the hidden column; stored names of users' columns never begin with an underscore
PLAIN = {"lance-encoding:compression": "none"}  # numbers lie on disk as they do in memory
UNIQUE = {"lance-schema:unenforced-primary-key": "true"}
ESCAPED = {"%": "%25", ".": "%2E", "`": "%60"}  # what the names of Lance's columns must not hold
TEXT = (pa.string(), pa.large_string())


@dataclass(frozen=True)
class Layout:
    """The roles of the columns, and their types as stored: ``types`` by the user's names, without the hidden column."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    id: str | None
    types: dict[str, pa.DataType]

    @staticmethod
    def of(given: pa.Schema, keys: Sequence[str], values: Sequence[str] | None, id: str | None) -> Layout:
        """The layout of a new table. Raises InputError for names, KindError for types that the roles do not allow."""
        names = list(given.names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"the table has two columns named {twice[0]!r}: give each its own name")
        keys = _names(keys, "keys")
        rest = [name for name in names if name not in keys and name != id]
        if values is None:
            values = [name for name in rest if _pooled(given.field(name).type)]
        values = _names(values, "values")
        wanted = [(name, "keys") for name in keys] + [(name, "values") for name in values]
        wanted += [] if id is None else [(id, "id")]
        for name, role in wanted:
            if name not in names:
                raise InputError(f"{role} name a column {name!r}, which the table lacks: it has {_listed(names)}")
        chosen = [name for name, _ in wanted]
        again = next((name for name in chosen if chosen.count(name) > 1), None)
        if again is not None:
            raise InputError(f"the column {again!r} is given two roles: name it once, in keys=, values= or id=")
        types = {name: _stored_type(given.field(name).type, name, dict(wanted[::-1]).get(name)) for name in names}
        if any(name.lower() == ID and name != id for name in names):
            raise InputError(
                f"the table has a column {ID!r}, the name of the row ids: pass id={ID!r}, or rename the column"
            )
        layout = Layout(keys, values, id, types)
        _ = layout.schema
        return layout

    @staticmethod
    def read(stored: pa.Schema, where: str) -> Layout:
        """The layout of a stored table. Raises StorageError where it is none of attendb's, or of a newer format."""
        text = (stored.metadata or {}).get(META)
        if text is None:
            raise InputError(f"{where} is a Lance table that attendb did not make: import it with Database.create")
        try:
            roles = json.loads(text)
            if int(roles["format"]) > FORMAT:
                number = roles["format"]
                raise StorageError(
                    f"{where} has format {number} but this attendb reads up to {FORMAT}: install a newer attendb"
                )
            names = {stored_name(name): name for name in roles["names"]}
            types = {names.get(f.name, _unescaped(f.name)): f.type for f in stored if f.name != HASH}
            layout = Layout(tuple(roles["keys"]), tuple(roles["values"]), roles["id"], types)
            _ = layout.schema
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"what {where} says of its columns cannot be read ({type(error).__name__}: {error}): restore(version) "
                "goes back to a whole version"
            ) from None
        return layout

    @cached_property
    def others(self) -> tuple[str, ...]:
        """Columns without a role, which are kept and returned with rows."""
        return tuple(name for name in self.types if name not in (*self.keys, *self.values, self.id))

    @property
    def listed(self) -> tuple[str, ...]:
        """All columns as they are shown: the id, the keys, the values, then the others."""
        return (*(() if self.id is None else (self.id,)), *self.keys, *self.values, *self.others)

    @cached_property
    def schema(self) -> Schema:
        """The columns as a source describes them."""
        sides: list[Side] = []
        roles: tuple[tuple[Literal["keys", "values"], tuple[str, ...]], ...] = (
            ("keys", self.keys),
            ("values", self.values),
        )
        for role, names in roles:
            sides.append(Side(role, tuple(described(name, self.types[name]) for name in names), named=True))
        return Schema(*sides)

    @cached_property
    def stored(self) -> pa.Schema:
        """The Arrow schema on disk."""
        fields = [self._field(name, kind) for name, kind in self.types.items()]
        fields.append(pa.field(HASH, pa.int64(), metadata=PLAIN))
        roles = {"format": FORMAT, "keys": self.keys, "values": self.values, "id": self.id, "names": list(self.types)}
        return pa.schema(fields, metadata={META: json.dumps(roles).encode()})

    def _field(self, name: str, kind: pa.DataType) -> pa.Field:
        needed = name == self.id or name in self.keys and kind not in TEXT
        metadata = dict(PLAIN) if kind not in TEXT and name in (*self.keys, *self.values, self.id) else {}
        if name == self.id:
            metadata |= UNIQUE
        return pa.field(stored_name(name), kind, nullable=not needed, metadata=metadata or None)

    @cached_property
    def row_bytes(self) -> int:
        """Of the keys and values of one row, about."""
        return max(1, sum(width_in_bytes(self.types[name]) for name in (*self.keys, *self.values)))

    def conform(
        self, batch: pa.RecordBatch | pa.Table, first_row: int = 0, *, what: str = "the table"
    ) -> pa.RecordBatch:
        """Rows given by column name, as they are stored: in the table's types and order, with the hash of each key.

        Columns without a role may be left out. Raises InputError for columns, widths and numbers that do not fit,
        KindError for kinds, MissingValueError for what is missing in keys and ids.
        """
        names = list(batch.schema.names)
        extra = [name for name in names if name not in self.types]
        lacks = [name for name in (*self.keys, *self.values, self.id) if name is not None and name not in names]
        if extra or lacks or len(set(names)) < len(names):
            parts = [f"lacks the column {', '.join(map(repr, lacks))}"] if lacks else []
            parts += [f"has the extra column {', '.join(map(repr, extra))}"] if extra else []
            parts = parts or ["has a column twice"]
            raise InputError(f"the table {' and '.join(parts)}: expected {_listed(self.types)}, found {_listed(names)}")
        arrays: list[pa.Array] = []
        for name, kind in self.types.items():
            if name not in names:
                arrays.append(pa.nulls(batch.num_rows, kind))
                continue
            array = fitted(_one_chunk(batch.column(name)), kind, name)
            self._check_missing(array, name, first_row)
            if name in self.values and pa.types.is_floating(kind):
                array = _nan_as_null(array)
            arrays.append(_begun_anew(array))
        stored = dict(zip(self.types, arrays, strict=True))
        hashes, present = key_hashes({name: data_of(stored[name], self.types[name]) for name in self.keys})
        arrays.append(pa.array(hashes, mask=None if present.all() else ~present))
        return pa.RecordBatch.from_arrays(arrays, schema=self.stored)

    def _check_missing(self, array: pa.Array, name: str, first_row: int) -> None:
        if name == self.id and array.null_count:
            row = first_row + pc.index(array.is_null(), True).as_py()
            raise MissingValueError(f"the id column {name!r} has no id in row {row}: give every row its own")
        if name in self.keys and array.type not in TEXT:
            missing = numbers_missing(array)
            if missing.any():
                rows = [int(row) + first_row for row in missing.nonzero()[0][:5]]
                raise MissingValueError(
                    f"the key column {name!r} has no number in {int(missing.sum())} rows (rows "
                    f"{', '.join(map(str, rows))}{', …' if missing.sum() > 5 else ''}): drop them or fill them in"
                )

    def rows_of(self, batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> Rows:
        """Columns of stored rows as a source hands them out."""
        return {name: data_of(_one_chunk(batch.column(stored_name(name))), self.types[name]) for name in names}

    def sides(self, keys: Rows, values: Rows, ids: Any | None) -> pa.Table:
        """Keys, values and ids as one table of columns by name."""
        columns = {name: array_of(x) for name, x in {**keys, **values}.items()}
        if self.id is not None:
            columns[self.id] = pa.array(ids)
        return pa.table(columns)


def described(name: str, kind: pa.DataType) -> Column:
    """An Arrow column as a source describes it."""
    if kind in TEXT:
        return Column(name, "text")
    if not is_number(kind) and not is_vector(kind):
        return Column(name, "objects")
    return Column(name, "numbers", kind.list_size if pa.types.is_fixed_size_list(kind) else 1)


def stored_name(name: str) -> str:
    """The name of a column on disk, where some characters and a leading underscore are not free."""
    out = "".join(ESCAPED.get(character, character) for character in name)
    return "%5F" + out[1:] if out.startswith("_") else out


def _unescaped(name: str) -> str:
    for character, code in {**ESCAPED, "_": "%5F"}.items():
        if character != "%":
            name = name.replace(code, character)
    return name.replace("%25", "%")


def width_in_bytes(kind: pa.DataType) -> int:
    """Of one row of a column; a guess where rows differ."""
    if not is_number(kind) and not is_vector(kind):
        return 64
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * max(1, kind.value_type.bit_width // 8)
    return max(1, kind.bit_width // 8)


def stored_type_of_other(kind: pa.DataType, name: str) -> pa.DataType:
    """What a column without a role is stored as."""
    return _stored_type(kind, name, None)


def _stored_type(kind: pa.DataType, name: str, role: str | None) -> pa.DataType:
    """What a column of this type is stored as. Columns without a role keep theirs."""
    if role is None or role == "values" and not _pooled(kind):
        if pa.types.is_struct(kind) or pa.types.is_map(kind):
            raise KindError(f"column {name!r} is a struct: give each of its fields as a column of its own")
        return pa.string() if pa.types.is_string_view(kind) else kind
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain):
        return pa.large_string() if pa.types.is_large_string(plain) and role != "id" else pa.string()
    number = _stored_number(plain)
    if number is not None and (role != "id" or pa.types.is_integer(number)):
        return pa.int64() if role == "id" else number
    if pa.types.is_fixed_size_list(plain) and role != "id" and plain.list_size > 0:
        number = _stored_number(plain.value_type)
        if number is not None:
            return flat_list(number, plain.list_size)
    if role == "id":
        raise KindError(f"the id column {name!r} holds {kind}: ids are whole numbers or text")
    if pa.types.is_list(plain) or pa.types.is_large_list(plain):
        raise InputError(f"the column {name!r} holds lists of unknown length: give it as rows of one width")
    raise KindError(
        f"the key column {name!r} holds {kind} but keys are numbers, vectors of numbers or text: convert it, or leave "
        "it among the other columns"
    )


def _pooled(kind: pa.DataType) -> bool:
    """Whether values of this type can be averaged, or counted as text; others can only be looked up and selected."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)
    vector = pa.types.is_fixed_size_list(plain) and plain.list_size > 0
    inner = plain.value_type if vector else plain
    return text or _stored_number(inner) is not None


def _stored_number(kind: pa.DataType) -> pa.DataType | None:
    """torch can hardly compute with wide unsigned numbers, nor at all with decimal ones."""
    if pa.types.is_decimal(kind):
        return pa.float64()
    if not is_number(kind):
        return None
    wider = {pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
    return wider.get(kind, kind)


def fitted(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """A column in the table's type. Raises where that would lose more than the digits of a decimal number."""
    try:
        return _fitted(array, kind)
    except Missing as error:
        raise MissingValueError(f"the column {name!r} {error}: drop these rows or fill them in") from None
    except _Width as error:
        raise InputError(f"the column {name!r}: expected width {error.expected}, found width {error.found}") from None
    except pa.ArrowInvalid as error:
        raise InputError(
            f"the column {name!r} holds {kind} but was given {array.type} that does not fit ({_first_line(error)}): "
            "give numbers that fit it"
        ) from None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError):
        raise KindError(
            f"the column {name!r}: expected {kind}, found {array.type}: give every row the kind that the table has"
        ) from None


class _Width(Exception):
    def __init__(self, expected: int, found: int | str):
        super().__init__()
        self.expected, self.found = expected, found


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    given = array.type
    if given == kind and not (pa.types.is_fixed_size_list(kind) and array.values.null_count):
        return array
    if pa.types.is_null(given):
        return pa.nulls(len(array), kind)
    if pa.types.is_dictionary(given) and not pa.types.is_dictionary(kind):
        return _fitted(array.dictionary_decode(), kind)
    if pa.types.is_fixed_size_list(kind):
        return _fitted_vectors(array, kind)
    both = (given, kind)
    texts = [pa.types.is_string(x) or pa.types.is_large_string(x) or pa.types.is_string_view(x) for x in both]
    numbers = [is_number(x) or pa.types.is_decimal(x) for x in both]
    if texts[0] != texts[1] or numbers[0] != numbers[1]:
        raise TypeError
    if numbers[0] and pa.types.is_boolean(given) != pa.types.is_boolean(kind):
        if pa.types.is_boolean(kind):
            raise TypeError
        return array.cast(pa.int8()).cast(kind)
    out = array.cast(kind)
    if pa.types.is_floating(kind) and pa.types.is_floating(given) and given.bit_width > kind.bit_width:
        grown = pc.and_(pc.is_inf(out), pc.invert(pc.is_inf(array)))
        if pc.any(grown).as_py():
            raise pa.ArrowInvalid(f"{array.filter(grown)[0].as_py()} is infinite in it")
    return out


def _fitted_vectors(array: pa.Array, kind: pa.DataType) -> pa.Array:
    given, width = array.type, kind.list_size
    if pa.types.is_fixed_size_list(given):
        if given.list_size != width:
            raise _Width(width, given.list_size)
    elif pa.types.is_list(given) or pa.types.is_large_list(given):
        lengths = pc.unique(pc.list_value_length(array).drop_null())
        wrong = [n.as_py() for n in lengths if n.as_py() != width]
        if wrong:
            raise _Width(width, wrong[0])
        array = array.cast(pa.list_(given.value_type, width))
    elif width == 1 and is_number(given):
        return pa.FixedSizeListArray.from_arrays(_fitted(array, kind.value_type), type=kind)
    elif is_number(given):
        raise _Width(width, 1)
    else:
        raise TypeError
    flat = array.values.slice(array.offset * width, len(array) * width)
    numbers = _fitted(flat, kind.value_type)
    mask = array.is_null() if array.null_count else None
    if numbers.null_count:
        lacks = np.asarray(numbers.is_null()).reshape(len(array), width).any(1)
        if (lacks if mask is None else lacks & ~np.asarray(mask)).any():
            raise Missing("has rows that lack some of their numbers")
    return pa.FixedSizeListArray.from_arrays(numbers, type=kind, mask=mask)


def _nan_as_null(array: pa.Array) -> pa.Array:
    nan = pc.is_nan(array)
    return pc.if_else(nan, pa.scalar(None, array.type), array) if pc.any(nan).as_py() else array


def _begun_anew(array: pa.Array) -> pa.Array:
    """A slice in buffers that begin with it, since Lance takes all that lies before it for waiting to be written.

    It would write other columns with each few rows, and the pages of one column would not lie one after the other.
    """
    kind = array.type
    if not array.offset:
        return array
    if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_vector(kind)):
        return pa.concat_arrays([array.slice(0, 0), array])
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_begun_anew(array.flatten()), type=kind)
    size = kind.bit_width // 8
    data = array.buffers()[1].slice(array.offset * size, len(array) * size)
    return pa.Array.from_buffers(kind, len(array), [None, data])


def _one_chunk(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            return array.chunk(0)
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array


def _names(names: Any, role: str) -> tuple[str, ...]:
    out = (names,) if isinstance(names, str) else tuple(map(str, names))
    if not out:
        raise InputError(f"{role} name no column: give at least one")
    return out


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    return f"the columns {', '.join(map(repr, names))}" if len(names) else "no columns"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
