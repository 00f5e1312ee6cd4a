"""Tables on disk refuse rows and calls that do not fit, with one sentence, and are then as they were: files and all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from table_refusing import assert_refused, everything_in, five_rows, rows

import attendb as ad


@pytest.fixture
def db(tmp_path) -> Any:
    return five_rows(tmp_path)


ROWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "wrong width": (rows(k=[[1.0, 2.0, 3.0]] * 2), ("'k'", "width 2", "width 3")),
    "one number for a vector": (rows(k=[1.0, 2.0]), ("'k'", "width 2")),
    "rows of several widths": (rows(k=pa.array([[1.0], [1.0, 2.0]])), ("'k'", "width")),
    "text for numbers": (rows(y=["1", "2"]), ("'y'", "double", "string")),
    "numbers for text": (rows(site=[1, 2]), ("'site'", "string")),
    "text for a vector": (rows(k=["a", "b"]), ("'k'",)),
    "text for ids": (rows(number=["7", "8"]), ("'number'",)),
    "decimal ids": (rows(number=[7.5, 8.0]), ("'number'",)),
    "too large for its type": (rows(note=[1, 300]), ("'note'", "int8", "300")),
    "no key column": (rows(site=None), ("'site'",)),
    "no value column": (rows(y=None), ("'y'",)),
    "no id column": (rows(number=None), ("number",)),
    "an extra column": (rows(extra=[1, 2]), ("'extra'",)),
    "the hidden column": (rows(_key=[1, 2]), ("'_key'",)),
    "NaN in a key": (rows(k=[[7.0, np.nan], [8.0, 8.0]]), ("'k'",)),
    "a null key": (rows(k=pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2))), ("'k'",)),
    "a null in a key": (rows(k=pa.array([[None, 1.0], [1.0, 2.0]], pa.list_(pa.float32(), 2))), ("'k'",)),
    "a null id": (rows(number=pa.array([7, None])), ("number",)),
    "an id twice": (rows(number=[7, 7]), ("7", "more than once")),
    "columns of several lengths": (rows(y=[1.0]), ()),
    "no table": (5, ()),
    "no columns": ([[1.0, 2.0]], ("columns",)),
    "a path that is not there": ("/no/such/file.csv", ("/no/such/file.csv",)),
}


@pytest.mark.parametrize("change", ["append", "upsert"])
@pytest.mark.parametrize("what", ROWS)
def test_rows_that_do_not_fit_change_nothing(db, tmp_path, what, change):
    given, words = ROWS[what]
    version, before = db.version, db.to_pandas()
    assert_refused(lambda: getattr(db, change)(given), tmp_path, *words)
    assert db.version == version and db.to_pandas().equals(before)
    assert getattr(db, change)(rows()).tolist() == [7, 8]


def test_an_id_that_exists_is_not_appended(db, tmp_path):
    assert_refused(lambda: db.append(rows(number=[7, 3])), tmp_path, "3", "exist already", "upsert")


def test_columns_are_matched_by_name(db):
    given = rows()
    db.append({name: given[name] for name in reversed(given)})
    assert db.lookup({"k": [7.0, 7.0], "site": "a"}) == {"y": 1.0, "label": "u"}
    db.append(rows(number=[17, 18], note=None, k=[[70.0, 7.0], [80.0, 8.0]]))
    assert db.get([17])["note"].isna().all()


class Batches:
    """Batches that come one after the other, the last of which may be an error."""

    def __init__(self, last: Any):
        self.last, self.schema = last, pa.record_batch(rows()).schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for i in range(3):
            yield pa.record_batch(rows(number=[100 + 2 * i, 101 + 2 * i]))
        if isinstance(self.last, BaseException):
            raise self.last
        yield pa.record_batch(self.last)


LATE: dict[str, tuple[Any, type[BaseException]]] = {
    "another error": (OSError("the network is gone"), OSError),
    "Ctrl-C": (KeyboardInterrupt(), KeyboardInterrupt),
    "another kind": (rows(y=["a", "b"]), ad.KindError),
    "another column": (rows(extra=[1, 2]), ad.InputError),
    "NaN in a key": (rows(k=[[1.0, 2.0], [np.nan, 1.0]]), ad.MissingValueError),
    "an id of an earlier batch": (rows(number=[100, 200]), ad.InputError),
}


@pytest.mark.parametrize("what", [*LATE, "an id that exists"])
def test_batches_of_which_the_last_is_wrong_change_nothing(db, tmp_path, what):
    last, error = LATE.get(what, (rows(number=[3, 200]), ad.InputError))
    before = everything_in(tmp_path)
    with pytest.raises(error):
        db.append(Batches(last))
    assert everything_in(tmp_path) == before and len(ad.Database.open(db.path)) == 5
    if what in LATE:
        with pytest.raises(error):
            ad.Database.create(tmp_path / "new.adb", Batches(last), keys=["k"], values=["y"], id="number")
        assert everything_in(tmp_path) == before
    assert len(db.append(Batches(rows(number=[200, 201])))) == 8


CHANGES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "delete by nothing": (lambda db: db.delete(), ("where=",)),
    "delete by two": (lambda db: db.delete("y = 1", ids=[1]), ("where=",)),
    "delete by no condition": (lambda db: db.delete("y ="), ("y =",)),
    "delete by no column": (lambda db: db.delete("z = 1"), ("z",)),
    "delete by booleans of another length": (lambda db: db.delete(np.ones(3, dtype=bool)), ("5 rows",)),
    "delete by keys of another width": (lambda db: db.delete(keys={"k": [[1.0]], "site": ["a"]}), ("width",)),
    "delete by ids of another kind": (lambda db: db.delete(ids=["a"]), ("number",)),
    "update of no column": (lambda db: db.update({"z": "1"}), ("'z'",)),
    "update of the id": (lambda db: db.update({"number": "number + 1"}), ("'number'",)),
    "update of a vector": (lambda db: db.update({"k": "1"}), ("'k'",)),
    "update to another kind": (lambda db: db.update({"y": "'a'"}), ("'y'",)),
    "update to a number too large": (lambda db: db.update({"note": "300"}), ("'note'",)),
    "update of nothing": (lambda db: db.update({}), ("nothing",)),
    "update by no expression": (lambda db: db.update({"y": "y +"}), ("y +",)),
    "update by no condition": (lambda db: db.update({"y": "1"}, "nonsense here"), ("nonsense here",)),
    "a column that exists": (lambda db: db.add_column("y", np.zeros(5)), ("'y'",)),
    "a column named id": (lambda db: db.add_column("id", np.zeros(5)), ("id",)),
    "a column of another length": (lambda db: db.add_column("z", np.zeros(4)), ("4", "5")),
    "a column by no expression": (lambda db: db.add_column("z", "y +"), ("y +",)),
    "a column without a name": (lambda db: db.add_column("", np.zeros(5)), ()),
    "restore of no version": (lambda db: db.restore(99), ("99",)),
    "restore of no tag": (lambda db: db.restore("nope"), ("'nope'", "'first'")),
    "restore of version 0": (lambda db: db.restore(0), ("0",)),
    "restore of a negative version": (lambda db: db.restore(-1), ("-1",)),
    "a tag that is taken": (lambda db: db.tag("first"), ("'first'",)),
    "a tag with a path": (lambda db: db.tag("../first"), ("../first",)),
    "a tag without letters": (lambda db: db.tag(""), ()),
    "a tag of two lines": (lambda db: db.tag("a\nb"), ()),
    "a score with a path": (lambda db: db.save_score("../../x", ad.Dot()), ("../../x",)),
    "a score with a whole path": (lambda db: db.save_score("/tmp/x", ad.Dot()), ("/tmp/x",)),
    "a hidden score": (lambda db: db.save_score(".x", ad.Dot()), (".x",)),
    "a score that is a function": (lambda db: db.save_score("f", lambda q, k: q @ k.T), ("nn.Module",)),
    "no such score": (lambda db: db.attend(rows()["k"], score="../learned"), ("../learned",)),
    "no such row": (lambda db: db.rows([99]), ("99",)),
    "no such id": (lambda db: db.get([99]), ("99",)),
    "a negative position": (lambda db: db.rows([-1]), ("-1",)),
    "open at no version": (lambda db: ad.Database.open(db.path, version=99), ("99",)),
    "open at no tag": (lambda db: ad.Database.open(db.path, version="../first"), ("../first",)),
    "open at a version of no kind": (lambda db: ad.Database.open(db.path, version=1.5), ("1.5",)),
    "open with a cache of no size": (lambda db: ad.Database.open(db.path, cache_bytes=-1), ("cache_bytes",)),
    "open with an age of no time": (lambda db: ad.Database.open(db.path, max_age=-1), ("max_age",)),
    "a change of an old version": (lambda db: ad.Database.open(db.path, version="first").delete("y = 1"), ("version",)),
    "create again": (lambda db: ad.Database.create(db.path, rows(), keys="k", values="y"), ("exists already",)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_calls_that_cannot_be_served_change_nothing(db, tmp_path, what):
    call, words = CHANGES[what]
    version, before = db.version, db.to_pandas()
    assert_refused(lambda: call(db), tmp_path, *words)
    assert db.version == version and db.to_pandas().equals(before)


CREATIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no such key": (rows(), {"keys": "z"}),
    "no such value": (rows(), {"keys": "k", "values": "z"}),
    "no such id": (rows(), {"keys": "k", "values": "y", "id": "z"}),
    "a column in two roles": (rows(), {"keys": "k", "values": "k"}),
    "no keys": (rows(), {"keys": []}),
    "an id twice": (rows(number=[7, 7]), {"keys": "k", "values": "y", "id": "number"}),
    "an id that is null": (rows(number=pa.array([7, None])), {"keys": "k", "values": "y", "id": "number"}),
    "an id that is decimal": (rows(), {"keys": "k", "values": "number", "id": "y"}),
    "NaN in a key": (rows(k=[np.nan, 1.0]), {"keys": "k", "values": "y"}),
    "a date as a key": (rows(k=pa.array([1, 2], pa.date32())), {"keys": "k", "values": "y"}),
    "a struct": (rows(note=[{"a": 1}, {"a": 2}]), {"keys": "k", "values": "y"}),
    "no table": (5, {"keys": "k", "values": "y"}),
    "a path that is not there": ("/no/such/file.csv", {"keys": "k", "values": "y"}),
}


@pytest.mark.parametrize("what", CREATIONS)
def test_a_table_that_cannot_be_made_leaves_nothing(tmp_path, what):
    table, roles = CREATIONS[what]
    assert_refused(lambda: ad.Database.create(tmp_path / "t.adb", table, **{"values": None, **roles}), tmp_path)
