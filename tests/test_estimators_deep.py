"""The deep similarity: what it learns, what it is made of, and that its predictions are sums over rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from attendb.estimators import AttentionClassifier, AttentionRegressor, deep
from attendb.estimators.cases import Cases
from attendb.estimators.deep import BATCH, NEIGHBOURS, Deep
from attendb.estimators.encoding import Rows
from attendb.estimators.explaining import explanations
from attendb.estimators.networks import BINS, Bins
from attendb.estimators.places import Places, alike, pool_places
from attendb.estimators.pooling import Memory, pool_neighbours
from attendb.scores.distance import Euclidean

M = 600


def table(m: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A wave across three numbers, a step by town, a number that is nearly always 0; noise of 0.1."""
    own = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            **{name: own.uniform(-2, 2, m) for name in "abc"},
            "rare": np.where(own.random(m) < 0.06, own.integers(1, 4, m), 0),
            "town": own.choice(["Ulm", "Kiel", "Bonn"], m),
        }
    )
    y = 2 * np.sin(2 * (X.a + X.b + X.c)) + 1.0 * (X.town == "Kiel") + X.rare.map({0: 0.0, 1: 2.0, 2: -2.0, 3: 4.0})
    X.loc[own.random(m) < 0.1, "b"] = np.nan
    return X, (y + 0.1 * own.normal(size=m)).to_numpy()


