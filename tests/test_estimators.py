"""Predictions from past cases: what they are, where they came from, how sure they are, and what is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import attendb
from attendb.errors import InputError, KindError, MissingValueError
from attendb.estimators import AttentionClassifier, AttentionRegressor, members
from attendb.estimators.cases import Cases
from attendb.estimators.encoding import Encoder
from attendb.estimators.pooling import Memory, pool
from attendb.scores.distance import Gaussian

SIMILARITIES = ["bandwidth", "linear"]
LOCAL = ["constant", "linear"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def wave(n: int, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """A wave along the first of three columns, a slope along the second; the third tells nothing."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + noise * random.normal(size=n)


@pytest.fixture(scope="module")
def fitted() -> dict[tuple[str, str], AttentionRegressor]:
    X, y = wave(300)
    return {
        (similarity, local): AttentionRegressor(similarity, local=local, random_state=0).fit(X, y)
        for similarity in SIMILARITIES
        for local in LOCAL
    }


def mean_squared_error(model: AttentionRegressor) -> float:
    X, y = wave(500, seed=1, noise=0.0)
    return float(np.mean((model.predict(X) - y) ** 2))


# what is learned


def test_the_estimators_are_reached_by_the_library():
    assert attendb.estimators.AttentionRegressor is AttentionRegressor


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("local", LOCAL)
def test_a_wave_is_learned(fitted, similarity, local):
    assert mean_squared_error(fitted[similarity, local]) < 0.03  # the variance of y is .75


def test_lines_follow_a_slope_better_than_constants(fitted):
    for similarity in SIMILARITIES:
        assert mean_squared_error(fitted[similarity, "linear"]) < mean_squared_error(fitted[similarity, "constant"])


def test_a_column_that_tells_nothing_gets_a_wide_window(fitted):
    h = fitted["bandwidth", "constant"].bandwidths_
    assert h["0"] < 0.5 < 1.0 < h["2"] / h["0"] / 3
    assert list(h) == ["0", "1", "2"]


def test_a_turned_table_is_learned_by_a_map_but_not_by_bandwidths():
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(6, 6)))[0]
    Z, new = random.normal(size=(400, 6)), random.normal(size=(400, 6))
    by_columns, by_map = (
        AttentionRegressor(similarity, random_state=0).fit(Z @ turn, np.sin(2 * Z[:, 0])) for similarity in SIMILARITIES
    )
    error = [np.mean((model.predict(new @ turn) - np.sin(2 * new[:, 0])) ** 2) for model in (by_columns, by_map)]
    assert error[1] < 0.5 * error[0]


def test_the_power_plant_is_predicted_well_below_nearest_neighbours():
    plant = pd.read_csv(Path(attendb.__file__).parent / "data" / "power_plant.csv").sample(2200, random_state=0)
    X, y = plant.drop(columns="output"), plant["output"]
    model = AttentionRegressor("linear", local="linear", random_state=0).fit(X[:1200], y[:1200])
    nearest = make_pipeline(StandardScaler(), KNeighborsRegressor()).fit(X[:1200], y[:1200])
    rmse, of_nearest = (float(np.sqrt(np.mean((one.predict(X[1200:]) - y[1200:]) ** 2))) for one in (model, nearest))
    low, high = model.predict_interval(X[1200:], level=0.9).T
    assert rmse < 0.9 * of_nearest
    assert 0.87 <= float(np.mean((low <= y[1200:]) & (y[1200:] <= high))) <= 0.93


def test_classes_are_learned():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 4))
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    for similarity in SIMILARITIES:
        model = AttentionClassifier(similarity, random_state=0).fit(X[:400], y[:400])
        assert model.score(X[400:], y[400:]) > 0.85
        proba = model.predict_proba(X[400:])
        assert proba.dtype == np.float64 and np.allclose(proba.sum(1), 1.0) and (proba >= 0).all()
        assert list(model.classes_) == ["other", "same"]


def test_the_same_seed_gives_the_same_model_and_touches_no_other_seed():
    X, y = wave(1200)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (AttentionRegressor(random_state=3).fit(X, y).predict(X[:50]) for _ in range(2))
    assert (first == second).all()
    assert torch.equal(state[0], torch.get_rng_state()) and (state[1] == np.random.get_state()[1]).all()


