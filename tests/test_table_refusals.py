"""Tables on disk refuse what they cannot serve, with one sentence, and are then as they were: versions, rows and files.

What a stranger wrote (filter text, expressions, names, paths) runs no code, reads no file and makes none.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import lance
import numpy as np
import pyarrow as pa
import pytest

import attendb as ad


def rows(**changed: Any) -> dict[str, Any]:
    """Two new rows; a changed column of None is left out."""
    whole = {"k": [[7.0, 7.0], [8.0, 8.0]], "site": ["a", "b"], "y": [1.0, 2.0], "label": ["u", "v"], "number": [7, 8]}
    whole |= {"note": [1, 2], **changed}
    return {name: data for name, data in whole.items() if data is not None}


@pytest.fixture
def db(tmp_path) -> Any:
    data = rows(k=np.arange(10, dtype=np.float32).reshape(5, 2), site=list("abcde"), y=np.arange(5.0))
    data |= {"label": ["u", None, "w", "x", "y"], "number": np.arange(5), "note": np.arange(5, dtype=np.int8)}
    made = ad.Database.create(tmp_path / "t.adb", data, keys=["k", "site"], values=["y", "label"], id="number")
    made.tag("first")
    made.save_score("learned", ad.Gaussian(2.0))
    return made


def everything_in(folder: Any) -> dict[str, bytes | None]:
    """All files and folders by path, apart from the lock."""
    found: dict[str, bytes | None] = {}
    for place, folders, names in os.walk(folder):
        found |= {os.path.join(place, name): None for name in folders}
        found |= {os.path.join(place, x): Path(place, x).read_bytes() for x in names if x != "_lock"}
    return found


def assert_refused(work: Callable[[], Any], folder: Any, *words: str) -> None:
    """The work raises one sentence that holds these words, and changes nothing in the folder."""
    before = everything_in(folder)
    with pytest.raises(ad.AttendbError) as error:
        work()
    said = str(error.value)
    assert said and "\n" not in said.replace(str(folder), "") and len(said) < 1500
    for word in words:
        assert word in said
    assert everything_in(folder) == before


# --- rows -------------------------------------------------------------------------------------------------------------

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


# --- folders ----------------------------------------------------------------------------------------------------------


def test_what_is_no_table_is_not_opened(tmp_path):
    (tmp_path / "file.adb").write_text("k,y\n1,2\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "empty" / "_versions").mkdir(parents=True)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "_versions").write_text("a file")
    lance.write_dataset(pa.table({"x": [1, 2]}), tmp_path / "lance")
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    for name, word in (
        ("file.adb", "is a file"),
        ("folder", "is no table"),
        ("empty", ""),
        ("odd", ""),
        ("lance", "did not make"),
        ("nothing", "no table at"),
        ("nothing/below", "no table at"),
        ("file.adb/below", "no table at"),
        ("link", "no table at"),
        ("x" * 300, ""),
    ):
        assert_refused(lambda name=name: ad.Database.open(tmp_path / name), tmp_path, word)
    for name in ("file.adb", "folder", "empty", "lance", "link", "nothing/below", "file.adb/below", "x" * 300):
        path = tmp_path / name
        assert_refused(lambda path=path: ad.Database.create(path, rows(), keys="k", values="y"), tmp_path)


@pytest.mark.parametrize(
    "about", [None, b"{", b"[]", b"{}", b'{"format": "new"}', b'{"format": 1}', b'{"format": 1, "keys": ["z"]}']
)
def test_a_newer_or_unreadable_format_is_refused(tmp_path, about):
    made = ad.Database.create(tmp_path / "t.adb", rows(), keys="k", values="y", id="number")
    schema = made._source.layout.stored
    data = lance.dataset(made.path).to_table()
    own = json.loads(schema.metadata[b"attendb"])
    about = json.dumps({**own, "format": own["format"] + 1, "new": True}).encode() if about is None else about
    lance.write_dataset(data.cast(schema.with_metadata({b"attendb": about})), tmp_path / "new.adb")
    words = ("newer",) if b'"new"' in about and b"true" in about else ()
    assert_refused(lambda: ad.Database.open(tmp_path / "new.adb"), tmp_path, "new.adb", *words)


ODD_NAMES = (
    *("a b.adb", "100%.adb", "%41%2F", "a#b", "a?b=c&d", "ünïcödé", "データ", "😀", "it's"),
    *('say "x"', "back\\slash", "s3:x.adb", "c:d", "-r", "[x]", "*", "~", "$HOME", "{a}", "a;b", "...", "a ", "a."),
    *("e\u0301", "`x`", "_versions", "x" * 200),
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_path_of_odd_characters_is_the_path_of_the_table(tmp_path, name):
    place = tmp_path / "place"
    place.mkdir()
    made = ad.Database.create(place / name, rows(), keys=["k", "site"], values=["y", "label"], id="number")
    made.append(rows(number=[9, 10]))
    made.upsert(rows(number=[9, 11]))
    made.delete("number = 7")
    made.save_score("learned", ad.Dot())
    made.tag("a")
    made.compact()
    found = pickle.loads(pickle.dumps(ad.Database.open(place / name)))
    assert found.to_pandas()["number"].tolist() == [8, 9, 10, 11] and found.verify() == []
    assert found.restore("a") > 0 and found.scores == ("learned",)
    assert os.listdir(place) == [name] and os.listdir(tmp_path) == ["place"]
    assert isinstance(found.path, str) and os.path.samefile(found.path, place / name)


def test_a_path_through_other_folders_is_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.symlink(tmp_path / "a" / "b", tmp_path / "link")
    for i, path in enumerate(("a/../0.adb", "./1.adb", "2.adb/", "link/../3.adb", "link/4.adb")):
        made: Any = ad.Database.create(path, rows(), keys="k", values="y")
        monkeypatch.chdir(tmp_path / "a")
        made.append(rows(number=[9, 10]))
        monkeypatch.chdir(tmp_path)
        assert len(ad.Database.open(path)) == 4
        place = {"3": tmp_path / "a", "4": tmp_path / "a" / "b"}.get(str(i), tmp_path)
        assert (place / f"{i}.adb" / "_versions").is_dir()
    found = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("_versions"))
    assert found == ["0.adb", "1.adb", "2.adb", "a/3.adb", "a/b/4.adb", "link/4.adb"][: len(found)]


BAD_PATHS = (
    *(
        "s3://bucket/t.adb",
        "gs://bucket/t.adb",
        "az://box/t.adb",
        "file:///tmp/attendb-never",
        "memory://t.adb",
        "s3://",
    ),
    *(
        "http://localhost/t.adb",
        "file:/tmp/attendb-never",
        "~/attendb-never/t.adb",
        "",
        "a\x00b",
        "new\nline.adb",
        "tab\there.adb",
        ".",
        "..",
        "/",
    ),
    *("a/../b/t.adb", "\udcff.adb", "x" * 300, b"t.adb", 5, None, ["t.adb"]),
)


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: ascii(path)[:40])
def test_a_path_that_cannot_be_a_table_makes_no_folder(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert_refused(lambda: ad.Database.create(path, rows(), keys="k", values="y"), tmp_path)
    assert_refused(lambda: ad.Database.open(path), tmp_path)
    assert not os.path.exists("/tmp/attendb-never")


# --- permission -------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Any], Any]] = {
    "append": lambda db: db.append(rows()),
    "upsert": lambda db: db.upsert(rows()),
    "delete": lambda db: db.delete("y = 1"),
    "update": lambda db: db.update({"y": "0"}),
    "add_column": lambda db: db.add_column("z", "y"),
    "compact": lambda db: db.compact(),
    "restore": lambda db: db.restore("first"),
    "tag": lambda db: db.tag("second"),
    "save_score": lambda db: db.save_score("other", ad.Dot()),
    "create": lambda db: ad.Database.create(db.path + "2", rows(), keys="k", values="y"),
}


def assert_can_be_read_only(path: str) -> None:
    db: Any = ad.Database.open(path)
    assert len(db) == 5 and db.lookup({"k": [2.0, 3.0], "site": "b"})["y"] == 1.0
    assert len(db.get([1])) == 1 and db.verify() == [] and len(db.versions()) and db.scores == ("learned",)
    assert db.attend({"k": [[0.0, 1.0]], "site": ["a"]}, values="y", score=ad.Constant(), where="y > 1").value[0] == 3
    for name, write in WRITES.items():
        try:
            write(db)
        except ad.StorageError as error:
            assert "permission" in str(error) and "\n" not in str(error), (name, error)
        else:
            raise AssertionError(f"{name} wrote without permission")
    assert len(ad.Database.open(path)) == 5


def test_a_table_on_a_disk_that_is_read_only_can_be_read(db, tmp_path):
    place = tmp_path / "mounted"
    place.mkdir()
    mounts = (["mount", "--bind", str(tmp_path), str(place)], ["mount", "-o", "remount,ro,bind", str(place)])
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("only root may mount a folder again")
    before = everything_in(db.path)
    try:
        if any(subprocess.run(mount, capture_output=True).returncode for mount in mounts):
            pytest.skip("nothing may be mounted here")
        assert_can_be_read_only(str(place / "t.adb"))
    finally:
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True)
    assert everything_in(db.path) == before


def as_somebody_else(work: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process that may not do everything."""
    import traceback

    *arguments_of_work, pipe = arguments
    try:
        if not os.geteuid():
            os.setgid(65534)
            os.setuid(65534)
        work(*arguments_of_work)
        pipe.send("")
    except BaseException:
        pipe.send(traceback.format_exc())


