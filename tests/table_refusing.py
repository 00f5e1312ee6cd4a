"""What the tests of refusals share: rows, a table of five, and what must be as it was in its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendb as ad


def rows(**changed: Any) -> dict[str, Any]:
    """Two new rows; a changed column of None is left out."""
    whole = {"k": [[7.0, 7.0], [8.0, 8.0]], "site": ["a", "b"], "y": [1.0, 2.0], "label": ["u", "v"], "number": [7, 8]}
    whole |= {"note": [1, 2], **changed}
    return {name: data for name, data in whole.items() if data is not None}


def five_rows(tmp_path: Path) -> Any:
    data = rows(k=np.arange(10, dtype=np.float32).reshape(5, 2), site=list("abcde"), y=np.arange(5.0))
    data |= {"label": ["u", None, "w", "x", "y"], "number": np.arange(5), "note": np.arange(5, dtype=np.int8)}
    made = ad.Database.create(tmp_path / "t.adb", data, keys=["k", "site"], values=["y", "label"], id="number")
    made.tag("first")
    made.save_score("learned", ad.Gaussian(2.0))
    return made


def everything_in(folder: Any) -> dict[str, bytes | None]:
    """All files and folders by path, apart from the lock."""
    found: dict[str, bytes | None] = {}
    for place, folders, names in os.walk(folder):
        found |= {os.path.join(place, name): None for name in folders}
        found |= {
            os.path.join(place, x): Path(place, x).read_bytes()
            for x in names
            if x != "_lock" and Path(place, x).exists()
        }
    return found


def assert_refused(work: Callable[[], Any], folder: Any, *words: str) -> None:
    """The work raises one sentence that holds these words, and changes nothing in the folder."""
    before = everything_in(folder)
    with pytest.raises(ad.AttendbError) as error:
        work()
    said = str(error.value)
    assert said and "\n" not in said.replace(str(folder), "") and len(said) < 1500
    for word in words:
        assert word in said
    assert everything_in(folder) == before
