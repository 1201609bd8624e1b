"""Layer profiles: what one unit of a model takes on one kind of GPU, with provenance."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from sailor.model.arch import UnitKind
from sailor.model.base import Record
from sailor.model.hardware import Name


class Provenance(StrEnum):
    """How a figure came about."""

    MEASURED = "measured"
    COUNTED = "counted"
    MODELLED = "modelled"


class UnitTime(Record):
    """Seconds of one pass of one microbatch through one unit, tensor-parallel traffic included."""

    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)


class UnitBytes(Record):
    """One unit on one tensor-parallel rank; activations are those of one sample.

    `output_bytes` is what the unit hands on: the whole tensor between blocks (not divided by tp),
    the rank's own share of the logits for the head.
    """

    params: int = Field(ge=0)
    activation_bytes: float = Field(ge=0)  # kept from forward to backward
    output_bytes: float = Field(ge=0)


class LayerProfile(Record):
    """Times by unit kind for one (model, GPU type, tp, microbatch).

    `optimizer_s` is one optimizer step over `optimizer_params` parameters of a rank. `block_host`
    is what the host takes to launch a block's kernels where that is told apart from the device's
    time: with D and H seconds of each a stage takes (D^4 + H^4)^(1/4). Measured times have both.
    """

    model: Name
    gpu: Name
    tp: int = Field(ge=1, le=1024)
    microbatch: int = Field(ge=1, le=65536)
    precision: str
    embedding: UnitTime
    first_block: UnitTime
    block: UnitTime
    head: UnitTime
    block_host: UnitTime = UnitTime(forward_s=0.0, backward_s=0.0)
    optimizer_s: float = Field(ge=0)
    optimizer_params: int = Field(gt=0)
    provenance: Provenance
    source: str = Field(min_length=1)
    as_of: date | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.block.forward_s <= 0 or self.block.backward_s <= 0:
            raise ValueError(
                "a block that takes 0 s is a missing measurement; leave the profile out instead"
            )
        return self

    def unit(self, kind: UnitKind) -> UnitTime:
        """Return the times of one kind of unit."""
        time: UnitTime = getattr(self, kind)
        return time


class LayerFootprint(Record):
    """Bytes by unit kind for one (model, tp); independent of the GPU type."""

    model: Name
    tp: int = Field(ge=1, le=1024)
    precision: str
    embedding: UnitBytes
    first_block: UnitBytes
    block: UnitBytes
    head: UnitBytes
    provenance: Provenance
    source: str = Field(min_length=1)

    def unit(self, kind: UnitKind) -> UnitBytes:
        """Return the bytes of one kind of unit."""
        found: UnitBytes = getattr(self, kind)
        return found
