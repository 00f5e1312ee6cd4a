"""The commands that make, change and look after a stored table; every example of --help; the page of the reference."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import attendb as ad
from attendb.cli import app

ROWS = 120
ROOT = Path(__file__).resolve().parent.parent
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def invoke(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def done(*words: object):
    """The result of a command that must succeed."""
    result = invoke(*words)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result


def told(*words: object) -> dict:
    """The JSON of a command that must succeed."""
    return json.loads(done(*words, "--json").stdout)


def refused(result, *messages: str) -> None:
    """One sentence on stderr, nothing on stdout, exit code 1."""
    assert result.exit_code == 1, (result.output, result.exception)
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("attendb: ")
    for message in messages:
        assert message in last


def here() -> list[str]:
    """What lies in the folder, hidden files too; of a table its name alone."""
    return sorted(part.name for part in Path().iterdir())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hours of a plant, with the number of the hour and a site; a second month; corrections; people."""
    monkeypatch.chdir(tmp_path)
    text = (files("attendb") / "data" / "power_plant.csv").read_text(encoding="utf-8").splitlines()
    head, lines = text[0], text[1 : 2 * ROWS + 1]
    rows = [f"{i},{line},{'north' if i % 3 else 'south'}" for i, line in enumerate(lines)]
    head = f"hour,{head},site"
    Path("january.csv").write_text("\n".join([head, *rows[:ROWS]]) + "\n")
    Path("february.csv").write_text("\n".join([head, *rows[ROWS:]]) + "\n")
    Path("corrected.csv").write_text(
        "\n".join([head, "5,1.5,40.5,1000,50,499,north", "900,2,41,1001,51,498,south"]) + "\n"
    )
    Path("queries.csv").write_text("temperature,vacuum\n20,40\n15.5,60\n")
    Path("people.csv").write_text("name,age,city\nLi,30,Ulm\nZhang,40,Bonn\nHu,50,Kiel\n")
    return tmp_path


CREATE = ("create", "january.csv", "--out", "plant.adb", "--key", "temperature", "--key", "vacuum", "--value", "output")
AT = ("--at", "temperature=20", "vacuum=40")


@pytest.fixture
def plant() -> ad.Database:
    done(*CREATE, "--id", "hour")
    return ad.Database.open("plant.adb")


# --- create --------------------------------------------------------------------------------------------------------


def test_create_shows_the_types_and_stores_the_rows():
    result = done(*CREATE, "--id", "hour")
    shown = [line.split() for line in result.stderr.splitlines()]
    assert ["hour", "int64", "id"] in [line[:3] for line in shown]
    assert ["temperature", "float64", "key"] in [line[:3] for line in shown]
    assert ["output", "float64", "value"] in [line[:3] for line in shown]
    assert ["site", "text"] in [line[:2] for line in shown]
    assert result.stdout.startswith(f"plant.adb: {ROWS} rows, version ")
    assert "attendb query plant.adb --at temperature=… vacuum=…" in result.stderr
    database = ad.Database.open("plant.adb")
    frame = pandas.read_csv("january.csv")
    assert len(database) == ROWS
    assert database.info()["id"] == "hour"
    found = database.to_pandas().sort_values("hour")
    assert found["output"].tolist() == frame["output"].tolist()
    assert list(database.columns["keys"]) == ["temperature", "vacuum"]


def test_create_assumes_what_was_not_said_and_says_it():
    result = done("create", "people.csv", "--out", "people.adb", "--value", "city")
    assert "assumed: key = age (all other numeric columns)" in result.stderr
    found = told("create", "people.csv", "--out", "names.adb", "--key", "name")
    assert (found["keys"], found["values"], found["id"], found["rows"]) == (["name"], ["age", "city"], None, 3)
    Path("ids.csv").write_text("id,x,y\n7,1,2\n9,3,4\n")
    result = done("create", "ids.csv", "--out", "ids.adb", "--value", "y")
    assert "assumed: id = id" in result.stderr
    assert "assumed: key = x " in result.stderr
    assert ad.Database.open("ids.adb").get([9])["y"].tolist() == [4]


