"""Memory of every kind of worker as arrays: states that may be shared out, and what moves.

A worker holds states + in_flight * activations + transient + fixed parts. Prefix arrays are
[K, U + 1] over the model's units; a worker of units [start, stop) holds the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StateTable:
    """One part of the states, before any sharing: bytes of dense parameters, and of experts."""

    name: str
    dense_prefix_bytes: Floats
    experts_prefix_bytes: Floats
    shared: bool  # the ranks that hold the same parameters share it out


@dataclass(frozen=True)
class Sharing:
    """Over how many ranks a sharded part is spread: ZeRO's groups.

    `dp` replicas times `cp` ranks hold the same dense parameters, at most `group` of them share;
    of those ranks' tp GPUs each expert is on tp / (ep expert_tp) as many.
    """

    cp: int
    group: int | None
    experts_factor: Floats  # [K]: tp / (ep * expert_tp)

    def dense_ranks(self, dp: Ints | int) -> Floats:
        """Return the ranks that share a dense parameter."""
        ranks = np.asarray(dp, dtype=np.float64) * self.cp
        return ranks if self.group is None else np.minimum(ranks, self.group)

    def experts_ranks(self, kind: Ints, dp: Ints | int) -> Floats:
        """Return the ranks that share an expert's parameter, at least 1."""
        ranks = self.dense_ranks(dp) * self.experts_factor[kind]
        found: Floats = np.maximum(1.0, np.floor(ranks))
        return found


@dataclass(frozen=True)
class Slack:
    """What the allocator holds without use: shares [K] of states and of moving parts."""

    states: Floats
    moving: Floats


@dataclass(frozen=True)
class Margin:
    """What an estimate may be short of: shares of states and moving parts, and fixed bytes, [K].

    The verdict on memory uses the estimate plus this, so that a plan said to fit does fit.
    """

    states: Floats
    moving: Floats
    fixed_bytes: Floats


