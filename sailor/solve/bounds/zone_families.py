"""Families of plans, told apart by what they pay for egress; together they are all plans.

A pipeline crosses if two of its neighbouring stages lie in different zones. A plan

* lies inside one zone, and pays nothing;
* or has two pipelines that don't cross in different zones: then every stage lies in several
  zones, and every stage's ring leaves a zone at least twice;
* or lies in several zones, and all pipelines that don't cross lie in one of them, the home: then
  one or more cross, and each sends its activations and gradients over a priced link.

A ring that leaves a zone comes back, so it has two such hops, each with 2 (D - 1) / D of the
stage's gradients. Prices are the least between any two zones, messages the smallest of all cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.solve.bounds.lagrange_boxes import BoundCell, Home, Money
from sailor.solve.bounds.lagrange_tables import EVERYWHERE, BoundTables, Group, groups_of
from sailor.solve.bounds.layouts import Layout
from sailor.solve.pools import slots_of
from sailor.solve.zone_sets import inside

Floats = NDArray[np.float64]

_MOST = 7  # families; with more zones all plans are one, and egress counts as nothing
EGRESS = (
    "in the bound a plan over several zones pays for egress: for two hops of every stage's ring, "
    "or for each pipeline that crosses zones"
)


@dataclass(frozen=True)
class Prices:
    """Least dollars a byte between two zones, one way and both ways together."""

    one_way: float
    both_ways: float


@dataclass(frozen=True)
class Family:
    """Plans over the offers of `problem`, told apart by where their pipelines lie."""

    problem: Problem
    prices: Prices | None = None  # None: nothing is paid for egress
    home: str | None = None  # zone of the pipelines that don't cross; None: any

    @property
    def spread(self) -> bool:
        """Return whether every stage lies in several zones."""
        return self.prices is not None and self.home is None

    def allows(self, layout: Layout | None) -> bool:
        """Return whether plans of the family may lie in zones like that."""
        if layout is None or self.prices is None:
            return True
        return layout.zones != 1 if self.spread else layout.crosses

    def cells(self, tables: BoundTables, cells: Iterable[BoundCell]) -> Iterator[BoundCell]:
        """Yield the cells with what every plan of the family pays for egress."""
        prices, real = self.prices, tables.real
        if prices is None:
            yield from cells
            return
        cp = real.kinds[0].cp
        gradients = float(real.gradient_prefix_bytes[-1])
        messages = real.size_bytes[real.forward_size[: tables.num_units - 1]]
        smallest = float(messages.min(initial=np.inf))
        home = None if self.home is None else self._home(tables, self.home)
        for cell in cells:
            if self.spread:
                ranks = min(cell.degrees) * cp
                hop = 2.0 * (ranks - 1) / ranks * gradients
                if max(cell.degrees) > 1:
                    yield replace(cell, egress_usd=2.0 * hop * prices.one_way)
            elif np.isfinite(smallest):  # a pipeline of one unit can't cross
                sent = cp * self._fewest(tables, cell) * smallest
                yield replace(cell, crossing_usd=sent * prices.both_ways, home=home)

    def _fewest(self, tables: BoundTables, cell: BoundCell) -> int:
        """Return the fewest microbatches for which a pipeline of the cell pays egress."""
        if tables.coupled:
            return cell.num_microbatches
        total = max(1, round(self.problem.training.global_batch / tables.microbatch))
        return max(1, total // max(cell.degrees))

    def _home(self, tables: BoundTables, zone: str) -> Home:
        room = np.zeros(len(tables.room), dtype=np.int64)
        for number, group in enumerate(groups_of(self.problem)):
            room[number] = _room(self.problem, group, zone)
        offered = [
            any(tables.zone_of[member] == zone for member in members) for members in tables.members
        ]
        return Home(zone, room, np.array(offered))

    def sync_s(self, tables: BoundTables, cell: BoundCell, found: Floats) -> Floats:
        """Return [K, U, U + 1]: the all-reduce, which of a stage in several zones crosses."""
        if not self.spread:
            return found
        units = tables.num_units
        legal = np.arange(units + 1)[None, :] > np.arange(units)[:, None]
        first, second = np.nonzero(legal)
        degrees = np.array([dp for dp in cell.degrees if dp > 1], dtype=np.int64)
        least, out = np.full(len(first), np.inf), found.copy()
        for tp in sorted({int(t) for t in tables.tp}):
            # The smallest degree of a stage in which a kind takes part is at most the kind's own.
            crossing = tables.crossing_s((first, second), tp, degrees).min(axis=1)
            least = np.minimum(least, crossing)
            for kind in np.flatnonzero(tables.tp == tp):
                out[kind, first, second] = np.maximum(out[kind, first, second], least)
        return out


def families(problem: Problem, money: Money) -> list[Family]:
    """Return families that hold all plans: one, unless egress is paid for and dollars count."""
    everything = [Family(problem)]
    zones = sorted({slot.zone for slot in slots_of(problem)})
    if not money.counts or len(zones) < 2:
        return everything
    prices = _least_prices(problem, zones)
    if prices.one_way <= 0 or not np.isfinite(prices.both_ways):
        return everything
    alone: dict[tuple[str, ...], Family] = {}
    homes: dict[tuple[int, ...], Family] = {}
    for zone in zones:
        # Zones with the same offers, prices and links are one case.
        alone.setdefault(_offers(problem, zone), Family(inside(problem, {zone})))
        rooms = tuple(_room(problem, group, zone) for group in groups_of(problem))
        kinds = tuple(_num_kinds(group, zone) for group in groups_of(problem))
        homes.setdefault((*rooms, *kinds), Family(problem, prices, zone))
    found = [*alone.values(), Family(problem, prices), *homes.values()]
    return found if len(found) <= _MOST else everything


def _least_prices(problem: Problem, zones: list[str]) -> Prices:
    """Return the least prices; infinite where none between two of the zones is known."""
    known = {(price.src, price.dst): price.usd_per_byte for price in problem.egress}
    pairs = [(a, b) for a in zones for b in zones if a != b]
    one_way = min((known[pair] for pair in pairs if pair in known), default=np.inf)
    # No plan may send where a price is unknown, and messages go both ways.
    both = min(
        (known[a, b] + known[b, a] for a, b in pairs if (a, b) in known and (b, a) in known),
        default=np.inf,
    )
    return Prices(one_way, both)


def _room(problem: Problem, group: Group, zone: str) -> int:
    """Return the GPUs that a group has in a zone."""
    mine: dict[int, int] = {}
    for slot in slots_of(problem):
        lead = slot.kinds[0]
        alike = (lead.gpu, str(lead.market)) == (group.gpu, group.market)
        region = problem.zone(slot.zone).region
        if slot.zone == zone and alike and group.region in (region, EVERYWHERE):
            mine[slot.capacity] = slot.num_gpus
    return sum(mine.values())


def _num_kinds(group: Group, zone: str) -> int:
    """Return a number that says which degrees of a group a zone offers."""
    return sum(
        1 << place
        for place, members in enumerate(group.members)
        if any(kind.zone == zone for kind in members)
    )


def _offers(problem: Problem, zone: str) -> tuple[str, ...]:
    """Return all that a plan inside the zone can see, with the zone's name left out."""
    placements = {
        number: f"{place.node_type} {place.market} {place.usd_per_hour!r}"
        for number, place in enumerate(problem.placements)
        if place.zone == zone
    }
    capacities = [
        f"{capacity.max_nodes} {capacity.max_gpus} "
        + " ".join(sorted(placements[n] for n in capacity.placements if n in placements))
        for capacity in problem.capacities
        if any(n in placements for n in capacity.placements)
    ]
    links = [
        link.model_copy(update={"src": "", "dst": "", "source": "-"}).model_dump_json()
        for link in problem.links
        if link.src == link.dst == zone
    ]
    return (*sorted(placements.values()), "|", *sorted(capacities), "|", *sorted(links))
