"""One pass over a delimited file: the kinds of its cells by column, its rows, and those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError
from .cells import BLANKS, BREAKS, LAST_SHIFT, LINE, LONGEST, NEWLINE_IN_CELL, OFFSET, OPENED, RAGGED, ROWS, STATE, scan
from .deciding import Cells
from .kinds import KINDS

LONGEST_ROW = 256 << 20  # bytes; beyond it, a quotation mark was not closed
KEPT = 1 << 22  # rows that are kept in mind because they do not fit, or because they hold line ends
_ROOM = 1 << 14


@dataclass(frozen=True)
class Layout:
    """What the first lines of a file tell about the others."""

    where: str
    names: Sequence[str]
    delimiter: str
    trailing: bool  # every row ends in one more delimiter
    start: int  # bytes before the first row, in the stream
    lines: int  # line ends before it
    missing: tuple[str, ...]


@dataclass
class Scan:
    """What a pass over a file found."""

    cells: list[Cells] = field(default_factory=list)
    rows: int = 0
    blanks: int = 0
    newlines: bool = False  # some cell holds a line end
    longest: int = 0  # bytes of the longest row
    ragged_rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    breaks: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    lines_known: int = 0  # rows whose lines are known

    def lines(self, rows: np.ndarray) -> np.ndarray:
        """The line, from 1, where each row starts; 0 behind some millions of rows that hold line ends."""
        at = np.searchsorted(self.breaks[:, 0], rows, side="right") - 1
        return np.where(rows < self.lines_known, rows + self.breaks[at, 1] + 1, 0)


class _Part:
    """The accumulators of a run of rows."""

    def __init__(self, width: int) -> None:
        self.counts = np.zeros((width, KINDS), np.int64)
        self.lines = np.zeros((width, KINDS), np.int64)
        self.places = np.zeros((width, KINDS, 2), np.int64)
        self.odd = np.zeros(width, np.int64)
        self.ragged = np.zeros((_ROOM, 4), np.int64)
        self.breaks = np.zeros((_ROOM, 2), np.int64)
        self.state = np.zeros(STATE, np.int64)
        self.samples: list[dict[int, str]] = [{} for _ in range(width)]


class Scanner:
    """Runs the compiled pass over chunks of a stream, and keeps what it finds."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._width = len(layout.names)
        words = [word.encode() for word in layout.missing if word]
        self._words = np.frombuffer(b"".join(words) or b"\0", dtype=np.uint8)
        self._ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        self._heads = np.zeros(256, np.bool_)
        self._heads[[word[0] for word in words]] = True
        self._plain = not any(byte in b"0123456789" for word in words for byte in word)
        self._part = _Part(self._width)
        self._part.state[LINE] = layout.lines
        self._part.state[OFFSET] = layout.start
        self._part.state[LAST_SHIFT] = -1
        self._ragged: list[np.ndarray] = []
        self._breaks: list[np.ndarray] = []
        self._lines_known: int | None = None

    def run(self, chunks: Iterator[bytes]) -> Scan:
        """Scan all chunks; the first one starts at the first byte of the stream."""
        skip = self._layout.start
        carry = b""
        for chunk in chunks:
            if skip:
                cut = min(skip, len(chunk))
                chunk, skip = chunk[cut:], skip - cut
            carry = self._feed(carry + chunk if carry else chunk, final=False)
            if len(carry) > LONGEST_ROW:
                raise self._unclosed()
        rest = self._feed(carry, final=True)
        if rest:
            raise self._unclosed()
        return self._result()

    def _feed(self, chunk: bytes, *, final: bool) -> bytes:
        """Scan the whole rows of a chunk; what is left of it."""
        place = 0
        view = np.frombuffer(chunk, dtype=np.uint8)
        part = self._part
        while place < len(chunk):
            used = self._scan(view[place:], part, final)
            self._take_samples(part, memoryview(chunk)[place : place + used])
            part.state[OFFSET] += used
            place += used
            full = part.state[RAGGED] >= _ROOM or part.state[BREAKS] >= _ROOM
            self._drain(part)
            if not full:
                break
        return chunk[place:]

    def _scan(self, view: np.ndarray, part: _Part, final: bool) -> int:
        layout = self._layout
        return scan(
            view, len(view), final, ord(layout.delimiter), self._width, layout.trailing, self._words, self._ends,
            self._heads, self._plain, part.counts, part.lines, part.places, part.odd, part.ragged, part.breaks,
            part.state,
        )  # fmt: skip

    def _take_samples(self, part: _Part, chunk: memoryview) -> None:
        """Keep the first cell of each kind, as long as its bytes are at hand."""
        offset = int(part.state[OFFSET])
        for column, samples in enumerate(part.samples):
            for kind in np.flatnonzero(part.counts[column]).tolist():
                if kind not in samples:
                    start, stop = (int(x) - offset for x in part.places[column, kind])
                    text = bytes(chunk[max(start, 0) : max(stop, 0)][:200]).decode("utf-8", errors="ignore")
                    samples[kind] = text.strip(" \t") or text

    def _drain(self, part: _Part) -> None:
        for rows, count, kept in (
            (part.ragged, int(part.state[RAGGED]), self._ragged),
            (part.breaks, int(part.state[BREAKS]), self._breaks),
        ):
            kept.append(rows[:count].copy())
        part.state[RAGGED] = part.state[BREAKS] = 0
        if sum(map(len, self._breaks)) > KEPT and self._lines_known is None:
            self._lines_known = int(part.state[ROWS])
            part.breaks = part.breaks[:0]
        if sum(map(len, self._ragged)) > KEPT:
            raise InputError(
                f"{self._layout.where} has more than {KEPT:,} rows that do not have {self._width} cells:"
                f" check its delimiter ({self._layout.delimiter!r}) and its quotation marks"
            )

    def _unclosed(self) -> InputError:
        line = int(self._part.state[OPENED]) or int(self._part.state[LINE]) + 1
        return InputError(
            f"{self._layout.where}, line {line}: a quotation mark opens a cell and is never closed:"
            " close or double the quotation marks"
        )

    def _result(self) -> Scan:
        part = self._part
        cells = [
            Cells(name, part.counts[j], part.lines[j], part.samples[j], int(part.odd[j]))
            for j, name in enumerate(self._layout.names)
        ]
        ragged = np.concatenate([*self._ragged, np.zeros((0, 4), np.int64)])
        breaks = np.concatenate([*self._breaks, np.zeros((0, 2), np.int64)])
        return Scan(
            cells, int(part.state[ROWS]), int(part.state[BLANKS]), bool(part.state[NEWLINE_IN_CELL]),
            int(part.state[LONGEST]), ragged, breaks,
            int(part.state[ROWS]) if self._lines_known is None else self._lines_known,
        )  # fmt: skip
