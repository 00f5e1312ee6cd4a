"""Appends under the name of a batch: made again, they add nothing, whatever became of the first."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import attendb as ad
from attendb.sources import table_changes, table_writing

NAMED = pytest.mark.parametrize("named", [False, True], ids=["positions", "ids"])
FIRST = [0.0, 1.0]


def rows(*x: float, named: bool = False) -> dict:
    return {"x": list(x), "y": [10 * one for one in x]} | ({"number": [int(one) + 100 for one in x]} if named else {})


def made(path: Path, named: bool) -> Any:
    return ad.Database.create(path, rows(*FIRST, named=named), keys="x", values="y", id="number" if named else None)


# The process dies after the commit, before anything else is written, or after all was written, before the reply.
DYING = """
import os, sys
import attendb as ad
from attendb.sources import table_changes, table_writing
where, names = {"commit": (table_writing, "sync_version"), "reply": (table_changes, "end_batch")}[sys.argv[2]]
real = getattr(where, names)
def dying(*arguments):
    real(*arguments)
    os._exit(9)
db = ad.Database.open(sys.argv[1])
setattr(where, names, dying)
db.append(eval(sys.argv[3]), batch="monday")
"""


@NAMED
@pytest.mark.parametrize("dies", ["commit", "reply"])
def test_an_append_whose_process_died_before_its_reply_is_not_made_twice(tmp_path, named, dies):
    made(tmp_path / "t.adb", named)
    new = rows(5.0, 6.0, named=named)
    end = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "t.adb"), dies, repr(new)], check=False)
    assert end.returncode == 9
    db: Any = ad.Database.open(tmp_path / "t.adb")
    assert db.to_pandas()["x"].tolist() == [0.0, 1.0, 5.0, 6.0], "it was to die after the commit"
    version, files = db.version, sorted(os.listdir(tmp_path / "t.adb" / "data"))
    for _ in range(2):
        assert db.append(new, batch="monday").tolist() == ([105, 106] if named else [2, 3])
    assert (db.version, len(db)) == (version, 4) and sorted(os.listdir(tmp_path / "t.adb" / "data")) == files
    assert db.append(rows(7.0, named=named), batch="tuesday").tolist() == ([107] if named else [4])


@NAMED
def test_an_append_that_failed_before_its_commit_is_made(tmp_path, named, monkeypatch):
    db = made(tmp_path / "t.adb", named)
    new = rows(5.0, named=named)

    def failing(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(table_writing, "commit", failing)
    with pytest.raises(KeyboardInterrupt):
        db.append(new, batch="monday")
    monkeypatch.undo()
    db.append(rows(8.0, named=named))  # takes the number of the version that the batch would have had
    assert db.append(new, batch="monday").tolist() == ([105] if named else [3])
    assert db.append(new, batch="monday").tolist() == ([105] if named else [3])
    assert db.to_pandas()["x"].tolist() == [0.0, 1.0, 8.0, 5.0]


@pytest.mark.parametrize("dies", [False, True])
def test_a_batch_outlives_other_changes_and_removed_versions(tmp_path, monkeypatch, dies):
    db = made(tmp_path / "t.adb", False)
    if dies:
        monkeypatch.setattr(table_changes, "end_batch", lambda *_: None)
    db.append(rows(5.0, 6.0), batch="monday")
    monkeypatch.undo()
    db.delete("x = 5")
    db.upsert(rows(6.0))
    db.compact(timedelta(0))
    other: Any = ad.Database.open(tmp_path / "t.adb")
    assert other.append(rows(5.0, 6.0), batch="monday").tolist() == [2, 3]
    assert other.to_pandas()["x"].tolist() == [0.0, 1.0, 6.0], "deleted rows do not come back"


def test_a_batch_is_appended_again_after_a_version_before_it_was_restored(tmp_path):
    db = made(tmp_path / "t.adb", False)
    db.append(rows(5.0), batch="monday")
    after = db.version
    db.restore(1)
    assert db.append(rows(5.0), batch="monday").tolist() == [3]
    db.restore(1)
    db.compact(timedelta(0))
    assert db.append(rows(5.0), batch="monday").tolist() == [4] and db.to_pandas()["x"].tolist() == [0.0, 1.0, 5.0]
    assert db.append(rows(5.0), batch="monday").tolist() == [4]
    assert after not in db.versions().index


def test_a_batch_whose_version_was_restored_after_another_is_there(tmp_path):
    db = made(tmp_path / "t.adb", False)
    db.append(rows(5.0), batch="monday")
    after = db.version
    db.restore(1)
    db.restore(after)
    assert db.append(rows(5.0), batch="monday").tolist() == [2] and len(db) == 3


def test_a_batch_of_other_rows_is_refused(tmp_path):
    db = made(tmp_path / "t.adb", False)
    db.append([5.0], [50.0], batch="monday")
    with pytest.raises(ad.InputError, match="'monday' was appended with 1 rows but now has 2"):
        db.append(rows(5.0, 6.0), batch="monday")
    for name in ("", 3):
        with pytest.raises(ad.InputError, match="is no name"):
            db.append(rows(5.0), batch=name)
    assert len(db) == 3 and db.append([5.0], [50.0], batch="monday").tolist() == [2]
