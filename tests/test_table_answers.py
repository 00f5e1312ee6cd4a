"""Tables on disk against the oracle: all scores and weightings over pieces, deletions, filters and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, KEYS, SCORES, VALUE_WIDTH, ScoreCase, normal, seeded
from torch import Tensor

import attendb as ad
from attendb.testing import compare, oracle

WEIGHTS = np.linspace(0.5, 2.0, KEYS)


@dataclass(frozen=True)
class Stored:
    """A table on disk, and the rows that must be in it, in ascending order of their positions."""

    db: ad.StoredDatabase
    queries: Any
    keys: Any
    values: Tensor
    order: np.ndarray  # the row of the case that stands at each place


def columns(keys: Any, rows: np.ndarray) -> dict[str, Any]:
    """Keys of some rows as columns of a table."""
    if isinstance(keys, dict):
        return {name: columns(part, rows)["k"] for name, part in keys.items()}
    return {"k": keys.numpy()[rows] if isinstance(keys, Tensor) else [keys[i] for i in rows]}


def table(keys: Any, values: Tensor, rows: list[int], *, wrong: bool = False) -> dict[str, Any]:
    at = np.array(rows)
    numbers = values.numpy()[at] + (100.0 if wrong else 0.0)
    return {**columns(keys, at), "v0": numbers[:, 0], "v1": numbers[:, 1], "row": at, "note": [f"n{i}" for i in rows]}


def build(folder: Path, score: ScoreCase, *, compacted: bool) -> Stored:
    """Eleven rows that came by five changes: three pieces of 5, 3 and 4 rows, two rows replaced, two deleted."""
    generator = seeded("stored " + score.name)
    queries, keys = score.data(generator)
    values = normal(generator, KEYS, VALUE_WIDTH)
    names = list(columns(keys, np.arange(1)))
    doomed = {**table(keys, values, [2, 3], wrong=True), "row": [50, 51]}
    db = ad.Database.create(
        folder / "t.adb", table(keys, values, [4, 9, 0, 1], wrong=False), keys=names, values=["v0", "v1"], id="row"
    )
    db.append(doomed)
    db.append(table(keys, values, [10, 3, 7], wrong=True))
    db.append(table(keys, values, [2, 5, 6, 8]))
    db.delete("row >= 50")
    db.upsert(table(keys, values, [7, 3, 10]))
    if compacted:
        db.compact()
    order = np.array(db.rows(db.table.positions)["row"])
    assert sorted(order) == list(range(KEYS)) and db.get([7])["v0"].iloc[0] == values[7, 0]
    return Stored(db, queries, keys, values[order], order)


@pytest.fixture(scope="module", params=[False, True], ids=["ragged", "compacted"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    known: dict[str, Stored] = {}

    def of(score: ScoreCase) -> Stored:
        if score.name not in known:
            folder = tmp_path_factory.mktemp("stored")
            known[score.name] = build(folder, score, compacted=request.param)
        return known[score.name]

    yield of


def in_order(keys: Any, order: np.ndarray) -> Any:
    if isinstance(keys, dict):
        return {name: in_order(part, order) for name, part in keys.items()}
    return keys[order] if isinstance(keys, Tensor) else [keys[i] for i in order]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
def test_every_weighting_over_a_stored_table(stored: Any, score: ScoreCase) -> None:
    found: Stored = stored(score)
    keys = in_order(found.keys, found.order)
    positions = found.db.table.positions
    some = np.isin(found.order, [1, 4, 5, 7, 8, 10])
    for case in (case for case in CASES if case.score is score):
        for where, text in (
            (None, None),
            (some, "row IN (1, 4, 5, 7, 8, 10)"),
            (some, "note LIKE 'n%' AND row IN (1,4,5,7,8,10)"),
        ):
            options = case.options()
            answer = found.db.attend(found.queries, top=4, key_weights=WEIGHTS, where=text, **options)
            expected = oracle(
                found.queries,
                keys,
                found.values,
                top=4,
                key_weights=WEIGHTS,
                where=None if where is None else where[None],
                **case.options(),
            )
            compare(_by_row(answer, positions), expected)


def _by_row(answer: ad.Answer, positions: Tensor) -> ad.Answer:
    """The answer with the best rows named 0, 1, …, as the oracle names them."""
    top = answer.top
    assert top is not None
    found = torch.as_tensor(top.positions)
    rows = torch.where(found < 0, -1, torch.searchsorted(positions, found.clamp(min=0)))
    assert bool((positions[rows.clamp(min=0)] == found)[found >= 0].all())
    as_given = rows if isinstance(top.positions, Tensor) else rows.numpy()
    answer.top = top._replace(positions=as_given)
    return answer


@pytest.mark.parametrize(
    "score", [s for s in SCORES if s.has_gradient and s.data.__name__ != "mixed"], ids=lambda s: s.name
)
def test_gradients_to_queries_over_a_stored_table(stored: Any, score: ScoreCase) -> None:
    found: Stored = stored(score)
    keys = in_order(found.keys, found.order)
    for case in (
        c for c in CASES if c.score is score and c.weighting.name in ("softmax", "normalized", "sparsemax", "top 4")
    ):
        grads = []
        for side in ("table", "memory"):
            queries = found.queries.clone().requires_grad_()
            options: dict[str, Any] = case.options()
            for module in options.values():
                if isinstance(module, torch.nn.Module):
                    module.requires_grad_()
            if side == "table":
                value = found.db.attend(queries, **options).value
            else:
                value = ad.attend(queries, keys, found.values, **options).value
            learned = [p for m in options.values() if isinstance(m, torch.nn.Module) for p in m.parameters()]
            grads.append(torch.autograd.grad(value.square().sum(), [queries, *learned], allow_unused=True))
        for one, other in zip(*grads, strict=True):
            if one is None or other is None:
                assert (one is None or not one.any()) and (other is None or not other.any())
            else:
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
