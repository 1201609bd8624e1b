"""Cost model `sailor`: the default.

Against the published form: replicas keep their own pipelines instead of being averaged into the
slowest stage, activations are kept for min(microbatches, stages to the end), the all-reduce moves
the gradients of all ranks of a node through that node's links, transfers never take less than the
link's latency, the optimizer step is that of the stage's own parameters, logits and temporary
buffers are counted, and the card's real size is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance
from sailor.sim.frameworks import framework_facts
from sailor.sim.kinds import WorkerKind
from sailor.sim.network import LinkTable, egress_usd_per_byte, link_table, with_shared_cards
from sailor.sim.platforms import platform_of
from sailor.sim.prices import usd_per_gpu_hour
from sailor.sim.profiles import ProfileIndex
from sailor.sim.scores import kept_score_bytes, recomputed_bytes, transient_score_bytes
from sailor.sim.tables import MemoryMargin, MemoryTables, StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Bytes a parameter by precision: weights, gradients, master copy and optimizer moments, flat
# copy for the all-reduce. Mixed precision keeps fp32 gradients, as Megatron-LM's default does.
_WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
_GRADIENT_BYTES = {"fp32": 4.0, "fp16": 4.0, "bf16": 4.0}
_MASTER_BYTES = {"fp32": 0.0, "fp16": 4.0, "bf16": 4.0}
_MOMENT_BYTES = {"adam": 8.0, "sgd": 4.0}
_FLAT_COPY_BYTES = {"fp32": 4.0, "fp16": 0.0, "bf16": 0.0}
_WIRE_BYTES = {"fp32": 4.0, "fp16": 4.0, "bf16": 4.0}  # gradients are reduced in fp32

_FACTS = framework_facts("megatron-lm")
_CAMPAIGN_SPREAD_BYTES = 0.8e9
_MEASURED_MARGIN = 0.05
# Adam in fp32 reads a parameter, its gradient and two moments and writes all but the gradient.
_STEP_TRAFFIC_BYTES = 28.0
# NCCL_BUFFSIZE, 4 MiB by default: a send returns once its part lies in the buffer.
_TRANSPORT_BUFFER_BYTES = 4.0 * 2**20
# The backward pass of the loss holds logits, their fp32 softmax and the gradient at once.
_LOGITS_COPIES = 3.0


@dataclass(frozen=True)
class NodeSharedSync:
    """Ring all-reduce in which the tp ranks of a replica share their node's links.

    Each of the 2 (D - 1) steps moves the stage's gradient bytes / D over the aggregate bandwidth
    of the link, in messages of one rank's share.
    """

    links: LinkTable
    gradient_prefix_bytes: Floats  # [U + 1], whole stage

    def seconds(
        self, start: Ints, stop: Ints, min_tp: Ints, dp: Ints | int, src: Ints, dst: Ints
    ) -> Floats:
        """Return the ring's seconds (0 for dp 1)."""
        size = self.gradient_prefix_bytes[stop] - self.gradient_prefix_bytes[start]
        chunk = size / dp
        one_rank = chunk / min_tp
        # The curve is read at one rank's message; the other ranks' messages go beside it.
        latency = self.links.latency_s[src, dst]
        each = self.links.transfer_s(one_rank, src, dst) - latency
        steps = 2.0 * (np.asarray(dp, dtype=float) - 1)
        hop = latency + each * min_tp
        # dp 1 has no step; an unknown link must not make it infinite.
        seconds: Floats = np.multiply(
            steps, hop, out=np.zeros(np.broadcast_shapes(steps.shape, hop.shape)), where=steps > 0
        )
        return seconds