def test_create_from_several_files_is_one_table_in_the_order_of_the_files():
    found = told("create", "january.csv", "february.csv", "--out", "year.adb", "--value", "output", "--id", "hour")
    assert found["rows"] == 2 * ROWS
    assert ad.Database.open("year.adb").to_pandas()["hour"].tolist() == list(range(2 * ROWS))
    Path("a.csv").write_text("code,x,y\n02116,1,1\n")
    Path("b.csv").write_text("y,x,code\n2,1.5,94107\n")
    done("create", "a.csv", "b.csv", "--out", "codes.adb", "--key", "x", "--value", "y", "--value", "code")
    rows = ad.Database.open("codes.adb").to_pandas()
    assert rows["code"].tolist() == ["02116", "94107"]
    assert rows["x"].tolist() == [1.0, 1.5]
    done("create", "*uary.csv", "--out", "glob.adb", "--value", "output", "--id", "hour")
    assert len(ad.Database.open("glob.adb")) == 2 * ROWS
    refused(
        invoke("create", "a.csv", "people.csv", "--out", "no.adb", "--value", "y"), "people.csv has not the columns"
    )
    assert "no.adb" not in here()


def test_create_reads_files_as_it_is_told():
    Path("german.txt").write_text("größe;preis;plz\n1,5;100;01067\n2,5;200;80331\n", encoding="cp1252")
    refused(invoke("create", "german.txt", "--out", "g.adb", "--value", "preis"), "UTF-8")
    options = ("--encoding", "cp1252", "--delimiter", ";", "--decimal", ",", "--type", "preis=float64")
    done("create", "german.txt", "--out", "g.adb", "--key", "größe", "--value", "preis", *options)
    rows = ad.Database.open("g.adb").to_pandas()
    assert (rows["größe"].tolist(), rows["preis"].tolist()) == ([1.5, 2.5], [100.0, 200.0])
    refused(invoke("create", "people.csv", "--out", "p.adb", "--key", "age", "--type", "text"), "COLUMN=TYPE")


def test_rows_without_a_key_are_left_out_by_the_condition_that_the_error_offers():
    Path("gaps.csv").write_text("id,x,y\n7,1,2\n8,,3\n9,4,5\n")
    words = ("create", "gaps.csv", "--out", "gaps.adb", "--key", "x", "--value", "y")
    result = invoke(*words)
    refused(result, "'x' has no number in 1 rows")
    condition = shlex.split(result.stderr.splitlines()[-1].partition("--where ")[2])[0]
    assert told(*words, "--where", condition)["rows"] == 2
    Path("more.csv").write_text("id,x,y\n17,1,2\n18,,3\n19,4,5\n")
    assert told("append", "gaps.adb", "more.csv", "--where", "id > 17 AND x IS NOT NULL")["added"] == 1
    assert ad.Database.open("gaps.adb").to_pandas()["id"].tolist() == [7, 9, 19]
    refused(invoke(*words[:3], "other.adb", *words[4:], "--where", "z > 1"), "no such column: z")


def test_values_that_are_missing_are_left_out_by_the_condition_that_the_error_offers():
    Path("gaps.csv").write_text("x,y\n1,2\n2,\n4,5\n")
    done("create", "gaps.csv", "--out", "gaps.adb", "--key", "x", "--value", "y")
    result = invoke("query", "gaps.adb", "--at", "x=2")
    refused(result, "y has no value in rows", "--where")
    condition = shlex.split(result.stderr.splitlines()[-1].partition("--where ")[2])[0]
    assert done("query", "gaps.adb", "--at", "x=3.9", "--where", condition, "--weights", "nearest").stdout == "5\n"


