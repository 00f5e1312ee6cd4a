"""The planner: the cheapest plan that can serve a problem, by estimated cost, and why the others were not taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError, PlanError
from ..weightings.base import Fold
from .cells import Problem
from .dense import Dense
from .fourier import Fourier
from .fused import Fused
from .pruned import Pruned
from .reproducible import Reproducible
from .solution import Solution, Unserved, joined
from .topk import BlockTopK


class Plan(Protocol):
    """One way to compute an answer to one problem."""

    name: str

    def refusal(self) -> str | None:
        """Why this plan cannot serve the problem; None: it can."""
        ...

    def cost(self) -> float:
        """Estimated seconds on two cores."""
        ...

    def solve(self) -> Solution: ...


BACKWARD = 4.0  # forward and backward together ÷ forward: about the same for every plan

PLANS = (Dense, Fused, BlockTopK, Pruned, Fourier, Reproducible)
NAMES = tuple(plan.name for plan in PLANS)


@dataclass(frozen=True)
class PlanReport:
    """Which plan answered, and what became of each other one; prints as a small table."""

    name: str
    candidates: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.candidates)
        return "\n".join(f"{'→' if n == self.name else ' '} {n:<{width}}  {why}" for n, why in self.candidates)

    __repr__ = __str__


def solve(problem: Problem, forced: str | None, *, without: str | None = None) -> tuple[Solution, PlanReport]:
    """Answer the problem by the cheapest plan, or by the one forced by name."""
    if forced is not None and forced not in NAMES:
        raise PlanError(f"there is no plan {forced!r}: take one of {', '.join(NAMES)}")
    plans: list[Plan] = [plan(problem) for plan in PLANS if plan.name != without]
    said: dict[str, str] = {}
    able: list[tuple[float, Plan]] = []
    for plan in plans:
        reason = plan.refusal()
        if reason is None:
            cost = plan.cost() * (BACKWARD if problem.wants_gradient else 1.0)
            said[plan.name] = f"estimated {_seconds(cost)}" if cost < float("inf") else "only when forced by name"
            able.append((cost, plan))
        else:
            said[plan.name] = f"refused: {reason}"
    if forced is not None:
        if forced not in {plan.name for _, plan in able}:
            raise PlanError(f"plan {forced!r} cannot serve this call: {said[forced].removeprefix('refused: ')}")
        able = [(cost, plan) for cost, plan in able if plan.name == forced]
    else:
        able = [(cost, plan) for cost, plan in able if cost < float("inf")]
    for _, plan in sorted(able, key=lambda pair: pair[0]):
        try:
            solution = plan.solve()
        except Unserved as reason:
            if forced is not None:
                raise PlanError(f"plan {forced!r} cannot serve this call: {reason}") from None
            said[plan.name] = f"gave up: {reason}"
            continue
        if solution.note:
            said[plan.name] += f"; {solution.note}"
        if solution.rest is not None:
            exact, report = solve(problem.of_queries(solution.rest), None, without=plan.name)
            solution = joined(solution, solution.rest, exact)
            said[plan.name] += f", the others by plan {report.name}"
        return solution, PlanReport(plan.name, tuple((p.name, said[p.name]) for p in plans))
    raise InputError("no plan could serve this call: " + "; ".join(f"{n}: {why}" for n, why in said.items()))


def selecting_fold(problem: Problem, forced: str | None) -> tuple[Fold, str]:
    """The cheapest pass over all pairs by which a weighting selects rows, and the plan that makes it."""
    able = [plan for plan in (BlockTopK(problem), Dense(problem)) if plan.refusal() is None]
    chosen = next((plan for plan in able if plan.name == forced), min(able, key=lambda plan: plan.cost()))
    return chosen.fold(), chosen.name


def _seconds(cost: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if cost >= size:
            return f"{cost / size:.3g} {unit}"
    return f"{cost / 1e-6:.3g} µs"
