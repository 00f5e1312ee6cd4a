"""StoredDatabase: a Database whose rows lie on disk, with versions.

Longer than other modules: it is all that can be asked of a stored table, each method thin over `sources`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from .answer import Answer
from .attention import DEFAULT_SCORE
from .database import Database
from .errors import InputError, KindError
from .reading import read_pairwise, read_vector
from .saved_scores import load_score, save_score, saved_scores
from .scores.base import Score
from .sources.arrow import as_table, is_stream
from .sources.base import Rows, Source
from .sources.frames import frame_of
from .sources.rows import is_named, read_side, same_length
from .sources.table import CACHE_BYTES, Table
from .sources.table_batches import check_batch
from .sources.table_changes import append_batches, delete_rows, update_rows, upsert_stored
from .sources.table_creating import create_table, stream_of
from .sources.table_opening import Damage, check_process, damages
from .sources.table_upkeep import add_column, compact, restore, tag, versions
from .sources.table_writing import batches_of
from .weightings.base import Weighting

if TYPE_CHECKING:
    from pandas import DataFrame

    from .learning_rows import LearningRows


class StoredDatabase(Database):
    """A `Database` in a folder on disk, made by `Database.create` and opened by `Database.open`.

    Each change is one commit, whole or not at all, on the newest version; each question reads one version. A handle
    sees its own changes at once, and those of others after `refresh`, after its own next change, or, with ``max_age``,
    at the first question after so many seconds. A handle that was opened at a version cannot change the table.

    Row positions are given by the table and never twice. Where the table has an id column, ``ids`` are what that column
    holds; else they are the positions. ``exclude=`` and ``top.positions`` are positions always.

    Processes: any number may use a table; writers take turns. A process forked from one that has opened a table raises
    InputError: start it with the method spawn. A pickle holds the path and the version, and opens it again.

    >>> import attendb as ad, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "plant.adb"
    >>> db = ad.Database.create(path, {"hour": [1, 2], "output": [480.5, 438.8]}, keys="hour", values="output")
    >>> db.append({"hour": [3], "output": [450.0]}).tolist(), db.lookup(3), db.version > 1
    ([2], 450.0, True)
    """

    def __init__(self, table: Table, *, cache_bytes: int, max_age: float | None, pinned: bool):
        self._lock = threading.RLock()
        self._table = table
        self._cache_bytes = cache_bytes
        self._max_age = max_age
        self._pinned = pinned
        self._looked = time.monotonic()

    @property
    def _source(self) -> Table:  # type: ignore[override]
        if self._max_age is not None and not self._pinned and time.monotonic() - self._looked > self._max_age:
            self.refresh()
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "version": self.version if self._pinned else None,
            "cache_bytes": self._cache_bytes,
            "max_age": self._max_age,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = open_database(state["path"], state["version"], state["cache_bytes"], state["max_age"])
        self.__dict__.update(own.__dict__)

    def __copy__(self) -> StoredDatabase:
        return StoredDatabase(self._table, cache_bytes=self._cache_bytes, max_age=self._max_age, pinned=self._pinned)

    @property
    def path(self) -> str:
        """The folder of the table."""
        return self._table.folder

    @property
    def version(self) -> int:
        """The number of the version that this handle reads: that of the change that made it."""
        return self._table.version

    def refresh(self) -> int:
        """Read the newest version from now on, and return its number; a handle opened at a version stays there."""
        check_process()  # before the lock, which a thread of the parent may have held when it forked
        with self._lock:
            if not self._pinned:
                self._table = self._table.latest()
                self._looked = time.monotonic()
            return self._table.version

    def _frame_of(self, source: Source, positions: np.ndarray, columns: Sequence[str] | None = None) -> DataFrame:
        return frame_of(cast(Table, source), positions, columns)

    @property
    def ids(self) -> np.ndarray:
        """The ids (m,) of the rows, in the order of their positions: what the id column holds, else the positions."""
        source = self._source
        positions = source.positions.numpy().copy()
        own = source.layout.id
        return positions if own is None else frame_of(source, positions, [own])[own].to_numpy().copy()

    def positions(self, ids: Any) -> np.ndarray:
        """The positions (r,) of the rows with these ids, for ``exclude=`` and `rows`.

        Raises NotFoundError for an id that no row has.
        """
        source = self._source
        if source.layout.id is None:
            return np.asarray(self.get(ids).index)
        wanted = source.read_ids(ids if not isinstance(ids, (str, int)) else [ids])
        return source.positions_of_ids(wanted)

    def get(self, ids: Any) -> DataFrame:
        """The rows with these ids, in this order: all columns, the index holds the positions.

        Raises NotFoundError for an id that no row has.
        """
        source = self._source
        if source.layout.id is None:
            return super().get(ids)
        wanted = source.read_ids(ids if not isinstance(ids, (str, int)) else [ids])
        return frame_of(source, source.positions_of_ids(wanted), None)

    def attend(
        self,
        queries: Any,
        *,
        values: str | Sequence[str] | None = None,
        score: str | Score | nn.Module | Callable[..., Tensor] = DEFAULT_SCORE,
        weighting: Weighting | None = None,
        where: Any = None,
        bias: Any = None,
        key_weights: Any = None,
        exclude: Any = None,
        tol: float | None = None,
        plan: str | None = None,
        top: int = 0,
    ) -> Answer:
        """Ask the table by attention, as `Database.attend` does; ``score`` may be the name of a saved score.

        ``exclude`` (n,) and ``top.positions`` are positions, also where the table has an id column: `positions`
        translates its ids. ``id`` in a condition is the id column where there is one.
        """
        return super().attend(
            queries,
            values=values,
            score=self.score(score) if isinstance(score, str) else score,
            weighting=weighting,
            where=where,
            bias=bias,
            key_weights=key_weights,
            exclude=exclude,
            tol=tol,
            plan=plan,
            top=top,
        )

    def append(self, keys: Any, values: Any = None, *, ids: Any = None, batch: str | None = None) -> np.ndarray:
        """Add rows in one commit and return their ids (r,).

        ``keys``: a table of all columns by name (a dict, a frame, a path, or a reader of batches, which is not held in
        memory), of which those without a role may lack; or the keys alone, with ``values`` and, where the table has an
        id column, ``ids``. ``batch``: a name by which these rows are appended once: another append under that name adds
        nothing and returns what the first did, also where the process of the first died before it returned. The name is
        free again once a version before it is restored.

        Raises InputError for an id that exists or is given twice, for a batch of another number of rows and for columns
        and widths that do not fit, KindError for kinds, MissingValueError for keys without a number, StorageError for a
        full disk; then the table is as before. Cost: that of writing the rows; ids are looked up in the index.
        """
        with self._changing() as source:
            name = None if batch is None else check_batch(batch)
            if values is None:
                rows = self._batches(keys, source, ids)
            else:
                sides = source.layout.sides(*self._sides(keys, values, source), self._ids(ids, source))
                rows = batches_of(sides, source.layout)
            change = append_batches(source, rows, name)
            self._table = cast(Table, change.source)
            return change.ids

    def upsert(self, keys: Any, values: Any = None, *, ids: Any = None) -> np.ndarray:
        """Replace rows or add them in one commit, and return their ids (r,); rows are given as for `append`.

        Where the table has an id column, the row with the same id is replaced, else the row with the equal key, as
        `lookup` compares. A replaced row keeps its position. Raises as `append` does, and InputError for a key given
        twice and for a key that several rows have. Cost: the rows are held in memory; keys are looked up in the index.
        """
        with self._changing() as source:
            if values is None:
                table = pa.Table.from_batches(list(self._batches(keys, source, ids)), source.layout.stored)
                change = upsert_stored(source, table)
            else:
                change = source.upsert(source.schema, *self._sides(keys, values, source), self._ids(ids, source))
            self._table = cast(Table, change.source)
            return change.ids

    def delete(self, where: Any = None, *, keys: Any = None, ids: Any = None) -> int:
        """Remove rows in one commit and return how many: of one of a condition, keys and ids, as `Database.delete`.

        A condition is evaluated on the newest version. ``where`` may also be booleans (m,) for the rows of this one.
        """
        given = [name for name, x in (("where", where), ("keys", keys), ("ids", ids)) if x is not None]
        if len(given) != 1:
            raise InputError(f"delete was given {' and '.join(given) or 'nothing'}: give one of where=, keys= and ids=")
        with self._changing() as source:
            which = self._chosen(source, where, keys, ids)
            self._table, gone = delete_rows(source, which)
            return gone

    def _chosen(self, source: Table, where: Any, keys: Any, ids: Any) -> Callable[[Table], np.ndarray]:
        if isinstance(where, str):
            source.filter.check(where)
            return lambda newest: newest.matching(where)
        if where is not None:
            if callable(where) and not isinstance(where, Tensor):
                raise KindError("delete takes filter text or booleans as where=, not a function")
            mask = read_pairwise(where, "where", boolean=True)
            if mask.shape != (len(source),):
                raise InputError(
                    f"where has shape {tuple(mask.shape)} but there are {len(source)} rows: one bool a row"
                )
            positions = source.positions.numpy()[mask.cpu().numpy()]
            return lambda newest: positions
        if ids is not None and source.layout.id is not None:
            wanted = source.read_ids(ids)
            return lambda newest: _found(newest.by_id(wanted)[0])
        if ids is not None:
            numbers = read_vector(ids, "ids").reshape(-1)
            if numbers.is_floating_point() and numbers.numel():
                raise KindError(f"ids have dtype {numbers.dtype}: give whole numbers ≥ 0")
            return lambda newest: numbers.long().numpy()
        rows = read_side(keys, "keys", source.schema.keys)[1]
        return lambda newest: newest.find(rows).positions

    def update(self, changes: Mapping[str, Any], where: str | None = None) -> int:
        """Set columns in one commit to what an expression of SQL gives, in all rows or those that satisfy ``where``.

        ``changes``: {column: expression or number}, such as {"output": "output * 2", "site": "'north'"}; expressions
        see the row as it was. Returns the number of rows. Raises InputError for text that cannot be read, for the id
        column and for results that the column cannot hold. Cost: the rows are read and written again, in batches.
        """
        with self._changing() as source:
            self._table, rows = update_rows(source, changes, where)
            return rows

    def add_column(self, name: str, data: Any) -> None:
        """Add a column in one commit: one value a row in order of positions, or an expression of SQL over the rest."""
        with self._changing() as source:
            self._table = add_column(source, name, data)

    def versions(self) -> DataFrame:
        """One row a version: its number (the index), when it was made, what the change was, its rows, its tags.

        Numbers ascend and may leave some out: indexes are kept up in versions that hold no change and are not listed.
        """
        return versions(self._table)

    def restore(self, version: int | str) -> int:
        """Make an older version, by number or tag, the newest again, and return its new number.

        Nothing of the versions between is lost. This also repairs a table whose newest version is damaged.
        """
        check_process()
        with self._lock:
            self._table = restore(self._table, version)
            self._pinned = False
            return self.version

    def tag(self, name: str) -> None:
        """Give the version that this handle reads a name, by which `Database.open` finds it."""
        tag(self._table, name)

    def compact(self, keep: timedelta | None = None) -> int:
        """Join small pieces and drop deleted rows for good; ``keep``: remove versions that are older. Positions stay.

        Returns the number of the new version. Handles at older versions go on reading, unless ``keep`` removed theirs.
        """
        with self._changing() as source:
            self._table = compact(source, keep)
            return self.version

    def verify(self) -> list[Damage]:
        """What is damaged in the table on disk: files that lack or are cut short, each with what to do; none: [].

        Cost: one look at each file; none is read.
        """
        return damages(self.path)

    def info(self) -> dict[str, Any]:
        """What the table holds: path, version, rows, columns with their roles and types, id column, bytes, scores."""
        source = self._table
        layout = source.layout
        roles = dict.fromkeys(layout.keys, "key") | dict.fromkeys(layout.values, "value")
        roles |= {} if layout.id is None else {layout.id: "id"}
        return {
            "path": self.path,
            "version": self.version,
            "rows": len(source),
            "columns": {name: {"role": roles.get(name, "other"), "type": str(t)} for name, t in layout.types.items()},
            "id": layout.id,
            "bytes": sum(size or 0 for fragment in source.fragments for _, size in fragment.files),
            "fragments": len(source.fragments),
            "deleted": sum(fragment.deleted for fragment in source.fragments),
            "scores": self.scores,
        }

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        format: str | None = None,
        overwrite: bool = False,
    ) -> int:
        """Write the rows to a file, whole or not at all, in order of position; returns how many.

        ``path``: .parquet, .csv or .tsv, the last two also .csv.gz, .csv.zst; ``format`` says it where the name does
        not. ``columns``: names (None: all); ``where``: filter text; ``overwrite``: replace a file that is there. Raises
        InputError for these, and for columns that the format cannot hold. Cost: O(batch) memory.

        >>> import attendb as ad, tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> table = {"hour": [1, 2], "output": [480.5, 439.0]}
        >>> db = ad.Database.create(folder / "p.adb", table, keys="hour", values="output")
        >>> db.export(folder / "p.csv", where="output > 450")
        1
        >>> print((folder / "p.csv").read_text())
        "hour","output"
        1,480.5
        <BLANKLINE>
        """
        from .exporting import export

        source = self._source
        names = source.layout.listed if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
        unknown = [name for name in names if name not in source.layout.types]
        if unknown:
            have = ", ".join(map(repr, source.layout.listed))
            raise InputError(f"there is no column {unknown[0]!r}: choose among {have}")
        reader = source.to_reader(names, where)
        return export(reader, reader.schema, os.fspath(path), format=format, overwrite=overwrite)

    def save_score(self, name: str, score: Any) -> None:
        """Save a score with the table, so that ``score="name"`` finds it, in place of one of that name.

        Built-in scores and PerColumn of them are saved whole. Of an `nn.Module` of yours the parameters are saved, and
        `score` needs the module to load them into. Raises KindError for plain functions.
        """
        source = self._source
        save_score(os.path.join(source.folder, "_scores"), name, score)

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the saved scores."""
        return saved_scores(os.path.join(self.path, "_scores"))

    def score(self, name: str, into: nn.Module | None = None) -> Score:
        """A saved score; ``into``: the module of yours that its parameters are loaded into.

        Raises NotFoundError for a name that no score has.
        """
        return load_score(os.path.join(self.path, "_scores"), name, into)

    def learn(self, positions: Any) -> LearningRows:
        """Rows of the table as tensors that learn: ``positions`` as `answer.top.positions` gives them (−1: none)."""
        from .learning_rows import LearningRows

        return LearningRows(self, positions)

    @property
    def table(self) -> Table:
        """The version of the table that a question asked now would read."""
        return self._source

    def _changing(self) -> _Changing:
        return _Changing(self)

    def _batches(self, table: Any, source: Table, ids: Any) -> Any:
        layout = source.layout
        if isinstance(table, (str, os.PathLike)):
            from .importing import open_table  # type: ignore[attr-defined]

            table = open_table(table)
        if is_stream(table):
            return stream_of(iter(table.batches() if hasattr(table, "batches") else table), layout)
        if not is_named(table) and not isinstance(table, pa.RecordBatch):
            raise KindError(
                f"rows are a {type(table).__name__} without column names: give a table of all columns, or keys and "
                "values"
            )
        whole = as_table(table)
        if ids is not None:
            if layout.id is None or layout.id in whole.schema.names:
                why = "no id column" if layout.id is None else f"the ids in its column {layout.id!r}"
                raise InputError(f"ids= was given but the table has {why}: leave it out")
            whole = whole.append_column(layout.id, source.read_ids(ids))
        return batches_of(whole, layout)

    def _sides(self, keys: Any, values: Any, source: Table) -> tuple[Rows, Rows]:
        schema = source.schema
        k, v = read_side(keys, "keys", schema.keys)[1], read_side(values, "values", schema.values)[1]
        same_length(k, v)
        return k, v

    def _ids(self, ids: Any, source: Table) -> pa.Array | None:
        if ids is None:
            if source.layout.id is not None:
                raise InputError(f"rows lack ids: the table has the id column {source.layout.id!r}, give ids=")
            return None
        return source.read_ids(ids)


