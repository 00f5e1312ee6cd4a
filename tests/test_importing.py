"""Import: every case of the list of public faults, every kind of source, and the compiled pass against plain Python."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendb.errors import InputError, KindError
from attendb.importing import Import, kinds, open_table, scanning, streams
from attendb.importing.cells import classify
from attendb.importing.scanning import Layout, Scanner


def rows_of(table: Import) -> dict[str, list[Any]]:
    whole = pa.Table.from_batches(table.batches(), table.schema)
    assert table.rows in (None, whole.num_rows)
    return whole.to_pydict()


def types_of(table: Import) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema}


@pytest.fixture
def csv(tmp_path: Path):
    def write(content: str | bytes, name: str = "t.csv", **options: Any) -> Import:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return open_table(path, **options)

    return write


def notes_of(table: Import) -> str:
    return "\n".join(table.notes)


# I01: byte-order marks


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_marks_are_no_part_of_the_first_name(csv, encoding):
    mark = "\ufeff" if encoding.endswith(("le", "be")) else ""
    table = csv((mark + '"id",x\n1,2\nKöln,3\n').encode(encoding))
    assert rows_of(table) == {"id": ["1", "Köln"], "x": [2, 3]}


def test_a_named_column_that_is_not_there_lists_the_columns(csv):
    with pytest.raises(InputError, match=r"has no column 'zip' \(text=\): its columns are id, x"):
        csv("id,x\n1,2\n", text=["zip"])
    with pytest.raises(InputError, match=r"has no column 'y' \(types=\)"):
        csv("id,x\n1,2\n", types={"y": "int64"})


# I03: large integers


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1234567890123456789", ""], "int64", [1234567890123456789, None]),
        (["9007199254740993", "NA"], "int64", [9007199254740993, None]),
        (["18446744073709551615", "0"], "uint64", [18446744073709551615, 0]),
        (["9223372036854775807", "-9223372036854775808"], "int64", [2**63 - 1, -(2**63)]),
        (["18446744073709551615", "-1"], "large_string", ["18446744073709551615", "-1"]),
        (["18446744073709551616", "1"], "large_string", ["18446744073709551616", "1"]),
        (["9007199254740993", "1.5"], "large_string", ["9007199254740993", "1.5"]),
    ],
)
def test_large_integers_are_exact_or_text(csv, cells, kind, values):
    table = csv("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    assert types_of(table)["x"] == kind
    assert rows_of(table)["x"] == values
    assert ("'x' is text" in notes_of(table)) == (kind == "large_string")


# I04: codes that look like numbers


@pytest.mark.parametrize(
    "cells",
    [["94107", "02116"], ["1E5", "12e3"], ["00060"], ["1_000"], ["inf", "nan"], ["+4989", "1"], ["007.5", "1.5"],
     ["0x10"], ["1 000"], ["-"], ["1.2.3"], ["1e999"], ["1..5"], ["-."], ["12:30"], ["५"]],
)  # fmt: skip
def test_codes_stay_text(csv, cells):
    table = csv("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    assert types_of(table) == {"x": "large_string", "y": "int64"}
    assert rows_of(table)["x"] == cells
    assert "x" in table.describe() and "text" in table.describe()


def test_one_leading_zero_late_in_the_file_makes_the_column_text(csv):
    table = csv("x\n" + "1\n" * 300_000 + "02\n")
    assert types_of(table) == {"x": "large_string"}
    assert "'02' (line 300002) has a leading zero" in notes_of(table)
    assert rows_of(table)["x"][-2:] == ["1", "02"]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2", "0"], [1, -2, 0]),
        (["0.5", ".5", "5.", "-1e-05", "1E+20", "1.5e3"], [0.5, 0.5, 5.0, -1e-5, 1e20, 1500.0]),
        (["1.5", "1e5", "+2"], [1.5, 1e5, 2.0]),
        (["1.7976931348623157e308", "-0.0"], [1.7976931348623157e308, -0.0]),
        (["1", "inf", "-Infinity"], [1.0, float("inf"), float("-inf")]),
        ([" 1", "2 ", '"3"', '" 4"'], [1, 2, 3, 4]),
        (["1.5", '""', '"NA"', " ", "  NA", ""], [1.5, None, None, None, None, None]),
        (["true", "False", "TRUE", "NA"], [True, False, True, None]),
    ],
)
def test_numbers_and_truths(csv, cells, values):
    assert rows_of(csv("x,y\n" + "".join(f"{cell},1\n" for cell in cells)))["x"] == values


def test_infinity_beside_numbers_is_said(csv):
    assert "1 cells are infinite, such as 'inf' (line 3)" in notes_of(csv("x,y\n1.5,1\ninf,1\n"))


def test_text_and_types_that_are_asked_for(csv):
    content = "id,x,code\n1,2,007\n2,3,8\n"
    assert rows_of(csv(content, text=["id"]))["id"] == ["1", "2"]
    table = csv(content, types={"x": "float64", "code": "int32"})
    assert types_of(table) == {"id": "int64", "x": "double", "code": "int32"}
    assert rows_of(table)["code"] == [7, 8]
    with pytest.raises(InputError, match=r"column 'x' has 'a' \(line 3\), which is no int64"):
        csv("x\n1\na\n", types={"x": "int64"})
    with pytest.raises(
        InputError, match=r"column 'x' cannot be read \(CSV conversion error to int8: invalid value '300'"
    ):
        rows_of(csv("y,x\n1,300\n", types={"x": "int8"}))
    with pytest.raises(InputError, match="no type 'integer64'"):
        csv("x\n1\n", types={"x": "integer64"})


# I06: delimiters, decimal comma, thousands


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_delimiters_are_found(csv, mark):
    table = csv(f"a{mark}b\n1{mark}x@y.z\n")
    assert rows_of(table) == {"a": [1], "b": ["x@y.z"]}
    assert ("the delimiter is" in notes_of(table)) == (mark != ",")


def test_one_column_is_not_cut(csv):
    assert rows_of(csv("email\nmary@home.com\njoe@m.org\n")) == {"email": ["mary@home.com", "joe@m.org"]}
    assert rows_of(csv("street\n12 Main St, Ulm\nHill 3\n")) == {"street": ["12 Main St, Ulm", "Hill 3"]}


def test_decimal_comma_where_the_comma_does_not_delimit(csv):
    table = csv("a;b\n1,5;2,5\n")
    assert rows_of(table) == {"a": [1.5], "b": [2.5]}
    assert "column 'a' was read with a decimal comma, such as '1,5' (line 2)" in notes_of(table)


def test_thousands(csv):
    assert rows_of(csv("a;b\n1.234,56;x\n", decimal=","))["a"] == [1234.56]
    assert rows_of(csv("a;b\n1.234;x\n", decimal=","))["a"] == [1234.0]
    assert rows_of(csv('a,b\n"1,234,567",x\n"1,234.5",y\n'))["a"] == [1234567.0, 1234.5]
    table = csv('a,b\n"1,234",x\n')
    assert rows_of(table)["a"] == ["1,234"]
    assert "may part thousands or decimals (decimal=',' reads it as a number)" in notes_of(table)


def test_point_and_comma_columns_in_one_file(csv):
    assert rows_of(csv("a;b;c\n1,5;2.5;NA\n2,5;3.5;NA\n")) == {"a": [1.5, 2.5], "b": [2.5, 3.5], "c": ["NA", "NA"]}


def test_three_digits_after_the_point_beside_whole_numbers_are_said(csv):
    table = csv("x,y\n1.234,1\n5,1\n")
    assert rows_of(table)["x"] == [1.234, 5.0]
    assert "1 cells such as '1.234' (line 2) could mean 1234 or 1.234: the mark was read as the decimal" in notes_of(
        table
    )
    assert "could mean" not in notes_of(csv("x,y\n1.234,1\n5.5,1\n"))


def test_a_numeric_column_that_became_text_is_reported(csv):
    table = csv("x,y\n" + "1.5,1\n" * 9 + "unknown,1\n")
    assert "column 'x' is text because 1 of 10 cells are no numbers, such as 'unknown' (line 11)" in notes_of(table)


# I07: whole columns decide


@pytest.mark.parametrize(
    ("many", "last", "kind"),
    [("1", "1.5", "double"), ("1", "A", "large_string"), ("43200000", "true", "large_string"),
     ("", "2020-01-01", "date32[day]")],
)  # fmt: skip
def test_types_are_those_of_the_whole_column(csv, many, last, kind):
    table = csv("x,y\n" + f"{many},1\n" * 400_000 + f"{last},1\n")
    assert types_of(table)["x"] == kind
    values = rows_of(table)["x"]
    assert len(values) == 400_001
    assert values.count(None) == (400_000 if many == "" else 0)
    assert str(values[-1]) == last


@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_the_size_of_chunks_does_not_matter(csv, monkeypatch, chunk):
    content = 'a;b;c\r\n1;"x;\r\ny";2,5\r\n\r\n"2";"é""q";3\r\n03;;\r\n'
    expected = csv(content)
    values = rows_of(expected)
    monkeypatch.setattr(streams, "CHUNK", chunk)
    found = csv(content)
    assert (found.schema, found.notes, rows_of(found)) == (expected.schema, expected.notes, values)
    assert values == {"a": ["1", "2", "03"], "b": ["x;\r\ny", 'é"q', None], "c": [2.5, 3.0, None]}
    assert found.lines(np.arange(3)).tolist() == [2, 5, 6]


def test_pieces_are_scanned_by_threads_as_one_is(csv, monkeypatch):
    cells = ["1", "-2.5", '"two\nlines"', '"a ""b"", c"', "NA", "", "2014-12-31", '"x\r\n\r\ny"']
    rows = (f"{i},{cells[i % 8]},{cells[i % 7]}" + ("\r\n\n" if i % 11 == 0 else "\n") for i in range(3_000))
    content = "a,b,c\n" + "".join(rows)
    whole = csv(content)
    expected = rows_of(whole)
    monkeypatch.setattr(streams, "CHUNK", 300)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        parts = csv(content)
        found = rows_of(parts)
    finally:
        torch.set_num_threads(before)
    assert (parts.schema, parts.notes, parts.reasons) == (whole.schema, whole.notes, whole.reasons)
    assert found == expected
    assert (parts.lines(np.arange(3_000)) == whole.lines(np.arange(3_000))).all()


# I08: ragged rows, trailing delimiters


def test_ragged_rows_name_their_lines(csv):
    with pytest.raises(InputError, match=r"line 2: 2 cells where the first line names 3 columns"):
        csv("a,b,c\n1,2\n3,4,5\n")
    with pytest.raises(InputError, match=r"line 3: 4 cells .* \(and so in 1 more lines: 5\)"):
        csv("a,b,c\n1,2,3\n1,2,3,4\n3,4,5\n1,2\n")


def test_short_rows_are_padded_and_counted(csv):
    table = csv("a,b,c\n1,2\n3,4,5\n6\n7,8,9,\n", ragged="pad")
    assert rows_of(table) == {"a": [1, 3, 6, 7], "b": [2, 4, None, 8], "c": [None, 5, None, 9]}
    assert "2 rows with too few cells were filled up with missing ones (line 2, 4)" in notes_of(table)
    assert "1 rows lost empty cells behind the last name (line 5)" in notes_of(table)
    with pytest.raises(InputError, match=r"line 3: 3 cells .* a row that is too long cannot be padded"):
        csv("a,b\n1,2\n1,2,x\n", ragged="pad")


def test_many_padded_rows_over_small_chunks(csv, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 13)
    content = "a,b\n" + "".join(f"{i}\n" if i % 3 else f"{i},{i}\n" for i in range(2_000))
    assert rows_of(csv(content, ragged="pad"))["b"] == [None if i % 3 else i for i in range(2_000)]


def test_trailing_delimiter(csv):
    for content in ("a,b\n1,2,\n3,4,", "a,b,\n1,2,\n3,4,\n"):
        table = csv(content)
        assert rows_of(table) == {"a": [1, 3], "b": [2, 4]}
        assert "every row ends in one more delimiter" in notes_of(table)


def test_a_cell_behind_the_trailing_delimiter_is_not_lost(csv):
    with pytest.raises(InputError, match="line 3: 3 cells"):
        csv("a,b\n1,2,\n3,4,5\n")
    assert rows_of(csv("a,b,\n1,2,\n3,4,5\n")) == {"a": [1, 3], "b": [2, 4], "column 3": [None, 5]}


def test_an_open_quotation_mark_names_its_line(csv):
    with pytest.raises(InputError, match="line 3: a quotation mark opens a cell and is never closed"):
        csv('a,b\n1,2\n"3,4\n5,6\n')


# I10: encodings


def test_other_encodings_name_the_byte_and_the_option(csv):
    content = "name,x\nem\u2014dash,1\ncafé,2\n".encode("cp1252")
    with pytest.raises(InputError, match=r"line 2: byte 0x97 at position 9 is not UTF-8: .*--encoding cp1252"):
        csv(content)
    assert rows_of(csv(content, encoding="cp1252"))["name"] == ["em\u2014dash", "café"]
    assert rows_of(csv(gzip.compress(content), "t.csv.gz", encoding="cp1252"))["name"] == ["em\u2014dash", "café"]
    with pytest.raises(InputError, match="byte 0x81 at position 2 is not CP1252"):
        csv(b"x\n\x81\n", encoding="cp1252")
    with pytest.raises(InputError, match="no encoding 'latin-99'"):
        csv(content, encoding="latin-99")


def test_the_position_of_a_bad_byte_counts_over_chunks(csv, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 3)
    with pytest.raises(InputError, match="line 3: byte 0xe9 at position 12 is not UTF-8"):
        csv("xé\naéb\n".encode() + b"caf\xe9\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_lines_of_wide_encodings_are_counted(csv, monkeypatch, encoding):
    monkeypatch.setattr(streams, "CHUNK", 3)
    content = "\ufeffa\nb\n".encode(encoding)
    with pytest.raises(InputError, match=r"line 3: byte 0x.. at position 10 is not UTF-16"):
        csv(content + (b"\xd8\xd8" * 2) + "\n".encode(encoding))


def test_zero_bytes_ask_for_the_encoding(csv):
    with pytest.raises(InputError, match="encoding='utf-16-le'"):
        csv("a,b\n1,2\n".encode("utf-16-le"))
    assert rows_of(csv("a,b\n1,2\n".encode("utf-16-le"), encoding="utf-16-le")) == {"a": [1], "b": [2]}


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_packed_files(csv, packing):
    content = ("a,b\n" + "1,x\n" * 5_000).encode()
    packed = gzip.compress(content) if packing == "gz" else pa.Codec("zstd").compress(content, asbytes=True)
    assert rows_of(csv(packed, f"t.csv.{packing}")) == {"a": [1] * 5_000, "b": ["x"] * 5_000}
    with pytest.raises(InputError, match=r"cannot be (read to its end|unpacked)"):
        csv(packed[: len(packed) // 2], f"cut.csv.{packing}")


# I11: dates


@pytest.mark.parametrize("mark", ["/", ".", "-"])
def test_all_rows_decide_the_order_of_day_and_month(csv, mark):
    cells = [f"31{mark}12{mark}2014", f"10{mark}03{mark}2011"]
    dates = [dt.date(2014, 12, 31), dt.date(2011, 3, 10)]
    for order in (1, -1):
        assert rows_of(csv("d,x\n" + "".join(f"{c},1\n" for c in cells[::order])))["d"] == dates[::order]
    assert rows_of(csv(f"d,x\n12{mark}31{mark}2014,1\n03{mark}04{mark}2020,1\n"))["d"] == [
        dt.date(2014, 12, 31), dt.date(2020, 3, 4)
    ]  # fmt: skip


def test_dates_that_cannot_be_decided_ask_for_a_format(csv):
    content = "d,x\n01/02/2020,1\n03/04/2020,1\n"
    table = csv(content)
    assert rows_of(table)["d"] == ["01/02/2020", "03/04/2020"]
    assert "no row tells the day from the month" in notes_of(table)
    assert "date_format='%d/%m/%Y'" in notes_of(table)
    for date_format in ("%d/%m/%Y", {"d": "%d/%m/%Y"}):
        assert rows_of(csv(content, date_format=date_format))["d"] == [dt.date(2020, 2, 1), dt.date(2020, 4, 3)]
    with pytest.raises(InputError, match=r"column 'd' has '01/02/2020' \(line 2\).*give date_format="):
        csv(content, types={"d": "date"})


def test_other_formats_of_dates(csv):
    assert rows_of(csv("d,x\n31-Dec-2014,1\n", date_format={"d": "%d-%b-%Y"}))["d"] == [dt.date(2014, 12, 31)]
    table = csv("d,x\n31.12.14 23:05,1\n", date_format={"d": "%d.%m.%y %H:%M"})
    assert rows_of(table)["d"] == [dt.datetime(2014, 12, 31, 23, 5)]
    with pytest.raises(InputError, match="'x' is no date by"):
        rows_of(csv("d,x\n31-Dec-2014,1\nx,1\n", date_format={"d": "%d-%b-%Y"}))
    assert types_of(csv("d,x\n2014/12/31,1\n"))["d"] == "date32[day]"
    assert types_of(csv("d,x\n30/02/2014,1\n"))["d"] == "large_string"  # there is no such day
    assert types_of(csv("d,x\n31/12/2014,1\n12/31/2014,1\n"))["d"] == "large_string"


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["2020-01-02", ""], "date32[day]"),
        (["2020-01-02", "2020-01-02 03:04:05"], "timestamp[us]"),
        (["2020-01-02T03:04", "2020-01-02T03:04:05.123456"], "timestamp[us]"),
        (["2020-01-02T03:04:05.1234567"], "timestamp[ns]"),
        (["2020-01-02T03:04:05Z", "2020-01-02T03:04:05+02:00"], "timestamp[us, tz=UTC]"),
        (["2020-01-02T03:04:05Z", "2020-01-02T03:04:05"], "large_string"),
        (["2020-02-30"], "large_string"),
        (["2020-01-02T25:00"], "large_string"),
    ],
)
def test_iso_dates_and_times(csv, cells, kind):
    table = csv("d,x\n" + "".join(f"{cell},1\n" for cell in cells))
    assert types_of(table)["d"] == kind
    assert len(rows_of(table)["d"]) == len(cells)


# Missing cells, names, empty files


def test_missing_cells_are_counted_and_words_in_text_are_kept(csv):
    table = csv('x,country\n1,DE\nNA,NA\n,\n2,""\n')
    assert rows_of(table) == {"x": [1, None, None, 2], "country": ["DE", "NA", None, ""]}
    assert "missing cells: x 2 (first in line 3), country 1 (first in line 4)" in notes_of(table)
    assert "column 'country' keeps 1 cells such as 'NA' (line 3) as text" in notes_of(table)
    named = csv("x,country\n1,DE\n-999,NA\n", missing=["NA", "-999"])
    assert rows_of(named) == {"x": [1, None], "country": ["DE", None]}


def test_names(csv):
    with pytest.raises(InputError, match="the column name 'a' stands there twice"):
        csv("a,a\n1,2\n")
    with pytest.raises(InputError, match="numbers where the column names must stand"):
        csv("1,2\n3,4\n")
    assert rows_of(csv("1,2\n3,4\n", names=["a", "b"])) == {"a": [1, 3], "b": [2, 4]}
    table = csv(" a ,,c\n1,2,3\n")
    assert rows_of(table) == {"a": [1], "column 2": [2], "c": [3]}
    assert "column 2 has no name" in notes_of(table)


def test_empty_files(csv, tmp_path):
    table = csv("a,b\n")
    assert (table.rows, rows_of(table)) == (0, {"a": [], "b": []})
    for content in ("", "\n\n"):
        with pytest.raises(InputError, match="is empty"):
            csv(content)
    with pytest.raises(InputError, match=r"absent\.csv cannot be read \(No such file"):
        open_table(tmp_path / "absent.csv")


def test_a_column_without_values_is_text_and_said(csv):
    table = csv("a,b\n,1\nNA,2\n")
    assert types_of(table)["a"] == "large_string"
    assert "column 'a' has no value in any row" in notes_of(table)


def test_long_rows_and_line_ends_in_cells(csv):
    long = "x" * 3_000_000
    assert rows_of(csv(f'a,b\n{long},1\n"two\nlines",2\n'))["a"] == [long, "two\nlines"]


def test_lines_are_unknown_behind_too_many_line_ends_in_cells(csv, monkeypatch):
    monkeypatch.setattr(scanning, "KEPT", 20_000)
    table = csv("a,b\n" + '"x\ny",1\n' * 50_000)
    lines = table.lines(np.array([0, 1, 20_000, 49_999]))
    assert lines.tolist() == [2, 4, 40_002, 0]
    assert rows_of(table)["b"] == [1] * 50_000


def test_batches_start_anew_and_find_a_changed_file(csv, tmp_path):
    table = csv("a\n1\n2\n")
    assert rows_of(table) == rows_of(table) == {"a": [1, 2]}
    (tmp_path / "t.csv").write_text("a\n1\n2\n3\n")
    with pytest.raises(InputError, match="was changed while it was read"):
        rows_of(table)


def test_progress_counts_bytes_then_rows(csv):
    told: list[tuple[int, int | None]] = []
    content = "a\n" + "1\n" * 1_000
    table = csv(content, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(content), len(content))
    rows_of(table)
    assert told[-1] == (1_000, 1_000)


# The compiled pass against plain Python

MISSING = [b"NA", b"?"]
PATTERNS = [
    (kinds.INT, r"(0|[1-9]\d{0,14})"),
    (kinds.NEGATIVE, r"-(0|[1-9]\d{0,14})"),
    (kinds.CODE, r"[+-]?0\d+([.,]\d*)?([eE][+-]?\d+)?"),
    (kinds.PLUS, r"\+\d+"),
    (kinds.POINT3, r"[+-]?[1-9]\d{0,2}\.\d{3}"),
    (kinds.POINT, r"[+-]?(\d+\.\d*|\.\d+)"),
    (kinds.COMMA3, r"[+-]?[1-9]\d{0,2},\d{3}"),
    (kinds.COMMA, r"[+-]?(\d+,\d*|,\d+)"),
    (kinds.COMMA_EXPONENT, r"[+-]?(\d+,\d*|,\d+)[eE][+-]?\d+"),
    (kinds.BARE_EXPONENT, r"[+-]?\d+[eE]\d+"),
    (kinds.EXPONENT, r"[+-]?(\d+\.\d*|\.\d+)[eE][+-]?\d+|[+-]?\d+[eE][+-]\d+"),
    (kinds.GROUPED_BY_COMMA, r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)"),
    (kinds.GROUPED_BY_POINT, r"[+-]?[1-9]\d{0,2}((\.\d{3}){2,}(,\d+)?|\.\d{3},\d+)"),
    (kinds.INFINITY, r"(?i)[+-]?(inf|infinity)"),
    (kinds.BOOLEAN, "true|True|TRUE|false|False|FALSE"),
]


def plain_kind(cell: str) -> int:
    if cell.encode() in MISSING or cell.strip(" \t").encode() in MISSING:
        return kinds.MISSING
    cell = cell.strip(" \t")
    if not cell:
        return kinds.BLANK
    for kind, pattern in PATTERNS:
        if re.fullmatch(pattern, cell):
            return kind
    return kinds.TEXT


def compiled_kind(cell: str) -> int:
    buf = np.frombuffer(cell.encode(), dtype=np.uint8)
    heads = np.zeros(256, np.bool_)
    heads[[word[0] for word in MISSING]] = True
    words = np.frombuffer(b"".join(MISSING), dtype=np.uint8)
    return classify(buf, 0, len(buf), words, np.cumsum([len(word) for word in MISSING]), heads)


@given(st.text("0123456789.,+-eE", min_size=1, max_size=14) | st.text("NAtrueinfTRUE? 1\t", min_size=1, max_size=5))
def test_kinds_of_cells_are_those_of_the_patterns(cell):
    found = compiled_kind(cell)
    if re.search(r"[eE][+-]?0*[1-9]\d{2}", cell):
        return  # it may overflow, which another test covers
    if found in (kinds.DAY_FIRST, kinds.MONTH_FIRST, kinds.DAY_OR_MONTH_FIRST, kinds.DATE):
        assert re.fullmatch(r"\s*(\d{1,2}[.-]\d{1,2}[.-]\d{4}|\d{4}-\d\d-\d\d)\s*", cell)
    else:
        assert found == plain_kind(cell), cell


def test_the_comparison_of_kinds_can_fail():
    assert plain_kind("1E5") != plain_kind("1.5e5") and compiled_kind("02") != compiled_kind("2")


CELLS = ["1", "-2.5", "02", "a,b", 'q"q', "two\nlines", "", " 7", "NA", "é"]


@given(
    st.lists(
        st.lists(st.sampled_from(CELLS), min_size=3, max_size=3),
        min_size=1, max_size=8,
    ),
    st.sampled_from(["\n", "\r\n"]), st.integers(1, 40),
)  # fmt: skip
def test_rows_are_those_of_the_csv_module(tmp_path_factory, rows, end, chunk):
    import csv as python_csv
    import io

    out = io.StringIO()
    python_csv.writer(out, lineterminator=end, quoting=python_csv.QUOTE_ALL).writerows(rows)
    content = ("a,b,c" + end + out.getvalue()).encode()
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_bytes(content)
    table = open_table(path, text=["a", "b", "c"])
    found = rows_of(table)
    assert [list(row) for row in zip(*found.values(), strict=True)] == [list(row) for row in rows]
    layout = Layout("t", ["a", "b", "c"], ",", False, len("a,b,c" + end), 1, ("NA",))
    parts = Scanner(layout).run(iter([content[i : i + chunk] for i in range(0, len(content), chunk)]))
    whole = Scanner(layout).run(iter([content]))
    for one, two in zip(parts.cells, whole.cells, strict=True):
        assert (one.counts == two.counts).all() and one.samples == two.samples and (one.lines == two.lines).all()


# Other sources


def test_parquet_of_pandas_keeps_the_index_apart(tmp_path):
    frame = pd.DataFrame({"x": [1, 2]}, index=["p", "q"])
    frame.to_parquet(tmp_path / "nameless.parquet")
    table = open_table(tmp_path / "nameless.parquet")
    assert rows_of(table) == {"x": [1, 2], "index": ["p", "q"]}
    assert table.index == ("index",)
    assert "was the index of a frame" in notes_of(table)
    frame.rename_axis("site").to_parquet(tmp_path / "named.parquet")
    assert open_table(tmp_path / "named.parquet").index == ("site",)
    assert open_table(frame).index == ("index",)
    plain = frame.reset_index(drop=True)
    plain.to_parquet(tmp_path / "plain.parquet")
    assert (open_table(tmp_path / "plain.parquet").index, open_table(plain).index) == ((), ())


def test_parquet_without_rows_has_types(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.float32()), "s": pa.array([], pa.string())}), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    assert (types_of(table), table.rows, rows_of(table)) == ({"x": "float", "s": "large_string"}, 0, {"x": [], "s": []})


def test_parquet_folders_and_patterns(tmp_path):
    for year, site, x in (("2020", "01", 1), ("2021", "2", 2)):
        folder = tmp_path / f"year={year}" / f"site={site}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [x]}), folder / "part.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    expected = {"x": [1, 2], "year": [2020, 2021], "site": ["01", "2"]}  # a leading zero: a code, in folders too
    assert rows_of(open_table(tmp_path)) == expected
    assert rows_of(open_table(str(tmp_path / "*" / "*" / "*.parquet"))) == expected
    with pytest.raises(InputError, match="no file fits"):
        open_table(str(tmp_path / "*.pq"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without Parquet files"):
        open_table(tmp_path / "empty")


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 2), pa.bool_(), pa.date32(), pa.list_(pa.int64())], ids=str)
def test_a_column_of_any_type_may_be_absent_from_some_parquet_files(tmp_path, kind):
    cells = {"bool": True, "date32[day]": dt.date(2026, 1, 2)}.get(str(kind), [1, 2])
    pq.write_table(pa.table({"a": [1.0], "e": pa.array([cells], kind)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2.0, 3.0]}), tmp_path / "2.parquet")
    assert rows_of(open_table(tmp_path)) == {"a": [1, 2, 3], "e": [cells, None, None]}


def test_parquet_types_that_no_cast_joins_are_one_sentence(tmp_path):
    pq.write_table(pa.table({"e": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"e": ["a"]}), tmp_path / "2.parquet")
    with pytest.raises(InputError, match="do not agree"):
        open_table(tmp_path)


def test_parquet_files_that_differ(tmp_path):
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "b.parquet")
    table = open_table(tmp_path)
    assert rows_of(table) == {"x": [1.0, 1.5], "y": ["a", None]}
    assert "'x' has several types" in notes_of(table) and "'y' is not in every file" in notes_of(table)
    pq.write_table(pa.table({"x": [2**53 + 1], "y": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'x' does not fit float64"):
        rows_of(open_table(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        open_table(tmp_path / "a.parquet")


def test_arrow_and_feather(tmp_path):
    from pyarrow import feather

    whole = pa.table({"x": [1, 2, 3], "c": pa.array(["u", "v", "u"]).dictionary_encode()})
    expected = {"x": [1, 2, 3], "c": ["u", "v", "u"]}
    feather.write_feather(whole, tmp_path / "two.feather")
    with pa.OSFile(str(tmp_path / "s.arrows"), "wb") as sink, pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    for name in ("two.feather", "s.arrows"):
        assert rows_of(open_table(tmp_path / name)) == expected
    for name, content, message in (
        ("bad.arrow", b"ARROW1 and nothing more", "cannot be read as Arrow"),
        ("old.feather", b"FEA1....", "the first Feather format"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            open_table(tmp_path / name)


def test_json_lines(tmp_path):
    rows = [
        {"id": 9007199254740993, "x": 1, "tags": ["a"], "v": [1, 2]},
        {"id": 18446744073709551615, "x": 1.5, "m": "1"},
    ]
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    table = open_table(path)
    assert types_of(table)["id"] == "uint64"
    assert rows_of(table) == {
        "id": [9007199254740993, 18446744073709551615], "x": [1.0, 1.5], "tags": [["a"], None], "v": [[1, 2], None],
        "m": [None, "1"],
    }  # fmt: skip
    (tmp_path / "late.jsonl").write_text('{"x": 1}\n' * 20_000 + '{"x": "A"}\n')
    late = open_table(tmp_path / "late.jsonl")
    assert rows_of(late)["x"] == ["1"] * 20_000 + ["A"]
    assert "column 'x' is text" in notes_of(late) and "(line 20001)" in notes_of(late)
    (tmp_path / "bad.jsonl").write_text('{"x": 1}\n{"x": \n')
    with pytest.raises(InputError, match="line 2: no JSON"):
        open_table(tmp_path / "bad.jsonl")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match="line 1: a list where an object must stand"):
        open_table(tmp_path / "list.jsonl")


def test_numpy_files(tmp_path):
    x, v = np.arange(5_000), np.arange(10_000, dtype=np.float32).reshape(5_000, 2)
    names = np.array([f"n{i}" for i in range(5_000)])
    np.savez(tmp_path / "a.npz", x=x, v=v, turned=np.asfortranarray(v), names=names)
    np.savez_compressed(tmp_path / "b.npz", x=x, v=v, turned=np.asfortranarray(v), names=names)
    for name in ("a.npz", "b.npz"):
        table = open_table(tmp_path / name)
        assert types_of(table)["v"] == types_of(table)["turned"] == "fixed_size_list<item: float>[2]"
        found = rows_of(table)
        assert (
            found["x"] == x.tolist()
            and found["v"] == found["turned"] == v.tolist()
            and found["names"] == names.tolist()
        )
    np.save(tmp_path / "one.npy", v)
    assert rows_of(open_table(tmp_path / "one.npy")) == {"one": v.tolist()}
    np.save(tmp_path / "records.npy", np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", ">f8")]))
    assert rows_of(open_table(tmp_path / "records.npy")) == {"a": [1], "b": [2.5]}
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="never unpickled"):
        open_table(tmp_path / "objects.npy")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    with pytest.raises(InputError, match="has shape"):
        open_table(tmp_path / "cube.npy")
    np.savez(tmp_path / "uneven.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(InputError, match="different lengths"):
        open_table(tmp_path / "uneven.npz")


def test_frames(tmp_path):
    expected = {"x": [1, 2], "s": ["a", None], "f": [1.5, None], "c": ["u", "v"]}
    frame = pd.DataFrame({"x": [1, 2], "s": ["a", None], "f": [1.5, np.nan], "c": pd.Categorical(["u", "v"])})
    polars = pl.DataFrame(expected).with_columns(pl.col("c").cast(pl.Categorical))
    arrow = pa.table(expected)
    for source in (frame, polars, polars.lazy(), arrow, arrow.to_batches()[0], arrow.to_reader(), expected):
        table = open_table(source)
        assert types_of(table) == {"x": "int64", "s": "large_string", "f": "double", "c": "large_string"}
        assert rows_of(table) == expected
    assert open_table(table) is table


def test_frames_that_are_no_tables():
    import torch

    table = open_table({"v": torch.ones(2, 3), "x": np.array([1.0, np.nan])})
    assert rows_of(table) == {"v": [[1.0] * 3] * 2, "x": [1.0, None]}
    for source, error, message in (
        (3, KindError, "a int is no table"),
        ({}, InputError, "has no columns"),
        ({"a": [1], "b": [1, 2]}, InputError, "different lengths"),
        ({"a": [1, "x"]}, InputError, "column 'a' has no single type"),
        ({"a": "text"}, KindError, "is one text"),
        (pd.DataFrame({"a": [1, "x"]}), InputError, "mixed types"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), InputError, "two columns 'a'"),
    ):
        with pytest.raises(error, match=message):
            open_table(source)


def test_a_stream_is_read_once():
    table = open_table(pa.table({"x": [1]}).to_reader())
    assert rows_of(table) == {"x": [1]}
    with pytest.raises(InputError, match="read only once"):
        rows_of(table)


# M03: vectors


def test_lists_of_one_length_are_vectors_and_others_are_said():
    table = open_table({"v": [[1.0, 2.0], None, [3.0, 4.0]]})
    assert types_of(table) == {"v": "fixed_size_list<item: double>[2]"}
    assert rows_of(table)["v"] == [[1.0, 2.0], None, [3.0, 4.0]]
    uneven = {"v": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [float("nan")]]}
    table = open_table(uneven)
    assert types_of(table) == {"v": "list<item: double>"}
    assert "lists of several lengths, 3 (row 0), 1 (row 2)" in notes_of(table)
    with pytest.raises(InputError, match=r"vectors of width 3 but has lengths 1 \(row 2\)"):
        rows_of(open_table(uneven, types={"v": pa.list_(pa.float64(), 3)}))
    table = open_table({"v": [None, None], "w": [[], []]})
    assert types_of(table)["v"] == "large_string" and "column 'v' has no value in any row" in notes_of(table)


# X03: text beyond 2 GiB


def test_chunks_of_text_stay_apart():
    chunk = pa.array(["x" * 1_000] * 1_000)
    table = open_table(pa.table({"s": pa.chunked_array([chunk] * 20)}))
    batches = list(table.batches())
    assert len(batches) == 20 and all(batch.schema.field("s").type == pa.large_string() for batch in batches)


@pytest.mark.slow
def test_text_beyond_two_gigabytes(tmp_path):
    path = tmp_path / "large.csv"
    line = b"y" * 1_000 + b",1\n"
    with open(path, "wb") as file:
        file.write(b"s,x\n")
        for _ in range(2_200):
            file.write(line * 1_000)
    table = open_table(path)
    assert table.rows == 2_200_000
    whole = pa.Table.from_batches(table.batches(), table.schema)
    assert whole["s"].nbytes > 2**31
    joined = whole["s"].combine_chunks()
    assert joined.take(pa.array([0, 2_199_999])).to_pylist() == ["y" * 1_000] * 2


# Formats and options


def test_formats(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.table({"x": [1]}), path)
    assert rows_of(open_table(path)) == {"x": [1]}  # by its first bytes
    path.write_text("x\n1\n")
    assert rows_of(open_table(path, format="csv")) == {"x": [1]}
    with pytest.raises(InputError, match="no format 'xml'"):
        open_table(path, format="xml")
    with pytest.raises(InputError, match="query= needs the URI"):
        open_table(path, query="SELECT 1")
    with pytest.raises(InputError, match="is an SQLite database: give sqlite:///"):
        path.write_bytes(b"SQLite format 3\0")
        open_table(path)
    wrong = [({"ragged": "drop"}, "ragged='drop'"), ({"decimal": "·"}, "decimal="), ({"delimiter": "ab"}, "delimiter")]
    for options, message in wrong:
        path.write_text("x\n1\n")
        with pytest.raises(InputError, match=message):
            open_table(path, format="csv", **options)


# I12: spreadsheets


def workbook(path: Path) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    page = book.active
    page.title = "plant"
    page.append(["code", "id", "x", "day", "mixed", None, "none"])
    page.append(["001", 1.0, 1.5, 42008, "a", 1, None])
    page.append(["02116", 2, 2, 42009, 5, 2, None])
    page.append([None, None, None, None, None, None, None])
    for row in (2, 3):
        page.cell(row, 4).number_format = "yyyy-mm-dd"
    page.merge_cells("A5:B5")
    book.create_sheet("notes").append(["only", "names"])
    book.save(path)
    return path


def test_spreadsheets(tmp_path):
    path = workbook(tmp_path / "t.xlsx")
    table = open_table(path)
    assert rows_of(table) == {
        "code": ["001", "02116"], "id": [1, 2], "x": [1.5, 2.0], "day": [dt.date(2015, 1, 4), dt.date(2015, 1, 5)],
        "mixed": ["a", "5"], "column 6": [1, 2], "none": [None, None],
    }  # fmt: skip
    assert types_of(table)["id"] == "int64"
    assert "sheet 'plant' was read; the others (notes) need sheet=" in notes_of(table)
    assert "1 merged areas (A5:B5)" in notes_of(table)
    assert "column 'mixed' is text, because no one type holds 'a' (row 2), '5' (row 3)" in notes_of(table)
    assert open_table(path, sheet="notes").rows == 0
    with pytest.raises(InputError, match="has no sheet 'x': its sheets are plant, notes"):
        open_table(path, sheet="x")
    (tmp_path / "bad.xlsx").write_bytes(b"no workbook")
    with pytest.raises(InputError, match="cannot be read as a workbook"):
        open_table(tmp_path / "bad.xlsx")


def test_an_absent_package_names_its_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(InputError, match=r"needs the package openpyxl: pip install 'attendb\[excel\]'"):
        open_table(tmp_path / "t.xlsx")
