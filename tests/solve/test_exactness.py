"""Planners against the oracle on generated small problems: bound <= optimum <= plan.

A sample runs here; `python benchmarks/exactness.py` runs all of them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_problems import (
    REGISTRY,
    Outcome,
    best_value,
    dearer,
    faults,
    larger,
    renamed,
    small_problem,
)
from tiny_jobs import tiny_job

import sailor
from sailor.model.job import Objective
from sailor.solve.exhaustive import ExhaustivePlanner

SAMPLE = range(1000, 1014)


@pytest.mark.parametrize("seed", SAMPLE)
def test_bound_optimum_and_plan_are_in_order(seed: int) -> None:
    pytest.importorskip("ortools")
    problem = small_problem(seed)
    exact = Outcome(problem, "exhaustive")
    assert exact.value is None or exact.bound == pytest.approx(exact.value, rel=1e-12)
    for planner in ("dynamic", "cpsat", "auto"):
        assert faults(exact, Outcome(problem, planner, cpu_s=1.0)) == []


@pytest.mark.parametrize("seed", range(1100, 1112))
def test_prices_offers_and_names_act_as_they_should(seed: int) -> None:
    problem, rng = small_problem(seed), random.Random(seed)
    value = best_value(problem, problem.objective)
    if value is None:
        assert best_value(dearer(problem, rng), problem.objective) is None
        return
    sign = -1.0 if problem.objective is Objective.MAX_THROUGHPUT else 1.0
    dear = best_value(dearer(problem, rng), problem.objective)
    assert dear is None or sign * dear >= sign * value - 1e-9 * value
    more = best_value(larger(problem, rng), problem.objective)
    assert more is not None
    assert sign * more <= sign * value + 1e-9 * value
    assert best_value(renamed(problem), problem.objective) == pytest.approx(value, rel=1e-12)


def test_the_oracle_counts_pipelines_that_differ_in_order_once() -> None:
    """Two kinds, four pipelines of one stage: five ways to choose, two orders of each mix."""
    job = tiny_job(a100=4, v100=4, zones=1, batch=4, objective="max_throughput",
                   search_space={"tp": [1], "microbatch": [1], "max_pp": 1})  # fmt: skip
    job["constraints"] = {"dp": 4}
    problem = sailor.build_problem(job, registry=REGISTRY)
    found = ExhaustivePlanner().solve(problem, sailor.Limits(), lambda p: None, lambda: False)
    assert found.evaluations == 2 + 3 * 2
    assert found.plan is not None
    assert {r.gpu for r in found.plan.stages[0].replicas} == {"A100-40GB"}


def test_more_than_the_oracle_takes_is_refused_with_the_number() -> None:
    problem = small_problem(1000)
    (reason,) = ExhaustivePlanner(most_plans=10).unsupported(problem)
    assert reason == "it has over 10 plans, the most that exhaustive takes"


def test_useless_offers_are_left_and_the_result_says_so() -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=12, objective="min_cost")
    job["catalog"]["prices"] = [
        {**price, "usd_per_hour": 500.0} if price["node_type"].startswith("n1") else price
        for price in job["catalog"]["prices"]
    ]
    found = sailor.optimize(job, planner="exhaustive", registry=REGISTRY)
    assert found.plan is not None
    assert {r.gpu for stage in found.plan.stages for r in stage.replicas} == {"A100-40GB"}
    assert "V100-16GB on_demand in us-central1-a: 3 of 3 GPUs" in found.unused
    everything = sailor.optimize({**job, "constraints": {"dp": 1, "pp": 2, "tp": 1, "gpu_types":
                                  ["A100-40GB"]}}, planner="exhaustive",
                                 registry=REGISTRY)  # fmt: skip
    assert everything.unused == ()
