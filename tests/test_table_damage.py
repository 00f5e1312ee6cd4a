"""Tables on disk whose files are damaged, whose disk is full or fails: nothing committed is lost, and errors say what.

Damage is a file that is missing, empty or cut to half: what a machine that loses power leaves, or a bad copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import attendb as ad

ROWS = 50
DAMAGE = {
    "missing": os.remove,
    "empty": lambda path: os.truncate(path, 0),
    "half": lambda path: os.truncate(path, os.path.getsize(path) // 2),
}
DAMAGED = pytest.mark.parametrize("how", DAMAGE)


def rows(count: int, first: int = 0, width: int = 2) -> dict:
    keys = np.random.default_rng(first).standard_normal((count, width)).astype(np.float32)
    return {"k": keys, "y": np.arange(count) + 1.0, "label": ["a"] * count, "number": np.arange(count) + first}


@pytest.fixture
def path(tmp_path) -> str:
    """A table of three changes, the last of which is a deletion."""
    path = str(tmp_path / "t.adb")
    db = ad.Database.create(path, rows(ROWS), keys="k", values=["y", "label"], id="number")
    db.append(rows(2, 100))
    db.tag("before")
    db.delete("number = 3")
    return path


def newest_manifest(path: str) -> str:
    folder = os.path.join(path, "_versions")
    return os.path.join(folder, min(name for name in os.listdir(folder) if name.endswith(".manifest")))


def all_reads(path: str) -> list:
    """Every way to read the table, each through a new handle."""
    key = rows(1)["k"]

    def opened():
        return ad.Database.open(path)

    return [
        len(opened().to_pandas()),
        opened().lookup(key[0])["y"],
        len(opened().get([10, 100])),
        opened().rows([0])["label"].tolist(),
        opened().attend(key, values="y", score=ad.Constant(), where="number <> 3").value.round(3).tolist(),
        opened().attend(key, values="y", score=ad.Constant(), where="number % 50 <> 3").value.round(3).tolist(),
        opened().attend(key, values="y", score=ad.Dot(), top=1).top.positions.tolist(),
    ]


def said_by_reads(path: str) -> list[str]:
    """What reading says where something is damaged: one sentence a way to read that fails."""
    key, said = rows(1)["k"], []
    for read in (
        lambda db: db.to_pandas(),
        lambda db: db.lookup(key[0]),
        lambda db: db.get([10, 100]),
        lambda db: db.rows([0, 50], "label"),
        lambda db: db.attend(key, values="y", score=ad.Constant(), where="number <> 3"),
        lambda db: db.attend(key, values="y", score=ad.Constant(), where="number % 50 <> 3"),
        lambda db: db.attend(key, values="y"),
        lambda db: db.append(rows(1, 200)),
        lambda db: db.upsert(rows(1, 10)),
        lambda db: db.delete("y = 7"),
        lambda db: db.compact(),
    ):
        try:
            read(ad.Database.open(path))
        except ad.StorageError as error:
            said.append(str(error))
    return said


def assert_found_and_repaired(path: str, damaged: str, whole: list) -> None:
    """`verify` names the file and a version; going back to that version puts the table right."""
    db = ad.Database.open(path)
    (found,) = [one for one in db.verify() if one.file == damaged]
    assert found.problem and "restore(" in found.repair
    db.restore(int(found.repair.split("restore(")[1].split(")")[0]))
    assert db.verify() == [] and ad.Database.open(path).verify() == []
    assert all_reads(path) == whole
    assert ad.Database.open(path).append(rows(1, 300)).tolist() == [300]


@pytest.fixture
def whole(path) -> list:
    return all_reads(path)


@DAMAGED
def test_a_damaged_data_file_is_named_and_the_version_before_it_restored(path, whole, how):
    db = ad.Database.open(path)
    before = {file for fragment in db._source.fragments for file, _ in fragment.files}
    db.append(rows(3, 150))
    (new,) = {file for fragment in db._source.fragments for file, _ in fragment.files} - before
    damaged = os.path.join(path, "data", new)
    DAMAGE[how](damaged)
    with pytest.raises(ad.StorageError, match=r"restore|verify") as error:
        ad.Database.open(path).to_pandas()
    assert damaged in str(error.value)
    assert_found_and_repaired(path, damaged, whole)


@DAMAGED
def test_a_data_file_damaged_in_every_version_is_named(path, how):
    damaged = os.path.join(path, "data", ad.Database.open(path)._source.fragments[0].files[0][0])
    DAMAGE[how](damaged)
    for said in said_by_reads(path):
        assert damaged in said and "verify" in said
    (found,) = ad.Database.open(path).verify()
    assert found.file == damaged and "backup" in found.repair


@DAMAGED
def test_a_damaged_list_of_deleted_rows_is_named_and_the_version_before_it_restored(path, how):
    (name,) = os.listdir(os.path.join(path, "_deletions"))
    damaged = os.path.join(path, "_deletions", name)
    DAMAGE[how](damaged)
    with pytest.raises(ad.StorageError, match=r"restore|verify") as error:
        ad.Database.open(path).to_pandas()
    assert damaged in str(error.value)
    (found,) = ad.Database.open(path).verify()
    assert found.file == damaged and "restore(" in found.repair
    ad.Database.open(path).restore("before")
    assert len(ad.Database.open(path).to_pandas()) == ROWS + 2
    assert ad.Database.open(path).verify() == []


@DAMAGED
@pytest.mark.parametrize("which", range(4))
def test_a_damaged_index_is_named_and_can_be_repaired(path, whole, how, which):
    files = sorted(os.path.join(place, x) for place, _, names in os.walk(path + "/_indices") for x in names)
    assert len(files) == 4
    DAMAGE[how](files[which])
    db = ad.Database.open(path)
    (found,) = [one for one in db.verify() if one.file == files[which]]
    assert found.problem and found.repair
    for said in said_by_reads(path):
        assert "verify" in said or "restore" in said
    db = ad.Database.open(path)
    if "restore(" in found.repair:
        db.restore(int(found.repair.split("restore(")[1].split(")")[0]))
    else:
        assert "compact()" in found.repair
        db.compact()
    assert ad.Database.open(path).verify() == []
    ad.Database.open(path).upsert(rows(1, 100))
    ad.Database.open(path).delete("number = 3 OR number >= 200")
    assert all_reads(path)[:4] == whole[:4]


@DAMAGED
def test_a_damaged_newest_manifest_opens_the_version_before_with_a_warning(path, how):
    damaged = newest_manifest(path)
    handle = ad.Database.open(path)
    DAMAGE[how](damaged)
    with pytest.warns(UserWarning, match=r"damaged|missing") as told:
        db = ad.Database.open(path)
    assert damaged in str(told[0].message) and "restore(" in str(told[0].message)
    assert db.version == handle.version - 1 and len(db) == ROWS + 2
    (found,) = db.verify()
    assert found.file == damaged and f"restore({db.version})" in found.repair
    for change in (
        lambda: db.append(rows(1, 200)),
        lambda: db.upsert(rows(1, 200)),
        lambda: db.delete("y = 1"),
        lambda: db.update({"y": "0"}),
        lambda: db.add_column("z", "y"),
        lambda: db.compact(),
        lambda: db.refresh(),
    ):
        with pytest.raises(ad.StorageError, match="restore") as error:
            change()
        assert damaged in str(error.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db.restore(db.version)
        assert len(ad.Database.open(path)) == ROWS + 2 and ad.Database.open(path).verify() == []
        assert ad.Database.open(path).append(rows(1, 200)).tolist() == [200]


def test_a_table_without_any_whole_version_says_so(path):
    for name in os.listdir(os.path.join(path, "_versions")):
        if name.endswith(".manifest"):
            os.truncate(os.path.join(path, "_versions", name), 0)
    with pytest.raises(ad.StorageError, match="has no whole version") as error:
        ad.Database.open(path)
    assert newest_manifest(path) in str(error.value) and "backup" in str(error.value)


def test_files_that_writers_left_do_not_matter(path, whole):
    """A temporary file beside manifests was listed as one once (lance issue 2338)."""
    for folder, name in (
        ("_versions", ".tmp_7.manifest_9a36ef04"),
        ("_versions", "18446744073709551500.manifest#1"),
        ("data", "half-written.lance"),
        ("_transactions", "9-abc.txn"),
        (".", ".nfs0001"),
    ):
        Path(path, folder, name).write_bytes(b"\x00" * 100)
    assert all_reads(path) == whole and ad.Database.open(path).verify() == []


# --- a disk that fails ------------------------------------------------------------------------------------------------

CHANGES = {
    "append": lambda db: db.append(rows(3, 500)),
    "upsert": lambda db: db.upsert(rows(3, 49)),
    "delete": lambda db: db.delete("y > 40"),
    "update": lambda db: db.update({"y": "y + 1"}, "y > 10"),
    "add_column": lambda db: db.add_column("z", "y + 1"),
    "compact": lambda db: db.compact(),
    "restore": lambda db: db.restore("before"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_disk_that_fails_to_sync_leaves_the_old_version_or_the_new(path, monkeypatch, change, fails):
    """At every sync of a change, also that of the manifest, after which the new version can be seen already."""
    real = os.fsync
    for call in range(1, 60):
        before, calls = ad.Database.open(path).to_pandas(), 0

        def failing(file: int, call: int = call) -> None:
            nonlocal calls
            calls += 1
            if calls == call:
                raise fails
            real(file)

        db = ad.Database.open(path)
        monkeypatch.setattr(os, "fsync", failing)
        try:
            CHANGES[change](db)
        except (ad.StorageError, KeyboardInterrupt):
            pass
        finally:
            monkeypatch.setattr(os, "fsync", real)
        found = ad.Database.open(path)
        assert found.verify() == []
        after = found.to_pandas()
        if calls < call:
            break
        assert after.equals(before) or change != "compact"
        found.restore("before")
        found.delete("number = 3")
    assert calls < call, "the change never ends"
    assert call > 1, "the change waits for no disk"


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, left: int) -> Path:
    """Take up all but about so many bytes of the disk."""
    filler = place / "filler"
    with open(filler, "wb") as file:
        state = os.statvfs(place)
        file.write(b"\0" * max(0, state.f_bavail * state.f_bsize - left))
    return filler


def test_a_table_too_large_for_the_disk_is_not_created(small_disk):
    with pytest.raises(ad.StorageError, match="no space is left") as error:
        ad.Database.create(small_disk / "t.adb", rows(100_000, width=16), keys="k", values="y", id="number")
    assert str(small_disk / "t.adb") in str(error.value) and "\n" not in str(error.value)
    assert os.listdir(small_disk) == []
    ad.Database.create(small_disk / "t.adb", rows(100, width=16), keys="k", values="y", id="number")


@pytest.mark.parametrize("change", [*CHANGES, "large append", "large upsert", "save_score", "tag"])
def test_a_full_disk_loses_nothing_that_was_committed(small_disk, change):
    changes = {
        **CHANGES,
        "large append": lambda db: db.append(rows(20_000, 1000)),
        "large upsert": lambda db: db.upsert(rows(20_000, 49)),
        "save_score": lambda db: db.save_score("learned", ad.Gaussian(2.0)),
        "tag": lambda db: db.tag("after"),
    }
    path = str(small_disk / "t.adb")
    db = ad.Database.create(path, rows(ROWS), keys="k", values=["y", "label"], id="number")
    db.append(rows(2, 100))
    db.tag("before")
    db.delete("number = 3")
    full = 0
    for left in (0, 1 << 12, 1 << 13, 3 << 12, 1 << 14, 5 << 12, 3 << 13, 1 << 15):
        before = ad.Database.open(path).to_pandas()
        filler = fill(small_disk, left)
        try:
            changes[change](ad.Database.open(path))
            break
        except ad.StorageError as error:
            full += 1
            assert "no space is left" in str(error) and path in str(error) and "\n" not in str(error)
            found = ad.Database.open(path)
            assert found.to_pandas().equals(before) and found.verify() == [] and found.scores == ()
            all_reads(path)
        finally:
            filler.unlink()
    assert full, "the disk was never full"
    if full == 8:
        changes[change](ad.Database.open(path))
    assert ad.Database.open(path).verify() == []
    assert ad.Database.open(path).append(rows(1, 900_000)).tolist() == [900_000]
