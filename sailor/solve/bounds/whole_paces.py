"""The bound of pipelines that keep their own pace, with whole GPUs and one number of stages.

Every pipeline of a plan has as many stages as the others, takes whole GPUs, and is of some pace S.
In a range of gradient sync G, what is known of all pipelines that could be in a plan is their
least time by number of stages and by what they take of the pools (`whole_chains`), pace by pace.
The time at which enough of them share the pools is found by `whole_prices`, as a fractional
packing. Ranges of S and G are split where they hold the bound down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoxSearch
from sailor.solve.bounds.lagrange_boxes import halves
from sailor.solve.bounds.lagrange_rows import Rows
from sailor.solve.bounds.whole_chains import WholeChains
from sailor.solve.bounds.whole_prices import Sharing, Times
from sailor.solve.bounds.whole_uses import TooManyUsesError, Uses

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RANGES = 16  # of S in the first round
_SPREAD = 1.5  # of prices around their centre
_MOST_USES = 3000
_NARROWEST, _MOST_RANGES = 4e-4, 300
_SIZES = (0.0, 0.1, 0.3, 1.0)  # of prices, in parts of the time
_WORTH = 0.3  # of the region's budget, in parts of the time
_LOOSE = 0.02  # of the time: ranges of S and G together, above which ceilings may be looser
_SLACK = 1e-9


@dataclass(eq=False)
class _Node:
    """Some degrees of data parallelism and a range of G: ranges of S, and prices to begin with."""

    cell: int
    degrees: tuple[int, ...]
    low_g: float
    high_g: float
    edges: Floats  # of the ranges of S, ascending
    centre: Floats  # [G + 1] prices of the groups and of all GPUs, 1 together
    bound: float
    fresh: bool = True
    least: Floats = field(default_factory=lambda: np.zeros(0))  # of every range of S


class WholePaces:
    """Bounds of the cells that have few enough uses; `boxes` has their rooms and sync times.

    `total` microbatches are shared by the pipelines; `known_s` are bounds of the cells.
    """

    def __init__(self, boxes: BoxSearch, total: int, known_s: Sequence[float] = ()) -> None:
        self.boxes, self.total = boxes, total
        self.loose = WholeChains(boxes.programme, exact=False)
        self.exact = WholeChains(boxes.programme)
        self.cells: set[int] = set()
        self.nodes: list[_Node] = []
        for cell in range(len(boxes.cells)):
            node = self._first(cell)
            if node is not None:
                node.bound = known_s[cell] if known_s else 0.0
                self.nodes.append(node)
                self.cells.add(cell)

    def weakest(self) -> float:
        """Return the least bound of all."""
        return min((node.bound for node in self.nodes), default=np.inf)

    def exhausted(self, bound: float) -> bool:
        """Return whether a node of that bound can't be improved noticeably."""
        return any(node.bound <= bound and self._done(node) for node in self.nodes)

    def improve(self, level: float, should_stop: Callable[[], bool]) -> None:
        """Look once more, and closer, at what is below a level."""
        cutoff = self.boxes.cutoff
        self.nodes = [node for node in self.nodes if node.bound < cutoff]
        active = [node for node in self.nodes if node.bound < level and not self._done(node)]
        for node in sorted(active, key=lambda one: one.bound):
            self.nodes.remove(node)
            parts = self._refined(node)
            for place, part in enumerate(parts):
                if should_stop():
                    self.nodes.extend(parts[place:])
                    return
                self._evaluate(part)
                if part.bound < cutoff:
                    self.nodes.append(part)

    def lower(self, found: list[float]) -> None:
        """Lower the bounds of all cells to those of their nodes."""
        for node in self.nodes:
            found[node.cell] = min(found[node.cell], node.bound)

    def _done(self, node: _Node) -> bool:
        if node.fresh or len(node.degrees) > 1:
            return False
        width = self._widths(node)[int(node.least.argmin())] + node.high_g - node.low_g
        return bool(width <= _NARROWEST * self.boxes.cutoff) or len(node.edges) > _MOST_RANGES

    def _narrow(self, node: _Node) -> bool:
        """Return whether ranges are so narrow that a looser ceiling on S would be felt."""
        width = float(self._widths(node).min()) + node.high_g - node.low_g
        return width <= _LOOSE * self.boxes.cutoff

    def _counts(self, degrees: tuple[int, ...]) -> tuple[int, int, int]:
        """Return how many pipelines have most microbatches, how many one less, and the most."""
        most = -(-self.total // degrees[0])
        larger = min(self.total - dp * (most - 1) for dp in degrees)
        return larger, min(degrees) - larger, most

    def _further(self, degrees: tuple[int, ...]) -> int:
        """Return how often the slowest stage counts beside F, for the smallest count."""
        _, smaller, most = self._counts(degrees)
        return max(most - 1 - (smaller > 0), 0)

    def _widths(self, node: _Node) -> Floats:
        widths: Floats = max(self._further(node.degrees), 1) * np.diff(node.edges)
        return widths

    def _first(self, cell: int) -> _Node | None:
        box, boxes = self.boxes.first_box(cell), self.boxes
        if box is None:
            return None
        degrees = boxes.cells[cell].degrees
        groups = boxes.num_groups
        centre = np.append(np.full(groups, 1.0 / groups), 0.0)
        try:
            self._uses(self._sharing(cell, degrees, centre))
        except TooManyUsesError:
            return None
        # A pipeline takes S for the fill, too.
        high = (boxes.cutoff - box.low_g) / (self._further(degrees) + 1)
        edges = np.linspace(box.low_s, max(high, box.low_s) * (1 + _SLACK), _RANGES + 1)
        high_g = max(box.low_g, min(float(boxes.attainable_g[cell][-1]), boxes.cutoff))
        return _Node(cell, degrees, box.low_g, high_g, edges, centre, 0.0)

    def _sharing(self, cell: int, degrees: tuple[int, ...], centre: Floats) -> Sharing:
        larger, smaller, _ = self._counts(degrees)
        share = self.boxes.programme.tables.room / self._gpus(cell)
        return Sharing(larger, smaller, centre, share, _SPREAD)

    def _gpus(self, cell: int) -> float:
        """Return how many GPUs there are for all pipelines."""
        others = self.boxes.cells[cell].others * int(self.boxes.programme.tables.tp.min())
        return max(float(self.boxes.gpus_left[cell]) + others, 1e-9)

    def _uses(self, sharing: Sharing) -> Uses:
        return Uses(
            self.boxes.programme.tables,
            sharing.by_group(sharing.centre),
            sharing.budget,
            _MOST_USES,
        )

    def _refined(self, node: _Node) -> list[_Node]:
        """Split degrees, a range of G or ranges of S, where most is left open."""
        if node.fresh:
            return [node]
        widths, worst = self._widths(node), int(node.least.argmin())
        span = node.high_g - node.low_g
        if len(node.degrees) > 1 and max(span, widths[worst]) <= 0.01 * self.boxes.cutoff:
            half = len(node.degrees) // 2
            return [
                replace(node, degrees=some) for some in (node.degrees[:half], node.degrees[half:])
            ]
        if span > widths[worst]:
            return self._split_sync(node)
        # Splitting what is above the cutoff gains nothing.
        weak = (node.least <= node.least[worst] + widths[worst]) & (widths > widths[worst] / 2)
        middles = (node.edges[:-1] + node.edges[1:])[weak] / 2
        node.edges = np.sort(np.concatenate((node.edges, middles)))
        return [node]

    def _split_sync(self, node: _Node) -> list[_Node]:
        parts = halves(self.boxes.attainable_g[node.cell], node.low_g, node.high_g)
        return [replace(node, low_g=low, high_g=high) for low, high in parts]

    def _evaluate(self, node: _Node) -> None:
        """Set the node's bound, prices and ranges."""
        boxes, cutoff = self.boxes, self.boxes.cutoff
        node.fresh = False
        sharing = self._sharing(node.cell, node.degrees, node.centre)
        try:
            uses = self._uses(sharing)
        except TooManyUsesError:
            node.centre = np.append(np.full(boxes.num_groups, 1.0 / boxes.num_groups), 0.0)
            sharing = self._sharing(node.cell, node.degrees, node.centre)
            uses = self._uses(sharing)
        _, smaller, most = self._counts(node.degrees)
        low_s, size = node.edges[:-1], len(node.edges) - 1
        fixed_s = node.low_g + self._further(node.degrees) * low_s
        reach = boxes.sync_reach(np.array([node.cell]), np.array([node.high_g]))
        rows = Rows(
            ceiling_s=node.edges[1:],
            reach=np.repeat(reach, size, axis=0),
            prices=np.zeros((size, boxes.programme.kinds)),
            num_microbatches=np.full(size, most - (smaller > 0)),
        )
        deepest = int(uses.points.sum(axis=1).max(initial=0))
        open_rows = self._open(rows, cutoff - fixed_s, sharing)
        if not len(open_rows):
            node.least, node.bound = np.full(size, cutoff), cutoff
            return
        rows, all_fixed = rows.take(open_rows), fixed_s
        fixed_s, low_s = fixed_s[open_rows], low_s[open_rows]
        chains = self.exact if self._narrow(node) else self.loose
        found = chains.least_times(rows, uses, cutoff - fixed_s, _WORTH * cutoff, deepest)
        room = np.maximum(boxes.programme.tables.room, 1)
        use = np.column_stack((uses.points / room, uses.points.sum(axis=1) / self._gpus(node.cell)))
        smaller_s = (found + fixed_s[:, None, None]).min(axis=0)  # [F + 1, N]
        larger_s = smaller_s
        if smaller:
            larger_s = (found + (fixed_s + low_s)[:, None, None]).min(axis=0)
        node.least = np.maximum(all_fixed, cutoff)
        bound, weakest = cutoff, node.centre
        first = [
            sharing.least(Times(larger_s[f], smaller_s[f], use), node.centre, cutoff)[0]
            for f in range(found.shape[1])
        ]
        for depth in np.argsort(first, kind="stable"):
            if first[depth] >= bound:
                prices = node.centre
            else:
                times = Times(larger_s[depth], smaller_s[depth], use)
                seconds, prices = sharing.best(times, node.centre, cutoff, bound)
                if seconds < bound:
                    bound, weakest = seconds, prices
            cheap = (use @ prices) * (sharing.larger + smaller) <= 1 + _SLACK
            if cheap.any():
                least = found[:, depth, cheap].min(axis=1) + fixed_s
                node.least[open_rows] = np.minimum(node.least[open_rows], least)
        node.bound = max(node.bound, bound)
        node.centre = weakest

    def _open(self, rows: Rows, most_s: Floats, sharing: Sharing) -> Ints:
        """Return the rows that may hold a chain of the region within `most_s` of F.

        At any price, what a chain of the region costs beside its time is less than the budget.
        """
        programme = self.boxes.programme
        tables = programme.tables
        price = sharing.by_group(sharing.centre) / np.maximum(tables.room, 1)
        stage = price[tables.group] * tables.tp / sharing.budget
        some = np.flatnonzero(most_s > 0)
        for size in _SIZES:
            if not len(some):
                break
            worth = size * self.boxes.cutoff
            part = replace(rows.take(some), prices=np.tile(worth * stage, (len(some), 1)))
            cost = programme.relaxed(part, programme.ceilings(part)).cost_s
            some = some[cost < (most_s[some] + worth) * (1 + _SLACK)]
        return some
