"""The certificate of a search: a bound on every plan of a named space, and how it was found.

The grid of the bound is its own: all microbatch sizes and all degrees of data parallelism, not
those that the heuristics of a search leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.solve.bounds.lagrange import BoundCell, BoxSearch, CellBound, Money, lower_bounds
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_pace import PaceSearch
from sailor.solve.bounds.lagrange_tables import BoundTables, bound_tables, groups_of
from sailor.solve.bounds.share_bound import ShareSearch, runs_of_degrees
from sailor.solve.bounds.zone_families import EGRESS, Family, families
from sailor.solve.grid import microbatches
from sailor.solve.pools import most_gpus

Floats = NDArray[np.float64]

SPACE = (
    "space of the bound: all splits of the units, all tp degrees and GPU types of every stage "
    "(also mixed), every dp and profiled microbatch size, pipelines of up to {stages} stages "
    "with {shares} microbatch shares, replicas on the smallest node shape that holds them"
)
MERGED = "in the bound the zones of {of} are one pool with the best of their links and prices"

_FIRST_LOOK = 6  # boxes a cell
_PARTS_OF_COUNT = 8
_ANY_SHARES = 40  # rounds of the bound with any shares, in the first look
_BOXES_A_ROUND = 4  # of the search by paces
_FEWER = 5  # times fewer boxes where the search by paces follows
# Of the time: boxes narrower than the first aren't split, and no wider ones count as narrow.
_NARROWEST, _WIDEST = 5e-4, 0.01


@dataclass
class Part:
    """The cells of one microbatch size, with their bounds so far (seconds or dollars)."""

    tables: BoundTables
    programme: ChainProgramme
    cells: list[BoundCell]
    family: Family  # which plans it stands for
    found: list[CellBound] = field(default_factory=list)
    decided: set[int] = field(default_factory=set)  # cells whose CP-SAT model is solved
    paces: tuple[list[int], PaceSearch | ShareSearch] | None = (
        None  # cells that were open, and their search
    )

    def open(self, cutoff: float) -> list[int]:
        """Return the cells that may hold a plan below the cutoff."""
        return [n for n, one in enumerate(self.found) if one.bound < cutoff]


def money_of(problem: Problem) -> Money:
    """Return objective and limits as the bound takes them."""
    limits = problem.constraints
    slowest = limits.min_iterations_per_s
    return Money(
        cost=problem.objective is Objective.MIN_COST,
        max_s=None if slowest is None else 1.0 / slowest,
        max_usd=limits.max_usd_per_iteration,
        max_gpus=most_gpus(problem),
    )


class Certificate:
    """Bounds over all cells of a problem, improved step by step."""

    def __init__(self, problem: Problem, max_stages: int) -> None:
        caps = (max_stages, problem.arch.num_units, problem.search_space.max_pp)
        self.problem, self.max_stages = problem, min(cap for cap in caps if cap is not None)
        self.money = money_of(problem)
        self.parts = list(self._parts())
        self.cutoff = np.inf

    @property
    def covers(self) -> bool:
        """Return whether the bound covers the plans that the job asks for."""
        money = self.money.cost or self.money.max_usd is not None
        return not (money and any(self._shared(part) for part in self.parts))

    def _shared(self, part: Part) -> bool:
        """Return whether pipelines may take unequal shares, and gain by it."""
        return self.problem.search_space.microbatch_shares and not part.tables.coupled

    def _parts(self) -> Iterator[Part]:
        own = families(self.problem, self.money)
        groups = {id(family): groups_of(family.problem) for family in own}
        for size, family in product(microbatches(self.problem), own):
            tables = bound_tables(family.problem, groups[id(family)], size)
            if tables is None:
                continue
            total = self._total(size)
            programme = ChainProgramme(tables, self.max_stages, self.problem.constraints.pp)
            if family.home is not None:
                programme.reach_single[:] = 0  # a single stage can't cross
            free = np.where(np.isfinite(tables.compute_s), tables.update_s, np.inf)
            shares = self.problem.search_space.microbatch_shares
            wanted = _cells(self.problem, tables, total, free, shares=shares)
            found = list(family.cells(tables, wanted))
            if found:
                least = [CellBound(self._least(tables, cell), ()) for cell in found]
                yield Part(tables, programme, found, family, least)

    def _total(self, microbatch: int) -> int:
        """Return the microbatches of all pipelines together."""
        return max(1, round(self.problem.training.global_batch / microbatch))

    def _least(self, tables: BoundTables, cell: BoundCell) -> float:
        """Return what is known before any look: each microbatch passes the heaviest unit."""
        units = np.arange(tables.num_units)
        heaviest = float(tables.compute_s[:, units, units + 1].min(axis=0).max())
        seconds = cell.num_microbatches * heaviest
        rate = cell.dp * float(tables.usd_per_s.min()) if self.money.cost else 1.0
        return seconds * rate if np.isfinite(seconds) else np.inf

    def first_look(self, cutoff: float, should_stop: Callable[[], bool]) -> None:
        """Discard what is far off; gradient sync is counted for the cells that are left."""
        self.cutoff = cutoff
        self._any_shares(should_stop)
        for part in self.parts:
            looked = self._look(part, should_stop)
            # The ranges of S and G were found without the sync, so they don't hold with it.
            part.found = [
                CellBound(max(old.bound, one.bound), ())
                for old, one in zip(part.found, looked, strict=True)
            ]
            self._sync(part, should_stop)

    def _sync(self, part: Part, should_stop: Callable[[], bool]) -> None:
        """Count gradient sync in the cells that are open."""
        for number in part.open(self.cutoff):
            if should_stop():
                break
            cell = part.cells[number]
            sync = part.tables.sync_s(cell.degrees)
            sync = part.family.sync_s(part.tables, cell, sync)
            part.cells[number] = replace(cell, sync_s=sync + part.tables.update_s)

    def _any_shares(self, should_stop: Callable[[], bool]) -> None:
        """Bound pipelines of own paces by those with any shares, of which equal ones are some.

        That takes a few cells where equal shares take hundreds.
        """
        searches = [
            (part, self._share_search(part))
            for part in self.parts
            if not (part.tables.coupled or self.money.counts or self._shared(part))
        ]
        for _ in range(_ANY_SHARES if searches else 0):
            # Weakest first, until that one gains no more.
            search = min((own for _, own in searches), key=lambda own: min(own.bounds()))
            made = search.made
            search.improve(self.cutoff, self.cutoff, 1, should_stop)
            if search.made == made or should_stop():
                break
        for part, search in searches:
            bound = {
                dp: own
                for cell, own in zip(search.boxes.cells, search.bounds(), strict=True)
                for dp in cell.degrees
            }
            part.found = [
                replace(old, bound=max(old.bound, min(bound[dp] for dp in cell.degrees)))
                for old, cell in zip(part.found, part.cells, strict=True)
            ]

    def _share_search(self, part: Part) -> ShareSearch:
        """Return the search over a part's degrees with any shares."""
        tables, total, cells = part.tables, self._total(part.tables.microbatch), []
        for some in runs_of_degrees(sorted({dp for cell in part.cells for dp in cell.degrees})):
            cell = BoundCell(some[0], -(-total // some[-1]), some, part.cells[0].sync_s)
            sync = part.family.sync_s(tables, cell, tables.sync_s(some)) + tables.update_s
            cells.append(replace(cell, sync_s=sync))
        return ShareSearch(
            BoxSearch(part.programme, cells, self.money, self.cutoff, _NARROWEST), total
        )

    def _look(self, part: Part, should_stop: Callable[[], bool]) -> list[CellBound]:
        if self._shared(part):  # that look takes shares to be equal
            return part.found
        some = part.open(self.cutoff)
        looked = lower_bounds(
            part.programme,
            [part.cells[number] for number in some],
            self.money,
            self.cutoff,
            most_boxes=_FIRST_LOOK,
            should_stop=should_stop,
        )
        found = list(part.found)
        for number, one in zip(some, looked, strict=True):
            found[number] = one
        return found

    def improve(
        self,
        cutoff: float,
        tolerance: float,
        boxes: int,
        should_stop: Callable[[], bool],
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """Search so many boxes a cell on the cells that are open, weakest first.

        `on_round` is called whenever some bounds may have become better.
        """
        self.cutoff = min(self.cutoff, cutoff)
        weakest_first = sorted(
            self.parts, key=lambda part: min((f.bound for f in part.found), default=np.inf)
        )
        for part in weakest_first:
            wanted = self.cutoff * (1 - tolerance) * (1 - 1e-9)
            if part.paces is not None:
                self._improve_paces(part, wanted, boxes, should_stop, on_round)
                continue
            some = [n for n in part.open(wanted) if n not in part.decided]
            if not some or should_stop():
                continue
            if self._shared(part):
                cells = [part.cells[number] for number in some]
                search = BoxSearch(part.programme, cells, self.money, self.cutoff, tolerance)
                part.paces = some, ShareSearch(search, self._total(part.tables.microbatch))
                self._improve_paces(part, wanted, boxes, should_stop, on_round)
                continue
            own_pace = not (part.tables.coupled or self.money.cost)
            own_pace = own_pace and self.money.max_usd is None
            found = lower_bounds(
                part.programme,
                [part.cells[number] for number in some],
                self.money,
                self.cutoff,
                tolerance=min(max(tolerance, _NARROWEST), _WIDEST),
                most_boxes=max(1, boxes // _FEWER) if own_pace else boxes,
                should_stop=should_stop,
                known=[part.found[number] for number in some],
            )
            own = {number: one.bound for number, one in zip(some, found, strict=True)}
            for number, one in zip(some, found, strict=True):
                old = part.found[number]
                part.found[number] = replace(one, bound=max(one.bound, old.bound))
            on_round()
            some = part.open(self.cutoff)
            if own_pace and some:
                cells = [part.cells[number] for number in some]
                search = BoxSearch(part.programme, cells, self.money, self.cutoff, tolerance)
                # What any shares allow is alike for many cells, and says little of their order.
                known = [own.get(number, part.found[number].bound) for number in some]
                part.paces = some, PaceSearch(search, self._total(part.tables.microbatch), known)
                self._improve_paces(part, wanted, boxes, should_stop, on_round)

    def _improve_paces(
        self,
        part: Part,
        wanted: float,
        boxes: int,
        should_stop: Callable[[], bool],
        on_round: Callable[[], None],
    ) -> None:
        """Bound cells in which every pipeline keeps its own pace."""
        if part.paces is None:
            return
        numbers, search = part.paces
        for _ in range(max(1, boxes // _BOXES_A_ROUND)):
            search.improve(self.cutoff, wanted, 1, should_stop)
            for number, bound in zip(numbers, search.bounds(), strict=True):
                old = part.found[number]
                part.found[number] = CellBound(max(old.bound, bound), old.boxes)
            on_round()

    @property
    def value(self) -> float:
        """Return the bound: no plan takes less (seconds or dollars an iteration)."""
        bounds = [one.bound for part in self.parts for one in part.found]
        return min([*bounds, self.cutoff]) if bounds else self.cutoff

    def num_open(self, gap: float) -> int:
        """Return how many cells may hold a plan that is better than the cutoff by `gap`."""
        return sum(len(part.open(self.cutoff * (1 - gap) * (1 - 1e-9))) for part in self.parts)

    def rules(self) -> tuple[str, ...]:
        """Return the sentences that name the space."""
        merged = any(len(own) > 1 for part in self.parts for own in part.tables.members)
        regions = any(part.tables.all_regions for part in self.parts)
        of = "all regions" if regions else "a region"
        shares = "any" if any(self._shared(part) for part in self.parts) else "equal"
        stages = self.problem.constraints.pp or self.max_stages
        space = SPACE.format(stages=stages, shares=shares)
        paid = any(part.family.prices is not None for part in self.parts)
        return (space, *((MERGED.format(of=of),) if merged else ()), *((EGRESS,) if paid else ()))


def _cells(
    problem: Problem, tables: BoundTables, total: int, sync_s: Floats, *, shares: bool
) -> Iterator[BoundCell]:
    """Yield cells that cover every degree of data parallelism, one for each microbatch count.

    With unequal shares, which gain nothing in a coupled model, a cell is a run of degrees.

    The cell has the fewest pipelines of its degrees. In a coupled model all keep the pace of those
    with most microbatches; otherwise a pipeline with fewer may be the slowest one.
    """
    most = sum(
        int((tables.room[group] // tables.tp[tables.group == group]).max(initial=0))
        for group in np.unique(tables.group)
    )
    pinned = problem.constraints.dp
    degrees = range(1, min(total, most) + 1) if pinned is None else [pinned]
    if shares and not tables.coupled:
        for some in runs_of_degrees([dp for dp in degrees if dp <= min(total, most)]):
            yield BoundCell(some[0], -(-total // some[-1]), some, sync_s)
        return
    by_count: dict[int, list[int]] = {}
    for dp in degrees:
        if dp <= min(total, most):
            by_count.setdefault(-(-total // dp), []).append(dp)
    for count, members in sorted(by_count.items()):
        if tables.coupled:
            yield BoundCell(members[0], count, tuple(members), sync_s)
        else:
            yield from _own_pace(total, count, members, sync_s)


def _own_pace(total: int, count: int, members: list[int], sync_s: Floats) -> Iterator[BoundCell]:
    """Yield cells of one (largest) microbatch count, where the slowest pipeline may have one less.

    A degree that divides the microbatches has none with less. Of the others, a few at a time,
    either all pipelines count with one less, or only those that have the larger count.
    """
    exact = [dp for dp in members if total % dp == 0]
    yield from (BoundCell(dp, count, (dp,), sync_s) for dp in exact)
    rest = [dp for dp in members if total % dp]
    size = max(1, -(-len(rest) // _PARTS_OF_COUNT))
    for start in range(0, len(rest), size):
        some = tuple(rest[start : start + size])
        larger = min(total - dp * (count - 1) for dp in some)
        # Pace counts once a microbatch, room once a pipeline.
        if larger * count > some[0] * (count - 1):
            yield BoundCell(larger, count, some, sync_s, some[0] - larger)
        else:
            yield BoundCell(some[0], count - 1, some, sync_s)
