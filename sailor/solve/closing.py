"""Cells decided by the positional programme, box by box, until no better pipeline is left.

The Lagrangian bound leaves ranges of S and G in which a better plan can lie, and prices that say
what is not worth a look in them. Boxes are joined while the ranges stay narrow, the programme finds
the best pipeline of each, and a box with too many partial pipelines is split again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sailor.solve.cell import Cell
from sailor.solve.certificate import Certificate, Part
from sailor.solve.crew import Workers
from sailor.solve.dynamic import Search
from sailor.solve.grid import cells
from sailor.solve.lagrange import BoundCell, Box, BoxSearch, CellBound
from sailor.solve.lagrange_ahead import ahead_by_place
from sailor.solve.lagrange_rows import Rows
from sailor.solve.positional import Found, Limits, PositionalProgramme, TooManyLabelsError
from sailor.solve.positional_sets import KindSets
from sailor.solve.refine import Scored
from sailor.solve.search import Budget
from sailor.solve.sketch import Sketches, to_batch

Ints = NDArray[np.int64]

_STEPS = (20, 4)  # price steps of a box before the programme runs in it
_WIDTH, _NARROWEST = 0.04, 0.002  # of the time: what S and G of a box leave open
_LABELS, _MOST_LABELS = 8_000, 300_000  # of a layer, in the widest boxes and in any
# Labels are looked at with the prices of the box, and with fewer and more for all GPUs.
_WEIGHTS = np.array([1.0, 0.6, 1.5, 3.0, 30.0])
_LABELS_BY_SETS = 10_000_000  # labels times kind sets: each pair of them takes some memory
_MOST_FOUND = 6  # pipelines of a cell that become sketches
_MOST_SHARES = 64


@dataclass(frozen=True)
class Closed:
    """What is known of a cell: a bound, the pipelines found, and the boxes that are left."""

    bound_s: float
    found: tuple[Found, ...]
    boxes: tuple[Box, ...]
    done: bool


@dataclass(frozen=True)
class Decide:
    """The task of deciding one cell: its part, its number there, and what is known of it."""

    place: int
    number: int
    cell: BoundCell
    found: CellBound
    gap: float

    def run(self, certificate: Certificate, budget: Budget) -> Closed | None:
        """Return what the positional programme makes of the cell."""
        part = certificate.parts[self.place]
        part.cells[self.number], part.found[self.number] = self.cell, self.found
        return decide_cell(part, self.number, certificate, self.gap, budget)


def decide_cells(
    certificate: Certificate, search: Search, gap: float, budget: Budget, workers: Workers
) -> Iterator[list[Scored]]:
    """Decide the open cells, lowest bound first; yield the sketches of the pipelines found.

    The bounds go into the certificate, whose cutoff may fall between two yields. Only for time
    as the objective and coupled cost models.
    """
    if certificate.money.cost or certificate.money.max_usd is not None:
        return
    grid = cells(certificate.problem, search.pools, frozenset())
    tried: set[tuple[int, int]] = set()

    def pick() -> Decide | None:
        wanted = certificate.cutoff * (1 - gap) * (1 - 1e-9)
        work = [
            (part.found[number].bound, place, number)
            for place, part in enumerate(certificate.parts)
            if part.tables.coupled
            for number in part.open(wanted)
            if number not in part.decided and (place, number) not in tried
        ]
        if not work:
            return None
        _, place, number = min(work)
        tried.add((place, number))
        part = certificate.parts[place]
        return Decide(place, number, part.cells[number], part.found[number], gap)

    for task, closed in workers.run(pick, budget):
        if closed is None or not isinstance(task, Decide):
            continue
        part, number = certificate.parts[task.place], task.number
        if closed.done:
            part.decided.add(number)
        old = part.found[number]
        part.found[number] = CellBound(max(old.bound, closed.bound_s), closed.boxes)
        yield [
            scored
            for found in closed.found
            if (scored := sketch_of(part, number, found, grid, search)) is not None
        ]


def decide_cell(
    part: Part, number: int, certificate: Certificate, gap: float, budget: Budget
) -> Closed | None:
    """Look for pipelines below the cutoff less the gap; None: too many kinds for the programme."""
    cell = part.cells[number]
    money, cutoff = certificate.money, certificate.cutoff
    space = KindSets(part.programme, cell, money.max_gpus)
    if not space.usable:
        return None
    search = BoxSearch(part.programme, [cell], money, cutoff, 0.0)
    run = _CellRun(search, PositionalProgramme(space), budget)
    return run.run(part.found[number].boxes, cutoff * (1 - gap))


class _CellRun:
    """The search over the boxes of one cell."""

    def __init__(self, search: BoxSearch, programme: PositionalProgramme, budget: Budget) -> None:
        self.search, self.programme, self.budget = search, programme, budget
        self.num_sets = len(programme.space.sets)
        self.further = max(int(search.further[0]), 1)

    def run(self, boxes: Sequence[Box], wanted_s: float) -> Closed:
        first = [replace(box, cell=0) for box in boxes]
        if not first:
            whole = self.search.first_box(0)
            first = [] if whole is None else [whole]
        best_s = wanted_s
        found: list[Found] = []
        heap: list[tuple[float, int, float, Box]] = []
        made = 0

        def push(some: Sequence[Box], width: float) -> None:
            nonlocal made
            merged = self._merged(some, width * wanted_s)
            for box in self.search.evaluate(merged, _STEPS) if merged else ():
                if box.bound < best_s:
                    made += 1
                    heappush(heap, (box.bound, made, width, box))

        push(first, _WIDTH)
        while heap and heap[0][0] < best_s and not self.budget.over():
            bound, number, width, box = heappop(heap)
            try:
                most = min(_most_labels(width), _LABELS_BY_SETS // self.num_sets)
                here = self._solve(box, best_s, most)
            except TooManyLabelsError:
                if width < _NARROWEST or self.budget.over():
                    heappush(heap, (bound, number, width, box))
                    break
                push(self._parts(box, first), width / 2)
                continue
            if here is not None:
                found.append(here)
                best_s = min(best_s, here.seconds)
        left = tuple(box for bound, _, _, box in heap if bound < best_s)
        bound_s = min([best_s, *(box.bound for box in left)])
        return Closed(bound_s, tuple(found[-_MOST_FOUND:]), left, done=not left)

    def _merged(self, boxes: Sequence[Box], width_s: float) -> list[Box]:
        """Return fewer boxes that cover the given ones, none wider than `width_s` if it can be."""
        if not boxes:
            return []
        low_s, high_s = min(b.low_s for b in boxes), max(b.high_s for b in boxes)
        low_g, high_g = min(b.low_g for b in boxes), max(b.high_g for b in boxes)
        by_s, by_g = self.further * (high_s - low_s), high_g - low_g
        if len(boxes) == 1 or by_s + by_g <= width_s:
            lowest = min(boxes, key=lambda box: box.bound)
            return [replace(lowest, low_s=low_s, high_s=high_s, low_g=low_g, high_g=high_g)]
        if by_s >= by_g:
            ordered = sorted(boxes, key=lambda box: box.low_s + box.high_s)
        else:
            ordered = sorted(boxes, key=lambda box: box.low_g + box.high_g)
        half = len(ordered) // 2
        return self._merged(ordered[:half], width_s) + self._merged(ordered[half:], width_s)

    def _parts(self, box: Box, first: Sequence[Box]) -> list[Box]:
        """Return boxes that cover what a box has in common with the first ones, and are smaller."""
        inside = [_common(one, box) for one in first if _meet(one, box)]
        if len(inside) > 1:
            return inside
        return self.search.split(box)

    def _solve(self, box: Box, best_s: float, most: int) -> Found | None:
        search, chains = self.search, self.search.programme
        weights = _WEIGHTS[:, None] * box.prices
        rows = Rows(
            ceiling_s=np.full(len(weights), box.high_s),
            reach=np.repeat(
                search.sync_reach(np.array([0]), np.array([box.high_g])), len(weights), axis=0
            ),
            prices=np.stack([search.stage_prices(0, prices) for prices in weights]),
            num_microbatches=np.repeat(search.count[:1], len(weights)),
        )
        ahead = ahead_by_place(chains, rows, chains.ceilings(rows))
        limits = Limits(
            low_s=box.low_s,
            high_s=box.high_s,
            low_g=box.low_g,
            high_g=box.high_g,
            cutoff_s=best_s,
            prices=search.stage_prices(0, box.prices),
            paid=float(search.room_prices(box.prices).sum()),
            weights=_WEIGHTS,
        )
        return self.programme.run(limits, ahead, most, self.budget.over)


def _most_labels(width: float) -> int:
    """Return how many labels of a layer a box of that width is worth."""
    return int(min(_MOST_LABELS, _LABELS * _WIDTH / width))


def _meet(one: Box, other: Box) -> bool:
    """Return whether two boxes have anything in common."""
    in_s = one.low_s <= other.high_s and other.low_s <= one.high_s
    return in_s and one.low_g <= other.high_g and other.low_g <= one.high_g


def _common(one: Box, other: Box) -> Box:
    """Return what two boxes have in common."""
    return replace(
        one,
        low_s=max(one.low_s, other.low_s), high_s=min(one.high_s, other.high_s),
        low_g=max(one.low_g, other.low_g), high_g=min(one.high_g, other.high_g),
        bound=max(one.bound, other.bound),
    )  # fmt: skip


def sketch_of(
    part: Part, number: int, found: Found, grid: Sequence[Cell], search: Search
) -> Scored | None:
    """Return a pipeline as a sketch with whole replicas, scored exactly."""
    cell = next(
        (
            one
            for one in grid
            if one.dp == part.cells[number].dp
            and one.search.tables.microbatch == part.tables.microbatch
        ),
        None,
    )
    if cell is None:
        return None
    problem = search.problem
    of = {
        (kind.gpu, problem.zone(kind.zone).region, kind.market, kind.tp): place
        for place, kind in enumerate(cell.search.tables.kinds)
    }
    lead = [part.tables.real.kinds[int(own[0])] for own in part.tables.members]
    pairs: list[tuple[int, int]] = []
    for stage in found.stages:
        own = [
            of.get((k.gpu, problem.zone(k.zone).region, k.market, k.tp))
            for k in (lead[kind] for kind in stage.kinds[:2])
        ]
        known = [kind for kind in own if kind is not None]
        if len(known) < len(own):
            return None
        pairs.append((known[0], known[-1]))
    cuts = [stage.start for stage in found.stages] + [found.stages[-1].stop]
    first, second = (np.array([side], dtype=np.int64) for side in zip(*pairs, strict=True))
    shares = _shares(cell, first[0], second[0])
    count = len(shares)
    sketches = Sketches(
        np.repeat(np.array([cuts], dtype=np.int64), count, axis=0),
        np.repeat(first, count, axis=0),
        np.repeat(second, count, axis=0),
        shares,
    )
    scores = search.scorer(cell.search, to_batch(cell, sketches))
    best = int(scores.argmin())
    return Scored(float(scores[best]), cell, sketches.take([best]))


def _shares(cell: Cell, first: Ints, second: Ints) -> Ints:
    """Return [B, P]: numbers of replicas of the second kinds, for the mixed stages."""
    mixed = np.flatnonzero(first != second)
    values = np.unique(np.linspace(1, cell.dp - 1, _MOST_SHARES).astype(np.int64))
    if not len(mixed) or not len(values):
        return np.zeros((1, len(first)), dtype=np.int64)
    if len(mixed) == 1:
        values = np.arange(1, cell.dp)
    grids = np.meshgrid(*([values] * min(len(mixed), 2)))
    rows = np.stack([grid.ravel() for grid in grids], axis=1)
    shares = np.zeros((len(rows), len(first)), dtype=np.int64)
    shares[:, mixed[:2]] = rows
    for stage in mixed[2:]:
        shares[:, stage] = max(1, cell.dp // 2)
    return shares
