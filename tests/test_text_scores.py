"""Text scores, Equal and PerColumn, called by themselves: values, missing text, gradients, every error message."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attendb.columns import Opaque, count_rows, cut, take_rows
from attendb.errors import AttendbError, InputError, KindError
from attendb.reading import read_columns
from attendb.scores.base import Score
from attendb.scores.columns import PerColumn
from attendb.scores.distance import Gaussian
from attendb.scores.dot import Bilinear, Dot
from attendb.scores.equal import Equal
from attendb.scores.text import EditSimilarity, NGramSimilarity, TextScore, count_ngrams, fold

INF = math.inf
EDITS = [EditSimilarity(measure) for measure in EditSimilarity.measures]
TEXT_SCORES = [*EDITS, NGramSimilarity(), NGramSimilarity(1), NGramSimilarity((2, 5))]


def scores_of(score: Score, queries: Any, keys: Any) -> list[list[float]]:
    out = score(queries, keys)
    return out.reshape(out.shape[-2:]).tolist()


def name_of(score: Score) -> str:
    return repr(score)


# --- text: one form for both sides --------------------------------------------------------------------------------


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("ＡＢＣ", "abc"),
        ("ﬁn", "fin"),
        ("a\u00a0b", "a b"),
        ("ca\u200bfe", "cafe"),
        ("STRASSE", "straße"),
        ("\ufeffid", "id"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_the_same_word_in_two_unicode_forms_is_one_word(score: Score, one: str, other: str) -> None:
    assert scores_of(score, [one], [other]) == [[1.0]]


def test_raw_compares_the_texts_as_they_are() -> None:
    assert scores_of(EditSimilarity(raw=True), ["caf\u00e9"], ["cafe\u0301"])[0][0] == pytest.approx(1 - 2 / 5)
    assert scores_of(EditSimilarity(raw=True), ["Li"], ["li", "Li"]) == [[0.5, 1.0]]
    assert scores_of(NGramSimilarity(1, raw=True), ["AB"], ["ab", "AB"]) == [[0.0, 1.0]]


def test_stored_text_is_unchanged() -> None:
    rows = np.array(["Cafe\u0301", "ＡＢＣ", None], dtype=object)
    before = rows.copy()
    for score in (*TEXT_SCORES, Equal()):
        score(Opaque(rows), Opaque(rows))
    assert rows.tolist() == before.tolist()


def test_folding_is_idempotent_on_every_character() -> None:
    folded = [fold(chr(code)) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert [text for text in folded if fold(text) != text] == []


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
def test_symbols_count_on_both_sides(score: Score) -> None:
    cplusplus = scores_of(score, ["C++"], ["C", "C#", "C++"])[0]
    assert cplusplus[2] == 1.0
    assert scores_of(score, ["a, b"], ["a, b"]) == [[1.0]]
    number = scores_of(score, ["test №"], ["test", "test №"])[0]
    assert number[1] == 1.0
    if repr(score) != "EditSimilarity('partial')":  # "c" is a part of "c++"
        assert max(cplusplus[:2]) < 1.0 and number[0] < 1.0
    if isinstance(score, NGramSimilarity) and score.n[0] > 1:
        assert cplusplus[0] < 1.0


def test_texts_of_one_character_and_texts_without_spaces_are_found() -> None:
    score = NGramSimilarity()
    found = scores_of(score, ["1", "2", "4"], ["1 2", "3 4"])
    assert found[0][0] > 0 and found[0][1] == 0
    assert found[1][0] > 0 and found[1][1] == 0
    assert found[2][0] == 0 and found[2][1] > 0
    assert scores_of(NGramSimilarity(2), ["A", "B", "C"], ["A", "B", "C"]) == np.eye(3).tolist()
    japanese = scores_of(score, ["東京"], ["東京都に住む", "大阪に住む", "plain"])[0]
    assert japanese[0] > max(japanese[1:]) == 0
    assert scores_of(score, ["the of", "🙂"], ["zebra", "quick"]) == [[0.0, 0.0]] * 2
    middle = scores_of(score, ["b"], ["a b c", "abc"])[0]  # a whole word wherever it stands
    assert middle[0] > middle[1]


def test_ngram_similarity_is_the_cosine_of_padded_counts() -> None:
    # "ab" and "abab": padded " ab ", " abab "; counts over " a", "ab", "b ", "ba": (1,1,1,0) and (1,2,1,1)
    assert scores_of(NGramSimilarity(2), ["ab"], ["abab"])[0][0] == pytest.approx(4 / math.sqrt(3 * 7), abs=1e-15)
    # "  a", " a ", "a  " beside "  a", " ab", "ab ", "b  "
    assert scores_of(NGramSimilarity(3), ["a"], ["ab"])[0][0] == pytest.approx(1 / math.sqrt(3 * 4), abs=1e-15)
    assert scores_of(NGramSimilarity(1), ["aab"], ["b"])[0][0] == pytest.approx(1 / math.sqrt(5), abs=1e-15)


def naive_cosine(one: str, other: str, shortest: int, longest: int) -> float:
    def counts(text: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for n in range(shortest, longest + 1) if text else ():
            padded = " " * (n - 1) + text + " " * (n - 1)
            for at in range(len(padded) - n + 1):
                out[padded[at : at + n]] = out.get(padded[at : at + n], 0) + 1
        return out

    a, b = counts(one), counts(other)
    if not a or not b:
        return float(a == b)
    product = sum(count * b.get(gram, 0) for gram, count in a.items())
    return product / math.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))


@given(
    st.lists(st.text(max_size=9), min_size=1, max_size=5),
    st.lists(st.text(max_size=9), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (2, 3), (1, 4), (5, 6)]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_ngram_similarity_agrees_with_the_dictionaries(q: list[str], k: list[str], n: tuple[int, int]) -> None:
    got = scores_of(NGramSimilarity(n, raw=True), Opaque(np.array(q, object)), Opaque(np.array(k, object)))
    assert np.allclose(got, [[naive_cosine(x, y, *n) for y in k] for x in q], atol=1e-14)


def test_long_ngrams_with_neighbouring_last_characters_are_told_apart() -> None:
    counts = count_ngrams(["aaaa" + chr(code) for code in range(0x61, 0x81)], 5, 5)
    assert len(set(counts.indices.tolist())) == counts.nnz - 31 * 4  # the four that start with a space are shared


def test_counting_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "abc", "東京都", "a b", "abcabc", ""] * 3
    whole = count_ngrams(texts, 2, 4)
    monkeypatch.setattr("attendb.scores.text.CHUNK_CHARACTERS", 4)
    cuts = count_ngrams(texts, 2, 4)
    assert (whole.indptr == cuts.indptr).all() and (whole.indices == cuts.indices).all()
    assert (whole.data == cuts.data).all()


# --- text: the same alone and in a batch --------------------------------------------------------------------------


def test_partial_similarity_is_not_rounded() -> None:
    score = EditSimilarity("partial")
    for queries, keys in ((["LIFE"], ["MYSTERY"]), (["LIFE"] * 70, ["MYSTERY", "LIFE", "x"] * 50)):
        assert score(queries, keys).dtype == torch.float64
        assert scores_of(score, queries, keys)[0][0] == pytest.approx(0.285714285714285714, abs=1e-15)


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
def test_a_pair_scores_the_same_alone_and_in_a_batch(score: Score) -> None:
    rng = np.random.default_rng(0)

    def words(count: int) -> list[str]:
        return ["".join(rng.choice(list("abcdé 東"), rng.integers(0, 80))) for _ in range(count)]

    queries, keys = words(9), words(21)
    together = scores_of(score, queries, keys)
    assert together == [[scores_of(score, [q], [k])[0][0] for k in keys] for q in queries]
    assert np.min(together) >= 0 and np.max(together) <= 1
    assert np.array_equal(scores_of(score, keys, queries), np.transpose(together))


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
def test_threads_change_nothing(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = ["night", "Nacht", "", "день"], ["nacht", "nuit", "日", "night"]
    alone = scores_of(score, queries, keys)
    monkeypatch.setattr("attendb.scores.text.PARALLEL_PAIRS", 1)
    assert scores_of(score, queries, keys) == alone


@pytest.mark.parametrize("score", [*TEXT_SCORES, Equal()], ids=name_of)
def test_embedded_texts_can_be_cut_and_taken_by_rows(score: Score) -> None:
    queries = read_columns(["Li", None, "Hu", "東京"], "queries")
    keys = read_columns(["Lipton", "hu", "Li", None, "東", ""], "keys")
    anchor = score.anchor(keys)
    q, k = score.embed_queries(queries, anchor), score.embed_keys(keys, anchor)
    assert count_rows(q) == 4 and count_rows(k) == 6
    full = score.pair(q, k)
    assert full.shape == (1, 4, 6)
    everything = slice(None)
    part = score.pair(cut(q, everything, slice(1, 3)), cut(k, everything, slice(2, 6)))
    assert torch.equal(part, full[:, 1:3, 2:6])
    some = torch.tensor([5, 0, 0])
    assert torch.equal(score.pair(q, take_rows(k, some)), full[..., some])
    assert score.pair(q, cut(k, everything, slice(0, 0))).shape == (1, 4, 0)
    assert score.pair(cut(q, everything, slice(0, 0)), k).shape == (1, 0, 6)
    assert score.scratch(q, k) >= 1 and score.factors(q, k) is None and score.lost_digits(q, k) == 0


# --- text: missing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
def test_missing_text_matches_nothing(score: Score) -> None:
    keys = ["nancy", None, float("nan"), "", " ", pd.NA, np.datetime64("NaT"), pd.NaT]
    found = scores_of(score, ["nancy"], Opaque(np.array(keys, dtype=object)))[0]
    assert found[0] == 1.0 and max(found[1:]) < 1.0
    assert [position for position, x in enumerate(found) if x == -INF] == [1, 2, 5, 6, 7]
    assert scores_of(score, Opaque(np.array([None], object)), ["nancy", "nan", "None", ""]) == [[-INF] * 4]
    assert scores_of(score, Opaque(np.array([None], object)), Opaque(np.array([None, float("nan")], object))) == [
        [-INF, -INF]
    ]


@pytest.mark.parametrize("kind", [EditSimilarity, NGramSimilarity])
def test_missing_text_scores_what_the_options_say(kind: Any) -> None:
    queries, keys = ["a", None], ["a", None]
    assert scores_of(kind(one_missing=0), queries, keys) == [[1.0, 0.0], [0.0, -INF]]
    assert scores_of(kind(both_missing=1), queries, keys) == [[1.0, -INF], [-INF, 1.0]]
    assert scores_of(kind(one_missing=0.25, both_missing=0.5), queries, keys) == [[1.0, 0.25], [0.25, 0.5]]


@pytest.mark.parametrize("score", TEXT_SCORES, ids=name_of)
def test_an_empty_text_equals_an_empty_text_only(score: Score) -> None:
    assert scores_of(score, [""], ["", "a", "\u200b"]) == [[1.0, 0.0, 1.0]]


# --- text: options and errors -------------------------------------------------------------------------------------


def test_measures_have_their_textbook_values() -> None:
    pair = (["MARTHA"], ["MARHTA"])
    assert scores_of(EditSimilarity(), *pair)[0][0] == pytest.approx(1 - 2 / 6)
    assert scores_of(EditSimilarity("indel"), *pair)[0][0] == pytest.approx(1 - 2 / 12)
    assert scores_of(EditSimilarity("jaro_winkler"), *pair)[0][0] == pytest.approx(0.9611111111, abs=1e-9)
    assert scores_of(EditSimilarity("partial"), ["Li"], ["Lipton"]) == [[1.0]]
    assert scores_of(EditSimilarity(), ["Lu"], ["Zhang", "Li", "Hu"]) == [[0.0, 0.5, 0.5]]


def test_text_scores_describe_themselves() -> None:
    assert repr(EditSimilarity()) == "EditSimilarity('levenshtein')"
    assert (
        repr(EditSimilarity("indel", raw=True, one_missing=0)) == "EditSimilarity('indel', raw=True, one_missing=0.0)"
    )
    assert repr(NGramSimilarity()) == "NGramSimilarity((2, 3))"
    assert repr(NGramSimilarity(2, both_missing=1)) == "NGramSimilarity(2, both_missing=1.0)"
    assert {score.default_weighting for score in TEXT_SCORES} == {"Softmax"}
    assert {score.takes for score in TEXT_SCORES} == {"text"}
    assert PerColumn.default_weighting == "Softmax" and Equal.default_weighting == "Normalized"


ERRORS: list[tuple[Any, type[AttendbError], str]] = [
    (
        lambda: EditSimilarity("cosine"),
        InputError,
        "measure must be one of 'levenshtein', 'indel', 'jaro_winkler', 'partial', got 'cosine'",
    ),
    (lambda: EditSimilarity(one_missing="0"), KindError, "one_missing must be a number or None, got str"),  # type: ignore[arg-type]
    (lambda: NGramSimilarity(both_missing=math.nan), InputError, "both_missing must be a number or None, got NaN"),
    (lambda: NGramSimilarity(0), InputError, "n must be a whole number ≥ 1 or (shortest, longest), got 0"),
    (lambda: NGramSimilarity((3, 2)), InputError, "n must be a whole number ≥ 1 or (shortest, longest), got (3, 2)"),
    (lambda: NGramSimilarity(2.5), InputError, "n must be a whole number ≥ 1 or (shortest, longest), got 2.5"),  # type: ignore[arg-type]
    (
        lambda: EditSimilarity()([1.0], ["a"]),
        KindError,
        "queries are numbers but EditSimilarity compares text: use a score of numbers such as Gaussian, or Equal",
    ),
    (
        lambda: NGramSimilarity()(["a"], [[1.0, 2.0]]),
        KindError,
        "keys are numbers but NGramSimilarity compares text: use a score of numbers such as Gaussian, or Equal",
    ),
    (
        lambda: EditSimilarity()({"name": ["a"]}, {"name": ["a"]}),
        KindError,
        "queries are mixed columns but EditSimilarity compares one text column: "
        "use PerColumn({column: EditSimilarity(), …})",
    ),
    (
        lambda: EditSimilarity()(["a"], Opaque(np.array(["a", b"b"], dtype=object))),
        KindError,
        "keys have bytes b'b' in row 1 but EditSimilarity compares text: turn the column into text with str",
    ),
    (
        lambda: Equal()(["a"], [1.0]),
        KindError,
        "queries are text but keys are numbers (score=Equal): give both as numbers",
    ),
    (
        lambda: Equal()([[1.0, 2.0]], [[1.0], [2.0]]),
        InputError,
        "keys have width 1 but queries have width 2 (score=Equal): give queries every column of the keys",
    ),
    (
        lambda: Equal()([1.0], {"a": [1.0], "b": ["x"]}),
        KindError,
        "queries are numbers but keys are mixed columns (score=Equal): give both as mixed columns",
    ),
    (
        lambda: Equal()({"a": [1.0]}, {"a": [1.0], "b": ["x"]}),
        InputError,
        "queries have column 'a' but keys have columns 'a', 'b' (score=Equal): give both the same columns, "
        "or name some of them in PerColumn",
    ),
    (
        lambda: Equal()({"a": [1.0]}, {"a": ["x"]}),
        KindError,
        "column 'a': queries are numbers but keys are text (score=Equal): give both as text",
    ),
    (
        lambda: Equal()({"a": [[1.0, 2.0]]}, {"a": [1.0]}),
        InputError,
        "column 'a': keys have width 1 but queries have width 2 (score=Equal): give queries every column of the keys",
    ),
    (
        lambda: Equal()(["a"], Opaque(np.array([{"x": 1}], dtype=object))),
        KindError,
        "Equal cannot compare dict {'x': 1}: give text, numbers or other hashable values",
    ),
    (lambda: PerColumn([Equal()]), KindError, "PerColumn takes a dict of column: score, got list"),  # type: ignore[arg-type]
    (lambda: PerColumn({}), InputError, "PerColumn was given no column: name at least one, PerColumn({column: score})"),
    (lambda: PerColumn({"a": Equal}), KindError, "column 'a': score is the class Equal: create it, Equal(…)"),
    (
        lambda: PerColumn({"a": Dot(), "b": Equal()})([1.0], {"a": [1.0], "b": [1.0]}),
        KindError,
        "queries are numbers without names but PerColumn compares columns by name: "
        "give a dict with the columns 'a', 'b'",
    ),
    (
        lambda: PerColumn({"a": Dot(), "b": Equal()})({"a": [1.0], "b": ["x"]}, {"a": [1.0], "c": [2.0]}),
        InputError,
        "keys have no column 'b' (score=PerColumn): their columns are 'a', 'c'",
    ),
    (
        lambda: PerColumn({"name": EditSimilarity()})({"name": [1.0]}, {"name": ["x"]}),
        KindError,
        "column 'name': queries are numbers but EditSimilarity compares text: "
        "use a score of numbers such as Gaussian, or Equal",
    ),
    (
        lambda: PerColumn({"name": EditSimilarity()})({"name": ["x"]}, {"name": Opaque(np.array([7], object))}),
        KindError,
        "column 'name': keys have int 7 in row 0 but EditSimilarity compares text: turn the column into text with str",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=[message[:60] for _, _, message in ERRORS])
def test_errors_say_what_where_got_fix(call: Any, kind: type[AttendbError], message: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(message) + "$"):
        call()


def test_a_text_score_of_your_own_needs_only_similarity() -> None:
    class SameInitial(TextScore):
        def similarity(self, queries: Opaque, keys: Opaque) -> np.ndarray:
            return np.array([[q[:1] == k[:1] for k in keys.rows] for q in queries.rows], dtype=float)

    assert scores_of(SameInitial(), ["li", "Hu"], ["Lipton", None, "HO"]) == [[1.0, -INF, 0.0], [0.0, -INF, 1.0]]
    with pytest.raises(TypeError, match=r"abstract method '?similarity"):
        TextScore()  # type: ignore[abstract]


# --- Equal --------------------------------------------------------------------------------------------------------


def test_equal_numbers_are_equal_in_every_column() -> None:
    assert scores_of(Equal(), [[1.0, 2.0], [0.0, INF]], [[1.0, 2.0], [1.0, 3.0], [-0.0, INF]]) == [
        [1.0, 0.0, 0.0],
        [0.0, 0.0, 1.0],
    ]
    assert scores_of(Equal(), [3], [1, 3, 3]) == [[0.0, 1.0, 1.0]]
    assert Equal()(torch.zeros(2, 0), torch.zeros(3, 0)).tolist() == [[1.0] * 3] * 2
    assert Equal()(torch.zeros(0, 2), torch.zeros(3, 2)).shape == (0, 3)
    assert Equal()(torch.zeros(2, 2), torch.zeros(0, 2)).shape == (2, 0)


def test_equal_keeps_batch_axes_and_dtype() -> None:
    queries, keys = torch.arange(12).reshape(2, 3, 2).float(), torch.arange(12).reshape(1, 6, 2).float()
    out = Equal()(queries, keys)
    assert out.dtype == torch.float32
    assert torch.equal(out.reshape(6, 6), torch.eye(6))
    assert Equal()(queries.half(), keys.half()).dtype == torch.float16
    assert Equal()(queries.half(), keys.bfloat16()).dtype == torch.float32


def test_equal_reports_nan_numbers_as_nan_scores() -> None:
    out = torch.tensor(scores_of(Equal(), [[1.0, 2.0], [math.nan, 2.0]], [[1.0, 2.0], [1.0, math.nan], [9.0, 9.0]]))
    assert out.isnan().tolist() == [[False, True, False], [True, True, True]]
    assert out[0, 0] == 1 and out[0, 2] == 0


def test_equal_texts_are_equal_in_nfc_and_missing_equals_nothing() -> None:
    queries = ["caf\u00e9", "Li", "li", None]
    keys = ["cafe\u0301", "Li", None, float("nan"), pd.NA]
    expected = [[1.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0], [0.0] * 5, [0.0] * 5]
    assert scores_of(Equal(), queries, Opaque(np.array(keys, object))) == expected


def test_equal_takes_other_objects_but_never_text_for_numbers() -> None:
    rows = np.array([1, "1", (1, 2), np.datetime64("2020-01-01")], dtype=object)
    assert scores_of(Equal(), Opaque(rows), Opaque(rows)) == np.eye(4).tolist()


def test_equal_mixed_columns_are_equal_when_all_are() -> None:
    queries = {"city": ["Rome", "Oslo"], "year": [2000, 2001]}
    keys = {"year": [2000, 2000, 2001], "city": ["Rome", "Oslo", "Oslo"]}  # another order
    assert scores_of(Equal(), queries, keys) == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    year = torch.tensor([2000.0, 2001.0])
    assert Equal()({**queries, "year": year}, {"year": year, "city": ["Rome", "Oslo"]}).dtype == torch.float32
    assert scores_of(Equal(), {"a": ["x"], "b": [None]}, {"a": ["x"], "b": [None]}) == [[0.0]]


# --- PerColumn ----------------------------------------------------------------------------------------------------


def mixed(dtype: torch.dtype = torch.float64) -> tuple[dict[str, Any], dict[str, Any]]:
    queries = {"name": ["Li", "Hu"], "place": torch.tensor([[0.0, 1.0], [2.0, 0.5]], dtype=dtype)}
    keys = {
        "place": torch.tensor([[0.5, 1.0], [1.0, 1.0], [2.0, 0.0]], dtype=dtype),
        "name": ["Lu", None, "Hu"],
        "unused": [1, 2, 3],
    }
    return queries, keys


def test_per_column_is_the_weighted_sum() -> None:
    queries, keys = mixed()
    score = PerColumn({"name": EditSimilarity(one_missing=0.0), "place": Gaussian(2.0)})
    with torch.no_grad():
        score.weights.copy_(torch.tensor([3.0, 0.5]))
    expected = 3 * EditSimilarity(one_missing=0.0)(queries["name"], keys["name"])
    expected = expected + 0.5 * Gaussian(2.0)(queries["place"], keys["place"])
    torch.testing.assert_close(score(queries, keys), expected, rtol=0, atol=1e-15)


def test_per_column_takes_functions_and_any_column_name() -> None:
    names = ("keys", "a.b", "")
    score = PerColumn({"keys": lambda q, k: q @ k.transpose(-1, -2), "a.b": Equal(), "": Dot()})
    assert score.names == names
    two, three = {name: [2.0] for name in names}, {name: [2.0, 3.0] for name in names}
    assert scores_of(score, two, three) == [[9.0, 12.0]]
    numbered = PerColumn({0: Dot()})  # type: ignore[dict-item]
    assert scores_of(numbered, {0: [2.0]}, {0: [3.0]}) == [[6.0]]


def test_per_column_is_of_the_dtype_of_its_numbers() -> None:
    score = PerColumn({"name": EditSimilarity(one_missing=0.0), "place": Gaussian(2.0)})
    assert score(*mixed(torch.float32)).dtype == torch.float32
    assert score(*mixed(torch.float64)).dtype == torch.float64
    assert PerColumn({"name": EditSimilarity()})({"name": ["a"]}, {"name": ["b"]}).dtype == torch.float64


@pytest.mark.parametrize("weight", [1.0, 0.0, -2.0])
def test_missing_text_stays_absent_whatever_the_weight(weight: float) -> None:
    queries, keys = mixed()
    score = PerColumn({"name": EditSimilarity(), "place": Gaussian(2.0)}, learn=True)
    with torch.no_grad():
        score.weights[0] = weight
    out = score(queries, keys)[0]
    assert out[:, 1].tolist() == [-INF, -INF] and out[:, [0, 2]].isfinite().all()
    out.softmax(-1).square().sum().backward()
    assert score.weights.grad is not None and score.weights.grad.isfinite().all()


def test_a_nan_number_is_not_hidden_by_a_missing_text() -> None:
    queries, keys = mixed()
    keys["place"][1, 0] = math.nan
    assert PerColumn({"name": EditSimilarity(), "place": Gaussian(2.0)})(queries, keys)[0, :, 1].isnan().all()


def test_per_column_gradients() -> None:
    queries, keys = mixed()
    score = PerColumn(
        {"name": EditSimilarity(), "place": Gaussian(2.0, learn=True), "where": Bilinear(2, 2)}, learn=True
    )
    bilinear = score.parts[2]
    assert isinstance(bilinear, Bilinear)

    def pooled(place_q: Tensor, place_k: Tensor, weights: Tensor, theta: Tensor, form: Tensor) -> Tensor:
        given_parameters = {"weights": weights, "parts.1.scale.theta": theta, "parts.2.weight": form}
        q = {**queries, "place": place_q, "where": place_q}
        k = {**keys, "place": place_k, "where": place_k}
        return torch.func.functional_call(score, given_parameters, (q, k)).softmax(-1)

    start = torch.tensor([0.7, 1.3, -0.4], dtype=torch.float64)
    inputs = [queries["place"], keys["place"], start, torch.tensor(0.1, dtype=torch.float64), bilinear.weight.double()]
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(pooled, leaves)
    assert torch.autograd.gradgradcheck(pooled, leaves)


def test_per_column_is_created_frozen() -> None:
    score = PerColumn({"name": EditSimilarity(), "place": Gaussian(2.0)})
    assert not any(parameter.requires_grad for parameter in score.parameters())
    assert not score(*mixed()).requires_grad
    learns = PerColumn({"name": EditSimilarity(), "place": Gaussian(2.0)}, learn=True)
    assert [name for name, p in learns.named_parameters() if p.requires_grad] == ["weights"]


def test_per_column_passes_on_what_its_parts_say() -> None:
    queries, keys = mixed()
    far = {"name": ["a"], "place": torch.tensor([[1e4, 0.0]])}
    score = PerColumn({"name": NGramSimilarity(), "place": Gaussian(1.0)})
    q, k = (read_columns(x, "keys") for x in (queries, keys))
    anchor = score.anchor(k)
    parts = score.embed_queries(q, anchor), score.embed_keys(k, anchor)
    assert score.scratch(*parts) == NGramSimilarity().scratch(*parts)
    assert score.lost_digits(*parts) < score.lost_digits(score.embed_queries(read_columns(far, "q"), anchor), parts[1])
    assert score.factors(*parts) is None


def test_per_column_describes_itself() -> None:
    score = PerColumn({"name": EditSimilarity(), "city": Equal()}, learn=True)
    assert (
        repr(score) == "PerColumn(\n  1 × 'name': EditSimilarity('levenshtein')\n  1 × 'city': Equal()\nweights learn)"
    )
    assert repr(PerColumn({"city": Equal()})) == "PerColumn(\n  1 × 'city': Equal()\n)"
