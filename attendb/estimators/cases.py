"""The rows that a similarity learns from: distinct ones in one order, with how many there are of each.

Equal rows with equal targets are one row of a greater weight. What is learned then depends neither on the order of the
rows nor on whether a row stands there twice or has the weight 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .encoding import Rows


@dataclass(frozen=True, eq=False)
class Cases:
    """m rows: ``targets`` (m, v) float64, standardised or one-hot; ``weights`` (m,) > 0: each row stands so often.

    ``groups`` (m,) int64: rows of one group do not vote for each other; None: a row does not vote for itself.
    ``classes``: the targets are one-hot.
    """

    rows: Rows
    targets: Tensor
    weights: Tensor
    groups: Tensor | None
    classes: bool

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> Cases:
        """The rows at these positions."""
        groups = None if self.groups is None else self.groups[index]
        return Cases(self.rows.take(index), self.targets[index], self.weights[index], groups, self.classes)

    def to(self, device: torch.device | str) -> Cases:
        """The same rows on a device."""
        groups = None if self.groups is None else self.groups.to(device)
        return Cases(
            self.rows.to(device), self.targets.to(device), self.weights.to(device), groups, self.classes
        )

    def distinct(self) -> Cases:
        """Each distinct row once, in the order of its columns, with the sum of the weights; without those of weight 0.

        Cost: one sort a column.
        """
        index = torch.arange(len(self))[self.weights > 0]
        columns = [*self.rows.numbers[index].T.numpy(), *self.rows.codes[index].T.numpy()]
        columns += [*self.targets[index].T.numpy()]
        if self.groups is not None:
            columns.append(self.groups[index].numpy())
        order = np.lexsort(columns[::-1]) if columns else np.arange(len(index))
        new = np.zeros(len(order), dtype=bool)
        new[:1] = True
        for column in columns:
            x = column[order]
            new[1:] |= (x[1:] != x[:-1]) & ~((x[1:] != x[1:]) & (x[:-1] != x[:-1]))  # NaN equals NaN here
        firsts = index[torch.from_numpy(order[new])]
        weights = torch.zeros(int(new.sum()), dtype=torch.float64)
        weights.index_add_(0, torch.from_numpy(np.cumsum(new) - 1), self.weights[index[torch.from_numpy(order)]])
        one = self.take(firsts)
        return Cases(one.rows, one.targets, weights, one.groups, self.classes)
