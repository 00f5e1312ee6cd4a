"""A learned similarity with the training rows as it sees them, and what it predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from .cases import Cases
from .encoding import Rows
from .local_linear import MOST_SLOPES, read_out, thin_windows, value_map
from .places import Places, alike, pool_places, rows_of_places
from .pooling import Memory, Pooled, pool
from .similarity import Similarity
from .training import mean_loss

PIECE = 1 << 16  # rows that are predicted at once: what is pooled may be wide
GATHERED = 1 << 22  # numbers of keys that are gathered at once
SETTLING = 1024  # rows that are predicted to find the common scale, fewer where the table is long
SETTLING_PAIRS = 1 << 26
STEP = 0.25  # of the logarithm of the common scale
RIDGES = (0.001, 0.01, 0.1, 1.0)


class Predicted(NamedTuple):
    """``value`` (n, v); ``variance`` (n, v) of the targets in the window, where asked for; ``empty`` (n,)."""

    value: Tensor
    variance: Tensor | None
    empty: Tensor


class _Listed(NamedTuple):
    """The heaviest rows (n, top) and their weights; ``weigh``: the weights (n, c) of any rows, by position."""

    positions: Tensor
    weights: Tensor
    weigh: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Member:
    """``memory``: the training rows embedded, times ``sharpness``; ``targets`` (m, v); ``prior`` (m, v): their g.

    ``ridge``: of local lines; None: local constants.
    """

    similarity: Similarity
    memory: Memory
    targets: Tensor
    prior: Tensor | None
    sharpness: float = 1.0
    ridge: float | None = None

    @staticmethod
    @torch.no_grad()
    def of(similarity: Similarity, cases: Cases, *, sharpness: float = 1.0, ridge: float | None = None) -> Member:
        """The member that remembers these rows."""
        if similarity.neighbours:  # rows embedded at different places of a batch may differ in the last digit
            firsts, which = alike(cases.rows.numbers, cases.rows.codes)
            some = cases.rows.take(firsts)
            keys, prior = similarity.embed(some)[which], similarity.prior(some)
            prior = None if prior is None else prior[which]
        else:
            keys, prior = similarity.embed(cases.rows), similarity.prior(cases.rows)
        memory = Memory(keys * sharpness, cases.weights, cases.groups)
        return Member(similarity, memory, cases.targets, prior, sharpness, ridge)

    @property
    def values(self) -> Tensor:
        """What the rows vote for: their targets, less what the prior explains of them."""
        return self.targets if self.prior is None else self.targets - self.prior

    def remembering(self, cases: Cases) -> Member:
        """The member with these rows in place of its own."""
        return Member.of(self.similarity, cases, sharpness=self.sharpness, ridge=self.ridge)

    def with_more(self, cases: Cases) -> Member:
        """The member that remembers these rows too."""
        more = Member.of(self.similarity, cases, sharpness=self.sharpness)
        a, b = self.memory, more.memory
        groups = None if a.groups is None or b.groups is None else torch.cat([a.groups, b.groups])
        memory = Memory(torch.cat([a.keys, b.keys]), torch.cat([a.weights, b.weights]), groups)
        prior = None if self.prior is None or more.prior is None else torch.cat([self.prior, more.prior])
        return replace(self, memory=memory, prior=prior, targets=torch.cat([self.targets, more.targets]))

    def scaled(self, sharpness: float, ridge: float | None) -> Member:
        """The member with another common scale."""
        memory = replace(self.memory, keys=self.memory.keys * (sharpness / self.sharpness))
        return replace(self, memory=memory, sharpness=sharpness, ridge=ridge)

    @torch.no_grad()
    def embed(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """φ and g of new rows."""
        return self.similarity.embed(rows) * self.sharpness, self.similarity.prior(rows)

    def predict(self, rows: Rows, *, spread: bool = False) -> Predicted:
        """The targets of new rows."""
        pieces = torch.arange(len(rows)).split(PIECE) if len(rows) else [torch.arange(0)]
        found = [
            self._predict(*self.embed(rows.take(piece)), None, (self.ridge,), spread=spread)[0] for piece in pieces
        ]
        variances = [one.variance for one in found if one.variance is not None]
        value, empty = (torch.cat([getattr(one, part) for one in found]) for part in ("value", "empty"))
        return Predicted(value.double(), torch.cat(variances).double() if variances else None, empty)

    @cached_property
    def places(self) -> Places:
        """Where the remembered rows lie; equal rows share a place."""
        return Places.of_rows(self.memory, self.targets)

    def best(self, rows: Rows, top: int) -> tuple[Tensor, Tensor]:
        """Positions and weights (n, top) of the heaviest remembered rows; −1 and 0 where there are fewer."""
        found = self._best(self.embed(rows)[0], top)
        return found.positions.cpu(), found.weights.double().cpu()

    @torch.no_grad()
    def _best(self, queries: Tensor, top: int) -> _Listed:
        """The same of embedded rows, in the dtype of the keys."""
        found = self._pool(queries, torch.zeros_like(self.targets[:, :1]), None, top)
        assert found.top is not None
        at, weights = found.top.positions, found.top.weights
        if not self.similarity.neighbours:
            return _Listed(at, weights, partial(self._weights_at, queries, found))
        return _Listed(*rows_of_places(self.places, at, weights, top), partial(self._weights_by_place, found))

    def _pool(self, queries: Tensor, values: Tensor, own: Tensor | None, top: int = 0) -> Pooled:
        """Values (m, w) pooled, and behind them the corrections (n, v), where votes are corrected.

        ``top``: of rows; of places, where neighbours vote.
        """
        one = self.similarity
        if not one.neighbours:
            return pool(one.score, queries, self.memory, values, own=own, top=top)
        votes, listed = one.neighbours, top > 0
        return pool_places(one.score, queries, self.places, values, self.moved, neighbours=votes, own=own, top=listed)

    def moved(self, queries: Tensor, keys: Tensor) -> Tensor:
        """What is added to the votes of rows (n, r, d) for queries (n, 1, d), both as the member embeds them."""
        return self.similarity.moved(queries / self.sharpness, keys / self.sharpness)

    @torch.no_grad()
    def _weights_at(self, queries: Tensor, found: Pooled, positions: Tensor) -> Tensor:
        """α (n, c) of remembered rows by position (n, c), 0 for −1; as ``found`` lists it where it does."""
        assert found.top is not None
        keys, at = self.memory.keys, positions.clamp(min=0)
        parts = [
            self.similarity.score(queries[some][:, None].double(), keys[at[some]].double())[:, 0]
            for some in torch.arange(len(queries)).split(max(1, GATHERED // max(1, at.shape[1] * keys.shape[1])))
        ]
        scores = torch.cat(parts) if parts else queries.new_zeros(at.shape)
        weights = (scores - found.log_normalizer[:, None]).exp() * self.memory.weights[at]
        known, there = _looked_up(found.top.positions, found.top.weights, positions)
        return torch.where(there, known, weights).masked_fill(positions < 0, 0.0)

    @torch.no_grad()
    def _weights_by_place(self, found: Pooled, positions: Tensor) -> Tensor:
        """The same where the places in ``found`` have all weight."""
        assert found.top is not None
        of = torch.where(positions < 0, -1, self.places.of[positions.clamp(min=0)])
        weights, there = _looked_up(found.top.positions, found.top.weights, of)
        return (weights * self.places.share(positions)).masked_fill(~there, 0.0)

    def leave_out(self, own: Tensor, *, spread: bool = False) -> Predicted:
        """The targets of remembered rows, by position, each of which leaves itself out."""
        return self._leave_out(own, (self.ridge,), spread=spread)[0]

    def _leave_out(self, own: Tensor, ridges: tuple[float | None, ...], *, spread: bool = False) -> list[Predicted]:
        own = own.to(self.memory.keys.device)
        prior = None if self.prior is None else self.prior[own]
        return self._predict(self.memory.keys[own], prior, own, ridges, spread=spread)

    @torch.no_grad()
    def _predict(
        self,
        queries: Tensor,
        prior: Tensor | None,
        own: Tensor | None,
        ridges: tuple[float | None, ...],
        *,
        spread: bool,
    ) -> list[Predicted]:
        """One answer for each ridge, from one pass over the pairs."""
        values, v = self.values, self.targets.shape[1]
        r = min(self.similarity.slopes, MOST_SLOPES) if any(ridge is not None for ridge in ridges) else 0
        parts = [values]
        if r:
            parts = [value_map(self.memory.keys[:, :r], values)]
        if spread:
            parts.append(values.square())
        score = self.similarity.score
        pooled = self._pool(queries, torch.cat(parts, 1), own)
        found, variance = pooled.value, None
        if self.similarity.neighbours:
            found, moved = found[:, :-v], found[:, -v:]
            prior = moved if prior is None else prior + moved
        if spread:
            at = r + r * (r + 1) // 2
            mean = found[:, at : at + v]
            variance = (found[:, -v:] - mean.square()).clamp(min=0.0)
            found = found[:, :-v]
        alone = thin_windows(score, queries, self.memory, pooled, own) if r else None
        out = []
        for ridge in ridges:
            value = found if ridge is None or alone is None else read_out(found, queries[:, :r], v, ridge, alone)
            value = value if prior is None else value + prior
            out.append(Predicted(value.cpu(), None if variance is None else variance.cpu(), pooled.empty.cpu()))
        return out


def heaviest(members: Sequence[Member], rows: Rows, top: int) -> tuple[Tensor, Tensor]:
    """Positions (n, top) of the remembered rows of the highest weights, averaged over the members, and these weights.

    Each member lists its heaviest rows. A row that none lists weighs at most the mean of the least weights listed;
    where that could beat a row that was chosen, longer lists are asked for.

    Source: Fagin, Lotem and Naor 2003 (threshold algorithm).
    """
    m = len(members[0].targets)
    if len(members) == 1:
        return members[0].best(rows, top)
    asked = [member.embed(rows)[0] for member in members]
    length = min(m, max(4 * top, 32))
    while True:
        lists = [member._best(queries, length) for member, queries in zip(members, asked, strict=True)]
        union = torch.cat([one.positions for one in lists], 1).sort(1)[0]
        union[:, 1:][union[:, 1:] == union[:, :-1]] = -1
        mean = torch.stack([one.weigh(union) for one in lists]).mean(0)
        order = torch.where(union < 0, m, union).argsort(dim=1, stable=True)
        union, mean = union.gather(1, order), mean.gather(1, order)
        order = mean.argsort(dim=1, descending=True, stable=True)[:, :top]
        positions, weights = union.gather(1, order), mean.gather(1, order)
        unlisted = torch.stack([one.weights[:, -1] for one in lists]).mean(0)
        if length >= m or bool((weights[:, -1] >= unlisted).all()):
            return positions.masked_fill(weights <= 0, -1).cpu(), weights.cpu()
        length = min(m, 2 * length)


def _looked_up(listed: Tensor, weights: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The weights (n, c), float64, of what is ``wanted`` (n, c) among what is ``listed`` (n, r), and whether it is."""
    listed, order = listed.sort(1)
    place = torch.searchsorted(listed, wanted).clamp(max=listed.shape[1] - 1)
    there = (listed.gather(1, place) == wanted) & (wanted >= 0)
    return weights.double().gather(1, order).gather(1, place), there


