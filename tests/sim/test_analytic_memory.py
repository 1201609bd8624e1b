"""Peak memory by rank: printed figures, hand counts, and what each option changes."""

from __future__ import annotations

import itertools

import pytest

from sailor.model.arch import Experts, ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.execution import (
    Chunk,
    Execution,
    Layout,
    chunks_of,
    even_chunks,
)
from sailor.model.presets import preset
from sailor.sim.analytic_memory import (
    MemoryParts,
    chunk_saved_bytes,
    peak_memory,
    rank_memory,
    rank_params,
)
from sailor.sim.device import gpu_facts
from sailor.sim.frameworks import framework_facts, framework_names, state_bytes
from sailor.sim.layers import block_saved_bytes

A100 = gpu_facts(Catalog.builtin().gpu("A100-80GB"))
GIB = 2**30
GPT3 = preset("gpt-3-175b")
TOY = ModelSpec(
    name="toy", num_layers=8, hidden=512, ffn=2048, num_heads=8, num_kv_heads=8, head_dim=64,
    vocab=50257, seq_len=1024, max_positions=1024, tied_embeddings=True,
)  # fmt: skip


def _layout(pp: int = 1, vpp: int = 1, *, model: ModelSpec = TOY, **changed: int) -> Layout:
    values = {"tp": 1, "dp": 1, "microbatch": 4, "num_microbatches": 8} | changed
    return Layout(pp=pp, chunks=even_chunks(model.num_layers, pp, vpp), **values)


def _parts(execution: Execution, layout: Layout, rank: int = 0) -> MemoryParts:
    return rank_memory(TOY, execution, layout, rank, A100).parts


@pytest.mark.parametrize(
    ("hidden", "heads", "microbatch", "factor", "gib"),
    [(6144, 64, 4, 48, 59.25), (12288, 96, 1, 96, 66.8438 / (1 + 7 / 24))],
)
def test_activations_are_those_that_korthikanti_et_al_print(
    hidden: int, heads: int, microbatch: int, factor: int, gib: float
) -> None:
    # tp 8, no sequence parallelism, s 2048: s b h (10 + 24 / t + 5 a s / h t) a layer.
    model = ModelSpec(
        name="k", num_layers=factor, hidden=hidden, ffn=4 * hidden, num_heads=heads,
        num_kv_heads=heads, head_dim=hidden // heads, vocab=51200, seq_len=2048,
    )  # fmt: skip
    execution = Execution(attention="eager", dropout=True)
    kept = factor * block_saved_bytes(model, execution, 8, microbatch)
    assert kept / GIB == pytest.approx(gib, rel=1e-3)


def test_selective_recomputation_drops_the_scores_alone() -> None:
    none = Execution(attention="eager", dropout=True)
    selective = none.model_copy(update={"recompute": "selective"})
    dropped = block_saved_bytes(GPT3, none, 8, 1) - block_saved_bytes(GPT3, selective, 8, 1)
    assert dropped == 5 * 96 / 8 * 2048**2


def test_every_stage_has_its_own_parameters() -> None:
    # Embedding on the first rank, head on the last, nothing averaged.
    layout = Layout(
        tp=1, dp=1, pp=4, microbatch=1, num_microbatches=4, chunks=chunks_of([1, 2, 2, 3])
    )
    block = 12 * 512**2 + 13 * 512  # 4 h^2 + 8 h^2, biases 9 h, norms 4 h
    table = 50304 * 512
    counts = [rank_params(TOY, Execution(), layout, layout.rank_chunks(r))[0] for r in range(4)]
    assert counts == [
        block + table + 1024 * 512, 2 * block, 2 * block, 3 * block + 2 * 512 + table,
    ]  # fmt: skip


def test_a_tied_table_is_there_once_on_one_rank_and_twice_on_two() -> None:
    execution, table = Execution(), 50304 * 512
    one = _layout()
    alone = rank_params(TOY, execution, one, one.rank_chunks(0))[0]
    two = _layout(2)
    both = sum(rank_params(TOY, execution, two, two.rank_chunks(rank))[0] for rank in range(2))
    assert both - alone == table


