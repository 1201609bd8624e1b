"""The last step of a search: zones for the best sketches, exact values, the best legal plan."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.closed_form import evaluate
from sailor.sim.columns import Column, batch_of_one, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.sim.tables import StageTables
from sailor.solve.cell import BREACH, Scorer
from sailor.solve.pools import Pool
from sailor.solve.realise import realisations
from sailor.solve.refine import Scored
from sailor.solve.shares import with_shares

# Sketches that get zones, and finished plans that are estimated in full.
_FINISHED = 12
_ESTIMATED = 24


def finish(
    problem: Problem, best: Sequence[Scored], pools: Sequence[Pool]
) -> tuple[float, Plan] | None:
    """Return the best plan that breaks nothing, with its value (seconds or dollars)."""
    scorer = Scorer(problem)
    kinds = tuple(
        sorted({kind for pool in pools for slot in pool.slots for kind in slot.kinds})
    )
    tables: dict[int, StageTables] = {}
    candidates: list[tuple[float, int, tuple[int, ...], list[Column]]] = []
    for scored in best[:_FINISHED]:
        if candidates and scored.score > min(candidates)[0]:
            # Zones only add to what a sketch takes.
            break
        size = scored.cell.search.tables.microbatch
        if size not in tables:
            tables[size] = cost_model(problem.cost_model).tables(problem, kinds, size)
        for cuts, columns in realisations(problem, scored, pools):
            variants = [columns]
            if problem.search_space.microbatch_shares:
                shared = with_shares(tables[size], cuts, columns)
                variants += [] if shared is None else [shared]
            for variant in variants:
                value = _value(scorer, tables[size], cuts, variant, kinds)
                if value < BREACH:
                    candidates.append((value, len(candidates), cuts, variant))
    found: tuple[float, Plan] | None = None
    for value, _, cuts, columns in sorted(candidates, key=lambda item: item[:2])[:_ESTIMATED]:
        # The estimate counts whole nodes, so it is never below the kernel's value.
        if found is not None and value >= found[0]:
            break
        plan = plan_of(problem.arch.name, cuts, columns, problem.training.global_batch)
        exact = estimate(problem, plan)
        if exact.violations:
            continue
        precise = (
            exact.iteration_s
            if problem.objective is Objective.MAX_THROUGHPUT
            else exact.usd_per_iteration
        )
        if found is None or precise < found[0]:
            found = (precise, plan)
    return found


def _value(
    scorer: Scorer,
    tables: StageTables,
    cuts: tuple[int, ...],
    columns: Sequence[Column],
    kinds: Sequence[WorkerKind],
) -> float:
    batch = batch_of_one(cuts, columns, kinds)
    found = evaluate(tables, batch, scorer.headroom_bytes)
    return float(scorer.of(found, found.egress_usd * 0.0)[0])
