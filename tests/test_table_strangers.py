"""What a stranger wrote (paths, folders, filter text, expressions) runs no code, reads no file and makes none.

And what may not be written or read says so.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import lance
import pyarrow as pa
import pytest
from table_refusing import assert_refused, everything_in, five_rows, rows

import attendb as ad


@pytest.fixture
def db(tmp_path) -> Any:
    return five_rows(tmp_path)


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
    for place in (tmp_path, *tmp_path.parents):  # as far up as they are the test run's own
        if place.stat().st_uid == os.getuid() and not place.stat().st_mode & 0o005:
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


@pytest.mark.parametrize("word", ["OR", "AND"])
def test_conditions_of_many_terms_are_served(db, word):
    """Lance's parser gives up where brackets go 50 deep."""
    text = f" {word} ".join(["y = 1"] * 60)
    assert db._source.matching(text).tolist() == [1]
    assert db._source.filter.pushed_down(text) is not None
    deep = "NOT (NOT (" * 10 + "y = 1" + "))" * 10
    assert db._source.matching(deep).tolist() == [1]
    many = f"number IN ({', '.join(map(str, range(1, 900)))})"
    assert db._source.matching(many).tolist() == [1, 2, 3, 4]
    assert db.delete(" OR ".join(f"y = {i}" for i in range(3, 200))) == 2


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
