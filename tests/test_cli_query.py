"""`attendb query` over files: the numbers, what is assumed and said, what is written, and what is refused."""

from __future__ import annotations

import io
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import attendb as ad
from attendb.cli import app
from attendb.cli.printing import aligned, cell, closest_first, printable, progress, to_json

ROWS = 300


def invoke(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def ask(*words: object) -> dict:
    """The JSON that `query` prints."""
    result = invoke("query", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of a plant, queries to it, and people."""
    monkeypatch.chdir(tmp_path)
    lines = (files("attendb") / "data" / "power_plant.csv").read_text(encoding="utf-8").splitlines()
    Path("plant.csv").write_text("\n".join(lines[: ROWS + 1]) + "\n")
    Path("queries.csv").write_text("hour,temperature,vacuum\n7,20,40\n8,15.5,60\n")
    Path("people.csv").write_text("name,age,city\nLi,30,Ulm\nZhang,40,Bonn\nHu,50,Kiel\n")
    return tmp_path


@pytest.fixture
def plant() -> pandas.DataFrame:
    return pandas.read_csv("plant.csv")


def expected(plant: pandas.DataFrame, queries: list[list[float]], h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Answers and weights of a Gaussian over temperature and vacuum, by hand."""
    keys = plant[["temperature", "vacuum"]].to_numpy(float)
    apart = (np.array(queries)[:, None] - keys) / h
    weights = np.exp(-0.5 * (apart**2).sum(-1))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ plant["output"].to_numpy(float), weights


def scott(plant: pandas.DataFrame) -> np.ndarray:
    return plant[["temperature", "vacuum"]].std().to_numpy() * len(plant) ** (-1 / 6)


QUERIES = [[20.0, 40.0], [15.5, 60.0]]
AT = ("--value", "output", "--at", "temperature=20", "vacuum=40")


# --- answers -------------------------------------------------------------------------------------------------------


def test_one_query_prints_the_number_alone(plant):
    result = invoke("query", "plant.csv", *AT)
    assert result.exit_code == 0, result.stderr
    assert float(result.stdout) == pytest.approx(expected(plant, QUERIES, scott(plant))[0][0], abs=5e-4)
    assert result.stdout.count("\n") == 1
    assert "assumed: key = temperature, vacuum (the columns of --at)" in result.stderr
    assert "assumed: score = gaussian" in result.stderr
    assert "standard deviation × m^(−1/(d+4))" in result.stderr


def test_a_file_of_queries_prints_a_table(plant):
    result = invoke("query", "plant.csv", "--value", "output", "--at", "queries.csv")
    assert result.exit_code == 0, result.stderr
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["temperature", "vacuum", "answer_output"]
    assert [[float(x) for x in line[:2]] for line in lines] == QUERIES
    found = [float(line[2]) for line in lines]
    assert found == pytest.approx(expected(plant, QUERIES, scott(plant))[0], abs=5e-4)
    assert "all other numeric columns, without pressure, humidity, which queries.csv lacks" in result.stderr


def test_json_has_all_digits_the_rule_and_the_assumptions(plant):
    found = ask("plant.csv", "--value", "output", "--at", "queries.csv")
    answers = [answer["answer"]["output"] for answer in found["answers"]]
    assert answers == pytest.approx(expected(plant, QUERIES, scott(plant))[0], rel=1e-12)
    assert list(found["bandwidth"].values()) == pytest.approx(scott(plant), rel=1e-12)
    assert found["bandwidth_rule"].startswith("standard deviation × m^(−1/(d+4))")
    assert (found["keys"], found["values"]) == (["temperature", "vacuum"], ["output"])
    assert (found["score"], found["weights"]) == ("gaussian", "softmax")
    assert found["answers"][0]["query"] == {"temperature": 20.0, "vacuum": 40.0}


@pytest.mark.parametrize("words", [["--bandwidth", "2,5"], ["--bandwidth", "2", "--bandwidth", "5"],
                                   ["--bandwidth", "vacuum=5", "--bandwidth", "temperature=2"]])  # fmt: skip
def test_bandwidths_are_given_in_any_of_three_ways(plant, words):
    found = ask("plant.csv", *AT, *words)
    assert found["answers"][0]["answer"]["output"] == pytest.approx(
        expected(plant, QUERIES, np.array([2.0, 5.0]))[0][0], rel=1e-12
    )
    assert "bandwidth_rule" not in found


def test_one_bandwidth_serves_all_columns_and_one_column_leaves_the_rest_to_the_rule(plant):
    assert ask("plant.csv", *AT, "--bandwidth", 3)["answers"][0]["answer"]["output"] == pytest.approx(
        expected(plant, QUERIES, np.array([3.0, 3.0]))[0][0], rel=1e-12
    )
    found = ask("plant.csv", *AT, "--bandwidth", "vacuum=5")
    assert found["answers"][0]["answer"]["output"] == pytest.approx(
        expected(plant, QUERIES, np.array([scott(plant)[0], 5.0]))[0][0], rel=1e-12
    )
    assert found["bandwidth_rule"]


def test_explained_rows_are_the_best_ones_with_their_weights(plant):
    answers, weights = expected(plant, QUERIES, scott(plant))
    found = ask("plant.csv", "--value", "output", "--at", "queries.csv", "--explain", 4)["answers"]
    for i, answer in enumerate(found):
        best = np.argsort(-weights[i], kind="stable")[:4]
        assert [row["id"] for row in answer["rows"]] == best.tolist()
        assert [row["weight"] for row in answer["rows"]] == pytest.approx(weights[i][best], rel=1e-10)
        assert answer["captured"] == pytest.approx(weights[i][best].sum(), rel=1e-10)
        assert [row["columns"] for row in answer["rows"]] == plant.iloc[best].to_dict("records")
        assert answer["answer"]["output"] == pytest.approx(answers[i], rel=1e-12)
    words = invoke("query", "plant.csv", *AT, "--explain", 4).stdout
    assert "pressure" in words and f"{weights[0].max():.2%}" in words
    assert "these 4 rows carry" in words


def test_where_leaves_rows_out_before_the_bandwidth_is_found(plant):
    kept = plant[(plant.output > 450) & (plant.pressure < 1020)]
    found = ask("plant.csv", *AT, "--where", "output > 450 AND pressure < 1020", "--explain", 2)
    answers, weights = expected(kept, QUERIES, scott(kept))
    assert found["answers"][0]["answer"]["output"] == pytest.approx(answers[0], rel=1e-12)
    best = kept.index[np.argsort(-weights[0], kind="stable")[:2]]
    assert [row["id"] for row in found["answers"][0]["rows"]] == best.tolist()


def test_nearest_neighbours_are_a_plain_mean(plant):
    found = ask("plant.csv", *AT, "--score", "euclidean", "--bandwidth", 1, "--weights", "top:5:uniform")
    apart = np.hypot(plant.temperature - 20, plant.vacuum - 40)
    assert found["answers"][0]["answer"]["output"] == pytest.approx(
        plant.output[np.argsort(apart, kind="stable")[:5]].mean(), rel=1e-12
    )


@pytest.mark.parametrize("score", ["laplacian", "euclidean", "boxcar", "triangular", "epanechnikov", "dot",
                                   "scaled-dot", "cosine", "equal", "constant"])  # fmt: skip
def test_every_score_answers_as_the_library_does(plant, score):
    import attendb as ad

    kinds = {"scaled-dot": ad.ScaledDot, "dot": ad.Dot}
    kind = kinds.get(score) or getattr(ad, score.capitalize())
    takes = score in ("laplacian", "euclidean", "boxcar", "triangular", "epanechnikov")
    words = ["--bandwidth", "2,6"] if takes else []
    found = ask("plant.csv", *AT, "--score", score, *words)["answers"][0]
    keys = plant[["temperature", "vacuum"]].to_numpy(float)
    answer = ad.attend(QUERIES[:1], keys, plant.output.to_numpy(), score=kind([2.0, 6.0]) if takes else kind())
    assert found["empty"] == bool(answer.empty[0])
    if found["empty"]:
        assert found["answer"]["output"] is None
    else:
        assert found["answer"]["output"] == pytest.approx(answer.value[0, 0], rel=1e-12)


@pytest.mark.parametrize("weights", ["softmax", "softmax:0.5", "nearest", "top:3", "uniform", "sparsemax", "entmax15",
                                     "linear", "conic", "normalized", "sampled:3"])  # fmt: skip
def test_every_weighting_answers_as_the_library_does(plant, weights):
    import attendb as ad
    from attendb.cli.scoring import weighting_of

    found = ask("plant.csv", *AT, "--score", "dot", "--weights", weights)["answers"][0]["answer"]["output"]
    keys = plant[["temperature", "vacuum"]].to_numpy(float)
    answer = ad.attend(QUERIES[:1], keys, plant.output.to_numpy(), score=ad.Dot(), weighting=weighting_of(weights))
    assert found == pytest.approx(answer.value[0, 0], rel=1e-12)


def test_tolerance_is_certified(plant):
    found = ask("plant.csv", *AT, "--tol", "1e-3")["answers"][0]
    exact = expected(plant, QUERIES, scott(plant))[0][0]
    assert abs(found["answer"]["output"] - exact) <= 1e-3 * (plant.output.max() - plant.output.min())
    assert 0 <= found["error_bound"] <= 1e-3


def test_several_values_at_once(plant):
    words = ("--value", "output", "--value", "humidity", "--at", "temperature=20", "vacuum=40")
    found = ask("plant.csv", *words)["answers"][0]["answer"]
    weights = expected(plant, QUERIES, scott(plant))[1][0]
    assert list(found) == ["output", "humidity"]
    assert found["humidity"] == pytest.approx(weights @ plant.humidity, rel=1e-12)
    assert [line.split()[0] for line in invoke("query", "plant.csv", *words).stdout.splitlines()] == [*found]


# --- text, mixed and vector columns --------------------------------------------------------------------------------


def test_text_is_found_by_its_spelling():
    result = invoke("query", "people.csv", "--value", "city", "--at", "name=Zhan")
    assert (result.exit_code, result.stdout) == (0, "Bonn\n"), result.stderr
    assert "assumed: score = edit" in result.stderr
    assert "assumed: weights = nearest" in result.stderr
    assert "city holds text" in result.stderr
    assert ask("people.csv", "--value", "age", "--at", "name=Zhan")["answers"][0]["answer"] == {"age": 40}


def test_mixed_columns_take_a_score_each():
    found = ask("people.csv", "--key", "name", "--key", "age", "--value", "city", "--at", "name=Hu", "age=49",
                "--score", "name=ngram", "--bandwidth", "5")  # fmt: skip
    assert found["score"] == {"name": "ngram", "age": "gaussian"}
    assert found["answers"][0]["answer"] == {"city": "Kiel"}


def test_categories_beside_numbers_are_compared_for_equality_and_weigh_much():
    rng = np.random.default_rng(0)
    stones = pandas.DataFrame({"carat": rng.uniform(0, 2, 300), "cut": rng.choice(["Ideal", "Good", "Fair"], 300)})
    stones["price"] = 1000 * stones.carat * stones.cut.map({"Ideal": 2.0, "Good": 1.3, "Fair": 1.0})
    stones[:250].to_csv("stones.csv", index=False)
    stones[250:].to_csv("asked.csv", index=False)
    words = ("--value", "price", "--key", "carat", "--key", "cut", "--at", "asked.csv")
    found = ask("stones.csv", *words)
    assert (found["score"], found["weights"]) == ({"carat": "gaussian", "cut": "equal"}, "softmax:0.2")
    result = invoke("query", "stones.csv", *words)
    assert "assumed: score = carat=gaussian, cut=equal (at most 50 different texts in cut" in result.stderr
    assert "assumed: weights = softmax:0.2" in result.stderr

    def error(*options: str) -> float:
        answers = [answer["answer"]["price"] for answer in ask("stones.csv", *words, *options)["answers"]]
        return float(((np.array(answers) - stones.price[250:]) ** 2).mean() ** 0.5)

    assert error() < error("--weights", "softmax") / 4
    h = stones.carat[:250].std() * 250 ** (-1 / 5)
    db = ad.Database(stones[["carat", "cut"]][:250], stones[["price"]][:250])
    score = ad.PerColumn({"carat": ad.Gaussian(h), "cut": ad.Equal()})
    expected = db.attend(stones[["carat", "cut"]][250:], score=score, weighting=ad.Softmax(0.2)).value[:, 0]
    assert [one["answer"]["price"] for one in found["answers"]] == pytest.approx(expected.tolist(), rel=1e-9)
    kept = ask("stones.csv", *words, "--score", "cut=edit")
    assert kept["score"]["cut"] == "edit" and kept["weights"] == "softmax:0.2"
    stones.assign(cut=[f"stone {i}" for i in range(300)])[:250].to_csv("names.csv", index=False)
    assert ask("names.csv", *words)["score"]["cut"] == "edit"


def test_numbers_and_text_are_answered_side_by_side():
    found = ask("people.csv", "--value", "city", "--value", "age", "--at", "name=Li", "--weights", "nearest")
    assert found["answers"][0]["answer"] == {"city": "Ulm", "age": 30}


def test_vectors_are_keys_of_their_width():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 3))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3)
    pq.write_table(pa.table({"embedding": column, "label": [f"t{i}" for i in range(20)]}), "vectors.parquet")
    at = "embedding=" + ",".join(map(str, vectors[7] + 0.01))
    found = ask("vectors.parquet", "--value", "label", "--at", at, "--score", "cosine", "--weights", "nearest")
    assert found["answers"][0]["answer"] == {"label": "t7"}
    found = ask("vectors.parquet", "--value", "label", "--at", at, "--weights", "nearest", "--explain", 1)
    assert found["answers"][0]["rows"][0]["columns"]["embedding"] == vectors[7].tolist()
    assert found["bandwidth"]["embedding"] == pytest.approx(vectors.std(0, ddof=1) * 20 ** (-1 / 7), rel=1e-12)


