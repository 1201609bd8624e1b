"""The front of cost and throughput: plans such that nothing cheaper is as fast.

Epsilon constraint: the two ends are the fastest and the cheapest plan; between them the cheapest
plan above each of a row of throughput floors, evenly spaced in ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sailor.interfaces import Limits, Planner, Progress
from sailor.model.estimate import Estimate
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.solve.decide import decide
from sailor.solve.search import Shared


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
    choices: Sequence[Problem] = (),
) -> tuple[ParetoPoint, ...]:
    """Return up to `num_points` plans, slowest and cheapest first; none dominates another.

    `choices`, where there are any, are the problem with each training that may be chosen. The
    job's own limits hold for every point. Those of time and work are for the whole front: each
    search gets its share of what is left. Empty when there is no plan at all.
    """
    if num_points < 2:
        raise ValueError(f"a front has at least 2 points, not {num_points}")
    run = _Front(
        tuple(choices) or (problem,),
        planner,
        num_points,
        limits or Limits(),
        on_progress,
        should_stop,
    )
    run.chosen = bool(choices)
    return run.run()


@dataclass(frozen=True)
class _Case:
    """One search of the front: what was asked for, and the bound that came out."""

    objective: Objective
    min_iterations_per_s: float | None
    found: tuple[Plan, Estimate]
    bound: float | None


class _Front:
    """The searches of one front, and every plan that they came by."""

    def __init__(
        self,
        problems: tuple[Problem, ...],
        planner: Planner,
        num_points: int,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.problems, self.planner, self.num_points = problems, planner, num_points
        self.limits, self.on_progress, self.should_stop = limits, on_progress, should_stop
        self.shared = Shared(limits)
        self.cases: list[_Case] = []
        self.seen: list[tuple[Plan, Estimate]] = []
        self.chosen = False  # whether plans say which problem they are for

    def run(self) -> tuple[ParetoPoint, ...]:
        """Find the ends, then the points between them."""
        fastest = self._search(Objective.MAX_THROUGHPUT, None)
        if fastest is None:
            return ()
        cheapest = self._search(Objective.MIN_COST, None)
        if cheapest is not None:
            low, high = cheapest.iterations_per_s, fastest.iterations_per_s
            for step in range(1, self.num_points - 1):
                floor = low * (high / low) ** (step / (self.num_points - 1))
                self._search(Objective.MIN_COST, floor)
        return _front([self._point(case) for case in self.cases])

    def _search(self, objective: Objective, floor: float | None) -> Estimate | None:
        if self.should_stop():
            return None
        limits = self.problems[0].constraints
        own = limits.min_iterations_per_s
        wanted = max((f for f in (own, floor) if f is not None), default=None)
        limits = limits.model_copy(update={"min_iterations_per_s": wanted})
        changes = {"objective": objective, "constraints": limits}
        cases = [problem.model_copy(update=changes) for problem in self.problems]
        number = len(self.cases) + 1
        decided = decide(
            cases,
            self.planner,
            self.shared.part(max(1, self.num_points - number + 1)),
            self._labelled(number),
            self.should_stop,
            chosen=self.chosen,
        )
        outcome = decided.outcome
        plans = [plan for plan in (outcome.plan, *outcome.finalists) if plan is not None]
        mine = [(plan, estimate(decided.problem_of(plan), plan)) for plan in plans]
        self.seen += mine
        found = mine[0] if outcome.plan is not None else self._known(objective, wanted)
        if found is None:
            return None
        self.cases.append(_Case(objective, wanted, found, outcome.bound))
        return found[1]

    def _labelled(self, number: int) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            message = f"point {number} of {self.num_points}: {progress.message}"
            self.on_progress(replace(progress, message=message))

        return report

    def _known(self, objective: Objective, floor: float | None) -> tuple[Plan, Estimate] | None:
        """Return the best plan of all searches for a case: one may have come by another's."""
        fits = [
            (plan, found)
            for plan, found in self.seen
            if floor is None or found.iterations_per_s >= floor * (1 - 1e-9)
        ]
        return min(fits, key=lambda item: _rank(objective, item[1])) if fits else None

    def _point(self, case: _Case) -> ParetoPoint:
        plan, found = self._known(case.objective, case.min_iterations_per_s) or case.found
        bound = case.bound
        throughput = case.objective is Objective.MAX_THROUGHPUT
        value = found.iterations_per_s if throughput else found.usd_per_iteration
        return ParetoPoint(
            plan,
            found,
            case.objective,
            case.min_iterations_per_s,
            bound,
            abs(value - bound) / bound if bound else None,
        )


def _rank(objective: Objective, found: Estimate) -> tuple[float, float]:
    values = (found.iteration_s, found.usd_per_iteration)
    return values if objective is Objective.MAX_THROUGHPUT else values[::-1]


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
