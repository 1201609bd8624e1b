"""From a sketch over pools to a plan over zones: which slot each replica takes its GPUs from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sailor.sim.columns import Column
from sailor.sim.kinds import WorkerKind
from sailor.solve.cell import Cell
from sailor.solve.pools import Pool, Slot
from sailor.solve.refine import Scored
from sailor.solve.sketch import to_batch

# One run of like pipelines over pools: (pool, tp) by stage, and how many pipelines.
_Run = tuple[tuple[tuple[int, int], ...], int]


def realisations(
    scored: Scored, pools: Sequence[Pool]
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
    for by_pipeline in (False,) if single else (False, True):
        for order in (0,) if single else (0, 1):
            columns = _give_out(cell, runs, pools, by_pipeline=by_pipeline, order=order)
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


class _Room:
    """GPUs that are left in each slot of each pool."""

    def __init__(self, pools: Sequence[Pool], order: int) -> None:
        self.slots: list[list[Slot]] = [
            sorted(
                pool.slots,
                key=(lambda s: (-s.num_gpus, s.zone)) if order == 0 else (lambda s: s.zone),
            )
            for pool in pools
        ]
        self.left = [[slot.num_gpus for slot in slots] for slots in self.slots]

    def take(self, pool: int, tp: int, zone: str | None = None) -> WorkerKind | None:
        """Take one replica from the first slot (of a zone) that has room."""
        for number, slot in enumerate(self.slots[pool]):
            if zone is not None and slot.zone != zone:
                continue
            kind = slot.kind(tp)
            if kind is not None and self.left[pool][number] >= tp:
                self.left[pool][number] -= tp
                return kind
        return None

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


def _give_out(
    cell: Cell, runs: Sequence[_Run], pools: Sequence[Pool], *, by_pipeline: bool, order: int
) -> list[Column] | None:
    room = _Room(pools, order)
    pipelines: list[tuple[WorkerKind, ...]] = []
    for stages, width in runs:
        left = width
        if by_pipeline:
            zones = dict.fromkeys(slot.zone for slots in room.slots for slot in slots)
            for zone in zones:
                for _ in range(min(left, room.whole(stages, zone))):
                    kinds = [room.take(pool, tp, zone) for pool, tp in stages]
                    complete = tuple(kind for kind in kinds if kind is not None)
                    if len(complete) < len(stages):
                        return None
                    pipelines.append(complete)
                    left -= 1
        rest = [[room.take(pool, tp) for _ in range(left)] for pool, tp in stages]
        for pipeline in zip(*rest, strict=True):
            complete = tuple(kind for kind in pipeline if kind is not None)
            if len(complete) < len(stages):
                return None
            pipelines.append(complete)
    return _columns(cell, pipelines)


def _columns(cell: Cell, pipelines: Sequence[tuple[WorkerKind, ...]]) -> list[Column]:
    """Join neighbours that are alike; the first pipelines take the larger microbatch count."""
    low, extra = divmod(cell.total, cell.dp)
    microbatch = cell.search.tables.microbatch
    columns: list[Column] = []
    for number, kinds in enumerate(pipelines):
        count = low + 1 if number < extra else low
        last = columns[-1] if columns else None
        if last is not None and (last.kinds, last.num_microbatches) == (kinds, count):
            columns[-1] = Column(kinds, last.width + 1, microbatch, count)
        else:
            columns.append(Column(kinds, 1, microbatch, count))
    return columns
