"""Recomputation and ZeRO as decisions of the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.api import build_problem, plan_problem
from sailor.errors import InputError
from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.result import Status
from sailor.registry import Registry
from sailor.resolve.choices import job_of_plan, training_choices
from sailor.solve.decide import decide
from sailor.solve.exhaustive import ExhaustivePlanner

REGISTRY = Registry.load(entry_points=False)
BOTH: dict[str, Any] = {"recompute": ["full", "none"], "zero": [0, 1]}


def job(objective: str = "max_throughput", **more: Any) -> dict[str, Any]:
    found = tiny_job(a100=1, v100=2, zones=1, batch=6, objective=objective, **more)
    return {**found, "search_space": {**found["search_space"], "tp": [1]}}


def choosing(base: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {**base, "search_space": {**base["search_space"], **choice}}


def pinned(base: dict[str, Any], recompute: str, zero: int) -> dict[str, Any]:
    return {**base, "training": {**base["training"], "recompute": recompute, "zero": zero}}


def optimize(document: dict[str, Any], planner: str = "exhaustive") -> sailor.Result:
    """Plan by the closed form alone, of which the oracle is one."""
    loaded = sailor.load_job(document)
    return plan_problem(
        build_problem(loaded, registry=REGISTRY),
        REGISTRY.planner(planner),
        REGISTRY,
        limits=Limits(),
        on_progress=lambda progress: None,
        should_stop=lambda: False,
        choices=tuple(build_problem(c, registry=REGISTRY) for c in training_choices(loaded)),
        events=False,
    )


def test_the_jobs_of_a_search_are_those_that_pin_a_value_and_the_own_one_comes_first() -> None:
    loaded = sailor.load_job(choosing(job(), **BOTH))
    choices = training_choices(loaded)
    assert [(c.training.recompute, c.training.zero) for c in choices] == [
        ("none", 0), ("full", 0), ("full", 1), ("none", 1),
    ]  # fmt: skip
    for choice in choices:
        by_hand = pinned(job(), choice.training.recompute, choice.training.zero)
        assert choice == sailor.load_job(by_hand)
    assert training_choices(sailor.load_job(job())) == ()


def test_the_best_of_all_is_the_best_of_the_jobs_that_pin_one() -> None:
    base = job()
    single = {
        (recompute, zero): optimize(pinned(base, recompute, zero))
        for recompute in BOTH["recompute"]
        for zero in BOTH["zero"]
    }
    values = {key: result.objective_value or 0.0 for key, result in single.items()}
    best = max(values, key=lambda key: values[key])
    found = optimize(choosing(base, **BOTH))
    assert found.status is Status.OPTIMAL
    assert found.plan is not None
    assert found.objective_value == max(values.values())
    assert (found.plan.recompute, found.plan.zero) == best
    assert found.estimate == single[best].estimate
    assert "recompute full, zero 0: " + f"{values['full', 0]:.4g} it/s" in found.rules[0]
    # The plan alone says how it runs: the job's own training is another one.
    again = sailor.simulate(pinned(base, "full", 0), found.plan, registry=REGISTRY)
    assert again == found.estimate


def test_a_single_value_is_a_decision_too() -> None:
    base = job()
    found = optimize(choosing(base, recompute=["full"]))
    assert found.plan is not None
    assert (found.plan.recompute, found.plan.zero) == ("full", 0)
    assert found.estimate == optimize(pinned(base, "full", 0)).estimate
    plain = optimize(base).plan
    assert plain is not None
    assert (plain.recompute, plain.zero) == (None, None)


def test_a_front_decides_for_each_point() -> None:
    base = choosing(job(), recompute=["full", "none"])
    points = sailor.pareto(base, points=3, planner="exhaustive", registry=REGISTRY)
    assert points
    for point in points:
        assert point.plan.recompute == "none"
        assert point.gap == pytest.approx(0.0, abs=1e-9)
        again = sailor.simulate(pinned(base, "full", 1), point.plan, registry=REGISTRY)
        assert again == point.estimate


def test_recomputation_is_chosen_where_the_memory_asks_for_it() -> None:
    base = job(constraints={"pp": 1, "microbatch": 2, "gpu_types": ["A100-40GB"]})
    need = {}
    for recompute in ("none", "full"):
        found = optimize(pinned(base, recompute, 0))
        assert found.estimate is not None
        need[recompute] = found.estimate.memory[0]
    between = (need["none"].bound_bytes + need["full"].bound_bytes) / 2
    headroom = int(need["none"].capacity_bytes - between)
    tight = {**base, "constraints": {**base["constraints"], "memory_headroom": headroom}}
    assert optimize(tight).plan is None
    found = optimize(choosing(tight, recompute=["none", "full"]))
    assert found.plan is not None
    assert (found.plan.recompute, found.plan.zero) == ("full", 0)


def test_the_bound_holds_for_every_choice() -> None:
    pytest.importorskip("ortools")
    for objective in ("max_throughput", "min_cost"):
        document = choosing(job(objective), recompute=["none", "full"])
        exact, found = optimize(document), optimize(document, "cpsat")
        assert exact.objective_value is not None
        assert found.objective_value is not None
        assert found.bound is not None
        sign = 1 if objective == "min_cost" else -1
        assert sign * found.bound <= sign * exact.objective_value * (1 + sign * 1e-9)
        assert sign * exact.objective_value <= sign * found.objective_value * (1 + sign * 1e-9)


def test_no_plan_comes_with_the_reasons_of_every_choice() -> None:
    impossible = job(constraints={"min_iterations_per_s": 1e6})
    found = optimize(choosing(impossible, recompute=["none", "full"]), "dynamic")
    assert found.plan is None
    assert [reason.split(":")[0] for reason in found.reasons[1:]] == [
        "recompute none, zero 0", "recompute full, zero 0",
    ]  # fmt: skip
    assert all("min_iterations_per_s" in reason for reason in found.reasons)


def test_a_cost_model_without_recomputation_says_so() -> None:
    with pytest.raises(InputError, match="knows nothing of recompute"):
        optimize(choosing(job(cost_model="published"), recompute=["none", "full"]))


def test_a_job_takes_what_a_plan_decided_and_otherwise_keeps_its_own() -> None:
    plan = optimize(job()).plan
    assert plan is not None
    loaded = sailor.load_job(pinned(job(), "selective", 1))
    assert job_of_plan(loaded, plan) == loaded
    other = plan.model_copy(update={"recompute": "full"})
    training = job_of_plan(loaded, other).training
    assert (training.recompute, training.zero) == ("full", 1)


class Recorder:
    """A planner that notes its limits and returns what the oracle finds."""

    name = "recorder"
    default_wall_s = 12.0

    def __init__(self) -> None:
        self.walls: list[float | None] = []

    def unsupported(self, problem: Problem) -> Sequence[str]:
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        self.walls.append(limits.wall_s)
        on_progress(Progress("looking"))
        return ExhaustivePlanner().solve(problem, Limits(), lambda p: None, lambda: False)


def test_the_choices_share_the_time_limit_and_say_which_one_is_searched() -> None:
    problems = [
        build_problem(choice, registry=REGISTRY)
        for choice in training_choices(sailor.load_job(choosing(job(), recompute=["none", "full"])))
    ]
    planner, seen = Recorder(), []
    decided = decide(problems, planner, Limits(), seen.append, lambda: False, chosen=True)
    assert planner.walls[0] == pytest.approx(6.0, abs=0.1)
    assert planner.walls[1] is not None
    assert 10.0 < planner.walls[1] <= 12.0  # what the first one left is the second one's
    assert [p.message for p in seen] == [
        "recompute none, zero 0: looking", "recompute full, zero 0: looking",
    ]  # fmt: skip
    plan = decided.outcome.plan
    assert isinstance(plan, Plan)
    assert decided.problem_of(plan).training.recompute == plan.recompute
    again = Recorder()
    decide(problems, again, Limits(wall_s=3.0), lambda p: None, lambda: False, chosen=True)
    assert again.walls[0] == pytest.approx(1.5, abs=0.1)


class Interrupted(Recorder):
    """A planner that a limit stops."""

    def solve(self, *arguments: Any) -> SearchOutcome:
        return replace(super().solve(*arguments), stopped_early=True, stop_reason="its part")


def test_searches_that_a_limit_ends_name_the_whole_limit() -> None:
    problems = [
        build_problem(choice, registry=REGISTRY)
        for choice in training_choices(sailor.load_job(choosing(job(), recompute=["none", "full"])))
    ]

    def ended(limits: Limits, *, told: bool = False) -> tuple[bool, str | None]:
        found = decide(
            problems, Interrupted(), limits, lambda p: None, lambda: told, chosen=True
        ).outcome
        return found.stopped_early, found.stop_reason

    assert ended(Limits(wall_s=3.0)) == (True, "the time limit of 3 s, which 2 searches shared")
    assert ended(Limits(work_s=3.0)) == (True, "the limit of work, which 2 searches shared")
    # Its own 12 seconds are no interruption.
    assert ended(Limits()) == (False, "the time limit of 12 s, which 2 searches shared")
    assert ended(Limits(), told=True) == (True, "told to by the caller")


def test_spot_and_on_demand_offers_of_one_pool_are_weighed_by_their_own_prices() -> None:
    base = job("min_cost")
    spot = [
        {**price, "market": "spot", "usd_per_hour": usd}
        for price, usd in ((base["catalog"]["prices"][0], 0.9), (base["catalog"]["prices"][2], 3.5))
    ]
    offers = [
        {"zone": "us-central1-a", "gpu": gpu, "quota": 1, "node_types": [node], "market": market}
        for gpu, node in (("A100-40GB", "a2-highgpu-1g"), ("V100-16GB", "n1-v100-1"))
        for market in ("on_demand", "spot")
    ]
    catalog = {**base["catalog"], "prices": [*base["catalog"]["prices"], *spot]}
    found = optimize({**base, "pool": offers, "catalog": catalog})
    assert found.plan is not None
    assert found.estimate is not None
    # A100: spot is the cheaper market. V100: spot is dearer than on demand.
    assert {(n.node_type, str(n.market), n.usd_per_hour) for n in found.estimate.nodes} == {
        ("a2-highgpu-1g", "spot", 0.9)
    }
    both = optimize({**base, "pool": offers, "catalog": catalog,
                     "constraints": {"dp": 2, "pp": 1, "gpu_types": ["V100-16GB"]}})  # fmt: skip
    assert both.estimate is not None
    assert sum(node.usd_per_hour for node in both.estimate.nodes) == pytest.approx(2.8 + 3.5)
    rent = (2.8 + 3.5) / 3600 * both.estimate.iteration_s
    assert both.estimate.cost[0].usd_per_iteration == pytest.approx(rent)
