"""The public functions. They compose the layers below, return records, and never print."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sailor.errors import InputError
from sailor.interfaces import Limits, Planner, Progress, SearchOutcome
from sailor.model.estimate import CostTerm, Estimate
from sailor.model.files import load_document, parse_record
from sailor.model.job import Job, Objective
from sailor.model.job_paths import job_of_document
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.result import Result, Status
from sailor.registry import Registry
from sailor.resolve import resolve
from sailor.resolve.choices import job_of_plan, relaxed_jobs, training_choices
from sailor.sim.estimate import estimate
from sailor.sim.fidelity import EventResult, Fidelity, estimate_events
from sailor.solve.crew import default_processes, search_cpu_s
from sailor.solve.decide import Decided, decide, marked
from sailor.solve.last_word import MOST_S, last_word
from sailor.solve.pareto import ParetoPoint
from sailor.solve.pareto import pareto as front
from sailor.solve.relax import Relaxed, relaxed
from sailor.solve.search import PROVEN_GAP
from sailor.solve.unused import left_unused

DEFAULT_PLANNER = "auto"
FRONT_S = 100.0  # for a whole front of cost and throughput
_EXPLAIN_S = 5.0  # looking for what would make a job feasible

JobLike = Job | str | Path | Mapping[str, Any]
PlanLike = Plan | Result | str | Path | Mapping[str, Any]


def load_job(job: JobLike) -> Job:
    """Return a job from a record, a YAML or JSON file, or a dict.

    Paths inside a file are relative to its folder, those of a dict to the current folder.
    Raises InputError with the place.
    """
    if isinstance(job, Job):
        return job
    if isinstance(job, Mapping):
        return parse_record(Job, dict(job), where="job")
    return job_of_document(load_document(job))


def load_plan(plan: PlanLike) -> Plan:
    """Return a plan from a record, a file or a dict; a result file's plan is taken."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Result):
        return _plan_of_result(plan, "result")
    if isinstance(plan, Mapping):
        data: Mapping[str, Any] = plan
        where: Any = "plan"
    else:
        document = load_document(plan)
        data, where = document.data, document
    if "problem_digest" in data:
        return _plan_of_result(parse_record(Result, dict(data), where=where), str(plan)[:200])
    return parse_record(Plan, dict(data), where=where)


def build_problem(
    job: JobLike,
    *,
    objective: Objective | str | None = None,
    registry: Registry | None = None,
    strict: bool = False,
) -> Problem:
    """Resolve a job. With `strict`, every assumption is an error."""
    wish = None if objective is None else _objective(objective)
    problem = resolve(load_job(job), registry or Registry.load(), objective=wish)
    if strict and problem.assumptions:
        raise InputError(
            f"assumed, not known: {'; '.join(problem.assumptions)}",
            where="strict",
            hint="name sources that know these figures, or leave strict off",
        )
    return problem


