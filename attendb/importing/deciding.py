"""From counts of cells to the type of a column, how it is read, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from . import kinds as k
from .base import type_name

if TYPE_CHECKING:
    import pyarrow as pa

ABSENT = frozenset({k.EMPTY, k.QUOTED_EMPTY, k.BLANK, k.MISSING})
SMALL = frozenset({k.INT, k.NEGATIVE})
LARGE = frozenset({k.WIDE, k.WIDE_NEGATIVE, k.UNSIGNED, k.HUGE})
BY_POINT = frozenset({k.POINT, k.POINT3, k.EXPONENT, k.GROUPED_BY_COMMA})
BY_COMMA = frozenset({k.COMMA, k.COMMA3, k.COMMA_EXPONENT, k.GROUPED_BY_POINT})
SETTLED = 1_000  # cells of text after which the pass over the file tells only missing ones from others
UNCERTAIN = frozenset({k.BARE_EXPONENT, k.PLUS, k.INFINITY})  # numbers only beside surer ones
NUMBERS = SMALL | LARGE | BY_POINT | BY_COMMA | UNCERTAIN | {k.CODE, k.OVERFLOW}
SLASHED = frozenset({k.DAY_FIRST, k.MONTH_FIRST, k.DAY_OR_MONTH_FIRST, k.YEAR_FIRST})
MOMENTS = frozenset({k.DATE, k.MOMENT, k.MOMENT_NS, k.ZONED, k.ZONED_NS})

_WHY_TEXT = {
    k.CODE: "a leading zero, so a code",
    k.HUGE: "a whole number that fits no 64-bit integer",
    k.OVERFLOW: "a number beyond every 64-bit float",
    k.BARE_EXPONENT: "as likely a code as a number",
    k.PLUS: "a plus sign, as in a telephone number",
    k.COMMA: "a decimal comma",
    k.COMMA3: "a comma that may part thousands or decimals",
    k.COMMA_EXPONENT: "a decimal comma",
    k.GROUPED_BY_POINT: "points between thousands",
    k.GROUPED_BY_COMMA: "commas between thousands",
    k.INFINITY: "a word, with no number in the column",
}
_FIX = {
    k.COMMA: "decimal=','",
    k.COMMA3: "decimal=','",
    k.COMMA_EXPONENT: "decimal=','",
    k.GROUPED_BY_POINT: "decimal=','",
    k.POINT: "decimal='.'",
}


@dataclass(frozen=True)
class Cells:
    """The cells of one column: counts by kind, and of each kind the line and the text of the first one."""

    name: str
    counts: np.ndarray
    lines: np.ndarray
    samples: Mapping[int, str]
    odd: int  # missing cells that pyarrow's reader would not take for missing

    @property
    def present(self) -> frozenset[int]:
        """The kinds of the cells that are not missing."""
        return frozenset(np.flatnonzero(self.counts).tolist()) - ABSENT

    def count(self, *wanted: int) -> int:
        """How many cells are of these kinds."""
        return int(self.counts[list(wanted)].sum())

    def example(self, kind: int) -> str:
        """The first cell of a kind and its line, in words."""
        return f"{shortened(self.samples.get(kind, ''))!r} (line {int(self.lines[kind])})"

    def first(self, wanted: frozenset[int]) -> int:
        """The one of these kinds that is met first."""
        return min((kind for kind in wanted if self.counts[kind]), key=lambda kind: (int(self.lines[kind]), kind))


@dataclass(frozen=True)
class Steps:
    """How the text of a column becomes its type: every step that its cells need."""

    group: str = ""  # the mark between thousands
    comma: bool = False  # the decimal mark
    date_format: str | None = None


@dataclass
class Decision:
    """The type of a column. ``steps`` None: pyarrow's reader converts it by itself."""

    name: str
    type: pa.DataType
    reason: str
    steps: Steps | None = None
    comma: bool = False  # read with the decimal comma
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wishes:
    """What the caller says about types."""

    types: Mapping[str, pa.DataType]
    text: frozenset[str]
    decimal: str | None
    comma_is_free: bool  # the comma is not the delimiter
    date_format: str | Mapping[str, str] | None
    where: str  # the file, for errors


