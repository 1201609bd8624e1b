"""Plans of unlike pipelines: found where they gain, scored as the simulator does, and legal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.cpsat import CpSatPlanner
from sailor.solve.dynamic import Search, searched
from sailor.solve.heuristics.finish import finish
from sailor.solve.heuristics.sketch import Mixture, to_batch
from sailor.solve.mixtures import MixRules, mixtures
from sailor.solve.rules import active_rules
from sailor.solve.search import Budget

REGISTRY = Registry.load(entry_points=False)


def problem_of(a100: int, v100: int, batch: int, *, shares: bool, **more: object) -> Problem:
    job = tiny_job(a100=a100, v100=v100, zones=1, batch=batch, objective="max_throughput")
    job["search_space"] = {**job["search_space"], "microbatch_shares": shares}
    return build_problem({**job, **more}, registry=REGISTRY)


def never() -> bool:
    return False


def search_of(problem: Problem) -> Search:
    return searched(problem, active_rules(()), Budget(None, never), lambda progress: None)[0]


def mixtures_of(problem: Problem, search: Search, over: Callable[[], bool] = never) -> list[float]:
    rules = MixRules.of(problem)
    assert rules is not None
    found = mixtures(search.grid, search.scorer, rules, search.found.best, 0, over)
    for one in found:
        assert isinstance(one.sketch, Mixture)
        batch = to_batch(one.cell, one.sketch)
        assert one.score == pytest.approx(float(search.scorer(one.cell.search, batch)[0]))
        done = finish(problem, [one], search.pools)
        assert done is not None
        value, plan = done
        # The search's shares are by bisection, and may end a little later.
        assert value <= one.score * (1 + 1e-9)
        assert value >= one.score * (1 - 1e-5)
        checked = estimate(problem, plan)
        assert checked.iteration_s == pytest.approx(value)
        assert checked.violations == ()
        shared = [replica.num_microbatches for replica in plan.stages[0].replicas]
        assert sum(shared) * plan.stages[0].replicas[0].microbatch >= 60
    return [one.score for one in found]


def test_unlike_pipelines_beat_what_the_local_search_finds() -> None:
    """Six A100 and ten V100: the dynamic programme with shares, and what stands side by side."""
    problem = problem_of(6, 10, 60, shares=True)
    search = search_of(problem)
    whole = search.found.best[0].score
    search.found.best = [
        one
        for one in search.found.best
        if len(set(one.sketch.first[0])) == 1 and not one.sketch.num_second.any()
    ]
    before = search.found.best[0].score
    found = mixtures_of(problem, search)
    assert found
    assert found == sorted(found)
    assert found[0] < 0.9 * before  # one type alone leaves the other idle
    assert found[0] < 1.02 * whole


def test_limits_on_gpus_and_pipelines_hold() -> None:
    for constraints in ({"max_gpus": 9}, {"dp": 4}, {"pp": 2}):
        problem = problem_of(6, 10, 60, shares=True, constraints=constraints)
        search = search_of(problem)
        worst = search.found.best[-1:]
        search.found.best = worst
        mixtures_of(problem, search)


def test_no_unlike_pipelines_where_they_cant_gain() -> None:
    assert MixRules.of(problem_of(2, 2, 8, shares=False)) is None
    assert MixRules.of(problem_of(2, 2, 8, shares=True, objective="min_cost")) is None
    limited = problem_of(2, 2, 8, shares=True, constraints={"max_usd_per_iteration": 1.0})
    assert MixRules.of(limited) is None
    coupled = problem_of(2, 2, 8, shares=True, cost_model="published")
    search = search_of(coupled)
    rules = MixRules.of(coupled)
    assert rules is not None
    assert mixtures(search.grid, search.scorer, rules, search.found.best, 0, never) == []
    alike = problem_of(6, 10, 60, shares=True)
    assert mixtures_of(alike, search_of(alike), over=lambda: True) == []


def test_the_planner_is_no_worse_with_unequal_shares_and_keeps_to_its_bound() -> None:
    found = {}
    for shares in (False, True):
        problem = problem_of(3, 5, 40, shares=shares)
        outcome = CpSatPlanner().solve(problem, Limits(wall_s=8.0), lambda progress: None, never)
        assert outcome.plan is not None
        assert outcome.bound is not None
        found[shares] = estimate(problem, outcome.plan).iteration_s
        assert 1 / outcome.bound <= found[shares] * (1 + 1e-9)
    assert found[True] <= found[False] * (1 + 1e-9)
