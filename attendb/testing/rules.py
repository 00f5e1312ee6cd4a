"""Every weighting of attendb written out once more, naively: whole rows of scores, float64, plain torch.

Each function takes scores a and multiplicities w, both (..., n, m), w = 0 where the row is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

BISECTIONS = 130  # halves any bracket of float64 numbers that occurs here down to two neighbours


class Pooled(NamedTuple):
    """The weights of every pair and what comes with them."""

    weights: Tensor  # (..., n, m)
    log_normalizer: Tensor | None  # (..., n)
    empty: Tensor  # (..., n) bool
    rank: Tensor  # (..., n, m): the order of the top rows, -inf for a row that is not listed


def name_of(weighting: Any) -> str:
    """The name of attendb's class whose rule holds; a class of yours with its own `weight` has another rule."""
    for kind in type(weighting).__mro__:
        if kind.__module__.startswith("attendb."):
            return kind.__name__
        if "weight" in vars(kind):
            break
    return f"yours ({type(weighting).__name__})"


def pool(weighting: Any, name: str, a: Tensor, w: Tensor) -> Pooled:
    """Weights of a pooling or selecting weighting, by the name of its class; by its `weight` where it is a user's."""
    if name in SELECTING:
        return SELECTING[name](weighting, a, w)
    if name in UNNORMALISED:
        return UNNORMALISED[name](weighting, a, w)
    infinite = (a == torch.inf) & (w > 0)
    limit = infinite.any(-1, keepdim=True)
    shared_w = torch.where(limit & ~infinite, 0.0, w)
    shared_a = torch.where(limit, 1.0, a)  # equal scores share the weight by multiplicity
    if name in NORMALISED:
        done = NORMALISED[name](weighting, shared_a, shared_w)
    elif hasattr(weighting, "weight"):
        done = _threshold(weighting.weight, shared_a, shared_w)
        if not getattr(weighting, "has_log_normalizer", False):
            done = done._replace(log_normalizer=None)
    else:
        raise TypeError(f"the oracle knows no weighting {name}: a weighting of yours needs weight(z, tau)")
    if done.log_normalizer is None:
        return done
    return done._replace(log_normalizer=torch.where(limit[..., 0], torch.inf, done.log_normalizer))