def decide(cells: Cells, wishes: Wishes) -> Decision:
    """The type that every cell of the column has."""
    import pyarrow as pa

    if cells.name in wishes.types:
        return _asked_for(cells, wishes.types[cells.name], wishes)
    if cells.name in wishes.text:
        return Decision(cells.name, pa.large_string(), "as asked for")
    if isinstance(wishes.date_format, Mapping) and cells.name in wishes.date_format:
        return _by_format(cells, wishes.date_format[cells.name])
    if not cells.present:
        note = f"column {cells.name!r} has no value in any row: it is kept as text"
        reason = "no cell has a value" if cells.counts.sum() else "there is no row"
        return Decision(cells.name, pa.large_string(), reason, notes=[note] if cells.counts.sum() else [])
    return _number(cells, wishes) or _boolean(cells) or _date(cells, wishes) or _text(cells)


def _number(cells: Cells, wishes: Wishes) -> Decision | None:
    import pyarrow as pa

    present = cells.present
    if present <= SMALL | {k.WIDE, k.WIDE_NEGATIVE}:
        return Decision(cells.name, pa.int64(), "whole numbers")
    if present <= {k.INT, k.WIDE, k.UNSIGNED}:
        return Decision(cells.name, pa.uint64(), f"whole numbers beyond int64, such as {cells.example(k.UNSIGNED)}")
    infinite = present <= SMALL | {k.INFINITY} and present & SMALL
    if wishes.decimal != ",":
        allowed = SMALL | BY_POINT | UNCERTAIN | ({k.COMMA3} if k.GROUPED_BY_COMMA in present else frozenset())
        if present <= allowed and (present & BY_POINT or infinite):
            return _float(cells, comma=False)
    if wishes.decimal == "," or (wishes.decimal is None and wishes.comma_is_free):
        grouped = wishes.decimal == "," or k.GROUPED_BY_POINT in present
        allowed = SMALL | BY_COMMA | UNCERTAIN | ({k.POINT3} if grouped else frozenset())
        if present <= allowed and (present & (BY_COMMA | ({k.POINT3} if grouped else frozenset())) or infinite):
            decision = _float(cells, comma=True)
            if wishes.decimal is None:
                example = cells.example(cells.first(present & BY_COMMA))
                decision.notes.append(f"column {cells.name!r} was read with a decimal comma, such as {example}")
            return decision
    return None


def _float(cells: Cells, *, comma: bool) -> Decision:
    import pyarrow as pa

    grouped, three = (k.GROUPED_BY_POINT, k.COMMA3) if comma else (k.GROUPED_BY_COMMA, k.POINT3)
    parts = cells.count(grouped, k.POINT3 if comma else k.COMMA3)
    steps = Steps(group="." if comma else ",", comma=comma) if parts else None
    notes = []
    if parts:
        kind = cells.first(frozenset({grouped, k.POINT3 if comma else k.COMMA3}))
        mark = "points" if comma else "commas"
        notes.append(
            f"column {cells.name!r}: {parts:,} cells with {mark} between thousands were read without them, such as"
            f" {cells.example(kind)}"
        )
    others = cells.present & (BY_COMMA if comma else BY_POINT) - {three}
    if cells.count(three) and not others:
        text = cells.samples[three]
        whole = text.replace("," if comma else ".", "")
        notes.append(
            f"column {cells.name!r}: {cells.count(three):,} cells such as {cells.example(three)} could mean {whole} or"
            f" {text.replace(',', '.')}: the mark was read as the decimal one"
        )
    if cells.count(k.INFINITY):
        count, example = cells.count(k.INFINITY), cells.example(k.INFINITY)
        notes.append(f"column {cells.name!r}: {count:,} cells are infinite, such as {example}")
    return Decision(cells.name, pa.float64(), "numbers", steps, comma=comma and steps is None, notes=notes)


def _boolean(cells: Cells) -> Decision | None:
    import pyarrow as pa

    return Decision(cells.name, pa.bool_(), "true and false") if cells.present == {k.BOOLEAN} else None


