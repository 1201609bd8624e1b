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
from sailor.sim.analytic_memory import rank_params, shard_ranks
from sailor.sim.clusters import DEFAULT_CLUSTER, ClusterFacts
from sailor.sim.collectives import Wires, allreduce_s, exchange_s, gather_s, group_of, send_s
from sailor.sim.frameworks import FrameworkTimes, framework_times
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
        return cls(model, execution, layout, device, cluster, times)

    @property
    def wires(self) -> Wires:
        """Return the bandwidths that collectives reach on this cluster."""
        return Wires(
            link=self.device.facts.link_bandwidth * self.cluster.link_share,
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
    gradients, weights, optimizer = zip(
        *(_step_parts(setting, rank) for rank in range(layout.pp)), strict=True
    )
    step = max(range(layout.pp), key=lambda rank: gradients[rank] + weights[rank] + optimizer[rank])
    return TimeParts(
        compute=compute,
        bubble=bubble,
        transfers=_transfers_s(setting),
        gradients=gradients[step],
        weights=weights[step],
        optimizer=optimizer[step],
        step=times.step_s * setting.cluster.host_factor,
    )


def stage_s(setting: Setting, rank: int) -> float:
    """Return the seconds of one microbatch, forward and backward, on a pipeline rank."""
    chunks = setting.layout.rank_chunks(rank)
    device, host = 0.0, 0.0
    blocks = sum(chunk.blocks for chunk in chunks)
    block_device, block_host = block_times(setting)
    device += blocks * block_device
    host += blocks * block_host
    for chunk in chunks:
        device += _ends_s(setting, chunk)
    device += _accumulate_s(setting, chunks)
    busy = float((device**4 + host**4) ** 0.25)
    if setting.execution.zero == 3:
        gather = _gather_microbatch_s(setting, chunks)
        power = setting.times.gather_power
        busy = float((busy**power + gather**power) ** (1 / power))
    return busy + setting.times.microbatch_s * setting.cluster.host_factor


def block_times(setting: Setting) -> tuple[float, float]:
    """Return a block's device and host seconds for one microbatch, recomputation included.

    Full recomputation runs the forward pass once more with its traffic; "operators" half of it
    without traffic; selective only eager attention's products and scores.
    """
    unit = unit_seconds(setting, "block")
    device = unit.forward + unit.backward + unit.tp_forward + unit.tp_backward
    times, tp = setting.times, setting.layout.tp
    launch = times.launch_s + times.launch_tp_s * math.log2(tp)
    launch += times.launch_parallel_s if tp > 1 else 0.0
    launch += times.launch_experts_s if setting.execution.experts else 0.0
    launch *= setting.cluster.host_factor * setting.device.facts.host_factor
    host = launch * (1 + times.launch_back)
    exchange = _experts_exchange_s(setting)
    device += 4 * exchange
    recompute = setting.execution.recompute
    if recompute == "full":
        device += unit.forward + unit.tp_forward + 2 * exchange
        host += launch
        if setting.execution.recompute_stops_early:
            device -= _last_product_s(setting)
    elif recompute == "operators":
        device += 0.5 * unit.forward
    elif recompute == "selective":
        device += _attention_core_s(setting)
    return device, host


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
    if execution.experts is None or execution.ep == 1:
        return 0.0
    tokens = layout.microbatch * setting.model.seq_len / execution.cp / layout.tp
    sent = 2.0 * execution.experts.top_k * tokens * setting.model.hidden
    expert_tp = execution.expert_tp or layout.tp
    group = group_of(execution.ep, expert_tp, setting.cluster.gpus_per_node)
    return exchange_s(sent, group, setting.wires)


def _last_product_s(setting: Setting) -> float:
    """Return the seconds of the product that ends a block: nothing needs its result again."""
    forward, _ = unit_work(
        setting.model, setting.execution, "block", setting.layout.tp, setting.layout.microbatch
    )
    products = forward.gemms[:-2] if forward.scores else forward.gemms
    return setting.device.gemm_s(products[-1]) + setting.device.facts.kernel_s


def _accumulate_s(setting: Setting, chunks: tuple[Chunk, ...]) -> float:
    """Return the traffic of adding a microbatch's gradients to those of the ones before."""
    if setting.layout.num_microbatches == 1 or setting.execution.fused_accumulation:
        return 0.0
    params = sum(rank_params(setting.model, setting.execution, setting.layout, chunks))
    times = setting.times
    bf16 = setting.execution.precision == "bf16"
    each = times.accumulate_bf16_bytes if bf16 else times.accumulate_bytes
    if setting.execution.zero == 3:
        params /= shard_ranks(setting.execution, setting.layout)[0]
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


def _ends_s(setting: Setting, chunk: Chunk) -> float:
    seconds = 0.0
    ends: tuple[tuple[UnitKind, bool], ...] = (
        ("embedding", chunk.embedding), ("head", chunk.head),
    )  # fmt: skip
    for kind, present in ends:
        if present:
            unit = unit_seconds(setting, kind)
            seconds += unit.forward + unit.backward + unit.tp_forward + unit.tp_backward
    return seconds


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
    grad_bytes = 4.0 if execution.precision == "fp32" else times.grad_sync_bytes
    gradients = 0.0
    weights = 0.0
    if execution.zero < 3:
        gradients = allreduce_s(grad_bytes * dense, group, setting.wires)
        gradients += allreduce_s(grad_bytes * experts, expert_group, setting.wires)
        if execution.zero:
            # A sharded optimizer reduces to shards and gathers weights: each half an all-reduce.
            sharded = group_of(shard, layout.tp, per_node)
            weights = gather_s(2.0 * dense, sharded, setting.wires)
            weights += times.shard_rank_s * (shard - 1)
            if shard == ranks:
                gradients /= 2
    if execution.overlap_grads or times.always_overlaps:
        gradients *= 1 - times.grad_overlap
    if execution.overlap_params:
        weights *= 0.2
    gradients += _tied_s(setting, rank)
    own = dense / (shard if execution.zero else 1)
    own += experts / (expert_shard if execution.zero else 1)
    blocks = sum(chunk.blocks for chunk in chunks)
    optimizer = own * times.optimizer_bytes / setting.device.memory_bytes_per_s
    optimizer += blocks * times.step_block_s * setting.cluster.host_factor
    return gradients, weights, optimizer


def _tied_s(setting: Setting, rank: int) -> float:
    """Return the reduction of a tied table between the first and the last stage."""
    layout, model = setting.layout, setting.model
    if not model.tied_embeddings or layout.pp == 1 or rank not in (0, layout.pp - 1):
        return 0.0
    rows = model.padded_vocab(layout.tp, setting.execution.vocab_divisor) / layout.tp
    message = setting.times.grad_sync_bytes * rows * model.hidden
    stride = layout.tp * setting.execution.cp * layout.dp
    group = group_of(2, stride * (layout.pp - 1), setting.cluster.gpus_per_node)
    return allreduce_s(message, group, setting.wires)


def _gather_microbatch_s(setting: Setting, chunks: tuple[Chunk, ...]) -> float:
    """Return a microbatch's gathers and scatter of fully sharded weights, in 16-bit.

    Two gathers (forward, backward) and one reduce-scatter of the gradients; one gather less where
    the weights stay until the backward pass.
    """
    layout, execution = setting.layout, setting.execution
    dense, _ = rank_params(setting.model, execution, layout, chunks)
    shard, _ = shard_ranks(execution, layout)
    group = group_of(shard, layout.tp, setting.cluster.gpus_per_node)
    times = setting.times
    blocks = sum(chunk.blocks for chunk in chunks)
    once = gather_s(2.0 * dense / times.gather_share, group, setting.wires)
    once += blocks * times.gather_rank_s * (shard - 1)
    return (2 if execution.keep_gathered else 3) * once
