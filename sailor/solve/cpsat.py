"""Planner `cpsat`: the best plan that can be found, with a proven bound on what is possible.

The dynamic programme and annealing give an incumbent; Lagrangian bounds discard the cells that
can't beat it; the positional programme and a CP-SAT model decide what the bounds leave open. The
plan's value is always the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.solve.anneal import AnnealRules, anneal
from sailor.solve.cell import BREACH, Cell, Scorer
from sailor.solve.certificate import Certificate
from sailor.solve.closing import decide_cells
from sailor.solve.crew import Workers, search_cpu_s
from sailor.solve.dynamic import MAX_STAGES, Search, searched
from sailor.solve.explain import why_nothing_fits
from sailor.solve.finish import finish
from sailor.solve.flow import FlowRules, close_cells
from sailor.solve.grid import cells
from sailor.solve.last_word import MOST_S, finalists
from sailor.solve.mixtures import add_mixtures
from sailor.solve.pools import Pool
from sailor.solve.refine import Scored, refine
from sailor.solve.rules import H3, active_rules
from sailor.solve.search import PROVEN_GAP, Budget

WITHOUT_CP_SAT = "the CP-SAT step is left out: ortools isn't installed"
# Boxes a cell of the Lagrangian bound: before annealing, and before each round of CP-SAT.
_FIRST_BOXES, _BOXES = 20, (40, 120, 400)
_MONEY_BOXES = 120  # where dollars count, boxes have three ranges
_EARLY = 7  # of the dynamic programme's plans that the event engine looks at, beside its best
_FLOW_S = (0.5, 3.0, 10.0)  # of solving a cell, in CP-SAT's own machine-independent seconds
_LEAST_POLISH_S = 1.0  # CPU seconds
_CELLS_REFINED, _SEEDS = 6, 6
# With more cells open than that, so many rounds of boxes and annealing come before deciding.
_MANY, _ROUNDS = 100, 5


@dataclass(frozen=True)
class Effort:
    """How hard to try: `gap` ends the search early; not `thorough`: no annealing, no CP-SAT."""

    gap: float = PROVEN_GAP
    thorough: bool = True


class _Scope:
    """One set of pools with the best sketches found over it."""

    def __init__(self, pools: tuple[Pool, ...], scorer: Scorer, search: Search) -> None:
        self.pools, self.scorer, self.search = pools, scorer, search


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


def _has_cp_sat() -> bool:
    """Return whether OR-tools can be imported; without it the bounds and annealing remain."""
    return find_spec("ortools") is not None


class CpSatPlanner:
    """Incumbents, bounds, and a CP-SAT model for what they leave open."""

    name = "cpsat"

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort or Effort()

    def unsupported(self, problem: Problem) -> Sequence[str]:
        """Return nothing: any problem can be taken."""
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        """Return the best plan found, and the bound; see the module."""
        effort = self.effort if limits.gap is None else replace(self.effort, gap=limits.gap)
        if problem.objective is Objective.MIN_COST:
            # A gap is relative to the bound; the search takes it of the plan, which is above.
            effort = replace(effort, gap=effort.gap / (1 + effort.gap))
        return _Run(problem, limits, effort, on_progress, should_stop).run()


class _Run:
    """One search."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        effort: Effort,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.problem, self.limits, self.effort = problem, limits, effort
        self.on_progress = on_progress
        self.rules = active_rules(limits.disabled_rules)
        self.budget = Budget(limits.wall_s, should_stop, work_s=limits.work_s, clock=search_cpu_s)
        counted = limits.work_s is not None
        self.processes, self.finalists_s = (1, inf) if counted else (limits.processes, MOST_S)
        self.began_s = self.budget.clock()
        self.early: tuple[Plan, ...] = ()
        self.incumbent = Incumbent(problem)
        self.scopes: list[_Scope] = []
        self.certificate: Certificate | None = None
        self._cells_left = 0  # when bounds were last reported

    def run(self) -> SearchOutcome:
        """Search, bound, close, and report."""
        self._dynamic()
        if self.effort.thorough and self.incumbent.plan is None:
            self._anneal(seed=self.limits.seed)
        if self.incumbent.plan is None:
            return self._nothing()
        if self.effort.thorough and self.problem.search_space.microbatch_shares:
            for scope in self.scopes:
                add_mixtures(scope.search, self._promising(scope), self.limits.seed)
                self.incumbent.offer(scope.search.found.best, scope.pools)
            self._report("unlike pipelines")
        self._bound_first()
        self._improve(_FIRST_BOXES)
        if self.certificate is not None and self.certificate.money.counts:
            self._improve(_MONEY_BOXES)  # which closes most cells, at little cost
        self._spread()
        if self.certificate is None:
            return self._search(None)
        with Workers(self.processes, self.certificate) as workers:
            return self._search(workers)

    def _spread(self) -> None:
        """Look a little closer at all cells while too many are open to decide one by one."""
        for turn in range(_ROUNDS if self.effort.thorough else 0):
            certificate = self.certificate
            if certificate is None or certificate.num_open(self.effort.gap) <= _MANY:
                return
            # Over few pools cells are decided sooner than this would take.
            if not any(part.tables.all_regions for part in certificate.parts):
                return
            if turn == 0:
                self._improve(_BOXES[0])
            self._anneal(seed=self.limits.seed + turn)

    def _search(self, workers: Workers | None) -> SearchOutcome:
        """Close what the first bounds leave open."""
        self._decide(workers)
        for turn, boxes in enumerate(_BOXES if self.effort.thorough else ()):
            self._improve(boxes)
            if turn == 0 and not self._good_enough():
                # Far fewer cells are open now, so the same effort looks closer.
                self._anneal(seed=self.limits.seed + 1)
                self._improve(boxes)
            self._flow(_FLOW_S[turn], workers)
        return self._outcome()

    def _improve(self, boxes: int) -> None:
        if self.certificate is not None and not self._good_enough() and not self.budget.over():
            self._cells_left = self.certificate.num_open(self.effort.gap)
            self.certificate.improve(
                self.incumbent.value,
                self.effort.gap,
                boxes,
                self._watched,
                lambda: self._report("bounds"),
            )
            self._report("bounds")

    def _watched(self) -> bool:
        """Report when bounds have closed cells; return whether the search must end now."""
        left = 0 if self.certificate is None else self.certificate.num_open(self.effort.gap)
        if left < self._cells_left:
            self._cells_left = left
            self._report("bounds")
        return self.budget.over()

    def _dynamic(self) -> None:
        for search in searched(self.problem, self.rules, self.budget, self.on_progress):
            self.scopes.append(_Scope(search.pools, search.scorer, search))
            self.incumbent.offer(search.found.best, search.pools)
        self._report("dynamic programme")
        plan = self.incumbent.plan
        if plan is not None:
            sketches = [(scope.search.found.best, scope.pools) for scope in self.scopes]
            others = finalists(self.problem, sketches, plan, self.finalists_s)
            self.early = (plan, *others[:_EARLY])

    def _bound_first(self) -> None:
        """Take a first look at all cells with the incumbent as the cutoff."""
        self.certificate = Certificate(self.problem, MAX_STAGES)
        if not self.certificate.covers or not self.certificate.parts:
            self.certificate = None
            return
        self.certificate.first_look(self.incumbent.value, self.budget.over)
        self._report("first bounds")

    def _good_enough(self) -> bool:
        if self.certificate is None or self.incumbent.plan is None:
            return False
        return self.certificate.value >= self.incumbent.value * (1 - self.effort.gap)

    def _anneal(self, seed: int) -> None:
        for scope in self.scopes:
            if self.budget.over():
                return
            chosen = self._promising(scope)
            stage, units = scope.search.stage_rules, self.problem.arch.num_units
            found = anneal(
                chosen,
                scope.scorer,
                AnnealRules(
                    max_stages=min(stage.max_stages, 14),
                    stages=stage.stages,
                    even=stage.even,
                    same_tp=not self.problem.search_space.tp_per_stage,
                    first_steps=min(60, 4 * units),
                    second_steps=min(240, 10 * units),
                ),
                seed,
                self.budget.over,
            )
            self._refine(scope, found)
        self._report("annealing")

    def _promising(self, scope: _Scope) -> list[Cell]:
        """Return the cells of a scope that may hold something better than the incumbent."""
        grid = cells(self.problem, scope.pools, self.rules | {H3})
        if self.problem.objective is Objective.MAX_THROUGHPUT:
            grid = [cell for cell in grid if cell.bound_s() < self.incumbent.value] or grid
        if self.certificate is None:
            return grid
        alive: set[tuple[int, int]] = set()
        for part in self.certificate.parts:
            for number in part.open(self.certificate.cutoff):
                alive.update((part.tables.microbatch, dp) for dp in part.cells[number].degrees)
        return [c for c in grid if (c.search.tables.microbatch, c.dp) in alive] or grid

    def _refine(self, scope: _Scope, sketches: Sequence[Scored]) -> None:
        """Improve the best sketches of the best cells by local search, and finish them."""
        by_cell: dict[tuple[int, int], list[Scored]] = {}
        for scored in sorted(sketches, key=lambda one: one.score):
            if scored.score < BREACH * 1e5:
                key = (id(scored.cell.search), scored.cell.dp)
                by_cell.setdefault(key, []).append(scored)
        for seeds in list(by_cell.values())[:_CELLS_REFINED]:
            if self.budget.over():
                break
            better = refine(
                seeds[:_SEEDS],
                scope.scorer,
                scope.search.stage_rules,
                mixed=scope.search.mixed,
                width=_SEEDS,
                max_rounds=40,
                should_stop=self.budget.over,
            )
            scope.search.found.add(better)
        scope.search.found.add([one for seeds in by_cell.values() for one in seeds[:1]])
        self.incumbent.offer(scope.search.found.best, scope.pools)

    def _decide(self, workers: Workers | None) -> None:
        """Let the positional programme find the best pipeline of the cells that are open.

        First only where a plan could be better by more than the wanted gap. Better plans are
        looked for within the gap, too, for as long as the search has taken until then.
        """
        if workers is None or not self.effort.thorough or self._good_enough():
            return
        self._decide_within(self.effort.gap, self.budget, workers)
        if self.effort.gap > PROVEN_GAP:
            took_s = self.budget.clock() - self.began_s
            more = self.budget.within(max(took_s, _LEAST_POLISH_S))
            self._decide_within(PROVEN_GAP, more, workers)

    def _decide_within(self, gap: float, budget: Budget, workers: Workers) -> None:
        certificate = self.certificate
        if certificate is None:
            return
        for sketches in decide_cells(certificate, self.scopes[0].search, gap, budget, workers):
            if sketches:
                self._refine(self.scopes[0], sketches)
                certificate.cutoff = min(certificate.cutoff, self.incumbent.value)
            self._report("positional programme")

    def _flow(self, deterministic_s: float, workers: Workers | None) -> None:
        """Let CP-SAT decide the cells that the bounds leave open."""
        certificate = self.certificate
        if certificate is None or workers is None or self._good_enough() or not _has_cp_sat():
            return
        for sketches in close_cells(
            certificate,
            self.scopes[0].search,
            FlowRules(self.effort.gap, deterministic_s, self.limits.seed),
            self.budget,
            workers,
        ):
            if sketches:
                # A relaxed solution may break the room or memory; its neighbours are what counts.
                self._refine(self.scopes[0], sketches)
                certificate.cutoff = min(certificate.cutoff, self.incumbent.value)
            self._report("CP-SAT")
            if self._good_enough():
                return

    def _bound(self) -> float | None:
        """Return the bound in seconds or dollars; None before anything is known."""
        if self.certificate is None or self.certificate.value <= 0:
            return None
        return min(self.certificate.value, self.incumbent.value)

    def _report(self, what: str) -> None:
        incumbent, bound = self.incumbent, self._bound()
        if incumbent.plan is None:
            self.on_progress(Progress(what, evaluations=self._evaluations()))
            return
        value = incumbent.objective(incumbent.value)
        reached = None if bound is None else incumbent.objective(bound)
        self.on_progress(
            Progress(
                what,
                value,
                self._evaluations(),
                bound=reached,
                gap=None if reached is None else abs(value - reached) / reached,
                cells_left=(
                    None
                    if bound is None or self.certificate is None
                    else self.certificate.num_open(self.effort.gap)
                ),
            )
        )

    def _evaluations(self) -> int:
        return sum(scope.scorer.evaluations for scope in self.scopes)

    def _nothing(self) -> SearchOutcome:
        reasons, proven = why_nothing_fits(self.problem)
        return SearchOutcome(
            None,
            proven=proven,
            reasons=tuple(reasons),
            stopped_early=self.budget.exceeded,
            evaluations=self._evaluations(),
        )

    def _outcome(self) -> SearchOutcome:
        bound = self._bound()
        proven = bound is not None and bound >= self.incumbent.value * (1 - PROVEN_GAP)
        rules: tuple[str, ...] = ()
        if self.certificate is not None and bound is None:
            rules = ("no bound: stopped before the first one",)
        elif self.certificate is not None:
            left_out = () if _has_cp_sat() else (WITHOUT_CP_SAT,)
            rules = (
                *self.certificate.rules(),
                *left_out,
                f"proven means within {PROVEN_GAP:.2%} of the bound",
            )
        else:
            rules = ("no bound: unequal microbatch shares are outside its space",)
        return SearchOutcome(
            self.incumbent.plan,
            proven=proven,
            bound=None if bound is None else self.incumbent.objective(bound),
            rules=rules,
            stopped_early=self.budget.exceeded,
            evaluations=self._evaluations(),
            finalists=self._finalists(),
        )

    def _finalists(self) -> tuple[Plan, ...]:
        """Return the plans for the event engine, the dynamic programme's own before the others.

        What is searched after it may push out of sight what the engine likes best.
        """
        late = finalists(
            self.problem,
            [(scope.search.found.best, scope.pools) for scope in self.scopes],
            self.incumbent.plan,
            self.finalists_s,
        )
        return tuple(p for p in dict.fromkeys((*self.early, *late)) if p != self.incumbent.plan)
