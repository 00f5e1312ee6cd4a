"""The estimators inside scikit-learn: its own checks, pipelines, searches, clones, pickles; and models on disk."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attendb.errors import InputError, KindError, StorageError
from attendb.estimators import AttentionClassifier, AttentionRegressor, deep

KINDS = [AttentionRegressor, AttentionClassifier]


@parametrize_with_checks([kind(similarity) for similarity in ("bandwidth", "linear") for kind in KINDS])
def test_every_check_of_scikit_learn(estimator, check):
    check(estimator)


@parametrize_with_checks([kind("deep") for kind in KINDS])
def test_every_check_of_scikit_learn_of_a_network_that_learns_for_a_few_steps(estimator, check, monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=3, unjudged=3))
    check(estimator)


@parametrize_with_checks([AttentionRegressor(missing="raise", local="linear", max_seconds=0.0)])
def test_every_check_where_missing_cells_are_refused(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def people() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A table with every kind of column, outcomes and classes."""
    random = np.random.default_rng(0)
    n = 90
    table = pd.DataFrame(
        {
            "age": random.uniform(20, 60, n),
            "town": random.choice(["Ulm", "Bonn", "Köln"], n),
            "note": [
                f"{a} {b} {i}" for i, (a, b) in enumerate(random.choice(["red", "green", "house", "car"], (n, 2)))
            ],
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.uniform(0, 900, n), unit="D"),
            "member": random.random(n) < 0.5,
            "kind": pd.Categorical(random.choice([1, 2, 3], n)),
        }
    )
    table.loc[::7, "age"] = np.nan
    table.loc[::5, "town"] = None
    y = table["age"].fillna(30) + 10 * table["member"] + random.normal(size=n)
    return table, y.to_numpy(), np.where(y > 45, "old", "young")


def test_clones_are_not_fitted_and_have_the_same_options(people):
    model = AttentionRegressor("linear", local="linear", n_models=2, random_state=1).fit(people[0], people[1])
    other = clone(model)
    assert other.get_params() == model.get_params() and not hasattr(other, "encoder_")


def test_pickled_models_predict_the_same(people):
    for kind, y in zip(KINDS, people[1:], strict=True):
        model = kind(random_state=0).fit(people[0], y)
        again = pickle.loads(pickle.dumps(model))
        assert (again.predict(people[0]) == model.predict(people[0])).all()


