"""Tables on disk under faults: a killed process leaves the old version or the new one, whole.

`faults` holds the harness. The slow tests kill 500 times at random, and once at every step of every change.
"""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import faults
import numpy as np
import pytest
from faults import KINDS, Change, Model, draw, first_model, run, state_of

import attendb as ad

NAMED = pytest.mark.parametrize("named", [False, True], ids=["positions", "ids"])
MOST_STEPS = 200  # of one change


def survived(path: str, before: Model, after: Model, rng: np.random.Generator) -> Model:
    """Which of the two versions the table is, checked in all that can be asked of it."""
    state = state_of(path)
    found = after if state == after.state else before
    assert state == found.state, f"a mix: {differences(state, before)} to the old version, {differences(state, after)}"
    faults.check_answers(path, found, after if found is before else before, rng)
    return found


def differences(state: dict, model: Model) -> str:
    rows, own = state["rows"], model.state
    wrong = [p for p in sorted({*rows, *model.rows}) if rows.get(p) != model.rows.get(p)]
    parts = [f"{name} {state[name]} for {own[name]}" for name in state if name != "rows" and state[name] != own[name]]
    return f"{len(wrong)} rows differ ({[(p, rows.get(p), model.rows.get(p)) for p in wrong[:3]]}), {parts}"


def killed_at_random(folder: Path, named: bool, kills: int) -> None:
    """Kill until so many kills fell inside a change; one that fell between two changes must leave a table too."""
    rng = np.random.default_rng(kills + named)
    path = str(folder / "t.adb")
    model = first_model(named, rng)
    faults.create(path, list(model.rows.values()))
    inside = tried = 0
    while inside < kills:
        assert tried < 20 * kills, "most kills fall between changes: the test tests little"
        changes: list[Change] = []
        models = [model]
        for kind in rng.permutation(KINDS):
            change, model = draw(models[-1], rng, str(kind))
            changes.append(change)
            models.append(model)
        begun = int(rng.integers(1, len(changes) + 1))
        end = run(path, changes, begun=begun, after=float(rng.uniform(0, 0.03)))
        tried, inside = tried + 1, inside + end.inside
        model = survived(path, models[end.ended], models[min(end.ended + 1, len(changes))], rng)
    assert_nothing_is_left_beside(path)


@NAMED
def test_a_process_killed_at_random_leaves_the_old_version_or_the_new(tmp_path, named):
    killed_at_random(tmp_path, named, kills=5)


@pytest.mark.slow
@NAMED
def test_250_processes_killed_at_random_leave_the_old_version_or_the_new(tmp_path, named):
    killed_at_random(tmp_path, named, kills=250)


def stopped_at_steps(folder: Path, named: bool, kind: str, steps: range) -> None:
    """Stop a change of this kind at each of these steps, and go on from what is left."""
    rng = np.random.default_rng(KINDS.index(kind))
    path = str(folder / "t.adb")
    model = first_model(named, rng)
    faults.create(path, list(model.rows.values()))
    for first in ("tag", "append", "append", "delete"):
        change, model = draw(model, rng, first)
        faults.make(ad.Database.open(path), change)
    old = new = 0
    for step in steps:
        change, after = draw(model, rng, kind, most=MOST_STEPS)
        end = run(path, [change], step=step)
        found = survived(path, model, after, rng)
        old, new = old + (found is model), new + (found is after)
        model = found
        if not end.killed:
            assert found is after
            break
    else:
        assert steps.stop < MOST_STEPS, "the change never ends"
    assert old or kind == "compact", "no step came before the commit"
    assert new, "no step came after the commit"


@pytest.mark.slow
@NAMED
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_every_step_of_a_change(tmp_path, named, kind):
    stopped_at_steps(tmp_path, named, kind, range(1, MOST_STEPS))


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_stopped_at_some_steps_of_a_change(tmp_path, kind):
    stopped_at_steps(tmp_path, kind == "append", kind, range(2, 40, 11))


def assert_nothing_is_left_beside(path: str) -> None:
    """What killed processes left behind goes when old versions do, at the latest a week later."""
    for place, _, names in os.walk(path):
        for name in names:
            long_ago = os.stat(os.path.join(place, name)).st_mtime - 30 * 86400
            os.utime(os.path.join(place, name), (long_ago, long_ago))
    db = ad.Database.open(path)
    rows = len(db)
    db.compact(keep=timedelta(0))
    used: set[str] = set()
    for version in ad.Database.open(path).versions().index:  # the newest and those with tags
        kept = ad.Database.open(path, version=version)
        used |= {file for fragment in kept._source.fragments for file, _ in fragment.files}
    assert len(ad.Database.open(path)) == rows
    assert set(os.listdir(os.path.join(path, "data"))) == used


