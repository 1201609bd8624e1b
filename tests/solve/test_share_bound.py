"""The bound with unequal microbatch shares against every plan of tiny pools."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.closed_form import PlanBatch, sync_seconds
from sailor.solve.bounds.lagrange_tables import bound_tables, groups_of
from sailor.solve.bounds.share_bound import runs_of_degrees
from sailor.solve.cell import BREACH, Scorer
from sailor.solve.certificate import Certificate
from sailor.solve.exhaustive import _cells, _depths, _splits

REGISTRY = Registry.load(entry_points=False)


def problem_of(
    a100: int,
    v100: int,
    batch: int,
    cost_model: str = "sailor",
    objective: str = "max_throughput",
    **limits: int,
) -> Problem:
    job = tiny_job(
        a100=a100, v100=v100, zones=1, batch=batch, objective=objective, cost_model=cost_model,
        constraints=limits,
    )  # fmt: skip
    job["search_space"] = {**job["search_space"], "microbatch_shares": True}
    return build_problem(job, registry=REGISTRY)


def never() -> bool:
    return False


def shares_of(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each pipeline a microbatch or more."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in shares_of(total - first, parts - 1):
            yield (first, *rest)


def optimum_s(problem: Problem) -> float:
    """Return the least seconds over all splits, kinds of every pipeline, dp and shares."""
    scorer, best = Scorer(problem), np.inf
    for cell in _cells(problem):
        usable = np.flatnonzero(cell.search.tables.usable).tolist()
        for depth in _depths(problem):
            pipelines = list(product(usable, repeat=depth))
            if depth * cell.dp > int(cell.search.room.sum()):
                continue
            chosen = [
                (some, shares)
                for some in combinations_with_replacement(pipelines, cell.dp)
                for shares in shares_of(cell.total, cell.dp)
            ]
            kinds = np.array([some for some, _ in chosen], dtype=np.int64).transpose(0, 2, 1)
            count = np.array([shares for _, shares in chosen], dtype=np.int64)
            for cuts in _splits(problem, depth):
                batch = PlanBatch(
                    np.repeat(np.array([cuts]), len(count), axis=0),
                    np.ascontiguousarray(kinds),
                    np.ones_like(count),
                    count,
                )
                best = min(best, float(scorer(cell.search, batch).min()))
    assert best < BREACH
    return best


def bound_s(problem: Problem, cutoff_s: float) -> float:
    certificate = Certificate(problem, 24)
    assert certificate.covers
    certificate.first_look(cutoff_s, never)
    for _ in range(3):
        certificate.improve(cutoff_s, 1e-4, 20, never)
    return certificate.value


@pytest.mark.parametrize(
    ("a100", "v100", "batch"),
    [(1, 1, 6), (1, 2, 6), (2, 1, 7), (1, 3, 5), (0, 3, 6), (3, 0, 5), (2, 2, 5), (1, 2, 11)],
)
def test_no_plan_with_any_shares_is_below_the_bound(a100: int, v100: int, batch: int) -> None:
    problem = problem_of(a100, v100, batch)
    best_s = optimum_s(problem)
    for loose in (1.0, 1.3):
        found_s = bound_s(problem, best_s * loose)
        assert 0.85 * best_s < found_s <= best_s * (1 + 1e-9)


def shared_optimum_s(problem: Problem) -> float:
    """Return the least seconds over all splits and kinds of every pipeline, with the best shares.

    For more microbatches than can be given out one by one.
    """
    scorer, best = Scorer(problem, shares=True), np.inf
    for cell in _cells(problem):
        usable = np.flatnonzero(cell.search.tables.usable).tolist()
        for depth in _depths(problem):
            if depth * cell.dp > int(cell.search.room.sum()):
                continue
            pipelines = list(product(usable, repeat=depth))
            some = list(combinations_with_replacement(pipelines, cell.dp))
            kinds = np.array(some, dtype=np.int64).transpose(0, 2, 1)
            ones = np.ones((len(some), cell.dp), dtype=np.int64)
            for cuts in _splits(problem, depth):
                batch = PlanBatch(
                    np.repeat(np.array([cuts]), len(some), axis=0),
                    np.ascontiguousarray(kinds),
                    ones,
                    ones * cell.num_microbatches,
                )
                best = min(best, float(scorer(cell.search, batch).min()))
    assert best < BREACH
    return best


@pytest.mark.parametrize(
    ("a100", "v100", "batch", "limits"),
    [
        (1, 2, 60, {}), (2, 1, 75, {}), (1, 1, 90, {}), (2, 2, 40, {"max_gpus": 3}),
        (2, 2, 50, {"dp": 2}), (1, 2, 64, {"pp": 2}),
    ],
)  # fmt: skip
def test_many_microbatches_and_limits(
    a100: int, v100: int, batch: int, limits: dict[str, int]
) -> None:
    problem = problem_of(a100, v100, batch, **limits)
    best_s = shared_optimum_s(problem)
    for loose in (1.0, 1.4):
        found_s = bound_s(problem, best_s * loose)
        assert 0.9 * best_s < found_s <= best_s * (1 + 1e-9)


def test_runs_of_degrees_cover_all() -> None:
    runs = list(runs_of_degrees(range(1, 100)))
    assert [run[0] for run in runs] == [1, 2, 3, 4, 6, 9, 16, 32]
    assert [dp for run in runs for dp in run] == list(range(1, 100))
    assert list(runs_of_degrees([7])) == [(7,)]


def test_the_exchange_of_a_tied_table_counts_at_both_ends() -> None:
    """A stage's sync is the ring of its gradients and the exchange with the model's other end."""
    job = tiny_job(a100=2, v100=2, zones=1, batch=8, objective="max_throughput")
    untied = build_problem(job, registry=REGISTRY)
    job["model"] = {**job["model"], "tied_embeddings": True}
    found = []
    for problem in (build_problem(job, registry=REGISTRY), untied):
        tables = bound_tables(problem, groups_of(problem), 1)
        assert tables is not None
        found.append(tables)
    tied, plain = found
    seconds = tied.real.tied_send_s
    assert seconds is not None
    assert plain.real.tied_send_s is None
    least, sync = float(seconds.min()), tied.sync_s([2])
    ring = tied.hops.of_kinds_s([2])
    units = tied.num_units
    for kind in range(tied.num_kinds):
        for start, stop in ((0, 1), (0, 3), (1, units), (3, units)):
            assert sync[kind, start, stop] >= ring[kind, start, stop] + least * (1 - 1e-12)
        for start, stop in ((0, units), (1, 2), (1, 3)):
            assert sync[kind, start, stop] == ring[kind, start, stop]
    # Two pipelines of two stages, each of one kind: the closed form's sync of every stage.
    for kind, members in enumerate(tied.members):
        own = int(members[0])
        batch = PlanBatch(
            np.array([[0, 2, units]]), np.full((1, 2, 1), own), np.array([[2]]), np.array([[4]])
        )
        exact = sync_seconds(tied.real, batch)[0]
        assert sync[kind, 0, 2] <= exact[0] * (1 + 1e-12)
        assert sync[kind, 2, units] <= exact[1] * (1 + 1e-12)


def test_shares_gain_so_that_a_bound_of_equal_ones_would_not_do() -> None:
    """One A100 and one V100: equal shares take longer than the bound with any shares allows."""
    problem = problem_of(1, 1, 11)
    alike = problem.model_copy(
        update={
            "search_space": problem.search_space.model_copy(update={"microbatch_shares": False})
        }
    )
    best_s = optimum_s(problem)
    cutoff_s = 2 * best_s
    assert bound_s(problem, cutoff_s) <= best_s
    certificate = Certificate(alike, 24)
    assert "with equal microbatch shares" in certificate.rules()[0]
    assert "with any microbatch shares" in Certificate(problem, 24).rules()[0]


def test_dollars_have_no_bound_and_coupled_models_have_the_usual_one() -> None:
    assert not Certificate(problem_of(1, 1, 6, objective="min_cost"), 24).covers
    coupled = Certificate(problem_of(1, 1, 6, cost_model="published"), 24)
    assert coupled.covers
    assert "with equal microbatch shares" in coupled.rules()[0]
