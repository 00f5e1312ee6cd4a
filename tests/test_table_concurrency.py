"""Tables on disk under several handles, threads and processes: no row is lost or doubled, and none is torn."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch

import attendb as ad

PATIENCE = 120  # seconds after which a process hangs


def made(path, rows=6, **options):
    x = np.arange(float(rows))
    return ad.Database.create(
        path / "t.adb", {"name": np.arange(rows), "x": x, "y": x * 10}, keys="x", values="y", **options
    )


def run(code: str, *arguments: str, processes: int = 1) -> list[str]:
    """Run Python code in processes at once; what each printed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, *arguments, str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for i in range(processes)
    ]
    out: list[str] = []
    for process in started:
        try:
            printed, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == 0, errors
        out.append(printed)
    return out


APPENDS = """
import sys, attendb as ad
path, times, own = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = ad.Database.open(path)
for i in range(times):
    name = 1000 * (own + 1) + i
    db.append({"name": [name], "x": [float(name)], "y": [1.0]})
"""


@pytest.mark.parametrize(
    ("processes", "times", "id"),
    [
        (3, 10, "name"),
        pytest.param(8, 100, "name", marks=pytest.mark.slow),
        pytest.param(8, 100, None, marks=pytest.mark.slow),
    ],
)
def test_appends_of_many_processes_all_arrive(tmp_path, processes, times, id):
    made(tmp_path, id=id)
    run(APPENDS, str(tmp_path / "t.adb"), str(times), processes=processes)
    db = ad.Database.open(tmp_path / "t.adb")
    frame = db.to_pandas()
    assert len(frame) == 6 + processes * times == len(set(frame["name"])) == len(set(db.ids))
    assert max(frame.index) == len(frame) - 1 and db.verify() == []
    assert db.lookup(1000.0) == 1.0 and db.lookup(1000.0 * processes + times - 1) == 1.0


def test_stale_handles_upsert_one_new_id_once(tmp_path):
    made(tmp_path, id="name")
    one, two = (ad.Database.open(tmp_path / "t.adb") for _ in range(2))
    one.upsert({"name": [77], "x": [70.0], "y": [1.0]})
    two.upsert({"name": [77], "x": [71.0], "y": [2.0]})
    found = two.get([77])
    assert found["y"].tolist() == [2.0] and len(two) == 7
    with pytest.raises(ad.InputError, match="exist already"):
        one.append({"name": [77], "x": [72.0], "y": [3.0]})
    assert len(ad.Database.open(tmp_path / "t.adb")) == 7 and one.refresh() == two.version


def test_stale_handles_upsert_one_new_key_once(tmp_path):
    made(tmp_path)
    one, two = (ad.Database.open(tmp_path / "t.adb") for _ in range(2))
    (position,) = one.upsert({"name": [1], "x": [70.0], "y": [1.0]})
    assert two.upsert({"name": [2], "x": [70.0], "y": [2.0]}).tolist() == [position]
    assert two.lookup(70.0) == 2.0 and len(two) == 7


def test_stale_handles_delete_and_update(tmp_path):
    made(tmp_path)
    one, two, three = (ad.Database.open(tmp_path / "t.adb") for _ in range(3))
    assert one.delete("x < 3") == 3 and two.delete("x < 4") == 1 and three.delete(ids=[0, 1]) == 0
    assert one.update({"y": "y + 1"}) == 2  # of the rows that are left
    assert two.update({"y": "y + 1"}) == 2
    assert ad.Database.open(tmp_path / "t.adb").to_pandas()["y"].tolist() == [42.0, 52.0]


def test_a_column_added_meanwhile_is_no_silent_loss(tmp_path):
    made(tmp_path)
    one, two = (ad.Database.open(tmp_path / "t.adb") for _ in range(2))
    one.add_column("z", "x + 1")
    with pytest.raises(ad.InputError, match="refresh"):
        two.append({"name": [9], "x": [9.0], "y": [9.0]})
    two.refresh()
    two.append({"name": [9], "x": [9.0], "y": [9.0], "z": [1.0]})
    assert two.to_pandas()["z"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0]


def test_threads_of_one_handle_take_turns(tmp_path):
    db, failed = made(tmp_path), []

    def work(own: int) -> None:
        try:
            for i in range(5):
                db.append({"name": [own], "x": [100.0 * own + i], "y": [1.0]})
                assert db.lookup(100.0 * own + i) == 1.0
                assert sum(len(block.positions) for block in db._source.blocks()) >= 6
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failed and len(db) == 26 and len(set(db.ids)) == 26


READS = """
import sys, time, attendb as ad
db, end, looks = ad.Database.open(sys.argv[1], cache_bytes=0, max_age=0.0), time.time() + 4, 0
while time.time() < end:
    frame = db.to_pandas()
    assert (frame["y"] == 10 * frame["x"]).all() and len(frame) >= 6, frame
    looks += 1
print(looks)
"""


