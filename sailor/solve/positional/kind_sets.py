"""Stages of a cell as the positional programme sees them: kind sets, their times and their GPUs.

A stage of several kinds may use a whole replica's worth of any of them in whichever shares suit.
The shares are fractions here: a sum of stages fits a room exactly if, for all weights of the
pools, its least weighted use is within the weighted room, and finitely many weights decide that.
As a linear programme with one row a pool it has a solution in which the stages have together at
most as many kinds beyond one each as there are pools: no pipeline needs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import combinations, product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoundCell
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.layouts import CellRings, Layout, ZoneSends, room_of_a_pipeline
from sailor.solve.bounds.zones import (
    between_groups,
    crosses,
    crossing_send_s,
    crossing_sync_s,
    several_zones,
    with_zones,
)
from sailor.solve.positional.wide import rows, wide_in, zones_of_group

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_SETS = 90
_RATE_PARTS = 4_000  # of the dearest GPU's price, in which rates are counted


class KindSets:
    """The kind sets of one cell; `usable` is False where there are too many."""

    def __init__(
        self,
        programme: ChainProgramme,
        cell: BoundCell,
        max_gpus: int | None,
        layout: Layout | None = None,
        *,
        rings: CellRings | None = None,
        rates: bool = False,
    ) -> None:
        """`rings` are those of the cell, where several layouts share them.

        `rates`: what pipelines cost a second is counted, too, up to a rate of `with_rate`."""
        self.programme, self.cell, self.layout = programme, cell, layout
        self.rings = rings or CellRings(programme.tables, cell.degrees)
        tables = programme.tables
        self.units = tables.num_units
        within = layout is not None and layout.zones is not None
        self.extra = len(tables.room) + (max_gpus is not None or within) + rates
        self.paired = self._far_apart()
        if self.paired or cell.home is not None:
            # With the rooms of a home zone there are too many rows to cut stages down by.
            self.extra = len(tables.room) * programme.max_stages
        self.sets = self._kind_sets()
        self.spread = np.zeros(len(self.sets), dtype=np.bool_)
        self.zoned = several_zones(tables)
        if self.zoned:
            self.sets, self.spread = with_zones(
                tables, self.sets, cell.dp, cut_down=not self.paired
            )
        # Sets whose transfer to the next stage crosses zones, where a layout tells.
        self.flagged = np.zeros(len(self.sets), dtype=np.bool_)
        self.need_flag = layout is not None and layout.crosses
        if layout is not None:
            self._laid_out(layout)
        self.ends = ~self.flagged  # sets that may be the last stage
        self.usable = 0 < len(self.sets) <= _MOST_SETS
        if not self.usable:
            return
        self._stages()
        self._edges()
        self._rooms(max_gpus)
        if rates:
            self._rates()

    def _laid_out(self, layout: Layout) -> None:
        """Keep the sets that stages of the layout can have, and say in which zones they lie.

        `zones` is how many at the least, `within` which ones, where that is told apart.
        """
        if not layout.crosses:
            chosen = self.spread if layout.zones != 1 else ~self.spread
            self.sets = [kinds for kinds, one in zip(self.sets, chosen, strict=True) if one]
            self.spread, self.flagged = self.spread[chosen], self.flagged[chosen]
            self.zones = self._fewest_zones(layout.zones or 1)
            self.within: list[tuple[int, ...]] = [()] * len(self.sets)
            return
        zones = self._fewest_zones(1)
        sets: list[tuple[int, ...]] = []
        spread: list[bool] = []
        fewest: list[int] = []
        within: list[tuple[int, ...]] = []
        for kinds, far, count in zip(self.sets, self.spread.tolist(), zones, strict=True):
            told = self._told_apart(kinds, layout) if far else []
            fewest += [max(len(one), count) for one in told]
            within += told
            if not told or not layout.told:
                fewest.append(len(told[0]) + 1 if told else count)
                within.append(())
            sets += [kinds] * (len(within) - len(sets))
            spread += [far] * (len(within) - len(spread))
        # Each twice, the second time with a transfer to the next stage that crosses.
        self.flagged = np.repeat([False, True], len(sets))
        self.sets, self.within, self.zones = sets * 2, within * 2, fewest * 2
        self.spread = np.array(spread * 2, dtype=np.bool_)

    def _told_apart(self, kinds: tuple[int, ...], layout: Layout) -> list[tuple[int, ...]]:
        """Return the fewest zones that a stage of these kinds can lie in, if two can't share them.

        In a layout that tells them, all in which a wide stage can have two replicas. Where stages
        are cut down their GPUs are not known, unless there is but one group.
        """
        tables = self.programme.tables
        if len(kinds) > 1 or not (self.paired or len(tables.room) == 1):
            return []
        group, tp = int(tables.group[kinds[0]]), int(tables.tp[kinds[0]])
        if layout.told:
            return wide_in(self.rings, group, tp, self.cell.dp)
        return self.rings.narrow(group, tp * self.cell.dp)

    def _fewest_zones(self, zones: int) -> list[int]:
        """Return how many zones the stages of each set lie in at the least."""
        tables = self.programme.tables
        largest = max(tables.largest_zone, 1)
        least = [int(tables.tp[list(kinds)].min()) * self.cell.dp for kinds in self.sets]
        return [
            max(-(-gpus // largest), 1 + int(spread), zones)
            for gpus, spread in zip(least, self.spread, strict=True)
        ]

    def _kind_sets(self) -> list[tuple[int, ...]]:
        """Return the sets with at most one kind of each pool, smallest first."""
        tables = self.programme.tables
        finite = np.isfinite(tables.compute_s).any(axis=(1, 2))
        finite &= tables.tp * self.cell.dp <= tables.room[tables.group]
        possible = np.isfinite(tables.compute_s).any(axis=(1, 2))
        groups = [np.flatnonzero((tables.group == g) & possible) for g in range(len(tables.room))]
        most = min(self.extra + 1, self.cell.dp)
        if np.prod([len(own) + 1.0 for own in groups]) > 50_000:
            return []
        sets: list[tuple[int, ...]] = [(int(k),) for k in np.flatnonzero(finite)]
        for size in range(2, most + 1):
            for chosen in combinations(groups, size):
                sets.extend(tuple(int(k) for k in pick) for pick in product(*chosen))
        return sets

    def _stages(self) -> None:
        tables = self.programme.tables
        own = [list(kinds) for kinds in self.sets]
        self.compute_s = np.stack([tables.compute_s[k].max(axis=0) for k in own])  # [J, U, U + 1]
        self.sync_s = np.stack([self._sync(k) for k in own])
        if self.layout is not None:
            self._rings(self.layout)
        else:
            for number in np.flatnonzero(self.spread):
                crossing = crossing_sync_s(tables, self.cell.degrees, own[number])
                self.sync_s[number] = np.maximum(self.sync_s[number], crossing)
        self.pure = np.array([len(k) == 1 for k in own])
        self.reach: dict[int, Ints] = {}
        single = self.programme.reach_single[:, 0]
        self.whole = np.array([bool((single[k] >= self.units).all()) for k in own])
        self.whole &= not self.need_flag  # a single stage sends nothing

    def _rings(self, layout: Layout) -> None:
        """Count the gradient sync of every stage round the zones that it lies in."""
        tables = self.programme.tables
        exactly = layout.zones is not None
        for number in np.flatnonzero(self.spread):
            kinds = list(self.sets[number])
            update = tables.update_s[kinds].min(axis=0)
            most_tp = int(tables.tp[kinds].min())
            groups = between_groups(tables, kinds)
            within = self.within[number]
            if within and layout.told:
                (group,) = self.rings.groups[within[0]]
                others = [z for z in zones_of_group(self.rings, group) if z not in within]
                ring = self.rings.round_wide_s(most_tp, within, tuple(others))
            elif within:
                twice = self.rings.twice_in(within, most_tp)
                ring = self.rings.round_these_s(most_tp, within, twice=twice)
            else:
                twice = layout.twice is True
                ring = self.rings.round_zones_s(
                    most_tp, self.zones[number], exactly=exactly, twice=twice, groups=groups
                )
            self.sync_s[number] = np.maximum(self.sync_s[number], ring + update)

    def _sync(self, kinds: Sequence[int]) -> Floats:
        """Return [U, U + 1]: least sync with update of a stage that these kinds take part in."""
        tables = self.programme.tables
        least = int(tables.tp[list(kinds)].min())
        if len(kinds) == 1:
            alone: Floats = self.cell.sync_s[kinds[0]]
            return alone
        of_all: Floats = self.rings.of_kinds_s(least)[list(kinds)].max(axis=0)
        return of_all

    def _far_apart(self) -> bool:
        """Return whether a transfer can be slower than the best of both its ends need.

        Then cutting stages down to fewer kinds isn't free, and all mixed stages are looked at.
        """
        tables = self.programme.tables
        for seconds in (tables.forward_s, tables.backward_s):
            known = np.where(np.isfinite(seconds), seconds, np.inf)
            best = np.maximum(known.min(axis=1)[:, None], known.min(axis=0)[None])
            if (np.where(np.isfinite(seconds), seconds, 0.0) > best * (1 + 1e-6)).any():
                return True
        return False

    def _edges(self) -> None:
        """Transfers between sets: no less than the fastest partner of each side would need.

        Where stages of a plan are cut down to fewer kinds, pairs may meet that did not meet
        before; each side alone was in the plan, with a partner at least as good as its best. Of
        `paired` sets the partner is one of the other set, or of its groups with a larger tp.
        """
        tables = self.programme.tables
        own = [list(kinds) for kinds in self.sets]
        group, tp = tables.group, tables.tp
        stands_for = (group[:, None] == group[None]) & (tp[:, None] <= tp[None])  # [K, K']

        def partner(seconds: Floats) -> Floats:
            """[K, J, U + 1] from [K, K, U + 1]: to the best partner of a set."""
            by_set = [np.flatnonzero(stands_for[k].any(axis=0)) for k in own]
            return np.stack([seconds[:, kinds].min(axis=1) for kinds in by_set], axis=1)

        def between(seconds: Floats) -> Floats:
            if self.paired:
                after, before = partner(seconds), partner(seconds.transpose(1, 0, 2))
                forth = np.stack([after[k].max(axis=0) for k in own])
                back = np.stack([before[k].max(axis=0) for k in own], axis=1)
                exact: Floats = np.maximum(forth, back)
                return exact
            with_best_after = seconds.min(axis=1)  # [K, U + 1]
            with_best_before = seconds.min(axis=0)
            before = np.stack([with_best_after[k].max(axis=0) for k in own])
            after = np.stack([with_best_before[k].max(axis=0) for k in own])
            both: Floats = np.maximum(before[:, None], after[None, :])
            return both

        usable = np.isfinite(tables.compute_s.min(axis=(1, 2)))
        absent = ~usable[:, None, None] | ~usable[None, :, None]
        self.fore_s = between(np.where(absent, np.inf, tables.forward_s))  # [J, J, U + 1]
        backward = np.where(absent, np.inf, tables.backward_s)
        self.back_s = between(backward)
        if self.zoned:
            crossing = crosses(tables, self.sets, self.spread, self.cell.dp)
            crossing |= self.flagged[:, None]
            for a, b in zip(*np.nonzero(crossing), strict=True):
                forth, back = crossing_send_s(tables, self.sets[a], self.sets[b])
                self.fore_s[a, b] = np.maximum(self.fore_s[a, b], forth)
                self.back_s[a, b] = np.maximum(self.back_s[a, b], back)
        if self.layout is not None:
            self._lay_out_edges(crossing)
        sent = backward.min(axis=0)  # [K, U + 1] over who stands before
        self.least_back_s = np.stack([sent[k].max(axis=0) for k in own])

    def _lay_out_edges(self, crossing: NDArray[np.bool_]) -> None:
        """Count transfers that stay in zones as slow as the slowest of the zones they are in.

        Those that cross are of flagged stages, and of no other.
        """
        sends = ZoneSends.of(self.programme.tables, cut_down=True)
        known: dict[tuple[tuple[int, ...], tuple[int, ...], int], Floats] = {}
        for a, b in zip(*np.nonzero(~self.flagged[:, None] & ~crossing), strict=True):
            count = max(self.zones[a], self.zones[b])
            key = (self.sets[a], self.sets[b], count)
            if key not in known:
                known[key] = sends.least(*key)
            self.fore_s[a, b] = np.maximum(self.fore_s[a, b], known[key][0])
            self.back_s[a, b] = np.maximum(self.back_s[a, b], known[key][1])
            if self.within[a] and self.within[b] and self.within[a] != self.within[b]:
                self.fore_s[a, b] = np.inf  # some pipeline goes from the one to the other
        self.fore_s[crossing & ~self.flagged[:, None]] = np.inf

    def _rooms(self, max_gpus: int | None) -> None:
        """Weights of the pools whose weighted room every plan must respect."""
        tables, dp = self.programme.tables, self.cell.dp
        groups = len(tables.room)
        rows: dict[tuple[int, ...], None] = {}
        for group in range(groups):
            rows[tuple(int(g == group) for g in range(groups))] = None
        for kinds in self.sets:
            if len(kinds) > 1:
                # The face of all shares of this stage, and of those with the same proportions.
                least = np.lcm.reduce(tables.tp[list(kinds)])
                weight = [0] * groups
                for kind in kinds:
                    weight[int(tables.group[kind])] = int(least // tables.tp[kind])
                divisor = gcd(*weight)
                rows[tuple(w // divisor for w in weight)] = None
        weights = np.array(list(rows), dtype=np.int64)  # [Q, R]
        room = weights @ tables.room // dp
        most = [] if max_gpus is None else [max_gpus // dp]
        if self.layout is not None and self.layout.zones is not None:
            most.append(room_of_a_pipeline(tables, self.layout, dp))
        if most:
            weights = np.vstack([weights, np.ones((1, groups), dtype=np.int64)])
            room = np.append(room, min(most))
        self.weights: Ints = weights
        self.room: Ints = room  # [Q] a pipeline
        self.use: Ints = np.stack(
            [
                (weights[:, tables.group[list(kinds)]] * tables.tp[list(kinds)]).min(axis=1)
                for kinds in self.sets
            ]
        )  # [J, Q]
        if self.layout is not None:
            self._rooms_of_zones()

    def _rooms_of_zones(self) -> None:
        """Add a row for each zone that stages in certain zones must take much of."""
        gpus, dp = self.rings.gpus, self.cell.dp
        if self.layout is not None and self.layout.told:
            self._rooms_of_wide_stages()
            return
        for zone, room in enumerate(gpus):
            least = [
                int(self.programme.tables.tp[kinds[0]]) * dp - sum(gpus[z] for z in within) + room
                if zone in within
                else 0
                for kinds, within in zip(self.sets, self.within, strict=True)
            ]
            use = np.maximum(np.array(least, dtype=np.int64), 0)
            if use.any():
                divisor = int(np.gcd.reduce([*use.tolist(), room]))
                self.use = np.hstack([self.use, use[:, None] // divisor])
                self.room = np.append(self.room, room // divisor)

    def _rooms_of_wide_stages(self) -> None:
        """Add rows for sets of zones that stages with known zones must take much of."""
        tables = self.programme.tables
        for group in range(len(tables.room)):
            stages = [
                (int(tables.tp[kinds[0]]), within)
                if within and int(tables.group[kinds[0]]) == group
                else None
                for kinds, within in zip(self.sets, self.within, strict=True)
            ]
            for use, room in rows(self.rings, group, stages, self.cell.dp):
                self.use = np.hstack([self.use, use[:, None]])
                self.room = np.append(self.room, room)

    def _rates(self) -> None:
        """Add a row for the dollars a second of a pipeline, in parts of the dearest GPU's price."""
        tables = self.programme.tables
        each = tables.usd_per_s / tables.tp
        self.rate_part = float(each.max()) / _RATE_PARTS
        # The least GPU of a group counts, so that a group's GPUs cost alike.
        cheapest = [each[tables.group == group].min() for group in tables.group]
        kind = np.floor(np.array(cheapest) / self.rate_part * (1 - 1e-12)).astype(np.int64)
        kind *= tables.tp
        row = np.array([[kind[list(kinds)].min()] for kinds in self.sets])
        self.use = np.hstack([self.use, row])
        everything = int(kind.max()) * (self.programme.max_stages + 1)
        self.room = np.append(self.room, everything)

    def with_rate(self, usd_per_s: float, at_home: int = 0) -> KindSets:
        """Return the kind sets with room for plans of that rate, in dollars a second.

        So many pipelines or more, `at_home`, lie in the home zone.
        """
        found = copy(self)
        rate = int(usd_per_s / self.cell.dp / self.rate_part * (1 + 1e-9))
        found.room = np.append(self.room[:-1], rate)
        if self.cell.home is not None and at_home > 0:
            within = self.weights @ self.cell.home.room // at_home
            found.room[: len(within)] = np.minimum(found.room[: len(within)], within)
        return found

    def memory(self, from_end: int) -> Ints:
        """Return [J, U]: the furthest cut that fits in memory at a place from the end."""
        count = self.cell.num_microbatches
        kept = min(from_end, count) if self.programme.capped else from_end
        if kept not in self.reach:
            by_kind = self.programme.memory_reach(kept, np.array([count]))[0]
            self.reach[kept] = np.stack([by_kind[list(k)].min(axis=0) for k in self.sets])
        return self.reach[kept]
