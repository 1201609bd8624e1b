"""Layer times from data sheets: operations by shape, with shares fitted to published runs.

The times are those of `sailor.sim.ops`: matrix products by tiles and waves, element-wise work by
its bytes, fused attention at a share of the peak that grows with the sequence. Tensor-parallel
all-reduces are rings over the bandwidth inside a node and nothing hides them. The launches of a
block's kernels take the host a fixed time: the block takes (device^4 + host^4)^(1/4). Constants by
GPU type and framework, and their sources, stand in `sailor.sim.device` and `frameworks`; how far
the times are from measurements stands in docs/validation.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sailor.interfaces import SourceContext
from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.catalog import Catalog
from sailor.model.execution import Execution
from sailor.model.job import Training
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitTime
from sailor.sim.clusters import DEFAULT_CLUSTER
from sailor.sim.collectives import Wires, allreduce_s, group_of
from sailor.sim.frameworks import FrameworkTimes, framework_times
from sailor.sim.layers import PassWork, unit_bytes, unit_work
from sailor.sim.ops import Device

MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)

# Bytes a parameter that an optimizer step moves in fp32: Adam reads parameter, gradient and two
# moments and writes all but the gradient; plain SGD moves no moments (16 bytes less). In mixed
# precision the framework's fitted figure counts.
_FP32_ADAM_BYTES = 28.0
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
        machine = _Machine.of(training, gpu, tp, context)

        def time(kind: UnitKind) -> UnitTime:
            forward, backward = unit_work(model, machine.execution, kind, tp, microbatch)
            is_block = kind in ("first_block", "block")
            launch = machine.launch_s() if is_block else 0.0
            forward_s = machine.pass_s(forward, launch, backward=False)
            backward_s = machine.pass_s(backward, launch * machine.times.launch_back, backward=True)
            if is_block and training.recompute == "full":
                backward_s += forward_s  # the block runs once more, its traffic included
            return UnitTime(forward_s=forward_s, backward_s=backward_s)

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
        execution = Execution(
            precision=training.precision,
            recompute=training.recompute,
            sequence_parallel=training.sequence_parallel,
            dropout=True,
        )
        block = unit_bytes(model, execution, "block", tp)
        return LayerFootprint(
            model=model.name,
            tp=tp,
            precision=training.precision,
            embedding=unit_bytes(model, execution, "embedding", tp),
            first_block=block,
            block=block,
            head=unit_bytes(model, execution, "head", tp),
            provenance=Provenance.MODELLED,
            source="analytic: activation formula of Korthikanti et al. 2022 with fused attention "
            f"(no score matrix), dropout masks, recomputation {training.recompute}",
        )


@dataclass(frozen=True)
class _Machine:
    """`tp` GPUs of a type in one node, at one precision."""

    device: Device
    execution: Execution
    times: FrameworkTimes
    tp: int
    peer_bandwidth: float  # bytes/s, one GPU to its peers, one direction; inf at tp 1

    @classmethod
    def of(cls, training: Training, gpu: str, tp: int, context: SourceContext) -> _Machine:
        gpu_type = context.catalog.gpu(gpu)
        execution = Execution(
            precision=training.precision,
            optimizer=training.optimizer,
            recompute=training.recompute,
            sequence_parallel=training.sequence_parallel,
            # Fused kernels need a type with bf16.
            attention="flash" if gpu_type.bf16 else "eager",
            dropout=True,
        )
        device = Device.of(gpu_type, training.precision)
        times = framework_times(execution.framework)
        return cls(device, execution, times, tp, _peer_bandwidth(gpu, tp, context))

    def launch_s(self) -> float:
        """Return the host's seconds to launch a block's forward pass."""
        seconds = self.times.launch_s + self.times.launch_tp_s * math.log2(self.tp)
        return seconds * self.device.facts.host_factor

    def pass_s(self, work: PassWork, launch_s: float, *, backward: bool) -> float:
        """Return the seconds of a pass, with its all-reduces and the host's launches."""
        device = self.device.pass_s(work, backward=backward)
        if self.tp > 1:
            link = self.peer_bandwidth * DEFAULT_CLUSTER.link_share
            wires = Wires(link, math.inf, DEFAULT_CLUSTER.link_step_s)
            group = group_of(self.tp, 1, self.tp)
            device += work.num_allreduces * allreduce_s(work.allreduce_bytes, group, wires)
        return float((device**4 + launch_s**4) ** 0.25)

    def optimizer_s(self, params: int, num_blocks: int, training: Training) -> float:
        """Return the seconds of one optimizer step over `params` parameters."""
        fp32 = training.precision == "fp32"
        moved = _FP32_ADAM_BYTES if fp32 else self.times.optimizer_bytes
        if training.optimizer == "sgd":
            moved -= _MOMENT_BYTES
        return (
            params * moved / self.device.memory_bytes_per_s + num_blocks * self.times.step_block_s
        )

    def source(self) -> str:
        """Return the estimate's basis in one phrase."""
        facts = self.device.facts
        kind = "fused" if self.execution.attention == "flash" else "eager"
        text = (
            f"analytic: operations by shape on {self.device.gpu.name}'s data sheet, "
            f"{facts.source} (matrix products {facts.gemm_share:g} of the peak, memory "
            f"{facts.memory_share:g}, {kind} attention)"
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
