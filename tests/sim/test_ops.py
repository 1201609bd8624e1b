"""Seconds of single operations, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sailor.model.arch import Experts, ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.execution import Execution
from sailor.sim.device import calibrated_types, gpu_facts
from sailor.sim.layers import Gemm, unit_work
from sailor.sim.ops import Device

A100 = Catalog.builtin().gpu("A100-80GB")
DEVICE = Device.of(A100, "bf16")
PEAK, HBM = 312e12, 2039e9
MODEL = ModelSpec(
    name="m", num_layers=4, hidden=4096, ffn=16384, num_heads=32, num_kv_heads=32, head_dim=128,
    vocab=51200, seq_len=2048,
)  # fmt: skip


def test_a_product_that_fills_its_waves_exactly() -> None:
    # 108 SMs and tiles of 256 x 128: 12 x 9 tiles are one wave. One tile takes
    # 2 * 256 * 128 * (k + 49) operations at 0.78 of an SM's share of the peak.
    gemm = Gemm(12 * 256, 9 * 128, 8192)
    one_wave = 2 * 256 * 128 * (8192 + 49) / (PEAK / 108 * 0.78)
    assert DEVICE.gemm_s(gemm) == pytest.approx(one_wave)


def test_a_product_with_a_little_more_takes_part_of_another_wave() -> None:
    exact = DEVICE.gemm_s(Gemm(12 * 256, 9 * 128, 8192))
    more = DEVICE.gemm_s(Gemm(13 * 256, 9 * 128, 8192))
    # 117 tiles want two waves of whole tiles. Tiles of 128 x 128 split in four are better: 936
    # parts take nine waves, each of half a tile and a quarter of k, at 0.93 of the speed.
    expected = 9 * 0.5 * (8192 / 4 + 49) / (8192 + 49) / 0.93
    assert more / exact == pytest.approx(expected, rel=1e-6)


def test_a_thin_product_is_bound_by_memory() -> None:
    gemm = Gemm(64, 16384, 16384)
    touched = 2 * (64 * 16384 + 16384 * 16384 + 64 * 16384)
    assert DEVICE.gemm_s(gemm) == pytest.approx(touched / (HBM * 0.738))


@pytest.mark.parametrize(("side", "share"), [(4096, 1.0), (4104, 0.66), (4097, 0.37)])
def test_odd_sides_are_slow(side: int, share: float) -> None:
    straight = Gemm(16384, 16384, 4096)
    odd = replace(straight, k=float(side))
    ratio = DEVICE.gemm_s(straight) * (side + 49) / (4096 + 49) / DEVICE.gemm_s(odd)
    assert ratio == pytest.approx(share, rel=1e-6)


def test_eight_bits_double_the_rate_and_cast_their_inputs() -> None:
    gemm = Gemm(12 * 256, 9 * 128, 8192)
    casts = 3 * (12 * 256 + 9 * 128) * 8192 / (HBM * 0.738)
    expected = DEVICE.gemm_s(gemm) / (2 * 0.9) + casts
    assert DEVICE.gemm_s(gemm, fp8=True) == pytest.approx(expected, rel=1e-6)


def test_attention_reaches_half_of_its_share_at_the_half_length() -> None:
    at_half = DEVICE.attention_s(1e12, 460, first_kernels=False)
    assert at_half == pytest.approx(1e12 / (PEAK * 0.56 / 2))
    assert DEVICE.attention_s(1e12, 1e9, first_kernels=True) == pytest.approx(
        1e12 / (PEAK * 0.308), rel=1e-5
    )


def test_eager_attention_writes_its_scores() -> None:
    eager = Execution(attention="eager")
    forward, backward = unit_work(MODEL, eager, "block", 1, 2)
    # 2 sequences of 32 heads with 2048 x 2048 scores; the two products are 4 b s^2 h.
    assert forward.scores == 2 * 32 * 2048**2
    fused = unit_work(MODEL, Execution(), "block", 1, 2)[0]
    assert forward.flop - fused.flop == pytest.approx(4 * 2 * 2048**2 * 4096 / 2)
    softmax = DEVICE.pass_s(forward, backward=False) - DEVICE.pass_s(
        replace(forward, scores=0.0), backward=False
    )
    assert softmax == pytest.approx(forward.scores * 6.9 / (HBM * 0.738))
    back = DEVICE.pass_s(backward, backward=True) - DEVICE.pass_s(
        replace(backward, scores=0.0), backward=True
    )
    assert back == pytest.approx(backward.scores * 22.0 / (HBM * 0.738))


def test_sequence_parallelism_divides_the_traffic_of_norms() -> None:
    plain = unit_work(MODEL, Execution(), "block", 4, 1)[0].elementwise_bytes
    parallel = unit_work(MODEL, Execution(sequence_parallel=True), "block", 4, 1)[0]
    assert plain - parallel.elementwise_bytes == 14 * 2048 * 4096 * 3 / 4


def test_kernels_have_gaps() -> None:
    forward, _ = unit_work(MODEL, Execution(), "block", 1, 1)
    bare = replace(forward, num_kernels=0)
    assert DEVICE.pass_s(forward, backward=False) - DEVICE.pass_s(
        bare, backward=False
    ) == pytest.approx(6 * 10.8e-6)


def test_tf32_needs_tensor_cores_of_an_ampere() -> None:
    catalog = Catalog.builtin()
    assert Device.of(A100, "fp32").peak == 19.5e12
    assert Device.of(A100, "fp32", tf32=True).peak == 156e12
    assert Device.of(catalog.gpu("V100-16GB"), "fp32", tf32=True).peak == 15.7e12


def test_every_catalogue_type_has_constants_and_says_when_they_are_assumed() -> None:
    known = dict(calibrated_types())
    for name, gpu in Catalog.builtin().gpus.items():
        assert name in known, name
        facts = gpu_facts(gpu)
        measured = name.startswith(("V100", "A100", "H100"))
        assert (facts.assumption is None) == measured, name
        assert 0 < facts.gemm_share <= 1
    strange = A100.model_copy(update={"name": "new", "half_flop_per_s": 624e12})
    assert gpu_facts(strange).sms == 216
    assert "no measured runs" in (gpu_facts(strange).assumption or "")


def test_experts_share_the_tokens() -> None:
    experts = Experts(num_experts=8, top_k=2, ffn=4096)
    sparse = MODEL.model_copy(update={"experts": experts})
    work = unit_work(sparse, Execution(ep=4), "block", 1, 1)[0]
    routed = [gemm for gemm in work.gemms if gemm.batch > 1]
    # 2048 tokens visit 2 of 8 experts; over all ranks as many rows as here, on 2 local experts.
    assert {(gemm.batch, gemm.m) for gemm in routed} == {(2.0, 2048.0)}
    assert math.isclose(sum(g.flop for g in routed), 2 * 2 * 2048 * 2 * 4096 * 4096)
