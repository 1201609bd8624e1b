"""The last step of a search: zones for the best sketches, exact values, the best legal plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.closed_form import evaluate
from sailor.sim.columns import Column, batch_of_one, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.sim.tables import StageTables
from sailor.solve import work
from sailor.solve.cell import BREACH, Scorer
from sailor.solve.heuristics.realise import realisations
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.shares import with_shares
from sailor.solve.pools import Pool

# Sketches that get zones: so many at least, and all that may be better as long as their replicas
# are few. A sketch doesn't show what its zones cost, which may be more than half of the plan.
_FINISHED, _MOST_REPLICAS = 12, 200_000
_ESTIMATED = 200


@dataclass(frozen=True)
class _Candidate:
    """A plan over real kinds, and the kernel's value of it."""

    value: float
    cuts: tuple[int, ...]
    columns: tuple[Column, ...]


def finish(
    problem: Problem, best: Sequence[Scored], pools: Sequence[Pool]
) -> tuple[float, Plan] | None:
    """Return the best plan that breaks nothing, with its value (seconds or dollars)."""
    found: tuple[float, Plan] | None = None
    candidates = sorted(_candidates(problem, best, pools), key=lambda one: one.value)
    for candidate in candidates[:_ESTIMATED]:
        # The estimate counts whole nodes, so it is never below the kernel's value.
        if found is not None and candidate.value >= found[0]:
            break
        work.add(work.PLAN_S)
        plan = plan_of(
            problem.arch.name,
            candidate.cuts,
            candidate.columns,
            problem.training.global_batch,
        )
        exact = estimate(problem, plan)
        if exact.violations:
            continue
        value = (
            exact.iteration_s
            if problem.objective is Objective.MAX_THROUGHPUT
            else exact.usd_per_iteration
        )
        if found is None or value < found[0]:
            found = (value, plan)
    return found


def _candidates(
    problem: Problem, best: Sequence[Scored], pools: Sequence[Pool]
) -> list[_Candidate]:
    scorer = Scorer(problem)
    kinds = tuple(sorted({kind for pool in pools for slot in pool.slots for kind in slot.kinds}))
    tables: dict[int, StageTables] = {}
    found: list[_Candidate] = []
    least, replicas = np.inf, 0
    for number, scored in enumerate(best):
        # Zones only add to what a sketch takes.
        if scored.score > least or (number >= _FINISHED and replicas > _MOST_REPLICAS):
            break
        size = scored.cell.search.tables.microbatch
        if size not in tables:
            tables[size] = cost_model(problem.cost_model).tables(problem, kinds, size)
        for cuts, columns in realisations(problem, scored, pools):
            work.add(work.PLAN_S)
            replicas += (len(cuts) - 1) * scored.cell.dp
            variants = [columns]
            if problem.search_space.microbatch_shares:
                shared = with_shares(tables[size], cuts, columns)
                variants += [] if shared is None else [shared]
            for variant in variants:
                value = _value(scorer, tables[size], cuts, variant, kinds)
                found.append(_Candidate(value, cuts, tuple(variant)))
                least = min(least, value)
    return [one for one in found if one.value < BREACH]


def _value(
    scorer: Scorer,
    tables: StageTables,
    cuts: tuple[int, ...],
    columns: Sequence[Column],
    kinds: Sequence[WorkerKind],
) -> float:
    batch = batch_of_one(cuts, columns, kinds)
    found = evaluate(tables, batch, scorer.headroom_bytes)
    return float(scorer.of(found, np.zeros(1))[0])
