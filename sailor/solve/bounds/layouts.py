"""How the pipelines of a plan lie in zones, where the zones of a region are one pool.

Either every pipeline lies in one zone. Then each stage lies in all zones that the plan uses, k of
them, so its ring joins k zones, and no transfer leaves a zone. Or some pipeline crosses from
zone to zone between two neighbouring stages, and the plan waits for that transfer. Together these
layouts are all plans; each rules out much of what the pool as a whole would allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_tables import BoundTables
from sailor.solve.bounds.zones import several_zones

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MOST_ZONES = 6  # whose rings are compared one by one


@dataclass(frozen=True)
class Layout:
    """All pipelines inside zones, `zones` in all; None: some pipeline crosses.

    `twice`: each of these zones has two pipelines or more; False: some zone has one; None: any.
    `told`: wide stages are told apart by all zones in which two replicas or more lie.
    """

    zones: int | None
    twice: bool | None = None
    told: bool = False

    @property
    def crosses(self) -> bool:
        """Return whether some pipeline crosses between zones."""
        return self.zones is None


def layouts(tables: BoundTables, most_dp: int) -> tuple[Layout | None, ...]:
    """Return the layouts that plans may have; (None,) where they aren't told apart."""
    zones = len(set(tables.zone_of))
    if not several_zones(tables) or not 1 < zones <= _MOST_ZONES:
        return (None,)
    return (*(Layout(k) for k in range(1, min(zones, most_dp) + 1)), Layout(None))


def closer(layout: Layout | None, rings: CellRings) -> tuple[Layout, ...]:
    """Return layouts of the same plans that are told apart further; none where there aren't any."""
    if layout is None or layout.twice is not None or layout.told:
        return ()
    if layout.zones is None:
        return (replace(layout, told=True),)
    if layout.zones == 1:
        return ()
    most = int(rings.degrees.max())
    both = (replace(layout, twice=True),) if most >= 2 * layout.zones else ()
    return (*both, replace(layout, twice=False))


def room_of_zones(tables: BoundTables, zones: int) -> int:
    """Return the GPUs of the largest zones, so many of them."""
    return sum(gpus for _, gpus in tables.zone_gpus[:zones])