def _found(positions: np.ndarray) -> np.ndarray:
    """Positions without the −1 of what no row has."""
    return positions[positions >= 0]


class _Changing:
    """Changes of one handle take turns; the table is the one that the handle reads."""

    def __init__(self, database: StoredDatabase):
        self.database = database

    def __enter__(self) -> Table:
        database = self.database
        check_process()
        database._lock.acquire()
        if database._pinned:
            database._lock.release()
            raise InputError(
                f"the table was opened at version {database.version} and cannot be changed there: restore it, or open "
                "the table without version="
            )
        return database._table

    def __exit__(self, *_: object) -> None:
        self.database._lock.release()


def create_database(
    path: Any,
    table: Any,
    keys: Sequence[str] | str,
    values: Sequence[str] | str | None,
    id: str | None,
    cache_bytes: int = CACHE_BYTES,
    max_age: float | None = None,
) -> StoredDatabase:
    """`Database.create`, whose docstring says what each argument is."""
    made = create_table(path, table, keys, values, id, _checked_cache(cache_bytes))
    return StoredDatabase(made, cache_bytes=cache_bytes, max_age=_checked_age(max_age), pinned=False)


def open_database(
    path: Any, version: Any, cache_bytes: int = CACHE_BYTES, max_age: float | None = None
) -> StoredDatabase:
    """`Database.open`, whose docstring says what each argument is."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str, np.integer))):
        raise KindError(f"version is a number or a tag, got {version!r}")
    version = int(version) if isinstance(version, np.integer) else version
    table = Table.open(path, version, _checked_cache(cache_bytes))
    return StoredDatabase(table, cache_bytes=cache_bytes, max_age=_checked_age(max_age), pinned=version is not None)


def _checked_cache(cache_bytes: Any) -> int:
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, (int, np.integer)) or cache_bytes < 0:
        raise InputError(f"cache_bytes must be a whole number of bytes ≥ 0, got {cache_bytes!r}")
    return int(cache_bytes)


def _checked_age(max_age: Any) -> float | None:
    if max_age is not None and (isinstance(max_age, bool) or not isinstance(max_age, (int, float)) or not max_age >= 0):
        raise InputError(f"max_age must be a number of seconds ≥ 0, got {max_age!r}")
    return max_age
