"""Scopes where money counts: plans over several zones that sketches of merged zones don't show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sailor
from sailor.api import build_problem
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.solve.rules import H6
from sailor.solve.scopes import scopes

PRICES = (
    Path(__file__).resolve().parents[2] / "examples" / "jobs" / "sosp25" / "prices.yaml"
)  # fmt: skip
REGISTRY = Registry.load(entry_points=False)


def job(a100: int, v100: int, zones: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "zones",
        "model": "gpt-neo-2.7b",
        "training": {"global_batch": 512, "precision": "fp32"},
        "pool": [
            {"zone": zone, "gpu": gpu, "quota": quota}
            for zone in ("us-central1-a", "us-central1-b", "us-central1-c")[:zones]
            for gpu, quota in (("A100-40GB", a100), ("V100-16GB", v100))
        ],
        "cost_model": "published",
        "sources": {"prices": {"file": str(PRICES)}, "profiles": "embedded",
                    "network": ["measured", "zones"]},
        **more,
    }  # fmt: skip


def problem(**more: Any) -> Problem:
    return build_problem(job(16, 128, 2, **more), registry=REGISTRY)


def test_zones_are_searched_together_alone_and_apart_where_money_counts() -> None:
    fast = scopes(problem(), frozenset({H6}))
    assert [len(scope.pools) for scope in fast] == [2]
    cheap = scopes(problem(objective="min_cost"), frozenset({H6}))
    assert [(len(scope.pools), scope.apart) for scope in cheap] == [
        (2, False), (2, False), (4, True),
    ]  # fmt: skip
    assert cheap[0].ring_usd_per_byte > 0
    assert cheap[1].ring_usd_per_byte == cheap[2].ring_usd_per_byte == 0


def test_a_floor_that_takes_two_zones_is_met_cheaply() -> None:
    floor = {"min_iterations_per_s": 0.05}
    found = sailor.optimize(
        job(16, 128, 2, objective="min_cost", constraints=floor), planner="dynamic"
    )
    assert found.estimate is not None
    assert found.estimate.iterations_per_s >= 0.05
    assert len({node.zone for node in found.estimate.nodes}) == 2
    # Sketches of merged zones, a dozen of them given out, cost 0.72 USD.
    assert found.estimate.usd_per_iteration < 0.62


def test_a_budget_is_spent_on_the_fastest_plan_across_zones() -> None:
    budget = {"max_usd_per_iteration": 0.7}
    found = sailor.optimize(job(16, 128, 2, constraints=budget), planner="dynamic")
    assert found.estimate is not None
    assert found.estimate.usd_per_iteration <= 0.7
    assert found.estimate.iterations_per_s > 0.07
