"""Hardware and where it is to be had: GPU types, node types, zones, links, prices, offers."""

from __future__ import annotations

import math
from datetime import date
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from sailor.model.base import Record
from sailor.model.units import (
    BytesPerSecond,
    FlopPerSecond,
    PositiveBytes,
    Seconds,
    UsdPerByte,
    UsdPerHour,
)

Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S+$")]


class Market(StrEnum):
    """How a node is rented."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


class GpuType(Record):
    """One kind of GPU; rates are the data sheet's dense figures.

    `memory_bytes` is what the driver reports as the card's total, `marketed_gib` the number in
    its name: cost model `published` compares with the latter, as the paper's planner does.
    """

    name: Name
    memory_bytes: PositiveBytes
    marketed_gib: int = Field(gt=0)
    fp32_flop_per_s: FlopPerSecond
    half_flop_per_s: FlopPerSecond  # fp16 or bf16 with fp32 accumulation, tensor cores
    memory_bandwidth: BytesPerSecond
    bf16: bool = True
    source: str = Field(min_length=1)

    def flop_per_s(self, precision: str) -> float:
        """Return the peak rate at `precision` ("fp32", "fp16" or "bf16")."""
        return self.fp32_flop_per_s if precision == "fp32" else self.half_flop_per_s


class NodeType(Record):
    """One machine shape: what a provider rents as a unit and prices by the hour."""

    name: Name
    provider: Name
    gpu: Name
    num_gpus: int = Field(ge=1, le=1024)
    intra_node_bandwidth: BytesPerSecond  # one GPU to its peers, one direction
    nic_bandwidth: BytesPerSecond  # the whole node, one direction
    source: str = Field(min_length=1)


class Zone(Record):
    """The smallest place that has its own prices and quota."""

    name: Name
    region: Name
    provider: Name


class BandwidthCurve(Record):
    """Bandwidth by message size, fitted to measurements.

    bytes/s = 1e9 * ((c2 * x + c1) * x + c0) with x = log2(message bytes / 1e6). Outside
    [min_bytes, max_bytes] the fit says nothing: the nearest end of the range is used.
    `coefficients` are (c2, c1, c0): highest power first.
    """

    coefficients: tuple[float, float, float]
    min_bytes: float = Field(default=2.0**16, gt=0)
    max_bytes: float = Field(default=2.0**30, gt=0)
    peak_bytes_per_s: float = Field(gt=0)

    def bytes_per_s(self, message_bytes: float) -> float:
        """Return the bandwidth for one message, clamped to the measured range and peak."""
        size = min(max(message_bytes, self.min_bytes), self.max_bytes)
        x = math.log2(size / 1e6)
        c2, c1, c0 = self.coefficients
        fitted = 1e9 * ((c2 * x + c1) * x + c0)
        low = math.log2(self.min_bytes / 1e6)
        floor = 1e9 * ((c2 * low + c1) * low + c0)
        # A fit that has gone to zero or below at its lower end carries no figure there; a
        # thousandth of the measured peak keeps the time finite and pessimistic.
        return min(max(fitted, floor, self.peak_bytes_per_s * 1e-3), self.peak_bytes_per_s)


class Link(Record):
    """A directed connection between workers of two zones (or of one zone, between nodes).

    `src_gpu`, `dst_gpu`, `src_workers` and `dst_workers` narrow the link to nodes of those GPU
    types that send with so many GPUs at once; None means any. The bandwidth is the aggregate of
    those workers. A transfer never takes less than `latency_s`.
    """

    src: Name
    dst: Name
    src_gpu: Name | None = None
    dst_gpu: Name | None = None
    src_workers: int | None = Field(default=None, ge=1)
    dst_workers: int | None = Field(default=None, ge=1)
    latency_s: Seconds
    bandwidth: BytesPerSecond | None = None
    curve: BandwidthCurve | None = None
    source: str = Field(min_length=1)
    assumed: bool = False  # True: a default of the network model, not a measurement

    @model_validator(mode="after")
    def _one_bandwidth(self) -> Self:
        if (self.bandwidth is None) == (self.curve is None):
            raise ValueError("a link needs either bandwidth or curve, and not both")
        return self

    def transfer_s(self, message_bytes: float) -> float:
        """Return the seconds of one message: latency plus bytes over bandwidth."""
        if message_bytes <= 0:
            return 0.0
        rate = self.curve.bytes_per_s(message_bytes) if self.curve else self.bandwidth
        return self.latency_s + message_bytes / float(rate or math.inf)


class Price(Record):
    """What one *node* costs an hour, with source and date."""

    zone: Name
    node_type: Name
    market: Market
    usd_per_hour: UsdPerHour
    source: str = Field(min_length=1)
    as_of: date


class EgressPrice(Record):
    """What a byte costs from one zone to another; the sender pays."""

    src: Name
    dst: Name
    usd_per_byte: UsdPerByte
    source: str = Field(min_length=1)
    as_of: date


class Offer(Record):
    """What can be had: nodes of one type in a zone, or a GPU quota of a zone or region.

    Either `zone`, `node_type` and `count`; or `gpu` and `quota` with a `zone` or `region`
    (and, to narrow it, `node_types`): every node shape with that GPU draws on the one quota.
    """

    zone: Name | None = None
    region: Name | None = None
    node_type: Name | None = None
    count: int | None = Field(default=None, ge=0)
    gpu: Name | None = None
    quota: int | None = Field(default=None, ge=0)
    node_types: tuple[Name, ...] | None = None
    market: Market = Market.ON_DEMAND

    @model_validator(mode="after")
    def _nodes_or_quota(self) -> Self:
        if (self.zone is None) == (self.region is None):
            raise ValueError("an offer needs either zone or region, and not both")
        if self.node_type is not None:
            if self.count is None or self.zone is None:
                raise ValueError("an offer of node_type needs a zone and a count of nodes")
            if self.gpu is not None or self.quota is not None or self.node_types is not None:
                raise ValueError(
                    "an offer is either node_type with count, or gpu with quota, not both"
                )
        elif self.gpu is None or self.quota is None:
            raise ValueError("an offer needs node_type with count, or gpu with quota")
        elif self.count is not None:
            raise ValueError("count goes with node_type; a GPU quota is written as quota")
        return self

    def label(self) -> str:
        """Return a short name for messages."""
        place = self.zone or self.region
        what = self.node_type or self.gpu
        return f"{what} {self.market} in {place}"
