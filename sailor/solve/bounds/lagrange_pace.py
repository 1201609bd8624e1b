"""The bound where every pipeline keeps its own pace: one direction of prices for all paces.

In a plan faster than T every pipeline c has (M - 1) S_c + F_c + G < T, whatever its slowest stage
S_c is, and all of them together fit the room. So T is out of reach when, for some prices of the
GPUs, the cheapest chain that fast costs more than its share of the room. Chains are told apart by
ranges of S. In one range, with prices t p and their total t for all that there is,

    (M - 1) Sa + Ga + min over chains of [ F + n t p(chain) ] - t

is below T for no t, when a chain of the range can be in such a plan. The direction p must be the
same for all ranges, its size t need not. So the bound of a range Ga <= G <= Gb is the maximum over
directions p of the minimum over ranges of S of the maximum over sizes t. Ranges of G belong to the
plan as a whole, so each has a direction of its own.

Where pipelines take few enough GPUs, `whole_paces` counts these exactly instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoxSearch
from sailor.solve.bounds.lagrange_rows import Reach, Rows
from sailor.solve.bounds.whole_paces import WholePaces

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AT_ONCE = 128  # rows in one call
_RANGES = 10  # of S in the first round
_SIZES, _TURNS = 5, 8  # steps of the size at a direction, and of directions
_NARROWEST, _MOST_RANGES = 1e-3, 200
_SLACK = 1e-9


@dataclass(eq=False)
class _Group:
    """A range of G of one cell: ranges of S, and the best direction of prices so far."""

    cell: int
    low_g: float
    high_g: float
    edges: Floats  # of the ranges of S, ascending
    direction: Floats  # [G + 1] shares of the prices of the groups and of all GPUs
    bound: float
    values: Floats  # of the ranges of S at that direction
    fresh: bool = True  # not yet looked at


class PaceSearch:
    """Bounds of the cells of one microbatch size; `boxes` has their rooms and sync times.

    Pipelines share `total` microbatches; `known_s` are bounds of the cells (none: 0).
    """

    def __init__(self, boxes: BoxSearch, total: int, known_s: Sequence[float] = ()) -> None:
        self.boxes, self.programme = boxes, boxes.programme
        tables = self.programme.tables
        usage = np.vstack([boxes.usage, np.zeros(tables.num_kinds)])
        self.usage = np.repeat(usage[None], len(boxes.cells), axis=0)  # [C, G + 1, K]
        gpus = np.maximum(boxes.gpus_left, 1e-9).astype(float)
        self.usage[:, -1] = tables.tp / gpus[:, None]
        self.usage *= boxes.dp[:, None, None]
        self.whole = WholePaces(boxes, total, known_s)
        others = [cell for cell in range(len(boxes.cells)) if cell not in self.whole.cells]
        self.groups = [group for cell in others for group in self._first(cell)]

    def improve(
        self, cutoff_s: float, wanted_s: float, rounds: int, should_stop: Callable[[], bool]
    ) -> None:
        """Look closer at the weakest ranges, so many times, until all bounds are as wanted.

        The cutoff may have fallen since the last call.
        """
        self.boxes.cutoff = cutoff_s
        for _ in range(rounds):
            weakest = min((group.bound for group in self.groups), default=cutoff_s)
            weakest = min(weakest, self.whole.weakest())
            level = (weakest + cutoff_s) / 2
            active = [g for g in self.groups if g.bound < level and not self._exhausted(g)]
            # What the weakest group can't give, no work on the others can.
            stuck = any(g.bound <= weakest and self._exhausted(g) for g in self.groups)
            if weakest >= wanted_s or stuck or self.whole.exhausted(weakest) or should_stop():
                break
            self.whole.improve(level, should_stop)
            self._improve([new for group in active for new in self._refined(group)], should_stop)

    def _exhausted(self, group: _Group) -> bool:
        """Return whether narrower ranges can't improve a bound noticeably."""
        if group.fresh:
            return False
        further = max(int(self.boxes.further[group.cell]), 1)
        width = further * float(np.diff(group.edges)[int(group.values.argmin())])
        narrow = width + group.high_g - group.low_g <= _NARROWEST * self.boxes.cutoff
        return narrow or len(group.edges) > _MOST_RANGES

    def bounds(self) -> list[float]:
        """Return a bound for each cell, at most the cutoff."""
        found = [self.boxes.cutoff] * len(self.boxes.cells)
        for group in self.groups:
            found[group.cell] = min(found[group.cell], group.bound)
        self.whole.lower(found)
        return found

    def _first(self, cell: int) -> list[_Group]:
        box = self.boxes.first_box(cell)
        if box is None:
            return []
        count = len(self.usage[cell])
        even = np.full(count, 1.0 / count)
        further = max(int(self.boxes.further[cell]), 1)
        high = min(box.high_s, (self.boxes.cutoff - box.low_g) / further)
        edges = np.linspace(box.low_s, max(high, box.low_s), _RANGES + 1)
        return [_Group(cell, box.low_g, box.high_g, edges, even, 0.0, np.zeros(_RANGES))]

    def _refined(self, group: _Group) -> list[_Group]:
        """Split a range of G where it leaves more open than those of S; else the latter."""
        if group.fresh:
            return [group]
        further = max(int(self.boxes.further[group.cell]), 1)
        widths = further * np.diff(group.edges)
        worst = int(group.values.argmin())
        if group.high_g - group.low_g <= widths[worst]:
            weak = group.values <= group.values[worst] + widths[worst]
            middles = (group.edges[:-1] + group.edges[1:])[weak] / 2
            group.edges = np.sort(np.concatenate((group.edges, middles)))
            return [group]
        middle = (group.low_g + group.high_g) / 2
        values = self.boxes.attainable_g[group.cell]
        parts = []
        for low, high in ((group.low_g, middle), (middle, group.high_g)):
            inside = values[(values >= low * (1 - _SLACK)) & (values <= high * (1 + _SLACK))]
            if len(inside):
                low = max(low, float(inside[0]) * (1 - 1e-11))
                parts.append(replace(group, low_g=low, high_g=high))
        self.groups.remove(group)
        self.groups.extend(parts)
        return parts

    def _improve(self, groups: Sequence[_Group], should_stop: Callable[[], bool]) -> None:
        begin = 0
        while begin < len(groups) and not should_stop():
            stop, rows = begin, 0
            while stop < len(groups) and (rows == 0 or rows < _AT_ONCE):
                rows += len(groups[stop].edges) - 1
                stop += 1
            _Batch(self, groups[begin:stop]).run()
            begin = stop


