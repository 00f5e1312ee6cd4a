"""Rows of a stored table that learn: gradients, one commit, conflicts, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import normal, seeded

import attendb as ad


def table(folder: Path, **options: Any) -> ad.StoredDatabase:
    generator = seeded("learning rows")
    rows = {
        "x": normal(generator, 30, 2).numpy(),
        "name": [f"row {i}" for i in range(30)],
        "y": normal(generator, 30, 1)[:, 0].float().numpy(),
        "count": np.arange(30),
        "note": [None if i % 3 else f"note {i}" for i in range(30)],
        "code": [f"c{i}" for i in range(30)],
    }
    return ad.Database.create(folder / "t.adb", rows, keys="x", values=["y", "count"], **options)


def test_gradients_are_those_of_a_table_in_memory(tmp_path: Path) -> None:
    db = table(tmp_path)
    asked = normal(seeded("asked"), 4, 2)
    near = db.attend(asked, score=ad.Gaussian(0.5), values="y", top=3)
    learning = db.learn(near.top.positions)  # type: ignore[union-attr]
    answer = learning.attend(asked, score=ad.Gaussian(0.5), values="y")
    torch.testing.assert_close(answer.value, near.value)
    found = torch.autograd.grad(answer.value.square().sum(), [learning.keys["x"], learning.values["y"]])
    frame = db.to_pandas()
    keys = torch.from_numpy(frame[["x_0", "x_1"]].to_numpy().copy()).requires_grad_()
    values = torch.from_numpy(frame[["y"]].to_numpy().copy()).requires_grad_()
    whole = ad.attend(asked, keys, values, score=ad.Gaussian(0.5))
    expected = torch.autograd.grad(whole.value.square().sum(), [keys, values])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other[learning.positions], check_dtype=False, rtol=1e-5, atol=1e-7)
    assert set(learning.values) == {"y"} and len(learning.parameters()) == 2  # whole numbers do not learn


@pytest.mark.parametrize("options", [{}, {"id": "code"}], ids=["positions", "an id column"])
def test_saving_is_one_commit_that_changes_the_learnt_numbers_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    db = table(tmp_path, **options)
    db.delete("count = 2")
    before, version = db.rows(db.ids if not options else db.table.positions), db.version
    learning = db.learn([5, 20, 7])
    optimizer = torch.optim.SGD(learning.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        learning.attend(torch.zeros(1, 2), values="y").value.sum().backward()
        optimizer.step()
    assert learning.save() == version + 1 and db.version == version and db.refresh() == version + 1
    after = db.rows(before.index)
    changed = [
        position
        for position in before.index
        if not after.loc[position].astype(str).equals(before.loc[position].astype(str))
    ]
    assert changed == [5, 7, 20]
    for name in ("name", "count", "note", "code"):
        assert after[name].astype(str).tolist() == before[name].astype(str).tolist()
    np.testing.assert_array_equal(after["y"].loc[[5, 7, 20]], learning.values["y"].detach()[:, 0].numpy())
    # the next steps go on from there
    again = learning.attend(torch.zeros(1, 2), values="y").value
    torch.testing.assert_close(again.detach(), db.attend(torch.zeros(1, 2), values="y").value)
    with torch.no_grad():
        learning.values["y"].zero_()
    assert learning.save() == version + 2
    assert db.refresh() and db.rows([5, 7, 20])["y"].tolist() == [0.0, 0.0, 0.0]


def test_a_row_that_others_changed_is_a_conflict_and_nothing_is_written(tmp_path: Path) -> None:
    db = table(tmp_path)
    learning = db.learn([1, 2, 3])
    db.update({"y": "y + 1"}, where="count = 2")
    version = db.version
    with torch.no_grad():
        learning.values["y"].zero_()
    with pytest.raises(ad.ConflictError, match=r"rows 2 were changed"):
        learning.save()
    db.delete("count = 3")
    with pytest.raises(ad.ConflictError, match="deleted"):
        learning.save()
    assert db.refresh() == version + 1 and db.rows([1])["y"].iloc[0] != 0
    # rows that nobody touched are written over the changes of others
    other = db.learn([10])
    db.update({"y": "9"}, where="count = 11")
    with torch.no_grad():
        other.values["y"].fill_(4.0)
    other.save()
    db.refresh()
    assert db.rows([10, 11])["y"].tolist() == [4.0, 9.0]


def test_wrong_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    db = table(tmp_path)
    with pytest.raises(ad.NotFoundError, match="99"):
        db.learn([1, 99])
    with pytest.raises(ad.KindError, match="whole numbers"):
        db.learn([0.5])
    with pytest.raises(ad.InputError, match="no position"):
        db.learn([-1])
    learning = db.learn([1])
    for change in (lambda: learning.append([[0.0, 0.0]], [0.0]), lambda: learning.delete(ids=[1])):
        with pytest.raises(ad.InputError, match=r"save\(\)"):
            change()
    with torch.no_grad():
        learning.keys["x"].fill_(torch.nan)
    with pytest.raises(ad.MissingValueError, match="'x'"):
        learning.save()
    version = db.version
    assert db.refresh() == version and not db.to_pandas().loc[1].isna()["x_0"]
