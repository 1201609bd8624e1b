"""Annealing of whole populations of pipelines with the exact closed form.

Every row is one pipeline of pure stages in some cell; all rows of one microbatch size and one
number of stages are moved and scored in one call. Rows that are left behind are replaced by
copies of the best. Stages of two kinds come afterwards, from the local search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.job import Objective
from sailor.sim.closed_form import PlanBatch, evaluate
from sailor.solve import work
from sailor.solve.cell import BREACH, Cell, Scorer, SearchTables
from sailor.solve.heuristics.pure_score import PureScore, by_table
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Sketches

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_HOT, _COLD = 0.03, 0.0005  # temperatures, of a row's score
_RENEWED_EVERY = 20  # steps
_OVER_ROOM = 4.0  # a pipeline over its pools by x counts as (1 + 4 x) times as slow


@dataclass(frozen=True)
class AnnealRules:
    """What may vary, and how hard to try."""

    max_stages: int
    stages: int | None
    even: bool
    same_tp: bool
    rows: int = 1024
    first_steps: int = 60
    second_steps: int = 240
    survivors: int = 8  # numbers of stages (of a microbatch size) that are annealed for longer
    kept: int = 12  # sketches a population hands over


class _Population:
    """Rows of one microbatch size and one number of stages."""

    def __init__(
        self, cells: Sequence[Cell], depth: int, scorer: Scorer, rules: AnnealRules, seed: int
    ) -> None:
        self.cells, self.depth, self.scorer, self.rules = cells, depth, scorer, rules
        self.search: SearchTables = cells[0].search
        self.random = np.random.default_rng((seed, depth, self.search.tables.microbatch))
        self.kinds = np.flatnonzero(self.search.tables.usable)
        self.of = np.arange(rules.rows) % len(cells)  # cell of each row
        self.table = _table(cells, depth, scorer)
        self._degrees()
        self.first = self._start()
        self.cuts = self._cuts_by_speed(self.first)
        self.score = self._score(self.cuts, self.first)
        self.best: dict[tuple[int, ...], tuple[float, int]] = {}
        self.worst_kept = np.inf  # score of the last one that was kept
        self._remember()

    def _degrees(self) -> None:
        self.dp = np.array([self.cells[n].dp for n in self.of.tolist()], dtype=np.int64)
        counts = [self.cells[n].num_microbatches for n in self.of.tolist()]
        self.count = np.array(counts, dtype=np.int64)

    def _start(self) -> Ints:
        rows, depth = self.rules.rows, self.depth
        pick = self.random.choice(self.kinds, size=(rows, 3))
        if self.rules.same_tp:
            tp = self.search.tables.tp
            for column in (1, 2):
                other = tp[pick[:, column]] != tp[pick[:, 0]]
                pick[other, column] = pick[other, 0]
        border = np.sort(self.random.integers(0, depth + 1, size=(rows, 2)), axis=1)
        place = np.arange(depth)
        which = (place >= border[:, :1]).astype(int) + (place >= border[:, 1:])
        return np.take_along_axis(pick, which, axis=1)

    def _cuts_by_speed(self, first: Ints) -> Ints:
        units, depth = self.search.tables.num_units, self.depth
        speed = 1.0 / np.maximum(self.search.tables.compute_prefix_s[:, -1], 1e-12)
        share = np.ones(first.shape) if self.rules.even else speed[first]
        ends = np.cumsum(share, axis=1) / share.sum(axis=1, keepdims=True) * units
        cuts = np.zeros((len(first), depth + 1), dtype=np.int64)
        cuts[:, 1:] = np.round(ends)
        least = np.arange(depth + 1)
        cuts = np.maximum.accumulate(cuts - least, axis=1) + least
        capped: Ints = np.minimum(cuts, units - least[::-1])
        return capped

    def _score(self, cuts: Ints, first: Ints) -> Floats:
        with np.errstate(invalid="ignore"):  # unknown links are infinite, times no microbatch
            if self.table is not None:
                score = self.table(self.of, cuts, first)
                legal = score < BREACH
            else:
                batch = PlanBatch(cuts, first[:, :, None], self.dp[:, None], self.count[:, None])
                found = evaluate(self.search.tables, batch, self.scorer.headroom_bytes)
                score, legal = self.scorer.soft(found)
        self.scorer.evaluations += len(cuts)
        work.add(work.TABLE_S * first.size)
        gpus = self.search.tables.tp[first] * self.dp[:, None]
        pools = len(self.search.room)
        pool = self.search.pool[first] + (np.arange(len(cuts)) * pools)[:, None]
        used = np.bincount(pool.ravel(), gpus.ravel(), pools * len(cuts)).reshape(-1, pools)
        over = ((used - self.search.room) / np.maximum(self.search.room, 1)).max(axis=1)
        if self.scorer.max_gpus is not None:
            total = gpus.sum(axis=1)
            over = np.maximum(over, (total - self.scorer.max_gpus) / max(1, self.scorer.max_gpus))
        self.legal = (over <= 0) & legal
        penalised: Floats = score * (1.0 + _OVER_ROOM * np.maximum(over, 0.0))
        return penalised

    def _remember(self) -> None:
        for row in np.flatnonzero(self.legal & (self.score < self.worst_kept)):
            key = (int(self.of[row]), *self.cuts[row].tolist(), *self.first[row].tolist())
            self.best.setdefault(key, (float(self.score[row]), int(self.of[row])))
        if len(self.best) > 8 * self.rules.kept:
            ranked = sorted(self.best.items(), key=lambda item: (item[1][0], item[0]))
            self.best = dict(ranked[: self.rules.kept])
            self.worst_kept = ranked[min(self.rules.kept, len(ranked)) - 1][1][0]

    @property
    def value(self) -> float:
        """Return the best score, infinite when nothing is legal yet."""
        return min((score for score, _ in self.best.values()), default=np.inf)

    def run(self, steps: int, over: Callable[[], bool]) -> None:
        """Anneal from hot to cold."""
        for step in range(steps):
            if step % 8 == 0 and over():
                return
            heat = _HOT * (_COLD / _HOT) ** (step / max(steps - 1, 1))
            cuts, first = self._moved()
            score = self._score(cuts, first)
            legal = self.legal
            allowed = self.score * (1.0 - heat * np.log(self.random.random(len(score))))
            take = score <= allowed
            self.cuts[take], self.first[take] = cuts[take], first[take]
            self.score = np.where(take, score, self.score)
            self.legal = take & legal
            self._remember()
            if (step + 1) % _RENEWED_EVERY == 0:
                self._renew()

    def _renew(self) -> None:
        """Replace the worst quarter of the rows by copies of the best quarter."""
        order = np.argsort(self.score, kind="stable")
        quarter = len(order) // 4
        good, bad = order[:quarter], order[len(order) - quarter :]
        self.of[bad] = self.of[good]
        self.cuts[bad], self.first[bad] = self.cuts[good], self.first[good]
        self.score[bad] = self.score[good]
        self._degrees()

    def _moved(self) -> tuple[Ints, Ints]:
        """Return one changed copy of every row: units moved, a kind changed, or stages swapped."""
        rows, depth = len(self.cuts), self.depth
        row = np.arange(rows)
        sizes, first = np.diff(self.cuts, axis=1), self.first.copy()
        move = self.random.integers(0, 4, size=rows)
        a, b = self.random.integers(0, depth, size=(2, rows))
        if not self.rules.even:
            units = self.random.integers(1, 3, size=rows)
            shift = (move != 2) & (a != b) & (sizes[row, a] > units)
            shift &= (move != 1) | (self.random.random(rows) < 0.5)
            sizes[row[shift], a[shift]] -= units[shift]
            sizes[row[shift], b[shift]] += units[shift]
        change = (move == 1) | (move == 3) if depth > 1 else move >= 0
        change &= (move == 1) | (self.random.random(rows) < 0.3)
        kind = self.random.choice(self.kinds, size=rows)
        if self.rules.same_tp:
            tp = self.search.tables.tp
            change &= tp[kind] == tp[first[row, a]]
        first[row[change], a[change]] = kind[change]
        swap = (move == 2) & (a != b)
        left, right = row[swap], (a[swap], b[swap])
        for array in (sizes, first):
            kept = array[left, right[0]].copy()
            array[left, right[0]] = array[left, right[1]]
            array[left, right[1]] = kept
        cuts = np.zeros_like(self.cuts)
        cuts[:, 1:] = np.cumsum(sizes, axis=1)
        return cuts, first

    def found(self) -> list[Scored]:
        """Return the best sketches by their exact score."""
        ranked = sorted(self.best.items(), key=lambda item: (item[1][0], item[0]))
        out = []
        for key, (score, cell) in ranked[: self.rules.kept]:
            cuts = np.array([key[1 : self.depth + 2]], dtype=np.int64)
            first = np.array([key[self.depth + 2 :]], dtype=np.int64)
            sketch = Sketches(cuts, first, first.copy(), np.zeros_like(first))
            out.append(Scored(score, self.cells[cell], sketch))
        return out


def _table(cells: Sequence[Cell], depth: int, scorer: Scorer) -> PureScore | None:
    """Return the scores by table, where only time counts and tables are enough."""
    only_time = scorer.objective is Objective.MAX_THROUGHPUT
    only_time = only_time and scorer.max_usd is None and scorer.max_s is None
    if not only_time or not by_table(cells[0].search.tables):
        return None
    return PureScore(cells, depth, scorer.headroom_bytes)


def anneal(
    cells: Sequence[Cell],
    scorer: Scorer,
    rules: AnnealRules,
    seed: int,
    over: Callable[[], bool],
) -> list[Scored]:
    """Return good pure pipelines of the given cells, best first.

    Each microbatch size and number of stages is annealed shortly, and the best of them again.
    """
    by_size: dict[int, list[Cell]] = {}
    for cell in cells:
        by_size.setdefault(id(cell.search), []).append(cell)
    populations: list[_Population] = []
    for members in by_size.values():
        deepest = min(rules.max_stages, members[0].search.tables.num_units)
        depths = [rules.stages] if rules.stages is not None else range(1, deepest + 1)
        smallest = int(members[0].search.tables.tp.min())
        room = int(members[0].search.room.sum())
        for depth in depths:
            fitting = [cell for cell in members if depth * cell.dp * smallest <= room]
            if not fitting or over():
                continue
            population = _Population(fitting, depth, scorer, rules, seed)
            population.run(rules.first_steps, over)
            populations.append(population)
    populations.sort(key=lambda one: one.value)
    for population in populations[: rules.survivors]:
        population.run(rules.second_steps, over)
    out = [scored for population in populations for scored in population.found()]
    return sorted(out, key=lambda scored: scored.score)
