"""A problem: a job with every name resolved. Closed and serialisable: a bug report is one file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sailor.model.arch import ModelSpec
from sailor.model.base import Record
from sailor.model.cluster import Cluster
from sailor.model.hardware import EgressPrice, GpuType, Link, Market, NodeType, Zone
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.profile import LayerFootprint, LayerProfile


class Placement(Record):
    """Nodes of one type in one zone on one market, with their price."""

    zone: str
    node_type: str
    market: Market
    usd_per_hour: float = Field(gt=0)  # of one node
    price_source: str


class Capacity(Record):
    """A limit that several placements share: at most so many nodes, or GPUs of rented nodes."""

    label: str
    placements: tuple[int, ...]  # indices into Problem.placements
    max_nodes: int | None = None
    max_gpus: int | None = None


class Problem(Record):
    """What planners and simulator see: no files, no network, no clock, no plug-ins."""

    schema_version: Literal[1] = 1
    job: str
    arch: ModelSpec
    training: Training
    batch: BatchTolerance
    objective: Objective
    constraints: Constraints
    search_space: SearchSpace
    cost_model: str
    cluster: Cluster = Cluster()
    gpus: tuple[GpuType, ...]
    nodes: tuple[NodeType, ...]
    zones: tuple[Zone, ...]
    placements: tuple[Placement, ...]
    capacities: tuple[Capacity, ...]
    links: tuple[Link, ...]
    egress: tuple[EgressPrice, ...]
    profiles: tuple[LayerProfile, ...]
    footprints: tuple[LayerFootprint, ...]
    excluded: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def gpu(self, name: str) -> GpuType:
        """Return a GPU type by name."""
        return next(gpu for gpu in self.gpus if gpu.name == name)

    def node(self, name: str) -> NodeType:
        """Return a node type by name."""
        return next(node for node in self.nodes if node.name == name)

    def zone(self, name: str) -> Zone:
        """Return a zone by name."""
        return next(zone for zone in self.zones if zone.name == name)