@pytest.mark.parametrize(
    ("framework", "precision", "zero", "per_param"),
    [
        ("megatron-lm", "bf16", 0, 18.0),
        ("megatron-lm", "bf16", 1, 6 + 12 / 8),
        ("megatron-deepspeed", "fp16", 1, 4 + 16 / 8),
        # DeepSpeed's corrected estimate of stage 2: 2 P + 18 P / N.
        ("megatron-deepspeed", "fp16", 2, 2 + 18 / 8),
        ("megatron-deepspeed", "bf16", 1, 8 + 12 / 8),
        ("torchtitan", "bf16", 3, 16 / 8),
        ("nanotron", "bf16", 1, 6 + 12 / 8),
        ("megatron-lm", "fp32", 0, 16.0),
    ],
)
def test_states_by_framework_and_zero_stage(
    framework: str, precision: str, zero: int, per_param: float
) -> None:
    execution = Execution(framework=framework, precision=precision, zero=zero)  # type: ignore[arg-type]
    layout = _layout(dp=8)
    params = rank_params(TOY, execution, layout, layout.rank_chunks(0))[0]
    assert _parts(execution, layout).states == pytest.approx(per_param * params)


def test_sgd_keeps_no_moments() -> None:
    assert state_bytes(Execution(optimizer="sgd")).moments == 0.0
    assert state_bytes(Execution()).moments == 8.0


def test_a_zero_group_limits_the_sharing() -> None:
    layout = _layout(dp=64)
    whole = _parts(Execution(zero=1), layout)
    group = _parts(Execution(zero=1, zero_group=8), layout)
    assert group.optimizer == 8 * whole.optimizer


def test_one_f_one_b_holds_what_the_schedule_has_begun() -> None:
    execution = Execution()
    for rank, held in ((0, 4), (1, 3), (3, 1)):
        parts = _parts(execution, _layout(4), rank)
        one = chunk_saved_bytes(TOY, execution, _layout(4), Chunk(blocks=2))
        assert parts.activations == pytest.approx(held * one)
    # Never more than there are.
    assert _parts(execution, _layout(4, num_microbatches=2)).activations == pytest.approx(2 * one)


def test_interleaved_last_rank_holds_vpp_less_one_times_pp_and_one() -> None:
    model = TOY.model_copy(update={"num_layers": 12})
    execution = Execution()
    layout = _layout(4, 3, model=model)
    one = chunk_saved_bytes(model, execution, layout, Chunk(blocks=1))
    last = rank_memory(model, execution, layout, 3, A100).parts.activations
    assert last == pytest.approx(9 * one)
    first = rank_memory(model, execution, layout, 0, A100).parts.activations
    assert first == pytest.approx((3 * 2 + 2 * 4 + 1) * one)
    warm = execution.model_copy(update={"overlap_warmup": True})
    more = rank_memory(model, warm, layout, 3, A100).parts.activations
    assert more == pytest.approx(11 * one)


def test_logits_lie_on_the_last_rank() -> None:
    layout = _layout(4)
    assert _parts(Execution(), layout, 0).logits == 0.0
    tokens = 4 * 1024
    # 2 bytes of logits and 4 of their softmax, and the inputs of norm and head.
    expected = 6 * tokens * 50304 + 4 * tokens * 512
    assert _parts(Execution(), layout, 3).logits == expected
    fused = _parts(Execution(fused_loss=True), layout, 3).logits
    assert fused - expected == 8 * tokens * 50304
    late = _parts(Execution(deferred_head_grad=True), layout, 3).logits
    assert late - expected == 4 * tokens * 50304


def test_full_recomputation_keeps_inputs_and_one_block() -> None:
    layout = _layout(2)
    parts = _parts(Execution(recompute="full"), layout)
    assert parts.activations == 2 * 4 * 2 * 4096 * 512
    assert parts.temporary > block_saved_bytes(TOY, Execution(), 1, 4)


