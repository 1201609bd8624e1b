"""The bound where faster pipelines may take more microbatches.

A pipeline c with slowest stage S passes at most (T - G - F_c) / S + 1 microbatches by T. At prices
d >= 0 that add up to 1 for what there is (the GPUs of each group, all GPUs, the places of as many
pipelines as there may be), no chain within a range Sa <= S < Sb passes more than total d(c), if

    T <= G + min over chains of [ F + (total d(chain) - 1) Sa ],

and all together no more than total. So T is at least the least of that over all ranges, at any
direction d of prices, the same for all ranges. The best direction is that of a matrix game between
prices and the chains that were cheapest so far; whatever it is, the bound holds.

A pipeline with fewer than `_KEPT` microbatches keeps fewer of them in memory. It passes at most
`_KEPT` - 1, so for every beta >= 0 it counts with

    G + min over chains of [ F + (total d(chain) - 1) Sa + beta Sa (total d(chain) - _KEPT + 1) ].

All pipelines of a plan have one number of stages. A range of G is first looked at with any, and
where that leaves too much open, once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoxSearch
from sailor.solve.bounds.lagrange_boxes import halves
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Reach, Rows
from sailor.solve.bounds.whole_prices import packed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST_DEGREES = (1, 2, 3, 4, 6, 9, 16, 32)  # of the runs that are looked at together
_RANGES = 12  # of S in the first round
_TURNS = 8  # directions of prices
_CUTS = 24  # chains of a direction that the next one looks at
_KEPT = 12  # microbatches, from which on all that a place keeps counts
_BETAS = (0.0, 1.0, 4.0, 16.0)
_TOLD_APART = 0.05  # of the time: what S and G leave open where stages are counted
_NARROWEST, _MOST_RANGES = 1e-3, 400
_NODES_A_ROUND = 8
_ENOUGH_GAIN = 1e-3  # of a direction, in parts of what is missing
_SLACK = 1e-9


def runs_of_degrees(degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the degrees of data parallelism that are looked at together; they ascend.

    Rings grow with (n - 1) / n, and few pipelines are few places; many are much alike.
    """
    for start, stop in pairwise((*_FIRST_DEGREES, np.inf)):
        some = tuple(dp for dp in degrees if start <= dp < stop)
        if some:
            yield some


@dataclass(eq=False)
class _Node:
    """A range of G of one cell: ranges of S, and the best direction of prices so far."""

    cell: int
    stages: int  # of all pipelines; 0: any
    low_g: float
    high_g: float
    edges: Floats
    direction: Floats  # [R] groups, all GPUs, pipelines
    bound: float
    values: Floats = field(default_factory=lambda: np.zeros(0))  # of the ranges of S
    further: Floats = field(default_factory=lambda: np.zeros(0))  # how often Sa counts in them


@dataclass(frozen=True)
class _Look:
    """The ranges of a node that chains may lie in at all."""

    programme: ChainProgramme
    rows: Rows
    reach: Reach
    low_s: Floats
    plain_s: Floats  # with any chain, whatever it takes
    kept: int


