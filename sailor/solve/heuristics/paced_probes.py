"""Probes by pace: for a stage time S, as many units on every stage as its kind passes within S.

In every pool the degree is taken that passes most units in all, with a ceiling on the gradient
sync too. Stages that this leaves over are those of the slowest pool. So unlike pools are probed
together, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor.solve.cell import SearchTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PACES = np.linspace(1.0, 1.8, 13)  # in parts of the pace of all GPUs together without transfers
_SYNCS = (np.inf, 0.2, 0.1, 0.05)  # ceilings, in parts of all microbatches at that pace
_PLACES = (2, 5)  # from the end: what stages there keep must fit, in each pool one or the other
_MOST_TOLD_APART = 3  # pools
_TIE = 1e-6  # units a stage


def paced(
    search: SearchTables, degrees: Ints, counts: Ints, max_stages: int
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield, for every number of stages, cells [B], units [B, P] and kinds [B, P].

    Cell i has `degrees[i]` pipelines of `counts[i]` microbatches. Units are what a stage could
    pass, which is the model's number or a little more.
    """
    ceilings = _Ceilings(search, degrees, counts)
    cell, kind, units, stages = ceilings.by_pool()
    model = search.tables.num_units
    # The pools from the fastest to the slowest; surplus stages are dropped from the end.
    block = search.tables.compute_prefix_s[:, -1]
    order = np.argsort(np.where(stages > 0, block[kind], np.inf), axis=1, kind="stable")
    kind, units, stages = (np.take_along_axis(own, order, 1) for own in (kind, units, stages))
    surplus = (units * stages).sum(axis=1) - model
    cell, kind, units, stages, surplus = (
        own[surplus >= 0] for own in (cell, kind, units, stages, surplus)
    )
    for place in range(kind.shape[1] - 1, -1, -1):
        gone = np.minimum(surplus // np.maximum(units[:, place], 1), stages[:, place])
        stages[:, place] -= gone
        surplus = surplus - gone * units[:, place]
    depth = stages.sum(axis=1)
    rows = np.column_stack((cell, depth, kind, units, stages))
    rows = np.unique(rows[(depth >= 1) & (depth <= max_stages)], axis=0)
    pools = kind.shape[1]
    for number in np.unique(rows[:, 1]):
        some = rows[rows[:, 1] == number]
        own_kind, own_units, own_stages = (
            some[:, 2 + part * pools : 2 + (part + 1) * pools] for part in range(3)
        )
        for way in (slice(None), slice(None, None, -1)):
            ends = np.cumsum(own_stages[:, way], axis=1)
            which = (np.arange(number)[None, :, None] >= ends[:, None, :]).sum(axis=2)
            yield (
                some[:, 0],
                np.take_along_axis(own_units[:, way], which, 1),
                np.take_along_axis(own_kind[:, way], which, 1),
            )


class _Ceilings:
    """How many units a stage of each kind passes within ceilings on its time and sync."""

    def __init__(self, search: SearchTables, degrees: Ints, counts: Ints) -> None:
        self.search, self.degrees, self.counts = search, degrees, counts
        tables = search.tables
        units = tables.num_units
        kinds = np.arange(search.num_kinds)
        block = min(1, units - 1)
        stop = np.arange(block + 1, units + 1)
        low = int(degrees.min())
        seconds = tables.compute_s(kinds[:, None], np.asarray(block), stop[None], low)
        size = int(tables.forward_size[block])
        transfer = 2.0 * tables.send_s[size, kinds, kinds]
        if tables.blocked_s is not None:
            transfer = transfer + 2.0 * tables.blocked_s[size, kinds, kinds]
        need = tables.memory.bound_bytes(
            kinds[:, None], np.asarray(block), stop[None],
            tables.memory.in_flight(np.array(_PLACES)[:, None, None], int(counts.max())), 2, low,
        )  # fmt: skip
        fits = (need <= tables.memory.capacity_bytes[:, None]) & tables.usable[:, None]
        self.seconds = np.where(fits, seconds + transfer[:, None], np.inf)  # [F, K, M]
        self.sync_s = tables.sync.seconds(
            np.asarray(block), stop[None, None], tables.tp[None, :, None],
            degrees[:, None, None], kinds[None, :, None], kinds[None, :, None],
            degrees[:, None, None],
        )  # fmt: skip  # [C, K, M]

    def by_pool(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return [R] cells and [R, pools] kinds, units a stage and stages."""
        search = self.search
        tables = search.tables
        model_s = np.maximum(tables.compute_prefix_s[:, -1], 1e-12)
        rate = np.where(tables.usable, search.num_replicas / model_s, 0.0)
        pools = len(search.room)
        together = sum(float(rate[search.pool == pool].max(initial=0.0)) for pool in range(pools))
        alone = self.degrees / max(together, 1e-12)  # [C] seconds of the slowest stage
        pace = alone[:, None] * _PACES  # [C, S]
        sync = (alone * self.counts)[:, None] * np.array(_SYNCS)  # [C, G]
        by_time = (self.seconds <= pace[:, :, None, None, None]).sum(axis=4)  # [C, S, F, K]
        by_sync = (self.sync_s[:, None] <= sync[:, :, None, None]).sum(axis=3)  # [C, G, K]
        # Which pool's stages lie in front is open, too.
        ways = product(range(len(_PLACES)), repeat=min(pools, _MOST_TOLD_APART))
        place = np.array([[way[min(pool, len(way) - 1)] for pool in search.pool] for way in ways])
        by_time = np.take_along_axis(by_time, place[None, None], 2)  # [C, S, F, K]
        units = np.minimum(by_time[:, :, None], by_sync[:, None, :, None])  # [C, S, G, F, K]
        cell = np.repeat(np.arange(len(units)), units[0, ..., 0].size)
        units = units.reshape(len(cell), -1)
        # Of degrees that pass as much once the one with fewer stages, once the one with more.
        units, cell = np.tile(units, (2, 1)), np.tile(cell, 2)
        stages = search.num_replicas[None, :] // self.degrees[cell][:, None]
        prefer = np.repeat((-_TIE, _TIE), len(cell) // 2)[:, None]
        passed = np.where(units > 0, units * stages + prefer * stages, -1.0)
        rows = np.arange(len(units))
        chosen = []
        for pool in range(pools):
            own = np.flatnonzero(search.pool == pool)
            chosen.append(
                own[passed[:, own].argmax(axis=1)] if len(own) else np.zeros(len(rows), np.int64)
            )
        kind = np.stack(chosen, axis=1)
        there = np.array([bool((search.pool == pool).any()) for pool in range(pools)])
        own_units = units[rows[:, None], kind]
        own_stages = np.where(there & (own_units > 0), stages[rows[:, None], kind], 0)
        return cell, kind, own_units, own_stages
