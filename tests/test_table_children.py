"""Tables on disk in children: a forked process raises and names spawn, and never hangs; a spawned one opens again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import attendb as ad

LIMIT = 120  # seconds after which a process hangs


def row(number: int, y: float = 0.0) -> dict:
    return {"x": [float(number)], "y": [y], "number": [number]}


def created(path: Any) -> ad.Database:
    rows = {"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0], "number": [1, 2, 3]}
    return ad.Database.create(path, rows, keys="x", values="y", id="number")


FORKED: dict[str, Callable[[Any], Any]] = {
    "attend": lambda db: db.attend([1.0]),
    "lookup": lambda db: db.lookup(1.0),
    "get": lambda db: db.get([1]),
    "rows": lambda db: db.rows([0]),
    "to_pandas": lambda db: db.to_pandas(),
    "filter": lambda db: db.attend([1.0], where="y > 1"),
    "append": lambda db: db.append(row(9)),
    "upsert": lambda db: db.upsert(row(9)),
    "delete": lambda db: db.delete("x = 1"),
    "delete ids": lambda db: db.delete(ids=[1]),
    "update": lambda db: db.update({"y": "0"}),
    "add_column": lambda db: db.add_column("z", "y"),
    "compact": lambda db: db.compact(),
    "restore": lambda db: db.restore(1),
    "tag": lambda db: db.tag("a"),
    "refresh": lambda db: db.refresh(),
    "versions": lambda db: db.versions(),
    "verify": lambda db: db.verify(),
    "open": lambda db: ad.Database.open(db.path),
    "create": lambda db: created(db.path + "2"),
    "pickle": lambda db: pickle.loads(pickle.dumps(db)),
    "export": lambda db: db.export(db.path + ".csv"),
}


def in_a_fork(work: Callable[[], str]) -> str:
    """What the function gives in a forked child, which is killed when it hangs."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that forking is unsafe is what is tested
        child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, said.encode()[:4000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        said = told.read().decode()
    _, status = os.waitpid(child, 0)
    return said if not status else f"the child hangs or died ({status})"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("held", [False, True], ids=["", "while a thread of the parent is in a change"])
@pytest.mark.parametrize("what", FORKED)
def test_a_forked_child_raises_and_names_spawn(tmp_path, what, held):
    db: Any = created(tmp_path / "t.adb")
    if not hasattr(db, what) and what == "export":
        pytest.skip("tables have no export yet")
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with db._lock:
            inside.set()
            done.wait(LIMIT)

    if held:
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(LIMIT)
    before = sorted(os.listdir(tmp_path))
    try:
        said = in_a_fork(lambda: repr(FORKED[what](db)))
    finally:
        done.set()
    if held:
        thread.join(LIMIT)
    assert said.startswith("InputError: ") and "spawn" in said
    assert sorted(os.listdir(tmp_path)) == before and len(ad.Database.open(db.path)) == 3


class Answers(Dataset):
    """Lookups in a table, one an item."""

    def __init__(self, db: Any):
        self.db = db

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> float:
        return self.db.lookup(i + 1.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore")
def test_forked_workers_of_a_loader_raise_and_name_spawn(tmp_path):
    db = created(tmp_path / "t.adb")
    loader = DataLoader(Answers(db), num_workers=2, multiprocessing_context="fork", timeout=LIMIT)
    with pytest.raises(ad.InputError, match="spawn"):
        list(loader)
    assert next(iter(DataLoader(Answers(db), batch_size=3))).tolist() == [10.0, 20.0, 30.0]


def ask(db: Any) -> tuple[Any, ...]:
    return db.path, db.version, len(db), db.lookup(2.0), db.append(row(50)).tolist() if len(db) == 3 else []


@pytest.mark.slow
def test_a_handle_opens_in_a_spawned_child(tmp_path):
    db = created(tmp_path / "t.adb")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        told = pool.apply_async(ask, (db,)).get(LIMIT)
    assert told == (db.path, db.version, 3, 20.0, [50])
    loader = DataLoader(Answers(db), batch_size=3, num_workers=2, multiprocessing_context="spawn", timeout=LIMIT)
    assert next(iter(loader)).tolist() == [10.0, 20.0, 30.0]


def test_a_pickle_opens_the_table_again(tmp_path):
    db = created(tmp_path / "t.adb")
    pinned = ad.Database.open(tmp_path / "t.adb", version=db.version)
    data, pinned_data = pickle.dumps(db), pickle.dumps(pinned)
    assert len(data) < 1000
    db.append(row(9))
    assert len(pickle.loads(data)) == 4 and len(pickle.loads(pinned_data)) == 3
    (tmp_path / "t.adb").rename(tmp_path / "moved.adb")
    with pytest.raises(ad.InputError, match="no table at"):
        pickle.loads(data)