def test_several_models_are_averaged_and_still_explained():
    X, y = wave(1100)
    model = AttentionRegressor(n_models=2, random_state=0, max_seconds=2).fit(X, y)
    told = model.explain(X[:3], top=len(X))
    found = (told["weight"] * told["value"]).groupby(told["query"]).sum()
    assert np.allclose(found, model.predict(X[:3]), atol=1e-9)
    best = model.explain(X[:3], top=4)
    assert np.allclose(best["weight"], told[told["rank"] < 4]["weight"], atol=1e-12)
    assert (best["row"].to_numpy() == told[told["rank"] < 4]["row"].to_numpy()).all()


def test_rows_that_judge_may_be_given():
    X, y = wave(400)
    model = AttentionRegressor(random_state=0).fit(X[:300], y[:300], eval_set=(X[300:], y[300:]))
    assert mean_squared_error(model) < 0.03
    assert len(model.table_) == 300


def test_little_time_still_gives_a_model():
    X, y = wave(1500)
    model = AttentionRegressor("linear", random_state=0, max_seconds=0.0).fit(X, y)
    assert mean_squared_error(model) < 0.2


# where predictions come from


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_local_constant_is_the_sum_of_its_explanation(fitted, similarity):
    X, _ = wave(20, seed=2)
    model = fitted[similarity, "constant"]
    told = model.explain(X, top=300)
    sums = told.groupby("query").apply(
        lambda part: pd.Series({"w": part["weight"].sum(), "y": part["weight"] @ part["value"]})
    )
    assert np.allclose(sums["w"], 1.0, atol=1e-9)
    assert np.allclose(sums["y"], model.predict(X), atol=1e-9, rtol=0)


def test_an_explanation_is_one_question_for_the_best_rows(fitted, monkeypatch):
    model, asked = fitted["bandwidth", "constant"], []
    pool = members.pool

    def counted(*given, **options):
        asked.append((given[3].shape[1], options["top"]))
        return pool(*given, **options)

    monkeypatch.setattr(members, "pool", counted)
    model.explain(np.zeros((50, 3)), top=4)
    assert asked == [(1, 4)], "columns of values that were pooled, rows that were listed"


def test_an_explanation_names_rows_with_their_columns():
    cases = pd.DataFrame({"age": [20.0, 40.0, 60.0, 80.0], "row": ["a", "b", "c", "d"]})
    model = AttentionRegressor(random_state=0).fit(cases, pd.DataFrame({"pay": [1.0, 2.0, 3.0, 4.0]}))
    told = model.explain(cases.iloc[[1]], top=2)
    assert list(told.columns) == ["query", "rank", "row", "weight", "pay", "age", "X: row"]
    assert told["row"][0] == 1 and told["pay"][0] == 2.0 and told["X: row"][0] == "b"
    assert told["weight"].is_monotonic_decreasing and list(told["rank"]) == [0, 1]
    assert len(model.explain(cases, top=99)) == 16


def test_classes_are_explained_by_their_names():
    X = np.arange(8.0)[:, None]
    model = AttentionClassifier(random_state=0).fit(X, list("aaaabbbb"))
    assert set(model.explain([[0.5]], top=2)["value"]) == {"a"}


def test_too_few_or_odd_numbers_of_cases_are_refused(fitted):
    for top in (0, -1, 1.5, True, "5"):
        with pytest.raises(InputError, match="top must be a whole number"):
            fitted["bandwidth", "constant"].explain([[0.0, 0.0, 0.0]], top=top)


# right values of the cases that others met


def exact(X: list, y: list) -> AttentionRegressor:
    """A model whose windows are as narrow as can be."""
    model = AttentionRegressor(random_state=0).fit(np.array(X, dtype=float).reshape(len(X), -1), y)
    model._members = [member.scaled(1e6, None) for member in model._members]
    return model


def test_at_a_training_row_the_equal_rows_answer():
    assert exact([1, 2, 2, 3], [1.0, 2.0, 6.0, 3.0]).predict([[2.0]]) == pytest.approx([4.0], abs=1e-12)
    assert exact([[0, 0], [1, 0], [0, 1], [1, 1]], [1, 0, 0, 0]).predict([[0.0, 0.0]]) == pytest.approx(
        [1.0], abs=1e-12
    )


