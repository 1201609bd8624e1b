"""The event engine's last word on the best few plans."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.api import build_problem
from sailor.errors import InputError
from sailor.interfaces import Limits, SearchOutcome
from sailor.model.estimate import Estimate
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.sim.fidelity import estimate_events
from sailor.solve import last_word as module
from sailor.solve.decide import Decided
from sailor.solve.dynamic import DynamicPlanner
from sailor.solve.last_word import last_word

REGISTRY = Registry.load(entry_points=False)


def searched(**more: Any) -> tuple[Problem, SearchOutcome]:
    wishes = {"objective": "max_throughput", "a100": 4, "v100": 6, **more}
    problem = build_problem(tiny_job(zones=1, batch=24, **wishes), registry=REGISTRY)
    return problem, DynamicPlanner().solve(problem, Limits(), lambda p: None, lambda: False)


def test_finalists_are_other_legal_plans_near_the_best() -> None:
    problem, outcome = searched()
    assert outcome.plan is not None
    assert outcome.finalists
    assert outcome.plan not in outcome.finalists
    assert len({plan.model_dump_json() for plan in outcome.finalists}) == len(outcome.finalists)
    found = [estimate(problem, plan) for plan in (outcome.plan, *outcome.finalists)]
    assert not any(one.violations for one in found)
    values = [one.iteration_s for one in found]
    assert values == sorted(values)
    assert values[-1] <= 1.05 * values[0]


def test_the_best_of_the_engine_is_returned_and_never_worse_than_the_closed_form_s() -> None:
    changed = 0
    for a100, v100, batch in ((2, 6, 24), (4, 6, 24), (3, 4, 12), (4, 8, 16), (2, 8, 32)):
        job = tiny_job(a100=a100, v100=v100, zones=1, batch=batch, objective="max_throughput")
        problem = build_problem(job, registry=REGISTRY)
        plain = DynamicPlanner().solve(problem, Limits(), lambda p: None, lambda: False)
        assert plain.plan is not None
        everyone = (plain.plan, *plain.finalists)
        by_engine = [estimate_events(problem, plan).estimate.iteration_s for plan in everyone]
        result = sailor.optimize(job, planner="dynamic", registry=REGISTRY)
        assert result.event is not None
        assert result.estimate is not None
        assert result.plan is not None
        assert result.event.iteration_s == min(by_engine)
        assert (result.event.fidelity, result.estimate.fidelity) == ("event", "closed_form")
        assert result.estimate == estimate(problem, result.plan)
        if result.plan != plain.plan:
            changed += 1
            assert result.rules[0].startswith("chosen by the event engine: ")
            assert f"against {by_engine[0]:.4g} s" in result.rules[0]
    assert changed >= 1


def test_a_closed_form_has_no_events() -> None:
    problem, outcome = searched(cost_model="published")
    assert outcome.finalists == ()
    word = last_word(Decided((problem,), outcome))
    assert word is not None
    assert (word.plan, word.event, word.note) == (outcome.plan, None, None)


def test_a_search_that_is_told_to_stop_has_its_last_word_too() -> None:
    job = tiny_job(a100=4, v100=6, zones=1, batch=24, objective="max_throughput")
    full = sailor.optimize(job, planner="dynamic", registry=REGISTRY)
    calls = iter(range(10**6))
    cut = sailor.optimize(job, planner="dynamic", registry=REGISTRY,
                          should_stop=lambda: next(calls) > 200)  # fmt: skip
    assert full.event is not None
    assert cut.event is not None
    assert cut.event.iteration_s == pytest.approx(full.event.iteration_s)


def test_a_plan_that_breaks_a_limit_in_the_engine_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, outcome = searched()
    assert outcome.plan is not None
    real = estimate_events(problem, outcome.plan).estimate
    slow = real.model_copy(update={"time": real.time.model_copy(update={"total_s": 1e6})})
    broken = real.model_copy(update={"violations": ("too slow",)})

    def events(_problem: Problem, plan: Plan) -> Estimate:
        return broken if plan is outcome.plan else slow

    monkeypatch.setattr(module, "_events", events)
    word = last_word(Decided((problem,), outcome))
    assert word is not None
    assert word.plan is outcome.finalists[0]
    assert word.note is not None
    assert "breaks a limit in the event engine (too slow)" in word.note


def test_what_the_engine_can_t_simulate_stays_with_the_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, outcome = searched()

    def refuse(_problem: Problem, _plan: Plan) -> None:
        raise InputError("no operations are known")

    monkeypatch.setattr(module, "estimate_events", refuse)
    word = last_word(Decided((problem,), outcome))
    assert word is not None
    assert (word.plan, word.event) == (outcome.plan, None)


def test_interleaved_forms_are_looked_at_where_the_job_allows_them() -> None:
    job = tiny_job(a100=4, v100=0, zones=1, batch=4, objective="max_throughput",
                   constraints={"pp": 4, "dp": 1, "tp": 1, "microbatch": 1})  # fmt: skip
    job["model"] = {**job["model"], "num_layers": 16}
    space = job["search_space"]
    plain = sailor.optimize(job, planner="dynamic", registry=REGISTRY)
    found = sailor.optimize({**job, "search_space": {**space, "vpp": [1, 2, 4]}},
                            planner="dynamic", registry=REGISTRY)  # fmt: skip
    assert plain.plan is not None
    assert found.plan is not None
    assert plain.event is not None
    assert found.event is not None
    assert (plain.plan.vpp, plain.plan.schedule) == (1, "1f1b")
    assert found.plan.schedule == "interleaved"
    assert found.plan.vpp in (2, 4)
    assert found.event.iteration_s < plain.event.iteration_s
    assert (found.bound, found.gap) == (None, None)
    assert "no bound: it would not hold for interleaved pipelines" in found.rules
    again = sailor.simulate(job, found.plan, fidelity="event", registry=REGISTRY)
    assert again.iteration_s == found.event.iteration_s