class SailorModel:
    """The default model as tables."""

    name = "sailor"
    description = "per-pipeline 1F1B, shared node links, real card sizes (the default)"

    def tables(self, problem: Problem, kinds: Sequence[WorkerKind], microbatch: int) -> StageTables:
        """Return the cost terms of these kinds at one microbatch size."""
        index = ProfileIndex(problem)
        links = link_table(problem, kinds)
        sizes, by_unit = index.message_sizes(microbatch)
        parameters = index.parameters_prefix()
        wire = parameters * _WIRE_BYTES[problem.training.precision]
        grid = np.arange(len(kinds))
        send = with_shared_cards(problem, kinds, links).transfer_s(
            sizes[:, None, None], grid[None, :, None], grid[None, None, :]
        )
        tp = np.array([kind.tp for kind in kinds], dtype=np.int64)
        # A message is cut into one part a pair of GPUs; parts beyond the transport's buffer wait
        # for the receiver, and the receiver for them.
        one_pair = sizes[:, None, None] / np.minimum(tp[:, None], tp[None, :])
        return StageTables(
            kinds=tuple(kinds),
            microbatch=microbatch,
            num_units=problem.arch.num_units,
            usable=index.usable(kinds, microbatch),
            compute_prefix_s=index.compute_prefix_s(kinds, microbatch),
            update_s=np.zeros(len(kinds)),
            update_prefix_s=self._update_prefix(problem, index, kinds, microbatch),
            memory=self._memory(problem, index, kinds, microbatch),
            size_bytes=sizes,
            forward_size=by_unit,
            # The gradient of a stage's input is as large as the output of the unit before it.
            backward_size=np.concatenate((by_unit[:1], by_unit[:-1])),
            send_s=send,
            blocked_s=np.where(one_pair > _TRANSPORT_BUFFER_BYTES, send, 0.0),
            sync=NodeSharedSync(links, wire),
            gradient_prefix_bytes=wire,
            egress_usd_per_byte=egress_usd_per_byte(problem, kinds),
            usd_per_gpu_hour=usd_per_gpu_hour(problem, kinds),
            tp=tp,
            coupled=False,
            short_pipeline_factor=(0, 2.0),
        )

    def assumptions(self, problem: Problem) -> Sequence[str]:
        """Return the defaults that this model uses on this problem."""
        bases = [(gpu.name, platform_of(gpu.name).base_memory_bytes) for gpu in problem.gpus]
        outside = [
            f"{base.value / 1e9:.1f} GB of each {name} lie outside the allocator (context, NCCL); "
            f"{base.source}"
            for name, base in bases
            if base.assumed
        ]
        unmeasured = sorted({p.gpu for p in problem.profiles if p.optimizer_s == 0})
        steps = [
            f"the optimizer step on {gpu} was not measured; it is counted as its memory traffic"
            for gpu in unmeasured
        ]
        return (*outside, *steps)

    @staticmethod
    def _update_prefix(
        problem: Problem, index: ProfileIndex, kinds: Sequence[WorkerKind], microbatch: int
    ) -> Floats:
        parameters = index.bytes_prefix(kinds, lambda fp, kind: fp.unit(kind).params)
        profiles = [index.profile(kind, microbatch) for kind in kinds]
        per_parameter = np.array([_step_s(problem, p) if p else 0.0 for p in profiles])
        seconds: Floats = parameters * per_parameter[:, None]
        return seconds

    @staticmethod
    def _memory(
        problem: Problem, index: ProfileIndex, kinds: Sequence[WorkerKind], microbatch: int
    ) -> MemoryTables:
        precision, optimizer = problem.training.precision, problem.training.optimizer
        parameters = index.bytes_prefix(kinds, lambda fp, kind: fp.unit(kind).params)
        activations = index.bytes_prefix(kinds, lambda fp, kind: fp.unit(kind).activation_bytes)
        scores = np.array([kept_score_bytes(problem, kind) for kind in kinds])
        blocks = np.clip(np.arange(problem.arch.num_units + 1) - 1, 0, problem.arch.num_layers)
        activations = activations + scores[:, None] * blocks[None, :]
        parts = (
            _WEIGHT_BYTES[precision] * parameters,
            _GRADIENT_BYTES[precision] * parameters,
            (_MOMENT_BYTES[optimizer] + _MASTER_BYTES[precision]) * parameters,
            _FLAT_COPY_BYTES[precision] * parameters,
        )
        footprints = [index.footprint(kind.tp) for kind in kinds]
        logits = np.array([_loss_transient_bytes(fp) if fp else 0.0 for fp in footprints])
        boundary = np.array([fp.block.output_bytes if fp else 0.0 for fp in footprints])
        return MemoryTables(
            parameters_prefix_bytes=parts[0],
            gradients_prefix_bytes=parts[1],
            optimizer_prefix_bytes=parts[2],
            communication_prefix_bytes=parts[3],
            activations_prefix_bytes=activations * microbatch,
            block_transient_bytes=microbatch
            * np.array(
                [
                    transient_score_bytes(problem, kind) + recomputed_bytes(problem, kind)
                    for kind in kinds
                ]
            ),
            head_transient_bytes=logits * microbatch,
            boundary_bytes=boundary * microbatch,
            reserve_bytes=np.array(
                [platform_of(kind.gpu).base_memory_bytes.value for kind in kinds]
            ),
            capacity_bytes=np.array([float(problem.gpu(kind.gpu).memory_bytes) for kind in kinds]),
            state_prefix_bytes=np.sum(parts, axis=0),
            sharded_prefix_bytes=(
                parts[2] if problem.training.zero == 1 else np.zeros_like(parameters)
            ),
            tied_share=np.array([_tied_share(problem, fp) if fp else 0.0 for fp in footprints]),
            in_flight_capped=True,
            margin=_margin(problem, kinds),
        )


