"""What a GPU type reaches of its data sheet: constants for operation times, each with a source.

The types marked calibrated were fitted to public training runs; the others inherit the constants
of their family and say so in `assumption`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sailor.model.hardware import GpuType


@dataclass(frozen=True)
class GpuFacts:
    """One GPU type.

    `gemm_share`: share of the peak rate that a long, aligned matrix product reaches.
    `memory_share`: share of the memory bandwidth of element-wise kernels.
    `flash_share`: share of the peak rate of fused attention on long sequences, with the
    second generation of kernels; `flash1_share`: with the first; half of it is reached at
    `flash_half_tokens`.
    `ramp_k`: reduction length that a product pays for filling its pipeline.
    `kernel_s`: gap from one kernel to the next.
    `align_share`: speed of a product whose sides are multiples of 8 only, not of 64.
    `softmax_bytes`, `softmax_back_bytes`: traffic an eager score element, both passes.
    `sms`: streaming multiprocessors; `link_bandwidth`: NVLink (or PCIe), one GPU, one direction,
    bytes/s. `base_bytes`: library buffers beyond those of the framework's.
    `host_factor`: time of the hosts that are sold with it to launch kernels, against an A100's.
    `fused_loss_bytes`: bytes a logit more at the peak of a fused loss kernel.
    """

    sms: int
    link_bandwidth: float
    gemm_share: float
    memory_share: float
    flash_share: float
    flash1_share: float
    flash_half_tokens: float
    ramp_k: float
    kernel_s: float
    align_share: float
    softmax_bytes: float
    softmax_back_bytes: float
    base_bytes: float
    fused_loss_bytes: float
    host_factor: float
    source: str
    assumption: str | None = None


_AMPERE = GpuFacts(
    sms=108, link_bandwidth=300e9, gemm_share=0.78, memory_share=0.738,
    flash_share=0.56, flash1_share=0.308, flash_half_tokens=460.0, ramp_k=49.0,
    kernel_s=10.8e-6, align_share=0.66, softmax_bytes=6.9, softmax_back_bytes=22.0,
    base_bytes=0.0, fused_loss_bytes=8.0, host_factor=1.0,
    source="fitted to public A100 training runs of 2020 to 2023",
)  # fmt: skip
_HOPPER = replace(
    _AMPERE, sms=132, link_bandwidth=450e9, gemm_share=0.638, memory_share=0.712,
    flash_share=0.313, flash1_share=0.172, flash_half_tokens=390.0, ramp_k=53.0,
    kernel_s=2.4e-6, align_share=1.0, base_bytes=40e6, fused_loss_bytes=4.0, host_factor=0.75,
    source="fitted to public H100 training runs of 2023 and 2024",
)  # fmt: skip
_VOLTA = replace(
    _AMPERE, sms=80, link_bandwidth=150e9, gemm_share=0.927, memory_share=0.67, softmax_bytes=5.4,
    softmax_back_bytes=20.0,
    source="fitted to four public V100 training runs of 2020, and 35 of 2021",
)  # fmt: skip


def _like(facts: GpuFacts, family: str, sms: int, link_bandwidth: float) -> GpuFacts:
    return replace(
        facts, sms=sms, link_bandwidth=link_bandwidth,
        source=f"efficiencies of {family}",
        assumption=f"no measured runs of this GPU type: it reaches the same shares of its data "
        f"sheet as {family}",
    )  # fmt: skip


PCIE4_BYTES_PER_S = 24e9
PCIE3_BYTES_PER_S = 12e9

_BY_NAME: Mapping[str, GpuFacts] = {
    "V100-16GB": _VOLTA,
    "V100-32GB": _VOLTA,
    "A100-40GB": _AMPERE,
    "A100-80GB": _AMPERE,
    "A100-PCIe-80GB": replace(_AMPERE, link_bandwidth=PCIE4_BYTES_PER_S),
    "H100-80GB": _HOPPER,
    "H200-141GB": _like(_HOPPER, "H100", 132, 450e9),
    "GH200-96GB": _like(_HOPPER, "H100", 132, 450e9),
    "B200-180GB": _like(_HOPPER, "H100", 148, 900e9),
    "GB200": _like(_HOPPER, "H100", 148, 900e9),
    "L4-24GB": _like(_AMPERE, "A100", 58, PCIE4_BYTES_PER_S),
    "A10G-24GB": _like(_AMPERE, "A100", 80, PCIE4_BYTES_PER_S),
    "T4-16GB": _like(_VOLTA, "V100", 40, PCIE3_BYTES_PER_S),
    "TitanRTX-24GB": _like(_VOLTA, "V100", 72, PCIE3_BYTES_PER_S),
    "RTX2080Ti-11GB": _like(_VOLTA, "V100", 68, PCIE3_BYTES_PER_S),
    "RTX3090-24GB": _like(_AMPERE, "A100", 82, PCIE4_BYTES_PER_S),
    "RTX4090-24GB": _like(_AMPERE, "A100", 128, PCIE4_BYTES_PER_S),
}


def calibrated_types() -> tuple[tuple[str, GpuFacts], ...]:
    """Return the known GPU types with their constants, those of a family included."""
    return tuple(_BY_NAME.items())


def gpu_facts(gpu: GpuType) -> GpuFacts:
    """Return the constants of a GPU type; one that isn't known counts as an A100 by its sheet."""
    found = _BY_NAME.get(gpu.name)
    if found is not None:
        return found
    # An A100 computes 2.9e12 FLOP/s on each SM: an unknown sheet is cut into as many.
    sms = max(1, round(gpu.half_flop_per_s / (312e12 / 108)))
    return _like(_AMPERE, "A100", sms, PCIE4_BYTES_PER_S)
