"""Pools: where the GPUs of a problem can be taken from, as the planners see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.model.hardware import Market
from sailor.model.problem import Capacity, Problem
from sailor.sim.kinds import WorkerKind, best_fitting_kinds, rentable_kinds


@dataclass(frozen=True)
class Slot:
    """One capacity of the problem: GPUs that are counted together, in units of cp.

    `kinds` has the best-fitting worker kind by tp. `gpus_per_node` is the size of a counted node,
    or None for a quota, whose replicas get nodes of their own size.
    """

    capacity: int
    zone: str
    num_gpus: int
    gpus_per_node: int | None
    kinds: tuple[WorkerKind, ...]

    def kind(self, tp: int) -> WorkerKind | None:
        """Return the kind of that degree, or None."""
        return next((kind for kind in self.kinds if kind.tp == tp), None)

    def replicas(self, tp: int) -> int:
        """Return how many replicas of that degree fit when there is nothing else."""
        if self.gpus_per_node is None:
            kind = self.kind(tp)
            return self.num_gpus // tp if kind is not None else 0
        return self.num_gpus // self.gpus_per_node * (self.gpus_per_node // tp)


@dataclass(frozen=True)
class Pool:
    """Slots that a search takes for one: a GPU type and market in a region (or a zone)."""

    gpu: str
    place: str
    market: Market
    slots: tuple[Slot, ...]

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of all slots."""
        return sum(slot.num_gpus for slot in self.slots)

    def tp_degrees(self) -> tuple[int, ...]:
        """Return the degrees that at least one slot offers."""
        return tuple(sorted({kind.tp for slot in self.slots for kind in slot.kinds}))

    def replicas(self, tp: int) -> int:
        """Return how many replicas of that degree fit when there is nothing else."""
        return sum(slot.replicas(tp) for slot in self.slots)

    def lead(self, tp: int) -> WorkerKind:
        """Return the kind that stands for the pool during the search: that of the largest slot."""
        found = [slot for slot in self.slots if slot.kind(tp) is not None]
        kind = max(found, key=lambda slot: (slot.num_gpus, slot.zone)).kind(tp)
        if kind is None:
            raise KeyError(tp)
        return kind


def slots_of(problem: Problem) -> tuple[Slot, ...]:
    """Return one slot for every capacity and zone that it covers.

    A quota of a region covers several zones; each becomes a slot with the whole quota, and the
    renting check sees to the sum.
    """
    kinds = best_fitting_kinds(problem, rentable_kinds(problem))
    found: list[Slot] = []
    for number, capacity in enumerate(problem.capacities):
        places = [problem.placements[index] for index in capacity.placements]
        for zone in sorted({place.zone for place in places}):
            shapes = {(place.node_type, place.market) for place in places if place.zone == zone}
            mine = tuple(
                kind
                for kind in kinds
                if kind.zone == zone and (kind.node_type, kind.market) in shapes
            )
            gpus, per_node = _size(problem, capacity)
            gpus -= gpus % _smallest_part(problem, mine)
            if mine and gpus > 0:
                found.append(Slot(number, zone, gpus, per_node, mine))
    return tuple(found)


def _smallest_part(problem: Problem, kinds: Sequence[WorkerKind]) -> int:
    """Return what a quota is used up in: whole nodes, in units of cp.

    Of a quota of 51 GPUs in nodes of four 48 can be rented.
    """
    cp = problem.training.cp
    return math.gcd(*(problem.node(kind.node_type).num_gpus // cp for kind in kinds)) or 1


def _size(problem: Problem, capacity: Capacity) -> tuple[int, int | None]:
    """Return GPUs of a capacity and of one of its nodes, both in units of cp."""
    cp = problem.training.cp
    if capacity.max_nodes is not None:
        node = problem.node(problem.placements[capacity.placements[0]].node_type)
        per_node = node.num_gpus // cp
        return capacity.max_nodes * per_node, per_node
    return (capacity.max_gpus or 0) // cp, None


def pools_of(problem: Problem, slots: Sequence[Slot], *, merge_zones: bool) -> tuple[Pool, ...]:
    """Group slots by GPU type, market and region (or zone)."""
    groups: dict[tuple[str, str, Market, int | None], list[Slot]] = {}
    for slot in slots:
        lead = slot.kinds[0]
        place = problem.zone(slot.zone).region if merge_zones else slot.zone
        groups.setdefault((lead.gpu, place, lead.market, slot.gpus_per_node), []).append(slot)
    return tuple(
        Pool(gpu, place, market, _one_of_each_quota(members))
        for (gpu, place, market, _), members in groups.items()
    )


def _one_of_each_quota(members: Iterable[Slot]) -> tuple[Slot, ...]:
    """Keep one zone of a quota that covers several: its GPUs exist once."""
    chosen: dict[int, Slot] = {}
    for slot in members:
        chosen.setdefault(slot.capacity, slot)
    return tuple(chosen.values())


def most_gpus(problem: Problem) -> int | None:
    """Return the GPUs, in units of cp, that `max_gpus` and `max_nodes` leave; None: no limit."""
    limits, cp = problem.constraints, problem.training.cp
    found = [] if limits.max_gpus is None else [limits.max_gpus // cp]
    if limits.max_nodes is not None:
        shapes = {place.node_type for place in problem.placements}
        largest = max((problem.node(name).num_gpus // cp for name in shapes), default=0)
        found.append(limits.max_nodes * largest)
    return min(found, default=None)
