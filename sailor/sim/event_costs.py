"""Durations for the event engine: what a replica computes, sends and reduces under its platform.

Equations in docs/cost-model.md. Where they come from: the SOSP'25 runs, ablated one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.errors import InputError
from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.hardware import Link
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.profile import LayerProfile, Provenance, UnitTime
from sailor.sim.columns import Column
from sailor.sim.engine import Route
from sailor.sim.kinds import WorkerKind, kinds_of_plan
from sailor.sim.layers import expert_params
from sailor.sim.native import SailorModel
from sailor.sim.native_sync import allreduce_bytes, shard_rank_s, weights_bytes
from sailor.sim.network import LinkIndex
from sailor.sim.placement import Node, placed
from sailor.sim.platforms import MEGATRON_DEEPSPEED, Platform
from sailor.sim.profiles import ProfileIndex, blocks_prefix
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op
from sailor.sim.tables import StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A layer whose time grows by less than this factor when the microbatch doubles waits for the host.
_LAUNCH_BOUND_GROWTH = 1.5
# Gradients are reduced in fp32.
_GRADIENT_BYTES = 4.0
# Flattening and unflattening: read, write, scale each way over the device's memory.
_COPY_PASSES = 6.0


# Source, destination, and their share of the card in bytes/s; None: inside a node.
_Hop = tuple[WorkerKind, WorkerKind, float | None]


class EventCosts:
    """Costs of one problem under given platforms (by GPU type)."""

    def __init__(self, problem: Problem, plan: Plan, platforms: Mapping[str, Platform]) -> None:
        self._problem = problem
        self._platforms = platforms
        self._index = ProfileIndex(problem)
        self._links = LinkIndex(problem.links)
        homes = placed(problem, plan)
        self._sending, self._reducing = homes.sending_gpus(plan), homes.reducing_gpus(plan)
        self._kinds = kinds_of_plan(plan)
        self._dp, self._vpp = plan.dp, plan.vpp
        self._tables: dict[int, StageTables] = {}

    def platform(self, kind: WorkerKind) -> Platform:
        """Return the platform of a kind."""
        return self._platforms[kind.gpu]

    def compute_s(self, kind: WorkerKind, microbatch: int, start: int, stop: int) -> Floats:
        """Return [4]: seconds of forward, backward and its halves for units [start, stop).

        Profiles don't tell the halves of the backward pass apart: they are taken as equal.
        """
        arch = self._problem.arch
        profile = self._profile(kind, microbatch)
        units = [self._unit_time(profile, kind, arch.unit_kind(u)) for u in range(start, stop)]
        forward_s = sum(unit.forward_s for unit in units)
        backward_s = sum(unit.backward_s for unit in units)
        if profile.provenance is Provenance.MODELLED:
            # The closed form's time of the stage, which is more than the device's, by pass.
            at, tables = self._at(kind, start, stop), self._tables_of(microbatch)
            # The host's time of a microbatch is that of all chunks together.
            elsewhere_s = (1 - 1 / self._vpp) * tables.stage_s[at[0]]
            total_s = tables.compute_s(*at, self._dp) - elsewhere_s
            blocks = sum(arch.unit_kind(u) in ("first_block", "block") for u in range(start, stop))
            host = profile.block_host
            forward_s = math.hypot(forward_s**2, (blocks * host.forward_s) ** 2) ** 0.5
            backward_s = math.hypot(backward_s**2, (blocks * host.backward_s) ** 2) ** 0.5
            scale = float(total_s) / (forward_s + backward_s)
            forward_s, backward_s = forward_s * scale, backward_s * scale
        seconds = np.zeros(NUM_COMPUTE_OPS)
        seconds[Op.FORWARD] = forward_s
        seconds[Op.BACKWARD] = backward_s
        seconds[Op.BACKWARD_INPUT] = seconds[Op.BACKWARD_WEIGHT] = seconds[Op.BACKWARD] / 2
        return seconds

    def _tables_of(self, microbatch: int) -> StageTables:
        if microbatch not in self._tables:
            self._tables[microbatch] = SailorModel().tables(self._problem, self._kinds, microbatch)
        return self._tables[microbatch]

    def _at(self, kind: WorkerKind, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
        return np.asarray(self._kinds.index(kind)), np.asarray(start), np.asarray(stop)

    def _is_modelled(self, kind: WorkerKind) -> bool:
        mine = [p for p in self._problem.profiles if (p.gpu, p.tp) == (kind.gpu, kind.tp)]
        return any(profile.provenance is Provenance.MODELLED for profile in mine)

    def _profile(self, kind: WorkerKind, microbatch: int) -> LayerProfile:
        profile = self._index.profile(kind, microbatch)
        if profile is None:
            raise InputError(
                f"there is no profile of {self._problem.arch.name} on {kind.gpu} at tp {kind.tp}, "
                f"microbatch {microbatch}",
                where="plan", hint="profile it, or take a microbatch that is profiled",
            )  # fmt: skip
        return profile

    def _unit_time(self, profile: LayerProfile, kind: WorkerKind, unit: UnitKind) -> UnitTime:
        """Return a unit's times without what the profiler's hooks added.

        Only a layer that waits for the host can be shortened: one whose time at twice the
        microbatch is under 1.5 times as long. It can't take less than half of that time.
        """
        measured = profile.unit(unit)
        hook_s = self.platform(kind).hook_s_per_pass.value
        twice = self._index.profile(kind, 2 * profile.microbatch)
        if hook_s == 0 or twice is None or profile.provenance is not Provenance.MEASURED:
            return measured
        double = twice.unit(unit)

        def corrected(own_s: float, double_s: float) -> float:
            if double_s >= _LAUNCH_BOUND_GROWTH * own_s:
                return own_s
            return max(0.0, double_s / 2, own_s - hook_s)

        return UnitTime(
            forward_s=corrected(measured.forward_s, double.forward_s),
            backward_s=corrected(measured.backward_s, double.backward_s),
        )

    def route(
        self,
        src: WorkerKind,
        dst: WorkerKind,
        tensor_bytes: float,
        lanes: tuple[int, ...],
        *,
        ends: tuple[Node, Node],
    ) -> Route:
        """Return the way of one boundary tensor from one of the nodes `ends` to the other.

        Each of tp pairs carries its part; the receivers put the parts together over their node's
        own links, after their hosts have read what comes. Modelled stages have the host's part in
        their time of a microbatch.
        """
        part_bytes = tensor_bytes / src.tp
        missing_bytes = tensor_bytes * (dst.tp - 1) / dst.tp
        gather_s = missing_bytes / self._problem.node(dst.node_type).intra_node_bandwidth
        host_s = self.platform(dst).host_s_per_message.value
        if self._is_modelled(dst):
            host_s = 0.0
        if ends[0] == ends[1]:
            seconds, latency_s = self._inside_s(src, part_bytes)
        else:
            shares = (
                self._card_share(kind.gpus, self._sending[node], node)
                for kind, node in zip((src, dst), ends, strict=True)
            )
            seconds, latency_s = self._carry_s(src, dst, tensor_bytes, part_bytes, min(shares))
        return Route(
            transfer_s=seconds,
            lanes=lanes,
            latency_s=latency_s,
            receive_s=host_s + gather_s,
            # Interleaved schedules post sends and receives together: none waits for the other.
            buffered=self._vpp > 1 or part_bytes <= self.platform(src).transport_buffer_bytes.value,
        )

    def boundary_bytes(self, unit: int, microbatch: int) -> float:
        """Return the bytes between a stage that ends with `unit` and the next one."""
        footprint = self._index.footprint(1)
        if footprint is None:
            raise InputError("the problem has no layer sizes at tp 1", where="problem.footprints")
        return footprint.unit(self._problem.arch.unit_kind(unit)).output_bytes * microbatch

    def gradient_bytes(self, kind: WorkerKind, start: int, stop: int) -> float:
        """Return the gradients of one rank of a stage."""
        return _GRADIENT_BYTES * self._params(kind, start, stop)

    def _inside_s(self, kind: WorkerKind, pair_bytes: float) -> tuple[float, float]:
        """Return the seconds and latency of a pair's message over its node's own links."""
        cluster = self._problem.cluster
        rate = self._problem.node(kind.node_type).intra_node_bandwidth * cluster.link_share
        return pair_bytes / rate, cluster.link_step_s

    def allreduce_s(
        self,
        ring: Sequence[WorkerKind],
        start: int,
        stop: int,
        nodes: Sequence[Node],
    ) -> float:
        """Return the seconds of a stage's ring all-reduce over its replicas in plan order.

        2 (D - 1) steps over D = dp cp ranks move 1 / D of the bytes over the slowest hop. All tp
        ranks of a node reduce at once, so that each has 1 / tp of the link's aggregate bandwidth;
        hops between replicas on one of `nodes` run over its own links, the others share its card.
        """
        training, arch = self._problem.training, self._problem.arch
        ranks = float(len(ring) * training.cp)
        size = allreduce_bytes(self._problem)
        if ranks == 1 or size == 0:
            return 0.0
        hops = self._hops(ring, nodes)
        blocks = float(np.diff(blocks_prefix(arch)[[start, stop]])[0])

        def experts(kind: WorkerKind) -> float:
            return size * blocks * expert_params(arch, training, kind.tp)

        def dense(kind: WorkerKind) -> float:
            whole = (start, stop) == (0, arch.num_units)
            once = 1.0 - (self._tied_share(kind) if whole else 0.0)
            return size * once * self._params(kind, start, stop) - experts(kind)

        seconds = self._ring_s(hops, dense, ranks, 1.0)
        if arch.experts is not None:
            # Neighbours on a node have other experts: each has a ring of its own.
            most = max(Counter(nodes).values())
            spread = min(float(training.ep), float(most))
            seconds += self._ring_s(hops, experts, max(1.0, ranks / training.ep), spread)
        shares = min(ranks, float(training.zero_group or ranks))
        if training.zero in (1, 2) and training.zero_group is not None:
            seconds += self._gather_s(hops, start, stop, shares, most=max(Counter(nodes).values()))
        return seconds + shard_rank_s(training) * (shares - 1)

    def _gather_s(
        self, hops: Sequence[_Hop], start: int, stop: int, shares: float, most: int
    ) -> float:
        """Return the gathering of weights in groups of `shares`, of which a node may hold some."""
        size = weights_bytes(self._problem.training)

        def weights(kind: WorkerKind) -> float:
            return size * self._params(kind, start, stop)

        inside = shares <= most and most % shares == 0
        own = [(src, dst, None) for src, dst, _ in hops] if inside else hops
        return self._ring_s(own, weights, shares, max(1.0, most / shares))

    def _tied_share(self, kind: WorkerKind) -> float:
        size = min(p.microbatch for p in self._problem.profiles if p.gpu == kind.gpu)
        return float(self._tables_of(size).memory.tied_share[self._kinds.index(kind)])

    def _ring_s(
        self,
        hops: Sequence[_Hop],
        rank_bytes: Callable[[WorkerKind], float],
        ranks: float,
        beside: float,
    ) -> float:
        """Return a ring's seconds; `beside` rings share every hop between nodes."""
        slowest_s = inside_s = 0.0
        for src, dst, share in hops:
            chunk_bytes = rank_bytes(src) / ranks
            if share is None:
                seconds, latency_s = self._inside_s(src, chunk_bytes)
                inside_s = max(inside_s, latency_s)
            else:
                seconds, latency_s = self._carry_s(
                    src, dst, beside * chunk_bytes * src.tp, chunk_bytes, share
                )
                seconds += latency_s
            slowest_s = max(slowest_s, seconds)
        return 2 * (ranks - 1) * slowest_s + inside_s * math.log2(ranks)

    def _hops(self, ring: Sequence[WorkerKind], nodes: Sequence[Node]) -> Sequence[_Hop]:
        """Return the distinct hops of a ring."""
        found: dict[_Hop, None] = {}
        for place, (src, here) in enumerate(zip(ring, nodes, strict=True)):
            following = (place + 1) % len(ring)
            dst, there = ring[following], nodes[following]
            share = None
            if here != there:
                share = min(
                    self._card_share(src.tp, self._reducing[here], here),
                    self._card_share(dst.tp, self._reducing[there], there),
                )
            found[src, dst, share] = None
        return tuple(found)

    def local_s(self, kind: WorkerKind, start: int, stop: int) -> float:
        """Return the seconds of flattening and unflattening a stage's gradients.

        Frameworks that keep gradients in one buffer have nothing to flatten.
        """
        if self._problem.training.framework != MEGATRON_DEEPSPEED or self._is_modelled(kind):
            return 0.0
        arch = self._problem.arch
        tensors = sum(num_tensors(arch, arch.unit_kind(unit)) for unit in range(start, stop))
        bandwidth = self._problem.gpu(kind.gpu).memory_bandwidth
        copies_s = _COPY_PASSES * self.gradient_bytes(kind, start, stop) / bandwidth
        return self.platform(kind).launch_s_per_tensor.value * tensors + copies_s

    def tied_s(self, columns: Sequence[Column], pp: int) -> float:
        """Return what first and last rank take to add up the gradients of a table both hold."""
        found = 0.0
        for column in columns if pp > 1 else ():
            table = self._tables_of(column.microbatch).tied_send_s
            if table is not None:
                first, last = (self._kinds.index(column.kinds[end]) for end in (0, -1))
                found = max(found, float(table[first, last]))
        return found

    def update_s(
        self, kind: WorkerKind, microbatch: int, spans: Sequence[tuple[int, int]]
    ) -> float:
        """Return the seconds of an optimizer step over a rank's parameters."""
        tables = self._tables_of(microbatch)
        each = (
            float(tables.update_seconds(*self._at(kind, start, stop), self._dp))
            for start, stop in spans
        )
        fixed = float(tables.update_s[self._kinds.index(kind)])
        return sum(each) - (len(spans) - 1) * fixed

    def _params(self, kind: WorkerKind, start: int, stop: int) -> float:
        footprint = self._index.footprint(kind.tp)
        if footprint is None:
            raise InputError(
                f"the bytes of {self._problem.arch.name}'s layers at tp {kind.tp} are unknown",
                where="problem.footprints",
            )
        arch = self._problem.arch
        return float(sum(footprint.unit(arch.unit_kind(u)).params for u in range(start, stop)))

    def _carry_s(
        self,
        src: WorkerKind,
        dst: WorkerKind,
        all_bytes: float,
        pair_bytes: float,
        card_bytes_per_s: float,
    ) -> tuple[float, float]:
        """Return the seconds that `all_bytes`, in one message a pair, hold the link; and latency.

        A measured curve has the latency in it (it is never undercut); a plain bandwidth has not.
        """
        link = self._link(src, dst)
        if all_bytes <= 0:
            return 0.0, link.latency_s
        efficiency = min(
            self.platform(src).link_efficiency.value, self.platform(dst).link_efficiency.value
        )
        rate = link.curve.bytes_per_s(pair_bytes) if link.curve else link.bandwidth
        if link.assumed and link.curve is None:
            card_bytes_per_s *= self._problem.cluster.nic_share
        rate = min(efficiency * float(rate or math.inf), card_bytes_per_s)
        if link.curve:
            return max(all_bytes / rate, link.latency_s), 0.0
        return all_bytes / rate, link.latency_s

    def _link(self, src: WorkerKind, dst: WorkerKind) -> Link:
        link = self._links.find(src, dst, src.tp, dst.tp)
        if link is None:
            raise InputError(
                f"no link is known from {src.gpu} x{src.tp} in {src.zone} to {dst.gpu} x{dst.tp} "
                f"in {dst.zone}",
                where="network",
                hint="add it under catalog.links of the job, or choose another sources.network",
            )
        return link

    def _card_share(self, gpus: int, busy_gpus: int, node: Node) -> float:
        """Return a replica's part of its node's card; unlimited where nobody else sends."""
        if busy_gpus <= gpus:
            return math.inf
        return self._problem.node(node[1]).nic_bandwidth * gpus / busy_gpus


def num_tensors(arch: ModelSpec, unit: UnitKind) -> int:
    """Return the parameter tensors of a unit: matrices, biases, norms, tables."""
    norm = 2 if arch.norm == "layernorm" else 1
    if unit == "embedding":
        return 2 if arch.max_positions else 1
    if unit == "head":
        return 1 + norm
    return 4 * (2 if arch.biases else 1) + 2 * norm
