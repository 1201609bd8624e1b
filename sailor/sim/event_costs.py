"""Durations for the event engine: what a replica computes, sends and reduces under its platform.

Equations in docs/cost-model.md. Where they come from: the SOSP'25 runs, ablated one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.errors import InputError
from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.hardware import Link
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.profile import LayerProfile, Provenance, UnitTime
from sailor.sim.engine import Route
from sailor.sim.kinds import WorkerKind
from sailor.sim.network import LinkIndex
from sailor.sim.platforms import Platform
from sailor.sim.profiles import ProfileIndex
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op

Floats = NDArray[np.float64]

# A layer whose time grows by less than this factor when the microbatch doubles waits for the host.
_LAUNCH_BOUND_GROWTH = 1.5
# Gradients are reduced in fp32.
_GRADIENT_BYTES = 4.0
# Flattening and unflattening: read, write, scale each way over the device's memory.
_COPY_PASSES = 6.0


class EventCosts:
    """Costs of one problem under given platforms (by GPU type)."""

    def __init__(self, problem: Problem, plan: Plan, platforms: Mapping[str, Platform]) -> None:
        self._problem = problem
        self._platforms = platforms
        self._index = ProfileIndex(problem)
        self._links = LinkIndex(problem.links)
        self._gpus_in_node = _gpus_in_node(problem, plan)

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
        seconds = np.zeros(NUM_COMPUTE_OPS)
        seconds[Op.FORWARD] = sum(unit.forward_s for unit in units)
        seconds[Op.BACKWARD] = sum(unit.backward_s for unit in units)
        seconds[Op.BACKWARD_INPUT] = seconds[Op.BACKWARD_WEIGHT] = seconds[Op.BACKWARD] / 2
        return seconds

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
        self, src: WorkerKind, dst: WorkerKind, tensor_bytes: float, lanes: tuple[int, ...]
    ) -> Route:
        """Return the way of one boundary tensor.

        Each of tp pairs carries its part; the receivers put the parts together over their node's
        own links, after their hosts have read what comes.
        """
        part_bytes = tensor_bytes / src.tp
        missing_bytes = tensor_bytes * (dst.tp - 1) / dst.tp
        gather_s = missing_bytes / self._problem.node(dst.node_type).intra_node_bandwidth
        seconds, latency_s = self._carry_s(src, dst, tensor_bytes, part_bytes)
        return Route(
            transfer_s=seconds,
            lanes=lanes,
            latency_s=latency_s,
            receive_s=self.platform(dst).host_s_per_message.value + gather_s,
            buffered=part_bytes <= self.platform(src).transport_buffer_bytes.value,
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

    def allreduce_s(self, ring: Sequence[WorkerKind], start: int, stop: int) -> float:
        """Return the seconds of a stage's ring all-reduce over its replicas in plan order.

        2 (D - 1) steps move 1 / D of the gradients over the slowest hop. All tp ranks of a node
        reduce at once, so that each has 1 / tp of the link's aggregate bandwidth.
        """
        dp = len(ring)
        if dp == 1:
            return 0.0
        hops = dict.fromkeys(zip(ring, (*ring[1:], ring[0]), strict=True))
        slowest_s = 0.0
        for src, dst in hops:
            chunk_bytes = self.gradient_bytes(src, start, stop) / dp
            seconds, latency_s = self._carry_s(src, dst, chunk_bytes * src.tp, chunk_bytes)
            slowest_s = max(slowest_s, seconds + latency_s)
        return 2 * (dp - 1) * slowest_s

    def local_s(self, kind: WorkerKind, start: int, stop: int) -> float:
        """Return the seconds of flattening and unflattening a stage's gradients."""
        arch = self._problem.arch
        tensors = sum(num_tensors(arch, arch.unit_kind(unit)) for unit in range(start, stop))
        bandwidth = self._problem.gpu(kind.gpu).memory_bandwidth
        copies_s = _COPY_PASSES * self.gradient_bytes(kind, start, stop) / bandwidth
        return self.platform(kind).launch_s_per_tensor.value * tensors + copies_s

    def update_s(self, kind: WorkerKind, microbatch: int, start: int, stop: int) -> float:
        """Return the seconds of an optimizer step over the stage's parameters."""
        profile = self._profile(kind, microbatch)
        return profile.optimizer_s * self._params(kind, start, stop) / profile.optimizer_params

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
        self, src: WorkerKind, dst: WorkerKind, all_bytes: float, pair_bytes: float
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
        rate = min(
            efficiency * float(rate or math.inf), self._card_share(src), self._card_share(dst)
        )
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

    def _card_share(self, kind: WorkerKind) -> float:
        """Return a replica's part of its node's network card; unlimited where it is alone."""
        in_node = self._gpus_in_node[kind.zone, kind.node_type, kind.market]
        if in_node <= kind.tp:
            return math.inf
        return self._problem.node(kind.node_type).nic_bandwidth * kind.tp / in_node


def num_tensors(arch: ModelSpec, unit: UnitKind) -> int:
    """Return the parameter tensors of a unit: matrices, biases, norms, tables."""
    norm = 2 if arch.norm == "layernorm" else 1
    if unit == "embedding":
        return 2 if arch.max_positions else 1
    if unit == "head":
        return 1 + norm
    return 4 * (2 if arch.biases else 1) + 2 * norm


def _gpus_in_node(problem: Problem, plan: Plan) -> dict[tuple[str, str, str], int]:
    """Return how many GPUs of a node the plan uses, by zone, node type and market."""
    used: Counter[tuple[str, str, str]] = Counter()
    for stage in plan.stages:
        for replica in stage.replicas:
            used[replica.zone, replica.node_type, replica.market] += replica.tp
    return {place: min(gpus, problem.node(place[1]).num_gpus) for place, gpus in used.items()}