@pytest.mark.parametrize("far", [1e2, 1e3, 1e5, 1e7, 1e300, -1e300])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_far_from_all_rows_the_nearest_answers(far, similarity):
    X, y = np.linspace(0, 1, 30)[:, None], np.linspace(10, 20, 30)
    found = AttentionRegressor(similarity, random_state=0).fit(X, y).predict([[far]])
    assert found == pytest.approx([20.0 if far > 0 else 10.0], abs=1e-6)


def test_leaving_a_row_out_gives_the_values_worked_out_by_hand():
    X, y = torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[0.0], [1.0], [5.0]]).double()
    found = pool(Gaussian(1.0), X, Memory(X, torch.ones(3).double()), y, own=torch.arange(3)).value
    assert found[:, 0].tolist() == pytest.approx([1.07194484, 0.91212762, 0.92414182], abs=1e-8)
    assert float((found - y).square().mean()) == pytest.approx(5.9231357329, abs=1e-9)


def test_a_row_is_left_out_by_its_place_and_not_by_its_distance():
    X, y = torch.tensor([[0.0], [0.0], [1.0]]).double(), torch.tensor([[2.0], [4.0], [9.0]]).double()
    found = pool(Gaussian(1e-4), X, Memory(X, torch.ones(3).double()), y, own=torch.arange(3)).value
    assert found[:2, 0].tolist() == [4.0, 2.0]


def test_a_row_of_weight_three_leaves_two_copies_behind():
    X, y = torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[0.0], [1.0], [5.0]]).double()
    twice = torch.tensor([0, 0, 0, 1, 2])
    weighted = pool(Gaussian(1.0), X, Memory(X, torch.tensor([3.0, 1.0, 1.0]).double()), y, own=torch.arange(3))
    repeated = pool(Gaussian(1.0), X[twice], Memory(X[twice], torch.ones(5).double()), y[twice], own=torch.arange(5))
    assert torch.allclose(weighted.value, repeated.value[2:], atol=1e-12)
    assert torch.allclose(weighted.log_normalizer, repeated.log_normalizer[2:], atol=1e-12)


def test_a_row_alone_with_its_copies_is_answered_by_them():
    X, y = torch.zeros(1, 1).double(), torch.full((1, 1), 7.0).double()
    found = pool(Gaussian(1.0), X, Memory(X, torch.tensor([3.0]).double()), y, own=torch.arange(1))
    assert found.value.item() == 7.0 and not bool(found.empty)
    nobody = pool(Gaussian(1.0), X, Memory(X, torch.ones(1).double()), y, own=torch.arange(1))
    assert bool(nobody.empty) and nobody.log_normalizer.item() == -math.inf


def test_rows_of_a_group_do_not_vote_for_each_other():
    X, y = torch.arange(4.0)[:, None].double(), torch.tensor([[1.0], [2.0], [30.0], [40.0]]).double()
    memory = Memory(X, torch.ones(4).double(), torch.tensor([0, 0, 1, 1]))
    found = pool(Gaussian(100.0), X, memory, y, own=torch.arange(4)).value[:, 0]
    assert found.tolist() == pytest.approx([35.0, 35.0, 1.5, 1.5], abs=0.01)


def test_groups_are_left_out_while_learning():
    """Four copies of each place: without groups the copies answer for each other, and the window is too narrow."""
    random = np.random.default_rng(0)
    place = np.repeat(np.arange(60), 4)
    X = random.normal(size=(60, 1))[place] + 1e-3 * random.normal(size=(240, 1))
    y = np.sin(X[:, 0]) + 0.5 * random.normal(size=60)[place]
    new = np.linspace(-1.5, 1.5, 200)[:, None]
    alone, together = (
        AttentionRegressor(random_state=0).fit(X, y, groups=groups) for groups in (None, [f"place {i}" for i in place])
    )
    error = [np.mean((model.predict(new) - np.sin(new[:, 0])) ** 2) for model in (alone, together)]
    assert error[1] < 0.5 * error[0]
    width = [np.ptp(model.predict_interval(new), axis=1).mean() for model in (alone, together)]
    assert width[1] > 1.3 * width[0]


def test_integer_outcomes_give_decimal_predictions():
    model = AttentionRegressor(random_state=0).fit([[0], [1], [2]], np.array([0, 1, 2]))
    found = model.predict([[0.5], [1.5]])
    assert found.dtype == np.float64 and ((found > 0) & (found < 2)).all()
    assert found[1] + found[0] == pytest.approx(2.0)