class _Batch:
    """Groups whose ranges of S are looked at together."""

    def __init__(self, search: PaceSearch, groups: Sequence[_Group]) -> None:
        self.search, self.groups = search, groups
        boxes, programme = search.boxes, search.programme
        self.of = np.repeat(np.arange(len(groups)), [len(g.edges) - 1 for g in groups])
        cell = np.array([group.cell for group in groups])
        low_s = np.concatenate([group.edges[:-1] for group in groups])
        low_g = np.array([group.low_g for group in groups])
        high_g = np.array([group.high_g for group in groups])
        self.fixed = boxes.further[cell][self.of] * low_s + low_g[self.of]
        self.rows = Rows(
            ceiling_s=np.concatenate([group.edges[1:] for group in groups]),
            reach=boxes.sync_reach(cell, high_g)[self.of],
            prices=np.zeros((len(self.of), programme.kinds)),
            num_microbatches=boxes.count[cell][self.of],
        )
        self.reach: Reach = programme.ceilings(self.rows)
        self.usage = search.usage[cell]  # [g, G + 1, K]

    def run(self) -> None:
        """Improve the bounds of the groups, and their directions."""
        cutoff = self.search.boxes.cutoff
        plain = self.fixed + self.search.programme.relaxed(self.rows, self.reach).cost_s
        # What takes too long at any price needs no prices; the direction is for the others.
        open_rows = np.flatnonzero(plain < cutoff)
        size = np.full(len(self.of), 0.3 * cutoff)
        direction = np.stack([group.direction for group in self.groups])
        for turn in range(_TURNS):
            value, use = self._at(direction, plain, open_rows, size)
            step = 0.5 / (1 + turn)
            for number, group in enumerate(self.groups):
                mine = np.flatnonzero(self.of == number)
                worst = mine[int(value[mine].argmin())]
                least = float(min(value[worst], cutoff))
                if least > group.bound or len(group.values) != len(mine):
                    # Of the same ranges, split, the bound is no worse at the same direction.
                    group.bound = max(group.bound, least)
                    group.direction, group.values = direction[number].copy(), value[mine]
                group.fresh = False
                if least < cutoff:
                    # More for what the cheapest chain takes more of.
                    over = use[worst] - (direction[number] * use[worst]).sum()
                    weights = direction[number] * np.exp(np.clip(step * over, -2, 2))
                    weights = np.maximum(weights, 1e-4)
                    direction[number] = weights / weights.sum()
            if all(group.bound >= cutoff for group in self.groups):
                return

    def _at(
        self, direction: Floats, plain: Floats, open_rows: Ints, size: Floats
    ) -> tuple[Floats, Floats]:
        """Return the value of every row at the best size found, and its chain's use [B, G + 1].

        `size` is where the search starts, and is left at the best sizes.
        """
        programme, of = self.search.programme, self.of
        unit = np.einsum("gr,grk->gk", direction, self.usage)  # prices at size 1
        best, use = plain.copy(), np.zeros((len(of), direction.shape[1]))
        low, high = np.zeros(len(of)), np.full(len(of), np.inf)
        some = open_rows
        for _ in range(_SIZES):
            if not len(some):
                break
            prices = size[some, None] * unit[of[some]]
            part = Rows(
                self.rows.ceiling_s[some], self.rows.reach[some], prices,
                self.rows.num_microbatches[some],
            )  # fmt: skip
            chains = programme.relaxed(part, self.reach.take(some))
            value = self.fixed[some] + chains.cost_s - size[some]
            taken = np.einsum("brk,bk->br", self.usage[of[some]], chains.stages.astype(float))
            better = value > best[some]
            best[some[better]] = value[better]
            use[some] = taken
            more = (direction[of[some]] * taken).sum(axis=1) > 1.0
            low[some[more]] = size[some[more]]
            high[some[~more]] = size[some[~more]]
            middle = np.where(np.isfinite(high), (low + high) / 2, 2.0 * low)
            size[some] = middle[some]
            some = some[best[some] < self.search.boxes.cutoff]
        return best, use