def room_of_a_pipeline(tables: BoundTables, layout: Layout, least_dp: int) -> int:
    """Return the GPUs that a pipeline can have where all lie inside zones."""
    zones = layout.zones or 1
    dp = max(least_dp, zones)
    room = room_of_zones(tables, zones) // dp
    if layout.twice is False and zones > 1:
        # All but one pipeline lie in the other zones.
        room = min(room, room_of_zones(tables, zones - 1) // (dp - 1))
    return room


class CellRings:
    """Least gradient syncs for the degrees of one cell, which its layouts share."""

    def __init__(self, tables: BoundTables, degrees: Sequence[int]) -> None:
        self.tables = tables
        self.degrees = np.array(degrees, dtype=np.int64)
        self.names = sorted(set(tables.zone_of))
        groups = groups_of_zones(tables)
        self.groups = [groups[name] for name in self.names]
        gpus = dict(tables.zone_gpus)
        self.gpus = [gpus[name] for name in self.names]
        self._hops: dict[int, Floats] = {}
        self._of_kinds: dict[int, Floats] = {}
        self._known: dict[tuple[object, ...], Floats] = {}
        self._slowest: dict[tuple[object, ...], Floats] = {}

    def of_kinds_s(self, most_tp: int) -> Floats:
        """Return [K, U, U + 1]: the least with update of a stage in which a kind takes part.

        The smallest degree of the stage is at most `most_tp`.
        """
        if most_tp not in self._of_kinds:
            sync = self.tables.sync_s(self.degrees.tolist(), most_tp)
            self._of_kinds[most_tp] = sync + self.tables.update_s
        return self._of_kinds[most_tp]

    def round_zones_s(
        self, most_tp: int, zones: int, *, exactly: bool, twice: bool = False,
        groups: tuple[int, ...] = (),
    ) -> Floats:  # fmt: skip
        """Return [U, U + 1]: the least all-reduce round so many zones (or more), less the update.

        The smallest degree of the stage is at most `most_tp`; the ring goes through some zone of
        each of the `groups`; it comes by each zone `twice` or more often.
        """
        key = (most_tp, zones, exactly, twice, groups)
        if key not in self._known:
            most = zones if exactly else len(self.names)
            chosen = [
                some
                for used in range(zones, most + 1)
                for some in combinations(range(len(self.names)), used)
                if not set(groups) - set().union(*(self.groups[a] for a in some))
            ]
            many = [True] * zones if twice and exactly else []
            self._known[key] = self._seconds(most_tp, chosen, many)
        return self._known[key]

    def round_these_s(self, most_tp: int, zones: tuple[int, ...], *, twice: bool) -> Floats:
        """Return [U, U + 1] as `round_zones_s` of these zones, by their number."""
        if (most_tp, zones, twice) not in self._known:
            many = [True] * len(zones) if twice else []
            self._known[most_tp, zones, twice] = self._seconds(most_tp, [zones], many)
        return self._known[most_tp, zones, twice]

    def twice_in(self, zones: tuple[int, ...], tp: int) -> bool:
        """Return whether two replicas or more of a stage lie in each of these zones.

        The stage has replicas of so many GPUs or more, in no other zone.
        """
        most = [self.gpus[zone] // tp for zone in zones]
        return int(self.degrees.min()) - sum(most) + min(most) >= 2

    def narrow(self, group: int, gpus: int) -> list[tuple[int, ...]]:
        """Return the fewest zones of a group in which so many GPUs are, in all ways.

        Empty where two stages of so many could be in the same ones, or where there are no such
        zones: then it is of no use to tell them apart.
        """
        own = [z for z, groups in enumerate(self.groups) if groups == {group}]
        for count in range(1, len(own) + 1):
            found = [
                zones for zones in combinations(own, count)
                if sum(self.gpus[z] for z in zones) >= gpus
            ]  # fmt: skip
            if found:
                alone = all(sum(self.gpus[z] for z in zones) < 2 * gpus for zones in found)
                return found if alone and count > 1 else []
        return []

    def round_wide_s(
        self, most_tp: int, twice_in: tuple[int, ...], others: tuple[int, ...]
    ) -> Floats:
        """Return [U, U + 1] as `round_zones_s` of a stage with two replicas in each of some zones.

        In the others it may have one each, and it is in no further zone. A zone with more than
        two replicas beyond those others has hops to and from the zones `twice_in`.
        """
        key = (most_tp, "wide", twice_in, others)
        if key not in self._known:
            most = [self.gpus[zone] // most_tp for zone in twice_in]
            least = int(self.degrees.min()) - len(others) - sum(most)
            many = [least + own >= 2 + len(others) for own in most]
            chosen = [
                (*twice_in, *more)
                for size in range(len(others) + 1)
                for more in combinations(others, size)
            ]
            self._known[key] = self._seconds(most_tp, chosen, many)
        return self._known[key]

    def _seconds(
        self,
        most_tp: int,
        chosen: Sequence[tuple[int, ...]],
        many: Sequence[bool] = (),
    ) -> Floats:
        """Return [U, U + 1]: the least over sets of zones, of their slowest hop.

        In the first zones of a set, one for each of `many`, there are two replicas or more, or so
        many that there is a hop between them and those zones.

        The hops from replica to replica join the zones, in whichever order and direction, and may
        come by a zone twice. So some hop leads from one part of the zones to the other, for every
        way to part them in two. And some hop leads out of each zone, be it to another replica
        there, and one into each. But there is none out of the last replica and none into the
        first: one zone each may have no such hop if there are no two replicas in it.
        """
        units, hops = self.tables.num_units, self.tables.hops
        least = np.full(len(hops.segments[0]), np.inf)
        for tp in sorted({int(t) for t in self.tables.tp if t <= most_tp}):
            for zones in chosen:
                least = np.minimum(least, self._slowest_hop(tp, zones, tuple(many)))
        out = np.full((units, units + 1), np.inf)
        out[hops.first, hops.second] = least[hops.inverse]
        return out

    def _slowest_hop(self, tp: int, zones: tuple[int, ...], many: tuple[bool, ...]) -> Floats:
        """Return [N]: the least ring of each segment round some zones; see `_seconds`."""
        key = (tp, zones, many)
        if key not in self._slowest:
            between = self._between(tp)
            rings = [
                np.min([between[a, b] for a, b in hops_between], axis=0)
                for hops_between in _parted(zones)
            ]
            for away in (between, between.swapaxes(0, 1)):
                rings += _least_hops(away, zones, many)
            self._slowest[key] = np.max(rings, axis=0).min(axis=1)
        return self._slowest[key]

    def _between(self, tp: int) -> Floats:
        """Return [Z, Z, N, D]: the least ring of each segment with a hop from zone to zone.

        Those inside a zone lead between nodes, as they do in a ring of several kinds.
        """
        if tp not in self._hops:
            tables, real = self.tables, self.tables.real
            start, stop = tables.hops.segments
            zone = np.array([self.names.index(name) for name in tables.zone_of])
            offered = np.zeros(len(zone), dtype=np.bool_)
            for kind, members in enumerate(tables.members):
                if tables.tp[kind] >= tp:
                    offered[members] = True
            src, dst = np.nonzero(offered[:, None] & offered[None])
            alike = real.sync.alike(src, dst)
            _, index, inverse = np.unique(alike, return_index=True, return_inverse=True)
            seconds = real.sync.seconds(
                start[:, None, None], stop[:, None, None], np.asarray(tp),
                self.degrees[None, :, None], src[None, None, index], dst[None, None, index],
            )  # fmt: skip
            shape = (len(self.names), len(self.names), len(start), len(self.degrees))
            found = np.full(shape, np.inf)
            pairs = {*zip(zone[src].tolist(), zone[dst].tolist(), inverse.tolist(), strict=True)}
            for a, b, number in pairs:
                found[a, b] = np.minimum(found[a, b], seconds[:, :, number])
            self._hops[tp] = found
        return self._hops[tp]


def groups_of_zones(tables: BoundTables) -> dict[str, set[int]]:
    """Return the groups that have GPUs in each zone."""
    found: dict[str, set[int]] = {name: set() for name in tables.zone_of}
    for kind, members in enumerate(tables.members):
        for member in members.tolist():
            found[tables.zone_of[member]].add(int(tables.group[kind]))
    return found


def _least_hops(away: Floats, zones: tuple[int, ...], many: Sequence[bool]) -> list[Floats]:
    """Return rings [N, D] with the fastest hop out of each zone, one that may have none left out.

    See `CellRings._seconds`; `away` is [Z, Z, N, D], from zone to zone.
    """
    near = list(zones[: len(many)])
    found = [
        away[zone, near if sure else list(zones)].min(axis=0)
        for zone, sure in zip(near, many, strict=True)
    ]
    others = [away[zone, list(zones)].min(axis=0) for zone in zones[len(many) :]]
    return [*found, *np.sort(others, axis=0)[:-1][-1:]] if others else found


def _parted(zones: tuple[int, ...]) -> Iterator[list[tuple[int, int]]]:
    """Yield the hops, both ways, between the parts of every way to part the zones in two."""
    first, others = zones[0], zones[1:]
    for size in range(len(others)):
        for more in combinations(others, size):
            near = {first, *more}
            far = [zone for zone in zones if zone not in near]
            yield [pair for a in near for b in far for pair in ((a, b), (b, a))]


class ZoneSends:
    """Transfers that stay in a zone, one zone after the other."""

    def __init__(self, tables: BoundTables, *, cut_down: bool) -> None:
        self.tables, self.cut_down = tables, cut_down
        names = np.array(tables.zone_of)
        self.zones = sorted(set(tables.zone_of))
        groups = groups_of_zones(tables)
        self.groups = [groups[name] for name in self.zones]
        real, units = tables.real, tables.num_units
        shape = (len(self.zones), tables.num_kinds, tables.num_kinds, len(real.send_s))
        least = np.full(shape, np.inf)
        for z, name in enumerate(self.zones):
            here = [members[names[members] == name] for members in tables.members]
            for a, mine in enumerate(here):
                for b, theirs in enumerate(here):
                    if len(mine) and len(theirs):
                        both = real.send_s[:, mine[:, None], theirs[None]]
                        least[z, a, b] = both.min(axis=(1, 2))
        cut = np.arange(units + 1)
        self.forward_s = least[..., real.forward_size[np.clip(cut - 1, 0, units - 1)]]
        backward = least[..., real.backward_size[np.clip(cut, 0, units - 1)]]
        self.backward_s = backward.transpose(0, 2, 1, 3)  # [Z, before, after, U + 1]
        self._sorted: dict[tuple[tuple[int, ...], tuple[int, ...]], Floats] = {}

    @staticmethod
    def of(tables: BoundTables, *, cut_down: bool) -> ZoneSends:
        """Return those of some tables, which all cells share."""
        name = f"zone sends {cut_down}"
        if name not in tables.kept:
            tables.kept[name] = ZoneSends(tables, cut_down=cut_down)
        found: ZoneSends = tables.kept[name]
        return found

    def least(self, before: Sequence[int], after: Sequence[int], zones: int) -> Floats:
        """Return [2, U + 1]: what is sent forth and back takes in the slowest of so many zones.

        Between stages of these kinds, whose pipelines lie in that many zones or more.
        """
        key = tuple(before), tuple(after)
        if key not in self._sorted:
            here = []
            for z in range(len(self.zones)):
                pair = np.ix_(self._kinds(before, z), self._kinds(after, z))
                sends = (seconds[z][pair] for seconds in (self.forward_s, self.backward_s))
                here.append([send.min(axis=(0, 1), initial=np.inf) for send in sends])
            self._sorted[key] = np.sort(np.array(here), axis=0)
        in_zones = self._sorted[key]
        found: Floats = in_zones[min(zones, len(in_zones)) - 1]
        return found

    def _kinds(self, kinds: Sequence[int], zone: int) -> list[int]:
        """Return which kinds of a zone a stage of these kinds may have there.

        A kind stands for larger degrees of its group, too. A stage that is cut down to these
        kinds may have any of the other groups.
        """
        tables, own = self.tables, self.groups[zone]
        lead = [kind for kind in kinds if int(tables.group[kind]) in own]
        if not lead and not self.cut_down:
            return []
        least = min((int(tables.tp[kind]) for kind in lead), default=0)
        groups = {int(tables.group[kind]) for kind in lead} or own
        return [
            kind
            for kind in range(tables.num_kinds)
            if int(tables.group[kind]) in groups and tables.tp[kind] >= least
        ]
