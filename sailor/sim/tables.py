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

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class GradientSync(Protocol):
    """Seconds of a stage's gradient all-reduce."""

    def seconds(
        self, start: Ints, stop: Ints, min_tp: Ints, dp: Ints | int, src: Ints, dst: Ints
    ) -> Floats:
        """Return the ring's time if its slowest hop is the one from kind `src` to kind `dst`.

        The stage holds units [start, stop), its `dp` replicas have at least `min_tp` GPUs.
        Arguments broadcast against each other; infinite where the link is unknown.
        """
        ...


@dataclass(frozen=True)
class MemoryMargin:
    """What an estimate may be short of: shares of states and of moving parts, and fixed bytes.

    The verdict on memory uses the estimate plus this margin, so that a plan said to fit does fit.
    """

    states: float
    moving: float
    fixed_bytes: Floats  # [K]


@dataclass(frozen=True)
class MemoryTables:
    """Bytes of one worker, by part. Prefix arrays are [K, U + 1] over units.

    total = sum of `state_prefix_bytes` parts + in_flight * activations + transient + reserve,
    where transient is `block_transient_bytes` or `head_transient_bytes`, whichever of the
    stage's units asks for more.
    """

    parameters_prefix_bytes: Floats
    gradients_prefix_bytes: Floats
    optimizer_prefix_bytes: Floats
    communication_prefix_bytes: Floats
    activations_prefix_bytes: Floats  # of one microbatch
    block_transient_bytes: Floats  # [K]
    head_transient_bytes: Floats  # [K]
    boundary_bytes: Floats  # [K], when there is more than one stage
    reserve_bytes: Floats  # [K]
    capacity_bytes: Floats  # [K]
    state_prefix_bytes: Floats  # the sum of the first four
    sharded_prefix_bytes: Floats  # the part of them that the replicas of a stage share out
    tied_share: Floats  # [K] of the whole model's states: a table that embedding and head share
    in_flight_capped: bool  # at most as many microbatches in flight as there are
    margin: MemoryMargin

    def in_flight(self, from_end: Ints | int, num_microbatches: Ints | int) -> Ints:
        """Return the microbatches kept by the stage that is `from_end` from the end (last: 1)."""
        if self.in_flight_capped:
            return np.minimum(from_end, num_microbatches)
        return np.asarray(from_end)

    def total_bytes(
        self,
        kind: Ints,
        start: Ints,
        stop: Ints,
        in_flight: Ints,
        num_stages: int,
        dp: Ints | int = 1,
    ) -> Floats:
        """Return the best estimate of a worker of `kind` that holds units [start, stop).

        `dp` replicas share out what an optimizer shards; 1 is the most that a worker can hold.
        """
        state, moving = self._states_and_moving(kind, start, stop, in_flight, dp)
        boundary = self.boundary_bytes[kind] if num_stages > 1 else 0.0
        total: Floats = state + moving + boundary + self.reserve_bytes[kind]
        return total

    def bound_bytes(
        self,
        kind: Ints,
        start: Ints,
        stop: Ints,
        in_flight: Ints,
        num_stages: int,
        dp: Ints | int = 1,
    ) -> Floats:
        """Return the upper bound that the verdict uses: the estimate plus its margin."""
        state, moving = self._states_and_moving(kind, start, stop, in_flight, dp)
        boundary = self.boundary_bytes[kind] if num_stages > 1 else 0.0
        margin = self.margin
        bound: Floats = (
            (1.0 + margin.states) * state
            + (1.0 + margin.moving) * moving
            + boundary
            + self.reserve_bytes[kind]
            + margin.fixed_bytes[kind]
        )
        return bound

    def _states_and_moving(
        self, kind: Ints, start: Ints, stop: Ints, in_flight: Ints, dp: Ints | int
    ) -> tuple[Floats, Floats]:
        num_units = self.state_prefix_bytes.shape[1] - 1
        transient = np.maximum(
            np.where((start < num_units - 1) & (stop > 1), self.block_transient_bytes[kind], 0.0),
            np.where(stop == num_units, self.head_transient_bytes[kind], 0.0),
        )
        state = self.state_prefix_bytes[kind, stop] - self.state_prefix_bytes[kind, start]
        sharded = self.sharded_prefix_bytes[kind, stop] - self.sharded_prefix_bytes[kind, start]
        state = state - sharded * (1.0 - 1.0 / np.asarray(dp))
        # On one stage a tied table is there once; on two each holds its copy.
        state = state * np.where((start == 0) & (stop == num_units), 1 - self.tied_share[kind], 1.0)
        activations = (
            self.activations_prefix_bytes[kind, stop] - self.activations_prefix_bytes[kind, start]
        )
        return state, in_flight * activations + transient


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
    compute_prefix_s: Floats  # [K, U + 1] forward and backward of one microbatch
    update_s: Floats  # [K] part of the optimizer step that doesn't depend on the stage
    update_prefix_s: Floats  # [K, U + 1] part by unit
    memory: MemoryTables
    size_bytes: Floats  # [S]
    forward_size: Ints  # [U]
    backward_size: Ints  # [U]
    send_s: Floats  # [S, K, K]
    blocked_s: Floats | None  # [S, K, K] what a receiver waits for; None: receivers never wait
    sync: GradientSync
    gradient_prefix_bytes: Floats  # [U + 1] whole gradients, what egress is paid for
    egress_usd_per_byte: Floats  # [K, K]
    usd_per_gpu_hour: Floats  # [K], node price over the node's GPUs
    tp: Ints  # [K]
    coupled: bool  # stage times are maxima over replicas before they are added up
    short_pipeline_factor: tuple[int, float]  # up to so many stages, stage 0's send counts so much

    def first_send_factor(self, num_stages: int) -> float:
        """Return how often stage 0's transfer counts (gradient in, activation out)."""
        up_to, factor = self.short_pipeline_factor
        return factor if num_stages <= up_to else 2.0


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
