"""Values of a stored table may be of any Arrow type: what cannot be averaged is looked up, selected and counted."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import attendb as ad

DAYS = [dt.date(2014, 12, 31), dt.date(2011, 3, 10), None]
VALUES = ["day", "at", "raw", "list", "flag", "y"]


@pytest.fixture
def db(tmp_path: Path) -> ad.StoredDatabase:
    table = pa.table(
        {
            "x": [1.0, 2.0, 3.0],
            "day": pa.array(DAYS),
            "at": pa.array([dt.datetime(2020, 1, 1, 1, 2, 3)] * 3),
            "raw": pa.array([b"a", b"b", b"c"]),
            "list": pa.array([[1, 2], [3], [4]]),
            "flag": [True, False, True],
            "y": [1.0, 2.0, 4.0],
        }
    )
    return ad.Database.create(tmp_path / "t.adb", table, keys="x", values=VALUES)


def test_values_of_any_type_are_looked_up(db: ad.StoredDatabase) -> None:
    found = db.lookup(1.0)
    assert found["day"] == DAYS[0] and found["at"] == dt.datetime(2020, 1, 1, 1, 2, 3)
    assert found["raw"] == b"a" and found["list"] == (1, 2) and found["flag"] == 1 and found["y"] == 1.0


def test_a_one_hot_weighting_selects_them_and_a_convex_one_counts_them(db: ad.StoredDatabase) -> None:
    near = {"score": ad.Gaussian(1.0), "weighting": ad.Nearest()}
    assert db.attend([1.2, 2.2], values="day", **near).value.tolist() == DAYS[:2]
    assert db.attend([1.2, 2.9], values="list", **near).value.tolist() == [(1, 2), (4,)]
    counted = db.attend([1.5], values="day", score=ad.Gaussian(1.0), where="day IS NOT NULL").distribution()
    assert counted.names.tolist() == DAYS[:2]
    np.testing.assert_allclose(counted.probabilities, [[0.5, 0.5]])
    with pytest.raises(ad.MissingValueError, match="'day'"):
        db.attend([1.5], values="day", score=ad.Gaussian(1.0))
    with pytest.raises(ad.KindError, match="choose with values="):
        db.attend([1.5], score=ad.Gaussian(1.0))


def test_conditions_see_days_as_text(db: ad.StoredDatabase) -> None:
    assert db.attend([1.2], values="y", score=ad.Gaussian(1.0), where="day < '2012-01-01'").value.tolist() == [[2.0]]
    assert db.update({"y": "0"}, where="day = '2014-12-31'") == 1 and db.lookup(1.0)["y"] == 0.0
    assert db.lookup(1.0)["day"] == DAYS[0]


def test_rows_are_added_and_replaced_with_them(db: ad.StoredDatabase) -> None:
    new = {"day": [dt.date(2000, 1, 1)], "at": [None], "raw": [b"z"], "list": [[7]], "flag": [False], "y": [0.0]}
    assert db.append([5.0], new).tolist() == [3] and db.lookup(5.0)["list"] == (7,)
    assert db.upsert([5.0], {**new, "day": [DAYS[1]]}).tolist() == [3] and db.lookup(5.0)["day"] == DAYS[1]
    version = db.version
    with pytest.raises(ad.AttendbError, match="'day'"):
        db.append([6.0], {**new, "day": ["soon"]})
    assert db.refresh() == version and len(db) == 4


def test_keys_are_numbers_or_text(tmp_path: Path) -> None:
    with pytest.raises(ad.KindError, match="keys are numbers, vectors of numbers or text"):
        ad.Database.create(tmp_path / "k.adb", {"day": DAYS[:2], "y": [1.0, 2.0]}, keys="day", values="y")
    assert not list(tmp_path.iterdir())
