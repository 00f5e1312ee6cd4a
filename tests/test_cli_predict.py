"""`attendb predict`: the numbers and where they come from, what is assumed and said, and what is refused."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from attendb.cli import app
from attendb.estimators import AttentionClassifier, AttentionRegressor

ROWS, NEW = 240, 12
COLUMNS = ["temperature", "vacuum", "pressure", "humidity"]
AT = ("--value", "output", "--at", "new.csv")


def invoke(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, ["predict", *map(str, words)], input=stdin)


def ask(*words: object) -> dict:
    """The JSON that `predict` prints."""
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(result, *messages: str) -> None:
    """One sentence on stderr, nothing on stdout, exit code 1."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("attendb: ")
    for message in messages:
        assert message in last, last


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with past hours of a plant, and new ones without their output."""
    monkeypatch.chdir(tmp_path)
    whole = pandas.read_csv(str(files("attendb") / "data" / "power_plant.csv"), nrows=ROWS + NEW)
    whole[:ROWS].to_csv("plant.csv", index=False)
    whole[ROWS:][COLUMNS].to_csv("new.csv", index=False)
    whole[ROWS:].to_csv("known.csv", index=False)
    return tmp_path


@pytest.fixture
def plant() -> pandas.DataFrame:
    return pandas.read_csv("plant.csv")


@pytest.fixture
def new() -> pandas.DataFrame:
    return pandas.read_csv("new.csv")


@pytest.fixture
def people() -> pandas.DataFrame:
    """Names, ages with gaps, towns and a class that follows from them."""
    random = np.random.default_rng(0)
    age, town = random.integers(18, 80, 120), random.choice(["Ulm", "Kiel", "Bonn"], 120)
    table = pandas.DataFrame({"name": [f"p{i}" for i in range(120)], "age": age.astype(float), "town": town})
    table["income"] = np.where((age > 45) & (town != "Kiel"), "high", "low")
    table.loc[::10, "age"] = np.nan
    table.to_csv("people.csv", index=False)
    return table


def fitted(past: pandas.DataFrame, value: str, *columns: str, similarity: str = "bandwidth", seed: int = 0):
    """The same by the library."""
    kind = AttentionRegressor if pandas.api.types.is_float_dtype(past[value]) else AttentionClassifier
    return kind(similarity, random_state=seed).fit(past[list(columns)], past[value].to_numpy())


# --- answers -------------------------------------------------------------------------------------------------------


def test_one_row_prints_its_number_alone(plant):
    result = invoke("plant.csv", "--value", "output", "--at", "temperature=20", "vacuum=40")
    assert result.exit_code == 0, result.stderr
    expected = fitted(plant, "output", "temperature", "vacuum").predict(
        pandas.DataFrame({"temperature": [20.0], "vacuum": [40.0]})
    )
    assert float(result.stdout) == pytest.approx(expected[0], abs=5e-3)
    assert "assumed: key = temperature, vacuum (the columns of --at)" in result.stderr


def test_a_file_of_rows_gets_the_predictions_of_the_library(plant, new):
    found = ask("plant.csv", *AT)
    expected = fitted(plant, "output", *COLUMNS).predict(new)
    assert [answer["answer"]["output"] for answer in found["answers"]] == pytest.approx(expected, rel=1e-9)
    assert [answer["query"] for answer in found["answers"]] == new.to_dict("records")
    assert (found["keys"], found["values"], found["rows"], found["similarity"]) == (
        COLUMNS,
        ["output"],
        ROWS,
        "bandwidth",
    )
    head, *lines = invoke("plant.csv", *AT).stdout.splitlines()
    assert head.split() == [*COLUMNS, "answer_output"]
    assert [float(line.split()[-1]) for line in lines] == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("similarity", ["bandwidth", "linear"])
def test_similarity_and_seed_are_those_that_were_given(plant, new, similarity):
    found = ask("plant.csv", *AT, "--similarity", similarity, "--seed", 3)
    expected = fitted(plant, "output", *COLUMNS, similarity=similarity, seed=3).predict(new)
    assert [answer["answer"]["output"] for answer in found["answers"]] == pytest.approx(expected, rel=1e-9)


def test_explained_rows_carry_the_weights_of_the_library_and_all_columns_of_the_file(plant, new):
    found = ask("plant.csv", *AT, "--key", "temperature", "--key", "vacuum", "--explain", 3)["answers"]
    expected = fitted(plant, "output", "temperature", "vacuum").explain(new[["temperature", "vacuum"]], top=3)
    for i, answer in enumerate(found):
        rows = expected[expected["query"] == i]
        assert [row["id"] for row in answer["rows"]] == rows["row"].tolist()
        assert [row["weight"] for row in answer["rows"]] == pytest.approx(rows["weight"].tolist(), rel=1e-9)
        assert [row["columns"] for row in answer["rows"]] == plant.iloc[rows["row"]].to_dict("records")
        assert answer["captured"] == pytest.approx(rows["weight"].sum(), rel=1e-9)
    words = invoke("plant.csv", "--value", "output", "--at", "temperature=20", "vacuum=40", "--explain", 3).stdout
    assert "these 3 rows carry" in words and "humidity" in words


def test_where_leaves_past_rows_out_and_explained_rows_keep_their_places(plant, new):
    kept = plant[plant.output > 450]
    found = ask("plant.csv", *AT, "--where", "output > 450", "--explain", 1)["answers"]
    expected = fitted(kept, "output", *COLUMNS)
    assert [answer["answer"]["output"] for answer in found] == pytest.approx(expected.predict(new), rel=1e-9)
    places = kept.index[expected.explain(new, top=1)["row"]]
    assert [answer["rows"][0]["id"] for answer in found] == places.tolist()
    assert all(answer["rows"][0]["columns"]["output"] > 450 for answer in found)


def test_a_stored_table_is_learned_from_by_its_key(plant, new):
    runner = CliRunner()
    words = ["plant.csv", "--out", "plant.adb", "--key", "temperature", "--key", "vacuum", "--value", "output"]
    assert runner.invoke(app, ["create", *words]).exit_code == 0
    assert runner.invoke(app, ["delete", "plant.adb", "--where", "output < 440"]).exit_code == 0
    kept = plant[plant.output >= 440]
    found = ask("plant.adb", "--at", "new.csv", "--explain", 1)
    model = fitted(kept, "output", "temperature", "vacuum")
    assert found["keys"] == ["temperature", "vacuum"]
    answers = [answer["answer"]["output"] for answer in found["answers"]]
    assert answers == pytest.approx(model.predict(new[["temperature", "vacuum"]]), rel=1e-9)
    first = kept.iloc[model.explain(new[["temperature", "vacuum"]], top=1)["row"]]
    assert [answer["rows"][0]["columns"]["output"] for answer in found["answers"]] == first.output.tolist()
    assert ask("plant.adb", "--version", 1, "--at", "new.csv")["rows"] == ROWS


def test_text_is_classified_with_a_probability_and_cells_may_be_missing(people):
    Path("ask.csv").write_text("age,town\n60,Ulm\n,Kiel\n20,Genf\n")
    found = ask("people.csv", "--value", "income", "--at", "ask.csv")
    model = fitted(people, "income", "age", "town")
    asked = pandas.DataFrame({"age": [60.0, np.nan, 20.0], "town": ["Ulm", "Kiel", "Genf"]})
    assert [answer["answer"]["income"] for answer in found["answers"]] == model.predict(asked).tolist()
    shares = [answer["answer"]["income_probability"] for answer in found["answers"]]
    assert shares == pytest.approx(model.predict_proba(asked).max(1).tolist(), rel=1e-9)
    assert found["answers"][0]["answer"]["income"] == "high"
    assert found["answers"][1]["query"] == {"age": None, "town": "Kiel"}


def test_a_category_that_no_past_row_has_is_told(people):
    Path("ask.csv").write_text("age,town\n60,Ulm\n20,Genf\n30,\n40,ulm\n50,Genf\n")
    result = invoke("people.csv", "--value", "income", "--at", "ask.csv")
    assert result.exit_code == 0, result.stderr
    assert "town holds Genf, ulm in 3 rows of ask.csv, and in none of people.csv: the other columns" in result.stderr
    assert "holds" not in invoke("people.csv", "--value", "income", "--at", "town=Ulm").stderr


def test_true_and_false_are_classes(people):
    people.assign(rich=people.income == "high").drop(columns="income").to_csv("rich.csv", index=False)
    found = ask("rich.csv", "--value", "rich", "--at", "age=60", "town=Ulm")["answers"][0]["answer"]
    assert found["rich"] is True
    assert 0.5 < found["rich_probability"] <= 1


def test_numbers_are_classes_where_they_are_read_as_text(people):
    people.assign(grade=np.where(people.income == "high", 2, 1)).drop(columns="income").to_csv("grade.csv", index=False)
    words = ("grade.csv", "--value", "grade", "--at", "age=60", "town=Ulm")
    assert ask(*words, "--type", "grade=text")["answers"][0]["answer"]["grade"] == "2"
    assert 1 <= ask(*words)["answers"][0]["answer"]["grade"] <= 2


def test_dates_are_columns_like_others():
    days = pandas.date_range("2024-01-01", periods=400)
    season = np.sin(2 * np.pi * np.arange(1, 401) / 365)
    pandas.DataFrame({"day": days.strftime("%Y-%m-%d"), "sales": season}).to_csv("sales.csv", index=False)
    Path("ask.csv").write_text("day\n2024-04-01\n2024-10-01\n")
    high, low = (x["answer"]["sales"] for x in ask("sales.csv", "--value", "sales", "--at", "ask.csv")["answers"])
    assert high > 0.9 and low < -0.9
    one = ask("sales.csv", "--value", "sales", "--at", "day=2024-04-01")["answers"][0]["answer"]["sales"]
    assert one == pytest.approx(high, rel=1e-9)
    refused(invoke("sales.csv", "--value", "sales", "--at", "day=soon"), "--at day must be a date such as 2026-11-30")


def test_intervals_stand_beside_the_answers(plant, new):
    found = ask("plant.csv", *AT, "--interval", 0.8)["answers"]
    expected = fitted(plant, "output", *COLUMNS).predict_interval(new, level=0.8)
    answers = [answer["answer"] for answer in found]
    assert [answer["output_low"] for answer in answers] == pytest.approx(expected[:, 0], rel=1e-9)
    assert [answer["output_high"] for answer in answers] == pytest.approx(expected[:, 1], rel=1e-9)
    assert all(answer["output_low"] < answer["output"] < answer["output_high"] for answer in answers)


def test_rows_that_say_what_came_true_give_the_error(plant, people):
    truth = pandas.read_csv("known.csv")
    result = invoke("plant.csv", "--value", "output", "--at", "known.csv", "--json")
    found = json.loads(result.stdout)
    answers = np.array([answer["answer"]["output"] for answer in found["answers"]])
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((answers - truth.output) ** 2)), rel=1e-9)
    assert f"the error is {found['rmse']:.6g} (RMSE), over {NEW} rows of known.csv that have output" in result.stderr
    people[:40].to_csv("some.csv", index=False)
    found = ask("people.csv", "--value", "income", "--at", "some.csv", "--key", "age", "--key", "town")
    guesses = [answer["answer"]["income"] for answer in found["answers"]]
    assert found["accuracy"] == pytest.approx(np.mean(people.income[:40] == guesses))
    assert "rmse" not in ask("plant.csv", *AT)


# --- columns -------------------------------------------------------------------------------------------------------


def test_columns_that_name_rows_are_shown_and_not_learned_from(people):
    Path("ask.csv").write_text("name,age,town\nAda,60,Ulm\n")
    result = invoke("people.csv", "--value", "income", "--at", "ask.csv", "--json")
    assert "assumed: name only names rows" in result.stderr
    found = json.loads(result.stdout)
    assert found["keys"] == ["age", "town"]
    assert found["answers"][0]["query"] == {"name": "Ada", "age": 60, "town": "Ulm"}
    assert "assumed: name" not in invoke("people.csv", "--value", "income", "--at", "ask.csv", "--id", "name").stderr
    assert ask("people.csv", "--value", "income", "--at", "ask.csv", "--id", "town")["keys"] == ["name", "age"]


def test_texts_of_words_are_learned_from_though_each_row_has_its_own():
    kinds = ["garden house", "flat", "loft"]
    table = pandas.DataFrame(
        {"title": [f"{kinds[i % 3]} number {i}" for i in range(90)], "price": [i % 3 for i in range(90)]}
    )
    table.to_csv("homes.csv", index=False)
    Path("ask.csv").write_text("title\nloft number 200\ngarden house number 300\n")
    found = ask("homes.csv", "--value", "price", "--at", "ask.csv")
    assert found["keys"] == ["title"]
    assert [answer["answer"]["price"] for answer in found["answers"]] == pytest.approx([2, 0], abs=0.3)


def test_an_id_names_explained_rows(plant, new):
    plant.assign(id=np.arange(ROWS)[::-1] + 1000).to_csv("numbered.csv", index=False)
    found = ask("numbered.csv", *AT, "--explain", 1)
    expected = fitted(plant, "output", *COLUMNS).explain(new, top=1)["row"]
    assert found["keys"] == COLUMNS
    ids = (1000 + ROWS - 1 - expected).tolist()
    assert [answer["rows"][0]["id"] for answer in found["answers"]] == ids
    invoke("numbered.csv", *AT, "--picture", "why.html", "--explain", 1)
    assert re.findall(r"row \d+", Path("why.html").read_text(encoding="utf-8")) == [f"row {i}" for i in ids]


def test_other_columns_of_the_new_rows_are_carried_along(new):
    new.assign(note="a").to_csv("more.csv", index=False)
    result = invoke("plant.csv", "--value", "output", "--at", "more.csv", "--out", "answers.csv")
    assert (result.exit_code, result.stdout) == (0, "")
    written = pandas.read_csv("answers.csv")
    assert list(written) == [*COLUMNS, "note", "answer_output"]
    answers = [answer["answer"]["output"] for answer in ask("plant.csv", *AT)["answers"]]
    assert written.answer_output.tolist() == pytest.approx(answers, rel=1e-9)


def test_columns_of_the_new_rows_are_checked_against_the_past_ones(plant, new):
    new.drop(columns="vacuum").to_csv("new.csv", index=False)
    refused(invoke("plant.csv", *AT), "new.csv lacks vacuum of plant.csv", "--key")
    assert len(ask("plant.csv", *AT, "--key", "temperature", "--key", "humidity")["answers"]) == NEW
    new.assign(vacuum="high").to_csv("new.csv", index=False)
    refused(invoke("plant.csv", *AT), "new.csv holds text in 'vacuum', where plant.csv holds")
    new.assign(vacuum=None).to_csv("new.csv", index=False)
    assert len(ask("plant.csv", *AT)["answers"]) == NEW  # a column of missing cells is of any kind


def test_numbers_that_are_text_in_the_past_are_text_in_the_new_rows():
    codes = [f"0{i % 5}111" for i in range(100)]
    table = pandas.DataFrame({"zip": codes, "price": [float(i % 5) for i in range(100)]})
    table.to_csv("zips.csv", index=False)
    Path("ask.csv").write_text("zip\n03111\n01111\n")
    found = ask("zips.csv", "--value", "price", "--at", "ask.csv", "--type", "zip=text")["answers"]
    assert [answer["answer"]["price"] for answer in found] == pytest.approx([3, 1], abs=0.2)


def test_columns_that_cannot_be_learned_from_are_named(plant, new):
    pandas.DataFrame({**plant, "spectrum": [[1.0, 2.0]] * ROWS}).to_parquet("plant.parquet", index=False)
    result = invoke("plant.parquet", *AT, "--json")
    assert "assumed: without spectrum, which holds neither numbers nor text nor dates" in result.stderr
    assert json.loads(result.stdout)["keys"] == COLUMNS
    refused(invoke("plant.parquet", *AT, "--key", "spectrum"), "column 'spectrum' of plant.parquet holds")
    refused(invoke("plant.parquet", "--value", "spectrum", "--at", "new.csv"), "cannot be predicted: choose one of")


# --- pictures ------------------------------------------------------------------------------------------------------


def test_a_page_shows_every_answer_and_a_figure_the_first(new):
    result = invoke("plant.csv", *AT, "--picture", "why.html", "--interval", 0.9)
    assert f"why.html: where {NEW} answers came from" in result.stderr
    page = Path("why.html").read_text(encoding="utf-8")
    found = ask("plant.csv", *AT, "--explain", 5)["answers"]
    assert page.count("<section>") == NEW
    assert page.count("90% interval") == NEW
    for answer in found:
        assert f"output: {answer['answer']['output']:.6g}" in page
    result = invoke("plant.csv", *AT, "--picture", "why.png", "--explain", 2)
    assert f"why.png: where the answer came from (the first of {NEW})" in result.stderr
    assert Path("why.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_names_of_strangers_are_escaped_in_a_page(plant, new):
    evil = "<script>alert(1)</script>"
    plant.rename(columns={"vacuum": evil}).assign(town=["<img src=x onerror=y>", "a"] * (ROWS // 2)).to_csv(
        "evil.csv", index=False
    )
    new.rename(columns={"vacuum": evil}).assign(town="a").to_csv("new.csv", index=False)
    assert invoke("evil.csv", *AT, "--picture", "why.html").exit_code == 0
    page = Path("why.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;img src=x onerror=y&gt;" in page


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["nothing.csv", *AT], ["there is no file nothing.csv"]),
        (["plant.csv", "--at", "new.csv"], ["no column was named to predict: give --value, one of temperature"]),
        (["plant.csv", "--value", "outptu", "--at", "new.csv"], ["no column 'outptu': choose among output"]),
        (["plant.csv", "--value", "output"], ["nothing was asked of plant.csv", "--at"]),
        (["plant.csv", *AT, "--key", "output"], ["'output' is to be predicted, so it is no --key"]),
        (["plant.csv", *AT, "--key", "height"], ["plant.csv has no column 'height'"]),
        (["plant.csv", *AT, "--id", "output"], ["'output' names rows (--id)"]),
        (["plant.csv", *AT, "--interval", "90"], ["--interval 90 is no share between 0 and 1"]),
        (["plant.csv", *AT, "--out", "answers.xls"], ["answers.xls cannot be written: end its name in"]),
        (["plant.csv", *AT, "--out", "new.csv"], ["new.csv cannot be written, since it is read"]),
        (["plant.csv", *AT, "--picture", "why.txt"], ["why.txt cannot be written: end its name in .html"]),
        (["plant.csv", *AT, "--where", "output > 999"], ["no row of plant.csv satisfies 'output > 999'"]),
        (["plant.csv", "--value", "output", "--at", "output=3"], ["no column to predict 'output' from"]),
        (
            ["plant.csv", "--value", "output", "--at", "vacuum=40", "output=3"],
            ["'output' is no column to predict from"],
        ),
    ],
)
def test_refused(words, messages):
    refused(invoke(*words), *messages)


def test_wrong_use_of_an_option_ends_with_2():
    for words in (["--similarity", "magic"], ["--seed", "-1"], ["--explain", "-1"]):
        assert invoke("plant.csv", *AT, *words).exit_code == 2


def test_a_past_row_without_the_value_is_refused_and_the_advice_helps(plant):
    plant.loc[3, "output"] = np.nan
    plant.to_csv("plant.csv", index=False)
    result = invoke("plant.csv", *AT)
    refused(result, f"1 of {ROWS} rows with a missing value (output in 1)", "--where 'output IS NOT NULL'")
    assert ask("plant.csv", *AT, "--where", "output IS NOT NULL")["rows"] == ROWS - 1


def test_intervals_of_classes_are_refused(people):
    result = invoke("people.csv", "--value", "income", "--at", "age=60", "town=Ulm", "--interval", 0.9)
    refused(result, "--interval is for numbers, and income holds classes")


def test_no_rows_are_asked_and_none_are_answered():
    Path("new.csv").write_text(",".join(COLUMNS) + "\n")
    assert ask("plant.csv", *AT)["answers"] == []
    refused(invoke("plant.csv", *AT, "--picture", "why.html"), "why.html would show nothing: new.csv has no rows")


def test_nothing_but_the_answer_is_written_where_stderr_is_no_terminal(plant):
    result = invoke("plant.csv", *AT)
    assert "\x1b" not in result.stderr and "\r" not in result.stderr
    assert all(line.startswith("assumed: ") for line in result.stderr.splitlines())
