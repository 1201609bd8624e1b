"""The front of cost and throughput: plans such that nothing cheaper is as fast.

Epsilon constraint: the two ends are the fastest and the cheapest plan; between them the cheapest
plan above each of a row of throughput floors, evenly spaced in ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sailor.interfaces import Limits, Planner, Progress, SearchOutcome
from sailor.model.estimate import Estimate
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate


@dataclass(frozen=True)
class ParetoPoint:
    """One plan of the front.

    `objective` says what was optimised (of the fastest plan: throughput), `bound` is in its
    units, `gap` relative to the bound; None where the planner proved nothing.
    """

    plan: Plan
    estimate: Estimate
    objective: Objective
    min_iterations_per_s: float | None
    bound: float | None
    gap: float | None


def pareto(
    problem: Problem,
    planner: Planner,
    *,
    num_points: int = 8,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[ParetoPoint, ...]:
    """Return up to `num_points` plans, slowest and cheapest first; none dominates another.

    The job's own limits hold for every point. `limits.wall_s` is that of the whole front, shared
    evenly. Empty when there is no plan at all.
    """
    if num_points < 2:
        raise ValueError(f"a front has at least 2 points, not {num_points}")
    limits = limits or Limits()
    if limits.wall_s is not None:
        limits = replace(limits, wall_s=limits.wall_s / num_points)

    def solve(objective: Objective, floor: float | None) -> ParetoPoint | None:
        if should_stop():
            return None
        own = problem.constraints.min_iterations_per_s
        wanted = max((f for f in (own, floor) if f is not None), default=None)
        case = problem.model_copy(
            update={
                "objective": objective,
                "constraints": problem.constraints.model_copy(
                    update={"min_iterations_per_s": wanted}
                ),
            }
        )
        outcome = planner.solve(case, limits, on_progress, should_stop)
        return None if outcome.plan is None else _point(case, outcome, outcome.plan)

    fastest = solve(Objective.MAX_THROUGHPUT, None)
    if fastest is None:
        return ()
    cheapest = solve(Objective.MIN_COST, None)
    points = [point for point in (cheapest, fastest) if point is not None]
    if cheapest is not None:
        low, high = cheapest.estimate.iterations_per_s, fastest.estimate.iterations_per_s
        for step in range(1, num_points - 1):
            floor = low * (high / low) ** (step / (num_points - 1))
            between = solve(Objective.MIN_COST, floor)
            if between is not None:
                points.append(between)
    return _front(points)


def _point(problem: Problem, outcome: SearchOutcome, plan: Plan) -> ParetoPoint:
    found = estimate(problem, plan)
    value = (
        found.iterations_per_s
        if problem.objective is Objective.MAX_THROUGHPUT
        else found.usd_per_iteration
    )
    bound = outcome.bound
    return ParetoPoint(
        plan,
        found,
        problem.objective,
        problem.constraints.min_iterations_per_s,
        bound,
        abs(value - bound) / bound if bound else None,
    )


def _front(points: list[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Return the points that no other one beats on cost and time, slowest first."""
    kept: list[ParetoPoint] = []
    cheapest = float("inf")
    for point in sorted(
        points, key=lambda p: (-p.estimate.iterations_per_s, p.estimate.usd_per_iteration)
    ):
        if point.estimate.usd_per_iteration < cheapest * (1 - 1e-12):
            cheapest = point.estimate.usd_per_iteration
            kept.append(point)
    return tuple(reversed(kept))
