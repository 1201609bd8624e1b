"""Gradients and weights between the replicas of a stage, in cost model `sailor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.execution import Execution
from sailor.model.problem import Problem
from sailor.model.profile import Provenance
from sailor.sim.clusters import in_nodes
from sailor.sim.collectives import ring_seconds
from sailor.sim.frameworks import EXPOSED_GATHER, framework_times, gradient_wire_bytes
from sailor.sim.kinds import WorkerKind
from sailor.sim.layers import expert_params
from sailor.sim.network import LinkTable
from sailor.sim.profiles import blocks_prefix
from sailor.sim.tables import held

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class NodeSharedSync:
    """Ring all-reduce in which the tp ranks of a replica share their node's links.

    Each of the 2 (D - 1) steps over D = dp cp ranks moves the stage's bytes / D over the aggregate
    bandwidth of the link, in messages of one rank's share. Replicas that fill a node side by side
    reduce over the node's own links. `rank_s` is a framework's time of handing out a sharded
    optimizer's weights, for each rank but one.
    """

    links: LinkTable
    gradient_prefix_bytes: Floats  # [U + 1], whole stage, in bytes of an all-reduce
    experts_prefix_bytes: Floats  # [U + 1], the same of routed experts: a replica's, or a rank's
    experts_spread: float  # replicas (or ranks) over which a stage's experts are spread
    experts_by_rank: bool  # a degree of their own splits experts, not the replica's tp
    tied_bytes: float  # counted twice where one stage has embedding and head
    cp: int
    replicas_in_node: Ints  # [K]
    node_bytes_per_s: Floats  # [K], of one GPU to its node's others
    step_s: float
    rank_s: float
    weights_group: int | None  # ranks that share weights, where they are not all
    weights_share: float  # bytes of gathering them over those of the gradients

    def seconds(
        self,
        start: Ints,
        stop: Ints,
        min_tp: Ints,
        dp: Ints | int,
        src: Ints,
        dst: Ints,
        run: Ints | int | None = None,
    ) -> Floats:
        """Return the rings' seconds (0 for one rank): dense parameters', then experts'."""
        size = self.gradient_prefix_bytes[stop] - self.gradient_prefix_bytes[start]
        whole = (np.asarray(start) == 0) & (np.asarray(stop) == len(self.gradient_prefix_bytes) - 1)
        size = size - np.where(whole, self.tied_bytes, 0.0)
        ranks = np.asarray(dp, dtype=float) * self.cp
        ring = self._ring_s(size, min_tp, ranks, src, dst, run, start, 1.0)
        if self.weights_group is not None:
            # Weights are gathered in groups, beside the other groups of the node.
            group = np.minimum(ranks, self.weights_group)
            some = None if run is None else np.minimum(run, self.weights_group)
            each = np.maximum(1.0, self.replicas_in_node[src] / group)
            weights = self.weights_share * size
            ring = ring + self._ring_s(weights, min_tp, group, src, dst, some, start, each)
        if self.experts_prefix_bytes[-1] > 0:
            in_replica = np.asarray(min_tp) if self.experts_by_rank else 1
            own = self.experts_prefix_bytes[stop] - self.experts_prefix_bytes[start]
            own = own * in_replica
            spread = np.maximum(1.0, self.experts_spread / in_replica)
            same = np.maximum(1.0, ranks * in_replica / self.experts_spread)
            # Neighbours on a node have other experts: each has a ring of its own.
            beside = np.minimum(spread, self.replicas_in_node[src])
            ring = ring + self._ring_s(own, min_tp, same, src, dst, run, start, beside)
        shares = ranks if self.weights_group is None else np.minimum(ranks, self.weights_group)
        seconds: Floats = np.where(size > 0, ring + self.rank_s * (shares - 1), 0.0)
        return seconds

    def alike(self, src: Ints, dst: Ints) -> Ints:
        """Return a number for every pair of kinds: hops of one number take equally long."""
        in_node = self.replicas_in_node[src], self.node_bytes_per_s[src]
        return self.links.alike(src, dst, *in_node)

    def _ring_s(
        self,
        size: Floats,
        min_tp: Ints,
        ranks: Floats,
        src: Ints,
        dst: Ints,
        run: Ints | int | None,
        start: Ints,
        beside: Floats | float,
    ) -> Floats:
        one_rank = size / ranks / min_tp
        # The curve is read at one rank's message; the other ranks' messages go beside it.
        latency = self.links.latency_s[src, dst]
        each = self.links.transfer_s(one_rank, src, dst) - latency
        steps = 2.0 * (ranks - 1)
        hop = latency + each * min_tp * beside
        # One rank has no step; an unknown link must not make it infinite.
        shape = np.broadcast_shapes(steps.shape, hop.shape)
        ring: Floats = np.multiply(steps, hop, out=np.zeros(shape), where=steps > 0)
        if run is not None:
            inside = self._in_node_s(steps * one_rank, ranks, src)
            # Where a node's links are slower than its card the library takes the card.
            fits = self._in_one_node(np.asarray(run), start, src)
            ring = np.where(fits, np.minimum(inside, ring), ring)
        return ring

    def _in_one_node(self, run: Ints, start: Ints, kind: Ints) -> NDArray[np.bool_]:
        """Return whether so many replicas lie on one node: nodes fill up stage after stage.

        The first stage starts on a node of its own; runs of later ones that don't divide a node
        lie across two of them sooner or later.
        """
        room = self.replicas_in_node[kind]
        divides: NDArray[np.bool_] = (np.asarray(start) == 0) | (room % run == 0)
        return (run <= room) & divides

    def _in_node_s(self, moved_bytes: Floats, ranks: Floats, kind: Ints) -> Floats:
        launch = self.step_s * np.log2(np.maximum(2.0, ranks))
        found: Floats = np.where(ranks > 1, moved_bytes / self.node_bytes_per_s[kind] + launch, 0.0)
        return found