def test_words_that_stand_for_missing_values_are_named_as_the_messages_say():
    Path("odd.csv").write_text("x,y,name\n1,2,Li\n2,unknown,NA\n3,-9999,Hu\n")
    words = ("odd.csv", "--key", "x", "--value", "y")
    refused(
        invoke("query", *words, "--at", "x=1", "--type", "y=float64"), "'unknown' (line 3)", "name it with --missing"
    )
    told_more = invoke("query", *words, "--at", "name=Li", "--key", "name")
    assert "name the word with --missing if it stands for a missing value" in told_more.stderr
    gaps = ("--missing", "unknown", "--missing", "-9999")
    assert done("query", *words, "--at", "x=1", *gaps, "--where", "y IS NOT NULL").stdout == "2\n"
    done("create", *words, "--out", "odd.adb", *gaps)
    done("append", "odd.adb", "odd.csv", *gaps)
    values = ad.Database.open("odd.adb").to_pandas()["y"]
    assert values.dropna().tolist() == [2, 2] and len(values) == 6


def test_create_from_a_database_by_sql():
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect("plant.db")) as connection:
        connection.execute("CREATE TABLE hours (t REAL, output REAL)")
        connection.executemany("INSERT INTO hours VALUES (?, ?)", [(i, i * i) for i in range(10)])
        connection.commit()
    words = ("create", "sqlite:///plant.db", "--sql", "SELECT * FROM hours WHERE t < 5", "--out", "p.adb")
    assert told(*words, "--value", "output")["rows"] == 5
    words = ("query", "sqlite:///plant.db", "--value", "output", "--at", "t=3.2", "--weights", "nearest")
    assert float(done(*words, "--sql", "SELECT * FROM hours").stdout) == 9
    refused(invoke(*words), "say which rows with --sql")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["january.csv", "--out", "p.adb"], "give --value, one of hour, temperature,"),
        (
            ["january.csv", "--out", "p.adb", "--value", "outptu"],
            "no column 'outptu': choose among output,",
        ),
        (["january.csv", "--out", "p.adb", "--key", "vacum", "--value", "output"], "'vacum': choose among vacuum,"),
        (["january.csv", "--out", "p.adb", "--value", "output", "--id", "our"], "'our': choose among hour,"),
        (
            ["januar.csv", "--out", "p.adb", "--value", "output"],
            "no file januar.csv: this folder has january.csv",
        ),
        (["people.csv", "--out", "p.adb", "--value", "age"], "no numeric column beside age: name the key with --key"),
        (["january.csv", "--out", "people.csv", "--value", "output"], "people.csv"),
        (["january.csv", "--out", "no/where/p.adb", "--value", "output"], "no/where"),
        (["january.csv", "--out", "p.adb", "--value", "output", "--id", "site"], "more than once"),
        (["january.csv", "--out", "p.adb", "--key", "output", "--value", "output"], "'output'"),
        (["gaps.csv", "--out", "p.adb", "--value", "y"], "'x'"),
        (["sqlite:///no.db", "--out", "p.adb", "--value", "y"], "with --sql"),
    ],
)
def test_create_refuses_and_leaves_nothing(words, message):
    Path("gaps.csv").write_text("x,y\n1,2\n,3\n")
    before = here()
    refused(invoke("create", *words), message)
    assert here() == before


def test_create_never_writes_over_a_table(plant):
    refused(invoke(*CREATE), "plant.adb")
    assert len(ad.Database.open("plant.adb")) == ROWS


# --- query ---------------------------------------------------------------------------------------------------------


def test_a_stored_table_answers_as_its_file_does(plant):
    for options in (("--explain", 3), ("--where", "site = 'north' AND pressure > 1005"), ("--weights", "top:3:uniform"),
                    ("--score", "laplacian"), ("--bandwidth", 2)):  # fmt: skip
        stored = told("query", "plant.adb", "--at", "queries.csv", *options)
        keys = ("--key", "temperature", "--key", "vacuum", "--value", "output")
        from_file = told("query", "january.csv", *keys, "--at", "queries.csv", *options)
        for one, other in zip(stored["answers"], from_file["answers"], strict=True):
            assert one["answer"]["output"] == pytest.approx(other["answer"]["output"], rel=1e-12)
        assert stored.get("bandwidth") == pytest.approx(from_file.get("bandwidth"), rel=1e-9)


