"""Encoded rows as features of one scale, for similarities that measure distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .encoding import Rows

FARTHEST = 1e6  # standard deviations: numbers beyond are pulled to there, where the nearest rows are still told apart
RAREST = 0.1  # a share: what fewer rows have does not count for more


class Features(nn.Module):
    """Numbers standardised, one indicator for each pattern of missing cells, one-hot categories: (n, width) float64.

    Two random rows differ by about 2 in the square of each: (x − x')² of standardised numbers, twice the mismatch of
    categories over its mean. Features of one categorical column share one learnable scale: ``scale_of`` (width,) says
    which. A missing number is 0, the mean; an unseen category is as far from all levels. Columns without spread, and
    cells missing always or never, give no feature.
    """

    centre: Tensor
    spread: Tensor
    used: Tensor
    gaps: Tensor
    gap_size: Tensor
    category: Tensor
    category_size: Tensor
    scale_of: Tensor

    def __init__(self, *, used: int, gaps: int, levels: list[int]):
        super().__init__()
        self.levels = levels  # of each categorical column that is used
        wide = torch.float64
        self.register_buffer("centre", torch.zeros(used, dtype=wide))
        self.register_buffer("spread", torch.ones(used, dtype=wide))
        self.register_buffer("used", torch.zeros(used, dtype=torch.int64))
        self.register_buffer("gaps", torch.zeros(gaps, dtype=torch.int64))
        self.register_buffer("gap_size", torch.ones(gaps, dtype=wide))
        self.register_buffer("category", torch.zeros(len(levels), dtype=torch.int64))
        self.register_buffer("category_size", torch.ones(len(levels), dtype=wide))
        own = [torch.full((count,), used + gaps + i) for i, count in enumerate(levels)]
        self.register_buffer("scale_of", torch.cat([torch.arange(used + gaps), *own]))

    @property
    def scales(self) -> int:
        """How many scales there are to learn."""
        return len(self.used) + len(self.gaps) + len(self.levels)

    @property
    def units(self) -> Tensor:
        """One over the distance (scales,) that a scale of 1 gives: one unit of a number, a gap, another category."""
        return torch.cat([self.spread, 1 / self.gap_size, 1 / (2**0.5 * self.category_size)])

    @property
    def width(self) -> int:
        return len(self.scale_of)

    @staticmethod
    def of(rows: Rows, weights: Tensor) -> Features:
        """The features of these rows, ``weights`` (n,) of which count as so many."""
        numbers, w = rows.numbers, (weights / weights.sum())[:, None]
        present = ~numbers.isnan()
        filled = numbers.nan_to_num(nan=0.0)
        peak = filled.abs().amax(0).clamp(min=torch.finfo(torch.float64).tiny) if len(rows) else filled.sum(0) + 1
        small = filled / peak  # squares of large numbers overflow
        share = (w * present).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        centre = (w * small).sum(0) / share
        deviation = ((w * present * (small - centre).square()).sum(0) / share).sqrt()
        used = (deviation > 4 * torch.finfo(torch.float64).eps * centre.abs()).nonzero()[:, 0]
        gaps, gap_share = _patterns(present, w)
        kept: list[tuple[int, int, Tensor]] = []
        for j in range(rows.codes.shape[1]):
            codes = rows.codes[:, j]
            count = int(codes.max()) + 1 if len(codes) else 0
            shares = torch.zeros(max(count, 1), dtype=torch.float64).index_add_(0, codes.clamp(min=0), w[:, 0])
            differs = 1 - shares.square().sum()
            if int((shares > 0).sum()) > 1:
                kept.append((j, count, differs))
        made = Features(used=len(used), gaps=len(gaps), levels=[count for _, count, _ in kept])
        made.used.copy_(used)
        made.centre.copy_((centre * peak)[used])
        made.spread.copy_((deviation * peak)[used])
        made.gaps.copy_(gaps)
        made.gap_size.copy_((gap_share * (1 - gap_share)).clamp(min=RAREST).rsqrt())
        if kept:
            made.category.copy_(torch.tensor([j for j, _, _ in kept]))
            made.category_size.copy_(torch.stack([differs for _, _, differs in kept]).clamp(min=RAREST).rsqrt())
        return made

    def forward(self, rows: Rows) -> Tensor:
        """(n, width) float64."""
        device = self.centre.device
        numbers, codes = rows.numbers.to(device), rows.codes.to(device)
        z = ((numbers[:, self.used] - self.centre) / self.spread).nan_to_num(nan=0.0)
        parts = [z.clamp(-FARTHEST, FARTHEST), numbers[:, self.gaps].isnan() * self.gap_size]
        for j, size, count in zip(self.category.tolist(), self.category_size, self.levels, strict=True):
            one_hot = torch.zeros(len(rows), count + 1, dtype=torch.float64, device=device)
            unseen = (codes[:, j] < 0) | (codes[:, j] >= count)
            one_hot.scatter_(1, torch.where(unseen, count, codes[:, j])[:, None], 1.0)
            parts.append(one_hot[:, :count] * size)
        return torch.cat(parts, 1)

    def names(self, numbers: tuple[str, ...], categories: tuple[str, ...]) -> list[str]:
        """What each scale belongs to, by the names of the encoder's columns."""
        own = [numbers[j] for j in self.used.tolist()]
        own += [f"{numbers[j]} is missing" for j in self.gaps.tolist()]
        return own + [categories[j] for j in self.category.tolist()]

    def config(self) -> dict[str, Any]:
        return {"used": len(self.used), "gaps": len(self.gaps), "levels": self.levels}

    @staticmethod
    def made(config: dict[str, Any]) -> Features:
        return Features(used=config["used"], gaps=config["gaps"], levels=list(config["levels"]))


def _patterns(present: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The first column of each pattern of missing cells that some rows have and others not, and its share of rows."""
    found: dict[bytes, int] = {}
    for j in range(present.shape[1]):
        gaps = ~present[:, j]
        if bool(gaps.any()) and not bool(gaps.all()):
            found.setdefault(gaps.cpu().numpy().tobytes(), j)
    columns = torch.tensor(sorted(found.values()), dtype=torch.int64)
    return columns, (w * ~present).sum(0)[columns]
