"""From a sketch over pools to a plan over zones: which slot each replica takes its GPUs from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.sim.columns import Column
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.solve.cell import Cell
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import to_batch
from sailor.solve.pools import Pool, Slot

_MOST_PERMUTED = 6
_MOST_ZONES_PERMUTED = 4

# One run of like pipelines over pools: (pool, tp) by stage, and how many pipelines.
_Run = tuple[tuple[tuple[int, int], ...], int]
_Held = tuple[WorkerKind, int]  # replicas of one stage: their kind, and how many
_Alike = tuple[tuple[WorkerKind, ...], int]  # pipelines: kinds by stage, and how many


def realisations(
    problem: Problem, scored: Scored, pools: Sequence[Pool]
) -> Iterator[tuple[tuple[int, ...], list[Column]]]:
    """Yield (cuts, columns over real kinds): ways to give out the zones of the pools.

    One fills slot after slot, stage by stage (a stage's replicas stay together); the other puts
    whole pipelines into one zone as long as it has room for them. Ways that don't work out (a slot
    has a remainder smaller than a replica) are left out.
    """
    cell = scored.cell
    cuts = tuple(scored.sketch.cuts[0].tolist())
    runs = _runs(cell, scored)
    single = all(len(pool.slots) == 1 for pool in pools)
    seen: set[tuple[object, ...]] = set()
    for order in _zone_orders(problem, pools, runs, cell):
        for by_pipeline in (False,) if single else (False, True):
            columns = _give_out(cell, runs, order, by_pipeline=by_pipeline)
            if columns is None:
                continue
            key = tuple((column.kinds, column.width) for column in columns)
            if key not in seen:
                seen.add(key)
                yield cuts, columns


def _runs(cell: Cell, scored: Scored) -> list[_Run]:
    batch = to_batch(cell, scored.sketch)
    search = cell.search
    return [
        (
            tuple(
                (int(search.pool[kind]), int(search.tables.tp[kind]))
                for kind in batch.kinds[0, :, column]
            ),
            int(batch.width[0, column]),
        )
        for column in range(batch.width.shape[1])
        if batch.width[0, column] > 0
    ]


def _zone_orders(
    problem: Problem, pools: Sequence[Pool], runs: Sequence[_Run], cell: Cell
) -> Iterator[list[list[Slot]]]:
    """Yield orders in which slots are filled: every order of up to four zones, else the ring's."""
    zones = list(dict.fromkeys(slot.zone for pool in pools for slot in pool.slots))
    most = max(len(pool.slots) for pool in pools)
    if most == 1:
        yield [list(pool.slots) for pool in pools]
        return
    least = min(tp for stages, _ in runs for _, tp in stages)
    yield [ring_order(problem, pool, least, cell) for pool in pools]
    if len(zones) <= _MOST_ZONES_PERMUTED + 1 and most <= _MOST_ZONES_PERMUTED:
        several = [zone for zone in zones if any(_has(pool, zone) for pool in pools)]
        for order in permutations(several):
            rank = {zone: number for number, zone in enumerate(order)}
            yield [sorted(pool.slots, key=lambda slot: rank.get(slot.zone, 0)) for pool in pools]
    else:
        yield [sorted(pool.slots, key=lambda slot: -slot.num_gpus) for pool in pools]


def _has(pool: Pool, zone: str) -> bool:
    return len(pool.slots) > 1 and any(slot.zone == zone for slot in pool.slots)


def ring_order(problem: Problem, pool: Pool, tp: int, cell: Cell) -> list[Slot]:
    """Return the slots in the order in which a gradient ring over them is fastest.

    All orders are compared up to six slots; beyond that each slot is followed by its nearest.
    """
    kinds = [slot.kind(tp) or slot.kinds[0] for slot in pool.slots]
    if len(kinds) == 1:
        return list(pool.slots)
    distinct = tuple(dict.fromkeys(kinds))
    microbatch = cell.search.tables.microbatch
    tables = cost_model(problem.cost_model).tables(problem, distinct, microbatch)
    index = np.array([distinct.index(kind) for kind in kinds])
    hop = tables.sync.seconds(
        np.asarray(0),
        np.asarray(tables.num_units),
        np.asarray(tp),
        max(cell.dp, 2),
        index[:, None],
        index[None, :],
    )
    best: tuple[float, float, tuple[int, ...]] | None = None
    for order in _orders(hop):
        steps = [float(hop[a, b]) for a, b in pairwise(order)]
        value = (max(steps), sum(steps), order)
        if best is None or value < best:
            best = value
    return [pool.slots[number] for number in best[2]] if best else list(pool.slots)


