"""Iteration time without a profile: operations, collectives and a 1F1B pipeline.

All replicas are alike. Every step has a name in `TimeParts`; the functions' docstrings give the
equations. A measured profile replaces the first of them, `block_times`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.execution import Chunk, Execution, Layout
from sailor.model.hardware import GpuType
from sailor.model.profile import UnitTime
from sailor.sim.analytic_memory import rank_params, shard_ranks
from sailor.sim.clusters import DEFAULT_CLUSTER, ClusterFacts
from sailor.sim.collectives import Wires, allreduce_s, exchange_s, gather_s, group_of, send_s
from sailor.sim.frameworks import (
    EXPOSED_GATHER,
    FrameworkTimes,
    framework_times,
    gradient_wire_bytes,
    optimizer_traffic_bytes,
)
from sailor.sim.layers import unit_work
from sailor.sim.ops import Device


@dataclass(frozen=True)
class TimeParts:
    """Seconds of one iteration; the first four add up over the slowest stage's microbatches."""

    compute: float  # the slowest stage's microbatches, tensor-parallel traffic included
    bubble: float  # other stages' first and last microbatches
    transfers: float  # activations and their gradients between stages
    gradients: float  # reduction over the replicas that the backward pass doesn't hide
    weights: float  # gathering weights of a sharded optimizer or model
    optimizer: float
    step: float  # the host's fixed time of a step

    @property
    def total(self) -> float:
        """Return the iteration's seconds."""
        return (
            self.compute + self.bubble + self.transfers + self.gradients + self.weights
            + self.optimizer + self.step
        )  # fmt: skip


@dataclass(frozen=True)
class UnitSeconds:
    """One unit and microbatch on one rank: device and host, forward and backward."""

    forward: float
    backward: float
    tp_forward: float  # tensor-parallel traffic, not in `forward`
    tp_backward: float


@dataclass(frozen=True)
class Setting:
    """What an estimate stands on: model, program, cut, GPU type, cluster, constants."""

    model: ModelSpec
    execution: Execution
    layout: Layout
    device: Device
    cluster: ClusterFacts
    times: FrameworkTimes

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        execution: Execution,
        layout: Layout,
        gpu: GpuType,
        cluster: ClusterFacts = DEFAULT_CLUSTER,
    ) -> Setting:
        """Return the setting with the constants of its GPU type and framework."""
        times = framework_times(execution.framework)
        device = Device.of(gpu, execution.precision, tf32=execution.tf32)
        return cls(model, execution.on(gpu), layout, device, cluster, times)

    @property
    def wires(self) -> Wires:
        """Return the bandwidths that collectives reach on this cluster."""
        return Wires(
            link=(self.cluster.link_bandwidth or self.device.facts.link_bandwidth)
            * self.cluster.link_share,
            node_nics=self.cluster.nic_bandwidth * self.cluster.nic_share,
            link_step_s=self.cluster.link_step_s,
        )


def iteration_time(setting: Setting) -> TimeParts:
    """Return the seconds of an iteration.

    T = n max(stage) + (sum(stage) - max(stage)) / vpp + 2 send (n vpp + pp - 1)
        + gradients + weights + optimizer + fixed, with n microbatches.
    """
    layout, times = setting.layout, setting.times
    stages = [stage_s(setting, rank) for rank in range(layout.pp)]
    slowest, count = max(stages), layout.num_microbatches
    compute = count * slowest
    bubble = (sum(stages) - slowest) / layout.vpp
    # Reductions of the stages run side by side, then all of them step.
    gradients, weights, optimizer = (
        max(parts)
        for parts in zip(*(_step_parts(setting, rank) for rank in range(layout.pp)), strict=True)
    )
    return TimeParts(
        compute=compute,
        bubble=bubble,
        transfers=_transfers_s(setting),
        gradients=gradients,
        weights=weights,
        optimizer=optimizer,
        step=times.step_s * setting.cluster.host_factor,
    )


def stage_s(setting: Setting, rank: int) -> float:
    """Return the seconds of one microbatch, forward and backward, on a pipeline rank."""
    chunks = setting.layout.rank_chunks(rank)
    kinds: tuple[UnitKind, ...] = ("embedding", "block", "head")
    counts = (
        sum(chunk.embedding for chunk in chunks),
        sum(chunk.blocks for chunk in chunks),
        sum(chunk.head for chunk in chunks),
    )
    device = host = held = 0.0
    for kind, count in zip(kinds, counts, strict=True):
        if count:
            unit_device, unit_host = unit_times(setting, kind)
            params, experts = unit_params(setting, kind)
            device += count * (unit_device + _accumulate_s(setting, params + experts))
            host += count * unit_host
            held += count * (params + experts)
    busy = float((device**4 + host**4) ** 0.25)
    power, gather = setting.times.gather_power, _gather_s(setting, held, counts[1])
    busy = float((busy**power + gather**power) ** (1 / power))
    return busy + setting.times.microbatch_s * setting.cluster.host_factor