def test_pipelines_searches_and_groups():
    random = np.random.default_rng(0)
    X = random.normal(size=(90, 2))
    y = X[:, 0] ** 2
    pipeline = make_pipeline(StandardScaler(), AttentionRegressor(random_state=0))
    search = GridSearchCV(pipeline, {"attentionregressor__local": ["constant", "linear"]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.7
    scores = cross_val_score(AttentionRegressor(random_state=0), X, y, groups=np.arange(90) // 9, cv=GroupKFold(2))
    assert (scores > 0.5).all()


# on disk


def test_a_saved_network_gives_the_same_numbers_bit_by_bit(people, tmp_path, monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=3, unjudged=3))
    table, y, classes = people
    for kind, outcomes in ((AttentionRegressor, np.column_stack([y, -y])), (AttentionClassifier, classes)):
        model = kind("deep", random_state=0, n_models=3).fit(table, outcomes, groups=np.arange(90) // 2)
        model.save(tmp_path / "m")
        for again in (kind.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))):
            assert (again.predict(table) == model.predict(table)).all()
            pd.testing.assert_frame_equal(again.explain(table[:3], top=60), model.explain(table[:3], top=60))
            if kind is AttentionRegressor:
                assert (again.predict_interval(table) == model.predict_interval(table)).all()
            else:
                assert (again.predict_proba(table) == model.predict_proba(table)).all()


@pytest.mark.parametrize("similarity", ["bandwidth", "linear"])
def test_a_saved_model_predicts_explains_and_appends_the_same(people, tmp_path, similarity):
    table, y, classes = people
    regressor = AttentionRegressor(similarity, local="linear", random_state=0, n_models=2).fit(
        table, y, groups=table["kind"]
    )
    classifier = AttentionClassifier(similarity, random_state=0).fit(table, classes)
    for model, outcomes in ((regressor, y), (classifier, classes)):
        model.save(tmp_path / "model.safetensors")
        again = type(model).load(tmp_path / "model.safetensors")
        assert again.get_params() == model.get_params()
        assert (again.predict(table) == model.predict(table)).all()
        pd.testing.assert_frame_equal(again.explain(table[:3]), model.explain(table[:3]))
        options = {"groups": table["kind"][:4]} if model is regressor else {}
        for one in (model, again):
            one.append(table[:4], outcomes[:4], **options)
        assert (again.predict(table) == model.predict(table)).all()
        assert list(again.feature_names_in_) == list(table.columns) and again.n_features_in_ == 6
    again = AttentionRegressor(similarity, random_state=0).fit(table, y, eval_set=(table[:30], y[:30]))
    again.save(tmp_path / "judged.safetensors")
    found = AttentionRegressor.load(tmp_path / "judged.safetensors")
    assert (found.predict_interval(table) == again.predict_interval(table)).all()
    assert [path.name for path in tmp_path.iterdir()].count("model.safetensors") == 1 == len(list(tmp_path.glob("m*")))


def test_arrays_and_number_classes_are_saved_too(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    model = AttentionClassifier(random_state=np.random.RandomState(0)).fit(X, [0, 0, 0, 1, 1, 1])
    model.save(tmp_path / "m")
    again = AttentionClassifier.load(tmp_path / "m")
    assert again.classes_.dtype.kind == "i" and again.random_state is None
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    assert list(again.explain(X[:1]).columns) == list(model.explain(X[:1]).columns)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    AttentionRegressor().fit(X, X[:, 0]).save(tmp_path / "m")
    with pytest.raises(InputError, match=r"holds an AttentionRegressor: load it by AttentionRegressor\.load"):
        AttentionClassifier.load(tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    for wrong in (b"", b"hello", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "wrong").write_bytes(wrong)
        with pytest.raises(StorageError, match="is no saved model, or damaged"):
            AttentionRegressor.load(tmp_path / "wrong")
    with pytest.raises(StorageError, match="there is no file"):
        AttentionRegressor.load(tmp_path / "nowhere")
    save_file(load_file(tmp_path / "m"), tmp_path / "bare")
    with pytest.raises(StorageError, match="is no saved model, or damaged"):
        AttentionRegressor.load(tmp_path / "bare")
    for place in (tmp_path / "no folder" / "m", tmp_path / "m" / "below a file", tmp_path / ("long" * 100), tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            AttentionRegressor().fit(X, X[:, 0]).save(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "m", "wrong"]


def test_a_process_killed_while_it_saves_leaves_the_old_model(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    AttentionRegressor().fit(X, X[:, 0]).save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    script = f"""
import os, signal
import numpy as np
from attendb.estimators import AttentionRegressor
os.replace = os.fsync = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
X = np.arange(12.0).reshape(6, 2)
AttentionRegressor().fit(X, X[:, 1] ** 2).save({str(tmp_path / "m")!r})
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == -signal.SIGKILL
    assert (tmp_path / "m").read_bytes() == before
    assert (AttentionRegressor.load(tmp_path / "m").predict(X) == AttentionRegressor().fit(X, X[:, 0]).predict(X)).all()


def rewritten(path: Path, change: dict, without: str = "") -> None:
    """The model file with another header, or without some tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["attendb"])
    tensors = {key: x for key, x in load_file(path).items() if not without or without not in key}
    save_file(tensors, path, {"attendb": json.dumps(header | change)})


@pytest.mark.parametrize(
    "change, without, message",
    [
        ({"format": 99}, "", "has a newer format"),
        ({}, "keys", "lacks a part"),
        ({}, "state", "lacks a part"),
        ({"members": [{}]}, "", "lacks a part"),
        ({"members": 3}, "", "lacks a part"),
        ({"class": None}, "", "holds an None"),
        ({"parameters": {"unheard_of": 1}}, "", "lacks a part"),
        ({"own": {}}, "", "lacks a part"),
        ({"encoder": [{"kind": "magic", "name": "x"}]}, "", "encoded as 'magic'"),
    ],
)
def test_a_model_that_lacks_a_part_is_refused(tmp_path, change, without, message):
    X = np.arange(12.0).reshape(6, 2)
    AttentionRegressor().fit(X, X[:, 0]).save(tmp_path / "m")
    rewritten(tmp_path / "m", change, without)
    with pytest.raises((StorageError, InputError), match=message):
        AttentionRegressor.load(tmp_path / "m")


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    model = AttentionRegressor().fit(X, X[:, 0], groups=pd.to_datetime(["2020-01-01"] * 3 + ["2021-01-01"] * 3))
    with pytest.raises(KindError, match="groups holds a"):
        model.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())
