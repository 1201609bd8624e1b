"""Tables of cost terms: all that planners and the closed form know of a problem.

A cost model turns a problem into these arrays, for a list of K worker kinds and one microbatch
size. Nobody who uses them asks which model they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind
from sailor.sim.memory_tables import MemoryTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class GradientSync(Protocol):
    """Seconds of a stage's gradient all-reduce."""

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
        """Return the ring's time if its slowest hop is the one from kind `src` to kind `dst`.

        The stage holds units [start, stop), its `dp` replicas have at least `min_tp` GPUs. `run`
        replicas of kind src = dst stand side by side: if a node holds them all, no hop leaves it
        (None: unknown, it does). Arguments broadcast against each other; infinite where the link
        is unknown.
        """
        ...

    def alike(self, src: Ints, dst: Ints) -> Ints:
        """Return a number for every pair of kinds: hops of one number take equally long.

        For the same `run`; the pairs are one-dimensional.
        """
        ...


class WeightGather(Protocol):
    """Seconds a microbatch that fully sharded weights take to arrive."""

    def combined_s(
        self, busy_s: Floats, kind: Ints, start: Ints, stop: Ints, dp: Ints, over: int | None
    ) -> Floats:
        """Return a stage's seconds: `busy_s` of computation, and gathers that it may hide.

        Units are added up along axis `over` (None: a stage is one run of units).
        """
        ...


@dataclass(frozen=True)
class SharedUpdate:
    """A sharded optimizer's step, [K, U + 1] as if one rank made it: dense and experts' part."""

    dense_prefix_s: Floats
    experts_prefix_s: Floats


@dataclass(frozen=True)
class StageTables:
    """Cost terms of one problem, one list of kinds, one microbatch size.

    `send_s[s, a, b]` is one message of size class s from kind a to kind b; the message that
    leaves a stage whose last unit is u forward has class `forward_size[u]`, the gradient that a
    stage whose first unit is u sends back has class `backward_size[u]`. A message that the
    transport doesn't buffer blocks its receiver as long as its sender.
    """

    kinds: tuple[WorkerKind, ...]
    microbatch: int
    num_units: int
    usable: NDArray[np.bool_]  # [K]: profiled at this microbatch
    compute_prefix_s: Floats  # [K, U + 1] forward and backward of one microbatch on the device
    host_prefix_s: Floats | None  # [K, U + 1] the host's launches, where they are told apart
    stage_s: Floats  # [K] of a microbatch on every stage, whatever it holds
    gather: WeightGather | None  # of fully sharded weights
    update_s: Floats  # [K] part of the optimizer step that doesn't depend on the stage
    update_prefix_s: Floats  # [K, U + 1] part by unit
    shared_update: SharedUpdate | None  # part by unit that replicas share out
    tied_update_s: Floats  # [K] counted twice where one stage has both ends of a tied model
    memory: MemoryTables
    size_bytes: Floats  # [S]
    forward_size: Ints  # [U]
    backward_size: Ints  # [U]
    send_s: Floats  # [S, K, K]
    blocked_s: Floats | None  # [S, K, K] what a receiver waits for; None: receivers never wait
    sync: GradientSync
    gradient_prefix_bytes: Floats  # [U + 1] whole gradients, what egress is paid for
    egress_usd_per_byte: Floats  # [K, K]
    usd_per_gpu_hour: Floats  # [K], cp times node price over the node's GPUs
    tp: Ints  # [K]; a replica takes tp x cp GPUs, and pools are counted in units of cp
    tied_send_s: Floats | None  # [K, K] adding up a tied table's gradients on two stages
    coupled: bool  # stage times are maxima over replicas before they are added up
    short_pipeline_factor: tuple[int, float]  # up to so many stages, stage 0's send counts so much

    def compute_s(
        self, kind: Ints, start: Ints, stop: Ints, dp: Ints | int, over: int | None = None
    ) -> Floats:
        """Return a stage's seconds of one microbatch; arguments broadcast against each other.

        Device and host seconds D and H combine to (D^4 + H^4)^(1/4), as the host runs ahead. A
        stage of several runs of units has them along axis `over`.
        """
        device = held(self.compute_prefix_s, kind, start, stop, over)
        if self.host_prefix_s is not None:
            host = held(self.host_prefix_s, kind, start, stop, over)
            device = np.sqrt(np.sqrt(np.square(np.square(device)) + np.square(np.square(host))))
        if self.gather is not None:
            device = self.gather.combined_s(device, kind, start, stop, np.asarray(dp), over)
        each = self.stage_s[kind]
        seconds: Floats = device + (each if over is None else each.max(axis=over))
        return seconds

    def update_seconds(self, kind: Ints, start: Ints, stop: Ints, dp: Ints | int) -> Floats:
        """Return a worker's optimizer step."""
        own = self.update_prefix_s[kind, stop] - self.update_prefix_s[kind, start]
        if self.shared_update is not None:
            sharing = self.memory.sharing
            dense, experts = self.shared_update.dense_prefix_s, self.shared_update.experts_prefix_s
            own = own + (dense[kind, stop] - dense[kind, start]) / sharing.dense_ranks(dp)
            own = own + (experts[kind, stop] - experts[kind, start]) / sharing.experts_ranks(
                kind, dp
            )
        twice = self.tied_update_s[kind]
        if self.shared_update is not None:
            twice = twice / self.memory.sharing.dense_ranks(dp)
        whole = (np.asarray(start) == 0) & (np.asarray(stop) == self.num_units)
        seconds: Floats = self.update_s[kind] + own - np.where(whole, twice, 0.0)
        return seconds

    def first_send_factor(self, num_stages: int) -> float:
        """Return how often stage 0's transfer counts (gradient in, activation out)."""
        up_to, factor = self.short_pipeline_factor
        return factor if num_stages <= up_to else 2.0


def held(prefix: Floats, kind: Ints, start: Ints, stop: Ints, over: int | None) -> Floats:
    """Return prefix sums over units [start, stop), added up along axis `over`."""
    found: Floats = prefix[kind, stop] - prefix[kind, start]
    return found if over is None else found.sum(axis=over)


class CostModel(Protocol):
    """Turns a problem into tables."""

    name: str
    description: str

    def tables(self, problem: Problem, kinds: Sequence[WorkerKind], microbatch: int) -> StageTables:
        """Return the cost terms of these kinds at one microbatch size."""
        ...

    def assumptions(self, problem: Problem) -> Sequence[str]:
        """Return the defaults that this model uses on this problem."""
        ...