class ShareSearch:
    """Bounds of cells whose pipelines share `total` microbatches as they like."""

    def __init__(self, boxes: BoxSearch, total: int) -> None:
        self.boxes, self.programme, self.total = boxes, boxes.programme, total
        tables = self.programme.tables
        gpus = float(tables.room.sum())
        if boxes.money.max_gpus is not None:
            gpus = min(gpus, float(boxes.money.max_gpus))
        # [R, K] of one replica, in parts of what there is.
        self.use = np.vstack((boxes.usage, tables.tp / max(gpus, 1e-9)))
        if boxes.money.max_gpus is None:
            self.use = self.use[:-1]  # the groups say it all
        self.pinned: dict[int, ChainProgramme] = {0: self.programme}
        self.heap: list[tuple[float, int, _Node]] = []
        self.made = 0
        for cell in range(len(boxes.cells)):
            self._push(self._first(cell))

    def improve(
        self, cutoff_s: float, wanted_s: float, rounds: int, should_stop: Callable[[], bool]
    ) -> None:
        """Look closer at the weakest ranges until all bounds are as wanted, or for so long."""
        self.boxes.cutoff = min(self.boxes.cutoff, cutoff_s)
        left = rounds * _NODES_A_ROUND
        while self.heap and left > 0 and not should_stop():
            bound, _, node = self.heap[0]
            if bound >= min(wanted_s, self.boxes.cutoff) or self._done(node):
                return
            heappop(self.heap)
            parts = self._refined(node)
            for place, part in enumerate(parts):
                if should_stop():
                    # What wasn't looked at keeps the bound of the whole.
                    for rest in parts[place:]:
                        self._push(rest)
                    return
                self._evaluate(part)
                self._push(part)
            left -= 1

    def bounds(self) -> list[float]:
        """Return a bound for each cell, at most the cutoff."""
        found = [self.boxes.cutoff] * len(self.boxes.cells)
        for bound, _, node in self.heap:
            found[node.cell] = min(found[node.cell], bound)
        return found

    def _push(self, node: _Node | None) -> None:
        if node is not None and node.bound < self.boxes.cutoff:
            self.made += 1
            heappush(self.heap, (node.bound, self.made, node))

    def _first(self, cell: int) -> _Node | None:
        values = self.boxes.attainable_g[cell]
        low_s = self.boxes.least_stage_s
        if not len(values) or not np.isfinite(low_s):
            return None
        low_g = float(values[0])
        # A pipeline takes its slowest stage once at least.
        high_s = max(low_s, self.boxes.cutoff - low_g) * (1 + _SLACK)
        edges = np.geomspace(low_s, high_s, _RANGES + 1)
        edges[0], edges[-1] = low_s, high_s
        rows = len(self.use) + 1
        high_g = max(low_g, min(float(values[-1]), self.boxes.cutoff))
        stages = self.programme.pinned or 0
        return _Node(cell, stages, low_g, high_g, edges, np.full(rows, 1.0 / rows), 0.0)

    def _most(self, cell: int) -> int:
        return max(self.boxes.cells[cell].degrees)

    def _widths(self, node: _Node) -> Floats:
        """Return what a range of S leaves open: it counts as often as its chain passes it."""
        widths: Floats = node.further * np.diff(node.edges)
        return widths

    def _open(self, node: _Node) -> tuple[float, float]:
        """Return what G and the weakest range of S leave open."""
        return node.high_g - node.low_g, float(self._widths(node)[int(node.values.argmin())])

    def _done(self, node: _Node) -> bool:
        if not len(node.values) or not node.stages:
            return False
        narrow = sum(self._open(node)) <= _NARROWEST * self.boxes.cutoff
        return narrow or len(node.edges) > _MOST_RANGES

    def _refined(self, node: _Node) -> list[_Node]:
        """Count stages, or split a range of G or ranges of S, where most is left open."""
        if not len(node.values):
            return [node]
        by_g, by_s = self._open(node)
        if not node.stages and by_g + by_s <= _TOLD_APART * self.boxes.cutoff:
            return [replace(node, stages=1 + n) for n in range(self.programme.max_stages)]
        if by_g <= by_s:
            return [self._split(node)]
        parts = halves(self.boxes.attainable_g[node.cell], node.low_g, node.high_g)
        return [replace(node, low_g=low, high_g=high) for low, high in parts]

    def _split(self, node: _Node) -> _Node:
        """Return the node with its weak ranges of S halved, and without closed ones at the ends."""
        cutoff, widths = self.boxes.cutoff, self._widths(node)
        worst = int(node.values.argmin())
        weak = (node.values <= node.values[worst] + widths[worst]) & (widths > widths[worst] / 2)
        middles = (node.edges[:-1] + node.edges[1:])[weak] / 2
        alive = np.flatnonzero(node.values < cutoff)
        ends = node.edges[alive[0]], node.edges[alive[-1] + 1]
        edges = np.sort(np.concatenate((node.edges, middles)))
        return replace(node, edges=edges[(edges >= ends[0]) & (edges <= ends[1])])

    def _evaluate(self, node: _Node) -> None:
        """Set the node's bound, direction and values."""
        cutoff = self.boxes.cutoff
        look = self._look(node)
        values = np.full(len(node.edges) - 1, cutoff)
        node.further = np.ones(len(values))
        some = np.flatnonzero(look.plain_s < cutoff)
        node.values = values
        if not len(some):
            node.bound = cutoff
            return
        part = _Look(
            look.programme, look.rows.take(some), look.reach.take(some), look.low_s[some],
            look.plain_s[some], _KEPT,
        )  # fmt: skip
        direction, found, best = node.direction, -np.inf, node.direction
        game = np.zeros((0, len(direction)))
        for _ in range(_TURNS):
            value, rows, further = self._at(node, part, direction)
            least = float(value.min())
            if least > found:
                gain, found, best = least - found, least, direction
                values[some], node.further[some] = np.minimum(value, cutoff), further
                if gain < _ENOUGH_GAIN * (cutoff - least):
                    break
            if found >= cutoff:
                break
            game = np.concatenate((game, rows))
            _, direction = packed(game)
        node.bound = min(max(node.bound, found), cutoff)
        node.direction = best

    def _look(self, node: _Node) -> _Look:
        """Return the ranges of a node with the chains that they allow."""
        if node.stages not in self.pinned:
            self.pinned[node.stages] = self.programme.with_stages(node.stages)
        programme = self.pinned[node.stages]
        low_s, size = node.edges[:-1], len(node.edges) - 1
        reach = self.boxes.sync_reach(np.array([node.cell]), np.array([node.high_g]))
        rows = Rows(
            ceiling_s=node.edges[1:],
            reach=np.repeat(reach, size, axis=0),
            prices=np.zeros((size, programme.kinds)),
            num_microbatches=np.ones(size, dtype=np.int64),
        )
        within = programme.ceilings(rows)
        plain_s = node.low_g + programme.relaxed(rows, within).cost_s
        return _Look(programme, rows, within, low_s, plain_s, 1)

    def _at(self, node: _Node, look: _Look, direction: Floats) -> tuple[Floats, Floats, Floats]:
        """Return values of the ranges at a direction, rows of the game [J, R], and how often
        Sa counts in the values."""
        place = direction[-1] / self._most(node.cell)
        stage = direction[:-1] @ self.use
        value, game, passed = self._class(node, look, stage, place, _KEPT, 0.0)
        order = np.argsort(value, kind="stable")[:_CUTS]
        rows = [game[order]]
        if self._cheapest(node, look, stage, place) * self.total < _KEPT - 1:
            short, of_short = np.full(len(value), -np.inf), np.zeros_like(game)
            for beta in _BETAS:
                less, other, _ = self._class(node, look, stage, place, 1, beta)
                better = less > short
                short[better], of_short[better] = less[better], other[better]
            rows.append(of_short[np.argsort(short, kind="stable")[:_CUTS]])
            value = np.minimum(value, short)
        together = np.concatenate(rows)
        together = together[np.isfinite(together).all(axis=1)]
        return np.maximum(value, look.plain_s), together, np.maximum(passed - 1, 1)

    def _class(
        self, node: _Node, look: _Look, stage: Floats, place: float, kept: int, beta: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return values of pipelines that keep so many microbatches, and their rows of the game.

        With them the microbatches that the chains' prices are worth.
        """
        weight = self.total * (1 + beta) * look.low_s
        rows = replace(
            look.rows,
            prices=weight[:, None] * stage,
            num_microbatches=np.full(len(weight), kept, dtype=np.int64),
        )
        if node.stages:
            chains = look.programme.solve(rows, look.reach)
        else:
            chains = look.programme.relaxed(rows, look.reach)
        off = look.low_s * (1 + beta * (_KEPT - 1))
        value: Floats = node.low_g + chains.cost_s + weight * place - off
        # At another direction the same chain costs as much more as it takes.
        use = chains.stages @ self.use.T
        paid = chains.stages @ stage + place
        fixed = value - weight * paid
        use = np.column_stack((use, np.full(len(use), 1.0 / self._most(node.cell))))
        game: Floats = fixed[:, None] + weight[:, None] * use
        return value, game, self.total * paid

    def _cheapest(self, node: _Node, look: _Look, stage: Floats, place: float) -> float:
        """Return the least that a chain of any range costs, as parts of all that there is."""
        last = len(look.low_s) - 1
        heavy = 1e6 * self.boxes.cutoff
        rows = replace(
            look.rows.take(np.array([last])), prices=np.tile(heavy * stage, (1, 1)),
        )  # fmt: skip
        cost = look.programme.relaxed(rows, look.reach.take(np.array([last]))).cost_s
        # Chains that take longer than the cutoff are of no interest.
        return max(float(cost[0]) - self.boxes.cutoff, 0.0) / heavy + place