def assert_cannot_be_opened(path: str) -> None:
    with pytest.raises(ad.StorageError, match="permission"):
        ad.Database.open(path)


@pytest.mark.parametrize("denied", ["writing", "reading", "the folder above", "a data file"])
@pytest.mark.skipif(not hasattr(os, "setuid"), reason="there are no users on this system")
def test_a_table_without_permission_says_so(db, tmp_path, denied):
    folder = Path(db.path)
    for place in [tmp_path, *tmp_path.parents][:3]:
        place.chmod(0o755)
    for place, _, names in os.walk(folder):
        os.chmod(place, 0o555)
        for name in names:
            os.chmod(os.path.join(place, name), 0o444)
    work = assert_can_be_read_only if denied == "writing" else assert_cannot_be_opened
    if denied == "reading":
        folder.chmod(0)
    elif denied == "the folder above":
        tmp_path.chmod(0)
    elif denied == "a data file":
        next((folder / "data").iterdir()).chmod(0)
        work = assert_data_cannot_be_read
    context = faults.fork_server()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=as_somebody_else, args=(work, db.path, theirs))
    child.start()
    try:
        assert ours.poll(faults.LIMIT), "the child hangs"
        assert ours.recv() == ""
    finally:
        child.kill()
        child.join()
        tmp_path.chmod(stat.S_IRWXU)
        for place, _, _ in [(str(folder), 0, 0), *os.walk(folder)]:
            os.chmod(place, 0o755)
    assert len(ad.Database.open(folder)) == 5


