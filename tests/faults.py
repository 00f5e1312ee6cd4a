"""A process that changes a table in a loop, a parent that kills it, and a model that says what may be left.

The parent draws the changes and applies each to a `Model`, rows in plain dicts. A child makes the same changes on the
table and says when each begins and ends. However the child ends, the table must then be the model before the change
that was cut short or the one after it (`state_of`), and questions must say the same as its rows (`check_answers`).

Children come from a fork server, a process that has imported everything and opened no table: they start in 50 ms.
"""

from __future__ import annotations

import importlib
import inspect
import math
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import attendb as ad

LIMIT = 120.0  # seconds after which a child hangs
NAMES = ("k_0", "k_1", "site", "y", "label", "note")
LABELS = ("u", "v", "it's", None)
KINDS = ("append", "upsert", "delete", "update", "compact", "add_column", "save_score", "tag", "restore")
MOST = 4  # columns that a table gains, and tags

Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """What a table holds: {position: row}, its columns, saved scores and tags; None instead of a Model: no table."""

    named: bool
    columns: tuple[str, ...]
    rows: dict[int, Row]
    scores: dict[str, float]
    tags: dict[str, tuple[tuple[str, ...], dict[int, Row]]]
    next_position: int
    serial: int  # of rows ever drawn: keys and ids are made of it

    def after(self, change: Change) -> Model:
        return getattr(self, f"_{change.kind}")(**change.options)

    def _append(self, rows: list[Row]) -> Model:
        added = {self.next_position + i: self._whole(row) for i, row in enumerate(rows)}
        return replace(self, rows={**self.rows, **added}, next_position=self.next_position + len(rows))

    def _upsert(self, rows: list[Row]) -> Model:
        places = {self.name_of(row): position for position, row in self.rows.items()}
        old = {places[self.name_of(row)]: self._whole(row) for row in rows if self.name_of(row) in places}
        new = [row for row in rows if self.name_of(row) not in places]
        return replace(self, rows={**self.rows, **old})._append(new)

    def _delete(self, where: str | None = None, names: list[Any] | None = None, by: str = "") -> Model:
        gone = {position for position, row in self.rows.items() if satisfies(row, where)} if where else set()
        for name in names or ():
            gone |= {p for p, row in self.rows.items() if (p if by == "position" else self.name_of(row)) == name}
        return replace(self, rows={p: row for p, row in self.rows.items() if p not in gone})

    def _update(self, label: str, where: str) -> Model:
        def changed(row: Row) -> Row:
            return {**row, "y": 21 - row["y"], "label": label} if satisfies(row, where) else row

        return replace(self, rows={p: changed(row) for p, row in self.rows.items()})

    def _compact(self, keep: timedelta | None) -> Model:
        return self

    def _add_column(self, name: str) -> Model:
        rows = {p: {**row, name: row["y"] + 1} for p, row in self.rows.items()}
        return replace(self, columns=(*self.columns, name), rows=rows)

    def _save_score(self, name: str, bandwidth: float) -> Model:
        return replace(self, scores={**self.scores, name: bandwidth})

    def _tag(self, name: str) -> Model:
        return replace(self, tags={**self.tags, name: (self.columns, self.rows)})

    def _restore(self, name: str) -> Model:
        columns, rows = self.tags[name]
        return replace(self, columns=columns, rows=rows)

    def _whole(self, row: Row) -> Row:
        return {name: row.get(name) for name in self.columns}

    def name_of(self, row: Row) -> Any:
        """What an upsert matches rows by."""
        return row["number"] if self.named else (row["k_0"], row["k_1"], row["site"])

    @property
    def state(self) -> dict[str, Any]:
        tags = sorted(self.tags)
        return {"columns": sorted(self.columns), "rows": self.rows, "scores": self.scores, "tags": tags}


def satisfies(row: Row, where: str) -> bool:
    """The three conditions that the changes use."""
    word, number = where.rsplit(" ", 1)
    y, value = row["y"], float(number)
    return {"y <": y < value, "y >": y > value, "y % 5 =": y % 5 == value}[word]


def first_model(named: bool, rng: np.random.Generator, count: int = 20) -> Model:
    columns = (*NAMES, "number") if named else NAMES
    empty = Model(named, columns, {}, {}, {}, 0, 0)
    rows = fresh_rows(empty, rng, count)
    return replace(empty._append(rows), serial=count)


def fresh_rows(model: Model, rng: np.random.Generator, count: int) -> list[Row]:
    out = []
    for serial in range(model.serial, model.serial + count):
        row: Row = {"k_0": float(serial), "k_1": float(serial % 7), "site": f"s{serial % 5}"}
        row |= {"y": float(rng.integers(1, 21)), "label": LABELS[rng.integers(len(LABELS))], "note": serial % 3}
        out.append({**row, "number": 1000 + serial} if model.named else row)
    return out


