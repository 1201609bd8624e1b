"""Layer times from data sheets: a roofline with efficiencies fitted to published training runs.

A matrix product takes 2 m n (k + k0) operations at a share of the peak rate, or its bytes at a
share of the memory bandwidth, whichever is longer; element-wise work takes its bytes; fused
attention a share of the peak that grows with the sequence. Tensor-parallel all-reduces are rings
over the bandwidth inside a node and nothing hides them. The launches of a block's kernels take the
host a fixed time: the block takes (device^4 + host^4)^(1/4). The constants were fitted together to
public iteration times of Megatron-like frameworks on A100 (2021 to 2023), those marked H100 to
H100 runs. Tile shapes, wave quantisation and odd dimensions are not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sailor.interfaces import SourceContext
from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.catalog import Catalog
from sailor.model.hardware import GpuType
from sailor.model.job import Precision, Training
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitTime
from sailor.sim.layers import PassWork, backward_work, element_bytes, forward_work, unit_bytes

MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class _Efficiency:
    """Shares of the data sheet's rates, and the runs they were fitted to."""

    gemm: float
    memory: float
    attention: float
    attention_half_tokens: float  # sequence length at which attention reaches half of its share
    fitted_to: str


_A100 = _Efficiency(0.762, 0.801, 0.300, 400, "A100")
_H100 = _Efficiency(0.74, 0.92, 0.18, 340, "H100")
_BY_PREFIX = (("H100", _H100), ("H200", _H100), ("GH200", _H100))

_GEMM_RAMP_K = 80.0  # k0: reduction length that a product pays for filling its pipeline
_KERNEL_S = 4e-6  # gap from one kernel to the next
_BLOCK_LAUNCH_S = 1.31e-3  # host time of a block's forward pass; backward 1.2 times
_BLOCK_LAUNCH_TP_S = 0.1e-3  # more for each doubling of tp
_BACKWARD_LAUNCH = 1.2
_ALLREDUCE_SHARE = 0.7  # of one-way intra-node bandwidth
_ALLREDUCE_STEP_S = 15e-6  # for each doubling of tp
_OPTIMIZER_BLOCK_S = 0.2e-3  # launches of the optimizer, each block
# Bytes a parameter that an optimizer step moves. fp32 Adam: reads parameter, gradient and two
# moments, writes all but the gradient. Mixed precision: fitted, with unscaling, clipping and the
# 16-bit copy. Plain SGD moves no moments (16 bytes less).
_ADAM_BYTES = {"fp32": 28.0, "fp16": 48.0, "bf16": 48.0}
_MOMENT_BYTES = 16.0


class AnalyticProfiles:
    """The profile source `analytic`: an answer for any model, GPU type, tp and microbatch."""

    name = "analytic"

    def grid(
        self, model: ModelSpec, training: Training, gpu: str, context: SourceContext
    ) -> Sequence[tuple[int, int]]:
        """Return powers of two: tp as the model and the largest node allow, microbatch to 64."""
        return tuple(
            (tp, microbatch)
            for exponent in range(11)
            for microbatch in MICROBATCHES
            if _answers(model, training, gpu, tp := 2**exponent, context.catalog)
        )

    def profile(
        self,
        model: ModelSpec,
        training: Training,
        gpu: str,
        tp: int,
        microbatch: int,
        context: SourceContext,
    ) -> LayerProfile | None:
        """Return the estimate, or None: a precision the GPU lacks, or a tp that can't be."""
        if not _answers(model, training, gpu, tp, context.catalog):
            return None
        gpu_type = context.catalog.gpu(gpu)
        machine = _Machine(gpu_type, training.precision, tp, _peer_bandwidth(gpu, tp, context))

        def time(kind: UnitKind) -> UnitTime:
            shape = (model, kind, tp, microbatch, training.precision)
            in_block = kind in ("first_block", "block")
            return UnitTime(
                forward_s=machine.pass_s(forward_work(*shape), 1.0 if in_block else 0.0),
                backward_s=machine.pass_s(
                    backward_work(*shape), _BACKWARD_LAUNCH if in_block else 0.0
                ),
            )

        embedding, block, head = time("embedding"), time("block"), time("head")
        params = sum(
            model.unit_params(kind, tp) for kind in ("embedding", "first_block", "block", "head")
        )
        return LayerProfile(
            model=model.name,
            gpu=gpu,
            tp=tp,
            microbatch=microbatch,
            precision=training.precision,
            embedding=embedding,
            first_block=block,
            block=block,
            head=head,
            optimizer_s=machine.optimizer_s(params, 2, training),
            optimizer_params=params,
            provenance=Provenance.MODELLED,
            source=machine.source(),
        )

    def footprint(
        self, model: ModelSpec, training: Training, tp: int, context: SourceContext
    ) -> LayerFootprint | None:
        """Return the bytes by formula, or None where heads don't split over tp."""
        if not model.allows_tp(tp):
            return None
        precision = training.precision
        block = unit_bytes(model, "block", tp, precision)
        return LayerFootprint(
            model=model.name,
            tp=tp,
            precision=precision,
            embedding=unit_bytes(model, "embedding", tp, precision),
            first_block=block,
            block=block,
            head=unit_bytes(model, "head", tp, precision),
            provenance=Provenance.MODELLED,
            source="analytic: activation formula of Korthikanti et al. 2022 with fused attention "
            "(no score matrix), dropout masks, no recomputation",
        )


