"""A limit of counted work: the same answer however fast the machine is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import sailor
from sailor.cli import run
from sailor.interfaces import Limits
from sailor.registry import Registry
from sailor.solve import work
from sailor.solve.search import Budget, Shared

JOBS = Path(__file__).resolve().parents[2] / "examples" / "jobs" / "sosp25"
REGISTRY = Registry.load(entry_points=False)


def hurry(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Let every clock run so many times as fast: a machine that is so much slower."""
    for name in ("monotonic", "process_time", "perf_counter"):
        real, begin = getattr(time, name), getattr(time, name)()
        monkeypatch.setattr(time, name, lambda r=real, b=begin: b + factor * (r() - b))


@pytest.mark.parametrize(
    ("job", "planner", "work_s"),
    [
        ("gptneo27-fig8b-32+96", "cpsat", 1.0),
        ("gptneo27-fig8b-32+96", "auto", 1.0),
        ("opt350-fig11", "auto", 1.0),
        ("opt350-fig10-5x32", "dynamic", 0.05),
    ],
)
def test_a_slow_machine_has_the_same_answer(
    job: str, planner: str, work_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools")
    found = []
    for factor in (1.0, 20.0):
        hurry(monkeypatch, factor)
        result = sailor.optimize(
            JOBS / f"{job}.yaml", planner=planner, limits=Limits(work_s=work_s, seed=3)
        )
        monkeypatch.undo()
        assert result.plan is not None
        found.append(result)
    assert found[0].plan == found[1].plan
    assert found[0].bound == found[1].bound
    assert found[0].evaluations == found[1].evaluations
    assert found[0].stop_reason == found[1].stop_reason
    assert found[0].stopped_early == found[1].stopped_early


def test_more_work_ends_later_and_nearer() -> None:
    pytest.importorskip("ortools")
    path = JOBS / "gptneo27-fig8b-32+96.yaml"
    gaps, counted = [], []
    for work_s in (1.0, 3.0):
        before = work.counted_s()
        result = sailor.optimize(path, planner="cpsat", limits=Limits(work_s=work_s, gap=0.0))
        counted.append(work.counted_s() - before)
        assert result.gap is not None
        gaps.append(result.gap)
        assert result.stopped_early
    assert gaps[1] < gaps[0]
    assert 1.0 <= counted[0] < 2.5 < 3.0 <= counted[1] < 5.0


def test_a_budget_ends_with_its_work_and_parts_of_it_earlier() -> None:
    budget = Budget(None, lambda: False, work_s=2.0)
    part = budget.within(1.0)
    assert not budget.over()
    work.add(1.5)
    assert part.over()
    assert not budget.over()
    work.add(0.6)
    assert budget.over()


def test_searches_share_work_as_they_share_time() -> None:
    shared = Shared(Limits(work_s=6.0), default_wall_s=30.0)
    first = shared.part(3)
    assert first.work_s == pytest.approx(2.0)
    assert first.wall_s is None  # a limit of time would bring chance back
    work.add(0.5)
    assert shared.part(2).work_s == pytest.approx(2.75)
    timed = Shared(Limits(), default_wall_s=30.0).part(3)
    assert timed.wall_s == pytest.approx(10.0, abs=0.1)
    assert timed.work_s is None


def test_the_command_line_takes_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    job = str(JOBS / "opt350-fig7-32.yaml")
    arguments = ["plan", job, "--planner", "cpsat", "--format", "json"]
    found = []
    for _ in range(2):
        assert run([*arguments, "--work-limit", "0.2"]) == 0
        found.append(sailor.Result.model_validate_json(capsys.readouterr().out))
    assert found[0].plan == found[1].plan
    assert found[0].bound == found[1].bound
    assert run([*arguments, "--work-limit", "0"]) == 2
    assert "--work-limit" in capsys.readouterr().err