def test_a_condition_that_no_row_satisfies_is_an_error_for_a_table_as_for_its_file(plant):
    condition = ("--where", "output > 9999")
    message = f"satisfies 'output > 9999': {ROWS} rows were looked at"
    refused(invoke("query", "plant.adb", *AT, *condition), f"no row of plant.adb {message}")
    assert "Scott" not in invoke("query", "plant.adb", *AT, *condition).stderr
    refused(invoke("query", "january.csv", "--value", "output", *AT, *condition), f"no row of january.csv {message}")
    plant.delete("hour >= 0")
    refused(invoke("query", "plant.adb", *AT), "plant.adb has no rows")


def test_explained_rows_of_a_table_are_named_by_its_id(plant):
    row = told("query", "plant.adb", *AT, "--explain", 1)["answers"][0]["rows"][0]
    frame = pandas.read_csv("january.csv").set_index("hour")
    assert row["columns"] == frame.loc[row["id"]].to_dict()


def test_a_batch_is_appended_once(plant):
    rows = len(plant)
    added = [told("append", "plant.adb", "february.csv", "--batch", "february")["added"] for _ in range(2)]
    assert added[0] > 0 == added[1] and len(ad.Database.open("plant.adb")) == rows + added[0]


def test_a_table_is_asked_at_a_version(plant):
    before = told("query", "plant.adb", *AT)["answers"]
    version = plant.version
    plant.tag("first")
    done("delete", "plant.adb", "--where", "output > 450")
    assert told("query", "plant.adb", *AT)["answers"] != before
    assert told("query", "plant.adb", *AT, "--version", version)["answers"] == before
    assert told("query", "plant.adb", *AT, "--version", "first")["answers"] == before
    refused(invoke("query", "plant.adb", *AT, "--version", "99"), "no version 99")
    refused(invoke("query", "plant.adb", *AT, "--version", "last"), "'last'", "'first'")


def test_a_saved_score_is_used_by_its_name(plant):
    plant.save_score("near", ad.Gaussian([2.0, 5.0]))
    found = told("query", "plant.adb", *AT, "--score", "near")
    assert found["score"] == "near"
    assert found["answers"] == told("query", "plant.adb", *AT, "--bandwidth", "2,5")["answers"]
    refused(invoke("query", "plant.adb", *AT, "--score", "neer"), "no score 'neer': choose one of near, linear"[:35])
    refused(invoke("query", "plant.adb", *AT, "--score", "near", "--bandwidth", 2), "has its own parameters")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "temprature=20"], "has no column 'temprature': choose among temperature"),
        (["--at", "temperature=20"], "--at lacks the key column 'vacuum'"),
        (["--at", "temperature=20", "vacuum=40", "humidity=3"], "'humidity' is no column of the key"),
        ([*AT, "--key", "temperature"], "is stored with the key temperature, vacuum, got --key temperature"),
        ([*AT, "--value", "outptu"], "has no column 'outptu': choose among output"),
        ([], "give --at temperature="),
        ([*AT, "--where", "otput > 3"], "no such column: otput"),
    ],
)
def test_mistakes_in_a_question_to_a_table(plant, words, message):
    refused(invoke("query", "plant.adb", *words), message)


# --- changes -------------------------------------------------------------------------------------------------------


def test_append_adds_the_rows_of_files(plant):
    found = told("append", "plant.adb", "february.csv")
    assert (found["added"], found["rows"]) == (ROWS, 2 * ROWS)
    assert found["version"] > plant.version
    refused(invoke("append", "plant.adb", "february.csv"), "exist")
    refused(invoke("append", "plant.adb", "people.csv"), "lacks")
    assert len(ad.Database.open("plant.adb")) == 2 * ROWS