@pytest.fixture(scope="module")
def fitted() -> AttentionRegressor:
    X, y = table(M, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep, "Recipe", partial(deep.Recipe, checks=24))
        return AttentionRegressor("deep", random_state=0).fit(X, y)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps, for tests that do not ask how well a network learns."""
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=4, unjudged=4))


def error(model: AttentionRegressor, seed: int = 1) -> float:
    X, y = table(1000, seed)
    known = X.b.notna().to_numpy()
    return float(np.sqrt(np.mean((model.predict(X[known]) - y[known]) ** 2)))


def test_it_learns_what_one_bandwidth_a_column_cannot(fitted):
    X, y = table(M, 0)
    classical = AttentionRegressor("bandwidth", random_state=0).fit(X, y)
    assert error(fitted) < 0.7 * error(classical)


def test_a_prediction_is_the_weighted_sum_of_what_the_rows_bring(fitted):
    X, _ = table(5, 2)
    for explained in explanations(fitted, X, top=M):
        assert sum(row.weight for row in explained.rows) == pytest.approx(1, abs=1e-5)
        brought = sum(row.weight * row.brings for row in explained.rows)
        assert brought == pytest.approx(explained.answer, abs=1e-4)
        constant = sum(row.weight * row.target for row in explained.rows)
        assert abs(constant - explained.answer) > 1e-3, "nothing was corrected"


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_global_one_alone(quick):
    X, y = table(300, 3)
    before = torch.random.get_rng_state()
    first, second = (AttentionRegressor("deep", random_state=1).fit(X, y).predict(X) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert (first == second).all()
    assert (first != AttentionRegressor("deep", random_state=2).fit(X, y).predict(X)).any()


def test_a_saved_model_predicts_the_same(fitted, tmp_path):
    X, _ = table(50, 4)
    fitted.save(tmp_path / "model.safetensors")
    again = AttentionRegressor.load(tmp_path / "model.safetensors")
    assert (again.predict(X) == fitted.predict(X)).all()
    assert (again.predict_interval(X) == fitted.predict_interval(X)).all()


def test_appended_rows_vote_at_once(quick):
    X, y = table(300, 5)
    model = AttentionRegressor("deep", random_state=0).fit(X, y)
    new = X.iloc[[7]].assign(town="Oslo", a=1.9)
    before = model.predict(new)
    model.append(pd.concat([new] * 200, ignore_index=True), np.full(200, 50.0))
    assert model.predict(new)[0] > before[0] + 10


def test_intervals_hold_on_a_table_too_small_to_spare_a_tenth(monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=30))
    X, y = table(250, 6)
    low, high = AttentionRegressor("deep", random_state=0).fit(X, y).predict_interval(table(2000, 7)[0], level=0.9).T
    outcomes = table(2000, 7)[1]
    assert 0.8 < ((low <= outcomes) & (outcomes <= high)).mean() < 0.98


def test_classes_get_probabilities(monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=15))
    X, y = table(800, 8)
    names = np.where(y > 1, "high", np.where(y < -1, "low", "middle"))
    model = AttentionClassifier("deep", random_state=0).fit(X, names)
    new, outcomes = table(1000, 9)
    right = np.where(outcomes > 1, "high", np.where(outcomes < -1, "low", "middle"))
    shares = model.predict_proba(new)
    assert shares.shape == (1000, 3) and np.allclose(shares.sum(1), 1) and (shares > 0).all()
    assert (model.predict(new) == right).mean() > 0.7 > (right == "middle").mean()


def test_several_models_are_explained_by_the_mean_of_their_weights(quick):
    X, y = table(200, 10)
    model = AttentionRegressor("deep", n_models=2, random_state=0).fit(X, y)
    rows = X[:3]
    found = model.explain(rows, top=200)
    weights = np.zeros((3, 200))
    weights[found["query"], found["row"]] = found["weight"]
    encoded = model.encoder_.encode(rows)
    for query in range(3):
        parts = []
        for member in model._members:
            positions, alphas = member.best(encoded, 200)
            one = np.zeros(200)
            one[positions[query][positions[query] >= 0]] = alphas[query][positions[query] >= 0]
            parts.append(one)
        assert np.allclose(weights[query], np.mean(parts, axis=0), atol=1e-12)
    assert (found.groupby("query")["weight"].diff().dropna() <= 0).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 11, BATCH + 1])
def test_any_number_of_rows_can_be_learned_from(quick, rows):
    X, y = table(rows, 11)
    model = AttentionRegressor("deep", random_state=0).fit(X, y)
    assert np.isfinite(model.predict(table(20, 12)[0])).all()


def test_far_queries_and_unseen_categories_get_finite_answers(fitted):
    X, _ = table(3, 13)
    far = X.assign(a=[1e300, -1e300, np.nan], town=["Oslo", None, "Kiel"])
    found = fitted.predict(far)
    assert np.isfinite(found).all() and (np.abs(found) < 100).all()


def test_a_row_alone_is_answered_as_in_a_batch_and_no_rows_by_none(fitted):
    X, _ = table(70, 15)
    together = fitted.predict(X)
    alone = np.concatenate([fitted.predict(X.iloc[[i]]) for i in range(70)])
    assert np.allclose(alone, together, rtol=0, atol=1e-12)
    assert fitted.predict(X[:0]).shape == (0,) and fitted.predict_interval(X[:0]).shape == (0, 2)
    assert len(fitted.explain(X[:0])) == 0


# Equal rows, weights, and tables that say little


def few(m: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Only 24 different rows, with outcomes of their own."""
    own = np.random.default_rng(seed)
    X = pd.DataFrame({"a": own.integers(0, 8, m) / 4, "town": own.choice(["Ulm", "Kiel", "Bonn"], m)})
    return X, (X.a + (X.town == "Kiel") + own.normal(size=m)).to_numpy()


def test_equal_rows_answer_by_all_of_their_outcomes_in_whatever_order_they_stand(quick):
    y = np.repeat([0.0, 1.0], 200)
    assert AttentionRegressor("deep").fit(np.ones((400, 2)), y).predict([[1.0, 1.0]]) == pytest.approx([0.5])
    classes = AttentionClassifier("deep").fit(np.ones((400, 1)), np.where(y > 0, "late", "early"))
    assert classes.predict_proba([[1.0]])[0] == pytest.approx([0.5, 0.5])
    X, y = few(900, 20)
    order = np.argsort(y)
    first = AttentionRegressor("deep", random_state=0).fit(X, y)
    other = AttentionRegressor("deep", random_state=0).fit(X.iloc[order], y[order])
    assert np.allclose(first.predict(X), other.predict(X), atol=1e-12)
    assert np.allclose(first.predict_interval(X), other.predict_interval(X), atol=1e-9)


