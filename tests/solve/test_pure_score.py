"""Scores by table against the closed form, for pipelines of one kind a stage."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.closed_form import PlanBatch, evaluate
from sailor.solve.cell import BREACH
from sailor.solve.grid import cells
from sailor.solve.heuristics.pure_score import PureScore, by_table
from sailor.solve.pools import pools_of, slots_of
from sailor.solve.rules import active_rules

REGISTRY = Registry.load(entry_points=False)


def opt(cost_model: str, model: str = "opt-350m", zero: int = 0, **training: object) -> Problem:
    job = tiny_job(a100=16, v100=16, zones=2, batch=96, objective="max_throughput",
                   cost_model=cost_model)  # fmt: skip
    job["model"] = model
    job["training"] = {"global_batch": 96, "precision": "fp32", "zero": zero, **training}
    return build_problem(job, registry=REGISTRY)


@pytest.mark.parametrize("cost_model", ["published", "sailor"])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_scores_are_those_of_the_closed_form(cost_model: str, depth: int) -> None:
    problem = opt(cost_model)
    pools = pools_of(problem, slots_of(problem), merge_zones=True)
    grid = cells(problem, pools, active_rules(frozenset()))
    search = grid[0].search
    some = [cell for cell in grid if cell.search is search][:9]
    assert by_table(search.tables)
    score = PureScore(some, depth, problem.constraints.memory_headroom)
    random = np.random.default_rng(depth)
    rows, units = 300, search.tables.num_units
    of = random.integers(0, len(some), rows)
    inner = np.sort(
        np.stack([random.permutation(units - 1)[: depth - 1] + 1 for _ in range(rows)]), axis=1
    )
    edge = np.zeros((rows, 1), dtype=np.int64)
    cuts = np.concatenate([edge, inner.reshape(rows, depth - 1), edge + units], axis=1)
    kinds = random.choice(np.flatnonzero(search.tables.usable), (rows, depth))
    batch = PlanBatch(
        cuts,
        kinds[:, :, None],
        np.array([some[n].dp for n in of])[:, None],
        np.array([some[n].num_microbatches for n in of])[:, None],
    )
    exact = evaluate(search.tables, batch, problem.constraints.memory_headroom)
    found = score(of, cuts, kinds)
    legal = exact.fits & np.isfinite(exact.iteration_s)
    assert legal.sum() > 30
    assert found[legal] == pytest.approx(exact.iteration_s[legal], rel=1e-12)
    assert (found[~legal] >= BREACH).all()


def test_shared_states_are_not_taken_by_table() -> None:
    problem = opt("sailor", zero=1, framework="megatron-lm")
    pools = pools_of(problem, slots_of(problem), merge_zones=True)
    search = cells(problem, pools, active_rules(frozenset()))[0].search
    assert not by_table(search.tables)
