"""Tables with columns of every kind, as they come: what becomes of them, and what is refused."""

from __future__ import annotations

import datetime
import decimal
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from attendb.errors import InputError, KindError, MissingValueError
from attendb.estimators import AttentionClassifier, AttentionRegressor
from attendb.estimators.encoding import MOST_LEVELS, Categories, Dates, Encoder, Number, Text
from attendb.estimators.features import Features


def encoded(column: object) -> tuple[list, list]:
    """Numbers and codes of a table of one column, encoded by its own rules."""
    table = pd.DataFrame({"c": column})
    rows = Encoder.of(table).encode(table)
    return rows.numbers.tolist(), rows.codes.tolist()


@pytest.mark.parametrize(
    "column, numbers",
    [
        ([1, 2], [[1.0], [2.0]]),
        (np.array([True, False]), [[1.0], [0.0]]),
        (pd.array([1, None], dtype="Int64"), [[1.0], [math.nan]]),
        (pd.array([True, None], dtype="boolean"), [[1.0], [math.nan]]),
        (np.array([True, None], dtype=object), [[1.0], [math.nan]]),
        (np.array([decimal.Decimal("1.5"), None], dtype=object), [[1.5], [math.nan]]),
        (pd.to_timedelta(["12h", None]), [[0.5], [math.nan]]),
        (np.array([None, None], dtype=object), [[math.nan], [math.nan]]),
        (pd.Series([1.5, None], dtype="float32"), [[1.5], [math.nan]]),
    ],
)
def test_columns_of_numbers(column, numbers):
    found, codes = encoded(column)
    np.testing.assert_array_equal(found, numbers)
    assert codes == [[], []]


@pytest.mark.parametrize(
    "column",
    [
        pd.to_datetime(["1970-01-02", None]),
        pd.to_datetime(["1970-01-02T01:00", None]).tz_localize("Europe/Berlin"),
        np.array([datetime.date(1970, 1, 2), None], dtype=object),
        np.array([datetime.datetime(1970, 1, 2), None], dtype=object),
        pd.PeriodIndex(["1970-01-02", "NaT"], freq="D"),
    ],
)
def test_columns_of_dates_are_days(column):
    np.testing.assert_array_equal(encoded(column)[0], [[1.0], [math.nan]])


def test_dates_have_the_cycles_that_they_span_twice():
    hours = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=24 * 15, freq="h")})
    encoder = Encoder.of(hours)
    assert encoder.numbers == ("t: days", "t: day, sine", "t: day, cosine", "t: week, sine", "t: week, cosine")
    numbers = encoder.encode(hours).numbers
    assert torch.allclose(numbers[:, 1:].square().sum(1), torch.full((360,), 2.0).double())
    assert torch.allclose(numbers[0, 1:], numbers[7 * 24, 1:], atol=1e-8)
    assert numbers[6, 1:3].tolist() == pytest.approx([1.0, 0.0], abs=1e-8)  # six in the morning


@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_few_texts_are_categories(kind):
    numbers, codes = encoded(pd.Series(["b", "a", None, "b", "a", "a"], dtype=kind))
    assert numbers == [[]] * 6 and codes == [[1], [0], [2], [1], [0], [0]]


def test_a_category_of_numbers_is_known_again_as_numbers():
    encoder = Encoder.of(pd.DataFrame({"c": pd.Categorical([1, 2, 1])}))
    assert encoder.encode(pd.DataFrame({"c": [2, 1, 7]})).codes.tolist() == [[1], [0], [-1]]
    assert encoder.encode(pd.DataFrame({"c": [2.0, math.nan, 1.0]})).codes.tolist() == [[1], [-1], [0]]


