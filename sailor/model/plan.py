"""A plan: which GPUs hold which units of the model. The one format that planners write,
the simulator reads and backends run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.arch import MAX_UNITS
from sailor.model.base import Record
from sailor.model.hardware import Market, Name


class Replica(Record):
    """One data-parallel copy of one stage: `tp` GPUs of one node.

    `microbatch` is its microbatch size in samples, `num_microbatches` how many it processes an
    iteration. Replica j of every stage forms pipeline j.
    """

    gpu: Name
    node_type: Name
    zone: Name
    market: Market = Market.ON_DEMAND
    tp: int = Field(ge=1, le=1024)
    microbatch: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)


class Stage(Record):
    """Units [start, stop) of the model, held by every one of `replicas`."""

    start: int = Field(ge=0)
    stop: int = Field(ge=1, le=MAX_UNITS)
    replicas: tuple[Replica, ...] = Field(min_length=1, max_length=100_000)


class Plan(Record):
    """Stages in pipeline order. They cover units 0..num_units exactly once."""

    schema_version: Literal[1] = 1
    model: Name
    num_units: int = Field(ge=3, le=MAX_UNITS)
    global_batch: int = Field(ge=1)
    schedule: Literal["1f1b"] = "1f1b"
    stages: tuple[Stage, ...] = Field(min_length=1)

    @property
    def pp(self) -> int:
        """Return the number of stages."""
        return len(self.stages)

    @property
    def dp(self) -> int:
        """Return the number of pipelines."""
        return len(self.stages[0].replicas)

    @property
    def num_gpus(self) -> int:
        """Return the GPUs that compute (a rented node may hold more)."""
        return sum(replica.tp for stage in self.stages for replica in stage.replicas)

    @property
    def samples(self) -> int:
        """Return the samples an iteration processes."""
        return sum(r.microbatch * r.num_microbatches for r in self.stages[0].replicas)

    @model_validator(mode="after")
    def _stages_tile_the_model(self) -> Self:
        position = 0
        for index, stage in enumerate(self.stages):
            if stage.stop <= stage.start:
                raise ValueError(f"stage {index} holds no unit: [{stage.start}, {stage.stop})")
            if stage.start > position:
                raise ValueError(
                    f"units {position}..{stage.start - 1} are in no stage: stage {index} starts "
                    f"at {stage.start}; stages must cover 0..{self.num_units - 1} exactly once"
                )
            if stage.start < position:
                raise ValueError(
                    f"unit {stage.start} is in two stages: stage {index} starts at {stage.start} "
                    f"but the one before stops at {position}"
                )
            position = stage.stop
        if position != self.num_units:
            raise ValueError(
                f"the stages stop at unit {position}, but the model has units 0.."
                f"{self.num_units - 1}"
            )
        return self

    @model_validator(mode="after")
    def _pipelines_agree(self) -> Self:
        first = self.stages[0].replicas
        for index, stage in enumerate(self.stages):
            if len(stage.replicas) != len(first):
                raise ValueError(
                    f"stage {index} has {len(stage.replicas)} replicas and stage 0 has "
                    f"{len(first)}; every stage has the same number"
                )
            for j, (replica, lead) in enumerate(zip(stage.replicas, first, strict=True)):
                if (replica.microbatch, replica.num_microbatches) != (
                    lead.microbatch,
                    lead.num_microbatches,
                ):
                    raise ValueError(
                        f"pipeline {j} changes its microbatches between stage 0 and stage {index}"
                    )
        return self
