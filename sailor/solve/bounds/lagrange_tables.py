"""What the bound knows of a problem: cost terms that are never above those of any plan.

Kinds are (GPU type, region, market, tp), or (GPU type, market, tp) where regions make too many
groups. Where such a group covers several zones or node shapes, each term is the least over its
members: the best link, the lowest price. The room of a group is the sum of its capacities. So
every plan over the members is also a plan over the groups, and no dearer there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.sim.tables import StageTables
from sailor.solve.bounds.lagrange_sync import LeastSync
from sailor.solve.pools import slots_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_REPLICAS = 10**9  # more than any pool holds
_MOST_GROUPS = 4  # by region
EVERYWHERE = "everywhere"  # the region of a group of all regions


@dataclass(frozen=True)
class Group:
    """GPUs that the bound counts together."""

    gpu: str
    region: str  # or EVERYWHERE
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
    all_regions: bool  # whether groups are those of all regions together
    zone_gpus: tuple[tuple[str, int], ...]  # zones with their GPUs of all groups, most first
    compute_s: Floats  # [K, U, U + 1] of units [v, u); infinite for u <= v or unusable kinds
    update_s: Floats  # [K, U, U + 1]
    forward_s: Floats  # [K, K, U + 1] activations at a cut, from the stage before it
    backward_s: Floats  # [K, K, U + 1] gradients at a cut: [before, after, cut], sent by `after`
    usd_per_s: Floats  # [K] of one replica
    headroom_bytes: int

    @property
    def largest_zone(self) -> int:
        """Return the GPUs of the zone that has most."""
        return max((gpus for _, gpus in self.zone_gpus), default=0)

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

    @cached_property
    def hops(self) -> LeastSync:
        """Return what gradient rings take at least, by the hops that they may have."""
        return LeastSync(
            self.real, self.members, self.group, self.tp, self.zone_of, self.largest_zone
        )

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Return what others have worked out of these tables, by name, so that it is done once."""
        return {}

    def sync_s(self, degrees: Sequence[int], most_tp: int | None = None) -> Floats:
        """Return [K, U, U + 1]: least all-reduce of a stage in which the kind takes part.

        With `most_tp`, of a stage whose smallest degree is no larger; see `LeastSync.of_kinds_s`.
        """
        found: Floats = self.hops.of_kinds_s(degrees, most_tp) + self._tied_s
        return found

    @cached_property
    def _tied_s(self) -> Floats:
        """Return [K, U, U + 1]: least exchange of a tied table's gradients with the other end."""
        units = self.num_units
        out = np.zeros((self.num_kinds, units, units + 1))
        seconds = self.real.tied_send_s
        if seconds is None:
            return out
        everyone = np.concatenate(self.members)
        for kind, members in enumerate(self.members):
            out[kind, 0, :units] = seconds[np.ix_(members, everyone)].min()
            out[kind, 1:, units] = seconds[np.ix_(everyone, members)].min()
        return out

    def sync_of_set_s(self, kinds: Sequence[int], degrees: Sequence[int]) -> Floats:
        """Return [U, U + 1]: least all-reduce of a stage held by exactly these kinds."""
        return self.hops.of_set_s(kinds, degrees)

    def crossing_s(
        self, segments: tuple[Ints, Ints], tp: int, degrees: Ints, between: Sequence[int] = ()
    ) -> Floats:
        """Return [N, D]: the least ring with a hop between zones, of every segment and degree.

        With groups `between`, of all rings with a hop between two of those.
        """
        return self.hops.crossing_s(segments, tp, degrees, between)


def groups_of(problem: Problem) -> tuple[Group, ...]:
    """Return the groups of a problem: every capacity counts once in each group it reaches.

    Of many groups those of all regions become one. That is a relaxation too, and a good trade:
    each group has a price of its own, and with half as many they are found far sooner.
    """
    groups = _groups(problem, by_region=True)
    limits = problem.constraints
    by_time = problem.objective is Objective.MAX_THROUGHPUT and limits.max_usd_per_iteration is None
    if len(groups) <= _MOST_GROUPS or not by_time:
        return groups
    return _groups(problem, by_region=False)


def _groups(problem: Problem, *, by_region: bool) -> tuple[Group, ...]:
    found: dict[tuple[str, str, str], list[tuple[int, str, int, tuple[WorkerKind, ...]]]] = {}
    for slot in slots_of(problem):
        lead = slot.kinds[0]
        region = problem.zone(slot.zone).region if by_region else EVERYWHERE
        key = (lead.gpu, region, str(lead.market))
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


def _zone_gpus(problem: Problem) -> tuple[tuple[str, int], ...]:
    by_zone: dict[str, int] = {}
    for slot in slots_of(problem):
        by_zone[slot.zone] = by_zone.get(slot.zone, 0) + slot.num_gpus
    return tuple(sorted(by_zone.items(), key=lambda item: (-item[1], item[0])))


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
        all_regions=any(group.region == EVERYWHERE for group in groups),
        zone_gpus=_zone_gpus(problem),
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
