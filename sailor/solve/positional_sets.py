"""Stages of a cell as the positional programme sees them: kind sets, their times and their GPUs.

A stage of several kinds may use a whole replica's worth of any of them in whichever shares suit.
The shares are fractions here: a sum of stages fits a room exactly if, for all weights of the
pools, its least weighted use is within the weighted room, and finitely many weights decide that.
As a linear programme with one row a pool it has a solution in which the stages have together at
most as many kinds beyond one each as there are pools: no pipeline needs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from sailor.solve.lagrange import BoundCell
from sailor.solve.lagrange_dp import ChainProgramme
from sailor.solve.positional_zones import (
    crosses,
    crossing_sends_s,
    crossing_sync_s,
    several_zones,
    with_zones,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_SETS, _MOST_MIXES = 90, 20_000


class KindSets:
    """The kind sets of one cell; `usable` is False where there are too many."""

    def __init__(self, programme: ChainProgramme, cell: BoundCell, max_gpus: int | None) -> None:
        self.programme, self.cell = programme, cell
        tables = programme.tables
        self.units = tables.num_units
        self.extra = len(tables.room) + (max_gpus is not None)
        self.paired = self._far_apart()
        if self.paired:
            self.extra = len(tables.room) * programme.max_stages
        self.sets = self._kind_sets()
        self.spread = np.zeros(len(self.sets), dtype=np.bool_)
        self.zoned = several_zones(tables)
        if self.zoned:
            self.sets, self.spread = with_zones(
                tables, self.sets, cell.dp, cut_down=not self.paired
            )
        self.usable = 0 < len(self.sets) <= _MOST_SETS
        if not self.usable:
            return
        self._stages()
        self._edges()
        self._rooms(max_gpus)
        if self.paired:
            self.mix_next = np.zeros((1, len(self.sets)), dtype=np.int64)
            return
        found = _mixes(tuple(len(kinds) for kinds in self.sets), self.extra)
        self.usable = found is not None
        if found is not None:
            self.mix_next = found

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
        self.sync_by_tp: dict[int, Floats] = {}
        self.compute_s = np.stack([tables.compute_s[k].max(axis=0) for k in own])  # [J, U, U + 1]
        self.sync_s = np.stack([self._sync(k) for k in own])
        for number in np.flatnonzero(self.spread):
            crossing = crossing_sync_s(tables, self.cell.degrees, own[number])
            self.sync_s[number] = np.maximum(self.sync_s[number], crossing)
        self.pure = np.array([len(k) == 1 for k in own])
        self.reach: dict[int, Ints] = {}
        single = tables.longest(1, single=True)[:, 0]
        self.whole = np.array([bool((single[k] >= self.units).all()) for k in own])

    def _sync(self, kinds: Sequence[int]) -> Floats:
        """Return [U, U + 1]: least sync with update of a stage that these kinds take part in."""
        tables = self.programme.tables
        least = int(tables.tp[list(kinds)].min())
        if len(kinds) == 1:
            alone: Floats = self.cell.sync_s[kinds[0]]
            return alone
        if least not in self.sync_by_tp:
            self.sync_by_tp[least] = tables.sync_s(self.cell.degrees, least) + tables.update_s
        of_all: Floats = self.sync_by_tp[least][list(kinds)].max(axis=0)
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
            for seconds, apart in zip(
                (self.fore_s, self.back_s), crossing_sends_s(tables), strict=True
            ):
                for a, b in zip(*np.nonzero(crossing), strict=True):
                    least = apart[np.ix_(own[a], own[b])].min(axis=(0, 1))
                    seconds[a, b] = np.maximum(seconds[a, b], least)
        sent = backward.min(axis=0)  # [K, U + 1] over who stands before
        self.least_back_s = np.stack([sent[k].max(axis=0) for k in own])

    def _rooms(self, max_gpus: int | None) -> None:
        """Weights of the pools whose weighted room every plan must respect."""
        tables, dp = self.programme.tables, self.cell.dp
        groups = len(tables.room)
        rows: dict[tuple[int, ...], None] = {}
        for group in range(groups):
            rows[tuple(int(g == group) for g in range(groups))] = None
        axes = len(rows)
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
        room = weights @ tables.room
        if max_gpus is not None:
            weights = np.vstack([weights, np.ones((1, groups), dtype=np.int64)])
            room = np.append(room, max_gpus)
        self.room: Ints = room // dp  # [Q] a pipeline
        self.use: Ints = np.stack(
            [
                (weights[:, tables.group[list(kinds)]] * tables.tp[list(kinds)]).min(axis=1)
                for kinds in self.sets
            ]
        )  # [J, Q]
        base = np.concatenate(([1], np.cumprod(self.room[:axes] + 1)[:-1]))
        self.num_codes = int(np.prod(self.room[:axes] + 1))
        self.code = np.where(self.pure, self.use[:, :axes] @ base, 0)

    def memory(self, from_end: int) -> Ints:
        """Return [J, U]: the furthest cut that fits in memory at a place from the end."""
        count = self.cell.num_microbatches
        kept = min(from_end, count) if self.programme.capped else from_end
        if kept not in self.reach:
            by_kind = self.programme.memory_reach(kept, np.array([count]))[0]
            self.reach[kept] = np.stack([by_kind[list(k)].min(axis=0) for k in self.sets])
        return self.reach[kept]


@lru_cache(maxsize=8)
def _mixes(sizes: tuple[int, ...], extra: int) -> Ints | None:
    """Number the multisets of mixed stages, and say which one more stage of a set leads to.

    `sizes` are the numbers of kinds of the sets. Returns [mixes, J] (-1: too many kinds in all),
    or None where there are too many multisets.
    """
    mixed = [number for number, size in enumerate(sizes) if size > 1]
    index: dict[tuple[int, ...], int] = {(): 0}
    rows: list[list[int]] = []
    frontier: list[tuple[int, ...]] = [()]
    while frontier:
        following: list[tuple[int, ...]] = []
        for mix in frontier:
            row = [index[mix]] * len(sizes)
            taken = sum(sizes[number] - 1 for number in mix)
            for number in mixed:
                if taken + sizes[number] - 1 > extra:
                    row[number] = -1
                    continue
                more = tuple(sorted((*mix, number)))
                if more not in index:
                    index[more] = len(index)
                    following.append(more)
                row[number] = index[more]
            rows.append(row)
        frontier = following
        if len(index) > _MOST_MIXES:
            return None
    return np.array(rows, dtype=np.int64)