def test_rare_categories_share_a_level():
    levels = [f"{i:03d}" for i in range(MOST_LEVELS + 10)]
    column = pd.Categorical(levels * 2 + levels[:-12])
    encoder = Encoder.of(pd.DataFrame({"c": column}))
    (part,) = encoder.parts
    assert isinstance(part, Categories) and len(part.levels) == MOST_LEVELS + 1 and part.levels[-1] == "other"
    assert encoder.encode(pd.DataFrame({"c": [levels[-1], "unseen", levels[0]]})).codes.tolist() == [
        [MOST_LEVELS],
        [MOST_LEVELS],
        [0],
    ]


def test_many_texts_are_numbers_in_which_like_texts_are_near():
    texts = [
        f"{colour} {thing} {i}" for i, (colour, thing) in enumerate([("crimson", "bicycle"), ("olive", "teapot")] * 30)
    ]
    table = pd.DataFrame({"c": [*texts, None]})
    encoder = Encoder.of(table)
    assert isinstance(encoder.parts[0], Text)
    numbers = encoder.encode(table).numbers
    assert numbers.shape == (61, 16) and numbers[60].isnan().all() and not numbers[:60].isnan().any()
    near = torch.cdist(numbers[:60], numbers[:60])
    assert float(near[0, 2::2][:-1].mean()) < 0.5 * float(near[0, 1::2].mean())
    new = encoder.encode(pd.DataFrame({"c": ["crimson bicycles", "東京", ""]})).numbers
    assert (new[0] - numbers[0]).norm() < (new[0] - numbers[1]).norm() and not new.isnan().any()


def test_texts_without_a_word_are_still_read():
    table = pd.DataFrame({"c": [" " * i for i in range(20)]})
    assert Encoder.of(table).encode(table).numbers.shape == (20, 1)


def test_an_encoder_is_made_again_from_its_state():
    table = pd.DataFrame(
        {
            "n": [1.0, None, 3.0, 4.0],
            "d": pd.date_range("2020-01-01", periods=4, freq="YS"),
            "c": ["x", "y", "x", None],
            "t": pd.Series(["some words", "other words", "more", "again more"]),
        }
    )
    encoder = Encoder.of(table)
    assert [type(part) for part in encoder.parts] == [Number, Dates, Categories, Text]
    again = Encoder.made(*encoder.state())
    assert again.numbers == encoder.numbers and again.levels == encoder.levels
    a, b = encoder.encode(table), again.encode(table)
    assert torch.equal(a.numbers.nan_to_num(-1), b.numbers.nan_to_num(-1)) and torch.equal(a.codes, b.codes)


# distances


def test_two_random_rows_differ_alike_in_every_column():
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "small": 1e-9 * random.normal(size=4000),
            "huge": 1e200 + 1e198 * random.normal(size=4000),
            "c": pd.Categorical(random.choice(list("abc"), 4000)),
        }
    )
    rows = Encoder.of(table).encode(table)
    z = Features.of(rows, torch.ones(4000).double())(rows)
    apart = (z[:2000] - z[2000:]).square().mean(0)
    assert apart[:2].tolist() == pytest.approx([2.0, 2.0], rel=0.1)
    assert float(apart[2:].sum()) == pytest.approx(2.0, rel=0.1)


def test_a_missing_number_is_told_from_the_mean_and_an_unseen_category_is_as_far_from_all():
    table = pd.DataFrame(
        {"n": [-1.0, 1.0, None, None], "m": [-2.0, 2.0, None, None], "c": pd.Categorical(list("abab"))}
    )
    encoder = Encoder.of(table)
    rows = encoder.encode(table)
    features = Features.of(rows, torch.ones(4).double())
    assert features.scales == 4 and features.names(encoder.numbers, tuple(encoder.levels)) == [
        "n",
        "m",
        "n is missing",
        "c",
    ]
    z = features(rows)
    assert z[2, :2].tolist() == [0.0, 0.0] and z[2, 2] == 2.0 and z[0, 2] == 0.0
    new = features(encoder.encode(pd.DataFrame({"n": [0.0], "m": [0.0], "c": ["z"]})))
    assert float((new - z[0])[0, 3:].square().sum()) == pytest.approx(float((new - z[1])[0, 3:].square().sum()))


