"""The Lagrangian bound against `exhaustive`: never above the optimum, without one exception."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.model.hardware import Market
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.columns import Column, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Rows
from sailor.solve.bounds.lagrange_tables import bound_tables, groups_of
from sailor.solve.certificate import Certificate
from sailor.solve.exhaustive import ExhaustivePlanner

REGISTRY = Registry.load(entry_points=False)
A100 = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-1g", 1)


def optimum(problem: Problem) -> float | None:
    """Return the least seconds or dollars an iteration over all plans, or None."""
    planner = ExhaustivePlanner()
    if planner.unsupported(problem):
        pytest.skip("too many plans to enumerate")
    outcome = planner.solve(problem, Limits(), lambda progress: None, lambda: False)
    if outcome.plan is None:
        return None
    found = estimate(problem, outcome.plan)
    if problem.objective is Objective.MAX_THROUGHPUT:
        return found.iteration_s
    return found.usd_per_iteration


def bound_of(problem: Problem, cutoff: float) -> float:
    certificate = Certificate(problem, 24)
    certificate.first_look(cutoff, lambda: False)
    certificate.improve(cutoff, 1e-4, 60, lambda: False)
    return certificate.value


def generated(count: int, seed: int) -> list[dict[str, Any]]:
    """Return distinct small jobs: pools, batches, objectives, models, limits."""
    cases = list(
        itertools.product(
            (0, 1, 2), (1, 2, 3), (1, 2), (4, 6, 7, 12), ("max_throughput", "min_cost"),
            ("sailor", "published"), (None, "floor", "gpus"),
        )
    )  # fmt: skip
    random.Random(seed).shuffle(cases)
    return [
        {"a100": a, "v100": v, "zones": z, "batch": b, "objective": o, "cost_model": m, "limit": x}
        for a, v, z, b, o, m, x in cases[:count]
    ]


def check(case: dict[str, Any]) -> float | None:
    """Return bound over optimum of one job; None when it has no plan (or too many)."""
    limit = case.pop("limit")
    problem = build_problem(tiny_job(**case), registry=REGISTRY)
    if ExhaustivePlanner().unsupported(problem):
        return None
    if limit == "floor":
        fast = problem.model_copy(update={"objective": Objective.MAX_THROUGHPUT})
        best_s = optimum(fast)
        if best_s is None:
            return None
        limits = problem.constraints.model_copy(update={"min_iterations_per_s": 0.7 / best_s})
        problem = problem.model_copy(update={"constraints": limits})
    if limit == "gpus":
        limits = problem.constraints.model_copy(update={"max_gpus": 2})
        problem = problem.model_copy(update={"constraints": limits})
    best = optimum(problem)
    if best is None:
        return None
    # A loose cutoff: the bound has to find the optimum by itself.
    bound = bound_of(problem, best * 1.2)
    assert bound <= best * (1 + 1e-9), (case, limit, bound / best)
    assert bound_of(problem, best) <= best * (1 + 1e-9), (case, limit)
    return bound / best


def test_the_bound_is_below_the_optimum() -> None:
    ratios = [ratio for case in generated(24, seed=1) if (ratio := check(case)) is not None]
    assert len(ratios) >= 15
    assert np.mean(ratios) > 0.8  # a bound of nothing would be valid too


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bound_is_below_the_optimum_on_many_problems() -> None:
    # 840 of them, by hand: docs/solver.md has the figures.
    ratios = [ratio for case in generated(160, seed=2) if (ratio := check(case)) is not None]
    assert len(ratios) >= 90
    assert np.mean(ratios) > 0.85


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("objective", ["max_throughput", "min_cost"])
def test_states_that_replicas_share_leave_room_in_the_bound(zero: int, objective: str) -> None:
    """Cards with room for a stage only if its states are spread over several replicas."""
    job = tiny_job(a100=4, v100=0, zones=1, batch=8, objective=objective)
    job["training"] = job["training"] | {"zero": zero}
    wide = {"hidden": 4096, "ffn": 16384, "num_heads": 32, "num_kv_heads": 32, "head_dim": 128}
    job["model"] = job["model"] | wide
    job["constraints"] = {"pp": 1, "tp": 1}
    problem = build_problem(job, registry=REGISTRY)
    alone, spread = (
        estimate(problem, plan_of("tiny", (0, 4), [Column((A100,), dp, 1, 8 // dp)], 8)).memory[0]
        for dp in (1, 4)
    )
    assert spread.bound_bytes < alone.total_bytes
    tight = alone.capacity_bytes - (spread.bound_bytes + alone.total_bytes) // 2
    limits = problem.constraints.model_copy(update={"memory_headroom": tight})
    problem = problem.model_copy(update={"constraints": limits})
    best = optimum(problem)
    assert best is not None
    assert 0 < bound_of(problem, best * 1.5) <= best * (1 + 1e-9)


def test_a_tied_table_is_updated_once_in_the_bound() -> None:
    job = tiny_job(a100=1, v100=0, zones=1, batch=4, objective="max_throughput")
    job["model"] = job["model"] | {"tied_embeddings": True}
    problem = build_problem(job, registry=REGISTRY)
    best = optimum(problem)
    assert best is not None
    bound = bound_of(problem, best * 1.5)
    assert best * 0.99 <= bound <= best * (1 + 1e-9)


def test_a_chain_costs_what_its_stages_cost() -> None:
    """One GPU type without prices: the programme's chain is the cheapest by enumeration."""
    problem = build_problem(
        tiny_job(a100=4, v100=0, zones=1, batch=8, objective="max_throughput",
                 cost_model="published"),
        registry=REGISTRY,
    )  # fmt: skip
    tables = bound_tables(problem, groups_of(problem), 1)
    assert tables is not None
    units = tables.num_units
    programme = ChainProgramme(tables, units, 2)
    rows = Rows(
        ceiling_s=np.array([np.inf]),
        reach=np.full((1, tables.num_kinds, units), units, dtype=np.int64),
        prices=np.zeros((1, tables.num_kinds)),
        num_microbatches=np.array([8]),
    )
    chains = programme.solve(rows, programme.ceilings(rows))
    expected = min(
        tables.compute_s[a, 0, cut] + tables.compute_s[b, cut, units]
        # Two stages: the first counts its send once, the last its gradient twice.
        + tables.forward_s[a, b, cut] + 2 * tables.backward_s[a, b, cut]
        for cut in range(1, units)
        for a in range(tables.num_kinds)
        for b in range(tables.num_kinds)
    )  # fmt: skip
    assert chains.cost_s[0] == pytest.approx(expected, rel=1e-12)
    assert chains.stages[0].sum() == 2


def test_a_sync_bound_is_that_of_the_fastest_hop() -> None:
    problem = build_problem(
        tiny_job(a100=2, v100=2, zones=1, batch=8, objective="max_throughput",
                 cost_model="published"),
        registry=REGISTRY,
    )  # fmt: skip
    tables = bound_tables(problem, groups_of(problem), 1)
    assert tables is not None
    found = tables.sync_s([2])
    real, units = tables.real, tables.num_units
    for kind in range(tables.num_kinds):
        mine = int(tables.members[kind][0])
        same_tp = real.sync.seconds(
            np.asarray(0), np.asarray(units), np.asarray(int(tables.tp[kind])), 2,
            np.asarray(mine), np.asarray(mine),
        )  # fmt: skip
        assert found[kind, 0, units] <= float(same_tp) * (1 + 1e-12)
        assert found[kind, 0, units] > 0
    assert (tables.sync_s([1])[:, 0, units] == 0).all()  # one replica has nobody to reduce with
