"""Tables on disk: what comes back is what was stored, and a change that fails leaves the table as it was."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

import attendb as ad
from attendb.columns import Opaque
from attendb.sources.memory import Memory
from attendb.sources.table import Table


def made(path, table=None, **options):
    table = {"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0], "site": ["a", None, "c"]} if table is None else table
    return ad.Database.create(path / "t.adb", table, **{"keys": ["x"], "values": ["y"], **options})


def state(db) -> pandas.DataFrame:
    return db.to_pandas()


def same_frame(found: pandas.DataFrame, expected: pandas.DataFrame) -> None:
    pandas.testing.assert_frame_equal(found, expected, check_dtype=True)


def every_row(db, **options):
    """All blocks as one: positions, and columns by name, in ascending order of positions."""
    blocks = list(db._source.blocks(**options))
    positions = torch.cat([block.positions for block in blocks])
    order = torch.argsort(positions)
    columns = {}
    for name in {**blocks[0].keys, **blocks[0].values}:
        parts = [{**block.keys, **block.values}[name] for block in blocks]
        if isinstance(parts[0], Opaque):
            columns[name] = np.concatenate([part.rows for part in parts])[order.numpy()]
        else:
            columns[name] = torch.cat(parts)[order]
    return positions[order], columns


KINDS = {
    "float16": np.array([1.5, -2.0, 0.25], dtype=np.float16),
    "float32": np.array([1.1, -2.2, 3.3], dtype=np.float32),
    "float64": np.array([1.1, np.inf, 3.3]),
    "int8": np.array([1, -2, 3], dtype=np.int8),
    "int64": np.array([2**53 + 1, -(2**63), 2**63 - 1]),
    "uint8": np.array([0, 200, 255], dtype=np.uint8),
    "bool": np.array([True, False, True]),
    "vector": np.arange(6, dtype=np.float32).reshape(3, 2),
    "vector of half": np.arange(6, dtype=np.float16).reshape(3, 2),
    "vector of bools": np.array([[True, False], [False, False], [True, True]]),
    "vector of width 1": np.arange(3, dtype=np.int32).reshape(3, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["keys", "values"])
def test_numbers_come_back_as_they_were_stored(tmp_path, kind, role):
    data, other = KINDS[kind], ({"values": "o"} if role == "keys" else {"keys": "o"})
    db = ad.Database.create(tmp_path / "t.adb", {"x": data, "o": [1.0, 2.0, 3.0]}, **{role: "x", **other})
    _, columns = every_row(db)
    expected = torch.from_numpy(data.reshape(3, -1))
    assert columns["x"].dtype == expected.dtype
    assert torch.equal(columns["x"], expected)
    (block,) = [db._source.take(np.array([2, 0]))]
    assert torch.equal({**block.keys, **block.values}["x"], expected[[2, 0]])


def test_text_and_missing_numbers_come_back(tmp_path):
    db = made(tmp_path, {"x": ["é", "", None], "y": [1.0, np.nan, 3.0], "n": pa.array([1, None, 3])}, values=["y", "n"])
    _, columns = every_row(db)
    assert columns["x"].tolist() == ["é", "", None]
    assert columns["y"].flatten().tolist()[::2] == [1.0, 3.0] and columns["y"][1].isnan().all()
    assert columns["n"].dtype == torch.float64 and columns["n"][1].isnan().all()
    assert db.lookup("é") == {"y": 1.0, "n": 1}
    assert len(db.rows([0, 1, 2]).columns) == 3


def test_other_columns_are_kept_and_returned(tmp_path):
    others = {
        "day": [datetime.date(2020, 1, 1), None, datetime.date(2021, 1, 1)],
        "time": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        "price": [decimal.Decimal("1.20"), decimal.Decimal("3.40"), None],
        "tags": [["a"], [], None],
        "raw": [b"a", None, b"c"],
        "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
    }
    db = made(tmp_path, {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0], **others})
    found = db.rows([2, 0])
    assert list(found.index) == [2, 0] and list(found.columns) == ["x", "y", *others]
    assert found["day"].tolist() == [datetime.date(2021, 1, 1), datetime.date(2020, 1, 1)]
    assert found["price"].tolist() == [None, decimal.Decimal("1.20")]
    assert found["tags"].tolist()[0] is None and list(found["tags"].tolist()[1]) == ["a"]
    assert found["kind"].tolist() == ["u", "u"]
    assert db.lookup_all(2.0)["raw"].tolist() == [None]
    assert db.rows([1], "day")["day"].tolist() == [None]


def test_changes_are_those_of_a_table_in_memory(tmp_path):
    """Twins of the same history: every state is the same, ids and order included."""
    rng = np.random.default_rng(0)
    keys, values = rng.integers(0, 9, (40, 2)).astype(float), rng.standard_normal(40)
    disk = ad.Database.create(tmp_path / "t.adb", {"k": keys, "v": values}, keys="k", values="v")
    memory = ad.Database({"k": keys}, {"v": values})
    for step in range(6):
        new_keys = np.unique(rng.integers(20, 40, (5, 2)).astype(float), axis=0)
        new_values = rng.standard_normal(len(new_keys))
        for change in (
            lambda db, k=new_keys, v=new_values: db.upsert({"k": k}, {"v": v}),
            lambda db, k=new_keys + 100 * (step + 1), v=new_values: db.append({"k": k, "v": v}),
            lambda db, s=step: db.delete(f"v > {1.5 - 0.2 * s}"),
            lambda db, k=new_keys[:2]: db.delete(keys={"k": k}),
        ):
            assert np.array_equal(change(disk), change(memory))
            same_frame(disk.to_pandas(), memory.to_pandas())
            assert len(disk) == len(memory)
        if step % 2:
            disk.compact()
            same_frame(disk.to_pandas(), memory.to_pandas())
    positions, columns = every_row(disk)
    (block,) = memory._source.blocks()
    assert torch.equal(positions, block.positions) and torch.equal(columns["k"], block.keys["k"])
    assert isinstance(memory._source, Memory) and isinstance(disk._source, Table)
