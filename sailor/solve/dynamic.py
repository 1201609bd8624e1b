"""Planner `dynamic`: the Sailor paper's decomposition, with uneven stages over unlike GPUs.

Cells (microbatch, dp) are visited best bound first. In each the stage programme proposes
pipelines, which the closed form scores exactly and a local search improves, mixed stages
included. The best sketches over all cells get zones; the finished plans are scored once more by
the simulator's estimate, and the best one that breaks nothing is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.solve.cell import BREACH, Cell, Scorer
from sailor.solve.explain import why_nothing_fits
from sailor.solve.grid import cells
from sailor.solve.heuristics.anneal import AnnealRules, anneal
from sailor.solve.heuristics.filled import filled
from sailor.solve.heuristics.finish import finish
from sailor.solve.heuristics.found import Found
from sailor.solve.heuristics.probe import probe
from sailor.solve.heuristics.refine import Scored, refine, score_pipelines, with_moved_cuts
from sailor.solve.heuristics.stage_dp import Pipeline, StageProgramme, StageRules
from sailor.solve.last_word import MOST_S, finalists
from sailor.solve.pools import Pool
from sailor.solve.rules import H4, RULES, active_rules
from sailor.solve.scopes import Scope, scopes
from sailor.solve.search import Budget

MAX_STAGES = 24
# Up to so many GPUs there are few arrangements, and the programme with local search finds the best
# of nearly all (285 of 288 generated small problems against exhaustive search).
_SMALL_POOL_GPUS = 64
_CEILINGS = 4
_SEEDS_PER_CELL = 24
_PROBES_PER_CELL = 6
_MOVED_PER_CELL = 12
_BEAM = 6
_CELLS_REFINED = 8
_FEW_POOLS = 4
_ANNEALED_STAGES, _CELLS_ANNEALED, _ROWS = 14, 5, 512
_STAGES_FILLED = 6
_ROWS_APART, _STAGES_APART = 64, 8  # where no table scores pipelines
# Rule H4: cells in a row that bring nothing better before the search of cells ends.
_PATIENCE, _PATIENCE_OF_SEVERAL = 12, 6  # of one scope, of each of several
# Rule H4: a cell whose probes are so many times worse than the best is not searched further.
_PROMISING = 1.35


class DynamicPlanner:
    """The dynamic programme with the paper's heuristics."""

    name = "dynamic"

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
        """Return the best plan found; see the module."""
        rules = active_rules(limits.disabled_rules)
        budget = Budget(limits.wall_s, should_stop, work_s=limits.work_s)
        evaluations = 0
        finished: list[tuple[float, Plan]] = []
        sketches: list[tuple[list[Scored], tuple[Pool, ...]]] = []
        for search in searched(problem, rules, budget, on_progress):
            sketches.append((search.found.best, search.pools))
            done = finish(problem, search.found.best, search.pools)
            if done is not None:
                finished.append(done)
            evaluations += search.scorer.evaluations
        plan = min(finished, key=lambda item: item[0])[1] if finished else None
        described = tuple(f"{name}: {RULES[name]}" for name in sorted(rules))
        if plan is None:
            reasons, proven = why_nothing_fits(problem)
            return SearchOutcome(
                None,
                proven=proven,
                rules=described,
                reasons=tuple(reasons),
                stopped_early=budget.exceeded,
                evaluations=evaluations,
            )
        return SearchOutcome(
            plan,
            rules=described,
            stopped_early=budget.exceeded,
            evaluations=evaluations,
            finalists=finalists(
                problem, sketches, plan, MOST_S if limits.work_s is None else np.inf
            ),
        )


def searched(
    problem: Problem,
    rules: frozenset[str],
    budget: Budget,
    on_progress: Callable[[Progress], None],
    on_found: Callable[[Search], None] = lambda search: None,
) -> list[Search]:
    """Search every scope, and return the searches; the one of all zones comes first.

    All are probed before one is searched, and the one with the best probe is searched first: what
    it finds is what cells of the others must be able to beat. `on_found` is called with a search
    as soon as the sketches of its best cell have been improved.
    """
    found = [
        Search(
            problem,
            scope,
            rules,
            budget,
            on_progress,
        )
        for scope in scopes(problem, rules)
    ]
    for search in found:
        search.probe()
    for search in sorted(found, key=lambda one: one.found.score):
        search.elsewhere = min((other.found.score for other in found), default=float("inf"))
        search.on_found = on_found
        search.patience = _PATIENCE if len(found) == 1 else _PATIENCE_OF_SEVERAL
        search.run()
    return found