def test_what_each_option_saves() -> None:
    def total(**changed: object) -> float:
        execution = Execution(attention="eager", dropout=True).model_copy(update=changed)
        layout = _layout(tp=4, dp=2)
        return rank_memory(TOY, execution, layout, 0, A100).parts.allocated

    plain = total()
    savers: list[dict[str, object]] = [
        {"sequence_parallel": True}, {"attention": "flash"}, {"dropout": False},
        {"recompute": "selective"}, {"recompute": "full"}, {"zero": 1}, {"cp": 2},
        {"recompute": "operators"},
    ]  # fmt: skip
    for change in savers:
        assert total(**change) < 0.995 * plain, change
    assert total(fused_norms=False) > plain


def test_grouped_keys_and_gates_change_a_block() -> None:
    llama = preset("llama-3-8b")
    token = 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14336) + 4 * 32
    assert block_saved_bytes(llama, Execution(), 1, 1) == 8192 * token


def test_vocabulary_pads_to_the_divisor_times_tp_once() -> None:
    # GPT-2's 50,257 rows become 197 x 256 with tp 2 and divisor 128.
    model = TOY.model_copy(update={"tied_embeddings": False, "max_positions": 0})
    for divisor, rows in ((128, 50432), (1, 50258)):
        execution = Execution(vocab_divisor=divisor)
        layout = _layout(2, tp=2)
        params = rank_params(model, execution, layout, (Chunk(blocks=0, embedding=True),))[0]
        assert params == rows / 2 * 512


def test_experts_lie_on_their_ranks() -> None:
    experts = Experts(num_experts=8, top_k=2, ffn=2048)
    layout = _layout(dp=8)
    counts = []
    for ep in (1, 2, 8):
        sparse = TOY.model_copy(update={"experts": experts})
        dense, routed = rank_params(sparse, Execution(ep=ep), layout, (Chunk(blocks=1),))
        counts.append(routed)
        # Attention, norms and a router of 8 columns; no feed-forward of its own.
        assert dense == 4 * 512**2 + 4 * 512 + 4 * 512 + 512 * 8
    one = 2 * 512 * 2048 + 2048 + 512
    assert counts == [8 * one, 4 * one, one]


def test_fully_sharded_weights_gather_their_blocks() -> None:
    sharded = Execution(framework="torchtitan", zero=3)
    parts = _parts(sharded, _layout(dp=8))
    assert parts.communication == 2 * 50304 * 512
    assert framework_facts("torchtitan").prefetch_blocks == 3


def test_llama_2_7b_on_one_node_in_four_layouts() -> None:
    # Printed peaks of allocated GB; sequence 2048 and a distributed optimizer, as they imply.
    model = ModelSpec(
        name="llama-2-7b", num_layers=32, hidden=4096, ffn=11008, num_heads=32, num_kv_heads=32,
        head_dim=128, vocab=32000, seq_len=2048, gated_mlp=True, biases=False, norm="rmsnorm",
    )  # fmt: skip
    for (microbatch, batch, dp, pp, tp), printed in (
        ((2, 2048, 8, 1, 1), 69.1), ((4, 512, 4, 1, 2), 55.7),
        ((2, 2048, 4, 2, 1), 49.8), ((4, 128, 1, 1, 8), 28.8),
    ):  # fmt: skip
        layout = Layout(
            tp=tp, dp=dp, pp=pp, microbatch=microbatch,
            num_microbatches=batch // dp // microbatch, chunks=even_chunks(32, pp),
        )  # fmt: skip
        memory = peak_memory(model, Execution(zero=1), layout, A100)
        assert memory.parts.allocated / 1e9 == pytest.approx(printed, rel=0.06)
        assert memory.bound_allocated > printed * 1e9


def test_the_bound_is_above_the_estimate_everywhere() -> None:
    layout = _layout(4, dp=2)
    for framework, zero in itertools.product(framework_names(), range(4)):
        execution = Execution(framework=framework, zero=zero)
        for rank in range(4):
            memory = rank_memory(TOY, execution, layout, rank, A100)
            parts = memory.parts
            assert parts.allocated < memory.bound_allocated
            assert parts.allocated <= parts.reserved < parts.device < memory.bound_device


def test_the_fullest_rank_decides() -> None:
    layout = _layout(4)
    ranks = [rank_memory(TOY, Execution(), layout, rank, A100) for rank in range(4)]
    assert peak_memory(TOY, Execution(), layout, A100) == max(
        ranks, key=lambda memory: memory.bound_device
    )
