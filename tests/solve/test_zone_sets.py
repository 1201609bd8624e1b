"""Limits on nodes and zones: the plans keep them, and are the best that do."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.api import build_problem
from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.solve.decide import decide
from sailor.solve.exhaustive import ExhaustivePlanner
from sailor.solve.zone_sets import MOST_SETS, zone_sets

REGISTRY = Registry.load(entry_points=False)
PLANNERS = ("dynamic", "cpsat", "auto", "exhaustive")


def job(objective: str = "max_throughput", **limits: Any) -> dict[str, Any]:
    return tiny_job(a100=1, v100=1, zones=3, batch=16, objective=objective, constraints=limits)


def plan(document: dict[str, Any], planner: str = "exhaustive") -> sailor.Result:
    return sailor.optimize(document, planner=planner, registry=REGISTRY)


def zones_of(found: sailor.Result) -> set[str]:
    assert found.estimate is not None
    return {node.zone for node in found.estimate.nodes}


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_best_plan_of_one_zone_is_the_best_of_the_jobs_that_name_a_zone(planner: str) -> None:
    alone = [
        plan(job(zones=[zone])).objective_value or 0.0
        for zone in ("us-central1-a", "us-central1-b", "us-central1-c")
    ]
    found = plan(job(max_zones=1), planner)
    assert found.objective_value == pytest.approx(max(alone))
    assert zones_of(found) == {"us-central1-a"}  # which has V100s, too
    free = plan(job())
    assert len(zones_of(free)) > 1
    assert (free.objective_value or 0.0) > max(alone) * 1.2
    assert f"zones us-central1-a: {max(alone):.4g} it/s" in next(
        rule for rule in found.rules if rule.startswith("searched with each of")
    )
    if planner != "dynamic":
        assert found.bound is not None
        assert found.bound >= max(alone) * (1 - 1e-9)


def test_two_zones_may_be_any_two() -> None:
    pairs = [
        plan(job(zones=list(pair))).objective_value or 0.0
        for pair in combinations(("us-central1-a", "us-central1-b", "us-central1-c"), 2)
    ]
    found = plan(job(max_zones=2))
    assert found.objective_value == pytest.approx(max(pairs))
    assert max(pairs) > min(pairs)
    assert zones_of(found) == {"us-central1-b", "us-central1-c"}


def test_a_plan_over_more_zones_or_nodes_is_told_so() -> None:
    free = plan(job())
    assert free.plan is not None
    checked = sailor.simulate(job(max_zones=1, max_nodes=1), free.plan, registry=REGISTRY)
    said = " ".join(checked.violations)
    assert "are more than max_zones 1" in said
    assert "rented nodes are over max_nodes 1" in said


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("objective", ["max_throughput", "min_cost"])
def test_nodes_are_counted_and_the_plan_within_is_the_oracle_s(
    planner: str, objective: str
) -> None:
    values = []
    for nodes in (1, 2, 3) if planner in ("dynamic", "exhaustive") else (2,):
        document = job(objective, max_nodes=nodes, min_iterations_per_s=1e-3)
        found, exact = plan(document, planner), plan(document)
        assert found.estimate is not None
        assert sum(node.count for node in found.estimate.nodes) <= nodes
        assert found.objective_value == pytest.approx(exact.objective_value)
        values.append(exact.objective_value or 0.0)
    if objective == "max_throughput" and len(values) > 1:
        assert values == sorted(values)
        assert values[2] > values[0]


def test_no_plan_within_the_limits_names_the_one_to_give_up() -> None:
    fast = plan(job()).objective_value or 0.0
    found = plan(job(max_zones=1, min_iterations_per_s=fast * 0.99), "dynamic")
    assert found.plan is None
    assert any(change.startswith("max_zones 1 -> ") for change in found.relaxations)
    found = plan(job(max_nodes=1, min_iterations_per_s=fast * 0.99), "dynamic")
    change = next(c for c in found.relaxations if c.startswith("max_nodes 1 -> "))
    more = int(change.rsplit(" ", 1)[1])
    assert plan(job(max_nodes=more, min_iterations_per_s=fast * 0.99)).plan is not None
    assert plan(job(max_nodes=more - 1, min_iterations_per_s=fast * 0.99)).plan is None


def test_max_gpus_counts_whole_context_parallel_groups() -> None:
    document = job(max_gpus=2)
    document["training"] = {**document["training"], "cp": 2}
    document["pool"] = [{**offer, "quota": 2} for offer in document["pool"]]
    for planner in ("dynamic", "exhaustive"):
        found = plan(document, planner)
        assert found.estimate is not None, found.reasons
        assert sum(node.gpus_rented for node in found.estimate.nodes) == 2


def many_zones(problem: Problem, num_zones: int, most: int) -> Problem:
    """Return the problem with copies of its first placement in so many zones."""
    zone, place = problem.zones[0], problem.placements[0]
    capacity = next(c for c in problem.capacities if 0 in c.placements)
    names = [f"zone-{number:02}" for number in range(num_zones)]
    return problem.model_copy(
        update={
            "zones": tuple(zone.model_copy(update={"name": name}) for name in names),
            "placements": tuple(place.model_copy(update={"zone": name}) for name in names),
            "capacities": tuple(
                capacity.model_copy(update={"placements": (n,), "max_gpus": 1 + n})
                for n in range(num_zones)
            ),
            "constraints": problem.constraints.model_copy(update={"max_zones": most}),
        }
    )


def test_of_very_many_sets_the_largest_are_looked_at_and_the_result_says_so() -> None:
    problem = many_zones(build_problem(job(), registry=REGISTRY), 40, 3)
    sets = zone_sets(problem)
    assert sets is not None
    assert len(sets.problems) == MOST_SETS
    assert sets.left_out == 40 * 39 * 38 // 6 - MOST_SETS
    assert sets.problems[0][0] == "zone-37, zone-38, zone-39"
    assert [len(c.placements) for c in sets.problems[0][1].capacities] == [1, 1, 1]
    assert zone_sets(many_zones(problem, 3, 3)) is None


class Bounded:
    """A planner that reports a bound, and notes whether it was told to stop."""

    name = "bounded"

    def __init__(self) -> None:
        self.stopped: list[bool] = []

    def unsupported(self, problem: Problem) -> tuple[str, ...]:
        return ()

    def solve(
        self, problem: Problem, limits: Limits, on_progress: Any, should_stop: Any
    ) -> SearchOutcome:
        exact = ExhaustivePlanner().solve(problem, limits, lambda p: None, lambda: False)
        on_progress(Progress("bounded", bound=exact.bound))
        self.stopped.append(should_stop())
        return exact


def test_a_search_that_cannot_beat_another_s_plan_ends() -> None:
    problem, planner = build_problem(job(max_zones=1), registry=REGISTRY), Bounded()
    decided = decide([problem], planner, Limits(), lambda p: None, lambda: False, chosen=False)
    assert planner.stopped == [False, True, True]
    assert decided.outcome.proven
    assert not decided.outcome.stopped_early
