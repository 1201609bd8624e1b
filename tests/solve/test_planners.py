"""Properties of the planners over generated tiny problems, with `exhaustive` as the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_jobs import tiny_job

from sailor.api import build_problem, objective_value, optimize, plan_problem
from sailor.interfaces import Limits
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.model.result import Result, Status
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.pools import slots_of

REGISTRY = Registry.load(entry_points=False)


def solve(problem: Problem, planner: str) -> Result:
    return plan_problem(
        problem,
        REGISTRY.planner(planner),
        REGISTRY,
        limits=Limits(),
        on_progress=lambda progress: None,
        should_stop=lambda: False,
        events=False,
    )


def better(problem: Problem, a: float, b: float) -> bool:
    """Whether value a is better than b beyond rounding."""
    if problem.objective is Objective.MAX_THROUGHPUT:
        return a > b * (1 + 1e-9)
    return a < b * (1 - 1e-9)


tiny_problems = st.builds(
    tiny_job,
    a100=st.integers(0, 2),
    v100=st.integers(1, 3),
    zones=st.integers(1, 2),
    batch=st.sampled_from([4, 6, 7, 12]),
    objective=st.sampled_from(["max_throughput", "min_cost"]),
    cost_model=st.sampled_from(["sailor", "published"]),
)


def problem_of(job: dict[str, Any]) -> Problem:
    # The analytic profiles are slow to build 200 times over; the job is small enough.
    return build_problem(job, registry=REGISTRY)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(job=tiny_problems)
def test_dynamic_never_beats_exhaustive_and_is_near_it(job: dict[str, Any]) -> None:
    problem = problem_of(job)
    exact, found = solve(problem, "exhaustive"), solve(problem, "dynamic")
    assert exact.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if exact.plan is None:
        assert found.plan is None
        return
    assert found.plan is not None, "dynamic found nothing where a plan exists"
    assert found.objective_value is not None
    assert exact.objective_value is not None
    assert not better(problem, found.objective_value, exact.objective_value)
    ratio = found.objective_value / exact.objective_value
    assert 0.97 <= ratio <= 1.03


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(job=tiny_problems, planner=st.sampled_from(["dynamic", "exhaustive"]))
def test_a_planner_reports_what_the_simulator_says(job: dict[str, Any], planner: str) -> None:
    problem = problem_of(job)
    result = solve(problem, planner)
    if result.plan is None:
        return
    again = estimate(problem, result.plan)
    assert again == result.estimate
    assert again.violations == ()
    assert result.objective_value == objective_value(problem, again)
    assert again.samples == problem.training.global_batch
    total = sum(term.usd_per_iteration for term in again.cost)
    rent = sum(node.usd_per_hour for node in again.nodes) / 3600 * again.iteration_s
    assert total == pytest.approx(rent + again.cost[1].usd_per_iteration, rel=1e-12)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(job=tiny_problems)
def test_scaling_all_prices_scales_the_cost(job: dict[str, Any]) -> None:
    problem = problem_of({**job, "objective": "min_cost"})
    dear = problem.model_copy(
        update={
            "placements": tuple(
                p.model_copy(update={"usd_per_hour": 3 * p.usd_per_hour})
                for p in problem.placements
            ),
            "egress": tuple(
                e.model_copy(update={"usd_per_byte": 3 * e.usd_per_byte}) for e in problem.egress
            ),
        }
    )
    cheap, costly = solve(problem, "exhaustive"), solve(dear, "exhaustive")
    if cheap.objective_value is None:
        return
    assert costly.objective_value == pytest.approx(3 * cheap.objective_value, rel=1e-9)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(job=tiny_problems)
def test_more_gpus_never_make_an_exact_plan_worse(job: dict[str, Any]) -> None:
    problem = problem_of(job)
    more = problem.model_copy(
        update={
            "capacities": tuple(
                c.model_copy(update={"max_gpus": (c.max_gpus or 0) + (len(problem.zones) == 1)})
                for c in problem.capacities[-1:]
            )
        }
    )
    more = problem.model_copy(update={"capacities": (*problem.capacities[:-1], *more.capacities)})
    small, large = solve(problem, "exhaustive"), solve(more, "exhaustive")
    if small.objective_value is not None:
        assert large.objective_value is not None
        assert not better(problem, small.objective_value, large.objective_value)


def test_a_search_is_deterministic() -> None:
    problem = problem_of(tiny_job(a100=4, v100=4, zones=2, batch=12, objective="max_throughput"))
    first, second = solve(problem, "dynamic"), solve(problem, "dynamic")
    assert first.plan == second.plan
    assert first.evaluations == second.evaluations


def test_the_search_space_switches_are_obeyed() -> None:
    base = tiny_job(a100=3, v100=3, zones=1, batch=12, objective="max_throughput")
    for planner in ("dynamic", "exhaustive"):
        even = solve(problem_of({**base, "search_space": {
            **base["search_space"], "uneven_layers": False}}), planner)  # fmt: skip
        assert even.plan is not None
        sizes = [stage.stop - stage.start for stage in even.plan.stages]
        assert max(sizes) - min(sizes) <= 1
        one_tp = solve(problem_of({**base, "search_space": {
            **base["search_space"], "tp_per_stage": False}}), planner)  # fmt: skip
        assert one_tp.plan is not None
        assert len({r.tp for stage in one_tp.plan.stages for r in stage.replicas}) == 1
        pure = solve(problem_of({**base, "search_space": {
            **base["search_space"], "mixed_types_in_stage": False}}), planner)  # fmt: skip
        assert pure.plan is not None
        assert all(len({r.gpu for r in stage.replicas}) == 1 for stage in pure.plan.stages)


@pytest.mark.parametrize("planner", ["dynamic", "exhaustive"])
def test_pinned_degrees_are_kept(planner: str) -> None:
    base = tiny_job(a100=3, v100=3, zones=1, batch=12, objective="max_throughput")
    for name, value in (("pp", 2), ("dp", 2), ("tp", 2), ("microbatch", 2)):
        result = solve(problem_of({**base, "constraints": {name: value}}), planner)
        assert result.plan is not None, name
        replicas = [r for stage in result.plan.stages for r in stage.replicas]
        found = {
            "pp": {result.plan.pp},
            "dp": {result.plan.dp},
            "tp": {r.tp for r in replicas},
            "microbatch": {r.microbatch for r in replicas},
        }[name]
        assert found == {value}, name


def test_limits_are_met_or_said_to_be_impossible() -> None:
    base = tiny_job(a100=3, v100=3, zones=1, batch=12, objective="min_cost")
    free = solve(problem_of(base), "exhaustive")
    fast = solve(problem_of({**base, "objective": "max_throughput"}), "exhaustive")
    assert free.estimate is not None
    assert fast.estimate is not None
    floor = (free.estimate.iterations_per_s + fast.estimate.iterations_per_s) / 2
    for planner in ("dynamic", "exhaustive"):
        bound = solve(problem_of({**base, "constraints": {"min_iterations_per_s": floor}}), planner)
        assert bound.estimate is not None
        assert bound.estimate.iterations_per_s >= floor * (1 - 1e-9)
        assert bound.objective_value is not None
        assert free.objective_value is not None
        assert bound.objective_value >= free.objective_value * (1 - 1e-9)
        impossible = solve(
            problem_of({**base, "constraints": {"min_iterations_per_s": 10 * floor * 1000}}),
            planner,
        )
        assert impossible.plan is None
        assert "min_iterations_per_s" in impossible.reasons[0]


def test_a_quota_is_used_up_in_whole_nodes() -> None:
    """51 GPUs in nodes of four: 48 can be rented. With nodes of one all can."""
    for node_types, usable in ((["a2-highgpu-4g"], 48), (["a2-highgpu-4g", "a2-highgpu-1g"], 51)):
        job = {
            "name": "whole-nodes", "model": "opt-350m",
            "training": {"global_batch": 408, "precision": "fp32"},
            "pool": [{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 51,
                      "node_types": node_types}],
        }  # fmt: skip
        problem = build_problem(job)
        assert [slot.num_gpus for slot in slots_of(problem)] == [usable]
        result = optimize(job, planner="dynamic")
        assert result.estimate is not None
        assert result.estimate.violations == ()
        assert result.estimate.nodes[0].gpus_rented <= usable