def test_units_do_not_matter():
    X, y = wave(200)
    first = AttentionRegressor("linear", random_state=0).fit(X, y)
    other = AttentionRegressor("linear", random_state=0).fit(X * [1000, 0.001, 1], y * 1e6 + 1e9)
    assert np.allclose(other.predict(X[:20] * [1000, 0.001, 1]), first.predict(X[:20]) * 1e6 + 1e9, rtol=1e-5)


# tables with little in them


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("local", LOCAL)
class TestSmall:
    def test_one_row_is_always_answered(self, similarity, local):
        model = AttentionRegressor(similarity, local=local).fit([[1.0, 2.0]], [7.0])
        assert model.predict([[1.0, 2.0], [9.0, -9.0]]).tolist() == [7.0, 7.0]
        assert model.explain([[0.0, 0.0]])["weight"].tolist() == [1.0]

    def test_two_rows(self, similarity, local):
        model = AttentionRegressor(similarity, local=local).fit([[0.0], [1.0]], [1.0, 3.0])
        assert model.predict([[0.5]]) == pytest.approx([2.0]) and np.isfinite(model.predict([[1e9]])).all()

    def test_a_constant_outcome_is_predicted_exactly(self, similarity, local):
        X, _ = wave(40)
        model = AttentionRegressor(similarity, local=local, random_state=0).fit(X, np.full(40, 0.1))
        assert (model.predict(X * 100) == 0.1).all()
        assert (model.predict_interval(X[:2]) == 0.1).all()

    def test_a_constant_column_has_no_weight(self, similarity, local):
        X, y = wave(80)
        plain = AttentionRegressor(similarity, local=local, random_state=0).fit(X, y)
        beside = AttentionRegressor(similarity, local=local, random_state=0).fit(
            np.column_stack([X, np.full(80, 3.3)]), y
        )
        assert np.allclose(plain.predict(X), beside.predict(np.column_stack([X, np.linspace(-1e9, 1e9, 80)])))

    def test_only_constant_columns_give_the_mean(self, similarity, local):
        model = AttentionRegressor(similarity, local=local, random_state=0).fit(np.ones((5, 2)), [1.0, 1, 1, 1, 2])
        assert model.predict([[1.0, 1.0], [5.0, 5.0]]) == pytest.approx([1.2, 1.2])

    def test_duplicate_rows_share_their_weight(self, similarity, local):
        X = np.repeat(np.arange(10.0), 3)[:, None]
        y = np.tile([0.0, 1.0, 2.0], 10)
        model = AttentionRegressor(similarity, local=local, random_state=0).fit(X, y)
        assert model.predict(X) == pytest.approx(np.ones(30), abs=1e-9)

    def test_no_rows_are_answered_by_none(self, fitted, similarity, local):
        model = fitted[similarity, local]
        assert model.predict(np.zeros((0, 3))).shape == (0,)
        assert model.predict_interval(np.zeros((0, 3))).shape == (0, 2)
        assert len(model.explain(np.zeros((0, 3)))) == 0


def test_no_cases_are_refused():
    for X in (np.zeros((0, 2)), pd.DataFrame({"a": []})):
        with pytest.raises(ValueError, match=r"0 (rows|sample)"):
            AttentionRegressor().fit(X, [])


def test_one_class_is_always_answered():
    model = AttentionClassifier().fit([[0.0], [1.0], [2.0]], ["x", "x", "x"])
    assert model.predict([[5.0]]).tolist() == ["x"] and model.predict_proba([[5.0]]).tolist() == [[1.0]]


# weights


def test_a_weight_of_two_is_the_row_twice_and_of_zero_no_row():
    X, y = wave(60)
    w = np.random.default_rng(0).integers(0, 3, 60)
    weighted = AttentionRegressor("linear", local="linear", random_state=0).fit(X, y, sample_weight=w)
    repeated = AttentionRegressor("linear", local="linear", random_state=0).fit(X.repeat(w, 0), y.repeat(w))
    assert np.allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)
    assert np.allclose(weighted.predict_interval(X), repeated.predict_interval(X), rtol=1e-9)
    told = weighted.explain(X[:5], top=60)
    assert (w[told["row"]] > 0).all()


