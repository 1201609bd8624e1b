"""Several processes that work on the cells of one certificate."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem, optimize
from sailor.errors import InputError
from sailor.interfaces import Limits
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve import crew
from sailor.solve.certificate import Certificate
from sailor.solve.certified_search import Effort
from sailor.solve.closing import Closed, Decide
from sailor.solve.cpsat import CpSatPlanner
from sailor.solve.crew import Workers, default_processes, most_members, search_cpu_s
from sailor.solve.search import Budget

REGISTRY = Registry.load(entry_points=False)


def never() -> bool:
    return False


def mixed_problem() -> Problem:
    job = tiny_job(a100=6, v100=9, zones=1, batch=24, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    return build_problem(job, registry=REGISTRY)


@pytest.fixture(scope="module")
def cutoff_s() -> float:
    problem = mixed_problem()
    plan = CpSatPlanner(Effort(thorough=False)).solve(problem, Limits(), lambda p: None, never).plan
    assert plan is not None
    return estimate(problem, plan).iteration_s * 1.3  # so that there is something to find


def looked_at(cutoff_s: float) -> Certificate:
    certificate = Certificate(mixed_problem(), 24)
    certificate.first_look(cutoff_s, never)
    return certificate


def tasks_of(certificate: Certificate) -> list[Decide]:
    return [
        Decide(place, number, part.cells[number], part.found[number], 0.0, 60.0)
        for place, part in enumerate(certificate.parts)
        for number in part.open(certificate.cutoff)
    ]


def answers(
    certificate: Certificate, size: int, budget: Budget | None = None
) -> dict[tuple[int, int], Closed | None]:
    waiting = tasks_of(certificate)
    with Workers(size, certificate) as workers:
        run = workers.run(lambda: waiting.pop() if waiting else None, budget or Budget(None, never))
        return {
            (task.place, task.number): answer for task, answer in run if isinstance(task, Decide)
        }


def test_a_crew_answers_as_one_process_does(cutoff_s: float) -> None:
    alone = answers(looked_at(cutoff_s), 1)
    together = answers(looked_at(cutoff_s), 2)
    assert len(alone) >= 3
    assert any(closed is not None and closed.found for closed in alone.values())
    assert {key: closed and (closed.bound, closed.found, closed.done)
            for key, closed in together.items()} == {
        key: closed and (closed.bound, closed.found, closed.done)
        for key, closed in alone.items()
    }  # fmt: skip


def test_work_of_a_crew_counts_as_cpu_time(cutoff_s: float) -> None:
    certificate = looked_at(cutoff_s)
    before_s = search_cpu_s()
    answers(certificate, 2)
    # Two interpreters that import numpy take a tenth of a second at the very least.
    assert search_cpu_s() - before_s > 0.1


@pytest.mark.parametrize("module", ["this", "platform"])
def test_what_a_broken_crew_leaves_is_done_here(
    cutoff_s: float, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    certificate = looked_at(cutoff_s)
    expected = len(tasks_of(certificate))
    started: list[object] = []
    popen = subprocess.Popen

    def start(command: list[str], **more: object) -> object:
        started.append(command)
        return popen([sys.executable, "-m", module], stderr=subprocess.DEVNULL, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(crew.subprocess, "Popen", start)  # type: ignore[attr-defined]
    assert len(answers(certificate, 2)) == expected
    assert started


def test_tables_that_cannot_be_sent_are_worked_on_here(cutoff_s: float) -> None:
    certificate = looked_at(cutoff_s)
    expected = len(tasks_of(certificate))
    certificate.parts[0].programme.lock = threading.Lock()  # type: ignore[attr-defined]
    assert len(answers(certificate, 2)) == expected


def test_no_process_outlives_its_search(cutoff_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*words: object, **more: object) -> object:
        started.append(popen(*words, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(crew.subprocess, "Popen", start)  # type: ignore[attr-defined]
    certificate = looked_at(cutoff_s)
    assert answers(certificate, 2, Budget(None, lambda: len(started) == 2)) == {}
    assert [process.poll() is not None for process in started] == [True, True]


def test_an_answer_that_nobody_waits_for_is_not_taken_for_another(cutoff_s: float) -> None:
    certificate = looked_at(cutoff_s)
    waiting = tasks_of(certificate)
    expected = answers(certificate, 1)

    def first(run: Iterator[tuple[object, object]]) -> None:
        next(run)
        run.close()  # type: ignore[attr-defined]

    with Workers(2, certificate) as workers:
        budget = Budget(None, never)
        first(workers.run(lambda: waiting[0], budget))
        again = iter(waiting)
        for task, answer in workers.run(lambda: next(again, None), budget):
            assert isinstance(task, Decide)
            assert isinstance(answer, Closed | None)
            known = expected[task.place, task.number]
            assert (answer and answer.bound) == (known and known.bound)


def test_a_search_with_two_processes_has_the_plan_and_bound_of_one() -> None:
    problem = mixed_problem()
    alone, together = (
        CpSatPlanner().solve(problem, Limits(processes=count), lambda p: None, never)
        for count in (1, 2)
    )
    assert alone.plan is not None
    assert together.plan is not None
    assert alone.bound is not None
    assert together.bound is not None
    assert estimate(problem, together.plan).iteration_s == pytest.approx(
        estimate(problem, alone.plan).iteration_s, rel=1e-3
    )
    assert together.bound == pytest.approx(alone.bound, rel=5e-3)


def test_no_number_of_processes() -> None:
    with pytest.raises(InputError, match="0 is no number of processes"):
        optimize(tiny_job(a100=2, v100=0, zones=1, batch=4, objective="max_throughput",
                          cost_model="published"), processes=0)  # fmt: skip
    assert 1 <= default_processes() <= 4


@dataclass(frozen=True)
class Nothing:
    """A task without an answer."""

    def run(self, certificate: Certificate, budget: Budget) -> None:
        return None


def test_nothing_is_started_for_no_work(cutoff_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*words: object, **more: object) -> object:
        raise AssertionError("a process was started")

    monkeypatch.setattr(crew.subprocess, "Popen", start)  # type: ignore[attr-defined]
    with Workers(1, looked_at(cutoff_s)) as workers:
        ones = iter([Nothing()])
        assert len(list(workers.run(lambda: next(ones, None), Budget(None, never)))) == 1
    with Workers(2, looked_at(cutoff_s)):
        pass


def test_no_process_is_started_before_there_is_something_to_do(cutoff_s: float) -> None:
    with Workers(2, looked_at(cutoff_s)) as workers:
        assert list(workers.run(lambda: None, Budget(None, never))) == []
        assert workers._crew is None
    before = most_members()
    assert answers(looked_at(cutoff_s), 2)
    assert most_members() == max(before, 2)
