"""What the bound knows of a problem: cost terms that are never above those of any plan.

Kinds are (GPU type, region, market, tp). Where such a group covers several zones or node shapes,
each term is the least over its members: the best link, the lowest price. The room of a group is
the sum of its capacities. So every plan over the members is also a plan over the groups, and no
dearer there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.sim.closed_form import MANY
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.sim.tables import StageTables
from sailor.solve.pools import slots_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A degree of data parallelism is evaluated exactly at most so many at a time (memory).
_DEGREES_AT_ONCE = 64
_MOST_REPLICAS = 10**9  # more than any pool holds


class StoppedError(Exception):
    """A table was not finished: the search's time is over."""


@dataclass(frozen=True)
class Group:
    """GPUs that the bound counts together."""

    gpu: str
    region: str
    market: str
    room: int  # GPUs
    largest_zone: int  # GPUs of the zone that has most
    members: tuple[tuple[WorkerKind, ...], ...]  # by degree, in the order of `tp`
    tp: tuple[int, ...]


@dataclass(frozen=True)
class BoundTables:
    """Least cost terms over K kinds at one microbatch size; see the module."""

    microbatch: int
    num_units: int
    coupled: bool
    group: Ints  # [K]
    tp: Ints  # [K]
    room: Ints  # [R] GPUs of each group
    gpus: tuple[str, ...]  # [K] names
    members: tuple[Ints, ...]  # [K] indices into the kinds of `real`
    real: StageTables
    zone_of: tuple[str, ...]  # zone of each kind of `real`
    largest_zone: int  # GPUs of all groups in the zone that has most
    compute_s: Floats  # [K, U, U + 1] of units [v, u); infinite for u <= v or unusable kinds
    update_s: Floats  # [K, U, U + 1]
    forward_s: Floats  # [K, K, U + 1] activations at a cut, from the stage before it
    backward_s: Floats  # [K, K, U + 1] gradients at a cut: [before, after, cut], sent by `after`
    usd_per_s: Floats  # [K] of one replica
    headroom_bytes: int

    @property
    def num_kinds(self) -> int:
        """Return K."""
        return len(self.tp)

    def longest(self, in_flight: int, *, single: bool) -> Ints:
        """Return [K, U]: the furthest cut that a stage from each unit can reach in memory.

        What an optimizer shards is taken to be shared by any number of replicas.

        `in_flight` microbatches are kept; `single`: the stage is the whole pipeline.
        """
        units = self.num_units
        start, stop = np.arange(units)[:, None], np.arange(units + 1)[None, :]
        memory = self.real.memory
        out = np.zeros((self.num_kinds, units), dtype=np.int64)
        for kind, members in enumerate(self.members):
            fits = np.zeros((units, units + 1), dtype=np.bool_)
            for member in members:
                need = memory.total_bytes(
                    np.asarray(member),
                    np.broadcast_to(start, fits.shape),
                    np.broadcast_to(stop, fits.shape),
                    np.asarray(in_flight),
                    1 if single else 2,
                    _MOST_REPLICAS,
                )
                fits |= need <= memory.capacity_bytes[member] - self.headroom_bytes
            fits &= stop > start
            out[kind] = np.where(fits, stop, 0).max(axis=1)
        return out

    def sync_s(
        self,
        degrees: Sequence[int],
        most_tp: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Floats:
        """Return [K, U, U + 1]: least all-reduce of a stage in which the kind takes part.

        With `most_tp`, of a stage whose smallest degree is no larger. Raises StoppedError where it
        was stopped: the least of some degrees is no bound for all.

        The kind has a neighbour in the ring, of any kind, so the ring is no faster than its
        fastest hop with the kind at one end; the smallest degree of the stage is at most the
        kind's own. Where no zone has room for the replicas the ring has a hop between zones.
        The least over all `degrees` of data parallelism is returned, each evaluated exactly, so
        nothing is assumed of the link's curve.
        """
        units = self.num_units
        start = np.arange(units)[:, None]
        stop = np.arange(units + 1)[None, :]
        legal = stop > start
        first, second = np.nonzero(legal)
        segments, inverse = self._segments(first, second)
        out = np.full((self.num_kinds, units, units + 1), np.inf)
        crossing: dict[tuple[int, int], Floats] = {}
        for kind in range(self.num_kinds):
            least = np.full(len(segments[0]), np.inf)
            most = min(int(self.tp[kind]), most_tp or int(self.tp[kind]))
            for tp in sorted({int(t) for t in self.tp if t <= most}):
                pairs = self._hops(kind, tp)
                for begin in range(0, len(degrees), _DEGREES_AT_ONCE):
                    if should_stop():
                        raise StoppedError
                    some = np.array(degrees[begin : begin + _DEGREES_AT_ONCE], dtype=np.int64)
                    several = some * tp > self.largest_zone
                    if several.any() and pairs[2].any() and (tp, begin) not in crossing:
                        crossing[tp, begin] = self.crossing_s(segments, tp, some)
                    found = self._ring(segments, tp, some, pairs, crossing.get((tp, begin)))
                    least = np.minimum(least, found)
            out[kind, first, second] = least[inverse]
        return out

    def sync_of_set_s(self, kinds: Sequence[int], degrees: Sequence[int]) -> Floats:
        """Return [U, U + 1]: least all-reduce of a stage held by exactly these kinds.

        Every kind has a neighbour of the set in the ring, and the smallest degree is the set's.
        """
        units = self.num_units
        legal = np.arange(units + 1)[None, :] > np.arange(units)[:, None]
        first, second = np.nonzero(legal)
        segments, inverse = self._segments(first, second)
        tp = int(self.tp[list(kinds)].min())
        everyone = np.concatenate([self.members[kind] for kind in kinds])
        some = np.array(degrees, dtype=np.int64)
        slowest = np.zeros((len(segments[0]), len(some)))
        for kind in kinds:
            mine = self.members[kind]
            src, dst = (side.ravel() for side in np.meshgrid(mine, everyone))
            ends = np.concatenate((src, dst)), np.concatenate((dst, src))
            seconds = self.real.sync.seconds(
                segments[0][:, None, None],
                segments[1][:, None, None],
                np.asarray(tp),
                some[None, :, None],
                ends[0][None, None, :],
                ends[1][None, None, :],
                np.where(ends[0] == ends[1], some[:, None], MANY)[None],
            )
            slowest = np.maximum(slowest, seconds.min(axis=2))
        out = np.full((units, units + 1), np.inf)
        out[first, second] = slowest.min(axis=1)[inverse]
        return out

    def _segments(self, first: Ints, second: Ints) -> tuple[tuple[Ints, Ints], Ints]:
        """Return one (start, stop) for each kind of segment, and the index of every segment's.

        Segments with the same number of units and the same ends are alike when all blocks have
        the same gradients.
        """
        steps = np.diff(self.real.gradient_prefix_bytes)
        if len(steps) > 3 and not np.all(steps[1:-1] == steps[1]):
            return (first, second), np.arange(len(first))
        key = (second - first) * 4 + (first == 0) * 2 + (second == self.num_units)
        _, index, inverse = np.unique(key, return_index=True, return_inverse=True)
        return (first[index], second[index]), inverse

    def _hops(self, kind: int, tp: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Return distinct (src, dst) with a member of `kind` at one end, and whether zones differ.

        With a smallest degree below the kind's own the neighbour may still be any kind.
        """
        ends = [
            (int(a), int(b))
            for mine in self.members[kind]
            for other in range(self.num_kinds)
            if self.tp[other] >= tp
            for theirs in self.members[other]
            for a, b in ((mine, theirs), (theirs, mine))
        ]
        src, dst = (np.array(side, dtype=np.int64) for side in zip(*sorted(set(ends)), strict=True))
        across = np.array(
            [self.zone_of[a] != self.zone_of[b] for a, b in zip(src, dst, strict=True)]
        )
        return src, dst, across

    def _ring(
        self,
        segments: tuple[Ints, Ints],
        tp: int,
        degrees: Ints,
        pairs: tuple[Ints, Ints, NDArray[np.bool_]],
        crossing: Floats | None,
    ) -> Floats:
        src, dst, across = pairs
        start, stop = segments
        seconds = self.real.sync.seconds(
            start[:, None, None],
            stop[:, None, None],
            np.asarray(tp),
            degrees[None, :, None],
            src[None, None, :],
            dst[None, None, :],
            np.where(src == dst, degrees[:, None], MANY)[None],
        )
        # A ring over several zones has a hop between two of them, whoever its ends are.
        several = degrees * tp > self.largest_zone
        inside = seconds.min(axis=2)
        if crossing is not None and across.any():
            inside = np.where(several[None, :], np.maximum(inside, crossing), inside)
        least: Floats = inside.min(axis=1)
        return least

    def crossing_s(
        self, segments: tuple[Ints, Ints], tp: int, degrees: Ints, between: Sequence[int] = ()
    ) -> Floats:
        """Return [N, D]: the least ring with a hop between zones, of every segment and degree.

        With groups `between`, of all rings with a hop between two of those.
        """
        some = [k for k in range(self.num_kinds) if not between or int(self.group[k]) in between]
        ends = sorted(
            {
                (int(a), int(b))
                for one in some
                for other in some
                if not between or self.group[one] != self.group[other]
                for a in self.members[one]
                for b in self.members[other]
                if self.zone_of[a] != self.zone_of[b]
            }
        )
        src, dst = (np.array(side, dtype=np.int64) for side in zip(*ends, strict=True))
        start, stop = segments
        seconds: Floats = self.real.sync.seconds(
            start[:, None, None],
            stop[:, None, None],
            np.asarray(tp),
            degrees[None, :, None],
            src[None, None, :],
            dst[None, None, :],
        ).min(axis=2)
        return seconds


def groups_of(problem: Problem) -> tuple[Group, ...]:
    """Return the groups of a problem: every capacity counts once in each group it reaches."""
    found: dict[tuple[str, str, str], list[tuple[int, str, int, tuple[WorkerKind, ...]]]] = {}
    for slot in slots_of(problem):
        lead = slot.kinds[0]
        key = (lead.gpu, problem.zone(slot.zone).region, str(lead.market))
        found.setdefault(key, []).append((slot.capacity, slot.zone, slot.num_gpus, slot.kinds))
    groups = []
    for (gpu, region, market), slots in sorted(found.items()):
        room = sum({capacity: gpus for capacity, _, gpus, _ in slots}.values())
        by_zone: dict[str, int] = {}
        for _, zone, gpus, _ in slots:
            by_zone[zone] = by_zone.get(zone, 0) + gpus
        kinds = sorted({kind for _, _, _, own in slots for kind in own})
        degrees = tuple(sorted({kind.tp for kind in kinds}))
        members = tuple(tuple(k for k in kinds if k.tp == tp) for tp in degrees)
        groups.append(Group(gpu, region, market, room, max(by_zone.values()), members, degrees))
    return tuple(groups)


def _largest_zone(problem: Problem) -> int:
    by_zone: dict[str, int] = {}
    for slot in slots_of(problem):
        by_zone[slot.zone] = by_zone.get(slot.zone, 0) + slot.num_gpus
    return max(by_zone.values(), default=0)


def bound_tables(problem: Problem, groups: Sequence[Group], microbatch: int) -> BoundTables | None:
    """Build the tables of one microbatch size; None when no kind is profiled at it."""
    profiled = {(p.gpu, p.tp) for p in problem.profiles if p.microbatch == microbatch}
    chosen = [
        (number, tp, group.members[place])
        for number, group in enumerate(groups)
        for place, tp in enumerate(group.tp)
        if (group.gpu, tp) in profiled and tp <= group.room
    ]
    if not chosen:
        return None
    kinds = tuple(sorted({kind for _, _, members in chosen for kind in members}))
    index = {kind: number for number, kind in enumerate(kinds)}
    real = cost_model(problem.cost_model).tables(problem, kinds, microbatch)
    members = tuple(np.array([index[k] for k in own], dtype=np.int64) for _, _, own in chosen)
    units = real.num_units
    # One replica has no weights to wait for: the least that any number of them takes.
    compute = np.stack([_segments_s(real, own) for own in members])
    usable = np.array([bool(real.usable[own].any()) for own in members])
    compute[~usable] = np.inf
    update = np.stack(
        [_prefix_s(real.update_prefix_s, own) + real.update_s[own].min() for own in members]
    )
    # A tied table is updated once where one stage holds both of its ends.
    tied = np.array([real.tied_update_s[own].max() for own in members])
    update[:, 0, units] = np.maximum(update[:, 0, units] - tied, 0.0)
    cut = np.arange(units + 1)
    forward_class = real.forward_size[np.clip(cut - 1, 0, units - 1)]
    backward_class = real.backward_size[np.clip(cut, 0, units - 1)]
    return BoundTables(
        microbatch=microbatch,
        num_units=units,
        coupled=real.coupled,
        group=np.array([number for number, _, _ in chosen], dtype=np.int64),
        tp=np.array([tp for _, tp, _ in chosen], dtype=np.int64),
        room=np.array([group.room for group in groups], dtype=np.int64),
        gpus=tuple(groups[number].gpu for number, _, _ in chosen),
        members=members,
        real=real,
        zone_of=tuple(kind.zone for kind in kinds),
        largest_zone=_largest_zone(problem),
        compute_s=compute,
        update_s=update,
        forward_s=_least_send(real, members)[forward_class].transpose(1, 2, 0),
        backward_s=_least_send(real, members)[backward_class].transpose(2, 1, 0),
        usd_per_s=np.array(
            [
                tp * float(real.usd_per_gpu_hour[own].min()) / 3600.0
                for (_, tp, _), own in zip(chosen, members, strict=True)
            ]
        ),
        headroom_bytes=problem.constraints.memory_headroom,
    )


def _segments_s(real: StageTables, members: Ints) -> Floats:
    """Return [U, U + 1]: least seconds of one microbatch on units [v, u) over the members."""
    units = real.num_units
    start, stop = np.arange(units)[:, None], np.arange(units + 1)[None, :]
    legal = stop > start
    where = (members[:, None, None], np.minimum(start, stop)[None], stop[None])
    seconds = real.compute_s(*where, 1).min(axis=0)
    least: Floats = np.where(legal, seconds, np.inf)
    return least


def _prefix_s(prefix: Floats, members: Ints) -> Floats:
    """Return [U, U + 1]: least seconds of units [v, u) over the members; infinite for u <= v."""
    units = prefix.shape[1] - 1
    rows = prefix[members]
    seconds = (rows[:, None, :] - rows[:, :units, None]).min(axis=0)
    legal = np.arange(units + 1)[None, :] > np.arange(units)[:, None]
    least: Floats = np.where(legal, seconds, np.inf)
    return least


def _least_send(real: StageTables, members: Sequence[Ints]) -> Floats:
    """Return [S, K, K]: the least over members at both ends."""
    return np.stack(
        [
            np.stack(
                [real.send_s[:, a[:, None], b[None, :]].min(axis=(1, 2)) for b in members], axis=1
            )
            for a in members
        ],
        axis=1,
    )
