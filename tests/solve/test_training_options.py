"""Plans of jobs with experts, context parallelism, sharded weights and interleaved schedules."""

from __future__ import annotations

from typing import Any

import pytest

from sailor.api import build_problem, optimize, simulate
from sailor.interfaces import Limits
from sailor.sim.estimate import estimate
from sailor.solve.exhaustive import ExhaustivePlanner
from sailor.solve.interleave import interleaved_forms

LLAMA = {
    "name": "small-llama", "num_layers": 8, "hidden": 2048, "ffn": 5632, "num_heads": 16,
    "num_kv_heads": 16, "head_dim": 128, "vocab": 32000, "seq_len": 2048, "gated_mlp": True,
    "biases": False, "norm": "rmsnorm",
}  # fmt: skip
EXPERTS = {"experts": {"num_experts": 16, "top_k": 2, "ffn": 4096}}


def job(nodes: int, model: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "name": "options",
        "model": LLAMA | (model or {}),
        "training": {"global_batch": 64, **training},
        "pool": [{"zone": "us-central1-a", "node_type": "a2-ultragpu-8g", "count": nodes}],
        "search_space": {"microbatch": [1, 2]},
    }


@pytest.mark.parametrize("planner", ["dynamic", "cpsat"])
@pytest.mark.parametrize(
    ("model", "training"),
    [
        (None, {"zero": 3, "framework": "torchtitan"}),
        (None, {"cp": 2, "zero": 1}),
        (EXPERTS, {"ep": 8, "zero": 1}),
    ],
    ids=["fsdp2", "context parallel", "experts"],
)
def test_the_plan_can_be_run_and_nothing_is_over_the_bound(
    planner: str, model: dict[str, Any] | None, training: dict[str, Any]
) -> None:
    asked = job(2, model, **training)
    result = optimize(asked, planner=planner, time_limit_s=10)
    assert result.plan is not None
    assert result.estimate is not None
    assert result.estimate.violations == ()
    assert result.plan.cp == training.get("cp", 1)
    ranks = result.plan.dp * result.plan.cp * min(r.tp for r in result.plan.stages[0].replicas)
    assert ranks >= training.get("ep", 1)
    assert result.plan.num_gpus <= 16
    assert simulate(asked, result.plan).iteration_s == result.estimate.iteration_s
    if result.bound is not None:
        assert result.objective_value is not None
        assert result.objective_value <= result.bound * (1 + 1e-9)


def test_context_parallel_replicas_are_counted_whole() -> None:
    """Eight GPUs hold four replicas of cp 2; enumeration finds nothing better."""
    asked = job(1, cp=2) | {"search_space": {"microbatch": [2], "tp": [1, 2], "max_pp": 2}}
    result = optimize(asked, planner="dynamic")
    assert result.plan is not None
    assert result.estimate is not None
    assert result.estimate.nodes[0].gpus_used == result.plan.num_gpus == 8
    problem = build_problem(asked)
    exact = ExhaustivePlanner().solve(problem, Limits(), lambda progress: None, lambda: False)
    assert exact.plan is not None
    assert result.estimate.iteration_s == pytest.approx(estimate(problem, exact.plan).iteration_s)


def test_experts_that_find_no_ranks_say_so() -> None:
    result = optimize(job(1, EXPERTS, ep=16), planner="dynamic")
    assert result.status == "infeasible"
    assert result.reasons[0].startswith("ep 16 needs 16 GPUs that hold one stage, the pool has 8")


def test_interleaved_forms_keep_every_workers_blocks() -> None:
    asked = job(4) | {
        "search_space": {"microbatch": [1], "vpp": [1, 2, 4]}, "constraints": {"pp": 4, "tp": 8},
    }  # fmt: skip
    result = optimize({**asked, "search_space": {"microbatch": [1]}}, planner="dynamic")
    assert result.plan is not None
    problem, plan = build_problem(asked), result.plan
    forms = list(interleaved_forms(problem, plan))
    assert [form.vpp for form in forms] == [2]  # four chunks need four blocks a stage

    def blocks(ranks: int, form: Any) -> list[int]:
        counts = [min(s.stop, 9) - max(s.start, 1) for s in form.stages]
        return [sum(counts[rank::ranks]) for rank in range(ranks)]

    assert blocks(4, forms[0]) == blocks(4, plan)
    chunked = optimize(asked, planner="dynamic")
    assert chunked.plan is not None
    assert chunked.event is not None
    assert result.event is not None
    assert chunked.event.iteration_s <= result.event.iteration_s
    assert chunked.plan.vpp == 2
