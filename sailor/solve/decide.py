"""Decisions above a search: each recomputation and ZeRO value is a problem of its own.

The planner searches one problem after the other; the best plan of all is the answer, and says
what was decided. No plan of any problem is better than the best of their bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sailor.interfaces import Limits, Planner, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.solve.search import PROVEN_GAP


@dataclass(frozen=True)
class Decided:
    """What a planner found over several problems, and which of them each plan is for."""

    problems: tuple[Problem, ...]
    outcome: SearchOutcome

    def problem_of(self, plan: Plan) -> Problem:
        """Return the problem that a plan of the outcome was found in."""
        return next(problem for problem in self.problems if _is_of(plan, problem))


def decide(
    problems: Sequence[Problem],
    planner: Planner,
    limits: Limits,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    *,
    chosen: bool,
) -> Decided:
    """Search every problem and keep the best plan, which says what was decided.

    The problems differ in `training.recompute` and `training.zero` only. They share the time
    limit evenly; what one leaves goes to the next. `chosen` False: the one problem is the job's
    own, and its plans say nothing.
    """
    if len(problems) == 1:
        outcome = planner.solve(problems[0], limits, on_progress, should_stop)
        return Decided(tuple(problems), marked(problems[0], outcome) if chosen else outcome)
    wall_s = limits.wall_s
    if wall_s is None:
        wall_s = getattr(planner, "default_wall_s", None)
    deadline_s = None if wall_s is None else time.monotonic() + wall_s
    found: list[SearchOutcome] = []
    for number, problem in enumerate(problems):
        share_s = None
        if deadline_s is not None:
            share_s = max(0.0, deadline_s - time.monotonic()) / (len(problems) - number)
        outcome = planner.solve(
            problem,
            replace(limits, wall_s=share_s),
            _labelled(problem, on_progress),
            should_stop,
        )
        found.append(marked(problem, outcome))
    return Decided(tuple(problems), _merged(problems, found))


def label(problem: Problem) -> str:
    """Return the values that tell the problems apart."""
    return f"recompute {problem.training.recompute}, zero {problem.training.zero}"


def _labelled(problem: Problem, report: Callable[[Progress], None]) -> Callable[[Progress], None]:
    def labelled(progress: Progress) -> None:
        report(replace(progress, message=f"{label(problem)}: {progress.message}"))

    return labelled


def _is_of(plan: Plan, problem: Problem) -> bool:
    training = problem.training
    zero = training.zero if plan.zero is None else plan.zero
    recompute = training.recompute if plan.recompute is None else plan.recompute
    return (zero, recompute) == (training.zero, training.recompute)


def marked(problem: Problem, outcome: SearchOutcome) -> SearchOutcome:
    """Return the outcome with its plans saying what was decided."""
    told = {"zero": problem.training.zero, "recompute": problem.training.recompute}
    plan = outcome.plan
    return replace(
        outcome,
        plan=None if plan is None else plan.model_copy(update=told),
        finalists=tuple(other.model_copy(update=told) for other in outcome.finalists),
    )


def _merged(problems: Sequence[Problem], found: Sequence[SearchOutcome]) -> SearchOutcome:
    """Return the best plan of all, with a bound that holds for all."""
    sign = -1.0 if problems[0].objective is Objective.MAX_THROUGHPUT else 1.0
    values = [
        None if outcome.plan is None else sign * _value(problem, outcome.plan)
        for problem, outcome in zip(problems, found, strict=True)
    ]
    told = tuple(
        f"{label(problem)}: {_told(outcome, value, sign)}"
        for problem, outcome, value in zip(problems, found, values, strict=True)
    )
    both = [(value, n) for n, value in enumerate(values) if value is not None]
    best = min(both)[1] if both else None
    common = SearchOutcome(
        None,
        proven=all(outcome.proven for outcome in found),
        stopped_early=any(outcome.stopped_early for outcome in found),
        evaluations=sum(outcome.evaluations for outcome in found),
    )
    if best is None:
        return replace(common, rules=found[0].rules, reasons=told)
    bound = _bound(found, sign)
    value = min(both)[0]
    near = bound is not None and abs(value - sign * bound) <= PROVEN_GAP * abs(sign * bound)
    others = [
        plan
        for n in sorted(
            range(len(found)), key=lambda n: (n != best, values[n] is None, values[n] or 0.0)
        )
        for plan in (*([found[n].plan] if n != best else []), *found[n].finalists)
        if plan is not None
    ]
    return replace(
        common,
        plan=found[best].plan,
        proven=common.proven or near,
        bound=bound,
        rules=("searched with each of: " + "; ".join(told), *found[best].rules),
        stop_reason=found[best].stop_reason,
        finalists=tuple(others),
    )


def _value(problem: Problem, plan: Plan) -> float:
    exact = estimate(problem, plan)
    if problem.objective is Objective.MAX_THROUGHPUT:
        return exact.iterations_per_s
    return exact.usd_per_iteration


def _told(outcome: SearchOutcome, value: float | None, sign: float) -> str:
    if value is None:
        return "; ".join(outcome.reasons) or "no plan was found"
    unit = "it/s" if sign < 0 else "USD an iteration"
    return f"{sign * value:.4g} {unit}"


def _bound(found: Sequence[SearchOutcome], sign: float) -> float | None:
    """Return the best bound of all; None when one of them may hold anything."""
    bounds: list[float] = []
    for outcome in found:
        if outcome.plan is None and outcome.proven:
            continue  # proven to hold no plan
        if outcome.bound is None:
            return None
        bounds.append(sign * outcome.bound)
    return sign * min(bounds) if bounds else None
