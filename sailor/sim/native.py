"""Cost model `sailor`: the default.

Against the published form: replicas keep their own pipelines instead of being averaged into the
slowest stage, activations are kept for min(microbatches, stages to the end), the all-reduce moves
the gradients of all ranks of a node through that node's links, transfers never take less than the
link's latency, the optimizer step is that of the stage's own parameters, memory has the parts of
the job's framework, and the card's real size is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.model.profile import LayerProfile, Provenance
from sailor.sim.clusters import DEFAULT_CLUSTER
from sailor.sim.device import gpu_facts
from sailor.sim.frameworks import framework_times, gradient_wire_bytes
from sailor.sim.kinds import WorkerKind
from sailor.sim.layers import expert_params
from sailor.sim.native_memory import native_memory
from sailor.sim.native_sync import fully_sharded_gather, node_shared_sync
from sailor.sim.network import (
    LinkTable,
    egress_usd_per_byte,
    inside_one_node,
    link_table,
    with_shared_cards,
)
from sailor.sim.platforms import platform_of
from sailor.sim.prices import usd_per_gpu_hour
from sailor.sim.profiles import ProfileIndex, blocks_prefix
from sailor.sim.tables import SharedUpdate, StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Adam in fp32 reads a parameter, its gradient and two moments and writes all but the gradient.
_STEP_TRAFFIC_BYTES = 28.0
# NCCL_BUFFSIZE, 4 MiB by default: a send returns once its part lies in the buffer.
_TRANSPORT_BUFFER_BYTES = 4.0 * 2**20
# Frameworks whose stages wait for both neighbours with every message that isn't buffered.
_BLOCKING = ("megatron-deepspeed",)
# Gradients are added up in fp32, and that is what a stage pays egress for.
_GRADIENT_BYTES = 4.0


class SailorModel:
    """The default model as tables."""

    name = "sailor"
    description = "per-pipeline 1F1B, shared node links, real card sizes (the default)"

    def tables(self, problem: Problem, kinds: Sequence[WorkerKind], microbatch: int) -> StageTables:
        """Return the cost terms of these kinds at one microbatch size."""
        index = ProfileIndex(problem)
        training = problem.training
        between = link_table(problem, kinds)
        inside = inside_one_node(problem, kinds, between)
        links = inside or between
        sizes, by_unit = index.message_sizes(microbatch)
        stage_parameters = index.parameters_prefix()
        parameters = index.bytes_prefix(kinds, lambda fp, unit: fp.unit(unit).params)
        profiles = [index.profile(kind, microbatch) for kind in kinds]
        grid = np.arange(len(kinds))
        shared_links = inside or with_shared_cards(problem, kinds, between)
        send = shared_links.transfer_s(
            sizes[:, None, None], grid[None, :, None], grid[None, None, :]
        )
        tp = np.array([kind.tp for kind in kinds], dtype=np.int64)
        # A message is cut into one part a pair of GPUs; parts beyond the transport's buffer wait
        # for the receiver, and the receiver for them.
        one_pair = sizes[:, None, None] / np.minimum(tp[:, None], tp[None, :])
        blocked = np.where(one_pair > _TRANSPORT_BUFFER_BYTES, send, 0.0)
        host = index.time_prefix(kinds, microbatch, _host_s)
        memory = native_memory(problem, index, kinds, microbatch)
        experts = _experts_prefix(problem, kinds)
        step = _step_s(problem, profiles)[:, None]
        update = SharedUpdate((parameters - experts) * step, experts * step)
        return StageTables(
            kinds=tuple(kinds),
            microbatch=microbatch,
            num_units=problem.arch.num_units,
            usable=index.usable(kinds, microbatch),
            compute_prefix_s=index.compute_prefix_s(kinds, microbatch)
            + parameters * _accumulate_s(problem, profiles)[:, None],
            host_prefix_s=host if np.any(host) else None,
            stage_s=_modelled(problem, profiles, framework_times(training.framework).microbatch_s),
            gather=fully_sharded_gather(problem, kinds, parameters),
            update_s=_modelled(problem, profiles, framework_times(training.framework).step_s),
            update_prefix_s=_step_blocks_s(problem, profiles)
            + (0.0 if training.zero else parameters * step),
            shared_update=update if training.zero else None,
            tied_update_s=memory.tied_share * parameters[:, -1] * step[:, 0],
            memory=memory,
            size_bytes=sizes,
            forward_size=by_unit,
            # The gradient of a stage's input is as large as the output of the unit before it.
            backward_size=np.concatenate((by_unit[:1], by_unit[:-1])),
            send_s=send,
            blocked_s=blocked if training.framework in _BLOCKING else None,
            sync=node_shared_sync(problem, kinds, links, stage_parameters),
            gradient_prefix_bytes=stage_parameters * _GRADIENT_BYTES,
            egress_usd_per_byte=egress_usd_per_byte(problem, kinds),
            usd_per_gpu_hour=usd_per_gpu_hour(problem, kinds) * training.cp,
            tp=tp,
            tied_send_s=_tied_send_s(problem, kinds, shared_links),
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
        cluster = []
        if problem.cluster.source == DEFAULT_CLUSTER.source and any(
            _is_modelled(profile) for profile in problem.profiles
        ):
            cluster.append(
                f"the cluster isn't known: collectives reach {problem.cluster.link_share:g} of a "
                f"node's links and {problem.cluster.nic_share:g} of its network cards; `sailor "
                "profile cluster` measures them"
            )
        steps = [
            f"the optimizer step on {gpu} was not measured; it is counted as its memory traffic"
            for gpu in unmeasured
        ]
        return (*outside, *cluster, *steps)


def _experts_prefix(problem: Problem, kinds: Sequence[WorkerKind]) -> Floats:
    """Return [K, U + 1]: parameters of routed experts on one rank, summed over units."""
    each = [expert_params(problem.arch, problem.training, kind.tp) for kind in kinds]
    return np.array(each)[:, None] * blocks_prefix(problem.arch)[None, :]


def _host_s(profile: LayerProfile, unit: str) -> float:
    host = profile.block_host
    return host.forward_s + host.backward_s if unit in ("first_block", "block") else 0.0


def _is_modelled(profile: LayerProfile | None) -> bool:
    return profile is not None and profile.provenance is Provenance.MODELLED


def _modelled(problem: Problem, profiles: Sequence[LayerProfile | None], host_s: float) -> Floats:
    """Return a host's time [K] where layers are modelled: measured ones have it in them."""
    seconds = host_s * problem.cluster.host_factor
    return np.array([seconds if _is_modelled(profile) else 0.0 for profile in profiles])