@dataclass(frozen=True)
class MemoryTables:
    """Bytes of one worker, by part.

    total = states + moving + slack + fixed, moving = in_flight * activations + transient. The
    transient is the most of what a block's backward pass needs (less what the head's has freed)
    and what the head's needs.
    """

    states: tuple[StateTable, ...]
    sharing: Sharing
    activations_prefix_bytes: Floats  # of one microbatch
    received_bytes: Floats  # [K] copies of what stages exchange, of one microbatch
    block_transient_bytes: Floats  # [K]
    head_transient_bytes: Floats  # [K]
    head_freed_bytes: Floats  # [K] of the head's activations, gone when blocks run backward
    boundary_bytes: Floats  # [K], when there is more than one stage
    ends_bytes: Floats  # [K], on stages with embedding or head
    reserve_bytes: Floats  # [K]
    capacity_bytes: Floats  # [K]
    tied_share: Floats  # [K] of the whole model's states: a table that embedding and head share
    in_flight_capped: bool  # at most as many microbatches in flight as there are
    slack: Slack
    margin: Margin

    _kept: Floats = field(init=False, repr=False, compare=False)
    _dense: Floats | None = field(init=False, repr=False, compare=False)
    _experts: Floats | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Add the states up once: planners ask for totals many times."""
        zero = np.zeros_like(self.activations_prefix_bytes)
        kept = sum(
            (s.dense_prefix_bytes + s.experts_prefix_bytes for s in self.states if not s.shared),
            zero,
        )
        dense = sum((s.dense_prefix_bytes for s in self.states if s.shared), zero)
        experts = sum((s.experts_prefix_bytes for s in self.states if s.shared), zero)
        object.__setattr__(self, "_kept", kept)
        object.__setattr__(self, "_dense", dense if np.any(dense) else None)
        object.__setattr__(self, "_experts", experts if np.any(experts) else None)

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
        states, moving, fixed = self.parts_bytes(kind, start, stop, in_flight, num_stages, dp)
        slack = self.slack
        total: Floats = (
            (1.0 + slack.states[kind]) * states + (1.0 + slack.moving[kind]) * moving + fixed
        )
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
        states, moving, fixed = self.parts_bytes(kind, start, stop, in_flight, num_stages, dp)
        slack, margin = self.slack, self.margin
        ends = np.where(self._has_end(start, stop), self.ends_bytes[kind], 0.0)
        bound: Floats = (
            (1.0 + slack.states[kind] + margin.states[kind]) * states
            + (1.0 + slack.moving[kind] + margin.moving[kind]) * moving
            + fixed
            + ends
            + margin.fixed_bytes[kind]
        )
        return bound

    def parts_bytes(
        self,
        kind: Ints,
        start: Ints,
        stop: Ints,
        in_flight: Ints,
        num_stages: int,
        dp: Ints | int,
    ) -> tuple[Floats, Floats, Floats]:
        """Return states, moving parts and fixed parts."""
        num_units = self.activations_prefix_bytes.shape[1] - 1
        has_block = (start < num_units - 1) & (stop > 1)
        has_head = stop == num_units
        freed = np.where(has_head, self.head_freed_bytes[kind], 0.0)
        transient = np.maximum(
            np.where(has_block, self.block_transient_bytes[kind] - freed, 0.0),
            np.where(has_head, self.head_transient_bytes[kind], 0.0),
        )
        activations = (
            self.activations_prefix_bytes[kind, stop] - self.activations_prefix_bytes[kind, start]
        )
        fixed = self.reserve_bytes[kind] + np.where(
            self._has_end(start, stop), self.ends_bytes[kind], 0.0
        )
        if num_stages > 1:
            activations = activations + self.received_bytes[kind]
            fixed = fixed + self.boundary_bytes[kind]
        moving = in_flight * activations + np.maximum(transient, 0.0)
        return self.states_bytes(kind, start, stop, dp), moving, fixed

    def states_bytes(self, kind: Ints, start: Ints, stop: Ints, dp: Ints | int) -> Floats:
        """Return the states of units [start, stop), shared out over `dp` replicas."""
        state = self._kept[kind, stop] - self._kept[kind, start]
        if self._dense is not None:
            own = self._dense[kind, stop] - self._dense[kind, start]
            state = state + own / self.sharing.dense_ranks(dp)
        if self._experts is not None:
            own = self._experts[kind, stop] - self._experts[kind, start]
            state = state + own / self.sharing.experts_ranks(kind, dp)
        # On one stage a tied table is there once; on two each holds its copy.
        num_units = self._kept.shape[1] - 1
        once = np.where((start == 0) & (stop == num_units), 1 - self.tied_share[kind], 1.0)
        held: Floats = state * once
        return held

    def split_states_bytes(self, kind: Ints, start: Ints, stop: Ints) -> tuple[Floats, Floats]:
        """Return the states that every replica holds, and those that a stage has once."""
        kept: Floats = self._kept[kind, stop] - self._kept[kind, start]
        whole = self.states_bytes(kind, start, stop, 1)
        return kept, np.maximum(whole - kept, 0.0)

    def _has_end(self, start: Ints, stop: Ints) -> NDArray[np.bool_]:
        num_units = self.activations_prefix_bytes.shape[1] - 1
        found: NDArray[np.bool_] = (np.asarray(start) == 0) | (np.asarray(stop) == num_units)
        return found


def no_sharing(num_kinds: int) -> Sharing:
    """Return the sharing of a model that knows none."""
    return Sharing(cp=1, group=None, experts_factor=np.ones(num_kinds))


def no_slack(num_kinds: int) -> Slack:
    """Return a slack of nothing."""
    return Slack(states=np.zeros(num_kinds), moving=np.zeros(num_kinds))


def no_margin(num_kinds: int) -> Margin:
    """Return a margin of nothing."""
    none = np.zeros(num_kinds)
    return Margin(states=none, moving=none, fixed_bytes=none)


def dense_states(prefix_bytes: Sequence[tuple[str, Floats]]) -> tuple[StateTable, ...]:
    """Return the states of a cost model that knows neither experts nor sharing."""
    return tuple(
        StateTable(name, prefix, np.zeros_like(prefix), shared=False)
        for name, prefix in prefix_bytes
    )