def _date(cells: Cells, wishes: Wishes) -> Decision | None:
    import pyarrow as pa

    present = cells.present
    if present == {k.DATE}:
        return Decision(cells.name, pa.date32(), "dates such as " + cells.example(k.DATE))
    if present <= {k.DATE, k.MOMENT, k.MOMENT_NS} or present <= {k.ZONED, k.ZONED_NS}:
        unit = "ns" if present & {k.MOMENT_NS, k.ZONED_NS} else "us"
        zone = "UTC" if present & {k.ZONED, k.ZONED_NS} else None
        return Decision(cells.name, pa.timestamp(unit, zone), "times such as " + cells.example(cells.first(present)))
    if not present <= SLASHED:
        return None
    if isinstance(wishes.date_format, str) and _fits(present, wishes.date_format):
        return _by_format(cells, wishes.date_format)
    if present == {k.YEAR_FIRST}:
        return _slashed(cells, "%Y/%m/%d", "year, month, day", k.YEAR_FIRST)
    if present <= {k.DAY_FIRST, k.DAY_OR_MONTH_FIRST} and k.DAY_FIRST in present:
        return _slashed(cells, "%d/%m/%Y", "day, month, year", k.DAY_FIRST)
    if present <= {k.MONTH_FIRST, k.DAY_OR_MONTH_FIRST} and k.MONTH_FIRST in present:
        return _slashed(cells, "%m/%d/%Y", "month, day, year", k.MONTH_FIRST)
    decision = Decision(cells.name, pa.large_string(), "dates of an order that cannot be told")
    if present == {k.DAY_OR_MONTH_FIRST}:
        decision.notes.append(
            f"column {cells.name!r} has dates such as {cells.example(k.DAY_OR_MONTH_FIRST)}, and no row tells the day"
            " from the month: it is kept as text until date_format='%d/%m/%Y' or '%m/%d/%Y' is given"
        )
    else:
        examples = " and ".join(cells.example(kind) for kind in sorted(present))
        decision.notes.append(f"column {cells.name!r} has dates of several orders, {examples}: it is kept as text")
    return decision


def _slashed(cells: Cells, date_format: str, order: str, kind: int) -> Decision:
    import pyarrow as pa

    example = cells.example(kind)
    note = f"column {cells.name!r} was read as {order}, which {example} shows"
    return Decision(cells.name, pa.date32(), f"dates: {order}", Steps(date_format=date_format), notes=[note])


def _fits(present: frozenset[int], date_format: str) -> bool:
    """Whether a format for all date columns may be meant for one with these cells."""
    order = sorted((date_format.find(mark), mark) for mark in ("%d", "%m", "%Y") if mark in date_format)
    first = {"%d": k.DAY_FIRST, "%m": k.MONTH_FIRST, "%Y": k.YEAR_FIRST}.get(order[0][1]) if order else None
    return first is not None and present <= {first, *({k.DAY_OR_MONTH_FIRST} if first != k.YEAR_FIRST else ())}


def _by_format(cells: Cells, date_format: str, wanted: pa.DataType | None = None) -> Decision:
    import pyarrow as pa

    timed = any(mark in date_format for mark in ("%H", "%I", "%M", "%S", "%T", "%R"))
    kind = wanted or (pa.timestamp("us") if timed else pa.date32())
    return Decision(cells.name, kind, f"dates by {date_format}", Steps(date_format=date_format))