def assert_data_cannot_be_read(path: str) -> None:
    with pytest.raises(ad.StorageError, match="permission") as error:
        ad.Database.open(path).to_pandas()
    assert os.path.join(path, "data") in str(error.value)


# --- text of strangers ------------------------------------------------------------------------------------------------

TEXTS = (
    *("load_extension('{}')", "writefile('{}', 'x')", "readfile('/etc/passwd') <> ''", "edit('{}') = ''"),
    *("1; ATTACH DATABASE '{}' AS a", "1); ATTACH DATABASE '{}' AS a; --", "1; DROP TABLE rows", "1; VACUUM INTO '{}'"),
    *("y IN (SELECT 1 FROM sqlite_master)", "1) UNION SELECT 1 --", "EXISTS(SELECT 1 FROM pragma_database_list)"),
    *("__import__('os').system('touch {}')", "y = open('{}')", "`_key` = 1", "_key = 1", "_rowid = 0", "_rowaddr = 0"),
    *("zeroblob(1000000000) = ''", "randomblob(1000000000) = ''", "printf('%1000000000d', 1) = ''", "y = @x", "y = ?"),
    "(WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT count(*) FROM c) > 0",
    *("fts3_tokenizer('simple') = 1", "read_csv('/etc/passwd') = 1", "y = 1 /* {}", "y = 'a", '"/etc/passwd" = y'),
    *("(" * 3000 + "y = 1" + ")" * 3000, "NOT " * 3000 + "y = 1", "\x00", "y = 1\x00", "", " ", "--", "y = '\udcff'"),
)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:40])
@pytest.mark.parametrize("call", ["attend", "delete", "update", "update where", "add_column"])
def test_text_of_a_stranger_runs_nothing(db, tmp_path, text, call):
    text = text.replace("{}", str(tmp_path / "marker"))
    calls: dict[str, Callable[[], Any]] = {
        "attend": lambda: db.attend({"k": [[0.0, 1.0]], "site": ["a"]}, values="y", score=ad.Dot(), where=text),
        "delete": lambda: db.delete(text),
        "update": lambda: db.update({"y": text}),
        "update where": lambda: db.update({"y": "0"}, text),
        "add_column": lambda: db.add_column("z", text),
    }
    assert_refused(calls[call], tmp_path)
    assert len(ad.Database.open(db.path)) == 5


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["y = 1"] * 900),
        "y = 1" + " AND y + 0 = 1" * 900,
        f"number IN ({', '.join(map(str, range(1, 50_000)))}) AND y = 1",
        "- " * 500 + "y = 1",
        "(" * 80 + "y = 1" + ")" * 80,
        "y = 1 -- a comment",
        "y /* a comment */ = 1",
        "label IS NULL AND 'it''s; --' <> label OR y = 1",
    ],
    ids=lambda text: text[:20],
)
def test_long_and_odd_conditions_are_served_or_refused(db, tmp_path, text):
    try:
        assert db._source.matching(text).tolist() == [1]
    except ad.InputError as error:
        assert "\n" not in str(error)


def test_a_column_named_like_a_path_stays_a_column(tmp_path):
    names = {
        "../up": [1.0, 2.0],
        "a.b": [1.0, 2.0],
        "`q`": ["x", "y"],
        "%2E": [3.0, 4.0],
        "_key": [5, 6],
        "it's": [7, 8],
    }
    made: Any = ad.Database.create(tmp_path / "t.adb", names, keys=["../up", "`q`"], values=["a.b", "%2E"])
    assert made.delete('"it\'s" = 8 AND "_key" = 6') == 1
    assert made.update({"a.b": '"a.b" + "%2E"'}, '"../up" = 1') == 1
    assert made.to_pandas().to_dict("list") == {
        "../up": [1.0], "`q`": ["x"], "a.b": [4.0], "%2E": [3.0], "_key": [5], "it's": [7]
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["t.adb"]