def test_what_is_text_in_the_table_is_text_in_the_files_added():
    Path("codes.csv").write_text("zip,x\n02116,1\n")
    Path("more.csv").write_text("zip,x\n94107,2\n")
    done("create", "codes.csv", "--out", "codes.adb", "--key", "zip", "--value", "x")
    done("append", "codes.adb", "more.csv")
    assert told("upsert", "codes.adb", "more.csv")["replaced"] == 1
    assert ad.Database.open("codes.adb").lookup("94107") == 2


def test_a_bad_cell_in_rows_that_are_added_is_named_by_its_line():
    Path("stones.csv").write_text(
        "carat,price,seen,cut,hard\n0.5,100,2026-01-02,Good,true\n0.7,140,2026-01-03,Ideal,false\n"
    )
    done("create", "stones.csv", "--out", "stones.adb", "--key", "carat", "--value", "price")
    for command in ("append", "upsert"):
        Path("more.csv").write_text("carat,price,seen,cut,hard\n0.9,1,2026-01-04,7,true\nbig,2,2026-01-04,8,true\n")
        sentence = (
            "more.csv: column 'carat' has 'big' (line 3), which is no float64: mend the cell or name it with --missing"
        )
        refused(invoke(command, "stones.adb", "more.csv"), sentence)
        Path("more.csv").write_text("carat,price,seen,cut,hard\n0.9,1,2026-01-04,7,true\n0.8,2,soon,8,maybe\n")
        refused(invoke(command, "stones.adb", "more.csv"), "more.csv: column 'seen' has 'soon' (line 3)")
        Path("more.csv").write_text("carat,price,seen,cut,hard\n,1,2026-01-04,Fair,true\n")
        refused(invoke(command, "stones.adb", "more.csv"), "the key column 'carat' has no number in 1 rows")
    Path("more.csv").write_text("carat,price,seen,cut,hard\n1,,,,\n")
    assert done("append", "stones.adb", "more.csv").stderr == ""
    added = ad.Database.open("stones.adb").to_pandas().iloc[-1]
    assert added["carat"] == 1 and added[["price", "seen", "cut", "hard"]].isna().all()


def test_columns_that_added_rows_lack_are_said(plant):
    Path("short.csv").write_text("hour,temperature,vacuum,output\n900,1,2,3\n")
    for command in ("append", "upsert"):
        result = done(command, "plant.adb", "short.csv")
        assert "short.csv lacks pressure, humidity, site, which are null in these rows" in result.stderr
        plant.refresh()
    assert plant.get(900)["site"].isna().all()
    assert done("append", "plant.adb", "february.csv").stderr == ""


def test_upsert_counts_what_it_replaced_and_added(plant):
    found = told("upsert", "plant.adb", "corrected.csv")
    assert (found["replaced"], found["added"], found["rows"]) == (1, 1, ROWS + 1)
    assert ad.Database.open("plant.adb").get([5, 900])["output"].tolist() == [499, 498]
    assert "2 rows replaced, 0 added" in done("upsert", "plant.adb", "corrected.csv").stdout


def test_delete_removes_rows_by_condition_or_id_and_can_be_undone(plant):
    frame = pandas.read_csv("january.csv")
    many = int((frame["output"] < 450).sum())
    dry = told("delete", "plant.adb", "--where", "output < 450", "--dry-run")
    assert (dry["would_delete"], dry["rows"], dry["version"]) == (many, ROWS, plant.version)
    assert len(ad.Database.open("plant.adb")) == ROWS
    result = done("delete", "plant.adb", "--where", "output < 450")
    assert f"{many} rows deleted, {ROWS - many} are left" in result.stdout
    undo = shlex.split(result.stderr.splitlines()[-1].removeprefix("undo it: attendb "))
    done(*undo)
    assert len(ad.Database.open("plant.adb")) == ROWS
    assert told("delete", "plant.adb", "--id", 5, "--id", 7, "--id", 99999, "--dry-run")["would_delete"] == 2
    result = done("delete", "plant.adb", "--id", 5, "--id", 7, "--id", 99999)
    assert "2 rows deleted" in result.stdout and "no row has the id 99999\n" in result.stderr
    assert told("delete", "plant.adb", "--id", 5, "--id", 8)["not_found"] == [5]
    assert "not_found" not in told("delete", "plant.adb", "--id", 9)
    assert told("delete", "plant.adb", "--where", "output < 0")["deleted"] == 0


