"""Finding a stored table: what opens it, what is damaged in it, and what puts it right.

A version is one manifest, a small file that names the data files. A version that only indexes rows is no change of its
own: it goes by the number of the change before it. Where the newest manifest is damaged (a machine that
lost power), the newest whole version is opened, with a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, StorageError
from .layout import Layout

_process: int | None = None  # that uses Lance, whose threads do not survive a fork


HINT = "latest_version_hint.json"
UPKEEP = ("CreateIndex", "BaseOperation")  # the latter is what pylance calls a reservation
INDEX = "the index"
INDEX_FILES = ("page_data.lance", "page_lookup.lance")  # of an index of kind BTREE


class Damaged(StorageError):
    """A version whose manifest cannot be read."""


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
    try:
        os.stat(folder)
    except PermissionError:
        raise StorageError(f"the table {folder} cannot be read: there is no permission for a folder above") from None
    except OSError:
        raise InputError(f"there is no table at {folder}: create it with Database.create, or check the path") from None
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is a file, not the folder of a table: import it with Database.create")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise StorageError(f"the table {folder} cannot be read: there is no permission for it")
    if not os.path.isdir(os.path.join(folder, "_versions")):
        raise InputError(f"the folder {folder} is no table: create one with Database.create in a folder of its own")
    return folder


def local_path(path: Any) -> str:
    """The folder that a path names, absolute. Raises InputError for what is no local path."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a table lies in a folder, whose path is a str or a Path, got {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or any(unicodedata.category(x) in ("Cc", "Cs") for x in text):
        raise InputError(f"{text!r} is no path of a table: give that of a folder, without control characters")
    if "://" in text:
        raise InputError(f"{text} is an address but tables lie in local folders: give the path of a folder")
    whole = str(Path(text).absolute())
    if ".." in whole.split(os.sep):  # the storage would go back by the text, past links
        whole = os.path.realpath(whole)
    return whole


def open_version(folder: str, version: int | str | None = None, session: Any = None) -> tuple[Any, Layout]:
    """A version of the table, by number or tag (None: the newest), and its layout.

    Raises InputError for a version that is not there, StorageError for a damaged one.
    """
    import lance

    if version is not None and not isinstance(version, str):
        version = int(version)
    try:
        dataset = lance.dataset(folder, version=version, session=session)
    except BaseException as error:
        if not is_fault(error):
            raise
        if version is not None:
            raise _no_version(folder, version) from None
        raise _damaged(folder, newest_manifest(folder)) from error
    return dataset, Layout.read(dataset.schema, folder)


def open_change(folder: str, version: int | str) -> tuple[Any, Layout]:
    """The version that a change made, by number or tag, with the indexes as they were kept up after it."""
    dataset, layout = open_version(folder, version)
    number = int(dataset.version)
    while os.path.exists(manifest_of(folder, number + 1)) and is_upkeep(dataset, number + 1):
        number += 1
    return (dataset, layout) if number == dataset.version else open_version(folder, number)


def change_number(dataset: Any, version: int | None = None) -> int:
    """The number of the change that a version holds: its own, or that before upkeep of indexes alone."""
    number = int(dataset.version) if version is None else version
    while os.path.exists(manifest_of(dataset.uri, number - 1)) and is_upkeep(dataset, number):
        number -= 1
    return number


def is_upkeep(dataset: Any, version: int) -> bool:
    """Whether a version has the rows of the one before it: it has other indexes, or reserved numbers of files."""
    try:
        transaction = dataset.read_transaction(version)
    except BaseException as error:
        if not is_fault(error):
            raise
        return False  # a damaged one, or a compaction, which pylance 14 cannot always hand out
    return transaction is not None and type(transaction.operation).__name__ in UPKEEP


def open_newest_whole(folder: str) -> tuple[Any, Layout]:
    """The newest version that can be opened; a warning names the damaged files that were passed over."""
    damaged = lost_manifests(folder)
    with contextlib.suppress(Damaged):
        found = open_version(folder)
        if not damaged:
            return found
    for version, path in manifests(folder):
        try:
            found = open_version(folder, version)
        except Damaged:
            damaged.append(path)
            continue
        warnings.warn(
            f"the table {folder} was opened at version {change_number(found[0])}, since a newer one is damaged or "
            f"missing ({', '.join(damaged)}): restore({change_number(found[0])}) makes it the newest",
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


def newest_manifest_number(folder: str) -> int:
    return next((version for version, _ in manifests(folder)), 0)


def newest_manifest(folder: str) -> str:
    return next((path for _, path in manifests(folder)), "no manifest")


def lost_manifests(folder: str) -> list[str]:
    """The newest manifest, where it was committed and is no longer there.

    After each commit, Lance writes the number of the version down; it is read before the manifests are listed, so that
    a commit of another process cannot come between.
    """
    try:
        with open(os.path.join(folder, "_versions", HINT), encoding="utf-8") as file:
            number = int(json.load(file)["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    path = manifest_of(folder, number)
    return [] if os.path.exists(path) or number < newest_manifest_number(folder) else [path]


def manifest_of(folder: str, version: int) -> str:
    """The path of a version's manifest: they are named so that the newest comes first."""
    return os.path.join(folder, "_versions", f"{2**64 - 1 - version:020d}.manifest")


def newest_number(folder: str, dataset: Any) -> int:
    """The number of the newest version. Raises StorageError where its manifest is damaged or was lost."""
    lost = lost_manifests(folder)
    if lost:
        raise _damaged(folder, lost[0])
    try:
        return int(dataset.latest_version)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise _damaged(folder, newest_manifest(folder)) from error


def _damaged(folder: str, manifest: str) -> Damaged:
    return Damaged(
        f"the newest version of the table {folder} is damaged ({manifest}): restore(version) goes back to a whole one, "
        "and verify() lists what is damaged"
    )


def is_fault(error: BaseException) -> bool:
    """Whether the storage failed: Lance also raises its own PanicException, which is no Exception."""
    return not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError))


def set_damaged_aside(folder: str) -> list[str]:
    """Move manifests above the newest whole version out of the way, so that changes can be made again."""
    moved: list[str] = []
    for version, path in list(manifests(folder)):
        try:
            open_version(folder, version)
            break
        except Damaged:
            aside = os.path.join(folder, "_damaged")
            os.makedirs(aside, exist_ok=True)
            os.replace(path, os.path.join(aside, os.path.basename(path)))
            moved.append(path)
    if moved or lost_manifests(folder):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "_versions", HINT))
    return moved