@NAMED
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "upsert", "compact"])
def test_killed_in_the_middle_of_a_file(tmp_path, named, kind):
    """The process dies where a file grows beyond a size: data, indexes, transactions and manifests alike."""
    rng = np.random.default_rng(3)
    path = str(tmp_path / "t.adb")
    model = first_model(named, rng)
    faults.create(path, list(model.rows.values()))
    change, model = draw(model, rng, "append")
    faults.make(ad.Database.open(path), change)
    old = 0
    for size in (0, 1, 100, 700, 1500, 3000, 5000, 1 << 20):
        change, after = draw(model, rng, kind)
        end = run(path, [change], size=size)
        found = survived(path, model, after, rng)
        assert end.killed or found is after
        old += end.killed
        model = found
    assert old and not end.killed


def test_a_change_is_on_the_disk_before_it_returns(tmp_path, monkeypatch):
    """Every file that a version names is synced, and the data before the manifest that names it is there."""
    path = str(tmp_path / "t.adb")
    synced: dict[str, int] = {}
    real = os.fsync

    def noted(file: int) -> None:
        place = os.readlink(f"/proc/self/fd/{file}")
        synced[os.path.relpath(place, path)] = manifests_of(path)
        real(file)

    rng = np.random.default_rng(0)
    model = first_model(True, rng)
    rows = list(model.rows.values())
    monkeypatch.setattr(os, "fsync", noted)
    faults.create(path, rows)
    new = "../" + next(place for place in synced if place.startswith("../.t.adb.new-")).split("/")[1]
    assert {os.path.relpath(os.path.join(path, x), path) for x in files_of(path)} <= {
        os.path.relpath(place, new) for place in synced
    }
    assert ".." in synced
    for kind in ("append", "upsert", "delete", "update", "add_column", "append", "compact", "restore"):
        synced.clear()
        before, count = files_of(path), manifests_of(path)
        if kind == "restore":
            ad.Database.open(path).restore(2)
        else:
            change, model = draw(model, rng, kind)
            faults.make(ad.Database.open(path), change)
        made = files_of(path) - before
        assert made <= set(synced), f"{kind} did not sync {made - set(synced)}"
        assert "_versions" in synced
        late = {x for x in made if x.startswith(("data", "_deletions")) and synced[x] > count}
        assert not late or kind == "compact", f"{kind} synced {late} after the manifest was there"


def files_of(path: str) -> set[str]:
    """The files of a table that its versions are read from."""
    wanted = ("data", "_deletions", "_indices", "_versions")
    found = [os.path.relpath(os.path.join(place, x), path) for place, _, names in os.walk(path) for x in names]
    return {x for x in found if x.startswith(wanted) and not x.endswith(".json")}


def manifests_of(path: str) -> int:
    return len(list(Path(path, "_versions").glob("*.manifest")))


# --- creation ---------------------------------------------------------------------------------------------------------


def created_and_stopped(folder: Path, named: bool, **how: float | int) -> bool:
    """Whether a killed creation left a table. A second creation must work where it did not, and clear up."""
    rng = np.random.default_rng(7)
    path = str(folder / "new.adb")
    model = first_model(named, rng, 50)
    rows = list(model.rows.values())
    run(path, [Change("create", {"rows": rows})], **how)
    there = os.path.exists(path)
    if there:
        with pytest.raises(ad.InputError, match="exists already"):
            faults.create(path, rows)
    else:
        faults.create(path, rows)
    assert state_of(path) == model.state
    faults.check_answers(path, model, model, rng)
    shutil.rmtree(path)
    return there


@NAMED
def test_a_killed_creation_leaves_no_table_or_a_whole_one(tmp_path, named):
    found = [created_and_stopped(tmp_path, named, step=step) for step in (1, 9, 10_000)]
    assert True in found and False in found


@pytest.mark.slow
@NAMED
def test_a_creation_stopped_at_every_step_leaves_no_table_or_a_whole_one(tmp_path, named):
    found = [created_and_stopped(tmp_path, named, step=step) for step in range(1, 120, 1)]
    assert found == sorted(found) and True in found and False in found
    faults.create(str(tmp_path / "new.adb"), list(first_model(named, np.random.default_rng(7)).rows.values()))
    assert os.listdir(tmp_path) == ["new.adb"]
