"""Finding a stored table: what opens it, what is damaged in it, and what puts it right.

A version is one manifest, a small file that names the data files. Where the newest manifest is damaged (a machine that
lost power), the newest whole version is opened, with a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, StorageError
from .layout import Layout

_process: int | None = None  # that uses Lance, whose threads do not survive a fork


class Damage(NamedTuple):
    """A file of a table that is not as it should be, and what to do."""

    file: str
    problem: str
    repair: str


def check_process() -> None:
    """Raise InputError in a process that was forked after a table was used: Lance would wait for ever."""
    global _process
    if _process is None:
        _process = os.getpid()
    elif _process != os.getpid():
        raise InputError(
            "this process was forked from one that had opened a table, whose threads it lacks: start it with the "
            "method spawn, as in multiprocessing.get_context('spawn') or DataLoader(multiprocessing_context='spawn')"
        )


def table_folder(path: Any) -> str:
    """The folder of a table that should exist. Raises InputError where there is none."""
    folder = local_path(path)
    if not os.path.exists(folder):
        raise InputError(f"there is no table at {folder}: create it with Database.create, or check the path")
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is a file, not the folder of a table: import it with Database.create")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise StorageError(f"the table {folder} cannot be read: there is no permission for it")
    if not os.path.isdir(os.path.join(folder, "_versions")):
        raise InputError(f"the folder {folder} is no table: create one with Database.create in a folder of its own")
    return folder


def local_path(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a table lies in a folder, whose path is a str or a Path, got {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or "\x00" in text or not text:
        raise InputError(f"{text!r} is no path: give that of a folder")
    if "://" in text:
        raise InputError(f"{text} is an address but tables lie in local folders: give the path of a folder")
    return str(Path(text).absolute())


def open_version(folder: str, version: int | str | None = None, session: Any = None) -> tuple[Any, Layout]:
    """A version of the table, by number or tag (None: the newest), and its layout.

    Raises InputError for a version that is not there, StorageError for a damaged one.
    """
    import lance

    if version is not None and not isinstance(version, str):
        version = int(version)
    try:
        dataset = lance.dataset(folder, version=version, session=session)
    except BaseException as error:  # Lance also raises its own PanicException, which is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        if version is not None:
            raise _no_version(folder, version, error) from None
        raise StorageError(
            f"the newest version of the table {folder} is damaged ({newest_manifest(folder)}): restore(version) goes "
            "back to a whole one, and verify() lists what is damaged"
        ) from error
    return dataset, Layout.read(dataset.schema, folder)


def open_newest_whole(folder: str) -> tuple[Any, Layout]:
    """The newest version that can be opened; a warning names the damaged files that were passed over."""
    try:
        return open_version(folder)
    except StorageError as error:
        if "damaged" not in str(error):
            raise
    damaged: list[str] = []
    for version, path in manifests(folder):
        try:
            found = open_version(folder, version)
        except (InputError, StorageError):
            damaged.append(path)
            continue
        warnings.warn(
            f"the table {folder} was opened at version {version}, since a newer one is damaged "
            f"({', '.join(damaged)}): restore({version}) makes it the newest",
            stacklevel=4,
        )
        return found
    raise StorageError(
        f"the table {folder} has no whole version ({', '.join(damaged) or 'no manifest'}): take it from a backup"
    )


def manifests(folder: str) -> Iterator[tuple[int, str]]:
    """Versions and the paths of their manifests, the newest first."""
    place = os.path.join(folder, "_versions")
    for name in sorted(os.listdir(place)):
        stem, _, end = name.partition(".")
        if end == "manifest" and stem.isdigit():
            yield 2**64 - 1 - int(stem), os.path.join(place, name)


def newest_manifest(folder: str) -> str:
    return next((path for _, path in manifests(folder)), "no manifest")


def set_damaged_aside(folder: str) -> list[str]:
    """Move manifests above the newest whole version out of the way, so that changes can be made again."""
    moved: list[str] = []
    for version, path in list(manifests(folder)):
        try:
            open_version(folder, version)
            break
        except (InputError, StorageError):
            aside = os.path.join(folder, "_damaged")
            os.makedirs(aside, exist_ok=True)
            os.replace(path, os.path.join(aside, os.path.basename(path)))
            moved.append(path)
    return moved


def damages(folder: str) -> list[Damage]:
    """What is damaged: manifests that cannot be read, files of the newest whole version that lack or are cut short.

    Cost: one look at each file, none is read.
    """
    found: list[Damage] = []
    whole: int | None = None
    newest: list[Damage] | None = None
    unreadable: list[str] = []
    for version, path in manifests(folder):
        try:
            dataset, _ = open_version(folder, version)
        except (InputError, StorageError):
            unreadable.append(path)
            continue
        own = list(_damages_of(folder, dataset))
        newest = own if newest is None else newest
        if not own:
            whole = version
            break
    repair = f"restore({whole}) goes back to the newest whole version" if whole is not None else "take it from a backup"
    found += [Damage(path, "the manifest of a version is empty or cut short", repair) for path in unreadable]
    found += [Damage(one.file, one.problem, repair) for one in newest or []]
    return found


def _damages_of(folder: str, dataset: Any) -> Iterator[Damage]:
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            yield from _looked_at(os.path.join(folder, "data", file.path), file.file_size_bytes, "data file")
        gone = fragment.metadata.deletion_file
        if gone is not None:
            yield from _looked_at(os.path.join(folder, gone.path(fragment.fragment_id)), None, "list of deleted rows")


def _looked_at(path: str, size: int | None, what: str) -> Iterator[Damage]:
    try:
        found = os.stat(path).st_size
    except OSError as error:
        yield Damage(path, f"the {what} cannot be found ({error.strerror})", "")
        return
    if size is not None and found != size or not found:
        expected = f" of {size}" if size is not None else ""
        yield Damage(path, f"the {what} has {found}{expected} bytes", "")


def _no_version(folder: str, version: int | str, error: BaseException) -> InputError | StorageError:
    import lance

    if isinstance(version, int):
        paths = dict(manifests(folder))
        if version in paths:
            return StorageError(
                f"version {version} of the table {folder} is damaged ({paths[version]}): open another, and verify() "
                "lists what is damaged"
            )
        have = sorted(paths)
        span = f"it has {have[0]} to {have[-1]}" if have else "it has none"
        return InputError(f"the table {folder} has no version {version}: {span}, see versions()")
    try:
        tags = sorted(lance.dataset(folder).tags.list())
    except BaseException as worse:
        if isinstance(worse, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return StorageError(f"the table {folder} is damaged ({newest_manifest(folder)}): verify() lists what is")
    names = ", ".join(map(repr, tags)) or "none"
    return InputError(f"the table {folder} has no tag {version!r}: its tags are {names} ({type(error).__name__})")
