"""A search for the best plan with a proven bound on what is possible.

The dynamic programme and annealing give an incumbent; Lagrangian bounds discard the cells that
can't beat it; the positional programme and a CP-SAT model decide what the bounds leave open. The
plan's value is always the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.solve.beside import Beside
from sailor.solve.cell import Cell
from sailor.solve.certificate import Certificate
from sailor.solve.closing import decide_cells
from sailor.solve.cp_sat.flow import FlowRules, close_cells
from sailor.solve.crew import Workers, search_cpu_s
from sailor.solve.dynamic import MAX_STAGES, Search, searched
from sailor.solve.explain import why_nothing_fits
from sailor.solve.grid import cells
from sailor.solve.heuristics.refine import Scored
from sailor.solve.incumbent import Incumbent, annealed, refined
from sailor.solve.last_word import MOST_S, finalists
from sailor.solve.mixtures import add_mixtures
from sailor.solve.rules import H3, active_rules
from sailor.solve.search import PROVEN_GAP, Budget

WITHOUT_CP_SAT = "the CP-SAT step is left out: ortools isn't installed"
# Boxes a cell of the Lagrangian bound: before annealing, and before each round of CP-SAT.
_FIRST_BOXES, _BOXES = 20, (40, 120, 400)
_MONEY_BOXES = 120  # where dollars count, boxes have three ranges
_EARLY = 7  # of the dynamic programme's plans that the event engine looks at, beside its best
_FIRST_FINISHED = 2  # sketches, as soon as there are some
_FLOW_S = (0.5, 3.0, 10.0)  # of solving a cell, in CP-SAT's own machine-independent seconds
_LEAST_POLISH_S = 1.0  # CPU seconds
# With more cells open than that, so many rounds of boxes and annealing come before deciding.
_MANY, _ROUNDS = 100, 5
# Over many pools and in several processes, with more cells open than that, one process anneals.
_BESIDE = 10
_STEP = 0.02  # of the bound, by which cells over many pools are decided


@dataclass(frozen=True)
class Effort:
    """How hard to try: `gap` ends the search early; not `thorough`: no annealing, no CP-SAT."""

    gap: float = PROVEN_GAP
    thorough: bool = True


def _has_cp_sat() -> bool:
    """Return whether OR-tools can be imported; without it the bounds and annealing remain."""
    return find_spec("ortools") is not None


class CertifiedSearch:
    """One search: incumbents, bounds, and what closes the gap between them."""

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
        self.searches: list[Search] = []
        self.certificate: Certificate | None = None
        self._cells_left = 0  # when bounds were last reported
        self.beside: Beside[list[Scored]] | None = None

    def run(self) -> SearchOutcome:
        """Search, bound, close, and report."""
        self._dynamic()
        if self.effort.thorough and self.incumbent.plan is None:
            self._anneal(seed=self.limits.seed)
        if self.incumbent.plan is None:
            return self._nothing()
        if self.effort.thorough and self.problem.search_space.microbatch_shares:
            for search in self.searches:
                add_mixtures(search, self._promising(search), self.limits.seed)
                self.incumbent.offer(search.found.best, search.pools)
            self._report("unlike pipelines")
        self._bound_first()
        self._improve(_FIRST_BOXES)
        if self.certificate is not None and self.certificate.money.counts:
            self._improve(_MONEY_BOXES)  # which closes most cells, at little cost
        self._spread()
        if self.certificate is None:
            return self._search(None)
        beside = self._decides_beside()
        with Workers(self.processes, self.certificate, beside=beside) as workers:
            if not beside:
                return self._search(workers)
            with Beside[list[Scored]]() as self.beside:
                return self._search(workers)

    def _decides_beside(self) -> bool:
        """Return whether a crew decides cells while this process anneals, of many over pools."""
        certificate, effort = self.certificate, self.effort
        if certificate is None or self.processes < 2 or not effort.thorough:
            return False
        merged = any(part.tables.all_regions for part in certificate.parts)
        return merged and certificate.num_open(effort.gap) > _BESIDE

    def _spread(self) -> None:
        """Look a little closer at all cells while too many are open to decide one by one."""
        if self._decides_beside():
            self._improve(_BOXES[0])
            return
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
        for search in searched(
            self.problem, self.rules, self.budget, self.on_progress, self._first_plan
        ):
            self.searches.append(search)
            self.incumbent.offer(search.found.best, search.pools)
        self._report("dynamic programme")
        plan = self.incumbent.plan
        if plan is not None:
            sketches = [(search.found.best, search.pools) for search in self.searches]
            others = finalists(self.problem, sketches, plan, self.finalists_s)
            self.early = (plan, *others[:_EARLY])

    def _first_plan(self, search: Search) -> None:
        """Finish a few sketches while the dynamic programme goes on."""
        if self.incumbent.offer(search.found.best[:_FIRST_FINISHED], search.pools):
            self._report("first plan")

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
        for search in self.searches:
            if self.budget.over():
                return
            found = annealed(search, self._promising(search), seed, self.budget.over)
            self._refine(search, found)
        self._report("annealing")

    def _anneal_beside(self) -> None:
        """Take what annealing has found meanwhile, and go on with the next seed."""
        beside, search = self.beside, self.searches[0]
        if beside is None or beside.busy or self.budget.over():
            return
        found = beside.taken()
        if found:
            self._take(search, found)
            self._report("annealing")
        seed = self.limits.seed + beside.begun
        # The crew's answers close cells meanwhile; which are promising is told at the beginning.
        chosen = self._promising(search)

        def work(over: Callable[[], bool]) -> list[Scored]:
            return refined(search, annealed(search, chosen, seed, over), over)

        beside.begin(work)

    def _promising(self, search: Search) -> list[Cell]:
        """Return the cells of a search that may hold something better than the incumbent."""
        grid = cells(self.problem, search.pools, self.rules | {H3})
        if self.problem.objective is Objective.MAX_THROUGHPUT:
            grid = [cell for cell in grid if cell.bound_s() < self.incumbent.value] or grid
        if self.certificate is None:
            return grid
        alive: set[tuple[int, int]] = set()
        for part in self.certificate.parts:
            for number in part.open(self.certificate.cutoff):
                alive.update((part.tables.microbatch, dp) for dp in part.cells[number].degrees)
        return [c for c in grid if (c.search.tables.microbatch, c.dp) in alive] or grid

    def _refine(self, search: Search, sketches: Sequence[Scored]) -> None:
        """Improve the best sketches of the best cells by local search, and finish them."""
        self._take(search, refined(search, sketches, self.budget.over))

    def _take(self, search: Search, sketches: Sequence[Scored]) -> None:
        """Finish the best sketches of all."""
        search.found.add(sketches)
        self.incumbent.offer(search.found.best, search.pools)

    def _decide(self, workers: Workers | None) -> None:
        """Let the positional programme find the best pipeline of the cells that are open.

        First only where a plan could be better by more than the wanted gap. Better plans are
        looked for within the gap, too, for as long as the search has taken until then.
        """
        if workers is None or not self.effort.thorough or self._good_enough():
            return
        if self.beside is not None:
            self._decide_upwards(workers)
        self._decide_within(self.effort.gap, self.budget, workers)
        if self.effort.gap > PROVEN_GAP:
            took_s = self.budget.clock() - self.began_s
            more = self.budget.within(max(took_s, _LEAST_POLISH_S))
            self._decide_within(PROVEN_GAP, more, workers)

    def _decide_upwards(self, workers: Workers) -> None:
        """Decide cells in steps of the bound, the weakest first: little is proven soonest."""
        certificate = self.certificate
        while certificate is not None and not self.budget.over():
            wanted = self.incumbent.value * (1 - self.effort.gap)
            step = certificate.value * (1 + _STEP)
            if step >= wanted:
                return
            self._decide_within(1 - step / self.incumbent.value, self.budget, workers)
            if certificate.value < step * (1 - 1e-6):
                return

    def _decide_within(self, gap: float, budget: Budget, workers: Workers) -> None:
        certificate = self.certificate
        if certificate is None:
            return
        self._anneal_beside()
        for sketches in decide_cells(certificate, self.searches[0], gap, budget, workers):
            self._anneal_beside()
            if sketches and self.beside is None:
                self._refine(self.searches[0], sketches)
            elif sketches:
                # Of merged regions they say little, and local search would take annealing's time.
                self.searches[0].found.add(sketches)
            certificate.cutoff = min(certificate.cutoff, self.incumbent.value)
            self._report("positional programme")

    def _flow(self, deterministic_s: float, workers: Workers | None) -> None:
        """Let CP-SAT decide the cells that the bounds leave open."""
        certificate = self.certificate
        if certificate is None or workers is None or self._good_enough() or not _has_cp_sat():
            return
        for sketches in close_cells(
            certificate,
            self.searches[0],
            FlowRules(self.effort.gap, deterministic_s, self.limits.seed),
            self.budget,
            workers,
        ):
            if sketches:
                # A relaxed solution may break the room or memory; its neighbours are what counts.
                self._refine(self.searches[0], sketches)
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
        return sum(search.scorer.evaluations for search in self.searches)

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
        return SearchOutcome(
            self.incumbent.plan,
            proven=proven,
            bound=None if bound is None else self.incumbent.objective(bound),
            rules=_rules(self.certificate, bound),
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
            [(search.found.best, search.pools) for search in self.searches],
            self.incumbent.plan,
            self.finalists_s,
        )
        return tuple(p for p in dict.fromkeys((*self.early, *late)) if p != self.incumbent.plan)


def _rules(certificate: Certificate | None, bound: float | None) -> tuple[str, ...]:
    """Return the sentences that say what the bound holds for."""
    if certificate is None:
        return ("no bound: unequal microbatch shares are outside its space",)
    if bound is None:
        return ("no bound: stopped before the first one",)
    left_out = () if _has_cp_sat() else (WITHOUT_CP_SAT,)
    return (
        *certificate.rules(),
        *left_out,
        f"proven means within {PROVEN_GAP:.2%} of the bound",
    )