def _step_s(problem: Problem, profile: LayerProfile) -> float:
    """Return the seconds of an optimizer step a parameter; a missing measurement is no zero."""
    if profile.optimizer_s > 0:
        return profile.optimizer_s / profile.optimizer_params
    return _STEP_TRAFFIC_BYTES / problem.gpu(profile.gpu).memory_bandwidth


def _tied_share(problem: Problem, footprint: LayerFootprint) -> float:
    """Return the part of the whole model's parameters that tied embedding and head count twice.

    Measured footprints say what each unit held and are taken as they are.
    """
    arch = problem.arch
    if not arch.tied_embeddings or footprint.provenance is not Provenance.MODELLED:
        return 0.0
    units = [footprint.unit(arch.unit_kind(unit)).params for unit in range(arch.num_units)]
    table = arch.padded_vocab(footprint.tp) // footprint.tp * arch.hidden
    return table / sum(units)


def _loss_transient_bytes(footprint: LayerFootprint) -> float:
    """Return what the loss's backward pass holds for a moment, of one sample on one rank.

    Measured heads count logits and softmax as kept; the backward pass has three copies more.
    Modelled ones follow the framework's own loss, which works in place.
    """
    if footprint.provenance is Provenance.MODELLED:
        return footprint.head.output_bytes / 4.0 * _FACTS.logit_peak_bytes
    return _LOGITS_COPIES * footprint.head.output_bytes


def _margin(problem: Problem, kinds: Sequence[WorkerKind]) -> MemoryMargin:
    """Return what the estimate may be short of.

    5 % of states and moving parts: the worst row of the measured SOSP'25 runs is 4.6 % off. Two
    measuring campaigns of the same plans differ by 0.8 GB. Modelled layers, and memory outside the
    allocator that was not measured, have the margins that no published row exceeds.
    """
    assumed = [platform_of(kind.gpu).base_memory_bytes.assumed for kind in kinds]
    fixed = _CAMPAIGN_SPREAD_BYTES + np.where(assumed, _FACTS.bound_outside, 0.0)
    modelled = any(fp.provenance is Provenance.MODELLED for fp in problem.footprints)
    return MemoryMargin(
        states=_FACTS.bound_states if modelled else _MEASURED_MARGIN,
        moving=_FACTS.slack + _FACTS.bound_moving if modelled else _MEASURED_MARGIN,
        fixed_bytes=fixed,
    )