def settled(member: Member, cases: Cases, *, loss: str, line: bool, seed: int) -> Member:
    """The member at the common scale that predicts rows best from all others, and with the best ridge of its lines.

    A similarity learns from a sample of the table; all rows bear narrower windows. Cost: about 8 predictions of
    `SETTLING` rows.
    """
    random = torch.Generator().manual_seed(seed)
    some = min(SETTLING, max(SETTLING // 8, SETTLING_PAIRS // len(cases)))
    own = torch.randperm(len(cases), generator=random)[:some]
    asked = cases.take(own).to("cpu")
    ridges: tuple[float | None, ...] = RIDGES if line and member.similarity.slopes else (None,)
    tried: dict[int, tuple[float, float | None]] = {}

    def loss_at(step: int) -> float:
        if step not in tried:
            scaled = member.scaled(member.sharpness * math.exp(STEP * step), None)
            found = [_mean_loss(loss, member.similarity, asked, one) for one in scaled._leave_out(own, ridges)]
            best = min(range(len(found)), key=lambda i: found[i])
            tried[step] = found[best], ridges[best]
        return tried[step][0]

    at = 0
    for direction in (1, -1):
        while abs(at) < 12 and loss_at(at + direction) < loss_at(at):
            at += direction
        if at:
            break
    loss_at(at)
    return member.scaled(member.sharpness * math.exp(STEP * at), tried[at][1])


def _mean_loss(loss: str, similarity: Similarity, asked: Cases, one: Predicted) -> float:
    found = float(mean_loss(similarity, loss, one.value, one.empty, asked))
    return found if math.isfinite(found) else math.inf