@pytest.mark.parametrize("rows", [table, few])
def test_a_weight_of_three_is_the_row_three_times_and_of_zero_no_row(quick, rows):
    X, y = rows(200, 21)
    y = y.round()
    w = np.random.default_rng(0).integers(0, 4, 200)
    weighted = AttentionRegressor("deep", random_state=0).fit(X, y, sample_weight=w)
    repeated = AttentionRegressor("deep", random_state=0).fit(X.iloc[np.repeat(np.arange(200), w)], y.repeat(w))
    assert np.allclose(weighted.predict(X), repeated.predict(X), atol=1e-12)
    assert np.allclose(weighted.predict_interval(X), repeated.predict_interval(X), atol=1e-9)
    found, of_copies = weighted.explain(X[:4], top=200), repeated.explain(X[:4], top=700)
    assert (w[found["row"]] > 0).all()
    row_of = np.repeat(np.arange(200), w)[of_copies["row"]]
    expected = of_copies["weight"].groupby([of_copies["query"], row_of]).sum()
    assert np.allclose(found.groupby(["query", "row"])["weight"].sum(), expected, atol=1e-12)
    assert found.groupby("query")["weight"].sum().to_numpy() == pytest.approx(np.ones(4))


def test_fewer_cases_of_an_explanation_are_the_first_of_all(quick):
    X, y = few(300, 22)
    for models in (1, 2):
        model = AttentionRegressor("deep", random_state=0, n_models=models).fit(X, y)
        every, some = model.explain(X[:3], top=999), model.explain(X[:3], top=7)
        assert every.groupby("query")["weight"].sum().to_numpy() == pytest.approx(np.ones(3))
        first = every[every["rank"] < 7].reset_index(drop=True)
        pd.testing.assert_frame_equal(some, first)


@pytest.mark.parametrize("rows", [table, few])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_that_leaves_itself_out_is_answered_as_if_it_were_not_there(quick, rows, grouped, weighted):
    X, y = rows(160, 23)
    own = np.random.default_rng(1)
    groups = own.integers(0, 40, 160) if grouped else None
    w = own.integers(1, 4, 160).astype(float) if weighted else np.ones(160)
    model = AttentionRegressor("deep", random_state=0).fit(X, y, sample_weight=w, groups=groups)
    member = model._members[0]
    found = member.leave_out(torch.arange(160), spread=True)
    encoded = model.encoder_.encode(X)
    for i in (0, 3, 77, 159):
        rest = torch.from_numpy(w.copy())
        if grouped:
            rest[torch.from_numpy(groups == groups[i])] = 0.0
        else:
            rest[i] -= 1
        cases = Cases(encoded, member.targets, rest, member.memory.groups, False)
        alone = member.remembering(cases).predict(encoded.take(torch.tensor([i])), spread=True)
        assert torch.allclose(found.value[i], alone.value[0], atol=1e-9)
        assert torch.allclose(found.variance[i], alone.variance[0], atol=1e-9)


def test_the_last_votes_are_shared_by_the_rows_of_a_place():
    keys = torch.tensor([[0.0], [0.0], [1.0], [1.0], [1.0], [1.0], [9.0]], dtype=torch.float64)
    y = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [100.0]], dtype=torch.float64)
    places = Places.of_rows(Memory(keys, torch.ones(7, dtype=torch.float64)), y)
    assert places.votes.tolist() == [2, 4, 1] and places.weights.tolist() == [2, 4, 1]
    nothing = lambda q, k: torch.zeros(*k.shape[:2], 1, dtype=k.dtype)  # noqa: E731
    found = pool_places(Euclidean(1.0), keys[:1], places, y, nothing, neighbours=4)
    near, far = 2.0, 2 * np.exp(-1.0)  # two of the four rows at 1 vote, each for their mean
    assert found.value[0, 0].item() == pytest.approx((near * 1.5 + far * 4.5) / (near + far))