def unit_times(setting: Setting, kind: UnitKind) -> tuple[float, float]:
    """Return a unit's device and host seconds for one microbatch."""
    if kind in ("block", "first_block"):
        return block_times(setting)
    unit = unit_seconds(setting, kind)
    return unit.forward + unit.backward + unit.tp_forward + unit.tp_backward, 0.0


def unit_params(setting: Setting, kind: UnitKind) -> tuple[float, float]:
    """Return a unit's parameters on one rank: those outside of routed experts, and experts'."""
    chunk = Chunk(
        blocks=int(kind in ("block", "first_block")),
        embedding=kind == "embedding", head=kind == "head",
    )  # fmt: skip
    return rank_params(setting.model, setting.execution, setting.layout, (chunk,))


def block_times(setting: Setting) -> tuple[float, float]:
    """Return a block's device and host seconds for one microbatch, recomputation included."""
    device, host = block_passes(setting)
    return device.forward_s + device.backward_s, host.forward_s + host.backward_s


def block_passes(setting: Setting) -> tuple[UnitTime, UnitTime]:
    """Return a block's device and host seconds, by pass, for one microbatch.

    Full recomputation runs the forward pass once more with its traffic; "operators" half of it
    without traffic; selective only eager attention's products and scores.
    """
    unit = unit_seconds(setting, "block")
    times, tp = setting.times, setting.layout.tp
    launch = times.launch_s + times.launch_tp_s * math.log2(tp)
    launch += times.launch_parallel_s if tp > 1 else 0.0
    launch += times.launch_experts_s * setting.model.experts_share
    launch *= setting.cluster.host_factor * setting.device.facts.host_factor
    exchange = _experts_exchange_s(setting) + _context_exchange_s(setting)
    forward = unit.forward + unit.tp_forward + 2 * exchange
    backward = unit.backward + unit.tp_backward + 2 * exchange
    launch_back = launch * times.launch_back
    recompute = setting.execution.recompute
    if recompute == "full":
        backward += forward
        launch_back += launch
        if setting.execution.recompute_stops_early:
            backward -= _last_product_s(setting)
    elif recompute == "operators":
        backward += 0.5 * unit.forward
    elif recompute == "selective":
        backward += _attention_core_s(setting)
    return (
        UnitTime(forward_s=forward, backward_s=backward),
        UnitTime(forward_s=launch, backward_s=launch_back),
    )


def unit_seconds(setting: Setting, kind: UnitKind) -> UnitSeconds:
    """Return the times of a unit's passes on the device."""
    layout, execution = setting.layout, setting.execution
    forward, backward = unit_work(
        setting.model,
        execution,
        kind,
        layout.tp,
        layout.microbatch,
    )
    group = group_of(layout.tp, 1, setting.cluster.gpus_per_node)
    exposed = 1 - (setting.times.tp_overlap if execution.overlap_tp else 0.0)
    tp_times = [
        exposed * work.num_allreduces * allreduce_s(work.allreduce_bytes, group, setting.wires)
        for work in (forward, backward)
    ]
    return UnitSeconds(
        setting.device.pass_s(forward, backward=False),
        setting.device.pass_s(backward, backward=True),
        *tp_times,
    )


def _experts_exchange_s(setting: Setting) -> float:
    """Return the all-to-all that brings tokens to their experts, or back: 2 top_k t h bytes.

    Each pass has two of them. The ranks of the tensor-parallel group hold a part of the tokens.
    """
    execution, layout = setting.execution, setting.layout
    if setting.model.experts is None or execution.ep == 1:
        return 0.0
    tokens = layout.microbatch * setting.model.seq_len / execution.cp / layout.tp
    sent = 2.0 * setting.model.experts.top_k * tokens * setting.model.hidden
    expert_tp = execution.expert_tp or layout.tp
    group = group_of(execution.ep, expert_tp, setting.cluster.gpus_per_node)
    return setting.model.experts_share * exchange_s(sent, group, setting.wires)


def _context_exchange_s(setting: Setting) -> float:
    """Return half of what a pass gathers for context parallelism: keys and values of all ranks.

    A ring moves (cp - 1) / cp of the sequence's keys and values past every rank, in 16-bit (or
    fp32): forward once; backward once more, and their gradients once. Attention hides none of it.
    """
    execution, model, layout = setting.execution, setting.model, setting.layout
    if execution.cp == 1:
        return 0.0
    width = 2 * model.num_kv_heads * model.head_dim / layout.tp
    size = 4 if execution.precision == "fp32" else 2
    message = size * layout.microbatch * model.seq_len * width
    group = group_of(execution.cp, layout.tp, setting.cluster.gpus_per_node)
    return 0.75 * gather_s(message, group, setting.wires)


def _last_product_s(setting: Setting) -> float:
    """Return the seconds of the product that ends a block: nothing needs its result again."""
    forward, _ = unit_work(
        setting.model, setting.execution, "block", setting.layout.tp, setting.layout.microbatch
    )
    products = forward.gemms[:-2] if forward.scores else forward.gemms
    return setting.device.gemm_s(products[-1]) + setting.device.facts.kernel_s


