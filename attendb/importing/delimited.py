"""CSV and its relatives: layout from the first lines, types from all of them, rows by pyarrow's reader."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiled.threads import in_order
from ..errors import InputError
from . import kinds as k
from .base import Import, known_columns
from .converting import convert
from .deciding import ABSENT, Decision, Steps, Wishes, decide, listed
from .scanning import Layout, Scan, Scanner
from .streams import ChunkReader, Edits, Progress, TextFile, open_text, utf8_chunks

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = (",", ";", "\t", "|")
NO_DELIMITER = "\x1f"  # of a file with one column: it must not stand in a cell
MISSING = ("", "?", "-", "NA", "N/A", "na", "n/a", "NaN", "nan", "NAN", "NULL", "Null", "null", "None", "none", "NONE",
           "#N/A", "<NA>", "NaT", "\\N")  # fmt: skip
SAMPLE, SAMPLED_ROWS = 1 << 16, 1_000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NAMED = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}


@dataclass(frozen=True)
class Delimited(Import):
    """A delimited text file, looked through once."""

    file: TextFile
    layout: Layout
    found: Scan
    decisions: tuple[Decision, ...]
    words_are_missing: bool  # in text columns too
    edits: Edits | None
    progress: Progress | None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.found.rows

    def lines(self, rows: np.ndarray) -> np.ndarray:
        """The line, from 1, where each of these rows starts."""
        return self.found.lines(np.asarray(rows, dtype=np.int64))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of some megabytes of text."""
        import pyarrow as pa

        self.file.unchanged()
        if not self.rows:
            return
        done = 0
        try:
            for batch in in_order(self._read, self._pieces()):
                done += batch.num_rows
                if self.progress is not None:
                    self.progress(done, self.rows)
                yield batch
        except pa.ArrowInvalid as error:
            raise self._refused(error) from None
        except InputError as error:
            raise InputError(f"{self.layout.where}: {error}") from None
        self.file.unchanged()
        if done != self.rows:
            raise InputError(f"{self.layout.where} was changed while it was read: import it again")

    def _pieces(self) -> Iterator[bytes]:
        """The rows as UTF-8, cut where the first pass has found that a row ends."""
        if self.file.plain:
            reader: Any = open(self.file.path, "rb", buffering=0)
            reader.seek(self.file.mark)
        else:
            reader = ChunkReader(utf8_chunks(self.file))
        with reader:
            cuts = (reader.read(stop - start) for start, stop in pairwise([0, self.layout.start, *self.found.cuts]))
            pieces = cuts if self.edits is None else self.edits.apply(cuts, self.layout.delimiter.encode())
            yield from filter(None, islice(pieces, 1, None))

    def _read(self, piece: bytes) -> pa.RecordBatch:
        """The rows of a piece."""
        import pyarrow as pa
        import pyarrow.csv

        missing = pa.array(list(self.layout.missing), pa.large_string())
        table = pyarrow.csv.read_csv(pa.BufferReader(piece), **self._options(len(piece)))
        columns = [
            part.chunk(0) if one.steps is None else convert(part.chunk(0), one.type, one.steps, missing, one.name)
            for part, one in zip(table.columns, self.decisions, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _refused(self, error: Exception) -> InputError:
        """What pyarrow says, which counts columns, with the name of the column."""
        found = re.search(r"column #(\d+): (?:Row #\d+: )?(.*)", str(error))
        if found is None:
            return InputError(f"{self.layout.where} cannot be read ({error})")
        name = self.decisions[int(found[1])].name
        return InputError(f"{self.layout.where}: column {name!r} cannot be read ({found[2]}): give it another type")

    def _options(self, size: int) -> dict[str, Any]:
        """Of pyarrow's reader, for a piece of so many bytes."""
        import pyarrow as pa
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

        names = [str(j) for j in range(len(self.decisions))]
        with_words = [
            one for one, cells in zip(self.decisions, self.found.cells, strict=True) if cells.count(k.MISSING)
        ]
        words = with_words and (
            self.words_are_missing or not any(pa.types.is_large_string(one.type) for one in with_words)
        )
        return {
            "read_options": ReadOptions(
                use_threads=False,
                block_size=size + 1,
                column_names=[*names, "trailing"] if self.layout.trailing else names,
            ),
            "parse_options": ParseOptions(
                delimiter=self.layout.delimiter,
                newlines_in_values=self.found.newlines,
                ignore_empty_lines=len(names) > 1,
            ),
            "convert_options": ConvertOptions(
                column_types={
                    name: one.type if one.steps is None else pa.large_string()
                    for name, one in zip(names, self.decisions, strict=True)
                },
                include_columns=names,
                null_values=["", *self.layout.missing] if words else [""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                decimal_point="," if any(one.comma for one in self.decisions) else ".",
                check_utf8=False,
            ),
        }


def open_delimited(
    path: Path,
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    text: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    ragged: str = "error",
    date_format: str | Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Delimited:
    """Look through a delimited file: see `open_table`."""
    import pyarrow as pa

    file = open_text(path, encoding)
    words = MISSING if missing is None else tuple(missing)
    layout, notes = _layout(file, delimiter, names, words)
    wanted = {**dict.fromkeys(text, "text="), **dict.fromkeys(types or {}, "types=")}
    if isinstance(date_format, Mapping):
        wanted |= dict.fromkeys(date_format, "date_format=")
    known_columns(wanted, list(layout.names), layout.where)
    found = Scanner(layout).run(utf8_chunks(file, progress))
    edits, said = _mended(found, layout, ragged)
    notes += said
    wishes = Wishes(types or {}, frozenset(text), decimal, layout.delimiter != ",", date_format, layout.where)
    decisions = [decide(cells, wishes) for cells in found.cells]
    notes += _absent(found, decisions, explicit=missing is not None)
    _settle(found, decisions, words_are_missing=missing is not None)
    return Delimited(
        schema=pa.schema([(one.name, one.type) for one in decisions]),
        notes=(*notes, *(note for one in decisions for note in one.notes)),
        reasons={one.name: one.reason for one in decisions},
        index=(),
        file=file,
        layout=layout,
        found=found,
        decisions=tuple(decisions),
        words_are_missing=missing is not None,
        edits=edits,
        progress=progress,
    )


def _settle(found: Scan, decisions: list[Decision], *, words_are_missing: bool) -> None:
    """Read as text, and convert afterwards, what one setting of the reader for all columns would not fit."""
    import pyarrow as pa

    texts = [pa.types.is_large_string(one.type) for one in decisions]
    words_in_text = not words_are_missing and any(
        is_text and cells.count(k.MISSING) for is_text, cells in zip(texts, found.cells, strict=True)
    )
    by_point = any(
        pa.types.is_floating(one.type) and not one.comma and one.steps is None and cells.present
        for one, cells in zip(decisions, found.cells, strict=True)
    )
    for one, cells, is_text in zip(decisions, found.cells, texts, strict=True):
        if one.comma and by_point:
            one.comma, one.steps = False, Steps(comma=True)
        if not is_text and one.steps is None and (cells.odd or (words_in_text and cells.count(k.MISSING))):
            one.comma, one.steps = False, Steps(comma=one.comma)


def _absent(found: Scan, decisions: list[Decision], *, explicit: bool) -> list[str]:
    """Missing cells, counted; and words for them that a text column keeps."""
    import pyarrow as pa

    counted, notes = [], []
    for one, cells in zip(decisions, found.cells, strict=True):
        is_text = pa.types.is_large_string(one.type)
        kinds = frozenset({k.EMPTY} | ({k.MISSING} if explicit else set())) if is_text else ABSENT
        count = cells.count(*kinds)
        if count and cells.present:
            counted.append(f"{one.name} {count:,} (first in line {int(cells.lines[cells.first(kinds)])})")
        if is_text and not explicit and cells.count(k.MISSING) and cells.present:
            example = cells.example(k.MISSING)
            notes.append(
                f"column {one.name!r} keeps {cells.count(k.MISSING):,} cells such as {example} as text:"
                " name the word in missing= if it stands for a missing value"
            )
    return ([f"missing cells: {listed(counted)}"] if counted else []) + notes


def _mended(found: Scan, layout: Layout, ragged: str) -> tuple[Edits | None, list[str]]:
    """What makes every row as long as the names; InputError where rows must not or cannot be mended."""
    if ragged not in ("error", "pad"):
        raise InputError(f"ragged={ragged!r}: give 'error' or 'pad'")
    rows, width = found.ragged_rows, len(layout.names)
    expected = width + layout.trailing
    notes = [f"{found.blanks:,} empty lines were skipped"] if found.blanks else []
    if layout.trailing:
        notes.append("every row ends in one more delimiter, with nothing behind it: that cell was left out")
    if not len(rows):
        return None, notes
    if ragged == "error" or (rows[:, 1] < 0).any():
        bad = rows if ragged == "error" else rows[rows[:, 1] < 0]
        line, cells = int(bad[0, 0]), abs(int(bad[0, 1]))
        more = (
            f" (and so in {len(bad) - 1:,} more lines: {listed([str(x) for x in bad[1:, 0]], 5)})"
            if len(bad) > 1
            else ""
        )
        fix = (
            "give every row as many cells as there are names, or pass ragged='pad' (--ragged pad)"
            if ragged == "error"
            else "a row that is too long cannot be padded, and its cells are not thrown away"
        )
        raise InputError(
            f"{layout.where}, line {line}: {cells} cells where the first line names {width} columns"
            f" (delimiter {layout.delimiter!r}){more}: {fix}"
        )
    short = rows[:, 1] < expected
    starts = np.where(short, rows[:, 2], rows[:, 3])
    added = np.where(short, expected - rows[:, 1], int(layout.trailing))
    if short.any():
        lines = listed([str(x) for x in rows[short, 0]], 5)
        notes.append(f"{int(short.sum()):,} rows with too few cells were filled up with missing ones (line {lines})")
    if (~short).any():
        lines = listed([str(x) for x in rows[~short, 0]], 5)
        notes.append(f"{int((~short).sum()):,} rows lost empty cells behind the last name (line {lines})")
    return Edits(starts, rows[:, 2], added), notes


def _layout(
    file: TextFile, delimiter: str | None, names: Sequence[str] | None, missing: tuple[str, ...]
) -> tuple[Layout, list[str]]:
    """The delimiter, the names and where the rows begin."""
    where = str(file.path)
    head, whole = _head(file)
    text = head.decode("utf-8", errors="ignore")
    if not whole:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1] or text
    if not text.strip("\r\n"):
        raise InputError(f"{where} is empty: a table must have a line of column names and rows below it")
    notes: list[str] = []
    if delimiter is None:
        delimiter = _delimiter(text, file.path, notes)
    elif len(delimiter.encode()) != 1 or delimiter in '"\r\n':
        raise InputError(f"the delimiter {delimiter!r} is not one ASCII character: give one such as ',' or ';'")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    if names is not None:
        return Layout(where, _unique(list(names), where, notes), delimiter, False, 0, 0, missing), notes
    row: list[str] = []
    for row in reader:
        if row:
            break
    lines = reader.line_num
    start = _line_end(head, lines)
    following = next((row for row in reader if row), None)
    found = [cell.strip() for cell in row]
    if len(found) > 1 and not found[-1] and (following is None or len(following) >= len(found)):
        # The line of names ends in a delimiter too: a column without a name, if some row has a cell there.
        rest = list(reader)
        if all(len(r) < len(found) or not r[len(found) - 1] for r in [following or [], *rest]):
            return Layout(where, _unique(found[:-1], where, notes), delimiter, True, start, lines, missing), notes
    trailing = following is not None and len(following) == len(found) + 1 and not following[-1]
    if found and all(_NUMBER.fullmatch(name) for name in found):
        raise InputError(
            f"{where}, line {lines}: {', '.join(found[:3])} are numbers where the column names must stand:"
            " add a line of names, or give names="
        )
    return Layout(where, _unique(found, where, notes), delimiter, trailing, start, lines, missing), notes


def _head(file: TextFile) -> tuple[bytes, bool]:
    """The first bytes of the stream, and whether they are all of it."""
    head = b""
    for chunk in utf8_chunks(file):
        head += chunk
        if len(head) > SAMPLE:
            return head[:SAMPLE], False
    return head, True


def _line_end(head: bytes, lines: int) -> int:
    """Where the line of that number ends, behind its line end."""
    place = 0
    for _ in range(lines):
        ends = [at for at in (head.find(b"\n", place), head.find(b"\r", place)) if at >= 0]
        if not ends:
            return len(head)
        place = min(ends) + 1
        if head[place - 1 : place + 1] == b"\r\n":
            place += 1
    return place


def _delimiter(text: str, path: Path, notes: list[str]) -> str:
    """The mark that cuts every row into as many cells as the first one; a file that none cuts has one column."""
    alike: dict[str, int] = {}
    nearly: dict[str, float] = {}
    for mark in DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
        rows = [row for row, _ in zip((row for row in reader if row), range(SAMPLED_ROWS), strict=False)]
        width = len(rows[0])
        if width < 2:
            continue
        fitting = sum(len(row) == width or (len(row) == width + 1 and not row[-1]) for row in rows)
        if fitting == len(rows):
            alike[mark] = width
        nearly[mark] = fitting / len(rows)
    if alike:
        best = max(alike, key=lambda mark: (mark == "\t" and path.suffix == ".tsv", alike[mark]))
        if best != ",":
            notes.append(f"the delimiter is {_NAMED[best]}, which cuts every row into {alike[best]} cells")
        return best
    if nearly:
        return max(nearly, key=lambda mark: (nearly[mark], -DELIMITERS.index(mark)))
    return NO_DELIMITER


def _unique(names: list[str], where: str, notes: list[str]) -> list[str]:
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{where}, line 1: the column name {twice[0]!r} stands there twice: give each its own")
    out = []
    for j, name in enumerate(names):
        if not name:
            new = f"column {j + 1}"
            while new in names:
                new += "_"
            notes.append(f"column {j + 1} has no name in the file: it is called {new!r}")
        out.append(name or new)
    return out
