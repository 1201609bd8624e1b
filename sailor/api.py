"""The public functions. They compose the layers below, return records, and never print."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
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
from sailor.sim.estimate import estimate
from sailor.sim.fidelity import EventResult, Fidelity, estimate_events
from sailor.solve.pareto import ParetoPoint
from sailor.solve.pareto import pareto as front

DEFAULT_PLANNER = "dynamic"

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
    limits: Limits | None = None,
    registry: Registry | None = None,
    strict: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Plan a job: what to rent, how to split the model, what it takes.

    `objective` overrides the job's ("max_throughput": iterations a second; "min_cost": dollars an
    iteration). Infeasible is a result with reasons; InputError is for a job that can't be right.
    """
    registry = registry or Registry.load()
    problem = build_problem(job, objective=objective, registry=registry, strict=strict)
    return plan_problem(
        problem,
        registry.planner(planner, where="planner"),
        registry,
        limits=limits or Limits(),
        on_progress=on_progress or (lambda progress: None),
        should_stop=should_stop or (lambda: False),
    )


def pareto(
    job: JobLike,
    *,
    points: int = 8,
    planner: str = DEFAULT_PLANNER,
    limits: Limits | None = None,
    registry: Registry | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[ParetoPoint, ...]:
    """Return up to `points` plans between the cheapest and the fastest; none beats another.

    Slowest first. The job's own limits hold for every point; empty when there is no plan.
    """
    registry = registry or Registry.load()
    return front(
        build_problem(job, registry=registry),
        registry.planner(planner, where="planner"),
        num_points=points,
        limits=limits or Limits(),
        on_progress=on_progress or (lambda progress: None),
        should_stop=should_stop or (lambda: False),
    )


def plan_problem(
    problem: Problem,
    planner: Planner,
    registry: Registry,
    *,
    limits: Limits,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> Result:
    """Search one resolved problem and estimate what was found."""
    reasons = tuple(planner.unsupported(problem))
    if reasons:
        raise InputError(
            f"planner {planner.name!r} can't take this job: {'; '.join(reasons)}",
            where="planner",
            hint="choose another --planner",
        )
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = planner.solve(problem, limits, on_progress, should_stop)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = None if outcome.plan is None else _estimate(problem, outcome.plan, registry)
    value = None if found is None else objective_value(problem, found)
    return Result(
        status=_status(outcome),
        job=problem.job,
        objective=problem.objective,
        cost_model=problem.cost_model,
        planner=planner.name,
        plan=outcome.plan,
        estimate=found,
        objective_value=value,
        bound=outcome.bound,
        gap=_gap(value, outcome.bound),
        rules=outcome.rules,
        reasons=outcome.reasons,
        excluded=problem.excluded,
        assumptions=problem.assumptions,
        stopped_early=outcome.stopped_early,
        evaluations=outcome.evaluations,
        problem_digest=problem.digest(),
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

    `fidelity` "event" simulates every operation of an iteration instead of the closed form.
    """
    registry = registry or Registry.load()
    problem, given = build_problem(job, registry=registry), load_plan(plan)
    if fidelity == "event":
        return _with_extra_terms(problem, given, estimate_events(problem, given).estimate, registry)
    return _estimate(problem, given, registry)


def simulate_events(
    job: JobLike, plan: PlanLike, *, registry: Registry | None = None
) -> EventResult:
    """Simulate every operation of one iteration; the result has the timeline of every worker."""
    problem = build_problem(job, registry=registry or Registry.load())
    return estimate_events(problem, load_plan(plan), with_timeline=True)


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


def _status(outcome: SearchOutcome) -> Status:
    if outcome.plan is not None:
        return Status.OPTIMAL if outcome.proven else Status.FEASIBLE
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
