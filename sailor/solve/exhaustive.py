"""Planner `exhaustive`: every plan of a tiny problem. The oracle of the tests.

Its space is that of `dynamic` and more: every split of the units, every kind for every replica of
every stage on its own, every dp and microbatch size. Pipelines that are alike stand side by side;
up to three different ones are tried in every order, more in the order of their kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, pairwise, permutations, product

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
_MOST_ORDERED = 3


class ExhaustivePlanner:
    """Scores every plan; proves the optimum of the space."""

    name = "exhaustive"

    def __init__(self, most_plans: int = MOST_PLANS) -> None:
        self.most_plans = most_plans

    def unsupported(self, problem: Problem) -> Sequence[str]:
        """Refuse problems with more than `most_plans` plans."""
        count = 0
        for cell in _cells(problem):
            for _, batch in _arrangements(problem, cell):
                count += len(batch.width) * len(_splits(problem, batch.kinds.shape[1]))
                if count > self.most_plans:
                    most = f"{self.most_plans:,}"
                    return (f"it has over {most} plans, the most that exhaustive takes",)
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        """Return the best plan, proven unless stopped."""
        budget = Budget(limits.wall_s, should_stop, work_s=limits.work_s)
        scorer = Scorer(problem)
        best: list[_Seen] = []
        for cell in _cells(problem):
            for depth, pipelines in _arrangements(problem, cell):
                for cuts in _splits(problem, depth):
                    if budget.over():
                        break
                    batch = pipelines.cut(cuts)
                    scores = scorer(cell.search, batch)
                    keep = min(_ESTIMATED, len(scores))
                    best.extend(
                        _Seen(float(scores[row]), cell, _row(batch, row))
                        for row in np.argpartition(scores, keep - 1)[:keep]
                        if scores[row] < BREACH
                    )
                    best.sort(key=lambda seen: seen.score)
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


def _splits(problem: Problem, depth: int) -> list[tuple[int, ...]]:
    units, found = problem.arch.num_units, []
    for inner in combinations(range(1, units), depth - 1):
        cuts = (0, *inner, units)
        sizes = [b - a for a, b in pairwise(cuts)]
        if problem.search_space.uneven_layers or max(sizes) - min(sizes) <= 1:
            found.append(cuts)
    return found


@dataclass(frozen=True)
class _Pipelines:
    """Ways to fill the pipelines of a cell: `kinds` [B, P, C], `width` and `counts` [B, C]."""

    kinds: Ints
    width: Ints
    counts: Ints

    def cut(self, cuts: tuple[int, ...]) -> PlanBatch:
        """Return the plans with one split of the units."""
        repeated = np.repeat(np.array([cuts], dtype=np.int64), len(self.width), axis=0)
        return PlanBatch(repeated, self.kinds, self.width, self.counts)


@dataclass(frozen=True)
class _Seen:
    """One scored plan, alone in its batch."""

    score: float
    cell: Cell
    batch: PlanBatch


def _row(batch: PlanBatch, row: int) -> PlanBatch:
    """Return one plan of a batch, copied so that the batch can go."""
    one = slice(row, row + 1)
    return replace(
        batch,
        cuts=batch.cuts[one].copy(),
        kinds=batch.kinds[one].copy(),
        width=batch.width[one].copy(),
        num_microbatches=batch.num_microbatches[one].copy(),
    )


# Runs of like pipelines: (the kinds of its stages, how many, microbatches of each).
_Run = tuple[tuple[int, ...], int, int]


def _arrangements(problem: Problem, cell: Cell) -> Iterator[tuple[int, _Pipelines]]:
    """Yield (depth, ways to fill the pipelines) in chunks of as many runs."""
    for depth in _depths(problem):
        if depth * cell.dp > int(cell.search.room.sum()) or depth > problem.arch.num_units:
            continue
        chunks: dict[int, list[tuple[_Run, ...]]] = {}
        for runs in _fillings(problem, cell, depth):
            chunk = chunks.setdefault(len(runs), [])
            chunk.append(runs)
            if len(chunk) >= _CHUNK:
                yield depth, _stacked(chunks.pop(len(runs)))
        for chunk in chunks.values():
            yield depth, _stacked(chunk)


def _stacked(chunk: list[tuple[_Run, ...]]) -> _Pipelines:
    kinds = np.array([[run[0] for run in runs] for runs in chunk], dtype=np.int64)
    return _Pipelines(
        np.ascontiguousarray(kinds.transpose(0, 2, 1)),
        np.array([[run[1] for run in runs] for runs in chunk], dtype=np.int64),
        np.array([[run[2] for run in runs] for runs in chunk], dtype=np.int64),
    )


def _fillings(problem: Problem, cell: Cell, depth: int) -> Iterator[tuple[_Run, ...]]:
    """Yield every choice of pipelines that the pool holds, like ones side by side.

    The first pipelines take the larger microbatch count, so they are chosen apart.
    """
    usable = np.flatnonzero(cell.search.tables.usable).tolist()
    pipelines = list(product(usable, repeat=depth))
    use = [_use(cell, pipeline) for pipeline in pipelines]
    room = tuple(cell.search.room.tolist())
    low, extra = divmod(cell.total, cell.dp)
    for first, left in _multisets(use, extra, room):
        for second, _ in _multisets(use, cell.dp - extra, left):
            chosen = [pipelines[n] for n in (*first, *second)]
            if not _allowed(problem, cell, chosen):
                continue
            larger = _runs(pipelines, first, low + 1)
            smaller = _runs(pipelines, second, low)
            for one in _orders(larger):
                yield from ((*one, *two) for two in _orders(smaller))


def _use(cell: Cell, pipeline: tuple[int, ...]) -> tuple[int, ...]:
    """Return the GPUs that a pipeline takes of each pool."""
    search = cell.search
    use = [0] * len(search.room)
    for kind in pipeline:
        use[int(search.pool[kind])] += int(search.tables.tp[kind])
    return tuple(use)


def _multisets(
    use: Sequence[tuple[int, ...]], size: int, room: tuple[int, ...], start: int = 0
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (ascending indices into `use`, what is left of the room) of every multiset."""
    if size == 0:
        yield (), room
        return
    for n in range(start, len(use)):
        left = tuple(have - taken for have, taken in zip(room, use[n], strict=True))
        if min(left) >= 0:
            for rest, after in _multisets(use, size - 1, left, n):
                yield (n, *rest), after