def draw(model: Model, rng: np.random.Generator, kind: str, most: int = MOST) -> tuple[Change, Model]:
    """A change of this kind and the model after it; an append instead of one more than ``most`` columns or tags."""
    some = list(model.rows.values())
    chosen = [some[i] for i in rng.permutation(len(some))[:3]]
    new = fresh_rows(model, rng, int(rng.integers(1, 5)))
    serial = model.serial + len(new)
    wheres = [f"y < {rng.integers(2, 5)}", f"y > {rng.integers(5, 15)}", f"y % 5 = {rng.integers(5)}"]
    options: dict[str, Any] = {}
    if kind == "append":
        options = {"rows": new}
    elif kind == "upsert":
        again = [{**row, "y": float(rng.integers(1, 21)), "label": "again"} for row in chosen]
        options = {"rows": [{name: row[name] for name in new[0]} for row in again] + new[:2]}
    elif kind == "delete":
        options = {"where": str(rng.choice([wheres[0], wheres[2]]))}
        if rng.random() < 0.5 and chosen:
            options = {"names": [model.name_of(chosen[0])], "by": "number" if model.named else "key"}
            if not model.named and rng.random() < 0.5:
                options = {"names": [int(next(iter(model.rows)))], "by": "position"}
    elif kind == "update":
        options = {"label": f"w{serial}", "where": str(rng.choice(wheres[1:]))}
    elif kind == "add_column":
        if len(model.columns) - len(NAMES) >= most + model.named:
            return draw(model, rng, "append")
        options = {"name": f"added{serial}"}
    elif kind == "save_score":
        options = {"name": "learned", "bandwidth": float(rng.integers(1, 1000))}
    elif kind == "compact":
        options = {"keep": timedelta(0) if rng.random() < 0.3 else None}
    elif kind == "tag" or kind == "restore" and not model.tags:
        kind, options = "tag", {"name": f"t{serial}"}
        if len(model.tags) >= most:
            return draw(model, rng, "append")
    elif kind == "restore":
        options = {"name": str(rng.choice(sorted(model.tags)))}
    change = Change(kind, options)
    return change, replace(model.after(change), serial=serial)


def table_of(rows: list[Row]) -> dict[str, Any]:
    keys = np.array([[row["k_0"], row["k_1"]] for row in rows], dtype=np.float32).reshape(-1, 2)
    rest = {name: [row[name] for row in rows] for name in rows[0] if name not in ("k_0", "k_1")}
    return {"k": keys, **rest}


def key_of(row: Row) -> dict[str, Any]:
    return {"k": [row["k_0"], row["k_1"]], "site": row["site"]}


def create(path: str, rows: list[Row]) -> ad.Database:
    named = "number" in rows[0]
    return ad.Database.create(
        path, table_of(rows), keys=["k", "site"], values=["y", "label"], id="number" if named else None
    )


def make(db: Any, change: Change) -> None:
    """Make a change on the table."""
    options = change.options
    if change.kind in ("append", "upsert"):
        getattr(db, change.kind)(table_of(options["rows"]))
    elif change.kind == "delete":
        names, by = options.get("names"), options.get("by")
        if by == "key":
            db.delete(keys={"k": np.array([name[:2] for name in names], "f4"), "site": [name[2] for name in names]})
        else:
            db.delete(options.get("where"), ids=names)
    elif change.kind == "update":
        db.update({"y": "21 - y", "label": f"'{options['label']}'"}, options["where"])
    elif change.kind == "add_column":
        db.add_column(options["name"], "y + 1")
    elif change.kind == "save_score":
        db.save_score(options["name"], ad.Gaussian(options["bandwidth"]))
    elif change.kind == "compact":
        db.compact(options["keep"])
    else:
        getattr(db, change.kind)(options["name"])


def state_of(path: str) -> dict[str, Any]:
    """What the table at this path holds, read through a new handle; nothing in it may be damaged."""
    db: Any = ad.Database.open(path)
    assert db.verify() == []
    frame = db.to_pandas()
    columns = {name: [None if _lacks(x) else x for x in frame[name].tolist()] for name in frame.columns}
    rows = {int(p): {name: columns[name][i] for name in columns} for i, p in enumerate(frame.index)}
    scores = {name: float(db.score(name).bandwidth) for name in db.scores}
    tags = [tag for cell in db.versions()["tags"] for tag in cell.split(", ") if tag]
    return {"columns": sorted(columns), "rows": rows, "scores": scores, "tags": sorted(tags)}


def _lacks(x: Any) -> bool:
    return x is None or isinstance(x, float) and math.isnan(x)


