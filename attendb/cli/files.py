"""From a path to what lies there: a stored table, or a file of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .printing import closest_first, listed

if TYPE_CHECKING:
    import pyarrow


def is_stored(path: str) -> bool:
    """A folder that is, or is called as, a stored table. A folder of Parquet files is not."""
    place = Path(path)
    if place.is_dir():
        return (place / "_versions").is_dir() or not any(place.glob("*.parquet"))
    return place.suffix in (".adb", ".lance") and not place.exists()


def open_stored(path: str, version: str | None) -> Any:
    """The stored table at this path, at a version: a number or a tag (None: the newest)."""
    from ..database import Database

    if not Path(path).exists():
        raise InputError(no_such_file(path))
    at = int(version) if version is not None and version.isascii() and version.isdigit() else version
    return Database.open(path, version=at)  # type: ignore[attr-defined]


def read_file(path: str, options: Mapping[str, Any]) -> pyarrow.Table:
    """All rows of a file."""
    place = Path(path)
    if not place.exists():
        raise InputError(no_such_file(path))
    import pyarrow.csv
    import pyarrow.parquet

    if place.suffix == ".jsonl":
        import pyarrow.json

        return pyarrow.json.read_json(path)
    return pyarrow.parquet.read_table(path) if place.suffix == ".parquet" else pyarrow.csv.read_csv(path)


def no_such_file(path: str) -> str:
    """The sentence for a path that does not exist, with what lies beside it, the most alike first."""
    place = Path(path)
    folder = place.parent
    if not folder.is_dir():
        return f"there is no file {path}: the folder {folder} does not exist either"
    beside = sorted(part.name for part in folder.iterdir() if not part.name.startswith("."))
    there = "this folder" if str(folder) == "." else str(folder)
    has = f"{there} has {listed(closest_first(place.name, beside)[:5])}" if beside else f"{there} is empty"
    return f"there is no file {path}: {has}"
