"""Plan "fourier": softmax of a Gaussian in up to three columns, to a certified tolerance, in O(n + m).

    S_0(q) = Σ_i w_i K(q − k_i)     S_c(q) = Σ_i w_i u_ic K(q − k_i)     answer = S_c / S_0, log-normaliser = log S_0

where u are the values, moved and scaled to [−½, ½] by column. Every sum carries an absolute error E: the tails of the
series (proved), the transforms (a stated safety factor times their accuracy, see `transform.py`), and never less than
twice what direct sums on a sample of the queries show. With it, |log S_0 − exact| and |value − exact| / (max − min) are
at most 1.5 E / (S_0 − E). Queries for which that is above the tolerance are left over, and an exact plan answers them.

Gradients are Gaussian sums as well, from the keys to the queries and back. They are as accurate, and not certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..columns import Labels
from ..scores.distance import Gaussian
from ..weightings.base import Done
from ..weightings.softmax import Softmax
from .cells import Problem
from .higher import second_gradients
from .precision import own_precision
from .solution import Solution, excluded_rows
from .tiles import SECONDS_PER_PAIR, Effort, Tile, tiles
from .transform import FINEST, Array, Points, gaussian_sums, reach_of

MOST_COLUMNS = 3
SAMPLED = 16  # queries summed directly: as many at random, as many of the least S_0
LOOSEST = 1e-4
DIRECT_PAIRS = 1 << 20  # pairs held at once by direct sums


@dataclass(frozen=True, eq=False)
class _Layout:
    """Everything about the problem that carries no gradient."""

    tiles: list[Tile]
    rest: Array
    accuracy: float
    tails: float
    tol: float
    exclude: Array | None  # (n,) rows of keys, −1 = none


class Fourier:
    """Plan "fourier" (see the top of this file)."""

    name = "fourier"

    def __init__(self, problem: Problem):
        self.problem = problem
        self._found: _Layout | None = None

    def refusal(self) -> str | None:
        problem = self.problem
        if problem.tol is None:
            return "an exact answer is wanted: tol= would allow it"
        if type(problem.score) is not Gaussian:
            return _refused_score(problem.score)
        if type(problem.weighting) is not Softmax:
            return f"{type(problem.weighting).__name__} is not Softmax"
        if not problem.batch * problem.n * problem.m:
            return "there are no pairs"
        width = problem.queries.shape[-1]  # type: ignore[union-attr]
        if not 1 <= width <= MOST_COLUMNS:
            return f"{width} columns: a Fourier series over more than {MOST_COLUMNS} is too large"
        if isinstance(problem.values, Labels):
            return "values are labels"
        if problem.device.type != "cpu":
            return f"the transforms run on the CPU, not on {problem.device.type}"
        if problem.batch > 1:
            return "several batch entries"
        if problem.where is not None or problem.bias is not None:
            return "where= or bias= between single queries and keys"
        if problem.top:
            return "top= needs the scores of single pairs"
        numbers = (problem.queries, problem.keys, problem.values)
        if not all(torch.isfinite(x.detach()).all() for x in numbers):  # type: ignore[arg-type]
            return "a query, a key or a value is NaN or infinite"
        return None

    def cost(self) -> float:
        problem, layout = self.problem, self._layout()
        series = sum(tile.seconds for tile in layout.tiles)
        return series + 2e-3 + SECONDS_PER_PAIR * problem.m * (len(layout.rest) + 2 * SAMPLED)

    def solve(self) -> Solution:
        problem, layout = self.problem, self._layout()
        q, k = problem.tempered_rows(2)
        assert isinstance(problem.values, Tensor)
        w = k.new_ones(1).double().expand(len(k))
        if problem.key_weights is not None:
            w = problem.key_weights[0, 0].double()
        value, total, bound = _FourierSoftmax.apply(layout, q, k, problem.values[0].double(), w)  # type: ignore[misc]
        rest = torch.isnan(bound).nonzero()[:, 0]
        empty = torch.zeros(1, problem.n, dtype=torch.bool, device=problem.device)
        return Solution(
            value.to(problem.dtype)[None],
            empty,
            total.to(problem.dtype)[None],
            error_bound=bound[None],
            rest=rest if len(rest) else None,
            note=f"{len(layout.tiles)} Fourier series, {problem.n - len(rest)} of {problem.n} queries certified",
        )

    def _layout(self) -> _Layout:
        if self._found is None:
            problem = self.problem
            assert problem.tol is not None
            accuracy = min(max(problem.tol * 1e-7, FINEST), LOOSEST)
            with torch.no_grad():
                q, k = (x.numpy() for x in problem.tempered_rows(2))
            reach = reach_of(tails := 0.05 * accuracy, q.shape[1])
            effort = Effort(reach, (problem.width + 2) // 2, accuracy)
            chosen, rest = tiles(q, k, effort)
            own = excluded_rows(problem)
            exclude = None if own is None else own[0].numpy()
            self._found = _Layout(chosen, rest, accuracy, tails, problem.tol, exclude)
        return self._found


def _refused_score(score: object) -> str:
    name = type(score).__name__
    if name in ("Laplacian", "Euclidean", "Boxcar", "Triangular", "Epanechnikov"):
        return f"{name} has an edge or a corner: its Fourier series falls too slowly to be cut"
    return f"{name} is not Gaussian"


class _FourierSoftmax(torch.autograd.Function):
    """(values (n, v), log-normaliser (n,), bound (n,), NaN where not certified), all float64."""

    @staticmethod
    def forward(ctx: Any, layout: _Layout, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, high = v.amin(0), v.amax(0)
        middle, spread = (low + high) / 2, high - low
        table = _Strengths(w.numpy(), v.numpy(), middle.numpy(), torch.where(spread > 0, spread, 1.0).numpy())
        sums, bound = _Found(layout, q.numpy(), k.numpy(), table).certified()
        sure = torch.from_numpy(~np.isnan(bound))
        total = torch.where(sure, torch.from_numpy(sums[0]), 1.0)
        value = torch.where(sure[:, None], torch.from_numpy(sums[1:]).T / total[:, None] * spread + middle, 0.0)
        ctx.layout = layout
        ctx.save_for_backward(q, k, v, w, value, total, sure)
        ctx.set_materialize_grads(False)
        bounds = torch.from_numpy(bound)
        ctx.mark_non_differentiable(bounds)
        return value, total.log(), bounds

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dlog: Tensor | None, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        q, k, v, w, value, total, sure = ctx.saved_tensors
        dvalue = torch.zeros_like(value) if dvalue is None else torch.where(sure[:, None], dvalue, 0.0)
        dlog = torch.zeros_like(total) if dlog is None else torch.where(sure, dlog, 0.0)
        if torch.is_grad_enabled():
            exclude = None if ctx.layout.exclude is None else torch.from_numpy(ctx.layout.exclude)
            return (None, *_second_gradients((q, k, v, w), sure.nonzero()[:, 0], total.log(), exclude, dvalue, dlog))
        middle = (v.amin(0) + v.amax(0)) / 2  # the same number off all values changes no score's gradient
        v = v - middle
        shift = dlog - (dvalue * (value - middle)).sum(-1)
        seeds = torch.cat([shift[:, None], dvalue], 1) / total[:, None]  # of α_ji w_i: (n, 1 + v)
        return (None, *_gradients(ctx.layout, q, k, v, w, seeds))


@dataclass(frozen=True, eq=False)
class _Strengths:
    """What each key adds to the sums: w, and w times each column of its values, moved by ``middle`` and ÷ ``scale``."""

    w: Array  # (m,)
    v: Array  # (m, v)
    middle: Array  # (v,)
    scale: Array

    @property
    def channels(self) -> int:
        return 1 + self.v.shape[1]

    def of(self, rows: Array) -> Array:
        """(1 + v, rows)"""
        w = self.w[rows]
        return np.concatenate([w[None], ((self.v[rows] - self.middle) / self.scale * w[:, None]).T])


@dataclass(frozen=True, eq=False)
class _Found:
    """The sums of one problem, and how sure they are."""

    layout: _Layout
    q: Array
    k: Array
    table: _Strengths

    def certified(self) -> tuple[Array, Array]:
        """(sums (1 + v, n), bound (n,): NaN where it would be above the tolerance)."""
        layout, n = self.layout, len(self.q)
        sums, error = np.zeros((self.table.channels, n)), np.full(n, np.inf)
        tails = layout.tails * float(self.table.w.sum())
        for tile in layout.tiles:
            assert tile.frame is not None
            onto, of = Points(self.q, tile.queries), Points(self.k, tile.keys)
            found = gaussian_sums(tile.frame, of, onto, self.table.of, self.table.channels, accuracy=layout.accuracy)
            sums[:, tile.queries] = found.values
            error[tile.queries] = found.error + tails
        error += 1e-15 * np.abs(sums[0])
        self._without_excluded(sums)
        bound = self._bound(sums, error)
        worst = self._worst_of_sample(sums, error, bound)
        if worst > 0.5:
            bound = self._bound(sums, error * 2 * worst)
        return sums, bound

    def _bound(self, sums: Array, error: Array) -> Array:
        sure = sums[0] > 2 * error
        bound = np.full(len(error), np.nan)
        bound[sure] = 1.5 * error[sure] / (sums[0, sure] - error[sure])
        bound[~(bound <= self.layout.tol)] = np.nan
        return bound

    def _without_excluded(self, sums: Array) -> None:
        exclude = self.layout.exclude
        if exclude is None:
            return
        rows = (exclude >= 0).nonzero()[0]
        own = exclude[rows]
        sums[:, rows] -= self.table.of(own) * np.exp(-0.5 * ((self.q[rows] - self.k[own]) ** 2).sum(1))

    def _worst_of_sample(self, sums: Array, error: Array, bound: Array) -> float:
        """The largest |sum − direct sum| / error over a sample of the queries that look certain."""
        sure = (~np.isnan(bound)).nonzero()[0]
        if not len(sure):
            return 0.0
        some = np.random.default_rng(0).choice(sure, min(SAMPLED, len(sure)), replace=False)
        least = sure[np.argpartition(sums[0, sure], min(SAMPLED, len(sure)) - 1)[:SAMPLED]]
        rows = np.union1d(some, least)
        exact = self._direct(rows)
        return float((np.abs(sums[:, rows] - exact) / error[rows]).max())

    def _direct(self, rows: Array) -> Array:
        exact = np.zeros((self.table.channels, len(rows)))
        step = max(1, DIRECT_PAIRS // len(rows))
        q = torch.from_numpy(self.q[rows])
        for start in range(0, len(self.k), step):
            k = torch.from_numpy(self.k[start : start + step])
            kernel = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square_().mul_(-0.5).exp_()
            if self.layout.exclude is not None:
                own = torch.from_numpy(self.layout.exclude[rows] - start)
                mine = ((own >= 0) & (own < len(k))).nonzero()[:, 0]
                kernel[mine, own[mine]] = 0.0
            exact += self.table.of(np.arange(start, start + len(k))) @ kernel.numpy().T
        return exact


def _gradients(layout: _Layout, q: Tensor, k: Tensor, v: Tensor, w: Tensor, seeds: Tensor) -> tuple[Tensor, ...]:
    """(dq, dk, dv, dw) from seeds (shift, dO) / S_0 of each query: two more sums, along the keys and along the queries.

    da_ji = w_i K_ji (seed_j0 + Σ_c seed_jc v_ic),  ∂a/∂q = k − q,  ∂a/∂k = q − k
    """
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    to_keys = torch.zeros(len(k), seeds.shape[1], dtype=k.dtype)  # Σ_j K_ji seed_j
    table = _Strengths(w.numpy(), v.numpy(), np.zeros(v.shape[1]), np.ones(v.shape[1]))
    seed_rows = seeds.numpy()
    for tile in layout.tiles:
        assert tile.frame is not None
        rows, near = torch.from_numpy(tile.queries), torch.from_numpy(tile.keys)
        mine, theirs = Points(q.numpy(), tile.queries), Points(k.numpy(), tile.keys)
        options = {"channels": seeds.shape[1], "accuracy": layout.accuracy, "slopes": True}
        onto_queries = gaussian_sums(tile.frame, theirs, mine, table.of, **options)
        onto_keys = gaussian_sums(tile.frame, mine, theirs, lambda some: seed_rows[some].T, **options)
        assert onto_queries.slopes is not None and onto_keys.slopes is not None
        dq[rows] = torch.einsum("dcn,nc->nd", torch.from_numpy(onto_queries.slopes), seeds[rows])
        to_keys[near] += torch.from_numpy(onto_keys.values).T
        factors = w[near, None] * torch.cat([torch.ones_like(v[near, :1]), v[near]], 1)
        dk[near] += torch.einsum("dcm,mc->md", torch.from_numpy(onto_keys.slopes), factors)
    dv = w[:, None] * to_keys[:, 1:]
    dw = to_keys[:, 0] + (to_keys[:, 1:] * v).sum(-1)
    if layout.exclude is not None:
        _take_back_excluded(layout.exclude, (q, k, v, w, seeds), (dq, dk, dv, dw))
    return dq, dk, dv, dw


def _take_back_excluded(exclude: Array, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> None:
    """Subtract what each query's own excluded pair has added to the gradients."""
    q, k, v, w, seeds = inputs
    dq, dk, dv, dw = grads
    every = torch.from_numpy(exclude)
    rows = (every >= 0).nonzero()[:, 0]
    own, seed = every[rows], seeds[rows]
    apart = k[own] - q[rows]
    kernel = apart.square().sum(-1).mul(-0.5).exp()
    inner = kernel * (seed[:, 0] + (seed[:, 1:] * v[own]).sum(-1))
    dscore = w[own] * inner
    dq[rows] -= dscore[:, None] * apart
    dk.index_add_(0, own, dscore[:, None] * apart)
    dv.index_add_(0, own, -(w[own] * kernel)[:, None] * seed[:, 1:])
    dw.index_add_(0, own, -inner)


def _second_gradients(
    tensors: tuple[Tensor, ...], rows: Tensor, total: Tensor, exclude: Tensor | None, dvalue: Tensor, dlog: Tensor
) -> list[Tensor | None]:
    """Gradients with a graph, by the fold over all pairs of the certified queries ``rows``."""
    q, k, v, w = tensors
    total, dvalue, dlog = total[rows][None], dvalue[rows][None], dlog[rows][None]
    own = None if exclude is None else exclude[rows][None, :, None]
    problem = Problem.plain(
        Gaussian(1.0), Softmax(), q[rows][None], k[None], v[None], key_weights=w[None, None], exclude=own
    )
    inputs, layouts = problem.inputs()
    empty = torch.zeros_like(total, dtype=torch.bool)
    done = Done(dvalue, empty, total, torch.zeros_like(total))
    wanted = [x.requires_grad for x in inputs]
    grads = second_gradients(problem, inputs, layouts, wanted, done, dvalue, dlog)
    dq = None if grads[0] is None else torch.zeros_like(q).index_copy(0, rows, grads[0][0])
    return [dq, *(None if g is None else g.reshape(x.shape) for g, x in zip(grads[1:], tensors[1:], strict=True))]
