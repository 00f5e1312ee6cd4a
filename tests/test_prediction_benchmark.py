"""The benchmark of predictions: rows are cut as it says, its numbers are right, and it goes on where it stopped."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The script as a module; what it sets for libraries that are loaded later is taken back."""
    before, path = dict(os.environ), list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        import prediction
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(before)
    return prediction


@pytest.fixture
def data(tmp_path: Path, bench: ModuleType) -> Path:
    """Small sets of all eight names, with the columns that cut them."""
    random = np.random.default_rng(0)
    for one in bench.SETS:
        frame = pd.DataFrame({"a": np.arange(200), "b": random.normal(size=200), one.value: random.normal(size=200)})
        if one.name == "adult":
            frame[one.value] = np.where(frame.b > 0, ">50K", "<=50K")
            frame["c"] = random.choice(["x", "y"], 200)
        if one.cut.__name__ == "by_column":
            frame["split"] = random.permutation(["train"] * 120 + ["val"] * 30 + ["test"] * 50)
        if one.cut.__name__ == "by_fold":
            frame["fold"] = np.arange(200) % 10
        (tmp_path / one.name).mkdir()
        frame.to_csv(tmp_path / one.name / f"{one.name}.csv", index=False)
    return tmp_path


def test_each_row_is_in_one_part_and_what_cuts_is_no_column(bench, data):
    sizes = {"by_column": (120, 30, 50), "by_fold": (158, 22, 20), "by_seed": (162, 18, 20)}
    for one in bench.SETS:
        parts = one.read(data, seed=3)
        rows = [set(keys["a"]) for keys, _ in parts]
        assert tuple(map(len, rows)) == sizes[one.cut.__name__]
        assert set.union(*rows) == set(range(200))
        for keys, values in parts:
            assert list(keys) == ["a", "b", "c"] if one.name == "adult" else ["a", "b"]
            assert (keys.index == values.index).all()
        assert parts.classes == (one.name == "adult")
    folds = next(one for one in bench.SETS if one.name == "uci_pol").read(data, seed=3)
    assert set(folds.test[0]["a"] % 10) == {0}


def test_a_seed_cuts_only_what_has_no_split_of_its_own(bench, data):
    for one in bench.SETS:
        first, second = (set(one.read(data, seed).test[0]["a"]) for seed in (0, 1))
        assert (first == second) == (one.cut.__name__ != "by_seed"), one.name


def test_numbers_are_errors_in_the_unit_of_the_set_or_shares_of_right_answers(bench):
    sets = {one.name: one for one in bench.SETS}
    truth = pd.Series([1000.0, 5000.0])
    assert sets["diamonds"].number([1000.0, 9000.0], truth) == pytest.approx(4000 / 2**0.5 / 3989.40)
    assert sets["california"].number([1000.0, 5003.0], truth) == pytest.approx(3 / 2**0.5)
    assert sets["adult"].number(np.array(["a", "b", "b"]), pd.Series(["a", "b", "a"])) == pytest.approx(2 / 3)


def test_targets_are_met_or_not(bench):
    for one, number, met in (("uci_pol", 4.57, False), ("power_plant", 3.08, True), ("adult", 0.864, False)):
        assert next(s for s in bench.SETS if s.name == one).one.met(number) == met


@pytest.mark.parametrize("name", ["kNN", "HistGB"])
@pytest.mark.parametrize("one", ["adult", "cpu_act"])
def test_peers_learn_from_train_rows_alone(bench, data, name, one):
    """The values of val and test rows change no prediction."""
    model = next(m for m in bench.MODELS if m.name == name)
    parts = next(s for s in bench.SETS if s.name == one).read(data, seed=0)
    other = parts._replace(
        val=(parts.val[0], parts.val[1].sample(frac=1, random_state=0)), test=(parts.test[0], parts.test[1][::-1])
    )
    first, second = (np.asarray(model.fit(x, 0, 1).predict(parts.test[0])) for x in (parts, other))
    assert len(first) == 50
    assert (first == second).all()


def run(bench: ModuleType, seed: int, **more: object) -> dict:
    about = {"model": "kNN", "set": "adult", "seed": seed, "threads": 1, "number": 0.8 + seed / 10, "commit": "abc"}
    return {**about, "fit": 1.0, "predict": 2.0, "MiB": 300.0, **more}


def test_finished_runs_are_kept_and_a_cut_line_is_passed_over(bench, tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    assert bench.finished(path, 1) == {}
    bench.keep(path, run(bench, 0))
    with path.open("a") as file:
        file.write('{"model": "kNN", "set"')  # stopped while it was written
    bench.keep(path, run(bench, 1))
    bench.keep(path, run(bench, 2, threads=2))
    found = bench.finished(path, 1)
    assert list(found) == [("kNN", "adult", 0), ("kNN", "adult", 1)]
    assert "runs.jsonl:2 is no whole line: its run is made again" in capsys.readouterr().err


def test_several_models_take_the_best_settings_of_a_set(bench, data):
    given = {}

    def learn(parts: object, seed: int, threads: int, **settings: object) -> object:
        given.update(settings)
        return Namespace(predict=lambda keys: np.zeros(len(keys)), interval=None)

    model = bench.Model("best", learn, "", (), tuned=True)
    bench.run_one(model, next(s for s in bench.SETS if s.name == "uci_pol"), 0, Namespace(data=data, threads=1))
    assert given == {"dropout": 0.0, "n_models": 10}
    assert "uci_pol: dropout=0.0" in next(model.protocol for model in bench.MODELS if model.name == "best")


def test_only_runs_that_are_not_there_are_made(bench, tmp_path, data, monkeypatch):
    made = []

    def pretend(key: tuple, options: Namespace) -> dict | None:
        made.append(key)
        return None if key[2] == 2 else run(bench, key[2])

    monkeypatch.setattr(bench, "in_fresh_process", pretend)
    path = tmp_path / "runs.jsonl"
    bench.keep(path, run(bench, 0))
    options = Namespace(
        resume=path, threads=1, seeds=[0, 1, 2], models="kNN", only="adult", busy_is_fine=True, finished=True
    )
    assert [found["seed"] for found in bench.measure(options)[0]] == [0] and not made
    options.finished = False
    runs, failed = bench.measure(options)
    assert made == [("kNN", "adult", 1), ("kNN", "adult", 2)]
    assert (len(runs), failed) == (2, 1)
    bench.measure(options)
    assert made[2:] == [("kNN", "adult", 2)]
    table = bench.tables(runs, options)
    assert "| adult, accuracy | XGBoost .872 | ≥ 0.865; best ≥ 0.872 | 0.8500 ± 0.0707 |" in table
    assert "| adult | 1 / 2 / 300 |" in table


def test_a_folder_without_the_sets_is_said_plainly(bench, tmp_path):
    with pytest.raises(SystemExit, match=r"no measuring data: .*adult\.csv not found; .* --data FOLDER"):
        bench.check_folder(tmp_path, [one for one in bench.SETS if one.name == "adult"])