def damages(folder: str, version: int | None = None) -> list[Damage]:
    """What is damaged: manifests that cannot be read, files of a version that lack or are cut short.

    ``version``: None is the newest that can be read. Cost: one look at each file; lists of deleted rows are read.
    """
    check_process()
    found: list[Damage] = []
    whole: int | None = None
    own: list[Damage] | None = None
    asked = version
    lost = lost_manifests(folder)
    unreadable: list[str] = []
    for number, path in manifests(folder):
        try:
            dataset, _ = open_version(folder, number)
        except Damaged:
            unreadable.append(path)
            continue
        wrong = list(_damages_of(folder, dataset))
        if own is None and asked in (None, number):
            asked, own = change_number(dataset), wrong
        if not wrong and whole is None:
            whole = change_number(dataset)
        if whole is not None and own is not None:
            break
    repair = f"restore({whole}) goes back to the newest whole version" if whole is not None else "take it from a backup"
    found += [Damage(path, "the manifest of a version is missing", repair) for path in lost]
    found += [Damage(path, "the manifest of a version is empty or cut short", repair) for path in unreadable]
    only_indexes = own and all(one.problem.startswith(INDEX) for one in own)
    again = f"restore({asked}) makes the index again" if only_indexes else repair
    found += [Damage(one.file, one.problem, again) for one in own or []]
    return found


def _damages_of(folder: str, dataset: Any) -> Iterator[Damage]:
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            yield from _looked_at(os.path.join(folder, "data", file.path), file.file_size_bytes, "the data file")
        gone = fragment.metadata.deletion_file
        if gone is None:
            continue
        path = os.path.join(folder, gone.path(fragment.fragment_id))
        found = list(_looked_at(path, None, "the list of deleted rows"))
        if not found:
            try:
                fragment.scanner(columns=[], with_row_address=True).to_table()
            except BaseException as error:
                if not is_fault(error):
                    raise
                found = [Damage(path, "the list of deleted rows cannot be read", "")]
        yield from found
    for wrong in _wrong_indexes(folder, dataset).values():
        yield from wrong


def damaged_indexes(folder: str, dataset: Any) -> list[str]:
    """The names of the indexes whose files lack or are cut short."""
    return list(_wrong_indexes(folder, dataset))


def _wrong_indexes(folder: str, dataset: Any) -> dict[str, list[Damage]]:
    found: dict[str, list[Damage]] = {}
    for index in dataset.describe_indices():
        for segment in index.segments:
            place = os.path.join(folder, "_indices", str(segment.uuid))
            paths = [os.path.join(place, name) for name in INDEX_FILES]
            wrong = [one for path in paths for one in _looked_at(path, None, INDEX)]
            if not any(map(os.path.exists, paths)):
                wrong = [Damage(place, f"{INDEX} cannot be found", "")]
            if not wrong and segment.size_bytes is not None:
                sizes = {path: os.stat(path).st_size for path in paths}
                if sum(sizes.values()) != segment.size_bytes:
                    problem = f"{INDEX} has {sum(sizes.values())} of {segment.size_bytes} bytes in its files"
                    wrong = [Damage(path, problem, "") for path in paths if not _ends_whole(path)] or [
                        Damage(place, problem, "")
                    ]
            if wrong:
                found.setdefault(index.name, []).extend(wrong)
    return found


def _ends_whole(path: str) -> bool:
    """Whether a file of Lance has its last bytes."""
    with open(path, "rb") as file:
        file.seek(max(0, os.stat(path).st_size - 4))
        return file.read() == b"LANC"


def _looked_at(path: str, size: int | None, what: str) -> Iterator[Damage]:
    try:
        found = os.stat(path).st_size
    except OSError as error:
        yield Damage(path, f"{what} cannot be found ({error.strerror})", "")
        return
    if size is not None and found != size or not found:
        expected = f" of {size}" if size is not None else ""
        yield Damage(path, f"{what} has {found}{expected} bytes", "")


def _no_version(folder: str, version: int | str) -> InputError | StorageError:
    import lance

    if isinstance(version, int):
        paths = dict(manifests(folder))
        if version in paths:
            return Damaged(
                f"version {version} of the table {folder} is damaged ({paths[version]}): open another, and verify() "
                "lists what is damaged"
            )
        have = sorted(paths)
        span = f"it has {have[0]} to {have[-1]}" if have else "it has none"
        return InputError(f"the table {folder} has no version {version}: {span}, see versions()")
    try:
        tags = sorted(lance.dataset(folder).tags.list())
    except BaseException as worse:
        if not is_fault(worse):
            raise
        return Damaged(f"the table {folder} is damaged ({newest_manifest(folder)}): verify() lists what is")
    have = f"its tags are {', '.join(map(repr, tags))}" if tags else "it has no tags"
    return InputError(f"the table {folder} has no tag {version!r}: {have}; give one, or the number of a version")
