"""Searches over pools of several regions: a crew decides cells while this process anneals."""

from __future__ import annotations

import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_problems import two_regions

from sailor.interfaces import Limits, Progress
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.solve import certified_search
from sailor.solve.certificate import Certificate
from sailor.solve.cpsat import CpSatPlanner


def three_types() -> Problem:
    quotas = {"A100-40GB": [8, 4, 8], "V100-16GB": [8, 8, 8], "T4-16GB": [4, 4, 4]}
    return two_regions(quotas)


def search(processes: int, wall_s: float) -> tuple[list[Progress], float, float | None]:
    """Return the reports, the plan's seconds and the bound (iterations a second)."""
    problem, reports = three_types(), list[Progress]()
    outcome = CpSatPlanner().solve(
        problem,
        Limits(wall_s=wall_s, processes=processes, gap=0.001),
        reports.append,
        lambda: False,
    )
    assert outcome.plan is not None
    found = estimate(problem, outcome.plan)
    assert not found.violations
    return reports, found.iteration_s, outcome.bound


def test_one_process_anneals_while_the_others_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_search, "_BESIDE", 0)
    before = threading.active_count()
    reports, seconds, bound = search(2, 6.0)
    said = [one.message for one in reports]
    first = said.index("positional programme")
    assert "annealing" in said[first:]
    assert bound is not None
    assert seconds * bound > 0.5  # it says something
    bounds = [one.bound for one in reports if one.bound is not None]
    # Iterations a second, from above: none is ever below what the plan reaches.
    assert min(bounds) >= 1 / seconds * (1 - 1e-9)
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(bounds))
    assert threading.active_count() <= before + 1  # a listener may still see its process end


def test_a_finished_plan_is_reported_before_the_dynamic_programme_ends() -> None:
    reports, seconds, _ = search(1, 1.5)
    said = [one.message for one in reports]
    assert said.index("first plan") < said.index("dynamic programme")
    value = reports[said.index("first plan")].objective_value
    assert value is not None
    assert 0 < value <= 1 / seconds * (1 + 1e-9)


def test_wide_boxes_are_split_however_large_the_wanted_gap() -> None:
    """A gap of 30 % leaves the bound where one of 1 % does, up to what is wanted."""
    problem = three_types()
    cutoff_s = search(1, 1.0)[1]
    values = {}
    for gap in (0.3, 0.01):
        certificate = Certificate(problem, 8)
        certificate.first_look(cutoff_s, lambda: False)
        certificate.improve(cutoff_s, gap, 120, lambda: False)
        values[gap] = certificate.value
    # With boxes as wide as the gap it was 15 % less.
    assert values[0.3] >= 0.98 * min(values[0.01], cutoff_s * 0.7)