def test_delete_by_ids_of_text_and_by_position():
    done("create", "people.csv", "--out", "people.adb", "--key", "age", "--value", "city", "--id", "name")
    dry = told("delete", "people.adb", "--id", "Li", "--id", "O'Hara", "--dry-run")
    assert (dry["would_delete"], dry["not_found"]) == (1, ["O'Hara"])
    assert told("delete", "people.adb", "--id", "Li")["rows"] == 2
    done("create", "people.csv", "--out", "plain.adb", "--key", "age", "--value", "city")
    assert told("delete", "plain.adb", "--id", "0", "--id", "3")["not_found"] == [3]
    assert told("delete", "plain.adb", "--id", "0")["not_found"] == [0]
    refused(invoke("delete", "plain.adb", "--id", "Li"), "--id Li is no whole number")


def test_messages_say_how_a_text_is_quoted_and_that_there_are_no_tags(plant):
    hint = "no such column: north (a text stands in single quotes, 'north')"
    for condition in ("site = north", "site IN ('south', north)", "NOT site LIKE north"):
        refused(invoke("delete", "plant.adb", "--where", condition), hint)
    assert "single quotes" not in invoke("delete", "plant.adb", "--where", "sight = 'north'").stderr
    refused(invoke("restore", "plant.adb", "nope"), "has no tag 'nope': it has no tags; give one, or the number of")


def test_delete_takes_one_of_condition_and_ids(plant):
    refused(invoke("delete", "plant.adb"), "neither --where nor --id")
    refused(invoke("delete", "plant.adb", "--where", "output < 3", "--id", 3), "both --where and --id")


# --- history -------------------------------------------------------------------------------------------------------


def test_info_says_what_a_table_holds(plant):
    found = told("info", "plant.adb")
    assert (found["rows"], found["id"], found["version"]) == (ROWS, "hour", plant.version)
    assert found["columns"]["vacuum"] == {"role": "key", "type": "float64"}
    assert found["columns"]["site"] == {"role": "other", "type": "text"}
    words = done("info", "plant.adb").stdout
    assert f"{ROWS} rows" in words and "rows are named by hour" in words
    of_file = told("info", "january.csv")
    assert (of_file["rows"], of_file["columns"]["site"]["type"]) == (ROWS, "text")
    assert "temperature  float64" in done("info", "january.csv").stdout


def test_versions_and_restore(plant):
    plant.tag("whole")
    done("append", "plant.adb", "february.csv")
    found = told("versions", "plant.adb")
    assert found["version"] == found["versions"][-1]["version"]
    assert [one["rows"] for one in found["versions"]][-1] == 2 * ROWS
    assert {tag: one["rows"] for one in found["versions"] for tag in one["tags"]} == {"whole": ROWS}
    lines = done("versions", "plant.adb").stdout.splitlines()
    assert lines[0].split() == ["version", "time", "change", "rows", "tags"]
    assert len(lines) == len(found["versions"]) + 1
    restored = told("restore", "plant.adb", "whole")
    assert (restored["rows"], restored["restored"]) == (ROWS, "whole")
    assert restored["version"] > found["version"]
    refused(invoke("restore", "plant.adb", "4711"), "no version 4711")