@dataclass(frozen=True)
class _Machine:
    """`tp` GPUs of a type in one node, at one precision."""

    gpu: GpuType
    precision: Precision
    tp: int
    peer_bandwidth: float  # bytes/s, one GPU to its peers, one direction; inf at tp 1

    @property
    def efficiency(self) -> _Efficiency:
        return next((e for start, e in _BY_PREFIX if self.gpu.name.startswith(start)), _A100)

    def pass_s(self, work: PassWork, launches: float) -> float:
        """Return the seconds of a pass; `launches` counts a block's forward launch time."""
        share, peak = self.efficiency, self.gpu.flop_per_s(self.precision)
        memory = self.gpu.memory_bandwidth * share.memory
        size = element_bytes(self.precision)
        device = work.elementwise_bytes / memory + work.num_kernels * _KERNEL_S
        for gemm in work.gemms:
            compute = gemm.flop * (1 + _GEMM_RAMP_K / gemm.k) / (peak * share.gemm)
            device += max(compute, gemm.bytes_moved(size) / memory) + _KERNEL_S
        if work.attention_flop:
            ramp = work.seq_len / (work.seq_len + share.attention_half_tokens)
            device += work.attention_flop / (peak * share.attention * ramp)
        device += work.num_allreduces * self.allreduce_s(work.allreduce_bytes)
        host = launches * (_BLOCK_LAUNCH_S + _BLOCK_LAUNCH_TP_S * math.log2(self.tp))
        return float((device**4 + host**4) ** 0.25)

    def allreduce_s(self, message_bytes: float) -> float:
        """Return the seconds of a ring over the tp GPUs: 2 (n - 1) / n of the message."""
        if self.tp == 1:
            return 0.0
        share = 2 * (self.tp - 1) / self.tp
        seconds = share * message_bytes / (self.peer_bandwidth * _ALLREDUCE_SHARE)
        return seconds + _ALLREDUCE_STEP_S * math.log2(self.tp)

    def optimizer_s(self, params: int, num_blocks: int, training: Training) -> float:
        """Return the seconds of one optimizer step over `params` parameters."""
        moved = _ADAM_BYTES[self.precision]
        if training.optimizer == "sgd":
            moved -= _MOMENT_BYTES
        memory = self.gpu.memory_bandwidth * self.efficiency.memory
        return params * moved / memory + num_blocks * _OPTIMIZER_BLOCK_S

    def source(self) -> str:
        """Return the estimate's basis in one phrase."""
        share = self.efficiency
        text = (
            f"analytic: roofline of {self.gpu.name}'s data sheet, efficiencies fitted to published "
            f"{share.fitted_to} runs (matrix products {share.gemm:g}, memory {share.memory:g}, "
            f"fused attention {share.attention:g})"
        )
        if self.tp > 1:
            text += f", all-reduce at {self.peer_bandwidth / 1e9:g} GB/s within a node"
        return text


def _answers(model: ModelSpec, training: Training, gpu: str, tp: int, catalog: Catalog) -> bool:
    if training.precision == "bf16" and not catalog.gpu(gpu).bf16:
        return False
    return model.allows_tp(tp) and tp <= _largest_node(gpu, catalog)


def _largest_node(gpu: str, catalog: Catalog) -> int:
    return max((node.num_gpus for node in catalog.nodes.values() if node.gpu == gpu), default=1)


def _peer_bandwidth(gpu: str, tp: int, context: SourceContext) -> float:
    """Return the bandwidth inside a node that most node types with tp such GPUs have.

    A profile knows its GPU type but not its node type; of equally common figures the lowest
    counts.
    """
    if tp == 1:
        return math.inf
    figures = Counter(
        node.intra_node_bandwidth
        for node in context.catalog.nodes.values()
        if node.gpu == gpu and node.num_gpus >= tp
    )
    most = max(figures.values())
    return min(bandwidth for bandwidth, count in figures.items() if count == most)
