"""The tables of modelled layers against the formulas of uniform replicas, rank by rank.

`analytic_memory` and `analytic_time` are what `sailor validate` compares with published runs; the
tables of cost model `sailor` must say the same of the same run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from sailor.api import build_problem
from sailor.model.execution import Layout, chunks_of
from sailor.model.hardware import Market
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.analytic_memory import rank_memory
from sailor.sim.analytic_time import Setting, iteration_time, stage_s
from sailor.sim.clusters import in_nodes
from sailor.sim.columns import Column, plan_of
from sailor.sim.device import gpu_facts
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind

GPU, NODE = "A100-80GB", "a2-ultragpu-8g"
SMALL = {
    "name": "small", "num_layers": 6, "hidden": 1024, "ffn": 4096, "num_heads": 16,
    "num_kv_heads": 16, "head_dim": 64, "vocab": 50257, "seq_len": 1024, "max_positions": 1024,
    "tied_embeddings": True,
}  # fmt: skip
GATED = {
    "name": "gated", "num_layers": 6, "hidden": 2048, "ffn": 5632, "num_heads": 32,
    "num_kv_heads": 8, "head_dim": 64, "vocab": 32000, "seq_len": 2048, "gated_mlp": True,
    "biases": False, "norm": "rmsnorm",
}  # fmt: skip
SPARSE = {
    **GATED, "name": "sparse",
    "experts": {"num_experts": 8, "top_k": 2, "ffn": 1408, "shared_ffn": 1408, "dense_blocks": 1},
}  # fmt: skip

# Model, what the job's training says, (blocks by stage), tp, dp, microbatch, microbatches.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int], int, int, int, int]] = {
    "one stage, tied": (SMALL, {}, [6], 1, 2, 4, 4),
    "three stages, tied": (SMALL, {"dropout": False}, [1, 3, 2], 2, 1, 2, 2),
    "fp16, eager": (SMALL, {"precision": "fp16", "attention": "eager"}, [2, 2, 2], 2, 2, 2, 8),
    "fp32": (GATED, {"precision": "fp32"}, [3, 3], 2, 2, 1, 4),
    "recomputed, sequence parallel": (
        GATED, {"recompute": "full", "sequence_parallel": True}, [3, 3], 4, 1, 2, 8,
    ),
    "ZeRO-1": (GATED, {"zero": 1}, [3, 3], 1, 4, 1, 8),
    "ZeRO-1 in groups": (GATED, {"zero": 1, "zero_group": 2}, [3, 3], 1, 4, 1, 8),
    "ZeRO-2": (GATED, {"zero": 2, "framework": "megatron-deepspeed"}, [6], 2, 4, 1, 8),
    "ZeRO-3": (GATED, {"zero": 3, "framework": "llm-foundry"}, [6], 1, 8, 2, 2),
    "ZeRO-3, kept": (GATED, {"zero": 3, "framework": "torchtitan", "keep_gathered": True}, [6], 2,
                     4, 2, 2),
    "cp": (GATED, {"cp": 2, "zero": 1}, [3, 3], 2, 2, 1, 4),
    "experts": (SPARSE, {"ep": 4, "zero": 1}, [6], 1, 8, 1, 4),
    "experts, tp": (SPARSE, {"ep": 2}, [2, 4], 2, 4, 1, 4),
    "experts, not split by tp": (SPARSE, {"ep": 4, "expert_tp": 1, "zero": 1}, [6], 4, 2, 1, 4),
    "separate norms": (
        SMALL, {"framework": "galvatron", "fused_norms": False, "sequence_parallel": True}, [3, 3],
        2, 2, 2, 4,
    ),
    "internevo": (GATED, {"framework": "internevo", "zero": 1}, [3, 3], 1, 4, 1, 8),
    "nanotron": (GATED, {"framework": "nanotron", "zero": 1, "fused_loss": True}, [3, 3], 2, 4, 1,
                 8),
    "interleaved": (GATED, {}, [1, 2, 2, 1], 2, 2, 1, 8),
    "interleaved, tied, warmup overlaps": (
        SMALL, {"overlap_warmup": True, "recompute": "full"}, [1, 1, 1, 1, 1, 1], 1, 2, 2, 6,
    ),
    "interleaved, ZeRO-3": (
        GATED, {"zero": 3, "framework": "megatron-deepspeed"}, [1, 2, 2, 1], 1, 4, 1, 8,
    ),
    "fused accumulation": (GATED, {"fused_accumulation": True}, [3, 3], 2, 2, 1, 8),
}  # fmt: skip


def chunks_of_a_rank(name: str) -> int:
    return 2 if name.startswith("interleaved") else 1


@cache
def case(name: str) -> tuple[Problem, Plan, Setting]:
    """Return a case as a problem with a plan, and as a layout."""
    model, training, blocks, tp, dp, microbatch, count = CASES[name]
    cp = training.get("cp", 1)
    batch = dp * microbatch * count
    problem = build_problem(
        {
            "name": "same",
            "model": model,
            "training": {"global_batch": batch, **training},
            "pool": [{"zone": "us-central1-a", "node_type": NODE, "count": 8}],
            "sources": {"profiles": ["analytic"]},
            "search_space": {"microbatch": [microbatch]},
        }
    )
    kind = WorkerKind(GPU, "us-central1-a", Market.ON_DEMAND, NODE, tp, cp)
    cuts = [0, *(1 + int(cut) for cut in np.cumsum(blocks))]
    cuts[-1] += 1
    vpp = chunks_of_a_rank(name)
    column = Column((kind,) * len(blocks), dp, microbatch, count)
    plan = plan_of(model["name"], cuts, [column], batch)
    if vpp > 1:
        plan = plan.model_copy(update={"schedule": "interleaved", "vpp": vpp})
    layout = Layout(
        tp=tp, dp=dp, pp=len(blocks) // vpp, microbatch=microbatch, num_microbatches=count,
        chunks=chunks_of(blocks),
    )  # fmt: skip
    cluster = in_nodes(problem.cluster, problem.node(NODE))
    setting = Setting.of(problem.arch, problem.training, layout, problem.gpu(GPU), cluster)
    return problem, plan, setting


@pytest.mark.parametrize("name", CASES)
def test_memory_is_that_of_the_formulas(name: str) -> None:
    problem, plan, setting = case(name)
    found = estimate(problem, plan).memory
    assert len(found) == plan.pp
    for worker in found:
        gpu = gpu_facts(problem.gpu(GPU))
        wanted = rank_memory(
            problem.arch, setting.execution, setting.layout, worker.stage, gpu
        )  # fmt: skip
        parts = wanted.parts
        near = pytest.approx
        assert worker.parameters_bytes == near(parts.parameters, rel=1e-6)
        assert worker.gradients_bytes == near(parts.gradients, rel=1e-6)
        assert worker.optimizer_bytes == near(parts.master + parts.optimizer, rel=1e-6)
        assert worker.activations_bytes == near(parts.activations + parts.logits, rel=1e-6)
        assert worker.transient_bytes == near(parts.temporary, rel=1e-6, abs=1)
        assert worker.total_bytes == near(parts.device, rel=1e-6)
        assert worker.bound_bytes == near(wanted.bound_device, rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_stages_take_what_the_formulas_say(name: str) -> None:
    problem, plan, setting = case(name)
    found = estimate(problem, plan)
    for stage in found.stages:
        assert stage.compute_s == pytest.approx(stage_s(setting, stage.stage), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_optimizer_steps_take_what_the_formulas_say(name: str) -> None:
    problem, plan, setting = case(name)
    parts = iteration_time(setting)
    found = estimate(problem, plan).time.update_s
    assert found == pytest.approx(parts.optimizer + parts.step, rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_rings_inside_a_node_take_what_the_formulas_say(name: str) -> None:
    """Those that fit: the two number their ranks alike, and there is no network between them."""
    problem, plan, setting = case(name)
    layout = setting.layout
    if layout.tp * layout.dp * problem.training.cp > 8:
        pytest.skip("the replicas of a stage need more than a node")
    if problem.arch.tied_embeddings and plan.pp > 1:
        pytest.skip("the exchange of a tied table runs over the network here")
    parts = iteration_time(setting)
    found = estimate(problem, plan).time.dp_sync_s
    assert found == pytest.approx(parts.gradients + parts.weights, rel=2e-2, abs=1e-4)