def test_equal_rows_are_found_by_their_bits():
    numbers = torch.tensor([[0.0, torch.nan], [1.0, 2.0], [-0.0, torch.nan], [1.0, 3.0], [1.0, 2.0]]).double()
    firsts, which = alike(numbers, torch.tensor([[1], [1], [1], [1], [2]]))
    assert firsts.tolist() == [0, 1, 3, 4] and which.tolist() == [0, 1, 0, 2, 3]
    many = torch.randint(0, 50, (20_000, 3), generator=torch.Generator().manual_seed(0)).double()
    firsts, which = alike(many)
    assert torch.equal(many[firsts][which], many) and len(firsts) == len(many.unique(dim=0))
    assert alike(torch.zeros(3, 0))[1].tolist() == [0, 0, 0] and len(alike(torch.zeros(0, 2))[0]) == 0


def test_where_nothing_can_be_learned_nothing_is_corrected(quick):
    X, _ = table(60, 24)
    assert AttentionRegressor("deep").fit([[1.0, 2.0]], [7.0]).predict([[1.0, 2.0], [9e9, -9.0]]).tolist() == [7.0, 7.0]
    flat = AttentionRegressor("deep", random_state=0).fit(X, np.full(60, 0.1))
    assert (flat.predict(table(9, 25)[0]) == 0.1).all() and (flat.predict_interval(X[:2]) == 0.1).all()
    found = AttentionRegressor("deep").fit([[0.0], [1.0]], [1.0, 3.0]).predict([[0.0], [0.5], [9e9]])
    assert ((found >= 1.0) & (found <= 3.0)).all() and found[0] < found[1] < 3.0
    alone = AttentionRegressor("deep", random_state=0).fit(X, X.a, groups=["one"] * 60).predict(X)
    assert alone.min() >= X.a.min() and alone.max() <= X.a.max()


def test_a_constant_outcome_beside_others_is_predicted_exactly(quick):
    X, y = table(150, 26)
    model = AttentionRegressor("deep", random_state=0).fit(X, np.column_stack([y, np.full(150, 1e-9)]))
    assert (model.predict(table(40, 27)[0])[:, 1] == 1e-9).all()


# The bins


def by_hand(queries, keys, values, weights, allowed, r):
    """Row by row: of the rows allowed the r nearest, softmax of −distance times weight, values and 2 (q − k) pooled."""
    out = []
    for query, may in zip(queries, allowed, strict=True):
        rows = may.nonzero()[:, 0]
        distance = (query - keys[rows]).square().sum(1)
        near = rows[distance.argsort()[:r]]
        mass = weights[near] * (-(query - keys[near]).norm(dim=1)).exp()
        both = torch.cat([values[near], 2 * (query - keys[near])], 1)
        out.append((mass[:, None] * both).sum(0) / mass.sum())
    return torch.stack(out)


@pytest.mark.parametrize("left_out", ["nothing", "itself", "its group"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("r", [1, 5, 40])
def test_the_nearest_rows_vote_and_their_votes_are_corrected_by_pair(left_out, weighted, r):
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(30, d, generator=random).double().requires_grad_() for d in (3, 2))
    weights = torch.rand(30, generator=random).double() if weighted else torch.ones(30).double()
    own = None if left_out == "nothing" else torch.arange(7)
    groups = torch.arange(30) % 4 if left_out == "its group" else None
    allowed = torch.ones(7, 30, dtype=torch.bool)
    if own is not None:
        allowed &= (own[:, None] != torch.arange(30)) if groups is None else groups[own][:, None] != groups
    queries = (keys[:7] + (0.0 if own is not None else 0.3)).detach().requires_grad_()
    memory = Memory(keys, weights, groups)
    moved = lambda q, k: 2 * (q - k)  # noqa: E731
    found = pool_neighbours(Euclidean(1.0), queries, memory, values, moved, neighbours=r, own=own)
    expected = by_hand(queries, keys, values, weights, allowed, r)
    assert torch.allclose(found.value, expected, atol=1e-12)
    direction = torch.randn(expected.shape, generator=random).double()
    inputs = (queries, keys, values)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), inputs) for x in (found.value, expected))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(ours, theirs, strict=True))


