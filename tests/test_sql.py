"""Import from SQL: SQLite files, and a PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from attendb.errors import InputError
from attendb.importing import Import, open_table


def rows_of(table: Import) -> dict[str, list[Any]]:
    return pa.Table.from_batches(table.batches(), table.schema).to_pydict()


def types_of(table: Import) -> list[str]:
    return [str(field.type) for field in table.schema]


@pytest.fixture
def plant(tmp_path: Path) -> str:
    path = tmp_path / "plant 1.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE hours (id INTEGER, site TEXT, output REAL, late)")
        rows = [(2**53 + 1 + i, "a" if i % 2 else None, i / 2, i) for i in range(3_000)]
        connection.executemany("INSERT INTO hours VALUES (?, ?, ?, ?)", rows)
        connection.execute("INSERT INTO hours VALUES (7, '02116', NULL, 'text at last')")
        connection.commit()
    return f"sqlite:///{path}"


def test_sqlite_types_are_those_of_all_rows(plant):
    table = open_table(plant, query="SELECT * FROM hours ORDER BY rowid; -- all")
    assert types_of(table) == ["int64", "large_string", "double", "large_string"]
    assert table.rows == 3_001
    found = rows_of(table)
    assert found["id"][:2] == [2**53 + 1, 2**53 + 2]
    assert (found["site"][-1], found["output"][-2:], found["late"][-2:]) == (
        "02116",
        [1499.5, None],
        ["2999", "text at last"],
    )
    assert any("column 'late' is text" in note for note in table.notes)
    assert rows_of(table) == found  # a new pass each time


def test_sqlite_numbers_that_a_float_would_change_are_text(plant):
    table = open_table(plant, query="SELECT id AS x FROM hours UNION ALL SELECT 1.5")
    assert types_of(table) == ["large_string"]
    assert rows_of(table)["x"][0] == "9007199254740993"
    assert types_of(open_table(plant, query="SELECT 1 AS x UNION ALL SELECT 1.5")) == ["double"]
    empty = open_table(plant, query="SELECT id, NULL AS n FROM hours WHERE id < 0")
    assert (empty.rows, rows_of(empty)) == (0, {"id": [], "n": []})
    typed = open_table(plant, query="SELECT late FROM hours", text=["late"])
    assert typed.notes == () and types_of(typed) == ["large_string"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (None, "say which rows with query="),
        ("SELECT * FROM nowhere", "cannot answer the query .no such table: nowhere"),
        ("SELECT id, id FROM hours", "two columns 'id'"),
        ("DELETE FROM hours", "attempt to write a readonly database"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
    ],
)
def test_queries_that_sqlite_refuses(plant, query, message):
    with pytest.raises(InputError, match=message):
        open_table(plant, query=query)
    assert open_table(plant, query="SELECT * FROM hours").rows == 3_001


def test_uris_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_table(f"sqlite:///{tmp_path}/absent.db", query="SELECT 1")
    assert not list(tmp_path.iterdir())  # asking creates nothing
    with pytest.raises(InputError, match="mysql:// is no database that can be read"):
        open_table("mysql://host/base", query="SELECT 1")


def test_an_absent_driver_names_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    with pytest.raises(InputError, match=r"needs the package adbc-driver-postgresql: pip install 'attendb\[sql\]'"):
        open_table("postgresql://host/base", query="SELECT 1")


def _postgres() -> Path | None:
    """The folder of the server's programs: on the path, or where Debian puts them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URI of a server of our own, on a socket in a temporary folder; it never runs as root."""
    programs = _postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        import pwd

        names = [name for name in ("postgres", "nobody") if any(entry.pw_name == name for entry in pwd.getpwall())]
        if not names:
            pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
        user = {"user": names[0]}
    with tempfile.TemporaryDirectory(prefix="attendb-pg-") as folder:  # short: a socket's path has 107 bytes at most
        if user:
            shutil.chown(folder, user["user"])
        data, log = f"{folder}/data", f"{folder}/log"

        def call(*words: str) -> None:
            done = subprocess.run(
                words,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=120,
                env={"LC_ALL": "C", "HOME": folder},
                **user,
            )
            assert done.returncode == 0, done.stderr

        call(f"{programs}/initdb", "-D", data, "-U", "tester", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        with open(os.devnull, "w") as nowhere:  # pg_ctl hands its pipes to the server, which would keep them open
            subprocess.run(
                [f"{programs}/pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start"],
                cwd=folder, stdout=nowhere, stderr=nowhere, timeout=120, check=True,
                env={"LC_ALL": "C", "HOME": folder}, **user,
            )  # fmt: skip
        try:
            yield f"postgresql:///postgres?host={folder}&user=tester"
        finally:
            call(f"{programs}/pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


HOURS = """
    SELECT 9007199254740993 + i AS id, CASE WHEN i % 2 = 0 THEN '0' || i END AS site, i / 2.0::float8 AS output,
           i::numeric(10, 2) AS price, DATE '2014-12-31' + i::int AS day, i % 2 = 0 AS even,
           ARRAY[i, i + 1]::float4[] AS v, TIMESTAMPTZ '2020-01-02 03:04:05+00' AS seen
    FROM generate_series(0, {last}) AS i
"""


def test_postgresql(server):
    table = open_table(server, query=HOURS.format(last=99_999))
    assert types_of(table) == [
        "int64", "large_string", "double", "large_string", "date32[day]", "bool", "fixed_size_list<item: float>[2]",
        "timestamp[us, tz=UTC]",
    ]  # fmt: skip
    assert any("column 'price' is numeric in the database" in note for note in table.notes)
    found = rows_of(table)
    assert len(found["id"]) == 100_000
    assert found["id"][:2] == [2**53 + 1, 2**53 + 2]
    assert found["site"][:3] == ["00", None, "02"]
    assert (found["output"][1], found["price"][1], found["even"][:2]) == (0.5, "1.00", [True, False])
    assert found["v"][1] == [1.0, 2.0]
    typed = open_table(server, query=HOURS.format(last=2), types={"price": "float64"})
    assert rows_of(typed)["price"] == [0.0, 1.0, 2.0]


def test_postgresql_without_rows_has_types(server):
    table = open_table(server, query=HOURS.format(last=-1))
    assert types_of(table)[:3] == ["int64", "large_string", "double"]
    assert rows_of(table)["id"] == []


@pytest.mark.parametrize(("query", "message"), [("SELECT * FROM nowhere", "nowhere"), ("SELEC 1", "syntax error")])
def test_queries_that_postgresql_refuses(server, query, message):
    with pytest.raises(InputError, match=f"cannot answer the query .*{message}"):
        open_table(server, query=query)


def test_a_server_that_is_not_there_does_not_tell_the_password():
    with pytest.raises(InputError) as caught:
        open_table("postgresql://me:secret@localhost:1/base", query="SELECT 1")
    assert "postgresql://me:…@localhost:1/base cannot answer" in str(caught.value)
    assert "secret" not in str(caught.value)
