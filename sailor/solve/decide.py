"""Decisions above a search: recomputation and ZeRO values and sets of zones, each a problem.

The planner searches one problem after the other; the best plan of all is the answer, and says
what was decided. No plan of any problem is better than the best of their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sailor.interfaces import Limits, Planner, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.solve.search import PROVEN_GAP, Shared
from sailor.solve.zone_sets import zone_sets

_MOST_TOLD = 8


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
    """Search every problem, within each set of `max_zones` zones, and keep the best plan.

    The problems differ in `training.recompute` and `training.zero` only; plans say what was
    decided. All searches share the time limit evenly; what one leaves goes to the next, and one
    whose bound isn't better than a plan of another by the wanted gap ends. `chosen` False: the one
    problem is the job's own, and its plans say nothing.
    """
    cases, left_out = _cases(problems)
    if len(cases) == 1:
        outcome = planner.solve(problems[0], limits, on_progress, should_stop)
        return Decided(tuple(problems), marked(problems[0], outcome) if chosen else outcome)
    shared = Shared(limits, getattr(planner, "default_wall_s", None))
    gap = getattr(planner, "default_gap", 0.0) if limits.gap is None else limits.gap
    found: list[SearchOutcome] = []
    best: float | None = None
    for number, case in enumerate(cases):
        watch = _Watch(case, best, gap, on_progress, should_stop)
        outcome = planner.solve(
            case.problem, shared.part(len(cases) - number), watch.on_progress, watch.should_stop
        )
        if watch.hopeless and not should_stop():
            outcome = replace(outcome, stopped_early=False)
        found.append(marked(case.problem, outcome) if chosen else outcome)
        if outcome.plan is not None:
            value = case.value(outcome.plan)
            best = value if best is None else min(best, value)
    merged = _merged(cases, found, left_out)
    if merged.stopped_early:
        merged = replace(merged, **_ended(limits, shared, len(cases), told=should_stop()))
    return Decided(tuple(problems), merged)


def _ended(limits: Limits, shared: Shared, searches: int, *, told: bool) -> dict[str, Any]:
    """Return why searches that share a limit ended, and whether that is an interruption."""
    if told:
        return {"stop_reason": "told to by the caller"}
    limit = "limit of work" if shared.wall_s is None else f"time limit of {shared.wall_s:g} s"
    # A limit that the planner chose for itself is no interruption.
    own = limits.wall_s is None and limits.work_s is None
    reason = f"the {limit}, which {searches} searches shared"
    return {"stop_reason": reason, "stopped_early": not own}


@dataclass(frozen=True)
class _Case:
    """One search: its problem, and what tells it from the others."""

    problem: Problem
    name: str

    @property
    def sign(self) -> float:
        """Return what makes less better."""
        return -1.0 if self.problem.objective is Objective.MAX_THROUGHPUT else 1.0

    def value(self, plan: Plan) -> float:
        """Return a plan's value; less is better."""
        exact = estimate(self.problem, plan)
        if self.problem.objective is Objective.MAX_THROUGHPUT:
            return -exact.iterations_per_s
        return exact.usd_per_iteration


def _cases(problems: Sequence[Problem]) -> tuple[list[_Case], int]:
    """Return all searches, and how many sets of zones are left out."""
    found, left_out = [], 0
    for problem in problems:
        sets = zone_sets(problem)
        if sets is None:
            found.append(_Case(problem, label(problem)))
            continue
        left_out += sets.left_out
        before = f"{label(problem)}, " if len(problems) > 1 else ""
        found += [_Case(within, f"{before}zones {zones}") for zones, within in sets.problems]
    return found, left_out


class _Watch:
    """Passes progress on under the case's name; ends a search that can't beat a known plan."""

    def __init__(
        self,
        case: _Case,
        best: float | None,
        gap: float,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.case = case
        # Throughput counts as less than nothing, so that less is better; the gap is the bound's.
        self.enough = None if best is None else best / (1 + gap if best > 0 else 1 - gap)
        self.report, self.told = on_progress, should_stop
        self.hopeless = False

    def on_progress(self, progress: Progress) -> None:
        """Pass it on, and compare the bound with the best plan of the other searches."""
        if self.enough is not None and progress.bound is not None:
            self.hopeless = self.case.sign * progress.bound >= self.enough
        self.report(replace(progress, message=f"{self.case.name}: {progress.message}"))

    def should_stop(self) -> bool:
        """Return whether to end this search."""
        return self.hopeless or self.told()


def label(problem: Problem) -> str:
    """Return the values that tell the problems apart."""
    return f"recompute {problem.training.recompute}, zero {problem.training.zero}"


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


def _merged(cases: Sequence[_Case], found: Sequence[SearchOutcome], left_out: int) -> SearchOutcome:
    """Return the best plan of all, with a bound that holds for all."""
    sign = cases[0].sign
    values = [
        None if outcome.plan is None else case.value(outcome.plan)
        for case, outcome in zip(cases, found, strict=True)
    ]
    told = _told(cases, found, values)
    both = [(value, n) for n, value in enumerate(values) if value is not None]
    best = min(both)[1] if both else None
    common = SearchOutcome(
        None,
        proven=not left_out and all(outcome.proven for outcome in found),
        stopped_early=any(outcome.stopped_early for outcome in found),
        evaluations=sum(outcome.evaluations for outcome in found),
    )
    skipped = (f"{left_out} sets of zones with slower GPUs weren't searched",) if left_out else ()
    if best is None:
        return replace(common, rules=(*skipped, *found[0].rules), reasons=told)
    bound = None if left_out else _bound(found, sign)
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
        rules=("searched with each of: " + "; ".join(told), *skipped, *found[best].rules),
        stop_reason=found[best].stop_reason,
        finalists=tuple(others),
    )


def _told(
    cases: Sequence[_Case], found: Sequence[SearchOutcome], values: Sequence[float | None]
) -> tuple[str, ...]:
    """Return what each search found, of many the best only."""
    unit = "it/s" if cases[0].sign < 0 else "USD an iteration"
    order: Sequence[int] = range(len(cases))
    if len(cases) > _MOST_TOLD:
        order = sorted(order, key=lambda n: (values[n] is None, values[n] or 0.0))[:_MOST_TOLD]
    said = []
    for n in order:
        value = values[n]
        nothing = "; ".join(found[n].reasons) or "no plan was found"
        said.append(f"{cases[n].name}: {nothing if value is None else f'{abs(value):.4g} {unit}'}")
    more = len(cases) - len(said)
    return (*said, f"{more} others, which aren't better") if more else tuple(said)


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
