"""A column that was read as text → its type, in steps that pyarrow computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError
from .base import type_name
from .deciding import Steps, shortened

if TYPE_CHECKING:
    import pyarrow as pa


def convert(column: pa.Array, wanted: pa.DataType, steps: Steps, missing: pa.Array, name: str) -> pa.Array:
    """Text → ``wanted``; cells that are empty or stand in ``missing`` become null.

    Raises InputError with the cell for one that has not that type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.call_function("utf8_trim_whitespace", [column])
    absent = pc.call_function("is_in", [text], pc.SetLookupOptions(missing.cast(text.type), skip_nulls=True))
    text = pc.call_function("if_else", [absent, pa.scalar(None, text.type), text])
    t = pa.types
    try:
        if steps.date_format is not None:
            return _dates(text, steps.date_format, wanted)
        if t.is_integer(wanted) or t.is_floating(wanted) or t.is_decimal(wanted):
            text = pc.call_function("utf8_ltrim", [text], pc.TrimOptions("+"))
            if steps.group:
                text = pc.call_function("replace_substring", [text], pc.ReplaceSubstringOptions(steps.group, ""))
            if steps.comma:
                text = pc.call_function("replace_substring", [text], pc.ReplaceSubstringOptions(",", "."))
        if t.is_dictionary(wanted):
            return text.dictionary_encode().cast(wanted)
        if t.is_boolean(wanted):
            text = pc.call_function("utf8_lower", [text])
        return text.cast(wanted)
    except pa.ArrowInvalid as error:
        raise InputError(f"column {name!r} cannot be read as {type_name(wanted)} ({error})") from None


def _dates(text: pa.Array, date_format: str, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if date_format in ("%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"):
        for mark in ".-":  # 31.12.2014 and 31-12-2014 have the same order
            text = pc.call_function("replace_substring", [text], pc.ReplaceSubstringOptions(mark, "/"))
    unit = wanted.unit if pa.types.is_timestamp(wanted) else "s"
    options = pc.StrptimeOptions(format=date_format, unit=unit, error_is_null=True)
    moments = pc.call_function("strptime", [text], options)
    if moments.null_count > text.null_count:
        bad = pc.call_function("and_not", [moments.is_null(), text.is_null()])
        cell = text.filter(bad)[0].as_py()
        raise pa.ArrowInvalid(f"{shortened(cell)!r} is no date by {date_format!r}: give its date_format=")
    return moments.cast(wanted)