def optimize(
    job: JobLike,
    *,
    objective: Objective | str | None = None,
    planner: str = DEFAULT_PLANNER,
    gap: float | None = None,
    time_limit_s: float | None = None,
    processes: int | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
    strict: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Plan a job: what to rent, how to split the model, what it takes.

    `objective` overrides the job's ("max_throughput": iterations a second; "min_cost": dollars an
    iteration). The search ends when the plan is within `gap` (a fraction) of its bound, or after
    `time_limit_s` seconds with the best plan so far; a search that takes longer uses up to
    `processes` processes (without `limits`: one a core, four at most). All three go before those
    of `limits`. Infeasible is a result with reasons; InputError is for a job that can't be right.
    """
    registry = registry or Registry.load()
    loaded = load_job(job)
    problem = build_problem(loaded, objective=objective, registry=registry, strict=strict)
    return plan_problem(
        problem,
        registry.planner(planner, where="planner"),
        registry,
        limits=_limits(limits, gap, time_limit_s, processes),
        on_progress=on_progress or (lambda progress: None),
        should_stop=should_stop or (lambda: False),
        choices=tuple(
            build_problem(choice, objective=objective, registry=registry, strict=strict)
            for choice in training_choices(loaded)
        ),
        variants={
            change: partial(_build, other, problem.objective, registry)
            for change, other in relaxed_jobs(loaded).items()
        },
    )


def pareto(
    job: JobLike,
    *,
    points: int = 8,
    planner: str = DEFAULT_PLANNER,
    gap: float | None = None,
    time_limit_s: float | None = FRONT_S,
    processes: int | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[ParetoPoint, ...]:
    """Return up to `points` plans between the cheapest and the fastest; none beats another.

    Slowest first. The job's own limits hold for every point; empty when there is no plan. `gap` is
    that of each point, `time_limit_s` that of the whole front (None: as long as each point takes),
    `processes` as for `optimize`.
    """
    registry, loaded = registry or Registry.load(), load_job(job)
    return front(
        build_problem(loaded, registry=registry),
        registry.planner(planner, where="planner"),
        num_points=points,
        limits=_limits(limits, gap, time_limit_s, processes),
        on_progress=on_progress or (lambda progress: None),
        should_stop=should_stop or (lambda: False),
        choices=tuple(build_problem(c, registry=registry) for c in training_choices(loaded)),
    )


def plan_problem(
    problem: Problem,
    planner: Planner,
    registry: Registry,
    *,
    limits: Limits,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    choices: Sequence[Problem] = (),
    variants: Mapping[str, Callable[[], Problem | None]] = MappingProxyType({}),
    events: bool = True,
) -> Result:
    """Search one resolved problem and estimate what was found.

    `choices`, where there are any, are the problem with each training that may be chosen;
    `variants` are changed problems, by the change, to look at when there is no plan. Without
    `events` the closed form alone chooses the plan.
    """
    for case in choices or (problem,):
        if reasons := tuple(planner.unsupported(case)):
            raise InputError(
                f"planner {planner.name!r} can't take this job: {'; '.join(reasons)}",
                where="planner",
                hint="choose another --planner",
            )
    wall, cpu = time.perf_counter(), search_cpu_s()
    decided = decide(
        choices or (problem,), planner, limits, on_progress, should_stop, chosen=bool(choices)
    )
    relief = Relaxed()
    if decided.outcome.plan is None and not decided.outcome.stopped_early:
        most_s = min(_EXPLAIN_S, limits.wall_s or _EXPLAIN_S)
        relief = relaxed(decided.problems[0], variants, most_s=most_s, should_stop=should_stop)
        if relief.plan is not None:
            decided, relief = _with_missed(decided, relief.plan, planner, chosen=bool(choices))
    hurry_s = MOST_S if limits.work_s is None else math.inf
    word = last_word(decided, hurry_s) if events else None
    wall, cpu = time.perf_counter() - wall, search_cpu_s() - cpu
    outcome, digest = decided.outcome, problem.digest()
    plan = outcome.plan if word is None else word.plan
    if plan is not None:
        problem = decided.problem_of(plan)
    found = None if plan is None else _estimate(problem, plan, registry)
    value = None if found is None else objective_value(problem, found)
    event = None if word is None else word.event
    if event is not None and plan is not None:
        event = _with_extra_terms(problem, plan, event, registry)
    notes = () if word is None or word.note is None else (word.note,)
    bound = outcome.bound
    if plan is not None and plan.vpp > 1:
        bound, notes = None, (*notes, "no bound: it would not hold for interleaved pipelines")
    return Result(
        status=_status(outcome, plan, value, bound),
        job=problem.job,
        objective=problem.objective,
        cost_model=problem.cost_model,
        planner=planner.name,
        plan=plan,
        estimate=found,
        event=event,
        objective_value=value,
        bound=bound,
        gap=_gap(value, bound),
        rules=(*notes, *outcome.rules),
        reasons=outcome.reasons if relief.conflict is None else (relief.conflict, *outcome.reasons),
        relaxations=relief.changes,
        unused=() if found is None else left_unused(problem, found),
        excluded=problem.excluded,
        assumptions=problem.assumptions,
        stopped_early=outcome.stopped_early,
        stop_reason=outcome.stop_reason,
        evaluations=outcome.evaluations,
        problem_digest=digest,
        sailor_version=version("sailor-planner"),
        search_wall_s=wall,
        search_cpu_s=cpu,
    )


def simulate(
    job: JobLike,
    plan: PlanLike,
    *,
    fidelity: Fidelity = "closed_form",
    registry: Registry | None = None,
) -> Estimate:
    """Return what a given plan takes on a job's pool, part by part, with its violations.

    Recomputation and ZeRO are the plan's where it says so, otherwise the job's. `fidelity` "event"
    simulates every operation of an iteration instead of the closed form.
    """
    registry, given = registry or Registry.load(), load_plan(plan)
    problem = build_problem(job_of_plan(load_job(job), given), registry=registry)
    if fidelity == "event":
        return _with_extra_terms(problem, given, estimate_events(problem, given).estimate, registry)
    return _estimate(problem, given, registry)


def simulate_events(
    job: JobLike, plan: PlanLike, *, registry: Registry | None = None
) -> EventResult:
    """Simulate every operation of one iteration; the result has the timeline of every worker."""
    given = load_plan(plan)
    problem = build_problem(job_of_plan(load_job(job), given), registry=registry or Registry.load())
    return estimate_events(problem, given, with_timeline=True)


def objective_value(problem: Problem, found: Estimate) -> float:
    """Return iterations a second, or the dollars an iteration that planners see."""
    if problem.objective is Objective.MAX_THROUGHPUT:
        return found.iterations_per_s
    return sum(term.usd_per_iteration for term in found.cost if term.optimised)


def _estimate(problem: Problem, plan: Plan, registry: Registry) -> Estimate:
    return _with_extra_terms(problem, plan, estimate(problem, plan), registry)


def _with_extra_terms(
    problem: Problem, plan: Plan, found: Estimate, registry: Registry
) -> Estimate:
    extra: Sequence[CostTerm] = [
        CostTerm(
            name=source.name,
            usd_per_iteration=source.usd_per_iteration(problem, plan, found),
            optimised=False,
        )
        for source in registry.cost_terms()
    ]
    if not extra:
        return found
    total = found.usd_per_iteration + sum(term.usd_per_iteration for term in extra)
    return found.model_copy(update={"cost": (*found.cost, *extra), "usd_per_iteration": total})


def _build(job: Job, objective: Objective, registry: Registry) -> Problem | None:
    """Return the problem of a changed job; None when the change makes no job."""
    try:
        return build_problem(job, objective=objective, registry=registry)
    except InputError:
        return None


def _limits(
    limits: Limits | None, gap: float | None, time_limit_s: float | None, processes: int | None
) -> Limits:
    """Return the limits with the others put in."""
    found = limits or Limits(processes=default_processes())
    if gap is not None:
        if not 0 <= gap < 1:
            raise InputError(f"{gap:g} is no gap", where="gap", hint="give a fraction: 0.02 is 2 %")
        found = replace(found, gap=gap)
    if time_limit_s is not None:
        if not (math.isfinite(time_limit_s) and time_limit_s > 0):
            raise InputError(
                f"{time_limit_s:g} is no time limit",
                where="time_limit_s",
                hint="give seconds above 0",
            )
        found = replace(found, wall_s=time_limit_s)
    if processes is not None:
        if processes < 1:
            raise InputError(
                f"{processes} is no number of processes", where="processes", hint="give 1 or more"
            )
        found = replace(found, processes=processes)
    return found


def _with_missed(
    decided: Decided, plan: Plan, planner: Planner, *, chosen: bool
) -> tuple[Decided, Relaxed]:
    """Return what was found with a plan that the search had missed.

    A planner of somebody else keeps its answer; the result only says that there is a plan.
    """
    if not type(planner).__module__.startswith("sailor."):
        return decided, Relaxed(changes=("planner dynamic has a plan",))
    outcome = replace(decided.outcome, plan=plan, proven=False, bound=None, reasons=())
    problem = decided.problems[0]
    return Decided((problem,), marked(problem, outcome) if chosen else outcome), Relaxed()


def _status(
    outcome: SearchOutcome, plan: Plan | None, value: float | None, bound: float | None
) -> Status:
    if plan is not None:
        proven = outcome.proven
        if plan is not outcome.plan:  # the event engine's choice: proven if it is as near the bound
            gap = _gap(value, bound)
            proven = proven and gap is not None and gap <= PROVEN_GAP
        return Status.OPTIMAL if proven else Status.FEASIBLE
    return Status.INFEASIBLE if outcome.proven else Status.NO_PLAN


def _gap(value: float | None, bound: float | None) -> float | None:
    if value is None or bound is None or bound == 0:
        return None
    return abs(value - bound) / abs(bound)


def _objective(name: Objective | str) -> Objective:
    try:
        return Objective(name)
    except ValueError:
        raise InputError(
            f"unknown objective {name!r}",
            where="objective",
            hint=f"known: {', '.join(Objective)}",
        ) from None


def _plan_of_result(result: Result, where: str) -> Plan:
    if result.plan is None:
        raise InputError(
            f"the result of {result.job} holds no plan ({result.status})",
            where=where,
            hint="take a result whose status is optimal or feasible",
        )
    return result.plan