def test_a_row_of_weight_three_leaves_two_copies_whose_votes_need_no_correction():
    X, y = torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[0.0], [1.0], [5.0]]).double()
    moved, own = (lambda q, k: q - k), torch.arange(3)
    memory = Memory(X, torch.tensor([3.0, 1.0, 1.0]).double())
    found = pool_neighbours(Euclidean(1.0), X, memory, y, moved, neighbours=9, own=own).value[0]
    a, b = np.exp(-1), np.exp(-3)
    assert found.tolist() == pytest.approx([(a + 5 * b) / (2 + a + b), (-a - 3 * b) / (2 + a + b)], abs=1e-12)


def test_where_no_row_may_vote_nothing_is_pooled():
    X, memory = torch.zeros(2, 1).double(), Memory(torch.zeros(2, 1).double(), torch.ones(2).double(), torch.zeros(2))
    found = pool_neighbours(
        Euclidean(1.0), X, memory, torch.ones(2, 1), lambda q, k: q - k, neighbours=2, own=torch.arange(2)
    )
    assert found.empty.all() and torch.isneginf(found.log_normalizer).all() and (found.value == 0).all()


def test_a_prediction_alone_is_that_in_a_batch_and_no_more_rows_vote_than_neighbours(quick):
    X, y = table(2000, 4)
    model = AttentionRegressor("deep", random_state=0).fit(X, y)
    rows = table(70, 5)[0]
    alone = [model.predict(rows[i : i + 1])[0] for i in range(70)]
    assert alone == pytest.approx(model.predict(rows).tolist(), rel=1e-12)
    found = model.explain(rows[:3], top=2 * NEIGHBOURS)
    assert (found.groupby("query").size() == NEIGHBOURS).all()
    assert found.groupby("query").weight.sum().to_numpy() == pytest.approx(1.0, abs=1e-12)


def test_sharpening_leaves_the_correction_as_it_is():
    X, y = table(100, 6)
    model = AttentionRegressor("deep", random_state=0, max_seconds=1).fit(X, y)
    network = model._members[0].similarity.network
    torch.nn.init.normal_(network.correction[-1].weight)
    before, difference = network.moved(torch.ones(5, 3, 32).double()), torch.ones(5, 3, 32).double()
    sharpness = network.log_sharpness.exp().item()
    network.sharpen(2.0)
    assert network.log_sharpness.exp().item() == pytest.approx(2 * sharpness)
    assert torch.allclose(network.moved(2 * difference), before, atol=1e-12)
    assert (network.moved(torch.zeros(1, 1, 32).double()) == 0).all()


def test_means_are_predicted_though_most_outcomes_are_zero(monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=15))
    random = np.random.default_rng(0)
    X, new = random.normal(size=(2, 2000, 2))
    y = 1000.0 * (random.random(2000) < np.where(X[:, 0] > 0, 0.08, 0.02))
    predicted = AttentionRegressor("deep", random_state=0).fit(X, y).predict(new)
    assert predicted[new[:, 0] > 0].mean() == pytest.approx(80, abs=20)
    assert predicted[new[:, 0] < 0].mean() == pytest.approx(20, abs=10)


