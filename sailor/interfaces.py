"""What a plug-in hands over: small typed objects, each with a `name`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.cluster import Cluster
from sailor.model.estimate import Estimate
from sailor.model.execution import Precision
from sailor.model.hardware import EgressPrice, Link, Market, Offer, Price
from sailor.model.job import Job, Training
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, LayerProfile
from sailor.model.result import Result


@dataclass(frozen=True)
class PriceQuery:
    """A price that is wanted: nodes of one type in one zone on one market."""

    zone: str
    node_type: str
    market: Market


@dataclass(frozen=True)
class WorkerGroup:
    """The GPUs of one replica as the network sees them: type, zone, how many send at once."""

    zone: str
    gpu: str
    node_type: str
    workers: int


@dataclass(frozen=True)
class SourceContext:
    """What a source may look at: catalogue, the file that the job names for it, the cluster."""

    catalog: Catalog
    path: Path | None = None
    cluster: Cluster = field(default_factory=Cluster)


@dataclass(frozen=True)
class PriceAnswer:
    """Prices that are known, and remarks on those that are not (or look wrong)."""

    prices: Sequence[Price] = ()
    excluded: Mapping[PriceQuery, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()


@runtime_checkable
class PriceSource(Protocol):
    """Prices of nodes, and of bytes between zones. A price that isn't known is left out."""

    name: str

    def prices(self, queries: Sequence[PriceQuery], context: SourceContext) -> PriceAnswer: ...

    def egress(
        self, pairs: Sequence[tuple[str, str]], context: SourceContext
    ) -> Sequence[EgressPrice]: ...


@runtime_checkable
class ProfileSource(Protocol):
    """Times and bytes of a model's units. None: not profiled (never a zero)."""

    name: str

    def grid(
        self, model: ModelSpec, training: Training, gpu: str, context: SourceContext
    ) -> Sequence[tuple[int, int]]:
        """Return the (tp, microbatch) pairs that the source can answer for."""
        ...

    def profile(
        self,
        model: ModelSpec,
        training: Training,
        gpu: str,
        tp: int,
        microbatch: int,
        context: SourceContext,
    ) -> LayerProfile | None: ...

    def footprint(
        self, model: ModelSpec, training: Training, tp: int, context: SourceContext
    ) -> LayerFootprint | None: ...


@dataclass(frozen=True)
class UnitStyle:
    """How a profiler writes out a model's blocks: what the model's record leaves open.

    `activation` None: SiLU where the feed-forward part is gated, else GELU. `dropout` is the
    probability after the embedding, on attention's weights and on both outputs of a block.
    """

    attention: Literal["sdpa", "eager"] = "sdpa"  # torch's fused attention, or score matrices
    activation: Literal["gelu", "relu", "silu"] | None = None
    dropout: float = 0.0

    def activation_of(self, model: ModelSpec) -> str:
        """Return the activation of the feed-forward part."""
        return self.activation or ("silu" if model.gated_mlp else "gelu")

    def described(self, model: ModelSpec) -> str:
        """Return the style in words, for the source of a figure."""
        attention = "eager" if self.attention == "eager" else "fused"
        dropout = f"dropout {self.dropout:g}" if self.dropout else "no dropout"
        return f"{attention} attention, {self.activation_of(model)}, {dropout}"


@dataclass(frozen=True)
class ProfileRequest:
    """What to profile: one model at some tensor-parallel degrees and microbatch sizes.

    `gpu` is the name under which a job's catalog knows the device. Microbatches are samples;
    `warmup` passes come before `repeats` timed ones.
    """

    model: ModelSpec
    precision: Precision
    gpu: str
    tps: Sequence[int] = (1,)
    microbatches: Sequence[int] = (1,)
    device: str = "cpu"
    style: UnitStyle = UnitStyle()
    warmup: int = 3
    repeats: int = 10


@dataclass(frozen=True)
class ProfileAnswer:
    """What a profiler found, and a sentence for each size that it left out (never a zero)."""

    profiles: Sequence[LayerProfile] = ()
    footprints: Sequence[LayerFootprint] = ()
    remarks: Sequence[str] = ()


@runtime_checkable
class Profiler(Protocol):
    """Finds times or bytes of a model's units by running or counting them on this machine."""

    name: str

    def unsupported(self, request: ProfileRequest) -> Sequence[str]:
        """Return the reasons this profiler can't take the request; empty means it can."""
        ...

    def profile(
        self, request: ProfileRequest, on_progress: Callable[[Progress], None]
    ) -> ProfileAnswer: ...


@runtime_checkable
class NetworkModel(Protocol):
    """Links between groups of workers on different nodes. None: not known to this model."""

    name: str

    def link(self, src: WorkerGroup, dst: WorkerGroup, context: SourceContext) -> Link | None: ...


@runtime_checkable
class AvailabilitySource(Protocol):
    """What can be rented: the pool of a job as this source sees it."""

    name: str

    def offers(self, job: Job, context: SourceContext) -> Sequence[Offer]: ...


@dataclass(frozen=True)
class Limits:
    """How long a planner may search. `wall_s` None: until it is done.

    `gap` is relative: a plan so near the bound is good enough. None: as the planner likes.
    A planner may use up to `processes` processes; with more than one its answer may depend on
    which of them is faster. With `work_s`, a limit of counted work instead of time (a unit is about
    a second), it uses one, and a seed has the same answer on every machine.
    """

    wall_s: float | None = None
    seed: int = 0
    disabled_rules: tuple[str, ...] = ()  # heuristics switched off, by name
    gap: float | None = None
    processes: int = 1
    work_s: float | None = None


@dataclass(frozen=True)
class Progress:
    """A sign of life from a planner.

    `bound` is in the units of the objective, `gap` relative to the bound; `cells_left` are the
    parts of the search that may still hold something better by more than the wanted gap.
    """

    message: str
    objective_value: float | None = None
    evaluations: int = 0
    bound: float | None = None
    gap: float | None = None
    cells_left: int | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """What a planner found; `sailor.api` adds estimate, digest and times to make a Result."""

    plan: Plan | None
    proven: bool = False  # the plan is the best of its space, or (without plan) there is none
    bound: float | None = None
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    stopped_early: bool = False
    evaluations: int = 0
    stop_reason: str | None = None  # why the search ended, in words
    finalists: tuple[Plan, ...] = ()  # the best other plans that were found, best first


@runtime_checkable
class Planner(Protocol):
    """A search. `on_progress` may raise KeyboardInterrupt's stand-in through `should_stop`."""

    name: str

    def unsupported(self, problem: Problem) -> Sequence[str]:
        """Return the reasons this planner can't take the problem; empty means it can."""
        ...

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome: ...


@runtime_checkable
class CostTermSource(Protocol):
    """An extra cost, reported beside compute and egress; the planner does not see it."""

    name: str

    def usd_per_iteration(self, problem: Problem, plan: Plan, estimate: Estimate) -> float: ...


@dataclass(frozen=True)
class LaunchSpec:
    """Everything a launch will do, as data: rendered without touching a machine."""

    files: Mapping[str, str]
    commands: Sequence[Sequence[str]]
    env: Mapping[str, str]


@runtime_checkable
class Backend(Protocol):
    """A training runtime. `render` is pure."""

    name: str

    def unsupported(self, job: Job, plan: Plan) -> Sequence[str]: ...

    def render(self, job: Job, plan: Plan) -> LaunchSpec: ...


@runtime_checkable
class ReportSink(Protocol):
    """A writer of results, chosen by `--format NAME`."""

    name: str

    def write(self, results: Iterable[Result]) -> str: ...