def node_shared_sync(
    problem: Problem, kinds: Sequence[WorkerKind], links: LinkTable, parameters: Floats
) -> NodeSharedSync:
    """Return the reduction of a problem; `parameters` [U + 1] counts those of a whole stage."""
    nodes = [problem.node(kind.node_type) for kind in kinds]
    cluster = problem.cluster
    training = problem.training
    arch, each = problem.arch, allreduce_bytes(problem)
    # At tp 1 a replica's experts are those of all its ranks.
    experts = expert_params(arch, training, 1)
    experts_prefix = experts * blocks_prefix(arch)
    tied = arch.padded_vocab(1, training.vocab_divisor) * arch.hidden
    return NodeSharedSync(
        links=links,
        gradient_prefix_bytes=(parameters - experts_prefix) * each,
        experts_prefix_bytes=experts_prefix * each,
        experts_spread=float(training.ep * (training.expert_tp or 1)),
        experts_by_rank=training.expert_tp is not None,
        tied_bytes=each * tied if arch.tied_embeddings and _tied_counts_once(problem) else 0.0,
        cp=training.cp,
        replicas_in_node=np.array(
            [node.num_gpus // kind.gpus for node, kind in zip(nodes, kinds, strict=True)],
            dtype=np.int64,
        ),
        node_bytes_per_s=np.array([node.intra_node_bandwidth for node in nodes])
        * cluster.link_share,
        step_s=cluster.link_step_s,
        rank_s=shard_rank_s(training),
        weights_group=training.zero_group if training.zero in (1, 2) else None,
        weights_share=weights_bytes(training) / each if each else 0.0,
    )


def _tied_counts_once(problem: Problem) -> bool:
    """Return whether footprints count a tied table in both units: measured ones do as they ran."""
    return any(fp.provenance is not Provenance.MEASURED for fp in problem.footprints)


def allreduce_bytes(problem: Problem) -> float:
    """Return the bytes a parameter of an all-reduce that takes as long as what isn't hidden.

    Without ZeRO the gradients' own. A sharded optimizer scatters gradients and gathers 16-bit
    weights: each half of an all-reduce. Fully sharded weights and gradients move with every
    microbatch instead (`FullyShardedGather`). Groups smaller than a stage's replicas reduce whole
    gradients and gather weights apart.
    """
    training = problem.training
    if training.zero == 3:
        return 0.0
    times = framework_times(training.framework)
    gradients = gradient_wire_bytes(training)
    if training.overlap_grads or times.always_overlaps:
        gradients *= 1 - times.grad_overlap
    if training.zero == 0 or training.zero_group is not None:
        return gradients
    return gradients / 2 + weights_bytes(training)


def shard_rank_s(training: Execution) -> float:
    """Return what each rank but one adds to handing out a sharded optimizer's weights."""
    if training.zero not in (1, 2):
        return 0.0
    seconds = framework_times(training.framework).shard_rank_s
    return seconds * (EXPOSED_GATHER if training.overlap_params else 1.0)


def weights_bytes(training: Execution) -> float:
    """Return the bytes a parameter of an all-reduce that takes as long as gathering weights."""
    weights = 4.0 if training.precision == "fp32" else 2.0
    return weights / 2 * (EXPOSED_GATHER if training.overlap_params else 1.0)


@dataclass(frozen=True)
class FullyShardedGather:
    """Two gathers and a scatter of a stage's 16-bit weights with every microbatch.

    One gather less where weights stay until the backward pass. With a framework's p a stage takes
    (compute^p + gather^p)^(1/p).
    """

    unit_bytes_prefix: Floats  # [K, U + 1] whole weights of a rank's part, at the rate it reaches
    blocks_prefix: Floats  # [U + 1]
    stride: Ints  # [K] ranks from one member of the group to the next
    gpus_per_node: Ints  # [K]
    link: Floats  # [K] bytes/s
    node_nics: Floats  # [K] bytes/s
    step_s: float
    block_rank_s: float
    passes: int
    power: float
    cp: int
    group: int | None

    def combined_s(
        self, busy_s: Floats, kind: Ints, start: Ints, stop: Ints, dp: Ints, over: int | None
    ) -> Floats:
        """Return a stage's seconds with the gathers that computation doesn't hide."""
        size = held(self.unit_bytes_prefix, kind, start, stop, over)
        blocks = self.blocks_prefix[stop] - self.blocks_prefix[start]
        if over is not None:
            blocks, kind = blocks.sum(axis=over), kind.max(axis=over)
        ranks = np.asarray(dp) * self.cp
        if self.group is not None:
            ranks = np.minimum(ranks, self.group)
        per_node = self.gpus_per_node[kind]
        inside = np.maximum(1, np.minimum(ranks, per_node // self.stride[kind]))
        once = ring_seconds(
            size, 1.0, ranks, inside, np.maximum(1, per_node // inside),
            self.link[kind], self.node_nics[kind], self.step_s,
        )  # fmt: skip
        once = once + blocks * self.block_rank_s * (ranks - 1)
        gather = self.passes * once
        seconds: Floats = (busy_s**self.power + gather**self.power) ** (1 / self.power)
        return seconds


def fully_sharded_gather(
    problem: Problem, kinds: Sequence[WorkerKind], parameters: Floats
) -> FullyShardedGather | None:
    """Return the gathers of ZeRO-3, or None; `parameters` [K, U + 1] are those of a rank."""
    training = problem.training
    if training.zero < 3:
        return None
    times = framework_times(training.framework)
    facts = [in_nodes(problem.cluster, problem.node(kind.node_type)) for kind in kinds]
    return FullyShardedGather(
        unit_bytes_prefix=2.0 * parameters / times.gather_share,
        blocks_prefix=blocks_prefix(problem.arch),
        stride=np.array([kind.tp for kind in kinds], dtype=np.int64),
        gpus_per_node=np.array([fact.gpus_per_node for fact in facts], dtype=np.int64),
        link=np.array([(fact.link_bandwidth or np.inf) * fact.link_share for fact in facts]),
        node_nics=np.array([fact.nic_bandwidth * fact.nic_share for fact in facts]),
        step_s=problem.cluster.link_step_s,
        block_rank_s=times.gather_rank_s,
        passes=2 if training.keep_gathered else 3,
        power=times.gather_power,
        cp=training.cp,
        group=training.zero_group,
    )
