"""An estimate: what a plan takes in time, memory and money, as sums of named parts."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.base import Record
from sailor.model.hardware import Market
from sailor.model.profile import Provenance


class TimeBreakdown(Record):
    """Seconds of one iteration, along the slowest pipeline; the parts add up to `total_s`.

    `compute_s` is the work of the slowest stage over all its microbatches, `p2p_s` that stage's
    transfers to its neighbours, `bubble_s` the time it waits while the pipeline fills and drains,
    `dp_sync_s` the gradient all-reduce, `update_s` the optimizer step.
    """

    compute_s: float = Field(ge=0)
    p2p_s: float = Field(ge=0)
    bubble_s: float = Field(ge=0)
    dp_sync_s: float = Field(ge=0)
    update_s: float = Field(ge=0)
    total_s: float = Field(gt=0)


class StageTime(Record):
    """Seconds of one stage for one microbatch, and its all-reduce."""

    stage: int
    compute_s: float
    p2p_s: float
    dp_sync_s: float


class WorkerMemory(Record):
    """Bytes on one GPU of one group of like replicas, by part; `num_gpus` hold the same."""

    stage: int
    replicas: tuple[int, ...]
    gpu: str
    tp: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    communication_bytes: int
    activations_bytes: int
    transient_bytes: int
    reserve_bytes: int
    total_bytes: int  # the best estimate: the sum of the parts
    bound_bytes: int  # the upper bound, which the verdict uses
    capacity_bytes: int
    in_flight: int  # microbatches whose activations are kept at the peak

    @property
    def headroom_bytes(self) -> int:
        """Return what the upper bound leaves; negative when the plan may not fit."""
        return self.capacity_bytes - self.bound_bytes


class CostTerm(Record):
    """One part of the dollars of an iteration."""

    name: str
    usd_per_iteration: float
    optimised: bool = True  # False: reported only, the planner did not see it


class NodeRental(Record):
    """Nodes to rent: `count` of one type, in one zone, on one market."""

    zone: str
    node_type: str
    market: Market
    gpu: str
    count: int = Field(ge=1)
    gpus_used: int = Field(ge=1)
    gpus_rented: int = Field(ge=1)
    usd_per_hour: float  # of all of them
    price_source: str


class Figure(Record):
    """Where a kind of figure comes from, and how far such figures have been off.

    `error_pct` is the mean absolute error of the validation table of the same regime; None where
    nothing was measured to compare with.
    """

    name: str
    provenance: Provenance
    source: str
    error_pct: float | None = None


class Estimate(Record):
    """Time, memory and money of one plan under one cost model."""

    cost_model: str
    fidelity: Literal["closed_form", "event"] = "closed_form"
    time: TimeBreakdown
    stages: tuple[StageTime, ...]
    memory: tuple[WorkerMemory, ...]
    cost: tuple[CostTerm, ...]
    usd_per_iteration: float  # the sum of all cost terms
    nodes: tuple[NodeRental, ...]
    samples: int  # that one iteration processes
    tokens: int  # of those samples: samples times sequence length
    batch_error: float  # (samples - global batch) / global batch
    violations: tuple[str, ...] = ()  # why the plan can't be run on this problem
    assumptions: tuple[str, ...] = ()  # every default that was used
    figures: tuple[Figure, ...] = ()  # provenance and error bands

    @model_validator(mode="after")
    def _cost_adds_up(self) -> Self:
        total = sum(term.usd_per_iteration for term in self.cost)
        if not math.isclose(total, self.usd_per_iteration, rel_tol=1e-9, abs_tol=1e-15):
            raise ValueError(
                f"the cost terms add up to {total!r} USD, usd_per_iteration says "
                f"{self.usd_per_iteration!r}"
            )
        return self

    @property
    def iteration_s(self) -> float:
        """Return the seconds of one iteration."""
        return self.time.total_s

    @property
    def iterations_per_s(self) -> float:
        """Return iterations a second."""
        return 1.0 / self.time.total_s

    @property
    def usd_per_hour(self) -> float:
        """Return the rent of the nodes an hour."""
        return sum(node.usd_per_hour for node in self.nodes)

    @property
    def fits(self) -> bool:
        """Return whether every worker has room."""
        return all(worker.headroom_bytes >= 0 for worker in self.memory)
