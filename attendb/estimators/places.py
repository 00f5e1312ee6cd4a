"""Equal rows as one place, for votes of the nearest rows only.

Where a few nearest rows vote, rows of equal columns must not crowd each other out by their order in the table: of
1000 equal rows the first 48 would answer for all. So rows of equal φ share a place, which votes with the mean of their
values and the sum W_p of their weights. A place takes as many of the r votes as it has distinct cases (rows that differ
in φ, outcome or group): the nearest places vote until r votes are taken, the last one with the share that is left.

A row of weight 2 then is the row twice, one of weight 0 is in no place, and a table without equal rows is answered by
its r nearest rows. A row that leaves itself out takes min(w, 1) of its weight from its place; one of a group takes the
whole group from every place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..scores.base import Score
from .pooling import GATHERED, Memory, Pooled, nearest_rows, pool_gathered


def alike(*parts: Tensor) -> tuple[Tensor, Tensor]:
    """The first row (u,) of each kind of equal rows, in order, and which kind (m,) each row is.

    ``parts``: (m, c) numbers or codes; NaN equals NaN. Cost: one sort.
    """
    bits = torch.cat([_bits(part) for part in parts], 1)
    m = len(bits)
    random = torch.Generator().manual_seed(0)
    odd = 2 * torch.randint(2**62, (bits.shape[1],), generator=random) + 1
    order = ((bits ^ (bits >> 29)) * odd.to(bits.device)).sum(1).argsort(stable=True)
    new = torch.ones(m, dtype=torch.bool, device=bits.device)
    new[1:] = (bits[order[1:]] != bits[order[:-1]]).any(1)
    firsts, rank = order[new].sort()
    which = torch.empty_like(order)
    which[order] = rank.argsort()[new.cumsum(0) - 1]
    return firsts, which


def _bits(part: Tensor) -> Tensor:
    if not part.is_floating_point():
        return part.long()
    return torch.where(part.isnan(), torch.nan, part.double() + 0.0).view(torch.int64)  # −0 + 0 = 0


@dataclass(frozen=True, eq=False)
class Places:
    """``keys`` (u, d); ``weights`` (u,) W_p > 0; ``votes`` (u,): distinct cases; ``of`` (m,): the place of each row.

    ``of`` is −1 for rows of weight 0. ``rows`` (m',): the rows of weight > 0 by place, the heaviest first, and
    ``starts`` (u + 1,): where those of each place begin. ``cases``: the first row of each distinct case, and
    ``shared`` (m,): the weight of all rows that are the same case.
    """

    keys: Tensor
    weights: Tensor
    votes: Tensor
    of: Tensor
    rows: Tensor
    starts: Tensor
    cases: Tensor
    shared: Tensor
    memory: Memory

    @staticmethod
    def of_rows(memory: Memory, targets: Tensor) -> Places:
        """The places of remembered rows with the outcomes ``targets`` (m, v)."""
        there = (memory.weights > 0).nonzero()[:, 0]
        keys, w = memory.keys[there], memory.weights[there]
        firsts, which = alike(keys)
        groups = [] if memory.groups is None else [memory.groups[there][:, None]]
        cases, case = alike(which[:, None], targets[there], *groups)
        u = len(firsts)
        of = torch.full((len(memory.keys),), -1, device=there.device)
        of[there] = which
        heaviest = w.argsort(descending=True, stable=True)
        order = heaviest[which[heaviest].argsort(stable=True)]
        starts = torch.zeros(u + 1, dtype=torch.int64, device=there.device)
        starts[1:] = which.bincount(minlength=u).cumsum(0)
        weights = w.new_zeros(u).index_add_(0, which, w)
        votes = which[cases].bincount(minlength=u)
        summed = w.new_zeros(len(cases)).index_add_(0, case, w)[case]
        shared = torch.zeros(len(of), dtype=w.dtype, device=w.device)
        shared[there] = summed
        return Places(keys[firsts], weights, votes, of, there[order], starts, there[cases], shared, memory)

    @cached_property
    def plain(self) -> bool:
        """Whether each place is one row of weight 1."""
        return bool((self.votes == 1).all() and (self.weights == 1).all())

    def means(self, values: Tensor) -> Tensor:
        """The weighted mean (u, c) at each place of the values (m, c) of the rows."""
        at, w = self.of[self.rows], self.memory.weights[self.rows, None]
        summed = values.new_zeros(len(self.keys), values.shape[1])
        return summed.index_add_(0, at, w * values[self.rows]) / self.weights[:, None]

    def share(self, positions: Tensor) -> Tensor:
        """Which share of the weight of its place each row has, by position (−1: 0)."""
        at = positions.clamp(min=0)
        place = self.of[at]
        found = self.memory.weights[at] / self.weights[place.clamp(min=0)]
        return found.masked_fill((positions < 0) | (place < 0), 0.0)


@torch.no_grad()
def pool_places(
    score: Score,
    queries: Tensor,
    places: Places,
    values: Tensor,
    moved: Callable[[Tensor, Tensor], Tensor],
    *,
    neighbours: int,
    own: Tensor | None = None,
    top: bool = False,
) -> Pooled:
    """Pool ``values`` (m, c) of the rows, and behind them ``moved``, over the places with ``neighbours`` votes.

    ``queries`` (n, d), ``moved`` as in `pool_neighbours`. ``own`` (n,): the row that each query is, which it leaves
    out with its group. ``top``: list all places that voted, the heaviest first. Cost: as `pool_neighbours`.
    """
    r = min(neighbours, len(places.keys))
    means = places.means(values.to(queries.dtype))
    leaving = None if own is None else _Leaving(places, values.to(queries.dtype), own.to(queries.device))
    nearest = nearest_rows(queries, places.keys, r, {} if leaving is None else leaving.without)
    found = []
    for some in torch.arange(len(queries), device=queries.device).split(GATHERED):
        at = nearest[some]
        near, weights = embedding(at.clamp(min=0), means), None
        if not places.plain:
            weights, votes = places.weights[at.clamp(min=0)], places.votes[at.clamp(min=0)]
            if leaving is not None:
                near, weights, votes = leaving.left(some, at, near, weights, votes)
            before = votes.cumsum(1) - votes
            weights = weights * ((neighbours - before) / votes).clamp(0.0, 1.0)
        found.append(pool_gathered(score, queries[some], places.keys, at, near, weights, moved, r if top else 0))
    return Pooled.joined(found)


class _Leaving:
    """What rows that leave themselves out take from each place: one of themselves, or all rows of their group."""

    def __init__(self, places: Places, values: Tensor, own: Tensor):
        self.places, memory = places, places.memory
        rows, at = places.rows, places.of[places.rows]
        if memory.groups is None:
            self.who, taken = own, memory.weights[rows].clamp(max=1.0)
            whose, self.most = rows, len(places.of)
            votes = places.shared[rows] <= taken  # no row of the case is left
        else:
            self.who, taken = memory.groups[own], memory.weights[rows]
            whose, self.most = memory.groups[rows], int(memory.groups.max()) + 1
            votes = torch.isin(rows, places.cases)
        self.codes, which = (at * self.most + whose).unique(return_inverse=True)
        self.taken = taken.new_zeros(len(self.codes)).index_add_(0, which, taken)
        self.votes = places.votes.new_zeros(len(self.codes)).index_add_(0, which, votes.long())
        summed = values.new_zeros(len(self.codes), values.shape[1])
        self.means = summed.index_add_(0, which, taken[:, None] * values[rows]) / self.taken[:, None]
        place = self.codes // self.most
        alone = place.bincount(minlength=len(places.keys))[place] == 1
        if memory.groups is None:
            alone &= places.weights[place] <= 1
        only = torch.full_like(places.votes, -1)
        only[place[alone]] = (self.codes % self.most)[alone]
        who = self.who
        self.without = {"where": lambda q, k: who[q] != only[k]}

    def left(
        self, some: Tensor, at: Tensor, means: Tensor, weights: Tensor, votes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Means (n, r, c), weights and votes (n, r) of the places ``at``, without what the queries ``some`` take."""
        wanted = at.clamp(min=0) * self.most + self.who[some][:, None]
        place = torch.searchsorted(self.codes, wanted).clamp(max=len(self.codes) - 1)
        takes = (self.codes[place] == wanted) & (at >= 0)
        taken = self.taken[place] * takes
        rest = (weights - taken).clamp(min=torch.finfo(weights.dtype).tiny)
        means = means + (means - self.means[place]) * (taken / rest)[..., None].to(means.dtype)
        return means, rest, (votes - self.votes[place] * takes).clamp(min=1)


def rows_of_places(places: Places, at: Tensor, weights: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Positions and weights (n, top) of the heaviest rows at the places ``at`` (n, r), −1: none, of these weights.

    The rows of a place share its weight by their own. Of equally heavy rows the first come first.
    """
    found = [_rows_of(places, *piece, top) for piece in zip(at.split(GATHERED), weights.split(GATHERED), strict=True)]
    positions, shares = zip(*found, strict=True)
    return torch.cat(positions), torch.cat(shares)


def _rows_of(places: Places, at: Tensor, weights: Tensor, top: int) -> tuple[Tensor, Tensor]:
    n, r = at.shape
    place = at.clamp(min=0)
    sizes = (places.starts[place + 1] - places.starts[place]).clamp(max=top) * (at >= 0)  # beyond none is listed
    flat = sizes.reshape(-1)
    slot = torch.arange(n * r, device=at.device).repeat_interleave(flat)
    within = torch.arange(len(slot), device=at.device) - (flat.cumsum(0) - flat)[slot]
    rows = places.rows[places.starts[place.reshape(-1)[slot]] + within]
    shares = weights.reshape(-1)[slot].double() * places.share(rows)
    query = slot // r
    order = rows.argsort(stable=True)
    order = order[shares[order].argsort(descending=True, stable=True)]
    order = order[query[order].argsort(stable=True)]
    query, rows, shares = query[order], rows[order], shares[order]
    counts = query.bincount(minlength=n)
    rank = torch.arange(len(query), device=at.device) - (counts.cumsum(0) - counts)[query]
    kept = (rank < top) & (shares > 0)
    positions = torch.full((n, top), -1, device=at.device)
    out = torch.zeros(n, top, dtype=torch.float64, device=at.device)
    positions[query[kept], rank[kept]] = rows[kept]
    out[query[kept], rank[kept]] = shares[kept]
    return positions, out
