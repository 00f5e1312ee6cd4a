"""Batches of rows that were appended under a name, so that an append which is made again adds nothing.

Before the commit of a batch, a small file under its name says which version it is made on; the commit carries the name,
and the file then says where the rows stand. A process that died between the two is found out by the version after the
one noted: either its commit carries the name, or the batch was never appended.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, StorageError
from .table_opening import manifest_of, open_version
from .table_writing import files_of, row_ids_of, write_whole

if TYPE_CHECKING:
    from .table import Table

FOLDER = "_batches"
NAME = "attendb.batch"  # of the property that a commit carries


def check_batch(batch: Any) -> str:
    if not isinstance(batch, str) or not batch:
        raise InputError(f"batch={batch!r} is no name: give a text that this batch of rows alone has")
    return batch


def begin_batch(table: Table, batch: str) -> None:
    """Note that a batch is about to be committed on this version."""
    _write(table.folder, {"batch": batch, "version": table.dataset.version + 1, "runs": None})


def end_batch(folder: str, batch: str, version: int, positions: np.ndarray) -> None:
    """Note where the rows of a batch stand since this version."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = [[int(run[0]), len(run)] for run in np.split(positions, cuts) if len(run)]
    _write(folder, {"batch": batch, "version": version, "runs": runs})


def appended_rows(table: Table, batch: str) -> np.ndarray | None:
    """The positions that the rows of a batch were given, of a batch that the newest version ``table`` holds.

    Rows that were deleted since are among them. None: it was not appended, or a version before it was restored.
    """
    path = _path(table.folder, batch)
    try:
        with open(path, encoding="utf-8") as file:
            noted = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}): remove it once you know if the rows are there") from None
    version = noted["version"]
    if noted["runs"] is None:
        noted["runs"] = _settled(table, batch, version)
    if noted["runs"] is None or not _is_before(table, version):
        return None
    parts = [np.arange(start, start + count, dtype=np.int64) for start, count in noted["runs"]]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def settle_batches(table: Table) -> None:
    """Settle all batches, before versions are removed that tell whether they were committed."""
    place = os.path.join(table.folder, FOLDER)
    for name in os.listdir(place) if os.path.isdir(place) else []:
        if not name.endswith(".json"):
            continue
        with open(os.path.join(place, name), encoding="utf-8") as file:
            batch = json.load(file)["batch"]
        if appended_rows(table, batch) is None:
            os.remove(os.path.join(place, name))


def _settled(table: Table, batch: str, version: int) -> list[list[int]] | None:
    """Where the rows stand of a batch that may have been committed as this version, which is noted then."""
    if version > table.dataset.version or not os.path.exists(manifest_of(table.folder, version)):
        return None
    dataset, _ = open_version(table.folder, version)
    transaction = dataset.read_transaction(version)
    if transaction is None or (transaction.transaction_properties or {}).get(NAME) != batch:
        return None
    files = files_of(transaction.operation.fragments)
    own = [x.metadata for x in dataset.get_fragments() if files_of([x.metadata]) & files]
    end_batch(table.folder, batch, version, row_ids_of(own))
    with open(_path(table.folder, batch), encoding="utf-8") as file:
        return json.load(file)["runs"]


def _is_before(table: Table, version: int) -> bool:
    """Whether the newest version came from this one, over all that were restored since.

    Versions that were removed are not looked at: before that, batches are settled.
    """
    dataset = table.dataset
    at = dataset.version
    while at > version and os.path.exists(manifest_of(table.folder, at)):
        try:
            transaction = dataset.read_transaction(at)
        except TypeError:  # pylance 14 cannot hand out a compaction that has also rewritten an index
            transaction = None
        restored = None if transaction is None else getattr(transaction.operation, "version", None)
        at = at - 1 if restored is None else int(restored)
    return at >= version


def _path(folder: str, batch: str) -> str:
    code = hashlib.blake2b(batch.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return os.path.join(folder, FOLDER, f"{code}.json")


def _write(folder: str, noted: dict[str, Any]) -> None:
    os.makedirs(os.path.join(folder, FOLDER), exist_ok=True)
    write_whole(_path(folder, noted["batch"]), json.dumps(noted).encode())