def test_verify_finds_a_file_that_was_cut_short_and_names_the_repair(plant):
    assert told("verify", "plant.adb") == {"table": "plant.adb", "whole": True, "damages": []}
    done("append", "plant.adb", "february.csv")
    newest = max(Path("plant.adb/data").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    result = invoke("verify", "plant.adb")
    assert result.exit_code == 1
    assert newest.name in result.stdout
    found = re.search(r"attendb (restore plant\.adb \d+)", result.stderr)
    assert found is not None
    assert json.loads(invoke("verify", "plant.adb", "--json").stdout)["whole"] is False
    done(*found[1].split())
    assert len(ad.Database.open("plant.adb")) == ROWS
    done("verify", "plant.adb")


def test_compact_joins_the_pieces(plant):
    for start in range(3):
        Path("one.csv").write_text(f"hour,temperature,vacuum,output\n{1000 + start},1.5,2.5,3.5\n")
        done("append", "plant.adb", "one.csv")
    found = told("compact", "plant.adb")
    assert found["pieces_before"] == 4 > found["pieces"]
    assert found["rows"] == ROWS + 3
    assert f"{found['pieces']} pieces became" in done("compact", "plant.adb", "--drop-older-than", "0").stdout
    assert len(told("versions", "plant.adb")["versions"]) < 3


# --- export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["csv", "tsv", "csv.gz", "parquet", "jsonl"])
def test_export_writes_all_columns_exactly(plant, end):
    assert told("export", "plant.adb", f"out.{end}")["rows"] == ROWS
    if end == "jsonl":
        found = pandas.read_json("out.jsonl", lines=True)
    else:
        found = (
            pandas.read_parquet("out.parquet")
            if end == "parquet"
            else pandas.read_csv(f"out.{end}", sep=None, engine="python")
        )
    expected = pandas.read_csv("january.csv")
    pandas.testing.assert_frame_equal(found[expected.columns].reset_index(drop=True), expected, check_dtype=False)
    refused(invoke("export", "plant.adb", f"out.{end}"), "already there")
    done("export", "plant.adb", f"out.{end}", "--where", "output > 480", "--overwrite")


def test_export_of_chosen_rows_columns_and_versions(plant):
    frame = pandas.read_csv("january.csv")
    done("export", "plant.adb", "some.csv", "--where", "output > 480", "--column", "output", "--column", "hour")
    found = pandas.read_csv("some.csv")
    assert list(found.columns) == ["output", "hour"]
    assert found["hour"].tolist() == frame[frame.output > 480]["hour"].tolist()
    version = plant.version
    done("delete", "plant.adb", "--where", "hour > 3")
    assert len(done("export", "plant.adb", "-").stdout.splitlines()) == 5
    assert len(done("export", "plant.adb", "-", "--version", version).stdout.splitlines()) == ROWS + 1
    refused(invoke("export", "plant.adb", "a.csv", "--column", "outptu"), "no column 'outptu': choose among output")
    refused(invoke("export", "plant.adb", "a.txt"), "end its name in")
    refused(invoke("export", "plant.adb", "plant.adb"), "end its name in")
    assert invoke("export", "plant.adb", "-", "--json").exit_code == 2
    assert "no row of plant.adb" in done("export", "plant.adb", "none.csv", "--where", "hour > 99999").stderr


def test_large_whole_numbers_and_gaps_go_through_a_table_unchanged():
    table = {"x": [1.0, 2.0], "account": pa.array([1234567890123456789, None], pa.int64()), "note": ["a", None]}
    pq.write_table(pa.table(table), "in.parquet")
    done("create", "in.parquet", "--out", "t.adb", "--key", "x", "--value", "note", "--value", "account")
    done("export", "t.adb", "out.jsonl")
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["account"] for row in rows] == [1234567890123456789, None]
    found = told("query", "t.adb", "--value", "account", "--at", "x=1", "--weights", "nearest", "--explain", 2)
    assert found["answers"][0]["answer"] == {"account": 1234567890123456789}
    assert found["answers"][0]["rows"][0]["columns"]["account"] == 1234567890123456789


# --- mistakes and strangers ----------------------------------------------------------------------------------------

