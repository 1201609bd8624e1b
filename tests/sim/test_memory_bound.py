"""The bound on memory, optimizer sharding, and what a broken term would change."""

from __future__ import annotations

from pathlib import Path

import pytest

from sailor.api import build_problem
from sailor.errors import InputError
from sailor.model.hardware import Market
from sailor.model.problem import Problem
from sailor.sim.columns import Column, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind

ROOT = Path(__file__).resolve().parents[2]
A100 = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-2g", 2)
GIB = 2**30


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(ROOT / "examples" / "jobs" / "opt-350m-a100-v100.yaml")


def test_every_part_of_a_worker_by_hand(problem: Problem) -> None:
    """OPT-350M, two stages at tp 2, microbatch 4: the artifact's counts, fp32, Adam."""
    columns = [Column((A100, A100), 4, 4, 64)]
    first, last = estimate(problem, plan_of("opt-350m", (0, 13, 26), columns, 1024)).memory
    embedding, block, head = 27918336, 6301184, 25823232
    kept_block, kept_embedding, kept_head = 48238592, 2101760, 105913088
    params = embedding + 12 * block
    assert first.parameters_bytes == 4 * params
    assert first.gradients_bytes == 4 * params
    assert first.optimizer_bytes == 8 * params
    boundary = 4 * 4 * 2097152  # one microbatch of the tensor between the stages
    assert first.communication_bytes == 4 * params + boundary
    assert first.in_flight == 2
    assert first.activations_bytes == 2 * 4 * 4 * (kept_embedding + 12 * kept_block)
    assert first.transient_bytes == 3 * 8 * 2048**2 * 4 * 4  # scores: 8 heads, fp32, microbatch 4
    assert first.reserve_bytes == 3_000_000_000
    assert last.in_flight == 1
    assert last.parameters_bytes == 4 * (head + 12 * block)
    assert last.activations_bytes == 4 * 4 * (kept_head + 12 * kept_block)
    assert last.transient_bytes == 3 * 4 * 4 * 51642369  # three copies of a rank's logits
    for worker in (first, last):
        states = worker.parameters_bytes + worker.gradients_bytes + worker.optimizer_bytes
        states += 4 * (worker.parameters_bytes // 4)
        moving = worker.activations_bytes + worker.transient_bytes
        margin = 0.05 * (states + moving) + 0.8e9 + 1e9
        assert worker.bound_bytes == pytest.approx(worker.total_bytes + margin, rel=1e-6)


def test_in_flight_is_capped_by_the_microbatches(problem: Problem) -> None:
    columns = [Column((A100,) * 4, 1, 1, 2)]
    found = estimate(problem, plan_of("opt-350m", (0, 7, 13, 20, 26), columns, 2))
    assert [worker.in_flight for worker in found.memory] == [2, 2, 2, 1]


def test_sharded_optimizer_states_shrink_with_the_replicas(problem: Problem) -> None:
    """ZeRO-1: of 8 B a parameter each of 4 replicas keeps 2; nothing else changes."""
    zero = problem.model_copy(update={"training": problem.training.model_copy(update={"zero": 1})})
    columns = [Column((A100,), 4, 1, 8)]
    plan = plan_of("opt-350m", (0, 26), columns, 32)
    (whole,), (shared,) = estimate(problem, plan).memory, estimate(zero, plan).memory
    assert shared.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 4, abs=2)
    saved = whole.optimizer_bytes - shared.optimizer_bytes
    assert whole.total_bytes - shared.total_bytes == pytest.approx(saved, abs=4)
    alone = plan_of("opt-350m", (0, 26), [Column((A100,), 1, 1, 8)], 8)
    assert estimate(zero, alone).memory == estimate(problem, alone).memory


def test_the_verdict_is_the_bounds(problem: Problem) -> None:
    """A worker whose estimate fits and whose bound does not is refused."""
    columns = [Column((A100, A100), 4, 4, 64)]
    plan = plan_of("opt-350m", (0, 13, 26), columns, 1024)
    first = estimate(problem, plan).memory[0]
    between = (first.total_bytes + first.bound_bytes) // 2
    tight = problem.model_copy(
        update={
            "gpus": tuple(
                gpu.model_copy(update={"memory_bytes": between}) if gpu.name == A100.gpu else gpu
                for gpu in problem.gpus
            )
        }
    )
    found = estimate(tight, plan)
    assert found.memory[0].total_bytes < between
    assert not found.fits
    assert any("stage 0: up to" in text for text in found.violations)


