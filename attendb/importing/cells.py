"""The compiled pass over a text file that decides its types: the kind of every cell, counted by column.

One pass at about a gigabyte a second finds what pyarrow's reader cannot tell: leading zeros, exponents without a point,
the line of the first odd cell, rows with too few or too many cells. The rules of quoting are those of pyarrow's reader,
which reads the same bytes afterwards: a quotation mark opens a cell only as its first byte, a doubled one stands for
itself, and what follows a closing one belongs to the cell.

This module is longer than others, because the state machine of cells and that of rows compile together.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .deciding import SETTLED
from .kinds import (
    BARE_EXPONENT,
    BLANK,
    BOOLEAN,
    CODE,
    COMMA,
    COMMA3,
    COMMA_EXPONENT,
    DATE,
    DAY_FIRST,
    DAY_OR_MONTH_FIRST,
    EMPTY,
    EXPONENT,
    GROUPED_BY_COMMA,
    GROUPED_BY_POINT,
    HUGE,
    INFINITY,
    INT,
    MISSING,
    MOMENT,
    MOMENT_NS,
    MONTH_FIRST,
    NEGATIVE,
    OVERFLOW,
    PLUS,
    POINT,
    POINT3,
    QUOTED_EMPTY,
    TEXT,
    UNSIGNED,
    WIDE,
    WIDE_NEGATIVE,
    YEAR_FIRST,
    ZONED,
    ZONED_NS,
)

Bytes = np.ndarray[Any, Any]

# The state of a scan, by place.
LINE, ROWS, OFFSET, BLANKS, RAGGED, BREAKS, NEWLINE_IN_CELL, LAST_SHIFT, OPENED = range(9)
STATE = 9

_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_LARGEST = np.frombuffer(b"17976931348623157", dtype=np.uint8)  # digits of the largest float64
_EXACT = 2**53


@numba.njit(nogil=True, cache=True)
def _digits(buf: Bytes, i: int, e: int) -> int:
    """Where the run of digits that starts at i ends."""
    while i < e and 48 <= buf[i] <= 57:
        i += 1
    return i


@numba.njit(nogil=True, cache=True)
def _number(buf: Bytes, s: int, e: int) -> Any:
    value = 0
    for i in range(s, e):
        value = value * 10 + (np.int64(buf[i]) - 48)
    return value


@numba.njit(nogil=True, cache=True)
def _day_exists(year: int, month: int, day: int) -> bool:
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= _DAYS[month] + (1 if leap else 0)


@numba.njit(nogil=True, cache=True)
def _whole(buf: Bytes, s: int, e: int, negative: bool, plus: bool) -> int:
    """The kind of a run of digits."""
    n = e - s
    if n > 1 and buf[s] == 48:
        return CODE
    if plus:
        return PLUS
    if n <= 15:
        return NEGATIVE if negative else INT
    if n > 20:
        return HUGE
    value = np.uint64(0)
    for i in range(s, min(e, s + 19)):
        value = value * np.uint64(10) + np.uint64(buf[i] - 48)
    if n == 20:
        last = np.uint64(buf[e - 1] - 48)
        most = np.uint64(1844674407370955161)
        if negative or value > most or (value == most and last > np.uint64(5)):
            return HUGE
        return UNSIGNED
    if value <= np.uint64(_EXACT):
        return NEGATIVE if negative else INT
    if value <= np.uint64(9223372036854775807):
        return WIDE_NEGATIVE if negative else WIDE
    if negative:
        return WIDE_NEGATIVE if value == np.uint64(9223372036854775808) else HUGE
    return UNSIGNED


@numba.njit(nogil=True, cache=True)
def _overflows(buf: Bytes, s: int, e: int, exponent: int) -> bool:
    """Whether the mantissa in s:e (digits and one mark) times 10^exponent is beyond every float64."""
    whole = _digits(buf, s, e)
    first = s
    while first < e and not 49 <= buf[first] <= 57:
        first += 1
    if first == e:
        return False
    magnitude = exponent + (whole - 1 - first if first < whole else whole - first)
    if magnitude != 308:
        return magnitude > 308
    j = 0
    for i in range(first, e):
        if 48 <= buf[i] <= 57:
            if j == len(_LARGEST) or buf[i] < _LARGEST[j]:
                return False
            if buf[i] > _LARGEST[j]:
                return True
            j += 1
    return False


@numba.njit(nogil=True, cache=True)
def _grouped(buf: Bytes, s: int, e: int) -> int:
    """Thousands in groups, s:e without a sign: 1,234.5 · 1.234.567 · else TEXT."""
    i = _digits(buf, s, e)
    if i == s or i - s > 3 or i >= e or buf[s] == 48:
        return TEXT
    group = buf[i]
    groups = 0
    while i < e and buf[i] == group:
        j = _digits(buf, i + 1, e)
        if j - i != 4:
            return TEXT
        i = j
        groups += 1
    if i < e:
        other = 46 if group == 44 else 44
        if buf[i] != other or _digits(buf, i + 1, e) != e or i + 1 == e:
            return TEXT
    elif groups < 2:
        return TEXT
    if e - s > 18:  # more digits than a float64 keeps
        return TEXT
    return GROUPED_BY_COMMA if group == 44 else GROUPED_BY_POINT


@numba.njit(nogil=True, cache=True)
def _clock(buf: Bytes, i: int, e: int) -> int:
    """The rest of a moment, from the hour on."""
    if _digits(buf, i, min(e, i + 2)) - i != 2 or _number(buf, i, i + 2) > 23 or i + 2 >= e or buf[i + 2] != 58:
        return TEXT
    if _digits(buf, i + 3, min(e, i + 5)) - i != 5 or buf[i + 3] > 53:
        return TEXT
    i += 5
    fraction = 0
    if i < e and buf[i] == 58:
        if _digits(buf, i + 1, min(e, i + 3)) - i != 3 or buf[i + 1] > 53:
            return TEXT
        i += 3
        if i < e and buf[i] == 46:
            j = _digits(buf, i + 1, e)
            fraction = j - i - 1
            if fraction < 1 or fraction > 9:
                return TEXT
            i = j
    if i == e:
        return MOMENT_NS if fraction > 6 else MOMENT
    if buf[i] == 90:
        i += 1
    elif buf[i] == 43 or buf[i] == 45:
        if _digits(buf, i + 1, min(e, i + 3)) - i != 3 or _number(buf, i + 1, i + 3) > 23:
            return TEXT
        i += 3
        if i < e and buf[i] == 58:
            i += 1
        if _digits(buf, i, min(e, i + 2)) - i == 2 and buf[i] <= 53:
            i += 2
        elif i != e:
            return TEXT
    if i != e:
        return TEXT
    return ZONED_NS if fraction > 6 else ZONED


@numba.njit(nogil=True, cache=True)
def _date(buf: Bytes, s: int, e: int) -> int:
    """A date or a moment, or TEXT."""
    a = _digits(buf, s, e)
    if a == s or a - s > 4 or a >= e:
        return TEXT
    mark = buf[a]
    if mark != 45 and mark != 47 and mark != 46:
        return TEXT
    b = _digits(buf, a + 1, e)
    if b - a < 2 or b - a > 3 or b >= e or buf[b] != mark:
        return TEXT
    c = _digits(buf, b + 1, e)
    first, second = _number(buf, s, a), _number(buf, a + 1, b)
    if a - s == 4:
        if c - b < 2 or c - b > 3 or not _day_exists(first, second, _number(buf, b + 1, c)):
            return TEXT
        strict = mark == 45 and b - a == 3 and c - b == 3
        if c == e:
            return DATE if strict else (YEAR_FIRST if mark == 47 and b - a == 3 and c - b == 3 else TEXT)
        if strict and (buf[c] == 32 or buf[c] == 84):
            return _clock(buf, c + 1, e)
        return TEXT
    if c != e or c - b != 5 or a - s > 2:
        return TEXT
    year = _number(buf, b + 1, c)
    day_first, month_first = _day_exists(year, second, first), _day_exists(year, first, second)
    if day_first and month_first:
        return DAY_OR_MONTH_FIRST
    return DAY_FIRST if day_first else (MONTH_FIRST if month_first else TEXT)


@numba.njit(nogil=True, cache=True)
def _is_iso_date(buf: Bytes, s: int) -> bool:
    """Whether the 10 bytes from s on are a date such as 2014-12-31; `classify` takes twice as long to find that out."""
    if buf[s + 4] != 45 or buf[s + 7] != 45:
        return False
    for i in (0, 1, 2, 3, 5, 6, 8, 9):
        if buf[s + i] < 48 or buf[s + i] > 57:
            return False
    return _day_exists(_number(buf, s, s + 4), _number(buf, s + 5, s + 7), _number(buf, s + 8, s + 10))


@numba.njit(nogil=True, cache=True)
def _numeric(buf: Bytes, s: int, e: int) -> int:
    """A number, or TEXT."""
    i = s
    negative, plus = buf[s] == 45, buf[s] == 43
    if negative or plus:
        i += 1
    start = i
    i = _digits(buf, i, e)
    n = i - start
    if i == e:
        return _whole(buf, start, e, negative, plus) if n else TEXT
    mark = 0
    after = 0
    if buf[i] == 46 or buf[i] == 44:
        mark = buf[i]
        j = _digits(buf, i + 1, e)
        after = j - i - 1
        i = j
    if n + after == 0:
        return TEXT
    if i == e:
        if n > 1 and buf[start] == 48:
            return CODE
        three = after == 3 and 1 <= n <= 3 and buf[start] != 48
        if n > 308 and _overflows(buf, start, e, 0):
            return OVERFLOW
        if mark == 46:
            return POINT3 if three else POINT
        return COMMA3 if three else COMMA
    if buf[i] == 101 or buf[i] == 69:
        stop = i
        i += 1
        signed = i < e and (buf[i] == 43 or buf[i] == 45)
        below = signed and buf[i] == 45
        if signed:
            i += 1
        j = _digits(buf, i, e)
        if j == i or j != e:
            return TEXT
        if n > 1 and buf[start] == 48:
            return CODE
        while i < e - 1 and buf[i] == 48:
            i += 1
        size = 100_000 if e - i > 5 else _number(buf, i, e)
        if _overflows(buf, start, stop, -size if below else size):
            return OVERFLOW
        if mark == 44:
            return COMMA_EXPONENT
        return EXPONENT if mark == 46 or signed else BARE_EXPONENT
    if buf[i] == 46 or buf[i] == 44:
        return _grouped(buf, start, e)
    return TEXT


@numba.njit(nogil=True, cache=True)
def _is_word(buf: Bytes, s: int, e: int, words: Bytes, ends: Bytes) -> int:
    """Which of the words stands in s:e; −1: none."""
    start = 0
    for w in range(len(ends)):
        end = ends[w]
        if end - start == e - s:
            same = True
            for j in range(e - s):
                if buf[s + j] != words[start + j]:
                    same = False
                    break
            if same:
                return w
        start = end
    return -1


@numba.njit(nogil=True, cache=True)
def _lower_is(buf: Bytes, s: int, e: int, word: Bytes) -> bool:
    if e - s != len(word):
        return False
    for j in range(e - s):
        if (buf[s + j] | 32) != word[j]:
            return False
    return True


_TRUE, _FALSE, _INF, _INFINITY = (np.frombuffer(w, dtype=np.uint8) for w in (b"true", b"false", b"inf", b"infinity"))


@numba.njit(nogil=True, cache=True)
def classify(buf: Bytes, s: int, e: int, words: Bytes, ends: Bytes, heads: Bytes) -> int:
    """The kind of the cell in s:e, which is not empty. ``heads[b]``: some word for "missing" starts with byte b."""
    if heads[buf[s]] and _is_word(buf, s, e, words, ends) >= 0:
        return MISSING
    while s < e and (buf[s] == 32 or buf[s] == 9):
        s += 1
    while s < e and (buf[e - 1] == 32 or buf[e - 1] == 9):
        e -= 1
    if s == e:
        return BLANK
    first = buf[s]
    if heads[first] and _is_word(buf, s, e, words, ends) >= 0:
        return MISSING
    if 48 <= first <= 57 or first == 45 or first == 43 or first == 46 or first == 44:
        kind = _numeric(buf, s, e)
        if kind != TEXT:
            return kind
        if 48 <= first <= 57:
            return _date(buf, s, e)
        if first == 45 or first == 43:
            s += 1
    if _lower_is(buf, s, e, _INF) or _lower_is(buf, s, e, _INFINITY):
        return INFINITY
    if _lower_is(buf, s, e, _TRUE) or _lower_is(buf, s, e, _FALSE):
        return BOOLEAN if first != 45 and first != 43 and _one_case(buf, s, e) else TEXT
    return TEXT


@numba.njit(nogil=True, cache=True)
def _one_case(buf: Bytes, s: int, e: int) -> bool:
    """true, True or TRUE: what pyarrow is told to read."""
    lower = buf[s + 1] & 32
    for i in range(s + 1, e):
        if buf[i] & 32 != lower:
            return False
    return not (lower == 0 and buf[s] & 32)


@numba.njit(nogil=True, cache=True)
def scan(
    buf: Bytes,
    delimiter: int,
    width: int,
    trailing: bool,
    words: Bytes,
    ends: Bytes,
    heads: Bytes,
    plain: bool,
    counts: Bytes,
    lines: Bytes,
    places: Bytes,
    odd: Bytes,
    ragged: Bytes,
    breaks: Bytes,
    state: Bytes,
) -> int:
    """Count the cells of all rows; how many bytes they take: all, or those before a cell that is not closed.

    ``buf`` ends behind a row, or within a cell in quotation marks. ``width``: columns; ``trailing``: every row ends in
    one more delimiter. ``counts``, ``lines`` (width, KINDS): cells of each kind, and the line of the first one;
    ``places`` (width, KINDS, 2): where that one lies in the stream. ``odd`` (width,): missing cells that pyarrow would
    not take for missing (quoted, or with spaces). ``ragged`` (·, 4): line, cells, where the row ends in the stream, and
    where its cell number ``width`` ends; ``breaks`` (·, 2): rows from which on line − row is another number. It stops
    early, before the row, where one of the two is full. ``plain``: no word for "missing" is a number.
    """
    starts = np.empty(width + 1, np.int64)
    stops = np.empty(width + 1, np.int64)
    quoted = np.empty(width + 1, np.uint8)  # 1: in quotation marks; 2: with one inside, so that it can only be text
    known = np.empty(width + 1, np.int64)  # kinds of plain numbers, which are told while their end is sought; else −1
    size = len(buf)
    consumed = 0
    i = 0
    while i < size:
        line = state[LINE]  # line ends before this row
        extra_lines = 0
        fields = 0
        rest_empty = True  # cells beyond the names hold nothing
        ended = False
        content_end = i
        while not ended:
            # One cell, from i on.
            quote = 0
            s = i
            if i < size and buf[i] == 34:
                quote = 1
                i += 1
                s = i
                closed = False
                while i < size:
                    c = buf[i]
                    if c == 34:
                        if i + 1 < size and buf[i + 1] == 34:
                            quote = 2
                            i += 2
                            continue
                        closed = True
                        break
                    if c == 10:
                        extra_lines += 1
                    elif c == 13 and not (i + 1 < size and buf[i + 1] == 10):
                        extra_lines += 1
                    i += 1
                if not closed:
                    state[OPENED] = line + 1
                    return consumed
                stop = i
                i += 1
                if i < size and buf[i] != delimiter and buf[i] != 10 and buf[i] != 13:
                    quote = 2
            kind = -1
            if not quote and plain:
                # Nearly all cells of large files are such numbers: 6 × faster than finding the end and looking back.
                if i < size and buf[i] == 45:
                    i += 1
                first = i
                mark = -1
                while i < size:
                    c = buf[i]
                    if c < 48 or c > 57:
                        if c != 46 or mark >= 0:
                            break
                        mark = i
                    i += 1
                if i > first and (i >= size or buf[i] == delimiter or buf[i] == 10 or buf[i] == 13):
                    whole = (mark if mark >= 0 else i) - first
                    if 1 <= whole <= 15 and (whole == 1 or buf[first] != 48):
                        if mark >= 0:
                            kind = POINT3 if i - mark == 4 and whole <= 3 and buf[first] != 48 else POINT
                        else:
                            kind = INT if first == s else NEGATIVE
                elif i == s + 4 and s + 10 <= size and _is_iso_date(buf, s):
                    e = s + 10
                    if e == size or buf[e] == delimiter or buf[e] == 10 or buf[e] == 13:
                        kind = DATE
                        i = e
            while i < size and buf[i] != delimiter and buf[i] != 10 and buf[i] != 13:
                i += 1
            if quote != 1:
                stop = i
            content_end = i
            if fields <= width:
                starts[fields] = s
                stops[fields] = stop
                quoted[fields] = quote
                known[fields] = kind
            if fields >= width and (i > s or quote):
                rest_empty = False
            fields += 1
            if i >= size:
                ended = True
            elif buf[i] == delimiter:
                i += 1
            else:
                if buf[i] == 13 and i + 1 < size and buf[i + 1] == 10:
                    i += 1
                i += 1
                extra_lines += 1
                ended = True
        blank = fields == 1 and width > 1 and stops[0] == starts[0] and quoted[0] == 0
        if not blank:
            row = state[ROWS]
            if line - row != state[LAST_SHIFT]:
                if state[BREAKS] >= len(breaks):
                    return consumed
                breaks[state[BREAKS], 0] = row
                breaks[state[BREAKS], 1] = line - row
                state[BREAKS] += 1
                state[LAST_SHIFT] = line - row
            if fields != width + trailing or (trailing and not rest_empty):
                if state[RAGGED] >= len(ragged):
                    return consumed
                at = state[RAGGED]
                ragged[at, 0] = line + 1
                ragged[at, 1] = fields if rest_empty or fields < width else -fields
                ragged[at, 2] = state[OFFSET] + content_end
                ragged[at, 3] = state[OFFSET] + (starts[width] - 1 if fields > width else content_end)
                state[RAGGED] += 1
            for j in range(width):
                kind = TEXT
                if j >= fields:
                    kind = EMPTY
                elif known[j] >= 0:
                    kind = known[j]
                elif stops[j] == starts[j]:
                    kind = QUOTED_EMPTY if quoted[j] else EMPTY
                elif quoted[j] != 2:
                    first = buf[starts[j]]
                    settled = counts[j, TEXT] > SETTLED
                    if not settled or heads[first] or first == 32 or first == 9:
                        kind = classify(buf, starts[j], stops[j], words, ends, heads)
                        if settled and kind != MISSING:
                            kind = TEXT
                if kind <= MISSING and kind != EMPTY:
                    if kind != MISSING or quoted[j] or _is_word(buf, starts[j], stops[j], words, ends) < 0:
                        odd[j] += 1
                if counts[j, kind] == 0:
                    lines[j, kind] = line + 1
                    if j < fields:
                        places[j, kind, 0] = state[OFFSET] + starts[j]
                        places[j, kind, 1] = state[OFFSET] + stops[j]
                counts[j, kind] += 1
            state[ROWS] += 1
        else:
            state[BLANKS] += 1
        # Line ends of this row beyond the one that closes it lie inside cells.
        if extra_lines > 1 or (extra_lines == 1 and i >= size and buf[size - 1] != 10 and buf[size - 1] != 13):
            state[NEWLINE_IN_CELL] += 1
        state[LINE] += extra_lines
        consumed = i
    return consumed