def _accumulate_s(setting: Setting, params: float) -> float:
    """Return the traffic of adding a microbatch's gradients to those of the ones before."""
    if setting.execution.fused_accumulation or setting.execution.zero == 3:
        return 0.0  # fully sharded gradients are too small to count
    times = setting.times
    bf16 = setting.execution.precision == "bf16"
    each = times.accumulate_bf16_bytes if bf16 else times.accumulate_bytes
    return params * each / setting.device.memory_bytes_per_s


def _attention_core_s(setting: Setting) -> float:
    """Return the forward seconds of eager attention's products and softmax; flash keeps none."""
    if setting.execution.attention != "eager":
        return 0.0
    forward, _ = unit_work(
        setting.model, setting.execution, "block", setting.layout.tp, setting.layout.microbatch
    )
    device = setting.device
    products = sum(device.gemm_s(gemm) + device.facts.kernel_s for gemm in forward.gemms[-2:])
    softmax = forward.scores * device.facts.softmax_bytes / device.memory_bytes_per_s
    return products + softmax


def _transfers_s(setting: Setting) -> float:
    """Return the exposed sends between stages: 2 (n vpp + pp - 1) messages of 2 t h / tp bytes."""
    layout = setting.layout
    if layout.pp == 1:
        return 0.0
    tokens = layout.microbatch * setting.model.seq_len / setting.execution.cp
    size = 4 if setting.execution.precision == "fp32" else 2
    message = size * tokens * setting.model.hidden / layout.tp
    per_node = setting.cluster.gpus_per_node
    stride = layout.tp * setting.execution.cp * layout.dp
    across = stride * layout.pp > per_node
    one = send_s(message, min(per_node, stride), setting.wires, across=across)
    return 2 * one * (layout.num_microbatches * layout.vpp + layout.pp - 1)


def _step_parts(setting: Setting, rank: int) -> tuple[float, float, float]:
    """Return the exposed gradient reduction, weight gathering and optimizer step of a rank."""
    layout, execution, times = setting.layout, setting.execution, setting.times
    chunks = layout.rank_chunks(rank)
    dense, experts = rank_params(setting.model, execution, layout, chunks)
    per_node = setting.cluster.gpus_per_node
    ranks = layout.dp * execution.cp
    group = group_of(ranks, layout.tp, per_node)
    shard, expert_shard = shard_ranks(execution, layout)
    expert_group = group_of(expert_shard, max(1, ranks * layout.tp // expert_shard), per_node)
    grad_bytes = gradient_wire_bytes(execution)
    gradients = 0.0
    weights = 0.0
    if execution.zero < 3:
        gradients = allreduce_s(grad_bytes * dense, group, setting.wires)
        gradients += allreduce_s(grad_bytes * experts, expert_group, setting.wires)
        if execution.zero:
            # A sharded optimizer reduces to shards and gathers weights: each half an all-reduce.
            sharded = group_of(shard, layout.tp, per_node)
            each = 4.0 if execution.precision == "fp32" else 2.0
            weights = gather_s(each * dense, sharded, setting.wires)
            weights += gather_s(each * experts, expert_group, setting.wires)
            weights += times.shard_rank_s * (shard - 1)
            if shard == ranks:
                gradients /= 2
    if execution.overlap_grads or times.always_overlaps:
        gradients *= 1 - times.grad_overlap
    if execution.overlap_params:
        weights *= EXPOSED_GATHER
    gradients += _tied_s(setting, rank)
    own = dense / (shard if execution.zero else 1)
    own += experts / (expert_shard if execution.zero else 1)
    blocks = sum(chunk.blocks for chunk in chunks)
    optimizer = own * optimizer_traffic_bytes(execution) / setting.device.memory_bytes_per_s
    optimizer += blocks * times.step_block_s * setting.cluster.host_factor
    return gradients, weights, optimizer


def _tied_s(setting: Setting, rank: int) -> float:
    """Return the reduction of a tied table between the first and the last stage."""
    layout, model = setting.layout, setting.model
    if not model.tied_embeddings or layout.pp == 1 or rank not in (0, layout.pp - 1):
        return 0.0
    rows = model.padded_vocab(layout.tp, setting.execution.vocab_divisor) / layout.tp
    message = gradient_wire_bytes(setting.execution) * rows * model.hidden
    stride = layout.tp * setting.execution.cp * layout.dp
    group = group_of(2, stride * (layout.pp - 1), setting.cluster.gpus_per_node)
    return allreduce_s(message, group, setting.wires)


def _gather_s(setting: Setting, params: float, blocks: int) -> float:
    """Return a microbatch's gathers and scatter of fully sharded weights, in 16-bit.

    Two gathers (forward, backward) and one reduce-scatter of the gradients; one gather less where
    the weights stay until the backward pass.
    """
    execution, times = setting.execution, setting.times
    if execution.zero < 3:
        return 0.0
    shard, _ = shard_ranks(execution, setting.layout)
    group = group_of(shard, setting.layout.tp, setting.cluster.gpus_per_node)
    once = gather_s(2.0 * params / times.gather_share, group, setting.wires)
    once += blocks * times.gather_rank_s * (shard - 1)
    return (2 if execution.keep_gathered else 3) * once
