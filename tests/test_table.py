"""Tables on disk: what comes back is what was stored, and a change that fails leaves the table as it was."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import shutil
import time
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
import torch

import attendb as ad
from attendb.columns import Opaque
from attendb.sources import table_index, table_reading
from attendb.sources.memory import Memory
from attendb.sources.table import Table
from attendb.sources.table_writing import OPTIONS


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


def test_filters_mean_the_same_on_disk(tmp_path):
    """What is pushed down to the storage, and what is not, against SQLite over the table in memory."""
    rng = np.random.default_rng(1)
    n = 200
    table = {
        "x": rng.integers(-3, 4, n).astype(float),
        "f": rng.choice([0.0, -0.0, 0.1, 0.5, -0.5, np.inf], n).astype(np.float32),
        "i": rng.integers(-5, 6, n),
        "b": rng.integers(0, 2, n).astype(bool),
        "y": rng.choice([1.0, 2.5, np.nan, -1.0, 0.0], n),
        "s": rng.choice(np.array(["a", "b", "K", "\u212a", "e\u0301", "\u00e9", "", None], dtype=object), n).tolist(),
        "w": rng.standard_normal((n, 2)),
    }
    keys, values = ["x", "f", "i", "b"], ["y", "s", "w"]
    disk = ad.Database.create(tmp_path / "t.adb", table, keys=keys, values=values)
    memory = ad.Database({k: table[k] for k in keys}, {k: table[k] for k in values})
    disk.delete("id % 7 = 3")
    memory.delete("id % 7 = 3")
    for text in PUSHED + EVALUATED_HERE:
        expected = memory.ids[memory._source.mask(text)]
        assert np.array_equal(disk._source.matching(text), expected), text
        assert np.array_equal(disk._source.mask(text), memory._source.mask(text)), text
        positions, columns = every_row(disk, where=text, size=32)
        assert np.array_equal(positions.numpy(), expected), text
        assert len(columns["x"]) == len(expected)
        assert (disk._source.filter.pushed_down(text) is not None) == (text in PUSHED), text


PUSHED = [
    "y > 1",
    "NOT y > 1",
    "y = 0",
    "f = 0 AND x >= 0",
    "f < 0.5 OR y IS NULL",
    "NOT (y IS NOT NULL) AND s = 'a'",
    "s IN ('a', '', 'b')",
    "s <> 'a'",
    "i BETWEEN -2 AND 3",
    "i IN (1, 2, -5)",
    "id < 50 AND 3 <= id",
    "x = -0.0",
    "id IN (1, 200, 5)",
    '`x` > 1 OR "y" < 0',
]
EVALUATED_HERE = [
    "y > 1 /* why */",
    "f < 0.1",
    "s = 'K'",
    "s = '\u00e9'",
    "s < 'b'",
    "s LIKE 'a%'",
    "y * 2 > x",
    "b",
    "b = 1",
    "w_1 > 0",
    "i > 1.5",
    "length(s) = 1",
]


@pytest.mark.parametrize("text", ["y > 1; DROP TABLE rows", "load_extension('x')", "z = 1", "y >", "y > 1)"])
def test_a_bad_filter_is_refused_as_in_memory(tmp_path, text):
    disk, memory = made(tmp_path), ad.Database({"x": [1.0]}, {"y": [1.0], "site": ["a"]})
    for change in (lambda db: db._source.mask(text), lambda db: db.delete(text)):
        with pytest.raises(ad.InputError) as expected:
            change(memory)
        with pytest.raises(ad.InputError) as found:
            change(disk)
        assert str(found.value) == str(expected.value)
    assert len(disk) == 3


def test_days_and_other_columns_can_be_filtered(tmp_path):
    days = [datetime.date(2020, 1, 1), datetime.date(2021, 5, 1), None]
    db = made(tmp_path, {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0], "site": ["a", "b", "b"], "day": days})
    assert db._source.matching("day > '2020-06-01'").tolist() == [1]
    assert db._source.matching("site = 'b' AND y < 3").tolist() == [1]
    assert db._source.matching("strftime('%Y', day) = '2020' OR day IS NULL").tolist() == [0, 2]


def test_a_selective_filter_takes_rows_and_loses_none(tmp_path):
    x = np.arange(5000.0)
    db = ad.Database.create(tmp_path / "t.adb", {"x": x, "y": x * 2}, keys="x", values="y")
    db.delete("x >= 100 AND x < 4000")
    for text, expected in (("y < 10", x[:5]), ("y >= 9000", x[4500:]), ("y < 0", x[:0])):
        _, columns = every_row(db, where=text)
        assert columns["x"].flatten().tolist() == expected.tolist()
        assert columns["y"].dtype == torch.float64


@pytest.mark.parametrize("cut", ["plain", "deletions", "nulls", "compacted"])
def test_raw_pages_and_the_storages_own_reader_give_the_same_bytes(tmp_path, cut):
    rng = np.random.default_rng(2)
    n = 30_000
    table = {name: (rng.standard_normal((n, 5)) * 100).astype(kind) for name, kind in RAW.items()}
    table |= {"y": rng.standard_normal(n), "flag": rng.integers(0, 2, n).astype(bool), "s": ["t"] * n}
    if cut == "nulls":
        table["y"][::7] = np.nan
    db = ad.Database.create(tmp_path / "t.adb", table, keys=list(RAW), values=["y", "flag", "s"], cache_bytes=0)
    if cut in ("deletions", "compacted"):
        db.append({name: x[:10] for name, x in table.items()})
        db.delete("id % 3 = 1")
        db.upsert({name: x[300:400] for name, x in table.items()})
    if cut == "compacted":
        db.compact()
    raw = list(db._source.blocks(size=7000))
    db._source.reader.raw = False
    plain = list(db._source.blocks(size=7000))
    assert len(raw) == len(plain) > 2
    for one, other in zip(raw, plain, strict=True):
        assert torch.equal(one.positions, other.positions) and (one.positions[1:] > one.positions[:-1]).all()
        for name in (*RAW, "y", "flag"):
            a, b = {**one.keys, **one.values}[name], {**other.keys, **other.values}[name]
            assert a.dtype == b.dtype and torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0))
    counted = sum(
        db._source.reader._files[fragment.places[name][0]].runs(fragment.places[name][1], db._source.layout.types[name])
        is not None
        for fragment in db._source.fragments
        for name in RAW
        if fragment.places[name][0] in db._source.reader._files
    )
    assert counted >= len(RAW)  # the raw pages were read


RAW = {"a": np.float32, "h": np.float16, "d": np.float64, "c": np.int8, "i": np.int64, "u": np.uint8}


def test_blocks_end_where_a_column_goes_on_elsewhere_in_its_file(tmp_path, monkeypatch):
    """Both parts in one block would be copied, which takes longer than to ask them."""
    monkeypatch.setitem(OPTIONS, "data_cache_bytes", 1 << 20)
    keys, values = np.random.default_rng(0).standard_normal((2, 200_000, 8))
    db = ad.Database.create(tmp_path / "t.adb", {"k": keys, "v": values}, keys="k", values="v")
    source = db.table
    breaks = source.reader.breaks(source.fragments[0], "k", source.layout.types["k"])
    assert len(breaks) > 3
    for size in (7_000, 150_000):
        ends = np.cumsum([len(block.positions) for block in source.blocks(size=size)])
        assert set(breaks) <= set(ends.tolist()) and ends[-1] == 200_000
        assert np.diff([0, *ends]).max() <= size
    _, columns = every_row(db)
    assert np.array_equal(columns["k"].numpy(), keys) and np.array_equal(columns["v"].numpy(), values)


def test_a_table_that_the_cache_holds_has_few_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table_reading, "BLOCK_BYTES", 1 << 20)
    keys = np.arange(800_000.0).reshape(100_000, 8)
    ad.Database.create(tmp_path / "t.adb", {"k": keys, "v": keys[:, 0]}, keys="k", values="v")
    for cache_bytes, blocks in ((0, 7), (4 << 20, 7), (16 << 20, 2), (1 << 30, 1)):
        db = ad.Database.open(tmp_path / "t.adb", cache_bytes=cache_bytes)
        for _ in range(2):
            found = list(db.table.blocks())
            assert len(found) == blocks and sum(len(block.positions) for block in found) == 100_000
        assert all(db.table.reader.holds(part, ["k", "v"]) for part in db.table._parts(None)) == (blocks < 7)
        db.append({"k": keys[:1], "v": [1.0]})
        assert len(list(db.table.blocks())) == blocks + 1, "the blocks before stay in the cache"
        db.delete("id >= 100000")


def test_blocks_have_the_size_asked_for_and_stay_as_they_were(tmp_path):
    x = np.arange(1000.0)
    db = ad.Database.create(tmp_path / "t.adb", {"x": x, "y": x}, keys="x", values="y")
    for i in range(30):
        db.append({"x": [2000.0 + i], "y": [0.0]})
    blocks = list(db._source.blocks(size=100))
    assert max(len(block.positions) for block in blocks) <= 100 and len(blocks) < 15
    before = [block.keys["x"].clone() for block in blocks]
    again = list(db._source.blocks(size=100))
    assert all(
        torch.equal(a.keys["x"], b) and torch.equal(a.keys["x"], c)
        for a, b, c in zip(again, before, before, strict=False)
    )
    assert len(list(db._source.blocks())) == 1
    only = next(iter(db._source.blocks(values=())))
    assert not only.values and list(only.keys) == ["x"]
    next(iter(db._source.blocks(size=10)))  # left early: the thread ends


def test_an_empty_table_has_blocks_of_the_right_kinds(tmp_path):
    db = ad.Database.create(
        tmp_path / "t.adb", {"x": np.zeros((0, 3), dtype=np.float32), "y": np.zeros(0)}, keys="x", values="y"
    )
    (block,) = db._source.blocks()
    assert block.keys["x"].shape == (0, 3) and block.keys["x"].dtype == torch.float32
    assert block.values["y"].shape == (0, 1) and len(db) == 0
    with pytest.raises(KeyError):
        db.lookup([1.0, 2.0, 3.0])
    assert db.append({"x": np.ones((2, 3)), "y": [1.0, 2.0]}).tolist() == [0, 1]
    db.delete("y > 0")
    (block,) = db._source.blocks()
    assert block.keys["x"].shape == (0, 3) and db.append({"x": np.ones((1, 3)), "y": [1.0]}).tolist() == [2]


def test_the_cache_serves_what_fits_and_versions_share_it(tmp_path, monkeypatch):
    x = np.arange(20_000, dtype=np.float64).reshape(-1, 2)
    db = ad.Database.create(tmp_path / "t.adb", {"x": x, "y": x[:, 0]}, keys="x", values="y")
    list(db._source.blocks(size=1000))
    reader = db._source.reader
    assert 0 < reader._held <= reader.cache_bytes
    monkeypatch.setattr(reader, "_raw", lambda *_: pytest.fail("read again"))
    list(db._source.blocks(size=1000))
    monkeypatch.undo()
    reads = []
    original = reader._raw
    monkeypatch.setattr(reader, "_raw", lambda part, *rest: (reads.append(part), original(part, *rest))[1])
    db.append({"x": [[1.0, 1.0]], "y": [1.0]})
    list(db._source.blocks(size=1000))
    assert len({part.identity for part in reads}) <= 1
    small = ad.Database.open(tmp_path / "t.adb", cache_bytes=50_000)
    assert sum(len(block.positions) for block in small._source.blocks(size=1000)) == 10_001
    assert small._source.reader._held <= 50_000


def test_lookups_by_hash_are_compared_in_full(tmp_path, monkeypatch):
    """With a hash that is the same for all, only the comparison tells keys apart."""
    import attendb.sources.layout as layout
    import attendb.sources.table as table

    def same(keys):
        rows = next(iter(keys.values()))
        m = len(rows) if isinstance(rows, Opaque) else rows.shape[0]
        return np.zeros(m, dtype=np.int64), np.ones(m, dtype=bool)

    monkeypatch.setattr(layout, "key_hashes", same)
    monkeypatch.setattr(table, "key_hashes", same)
    db = ad.Database.create(tmp_path / "t.adb", {"x": ["a", "b", "a"], "y": [1.0, 2.0, 5.0]}, keys="x", values="y")
    assert db.lookup("a") == 3.0 and db.lookup("b") == 2.0
    assert db.upsert({"x": ["b", "c"], "y": [7.0, 8.0]}).tolist() == [1, 3]
    assert db.lookup("b") == 7.0 and db.lookup("c") == 8.0 and len(db) == 4
    with pytest.raises(KeyError, match="closest"):
        db.lookup("aa")


def test_keys_are_found_as_in_memory(tmp_path):
    table = {"f": np.array([0.0, 0.1, 2.0], dtype=np.float32), "i": [2**53 + 1, 5, -1], "s": ["e\u0301", None, "z"]}
    disk = ad.Database.create(tmp_path / "t.adb", {**table, "y": [1.0, 2.0, 3.0]}, keys=["f", "i", "s"], values="y")
    memory = ad.Database(table, {"y": [1.0, 2.0, 3.0]})
    for key in ((-0.0, 2**53 + 1, "\u00e9"), (0.1, 5, "x"), (2.0, -1, "z"), (2.0, -1.0, "z"), (2.5, -1, "z")):
        assert disk.lookup_all(key).equals(memory.lookup_all(key)), key
    many = {"f": np.repeat(table["f"], 900), "i": np.repeat(table["i"], 900), "s": np.repeat(table["s"], 900)}
    assert disk.delete(keys=many) == memory.delete(keys=many) == 2


def test_id_columns_name_rows(tmp_path):
    for ids, new, absent in ((["p", "q", "r'"], "s", "zz"), ([7, 3, 9], 4, 100)):
        folder = tmp_path / str(new)
        folder.mkdir()
        db = ad.Database.create(
            folder / "t.adb", {"name": ids, "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]}, keys="x", values="y", id="name"
        )
        assert db.get([ids[2], ids[0]])["y"].tolist() == [3.0, 1.0]
        assert list(db.get([ids[2]]).index) == [2]
        with pytest.raises(ad.NotFoundError, match=f"no row has the id {absent}"):
            db.get([absent])
        assert db.append({"name": [new], "x": [4.0], "y": [4.0]}).tolist() == [new]
        assert db.upsert([9.0], [99.0], ids=[ids[1]]).tolist() == [ids[1]]
        assert db.get([ids[1]])[["x", "y"]].to_numpy().tolist() == [[9.0, 99.0]]
        assert db.lookup(9.0) == 99.0 and list(db.get([ids[1]]).index) == [1]
        with pytest.raises(KeyError):
            db.lookup(2.0)  # its old key, which the index still lists
        for change in (
            lambda db=db, new=new: db.append({"name": [new], "x": [5.0], "y": [5.0]}),
            lambda db=db, absent=absent: db.append({"name": [absent, absent], "x": [5.0] * 2, "y": [5.0] * 2}),
            lambda db=db: db.append({"x": [5.0], "y": [5.0]}),
            lambda db=db: db.append([5.0], [5.0]),
            lambda db=db: db.append({"name": pa.nulls(1), "x": [5.0], "y": [5.0]}),
        ):
            with pytest.raises(ad.InputError):
                change()
        assert len(db) == 4
        text = f"id = '{new}'" if isinstance(new, str) else f"id = {new}"
        assert db._source.matching(text).tolist() == [3] == db._source.matching(f"{text} AND abs(y) > 0").tolist()
        assert db.delete(ids=[ids[0], absent]) == 1 and db.delete(text) == 1
        assert db.rows([1, 2])["name"].tolist() == [ids[1], ids[2]]
        with pytest.raises(ad.InputError, match="more than once"):
            ad.Database.create(
                folder / "u.adb",
                {"name": [ids[0]] * 2, "x": [1.0] * 2, "y": [1.0] * 2},
                keys="x",
                values="y",
                id="name",
            )
        assert not (folder / "u.adb").exists() and os.listdir(folder) == ["t.adb"]


def test_positions_are_never_given_twice(tmp_path):
    """Ids 0..9; delete 0..4; add 5; compact; restore; append: nothing comes back under another row."""
    db = ad.Database.create(tmp_path / "t.adb", {"x": np.arange(10.0), "y": np.arange(10.0)}, keys="x", values="y")
    first = db.version
    assert db.delete("id < 5") == 5
    assert db.append({"x": np.arange(100.0, 105.0), "y": np.zeros(5)}).tolist() == list(range(10, 15))
    db.compact()
    assert db.ids.tolist() == list(range(5, 15)) and db.lookup(7.0) == 7.0
    assert db.delete("id >= 10") == 5
    assert db.append({"x": [1.5], "y": [1.5]}).tolist() == [15]
    db.update({"y": "y + 1"}, where="id = 15")
    assert db.rows([15])["y"].tolist() == [2.5]
    db.restore(first)
    assert db.ids.tolist() == list(range(10))
    assert db.append({"x": [50.0], "y": [1.5]}).tolist() == [16]
    with pytest.raises(ad.NotFoundError):
        db.rows([15])
    with pytest.raises(KeyError):
        db.lookup(1.5)


def test_update_computes_columns(tmp_path):
    db = made(
        tmp_path,
        {"x": [1.0, 2.0, 3.0], "n": [1, 2, 3], "site": ["a", None, "c"], "y": [1.0, np.nan, 3.0]},
        values=["y", "n"],
    )
    before = db.version
    assert db.update({"y": "x * 10 + n", "site": "upper(coalesce(site, 'none'))", "n": 7}, where="id <> 0") == 2
    assert db.versions().index.tolist() == [before, db.version]
    found = db.rows([0, 1, 2])
    assert found["y"].tolist() == [1.0, 22.0, 33.0] and found["site"].tolist() == ["a", "NONE", "C"]
    assert found["n"].tolist() == [1, 7, 7]
    assert db.update({"x": "x + 100"}) == 3 and db.lookup(103.0) == {"y": 33.0, "n": 7}
    for changes, what in (
        ({"q": "1"}, "no column"),
        ({}, "nothing"),
        ({"y": "z"}, "cannot be read"),
        ({"n": "'a'"}, "n"),
        ({"x": "NULL"}, "no number"),
    ):
        with pytest.raises(ad.AttendbError, match=what):
            db.update(changes)
    assert db.update({"y": "0"}, where="id > 10") == 0


def test_columns_are_added(tmp_path):
    db = made(tmp_path)
    db.delete("x = 2")
    db.append({"x": [4.0], "y": [40.0]})
    db.add_column("site2", ["p", "q", None])
    db.add_column("ratio", "y / x")
    found = db.rows([0, 2, 3])
    assert (
        found["site2"].tolist()[:2] == ["p", "q"]
        and found["site2"].isna()[3]
        and found["ratio"].tolist() == [10.0, 10.0, 10.0]
    )
    assert db.append({"x": [5.0], "y": [1.0], "site2": ["r"]}).tolist() == [4]
    assert db.rows([4])["ratio"].isna().all() and db._source.matching("site2 = 'r'").tolist() == [4]
    _, columns = every_row(db)
    assert columns["x"].flatten().tolist() == [1.0, 3.0, 4.0, 5.0]
    for name, data in (("x", [1.0] * 4), ("id", [1] * 4), ("new", [1.0])):
        with pytest.raises(ad.InputError):
            db.add_column(name, data)


def test_versions_tags_and_pinned_handles(tmp_path):
    db = made(tmp_path)
    db.tag("first")
    first = db.version
    db.append({"x": [4.0], "y": [40.0]})
    db.upsert({"x": [1.0], "y": [11.0]})
    db.delete("x = 3")
    frame = db.versions()
    assert frame.index.is_monotonic_increasing and frame.loc[first, "tags"] == "first"
    assert frame["change"].tolist()[-3:] == ["append", "upsert", "delete"] and frame["rows"].tolist()[-3:] == [4, 4, 3]
    for version in ("first", first):
        old = ad.Database.open(tmp_path / "t.adb", version=version)
        assert old.to_pandas()["y"].tolist() == [10.0, 20.0, 30.0] and old.refresh() == first
        for change in (lambda old=old: old.delete("x = 1"), lambda old=old: old.append({"x": [1.0], "y": [1.0]})):
            with pytest.raises(ad.InputError, match="opened at version"):
                change()
    for version, message in ((99, "has no version 99"), ("nope", "its tags are 'first'")):
        with pytest.raises(ad.InputError, match=message):
            ad.Database.open(tmp_path / "t.adb", version=version)
    with pytest.raises(ad.InputError, match="choose another"):
        db.tag("first")
    newest = db.restore("first")
    assert db.version == newest and db.to_pandas()["y"].tolist() == [10.0, 20.0, 30.0]
    assert db.lookup(2.0) == 20.0 and db.append({"x": [8.0], "y": [8.0]}).tolist() == [4]


def test_handles_see_others_after_refresh_or_max_age(tmp_path):
    db = made(tmp_path)
    stale, fresh = ad.Database.open(tmp_path / "t.adb"), ad.Database.open(tmp_path / "t.adb", max_age=0.0)
    db.append({"x": [4.0], "y": [40.0]})
    time.sleep(0.01)
    assert len(stale) == 3 and len(fresh) == 4
    assert stale.refresh() == db.version and len(stale) == 4
    db.delete("x = 1")
    stale.append({"x": [5.0], "y": [50.0]})  # its own change is made on the newest version
    assert stale.to_pandas()["x"].tolist() == [2.0, 3.0, 4.0, 5.0]


def test_compaction_leaves_old_readers_alone(tmp_path):
    db = made(tmp_path)
    old = ad.Database.open(tmp_path / "t.adb", cache_bytes=0)
    iterator = old._source.blocks(size=1)
    first = next(iterator)
    for i in range(5):
        db.append({"x": [10.0 + i], "y": [1.0]})
    db.delete("x = 2")
    db.compact()
    assert db.info()["fragments"] == 1 and db.info()["deleted"] == 0 and len(db) == 7
    rest = [first, *iterator]
    assert [block.keys["x"].item() for block in rest] == [1.0, 2.0, 3.0]
    assert old.to_pandas()["x"].tolist() == [1.0, 2.0, 3.0] and old.lookup(2.0) == 20.0
    assert db.lookup(14.0) == 1.0 and db.compact() >= 1
    db.compact(keep=datetime.timedelta(0))
    assert len(ad.Database.open(tmp_path / "t.adb")) == 7 and db.verify() == []


def test_a_pickle_reopens_the_table(tmp_path):
    db = made(tmp_path)
    twin = pickle.loads(pickle.dumps(db))
    assert twin.lookup(2.0) == 20.0
    pinned = ad.Database.open(tmp_path / "t.adb", version=db.version)
    db.append({"x": [4.0], "y": [40.0]})
    assert len(pickle.loads(pickle.dumps(pinned))) == 3 and len(pickle.loads(pickle.dumps(twin))) == 4


def test_frames_and_readers_are_taken(tmp_path):
    columns = {"x": [1.0, 2.0], "y": [10.0, 20.0], "site": ["a", "b"]}
    schema = pa.table(columns).schema

    class Import:
        def __init__(self):
            self.schema = schema

        def batches(self):
            for i in range(2):
                yield pa.RecordBatch.from_pydict(
                    {name: part[i : i + 1] for name, part in columns.items()}, schema=schema
                )

    frames = {
        "pandas": pandas.DataFrame(columns),
        "indexed": pandas.DataFrame(columns).set_index("x"),
        "polars": polars.DataFrame(columns),
        "arrow": pa.table(columns),
        "reader": pa.table(columns).to_reader(),
        "import": Import(),
    }
    for name, table in frames.items():
        db = ad.Database.create(tmp_path / name, table, keys="x", values="y")
        assert db.rows([1, 0])["site"].tolist() == ["b", "a"], name
        again = pa.table(columns).to_reader() if name == "reader" else table
        assert db.append(again).tolist() == [2, 3] and len(db) == 4
        assert db.to_pandas()["y"].tolist() == [10.0, 20.0, 10.0, 20.0]


def test_vectors_of_lists_and_names_that_storage_does_not_allow(tmp_path):
    table = {
        "a.b": [[1.0, 2.0], [3.0, 4.0]],
        "_key": [1, 2],
        "c`d%": ["p", "q"],
        "select": [1.5, 2.5],
        "e f": [1.0, 2.0],
    }
    db = ad.Database.create(tmp_path / "t.adb", table, keys=["a.b", "_key"], values=["select", "c`d%"])
    assert db.lookup(([3.0, 4.0], 2)) == {"select": 2.5, "c`d%": "q"}
    assert ad.Database.open(tmp_path / "t.adb").info()["columns"].keys() == set(table)
    assert db._source.matching('"c`d%" = \'q\' AND "select" > 2').tolist() == [1]
    db.add_column("g.h", [1, 2])
    assert list(ad.Database.open(tmp_path / "t.adb").rows([0]).columns)[-2:] == ["e f", "g.h"]


BAD_CREATES = [
    ({"x": [1.0, np.nan], "y": [1.0, 2.0]}, {}, ad.MissingValueError, "key column 'x' has no number in 1 rows"),
    ({"x": [1.0, None], "y": [1.0, 2.0]}, {}, ad.MissingValueError, "key column 'x'"),
    ({"x": [1.0]}, {}, ad.InputError, "values name a column 'y', which the table lacks"),
    ({"x": [1.0], "y": [1.0]}, {"keys": ["q"]}, ad.InputError, "keys name a column 'q'"),
    ({"x": [1.0], "y": [1.0]}, {"keys": []}, ad.InputError, "name no column"),
    ({"x": [1.0], "y": [1.0]}, {"values": ["x"]}, ad.InputError, "two roles"),
    ({"x": [1.0], "y": [1.0], "id": [1]}, {}, ad.InputError, "pass id='id'"),
    ({"x": [datetime.date(2020, 1, 1)], "y": [1.0]}, {}, ad.KindError, "numbers, vectors of numbers or text"),
    ({"x": [[1.0], [1.0, 2.0]], "y": [1.0, 2.0]}, {}, ad.InputError, "rows of one width"),
    ({"x": [1.0], "y": [1.0], "n": [1.5]}, {"id": "n"}, ad.KindError, "whole numbers or text"),
    ({"x": [1.0, 2.0], "y": [1.0]}, {}, ad.InputError, "different lengths"),
    ({"x": torch.ones(2, dtype=torch.bfloat16), "y": [1.0, 2.0]}, {}, ad.KindError, "bfloat16"),
    ({"x": [1.0, "a"], "y": [1.0, 2.0]}, {}, ad.KindError, "no column of one kind"),
    (np.ones((2, 2)), {}, ad.KindError, "ndarray"),
    ({}, {}, ad.InputError, "no columns"),
]


@pytest.mark.parametrize(("table", "options", "error", "message"), BAD_CREATES)
def test_a_create_that_fails_leaves_nothing(tmp_path, table, options, error, message):
    with pytest.raises(error, match=message) as found:
        made(tmp_path, table, **options)
    assert "\n" not in str(found.value) and os.listdir(tmp_path) == []


def test_a_create_that_fails_late_leaves_nothing(tmp_path):
    def batches():
        yield pa.record_batch({"x": [1.0], "y": [1.0]})
        raise RuntimeError("the wire was cut")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.float64(), "y": pa.float64()}), batches())
    with pytest.raises(ad.StorageError, match="the wire was cut"):
        made(tmp_path, reader)
    assert os.listdir(tmp_path) == []


BAD_APPENDS = [
    ({"x": [1.0]}, ad.InputError, "lacks the column 'y'"),
    ({"x": [1.0], "y": [1.0], "z": [1.0]}, ad.InputError, "extra column 'z'"),
    ({"x": ["a"], "y": [1.0]}, ad.KindError, "expected double, found string"),
    ({"x": [[1.0, 2.0]], "y": [1.0]}, ad.KindError, "expected double"),
    ({"x": [np.nan], "y": [1.0]}, ad.MissingValueError, "no number"),
    ({"x": [1.0], "y": [1.0], "site": [2]}, ad.KindError, "expected string, found int64"),
    ({"x": [1.0], "y": [1.0], "n": [1.5]}, ad.InputError, "does not fit"),
    ({"x": [1.0], "y": [1.0], "v": [[1.0]]}, ad.InputError, "expected width 2, found width 1"),
    ({"x": [1.0], "y": [1.0], "v": [1.0]}, ad.InputError, "expected width 2, found width 1"),
]


@pytest.mark.parametrize(("table", "error", "message"), BAD_APPENDS)
def test_a_change_that_fails_leaves_the_table(tmp_path, table, error, message):
    db = made(tmp_path, {"x": [1.0], "y": [1.0], "site": ["a"], "n": [1], "v": [[1.0, 2.0]]})
    files = sorted(os.listdir(tmp_path / "t.adb" / "data"))
    for change in (db.append, db.upsert):
        with pytest.raises(error, match=message) as found:
            change(table)
        assert "\n" not in str(found.value)
    assert db.version == ad.Database.open(tmp_path / "t.adb").version and len(db) == 1
    assert sorted(os.listdir(tmp_path / "t.adb" / "data")) == files


def test_rows_go_by_name_and_missing_other_columns_are_null(tmp_path):
    db = made(tmp_path, {"x": [1.0], "y": [2.0], "site": ["a"]})
    db.append({"y": [7.0], "x": [9.0]})
    assert db.rows([1]).to_dict("list") == {"x": [9.0], "y": [7.0], "site": [None]}


def test_paths_that_are_no_table(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("x")
    for path, message in (
        ("missing", "no table at"),
        ("file", "is a file"),
        ("folder", "is no table"),
    ):
        with pytest.raises(ad.InputError, match=message):
            ad.Database.open(tmp_path / path)
    for path, message in (
        ("s3://bucket/t", "is an address"),
        ("a\0b", "no path"),
        ("", "no path"),
        (3, "is a str or a Path"),
    ):
        for door in (ad.Database.open, lambda p: ad.Database.create(p, {"x": [1.0], "y": [1.0]}, keys="x")):
            with pytest.raises(ad.InputError, match=message):
                door(path)
    with pytest.raises(ad.InputError, match="make it first"):
        ad.Database.create(tmp_path / "no" / "t.adb", {"x": [1.0], "y": [1.0]}, keys="x")
    for path in ("file", "folder"):
        with pytest.raises(ad.InputError, match="exists already"):
            ad.Database.create(tmp_path / path, {"x": [1.0], "y": [1.0]}, keys="x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    import lance

    lance.write_dataset(pa.table({"x": [1.0]}), tmp_path / "lance")
    with pytest.raises(ad.InputError, match="attendb did not make"):
        ad.Database.open(tmp_path / "lance")


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    import attendb.sources.layout as layout

    made(tmp_path)
    monkeypatch.setattr(layout, "FORMAT", 0)
    with pytest.raises(ad.StorageError, match="has format 1 but this attendb reads up to 0: install a newer"):
        ad.Database.open(tmp_path / "t.adb")


def newest_manifest(folder: Path) -> Path:
    return min((folder / "_versions").glob("*.manifest"))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_damaged_manifest_falls_back_to_the_version_before(tmp_path, share):
    db = made(tmp_path)
    db.append({"x": [4.0], "y": [40.0]})
    manifest = newest_manifest(tmp_path / "t.adb")
    manifest.write_bytes(manifest.read_bytes()[: int(share * manifest.stat().st_size)])
    with pytest.warns(UserWarning, match=f"opened at version 1, .*{manifest.name}.*restore"):
        old = ad.Database.open(tmp_path / "t.adb")
    assert old.to_pandas()["x"].tolist() == [1.0, 2.0, 3.0] and old.lookup(2.0) == 20.0
    (damage,) = old.verify()
    assert damage.file == str(manifest) and "restore(1)" in damage.repair
    with pytest.raises(ad.StorageError, match=r"restore\("):
        old.append({"x": [5.0], "y": [1.0]})
    old.restore(old.version)
    assert old.verify() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = ad.Database.open(tmp_path / "t.adb")
    assert again.append({"x": [5.0], "y": [1.0]}) is not None and len(again) == 4


@pytest.mark.parametrize("how", ["missing", "cut short"])
def test_damaged_data_files_are_named_with_the_repair(tmp_path, how):
    rng = np.random.default_rng(0)
    db = ad.Database.create(
        tmp_path / "t.adb", {"x": rng.standard_normal((5000, 3)), "y": rng.standard_normal(5000)}, keys="x", values="y"
    )
    first = db.version
    db.append({"x": rng.standard_normal((5000, 3)), "y": rng.standard_normal(5000)})
    path = Path(tmp_path / "t.adb" / "data" / db._source.fragments[-1].files[0][0])
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    db = ad.Database.open(tmp_path / "t.adb")
    with pytest.raises(ad.StorageError, match=r"verify\(\)"):
        list(db._source.blocks())
    (damage,) = db.verify()
    assert damage.file == str(path) and "restore(" in damage.repair
    db.restore(first)
    assert db.verify() == [] and sum(len(block.positions) for block in db._source.blocks()) == 5000


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_one_sentence(tmp_path):
    db = made(tmp_path)
    folder = tmp_path / "t.adb"
    try:
        for place in (folder, folder / "data", folder / "_versions"):
            place.chmod(0o555)
        assert len(ad.Database.open(folder)) == 3
        with pytest.raises(ad.StorageError, match="permission"):
            db.append({"x": [1.0], "y": [1.0]})
    finally:
        for place in (folder, folder / "data", folder / "_versions"):
            place.chmod(0o755)


def test_left_overs_of_a_killed_create_are_removed(tmp_path):
    left = tmp_path / ".t.adb.new-0123"
    left.mkdir()
    (left / "_lock").write_text("")
    made(tmp_path)
    assert os.listdir(tmp_path) == ["t.adb"]


def test_saved_scores_come_back(tmp_path):
    db = made(tmp_path, {"x": ["a", "b", "c"], "z": [[1.0, 2.0]] * 3, "y": [1.0, 2.0, 3.0]}, keys=["x", "z"])
    torch.manual_seed(3)
    scores = {
        "gauss": ad.Gaussian([1.0, 2.0], learn=True),
        "matrix": ad.Gaussian([[2.0, 0.0], [1.0, 3.0]]),
        "box": ad.Boxcar(2.0),
        "bilinear": ad.Bilinear(3, 2, learn=True),
        "additive": ad.Additive(2, 3, 4),
        "dot": ad.ScaledDot(),
        "edit": ad.EditSimilarity("jaro_winkler", one_missing=0.5),
        "ngram": ad.NGramSimilarity(3),
        "mixed": ad.PerColumn({"x": ad.EditSimilarity(), "z": ad.Laplacian(3.0, learn=True)}, learn=True),
    }
    with torch.no_grad():
        scores["gauss"].scale.theta.add_(0.3)
        scores["mixed"].weights.mul_(2.0)
    for name, score in scores.items():
        db.save_score(name, score)
    assert db.scores == tuple(sorted(scores))
    for name, score in scores.items():
        found = ad.Database.open(tmp_path / "t.adb").score(name)
        assert type(found) is type(score) and repr(found) == repr(score)
        for (key, a), (other, b) in zip(found.named_parameters(), score.named_parameters(), strict=True):
            assert key == other and a.requires_grad == b.requires_grad and torch.equal(a, b)
    query = {"x": ["b"], "z": [[1.0, 2.0]]}
    assert np.array_equal(db.attend(query, score="mixed").value, db.attend(query, score=scores["mixed"]).value)


def test_scores_of_your_own_need_their_module(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, queries, keys):
            return -self.scale * (queries[..., :, None, :] - keys[..., None, :, :]).abs().sum(-1)

    db, own = made(tmp_path), Own()
    own.scale.data.fill_(2.5)
    db.save_score("own", own)
    with pytest.raises(ad.KindError, match="pass one as into="):
        db.score("own")
    twin = Own()
    assert db.score("own", into=twin) is not None and twin.scale.item() == 2.5
    for bad, error, name in (
        (lambda q, k: q @ k.mT, ad.KindError, "fn"),
        (ad.PerColumn({"x": own}), ad.KindError, "mixed"),
        (ad.Dot(), ad.InputError, "../out"),
    ):
        with pytest.raises(error):
            db.save_score(name, bad)
    with pytest.raises(ad.NotFoundError, match="there are 'own'"):
        db.score("other")
    (Path(db.path) / "_scores" / "own.safetensors").write_bytes(b"broken")
    with pytest.raises(ad.StorageError, match="damaged"):
        db.score("own")
    assert os.listdir(Path(db.path) / "_scores") == ["own.safetensors"]


def test_one_table_for_both_sides_in_memory_too():
    db = ad.Database({"x": [1.0]}, {"y": [2.0]})
    assert db.append({"y": [3.0], "x": [2.0]}).tolist() == [1]
    assert db.upsert(pandas.DataFrame({"x": [2.0], "y": [5.0]})).tolist() == [1] and db.lookup(2.0) == 5.0
    for bad in ({"x": [1.0]}, {"x": [1.0], "y": [1.0], "z": [1.0]}, [1.0]):
        with pytest.raises(ad.InputError):
            db.append(bad)
    assert db.get([1, 0])["y"].tolist() == [5.0, 2.0]
    with pytest.raises(ad.NotFoundError):
        db.rows([7])
    with pytest.raises(ad.InputError, match="no column 'q'"):
        db.rows([0], ["q"])


def test_a_table_can_be_copied_as_a_folder(tmp_path):
    db = made(tmp_path)
    shutil.copytree(db.path, tmp_path / "copy")
    assert ad.Database.open(tmp_path / "copy").lookup(2.0) == 20.0


def test_all_rows_can_be_streamed_under_their_own_names(tmp_path):
    table = {"a.b": [[1.0, 2.0], [3.0, 4.0]], "y": [1.0, 2.0], "day": [datetime.date(2020, 1, 1), None], "n": [5, 6]}
    db = ad.Database.create(tmp_path / "t.adb", table, keys="a.b", values="y", id="n")
    db.delete(ids=[5])
    found = db._source.to_reader().read_all()
    assert found.to_pydict() == {"n": [6], "a.b": [[3.0, 4.0]], "y": [2.0], "day": [None]}


@pytest.mark.skipif(os.name == "nt", reason="files have no size limit here")
def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on the size of files stands for the disk: writing fails in the middle."""
    import resource

    x = np.random.default_rng(0).standard_normal((2000, 50))
    table = {"x": x, "y": x[:, 0]}
    db = ad.Database.create(tmp_path / "t.adb", table, keys="x", values="y")
    version, files = db.version, sorted(os.listdir(tmp_path / "t.adb" / "data"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for change in (lambda: db.append(table), lambda: db.upsert({"x": x + 1, "y": x[:, 0]})):
            with pytest.raises(ad.StorageError, match="cannot be"):
                change()
        with pytest.raises(ad.StorageError, match="cannot be created"):
            ad.Database.create(tmp_path / "u.adb", table, keys="x", values="y")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["t.adb"] and sorted(os.listdir(tmp_path / "t.adb" / "data")) == files
    assert ad.Database.open(tmp_path / "t.adb").version == version and len(db) == 2000
    assert db.append(table).tolist() == list(range(2000, 4000)) and db.verify() == []


def test_a_missing_index_is_found(tmp_path):
    db = made(tmp_path)
    (index,) = os.listdir(tmp_path / "t.adb" / "_indices")
    shutil.rmtree(tmp_path / "t.adb" / "_indices" / index)
    found = ad.Database.open(tmp_path / "t.adb").verify()
    assert all(index in damage.file and "restore(1)" in damage.repair for damage in found)
    db.restore(1)
    assert db.verify() == [] and db.lookup(2.0) == 20.0 and db.versions()["change"].tolist() == ["create", "restore"]


@pytest.mark.parametrize("replaced", [False, True])
def test_rows_are_exported_in_order_of_position(tmp_path, replaced):
    x = np.arange(12.0).reshape(6, 2)
    table = {"x": x, "y": x[:, 0], "site": list("abcdef"), "n": np.arange(6) + 10}
    db = ad.Database.create(tmp_path / "t.adb", table, keys="x", values="y", id="n")
    db.delete(ids=[13])
    if replaced:
        db.upsert({"x": x[:2] + 1, "y": [7.0, 8.0], "site": ["A", "B"], "n": [10, 11]})
    assert db.export(tmp_path / "t.parquet") == 5
    again = ad.Database.create(tmp_path / "u.adb", tmp_path / "t.parquet", keys="x", values="y", id="n")
    assert again.to_pandas().reset_index(drop=True).equals(db.to_pandas().reset_index(drop=True))
    assert db.export(tmp_path / "t.csv", columns=["site", "y"], where="site <> 'c'") == 4
    found = [line.split(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert [one.strip('"') for one in found] == (["A", "B", "e", "f"] if replaced else ["a", "b", "e", "f"])
    assert db.export(tmp_path / "t.csv", columns="site", where="y > 100", overwrite=True) == 0
    for options, message in (
        ({"path": tmp_path / "t.parquet"}, "already there"),
        ({"path": tmp_path / "v.csv"}, "cannot hold column 'x'"),
        ({"path": tmp_path / "v.csv", "columns": ["nope"]}, "no column 'nope'"),
        ({"path": tmp_path / "v.csv", "columns": ["y"], "where": "nope > 1"}, "nope"),
        ({"path": tmp_path / "v.nope"}, "end its name"),
    ):
        with pytest.raises(ad.InputError, match=message):
            db.export(**options)
    assert sorted(os.listdir(tmp_path)) == ["t.adb", "t.csv", "t.parquet", "u.adb"]


def test_a_change_is_one_version_with_its_indexes(tmp_path):
    x = np.arange(20.0)
    db = ad.Database.create(tmp_path / "t.adb", {"x": x, "y": x, "n": x.astype(int)}, keys="x", values="y", id="n")
    assert db.version == 1 and db.versions()["change"].tolist() == ["create"]
    db.tag("whole")
    numbers = [db.version]
    for i in range(20, 40):
        db.append({"x": [i + 0.0], "y": [i + 0.0], "n": [i]})
        numbers.append(db.version)
    assert db.versions().index.tolist() == numbers and numbers[-1] > 21, "indexes were to be kept up"
    for number, rows in zip(numbers, range(20, 41), strict=True):
        old = ad.Database.open(tmp_path / "t.adb", version=number)
        assert (old.version, len(old)) == (number, rows)
        assert {index.name for index in old.table.dataset.describe_indices()} == {"_key_idx", "n_idx"}
    assert db.versions()["tags"].tolist() == ["whole"] + [""] * 20
    assert ad.Database.open(tmp_path / "t.adb", version="whole").version == 1
    before = db.table.dataset.version
    assert db.restore(1) == before + 1 == db.table.dataset.version, "restoring makes no index again"
    db.append({"x": [50.0], "y": [50.0], "n": [50]})
    before = db.versions()
    last = db.compact()
    assert db.versions()["change"].tolist() == [*before["change"], "compact"] and db.versions().index[-1] == last
    assert db.compact(timedelta(0)) == last
    assert db.versions().index.tolist() == [1, last] == [1, db.version]
    assert db.versions()["change"].tolist() == ["create", "compact"] and len(db) == 21
    assert ad.Database.open(tmp_path / "t.adb", version="whole").version == 1
    assert ad.Database.open(tmp_path / "t.adb").version == last


def test_indexes_take_up_new_rows(tmp_path):
    db = made(tmp_path)
    for i in range(40):
        db.append({"x": [10.0 + i], "y": [1.0]})
    outside = [{x.fragment_id for x in db._source.dataset.get_fragments()}]
    (index,) = db._source.dataset.describe_indices()
    for segment in index.segments:
        outside[0] -= set(segment.fragment_ids)
    assert len(outside[0]) <= 8 and len(index.segments) <= 6
    assert all(db.lookup(10.0 + i) == 1.0 for i in range(40))


def test_a_large_table_is_indexed_in_halves(tmp_path, monkeypatch):
    monkeypatch.setattr(table_index, "ROWS", 100)
    monkeypatch.setitem(OPTIONS, "max_rows_per_file", 100)
    x = np.random.default_rng(0).permutation(1_000)
    db = made(tmp_path, {"x": x * 0.5, "y": x * 2.0, "n": x + 7}, id="n")
    fragments = {fragment.fragment_id for fragment in db.table.dataset.get_fragments()}
    assert len(fragments) == 10 and db.version == 1 and db.versions()["change"].tolist() == ["create"]
    for index in db.table.dataset.describe_indices():
        first, second = (set(segment.fragment_ids) for segment in index.segments)
        assert first | second == fragments and len(first) == len(second) == 5
    assert all(db.lookup(i * 0.5) == 2.0 * i and db.get([i + 7])["y"].tolist() == [2.0 * i] for i in range(1_000))
    with pytest.raises(KeyError):
        db.lookup(0.25)
    db.append({"x": [0.25], "y": [1.0], "n": [2_000]})
    db.upsert({"x": [9.0], "y": [-1.0], "n": [18 + 7]})
    assert (db.lookup(0.25), db.lookup(9.0), len(db)) == (1.0, -1.0, 1_001)
    db.compact()
    assert [len(index.segments) for index in db.table.dataset.describe_indices()] == [1, 1]
    assert (db.lookup(0.25), db.lookup(9.0), db.lookup(10.0)) == (1.0, -1.0, 40.0)
    assert db.restore(1) and db.lookup(9.0) == 36.0


def test_many_scattered_rows_are_deleted(tmp_path):
    """Of 20 000 rows those of 2 000 runs, which a condition of Lance cannot name as runs in good time."""
    numbers = np.arange(20_000)
    db = ad.Database.create(tmp_path / "t.adb", {"k": numbers, "y": numbers * 2.0}, keys="k", values="y")
    assert db.delete("id % 10 < 9") == 18_000
    assert db.delete("id % 20 = 19") == 1000
    assert np.array_equal(db._source.positions.numpy(), numbers[9::20]) and db.lookup(29) == 58.0


def test_ids_and_positions_are_told_apart(tmp_path):
    table = {"k": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0], "code": [100, 200, 0]}
    (tmp_path / "plain").mkdir()
    db = made(tmp_path, table, keys="k", values="y", id="code")
    assert db.ids.tolist() == [100, 200, 0] and db.positions([0, 100]).tolist() == [2, 0]
    assert db.get([200]).index.name == "position" and db.get([200])["code"].tolist() == [200]
    near = {"score": ad.Gaussian(0.1), "weighting": ad.Nearest()}
    assert db.attend([1.0], exclude=db.positions([100]), **near).value.tolist() == [[20.0]]
    with pytest.raises(ad.NotFoundError, match=r"the position 200, which no row has .*positions\(ids\)"):
        db.attend([2.0], exclude=[200], **near)
    with pytest.raises(ad.NotFoundError, match=r"no row has the position 200: ids of column 'code'"):
        db.rows([200])
    plain = made(tmp_path / "plain", table, keys="k", values="y")
    assert plain.ids.tolist() == [0, 1, 2] == plain.positions([0, 1, 2]).tolist()
    assert plain.rows([1]).index.name == "id"