def _text(cells: Cells) -> Decision:
    import pyarrow as pa

    present = cells.present
    decision = Decision(cells.name, pa.large_string(), "text")
    numbers = cells.count(*NUMBERS)
    words = present - NUMBERS
    if words:
        kind = cells.first(words)
        decision.reason = f"text such as {cells.example(kind)}"
        others = cells.count(*words)
        if numbers > others and cells.count(k.TEXT) <= SETTLED:
            decision.notes.append(
                f"column {cells.name!r} is text because {others:,} of {numbers + others:,} cells are no numbers,"
                f" such as {cells.example(kind)}"
            )
        return decision
    if present & LARGE and present - LARGE - SMALL - {k.CODE}:
        kind = cells.first(present & LARGE)
        why = f"{cells.example(kind)} stands beside fractions, and a float64 would not keep its digits"
    elif present & LARGE and k.HUGE not in present and k.CODE not in present:
        kind = cells.first(present & LARGE)
        why = f"no 64-bit integer holds both {cells.example(kind)} and {cells.example(cells.first(present - {kind}))}"
    else:
        telling = present & _WHY_TEXT.keys() or present
        # The surest reason: a code or a number that fits nothing, before a mark that another option would read.
        kind = min(telling, key=lambda kind: list(_WHY_TEXT).index(kind) if kind in _WHY_TEXT else 99)
        why = f"{cells.example(kind)} has {_WHY_TEXT[kind]}" if kind in _WHY_TEXT else f"of {cells.example(kind)}"
        why = why.replace("has as likely", "is as likely").replace("has a whole", "is a whole")
        why = why.replace("has a number", "is a number").replace("has a word", "is a word")
        if kind in _FIX:
            why += f" ({_FIX[kind]} reads it as a number)"
    decision.reason = f"text: {why}"
    decision.notes.append(f"column {cells.name!r} is text: {why}; types={{{cells.name!r}: …}} sets another type")
    return decision


def _asked_for(cells: Cells, wanted: pa.DataType, wishes: Wishes) -> Decision:
    """The type that was asked for, where every cell can have it."""
    import pyarrow as pa

    t = pa.types
    present, reason = cells.present, "as asked for"
    date_format = wishes.date_format.get(cells.name) if isinstance(wishes.date_format, Mapping) else wishes.date_format
    comma = wishes.decimal == "," or (wishes.decimal is None and wishes.comma_is_free and not present & BY_POINT)
    if t.is_large_string(wanted):
        return Decision(cells.name, wanted, reason)
    if (t.is_date(wanted) or t.is_timestamp(wanted)) and not present <= MOMENTS:
        if date_format is None and present and present <= SLASHED:
            found = _date(cells, wishes)
            if found is not None and found.steps is not None:
                return Decision(cells.name, wanted, reason, found.steps, notes=found.notes)
        if date_format is None and present:
            kind = cells.first(present - MOMENTS)
            raise InputError(
                f"{wishes.where}: column {cells.name!r} has {cells.example(kind)}, whose day, month and year cannot be"
                " told: give date_format=, for example '%d/%m/%Y'"
            )
        return _by_format(cells, date_format or "%Y-%m-%d", wanted)
    if t.is_integer(wanted):
        allowed = SMALL | LARGE | {k.CODE, k.PLUS} - {k.HUGE}
    elif t.is_floating(wanted) or t.is_decimal(wanted):
        allowed = NUMBERS - {k.OVERFLOW} - ((BY_POINT - {k.POINT3}) if comma else (BY_COMMA - {k.COMMA3}))
    elif t.is_boolean(wanted):
        allowed = frozenset({k.BOOLEAN})
    elif t.is_date(wanted) or t.is_timestamp(wanted):
        zoned = t.is_timestamp(wanted) and wanted.tz is not None
        allowed = {k.DATE} if t.is_date(wanted) else ({k.ZONED, k.ZONED_NS} if zoned else MOMENTS)
    else:
        return Decision(cells.name, wanted, reason, Steps())
    if present - allowed:
        kind = cells.first(present - allowed)
        raise InputError(
            f"{wishes.where}: column {cells.name!r} has {cells.example(kind)}, which is no {type_name(wanted)}:"
            " mend the cell, name it in missing=, or ask for text"
        )
    marked = bool(
        present & {k.GROUPED_BY_COMMA, k.GROUPED_BY_POINT, k.PLUS, k.COMMA3, k.POINT3} - {k.POINT3 * (not comma)}
    )
    if marked or (comma and present & BY_COMMA):
        return Decision(cells.name, wanted, reason, Steps(group="." if comma else ",", comma=comma))
    return Decision(cells.name, wanted, reason)


def shortened(text: str, most: int = 40) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence."""
    return ", ".join(names[:most]) + (f", … ({len(names) - most:,} more)" if len(names) > most else "")
