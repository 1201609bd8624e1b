"""The bound where faster pipelines may take more microbatches.

A pipeline c of n passes at most (T - G - F_c) / S_c + 1 microbatches by T. With prices d >= 0 that
add up to 1 for what there is (the GPUs of each group, all GPUs, the places of n pipelines) and
theta = total - n, no pipeline with S >= Sa passes more than theta d(c) + 1, its own price d(c), if

    T <= G + min over chains of [ F + theta Sa d(chain) ],

and all together no more than theta + n = total. So T is at least the least of that over ranges
Sa <= S < Sb, at any direction d of prices, the same for all ranges.

A pipeline with fewer than `_KEPT` microbatches keeps fewer of them in memory. It passes at most
`_KEPT` - 1, so for every beta >= 0 it counts with

    G + min over chains of [ F + theta (Sa + beta) d(chain) ] - beta (_KEPT - 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.lagrange import BoxSearch
from sailor.solve.lagrange_rows import Rows

Floats = NDArray[np.float64]

_RANGES = 12  # of S in the first round
_TURNS = 8  # steps of the direction
_KEPT = 12  # microbatches, from which on all that a place keeps counts
_BETAS = (0.0, 0.5, 1.0, 2.0, 4.0)  # parts of Sa
_NARROWEST, _MOST_RANGES = 1e-3, 300
_SLACK = 1e-9


@dataclass(eq=False)
class _Node:
    """A range of G of one cell: ranges of S, and the best direction of prices so far."""

    cell: int
    low_g: float
    high_g: float
    edges: Floats
    direction: Floats  # [G + 2] groups, all GPUs, pipelines
    bound: float
    values: Floats  # of the ranges of S
    fresh: bool = True


class ShareSearch:
    """Bounds of cells whose pipelines share `total` microbatches as they like."""

    def __init__(self, boxes: BoxSearch, total: int) -> None:
        self.boxes, self.programme, self.total = boxes, boxes.programme, total
        tables = self.programme.tables
        self.use = np.zeros((boxes.num_groups + 2, tables.num_kinds))
        self.use[:-2] = boxes.usage  # of one replica, in parts of the room
        gpus = float(tables.room.sum())
        if boxes.money.max_gpus is not None:
            gpus = min(gpus, float(boxes.money.max_gpus))
        self.use[-2] = tables.tp / max(gpus, 1e-9)
        self.nodes = [node for cell in range(len(boxes.cells)) for node in self._first(cell)]

    def _first(self, cell: int) -> list[_Node]:
        values = self.boxes.attainable_g[cell]
        low_s = self.boxes.least_stage_s
        if not len(values) or not np.isfinite(low_s):
            return []
        low_g = float(values[0])
        # A pipeline takes its slowest stage once at least.
        high_s = max(low_s, self.boxes.cutoff - low_g) * (1 + _SLACK)
        edges = np.geomspace(low_s, high_s, _RANGES + 1)
        edges[0], edges[-1] = low_s, high_s
        rows = len(self.use)
        even = np.full(rows, 1.0 / rows)
        return [_Node(cell, low_g, float(values[-1]), edges, even, 0.0, np.zeros(_RANGES))]

    def improve(
        self, cutoff_s: float, wanted_s: float, rounds: int, should_stop: Callable[[], bool]
    ) -> None:
        """Look closer at the weakest ranges, so many times, until all bounds are as wanted."""
        self.boxes.cutoff = min(self.boxes.cutoff, cutoff_s)
        for _ in range(rounds):
            self.nodes = [node for node in self.nodes if node.bound < self.boxes.cutoff]
            weakest = min((node.bound for node in self.nodes), default=np.inf)
            done = any(n.bound <= weakest and self._done(n) for n in self.nodes)
            if weakest >= wanted_s or done:
                return
            level = (weakest + self.boxes.cutoff) / 2
            for node in [n for n in self.nodes if n.bound < level and not self._done(n)]:
                if should_stop():
                    return
                parts = self._refined(node)
                for part in parts:
                    self._evaluate(part)
                self.nodes.remove(node)
                self.nodes.extend(parts)

    def bounds(self) -> list[float]:
        """Return a bound for each cell, at most the cutoff."""
        found = [self.boxes.cutoff] * len(self.boxes.cells)
        for node in self.nodes:
            found[node.cell] = min(found[node.cell], node.bound)
        return found

    def _most(self, cell: int) -> int:
        return max(self.boxes.cells[cell].degrees)

    def _widths(self, node: _Node) -> Floats:
        """Return what a range of S leaves open: it counts as often as the mean pipeline has it."""
        widths: Floats = max(self.total / self._most(node.cell) - 1, 1) * np.diff(node.edges)
        return widths

    def _done(self, node: _Node) -> bool:
        if node.fresh:
            return False
        width = float(self._widths(node)[int(node.values.argmin())]) + node.high_g - node.low_g
        return width <= _NARROWEST * self.boxes.cutoff or len(node.edges) > _MOST_RANGES

    def _refined(self, node: _Node) -> list[_Node]:
        if node.fresh:
            return [node]
        widths, worst = self._widths(node), int(node.values.argmin())
        if node.high_g - node.low_g <= widths[worst]:
            weak = (node.values <= node.values[worst] + widths[worst]) & (
                widths > widths[worst] / 2
            )
            middles = (node.edges[:-1] + node.edges[1:])[weak] / 2
            return [replace(node, edges=np.sort(np.concatenate((node.edges, middles))))]
        middle = (node.low_g + node.high_g) / 2
        values = self.boxes.attainable_g[node.cell]
        parts = []
        for low, high in ((node.low_g, middle), (middle, node.high_g)):
            inside = values[(values >= low * (1 - _SLACK)) & (values <= high * (1 + _SLACK))]
            if len(inside):
                low = max(low, float(inside[0]) * (1 - 1e-11))
                parts.append(replace(node, low_g=low, high_g=max(low, float(inside[-1]))))
        return parts

    def _evaluate(self, node: _Node) -> None:
        """Set the node's bound, direction and values."""
        cutoff, size = self.boxes.cutoff, len(node.edges) - 1
        node.fresh = False
        reach = self.boxes.sync_reach(np.array([node.cell]), np.array([node.high_g]))
        rows = Rows(
            ceiling_s=node.edges[1:],
            reach=np.repeat(reach, size, axis=0),
            prices=np.zeros((size, self.programme.kinds)),
            num_microbatches=np.ones(size, dtype=np.int64),
        )
        direction, found, values = node.direction, node.bound, np.zeros(0)
        best = direction
        for turn in range(_TURNS):
            value, use = self._at(node, rows, direction)
            worst = int(value.argmin())
            if value[worst] > found or not len(values):
                values, best = value, direction
                found = max(found, float(min(value[worst], cutoff)))
            if found >= cutoff:
                break
            over = use[worst] - float(direction @ use[worst])
            direction = direction * np.exp(np.clip(0.5 / (1 + turn) * over, -2, 2))
            direction = np.maximum(direction, 1e-4)
            direction = direction / direction.sum()
        node.bound, node.direction, node.values = found, best, values

    def _at(self, node: _Node, rows: Rows, direction: Floats) -> tuple[Floats, Floats]:
        """Return the value of every range at a direction, and its chain's use [B, G + 2].

        Uses are in parts of what a pipeline can have on average.
        """
        most, low_s = self._most(node.cell), node.edges[:-1]
        theta = max(self.total - most, 0)
        stage, place = direction @ self.use, direction[-1] / most
        use = np.zeros((len(low_s), len(direction)))
        long = np.full(len(low_s), _KEPT, dtype=np.int64)
        value, chains = self._least(rows, long, theta * low_s, stage, place)
        short = np.full(len(low_s), -np.inf)
        for beta in _BETAS:
            more = beta * low_s
            one = np.ones(len(low_s), dtype=np.int64)
            seconds, _ = self._least(rows, one, theta * (low_s + more), stage, place)
            short = np.maximum(short, seconds - more * (_KEPT - 2))
        use[:] = most * (chains @ self.use.T)
        use[:, -1] = 1.0
        return node.low_g + np.minimum(value, short), use

    def _least(
        self, rows: Rows, kept: NDArray[np.int64], weight: Floats, stage: Floats, place: float
    ) -> tuple[Floats, Floats]:
        part = replace(rows, prices=weight[:, None] * stage, num_microbatches=kept)
        chains = self.programme.relaxed(part, self.programme.ceilings(part))
        return chains.cost_s + weight * place, chains.stages.astype(float)
