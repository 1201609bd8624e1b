"""The search for plans of unlike pipelines with unequal microbatch shares.

Splits of the units are annealed by their value (`split_value`), which counts pipelines in
fractions; over the best splits whole pipelines are found (`mixing`) and scored exactly. With two
pools the fractions are of two classes of pipelines at most, whole ones of a few more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.solve.cell import BREACH, Cell, Scorer, SearchTables
from sailor.solve.dynamic import Search
from sailor.solve.heuristics.mixing import Mix, mixed
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Mixture, to_batch
from sailor.solve.heuristics.split_value import SplitTables, Worth

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_HOT, _COLD = 0.01, 0.0003  # temperatures, of a split's value
_SWAPS = 0.3  # of the moves
_HOPELESS = 1.06  # times the best plan's seconds
_MOST_STAGES = 14
_FEW = 8  # pipelines


@dataclass(frozen=True)
class MixRules:
    """What may vary, and how hard to try."""

    max_stages: int
    stages: int | None
    even: bool
    same_tp: bool
    dp: int | None
    short_steps: int = 40  # of annealing each number of stages
    first_steps: int = 80  # of those that are not hopeless
    second_steps: int = 300  # of the best of them
    survivors: int = 5
    splits: int = 4  # of a number of stages over which whole pipelines are looked for

    @classmethod
    def of(cls, problem: Problem) -> MixRules | None:
        """Return the rules of a problem; None where unlike pipelines aren't looked for.

        That is where shares are equal, money counts or all replicas of a stage must be alike.
        """
        space, limits = problem.search_space, problem.constraints
        by_time = problem.objective is Objective.MAX_THROUGHPUT
        by_time = by_time and limits.max_usd_per_iteration is None
        if not (by_time and space.microbatch_shares and space.mixed_types_in_stage):
            return None
        return cls(
            max_stages=min(_MOST_STAGES, space.max_pp or _MOST_STAGES),
            stages=limits.pp,
            even=not space.uneven_layers,
            same_tp=not space.tp_per_stage,
            dp=limits.dp,
        )


def add_mixtures(search: Search, cells: Sequence[Cell], seed: int) -> None:
    """Add plans of unlike pipelines to what a search has found, where they may gain."""
    rules = MixRules.of(search.problem)
    if rules is not None and not search.budget.over():
        found = search.found
        found.add(mixtures(cells, search.scorer, rules, found.best, seed, search.budget.over))


def mixtures(
    cells: Sequence[Cell],
    scorer: Scorer,
    rules: MixRules,
    known: Sequence[Scored],
    seed: int,
    over: Callable[[], bool],
) -> list[Scored]:
    """Return plans of unlike pipelines that are better than those known, best first."""
    if not known or not cells or cells[0].search.tables.coupled:
        return []
    best_s = min(one.score for one in known)
    walks: list[_Walk] = []
    sizes: dict[int, Cell] = {}
    for cell in cells:
        sizes.setdefault(cell.search.tables.microbatch, cell)
    for cell in sizes.values():
        for depth, kinds in _families(cell.search, rules):
            if over():
                break
            walk = _Walk(cell, depth, kinds, scorer, rules, known, seed)
            walk.run(rules.short_steps, _HOT, over)
            if walk.value < _HOPELESS * best_s:
                walk.run(rules.first_steps, _HOT, over)
                walks.append(walk)
    walks.sort(key=lambda one: one.value)
    found: list[Scored] = []
    for walk in walks[: rules.survivors]:
        walk.run(rules.second_steps, _HOT, over)
        for scored in walk.whole(best_s, over):
            best_s = min(best_s, scored.score)
            found.append(scored)
    return sorted(found, key=lambda one: one.score)


def _families(search: SearchTables, rules: MixRules) -> Iterator[tuple[int, Ints]]:
    """Yield numbers of stages with kinds that may stand side by side."""
    usable = np.flatnonzero(search.tables.usable)
    deepest = min(rules.max_stages, search.tables.num_units)
    depths = range(1, deepest + 1) if rules.stages is None else [rules.stages]
    # Kinds of which each may be mixed with the same others.
    groups = np.unique(search.mixable[usable][:, usable], axis=0)
    for depth in depths:
        for group in groups:
            own = usable[group]
            if not rules.same_tp:
                yield depth, own
                continue
            for tp in np.unique(search.tables.tp[own]):
                yield depth, own[search.tables.tp[own] == tp]


class _Walk:
    """Annealing of the splits of one microbatch size and number of stages.

    It starts at the even split and the best one known.
    """

    def __init__(
        self, cell: Cell, depth: int, kinds: Ints, scorer: Scorer, rules: MixRules,
        known: Sequence[Scored], seed: int,
    ) -> None:  # fmt: skip
        self.cell, self.scorer, self.rules = cell, scorer, rules
        ranked = sorted(known, key=lambda one: one.score)
        self.best_s = ranked[0].score
        size = cell.search.tables.microbatch
        self.random = np.random.default_rng((seed, depth, size))
        alike = [one for one in ranked if one.cell.search.tables.microbatch == size]
        dp = rules.dp or (alike or ranked)[0].cell.dp
        self.tables = self._tables(depth, dp, kinds, rules.dp)
        self.kinds, self.few = kinds, rules.dp is None and dp <= _FEW
        self.seen: dict[tuple[int, ...], Worth] = {}  # splits that are better than the best plan
        rows = len(self.tables.limits)
        prices = np.full(rows, 1.0 / rows)
        units = cell.search.tables.num_units
        starts = [_even(0, units, depth)]
        if not rules.even:
            starts += [one.sketch.cuts[0] for one in alike if one.sketch.num_stages == depth][:1]
            starts += list(_other_ends(units, depth))
        self.now: Worth | None = None
        self.cuts = starts[0]
        for cuts in starts:
            worth = self._worth(cuts, prices, np.inf if self.now is None else self.now.seconds)
            if worth is not None:
                self.now, self.cuts = worth, cuts

    @property
    def value(self) -> float:
        """Return the least value so far."""
        least = min((worth.seconds for worth in self.seen.values()), default=np.inf)
        return least if self.now is None else min(least, self.now.seconds)

    def _tables(self, depth: int, dp: int, kinds: Ints, most: int | None) -> SplitTables:
        limit = self.scorer.max_gpus
        return SplitTables(
            self.cell.search, depth, dp, kinds, self.scorer.headroom_bytes, limit, most
        )

    def _worth(self, cuts: Ints, prices: Floats, cutoff_s: float) -> Worth | None:
        self.scorer.evaluations += 1
        pipes = self.tables.pipes(cuts)
        worth = self.tables.worth(pipes, self.cell.total, prices, cutoff_s)
        if worth is not None and worth.seconds < self.best_s:
            self.seen[tuple(cuts.tolist())] = worth
        return worth

    def run(self, steps: int, hot: float, over: Callable[[], bool]) -> None:
        """Anneal from hot to cold, from the best split so far."""
        if self.now is None or self.rules.even:
            return
        if self.seen:
            best = min(self.seen.items(), key=lambda item: (item[1].seconds, item[0]))
            self.cuts, self.now = np.array(best[0], dtype=np.int64), best[1]
        for step in range(steps):
            if step % 32 == 0 and over():
                return
            heat = hot * (_COLD / hot) ** (step / max(steps - 1, 1))
            cuts = _moved(self.random, self.cuts)
            cutoff_s = self.now.seconds * (1.0 - heat * float(np.log(self.random.random())))
            worth = None if cuts is None else self._worth(cuts, self.now.prices, cutoff_s)
            if worth is not None and cuts is not None:
                self.now, self.cuts = worth, cuts

    def whole(self, best_s: float, over: Callable[[], bool]) -> Iterator[Scored]:
        """Yield whole pipelines over the best splits, each time better than before."""
        ranked = sorted(self.seen.items(), key=lambda item: (item[1].seconds, item[0]))
        chosen = [key for key, _ in ranked[: self.rules.splits]]
        total, numbers = self.cell.total, [self.tables]
        if self.few:
            # How many pipelines there are decides how long rings take.
            chosen.append(tuple(self.cuts.tolist()))
            depth = self.tables.depth
            numbers += [self._tables(depth, n, self.kinds, n) for n in range(1, _FEW + 1)]
        for key, tables in product(dict.fromkeys(chosen), numbers):
            cuts = np.array(key, dtype=np.int64)
            pipes, rows = tables.pipes(cuts), len(tables.limits)
            even = np.full(rows, 1.0 / rows)
            for one in tables.worths(pipes, total, even, best_s, falling=False):
                if over():
                    return
                mix = mixed(tables, pipes, one, total, best_s)
                scored = None if mix is None else self._scored(cuts, mix)
                if scored is not None and scored.score < best_s:
                    best_s = scored.score
                    yield scored

    def _scored(self, cuts: Ints, mix: Mix) -> Scored | None:
        """Return whole pipelines with their exact score, like ones side by side."""
        dp = int(mix.width.sum())
        if dp < 1 or dp > self.cell.total or (self.rules.dp not in (None, dp)):
            return None
        cell = Cell(self.cell.search, dp, self.cell.total)
        kinds = np.ascontiguousarray(mix.chains.T[None])
        sketch = Mixture.of(cuts[None], kinds, mix.width[None])
        score = float(self.scorer(cell.search, to_batch(cell, sketch))[0])
        return Scored(score, cell, sketch) if score < BREACH else None


def _even(start: int, stop: int, parts: int) -> Ints:
    return np.round(np.linspace(start, stop, parts + 1)).astype(np.int64)


def _other_ends(units: int, depth: int) -> Iterator[Ints]:
    """Yield splits that are even but for the first and last stage: these are often of own kinds."""
    most = units // depth + 2
    for first, last in product(range(1, most), repeat=2):
        if depth > 2 and units - first - last >= depth - 2:
            inner = _even(first, units - last, depth - 2)
            yield np.concatenate((np.zeros(1, dtype=np.int64), inner, np.array([units])))


def _moved(random: np.random.Generator, cuts: Ints) -> Ints | None:
    """Return a split with units moved between two stages, or two stages swapped."""
    sizes = np.diff(cuts)
    a, b = random.integers(0, len(sizes), size=2)
    units = int(random.integers(1, 3))
    if random.random() < _SWAPS:
        if sizes[a] == sizes[b]:
            return None
        sizes[a], sizes[b] = sizes[b], sizes[a]
    elif a != b and sizes[a] > units:
        sizes[a] -= units
        sizes[b] += units
    else:
        return None
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