def check_answers(path: str, model: Model, others: Model, rng: np.random.Generator) -> None:
    """Questions about the table say what the rows of the model say, also of rows that only ``others`` has."""
    db: Any = ad.Database.open(path)
    mine = {model.name_of(row): (position, row) for position, row in model.rows.items()}
    theirs = {model.name_of(row): (position, row) for position, row in others.rows.items()}
    differ = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)][:6]
    same = [name for name in mine if name not in differ]
    for name in [*differ, *(same[i] for i in rng.permutation(len(same))[:4])]:
        position, row = mine.get(name) or theirs[name]
        wanted = int(row["number"]) if model.named else position
        if name in mine:
            assert db.lookup(key_of(row)) == {"y": row["y"], "label": row["label"]}
            found = db.get([wanted])
            assert found.index.tolist() == [position] and found["y"].tolist() == [row["y"]]
        else:
            assert not len(db.lookup_all(key_of(row))), f"{name} was deleted and is found by its key"
            if model.named or position not in model.rows:
                try:
                    found = db.get([wanted])
                except ad.NotFoundError:
                    continue
                raise AssertionError(f"{name} was deleted and is found by its id: {found}")
    query = {"k": np.zeros((1, 2), dtype=np.float32), "site": ["s0"]}
    for where in ("y > 10", "y % 5 = 2"):  # the first is pushed down, the second is not
        own = [row["y"] for row in model.rows.values() if satisfies(row, where)]
        answer = db.attend(query, values="y", score=ad.Constant(), where=where)
        assert bool(answer.empty[0]) == (not own)
        assert math.isclose(float(answer.value[0, 0]), sum(own) / max(1, len(own)), rel_tol=1e-9)


# What a change calls on its way to the disk: a child can be stopped before and after each of them.
STEPS = (
    *(("os", name) for name in ("open", "fsync", "replace", "rename", "mkdir", "remove", "unlink")),
    *(("lance", name) for name in ("write_dataset",)),
    *(("lance.fragment", name) for name in ("write_fragments",)),
    *(("lance.fragment", f"LanceFragment.{name}") for name in ("delete", "merge_columns")),
    *(("lance", f"LanceDataset.{name}") for name in ("commit", "create_scalar_index", "restore", "add_columns")),
    *(("lance.dataset", f"DatasetOptimizer.{name}") for name in ("compact_files", "optimize_indices")),
    ("lance.dataset", "Tags.create"),
)


class Stop:
    """Kills its own process at a step, counted from 1 over the starts and ends of all calls of `STEPS`."""

    def __init__(self, step: int):
        self.left, self.armed = step, False

    def install(self) -> None:
        for module, path in STEPS:
            owner: Any = importlib.import_module(module)
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            found = inspect.getattr_static(owner, name)
            static = isinstance(found, staticmethod)
            wrapped = self._around(found.__func__ if static else found)
            setattr(owner, name, staticmethod(wrapped) if static else wrapped)

    def _around(self, call: Any) -> Any:
        def stopping(*arguments: Any, **options: Any) -> Any:
            self._step()
            try:
                return call(*arguments, **options)
            finally:
                self._step()

        return stopping

    def _step(self) -> None:
        if self.armed:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def work(path: str, changes: list[Change], pipe: Connection, step: int | None, size: int | None) -> None:
    """The child: make the changes one after another, and say so. ``size``: die when a file grows beyond it."""
    stop = Stop(step or 0)
    try:
        if step is not None:
            stop.install()
        db = None if changes[0].kind == "create" else ad.Database.open(path)
        for change in changes:
            pipe.send_bytes(b"begins")
            if size is not None:
                die_beyond(size)
            stop.armed = True
            if db is None:
                db = create(path, **change.options)
            else:
                make(db, change)
            stop.armed = False
            pipe.send_bytes(b"ended")
    except BaseException:
        stop.armed = False
        pipe.send_bytes(traceback.format_exc().encode())
        raise SystemExit(3) from None


def die_beyond(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def fork_server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attendb.stored", "lance", "lance.fragment", "pandas", "sqlglot", "numba"])
    return context


@dataclass(frozen=True)
class End:
    """How a child ended: changes that it had ended, whether it was inside one, whether it was killed."""

    ended: int
    inside: bool
    killed: bool


def run(
    path: str,
    changes: list[Change],
    *,
    begun: int = 1,
    after: float | None = None,
    step: int | None = None,
    size: int | None = None,
) -> End:
    """Let a child make changes; kill it ``after`` seconds since the ``begun``-th began, at a step, or at a size."""
    context = fork_server()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(path, changes, theirs, step, size))
    child.start()
    theirs.close()
    told: list[bytes] = []
    try:
        if after is not None:
            while told.count(b"begins") < begun and len(told) == told.count(b"begins") + told.count(b"ended"):
                assert ours.poll(LIMIT), f"the child hangs after {told}"
                told.append(ours.recv_bytes())
            time.sleep(after)
            child.kill()
        child.join(LIMIT)
        assert child.exitcode is not None, f"the child hangs after {told}"
        while True:
            try:
                told.append(ours.recv_bytes())
            except EOFError:
                break
    finally:
        child.kill()
        child.join()
        ours.close()
    wrong = [text for text in told if text not in (b"begins", b"ended")]
    assert not wrong, f"the child failed in change {len(told) // 2}:\n{wrong[0].decode()}"
    killed = child.exitcode in (-signal.SIGKILL, -signal.SIGXFSZ)
    assert killed or child.exitcode == 0, f"the child ended with {child.exitcode}"
    return End(told.count(b"ended"), told[-1:] == [b"begins"], killed)