def test_large_whole_numbers_keep_their_digits():
    Path("accounts.csv").write_text("x,account\n1,1234567890123456789\n2,9007199254740993\n9,5\n")
    words = ("accounts.csv", "--value", "account", "--at", "x=1.2", "--weights", "nearest")
    assert ask(*words)["answers"][0]["answer"] == {"account": 1234567890123456789}
    assert invoke("query", *words).stdout == "1234567890123456789\n"
    assert ask(*words[:-1], "top:1")["answers"][0]["answer"] == {"account": 1234567890123456789}
    best = ask(*words[:-1], "softmax", "--explain", 1)["answers"][0]["rows"][0]
    assert best["columns"] == {"x": 1, "account": 1234567890123456789}
    invoke("query", *words, "--out", "out.jsonl")
    assert '"answer_account": 1234567890123456789' in Path("out.jsonl").read_text()


def test_the_column_id_names_the_rows():
    Path("rows.csv").write_text("id,x,y\n70,1,10\n30,2,20\n50,3,30\n")
    found = ask("rows.csv", "--value", "y", "--at", "x=2.1", "--weights", "nearest", "--explain", 1)["answers"][0]
    assert (found["rows"][0]["id"], found["answer"]["y"]) == (30, 20)
    found = ask("rows.csv", "--value", "y", "--at", "x=2.1", "--weights", "nearest", "--where", "id >= 50")
    assert found["answers"][0]["answer"]["y"] == 30
    result = invoke("query", "rows.csv", "--key", "id", "--value", "y", "--at", "id=3")
    assert result.exit_code == 1 and "names the rows" in result.stderr