def _step_blocks_s(problem: Problem, profiles: Sequence[LayerProfile | None]) -> Floats:
    """Return [K, U + 1]: the host's time of an optimizer step by block."""
    each = _modelled(problem, profiles, framework_times(problem.training.framework).step_block_s)
    seconds: Floats = each[:, None] * blocks_prefix(problem.arch)[None, :]
    return seconds


def _accumulate_s(problem: Problem, profiles: Sequence[LayerProfile | None]) -> Floats:
    """Return [K] seconds a parameter of adding a microbatch's gradients to those before.

    Measured backward passes have it in them; fully sharded gradients are too small to count.
    """
    training = problem.training
    if training.fused_accumulation or training.zero == 3:
        return np.zeros(len(profiles))
    times = framework_times(training.framework)
    moved = times.accumulate_bytes
    if training.precision == "bf16":
        moved = times.accumulate_bf16_bytes

    def each(profile: LayerProfile) -> float:
        gpu = problem.gpu(profile.gpu)
        return moved / (gpu.memory_bandwidth * gpu_facts(gpu).memory_share)

    return np.array([each(p) if p is not None and _is_modelled(p) else 0.0 for p in profiles])


def _step_s(problem: Problem, profiles: Sequence[LayerProfile | None]) -> Floats:
    """Return [K] seconds of an optimizer step a parameter; a missing measurement is no zero."""

    def each(profile: LayerProfile) -> float:
        if profile.optimizer_s > 0:
            return profile.optimizer_s / profile.optimizer_params
        return _STEP_TRAFFIC_BYTES / problem.gpu(profile.gpu).memory_bandwidth

    return np.array([0.0 if profile is None else each(profile) for profile in profiles])


def _tied_send_s(problem: Problem, kinds: Sequence[WorkerKind], links: LinkTable) -> Floats | None:
    """Return [K, K]: two stages add up the gradients of a table that each has a copy of."""
    if not problem.arch.tied_embeddings:
        return None
    training = problem.training
    wire = gradient_wire_bytes(training)
    table = problem.arch.padded_vocab(1, training.vocab_divisor) * problem.arch.hidden
    grid = np.arange(len(kinds))
    return links.transfer_s(np.asarray(wire * table), grid[:, None], grid[None, :])