def test_a_class_of_weight_zero_is_none():
    model = AttentionClassifier().fit([[0.0], [1.0], [2.0]], ["a", "b", "c"], sample_weight=[1, 1, 0])
    assert list(model.classes_) == ["a", "b"] and model.predict([[2.0]]).tolist() == ["b"]


@pytest.mark.parametrize("weights, message", [([1, -1], "≥ 0, got -1 for row 1"), ([0, 0], "all rows weigh 0")])
def test_odd_weights_are_refused(weights, message):
    with pytest.raises(InputError, match=message):
        AttentionRegressor().fit([[0.0], [1.0]], [0.0, 1.0], sample_weight=weights)


# several outcomes


def test_several_outcomes_are_predicted_together():
    X, y = wave(150)
    Y = pd.DataFrame({"wave": y, "twice": 2 * y + 5, "flat": 3.0})
    model = AttentionRegressor(random_state=0).fit(X, Y)
    found = model.predict(X[:7])
    assert found.shape == (7, 3) and np.allclose(found[:, 1], 2 * found[:, 0] + 5) and (found[:, 2] == 3.0).all()
    assert model.predict_interval(X[:7]).shape == (7, 3, 2)
    assert list(model.explain(X[:1], top=1).columns[4:7]) == ["wave", "twice", "flat"]


# intervals


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_nine_of_ten_new_cases_lie_in_the_interval(similarity):
    random = np.random.default_rng(0)
    X = random.uniform(-2, 2, size=(3000, 2))
    y = np.sin(2 * X[:, 0]) + (0.1 + 0.3 * (X[:, 1] > 0)) * random.standard_t(5, size=3000)  # noise of two sizes
    model = AttentionRegressor(similarity, random_state=0).fit(X[:1000], y[:1000])
    low, high = model.predict_interval(X[1000:], level=0.9).T
    inside = (low <= y[1000:]) & (y[1000:] <= high)
    assert 0.87 <= inside.mean() <= 0.93
    noisy = X[1000:, 1] > 0
    assert (high - low)[noisy].mean() > 1.3 * (high - low)[~noisy].mean()
    assert 0.83 <= inside[noisy].mean() <= inside[~noisy].mean()


def test_wider_intervals_hold_more(fitted):
    X, _ = wave(10)
    narrow, wide = (fitted["bandwidth", "linear"].predict_interval(X, level=level) for level in (0.5, 0.95))
    assert (wide[:, 0] < narrow[:, 0]).all() and (narrow[:, 1] < wide[:, 1]).all()


def test_too_few_cases_give_an_infinite_interval():
    model = AttentionRegressor(random_state=0).fit(np.arange(6.0)[:, None], np.arange(6.0))
    assert np.isinf(model.predict_interval([[2.0]], level=0.9)).all()
    assert np.isfinite(model.predict_interval([[2.0]], level=0.5)).all()


@pytest.mark.parametrize("level", [0, 1, -0.5, 1.5, "0.9", True, math.nan])
def test_odd_levels_are_refused(fitted, level):
    with pytest.raises(InputError, match="level must be a number between 0 and 1"):
        fitted["bandwidth", "constant"].predict_interval([[0.0, 0.0, 0.0]], level=level)


# more rows


def test_appended_rows_vote_without_learning_anew():
    X, y = wave(200)
    model = AttentionRegressor(random_state=0).fit(X, y)
    learned = model._members[0].similarity.log_inverse.clone()
    before = model.predict_interval([[9.0, 9.0, 9.0]])
    model.append([[9.0, 9.0, 9.0]] * 3, [50.0, 51.0, 52.0])
    assert torch.equal(learned, model._members[0].similarity.log_inverse)
    assert model.predict([[9.0, 9.0, 9.0]]) == pytest.approx([51.0], abs=0.1)
    assert model.explain([[9.0, 9.0, 9.0]], top=3)["row"].tolist() == [200, 201, 202]
    assert (model.predict_interval([[9.0, 9.0, 9.0]]) != before).all()


