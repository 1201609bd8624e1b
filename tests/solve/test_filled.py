"""Plans where no kind has room for all replicas of a stage."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.registry import Registry

REGISTRY = Registry.load(entry_points=False)


def plan(planner: str, a100: int, v100: int, **limits: Any) -> sailor.Result:
    job = tiny_job(a100=a100, v100=v100, zones=1, batch=12, objective="max_throughput",
                   constraints=limits)  # fmt: skip
    return sailor.optimize(job, planner=planner, registry=REGISTRY)


@pytest.mark.parametrize("planner", ["dynamic", "cpsat"])
@pytest.mark.parametrize(
    ("a100", "v100", "limits"),
    [(1, 1, {"dp": 2}), (1, 2, {"dp": 3}), (2, 3, {"dp": 5, "pp": 1}), (3, 2, {"pp": 1, "dp": 4})],
)
def test_a_stage_of_both_types_is_found(
    planner: str, a100: int, v100: int, limits: dict[str, int]
) -> None:
    exact, found = (plan(name, a100, v100, **limits) for name in ("exhaustive", planner))
    assert exact.objective_value is not None
    assert found.objective_value == pytest.approx(exact.objective_value)
    assert found.plan is not None
    assert len({replica.gpu for replica in found.plan.stages[0].replicas}) == 2


def test_there_is_none_where_types_may_not_mix() -> None:
    job = tiny_job(a100=1, v100=1, zones=1, batch=12, objective="max_throughput",
                   constraints={"dp": 2})  # fmt: skip
    job["search_space"] = {**job["search_space"], "mixed_types_in_stage": False}
    assert sailor.optimize(job, planner="dynamic", registry=REGISTRY).plan is None
