"""The picture of one prediction: its numbers, what a figure and a page show of them, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attendb.errors import InputError
from attendb.estimators import AttentionClassifier, AttentionRegressor
from attendb.estimators.cases import Cases
from attendb.estimators.encoding import Rows
from attendb.estimators.explaining import Explanation, Row, explanations
from attendb.estimators.features import Features
from attendb.estimators.picture import BROUGHT, COLUMNS, answer_in_words, draw, page, shown, write
from attendb.estimators.similarity import Similarity

random = np.random.default_rng(0)
M = 150
TABLE = pd.DataFrame(
    {
        "width": random.normal(size=M),
        "height": 100 * random.normal(size=M),
        "town": random.choice(["Ulm", "Kiel", "Bonn"], M),
    }
)
TABLE.loc[::7, "height"] = np.nan
Y = np.sin(TABLE.width) + (TABLE.town == "Kiel") + TABLE.height.fillna(50) / 100
ASKED = pd.DataFrame({"width": [0.1, -1.0], "height": [20.0, np.nan], "town": ["Kiel", "Ulm"]})


@pytest.fixture(scope="module", params=["bandwidth", "linear"])
def model(request: pytest.FixtureRequest) -> AttentionRegressor:
    return AttentionRegressor(request.param, random_state=0).fit(TABLE, Y)


def made(weights: list[float] = [0.6, 0.3], changes: list[list[float]] = [[0.0, 2.0], [4.0, -1.0]]) -> Explanation:  # noqa: B006
    rows = [
        Row(f"row {i}", weight, 10.0 * i, {"a": 1.5 + i, "b": "x"}, dict(zip("ab", change, strict=True)))
        for i, (weight, change) in enumerate(zip(weights, changes, strict=True))
    ]
    return Explanation("output", 4.25, {"a": 1.0, "b": "y"}, rows)


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def boxes_of(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


# --- numbers -------------------------------------------------------------------------------------------------------


def test_answers_rows_and_weights_are_those_of_the_model(model):
    found = explanations(model, ASKED, top=4, value="y", level=0.8)
    cases, low_high = model.explain(ASKED, top=4), model.predict_interval(ASKED, level=0.8)
    for i, one in enumerate(found):
        mine = cases[cases["query"] == i]
        assert one.answer == pytest.approx(model.predict(ASKED)[i])
        assert one.interval == pytest.approx(low_high[i])
        assert [row.name for row in one.rows] == [f"row {row}" for row in mine["row"]]
        assert [row.weight for row in one.rows] == mine["weight"].tolist()
        assert [row.target for row in one.rows] == pytest.approx(Y.iloc[mine["row"]].tolist())
        assert [row.columns["town"] for row in one.rows] == TABLE.town.iloc[mine["row"]].tolist()
        assert one.captured == pytest.approx(mine["weight"].sum())


def test_bandwidth_changes_add_up_to_the_distance_that_the_weights_say():
    """log α_i − log α_j = Σ change_j − Σ change_i, with cells missing and categories."""
    model = AttentionRegressor("bandwidth", random_state=0).fit(TABLE, Y)
    for one in explanations(model, ASKED, top=8):
        total = np.array([sum(row.changes.values()) for row in one.rows])
        logs = np.log([row.weight for row in one.rows])
        np.testing.assert_allclose(logs - logs[0], total[0] - total, atol=1e-9)


def test_bandwidth_changes_are_squares_of_scaled_differences():
    numbers = TABLE[["width"]].assign(depth=np.cos(np.arange(M)))
    model = AttentionRegressor("bandwidth", random_state=0).fit(numbers, numbers.width**2 + numbers.depth)
    (one,) = explanations(model, pd.DataFrame({"width": [0.3], "depth": [0.2]}), top=20)
    for name, asked in one.asked.items():
        ratios = [row.changes[name] / (row.columns[name] - asked) ** 2 for row in one.rows]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9)
        assert ratios[0] > 0
    assert sum(one.shares.values()) == pytest.approx(1)


def test_changes_are_those_of_the_score_when_a_cell_is_replaced(model):
    """By hand: the query is asked again with the cell of the row, in the table itself."""
    (member,) = model._members
    found = explanations(model, ASKED, top=3)
    for i, one in enumerate(found):
        for row in one.rows:
            case = TABLE.iloc[[int(row.name.split()[1])]]
            for name in TABLE:
                swapped = ASKED.iloc[[i]].assign(**{name: case[name].to_numpy()})
                phi, new, key = (
                    member.embed(model.encoder_.encode(x.reset_index(drop=True)))[0]
                    for x in (ASKED.iloc[[i]], swapped, case)
                )
                change = 0.5 * (phi - key).square().sum() - 0.5 * (new - key).square().sum()
                assert row.changes[name] == pytest.approx(float(change), abs=1e-9)


def test_a_cell_that_is_equal_changes_nothing(model):
    for one in explanations(model, ASKED, top=10):
        for row in one.rows:
            for name, asked in one.asked.items():
                if row.columns[name] == asked or row.columns[name] != row.columns[name] and asked != asked:
                    assert row.changes[name] == pytest.approx(0, abs=1e-12)


def test_the_numbers_of_a_text_are_replaced_together():
    streets = [f"{random.choice(['North', 'Lake', 'Mill'])} Street {i}" for i in range(80)]
    table = pd.DataFrame({"street": streets, "x": random.normal(size=80)})
    y = np.array(["Lake" in street for street in streets]) + 0.1 * table.x
    model = AttentionRegressor("bandwidth", random_state=0).fit(table, y)
    assert len(model.encoder_.numbers) > 2
    (one,) = explanations(model, pd.DataFrame({"street": ["Lake Street 100"], "x": [0.0]}), top=5)
    logs = np.log([row.weight for row in one.rows])
    total = np.array([sum(row.changes.values()) for row in one.rows])
    np.testing.assert_allclose(logs - logs[0], total[0] - total, atol=1e-9)


def test_several_similarities_are_averaged():
    model = AttentionRegressor("linear", random_state=0, n_models=2).fit(TABLE[:60], Y[:60])
    both = explanations(model, ASKED, top=3)
    single = []
    for member in model._members:
        model._members, kept = [member], model._members
        single.append(dict_of(model))
        model._members = kept
    for row in both[0].rows:
        for name in TABLE:
            assert row.changes[name] == pytest.approx(np.mean([x[row.name, name] for x in single]), abs=1e-9)


def dict_of(model: AttentionRegressor) -> dict[tuple[str, str], float]:
    """The changes of all rows for the first query."""
    one = explanations(model, ASKED[:1], top=60)[0]
    return {(row.name, name): change for row in one.rows for name, change in row.changes.items()}


class Corrected(Similarity):
    """φ: the standardised columns; g: three times the first, in units of the standardised targets."""

    def __init__(self, features: Features):
        super().__init__()
        self.features = features

    @classmethod
    def begin(cls, cases: Cases, seed: int) -> Corrected:
        return cls(Features.of(cases.rows, cases.weights))

    def embed(self, rows: Rows) -> torch.Tensor:
        return self.features(rows)

    def prior(self, rows: Rows) -> torch.Tensor:
        return 3 * rows.numbers[:, :1]

    def learn(self, cases: Cases, effort: object) -> None:
        pass

    def config(self) -> dict:
        return {}

    @classmethod
    def made(cls, config: dict) -> Corrected:
        raise AssertionError("no model is read here")


def test_what_rows_bring_adds_up_to_the_prediction(monkeypatch):
    monkeypatch.setattr("attendb.estimators.base.similarity_named", lambda name: Corrected)
    model = AttentionRegressor("corrected", random_state=0).fit(TABLE, Y)
    for one in explanations(model, ASKED, top=M):
        assert len(one.rows) == M
        assert sum(row.weight * row.brings for row in one.rows) == pytest.approx(one.answer, rel=1e-9)
        for row in one.rows:
            expected = row.target + 3 * Y.std(ddof=0) * (one.asked["width"] - row.columns["width"])
            assert row.brings == pytest.approx(expected, rel=1e-9)
    labels = np.where(Y > 0, "a", "b")
    classes = explanations(AttentionClassifier("corrected", random_state=0).fit(TABLE, labels), ASKED)
    assert all(row.brings is None for one in classes for row in one.rows)


def test_shares_are_weighted_and_count_only_what_keeps_apart():
    one = made()
    assert one.shares == pytest.approx({"a": 0.3 * 4 / (0.6 * 2 + 0.3 * 4), "b": 0.6 * 2 / (0.6 * 2 + 0.3 * 4)})
    assert one.largest_change == 4
    assert made(changes=[[0.0, 0.0], [0.0, -1.0]]).shares == {"a": 0, "b": 0}
    assert made(changes=[[float("nan"), 1.0], [float("inf"), 0.0]]).shares == {"a": 0, "b": 1}
    assert one.decisive(1) == ["a"] and one.decisive(2) == ["a", "b"]


def test_classes_have_a_probability(model):
    labels = np.where(Y > Y.median(), "much", "little")
    found = explanations(AttentionClassifier(model.similarity, random_state=0).fit(TABLE, labels), ASKED, value="grade")
    again = AttentionClassifier(model.similarity, random_state=0).fit(TABLE, labels)
    assert [one.answer for one in found] == again.predict(ASKED).tolist()
    assert [one.probability for one in found] == pytest.approx(again.predict_proba(ASKED).max(1).tolist())
    assert answer_in_words(found[0]).startswith(f"grade: {found[0].answer}  (probability ")
    assert {row.target for row in found[0].rows} <= {"much", "little"}


def test_training_rows_have_the_names_that_they_are_given(model):
    names = [f"case {i}" for i in range(M)]
    plain, named = (explanations(model, ASKED, names=given) for given in (None, names))
    for one, other in zip(plain, named, strict=True):
        assert [row.name for row in other.rows] == [row.name.replace("row", "case") for row in one.rows]
    with pytest.raises(InputError, match="names has 2 names but the model has 150 training rows"):
        model.picture(ASKED[:1], names=["a", "b"])


def test_several_targets_need_a_name():
    y = pd.DataFrame({"one": Y, "two": -3 * Y})
    model = AttentionRegressor(random_state=0).fit(TABLE, y)
    with pytest.raises(InputError, match="the model has the targets one, two: say which one with value="):
        model.picture(ASKED[:1])
    (one,) = explanations(model, ASKED[:1], value="two", level=0.9)
    assert one.answer == pytest.approx(model.predict(ASKED)[0, 1])
    assert [row.target for row in one.rows] == pytest.approx([-3 * Y[int(row.name.split()[1])] for row in one.rows])
    assert one.interval == pytest.approx(model.predict_interval(ASKED)[0, 1])


# --- figures -------------------------------------------------------------------------------------------------------


def test_a_figure_shows_answer_query_rows_and_weights(model):
    figure = model.picture(ASKED[:1], top=3, value="rent", level=0.9)
    assert isinstance(figure, Figure)
    words = words_of(figure)
    (one,) = explanations(model, ASKED[:1], top=3, value="rent", level=0.9)
    assert words[0] == answer_in_words(one)
    assert words[0].startswith(f"rent: {one.answer:.6g}  (90% interval ")
    for expected in ["asked", "width", "height", "town", "rent", "Kiel", *(row.name for row in one.rows)]:
        assert expected in words
    for row in one.rows:
        assert f"{row.weight:.1%}" in words and shown(row.target) in words
    assert any(text.startswith(f"these 3 rows carry {one.captured:.0%} of the weight") for text in words)


def test_shades_and_bars_are_as_large_as_their_numbers():
    figure = draw(made())
    asked_a, asked_b, a0, b0, bar0, a1, b1, bar1 = boxes_of(figure)
    white = (1.0, 1.0, 1.0)
    assert all(to_rgb(box.get_facecolor()) == white for box in (asked_a, asked_b, a0))
    darkest = np.array(to_rgb(a1.get_facecolor()))
    half = np.array(to_rgb(b0.get_facecolor()))
    np.testing.assert_allclose(1 - half, (1 - darkest) / 2, atol=1e-9)
    red, _, blue = to_rgb(b1.get_facecolor())
    assert blue > red  # it would count less without the difference
    assert darkest[0] > darkest[2]
    assert bar0.get_width() / bar1.get_width() == pytest.approx(2)
    assert any("blue" in text for text in words_of(figure))
    assert not any("blue" in text for text in words_of(draw(made(changes=[[0.0, 2.0], [4.0, 1.0]]))))


def test_many_columns_are_cut_to_those_that_decide():
    names = [f"c{i}" for i in range(COLUMNS + 4)]
    changes = {name: float(i % 5 == 0) * (i + 1) for i, name in enumerate(names)}
    row = Row("row 1", 1.0, 2.0, dict.fromkeys(names, 0.0), changes)
    words = words_of(draw(Explanation("y", 1.0, dict.fromkeys(names, 1.0), [row])))
    assert {"c0", "c5", "c10"} <= set(words)
    assert sum(name in words for name in names) == COLUMNS
    assert any("4 columns that decide less are not shown" in text for text in words)
    assert any(text.startswith("What keeps them apart: c10 ") for text in words)


def test_long_cells_stay_in_their_boxes():
    time = pd.Timestamp("2024-10-28 20:00")
    row = Row("row 1", 1.0, 2.0, {"when": time, "what": "8" * 60}, {"when": 1.0, "what": 1.0})
    figure = draw(Explanation("y", 2.0, {"when": time, "what": "8" * 60}, [row]))
    figure.canvas.draw()
    room = boxes_of(figure)[0].get_window_extent().width
    long = [text for text in figure.axes[0].texts if text.get_text().startswith(("2024", "888"))]
    assert len(long) == 4
    assert all(text.get_window_extent().width <= room for text in long)


def test_letters_of_strangers_are_neither_formulas_nor_endless():
    name = "cost_{$x$}" + "y" * 60
    row = Row("row 1", 1.0, "\x1b[31m$\\frac", {name: "a\nb"}, {name: 1.0})
    figure = draw(Explanation("$\\bad", "$^$", {name: "$"}, [row]))
    figure.canvas.draw()  # a formula would raise
    for text in words_of(figure):
        assert "\n" not in text and "\x1b" not in text
    assert any(text.startswith("cost_{$x$}") and text.endswith("…") for text in words_of(figure))


def test_a_figure_belongs_to_nobody_and_notebooks_show_it():
    code = (
        "import sys; from attendb.estimators import AttentionRegressor as A\n"
        "f = A(random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0]).picture([[1.5]])\n"
        "assert f._repr_png_()[:4] == b'\\x89PNG'; print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_no_row_with_weight_is_said_too():
    one = Explanation("y", float("nan"), {"a": 1.0}, [])
    assert any("no row has weight" in text for text in words_of(draw(one)))
    assert "no row has weight." in page([one])


def test_what_rows_bring_has_a_column_of_its_own():
    row = Row("row 1", 1.0, 2.0, {"a": 1.0}, {"a": 1.0}, brings=2.75)
    one = Explanation("y", 2.75, {"a": 0.0}, [row])
    assert {"it brings", "2.75", BROUGHT} <= set(words_of(draw(one)))
    assert BROUGHT not in words_of(draw(made()))
    assert "it brings" in page([one]) and "corrected for the difference" in page([one])
    assert "it brings" not in page([made()])


# --- pages ---------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Tags that are open, all tags with their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_a_page_has_every_prediction_every_column_and_the_numbers(model):
    found = explanations(model, ASKED, top=3, value="rent")
    reader = read(page(found))
    assert [tag for tag, _ in reader.tags].count("section") == 2
    for one in found:
        assert answer_in_words(one) in reader.text
        for row in one.rows:
            assert row.name in reader.text and f"{row.weight:.1%}" in reader.text
    tips = [about["title"] for tag, about in reader.tags if tag == "td" and "title" in about]
    assert tips == [f"{row.changes[name]:+.3g}" for one in found for row in one.rows for name in TABLE]
    assert "–" in reader.text  # the missing cell


def test_a_page_is_one_file_that_fetches_and_runs_nothing():
    evil = '"><script>alert(1)</script>'
    row = Row(evil, 1.0, evil, {evil: evil}, {evil: 1.0}, brings=1.0)
    text = page([Explanation(evil, evil, {evil: evil}, [row])], title=evil)
    reader = read(text)
    tags = {tag for tag, _ in reader.tags}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "a", "form"})
    assert not any(name.startswith("on") or name in ("src", "href") for _, about in reader.tags for name in about)
    assert not re.search(r"url\(|@import|https?:", text)
    assert sum(piece == evil for piece in reader.text) >= 5
    (policy,) = [about for tag, about in reader.tags if tag == "meta" and "http-equiv" in about]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_words_of_cells():
    assert [shown(x) for x in (None, float("nan"), pd.NA, pd.NaT)] == ["–"] * 4
    assert [shown(x) for x in (1 / 3, 123456789, True, "a\u202eb\x00")] == [
        "0.333333",
        "123456789",
        "True",
        "a\\u202eb\\u0000",
    ]
    days = pd.Timestamp("2024-01-05"), pd.Timestamp("2024-01-05 14:00"), pd.Timestamp("2024-01-05 14:00:07")
    assert [shown(x) for x in days] == ["2024-01-05", "2024-01-05 14:00", "2024-01-05 14:00:07"]
    assert shown(pd.Timestamp("2024-01-05", tz="Europe/Berlin")) == "2024-01-05 00:00:00+01:00"


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF"), ("a.html", b"<!doctype html>")]
)
def test_the_end_of_the_name_says_what_is_written(model, tmp_path, name, start):
    model.save_picture(ASKED[:1], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_an_svg_holds_letters_that_the_font_lacks(tmp_path):
    row = Row("row 1", 1.0, 2.0, {"a": "東京"}, {"a": 1.0})
    write([Explanation("y", 1.0, {"a": "大阪"}, [row])], tmp_path / "a.png")  # a warning would be an error here
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_what_cannot_be_drawn_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="a figure shows one prediction, got 2 rows"):
        model.picture(ASKED)
    with pytest.raises(InputError, match="a figure shows one prediction, got 2 rows"):
        model.save_picture(ASKED, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.txt cannot be written: end its name in \.html, \.png"):
        model.save_picture(ASKED[:1], tmp_path / "a.txt")
    with pytest.raises(InputError, match="top must be a whole number"):
        model.picture(ASKED[:1], top=0)
    assert not list(Path(tmp_path).iterdir())


def test_explaining_needs_no_gradient_and_leaves_the_model_as_it_was(model):
    before = model.predict(ASKED)
    explanations(model, ASKED)
    assert torch.is_grad_enabled()
    np.testing.assert_array_equal(model.predict(ASKED), before)
