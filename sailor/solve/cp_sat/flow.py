"""F-FLOW: a CP-SAT model of one cell with the number of stages free.

Counts of stage templates, arcs between their kind sets, GPUs, memory by place, ladders for the
slowest stage and sync. A relaxation: transfers of mixed stages and a stage's place are bounded from
below. So its optimum is a lower bound, and its solution a sketch. docs/cost-model.md has the
equation of every constraint, by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sailor.model.job import Objective
from sailor.solve import work
from sailor.solve.bounds.lagrange import BoundCell, CellBound
from sailor.solve.cell import Cell
from sailor.solve.certificate import Certificate, Part
from sailor.solve.cp_sat.scaling import Scale
from sailor.solve.cp_sat.templates import (
    FIRST,
    LAST,
    MIDDLE,
    ONLY,
    KindSet,
    Template,
    kind_sets,
    templates,
    uniform,
)
from sailor.solve.crew import Workers
from sailor.solve.dynamic import Search
from sailor.solve.grid import cells
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Sketches, to_batch
from sailor.solve.search import Budget

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_MOST_TEMPLATES = 2500
_MOST_SETS = 40


@dataclass(frozen=True)
class FlowRules:
    """A plan is wanted that is better by `gap`; effort a cell in CP-SAT's deterministic time."""

    gap: float
    deterministic_s: float
    seed: int


@dataclass(frozen=True)
class FlowResult:
    """What the model says of a cell: a bound, and the stages of its best solution (or none)."""

    bound_s: float
    stages: tuple[tuple[Template, tuple[int, ...]], ...]  # with replicas by kind
    optimal: bool = False  # the bound is the model's optimum (a relaxation of the cell)


@dataclass(frozen=True)
class Solve:
    """The task of solving one cell's model: its part, its number there, what is known of it."""

    place: int
    number: int
    cell: BoundCell
    found: CellBound
    rules: FlowRules

    def run(self, certificate: Certificate, budget: Budget) -> FlowResult | None:
        """Return what CP-SAT makes of the cell."""
        part = certificate.parts[self.place]
        part.cells[self.number], part.found[self.number] = self.cell, self.found
        return solve_cell(part, self.number, certificate, self.rules, budget)


def close_cells(
    certificate: Certificate, search: Search, rules: FlowRules, budget: Budget, workers: Workers
) -> Iterator[list[Scored]]:
    """Solve the open cells, lowest bound first; yield the sketches of each solution.

    The bounds go into the certificate, whose cutoff may fall between two yields. Only for time
    as the objective, without money limits, and for coupled cost models.
    """
    problem = certificate.problem
    money = certificate.money
    if problem.objective is not Objective.MAX_THROUGHPUT or money.max_usd is not None:
        return
    grid = cells(problem, search.pools, frozenset())
    tried: set[tuple[int, int]] = set()

    def pick() -> Solve | None:
        wanted = certificate.cutoff * (1 - rules.gap) * (1 - 1e-9)
        work = [
            (part.found[number].bound, place, number)
            for place, part in enumerate(certificate.parts)
            if part.tables.coupled and uniform(part.programme)
            for number in part.open(wanted)
            if number not in part.decided and (place, number) not in tried
        ]
        if not work:
            return None
        _, place, number = min(work)
        tried.add((place, number))
        part = certificate.parts[place]
        return Solve(place, number, part.cells[number], part.found[number], rules)

    for task, solved in workers.run(pick, budget):
        if solved is None or not isinstance(task, Solve):
            continue
        part, number = certificate.parts[task.place], task.number
        if solved.optimal:
            part.decided.add(number)
        old = part.found[number]
        part.found[number] = CellBound(
            min(max(old.bound, solved.bound_s), certificate.cutoff), old.boxes
        )
        yield _sketches(part, number, solved, grid, search)


