"""Unequal shares against every distribution of the microbatches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sailor.api import build_problem
from sailor.model.hardware import Market
from sailor.sim.closed_form import evaluate
from sailor.sim.columns import Column, batch_of_one, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.solve.heuristics.shares import shared, with_shares

JOB = Path(__file__).resolve().parents[2] / "examples" / "jobs" / "opt-350m-a100-v100.yaml"
A100 = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-4g", 4)
V100 = WorkerKind("V100-16GB", "us-central1-a", Market.ON_DEMAND, "n1-v100-4", 4)
CUTS = (0, 13, 26)


@pytest.mark.parametrize("total", [8, 13, 24, 31])
def test_shares_are_the_best_of_all(total: int) -> None:
    problem = build_problem(JOB)
    problem = problem.model_copy(
        update={"training": problem.training.model_copy(update={"global_batch": 2 * total})}
    )
    kinds = (A100, V100)
    tables = cost_model("sailor").tables(problem, kinds, 2)
    half = total // 3
    columns = [
        Column((A100, A100), 1, 2, total - 2 * half),
        Column((V100, V100), 2, 2, half),
    ]
    shared = with_shares(tables, CUTS, columns)
    assert shared is not None
    assert sum(column.width * column.num_microbatches for column in shared) == total

    def seconds(counts: tuple[int, int, int]) -> float:
        split = [
            Column((A100, A100), 1, 2, counts[0]),
            Column((V100, V100), 1, 2, counts[1]),
            Column((V100, V100), 1, 2, counts[2]),
        ]
        return estimate(problem, plan_of("opt-350m", CUTS, split, 2 * total)).iteration_s

    best = min(
        seconds(counts)
        for counts in product(range(1, total), repeat=3)
        if sum(counts) == total and counts[1] >= counts[2]
    )
    found = estimate(problem, plan_of("opt-350m", CUTS, shared, 2 * total))
    assert found.iteration_s == pytest.approx(best, rel=1e-12)
    assert found.violations == ()


def test_like_pipelines_have_nothing_to_share() -> None:
    problem = build_problem(JOB)
    tables = cost_model("sailor").tables(problem, (A100,), 2)
    assert with_shares(tables, CUTS, [Column((A100, A100), 4, 2, 8)]) is None


@pytest.mark.parametrize("total", [8, 13, 31])
def test_a_search_scores_plans_with_their_best_shares(total: int) -> None:
    problem = build_problem(JOB)
    tables = cost_model("sailor").tables(problem, (A100, V100), 2)
    even = [Column((A100, A100), 1, 2, total // 3), Column((V100, V100), 2, 2, total // 3 + 1)]
    batch = batch_of_one(CUTS, even, (A100, V100))
    found = shared(tables, batch, total)
    counts = found.num_microbatches[0]
    assert counts[0] + 2 * counts[1] >= total
    seconds = float(evaluate(tables, found).pipeline_s[0])
    # No other counts that are enough end sooner; the search's bisection has 24 steps.
    best = min(
        float(
            evaluate(
                tables,
                replace(batch, num_microbatches=np.array([[first, -(-(total - first) // 2)]])),
            ).pipeline_s[0]
        )
        for first in range(1, total - 1)
    )
    assert seconds == pytest.approx(best, rel=1e-5)
