"""Iteration time from operations: the pipeline's arithmetic and each term's share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sailor.model.arch import Experts, ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.execution import Execution, Layout, chunks_of, even_chunks
from sailor.sim.analytic_time import (
    Setting,
    TimeParts,
    block_times,
    iteration_time,
    stage_s,
    unit_seconds,
)
from sailor.sim.clusters import CLUSTERS, DEFAULT_CLUSTER

A100 = Catalog.builtin().gpu("A100-80GB")
GPT = ModelSpec(
    name="gpt", num_layers=16, hidden=8192, ffn=32768, num_heads=64, num_kv_heads=64,
    head_dim=128, vocab=51200, seq_len=2048, max_positions=2048, tied_embeddings=True,
)  # fmt: skip


def _setting(
    execution: Execution | None = None, pp: int = 1, vpp: int = 1, **changed: int
) -> Setting:
    values = {"tp": 8, "dp": 1, "microbatch": 1, "num_microbatches": 32} | changed
    layout = Layout(pp=pp, chunks=even_chunks(16, pp, vpp), **values)
    return Setting.of(GPT, execution or Execution(), layout, A100, CLUSTERS["selene"])


def test_parts_add_up() -> None:
    parts = iteration_time(_setting(pp=4, dp=2))
    assert parts.total == pytest.approx(
        parts.compute + parts.bubble + parts.transfers + parts.gradients + parts.weights
        + parts.optimizer + parts.step
    )  # fmt: skip
    assert isinstance(parts, TimeParts)


def test_pipeline_of_equal_stages_costs_its_bubble() -> None:
    # n max + (sum - max) / vpp of the stages.
    setting = _setting(pp=4)
    stages = [stage_s(setting, rank) for rank in range(4)]
    parts = iteration_time(setting)
    assert parts.compute == pytest.approx(32 * max(stages))
    assert parts.bubble == pytest.approx(sum(stages) - max(stages))
    halved = iteration_time(_setting(pp=4, vpp=2))
    assert halved.bubble == pytest.approx(parts.bubble / 2, rel=0.02)
    # Twice as many messages.
    assert halved.transfers / parts.transfers == pytest.approx((64 + 3) / (32 + 3))


def test_the_head_makes_the_last_stage_the_slowest() -> None:
    setting = _setting(pp=4)
    stages = [stage_s(setting, rank) for rank in range(4)]
    assert max(stages) == stages[3] > 1.05 * stages[1]
    layout = setting.layout.model_copy(update={"chunks": chunks_of([4, 5, 5, 2])})
    eased = iteration_time(replace(setting, layout=layout))
    assert eased.compute > iteration_time(setting).compute  # 5 blocks are the slowest then


def test_full_recomputation_adds_one_forward_pass_with_its_traffic() -> None:
    plain, full = (_setting(Execution(recompute=kind)) for kind in ("none", "full"))
    unit = unit_seconds(plain, "block")
    more = block_times(full)[0] - block_times(plain)[0]
    assert more == pytest.approx(unit.forward + unit.tp_forward)
    early = _setting(Execution(recompute="full", recompute_stops_early=True))
    saved = block_times(full)[0] - block_times(early)[0]
    # The last product is a third of a block's.
    assert 0.2 * unit.forward < saved < 0.4 * unit.forward


def test_selective_recomputation_is_free_with_flash_attention() -> None:
    flash = [_setting(Execution(recompute=kind)) for kind in ("none", "selective")]
    assert block_times(flash[0]) == block_times(flash[1])
    eager = [
        block_times(_setting(Execution(attention="eager", recompute=kind)))[0]
        for kind in ("none", "selective", "full")
    ]
    assert eager[0] < eager[1] < eager[2]


def test_tensor_parallel_traffic_is_two_all_reduces_a_pass() -> None:
    setting = _setting()
    unit = unit_seconds(setting, "block")
    message = 2 * 2048 * 8192
    one = 1.75 * message / (300e9 * 0.90) + 3 * 15e-6
    assert unit.tp_forward == pytest.approx(2 * one)
    assert unit.tp_backward == pytest.approx(2 * one)
    hidden = unit_seconds(_setting(Execution(overlap_tp=True)), "block")
    assert hidden.tp_forward == pytest.approx(0.1 * 2 * one)


def test_gradients_are_reduced_over_shared_nics() -> None:
    parts = iteration_time(_setting(dp=16))
    block = 12 * 8192**2 / 8 + 0.75 * 0  # products of one block on a rank
    params = 16 * block + 51200 * 8192 / 8 + 2048 * 8192
    ring = 2 * 15 / 16 * 4 * params * 8 / (200e9 * 0.79)
    assert parts.gradients == pytest.approx(ring, rel=0.01)
    assert iteration_time(_setting(Execution(overlap_grads=True), dp=16)).gradients == (
        pytest.approx(0.2 * parts.gradients)
    )
    assert iteration_time(_setting()).gradients == 0.0


def test_a_sharded_optimizer_gathers_weights_and_steps_less() -> None:
    plain, sharded = (iteration_time(_setting(Execution(zero=z), dp=16)) for z in (0, 1))
    assert sharded.weights > 0 == plain.weights
    assert sharded.gradients == pytest.approx(plain.gradients / 2)
    assert sharded.optimizer < plain.optimizer


def test_fully_sharded_weights_are_gathered_every_microbatch() -> None:
    few, many = (
        iteration_time(
            _setting(Execution(framework="llm-foundry", zero=3), tp=1, dp=64, num_microbatches=n)
        ).compute
        for n in (1, 4)
    )
    assert many == pytest.approx(4 * few, rel=0.02)
    kept = Execution(framework="llm-foundry", zero=3, keep_gathered=True)
    assert iteration_time(_setting(kept, tp=1, dp=64, num_microbatches=4)).compute < many


def test_small_models_wait_for_the_host() -> None:
    small = GPT.model_copy(update={"hidden": 512, "ffn": 2048, "num_heads": 8, "num_kv_heads": 8,
                                   "head_dim": 64})  # fmt: skip
    setting = replace(_setting(tp=1), model=small)
    device, host = block_times(setting)
    assert host == pytest.approx(2.6e-3 * 2.2)
    assert device < host
    slow = replace(setting, cluster=replace(DEFAULT_CLUSTER, host_factor=2.0))
    assert iteration_time(slow).total == pytest.approx(2 * iteration_time(setting).total, rel=0.1)


def test_experts_exchange_their_tokens_four_times_a_microbatch() -> None:
    experts = Experts(num_experts=8, top_k=2, ffn=4096)

    def device_s(**options: Any) -> float:
        setting = _setting(Execution(**options), tp=1, dp=8)
        sparse = setting.model.model_copy(update={"experts": experts})
        return block_times(replace(setting, model=sparse))[0]

    alone, spread = device_s(ep=1), device_s(ep=8)
    # 7/8 of 2 top_k t h bytes at 270 GB/s; the products of 8 small experts are those of one.
    one = 7 / 8 * 2 * 2 * 2048 * 8192 / 270e9 + 3 * 15e-6
    assert spread - alone == pytest.approx(4 * one, rel=0.5)
    assert device_s(ep=8, recompute="full") > spread + 2 * one


def test_accumulating_gradients_is_traffic_unless_fused() -> None:
    plain = stage_s(_setting(), 0)
    fused = stage_s(_setting(Execution(fused_accumulation=True)), 0)
    assert fused < plain


def test_slow_links_and_networks_cost_time() -> None:
    base = _setting(pp=2, dp=16)
    for change in ({"link_share": 0.2}, {"nic_bandwidth": 10e9}, {"link_step_s": 1e-3}):
        slow = replace(base, cluster=replace(base.cluster, **change))  # type: ignore[arg-type]
        assert iteration_time(slow).total > 1.02 * iteration_time(base).total, change


def test_175b_on_selene_as_published() -> None:
    # SC21, table 1: 145B on 1536 A100 in 24.8 s (tp 8, pp 8, dp 24, batch 2304, microbatch 1).
    model = GPT.model_copy(update={"num_layers": 80, "hidden": 12288, "ffn": 49152,
                                   "num_heads": 96, "num_kv_heads": 96})  # fmt: skip
    layout = Layout(tp=8, pp=8, dp=24, microbatch=1, num_microbatches=96, chunks=even_chunks(80, 8))
    execution = Execution(attention="eager", dropout=True, recompute="full", precision="fp16")
    setting = Setting.of(model, execution, layout, A100, CLUSTERS["selene"])
    assert iteration_time(setting).total == pytest.approx(24.8, rel=0.04)