ON_TABLES = [
    ("append", "january.csv"),
    ("upsert", "january.csv"),
    ("delete", "--where", "1"),
    ("versions",),
    ("verify",),
    ("restore", "1"),
    ("compact",),
    ("export", "out.csv"),
    ("query", "--at", "temperature=3"),
]


@pytest.mark.parametrize("words", ON_TABLES, ids=lambda words: words[0])
def test_what_is_no_table_is_refused_and_nothing_is_made(words):
    Path("empty").mkdir()
    command, *rest = words
    before = here()
    refused(invoke(command, "plnt.adb", *rest), "plnt.adb")
    refused(invoke(command, "empty", *rest), "empty")
    if command != "query":
        refused(invoke(command, "january.csv", *rest), "january.csv")
    assert here() == before
    assert not list(Path("empty").iterdir())


@pytest.mark.parametrize(
    "text", ["1); DROP TABLE rows; --", "load_extension('x')", "output > (SELECT 1 FROM sqlite_master)"]
)
def test_a_condition_of_a_stranger_changes_nothing(plant, text):
    before = sorted(Path().rglob("*"))
    for words in (["query", "plant.adb", *AT], ["delete", "plant.adb"], ["export", "plant.adb", "out.csv"]):
        refused(invoke(*words, "--where", text))
    assert sorted(Path().rglob("*")) == before
    assert ad.Database.open("plant.adb").version == plant.version


# --- help ----------------------------------------------------------------------------------------------------------


def examples_of(name: str) -> list[str]:
    text = invoke(name, "--help").stdout.partition("Examples:\n")[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_of_help_run_as_they_stand(name):
    """In a folder with the files that they name; each command may use the table of the first example."""
    text = (files("attendb") / "data" / "power_plant.csv").read_text(encoding="utf-8").splitlines()
    Path("plant.csv").write_text("\n".join(text[: ROWS + 1]) + "\n")
    Path("houses.csv").write_text("\n".join(["price,area", *(f"{i * i % 97},{i}" for i in range(60))]) + "\n")
    Path("german.csv").write_text("größe;output\n1,5;2,5\n2,5;3,5\n", encoding="utf-8")
    Path("parts").mkdir()
    more = pandas.read_csv("plant.csv").head(5)
    more.to_parquet("parts/one.parquet", index=False)
    if name != "create":
        done(
            "create", "plant.csv", "--out", "plant.adb", "--key", "temperature", "--key", "vacuum", "--value", "output"
        )
        more.to_csv("february.csv", index=False)
        more.assign(temperature=more.temperature + 100).to_csv("corrected.csv", index=False)
    lines = examples_of(name)
    assert lines, f"attendb {name} --help shows no example"
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "attendb"
        assert words[0] == name
        done(*words)


def test_the_reference_is_what_help_prints():
    path = ROOT / "docs" / "make_cli.py"
    spec = importlib.util.spec_from_file_location("make_cli", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == module.page(), "run docs/make_cli.py"


def test_every_command_has_help_json_and_an_example():
    for name, command in COMMANDS.items():
        options = {option for parameter in command.params for option in getattr(parameter, "opts", ())}
        assert "--json" in options, name
        assert command.help, name
        assert examples_of(name), name


# --- the process ---------------------------------------------------------------------------------------------------


def test_export_to_a_closed_pipe_ends_quietly(plant):
    process = subprocess.Popen(
        [sys.executable, "-m", "attendb", "export", "plant.adb", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), stderr) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupted_create_leaves_nothing():
    rng = np.random.default_rng(0)
    pandas.DataFrame(rng.normal(size=(400_000, 6)), columns=list("abcdey")).to_csv("large.csv", index=False)
    before = here()
    words = [sys.executable, "-m", "attendb", "create", "large.csv", "--out", "large.adb", "--value", "y"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    while not process.stderr.readline().startswith(b"  a "):  # the types are shown: it begins to write
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, last = process.wait(60), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    if code == 0:
        pytest.skip("it was done before the signal came")
    assert code == 130
    assert last.splitlines()[-1] == b"attendb: interrupted"
    assert here() == before
