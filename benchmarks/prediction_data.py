"""The sets that predictions are measured on: how each is cut, what its number is, and what is to be reached.

A folder has one CSV a set, ``california/california.csv``, with a column that says where a row belongs where the set has
a split of its own: ``split`` (train, val, test) or ``fold`` (0 … 9, of which 0 is the test here).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SPEED_ROWS = 20_000  # stored, and as many asked
Part = tuple[pd.DataFrame, pd.Series]


class Parts(NamedTuple):
    """Rows to learn from, rows that only say when to stop, and rows that only give the number."""

    train: Part
    val: Part
    test: Part

    @property
    def classes(self) -> bool:
        return not pd.api.types.is_numeric_dtype(self.train[1])


class Target(NamedTuple):
    """What a number has to be."""

    how: str
    limit: float

    def met(self, x: float) -> bool:
        return {"≤": operator.le, "<": operator.lt, "≥": operator.ge}[self.how](x, self.limit)

    def __str__(self) -> str:
        return f"{self.how} {self.limit:g}"


at_most, below, at_least = (partial(Target, how) for how in ("≤", "<", "≥"))


@dataclass(frozen=True)
class Set:
    """One set. ``one``: the target of a single model; ``ensemble``: that of several at their best settings.

    ``cut`` says where each row belongs, given the frame and the seed. ``unit``: what an error is divided by.
    ``best``: settings of these that served the val rows better than the defaults, or more models where time allows.
    """

    name: str
    value: str
    cut: Callable[[pd.DataFrame, int], np.ndarray]
    published: str
    one: Target
    ensemble: Target
    unit: float = 1.0
    best: Mapping[str, Any] = field(default_factory=dict)
    intervals: bool = False

    def read(self, folder: Path, seed: int) -> Parts:
        """Its rows, cut by the split that the file has, or by the seed."""
        frame = pd.read_csv(folder / self.name / f"{self.name}.csv")
        place = self.cut(frame, seed)
        keys = frame.drop(columns=[self.value, *(name for name in ("split", "fold") if name in frame)])
        train, val, test = (place == name for name in ("train", "val", "test"))
        return Parts(*((keys[rows], frame[self.value][rows]) for rows in (train, val, test)))

    def number(self, predicted: Any, truth: pd.Series) -> float:
        """RMSE in the unit of the set, or the share of right answers."""
        if not pd.api.types.is_numeric_dtype(truth):
            return float((np.asarray(predicted) == truth.to_numpy()).mean())
        return float(np.sqrt(np.mean((np.asarray(predicted, np.float64) - truth.to_numpy()) ** 2)) / self.unit)


def by_column(frame: pd.DataFrame, seed: int) -> np.ndarray:
    return frame["split"].to_numpy()


def by_fold(frame: pd.DataFrame, seed: int) -> np.ndarray:
    """Fold 0 is the test; an eighth of the rest, by seed, says when to stop."""
    place = np.where(frame["fold"] == 0, "test", "train").astype(object)
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(place == "train"))
    place[rest[: len(rest) // 8]] = "val"
    return place


def by_seed(frame: pd.DataFrame, seed: int) -> np.ndarray:
    """A tenth is the test, and a tenth of the rest says when to stop."""
    place = np.full(len(frame), "train", dtype=object)
    order = np.random.default_rng(seed).permutation(len(frame))
    test, rest = np.split(order, [len(frame) // 10])
    place[test] = "test"
    place[rest[: len(rest) // 10]] = "val"
    return place


SETS = (
    Set("california", "MedHouseVal", by_column, "TabR .400; five of them .391", at_most(0.430), at_most(0.405),
        best={"loss": "huber", "n_models": 8}, intervals=True),
    Set("diamonds", "price", by_column, "TabM .131", at_most(0.137), at_most(0.132), unit=3989.40),
    Set("adult", "income", by_column, "XGBoost .872", at_least(0.865), at_least(0.872)),
    Set("cpu_act", "usr", by_column, "LightGBM 2.30", at_most(2.40), at_most(2.25)),
    Set("protein_raw", "y", by_seed, "HistGB 3.83", at_most(3.40), at_most(3.0),
        best={"loss": "huber"}, intervals=True),
    Set("uci_pol", "y", by_fold, "HistGB 4.57", below(4.57), at_most(4.57 / 2),
        best={"dropout": 0.0, "n_models": 10}),
    Set("uci_kin40k", "y", by_fold, "HistGB .382", below(0.382), at_most(0.382 / 2)),
    Set("power_plant", "y", by_seed, "HistGB 3.08", at_most(3.08), at_most(2.95),
        best={"loss": "huber"}, intervals=True),
)  # fmt: skip


def speed_parts(folder: Path) -> tuple[Part, Part]:
    """Rows that are stored and rows that ask, of the set with rows enough."""
    kin40k = next(one for one in SETS if one.name == "uci_kin40k")
    frame = pd.read_csv(folder / kin40k.name / f"{kin40k.name}.csv")
    order = np.random.default_rng(0).permutation(len(frame))
    keys, values = frame.drop(columns=[kin40k.value, "fold"]), frame[kin40k.value]
    stored, asked = order[:SPEED_ROWS], order[SPEED_ROWS : 2 * SPEED_ROWS]
    return (keys.iloc[stored], values.iloc[stored]), (keys.iloc[asked], values.iloc[asked])


def check_folder(folder: Path, sets: list[Set]) -> None:
    """Say plainly which files are not there, before anything is measured."""
    absent = [path for one in sets if not (path := folder / one.name / f"{one.name}.csv").exists()]
    if absent:
        raise SystemExit(
            f"no measuring data: {', '.join(map(str, absent))} not found; the sets are no part of the project: give "
            "the folder that has them with --data FOLDER (README.md of this folder says where they come from)"
        )
