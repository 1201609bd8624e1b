"""A plan: which GPUs hold which units of the model. The one format that planners write,
the simulator reads and backends run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.arch import MAX_UNITS
from sailor.model.base import Record
from sailor.model.execution import Recompute
from sailor.model.hardware import Market, Name


class Replica(Record):
    """One data-parallel copy of one stage: `tp` GPUs of one node (times the plan's `cp`).

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
    """Stages in pipeline order. They cover units 0..num_units exactly once.

    With `vpp` above 1 the stages are model chunks: chunk i lies on the workers of chunk
    i % pp, so that each worker holds vpp of them. `zero` and `recompute` None: as the job's
    training says.
    """

    schema_version: Literal[1] = 1
    model: Name
    num_units: int = Field(ge=3, le=MAX_UNITS)
    global_batch: int = Field(ge=1)
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    vpp: int = Field(default=1, ge=1, le=256)
    cp: int = Field(default=1, ge=1, le=1024)
    zero: Literal[0, 1, 2, 3] | None = None
    recompute: Recompute | None = None
    stages: tuple[Stage, ...] = Field(min_length=1)

    @property
    def pp(self) -> int:
        """Return the number of pipeline ranks: stages, each of `vpp` chunks."""
        return len(self.stages) // self.vpp

    @property
    def ranks(self) -> tuple[Stage, ...]:
        """Return the first chunk of every pipeline rank: its replicas are the rank's."""
        return self.stages[: self.pp]

    @property
    def dp(self) -> int:
        """Return the number of pipelines."""
        return len(self.stages[0].replicas)

    @property
    def num_gpus(self) -> int:
        """Return the GPUs that compute (a rented node may hold more)."""
        return self.cp * sum(r.tp for stage in self.ranks for r in stage.replicas)

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

    @model_validator(mode="after")
    def _chunks_lie_on_ranks(self) -> Self:
        if (self.schedule == "interleaved") != (self.vpp > 1):
            raise ValueError(
                f"schedule {self.schedule} with vpp {self.vpp}: an interleaved pipeline has vpp "
                "above 1, the others have vpp 1"
            )
        if len(self.stages) % self.vpp:
            raise ValueError(f"{len(self.stages)} chunks don't divide over vpp {self.vpp}")
        for index in range(self.pp, len(self.stages)):
            if self.stages[index].replicas != self.stages[index % self.pp].replicas:
                raise ValueError(
                    f"chunk {index} lies on the workers of chunk {index % self.pp}, but names "
                    "other replicas"
                )
        if self.vpp > 1 and any(
            replica.num_microbatches % self.pp for replica in self.stages[0].replicas
        ):
            raise ValueError(
                f"an interleaved pipeline of {self.pp} ranks needs microbatch counts that are "
                f"multiples of {self.pp}"
            )
        return self
