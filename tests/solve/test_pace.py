"""The bound of pipelines that keep their own pace: below the optimum, and above the older one."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.bounds.lagrange import BoxSearch
from sailor.solve.bounds.lagrange_pace import PaceSearch
from sailor.solve.certificate import Certificate
from sailor.solve.exhaustive import ExhaustivePlanner

REGISTRY = Registry.load(entry_points=False)


def never() -> bool:
    return False


def problem_of(a100: int, v100: int, batch: int) -> Problem:
    job = tiny_job(a100=a100, v100=v100, zones=1, batch=batch, objective="max_throughput")
    return build_problem(job, registry=REGISTRY)


def optimum_s(problem: Problem) -> float:
    plan = ExhaustivePlanner().solve(problem, Limits(), lambda progress: None, never).plan
    assert plan is not None
    return estimate(problem, plan).iteration_s


def searches(problem: Problem, cutoff_s: float) -> list[tuple[PaceSearch, list[float]]]:
    """Return the search of every microbatch size with the bounds of its first look."""
    certificate = Certificate(problem, 24)
    certificate.first_look(cutoff_s, never)
    found = []
    for part in certificate.parts:
        some = part.open(cutoff_s)
        if some:
            cells = [part.cells[number] for number in some]
            boxes = BoxSearch(part.programme, cells, certificate.money, cutoff_s, 1e-3)
            total = certificate._total(part.tables.microbatch)
            found.append((PaceSearch(boxes, total), [part.found[number].bound for number in some]))
    return found


@pytest.mark.parametrize(("a100", "v100", "batch"), [(1, 2, 6), (2, 2, 4), (2, 3, 7), (0, 3, 6)])
def test_it_is_below_the_optimum_and_rises_with_every_round(
    a100: int, v100: int, batch: int
) -> None:
    problem = problem_of(a100, v100, batch)
    best_s = optimum_s(problem)
    cutoff_s = best_s * 1.3
    least = []
    for search, _ in searches(problem, cutoff_s):
        before = 0.0
        for _ in range(6):
            search.improve(cutoff_s, cutoff_s, 1, never)
            bound_s = min(search.bounds())
            assert bound_s >= before * (1 - 1e-12)
            before = bound_s
        least.append(before)
    assert min(least) <= best_s * (1 + 1e-9)
    assert min(least) >= best_s * 0.7


def test_one_gpu_type_needs_no_direction_and_is_bounded_tightly() -> None:
    problem = problem_of(4, 0, 8)
    best_s = optimum_s(problem)
    cutoff_s = best_s * 1.2
    found = searches(problem, cutoff_s)
    for search, _ in found:
        search.improve(cutoff_s, cutoff_s, 12, never)
    bound_s = min(min(search.bounds()) for search, _ in found)
    assert best_s * 0.9 <= bound_s <= best_s * (1 + 1e-9)


def test_a_fallen_cutoff_caps_the_bounds() -> None:
    problem = problem_of(2, 2, 4)
    best_s = optimum_s(problem)
    search, _ = searches(problem, best_s * 1.5)[0]
    search.improve(best_s * 1.5, best_s * 1.5, 2, never)
    search.improve(best_s, best_s, 2, never)
    assert np.all(np.array(search.bounds()) <= best_s * (1 + 1e-12))


def test_it_stops_when_told() -> None:
    problem = problem_of(2, 2, 4)
    cutoff_s = optimum_s(problem) * 1.3
    search, _ = searches(problem, cutoff_s)[0]
    search.improve(cutoff_s, cutoff_s, 5, lambda: True)
    assert min(search.bounds()) == 0.0
