"""One pass over a delimited file: the kinds of its cells by column, its rows, and those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..compiled.threads import in_order
from ..errors import InputError
from .cells import BLANKS, BREAKS, LAST_SHIFT, LINE, NEWLINE_IN_CELL, OFFSET, OPENED, RAGGED, ROWS, STATE, scan
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
    ragged_rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    breaks: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    lines_known: int = 0  # rows whose lines are known
    cuts: list[int] = field(default_factory=list)  # places in the stream, some MB apart, where a row ends

    def lines(self, rows: np.ndarray) -> np.ndarray:
        """The line, from 1, where each row starts; 0 behind some millions of rows that hold line ends."""
        at = np.searchsorted(self.breaks[:, 0], rows, side="right") - 1
        return np.where(rows < self.lines_known, rows + self.breaks[at, 1] + 1, 0)


class _Part:
    """What a pass over a piece of the stream finds, with lines and rows counted from its start."""

    def __init__(self, piece: bytes, offset: int, width: int) -> None:
        self.piece, self.offset = piece, offset  # in the stream
        self.counts = np.zeros((width, KINDS), np.int64)
        self.lines = np.zeros((width, KINDS), np.int64)
        self.places = np.zeros((width, KINDS, 2), np.int64)
        self.odd = np.zeros(width, np.int64)
        self.ragged: list[np.ndarray] = []
        self.breaks: list[np.ndarray] = []
        self.state = np.zeros(STATE, np.int64)
        self.state[LAST_SHIFT] = -1
        self.used = 0  # bytes of its whole rows

    @property
    def rest(self) -> bytes:
        """The cell that is not closed."""
        return self.piece[self.used :]

    def sample(self, column: int, kind: int) -> str:
        """The first cell of a kind."""
        start, stop = (int(x) - self.offset for x in self.places[column, kind])
        text = self.piece[max(start, 0) : max(stop, 0)][:200].decode("utf-8", errors="ignore")
        return text.strip(" \t") or text


class Scanner:
    """Runs the compiled pass over pieces of a stream, and adds up what it finds in each.

    A piece ends behind a line end, as if that could not stand in a cell. Where it does, the cell is scanned again
    together with the next piece. So several pieces are scanned at a time.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._width = len(layout.names)
        words = [word.encode() for word in layout.missing if word]
        self._words = np.frombuffer(b"".join(words) or b"\0", dtype=np.uint8)
        self._ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        self._heads = np.zeros(256, np.bool_)
        self._heads[[word[0] for word in words]] = True
        self._plain = not any(byte in b"0123456789" for word in words for byte in word)
        self._sum = _Part(b"", 0, self._width)
        self._sum.state[LINE] = layout.lines
        self._samples: list[dict[int, str]] = [{} for _ in layout.names]
        self._lines_known: int | None = None
        self._cuts: list[int] = []

    def run(self, chunks: Iterator[bytes]) -> Scan:
        """Scan all chunks; the first one starts at the first byte of the stream."""
        rest, opened = b"", 0
        for part in in_order(self._scan, pieces(chunks, self._layout.start)):
            if rest:
                part = self._scan((rest + part.piece, part.offset - len(rest)))
            rest = part.rest
            opened = int(self._sum.state[LINE] + max(1, part.state[OPENED]))
            self._add(part)
            if len(rest) > LONGEST_ROW:
                raise self._unclosed(opened)
        if rest:
            raise self._unclosed(opened)
        return self._result()

    def _scan(self, place: tuple[bytes, int]) -> _Part:
        """Scan the whole rows of a piece."""
        part, layout = _Part(*place, self._width), self._layout
        if len(part.piece) > LONGEST_ROW and part.piece[-1:] not in b"\r\n":
            return part
        view = np.frombuffer(part.piece, dtype=np.uint8)
        ragged, breaks = np.zeros((_ROOM, 4), np.int64), np.zeros((_ROOM, 2), np.int64)
        while part.used < len(view):
            part.state[OFFSET] = part.offset + part.used
            part.used += scan(
                view[part.used :], ord(layout.delimiter), self._width, layout.trailing, self._words, self._ends,
                self._heads, self._plain, part.counts, part.lines, part.places, part.odd, ragged, breaks, part.state,
            )  # fmt: skip
            part.ragged.append(ragged[: part.state[RAGGED]].copy())
            part.breaks.append(breaks[: part.state[BREAKS]].copy())
            if max(part.state[RAGGED], part.state[BREAKS]) < _ROOM:
                break
            part.state[RAGGED] = part.state[BREAKS] = 0
        return part

    def _add(self, part: _Part) -> None:
        """Add what was found in the next piece."""
        total = self._sum
        lines, rows = int(total.state[LINE]), int(total.state[ROWS])
        for column, kind in np.argwhere((total.counts == 0) & (part.counts > 0)).tolist():
            total.lines[column, kind] = lines + part.lines[column, kind]
            self._samples[column][kind] = part.sample(column, kind)
        self._cuts.append(part.offset + part.used)
        total.counts += part.counts
        total.odd += part.odd
        total.ragged += [np.add(found, [lines, 0, 0, 0]) for found in part.ragged]
        if sum(map(len, total.ragged)) > KEPT:
            raise InputError(
                f"{self._layout.where} has more than {KEPT:,} rows that do not have {self._width} cells:"
                f" check its delimiter ({self._layout.delimiter!r}) and its quotation marks"
            )
        for found in (np.add(found, [rows, lines - rows]) for found in part.breaks):
            if len(found) and self._lines_known is None and sum(map(len, total.breaks)) > KEPT:
                self._lines_known = int(found[0, 0])
            if self._lines_known is None:
                total.breaks.append(found)
        total.state += part.state

    def _unclosed(self, line: int) -> InputError:
        return InputError(
            f"{self._layout.where}, line {line}: a quotation mark opens a cell and is never closed:"
            " close or double the quotation marks"
        )

    def _result(self) -> Scan:
        total = self._sum
        cells = [
            Cells(name, total.counts[j], total.lines[j], self._samples[j], int(total.odd[j]))
            for j, name in enumerate(self._layout.names)
        ]
        ragged = np.concatenate([*total.ragged, np.zeros((0, 4), np.int64)])
        breaks = np.concatenate([*total.breaks, np.zeros((0, 2), np.int64)])
        return Scan(
            cells, int(total.state[ROWS]), int(total.state[BLANKS]), bool(total.state[NEWLINE_IN_CELL]),
            ragged, breaks, int(total.state[ROWS]) if self._lines_known is None else self._lines_known, self._cuts,
        )  # fmt: skip


def pieces(chunks: Iterator[bytes], start: int) -> Iterator[tuple[bytes, int]]:
    """The stream from byte ``start`` on, cut behind line ends, and where each piece lies in it."""
    offset, skip, kept = start, start, b""
    for chunk in chunks:
        chunk, skip = chunk[skip:], max(0, skip - len(chunk))
        end = chunk.rfind(b"\n") + 1 or chunk.rfind(b"\r", 0, max(0, len(chunk) - 1)) + 1
        if end:
            yield b"".join((kept, memoryview(chunk)[:end])), offset
            offset += len(kept) + end
            kept = chunk[end:]
        else:
            kept += chunk
        if len(kept) > LONGEST_ROW:
            yield kept, offset
    yield kept, offset
