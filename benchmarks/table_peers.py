"""The same work by pyarrow, Lance, LanceDB and DuckDB: each function gives the runs of one peer, by its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compare
import numpy as np
import pyarrow as pa
import pyarrow.csv
from table_data import WIDTH, Data, sync_files

BEST = 10


@dataclass(frozen=True)
class Side:
    """One run that is timed, and what is done before each of them, which is not."""

    run: Callable[[], Any]
    before: Callable[[], object] | None = None


Sides = Mapping[str, Side]


def pyarrow_csv(data: Data) -> Sides:
    pa.set_cpu_count(compare.THREADS)

    def batch_by_batch() -> int:
        with pyarrow.csv.open_csv(data.csv) as reader:
            return sum(batch.num_rows for batch in reader)

    return {"read_csv": Side(lambda: pyarrow.csv.read_csv(data.csv).num_rows), "open_csv": Side(batch_by_batch)}


def lance_append(data: Data, *, synced: bool = False) -> Sides:
    """Ten rows are there before, as on our side; both in the newest storage version and in that of our tables."""
    import lance

    def side(version: str) -> Side:
        place = data.folder / "append.lance"

        def prepare() -> None:
            lance.write_dataset(data.arrow.slice(0, 10), data.place(place.name), data_storage_version=version)

        def run() -> int:
            written = lance.write_dataset(data.arrow, place, mode="append", data_storage_version=version)
            if synced:
                sync_files(place)
            return written.version

        return Side(run, prepare)

    return {f"version {version}": side(version) for version in ("2.0", "stable")}


# LanceDB


def lancedb_top(data: Data, n: int) -> Sides:
    """Flat search, all queries in one call: one by one took six times as long."""
    import lancedb

    numbered = data.arrow.append_column("id", pa.array(np.arange(data.rows)))
    table = lancedb.connect(data.place("vectors.lancedb")).create_table("vectors", numbered)
    queries = list(data.queries(n).numpy())

    def search() -> np.ndarray:
        found = table.search(queries if n > 1 else queries[0], vector_column_name="key").distance_type("dot")
        return found.select(["id", "_distance"]).limit(BEST).to_arrow()["id"].to_numpy().reshape(n, BEST)

    return {"": Side(search)}


def lancedb_append(data: Data) -> Sides:
    import lancedb

    def prepare() -> None:
        base = lancedb.connect(data.place("append.lancedb"))
        held["table"] = base.create_table("vectors", data.arrow.slice(0, 10))

    held: dict[str, Any] = {}
    return {"add": Side(lambda: held["table"].add(data.arrow), prepare)}


# DuckDB


def _duckdb(place: Path) -> Any:
    import duckdb

    return duckdb.connect(str(place), config={"threads": compare.THREADS})


def duckdb_top(data: Data, n: int) -> Sides:
    base = _duckdb(data.place("vectors.duckdb"))
    numbered = data.arrow.append_column("id", pa.array(np.arange(data.rows)))  # noqa: F841 (named in the next line)
    base.execute("CREATE TABLE vectors AS SELECT * FROM numbered")
    ask = f"SELECT id FROM vectors ORDER BY array_inner_product(key, ?::FLOAT[{WIDTH}]) DESC LIMIT {BEST}"
    queries = data.queries(n).numpy()
    return {"": Side(lambda: np.stack([base.execute(ask, [query]).fetchnumpy()["id"] for query in queries]))}


def duckdb_csv(data: Data) -> Sides:
    place = data.folder / "import.duckdb"

    def run() -> None:
        with _duckdb(place) as base:
            base.execute(f"CREATE TABLE hours AS SELECT * FROM read_csv('{data.csv}')")

    return {"": Side(run, lambda: data.place(place.name))}


# Rows by id


def lookups(data: Data) -> Sides:
    """DuckDB with a primary key, LanceDB with a B-tree, both of the ids."""
    import lancedb
    from lancedb.index import BTree

    base = _duckdb(data.place("long.duckdb"))
    base.execute("CREATE TABLE long (number BIGINT PRIMARY KEY, hour DOUBLE, output DOUBLE)")
    rows = data.long  # noqa: F841 (named in the next line)
    base.execute("INSERT INTO long SELECT * FROM rows")
    table = lancedb.connect(data.place("long.lancedb")).create_table("long", data.long)
    table.create_index("number", config=BTree())
    ids = data.ids()
    return {
        "DuckDB": Side(lambda: base.execute("SELECT * FROM long WHERE number = ?", [next(ids)]).fetchdf()),
        "LanceDB": Side(lambda: table.search().where(f"number = {next(ids)}").limit(1).to_pandas()),
    }