def test_appended_rows_are_checked():
    X, y = wave(30)
    model = AttentionRegressor(random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="2 features"):
        model.append([[1.0, 2.0]], [3.0])
    with pytest.raises(MissingValueError, match="y has 1 missing number"):
        model.append([[1.0, 2.0, 3.0]], [math.nan])
    with pytest.raises(InputError, match="y has 2 columns but had 1"):
        model.append([[1.0, 2.0, 3.0]], [[1.0, 2.0]])
    with pytest.raises(InputError, match="groups must be given to append where"):
        model.append([[1.0, 2.0, 3.0]], [1.0], groups=["a"])
    assert len(model.table_) == 30 and len(model._members[0].targets) == 30
    classes = AttentionClassifier().fit(X, y > 0)
    with pytest.raises(InputError, match="holds the class 'maybe', which fit has not seen"):
        classes.append([[1.0, 2.0, 3.0]], ["maybe"])


# what is refused


def test_missing_outcomes_are_refused_with_their_count_and_column():
    X = np.arange(3.0)[:, None]
    with pytest.raises(MissingValueError, match=r"y has 1 missing number \(row 1\): drop the rows"):
        AttentionRegressor().fit(X, [0.0, math.nan, 1.0])
    with pytest.raises(InputError, match=r"column 'b' of y has 2 infinite numbers \(rows 0, 2\)"):
        AttentionRegressor().fit(X, pd.DataFrame({"a": [0.0, 1, 2], "b": [math.inf, 1, -math.inf]}))
    with pytest.raises(MissingValueError, match=r"y has 2 missing classes \(first: row 0\)"):
        AttentionClassifier().fit(X, np.array([None, "a", None], dtype=object))


def test_infinite_numbers_are_refused_with_their_count_and_column():
    cases = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, math.inf, -math.inf]})
    with pytest.raises(InputError, match=r"X has 2 infinite numbers in column 'b' \(first: row 1\)"):
        AttentionRegressor().fit(cases, [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"similarity": "magic"}, "similarity is 'magic': choose one of 'bandwidth', 'linear'"),
        ({"similarity": 3}, "similarity is 3: choose"),
        ({"local": "cubic"}, "local is 'cubic': choose one of 'constant', 'linear'"),
        ({"missing": "drop"}, "missing is 'drop'"),
        ({"loss": "absolute"}, "loss is 'absolute': choose one of 'squared_error', 'huber'"),
        ({"n_models": 0}, "n_models must be a whole number ≥ 1, got 0"),
        ({"max_seconds": -1}, "max_seconds must be between 0 and inf, got -1"),
        ({"max_seconds": "10"}, "max_seconds must be a number, got '10'"),
        ({"dropout": 1}, "dropout must be between 0 and 0.9, got 1"),
        ({"validation_fraction": 0.9}, "validation_fraction must be between 0 and 0.5, got 0.9"),
        ({"device": "abacus"}, "device is 'abacus', which torch does not know"),
    ],
)
def test_odd_options_are_refused(options, message):
    with pytest.raises((InputError, KindError), match=message):
        AttentionRegressor(**options).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize(
    "eval_set, message",
    [
        (5, r"eval_set must be a pair \(X, y\), got int"),
        ((np.zeros((0, 1)), []), "eval_set has 0 rows"),
        (([[math.inf]], [1.0]), "X has 1 infinite number"),
        (([[1.0]], [math.nan]), "y has 1 missing number"),
    ],
)
def test_odd_rows_that_judge_are_refused(eval_set, message):
    with pytest.raises((InputError, KindError), match=message):
        AttentionRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0], eval_set=eval_set)


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1e9, 1e300])
def test_outcomes_of_any_size_are_predicted(size):
    model = AttentionRegressor(random_state=0).fit(np.arange(8.0)[:, None], np.arange(8.0) * size)
    assert model.predict([[3.5]]) / size == pytest.approx([3.5])
    with pytest.raises(InputError, match="y holds numbers so far apart"):
        AttentionRegressor().fit([[0.0], [1.0]], [1e308, -1e308])


def test_one_group_alone_is_predicted_but_has_no_interval():
    model = AttentionRegressor().fit(np.arange(8.0)[:, None], np.arange(8.0), groups=["a"] * 8)
    assert model.predict([[3.5]]) == pytest.approx([3.5])
    assert model.predict_interval([[3.5]]).tolist() == [[-math.inf, math.inf]]


@pytest.mark.parametrize(
    "groups, message",
    [([1, 2], r"groups has shape \(2,\) but X has 3 rows"), (["a", None, "b"], r"no name in 1 rows \(first: row 1\)")],
)
def test_odd_groups_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        AttentionRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0], groups=groups)


