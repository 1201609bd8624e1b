"""F-FLOW against the optimum of its cell, by enumeration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.certificate import Certificate
from sailor.solve.cp_sat import flow
from sailor.solve.cp_sat.flow import FlowResult, FlowRules, solve_cell
from sailor.solve.cp_sat.templates import kind_sets, templates, uniform
from sailor.solve.exhaustive import ExhaustivePlanner
from sailor.solve.search import Budget

pytest.importorskip("ortools")
REGISTRY = Registry.load(entry_points=False)


@pytest.mark.parametrize("dp", [1, 2, 3])
@pytest.mark.parametrize("batch", [6, 12])
def test_the_model_is_below_the_optimum_of_its_cell(dp: int, batch: int) -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=batch, objective="max_throughput",
                   cost_model="published", constraints={"dp": dp, "microbatch": 1})  # fmt: skip
    problem = build_problem(job, registry=REGISTRY)
    plan = ExhaustivePlanner().solve(problem, Limits(), lambda p: None, lambda: False).plan
    assert plan is not None
    best_s = estimate(problem, plan).iteration_s
    certificate = Certificate(problem, 24)
    certificate.first_look(best_s * 1.1, lambda: False)
    assert all(
        solve_cell(part, number, certificate, FlowRules(1e-6, 5.0, 0), Budget(None, lambda: False))
        is None
        for part in certificate.parts
        for number in range(len(part.cells))
    )  # without ranges of S and G there is nothing to build a model on
    certificate.improve(best_s * 1.1, 0.02, 3, lambda: False)
    bounds = []
    for part in certificate.parts:
        assert uniform(part.programme)
        for number in range(len(part.cells)):
            solved = solve_cell(part, number, certificate, FlowRules(1e-6, 5.0, 0),
                                Budget(None, lambda: False))  # fmt: skip
            if solved is not None:
                bounds.append(solved.bound_s)
    # Where no box is left the Lagrangian bound alone is above the cutoff, which is too high.
    assert bounds
    assert best_s * 0.8 <= min(bounds) <= best_s * (1 + 1e-9)


def test_templates_hold_one_degree_of_each_group() -> None:
    job = tiny_job(a100=2, v100=3, zones=1, batch=6, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    certificate = Certificate(build_problem(job, registry=REGISTRY), 24)
    part = certificate.parts[0]
    tables = part.tables
    sets = kind_sets(part.programme)
    # Two groups of tp 1 and 2: 4 pure sets and 2 x 2 mixed ones.
    assert len(sets) == 8
    found = list(templates(part.programme, part.cells[-1], sets, 1e9, 1e9))
    assert found
    for template in found:
        groups = [int(tables.group[kind]) for kind in template.kinds]
        assert len(set(groups)) == len(groups)
        assert template.stage_s >= template.compute_s > 0
    assert len({template.name for template in found}) == len(found)  # names of variables


DOCS = Path(__file__).resolve().parents[2] / "docs" / "cost-model.md"


def documented() -> dict[str, re.Pattern[str]]:
    """The names of constraints in the page's table, as patterns."""
    page = DOCS.read_text()
    start = page.index("| constraint | equation |")
    rows = page[start : page.index("\n\n", start)].splitlines()[2:]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return {name: re.compile(re.sub(r"<\w+>", ".+", re.escape(name))) for name in names}


def test_every_constraint_has_a_name_that_the_page_explains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(
        flow._Model,
        "solve",
        lambda self, budget: built.append(self.model.proto) or FlowResult(0.0, ()),
    )
    for limits in ({"max_gpus": 5}, {"pp": 2}, {"pp": 4}):
        job = tiny_job(a100=2, v100=6, zones=1, batch=12, objective="max_throughput",
                       cost_model="published", constraints=limits)  # fmt: skip
        job["model"] = {**job["model"], "num_layers": 4, "hidden": 4096, "ffn": 16384}
        problem = build_problem(job, registry=REGISTRY)
        certificate = Certificate(problem, 24)
        certificate.first_look(1e3, lambda: False)
        certificate.improve(1e3, 0.02, 1, lambda: False)
        for part in certificate.parts:
            for number in range(len(part.cells)):
                solve_cell(part, number, certificate, FlowRules(0.02, 1.0, 0),
                           Budget(None, lambda: False))  # fmt: skip
    patterns = documented()
    seen = {constraint.name for proto in built for constraint in proto.constraints}
    assert "" not in seen
    for name in seen:
        assert any(pattern.fullmatch(name) for pattern in patterns.values()), name
    for name, pattern in patterns.items():
        assert any(pattern.fullmatch(one) for one in seen), f"{name} is in no model"