def _runs(
    pipelines: Sequence[tuple[int, ...]], chosen: tuple[int, ...], count: int
) -> tuple[_Run, ...]:
    return tuple((pipelines[n], len(list(same)), count) for n, same in groupby(chosen))


def _orders(runs: tuple[_Run, ...]) -> Iterator[tuple[_Run, ...]]:
    if len(runs) > _MOST_ORDERED:
        yield runs
        return
    yield from permutations(runs)


def _allowed(problem: Problem, cell: Cell, pipelines: Sequence[tuple[int, ...]]) -> bool:
    space, tables = problem.search_space, cell.search.tables
    if not space.tp_per_stage:
        tps = {int(tables.tp[kind]) for pipeline in pipelines for kind in pipeline}
        if len(tps) > 1:
            return False
    if space.mixed_types_in_stage:
        return True
    stages = zip(*pipelines, strict=True)
    return all(len({tables.kinds[kind].gpu for kind in stage}) == 1 for stage in stages)


def _best_legal(problem: Problem, best: Sequence[_Seen]) -> Plan | None:
    for seen in best:
        tables, batch = seen.cell.search.tables, seen.batch
        columns = [
            Column(
                tuple(tables.kinds[kind] for kind in batch.kinds[0, :, c]),
                int(batch.width[0, c]),
                tables.microbatch,
                int(batch.num_microbatches[0, c]),
            )
            for c in range(batch.width.shape[1])
        ]
        cuts = tuple(batch.cuts[0].tolist())
        plan = plan_of(problem.arch.name, cuts, columns, problem.training.global_batch)
        if not estimate(problem, plan).violations:
            return plan
    return None