def test_what_the_caller_writes_into_the_array_does_not_change_the_cases():
    X, y = wave(30)
    model = AttentionRegressor(random_state=0).fit(X, y)
    before = model.explain(X[:1])
    X[:] = 0.0
    y[:] = 0.0
    assert model.table_.to_numpy().any() and (model.explain(model.table_[:1].to_numpy()) == before).all(axis=None)


def test_text_outcomes_belong_to_the_classifier():
    with pytest.raises(KindError, match="use AttentionClassifier"):
        AttentionRegressor().fit([[0.0], [1.0]], ["a", "b"])


def test_nothing_warns_while_learning_and_predicting():
    X, y = wave(1100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AttentionRegressor("linear", local="linear", random_state=0, max_seconds=1).fit(X, y)
        model.predict_interval(X[:5]), model.explain(X[:5])


# the parts


def test_equal_rows_are_one_case_of_a_greater_weight_in_one_order():
    table = pd.DataFrame({"x": [3.0, 1.0, 3.0, np.nan, np.nan, 2.0], "c": list("aabbba")})
    rows = Encoder.of(table).encode(table)
    y = torch.tensor([[1.0], [1.0], [2.0], [5.0], [5.0], [0.0]]).double()
    cases, which = Cases(rows, y, torch.tensor([1.0, 2.0, 1.0, 1.0, 0.5, 0.0]).double(), None, False).distinct()
    assert cases.weights.tolist() == [2.0, 1.0, 1.0, 1.5]
    assert which.tolist() == [1, 0, 2, 3, 3, -1]
    order = torch.tensor([5, 4, 3, 2, 1, 0])
    other, _ = Cases(rows.take(order), y[order], torch.tensor([0.0, 0.5, 1, 1, 2, 1]).double(), None, False).distinct()
    assert torch.equal(other.rows.numbers.nan_to_num(-1), cases.rows.numbers.nan_to_num(-1))
    assert torch.equal(other.targets, cases.targets) and torch.equal(other.weights, cases.weights)


def test_judges_are_whole_groups():
    rows = Encoder.of(pd.DataFrame({"x": np.arange(2000.0)})).encode(pd.DataFrame({"x": np.arange(2000.0)}))
    groups = torch.arange(2000) // 20
    cases = Cases(rows, torch.zeros(2000, 1).double(), torch.ones(2000).double(), groups, False)
    held = cases.judges(0.1, seed=0)
    assert held is not None and 100 <= int(held.sum()) <= 200
    assert set(groups[held].tolist()).isdisjoint(groups[~held].tolist())
    assert cases.judges(0.01, seed=0) is None


def test_groups_too_large_to_judge_leave_it_to_the_others():
    table = pd.DataFrame({"x": np.arange(1400.0)})
    rows, one = Encoder.of(table).encode(table), torch.ones(1400).double()
    groups = torch.cat([torch.zeros(900), 1 + torch.arange(500) // 5]).long()
    for seed in range(20):
        held = Cases(rows, torch.zeros(1400, 1).double(), one, groups, False).judges(0.1, seed)
        assert held is not None and 130 <= int(held.sum()) <= 140 and not held[:900].any()


def test_where_every_group_is_large_one_judges_if_that_leaves_enough_to_learn_from():
    def held(*sizes: int) -> torch.Tensor | None:
        m = sum(sizes)
        table = pd.DataFrame({"x": np.arange(float(m))})
        groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        rows, one = Encoder.of(table).encode(table), torch.ones(m).double()
        return Cases(rows, torch.zeros(m, 1).double(), one, groups, False).judges(0.1, 0, needed=True)

    judging = held(80, 70, 90)
    assert judging is not None and judging.nonzero()[:, 0].tolist() == list(range(80, 150))
    assert held(200) is None


def test_a_similarity_without_lines_refuses_them():
    with pytest.raises(InputError, match="similarity='deep' has no local lines: use local='constant'"):
        AttentionRegressor("deep", local="linear").fit([[0.0], [1.0]], [0.0, 1.0])


def test_numbers_for_a_classifier_name_the_estimator_of_numbers():
    with pytest.raises(InputError, match=r"^Unknown label type: .+ For numbers, AttentionRegressor is the"):
        AttentionClassifier().fit([[1.0], [2.0], [3.0]], [0.1, 0.25, 0.7])
