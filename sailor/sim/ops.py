"""Seconds of single operations on one GPU: matrix products, attention, element-wise work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from sailor.model.execution import Precision
from sailor.model.hardware import GpuType
from sailor.sim.device import GpuFacts, gpu_facts
from sailor.sim.layers import Gemm, PassWork, element_bytes

# Output tiles of matrix-product kernels and their speed against the largest ones (rows, columns,
# share): smaller tiles reuse less of what they load.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.75), (64, 64, 0.55))
SPLITS = (1, 2, 4)  # over the reduction length
FP8_SHARE = 0.9  # of the doubled rate that products in 8 bits reach (three llm-foundry rows)
CAST_BYTES = 3.0  # of an element that is cast from 16 to 8 bits
ODD_SHARE = 0.37  # speed of a product whose sides aren't multiples of 8


@dataclass(frozen=True)
class Device:
    """A GPU type at one precision: sheet and constants."""

    gpu: GpuType
    facts: GpuFacts
    precision: Precision
    tf32: bool = False

    @classmethod
    def of(cls, gpu: GpuType, precision: Precision, *, tf32: bool = False) -> Device:
        """Return the device with its type's constants."""
        return cls(gpu, gpu_facts(gpu), precision, tf32)

    @property
    def peak(self) -> float:
        """Return the sheet's FLOP/s; TF32 runs at half the 16-bit rate where there is bf16."""
        if self.tf32 and self.precision == "fp32" and self.gpu.bf16:
            return self.gpu.half_flop_per_s / 2
        return self.gpu.flop_per_s(self.precision)

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the bandwidth that kernels reach."""
        return self.gpu.memory_bandwidth * self.facts.memory_share

    def gemm_s(self, gemm: Gemm, *, fp8: bool = False) -> float:
        """Return the seconds of a matrix product, without the gap before it.

        In 8 bits the rate doubles; casting reads both inputs in 16 bits and writes them in 8.
        """
        seconds = _gemm_s(
            gemm.m, gemm.n, gemm.k, gemm.batch, self.peak * (2 * FP8_SHARE if fp8 else 1),
            self.gpu.memory_bandwidth, element_bytes(self.precision), self.facts,
        )  # fmt: skip
        if fp8:
            inputs = (gemm.m + gemm.n) * gemm.k * gemm.batch
            seconds += CAST_BYTES * inputs / self.memory_bytes_per_s
        return seconds

    def attention_s(self, flop: float, seq_len: float, *, first_kernels: bool) -> float:
        """Return the seconds of fused attention: its share of the peak grows with the sequence."""
        if not flop:
            return 0.0
        ramp = seq_len / (seq_len + self.facts.flash_half_tokens)
        share = self.facts.flash1_share if first_kernels else self.facts.flash_share
        return flop / (self.peak * share * ramp)

    def pass_s(self, work: PassWork, *, backward: bool) -> float:
        """Return the device's seconds of a pass, without communication and launches by the host."""
        facts = self.facts
        seconds = work.elementwise_bytes / self.memory_bytes_per_s
        seconds += (work.num_kernels + len(work.gemms)) * facts.kernel_s
        seconds += sum(self.gemm_s(gemm, fp8=work.fp8) for gemm in work.gemms)
        seconds += self.attention_s(
            work.attention_flop, work.seq_len, first_kernels=work.first_kernels
        )
        if work.scores:
            each = facts.softmax_back_bytes if backward else facts.softmax_bytes
            scale = element_bytes(self.precision) / 2
            seconds += work.scores * each * scale / self.memory_bytes_per_s
        return seconds


@lru_cache(maxsize=200_000)
def _gemm_s(
    m: float, n: float, k: float, batch: float,
    peak: float, bandwidth: float, size: int, facts: GpuFacts,
) -> float:  # fmt: skip
    """Return the time of the best tile and split.

    Compute: waves * 2 Tm Tn (k / split + k0) over the rate of one SM, with
    waves = ceil(tiles * split * batch / SMs). Memory: the three matrices, and the partial sums of
    a split in fp32.
    """
    rate = peak / facts.sms * facts.gemm_share * _alignment(m, n, k, facts)
    touched = size * (m * k + k * n + m * n) * batch
    memory = bandwidth * facts.memory_share
    best = math.inf
    for rows, columns, share in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * batch
        for split in SPLITS:
            waves = math.ceil(tiles * split / facts.sms)
            each = 2 * rows * columns * (k / split + facts.ramp_k)
            partial = 8 * m * n * batch * (split - 1) / split * split if split > 1 else 0.0
            seconds = max(waves * each / (rate * share), (touched + partial) / memory)
            best = min(best, seconds)
    return best


def _alignment(m: float, n: float, k: float, facts: GpuFacts) -> float:
    if all(side % 64 == 0 for side in (n, k)) and m % 8 == 0:
        return 1.0
    if all(side % 8 == 0 for side in (m, n, k)):
        return facts.align_share
    return ODD_SHARE
