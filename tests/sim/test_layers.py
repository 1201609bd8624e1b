"""Counts of work and bytes, against hand calculations and published formulas."""

from __future__ import annotations

import pytest

from sailor.model.arch import ModelSpec
from sailor.model.execution import Execution
from sailor.model.presets import preset
from sailor.sim.layers import backward_work, forward_work, unit_bytes

GPT3 = preset("gpt-3-175b")

USUAL = Execution(precision="bf16", dropout=True)


def test_block_flop_is_the_formula_of_narayanan_et_al() -> None:
    # 24 b s h^2 (1 + s / 6 h) forward (Narayanan et al. 2021) counts full attention; a causal
    # mask halves its 4 b s^2 h. Backward: twice the products, 2.5 times the fused attention.
    b, s, h = 2, 2048, 12288
    work = forward_work(GPT3, "block", 1, b, "bf16")
    assert work.flop == pytest.approx(24 * b * s * h**2 * (1 + s / (6 * h)) - 2 * b * s**2 * h)
    back = backward_work(GPT3, "block", 1, b, "bf16")
    assert back.flop == pytest.approx(48 * b * s * h**2 + 2.5 * 2 * b * s**2 * h)


def test_tensor_parallel_ranks_share_the_flop() -> None:
    for kind in ("block", "head"):
        whole = forward_work(GPT3, kind, 1, 1, "bf16").flop
        part = forward_work(GPT3, kind, 8, 1, "bf16").flop
        # The head's vocabulary pads to a multiple of 128 tp: 50,304 and 51,200 rows.
        assert 8 * part == pytest.approx(whole, rel=0.02)


def test_gated_grouped_block_flop() -> None:
    # Llama-3-8B: q 4096^2, k and v 2 x 4096 x 1024, o 4096^2, three of 4096 x 14336.
    llama = preset("llama-3-8b")
    matrices = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    work = forward_work(llama, "block", 1, 1, "bf16")
    assert work.flop - work.attention_flop == 2 * 8192 * matrices
    assert work.attention_flop == 2 * 8192**2 * 4096


def test_elementwise_traffic_doubles_in_fp32() -> None:
    half = forward_work(GPT3, "block", 2, 1, "fp16")
    full = forward_work(GPT3, "block", 2, 1, "fp32")
    assert full.elementwise_bytes == 2 * half.elementwise_bytes
    assert (half.num_allreduces, half.allreduce_bytes) == (2, 2 * 2048 * 12288)
    # 22 t h + (4 t h + 4 f t) / 2 with f = 4 h
    assert half.elementwise_bytes == 2048 * 12288 * (22 + 20 / 2)


def test_activations_are_korthikanti_s_formula_without_scores() -> None:
    # s b h (10 + 24 / t); beside it 4 bytes a head and token for the softmax statistics.
    s, h, heads = 2048, 12288, 96
    for tp in (1, 2, 8):
        kept = unit_bytes(GPT3, USUAL, "block", tp).activation_bytes
        assert kept == pytest.approx(s * h * (10 + 24 / tp) + 4 * s * heads / tp)


def test_activations_of_a_gated_grouped_block() -> None:
    # Elements a token: 4 h + q and o 2 x 4096 + k and v 2 x 1024 + three of 14336, 2 bytes each;
    # dropout masks 2 h bytes; statistics 4 x 32 bytes.
    kept = unit_bytes(preset("llama-3-8b"), USUAL, "block", 1).activation_bytes
    token = 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096 + 4 * 32
    assert kept == 8192 * token


def test_head_and_embedding_bytes() -> None:
    llama = preset("llama-3-8b")
    head = unit_bytes(llama, USUAL, "head", 2)
    # Vocabulary 128,256 is a multiple of 256 already; 2 + 4 bytes a logit on half of them.
    assert head.activation_bytes == 6 * 8192 * 128_256 / 2 + 2 * 2 * 8192 * 4096
    assert head.output_bytes == 4 * 8192 * 128_256 / 2  # the rank's own part of the logits
    assert head.params == 128_256 * 4096 // 2 + 4096
    embedding = unit_bytes(llama, USUAL, "embedding", 2)
    assert embedding.output_bytes == 2 * 8192 * 4096
    assert unit_bytes(llama, USUAL, "block", 4).output_bytes == 2 * 8192 * 4096


def test_odd_feed_forward_is_rounded_up_like_its_parameters() -> None:
    odd = ModelSpec(name="odd", num_layers=2, hidden=64, ffn=101, num_heads=4, num_kv_heads=4,
                    head_dim=16, vocab=1000, seq_len=8)  # fmt: skip
    work = forward_work(odd, "block", 2, 1, "bf16")
    assert [gemm.n for gemm in work.gemms] == [96, 64, 51, 64]


def test_recomputation_and_sequence_parallelism_change_what_a_block_keeps() -> None:
    """Full recomputation keeps the input, 2 s h bytes; the ranks share it when norms are split."""
    llama = preset("llama-3-8b")
    full = USUAL.model_copy(update={"recompute": "full"})
    split = full.model_copy(update={"sequence_parallel": True})
    assert unit_bytes(llama, full, "block", 4).activation_bytes == 2 * 8192 * 4096
    assert unit_bytes(llama, split, "block", 4).activation_bytes == 2 * 8192 * 4096 / 4
    usual = unit_bytes(llama, USUAL, "block", 4).activation_bytes
    apart = USUAL.model_copy(update={"sequence_parallel": True})
    # 4 inputs of 2 bytes and 2 masks of 1 byte, s h each, on each rank: three quarters go.
    saved = 0.75 * (4 * 2 + 2) * 8192 * 4096
    assert usual - unit_bytes(llama, apart, "block", 4).activation_bytes == saved
