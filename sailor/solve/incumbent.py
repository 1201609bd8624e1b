"""The best plan so far, and how annealing and local search look for a better one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.solve.cell import BREACH, Cell
from sailor.solve.dynamic import Search
from sailor.solve.heuristics.anneal import AnnealRules, anneal
from sailor.solve.heuristics.finish import finish
from sailor.solve.heuristics.refine import Scored, refine
from sailor.solve.pools import Pool

_CELLS_REFINED, _SEEDS = 6, 6


class Incumbent:
    """The best finished plan so far; values in seconds or dollars an iteration."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.value = float("inf")
        self.plan: Plan | None = None

    def offer(self, sketches: Sequence[Scored], pools: Sequence[Pool]) -> bool:
        """Finish sketches; return whether one became the best plan."""
        done = finish(self.problem, sketches, pools)
        if done is None or done[0] >= self.value:
            return False
        self.value, self.plan = done
        return True

    def objective(self, value: float) -> float:
        """Return seconds or dollars in the units of the objective."""
        return 1.0 / value if self.problem.objective is Objective.MAX_THROUGHPUT else value


def annealed(
    search: Search, chosen: Sequence[Cell], seed: int, over: Callable[[], bool]
) -> list[Scored]:
    """Anneal the chosen cells of a search; return the sketches found, best first."""
    problem, stage = search.problem, search.stage_rules
    units = problem.arch.num_units
    return anneal(
        chosen,
        search.scorer,
        AnnealRules(
            max_stages=min(stage.max_stages, 14),
            stages=stage.stages,
            even=stage.even,
            same_tp=not problem.search_space.tp_per_stage,
            first_steps=min(60, 4 * units),
            second_steps=min(240, 10 * units),
        ),
        seed,
        over,
    )


def refined(search: Search, sketches: Sequence[Scored], over: Callable[[], bool]) -> list[Scored]:
    """Return what local search makes of the best sketches of the best cells, and those."""
    found: list[Scored] = []
    by_cell: dict[tuple[int, int], list[Scored]] = {}
    for scored in sorted(sketches, key=lambda one: one.score):
        if scored.score < BREACH * 1e5:
            key = (id(scored.cell.search), scored.cell.dp)
            by_cell.setdefault(key, []).append(scored)
    for seeds in list(by_cell.values())[:_CELLS_REFINED]:
        if over():
            break
        found += refine(
            seeds[:_SEEDS],
            search.scorer,
            search.stage_rules,
            mixed=search.mixed,
            width=_SEEDS,
            max_rounds=40,
            should_stop=over,
        )
    return found + [one for seeds in by_cell.values() for one in seeds[:1]]
