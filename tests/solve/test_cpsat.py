"""Planner `cpsat`: bound <= optimum <= plan, limits, determinism, being stopped."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem, plan_problem
from sailor.interfaces import Limits, Planner, Progress
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.model.result import Result, Status
from sailor.registry import Registry
from sailor.solve.cpsat import CpSatPlanner
from sailor.solve.exhaustive import ExhaustivePlanner

pytest.importorskip("ortools")
REGISTRY = Registry.load(entry_points=False)


def problem_of(**job: Any) -> Problem:
    return build_problem(tiny_job(**job), registry=REGISTRY)


def solve(problem: Problem, planner: Planner, **more: Any) -> Result:
    return plan_problem(
        problem,
        planner,
        REGISTRY,
        limits=more.get("limits", Limits()),
        on_progress=more.get("on_progress", lambda progress: None),
        should_stop=more.get("should_stop", lambda: False),
        events=False,
    )


@pytest.mark.parametrize("cost_model", ["published", "sailor"])
@pytest.mark.parametrize("objective", ["max_throughput", "min_cost"])
@pytest.mark.parametrize(("a100", "v100", "batch"), [(1, 2, 7), (2, 2, 4)])
def test_the_optimum_lies_between_bound_and_plan(
    a100: int, v100: int, batch: int, objective: str, cost_model: str
) -> None:
    problem = problem_of(a100=a100, v100=v100, zones=1, batch=batch, objective=objective,
                         cost_model=cost_model)  # fmt: skip
    exact, found = solve(problem, ExhaustivePlanner()), solve(problem, CpSatPlanner())
    assert exact.objective_value is not None
    assert found.objective_value is not None
    assert found.bound is not None
    sign = 1 if problem.objective is Objective.MIN_COST else -1
    values = [sign * v for v in (found.bound, exact.objective_value, found.objective_value)]
    assert values[0] <= values[1] + 1e-9 * abs(values[1])
    assert values[1] <= values[2] + 1e-9 * abs(values[2])
    if found.status is Status.OPTIMAL:
        assert found.objective_value == pytest.approx(exact.objective_value, rel=1.1e-4)


def test_the_plan_is_the_optimum_of_most_tiny_problems() -> None:
    hits = 0
    cases = [(a, v, b) for a in (0, 2) for v in (1, 2) for b in (4, 7)]
    for a100, v100, batch in cases:
        problem = problem_of(a100=a100, v100=v100, zones=1, batch=batch,
                             objective="max_throughput", cost_model="published")  # fmt: skip
        exact, found = solve(problem, ExhaustivePlanner()), solve(problem, CpSatPlanner())
        assert exact.objective_value is not None
        assert found.objective_value is not None
        hits += found.objective_value >= exact.objective_value * (1 - 1e-9)
    assert hits >= len(cases) - 1


def test_it_names_its_space_and_is_deterministic() -> None:
    problem = problem_of(a100=2, v100=2, zones=2, batch=12, objective="max_throughput",
                         cost_model="published")  # fmt: skip
    first, second = solve(problem, CpSatPlanner()), solve(problem, CpSatPlanner())
    assert first.plan == second.plan
    assert (first.bound, first.evaluations) == (second.bound, second.evaluations)
    assert "space of the bound" in first.rules[0]
    assert any("zones of a region" in rule for rule in first.rules)


@pytest.mark.parametrize("calls", [0, 60, 300])
def test_stopped_early_it_still_has_a_plan_and_any_bound_is_valid(calls: int) -> None:
    problem = problem_of(a100=2, v100=2, zones=1, batch=6, objective="max_throughput",
                         cost_model="published")  # fmt: skip
    exact = solve(problem, ExhaustivePlanner())
    left = iter(range(calls))
    found = solve(problem, CpSatPlanner(), should_stop=lambda: next(left, None) is None)
    assert found.plan is not None
    assert exact.objective_value is not None
    if calls == 0:
        assert found.stopped_early
    if found.bound is None:
        assert "stopped before" in found.rules[0]
    if calls == 300:
        assert found.bound is not None
    if found.bound is not None:
        assert found.bound >= exact.objective_value * (1 - 1e-9)


def test_progress_says_incumbent_bound_gap_and_cells() -> None:
    problem = problem_of(a100=2, v100=2, zones=1, batch=6, objective="max_throughput",
                         cost_model="published")  # fmt: skip
    seen: list[Progress] = []
    solve(problem, CpSatPlanner(), on_progress=seen.append)
    last = [progress for progress in seen if progress.gap is not None][-1]
    assert last.bound is not None
    assert last.cells_left is not None
    assert last.objective_value is not None
    assert last.gap == pytest.approx((last.bound - last.objective_value) / last.bound)


def test_no_plan_comes_with_reasons() -> None:
    problem = problem_of(a100=1, v100=1, zones=1, batch=4, objective="max_throughput",
                         cost_model="published",
                         constraints={"min_iterations_per_s": 1e6})  # fmt: skip
    found = solve(problem, CpSatPlanner())
    assert found.plan is None
    assert "min_iterations_per_s" in found.reasons[0]


@pytest.mark.parametrize("objective", ["max_throughput", "min_cost"])
def test_unequal_shares_get_a_bound_on_time_alone_in_the_default_model(objective: str) -> None:
    job = tiny_job(a100=2, v100=2, zones=1, batch=12, objective=objective)
    job["search_space"] = {**job["search_space"], "microbatch_shares": True}
    found = solve(build_problem(job, registry=REGISTRY), CpSatPlanner())
    assert found.plan is not None
    if objective == "min_cost":
        assert found.bound is None
        assert "no bound" in found.rules[0]
    else:
        assert found.bound is not None
        assert "with any microbatch shares" in found.rules[0]