def _orders(hop: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
    count = len(hop)
    if count <= _MOST_PERMUTED:
        yield from permutations(range(count))
        return
    for first in range(count):
        order = [first]
        while len(order) < count:
            left = [number for number in range(count) if number not in order]
            order.append(min(left, key=lambda number: float(hop[order[-1], number])))
        yield tuple(order)


class _Room:
    """GPUs that are left in each slot of each pool; slots are taken in order."""

    def __init__(self, slots: Sequence[Sequence[Slot]]) -> None:
        self.slots = [list(own) for own in slots]
        self.left = [[slot.num_gpus for slot in own] for own in self.slots]
        self.kinds = [[{kind.tp: kind for kind in slot.kinds} for slot in own] for own in slots]

    def take(self, pool: int, tp: int, count: int, zone: str | None = None) -> list[_Held]:
        """Take so many replicas from the slots (of a zone) in order; fewer where there are none."""
        taken: list[_Held] = []
        for number, slot in enumerate(self.slots[pool]):
            if zone is not None and slot.zone != zone:
                continue
            kind = self.kinds[pool][number].get(tp)
            some = 0 if kind is None else min(count, self.left[pool][number] // tp)
            if kind is None or some == 0:
                continue
            self.left[pool][number] -= some * tp
            taken.append((kind, some))
            count -= some
            if count == 0:
                break
        return taken

    def whole(self, stages: Sequence[tuple[int, int]], zone: str) -> int:
        """Return how many whole pipelines a zone has room for."""
        need: dict[int, int] = {}
        for pool, tp in stages:
            need[pool] = need.get(pool, 0) + tp
        most: int | None = None
        for pool, gpus in need.items():
            here = [
                self.left[pool][number] // gpus
                for number, slot in enumerate(self.slots[pool])
                if slot.zone == zone
            ]
            most = min(sum(here), most if most is not None else sum(here))
        return most or 0

    def at_once(self, zone: str) -> bool:
        """Return whether pipelines can be given out together: each pool has one slot there."""
        return all(sum(slot.zone == zone for slot in own) <= 1 for own in self.slots)


def _give_out(
    cell: Cell, runs: Sequence[_Run], slots: Sequence[Sequence[Slot]], *, by_pipeline: bool
) -> list[Column] | None:
    room = _Room(slots)
    pipelines: list[_Alike] = []
    for stages, width in runs:
        left = width
        if by_pipeline:
            for zone in dict.fromkeys(slot.zone for own in room.slots for slot in own):
                whole = min(left, room.whole(stages, zone))
                step = whole if room.at_once(zone) else 1
                for _ in range(whole // step if whole else 0):
                    joined = _joined([room.take(pool, tp, step, zone) for pool, tp in stages], step)
                    if joined is None:
                        return None
                    pipelines.extend(joined)
                left -= whole
        joined = _joined([room.take(pool, tp, left) for pool, tp in stages], left)
        if joined is None:
            return None
        pipelines.extend(joined)
    return columns_over(cell, pipelines)


def _joined(held: Sequence[Sequence[_Held]], width: int) -> list[_Alike] | None:
    """Return runs of like pipelines from the runs of replicas of each stage; None: too few."""
    if any(sum(count for _, count in own) < width for own in held):
        return None
    found: list[_Alike] = []
    place, used, done = [0] * len(held), [0] * len(held), 0
    while done < width:
        step = min(own[at][1] - gone for own, at, gone in zip(held, place, used, strict=True))
        found.append((tuple(own[at][0] for own, at in zip(held, place, strict=True)), step))
        done += step
        for stage, own in enumerate(held):
            used[stage] += step
            if used[stage] == own[place[stage]][1]:
                place[stage], used[stage] = place[stage] + 1, 0
    return found


def columns_over(cell: Cell, pipelines: Sequence[_Alike]) -> list[Column]:
    """Join neighbours that are alike; the first pipelines take the larger microbatch count."""
    low, extra = divmod(cell.total, cell.dp)
    microbatch = cell.search.tables.microbatch
    columns: list[Column] = []
    for kinds, width in pipelines:
        more = min(width, extra)
        extra -= more
        for some, count in ((more, low + 1), (width - more, low)):
            last = columns[-1] if columns else None
            if some == 0:
                continue
            if last is not None and (last.kinds, last.num_microbatches) == (kinds, count):
                columns[-1] = Column(kinds, last.width + some, microbatch, count)
            else:
                columns.append(Column(kinds, some, microbatch, count))
    return columns
