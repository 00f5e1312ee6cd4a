"""Database: key–value pairs that answer by exact key (`lookup`) and by attention (`attend`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .answer import Answer
from .asking import TableQuestion
from .attention import DEFAULT_SCORE, ask
from .columns import Opaque
from .errors import InputError, KindError, NotFoundError
from .looking_up import closest, matching, one_value, shown
from .plans.precision import own_precision
from .question import Options
from .reading import read_pairwise, read_vector
from .scores.base import Score
from .sources.base import ID, Column, Data, Rows, Schema, Source
from .sources.memory import Memory
from .sources.rows import count, is_named, read_ids, read_side, same_length
from .streaming import ask_blocks
from .weightings.base import Weighting

if TYPE_CHECKING:
    from pandas import DataFrame

    from .stored import StoredDatabase


class Database:
    """A table of key–value pairs that is asked by exact key or by attention, and can be changed.

        lookup(key) = v_i where k_i = key            attend(q) = Σ_i α(q, k_i) v_i

    ``keys``, ``values``: m rows each, as numpy arrays, tensors (1-D = width 1), lists of numbers or text, dicts of
    columns, or pandas and polars frames. Column names are kept; a side without names is the column "key" or "value".
    ``ids`` (m,): whole numbers ≥ 0 that name the rows; None: 0 … m − 1. Rows stand in ascending order of id, and so do
    the rows of masks, key weights and `Answer.weights`. An id that the table chose is never given to another row.

    Numbers in keys must not be missing. A missing text (None) in keys is kept, and equals no key. Tensors are not
    copied until the table first changes, and gradients of `attend` reach them; after a change they reach them through
    the graph of the concatenation. Arrays and lists are copied.

    Raises InputError for lengths, widths, names and ids, KindError for kinds, MissingValueError for NaN in keys.
    Cost: memory of the columns. A change costs O(m) whatever its size, and makes the whole change or none.
    Threads: any number may ask while others change the table; each question sees one state of it. Changes take turns.
    `copy.copy` gives an independent table; a deep copy and a pickle keep the numbers but not the graph of tensors that
    were computed.

    >>> import attendb as ad
    >>> db = ad.Database(keys=["Zhang", "Li", "Hu"], values=["Aston", "Mu", "Rachel"])
    >>> db.lookup("Li"), db.attend("Lu", score=ad.EditSimilarity(), weighting=ad.Nearest()).value
    ('Mu', 'Mu')
    >>> db
    Database of 3 rows
      key (text) → value (text)

    Source: Codd 1970 for the table; Vaswani et al. 2017 for the question.
    """

    def __init__(self, keys: Any, values: Any, *, ids: Any = None):
        schema, k, v = _read_rows(keys, values, None)
        self._source: Source = Memory(schema, k, v, read_ids(ids, count(next(iter(k.values())))))
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        source, schema = self._source, self._source.schema
        return f"Database of {len(source)} row{'s' * (len(source) != 1)}\n  {schema.keys} → {schema.values}"

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source = state["_source"]
        self._lock = threading.RLock()

    @property
    def ids(self) -> np.ndarray:
        """The ids (m,) int64 of the rows, ascending: a copy."""
        return self._source.positions.numpy().copy()

    @property
    def columns(self) -> dict[str, dict[str, str]]:
        """The names of the columns and what they hold: {"keys": {name: kind}, "values": {name: kind}}."""
        sides = (self._source.schema.keys, self._source.schema.values)
        return {side.role: {column.name: str(column) for column in side.columns} for side in sides}

    @staticmethod
    def create(
        path: str | PathLike[str],
        table: Any,
        *,
        keys: str | Sequence[str],
        values: str | Sequence[str] | None = None,
        id: str | None = None,
        cache_bytes: int = 1 << 30,
        max_age: float | None = None,
    ) -> StoredDatabase:
        """Make a table on disk, in the folder ``path``, which must not exist yet, and open it.

        ``table``: a dict of columns, a pandas, polars or pyarrow table, a pyarrow RecordBatchReader, the path of a file
        or what `attendb.importing` opens; what comes in batches is not held in memory. ``keys``, ``values``: the names
        of their columns, numbers, vectors of one width or text (None: all others that can be values). ``id``: a column
        of whole numbers or texts that names the rows, each once. All other columns, of any Arrow type but structs, are
        kept and returned with rows. NaN in a value column of width 1 is stored as missing.

        ``cache_bytes``: decoded blocks that the handle may keep; ``max_age``: seconds after which it looks for a newer
        version by itself. Returns a `StoredDatabase`.
        Raises InputError for a path that exists, for names, widths and ids given twice, KindError for kinds,
        MissingValueError for keys without a number, StorageError for a disk that is full or may not be written to; then
        nothing is left behind. Cost: that of writing the rows, and of the index of their keys, about 0.3 µs a row.

        >>> import attendb as ad, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "names.adb"
        >>> db = ad.Database.create(path, {"name": ["Li", "Hu"], "age": [30, 40]}, keys="name", values="age")
        >>> db.lookup("Hu"), ad.Database.open(path).lookup("Li")
        (40, 30)
        """
        from .stored import create_database

        return create_database(path, table, keys, values, id, cache_bytes, max_age)

    @staticmethod
    def open(
        path: str | PathLike[str],
        *,
        version: int | str | None = None,
        cache_bytes: int = 1 << 30,
        max_age: float | None = None,
    ) -> StoredDatabase:
        """Open a table on disk: its newest version, or the one of that number or tag, which then cannot be changed.

        ``cache_bytes`` and ``max_age``: as for `create`. Where the newest version is damaged, the newest whole one is
        opened, with a warning that names the file. Raises InputError where there is no table or no such version,
        StorageError for a damaged one, a newer format or no permission. Cost: a few ms.
        """
        from .stored import open_database

        return open_database(path, version, cache_bytes, max_age)

    def to_pandas(self) -> DataFrame:
        """All rows as a frame: the index is the id, then the key columns, then the value columns."""
        source = self._source
        return self._frame_of(source, source.positions.numpy().copy())

    def rows(self, positions: Any, columns: str | Sequence[str] | None = None) -> DataFrame:
        """The rows at these positions, such as those of `Answer.top`, in this order: a frame with them as the index.

        ``columns``: names (None: all). Raises NotFoundError for a position that no row has, InputError for a name that
        no column has. Cost: O(r).

        >>> import attendb as ad
        >>> db = ad.Database({"age": [30.0, 40.0]}, {"pay": [1.0, 2.0]})
        >>> db.rows([1, 0], "pay")["pay"].to_dict()
        {1: 2.0, 0: 1.0}
        """
        wanted = read_vector(positions, "positions").reshape(-1)
        if wanted.is_floating_point() and wanted.numel() or wanted.dtype == torch.bool:
            raise KindError(f"positions have dtype {wanted.dtype}: give whole numbers ≥ 0")
        names = (columns,) if isinstance(columns, str) else columns
        return self._frame_of(self._source, wanted.long().cpu().numpy().copy(), names)

    def get(self, ids: Any) -> DataFrame:
        """The rows with these ids, in this order, as `rows` gives them. Raises NotFoundError for one of no row."""
        return self.rows(ids)

    def _frame_of(self, source: Source, positions: np.ndarray, columns: Sequence[str] | None = None) -> DataFrame:
        block = source.take(positions)
        return _frame(source.schema, positions, block.keys, block.values, columns)

    def lookup(self, key: Any) -> Any:
        """The value of the row whose key equals ``key``: v_i where k_i = key.

        ``key``: one key: a number, a text, a row of numbers (d,), or for several key columns a dict {column: value} or
        a tuple in their order. Texts are equal in Unicode's form NFC, numbers when they are equal as the column stores
        them (−0 = 0; whole numbers of any size exactly; decimal ones in the column's dtype).

        Returns a number, an array (v,) or a text; a dict {column: value} where there are several value columns;
        tensors, with their graph, where ``key`` is a tensor. Several rows with the key give the mean of their numbers.
        Raises NotFoundError, a KeyError, where no row has the key, InputError where the texts of such rows differ or
        ``key`` is not one key, KindError for text against numbers.
        Cost: O(log m) after the first call, which sorts the keys once, O(m log m), as does the first after a change.

        >>> import attendb as ad
        >>> ad.Database([1, 2, 2], [10.0, 20.0, 40.0]).lookup(2)
        30.0

        Source: Codd 1970 (selection by key).
        """
        source = self._source
        ids = matching(source, key)
        if not len(ids):
            raise NotFoundError(f"no row has the key {shown(key)}{closest(source, key)}")
        block = source.take(ids)
        found = {name: one_value(x, name, key) for name, x in block.values.items()}
        return found if len(found) > 1 else next(iter(found.values()))

    def lookup_all(self, key: Any) -> DataFrame:
        """All rows whose key equals ``key``, as `to_pandas` shows them: a frame without rows where there are none.

        ``key`` is compared as in `lookup`, and the same errors are raised for what is not one key.

        >>> import attendb as ad
        >>> ad.Database(["Li", "Hu", "Li"], ["Mu", "Rachel", "Fei"]).lookup_all("Li")["value"].to_dict()
        {0: 'Mu', 2: 'Fei'}
        """
        source = self._source
        return self._frame_of(source, matching(source, key))

    def attend(
        self,
        queries: Any,
        *,
        values: str | Sequence[str] | None = None,
        score: Score | nn.Module | Callable[..., Tensor] = DEFAULT_SCORE,
        weighting: Weighting | None = None,
        where: Any = None,
        bias: Any = None,
        key_weights: Any = None,
        exclude: Any = None,
        tol: float | None = None,
        plan: str | None = None,
        top: int = 0,
    ) -> Answer:
        """Ask the table by attention: Attention(q, D) = Σ_i α(q, k_i) v_i, as `attendb.attend` does.

        ``queries``: as the keys were given; dicts of columns and frames are matched to the key columns by name, arrays
        by the order of the columns. ``values``: the value columns to pool, all of them numbers or one of them text
        (None: all). ``where``: booleans that broadcast to (n, m), a function of (query positions, row ids), or a
        condition over the columns and ``id`` in SQL, "age > 30 AND name LIKE 'L%'": comparisons with a missing value
        are not true, texts stand in single quotes, a column x of width 3 is x_0, x_1, x_2. ``bias``: functions are
        given row ids too. ``exclude`` (n,): the id of one row per query that it may not see (−1 = none).
        ``key_weights`` (m,), in the order of ids. The other options are those of `attendb.attend`.

        Returns an `Answer` whose ``top.positions`` are row ids.
        Raises what `attendb.attend` raises; InputError for filter text that cannot be read and for unknown columns,
        KindError for values of different kinds, NotFoundError for an excluded id that no row has, MissingValueError for
        a missing text in values that ``where`` does not leave out.
        Cost: that of `attendb.attend`; filter text reads the columns that it names, a few µs a row.

        >>> import attendb as ad
        >>> db = ad.Database({"age": [30.0, 40.0, 50.0]}, {"pay": [1.0, 2.0, 4.0]})
        >>> db.attend({"age": [40.0]}, score=ad.Boxcar(10.0), where="pay >= 2").value.tolist()
        [[3.0]]
        """
        with own_precision():
            table = TableQuestion(
                self._source,
                queries,
                values=values,
                score=score,
                weighting=weighting,
                options=Options(where, bias, key_weights, exclude, tol, plan, top),
            )
            return ask_blocks(table) if table.source.streamed else ask(table.of_all())

    def append(self, keys: Any, values: Any = None, *, ids: Any = None) -> np.ndarray:
        """Add rows and return their ids (r,): ``ids``, or the next ones that no row ever had.

        ``keys``, ``values``: the two sides; or one table of all columns as the first. Columns are matched by name,
        never by position. Numbers are kept in the column's dtype: a decimal number may be rounded to it, a whole number
        must fit. Raises as `Database` does, InputError for an id that exists (that is an
        upsert) and for other columns or widths, KindError for other kinds; then the table is as before. Cost: O(m).

        >>> import attendb as ad
        >>> db = ad.Database(["Li"], ["Mu"])
        >>> db.append(["Hu", "Smola"], ["Rachel", "Alex"]).tolist(), len(db)
        ([1, 2], 3)
        """
        with self._lock:
            schema, k, v = _read_rows(*_two_sides(keys, values, self._source.schema), self._source.schema)
            change = self._source.append(schema, k, v, read_ids(ids, count(next(iter(k.values())))))
            self._source = change.source
            return change.ids

    def upsert(self, keys: Any, values: Any = None, *, ids: Any = None) -> np.ndarray:
        """Replace rows or add them, and return their ids (r,); rows are given as for `append`.

        With ``ids`` (r,), the row with that id gets the new key and value, or is added under it. Without, the row with
        the equal key, as `lookup` compares, gets the new value and keeps its id; a missing text equals no key, so it is
        added.
        Raises as `append` does, and InputError for a key or an id given twice and for a key that several rows have.
        Cost: O(m), and the sorting of the keys where rows are matched by key.

        >>> import attendb as ad
        >>> db = ad.Database(["Li", "Hu"], ["Mu", "Rachel"])
        >>> db.upsert(["Hu", "Smola"], ["Ray", "Alex"]).tolist(), db.lookup("Hu")
        ([1, 2], 'Ray')
        """
        with self._lock:
            schema, k, v = _read_rows(*_two_sides(keys, values, self._source.schema), self._source.schema)
            change = self._source.upsert(schema, k, v, read_ids(ids, count(next(iter(k.values())))))
            self._source = change.source
            return change.ids

    def delete(self, where: Any = None, *, keys: Any = None, ids: Any = None) -> int:
        """Remove rows and return how many: of one of a condition, keys and ids.

        ``where``: a condition in SQL as in `attend`, or booleans (m,) in the order of ids. ``keys``: all rows whose key
        equals one of these; ``ids``: the rows with these ids. Keys and ids that no row has remove nothing. The ids of
        removed rows are not given out again. Raises InputError unless exactly one of the three is given, and for a
        condition that cannot be read. Cost: O(m).

        >>> import attendb as ad
        >>> db = ad.Database(["Li", "Hu"], [30.0, 40.0])
        >>> db.delete("value > 35"), db.delete(keys=["Zhang"]), len(db)
        (1, 0, 1)
        """
        given = [name for name, x in (("where", where), ("keys", keys), ("ids", ids)) if x is not None]
        if len(given) != 1:
            raise InputError(f"delete was given {' and '.join(given) or 'nothing'}: give one of where=, keys= and ids=")
        with self._lock:
            source = self._source
            have = source.positions.numpy()
            if where is not None:
                gone = have[_row_mask(where, source)]
            elif ids is not None:
                wanted = read_vector(ids, "ids").reshape(-1)
                gone = np.intersect1d(have, cast(np.ndarray, read_ids(wanted.unique(), len(wanted.unique()))))
            elif source.schema.keys.undecided:
                gone = have[:0]
            else:
                gone = np.unique(source.find(read_side(keys, "keys", source.schema.keys)[1]).positions)
            self._source = source.delete(gone)
            return len(gone)


def _read_rows(keys: Any, values: Any, schema: Schema | None) -> tuple[Schema, Rows, Rows]:
    """Checked columns of keys and values, of one length."""
    key_side, k = read_side(keys, "keys", None if schema is None else schema.keys)
    value_side, v = read_side(values, "values", None if schema is None else schema.values)
    same_length(k, v)
    return Schema(key_side, value_side), k, v


def _two_sides(keys: Any, values: Any, schema: Schema) -> tuple[Any, Any]:
    """Keys and values; where one table was given, its columns by the side that they belong to."""
    if values is not None:
        return keys, values
    if not is_named(keys):
        raise InputError("values were left out: give them, or one table with the columns of keys and values by name")
    raw = {str(name): keys[name] for name in getattr(keys, "column_names", getattr(keys, "columns", keys))}
    names = (*schema.keys.names, *schema.values.names)
    extra = [name for name in raw if name not in names]
    lacks = [name for name in names if name not in raw]
    if extra or lacks:
        problem = f"lacks the column {lacks[0]!r}" if lacks else f"has an extra column {extra[0]!r}"
        expected, found = (", ".join(map(repr, x)) for x in (names, raw))
        raise InputError(f"the table {problem}: expected the columns {expected}, found {found}")
    sides = (schema.keys, schema.values)
    return tuple({name: raw[name] for name in side.names} for side in sides)  # type: ignore[return-value]


def _row_mask(where: Any, source: Source) -> np.ndarray:
    if isinstance(where, str):
        return source.mask(where)
    if callable(where) and not isinstance(where, Tensor):
        raise KindError("delete takes filter text or booleans as where=, not a function")
    mask = read_pairwise(where, "where", boolean=True)
    if mask.shape != (len(source),):
        raise InputError(f"where has shape {tuple(mask.shape)} but there are {len(source)} rows: one bool a row")
    return mask.cpu().numpy()


def _frame(schema: Schema, ids: np.ndarray, keys: Rows, values: Rows, names: Sequence[str] | None = None) -> DataFrame:
    import pandas

    known = {column.name: column for column in (*schema.keys.columns, *schema.values.columns)}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InputError(f"there is no column {unknown[0]!r}: choose among {', '.join(map(repr, known))}")
    columns: dict[str, Any] = {}
    for name in known if names is None else names:
        columns.update(_flat(known[name], {**keys, **values}[name]))
    return pandas.DataFrame(columns, index=pandas.Index(ids, name=ID))


def _flat(column: Column, data: Data) -> dict[str, Any]:
    if isinstance(data, Opaque):
        return {column.name: data.rows.copy()}
    numbers = data.detach().cpu()
    rows = (numbers.float() if numbers.dtype == torch.bfloat16 else numbers).numpy()
    return {name: rows[:, i].copy() for i, name in enumerate(column.flat_names)}
