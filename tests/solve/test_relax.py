"""What would make a job feasible: the conflict is named, and every suggestion works."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.model.result import Result
from sailor.registry import Registry

REGISTRY = Registry.load(entry_points=False)


def job(**limits: Any) -> dict[str, Any]:
    return tiny_job(a100=3, v100=3, zones=1, batch=12, objective="min_cost", constraints=limits)


def plan(document: dict[str, Any], planner: str = "dynamic") -> Result:
    return sailor.optimize(document, planner=planner, registry=REGISTRY)


def number(sentence: str) -> float:
    return float(sentence.rsplit(" ", 1)[1])


@pytest.fixture(scope="module")
def ends() -> tuple[float, float]:
    """The least dollars and the most iterations a second of the pool, by the oracle."""
    cheap, fast = plan(job(), "exhaustive"), plan({**job(), "objective": "max_throughput"},
                                                 "exhaustive")  # fmt: skip
    assert cheap.objective_value is not None
    assert fast.objective_value is not None
    return cheap.objective_value, fast.objective_value


def test_a_budget_below_the_cheapest_plan_is_raised_to_it(ends: tuple[float, float]) -> None:
    least_usd = ends[0]
    found = plan(job(max_usd_per_iteration=least_usd * 0.9))
    assert found.plan is None
    assert (
        found.reasons[0] == f"max_usd_per_iteration {least_usd * 0.9:g} can't be met on this pool"
    )
    (change,) = found.relaxations
    assert change.startswith(f"max_usd_per_iteration {least_usd * 0.9:g} -> ")
    assert least_usd <= number(change) <= least_usd * 1.01
    assert plan(job(max_usd_per_iteration=number(change))).plan is not None


def test_a_floor_above_the_fastest_plan_is_lowered_to_it(ends: tuple[float, float]) -> None:
    found = plan(job(min_iterations_per_s=ends[1] * 2))
    (change,) = found.relaxations
    assert ends[1] * 0.99 <= number(change) <= ends[1]
    assert plan(job(min_iterations_per_s=number(change))).plan is not None


def test_two_limits_in_conflict_are_both_named_and_a_third_is_not(
    ends: tuple[float, float],
) -> None:
    usd, rate = ends[0] * 1.001, ends[1] * 0.999
    found = plan(job(max_usd_per_iteration=usd, min_iterations_per_s=rate, max_gpus=6))
    assert found.plan is None
    assert found.reasons[0] == (
        f"max_usd_per_iteration {usd:g} and min_iterations_per_s {rate:g} are in conflict: no plan "
        "was found that meets all"
    )
    assert len(found.relaxations) == 2
    for change in found.relaxations:
        name, new = change.split(" ", 1)[0], number(change)
        limits = {"max_usd_per_iteration": usd, "min_iterations_per_s": rate, name: new}
        assert plan(job(**limits, max_gpus=6)).plan is not None, change


def test_a_plan_that_only_the_other_objective_s_search_finds_is_an_answer(
    ends: tuple[float, float],
) -> None:
    found = plan(job(min_iterations_per_s=ends[1] * 0.9999))
    assert found.plan is not None
    assert found.estimate is not None
    assert found.estimate.iterations_per_s == pytest.approx(ends[1])
    assert (found.reasons, found.relaxations) == ((), ())
    assert found.event is not None
    assert found.event.iteration_s > 0
    document = job(min_iterations_per_s=ends[1] * 0.9999)
    document["search_space"] = {**document["search_space"], "zero": [0]}
    decided = plan({**document, "training": {**document["training"], "zero": 1}})
    assert decided.plan is not None
    assert decided.plan.zero == 0


def test_pinned_degrees_get_the_nearest_value_that_works() -> None:
    found = plan(job(tp=4))  # nodes hold two GPUs
    (change,) = found.relaxations
    assert change.startswith("leave constraints.tp out (a plan with tp ")
    found = plan(job(pp=3, dp=3))
    assert "pp 3 and dp 3 are in conflict" in found.reasons[0]
    assert found.relaxations == ("pp 3 -> 2", "dp 3 -> 2")
    mixed = plan(job(pp=3, dp=2)).plan  # six GPUs, but three of a kind: one stage has both
    assert mixed is not None
    assert any(len({replica.gpu for replica in stage.replicas}) == 2 for stage in mixed.stages)


def test_the_least_number_of_gpus_is_found_by_bisection() -> None:
    fast = plan({**job(), "objective": "max_throughput"}, "exhaustive")
    small = plan({**job(max_gpus=3), "objective": "max_throughput"}, "exhaustive")
    assert small.objective_value is not None
    assert fast.objective_value is not None
    floor = small.objective_value * 1.01
    found = plan(job(max_gpus=1, min_iterations_per_s=floor))
    change = next(c for c in found.relaxations if c.startswith("max_gpus 1 -> "))
    assert number(change) == 4
    assert plan(job(max_gpus=4, min_iterations_per_s=floor), "exhaustive").plan is not None
    assert plan(job(max_gpus=3, min_iterations_per_s=floor), "exhaustive").plan is None


def large(**more: Any) -> dict[str, Any]:
    return {
        "name": "large",
        "model": "opt-30b",
        "training": {"global_batch": 8, "precision": "fp16"},
        "pool": [{"zone": "us-central1-a", "node_type": "a2-highgpu-4g", "count": 1}],
        "sources": {"prices": "file", "profiles": "analytic", "network": "zones"},
        "catalog": {
            "prices": [{"zone": "us-central1-a", "node_type": node, "market": "on_demand",
                        "usd_per_hour": 15, "source": "test", "as_of": "2026-01-01"}
                       for node in ("a2-highgpu-4g", "a2-ultragpu-8g")],
            "egress": [{"src": "us-central1-a", "dst": "us-central1-a", "usd_per_byte": 0,
                        "source": "test", "as_of": "2026-01-01"}],
        },
        **more,
    }  # fmt: skip


def test_too_little_memory_asks_for_the_fewest_more_nodes() -> None:
    found = plan(large())
    assert found.plan is None
    sentences = [c for c in found.relaxations if "more nodes of" in c]
    assert len(sentences) == 1
    match = re.fullmatch(r"(\d+) more nodes of a2-highgpu-4g on_demand in us-central1-a",
                         sentences[0])  # fmt: skip
    assert match is not None
    more = int(match[1])
    for count, has in ((1 + more, True), (more, False)):
        pool = [{**large()["pool"][0], "count": count}]
        assert (plan(large(pool=pool)).plan is not None) is has, count


def test_places_that_the_job_rules_out_are_offered_back() -> None:
    pool = [*large()["pool"], {"zone": "us-central1-a", "node_type": "a2-ultragpu-8g", "count": 2}]
    found = plan(large(pool=pool, constraints={"gpu_types": ["A100-40GB"]}))
    assert any(c.startswith("leave constraints.gpu_types out") for c in found.relaxations)


def test_a_plan_or_a_stopped_search_has_nothing_to_relax() -> None:
    assert plan(job()).relaxations == ()
    stopped = sailor.optimize(large(), planner="dynamic", registry=REGISTRY,
                              should_stop=lambda: True)  # fmt: skip
    assert stopped.relaxations == ()
