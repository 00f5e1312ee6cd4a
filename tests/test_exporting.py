"""Export: what is written, that it comes back, and that nothing half-written is ever seen."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attendb import exporting
from attendb.errors import InputError
from attendb.exporting import export
from attendb.importing import Import, open_table

WHOLE = {
    "id": pa.array([2**53 + 1, None, -5]),
    "big": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "code": pa.array(["02116", "", None], pa.large_string()),
    "words": pa.array(['say "hi", now', "two\nlines", "é;|\t"], pa.large_string()),
    "x": pa.array([1.0, 1e-7, None]),
    "wide": pa.array([1e20, float("inf"), -0.5]),
    "even": pa.array([True, None, False]),
    "day": pa.array([dt.date(2014, 12, 31), None, dt.date(1, 1, 1)]),
    "seen": pa.array([dt.datetime(2020, 1, 2, 3, 4, 5, 6), None, dt.datetime(1969, 1, 1)], pa.timestamp("us")),
    "zoned": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
}


def written(table: Import, path: Path, **options: object) -> Import:
    assert export(table.batches(), table.schema, path, **options) == table.rows  # type: ignore[arg-type]
    return open_table(path)


def whole(table: Import) -> pa.Table:
    return pa.Table.from_batches(table.batches(), table.schema)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "t.csv.gz", "t.csv.zst"])
def test_what_is_exported_comes_back(tmp_path, name):
    table = open_table(WHOLE)
    back = written(table, tmp_path / name)
    assert back.schema == table.schema
    assert whole(back).equals(whole(table))
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_the_comparison_of_tables_can_fail():
    other = dict(WHOLE, x=pa.array([1.0, 1e-7, 0.0]))
    assert not whole(open_table(other)).equals(whole(open_table(WHOLE)))


def test_random_fractions_come_back_to_the_last_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    table = open_table({"x": bits[np.isfinite(bits)], "w": np.round(bits[np.isfinite(bits)] % 1000)})
    assert whole(written(table, tmp_path / "t.csv")).equals(whole(table))


def test_vectors_go_to_parquet_only(tmp_path):
    table = open_table({"v": np.arange(6.0).reshape(3, 2), "x": [1, 2, 3]})
    assert whole(written(table, tmp_path / "t.parquet")).equals(whole(table))
    with pytest.raises(InputError, match=r"cannot hold column 'v' .*: write \.parquet"):
        export(table.batches(), table.schema, tmp_path / "t.csv")


def test_tables_without_rows(tmp_path):
    table = open_table({name: column.slice(0, 0) for name, column in WHOLE.items()})
    assert written(table, tmp_path / "t.parquet").schema == table.schema
    back = written(table, tmp_path / "t.csv")
    assert (back.rows, back.schema.names) == (0, table.schema.names)


def test_one_column_with_missing_cells(tmp_path):
    table = open_table({"x": [1.5, None, 2.0, None]})
    assert whole(written(table, tmp_path / "t.csv")).equals(whole(table))


def test_small_batches_make_large_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "ROW_GROUP", 1_000)
    batch = pa.record_batch({"x": list(range(10))})
    assert export([batch] * 250, batch.schema, tmp_path / "t.parquet") == 2_500
    groups = pq.ParquetFile(tmp_path / "t.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [1_000, 1_000, 500]


def test_a_file_that_is_there_is_kept_unless_told(tmp_path):
    table = open_table(WHOLE)
    path = tmp_path / "t.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match="is already there"):
        export(table.batches(), table.schema, path)
    assert path.read_text() == "mine"
    assert whole(written(table, path, overwrite=True)).equals(whole(table))


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "t.csv"
    table = open_table({"x": [1, 2]})

    def batches():
        yield from table.batches()
        path.write_text("mine")

    with pytest.raises(InputError, match="is already there"):
        export(batches(), table.schema, path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("mine", [path])


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz"])
def test_an_error_on_the_way_leaves_nothing(tmp_path, name):
    table = open_table({"x": list(range(10))})

    def batches():
        yield from table.batches()
        raise InputError("the source broke")

    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="the source broke"):
        export(batches(), table.schema, tmp_path / name, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


ENDLESS = """
import sys
import pyarrow as pa
from attendb.exporting import export

batch = pa.record_batch({"x": list(range(100_000))})

def batches():
    while True:
        print("more", flush=True)
        yield batch

export(batches(), batch.schema, sys.argv[1], overwrite=True)
"""


def test_a_killed_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline() == b"more\n"
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert path.read_text() == "mine"
    assert all(
        left.name.startswith(".t.csv.") and left.name.endswith(".part") for left in set(tmp_path.iterdir()) - {path}
    )


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    table = open_table({"x": [1, 2]})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting.os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\): nothing was changed"):
        export(table.batches(), table.schema, tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t.txt", "end its name in .parquet, .pq, .csv, .tsv"),
        ("t", "or give format="),
        ("t.parquet.gz", "Parquet packs its columns itself"),
        ("nowhere/t.csv", "there is no folder"),
    ],
)
def test_names_that_cannot_be_written(tmp_path, name, message):
    table = open_table({"x": [1]})
    with pytest.raises(InputError, match=message):
        export(table.batches(), table.schema, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_progress_and_format(tmp_path):
    told: list[tuple[int, int | None]] = []
    table = open_table({"x": list(range(70_000))})
    export(
        table.batches(), table.schema, tmp_path / "t", format="csv", rows=table.rows,
        progress=lambda done, rows: told.append((done, rows)),
    )  # fmt: skip
    assert told == [(65_536, 70_000), (70_000, 70_000)]
    assert whole(open_table(tmp_path / "t")).equals(whole(table))
