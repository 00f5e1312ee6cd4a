"""What a cell of a text file can be, by number. Imports nothing."""

from __future__ import annotations

(
    EMPTY,  # nothing between two delimiters
    QUOTED_EMPTY,  # ""
    BLANK,  # spaces only
    MISSING,  # a word for "missing", such as NA
    INT,  # 0 … 2⁵³
    NEGATIVE,  # −2⁵³ … −0
    WIDE,  # beyond 2⁵³, fits int64
    WIDE_NEGATIVE,
    UNSIGNED,  # beyond int64, fits uint64
    HUGE,  # a whole number beyond all of them
    CODE,  # leading zero: 02116
    PLUS,  # +49
    POINT,  # 1.5
    POINT3,  # 1.234: three digits after the mark, which may also part thousands
    COMMA,  # 1,5
    COMMA3,  # 1,234
    EXPONENT,  # 1.5e3, 1e-05
    COMMA_EXPONENT,  # 1,5e3
    BARE_EXPONENT,  # 1E5: as likely a code as a number
    GROUPED_BY_COMMA,  # 1,234,567 or 1,234.5
    GROUPED_BY_POINT,  # 1.234.567 or 1.234,5
    INFINITY,
    OVERFLOW,  # 1e999
    BOOLEAN,  # true, false
    DATE,  # 2014-12-31
    MOMENT,  # 2014-12-31 23:59:59, to microseconds
    MOMENT_NS,  # the same to nanoseconds
    ZONED,  # with Z or +01:00
    ZONED_NS,
    DAY_FIRST,  # 31/12/2014
    MONTH_FIRST,  # 12/31/2014
    DAY_OR_MONTH_FIRST,  # 01/02/2014
    YEAR_FIRST,  # 2014/12/31
    TEXT,
) = range(34)

KINDS = 34
