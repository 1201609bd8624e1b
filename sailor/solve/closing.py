"""Cells decided by the positional programme, box by box, until no better pipeline is left.

The Lagrangian bound leaves ranges of S and G in which a better plan can lie, and prices that say
what is not worth a look in them. Boxes are joined while the ranges stay narrow, the programme finds
the best pipeline of each, and a box with too many partial pipelines is split again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoundCell, Box, BoxSearch, CellBound, Money
from sailor.solve.bounds.layouts import CellRings, closer, layouts
from sailor.solve.certificate import Certificate, Part
from sailor.solve.crew import Workers
from sailor.solve.dynamic import Search
from sailor.solve.found_sketch import sketch_of
from sailor.solve.grid import cells
from sailor.solve.heuristics.refine import Scored
from sailor.solve.positional.box_values import BoxValues
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.prices import PriceVectors
from sailor.solve.positional.programme import Found, Limits, PositionalProgramme, TooManyLabelsError
from sailor.solve.positional.set_bound import Ranges, SetProgramme
from sailor.solve.search import PROVEN_GAP, Budget

Floats = NDArray[np.float64]

_STEPS = (20, 4)  # price steps of a cell's only box, where nothing else is known of it
_FIRST_STEPS, _MORE_STEPS = 60, 25  # price steps over kind sets, of a first box and of its parts
_TRIED_STEPS = 10  # of two prices to begin with
_WIDTH, _NARROWEST = 0.2, 0.002  # of the time: what S and G of a box leave open
_RATE_STEP = 1e-3  # of a rate: what a box is looked at again for
_LABELS, _MOST_LABELS = 8_000, 300_000  # of a layer, in the widest boxes and in any
_LABELS_BY_SETS = 10_000_000  # labels times kind sets: each pair of them takes some memory
# CPU seconds of a cell, until the others have had as many: most are decided in less than the first.
_CELL_S = (1.0, 4.0, 16.0, 64.0)
_MOST_FOUND = 6  # pipelines of a cell that become sketches


@dataclass(frozen=True)
class Closed:
    """What is known of a cell: a bound, the pipelines found, and the boxes that are left.

    The bound is in seconds or dollars, as the objective is. `partly`: the boxes don't stand for all
    plans of interest, as a pipeline was found that made others uninteresting.
    """

    bound: float
    found: tuple[Found, ...]
    boxes: tuple[Box, ...]
    done: bool
    partly: bool


@dataclass(frozen=True)
class Decide:
    """The task of deciding one cell: its part, its number there, and what is known of it."""

    place: int
    number: int
    cell: BoundCell
    found: CellBound
    gap: float
    most_s: float  # CPU seconds, after which it is put off

    def run(self, certificate: Certificate, budget: Budget) -> Closed | None:
        """Return what the positional programme makes of the cell."""
        part = certificate.parts[self.place]
        part.cells[self.number], part.found[self.number] = self.cell, self.found
        within = budget.within(self.most_s)
        return decide_cell(part, self.number, certificate, self.gap, within)


def decide_cells(
    certificate: Certificate, search: Search, gap: float, budget: Budget, workers: Workers
) -> Iterator[list[Scored]]:
    """Decide the open cells, lowest bound first; yield the sketches of the pipelines found.

    The bounds go into the certificate, whose cutoff may fall between two yields. Only for coupled
    cost models.
    """
    began: dict[tuple[int, int], tuple[Box, ...]] = {}  # with which boxes, until they are done
    try:
        yield from _decided(certificate, search, gap, budget, workers, began)
    finally:
        # What is left of the others is all that is better by the gap, and not all that is better.
        for (place, number), boxes in began.items():
            part = certificate.parts[place]
            part.found[number] = replace(part.found[number], boxes=boxes)


def _decided(
    certificate: Certificate,
    search: Search,
    gap: float,
    budget: Budget,
    workers: Workers,
    began: dict[tuple[int, int], tuple[Box, ...]],
) -> Iterator[list[Scored]]:
    grid = cells(certificate.problem, search.pools, frozenset())
    tried: dict[tuple[int, int], int] = {}  # cells that were put off, and how often

    def pick() -> Decide | None:
        wanted = certificate.cutoff * (1 - gap) * (1 - 1e-9)
        work = [
            (tried.get((place, number), 0), part.found[number].bound, place, number)
            for place, part in enumerate(certificate.parts)
            if part.tables.coupled
            for number in part.open(wanted)
            if number not in part.decided and tried.get((place, number), 0) < len(_CELL_S)
        ]
        if not work:
            return None
        times, _, place, number = min(work)
        tried[place, number] = times + 1
        part = certificate.parts[place]
        began.setdefault((place, number), part.found[number].boxes)
        return Decide(place, number, part.cells[number], part.found[number], gap, _CELL_S[times])

    for task, closed in workers.run(pick, budget):
        if closed is None or not isinstance(task, Decide):
            continue
        part, number = certificate.parts[task.place], task.number
        if closed.done:
            began.pop((task.place, number), None)
        if closed.done and task.gap <= PROVEN_GAP:
            part.decided.add(number)
        old = part.found[number]
        part.found[number] = CellBound(max(old.bound, closed.bound), closed.boxes)
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
    rings = CellRings(part.tables, cell.degrees)
    spaces = _spaces(part, cell, money, rings)
    if not spaces:
        return None
    search = BoxSearch(part.programme, [cell], money, cutoff, 0.0)
    wanted = cutoff * (1 - gap)
    answers: list[Closed] = []
    for space in spaces:
        answer = _in_space(search, space, part.found[number].boxes, wanted, budget)
        if answer.bound < wanted and not budget.over():
            answer = _looked_closer(search, space, answer, part.found[number].boxes, wanted, budget)
        answers.append(answer)
        if answer.done:
            wanted = min(wanted, answer.bound)
    closed = _together(answers)
    if closed.done or not closed.partly:
        return closed
    return replace(closed, boxes=part.found[number].boxes)


def _looked_closer(
    search: BoxSearch,
    space: KindSets,
    answer: Closed,
    boxes: Sequence[Box],
    wanted: float,
    budget: Budget,
) -> Closed:
    """Return the answer for a space from closer layouts of its plans, where there are any.

    Those have more kind sets, so they are only looked at where the space leaves something open.
    """
    parts = _told_apart(space, search.money)
    if not parts:
        return answer
    closed = _together([_in_space(search, part, boxes, wanted, budget) for part in parts])
    return replace(
        closed,
        bound=max(answer.bound, closed.bound),
        found=(*answer.found, *closed.found)[-_MOST_FOUND:],
        # What is left has times of the closer layouts, which the space's own may be below.
        partly=True,
    )


def _in_space(
    search: BoxSearch, space: KindSets, boxes: Sequence[Box], wanted: float, budget: Budget
) -> Closed:
    """Return what the positional programme makes of one space."""
    return _CellRun(search, space, budget).run(boxes, wanted)


def _together(answers: Sequence[Closed]) -> Closed:
    """Return the answer for all plans of which others are for parts."""
    return Closed(
        min(answer.bound for answer in answers),
        tuple(found for answer in answers for found in answer.found)[-_MOST_FOUND:],
        tuple(box for answer in answers for box in answer.boxes),
        done=all(answer.done for answer in answers),
        partly=any(answer.partly for answer in answers),
    )


def _spaces(part: Part, cell: BoundCell, money: Money, rings: CellRings) -> list[KindSets]:
    """Return the kind sets of each layout of the zones, or of all of them together."""
    spaces = [
        KindSets(part.programme, cell, money.max_gpus, layout, rings=rings, rates=money.counts)
        for layout in layouts(part.tables, max(cell.degrees))
        if part.family.allows(layout)
    ]
    if not all(space.usable or not space.sets for space in spaces):
        spaces = [KindSets(part.programme, cell, money.max_gpus, rates=money.counts)]
    return [space for space in spaces if space.usable]


def _told_apart(space: KindSets, money: Money) -> list[KindSets]:
    """Return the kind sets of closer layouts of a space; none where they say no more."""
    rings = space.rings
    parts = [
        KindSets(
            space.programme, space.cell, money.max_gpus, layout, rings=rings, rates=money.counts
        )
        for layout in closer(space.layout, rings)
    ]
    if not all(part.usable or not part.sets for part in parts):
        return []
    return [part for part in parts if part.usable]


@dataclass(frozen=True, order=True)
class _Open:
    """A box that may hold something, lowest bound first; with its prices of the rows of sets."""

    bound: float
    made: int
    box: Box = field(compare=False)
    prices: Floats = field(compare=False)


class _CellRun:
    """The search over the boxes of one cell."""

    def __init__(self, search: BoxSearch, space: KindSets, budget: Budget) -> None:
        self.search, self.space, self.budget = search, space, budget
        self.values = BoxValues(search, space)
        self.bounds = SetProgramme(space)
        self.programme: PositionalProgramme | None = None
        self.num_sets = len(space.sets)
        self.heap: list[_Open] = []
        self.made = 0
        self.best = np.inf

    def run(self, boxes: Sequence[Box], wanted: float) -> Closed:
        first = [replace(box, cell=0) for box in boxes]
        if not first:
            whole = self.search.first_box(0)
            first = [] if whole is None else self.search.evaluate([whole], _STEPS)
        self.best = wanted
        found: list[Found] = []
        for start in self.values.first(first, wanted):
            self._push(start, self._first_prices(start), _FIRST_STEPS)
        while self.heap and self.heap[0].bound < self.best and not self.budget.over():
            one = heappop(self.heap)
            width = self.values.width_s(one.box) / max(
                self.values.limit_s(one.box, self.best), 1e-12
            )
            if width > _WIDTH:
                self._split(one)
                continue
            try:
                here = self._solve(one, width)
            except TooManyLabelsError:
                if width < _NARROWEST or self.budget.over():
                    heappush(self.heap, one)
                    break
                self._split(one)
                continue
            if here is not None:
                found.append(here)
                self._settle(one, here.seconds)
        left = [one for one in self.heap if one.bound < self.best]
        return Closed(
            min([self.best, *(one.bound for one in left)]),
            tuple(found[-_MOST_FOUND:]),
            tuple(one.box for one in left),
            done=not left,
            partly=self.best < wanted,
        )

    def _settle(self, one: _Open, seconds: float) -> None:
        """Take the least time of a box for its value, or look closer at its rates."""
        values = self.values
        box = replace(one.box, bound=max(one.bound, values.value(one.box, seconds)))
        narrow = values.narrowed(box, seconds, self.best)
        if values.wide_rates(narrow):
            for part in values.by_rate(narrow):
                self._push(part, one.prices, _MORE_STEPS, seconds)
        elif narrow.high_r < box.high_r * (1 - _RATE_STEP):
            self._push(narrow, one.prices, _MORE_STEPS, seconds)
        else:
            self.best = min(self.best, box.bound)

    def _push(self, box: Box, prices: Floats, steps: int, least_s: float = 0.0) -> None:
        """Bound a box, and keep it if it may hold something better than the best."""
        limit_s = self.values.limit_s(box, self.best)
        self.bounds.room[: len(self.space.room)] = self._space_of(box, least_s).room
        seconds, prices = self.bounds.bound(ranges_of(box), prices, limit_s, steps)
        seconds = max(seconds, least_s)
        if seconds >= limit_s:
            return
        bound = max(box.bound, self.values.value(box, seconds))
        if bound < self.best:
            self.made += 1
            box = self.values.narrowed(replace(box, bound=bound), seconds, self.best)
            heappush(self.heap, _Open(bound, self.made, box, prices))

    def _space_of(self, box: Box, least_s: float = 0.0) -> KindSets:
        """Return the kind sets with what pipelines of the box may cost a second."""
        if not self.values.money.counts:
            return self.space
        return self.space.with_rate(box.high_r, self.values.at_home(box, least_s, self.best))

    def _first_prices(self, box: Box) -> Floats:
        """Return the prices of the Lagrangian bound, as prices of one GPU of a pipeline, or none.

        The former may be far off: they were found for another box.
        """
        groups = self.search.num_groups
        nothing = np.zeros(len(self.bounds.room))
        prices = nothing.copy()
        room = self.search.programme.tables.room
        prices[:groups] = box.prices[:groups] * float(self.search.dp[0]) / np.maximum(room, 1)
        limit_s = self.values.limit_s(box, self.best)
        self.bounds.room[: len(self.space.room)] = self._space_of(box).room
        by_start = [
            self.bounds.bound(ranges_of(box), start, limit_s, _TRIED_STEPS)[0]
            for start in (prices, nothing)
        ]
        return prices if by_start[0] >= by_start[1] else nothing

    def _split(self, one: _Open) -> None:
        for part in self.values.split(one.box):
            self._push(part, one.prices, _MORE_STEPS)

    def _solve(self, one: _Open, width: float) -> Found | None:
        """Return the best pipeline of a box, by the positional programme."""
        ranges, space = ranges_of(one.box), self._space_of(one.box)
        self.bounds.room[: len(space.room)] = space.room
        if self.programme is None or space is not self.space:
            self.programme = PositionalProgramme(space)
        limits = Limits(
            low_s=ranges.low_s,
            high_s=ranges.high_s,
            low_g=ranges.low_g,
            high_g=ranges.high_g,
            cutoff_s=self.values.limit_s(one.box, self.best),
        )
        most = min(_most_labels(width), _LABELS_BY_SETS // self.num_sets)
        prices = PriceVectors(self.bounds, ranges, one.prices)
        return self.programme.run(limits, prices, most, self.budget.over)


def ranges_of(box: Box) -> Ranges:
    """Return the times of a box."""
    return Ranges(box.low_s, box.high_s, box.low_g, box.high_g)


def _most_labels(width: float) -> int:
    """Return how many labels of a layer a box of that width is worth."""
    return int(min(_MOST_LABELS, _LABELS * _WIDTH / max(width, _NARROWEST / 100)))
