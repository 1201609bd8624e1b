"""Scopes: the sets of pools that are searched one by one, and what their rings pay for egress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.solve.pools import Pool, pools_of, slots_of
from sailor.solve.rules import H6

_MOST_APART = 8  # pools of all zones, each on its own


@dataclass(frozen=True)
class Scope:
    """Pools to search, and the dollars a byte of their gradient ring.

    `apart`: every zone has pools of its own, so that sketches show what crossing zones costs.
    """

    pools: tuple[Pool, ...]
    ring_usd_per_byte: float = 0.0
    apart: bool = False


def scopes(problem: Problem, rules: frozenset[str]) -> list[Scope]:
    """Return the scopes of a problem.

    All pools together, and where money counts each zone alone and all zones apart: a plan inside
    one zone pays no egress, one whose pipelines cross pays for their activations. With merged
    zones the ring is charged for crossing from zone to zone and back.
    """
    slots = slots_of(problem)
    if not slots:
        return []
    zones = sorted({slot.zone for slot in slots})
    money = (
        problem.objective is Objective.MIN_COST
        or problem.constraints.max_usd_per_iteration is not None
    )
    merged = H6 in rules and _zones_are_alike(problem, zones)
    together = pools_of(problem, slots, merge_zones=merged)
    if len(zones) == 1 or not money:
        return [Scope(together)]
    crossing = 0.0
    if merged:
        here = {(price.src, price.dst): price.usd_per_byte for price in problem.egress}
        ring = [
            here[a, b]
            for a, b in zip(zones, zones[1:] + zones[:1], strict=True)
            if problem.zone(a).region == problem.zone(b).region
        ]
        crossing = sum(ring)
    found = [Scope(together, crossing)]
    seen: set[tuple[object, ...]] = set()
    for zone in zones:
        alone = pools_of(problem, [s for s in slots if s.zone == zone], merge_zones=True)
        # Zones with the same GPUs at the same price are one case.
        key = tuple((pool.gpu, pool.market, pool.num_gpus, _price(problem, pool)) for pool in alone)
        if key not in seen:
            seen.add(key)
            found.append(Scope(alone))
    apart = pools_of(problem, slots, merge_zones=False)
    if len(together) < len(apart) <= _MOST_APART:
        found.append(Scope(apart, apart=True))
    return found


def _zones_are_alike(problem: Problem, zones: Sequence[str]) -> bool:
    """Return whether every pair of zones of a region has a link and a price for its bytes.

    Where one is unknown, one pool can't stand for both zones: no plan may send anything there.
    """
    linked = {(link.src, link.dst) for link in problem.links}
    priced = {(price.src, price.dst) for price in problem.egress}
    return all(
        (a, b) in linked and (a, b) in priced
        for a in zones
        for b in zones
        if problem.zone(a).region == problem.zone(b).region
    )


def _price(problem: Problem, pool: Pool) -> float:
    kind = pool.slots[0].kinds[0]
    return next(
        place.usd_per_hour
        for place in problem.placements
        if (place.zone, place.node_type, place.market) == (kind.zone, kind.node_type, kind.market)
    )
