"""A job: what a person writes. Names and wishes, no lookups done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sailor.model.arch import ModelSpec
from sailor.model.base import Record
from sailor.model.cluster import ClusterRef
from sailor.model.execution import Execution, Recompute
from sailor.model.hardware import EgressPrice, GpuType, Link, Name, NodeType, Offer, Price, Zone
from sailor.model.units import Bytes, Usd


class Objective(StrEnum):
    """What the planner looks for."""

    MAX_THROUGHPUT = "max_throughput"  # iterations a second
    MIN_COST = "min_cost"  # dollars an iteration


class HuggingFaceModel(Record):
    """A model described by a local `config.json` in the Hugging Face format."""

    huggingface: str = Field(min_length=1)
    seq_len: int | None = Field(default=None, ge=1)


class Training(Execution):
    """How the model is trained; `global_batch` is sequences an iteration.

    `cp` and `ep` are the same for every stage of a plan: a replica of a stage takes tp x cp GPUs
    of one node, and `ep` of a stage's ranks share out its experts.
    """

    global_batch: int = Field(ge=1, le=100_000_000)
    dropout: bool = True

    @property
    def usual(self) -> bool:
        """Return whether layers run as profiles are measured: nothing recomputed or split more."""
        return (
            self.recompute == "none"
            and not self.sequence_parallel
            and not self.fp8
            and self.attention is None
            and self.cp == self.ep == 1
        )


class BatchTolerance(Record):
    """How far the samples of an iteration may be from the global batch (a fraction)."""

    within: float = Field(default=0.0, ge=0, lt=1)


class Constraints(Record):
    """Hard limits, all optional. `tp`, `pp`, `dp` and `microbatch` pin a degree."""

    max_usd_per_iteration: Usd | None = None
    min_iterations_per_s: float | None = Field(default=None, gt=0)
    zones: tuple[Name, ...] | None = None
    regions: tuple[Name, ...] | None = None
    gpu_types: tuple[Name, ...] | None = None
    max_gpus: int | None = Field(default=None, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    max_zones: int | None = Field(default=None, ge=1)
    tp: int | None = Field(default=None, ge=1)
    pp: int | None = Field(default=None, ge=1)
    dp: int | None = Field(default=None, ge=1)
    microbatch: int | None = Field(default=None, ge=1)
    memory_headroom: Bytes = 0


class SearchSpace(Record):
    """What the planner may vary. Off means: as the field's usual trainers do it."""

    uneven_layers: bool = True  # off: layer counts of stages differ by at most one
    tp_per_stage: bool = True  # off: one tp for the whole plan
    mixed_types_in_stage: bool = True  # off: all replicas of a stage are of one kind
    microbatch_shares: bool = False  # on: pipelines may take unequal microbatch counts
    tp: tuple[Annotated[int, Field(ge=1)], ...] | None = None  # None: 1, 2, 4 ... and measured ones
    microbatch: tuple[Annotated[int, Field(ge=1)], ...] | None = None  # None: the profile's grid
    max_pp: int | None = Field(default=None, ge=1)
    # Values that the planner chooses from; None: as the training says.
    recompute: tuple[Recompute, ...] | None = Field(default=None, min_length=1)
    zero: tuple[Annotated[int, Field(ge=0, le=3)], ...] | None = Field(default=None, min_length=1)
    vpp: tuple[Annotated[int, Field(ge=1, le=256)], ...] = (1,)  # above 1: interleaved schedules


def _source_options(value: object) -> object:
    """Accept `name`, `{name: path}` and a list of them."""
    if isinstance(value, str):
        return ({"name": value},)
    if isinstance(value, Mapping) and set(value) != {"name"} and set(value) != {"name", "path"}:
        if len(value) != 1:
            raise ValueError("a source is a name, or one name with a path: {file: prices.yaml}")
        ((name, path),) = value.items()
        return ({"name": name, "path": path},)
    if isinstance(value, Mapping):
        return (value,)
    if isinstance(value, (list, tuple)):
        parts: list[object] = []
        for item in value:
            if isinstance(item, (list, tuple)):
                raise ValueError("a list of sources holds names: [NAME, {file: prices.yaml}]")
            one = _source_options(item) if not isinstance(item, SourceRef) else (item,)
            parts.extend(one if isinstance(one, tuple) else (one,))
        return tuple(parts)
    return value


class SourceRef(Record):
    """A source by its registered name, with a file where it reads one."""

    name: Name
    path: str | None = None


SourceRefs = Annotated[tuple[SourceRef, ...], BeforeValidator(_source_options), Field(min_length=1)]


class Sources(Record):
    """Which plug-in answers which question: names, in order of precedence."""

    prices: SourceRefs = (SourceRef(name="gcp"),)
    profiles: SourceRefs = (SourceRef(name="embedded"), SourceRef(name="analytic"))
    network: SourceRefs = (SourceRef(name="measured"), SourceRef(name="zones"))
    availability: SourceRefs = (SourceRef(name="static"),)


class CatalogAdditions(Record):
    """Hardware and facts of the job's own, used before the built-in catalogue."""

    gpus: tuple[GpuType, ...] = ()
    nodes: tuple[NodeType, ...] = ()
    zones: tuple[Zone, ...] = ()
    prices: tuple[Price, ...] = ()
    egress: tuple[EgressPrice, ...] = ()
    links: tuple[Link, ...] = ()


def check_pool(pool: Sequence[Offer]) -> None:
    """Raise ValueError where a pool has nothing to rent, or names the same offer twice."""
    if all((offer.count or 0) + (offer.quota or 0) == 0 for offer in pool):
        raise ValueError(
            "every offer of the pool has quota 0: there is nothing to rent; "
            "raise a quota or a count"
        )
    seen: dict[tuple[object, ...], int] = {}
    for index, offer in enumerate(pool):
        key = (offer.zone, offer.region, offer.node_type, offer.gpu, offer.market)
        if key in seen:
            raise ValueError(
                f"pool[{index}] repeats pool[{seen[key]}] ({offer.label()}); "
                "write one offer with the sum"
            )
        seen[key] = index


class Job(Record):
    """What to plan: a model, a batch, a pool, wishes. See `sailor schema job`."""

    schema_version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)
    model: ModelSpec | HuggingFaceModel | Name
    training: Training
    batch: BatchTolerance = BatchTolerance()
    pool: tuple[Offer, ...] = Field(min_length=1)
    objective: Objective = Objective.MAX_THROUGHPUT
    constraints: Constraints = Constraints()
    search_space: SearchSpace = SearchSpace()
    cost_model: Name = "sailor"
    cluster: ClusterRef = ClusterRef()
    sources: Sources = Sources()
    catalog: CatalogAdditions = CatalogAdditions()

    @model_validator(mode="after")
    def _pool_has_something(self) -> Self:
        check_pool(self.pool)
        return self