def _total(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over the rows kept as an axis, the same with 1 in place of 0, and which queries are empty."""
    total = x.sum(-1, keepdim=True)
    empty = total == 0
    return total, torch.where(empty, 1.0, total), empty


def _highest(a: Tensor, present: Tensor) -> Tensor:
    """The highest present score as a constant, (..., n, 1); 0 where there is none."""
    if a.shape[-1] == 0:
        return torch.zeros(*a.shape[:-1], 1, dtype=a.dtype)
    highest = torch.where(present, a, -torch.inf).detach().amax(-1, keepdim=True)
    return torch.where(highest > -torch.inf, highest, 0.0)


def _listed(weights: Tensor) -> Tensor:
    return torch.where(weights != 0, weights, -torch.inf).detach()


def _softmax(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    present = (w > 0) & (a > -torch.inf)
    scaled = torch.where(present, a, 0.0) / getattr(weighting, "temperature", 1.0)
    ref = (
        torch.where(present, scaled, -torch.inf).detach().amax(-1, keepdim=True)
        if a.shape[-1]
        else scaled.sum(-1, True)
    )
    ref = torch.where(ref > -torch.inf, ref, 0.0)
    terms = torch.where(present, w, 0.0) * torch.exp(torch.where(present, scaled - ref, 0.0))
    _, total, empty = _total(terms)
    log_normalizer = torch.where(empty, -torch.inf, ref + torch.log(total))[..., 0]
    rank = torch.where(present, scaled + torch.log(torch.where(present, w, 1.0)), -torch.inf).detach()
    return Pooled(terms / total, log_normalizer, empty[..., 0], rank)


def _normalized(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    terms = w * torch.where(w > 0, a, 0.0)
    if bool((terms < 0).any()):
        raise ValueError("a score is negative, which Normalized cannot take")
    _, total, empty = _total(terms)
    weights = torch.where(empty, 0.0, terms / total)
    log_normalizer = torch.where(empty, -torch.inf, torch.log(total))[..., 0]
    return Pooled(weights, log_normalizer, empty[..., 0], _listed(weights))


def _uniform(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    return _normalized(weighting, torch.ones_like(a), w)


def _linear(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    weights = w * torch.where(w > 0, a, 0.0)
    return Pooled(weights, None, ~(w > 0).any(-1), _listed(weights))


def _conic(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    done = _linear(weighting, a, w)
    if bool((done.weights < 0).any()):
        raise ValueError("a score is negative, which Conic cannot take")
    return done._replace(empty=done.weights.sum(-1) == 0)


def _sparsemax(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    return _threshold(lambda z, tau: torch.relu(z - tau), a, w)._replace(log_normalizer=None)


def _entmax15(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    return _threshold(lambda z, tau: torch.relu(z / 2 - tau) ** 2, a, w)._replace(log_normalizer=None)


def _threshold(p: Callable[[Tensor, Tensor], Tensor], a: Tensor, w: Tensor) -> Pooled:
    """Weights w·p(z, τ), z = a − max, with τ of each query such that they sum to 1; log_normalizer = max + τ."""
    present = (w > 0) & (a > -torch.inf)
    empty = ~present.any(-1, keepdim=True)
    ref = _highest(a, present)
    z = torch.where(present, torch.where(present, a, ref) - ref, 0.0)
    w = torch.where(present, w, torch.where(empty, 1.0, 0.0))
    if a.shape[-1] == 0:
        return Pooled(w, torch.where(empty, -torch.inf, ref)[..., 0], empty[..., 0], w)

    def excess(tau: Tensor) -> Tensor:
        return (w * p(z, tau)).sum(-1, keepdim=True) - 1

    with torch.no_grad():
        tau = _bisect(excess, torch.zeros_like(ref))
    tau = _polish(excess, tau)
    weights = torch.where(present, w * p(z, tau), 0.0)
    log_normalizer = torch.where(empty, -torch.inf, ref + tau)[..., 0]
    return Pooled(weights, log_normalizer, empty[..., 0], _listed(weights))


def _bisect(excess: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The last τ at which the decreasing ``excess`` is still ≥ 0, to the last bit."""
    low, high, step = start - 1, start + 1, torch.ones_like(start)
    while bool((excess(low) < 0).any()):
        step = step * 2
        low = torch.where(excess(low) < 0, low - step, low)
    step = torch.ones_like(start)
    while bool((excess(high) > 0).any()):
        step = step * 2
        high = torch.where(excess(high) > 0, high + step, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = excess(middle) >= 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return low


def _polish(excess: Callable[[Tensor], Tensor], tau: Tensor) -> Tensor:
    """Two Newton steps under autograd: they do not move τ, but carry its first and second derivatives."""
    learns = excess(tau).requires_grad
    if not learns:
        return tau
    tau = tau.requires_grad_()
    for _ in range(2):
        value = excess(tau)
        (slope,) = torch.autograd.grad(value.sum(), tau, create_graph=True)
        tau = tau - value / slope
    return tau


def _best(a: Tensor, w: Tensor, at_least: float | None, k: int) -> Tensor:
    """True at the k best present rows, by score and then by position."""
    present = (w > 0) & (a > -torch.inf)
    if at_least is not None:
        present = present & (a >= at_least)
    order = torch.sort(torch.where(present, a, -torch.inf).detach(), dim=-1, descending=True, stable=True).indices
    place = torch.argsort(order, dim=-1)
    return present & (place < k)  # a present row sorts before the absent ones: its score is above -inf


def _nearest(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    chosen = _best(a, w, weighting.at_least, 1)
    weights = chosen.to(a.dtype)
    empty = ~chosen.any(-1)
    score = torch.where(chosen, a, 0.0).sum(-1)
    return Pooled(weights, torch.where(empty, -torch.inf, score), empty, _listed(weights))


def _topk(weighting: Any, a: Tensor, w: Tensor) -> Pooled:
    chosen = _best(a, w, weighting.at_least, weighting.k)
    return pool(weighting.then, name_of(weighting.then), a, torch.where(chosen, w, 0.0))


Rule = Callable[[Any, Tensor, Tensor], Pooled]
NORMALISED: dict[str, Rule] = {
    "Softmax": _softmax,
    "Sampled": _softmax,  # the probability of each row of being drawn
    "Normalized": _normalized,
    "Exact": _normalized,
    "Sparsemax": _sparsemax,
    "Entmax15": _entmax15,
}
UNNORMALISED: dict[str, Rule] = {"Linear": _linear, "Conic": _conic, "Uniform": _uniform}
SELECTING: dict[str, Rule] = {"Nearest": _nearest, "TopK": _topk}
