"""The database in memory: rows in, exact keys, attention by row ids, changes that are whole or not made."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import time
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import attendb as ad
from attendb.database import Database
from attendb.sources.memory import Memory

SURNAMES = ["Zhang", "Lipton", "Li", "Smola", "Hu", "Werness"]
NAMES = ["Aston", "Zachary", "Mu", "Alex", "Rachel", "Brent"]
NFC, NFD = "caf\u00e9", "cafe\u0301"


def people() -> Database:
    return Database(keys=SURNAMES, values=NAMES)


def ages() -> Database:
    return Database(
        {"name": ["Li", "Lu", "Hu"], "age": [40.0, 50.0, 60.0]},
        {"pay": [1.0, 2.0, 4.0], "city": ["Ulm", "Bern", "Ulm"]},
    )


def state(db: Database) -> Any:
    return len(db), db.ids.tolist(), db.columns, db.to_pandas().to_dict()


def refused(db: Database, error: type[Exception], message: str, change: Any) -> None:
    """The change raises, and the table is as before."""
    before = state(db)
    with pytest.raises(error, match=message):
        change()
    assert state(db) == before


# --- the surname table ---------------------------------------------------------------


def test_the_surname_table_answers_exactly_and_approximately() -> None:
    db = people()
    ask = {"score": ad.EditSimilarity(), "weighting": ad.Nearest()}
    assert db.lookup("Li") == "Mu"
    assert db.attend("Lu", **ask).value == "Mu"
    assert db.delete(keys=["Li"]) == 1
    with pytest.raises(KeyError, match=r"^no row has the key 'Li': the closest are 'Lipton', 'Smola'$"):
        db.lookup("Li")
    assert db.attend("Li", **ask).value == "Zachary"
    assert db.attend(["Li", "Hux"], **ask).value.tolist() == ["Zachary", "Rachel"]


def test_a_softmax_over_texts_gives_a_distribution_over_the_distinct_values() -> None:
    db = Database(["Li", "Lu", "Hu"], ["Mu", "Fei", "Mu"])
    answer = db.attend("Li", score=ad.EditSimilarity())
    names, probabilities = answer.distribution()
    weights = answer.weights()[0]
    assert names.tolist() == ["Mu", "Fei"] and answer.value == "Mu"
    assert np.allclose(probabilities, [[weights[0] + weights[2], weights[1]]])


def test_a_text_table_says_which_score_to_use() -> None:
    with pytest.raises(ad.KindError, match="ScaledDot compares numbers: use EditSimilarity"):
        people().attend("Li")
    with pytest.raises(ad.KindError, match="PerColumn for mixed columns"):
        ages().attend({"name": "Li", "age": 40.0}, values="pay")


# --- what a table is made of ---------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        lambda x: torch.tensor(x, dtype=torch.float64),
        pd.Series,
        pl.Series,
        lambda x: {"x": x},
        lambda x: pd.DataFrame({"x": x}),
        lambda x: pl.DataFrame({"x": x}),
    ],
    ids=["list", "numpy", "tensor", "pandas series", "polars series", "dict", "pandas", "polars"],
)
def test_all_kinds_of_tables_of_one_number_answer_alike(make: Any) -> None:
    db = Database(make([1.0, 2.0, 4.0]), [10.0, 20.0, 40.0])
    assert db.lookup(2) == 20.0
    db.append(make([8.0]), [80.0])
    answer = db.attend(make([2.0, 7.0]), score=ad.Euclidean(1.0), weighting=ad.Nearest(), top=1)
    assert np.asarray(answer.value).tolist() == [[20.0], [80.0]]
    assert np.asarray(answer.top.positions).tolist() == [[1], [3]]
    assert isinstance(answer.value, torch.Tensor) == isinstance(make([1.0]), torch.Tensor)


def test_columns_kinds_repr_and_frame() -> None:
    db = ages()
    assert db.columns == {"keys": {"name": "text", "age": "numbers"}, "values": {"pay": "numbers", "city": "text"}}
    assert repr(db) == "Database of 3 rows\n  name (text), age (numbers) → pay (numbers), city (text)"
    frame = db.to_pandas()
    assert frame.index.name == "id" and frame.index.tolist() == [0, 1, 2]
    assert frame.columns.tolist() == ["name", "age", "pay", "city"]
    assert frame.loc[1].tolist() == ["Lu", 50.0, 2.0, "Bern"]
    wide = Database(np.eye(2), [1, 2]).to_pandas()
    assert wide.columns.tolist() == ["key_0", "key_1", "value"] and wide["value"].dtype == np.int64


def test_arrays_are_copied_and_tensors_keep_their_graph() -> None:
    array = np.array([[1.0], [2.0]])
    keys = torch.tensor([[1.0], [2.0]], requires_grad=True)
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    db = Database(array, [1.0, 2.0])
    array[:] = 9.0
    assert db.lookup(1.0) == 1.0
    db = Database(keys, values)
    answer = db.attend(torch.tensor([[1.0]]), score=ad.Gaussian(1.0))
    expected = ad.attend(torch.tensor([[1.0]]), keys, values, score=ad.Gaussian(1.0))
    assert torch.equal(answer.value, expected.value)
    answer.value.sum().backward()
    assert keys.grad is not None and keys.grad.abs().sum() > 0 and values.grad.sum() == 1
    db.append([[3.0]], [5.0])
    db.attend(torch.tensor([[1.0]]), score=ad.Gaussian(1.0)).value.sum().backward()
    assert values.grad.sum() > 1
    assert db.lookup(torch.tensor([2.0])).requires_grad and not isinstance(db.lookup(2.0), torch.Tensor)


def test_a_tensor_of_keys_that_is_written_to_is_found_by_its_new_numbers() -> None:
    keys = torch.tensor([1.0, 2.0])
    db = Database(keys, [10.0, 20.0])
    assert db.lookup(1.0) == 10.0
    keys[0] = 7.0
    assert db.lookup(7.0) == 10.0
    with pytest.raises(ad.NotFoundError):
        db.lookup(1.0)


@pytest.mark.parametrize(
    ("keys", "values", "error", "message"),
    [
        ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0]], [1, 2, 3], ad.InputError, r"keys has rows of .*row 2: 1.*others 3"),
        ([[float("nan")]], [1], ad.MissingValueError, r"keys has NaN in 1 of 1 rows \(rows 0\)"),
        ([1.0, None, 3.0], [1, 2, 3], ad.MissingValueError, "keys has 1 row with missing numbers .first: row 1"),
        ([None, None], [1, 2], ad.MissingValueError, "keys has no value in any of its 2 rows"),
        (np.zeros((2, 0)), [1, 2], ad.InputError, "keys has width 0"),
        (np.zeros((2, 1)), np.zeros((2, 0)), ad.InputError, "values has width 0"),
        (np.zeros((2, 2, 2)), [1, 2], ad.InputError, r"shape \(2, 2, 2\)"),
        ([1.0, 2.0], [1.0], ad.InputError, "keys have 2 rows but values have 1"),
        ({"x": [1.0], "y": [1.0, 2.0]}, [1.0], ad.InputError, "different lengths"),
        ({}, [1.0], ad.InputError, "no columns"),
        ({"x": [1.0]}, {"x": [1.0]}, ad.InputError, "keys and values both have a column 'x'"),
        ({"id": [1.0]}, [1.0], ad.InputError, "the name of the row ids: pass it as ids="),
        ([2**70], [1.0], ad.InputError, "does not fit 64 bits: give it as text"),
        ([2**53 + 1, 0.5], [1.0, 2.0], ad.InputError, "among decimal numbers"),
        ([1 + 2j], [1.0], ad.KindError, "complex"),
        (None, [1.0], ad.KindError, "keys are None"),
    ],
)
def test_malformed_tables_are_refused_by_row_and_column(keys: Any, values: Any, error: Any, message: str) -> None:
    """M03, N16: nothing is dropped, cut or filled in."""
    with pytest.raises(error, match=message):
        Database(keys, values)


def test_nan_keys_are_refused_at_insert_with_their_rows() -> None:
    """N16."""
    keys = {"x": [1.0, np.nan, 2.0, np.nan], "name": ["a", "b", None, "d"]}
    with pytest.raises(ad.MissingValueError, match=r"keys column 'x' has NaN in 2 of 4 rows \(rows 1, 3\)"):
        Database(keys, [1, 2, 3, 4])
    db = Database([1.0], [1.0])
    refused(db, ad.MissingValueError, r"NaN in 1 of 2 rows", lambda: db.append([1.0, np.nan], [1.0, 2.0]))


# --- exact keys ---------------------------------------------------------------


def test_the_same_word_in_two_unicode_forms_is_one_key_and_stays_as_it_was_stored() -> None:
    """T01."""
    for stored, asked in ((NFC, NFD), (NFD, NFC)):
        db = Database([stored, "ＡＢＣ"], [1.0, 2.0])
        assert db.lookup(asked) == 1.0
        assert db.to_pandas()["key"].tolist()[0] == stored
        assert db.attend(asked, where=f"key = '{asked}'", weighting=ad.Exact()).value.tolist() == [[1.0]]
        with pytest.raises(ad.NotFoundError):
            db.lookup("ABC")
        assert db.upsert([asked], [5.0]).tolist() == [0]


def test_numbers_are_found_as_they_are_stored() -> None:
    big = 2**53
    db = Database([big, big + 1, -3, 0], [1.0, 2.0, 3.0, 4.0])
    assert [db.lookup(x) for x in (big, big + 1, -3, -3.0, -0.0, np.int32(-3))] == [1.0, 2.0, 3.0, 3.0, 4.0, 3.0]
    for absent in (0.5, big + 2, 1e300, float("inf")):
        with pytest.raises(ad.NotFoundError, match="no row has the key"):
            db.lookup(absent)
    single = Database(np.array([0.1, 16777216.0, -0.0], dtype=np.float32), [1.0, 2.0, 3.0])
    assert [single.lookup(x) for x in (0.1, np.float32(0.1), 16777216, 0.0)] == [1.0, 1.0, 2.0, 3.0]
    with pytest.raises(ad.NotFoundError):
        single.lookup(16777217)
    with pytest.raises(ad.KindError, match="expected numbers, found text"):
        db.lookup("Li")
    with pytest.raises(ad.MissingValueError, match="NaN"):
        db.lookup(float("nan"))


def test_several_rows_with_one_key_give_the_mean_of_numbers_and_refuse_texts_that_differ() -> None:
    db = Database(["a", "b", "a"], {"x": [1, 5, 2], "t": ["u", "v", "w"]})
    with pytest.raises(ad.InputError, match=r"2 rows have the key 'a' and different texts in 't' .*lookup_all"):
        db.lookup("a")
    assert db.lookup_all("a").to_dict("list") == {"key": ["a", "a"], "x": [1, 2], "t": ["u", "w"]}
    assert db.lookup_all("a").index.tolist() == [0, 2] and len(db.lookup_all("z")) == 0
    assert db.lookup("b") == {"x": 5, "t": "v"}
    assert Database(["a", "a"], [1, 2]).lookup("a") == 1.5
    assert Database(["a", "a"], [2**60 + 1, 2**60 + 1]).lookup("a") == 2**60 + 1
    assert Database(["a", "a"], [[1.0, 2.0], [3.0, 6.0]]).lookup("a").tolist() == [2.0, 4.0]
    assert Database(["a", "a"], ["u", "u"]).lookup("a") == "u"


def test_a_key_of_several_columns_is_a_dict_or_a_tuple() -> None:
    db = ages()
    for key in ({"age": 40, "name": "Li"}, ("Li", 40.0), ["Li", 40], pd.DataFrame({"age": [40.0], "name": ["Li"]})):
        assert db.lookup(key) == {"pay": 1.0, "city": "Ulm"}
    with pytest.raises(ad.NotFoundError, match=re.escape("no row has the key ('Li', 50.0)")):
        db.lookup(("Li", 50.0))
    with pytest.raises(ad.InputError, match="the key has 3 parts but there are 2 key columns: 'name', 'age'"):
        db.lookup(("Li", 40.0, 1))
    with pytest.raises(ad.InputError, match="keys lack 'age'"):
        db.lookup({"name": "Li"})
    with pytest.raises(ad.KindError, match="give a dict or a tuple"):
        db.lookup("Li")
    rows = Database([[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0])
    for key in ([3.0, 4.0], (3, 4), np.array([3.0, 4.0]), torch.tensor([[3.0, 4.0]]), [[3.0, 4.0]]):
        assert float(rows.lookup(key)) == 2.0
    with pytest.raises(ad.InputError, match="lookup takes one key, got 2"):
        people().lookup(["Li", "Hu"])


def test_missing_texts_match_nothing_and_keep_their_rows() -> None:
    """M04: positions are those of the original list."""
    db = Database(["nancy", None, np.nan, pd.NA, "", " "], [0, 1, 2, 3, 4, 5])
    assert len(db) == 6
    answer = db.attend(["nancy", None], score=ad.EditSimilarity(), weighting=ad.TopK(1), top=1)
    assert answer.top.positions.tolist() == [[0], [-1]] and answer.empty.tolist() == [False, True]
    answer = db.attend(["nancy"], score=ad.EditSimilarity(), top=6)
    assert sorted(answer.top.positions[0].tolist()) == [-1, -1, -1, 0, 4, 5]
    assert db.attend([None], weighting=ad.Exact()).empty.tolist() == [True]
    for missing in (None, np.nan, pd.NA):
        with pytest.raises(KeyError):
            db.lookup([missing])
    assert db.lookup("") == 4 and db.delete(keys=[None]) == 0
    assert db.upsert([None, None], [8, 9]).tolist() == [6, 7]


def test_one_key_among_a_million_is_found_in_milliseconds() -> None:
    db = Database(np.arange(10**6), np.arange(10**6))
    assert db.lookup(7) == 7
    start = time.perf_counter()
    assert [db.lookup(x) for x in range(0, 10**6, 50_000)] == list(range(0, 10**6, 50_000))
    assert (time.perf_counter() - start) / 20 < 0.02


# --- attention over the rows ---------------------------------------------------------------


@pytest.mark.parametrize("plan", [None, "dense"])
@pytest.mark.parametrize(
    "weighting", [ad.Softmax(), ad.TopK(3), ad.Nearest(), ad.Sparsemax(), ad.Uniform(), ad.Sampled(seed=1)], ids=repr
)
def test_rows_are_named_by_their_ids_on_every_path(weighting: ad.Weighting, plan: str | None) -> None:
    rng = np.random.default_rng(0)
    keys, values, queries = rng.normal(size=(40, 3)), rng.normal(size=(40, 2)), rng.normal(size=(7, 3))
    ids = np.sort(rng.choice(10**6, 40, replace=False))
    db = Database(keys, values, ids=ids)
    allowed = ids % 3 != 0
    exclude = rng.choice(ids, 7)
    exclude[0] = -1
    options: dict[str, Any] = {"weighting": weighting, "top": 5, "plan": plan}
    answer = db.attend(queries, where="id % 3 <> 0", exclude=exclude, **options)
    pairs = allowed & (ids != exclude[:, None])
    by_function = db.attend(
        queries, where=lambda i, j: torch.as_tensor(pairs)[i, torch.as_tensor(ids.searchsorted(j.numpy()))], **options
    )
    assert np.allclose(answer.value, by_function.value, atol=1e-12)
    assert np.array_equal(answer.top.positions, by_function.top.positions)
    if not isinstance(weighting, ad.Sampled):  # drawn by id, not by place
        expected = ad.attend(queries, keys, values, where=pairs, weighting=weighting, top=5)
        assert np.allclose(answer.value, expected.value, atol=1e-12)
        assert np.allclose(answer.weights(), expected.weights(), atol=1e-12)
        places = expected.top.positions
        assert np.array_equal(answer.top.positions, np.where(places < 0, -1, ids[places]))
    assert np.allclose(answer.weights() @ values, answer.value)


def test_queries_are_matched_to_key_columns_by_name() -> None:
    db = Database(pd.DataFrame({"x": [0.0, 1.0], "y": [5.0, 9.0]}), {"out": [1.0, 2.0]})
    nearest: dict[str, Any] = {"score": ad.Euclidean(1.0), "weighting": ad.Nearest()}
    swapped = pd.DataFrame({"y": [9.0, 5.0], "x": [1.0, 0.0]})
    for queries in (swapped, pl.from_pandas(swapped), swapped.to_dict("list"), [[1.0, 9.0], [0.0, 5.0]]):
        answer = db.attend(queries, **nearest)
        assert answer.value.tolist() == [[2.0], [1.0]]
    assert db.attend({"y": 9.0, "x": 1.0}, **nearest).value.tolist() == [[2.0]]
    assert db.attend([1.0, 9.0], **nearest).value.tolist() == [[2.0]]
    graph = {"y": torch.tensor([9.0], requires_grad=True), "x": torch.tensor([1.0])}
    assert db.attend(graph, score=ad.Gaussian(1.0)).value.requires_grad
    with pytest.raises(ad.InputError, match="queries lack the column 'y': expected 'x', 'y', found 'x'"):
        db.attend({"x": [1.0]}, **nearest)
    with pytest.raises(ad.InputError, match="have a column 'out' that is no key column"):
        db.attend({"x": [1.0], "y": [1.0], "out": [1.0]}, **nearest)
    with pytest.raises(ad.KindError, match="queries column 'y': expected numbers, found text"):
        db.attend({"x": [1.0], "y": ["a"]}, **nearest)


def test_mixed_keys_and_values_are_asked_by_column() -> None:
    db = ages()
    score = ad.PerColumn({"name": ad.EditSimilarity(), "age": ad.Gaussian(10.0)})
    queries = pd.DataFrame({"age": [51.0, 41.0], "name": ["Lu", "Li"]})
    assert db.attend(queries, score=score, values="city", weighting=ad.Nearest()).value.tolist() == ["Bern", "Ulm"]
    answer = db.attend({"name": "Lu", "age": 50.0}, score=score, values=["pay"])
    expected = ad.attend(
        {"name": ["Lu"], "age": [50.0]},
        {"name": ["Li", "Lu", "Hu"], "age": [40.0, 50.0, 60.0]},
        [1.0, 2.0, 4.0],
        score=score,
    )
    assert np.allclose(answer.value, expected.value)
    assert db.attend(queries, weighting=ad.Exact(), values="pay").empty.tolist() == [True, True]
    with pytest.raises(ad.KindError, match=r"the values are 'pay' \(numbers\), 'city' \(text\): choose with values="):
        db.attend(queries, score=score)
    with pytest.raises(ad.InputError, match="no value column 'wage': choose among 'pay', 'city'"):
        db.attend(queries, score=score, values="wage")


def test_several_value_columns_are_pooled_side_by_side_and_integers_stay_whole() -> None:
    db = Database([0.0, 1.0], {"i": np.array([2**40 + 1, 3]), "f": np.array([0.5, 1.5], dtype=np.float32)})
    answer = db.attend([[0.0]], weighting=ad.Nearest(), score=ad.Euclidean(1.0))
    assert answer.value.tolist() == [[2**40 + 1, 0.5]]
    assert db.attend([[0.0]], values=["f"], score=ad.Constant()).value.tolist() == [[1.0]]


def test_excluded_ids_exist() -> None:
    db = Database([1.0, 2.0], [1.0, 2.0], ids=[4, 9])
    assert db.attend([[1.0]], exclude=[4], score=ad.Constant()).value.tolist() == [[2.0]]
    with pytest.raises(ad.NotFoundError, match="the id 1, which no row has"):
        db.attend([[1.0]], exclude=[1], score=ad.Constant())
    with pytest.raises(ad.KindError, match="give the id of one row"):
        db.attend([[1.0]], exclude=[4.0], score=ad.Constant())


def test_missing_texts_in_values_are_an_error_unless_they_are_left_out() -> None:
    db = Database([1.0, 2.0, 3.0], {"city": ["Ulm", None, "Bern"]}, ids=[5, 6, 7])
    with pytest.raises(ad.MissingValueError, match=r"no text in 1 rows .*\(ids 6\).*where='city IS NOT NULL'"):
        db.attend([[1.0]], score=ad.Gaussian(1.0))
    answer = db.attend([[1.0]], score=ad.Gaussian(1.0), where="city IS NOT NULL")
    assert answer.value.tolist() == ["Ulm"] and answer.distribution().names.tolist() == ["Ulm", "Bern"]


# --- filter text ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("age > 40", [1, 2]),
        ("AGE > '40'", [1, 2]),
        ("name LIKE 'L%' AND NOT city = 'Ulm'", [1]),
        ("id IN (0, 2) -- two of them", [0, 2]),
        ("age > (SELECT avg(age) FROM rows)", [2]),
        ('"pay" * 2 >= 4', [1, 2]),
        ("name = 'it''s \"quoted\"'", []),
        ("round(pay) = 1 OR length(name) = 3", [0]),
        ("1", [0, 1, 2]),
        ("NULL", []),
    ],
)
def test_filter_text_selects_rows(text: str, ids: list[int]) -> None:
    db = ages()
    answer = db.attend({"name": "x", "age": 0.0}, score=ad.Constant(), where=text, values="pay", top=3)
    assert [x for x in answer.top.positions[0].tolist() if x >= 0] == ids
    assert db.delete(text) == len(ids) and len(db) == 3 - len(ids)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nme = 'x'", "no such column: nme"),
        ('name = "Li"', "no such column: Li .a text stands in single quotes, 'Li'"),
        ("", "syntax error"),
        ("age >", "syntax error"),
        ("1; DROP TABLE rows", "syntax error"),
        ("1) UNION SELECT (1", "syntax error"),
        ("1) LIMIT (1", "syntax error"),
        ("1 /*", "incomplete input"),
        ("age = ?", "binding"),
        ("name IN (SELECT name FROM sqlite_master)", "it reads sqlite_master, another table"),
        ("load_extension('x')", "function load_extension is not allowed"),
        ("random() > 0", "function random is not allowed"),
        ("id IN (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c)", "more than read"),
        ("sum(age) > 1", "aggregate"),
        ("age = 1\0", "."),
    ],
)
def test_filter_text_that_is_no_condition_is_refused_with_the_columns(text: str, reason: str) -> None:
    db = ages()
    message = rf"the filter .* cannot be read \(.*{reason}.*over the columns id, name, age, pay, city$"
    refused(db, ad.InputError, message, lambda: db.delete(text))
    with pytest.raises(ad.InputError, match=message):
        db.attend({"name": ["x"], "age": [0.0]}, score=ad.Constant(), where=text, values="pay")


def test_a_filter_knows_missing_values_wide_columns_and_whole_numbers() -> None:
    db = Database({"v": np.eye(3), "n": ["a", None, "b"]}, {"x": [1.0, np.nan, 3.0], "big": [2**53, 2**53 + 1, 0]})
    where = db._source.mask
    assert where("n <> 'a'").tolist() == [False, False, True]
    assert where("NOT n <> 'a'").tolist() == [True, False, False]
    assert where("x IS NULL AND n IS NULL").tolist() == [False, True, False]
    assert where("v_1 = 1 OR v_2 = 1").tolist() == [False, True, True]
    assert where(f"big = {2**53 + 1}").tolist() == [False, True, False]
    embeddings = Database(np.zeros((2, 3000)), [1.0, 2.0])
    assert embeddings.delete("value > 1 AND key_2999 = 0") == 1
    with pytest.raises(ad.InputError, match="upper and lower case alone"):
        Database({"a": [1.0], "A": [2.0]}, [1.0]).delete("a = 1")


# --- changes ---------------------------------------------------------------


def test_automatic_ids_are_never_given_twice() -> None:
    """G04."""
    db = Database(np.arange(10.0), np.arange(10.0))
    assert db.delete(ids=range(5)) == 5
    assert db.append(np.arange(5.0), np.arange(5.0)).tolist() == [10, 11, 12, 13, 14]
    assert db.ids.tolist() == list(range(5, 15))
    refused(db, ad.InputError, "ids 7 exist already: use upsert", lambda: db.append([1.0], [1.0], ids=[7]))
    assert db.delete("id >= 10") == 5
    assert db.append([1.0], [1.0]).tolist() == [15]
    db.delete(np.ones(len(db), dtype=bool))
    assert len(db) == 0 and db.append([1.0], [1.0]).tolist() == [16]
    answer = db.attend([[1.0]], score=ad.Constant(), top=3)
    assert answer.top.positions.tolist() == [[16, -1, -1]]
    assert db.append([2.0], [1.0], ids=[100]).tolist() == [100] and db.append([3.0], [1.0]).tolist() == [101]


def test_rows_stand_in_order_of_the_ids_that_were_given() -> None:
    db = Database([1.0, 2.0, 3.0], ["a", "b", "c"], ids=[30, 10, 20])
    assert db.ids.tolist() == [10, 20, 30] and db.to_pandas()["value"].tolist() == ["b", "c", "a"]
    assert db.append([4.0, 5.0], ["d", "e"], ids=[25, 5]).tolist() == [25, 5]
    assert db.to_pandas()["value"].tolist() == ["e", "b", "c", "d", "a"] and db.lookup(4.0) == "d"
    for ids, error, message in (
        ([1], ad.InputError, "there are 2 rows: give every row one id"),
        ([1, 1], ad.InputError, "ids name 1 more than once"),
        ([1, -1], ad.InputError, r"id -1 \(row 1\) is out of range"),
        ([1.0, 2.0], ad.KindError, "whole numbers"),
        ([True, False], ad.KindError, "whole numbers"),
    ):
        refused(db, error, message, lambda ids=ids: db.append([6.0, 7.0], ["f", "g"], ids=ids))


def test_columns_are_matched_by_name_and_others_are_refused() -> None:
    """G02: two columns of one kind in swapped order is what matters."""
    db = Database({"x": [9.0], "y": [7.0]}, {"n": [1]})
    db.append({"y": [8.0], "x": [1.5]}, pd.DataFrame({"n": [2]}))
    assert db.to_pandas().to_dict("list") == {"x": [9.0, 1.5], "y": [7.0, 8.0], "n": [1, 2]}
    for keys, values, error, message in (
        ({"x": [1.0]}, [1], ad.InputError, "keys lack 'y': expected the columns 'x', 'y', found 'x'"),
        ({"x": [1.0], "y": [1.0], "z": [1.0]}, [1], ad.InputError, "keys have an extra 'z': expected"),
        ({"x": [1.0], "y": ["a"]}, [1], ad.KindError, "keys column 'y': expected numbers, found text"),
        ({"x": [[1.0, 2.0]], "y": [1.0]}, [1], ad.InputError, "keys column 'x': expected width 1, found width 2"),
        ([[1.0, 2.0]], [1], ad.InputError, "keys have no column names .* matched by name"),
        ({"x": [1.0], "y": [1.0]}, {"m": [1]}, ad.InputError, "values lack 'n' and have an extra 'm'"),
        ({"x": [1.0], "y": [1.0]}, ["a"], ad.KindError, "values column 'n': expected numbers, found text"),
        ({"x": [1.0], "y": [1.0]}, [1, 2], ad.InputError, "keys have 1 rows but values have 2"),
    ):
        for change in (db.append, db.upsert):
            refused(db, error, message, lambda keys=keys, values=values, change=change: change(keys, values))
    wide = Database(np.eye(3), [1, 2, 3])
    message = r"keys: expected width 3, found width 1 \(one row is \[\[…\]\], of 3 numbers\)"
    refused(wide, ad.InputError, message, lambda: wide.append([1.0, 2.0, 3.0], [1, 1, 1]))


def test_appended_numbers_fit_the_column_or_are_refused() -> None:
    db = Database([1, 2], [1.0, 2.0])
    db.append([3.0], [3.0])
    assert db.to_pandas()["key"].dtype == np.int64
    db.append([3.5], [3.0])
    assert db.lookup(3.5) == 3.0 and db.to_pandas()["key"].dtype == np.float64
    large = Database([2**53 + 1], [1.0])
    refused(large, ad.InputError, "cannot hold 9007199254740993", lambda: large.append([0.5], [1.0]))
    half = Database(np.array([1.0], dtype=np.float16), [1.0])
    refused(half, ad.InputError, "cannot hold 100000", lambda: half.append([1e5], [1.0]))
    flags = Database([True, False], [1.0, 0.0])
    flags.append([True], [3.0])
    assert flags.lookup(True) == 2.0 and flags.to_pandas()["key"].dtype == bool


def test_upsert_replaces_by_id_or_by_exact_key() -> None:
    db = people()
    assert db.upsert(["Hu", "Wu", "Li"], ["Ray", "Yu", "Fei"]).tolist() == [4, 6, 2]
    assert (db.lookup("Hu"), db.lookup("Wu"), db.lookup("Li"), len(db)) == ("Ray", "Yu", "Fei", 7)
    assert db.upsert(["Hsu"], ["Max"], ids=[4]).tolist() == [4] and db.lookup("Hsu") == "Max"
    assert db.upsert(["Ng"], ["Ann"], ids=[50]).tolist() == [50] and db.append(["Xu"], ["Bo"]).tolist() == [51]
    with pytest.raises(KeyError):
        db.lookup("Hu")
    repeated = "rows 1 of keys repeat the key of an earlier row"
    refused(db, ad.InputError, repeated, lambda: db.upsert([NFC, NFD], ["a", "b"]))
    refused(db, ad.InputError, "ids name 3 more than once", lambda: db.upsert(["a", "b"], ["a", "b"], ids=[3, 3]))
    db.append(["Xu"], ["Cy"])
    refused(db, ad.InputError, r"belongs to 2 rows \(ids 51, 52\)", lambda: db.upsert(["Xu"], ["Di"]))
    mixed = ages()
    assert mixed.upsert({"age": [60], "name": ["Hu"]}, {"pay": [9.0], "city": ["Rom"]}).tolist() == [2]
    assert mixed.lookup(("Hu", 60.0)) == {"pay": 9.0, "city": "Rom"}


def test_delete_takes_one_of_a_condition_keys_and_ids() -> None:
    db = people()
    refused(db, ad.InputError, "delete was given nothing: give one of where=, keys= and ids=", lambda: db.delete())
    refused(db, ad.InputError, "given where and ids", lambda: db.delete("1", ids=[1]))
    refused(db, ad.InputError, r"where has shape \(1,\) but there are 6 rows", lambda: db.delete([True]))
    refused(db, ad.KindError, "a mask is boolean", lambda: db.delete(np.ones(6)))
    refused(db, ad.KindError, "not a function", lambda: db.delete(lambda i, j: j > 1))
    refused(db, ad.KindError, "expected text, found numbers", lambda: db.delete(keys=[1.0]))
    assert db.delete(ids=[0, 0, 77]) == 1
    assert db.delete(keys="Hu") == 1 and db.delete(keys=["Hu", "nobody"]) == 0 and db.delete(keys=[]) == 0
    assert db.delete(torch.tensor([True, False, False, False])) == 1
    assert db.to_pandas()["key"].tolist() == ["Li", "Smola", "Werness"]


# --- nothing in it ---------------------------------------------------------------


def test_an_empty_table_answers_and_fills() -> None:
    """S01."""
    db = Database(np.zeros((0, 2)), np.zeros((0, 3)))
    for plan in (None, "dense"):
        answer = db.attend(np.ones((4, 2)), top=2, plan=plan)
        assert answer.value.tolist() == [[0.0] * 3] * 4 and answer.empty.all() and answer.weights().shape == (4, 0)
        assert set(answer.top.positions.reshape(-1).tolist()) <= {-1}
    assert db.attend(np.ones((0, 2))).value.shape == (0, 3)
    assert len(db) == 0 and repr(db).startswith("Database of 0 rows") and len(db.to_pandas()) == 0
    assert len(db.lookup_all([1.0, 2.0])) == 0 and db.delete("1") == 0 and db.delete(keys=[[1.0, 2.0]]) == 0
    with pytest.raises(KeyError):
        db.lookup([1.0, 2.0])
    assert (
        db.append([[1.0, 2.0]], [[1.0, 2.0, 3.0]]).tolist() == [0]
        and db.append(np.zeros((0, 2)), np.zeros((0, 3))).size == 0
    )
    assert db.attend(np.ones((0, 2))).weights().shape == (0, 1)


def test_the_first_rows_decide_the_columns_of_a_table_of_empty_lists() -> None:
    first: list[tuple[Any, Any]] = [(SURNAMES, NAMES), ([[1.0, 2.0]], [3]), ({"a": [1.0], "b": ["x"]}, {"c": [1.0]})]
    for keys, values in first:
        db = Database([], [])
        assert repr(db) == "Database of 0 rows\n  key (unknown) → value (unknown)"
        with pytest.raises(KeyError):
            db.lookup("Li")
        assert db.delete(keys=["Li"]) == 0 and db.delete("1") == 0 and len(db.to_pandas()) == 0
        db.append(keys, values)
        assert state(db) == state(Database(keys, values))
    db = Database([], [])
    assert db.attend("Li", score=ad.EditSimilarity()).empty.tolist() == [True]
    assert db.attend([[1.0, 2.0]]).value.tolist() == [[0.0]]
    named = Database(pd.DataFrame({"a": []}, dtype=object), {"v": []})
    named.append({"a": ["x"]}, {"v": ["y"]})
    assert named.lookup("x") == "y"


# --- copies and threads ---------------------------------------------------------------


def test_copies_and_pickles_are_tables_of_their_own() -> None:
    db = people()
    assert db.lookup("Li") == "Mu"
    for other in (copy.copy(db), copy.deepcopy(db), pickle.loads(pickle.dumps(db))):
        assert state(other) == state(db) and other.lookup("Li") == "Mu"
        other.delete(keys=["Li"])
        assert other.append(["A"], ["B"]).tolist() == [6]
        assert len(db) == 6 and db.lookup("Li") == "Mu"
    computed = torch.ones(2, requires_grad=True) * 2
    graph = Database([1.0, 2.0], computed)
    assert copy.copy(graph).attend(torch.tensor([[1.0]])).value.requires_grad
    assert not copy.deepcopy(graph).attend(torch.tensor([[1.0]])).value.requires_grad


def test_questions_see_one_state_while_others_change_the_table() -> None:
    db = Database(np.zeros(50), np.ones(50))
    stop, failures = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                answer = db.attend([[0.0]], where="value = 1", score=ad.Constant())
                assert answer.value.tolist() == [[1.0]] and db.lookup(0.0) == 1.0
            except Exception as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    writers = [threading.Thread(target=lambda: [db.append([0.0], [1.0]) for _ in range(20)]) for _ in range(3)]
    for writer in writers:
        writer.start()
    for thread in writers:
        thread.join()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures and db.ids.tolist() == list(range(110))


def test_a_source_gives_its_rows_in_blocks_and_by_id() -> None:
    source = ages()._source
    assert isinstance(source, Memory)
    blocks = list(source.blocks(size=2))
    assert [block.positions.tolist() for block in blocks] == [[0, 1], [2]]
    assert blocks[1].keys["name"].rows.tolist() == ["Hu"]  # type: ignore[union-attr]
    taken = source.take(np.array([2, 0]))
    assert taken.values["pay"].tolist() == [[4.0], [1.0]]  # type: ignore[union-attr]
    with pytest.raises(ad.NotFoundError, match="no row has the id 9"):
        source.take(np.array([0, 9]))