def test_one_wild_outcome_does_not_say_when_to_stop(monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=24))
    random = np.random.default_rng(0)
    X, new = random.uniform(-2, 2, (2, 600, 2))
    y, outcomes = (np.sin(2 * x.sum(1)) for x in (X, new))
    model = AttentionRegressor("deep", random_state=0)
    wild = np.where(np.arange(200) == 5, 1000.0, outcomes[:200])
    model.fit(X, y, eval_set=(new[:200], wild))
    assert np.sqrt(np.mean((model.predict(new[200:]) - outcomes[200:]) ** 2)) < 0.1  # .14 where squares say it


def test_a_bin_is_filled_as_far_as_the_number_reaches():
    bins = Bins(1)
    bins.place(torch.arange(0.0, 4.0, dtype=torch.float64)[:, None])
    assert bins.low[0, :3].tolist() == [0, 1, 2] and bins.size[0, :3].tolist() == [1, 1, 1]
    with torch.no_grad():
        bins.weight.zero_()
        bins.slope.zero_()
        for t in range(3):
            bins.weight[0, t, t] = 1.0
        filled = bins(torch.tensor([[1.5], [-0.25], [-9.0], [3.5], [9.0], [torch.nan]], dtype=torch.float64))[:, :3]
    assert filled.tolist() == [[1, 0.5, 0], [-0.25, 0, 0], [-1, 0, 0], [1, 1, 1.5], [1, 1, 2], [0, 0, 0]]


def test_a_column_that_is_nearly_always_zero_keeps_bins_for_its_other_values():
    x = torch.zeros(10_000, dtype=torch.float64)
    x[:300] = torch.arange(1, 301) % 30 * 100.0 + 100
    bins = Bins(1)
    bins.place(x[:, None])
    assert int(bins.size[0].isfinite().sum()) >= 12
    plain = torch.quantile(x, torch.linspace(0, 1, BINS + 1, dtype=torch.float64)).unique()
    assert len(plain) < 12, "quantiles of the rows alone would have kept them too"


def test_a_column_without_spread_says_nothing():
    bins = Bins(2)
    bins.place(torch.tensor([[5.0, torch.nan]] * 9, dtype=torch.float64))
    with torch.no_grad():
        a, b = (bins(torch.tensor([[x, x]], dtype=torch.float64)) for x in (5.0, 700.0))
    assert torch.equal(a, b)


def test_large_numbers_do_not_overflow():
    bins = Bins(1)
    x = torch.tensor([[-1e308], [0.0], [1e308]], dtype=torch.float64)
    bins.place(x)
    assert torch.isfinite(bins(x)).all()


def test_dropout_is_that_of_learning_alone(quick):
    X, y = table(200, 3)
    none, half = (AttentionRegressor("deep", random_state=0, dropout=share).fit(X, y) for share in (0.0, 0.5))
    assert (none.predict(X) != half.predict(X)).any()
    assert (half.predict(X) == half.predict(X)).all()
    rows, network = half._encoded(X), half._members[0].similarity.network.train()
    assert not torch.equal(network(rows)[0], network(rows)[0])
    network.drop(0.0, 0.1)
    (phi, g), (phi_again, g_again) = network(rows), network(rows)
    assert torch.equal(phi, phi_again) and not torch.equal(g, g_again)


def test_the_network_sees_gaps_and_unseen_codes():
    numbers = torch.tensor([[0.0], [1.0], [torch.nan], [3.0]], dtype=torch.float64)
    codes = torch.tensor([[0], [1], [1], [0]])
    one = torch.ones(4, dtype=torch.float64)
    made = Deep.begin(Cases(Rows(numbers, codes), one[:, None], one, None, False), seed=0).eval()
    assert made.network.gaps.tolist() == [0] and made.network.levels == [2]
    with torch.no_grad():
        unseen = made.embed(Rows(numbers[:1], torch.tensor([[-1]])))
        beyond = made.embed(Rows(numbers[:1], torch.tensor([[7]])))
        seen = made.embed(Rows(numbers[:1], codes[:1]))
    assert torch.equal(unseen, beyond) and not torch.equal(unseen, seen)