def test_readers_see_whole_versions_during_changes_and_compaction(tmp_path):
    db = made(tmp_path)
    reader = threading.Thread(target=lambda: looks.extend(run(READS, str(tmp_path / "t.adb"), processes=2)))
    looks: list[str] = []
    reader.start()
    i = 0
    while reader.is_alive():
        i += 1
        x = np.arange(6.0) + 10 * i
        db.append({"name": [0] * 6, "x": x, "y": 10 * x})
        db.update({"y": "x * 10", "name": "name + 1"}, where="x >= 6")
        db.delete(f"x >= 6 AND x < {10 * i - 20}")
        db.compact()
    reader.join()
    assert len(looks) == 2 and all(int(x) > 3 for x in looks)


def _in_a_fork(work) -> str:
    """What ``work`` says in a forked child, or that it hung."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lance, and Python from 3.12 on, warn that threads do not survive a fork
        child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hung"
        time.sleep(0.01)
    return os.read(reading, 4096).decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_raises_and_names_spawn(tmp_path):
    db = made(tmp_path)
    path = tmp_path / "t.adb"
    for work in (
        lambda: str(db.lookup(1.0)),
        lambda: str(next(iter(db._source.blocks()))),
        lambda: str(db.append({"name": [1], "x": [1.0], "y": [1.0]})),
        lambda: str(db.versions()),
        lambda: str(db.compact()),
        lambda: str(ad.Database.open(path).lookup(1.0)),
        lambda: str(ad.Database.create(path.parent / "u.adb", {"x": [1.0], "y": [1.0]}, keys="x")),
    ):
        said = _in_a_fork(work)
        assert said.startswith("InputError") and "spawn" in said, said
    assert db.lookup(1.0) == 10.0


def _looked_up(db, x, queue):
    queue.put(db.lookup(x))


def test_a_spawned_process_gets_the_table(tmp_path):
    db = made(tmp_path)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_looked_up, args=(db, 2.0, queue))
    process.start()
    assert queue.get(timeout=PATIENCE) == 20.0
    process.join(PATIENCE)


class Rows(torch.utils.data.Dataset):
    def __init__(self, db):
        self.db = db

    def __len__(self):
        return len(self.db)

    def __getitem__(self, i):
        return self.db.lookup(float(i))


@pytest.mark.slow
def test_a_data_loader_of_spawned_workers(tmp_path):
    db = made(tmp_path)
    loader = torch.utils.data.DataLoader(Rows(db), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    assert torch.cat(list(loader)).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]


KILLED = """
import sys, attendb as ad, numpy as np
path, i = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
if sys.argv[3] == "create":
    x = np.arange(3000.0)
    ad.Database.create(path, {"name": np.arange(3000), "x": x, "y": x}, keys="x", values="y")
else:
    db = ad.Database.open(path)
    while True:
        i += 1
        x = np.full(50, float(i)) + np.arange(50) / 100
        db.append({"name": np.full(50, i), "x": x, "y": 10 * x})
        db.upsert({"name": np.full(50, i), "x": x, "y": 10 * x})
        db.update({"y": "10 * x"}, where="x > 6")
        db.delete(f"x >= 6 AND x < {i - 3}")
        if i % 3 == 0:
            db.compact()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
@pytest.mark.slow  # test_table_faults.py has a short run of kills
@pytest.mark.parametrize("rounds", [100])
def test_a_killed_writer_leaves_a_whole_version(tmp_path, rounds):
    made(tmp_path)
    path, delays = tmp_path / "t.adb", np.random.default_rng(0).uniform(0.0, 1.0, rounds)
    for i, delay in enumerate(delays):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", KILLED, str(path), str(1000 * (i + 1)), "change"],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
        db = ad.Database.open(path)
        frame = db.to_pandas()
        assert (np.abs(frame["y"] - 10 * frame["x"]) < 1e-9).all() and db.verify() == []
        counts = frame[frame["x"] >= 6]["name"].value_counts()
        assert set(counts) <= {50}, "a part of an append"
        assert db.append({"name": [1], "x": [0.5], "y": [5.0]}).tolist() == [db.ids.max()]
        assert db.delete("x = 0.5") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [50])
def test_a_killed_create_leaves_a_whole_table_or_none(tmp_path, rounds):
    whole = 0
    for i, delay in enumerate(np.random.default_rng(1).uniform(0.0, 0.6, rounds)):
        path = tmp_path / f"{i}.adb"
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", KILLED, str(path), "0", "create"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
        if path.exists():
            whole += 1
            assert len(ad.Database.open(path)) == 3000
        else:
            ad.Database.create(path, {"x": [1.0], "y": [1.0]}, keys="x")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")], json.dumps(os.listdir(tmp_path))
    assert whole <= rounds