# whole tables


@pytest.fixture
def cases() -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": random.normal(size=200),
            "kind": random.choice(["a", "b"], 200),
            "open": random.random(200) < 0.5,
            "noise": random.normal(size=200),
        }
    )
    table.loc[::4, "size"] = np.nan
    y = table["size"].fillna(3.0) + 2 * (table["kind"] == "a") + table["open"]
    return table, y.to_numpy()


def test_a_raw_table_with_gaps_is_learned(cases):
    table, y = cases
    model = AttentionRegressor(random_state=0).fit(table[:150], y[:150])
    assert np.sqrt(np.mean((model.predict(table[150:]) - y[150:]) ** 2)) < 0.25 * y.std()
    h = model.bandwidths_
    assert set(h) == {"size", "open", "noise", "size is missing", "kind"} and h["noise"] > 3 * h["size"]


def test_pandas_polars_and_arrow_are_the_same_table(cases):
    table, y = cases
    found = [
        AttentionRegressor(random_state=0).fit(frame, outcomes).predict(frame)
        for frame, outcomes in (
            (table, pd.Series(y, index=range(7, 207))),
            (pl.from_pandas(table), pl.Series(y)),
            (pa.Table.from_pandas(table), y.tolist()),
        )
    ]
    assert np.allclose(found[0], found[1], rtol=1e-12) and np.allclose(found[0], found[2], rtol=1e-12)


def test_lists_objects_and_tensors_are_read():
    rows = [[1.0, "a"], [2.0, "b"], [3.0, "a"], [4.0, "b"]]
    model = AttentionRegressor(random_state=0).fit(rows, [1, 2, 3, 4])
    assert model.predict([[4.0, "b"]]).shape == (1,) and set(model.bandwidths_) == {"0", "1"}
    model = AttentionRegressor(random_state=0).fit(torch.arange(6.0)[:, None], torch.arange(6.0))
    assert model.predict(torch.tensor([[5.0]])) == pytest.approx([5.0], abs=0.5)


def test_other_columns_than_those_that_were_fitted_are_refused(cases):
    table, y = cases
    model = AttentionRegressor(max_seconds=0).fit(table, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="same order"):
        model.predict(table[table.columns[::-1]])
    with pytest.raises(ValueError, match="has 3 features"):
        AttentionRegressor(max_seconds=0).fit(np.eye(4), np.arange(4)).predict(np.eye(3))
    with pytest.raises(KindError, match="X column 'size' holds texts but held numbers when the model was fitted"):
        model.predict(table.assign(size="big"))
    with pytest.raises(InputError, match="X has 2 columns named 'a': give each column"):
        AttentionRegressor().fit(pd.DataFrame(np.eye(3), columns=["a", "b", "a"]), [1, 2, 3])
    with pytest.raises(ValueError, match="0 feature"):
        AttentionRegressor().fit(pd.DataFrame(index=range(3)), [1, 2, 3])


def test_columns_that_are_all_missing_are_read(cases):
    table, y = cases
    model = AttentionRegressor(max_seconds=0).fit(table.assign(empty=None), y)
    gone = table[:3].assign(size=None, kind=None, open=None, noise=None, empty=None)
    assert np.isfinite(model.predict(gone)).all()


@pytest.mark.parametrize("row", [0, 3])
def test_missing_cells_can_be_refused(row):
    table = pd.DataFrame({"a": np.arange(5.0), "c": pd.Series(list("xyxyx"), dtype="object")})
    y = np.arange(5.0)
    model = AttentionRegressor(missing="raise", max_seconds=0).fit(table, y)
    for column, value in (("a", math.nan), ("c", None)):
        odd = table.copy()
        odd.loc[row, column] = value
        message = rf"X has 1 missing cell in column '{column}' \(first: row {row}\)"
        with pytest.raises(MissingValueError, match=message):
            AttentionRegressor(missing="raise").fit(odd, y)
        with pytest.raises(MissingValueError, match=message):
            model.predict(odd)