# --- files that are written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["csv", "parquet", "jsonl"])
def test_answers_are_written_beside_the_queries(plant, end):
    result = invoke("query", "plant.csv", "--value", "output", "--at", "queries.csv", "--out", f"answers.{end}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    read = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}.get(end, lambda f: pandas.read_json(f, lines=True))
    found = read(f"answers.{end}")
    assert list(found.columns) == ["hour", "temperature", "vacuum", "answer_output"]
    assert found["hour"].tolist() == [7, 8]
    assert found["answer_output"].to_numpy() == pytest.approx(expected(plant, QUERIES, scott(plant))[0], rel=1e-12)
    assert sorted(part.name for part in Path().iterdir()) == sorted(
        ["plant.csv", "queries.csv", "people.csv", f"answers.{end}"]
    )


def test_a_query_that_reaches_no_row_has_no_answer():
    Path("far.csv").write_text("temperature,vacuum\n20,40\n9999,40\n")
    words = ("plant.csv", "--value", "output", "--at", "far.csv", "--score", "boxcar", "--bandwidth", 5)
    found = ask(*words, "--explain", 2)["answers"]
    assert [answer["empty"] for answer in found] == [False, True]
    assert found[1]["answer"] == {"output": None}
    assert (found[1]["rows"], found[1]["captured"]) == ([], 0)
    result = invoke("query", *words, "--explain", 2, "--out", "answers.csv")
    assert "1 of 2 queries reach no row" in result.stderr
    assert "no row has weight" in result.stdout
    assert math.isnan(pandas.read_csv("answers.csv")["answer_output"][1])


@pytest.mark.parametrize("end", ["png", "svg", "pdf"])
def test_a_heatmap_is_drawn(end):
    result = invoke("query", "plant.csv", "--value", "output", "--at", "queries.csv", "--heatmap", f"weights.{end}")
    assert result.exit_code == 0, result.stderr
    assert Path(f"weights.{end}").read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_a_heatmap_that_is_too_large_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr("attendb.answer.Answer.weights.__kwdefaults__", {"max_bytes": 100})
    result = invoke("query", "plant.csv", *AT, "--heatmap", "weights.png")
    refused(result, "above the bound of 100 bytes: ask fewer queries, or leave --heatmap out")
    assert not Path("weights.png").exists()


def test_outputs_are_refused_before_the_work():
    base = ("query", "plant.csv", *AT)
    Path("folder.csv").mkdir()
    for words, message in [
        (["--out", "answers.txt"], "answers.txt cannot be written: end its name in .csv, "),
        (["--out", "nowhere/answers.csv"], "there is no folder nowhere"),
        (["--out", "folder.csv"], "is a folder"),
        (["--out", "plant.csv"], "it is read"),
        (["--heatmap", "weights.txt"], "end its name in .png, .svg, .pdf"),
    ]:
        refused(invoke(*base, *words), message)
    refused(invoke("query", "plant.csv", "--value", "output", "--at", "queries.csv", "--out", "queries.csv"), "is read")
    Path("taken.csv").write_text("temperature,vacuum,answer_output\n20,40,1\n")
    refused(
        invoke("query", "plant.csv", "--value", "output", "--at", "taken.csv", "--out", "a.csv"),
        "has a column 'answer_output', the name of an answer",
    )
    assert not Path("a.csv").exists()


# --- mistakes ------------------------------------------------------------------------------------------------------


def refused(result, *messages: str) -> None:
    """One sentence on stderr, nothing on stdout, exit code 1."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("attendb: ")
    for message in messages:
        assert message in last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plant.csv", "--value", "outptu", "--at", "vacuum=3"], "no column 'outptu': choose among output, temper"),
        (["plant.csv", "--key", "Vacum", "--value", "output", "--at", "vacuum=3"], "'Vacum': choose among vacuum, "),
        (["plant.csv", "--value", "output", "--at", "temprature=20"], "'temprature': choose among temperature, "),
        (["plant.csv", "--value", "output", "--at", "temperature=warm"], "temperature must be a number, got 'warm'"),
        (["plant.csv", "--value", "output", "--at", "temperature=nan"], "must be a number, got 'nan'"),
        (["plant.csv", "--value", "output", "--at", "temperature"], "give its value too, as in --at temperature=1.5"),
        (["plant.csv", "--value", "output", "--at", "vacuum=3", "vacuum=4"], "'vacuum' is named twice"),
        (["plant.csv", "--value", "output", "--at", "output=3"], "'output' is asked for, so it cannot be in the key"),
        (["plant.csv", "--at", "vacuum=3"], "give --value, one of temperature, vacuum, pressure, humidity, output"),
        (["plant.csv", "--key", "vacuum", "--value", "output", "--at", "vacuum=3", "humidity=2"], "'humidity' is no"),
        (["plant.csv", "--key", "vacuum", "--key", "humidity", "--value", "output", "--at", "vacuum=3"],
         "--at lacks the key column 'humidity' (found vacuum): add --at humidity=…"),
        (["plant.csv", "--value", "output"], "give --at temperature="),
        (["plant.csv"], "give --value output --at temperature="),
        (["plant.csv", "--value", "output", "--at", "querys.csv"], "there is no file querys.csv: this folder has quer"),
        (["plant.csv", "--value", "output", "--at", "vacuum=3", "queries.csv"], "are name=value pairs or a file, not"),
        (["plnt.csv", "--value", "output", "--at", "vacuum=3"], "there is no file plnt.csv: this folder has plant.csv"),
        (["nowhere/plant.csv", "--at", "vacuum=3"], "the folder nowhere does not exist"),
        (["nowhere.adb", "--at", "vacuum=3"], "there is no file nowhere.adb"),
        (["plant.csv", *AT, "--score", "gausian"], "no score 'gausian': choose one of gaussian, "),
        (["plant.csv", *AT, "--score", "edit"], "the score 'edit' cannot compare numbers"),
        (["plant.csv", *AT, "--score", "vacum=dot"], "no key column 'vacum': choose one of vacuum, temperature"),
        (["plant.csv", *AT, "--score", "vacuum=edit"], "'vacuum' holds numbers, which the score 'edit' cannot"),
        (["plant.csv", *AT, "--score", "dot", "--score", "cosine"], "two scores were given"),
        (["plant.csv", *AT, "--bandwidth", "wide"], "--bandwidth must be a number, got 'wide'"),
        (["plant.csv", *AT, "--bandwidth", "1,2,3"], "3 bandwidths were given but 2 key columns take one"),
        (["plant.csv", *AT, "--bandwidth", "-1"], "bandwidth must be > 0"),
        (["plant.csv", *AT, "--bandwidth", "vacum=2"], "no key column 'vacum' takes a bandwidth: choose one of vacuum"),
        (["plant.csv", *AT, "--score", "dot", "--bandwidth", "2"], "the score dot has no bandwidth"),
        (["plant.csv", *AT, "--weights", "sofmax"], "no weights 'sofmax': choose one of softmax, "),
        (["plant.csv", *AT, "--weights", "top"], "takes a whole number"),
        (["plant.csv", *AT, "--weights", "top:0"], "k must be"),
        (["plant.csv", *AT, "--weights", "uniform:2"], "take no number"),
        (["plant.csv", *AT, "--where", "outptu > 450"], "no such column: outptu"),
        (["plant.csv", *AT, "--where", "output > 9999"], "no row of plant.csv satisfies 'output > 9999'"),
        (["plant.csv", *AT, "--version", "3"], "is a file, which has no versions"),
        (["people.csv", "--value", "age", "--at", "name=Li", "--score", "dot"], "the score 'dot' cannot compare text"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(words, message):
    refused(invoke("query", *words), message)


def test_a_wrong_use_is_2():
    assert invoke("query").exit_code == 2
    assert invoke("query", "plant.csv", "--explain", "-1").exit_code == 2
    assert invoke("query", "plant.csv", "--nope").exit_code == 2
    result = invoke("quary", "plant.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "query" in result.stderr


def test_missing_numbers_are_counted_and_where_leaves_them_out():
    Path("gaps.csv").write_text("x,y z,out\n1,5,10\n2,,20\n,6,30\n4,7,40\n5,8,\n")
    words = ("query", "gaps.csv", "--key", "x", "--key", "y z", "--value", "out", "--at", "x=4", "y z=7")
    result = invoke(*words)
    refused(result, "3 of 5 rows with a missing value (x in 1, y z in 1, out in 1)", "--where")
    import shlex

    condition = shlex.split(result.stderr.splitlines()[-1].partition("--where ")[2])[0]
    again = invoke(*words, "--where", condition, "--weights", "nearest")
    assert (again.exit_code, again.stdout) == (0, "40\n"), again.stderr
    narrowed = invoke(*words, "--where", "x < 3")
    refused(narrowed, "1 of 2 rows", """--where '(x < 3) AND "y z" IS NOT NULL'""")
    Path("holes.csv").write_text("temperature,vacuum\n20,40\n,41\n21,\n")
    refused(
        invoke("query", "plant.csv", "--value", "output", "--at", "holes.csv"),
        "holes.csv has no value of 'temperature' in 1 of 3 rows (row 2)",
    )


def test_queries_come_from_stdin(plant):
    for text in (
        Path("queries.csv").read_text(),
        '{"temperature": 20, "vacuum": 40}\n{"temperature": 15.5, "vacuum": 60}\n',
    ):
        result = invoke("query", "plant.csv", "--value", "output", "--at", "-", "--json", stdin=text)
        assert result.exit_code == 0, result.stderr
        found = [answer["answer"]["output"] for answer in json.loads(result.stdout)["answers"]]
        assert found == pytest.approx(expected(plant, QUERIES, scott(plant))[0], rel=1e-12)


def test_a_file_without_rows_asks_nothing_and_answers_nothing():
    Path("none.csv").write_text("temperature,vacuum\n")
    words = ("query", "plant.csv", "--key", "temperature", "--value", "output", "--at", "none.csv")
    assert json.loads(invoke(*words, "--json").stdout)["answers"] == []
    assert invoke(*words).stdout.split() == ["temperature", "answer_output"]
    Path("head.csv").write_text("x,y\n")
    refused(invoke("query", "head.csv", "--value", "y", "--at", "x=1"), "head.csv has no rows")


def test_text_is_read_as_it_is_told_and_only_what_concerns_the_question_is_said():
    Path("odd.txt").write_text("zip;x;on;day\n02116;1,5;true;31/12/2014\n94107;2,5;false;10/03/2011\n")
    words = ("query", "odd.txt", "--delimiter", ";", "--decimal", ",")
    result = invoke(*words, "--value", "x", "--at", "zip=0211")
    assert (result.exit_code, result.stdout) == (0, "1.5\n"), result.stderr
    assert "column 'zip' is text" in result.stderr and "--type zip=" in result.stderr
    assert "zip" not in invoke(*words, "--value", "x", "--at", "on=true").stderr
    refused(invoke(*words, "--value", "x", "--at", "day=3"), "column 'day' holds date, which cannot be compared")
    kept = invoke(*words, "--value", "x", "--at", "on=true", "--where", "day < '2014-01-01'")
    assert kept.stdout == "2.5\n"
    Path("short.csv").write_text("x,y\n1,2\n3\n")
    refused(invoke("query", "short.csv", "--value", "x", "--at", "y=1"), "line 3", "or say --ragged pad")
    ok = invoke("query", "short.csv", "--value", "x", "--at", "y=1", "--ragged", "pad", "--where", "y IS NOT NULL")
    assert ok.stdout == "1\n"


def test_codes_of_queries_are_text_where_the_table_has_text():
    Path("codes.csv").write_text("zip,x\n02116,1\n94107,2\n")
    Path("zips.csv").write_text("zip\n94107\n")
    for words in (["--at", "zips.csv"], ["--at", "zips.csv", "--type", "x=float64"]):
        assert ask("codes.csv", "--key", "zip", "--value", "x", *words)["answers"][0]["answer"] == {"x": 2}
    result = invoke("query", "codes.csv", "--key", "zip", "--value", "x", "--at", "-", stdin="zip\n94107\n")
    assert result.stdout.split() == ["zip", "answer_x", "94107", "2"]


def test_progress_is_shown_on_a_terminal_alone(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("reading") as advance:
            advance(1, 2)
        assert ("reading" in stream.getvalue()) == shown


def test_a_column_without_spread_tells_no_row_from_another(plant):
    with_constant = plant.assign(planet=3)
    with_constant.to_csv("planet.csv", index=False)
    found = ask("planet.csv", "--value", "output", "--at", "temperature=20", "vacuum=40", "planet=3")
    h = plant[["temperature", "vacuum"]].std().to_numpy() * len(plant) ** (-1 / 7)
    assert found["answers"][0]["answer"]["output"] == pytest.approx(expected(plant, QUERIES, h)[0][0], rel=1e-9)
    assert found["bandwidth"]["planet"] == 1
    assert "Scott" in found["bandwidth_rule"]
    result = invoke("query", "planet.csv", "--value", "output", "--at", "planet=3")
    assert "assumed: bandwidth = planet 1 (the same in all rows" in result.stderr and "Scott" not in result.stderr
    assert "standard deviation is 0" in ask("planet.csv", "--value", "output", "--at", "planet=3")["bandwidth_rule"]


# --- strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1); DROP TABLE rows; --",
        "output > 1; ATTACH DATABASE 'stolen.db' AS x",
        "load_extension('x')",
        "writefile('stolen', 'x')",
        "output > (SELECT count(*) FROM sqlite_master)",
        "__import__('os').system('touch stolen')",
        "",
    ],
)
def test_a_condition_of_a_stranger_runs_nothing_and_leaves_nothing(folder, text):
    before = sorted(folder.rglob("*"))
    refused(invoke("query", "plant.csv", *AT, "--where", text))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "path", ["../$(touch stolen).csv", "a/b/c.adb", "-", "x" * 300, "plant.csv/rows.adb", "\x1b[2J.csv"]
)
def test_a_path_of_a_stranger_leaves_nothing(folder, path):
    before = sorted(folder.rglob("*"))
    result = invoke("query", "--value", "output", "--at", "vacuum=3", "--", path)
    assert result.exit_code == 1
    assert "\x1b" not in result.stderr
    assert sorted(folder.rglob("*")) == before


def test_names_and_texts_cannot_steer_the_terminal():
    Path("odd.csv").write_text('"x\x1b[31m",note,y\n1,"a\x1b]0;title\x07",2\n2,"\x9b2J\u202eb",3\n', encoding="utf-8")
    words = ("query", "odd.csv", "--value", "y", "--at", "x\x1b[31m=1", "--explain", 2)
    for result in (invoke(*words), invoke(*words, "--json"), invoke("query", "odd.csv", "--value", "z", "--at", "y=1")):
        for character in "\x1b\x07\x9b\u202e":
            assert character not in result.output
    assert (
        json.loads(invoke(*words, "--json").stdout)["answers"][0]["rows"][0]["columns"]["note"] == "a\x1b]0;title\x07"
    )


# --- the process ---------------------------------------------------------------------------------------------------


def start(*words: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "attendb", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_a_closed_pipe_ends_quietly(plant):
    many = pandas.concat([plant[["temperature", "vacuum"]]] * 40)
    many.to_csv("many.csv", index=False)
    process = start("query", "plant.csv", "--value", "output", "--at", "many.csv")
    assert process.stdout is not None and process.stderr is not None
    head = process.stdout.readline().split()
    process.stdout.close()
    stderr = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(60), head) == (0, [b"temperature", b"vacuum", b"answer_output"])
    assert all(line.startswith("assumed: ") for line in stderr.splitlines()), stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_is_130():
    process = start("query", "plant.csv", "--value", "output", "--at", "-", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None and process.stdout is not None
    process.stdin.write(b"temperature,vacuum\n")
    process.stdin.flush()
    os.set_blocking(process.stdin.fileno(), False)
    try:  # once the pipe is full the process surely reads it
        while process.stdin.write(b"1,2\n" * 4096):
            pass
    except BlockingIOError:
        pass
    while not select.select([], [process.stdin], [], 60)[1]:  # it has begun to read: the command runs
        pass
    process.send_signal(signal.SIGINT)
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:  # a signal just before read(2) is seen after it
        with suppress(BlockingIOError, BrokenPipeError):
            process.stdin.write(b"1,2\n" * 4096)
        time.sleep(0.01)
    assert process.wait(1) == 130
    assert process.stderr.read().decode() == "attendb: interrupted\n"
    with suppress(BrokenPipeError):  # what the process did not read any more
        process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    assert not list(Path().glob("attendb-*"))


def test_versions_and_help():
    assert invoke("--version").stdout.strip()
    for words in (["--help"], ["query", "-h"]):
        result = invoke(*words)
        assert result.exit_code == 0
    assert "Examples:" in result.stdout


# --- printing ------------------------------------------------------------------------------------------------------


def test_json_is_exact_and_never_nan():
    import datetime
    import decimal

    value = {
        **{"a": 2**63 - 1, "b": 0.1, "c": math.nan, "d": -math.inf, "e": [np.int64(2**53 + 1), np.nan]},
        **{"f": datetime.date(2020, 1, 2), "g": decimal.Decimal("0.10"), "h": b"\x00", "i": "\x9b\ud800é"},
    }
    text = to_json(value)
    assert text == (
        '{"a": 9223372036854775807, "b": 0.1, "c": null, "d": null, "e": [9007199254740993, null], '
        '"f": "2020-01-02", "g": "0.10", "h": "AA==", "i": "\\u009b\\ud800é"}'
    )
    text.encode("utf-8")


def test_words():
    assert (cell(None), cell(math.nan), cell(2**60), cell(1 / 3), cell("a\nb")) == (
        "-",
        "-",
        str(2**60),
        "0.333333",
        "a\\x0ab",
    )
    assert printable("a\tb\x1b\u202e\ud800") == "a\tb\\x1b\\u202e\\ud800"
    assert list(aligned(["n", "word"], [[1.5, "a"], [10, "bb"]])) == ["  n  word", "1.5  a", " 10  bb"]
    assert closest_first("Outptu", ["temperature", "output"]) == ["output", "temperature"]
