"""From a path to what lies there: a stored table, or files of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .kinds import is_measure, is_time, kind_of
from .printing import closest_first, listed, note, progress
from .words import in_shell

if TYPE_CHECKING:
    import pyarrow

    from ..importing import Import

Advance = Callable[[int, "int | None"], None]


@dataclass(frozen=True)
class Reading:
    """How files of text are read, as the options say it; None: as is found out."""

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    types: tuple[str, ...] = ()  # NAME=TYPE
    missing: tuple[str, ...] = ()  # words; none: the usual ones
    ragged: str | None = None
    date_format: str | None = None
    sql: str | None = None  # over a database whose URI stands in the place of the file

    def open(
        self,
        path: str,
        advance: Advance | None,
        text: Sequence[str] = (),
        kinds: Mapping[str, pyarrow.DataType] | None = None,
    ) -> Import:
        """Look at one file, folder, pattern or URI; ``kinds``: types of columns that no option gives one."""
        from ..importing import open_table

        if "://" not in path and not any(mark in path for mark in "*?[") and not Path(path).exists():
            raise InputError(no_such_file(path))
        return open_table(
            path,
            delimiter={"tab": "\t", "\\t": "\t"}.get(self.delimiter or "", self.delimiter),
            decimal=self.decimal,
            encoding=self.encoding,
            types={**(kinds or {}), **dict(self._types())},
            text=list(text),
            missing=self.missing or None,
            ragged=self.ragged or "error",
            date_format=self.date_format,
            query=self.sql,
            progress=advance,
        )

    def open_like(self, path: str, advance: Advance | None, kinds: Mapping[str, pyarrow.DataType] | None) -> Import:
        """Look at one file whose columns are to be compared with others: what is text there is text here, 94107 too."""
        found = self.open(path, advance)
        text = [f.name for f in found.schema if kinds and f.name in kinds and kind_of(kinds[f.name]) == "text"]
        text = [name for name in text if kind_of(found.schema.field(name).type) != "text"]
        return self.open(path, advance, text) if text else found

    def open_for(self, path: str, advance: Advance | None, kinds: Mapping[str, pyarrow.DataType] | None) -> Import:
        """Look at one file whose rows are to be added to columns of these types, so that errors name line and cell."""
        if kinds is None:
            return self.open(path, advance)
        found = self.open(path, advance)
        own = {f.name: f.type for f in found.schema if f.name in kinds and kinds[f.name] != f.type}
        text = [name for name, kind in own.items() if kind_of(kinds[name]) == "text" and kind_of(kind) != "text"]
        said = dict(self._types())
        typed = {name: kinds[name] for name in own if _is_readable(kinds[name]) and name not in said}
        typed = {name: kind for name, kind in typed.items() if not (is_measure(kind) and is_measure(own[name]))}
        if not text and not typed:
            return found
        try:
            return self.open(path, advance, text, typed)
        except InputError as error:
            raise InputError(
                str(error).replace(", name it in missing=, or ask for text", " or name it in missing=")
            ) from None

    def _types(self) -> Iterator[tuple[str, str]]:
        for text in self.types:
            name, equals, kind = text.rpartition("=")
            if not equals:
                raise InputError(f"--type {text} names no column: give COLUMN=TYPE, such as zip=text")
            yield name, kind


def _is_readable(kind: pyarrow.DataType) -> bool:
    """Whether cells of text can be read as this type: a number, a truth value, a date or a time."""
    from pyarrow import types

    return is_measure(kind) or types.is_boolean(kind) or is_time(kind)


def is_stored(path: str) -> bool:
    """A folder that is, or is called as, a stored table. A folder of Parquet files is not."""
    place = Path(path)
    if place.is_dir():
        return (place / "_versions").is_dir() or next(place.rglob("*.parquet"), None) is None
    return place.suffix in (".adb", ".lance") and not place.exists()


def open_stored(path: str, version: str | None = None) -> Any:
    """The stored table at this path, at a version: a number or a tag (None: the newest)."""
    from ..database import Database

    if not Path(path).exists():
        raise InputError(no_such_file(path))
    return Database.open(path, version=version_of(version))  # type: ignore[attr-defined]


def version_of(text: str | None) -> int | str | None:
    """A version by its number, or by its tag."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def read_file(
    path: str, reading: Reading, kinds: Mapping[str, pyarrow.DataType] | None = None
) -> tuple[pyarrow.Table, tuple[str, ...]]:
    """All rows of a file, in memory, and what was assumed to read them; ``kinds``: as in `Reading.open_like`."""
    import pyarrow as pa

    with progress("reading") as advance:
        found = reading.open_like(path, advance, kinds)
        return pa.Table.from_batches(found.batches(), schema=found.schema), found.notes


def tell_notes(path: str, notes: Sequence[str], columns: Sequence[str], used: Sequence[str]) -> None:
    """What was assumed of a file, on stderr; not what concerns other columns alone."""
    for text in notes:
        words = set(re.findall(r"[^\s,:;'\"()]+", text))
        about = [name for name in columns if name in words or f"'{name}'" in text]
        if not about or set(about) & set(used):
            note(f"{path}: {in_shell(text)}")


