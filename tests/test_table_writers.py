"""Tables on disk in several hands: processes, stale handles, readers beside writers.

Every change is made on the newest version, so that any order of handles gives what one handle would have given, or an
error that says why not.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import faults
import lance
import numpy as np
import pytest

import attendb as ad
from attendb.sources import table_writing

LIMIT = 600  # seconds after which a process hangs: eight that import everything at once take a minute or two


def row(number: int, y: float = 0.0, *, named: bool = True) -> dict:
    return {"x": [float(number)], "y": [y], **({"number": [number]} if named else {})}


def created(path: Any, numbers: Any = (1, 2, 3), *, named: bool = True) -> ad.Database:
    rows = {"x": [float(n) for n in numbers], "y": [10.0 * n for n in numbers], "number": list(numbers)}
    if not named:
        del rows["number"]
    return ad.Database.create(path, rows, keys="x", values="y", id="number" if named else None)


def in_processes(method: str, work: Callable[..., Any], *arguments: tuple[Any, ...]) -> list[Any]:
    """What the function gives in a process for each tuple of arguments, all started at once."""
    context: Any = faults.fork_server() if method == "forkserver" else multiprocessing.get_context(method)
    with context.Pool(len(arguments)) as pool:
        return pool.starmap_async(work, arguments, chunksize=1).get(LIMIT)


# --- processes --------------------------------------------------------------------------------------------------------


def append_rows(path: str, named: bool, worker: int, count: int) -> list[tuple[int, int]]:
    db = ad.Database.open(path)
    numbers = range(1000 * (worker + 1), 1000 * (worker + 1) + count)
    return [(number, int(db.append(row(number, named=named))[0])) for number in numbers]


def appended_by_all(path: str, method: str, named: bool, workers: int, count: int) -> None:
    created(path, named=named)
    told = in_processes(method, append_rows, *((path, named, worker, count) for worker in range(workers)))
    db = ad.Database.open(path)
    frame = db.to_pandas()
    assert len(frame) == len(db) == 3 + workers * count
    assert frame.index.is_unique and frame["x"].is_unique
    for number, own in itertools.chain(*told):  # each process was told the id of its own row
        assert db.get([own])["x"].tolist() == [number]
    assert db.verify() == []


@pytest.mark.parametrize("named", [False, True], ids=["positions", "ids"])
def test_processes_that_append_at_once_lose_no_row(tmp_path, named):
    appended_by_all(str(tmp_path / "t.adb"), "forkserver", named, workers=3, count=10)


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True], ids=["positions", "ids"])
def test_eight_processes_of_100_appends_make_800_rows(tmp_path, named):
    appended_by_all(str(tmp_path / "t.adb"), "spawn", named, workers=8, count=100)


def add_one(path: str, count: int) -> None:
    db = ad.Database.open(path)
    for _ in range(count):
        assert db.update({"y": "y + 1"}, "x = 2") == 1


def test_no_update_is_lost(tmp_path):
    path = str(tmp_path / "t.adb")
    created(path)
    in_processes("forkserver", add_one, *((path, 12) for _ in range(3)))
    assert ad.Database.open(path).to_pandas()["y"].tolist() == [10.0, 56.0, 30.0]


def upsert_same(path: str, named: bool, worker: int) -> list[str]:
    db, said = ad.Database.open(path), []
    for i in range(10):
        try:
            db.upsert(row(100 + i % 3, float(worker), named=named))
            if i % 4 == worker:
                db.delete(f"x = {100 + i % 3}")
        except (ad.ConflictError, ad.InputError) as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("named", [False, True], ids=["by key", "by id"])
def test_processes_that_upsert_one_id_leave_one_row(tmp_path, named):
    path = str(tmp_path / "t.adb")
    created(path, named=named)
    in_processes("forkserver", upsert_same, *((path, named, worker) for worker in range(3)))
    frame = ad.Database.open(path).to_pandas()
    assert frame["x"].is_unique and frame.index.is_unique and {1.0, 2.0, 3.0} <= set(frame["x"])
    assert set(frame["y"]) <= {10.0, 20.0, 30.0, 0.0, 1.0, 2.0}


def append_same(path: str) -> int:
    db, own = ad.Database.open(path), 0
    for number in range(50, 60):
        try:
            db.append(row(number))
            own += 1
        except ad.InputError as error:
            assert "exist already" in str(error)
    return own


def test_one_of_the_processes_that_append_one_id_wins(tmp_path):
    path = str(tmp_path / "t.adb")
    created(path)
    told = in_processes("forkserver", append_same, *((path,) for _ in range(3)))
    assert sum(told) == 10
    assert ad.Database.open(path).to_pandas()["number"].tolist() == [1, 2, 3, *range(50, 60)]


def create_same(path: str, worker: int) -> str:
    try:
        rows = {"x": np.full(50, float(worker)), "y": np.zeros(50)}
        return f"made by {int(ad.Database.create(path, rows, keys='x', values='y').to_pandas()['x'][0])}"
    except ad.InputError as error:
        return str(error)


def test_one_of_the_processes_that_create_one_table_wins(tmp_path):
    for i in range(3):
        path = str(tmp_path / f"{i}.adb")
        told = in_processes("forkserver", create_same, *((path, worker) for worker in range(4)))
        (made,) = [said for said in told if said.startswith("made by")]
        others = [said for said in told if said != made]
        assert all("exists already" in said or "by another process" in said for said in others)
        assert set(ad.Database.open(path).to_pandas()["x"]) == {float(made.removeprefix("made by "))}
    assert sorted(os.listdir(tmp_path)) == ["0.adb", "1.adb", "2.adb"]


# --- stale handles ----------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Any, int, float], Any]] = {
    "append": lambda db, number, y: db.append(row(number, y)),
    "upsert": lambda db, number, y: db.upsert(row(number, y)),
    "delete": lambda db, number, y: db.delete(ids=[number]),
    "delete where": lambda db, number, y: db.delete(f"number = {number}"),
    "update": lambda db, number, y: db.update({"y": str(y)}, f"number = {number}"),
}


def expected(rows: dict[int, float], step: str, number: int, y: float) -> tuple[dict[int, float], str | None]:
    """The rows {number: y} after a step on the newest version, or what the error says."""
    if step == "append" and number in rows:
        return rows, "exist already"
    if step == "update" and number not in rows:
        return rows, None
    if step.startswith("delete"):
        return {n: own for n, own in rows.items() if n != number}, None
    return {**rows, number: y}, None


@pytest.mark.parametrize("number", [2, 7], ids=["an id that exists", "a new id"])
@pytest.mark.parametrize("steps", list(itertools.product(STEPS, STEPS)), ids=" then ".join)
def test_stale_handles_give_what_one_handle_would(tmp_path, steps, number):
    created(tmp_path / "t.adb")
    handles = [ad.Database.open(tmp_path / "t.adb") for _ in range(3)]
    rows = {1: 10.0, 2: 20.0, 3: 30.0}
    for i, step in enumerate([*steps, "upsert"]):
        rows, error = expected(rows, step, number, 100.0 + i)
        if error is None:
            STEPS[step](handles[i], number, 100.0 + i)
        else:
            with pytest.raises(ad.InputError, match=error):
                STEPS[step](handles[i], number, 100.0 + i)
        found = ad.Database.open(tmp_path / "t.adb").to_pandas()
        assert dict(zip(found["number"], found["y"], strict=True)) == rows and len(found) == len(rows)
    for handle in handles:
        handle.refresh()
        assert handle.to_pandas().equals(found) and handle.lookup(float(number)) == 102.0


def test_stale_handles_upsert_one_key_without_an_id_column(tmp_path):
    created(tmp_path / "t.adb", named=False)
    first, second, third = (ad.Database.open(tmp_path / "t.adb") for _ in range(3))
    assert first.upsert(row(7, 1.0, named=False)).tolist() == [3]
    assert second.upsert(row(7, 2.0, named=False)).tolist() == [3]
    assert third.delete(keys=[7.0]) == 1
    assert second.upsert(row(7, 3.0, named=False)).tolist() == [4]
    assert ad.Database.open(tmp_path / "t.adb").lookup(7.0) == 3.0


def test_a_stale_handle_changes_a_table_whose_columns_changed(tmp_path):
    created(tmp_path / "t.adb")
    first, second = (ad.Database.open(tmp_path / "t.adb") for _ in range(2))
    first.add_column("z", "y + 1")
    before = first.to_pandas()
    for change in (lambda: second.append(row(9)), lambda: second.upsert(row(2))):
        try:
            change()
        except ad.AttendbError as error:
            assert "refresh()" in str(error)
    second.delete("number = 1")
    after = ad.Database.open(tmp_path / "t.adb").to_pandas()
    kept = after[after["number"] == 3]
    assert kept.equals(before[before["number"] == 3])
    with pytest.raises(ad.InputError, match="already"):
        second.add_column("z", "y + 2")


def test_another_program_that_writes_in_between_is_seen(tmp_path, monkeypatch):
    """Its commit falls between our look at the newest version and our commit: the change is made again after it."""
    path = str(tmp_path / "t.adb")
    db = created(path)
    real, calls = table_writing.commit, 0

    def late(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            lance.dataset(path).delete("number = 2")
        return real(*arguments, **options)

    monkeypatch.setattr(table_writing, "commit", late)
    db.upsert(row(2, 99.0))
    assert calls == 2
    assert ad.Database.open(path).to_pandas()[["number", "y"]].to_numpy().tolist() == [[1, 10], [3, 30], [2, 99]]


def test_a_writer_that_stands_still_makes_others_give_up_with_one_sentence(tmp_path, monkeypatch):
    db = created(tmp_path / "t.adb")
    monkeypatch.setattr(table_writing, "LOCK_WAIT", 0.2)
    with table_writing.locked(db.path):
        for step in STEPS.values():
            with pytest.raises(ad.ConflictError, match="try again"):
                step(db, 9, 1.0)
        assert db.lookup(2.0) == 20.0  # readers do not wait
    db.append(row(9))
    assert db.verify() == [] and len(os.listdir(os.path.join(db.path, "data"))) == 2


def test_an_append_made_again_after_its_process_died_adds_nothing(tmp_path):
    path = str(tmp_path / "t.adb")
    rng = np.random.default_rng(0)
    model = faults.first_model(True, rng)
    faults.create(path, list(model.rows.values()))
    change, after = faults.draw(model, rng, "append")
    for step in range(1, 60):
        end = faults.run(path, [change], step=step)
        if faults.state_of(path) == after.state:
            break
    assert end.killed, "the process was to die between its commit and its answer"
    with pytest.raises(ad.InputError, match="exist already"):
        faults.make(ad.Database.open(path), change)
    faults.make(ad.Database.open(path), faults.Change("upsert", change.options))
    assert faults.state_of(path) == after.state


# --- readers beside writers -------------------------------------------------------------------------------------------


def keep_changing(path: str, until: float) -> int:
    """Changes of pairs of rows whose values add up to 0, and of nothing else."""
    db: Any = ad.Database.open(path)
    rng, number, made = np.random.default_rng(0), 1000, 0
    while time.monotonic() < until or made < 12:
        y = float(rng.integers(1, 100))
        pair = {"x": [float(number), number + 1.0], "y": [y, -y], "number": [number, number + 1]}
        (db.append, db.upsert)[made % 2](pair)
        if made % 3 == 1:
            db.delete(ids=[number - 2, number - 1])
        if made % 5 == 4:
            db.compact()
        if made % 7 == 6:
            db.update({"y": "-y"})
        number += 2
        made += 1
    return made


def keep_asking(path: str, until: float, max_age: float | None) -> int:
    """Every answer is that of one version: what it says of pairs adds up to 0."""
    db: Any = ad.Database.open(path, max_age=max_age)
    asked, query = 0, np.zeros(1)
    while time.monotonic() < until or asked < 12:
        if max_age is None:
            db.refresh()
        frame = db.to_pandas()
        assert frame["y"].sum() == 0 and frame.index.is_unique and frame["number"].is_unique
        for where in (None, "x >= 1000", "number % 2 < 2"):
            answer = db.attend(query, values="y", score=ad.Constant(), where=where, top=3)
            assert abs(float(answer.value[0, 0])) < 1e-12, where
        try:
            found = db.get([int(frame["number"].iloc[-2]), int(frame["number"].iloc[-1])])
            assert found["y"].sum() == 0 and db.lookup(1.0) == -db.lookup(2.0)
        except ad.NotFoundError:
            assert max_age is not None, "a handle lost rows without a refresh"
        except AssertionError:
            if max_age is None:
                raise  # with a maximum age, two questions may see two versions
        asked += 1
    return asked


def test_answers_beside_writers_are_those_of_one_version(tmp_path):
    path, until = str(tmp_path / "t.adb"), time.monotonic() + 3
    ad.Database.create(path, {"x": [1.0, 2.0], "y": [5.0, -5.0], "number": [1, 2]}, keys="x", values="y", id="number")
    context = faults.fork_server()
    with context.Pool(3) as pool:
        jobs = [
            pool.apply_async(keep_changing, (path, until)),
            pool.apply_async(keep_asking, (path, until, None)),
            pool.apply_async(keep_asking, (path, until, 0.0)),
        ]
        assert all(job.get(LIMIT) >= 12 for job in jobs)


def test_threads_share_a_handle(tmp_path):
    path, until = str(tmp_path / "t.adb"), time.monotonic() + 1
    db: Any = ad.Database.create(
        path, {"x": [1.0, 2.0], "y": [5.0, -5.0], "number": [1, 2]}, keys="x", values="y", id="number"
    )
    wrong: list[BaseException] = []

    def work(first: int) -> None:
        try:
            number = first
            while time.monotonic() < until:
                db.append({"x": [number + 0.0, number + 1.0], "y": [3.0, -3.0], "number": [number, number + 1]})
                assert db.to_pandas()["y"].sum() == 0
                assert abs(float(db.attend([0.0], score=ad.Constant()).value[0, 0])) < 1e-12
                number += 2
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert not wrong and db.to_pandas()["number"].is_unique


def test_a_handle_reads_its_version_while_others_change_the_table(tmp_path):
    db = created(tmp_path / "t.adb", range(100))
    before, other = db.to_pandas(), ad.Database.open(tmp_path / "t.adb")
    reader = iter(db._source.blocks(size=10))
    first = next(reader)
    other.delete("x > 20")
    other.append(row(1000))
    other.compact()
    blocks = [first, *reader]
    assert sum(len(block.positions) for block in blocks) == 100
    assert db.to_pandas().equals(before) and db.lookup(50.0) == 500.0 and len(db.get([50])) == 1
    assert db.refresh() == other.version and len(db) == 22


def test_a_handle_at_a_version_that_was_removed_says_so(tmp_path):
    db = created(tmp_path / "t.adb", range(100))
    pinned = ad.Database.open(tmp_path / "t.adb", version=db.version)
    other: Any = ad.Database.open(tmp_path / "t.adb")
    other.delete("x > 20")
    other.compact(timedelta(0))
    for handle, fix in ((db, "refresh()"), (pinned, "open")):
        for ask in (
            lambda handle: handle.to_pandas(),
            lambda handle: handle.attend([1.0]),
            lambda handle: handle.lookup(2.0),
            lambda handle: handle.get([2]),
        ):
            with pytest.raises(ad.StorageError, match=f"version {pinned.version} .*removed") as error:
                ask(handle)
            assert fix in str(error.value)
    assert db.refresh() == other.version and db.to_pandas().equals(other.to_pandas())
