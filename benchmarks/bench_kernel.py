"""Speed of the cost kernel: plans a second, 8 stages, one core.

usage: pytest benchmarks/bench_kernel.py --benchmark-only
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sailor.api import build_problem
from sailor.sim.closed_form import PlanBatch, evaluate
from sailor.sim.kinds import best_fitting_kinds, rentable_kinds
from sailor.sim.models import cost_model

JOB = (
    Path(__file__).resolve().parents[1] / "examples" / "jobs" / "sosp25"
    / "opt350-fig8b-128+384.yaml"
)  # fmt: skip
PLANS, STAGES = 20_000, 8


def batch(columns: int, kinds: int) -> PlanBatch:
    """Return random plans of 8 stages over 26 units."""
    rng = np.random.default_rng(0)
    inner = np.sort(
        np.array([rng.choice(np.arange(1, 26), STAGES - 1, replace=False) for _ in range(PLANS)]),
        axis=1,
    )
    edge = np.zeros((PLANS, 1), dtype=np.int64)
    return PlanBatch(
        cuts=np.concatenate([edge, inner, edge + 26], axis=1),
        kinds=rng.integers(0, kinds, (PLANS, STAGES, columns)),
        width=rng.integers(1, 8, (PLANS, columns)),
        num_microbatches=rng.integers(1, 64, (PLANS, columns)),
    )


@pytest.mark.parametrize("model", ["published", "sailor"])
@pytest.mark.parametrize("columns", [1, 3])
def test_kernel(benchmark: Any, model: str, columns: int) -> None:
    """Evaluate 20,000 plans a round: time, memory verdict, dollars and egress."""
    problem = build_problem(JOB)
    kinds = best_fitting_kinds(problem, rentable_kinds(problem))
    kinds = [kind for kind in kinds if kind.tp <= 4]
    tables = cost_model(model).tables(problem, kinds, 2)
    plans = batch(columns, len(kinds))
    found = benchmark(evaluate, tables, plans)
    assert np.isfinite(found.iteration_s).all()
    benchmark.extra_info["plans_per_s"] = round(PLANS / benchmark.stats.stats.mean)
