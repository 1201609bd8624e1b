"""Planner `exhaustive`: every plan of a tiny problem. The oracle of the tests.

Its space is that of `dynamic` and more: every split of the units, every kind for every replica of
every stage on its own, every dp and microbatch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.closed_form import PlanBatch
from sailor.sim.columns import Column, plan_of
from sailor.sim.estimate import estimate
from sailor.solve.cell import BREACH, Cell, Scorer
from sailor.solve.explain import why_nothing_fits
from sailor.solve.grid import cells
from sailor.solve.pools import pools_of, slots_of
from sailor.solve.search import Budget

Ints = NDArray[np.int64]

MOST_PLANS = 5_000_000
_CHUNK = 50_000
_ESTIMATED = 200


class ExhaustivePlanner:
    """Scores every plan; proves the optimum of the space."""

    name = "exhaustive"

    def unsupported(self, problem: Problem) -> Sequence[str]:
        """Refuse problems with more than MOST_PLANS plans."""
        count = sum(_num_plans(problem, cell) for cell in _cells(problem))
        if count > MOST_PLANS:
            return (f"it has {count:.3g} plans and exhaustive takes at most {MOST_PLANS:,}",)
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        """Return the best plan, proven unless stopped."""
        budget = Budget(limits.wall_s, should_stop)
        scorer = Scorer(problem)
        best: list[tuple[float, int, Cell, Ints, Ints]] = []
        for cell in _cells(problem):
            for cuts, kinds in _plans(problem, cell):
                if budget.over():
                    break
                batch = _batch(cell, cuts, kinds)
                scores = scorer(cell.search, batch)
                keep = min(_ESTIMATED, len(scores))
                for row in np.argpartition(scores, keep - 1)[:keep]:
                    if scores[row] < BREACH:
                        best.append((float(scores[row]), len(best), cell, cuts, kinds[row]))
                best.sort(key=lambda item: item[:2])
                del best[_ESTIMATED:]
            on_progress(Progress(f"dp {cell.dp}", evaluations=scorer.evaluations))
        plan = _best_legal(problem, best)
        rules = ("every split, kind, dp and profiled microbatch size",)
        if plan is None:
            reasons, _ = why_nothing_fits(problem)
            # With a full list there may be a legal plan behind those that were estimated.
            all_seen = len(best) < _ESTIMATED and not budget.exceeded
            return SearchOutcome(
                None,
                proven=all_seen,
                rules=rules,
                reasons=tuple(reasons),
                stopped_early=budget.exceeded,
                evaluations=scorer.evaluations,
            )
        value = estimate(problem, plan)
        bound = (
            value.iterations_per_s
            if problem.objective is Objective.MAX_THROUGHPUT
            else value.usd_per_iteration
        )
        return SearchOutcome(
            plan,
            proven=not budget.exceeded,
            bound=None if budget.exceeded else bound,
            rules=rules,
            stopped_early=budget.exceeded,
            evaluations=scorer.evaluations,
        )


def _cells(problem: Problem) -> list[Cell]:
    pools = pools_of(problem, slots_of(problem), merge_zones=False)
    return cells(problem, pools, frozenset())


def _depths(problem: Problem) -> Sequence[int]:
    limits, space = problem.constraints, problem.search_space
    if limits.pp is not None:
        return [limits.pp]
    return range(1, min(problem.arch.num_units, space.max_pp or problem.arch.num_units) + 1)


def _usable(cell: Cell) -> Ints:
    return np.flatnonzero(cell.search.tables.usable)


def _num_plans(problem: Problem, cell: Cell) -> float:
    units, kinds = problem.arch.num_units, len(_usable(cell))
    gpus = int(cell.search.room.sum())
    total = 0.0
    for depth in _depths(problem):
        if depth * cell.dp > gpus:
            continue
        splits = len(list(_splits(problem, units, depth))) if depth <= units else 0
        total += splits * float(kinds) ** (depth * cell.dp)
        if total > 1e15:
            break
    return total


def _splits(problem: Problem, units: int, depth: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, units), depth - 1):
        cuts = (0, *inner, units)
        sizes = [b - a for a, b in pairwise(cuts)]
        if problem.search_space.uneven_layers or max(sizes) - min(sizes) <= 1:
            yield cuts


def _plans(problem: Problem, cell: Cell) -> Iterator[tuple[Ints, Ints]]:
    """Yield (cuts [P + 1], kinds [B, P, dp]) in chunks."""
    usable = _usable(cell)
    gpus = int(cell.search.room.sum())
    for depth in _depths(problem):
        if depth * cell.dp > gpus or depth > problem.arch.num_units:
            continue
        places = depth * cell.dp
        count = len(usable) ** places
        for start in range(0, count, _CHUNK):
            number = np.arange(start, min(start + _CHUNK, count))
            digits = (number[:, None] // len(usable) ** np.arange(places)) % len(usable)
            kinds = usable[digits].reshape(len(number), depth, cell.dp)
            kinds = kinds[_allowed(problem, cell, kinds)]
            if not len(kinds):
                continue
            for cuts in _splits(problem, problem.arch.num_units, depth):
                yield np.array(cuts, dtype=np.int64), kinds


def _allowed(problem: Problem, cell: Cell, kinds: Ints) -> NDArray[np.bool_]:
    space, search = problem.search_space, cell.search
    used = search.tables.tp[kinds]
    legal = np.ones(len(kinds), dtype=np.bool_)
    for pool, room in enumerate(search.room):
        gpus = np.where(search.pool[kinds] == pool, used, 0).sum(axis=(1, 2))
        legal &= gpus <= room
    if not space.tp_per_stage:
        legal &= (used == used[:, :1, :1]).all(axis=(1, 2))
    if not space.mixed_types_in_stage:
        names = sorted({kind.gpu for kind in search.tables.kinds})
        gpu = np.array([names.index(kind.gpu) for kind in search.tables.kinds])
        legal &= (gpu[kinds] == gpu[kinds][:, :, :1]).all(axis=(1, 2))
    return legal


def _batch(cell: Cell, cuts: Ints, kinds: Ints) -> PlanBatch:
    low, extra = divmod(cell.total, cell.dp)
    counts = np.array([low + 1 if j < extra else low for j in range(cell.dp)], dtype=np.int64)
    size = len(kinds)
    return PlanBatch(
        cuts=np.repeat(cuts[None], size, axis=0),
        kinds=kinds,
        width=np.ones((size, cell.dp), dtype=np.int64),
        num_microbatches=np.repeat(counts[None], size, axis=0),
    )


def _best_legal(
    problem: Problem, best: Sequence[tuple[float, int, Cell, Ints, Ints]]
) -> Plan | None:
    for _, _, cell, cuts, kinds in best:
        low, extra = divmod(cell.total, cell.dp)
        tables = cell.search.tables
        columns = [
            Column(
                tuple(tables.kinds[kind] for kind in kinds[:, j]),
                1,
                tables.microbatch,
                low + 1 if j < extra else low,
            )
            for j in range(cell.dp)
        ]
        plan = plan_of(
            problem.arch.name, tuple(cuts.tolist()), columns, problem.training.global_batch
        )
        if not estimate(problem, plan).violations:
            return plan
    return None
