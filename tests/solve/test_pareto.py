"""The front of cost and throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.exhaustive import ExhaustivePlanner
from sailor.solve.pareto import pareto

REGISTRY = Registry.load(entry_points=False)
JOB = tiny_job(a100=3, v100=0, zones=1, batch=12, objective="max_throughput",
               cost_model="published")  # fmt: skip


def test_the_ends_are_the_fastest_and_the_cheapest_and_nothing_is_dominated() -> None:
    problem = build_problem(JOB, registry=REGISTRY)
    planner = ExhaustivePlanner()
    front = pareto(problem, planner, num_points=5)
    assert 2 <= len(front) <= 5
    best = {}
    for objective in Objective:
        case = problem.model_copy(update={"objective": objective})
        plan = planner.solve(case, Limits(), lambda p: None, lambda: False).plan
        assert plan is not None
        best[objective] = estimate(case, plan)
    fast, cheap = best[Objective.MAX_THROUGHPUT], best[Objective.MIN_COST]
    assert front[-1].estimate.iterations_per_s == pytest.approx(fast.iterations_per_s)
    assert front[0].estimate.usd_per_iteration == pytest.approx(cheap.usd_per_iteration)
    for slower, faster in pairwise(front):
        assert faster.estimate.iterations_per_s > slower.estimate.iterations_per_s
        assert faster.estimate.usd_per_iteration > slower.estimate.usd_per_iteration
    for point in front:
        assert point.gap == pytest.approx(0.0, abs=1e-9)  # the oracle proves every point
        assert not point.estimate.violations


def test_an_impossible_job_has_no_front() -> None:
    job = {**JOB, "constraints": {"min_iterations_per_s": 1e6}}
    assert pareto(build_problem(job, registry=REGISTRY), ExhaustivePlanner()) == ()


def test_a_front_of_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        pareto(build_problem(JOB, registry=REGISTRY), ExhaustivePlanner(), num_points=1)


class Silly:
    """A planner that finds the fastest plan, whatever it is asked for; says so in turn."""

    name = "silly"

    def __init__(self) -> None:
        self.walls: list[float | None] = []

    def unsupported(self, problem: Problem) -> Sequence[str]:
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        self.walls.append(limits.wall_s)
        on_progress(Progress("looking"))
        fast = problem.model_copy(update={"objective": Objective.MAX_THROUGHPUT})
        found = ExhaustivePlanner().solve(fast, Limits(), lambda p: None, lambda: False)
        cheap = problem.model_copy(update={"objective": Objective.MIN_COST})
        other = ExhaustivePlanner().solve(cheap, Limits(), lambda p: None, lambda: False)
        return SearchOutcome(found.plan, finalists=(other.plan,) if other.plan else ())


def test_a_point_takes_the_best_plan_that_any_search_came_by() -> None:
    problem = build_problem(JOB, registry=REGISTRY)
    planner, seen = Silly(), []
    front = pareto(problem, planner, num_points=4, limits=Limits(wall_s=8.0),
                   on_progress=seen.append)  # fmt: skip
    best = pareto(problem, ExhaustivePlanner(), num_points=4)
    assert front[0].estimate.usd_per_iteration == best[0].estimate.usd_per_iteration
    assert [point.gap for point in front] == [None] * len(front)
    assert planner.walls[0] == pytest.approx(2.0, abs=0.1)
    assert seen[0].message == "point 1 of 4: looking"


def test_a_stopped_front_has_the_points_so_far() -> None:
    problem = build_problem(JOB, registry=REGISTRY)
    calls = iter([False, True, True, True, True])
    front = pareto(problem, ExhaustivePlanner(), should_stop=lambda: next(calls, True))
    assert len(front) <= 1
