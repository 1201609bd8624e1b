"""A lower bound on time or cost over all plans of a cell: Lagrangian prices and a box search.

A plan's slowest stage takes S seconds and its slowest gradient sync with update G. In a box
Sa <= S <= Sb, Ga <= G <= Gb the iteration takes at least (M - 1) Sa + Ga + F, where F is the sum
of stage times of the cheapest chain within Sb and Gb. GPU room, money and time limits are priced:
for every prices >= 0 the chain's cost with prices, minus the prices of what there is, is a bound.
Pure chains suffice: a stage of several kinds is no faster than each pipeline through it, and the
prices of a plan are the average of those of its pipelines.

Money is a product T R of time and dollars a second. A box has a third range, Ra <= R <= Rb. With
T >= Ta the product is at least Ra T + w (R - Ra) for 0 <= w <= Ta, which is linear, so it is
minimised (or limited) in the same programme; R <= Rb is one more priced row.

In a `coupled` cost model stage times are maxima over replicas and F counts in full. Where each
pipeline keeps its own pace, the pipeline with the slowest stage takes (M - 1) Sa and the fill of
the fastest chain at least; the mean over pipelines takes a small share, with which prices still
prove that a box holds no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_boxes import BoundCell, Box, CellBound, Money
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_priced import Priced
from sailor.solve.bounds.lagrange_rates import Rates, next_value
from sailor.solve.bounds.lagrange_rows import Furthest, Rows
from sailor.solve.bounds.lagrange_tables import BoundTables
from sailor.solve.kernels.ascent import Ascents

__all__ = ["BoundCell", "Box", "BoxSearch", "CellBound", "Money", "lower_bounds"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AT_ONCE = 96  # boxes in one call: enough to spread numpy's overhead, and small enough for cache
# Price steps of a box: on relaxed chains, then on exact ones. Narrow boxes get more exact ones.
_COARSE_STEPS, _FINE_STEPS = (8, 1), (3, 8)
_LAST_STEPS = (15, 40)  # of a box that is too narrow to be split
_FINE = 0.01  # of the time
_MOST_BOXES = 300  # of a cell, on average
_SNAP = 200_000  # attainable stage times beyond this are not listed
_SLACK = 1e-9


def lower_bounds(
    programme: ChainProgramme,
    cells: Sequence[BoundCell],
    money: Money,
    cutoff: float,
    *,
    tolerance: float = 5e-4,
    most_boxes: int = _MOST_BOXES,
    should_stop: Callable[[], bool] = lambda: False,
    known: Sequence[CellBound] = (),
) -> list[CellBound]:
    """Bound cells of one microbatch size; plans at `cutoff` or above are of no interest.

    A cell's bound is the least over its open boxes, and at most `cutoff` (finite; seconds or
    dollars an iteration). Boxes narrower than `tolerance` of the time aren't split. With what an
    earlier search of the same cells left, this one goes on from its boxes.
    """
    if not cells:
        return []
    search = BoxSearch(programme, cells, money, cutoff, tolerance)
    return search.run(most_boxes, should_stop, known)


class BoxSearch:
    """The box search over the cells of one microbatch size."""

    def __init__(
        self,
        programme: ChainProgramme,
        cells: Sequence[BoundCell],
        money: Money,
        cutoff: float,
        tolerance: float,
    ) -> None:
        self.programme, self.cells = programme, cells
        self.money, self.cutoff, self.tolerance = money, cutoff, tolerance
        tables = programme.tables
        self.dp = np.array([cell.dp for cell in cells])
        self.count = np.array([cell.num_microbatches for cell in cells], dtype=np.int64)
        self.further = np.maximum(self.count - 1, 0)
        self.by_sync = Furthest(np.stack([cell.sync_s for cell in cells]))
        self.num_groups = len(tables.room)
        usage = np.zeros((self.num_groups, tables.num_kinds))
        usage[tables.group, np.arange(tables.num_kinds)] = tables.tp
        self.usage = usage / np.maximum(tables.room, 1)[:, None]
        self.egress_usd = np.array([cell.egress_usd for cell in cells])
        self.crossing_usd = np.array([cell.crossing_usd for cell in cells])
        self.home = cells[0].home
        # [C] of the pipelines that count, at least one in the largest number that there may be.
        self.least_crossing = np.array([0.0 if c.others else 1.0 / max(c.degrees) for c in cells])
        self.max_usd = np.inf if money.max_usd is None else money.max_usd * (1 + _SLACK)
        self.rates = Rates(programme, cells, money, cutoff)
        self.num_rows = self.num_groups * (1 if self.home is None else 2) + 6
        gpus = int(tables.room.sum())
        gpus = gpus if money.max_gpus is None else min(gpus, money.max_gpus)
        others = np.array([cell.others for cell in cells])
        self.gpus_left = gpus - others * int(tables.tp.min())  # [C] for the counted pipelines
        self.attainable_g = [np.unique(cell.sync_s[np.isfinite(cell.sync_s)]) for cell in cells]
        self.attainable_s = _stage_times(tables) if tables.coupled else np.zeros(0)
        # Every unit lies on some stage, so the slowest stage is at least the heaviest unit.
        units = np.arange(tables.num_units)
        self.least_stage_s = float(tables.compute_s[:, units, units + 1].min(axis=0).max())
        self.least_g = [float(g[0]) if len(g) else 0.0 for g in self.attainable_g]
        self.evaluations = 0

    def run(
        self,
        most_boxes: int,
        should_stop: Callable[[], bool],
        known: Sequence[CellBound] = (),
    ) -> list[CellBound]:
        """Evaluate and split boxes, lowest bound first."""
        open_boxes, done = self._begin(known)
        most = most_boxes * len(self.cells)
        while open_boxes and self.evaluations < most and not should_stop():
            open_boxes.sort(key=lambda box: box.bound)
            batch, open_boxes = open_boxes[:_AT_ONCE], open_boxes[_AT_ONCE:]
            fine = [box for box in batch if sum(self._widths(box)) <= _FINE]
            coarse = [box for box in batch if sum(self._widths(box)) > _FINE]
            for part, steps in ((coarse, _COARSE_STEPS), (fine, _FINE_STEPS)):
                narrow: list[Box] = []
                for box in self.evaluate(part, steps) if part else ():
                    if sum(self._widths(box)) <= self.tolerance:
                        narrow.append(box)
                    else:
                        open_boxes.extend(self.split(box))
                # These aren't split, so their prices are found as well as can be.
                last = self.evaluate(narrow, _LAST_STEPS) if narrow else ()
                done.extend(replace(box, settled=True) for box in last)
        left: list[list[Box]] = [[] for _ in self.cells]
        for box in done + open_boxes:
            left[box.cell].append(box)
        return [
            CellBound(min((b.bound for b in boxes), default=self.cutoff), tuple(boxes), self.cutoff)
            for boxes in left
        ]

    def _begin(self, known: Sequence[CellBound]) -> tuple[list[Box], list[Box]]:
        """Return the boxes to begin with, and those on which nothing can be gained."""
        begun: list[Box] = []
        for cell in range(len(self.cells)):
            old = known[cell] if cell < len(known) else None
            # Of boxes that were closed with a lower limit more is wanted now.
            if old is not None and old.boxes and (old.elsewhere or 0.0) >= self.cutoff:
                begun += [replace(b, cell=cell) for b in old.boxes if b.bound < self.cutoff]
            elif (first := self.first_box(cell)) is not None:
                begun.append(first)
        narrow = [box.settled and sum(self._widths(box)) <= self.tolerance for box in begun]
        return (
            [box for box, one in zip(begun, narrow, strict=True) if not one],
            [box for box, one in zip(begun, narrow, strict=True) if one],
        )

    def first_box(self, cell: int) -> Box | None:
        attainable = self.attainable_g[cell]
        if not len(attainable):
            return None
        low_g, low_s = self.least_g[cell], self.least_stage_s
        if not np.isfinite(low_s):
            return None
        box = Box(cell, low_s, np.inf, low_g, float(attainable[-1]), 0.0,
                  np.zeros(self.num_rows), *self.rates.first(cell))  # fmt: skip
        return self._tightened(box, float(self.further[cell]) * low_s + low_g)

    def _tightened(self, box: Box, least_s: float) -> Box | None:
        """Return the box without what lies beyond the horizon; `least_s` bounds its time."""
        spare = self.rates.horizon(box.cell, box.low_r) * (1 + _SLACK) - least_s
        if spare <= 0:
            return None
        further = int(self.further[box.cell])
        high_s, high_g = box.high_s, min(box.high_g, box.low_g + spare)
        # Of one microbatch S isn't counted beside the chain, which is no faster than it.
        most_s = spare / further if further else spare + least_s - box.low_g - box.low_s
        high_s = min(high_s, box.low_s + most_s)
        high_r = self.rates.highest(box.cell, box.high_r, least_s)
        return self.snapped(replace(box, high_s=high_s, high_g=high_g, high_r=high_r))

    def snapped(self, box: Box) -> Box | None:
        """Return the box with lower ends raised to what a stage can attain; None: empty."""
        low_s = next_value(self.attainable_s, box.low_s)
        low_g = next_value(self.attainable_g[box.cell], box.low_g)
        low_r = self.rates.snapped(box.low_r)
        if low_s > box.high_s * (1 + _SLACK) or low_g > box.high_g * (1 + _SLACK) + 1e-15:
            return None
        if low_r > box.high_r * (1 + _SLACK):
            return None
        return replace(
            box, low_s=low_s, low_g=low_g, low_r=low_r,
            high_s=max(low_s, box.high_s), high_g=max(low_g, box.high_g),
            high_r=max(low_r, box.high_r),
        )  # fmt: skip

    def _widths(self, box: Box) -> tuple[float, float, float]:
        """Return how much of the time the ranges of S, G and R leave open."""
        further = int(self.further[box.cell])
        seconds = max(further * box.low_s + box.low_g, 1e-12)
        by_s = further * (box.high_s - box.low_s) / seconds
        by_r = math.log(box.high_r / box.low_r) if self.money.counts else 0.0
        return by_s, (box.high_g - box.low_g) / seconds, by_r

    def split(self, box: Box, *, by_rate: bool = True) -> list[Box]:
        """Return the halves of a box, by the range that leaves most open (R only if `by_rate`)."""
        widths = self._widths(box)
        if by_rate and self.money.counts and max(widths) == widths[2]:
            middle = math.sqrt(box.low_r * box.high_r)
            parts = [replace(box, high_r=middle), replace(box, low_r=middle)]
        elif widths[0] >= widths[1]:
            middle = (box.low_s + box.high_s) / 2
            parts = [replace(box, high_s=middle), replace(box, low_s=middle)]
        else:
            middle = (box.low_g + box.high_g) / 2
            parts = [replace(box, high_g=middle), replace(box, low_g=middle)]
        snapped = (self.snapped(replace(part, settled=False)) for part in parts)
        return [part for part in snapped if part is not None]

    def evaluate(self, boxes: Sequence[Box], steps: tuple[int, int]) -> list[Box]:
        """Return the boxes that may still hold a plan of interest, tightened."""
        self.evaluations += len(boxes)
        cell = np.array([box.cell for box in boxes])
        fixed = self.further[cell] * np.array([b.low_s for b in boxes])
        fixed = fixed + np.array([b.low_g for b in boxes])
        programme = self.programme
        rows = Rows(
            ceiling_s=np.array([box.high_s for box in boxes]),
            reach=self.sync_reach(cell, np.array([box.high_g for box in boxes])),
            prices=np.zeros((len(boxes), programme.kinds)),
            num_microbatches=self.count[cell],
        )
        reach = programme.ceilings(rows)
        prices = np.array([box.prices for box in boxes])
        # The least time of a chain without prices: Ta.
        least_s = fixed + programme.relaxed(rows, reach).cost_s
        least = least_s
        if self.money.cost:
            least = least_s * np.array([box.low_r for box in boxes])
            least = least + self.egress_usd[cell] + self.crossing_usd[cell]
        bound = np.maximum([box.bound for box in boxes], least)
        horizon = np.array([self.rates.horizon(box.cell, box.low_r) for box in boxes])
        alive = np.isfinite(least_s) & (least_s < horizon * (1 + _SLACK))
        problem = Priced(self, boxes, fixed, least_s)
        best_prices, ascents = prices.copy(), Ascents(prices.shape, self.cutoff)
        for turn in range(sum(steps)):
            some = np.flatnonzero(alive & (bound < self.cutoff))
            if not len(some):
                break
            exact = turn >= steps[0]
            if turn == steps[0]:
                prices = best_prices.copy()
            value, slope = problem.value(programme, rows, reach, prices, some, exact=exact)
            bound[some] = np.maximum(bound[some], value)
            moved = ascents.advance(value, slope, prices, best_prices, some)
            prices[some] = problem.capped(moved, some)
        kept = []
        for number, box in enumerate(boxes):
            if not alive[number] or bound[number] >= self.cutoff:
                continue
            found = replace(box, bound=float(bound[number]), prices=best_prices[number])
            seconds = float(least_s[number])
            if not self.money.cost:
                seconds = max(seconds, found.bound)
            tight = self._tightened(found, seconds)
            if tight is not None:
                kept.append(tight)
        return kept

    def room_prices(self, prices: Floats) -> Floats:
        """Return the prices of the rows of GPUs alone (others are 0)."""
        rows = self.num_groups + 1
        return np.where(np.arange(self.num_rows) < rows, prices, 0.0)

    def stage_prices(self, cell: int, prices: Floats) -> Floats:
        """Return [K]: what a stage of each kind costs at the prices of the rows of GPUs."""
        dp, groups = float(self.dp[cell]), self.num_groups
        priced = dp * (prices[:groups, None] * self.usage).sum(axis=0)
        gpus = max(float(self.gpus_left[cell]), 1e-9)
        found: Floats = priced + prices[groups] * dp * self.programme.tables.tp / gpus
        return found

    def sync_reach(self, cell: Ints, high_g: Floats) -> Ints:
        """Return [B, K, U]: the furthest cut whose sync is within G."""
        return self.by_sync.within(cell, high_g * (1 + _SLACK) + 1e-15)


def _stage_times(tables: BoundTables) -> Floats:
    """Return every time that a stage can take, sorted; empty when there are too many."""
    units = tables.num_units
    compute = np.unique(np.round(tables.compute_s[np.isfinite(tables.compute_s)], 12))
    sends = []
    for send in (tables.forward_s, tables.backward_s):
        inner = send[:, :, 1:units]
        sends.append(np.unique(np.round(inner[np.isfinite(inner)], 12)))
    forward, backward = sends
    factor = tables.real.short_pipeline_factor[1]
    both = (forward[:, None] + backward[None, :]).ravel()
    moves = np.unique(
        np.concatenate(([0.0], both, factor * forward, 2.0 * forward, 2.0 * backward))
    )
    if len(compute) * len(moves) > _SNAP:
        return np.zeros(0)
    return np.unique((compute[:, None] + moves[None, :]).ravel())