def open_files(
    paths: Sequence[str],
    reading: Reading,
    advance: Advance | None,
    where: str | None,
    kinds: Mapping[str, pyarrow.DataType] | None = None,
) -> Import:
    """Files one after the other as one table, without the rows that do not satisfy a condition.

    ``kinds``: the columns of the table that they are added to.
    """
    found = _open_all(paths, reading, advance, kinds)
    return found if where is None else _filtered(found, where, " ".join(paths))


def _open_all(
    paths: Sequence[str], reading: Reading, advance: Advance | None, kinds: Mapping[str, pyarrow.DataType] | None
) -> Import:
    """Files as one table: the same columns, in the types that hold all of them."""
    paths = [one for path in paths for one in _fitting(path)]
    found = [reading.open_for(path, advance, kinds) for path in paths]
    if len(found) == 1:
        return found[0]
    for (first, one), (second, other) in pairwise(zip(paths, found, strict=True)):
        if set(one.schema.names) != set(other.schema.names):
            only = [name for name in other.schema.names if name not in one.schema.names] or [
                name for name in one.schema.names if name not in other.schema.names
            ]
            raise InputError(
                f"{second} has not the columns of {first}: {listed(only)} stands in one of them alone; give "
                "files with the same columns"
            )
    text = [name for name in found[0].schema.names if _has_text([one.schema.field(name).type for one in found])]
    if text:  # a column that is text in one file is text in all: 02116 in one is no 2116 in the other
        found = [reading.open(path, advance, [*text]) for path in paths]
    return _joined(paths, found)


def _fitting(path: str) -> list[str]:
    """The files of a pattern, in the order of their names; Parquet and everything else as it is."""
    if not any(mark in path for mark in "*?[") or Path(path).exists() or "://" in path:
        return [path]
    found = sorted(one for one in glob(path, recursive=True) if Path(one).is_file())
    return [path] if not found or all(one.lower().endswith(".parquet") for one in found) else found


def _has_text(kinds: Sequence[pyarrow.DataType]) -> bool:
    """Whether the files disagree on a column in a way that only text holds."""
    return len(set(kinds)) > 1 and not all(map(is_measure, kinds))


def _joined(paths: Sequence[str], parts: Sequence[Import]) -> Import:
    import pyarrow as pa

    from ..importing import Import

    names = parts[0].schema.names
    types = {name: _common([one.schema.field(name).type for one in parts]) for name in names}
    schema = pa.schema(types)

    class Joined(Import):
        """Several imports, one after the other."""

        @property
        def rows(self) -> int | None:
            counts = [one.rows for one in parts]
            return None if None in counts else sum(n for n in counts if n is not None)

        def batches(self) -> Iterator[pyarrow.RecordBatch]:
            for path, one in zip(paths, parts, strict=True):
                for batch in one.batches():
                    try:
                        columns = [batch.column(name).cast(types[name]) for name in names]
                    except pa.ArrowInvalid as error:
                        raise InputError(f"{path} does not fit the other files ({error}): give --type") from None
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    notes = tuple(f"{path}: {text}" for path, one in zip(paths, parts, strict=True) for text in one.notes)
    reasons = {name: reason for one in reversed(parts) for name, reason in one.reasons.items()}
    return Joined(schema, notes, reasons, parts[0].index)


def _filtered(table: Import, where: str, name: str) -> Import:
    import pyarrow as pa

    from ..importing import Import
    from .rows import filter_rows

    filter_rows(table.schema.empty_table(), where, name)  # what cannot be read is refused before a row is

    class Filtered(Import):
        """The rows of an import that satisfy a condition."""

        @property
        def rows(self) -> int | None:
            return None

        def batches(self) -> Iterator[pyarrow.RecordBatch]:
            for batch in table.batches():
                yield batch.filter(pa.array(filter_rows(pa.Table.from_batches([batch]), where, name)))

    return Filtered(table.schema, table.notes, table.reasons, table.index)


def _common(kinds: Sequence[pyarrow.DataType]) -> pyarrow.DataType:
    """The type that holds all of a column's parts: their own, or that of decimal numbers."""
    import pyarrow as pa

    return kinds[0] if len(set(kinds)) == 1 else pa.float64()


def no_such_file(path: str) -> str:
    """The sentence for a path that does not exist, with what lies beside it, the most alike first."""
    place = Path(path)
    folder = place.parent
    if not folder.is_dir():
        return f"there is no file {path}: the folder {folder} does not exist either"
    beside = sorted(part.name for part in folder.iterdir() if not part.name.startswith("."))
    there = "this folder" if str(folder) == "." else str(folder)
    has = f"{there} has {listed(closest_first(place.name, beside)[:5])}" if beside else f"{there} is empty"
    return f"there is no file {path}: {has}"