class Search:
    """One scope: all cells of one set of pools."""

    def __init__(
        self,
        problem: Problem,
        scope: Scope,
        rules: frozenset[str],
        budget: Budget,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.problem, self.pools, self.apart, self.rules = problem, scope.pools, scope.apart, rules
        shares = problem.search_space.microbatch_shares
        self.scorer = scorer = Scorer(problem, scope.ring_usd_per_byte, shares=shares)
        self.budget, self.on_progress = budget, on_progress
        self.found = Found(scope.pools)
        self.on_found: Callable[[Search], None] = lambda search: None
        self.elsewhere = float("inf")  # the best score of other scopes
        self.patience = _PATIENCE
        self.grid: list[Cell] = []
        self.bounds: list[float] = []
        self.probed: dict[int, list[Scored]] | None = None
        space, limits = problem.search_space, problem.constraints
        self.mixed = space.mixed_types_in_stage
        caps = [MAX_STAGES, problem.arch.num_units]
        caps += [cap for cap in (limits.pp, space.max_pp) if cap is not None]
        self.stage_rules = StageRules(
            max_stages=min(caps),
            stages=limits.pp,
            even=not space.uneven_layers,
            min_cost=problem.objective is Objective.MIN_COST,
            max_s=scorer.max_s,
            max_usd=scorer.max_usd,
        )

    def probe(self) -> None:
        """Lay out the cells, and probe every one."""
        self.grid = cells(self.problem, self.pools, self.rules)
        self.bounds = [self._bound(cell) for cell in self.grid]
        space = self.problem.search_space
        self.probed = {}
        if self.apart:
            return
        self.probed = probe(
            self.grid,
            self.scorer,
            max_stages=self.stage_rules.max_stages,
            stages=self.stage_rules.stages,
            same_tp=not space.tp_per_stage,
            even=self.stage_rules.even,
            keep=_PROBES_PER_CELL,
        )
        for scored in self.probed.values():
            self.found.add(scored)
        self._report("probing")

    @property
    def to_beat(self) -> float:
        """Return the best score so far, of this scope or another."""
        return min(self.found.score, self.elsewhere)

    def run(self) -> None:
        """Probe every cell, run the programme on the promising ones, improve the best."""
        if self.probed is None:
            self.probe()
        if self.apart:
            # The programme takes long over so many pools; annealing finds what crosses.
            self._anneal(self.grid, self.bounds)
            return
        probed, bounds = self.probed or {}, self.bounds
        order = sorted(
            range(len(self.grid)),
            key=lambda n: (probed[n][0].score if n in probed else BREACH * 1e6, bounds[n], n),
        )
        self._by_cell(order, probed)
        if not self.found.best and self.mixed:
            self._fill()

    def _fill(self) -> None:
        """Look for pipelines with a mixed stage, where there are none without."""
        rules = self.stage_rules
        found: list[list[Scored]] = []
        for cell in self.grid:
            if self.budget.over():
                break
            one = filled(cell, self.scorer, min(rules.max_stages, _STAGES_FILLED), rules.stages)
            if one:
                found.append(one[:_BEAM])
                self.found.add(one[:_BEAM])
        self._improve(sorted(found, key=lambda own: own[0].score)[:_CELLS_REFINED], "filling")

    def _by_cell(self, order: Sequence[int], probed: Mapping[int, list[Scored]]) -> None:
        """Run the programme on the promising cells, improve the best."""
        grid, bounds = self.grid, self.bounds
        by_cell: list[tuple[float, int, list[Scored]]] = []
        since_better = 0
        for number in order:
            if bounds[number] >= self.to_beat:
                continue
            if H4 in self.rules and number in probed and by_cell:
                promising = probed[number][0].score <= _PROMISING * self.found.score
                if not promising and probed[number][0].score < BREACH:
                    break
            if self.budget.over() or (H4 in self.rules and since_better >= self.patience):
                break
            before = self.found.score
            scored = self._search_cell(grid[number], probed.get(number, []))
            if not scored or scored[0].score >= BREACH:
                continue
            self.found.add(scored[:_PROBES_PER_CELL])
            by_cell.append((scored[0].score, number, scored))
            since_better = 0 if self.found.score < before * (1 - 1e-4) else since_better + 1
            self._report(
                f"microbatch {grid[number].search.tables.microbatch}, dp {grid[number].dp}"
            )
        by_cell.sort(key=lambda item: item[:2])
        self._improve_best([scored for _, _, scored in by_cell[:_CELLS_REFINED]])
        if self._worth_annealing():
            self._anneal(grid, bounds)

    def _improve_best(self, best: Sequence[Sequence[Scored]]) -> None:
        """Improve the best cells, and tell of the first as soon as it is done."""
        self._improve(best[:1], "improving")
        if best:
            self.on_found(self)
        # Over many pools annealing finds better cells than the others, and both take as long.
        if len(self.pools) <= _FEW_POOLS or not self._worth_annealing():
            self._improve(best[1:], "improving")

    def _improve(self, seeds_by_cell: Sequence[Sequence[Scored]], what: str) -> None:
        """Improve the best sketches of each cell by local search."""
        for seeds in seeds_by_cell:
            if self.budget.over():
                break
            better = refine(
                seeds,
                self.scorer,
                self.stage_rules,
                mixed=self.mixed,
                width=_BEAM,
                max_rounds=40,
                should_stop=self.budget.over,
            )
            self.found.add(better)
            self._report(what)

    def _worth_annealing(self) -> bool:
        """Return whether unlike GPUs leave an order of stages to look for, and time counts."""
        types = {pool.gpu for pool in self.pools}
        time_counts = self.problem.objective is Objective.MAX_THROUGHPUT
        many = sum(pool.num_gpus for pool in self.pools) > _SMALL_POOL_GPUS
        return len(types) > 1 and many and time_counts and self.scorer.max_usd is None

    def _anneal(self, grid: Sequence[Cell], bounds: Sequence[float]) -> None:
        """Anneal the cells that may hold something better, and improve the best of them."""
        units = self.problem.arch.num_units
        found = anneal(
            [cell for cell, bound in zip(grid, bounds, strict=True) if bound < self.to_beat],
            self.scorer,
            AnnealRules(
                max_stages=min(
                    self.stage_rules.max_stages,
                    _ANNEALED_STAGES if not self.apart else _STAGES_APART,
                ),
                stages=self.stage_rules.stages,
                even=self.stage_rules.even,
                same_tp=not self.problem.search_space.tp_per_stage,
                rows=_ROWS if not self.apart else _ROWS_APART,
                first_steps=min(30 if not self.apart else 20, 4 * units),
                second_steps=min(150 if not self.apart else 100, 8 * units),
                survivors=6 if not self.apart else 4,
            ),
            0,
            self.budget.over,
        )
        by_cell: dict[tuple[int, int], list[Scored]] = {}
        for scored in found:
            by_cell.setdefault((id(scored.cell.search), scored.cell.dp), []).append(scored)
        self._improve(list(by_cell.values())[:_CELLS_ANNEALED], "annealing")

    def _bound(self, cell: Cell) -> float:
        bound_s = cell.bound_s()
        if self.problem.objective is Objective.MAX_THROUGHPUT:
            return bound_s
        if self.scorer.max_s is not None and bound_s > self.scorer.max_s:
            return float("inf")
        tables = cell.search.tables
        # Every sample passes the whole model on some kind; idle time only adds.
        whole = tables.compute_prefix_s[:, -1] * tables.tp * tables.usd_per_gpu_hour / 3600.0
        return float(np.where(tables.usable, whole, np.inf).min()) * cell.total

    def _search_cell(self, cell: Cell, probes: Sequence[Scored]) -> list[Scored]:
        """Return the pipelines of the programme and the probes, best first."""
        scored = sorted([*self._programme(cell), *probes], key=lambda one: one.score)
        if not self.stage_rules.even:
            scored += with_moved_cuts(scored[:_MOVED_PER_CELL], self.scorer, set())
            scored.sort(key=lambda one: one.score)
        return scored

    def _programme(self, cell: Cell) -> list[Scored]:
        kind_sets: list[tuple[int, ...] | None] = [None]
        if not self.problem.search_space.tp_per_stage:
            tps = sorted(set(cell.search.tables.tp.tolist()))
            kind_sets = [tuple(np.flatnonzero(cell.search.tables.tp == tp).tolist()) for tp in tps]
        found: list[Scored] = []
        for kinds in kind_sets:
            programme = StageProgramme(cell, replace(self.stage_rules, kinds=kinds))
            pipelines = _single_stage(cell, programme)
            if self.stage_rules.stages not in (None, 1):
                pipelines = []
            if self.stage_rules.stages != 1:
                pipelines += programme.run(self._ceilings(cell, programme), _SEEDS_PER_CELL)
            found.extend(score_pipelines(cell, pipelines, self.scorer))
        return sorted(found, key=lambda scored: scored.score)

    def _ceilings(
        self, cell: Cell, programme: StageProgramme
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        further = max(cell.num_microbatches - 1, 1)
        low = max(0.0, cell.bound_s() / (further + 1) * 0.5)
        high = float("inf")
        if self.problem.objective is Objective.MAX_THROUGHPUT and self.found.best:
            high = self.found.score / further
        elif self.scorer.max_s is not None:
            high = self.scorer.max_s / further
        floor = _straggler_floor(cell)
        return programme.attainable(max(low, floor), min(high, 4.0 * max(floor, low)), _CEILINGS)

    def _report(self, what: str) -> None:
        best = self.found.score
        if self.problem.objective is Objective.MAX_THROUGHPUT and best < float("inf"):
            best = 1.0 / best
        self.on_progress(
            Progress(what, best if best < float("inf") else None, self.scorer.evaluations)
        )


def _straggler_floor(cell: Cell) -> float:
    fewest = cell.total // cell.dp
    tables = cell.search.tables
    whole = float(np.where(tables.usable, tables.compute_prefix_s[:, -1], np.inf).min())
    return max(0.0, (cell.bound_s() - whole) / max(fewest - 1, 1))


def _single_stage(cell: Cell, programme: StageProgramme) -> list[Pipeline]:
    """Return the pipelines of one stage, one for each kind that has the replicas."""
    return [Pipeline((0, cell.search.tables.num_units), (kind,)) for kind in programme.kinds]