def test_recomputation_trades_time_for_memory() -> None:
    """Llama-3-70B on 64 H100: without recomputation one microbatch a stage is most of the card."""

    def job(recompute: str) -> dict[str, object]:
        return {
            "name": "llama",
            "model": "llama-3-70b",
            "training": {"global_batch": 64, "precision": "bf16", "recompute": recompute},
            "pool": [{"zone": "us-central1-a", "node_type": "a3-highgpu-8g", "count": 8}],
        }

    kind = WorkerKind("H100-80GB", "us-central1-a", Market.ON_DEMAND, "a3-highgpu-8g", 8)
    plan = plan_of("llama-3-70b", (0, 21, 41, 61, 82), [Column((kind,) * 4, 2, 1, 32)], 64)
    none, full = (estimate(build_problem(job(how)), plan) for how in ("none", "full"))
    # A block keeps its input alone: 2 bytes x 8192 tokens x 8192, of four microbatches.
    first = full.memory[0]
    kept_by_blocks = 4 * 20 * 2 * 8192 * 8192
    # The embedding keeps its dropout's mask, a byte each; its output is the first block's input.
    kept_by_embedding = 4 * 8192 * 8192
    assert first.activations_bytes == kept_by_blocks + kept_by_embedding
    assert first.transient_bytes > 0
    assert first.total_bytes < none.memory[0].total_bytes
    # Forward is a third of forward and backward, and runs once more.
    assert 1.25 < full.time.compute_s / none.time.compute_s < 1.40
    with pytest.raises(InputError, match="knows nothing of recompute"):
        build_problem({**job("full"), "cost_model": "published", "training": {
            "global_batch": 64, "precision": "fp32", "recompute": "full"}})  # fmt: skip


def test_a_tied_table_counts_once_on_one_stage() -> None:
    """GPT-2 large: 774.1 M parameters on one stage; on two stages each has its own table."""
    gpt2 = {
        "name": "gpt2-large",
        "num_layers": 36,
        "hidden": 1280,
        "ffn": 5120,
        "num_heads": 20,
        "num_kv_heads": 20,
        "head_dim": 64,
        "vocab": 50257,
        "seq_len": 1024,
        "max_positions": 1024,
        "tied_embeddings": True,
    }
    problem = build_problem(
        {
            "name": "tied",
            "model": gpt2,
            "training": {"global_batch": 8, "precision": "bf16"},
            "pool": [{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 2}],
        }
    )
    kind = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-1g", 1)
    (one,) = estimate(problem, plan_of("gpt2-large", (0, 38), [Column((kind,), 1, 1, 8)], 8)).memory
    table, rest = 50304 * 1280, 774_090_240 - 50304 * 1280
    # 36 blocks of 12 h^2 + 13 h, positions, the last norm; checked against the padded total.
    assert rest == 36 * (12 * 1280**2 + 13 * 1280) + 1024 * 1280 + 2 * 1280
    assert one.parameters_bytes == pytest.approx(2 * (table + rest), abs=2)
    two = estimate(problem, plan_of("gpt2-large", (0, 19, 38), [Column((kind, kind), 1, 1, 8)], 8))
    held = sum(worker.parameters_bytes for worker in two.memory)
    assert held == pytest.approx(2 * (2 * table + rest), abs=4)


def test_an_optimizer_step_that_was_not_measured_is_not_free() -> None:
    """GPT-Neo on A100-80GB has no measured step: 28 bytes a parameter over the card's bandwidth."""
    problem = build_problem(
        {
            "name": "neo",
            "model": "gpt-neo-2.7b",
            "training": {"global_batch": 8, "precision": "fp32"},
            "pool": [{"zone": "us-central1-a", "gpu": "A100-80GB", "quota": 2}],
            "search_space": {"microbatch": [1]},
        }
    )
    kind = WorkerKind("A100-80GB", "us-central1-a", Market.ON_DEMAND, "a2-ultragpu-2g", 2)
    found = estimate(problem, plan_of("gpt-neo-2.7b", (0, 34), [Column((kind,), 1, 1, 8)], 8))
    parameters = 69795840 + 32 * 39345920 + 5120
    bandwidth = problem.gpu("A100-80GB").memory_bandwidth
    assert found.time.update_s == pytest.approx(28 * parameters / bandwidth)
    assert any("optimizer step on A100-80GB was not measured" in a for a in found.assumptions)
