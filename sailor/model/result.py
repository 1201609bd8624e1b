"""A result: what a planner found, and what it can say about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from sailor.model.base import Record
from sailor.model.estimate import Estimate
from sailor.model.job import Objective
from sailor.model.plan import Plan


class Status(StrEnum):
    """How a search ended. `optimal` means: within the search space that `rules` names."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_PLAN = "no_plan"


class Result(Record):
    """One job, planned. `objective_value` is iterations/s or USD an iteration."""

    schema_version: Literal[1] = 1
    status: Status
    job: str
    objective: Objective
    cost_model: str
    planner: str
    plan: Plan | None = None
    estimate: Estimate | None = None
    event: Estimate | None = None  # the same plan, every operation simulated
    objective_value: float | None = None
    bound: float | None = None  # the best value that any plan of the search space can have
    gap: float | None = Field(default=None, ge=0)
    rules: tuple[str, ...] = ()  # what cut the search space
    reasons: tuple[str, ...] = ()  # why there is no plan
    relaxations: tuple[str, ...] = ()  # changes of the job that each would bring a plan
    unused: tuple[str, ...] = ()  # offers of which the plan leaves nodes or GPUs
    excluded: tuple[str, ...] = ()  # what could not be used and why, and remarks on prices
    assumptions: tuple[str, ...] = ()
    stopped_early: bool = False
    stop_reason: str | None = None  # why the search ended, where the planner says so
    evaluations: int = 0
    problem_digest: str
    sailor_version: str
    search_wall_s: float
    search_cpu_s: float

    def summary(self) -> str:
        """Return one line for people."""
        if self.plan is None or self.estimate is None:
            return f"{self.job}: {self.status}: {'; '.join(self.reasons)}"
        return (
            f"{self.job}: pp {self.plan.pp}, dp {self.plan.dp}, {self.plan.num_gpus} GPUs, "
            f"{self.estimate.iteration_s:.4g} s and {self.estimate.usd_per_iteration:.4g} USD "
            f"an iteration ({self.planner}, {self.status})"
        )