def test_a_missing_cell_is_missing_for_its_own_row_alone(cases):
    table, y = cases
    model = AttentionRegressor(random_state=0, max_seconds=0).fit(table, y)
    one = table[:5].copy()
    before = model.predict(one)
    one.loc[2, "noise"] = np.nan
    after = model.predict(one)
    assert np.isfinite(after).all() and (np.delete(before, 2) == np.delete(after, 2)).all()


@pytest.mark.parametrize(
    "column, message",
    [
        ([1, "a", 2], "X column 'c' mixes numbers and text"),
        ([[1], [2], [3]], "holds a list"),
        ([1, {"a": 1}, 2], "argument must be a string or a real number"),
        ([1j, 2j, 3j], "Complex data not supported"),
    ],
)
def test_cells_of_odd_kinds_are_refused(column, message):
    with pytest.raises((KindError, InputError), match=message):
        AttentionRegressor().fit(pd.DataFrame({"c": pd.Series(column)}), [1, 2, 3])


def test_whole_numbers_beyond_all_floats_are_infinite_numbers():
    huge = pd.DataFrame({"c": pd.Series([1, 10**400, -(10**400)], dtype=object)})
    with pytest.raises(InputError, match=r"X has 2 infinite numbers in column 'c' \(first: row 1\)"):
        AttentionRegressor().fit(huge, [1, 2, 3])
    with pytest.raises(InputError, match=r"y has 1 infinite number \(row 1\)"):
        AttentionRegressor().fit([[1.0], [2.0]], [1, 10**400])


def test_a_lazy_frame_is_refused_with_what_to_give():
    with pytest.raises(KindError, match=r"X is a LazyFrame.*give X\.collect\(\)"):
        AttentionRegressor().fit(pl.DataFrame({"a": [1.0, 2.0]}).lazy(), [1.0, 2.0])


@pytest.mark.parametrize("similarity", ["bandwidth", "deep"])
def test_layouts_and_dtypes_of_arrays_do_not_matter(similarity):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(60, 3)).astype(np.float32).astype(np.float64), random.normal(size=60)
    wide = np.zeros((120, 6))
    wide[::2, ::2] = X
    locked = X.copy()
    locked.flags.writeable = False
    expected = AttentionRegressor(similarity, random_state=0, max_seconds=0).fit(X, y).predict(X)
    same = [np.asfortranarray(X), wide[::2, ::2], X[::-1][::-1], locked, X.astype(np.float32), X.astype(">f8")]
    same += [X.astype(object), X.tolist(), pd.DataFrame(X, index=[0] * 60)]
    for other in same:
        outcomes = pd.Series(y, index=range(60, 0, -1)) if isinstance(other, pd.DataFrame) else y[::-1][::-1]
        model = AttentionRegressor(similarity, random_state=0, max_seconds=0).fit(other, outcomes)
        assert np.allclose(model.predict(other), expected, rtol=0, atol=1e-12)


def test_unseen_categories_are_answered(cases):
    table, y = cases
    model = AttentionRegressor(random_state=0, max_seconds=0).fit(table, y)
    found = model.predict(table[:2].assign(kind="unheard of", size=0.0, open=True))
    assert np.isfinite(found).all() and (found > y.min()).all() and (found < y.max()).all()


def test_classes_keep_their_kind():
    X = np.arange(6.0)[:, None]
    for y in (
        [0, 0, 0, 1, 1, 1],
        [True, True, True, False, False, False],
        list("aaabbb"),
        pd.Categorical(list("xxxyyy")),
    ):
        model = AttentionClassifier(max_seconds=0).fit(X, y)
        assert model.predict(X).tolist() == list(y) and model.classes_.dtype == np.asarray(y).dtype
