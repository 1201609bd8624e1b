"""A lower bound on time or cost over all plans of a cell: Lagrangian prices and a box search.

A plan's slowest stage takes S seconds and its slowest gradient sync with update G. In a box
Sa <= S <= Sb, Ga <= G <= Gb the iteration takes at least (M - 1) Sa + Ga + F, where F is the sum
of stage times of the cheapest chain within Sb and Gb. GPU room, money and time limits are priced:
for every prices >= 0 the chain's cost with prices, minus the prices of what there is, is a bound.
Pure chains suffice: a stage of several kinds is no faster than each pipeline through it, and the
prices of a plan are the average of those of its pipelines.

Money is a product T R of time and dollars a second. With T >= Ta and R >= Ra it is at least
Ra T + Ta R - Ra Ta, which is linear, so it is minimised (or limited) in the same programme.

In a `coupled` cost model stage times are maxima over replicas and F counts in full. Where each
pipeline keeps its own pace, the pipeline with the slowest stage takes (M - 1) Sa and the fill of
the fastest chain at least; the mean over pipelines takes a small share (`_PIPELINE_SHARE`), with
which prices still prove that a box holds no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.lagrange_dp import ChainProgramme
from sailor.solve.lagrange_rows import Reach, Rows
from sailor.solve.lagrange_tables import BoundTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AT_ONCE = 96  # boxes in one call: enough to spread numpy's overhead, and small enough for cache
# Price steps of a box: on relaxed chains, then on exact ones. Narrow boxes get more exact ones.
_COARSE_STEPS, _FINE_STEPS = (8, 1), (3, 8)
_FINE = 0.01  # of the time
_MOST_BOXES = 300  # of a cell, on average
_SNAP = 200_000  # attainable stage times beyond this are not listed
_SLACK = 1e-9
_PIPELINE_SHARE = 0.02


@dataclass(frozen=True)
class Money:
    """What the bound is of and which limits hold; times in seconds, money in dollars."""

    cost: bool  # minimise dollars, not seconds
    max_s: float | None = None
    max_usd: float | None = None
    max_gpus: int | None = None


@dataclass(frozen=True)
class BoundCell:
    """All plans with `num_microbatches` a pipeline and `dp` or more pipelines, of one size."""

    dp: int
    num_microbatches: int
    degrees: tuple[int, ...]  # degrees of data parallelism that it stands for
    sync_s: Floats  # [K, U, U + 1] with the update
    others: int = 0  # further pipelines, of which only the smallest replica is counted


@dataclass(frozen=True)
class Box:
    """Ranges of S and G of one cell, with the bound found so far and the prices that gave it."""

    cell: int
    low_s: float
    high_s: float
    low_g: float
    high_g: float
    bound: float
    prices: Floats = field(repr=False)


@dataclass(frozen=True)
class CellBound:
    """No plan of the cell is below `bound`; `boxes` are those that are not closed."""

    bound: float
    boxes: tuple[Box, ...]


def lower_bounds(
    programme: ChainProgramme,
    cells: Sequence[BoundCell],
    money: Money,
    cutoff: float,
    *,
    tolerance: float = 5e-4,
    most_boxes: int = _MOST_BOXES,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[CellBound]:
    """Bound cells of one microbatch size; plans at `cutoff` or above are of no interest.

    A cell's bound is the least over its open boxes, and at most `cutoff` (finite; seconds or
    dollars an iteration). Boxes narrower than `tolerance` of the time aren't split.
    """
    if not cells:
        return []
    return BoxSearch(programme, cells, money, cutoff, tolerance).run(most_boxes, should_stop)


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
        self.sync_s = np.stack([cell.sync_s for cell in cells])
        self.num_groups = len(tables.room)
        usage = np.zeros((self.num_groups, tables.num_kinds))
        usage[tables.group, np.arange(tables.num_kinds)] = tables.tp
        self.usage = usage / np.maximum(tables.room, 1)[:, None]
        self.least_rate = self.dp * float(tables.usd_per_s.min())  # [C] dollars a second
        self.max_s = np.inf if money.max_s is None else money.max_s * (1 + _SLACK)
        self.max_usd = np.inf if money.max_usd is None else money.max_usd * (1 + _SLACK)
        # Seconds beyond which no plan of interest lies, by cell.
        worst = cutoff / self.least_rate if money.cost else np.full(len(cells), cutoff)
        self.horizon = np.minimum(worst, np.minimum(self.max_s, self.max_usd / self.least_rate))
        self.num_rows = self.num_groups + 3
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

    def run(self, most_boxes: int, should_stop: Callable[[], bool]) -> list[CellBound]:
        """Evaluate and split boxes, lowest bound first."""
        first = (self.first_box(cell) for cell in range(len(self.cells)))
        open_boxes = [box for box in first if box is not None]
        done: list[Box] = []
        most = most_boxes * len(self.cells)
        while open_boxes and self.evaluations < most and not should_stop():
            open_boxes.sort(key=lambda box: box.bound)
            batch, open_boxes = open_boxes[:_AT_ONCE], open_boxes[_AT_ONCE:]
            fine = [box for box in batch if self._width(box) <= _FINE]
            coarse = [box for box in batch if self._width(box) > _FINE]
            for part, steps in ((coarse, _COARSE_STEPS), (fine, _FINE_STEPS)):
                for box in self.evaluate(part, steps) if part else ():
                    if self._width(box) <= self.tolerance:
                        done.append(box)
                    else:
                        open_boxes.extend(self.split(box))
        left: list[list[Box]] = [[] for _ in self.cells]
        for box in done + open_boxes:
            left[box.cell].append(box)
        return [
            CellBound(min((b.bound for b in boxes), default=self.cutoff), tuple(boxes))
            for boxes in left
        ]

    def first_box(self, cell: int) -> Box | None:
        attainable = self.attainable_g[cell]
        if not len(attainable):
            return None
        low_g, low_s = self.least_g[cell], self.least_stage_s
        if not np.isfinite(low_s):
            return None
        box = Box(cell, low_s, np.inf, low_g, float(attainable[-1]), 0.0,
                  np.zeros(self.num_rows))  # fmt: skip
        return self._tightened(box, float(self.further[cell]) * low_s + low_g)

    def _tightened(self, box: Box, least_s: float) -> Box | None:
        """Return the box without what lies beyond the horizon; `least_s` bounds its time."""
        spare = float(self.horizon[box.cell]) * (1 + _SLACK) - least_s
        if spare <= 0:
            return None
        further = int(self.further[box.cell])
        high_s, high_g = box.high_s, min(box.high_g, box.low_g + spare)
        high_s = min(high_s, box.low_s + (spare / further if further else spare))
        return self.snapped(replace(box, high_s=high_s, high_g=high_g))

    def snapped(self, box: Box) -> Box | None:
        """Return the box with lower ends raised to what a stage can attain; None: empty."""
        low_s = _next(self.attainable_s, box.low_s)
        low_g = _next(self.attainable_g[box.cell], box.low_g)
        if low_s > box.high_s * (1 + _SLACK) or low_g > box.high_g * (1 + _SLACK) + 1e-15:
            return None
        return replace(
            box, low_s=low_s, low_g=low_g,
            high_s=max(low_s, box.high_s), high_g=max(low_g, box.high_g),
        )  # fmt: skip

    def _width(self, box: Box) -> float:
        """Return how much of the time the ranges of S and G leave open."""
        further = int(self.further[box.cell])
        width = max(further, 1) * (box.high_s - box.low_s) + box.high_g - box.low_g
        seconds = max(further * box.low_s + box.low_g, 1e-12)
        return width / seconds

    def split(self, box: Box) -> list[Box]:
        by_s = max(int(self.further[box.cell]), 1) * (box.high_s - box.low_s)
        if by_s >= box.high_g - box.low_g:
            middle = (box.low_s + box.high_s) / 2
            parts = [replace(box, high_s=middle), replace(box, low_s=middle)]
        else:
            middle = (box.low_g + box.high_g) / 2
            parts = [replace(box, high_g=middle), replace(box, low_g=middle)]
        snapped = (self.snapped(part) for part in parts)
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
        scale = self.least_rate[cell] if self.money.cost else 1.0
        bound = np.maximum([box.bound for box in boxes], least_s * scale)
        alive = np.isfinite(least_s) & (least_s < self.horizon[cell] * (1 + _SLACK))
        problem = _Priced(self, cell, fixed, least_s)
        best_prices, step = prices.copy(), np.full(len(boxes), 1.0)
        for turn in range(sum(steps)):
            some = np.flatnonzero(alive & (bound < self.cutoff))
            if not len(some):
                break
            exact = turn >= steps[0]
            if turn == steps[0]:
                prices = best_prices.copy()
            value, slope = problem.value(programme, rows, reach, prices, some, exact=exact)
            better = value > bound[some]
            best_prices[some[better]] = prices[some[better]]
            step[some[~better]] *= 0.7
            bound[some] = np.maximum(bound[some], value)
            steepness = (slope**2).sum(axis=1)
            short = np.where(np.isfinite(value), np.maximum(self.cutoff * 1.002 - value, 0.0), 0.0)
            move = np.divide(
                step[some] * short, steepness, out=np.zeros_like(short), where=steepness > 0
            )
            prices[some] = np.maximum(prices[some] + move[:, None] * slope, 0.0)
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
        cut = np.arange(self.programme.units + 1)
        limit = (high_g * (1 + _SLACK) + 1e-15)[:, None, None, None]
        reach: Ints = np.where(self.sync_s[cell] <= limit, cut, 0).max(axis=3)
        return reach


def _next(values: Floats, low: float) -> float:
    """Return the least of the sorted values that is not below `low`, less rounding."""
    if not len(values):
        return low
    place = int(np.searchsorted(values, low * (1 - _SLACK)))
    return max(low, float(values[place]) * (1 - 1e-11)) if place < len(values) else np.inf


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


class _Priced:
    """The Lagrangian of a batch of boxes: objective, and rows that are priced.

    Every row i says f_i F + sum_k a_ik stages_k <= 1 (its right-hand side is scaled to 1).
    """

    def __init__(self, search: BoxSearch, cell: Ints, fixed: Floats, least_s: Floats) -> None:
        tables = search.programme.tables
        size, kinds = len(fixed), tables.num_kinds
        dp = search.dp[cell].astype(float)
        least_r = search.least_rate[cell]
        self.rate = dp[:, None] * tables.usd_per_s  # [B, K] dollars a second of one stage
        self.cutoff = search.cutoff
        # T >= fixed + share * F, where F is the mean of the pipelines' sums of stage times.
        self.fixed, share = fixed, 1.0
        if not tables.coupled:
            share = _PIPELINE_SHARE
            floor = search.further[cell] * search.least_stage_s + np.array(search.least_g)[cell]
            self.fixed = (1 - share) * np.where(np.isfinite(least_s), least_s, 0.0) + share * floor
            fixed = self.fixed
        cost = search.money.cost
        safe_s = np.where(np.isfinite(least_s), least_s, 0.0)
        # Objective: time_weight * (fixed + F) + rate_weight * R + constant.
        self.weight = least_r if cost else np.ones(size)
        self.time_weight = share * self.weight
        self.rate_weight = safe_s if cost else np.zeros(size)
        self.constant = -least_r * safe_s if cost else np.zeros(size)
        rows = search.num_rows
        self.on_time = np.zeros((size, rows))
        self.on_stage = np.zeros((size, rows, kinds))
        groups = search.num_groups
        self.on_stage[:, :groups] = dp[:, None, None] * search.usage
        gpus = np.maximum(search.gpus_left[cell], 1e-9)
        self.on_stage[:, groups] = dp[:, None] * tables.tp / gpus[:, None]
        if np.isfinite(search.max_s):
            left = np.maximum(search.max_s - fixed, 1e-12)
            self.on_time[:, groups + 1] = share / left
        if np.isfinite(search.max_usd):
            left = np.maximum(search.max_usd + least_r * safe_s - least_r * fixed, 1e-12)
            self.on_time[:, groups + 2] = share * least_r / left
            self.on_stage[:, groups + 2] = (safe_s / left)[:, None] * self.rate
        self.active = (self.on_time > 0) | (self.on_stage > 0).any(axis=2)

    def value(
        self,
        programme: ChainProgramme,
        rows: Rows,
        reach: Reach,
        prices: Floats,
        some: Ints,
        *,
        exact: bool,
    ) -> tuple[Floats, Floats]:
        """Return the bound of some boxes at their prices, and its slope in the prices."""
        price = np.where(self.active[some], prices[some], 0.0)
        on_time, on_stage = self.on_time[some], self.on_stage[some]
        weight = self.time_weight[some] + (price * on_time).sum(axis=1)
        stage = np.einsum("br,brk->bk", price, on_stage)
        stage += self.rate_weight[some][:, None] * self.rate[some]
        part = replace(rows.take(some), prices=stage / weight[:, None])
        # A chain of this cost closes the box; what is beyond needn't be known.
        base = self.weight[some] * self.fixed[some] + self.constant[some]
        enough = (self.cutoff + price.sum(axis=1) - base) / weight
        within = reach.take(some)
        if exact:
            chains = programme.solve(part, within, enough * (1 + 1e-12))
        else:
            chains = programme.relaxed(part, within)
        stages = chains.stages.astype(float)
        total = np.where(np.isfinite(chains.cost_s), chains.cost_s * weight, np.inf)
        value = base + total - price.sum(axis=1)
        seconds = np.where(
            np.isfinite(chains.cost_s),
            chains.cost_s - (stages * stage / weight[:, None]).sum(axis=1),
            0.0,
        )
        slope = on_time * seconds[:, None] + np.einsum("brk,bk->br", on_stage, stages) - 1.0
        return value, np.where(self.active[some], slope, 0.0)
