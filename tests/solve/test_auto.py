"""Planner `auto`: quick where the job is small or homogeneous, and it says what it used."""

from __future__ import annotations

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve import work
from sailor.solve.auto import AutoPlanner
from sailor.solve.dynamic import DynamicPlanner

REGISTRY = Registry.load(entry_points=False)


def test_one_gpu_type_is_left_to_the_dynamic_programme() -> None:
    job = tiny_job(a100=4, v100=0, zones=1, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    problem = build_problem(job, registry=REGISTRY)
    before_s = work.counted_s()
    found = AutoPlanner().solve(problem, Limits(), lambda progress: None, lambda: False)
    assert work.counted_s() - before_s < 1.0
    assert found.plan is not None
    assert found.bound is not None
    assert found.bound >= estimate(problem, found.plan).iterations_per_s * (1 - 1e-9)
    assert "one GPU type" in found.rules[0]
    assert not found.stopped_early


def test_a_mixed_pool_is_at_least_as_good_as_dynamic() -> None:
    pytest.importorskip("ortools")
    job = tiny_job(a100=2, v100=3, zones=1, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    problem = build_problem(job, registry=REGISTRY)
    found = AutoPlanner().solve(problem, Limits(), lambda progress: None, lambda: False)
    plain = DynamicPlanner().solve(problem, Limits(), lambda progress: None, lambda: False)
    assert found.plan is not None
    assert plain.plan is not None
    rate = estimate(problem, found.plan).iterations_per_s
    assert rate >= estimate(problem, plain.plan).iterations_per_s * (1 - 1e-12)
    assert "cpsat" in found.rules[0]
    assert "2.00%" in found.rules[0]


def test_a_limit_that_the_caller_set_counts_as_an_interruption() -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    problem = build_problem(job, registry=REGISTRY)
    found = AutoPlanner().solve(problem, Limits(wall_s=0.0), lambda p: None, lambda: False)
    assert found.plan is not None
    assert found.stopped_early
    assert found.stop_reason == "the time limit of 0 s"


def test_it_says_that_the_gap_was_reached_or_that_nothing_was_gained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    problem = build_problem(job, registry=REGISTRY)
    wide = AutoPlanner().solve(problem, Limits(gap=0.9), lambda p: None, lambda: False)
    assert wide.stop_reason == "within the wanted gap of 90.00%"
    assert not wide.stopped_early
    assert wide.bound is not None
    assert wide.plan is not None
    rate = estimate(problem, wide.plan).iterations_per_s
    assert (wide.bound - rate) / wide.bound <= 0.9
    monkeypatch.setattr("sailor.solve.auto._LEAST_PATIENCE_S", 0.0)
    monkeypatch.setattr("sailor.solve.auto._PATIENCE_SHARE", 0.0)
    bored = AutoPlanner().solve(problem, Limits(gap=0.0), lambda p: None, lambda: False)
    assert bored.plan is not None
    assert bored.stop_reason is not None
    assert bored.stop_reason.startswith("nothing gained for ")
    assert not bored.stopped_early  # auto's own choice is no interruption


def test_told_to_stop_it_says_so() -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=12, objective="max_throughput")
    problem = build_problem(job, registry=REGISTRY)
    found = AutoPlanner().solve(problem, Limits(), lambda p: None, lambda: True)
    assert found.plan is not None
    assert (found.stopped_early, found.stop_reason) == (True, "told to by the caller")
