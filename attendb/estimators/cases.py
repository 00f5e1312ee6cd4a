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

FEWEST_JUDGES = 100  # with fewer rows to judge by, chance would choose


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
        return Cases(self.rows.to(device), self.targets.to(device), self.weights.to(device), groups, self.classes)

    def distinct(self) -> tuple[Cases, Tensor]:
        """Each distinct row once, in the order of its columns, with the sum of the weights; and which row (n,) each is.

        Rows of weight 0 are none of them: −1. Cost: one sort a column.
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
        which = torch.full((len(self),), -1)
        sorted_index = index[torch.from_numpy(order)]
        which[sorted_index] = torch.from_numpy(np.cumsum(new) - 1)
        weights = torch.zeros(int(new.sum()), dtype=torch.float64)
        weights.index_add_(0, which[sorted_index], self.weights[sorted_index])
        one = self.take(sorted_index[torch.from_numpy(new)])
        return Cases(one.rows, one.targets, weights, one.groups, self.classes), which

    def judges(self, fraction: float, seed: int, *, needed: bool = False) -> Tensor | None:
        """Which rows (m,) judge and do not learn, whole groups of them; None: too few for it.

        ``needed``: of a small table too, where up to a quarter of the rows judge; where every group is larger, the
        smallest group judges, if that leaves half of the rows.
        """
        m = len(self)
        wanted = round(fraction * m)
        if needed and fraction > 0:
            wanted = max(wanted, min(FEWEST_JUDGES, m // 4))
        if wanted < (3 if needed else FEWEST_JUDGES):
            return None
        random = torch.Generator().manual_seed(seed)
        names, which = torch.arange(m), torch.arange(m)
        if self.groups is not None:
            names, which = self.groups.unique(return_inverse=True)
        order = torch.randperm(len(names), generator=random)
        sizes = torch.bincount(which)
        order = order[sizes[order] <= wanted]  # a larger group would end the list before it began
        chosen = order[sizes[order].cumsum(0) <= wanted]
        if needed and not len(chosen) and 2 * int(sizes.min()) <= m:
            chosen = sizes.argmin()[None]
        return torch.isin(which, chosen) if len(chosen) else None