def solve_cell(
    part: Part, number: int, certificate: Certificate, rules: FlowRules, budget: Budget
) -> FlowResult | None:
    """Look for a plan that beats the cutoff by the gap; None: too many templates for the model."""
    boxes = part.found[number].boxes
    if not boxes:
        return None
    # Boxes hold the times of single kinds; those of a plan's mixed stages may lie beyond.
    low_s, low_g = min(box.low_s for box in boxes), min(box.low_g for box in boxes)
    count = max(part.cells[number].num_microbatches, 1)
    spare = max(certificate.cutoff - count * low_s - low_g, 0.0)
    high_s = (low_s + spare / count) * (1 + 1e-9)
    high_g = (low_g + spare) * (1 + 1e-9) + 1e-15
    sets = kind_sets(part.programme)
    usable = list(templates(part.programme, part.cells[number], sets, high_s, high_g))
    sets = sorted({template.kinds for template in usable}, key=lambda kinds: (len(kinds), kinds))
    if len(usable) > _MOST_TEMPLATES or len(sets) > _MOST_SETS:
        return None
    model = _Model(part, number, certificate, usable, sets, rules)
    model.build(low_s, low_g)
    return model.solve(budget)


class _Model:
    """The CP-SAT model of one cell."""

    def __init__(
        self,
        part: Part,
        number: int,
        certificate: Certificate,
        usable: Sequence[Template],
        sets: Sequence[KindSet],
        rules: FlowRules,
    ) -> None:
        # CP-SAT takes a while to load and only this planner needs it.
        from ortools.sat.python import cp_model

        self.cp_model = cp_model
        self.part, self.cell, self.certificate = part, part.cells[number], certificate
        self.templates, self.sets = usable, sets
        self.wanted = certificate.cutoff * (1 - rules.gap)
        self.rules = rules
        self.scale = Scale.of_cutoff(certificate.cutoff)
        self.model = cp_model.CpModel()
        units = part.tables.num_units
        self.most = min(units, part.programme.max_stages)
        self.count = [
            self.model.new_int_var(0, self._most_of(t), f"count_{t.name}") for t in usable
        ]
        self.replicas: dict[tuple[int, int], cp_model.IntVar] = {}
        self.depth = self.model.new_int_var(1, self.most, "stages")
        self.objective: Any = 0

    def _most_of(self, template: Template) -> int:
        if template.role != MIDDLE:
            return 1
        units = self.part.tables.num_units - 2
        return min(max(self.most - 2, 0), units // template.units)

    def _sum(self, weights: Sequence[int]) -> Any:
        return self.cp_model.LinearExpr.weighted_sum(self.count, list(weights))

    def build(self, low_s: float, low_g: float) -> None:
        """Add all constraints and the objective."""
        self._shape()
        self._memory()
        self._gpus()
        scale, further = self.scale, self.part.cells and self.cell.num_microbatches - 1
        stage = self._ladder("stage", [t.stage_s for t in self.templates], low_s)
        sync = self._ladder("sync", [t.sync_s for t in self.templates], low_g)
        compute = self._sum([scale.down(t.compute_s) for t in self.templates])
        self.objective = compute + self._edges() + further * stage + sync
        self.model.add(self.objective <= scale.up(self.wanted)).with_name("cutoff")
        self.model.minimize(self.objective)

    def _shape(self) -> None:
        model, role = self.model, [t.role for t in self.templates]
        units = self._sum([t.units for t in self.templates])
        model.add(units == self.part.tables.num_units).with_name("units")
        model.add(self._sum([1] * len(role)) == self.depth).with_name("stages")
        model.add(self._sum([r in (FIRST, ONLY) for r in role]) == 1).with_name("one_first")
        model.add(self._sum([r in (LAST, ONLY) for r in role]) == 1).with_name("one_last")
        pinned = self.part.programme.pinned
        if pinned is not None:
            model.add(self.depth == pinned).with_name("pinned_stages")

    def _memory(self) -> None:
        """Stages that fit up to place q only stand in places 2 to q: at most q - 1 of them."""
        for place in range(2, self.most):
            near = [t.role == MIDDLE and t.furthest <= place for t in self.templates]
            if any(near):
                self.model.add(self._sum(near) <= place - 1).with_name(f"memory_{place}")
        for template, count in zip(self.templates, self.count, strict=True):
            if template.role == FIRST and template.furthest < self.most:
                self.model.add(
                    self.depth <= template.furthest + (self.most - template.furthest) * (1 - count)
                ).with_name(f"memory_{template.name}")

    def _gpus(self) -> None:
        model, tables, dp = self.model, self.part.tables, self.cell.dp
        used: list[list[Any]] = [[] for _ in tables.room]
        for number, (template, count) in enumerate(zip(self.templates, self.count, strict=True)):
            if len(template.kinds) == 1:
                kind = template.kinds[0]
                used[tables.group[kind]].append(int(tables.tp[kind]) * dp * count)
                continue
            most = self._most_of(template) * dp
            own = []
            for kind in template.kinds:
                variable = model.new_int_var(0, most, f"replicas_{template.name}_{kind}")
                self.replicas[number, kind] = variable
                model.add(variable >= count).with_name(f"takes_part_{template.name}_{kind}")
                used[tables.group[kind]].append(int(tables.tp[kind]) * variable)
                own.append(variable)
            model.add(sum(own) == dp * count).with_name(f"pipelines_{template.name}")
        for group, terms in enumerate(used):
            if terms:
                model.add(sum(terms) <= int(tables.room[group])).with_name(f"gpus_{group}")
        cap = self.certificate.money.max_gpus
        if cap is not None:
            model.add(sum(term for terms in used for term in terms) <= cap).with_name("max_gpus")

    def _ladder(self, name: str, values: Sequence[float], low: float) -> Any:
        """Return the largest value of the templates in use, at least `low`, as an expression."""
        base = max(self.scale.down(low), 0)
        units = [max(self.scale.down(value), base) for value in values]
        steps = sorted(set(units) - {base})
        rungs = [self.model.new_bool_var(f"{name}_{step}") for step in steps]
        for lower, upper in pairwise(rungs):
            self.model.add_implication(upper, lower).with_name(f"ladder_{upper.name}")
        rung_of = dict(zip(steps, rungs, strict=True))
        for template, count, step in zip(self.templates, self.count, units, strict=True):
            if step != base:
                reaches = count <= self._most_of(template) * rung_of[step]
                self.model.add(reaches).with_name(f"{name}_of_{template.name}")
        heights = [step - before for step, before in zip(steps, [base, *steps], strict=False)]
        return base + sum(h * rung for h, rung in zip(heights, rungs, strict=True))

    def _edges(self) -> Any:
        """Return the transfers: arcs between kind sets, the last's and the first's extra."""
        tables, units, scale = self.part.tables, self.part.tables.num_units, self.scale
        inner = slice(1, units)
        both = (tables.forward_s + tables.backward_s)[:, :, inner].min(axis=2)  # [K, K]
        terms: list[Any] = []
        leaving: dict[KindSet, list[Any]] = {kinds: [] for kinds in self.sets}
        entering: dict[KindSet, list[Any]] = {kinds: [] for kinds in self.sets}
        for a in self.sets:
            for b in self.sets:
                seconds = _between(both, a, b)
                if not np.isfinite(seconds):
                    continue
                name = "+".join(map(str, a)) + "_to_" + "+".join(map(str, b))
                arc = self.model.new_int_var(0, self.most - 1, f"arc_{name}")
                leaving[a].append(arc)
                entering[b].append(arc)
                terms.append(scale.down(seconds) * arc)
        for kinds in self.sets:
            out = [t.kinds == kinds and t.role in (FIRST, MIDDLE) for t in self.templates]
            into = [t.kinds == kinds and t.role in (LAST, MIDDLE) for t in self.templates]
            name = "+".join(map(str, kinds))
            self.model.add(sum(leaving[kinds]) == self._sum(out)).with_name(f"leaving_{name}")
            self.model.add(sum(entering[kinds]) == self._sum(into)).with_name(f"entering_{name}")
        back = tables.backward_s.min(axis=0)  # [K, U + 1] over who stands before
        extra = [
            scale.down(float(back[list(t.kinds), units - t.units].max())) if t.role == LAST else 0
            for t in self.templates
        ]
        return sum(terms) + self._sum(extra) + self._first_extra()

    def _first_extra(self) -> Any:
        """Return what the first stage's transfer counts beyond once, in long pipelines."""
        up_to, _ = self.part.tables.real.short_pipeline_factor
        forward = self.part.tables.forward_s.min(axis=1)  # [K, U + 1] over who stands after
        extra = [
            max(self.scale.down(float(forward[list(t.kinds), t.units].max())), 0)
            if t.role == FIRST
            else 0
            for t in self.templates
        ]
        most = max(extra, default=0)
        if most == 0:
            return 0
        long = self.model.new_bool_var("long")
        self.model.add(self.depth <= up_to + self.most * long).with_name("long_pipeline")
        value = self.model.new_int_var(0, most, "first_extra")
        counts_twice = self.model.add(value >= self._sum(extra)).with_name("first_sends_twice")
        counts_twice.only_enforce_if(long)
        return value

    def solve(self, budget: Budget) -> FlowResult:
        """Run the solver with one worker."""
        solver = self.cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.rules.seed
        solver.parameters.optimize_with_core = True
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.max_deterministic_time = self.rules.deterministic_s
        if (left := budget.left_s()) is not None:
            solver.parameters.max_time_in_seconds = max(left, 0.01)
        cp_model, status = self.cp_model, solver.solve(self.model)
        work.add(solver.response_proto.deterministic_time)
        if status == cp_model.INFEASIBLE:
            return FlowResult(self.wanted, ())
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return FlowResult(self.scale.seconds(max(solver.best_objective_bound, 0.0)), ())
        stages: list[tuple[Template, tuple[int, ...]]] = []
        for number, (template, count) in enumerate(zip(self.templates, self.count, strict=True)):
            times = solver.value(count)
            if not times:
                continue
            split = tuple(
                solver.value(self.replicas[number, kind]) // times
                if len(template.kinds) > 1
                else self.cell.dp
                for kind in template.kinds
            )
            stages.extend([(template, split)] * times)
        bound_s = self.scale.seconds(solver.best_objective_bound)
        return FlowResult(bound_s, tuple(stages), status == cp_model.OPTIMAL)


def _between(both: np.ndarray[Any, np.dtype[np.float64]], a: KindSet, b: KindSet) -> float:
    """Return the least transfer between stages of two kind sets: every kind has some partner."""
    part = both[np.ix_(a, b)]
    return float(max(part.min(axis=1).max(), part.min(axis=0).max()))


def _sketches(
    part: Part, number: int, solved: FlowResult, grid: Sequence[Cell], search: Search
) -> list[Scored]:
    """Return the solution's stages in an order that memory allows, scored exactly."""
    cell = next(
        (
            one
            for one in grid
            if one.dp == part.cells[number].dp
            and one.search.tables.microbatch == part.tables.microbatch
        ),
        None,
    )
    if cell is None or not solved.stages:
        return []
    problem = search.problem
    of = {
        (kind.gpu, problem.zone(kind.zone).region, kind.market, kind.tp): place
        for place, kind in enumerate(cell.search.tables.kinds)
    }
    lead = [part.tables.real.kinds[int(own[0])] for own in part.tables.members]
    rank = {FIRST: 0, ONLY: 0, MIDDLE: 1, LAST: 2}
    ordered = sorted(solved.stages, key=lambda s: (rank[s[0].role], -s[0].furthest, s[0].kinds))
    first, second, num_second = [], [], []
    for template, split in ordered:
        kinds = [
            of.get((k.gpu, problem.zone(k.zone).region, k.market, k.tp))
            for k in (lead[kind] for kind in template.kinds[:2])
        ]
        if None in kinds:
            return []
        own = [kind for kind in kinds if kind is not None]
        first.append(own[0])
        second.append(own[-1])
        num_second.append(split[1] if len(split) > 1 else 0)
    cuts = np.concatenate(([0], np.cumsum([t.units for t, _ in ordered])))
    sketch = Sketches(
        np.array([cuts], dtype=np.int64),
        np.array([first], dtype=np.int64),
        np.array([second], dtype=np.int64),
        np.array([num_second], dtype=np.int64),
    )
    score = float(search.scorer(cell.search, to_batch(cell, sketch))[0])
    return [Scored(score, cell, sketch)]
