"""Everything that registers keeps the contracts that plug-in authors are given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import sailor
from sailor.interfaces import (
    AvailabilitySource,
    Backend,
    NetworkModel,
    Planner,
    PriceQuery,
    PriceSource,
    Profiler,
    ProfileRequest,
    ProfileSource,
    ReportSink,
    SourceContext,
    WorkerGroup,
)
from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.files import write_atomic
from sailor.model.hardware import Market
from sailor.model.job import Job, Training
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.presets import preset
from sailor.model.problem import Problem
from sailor.model.result import Result
from sailor.profiling.store import ProfileStore
from sailor.registry import Registry
from sailor.testing import (
    AvailabilitySourceContract,
    BackendContract,
    Contract,
    NetworkModelContract,
    PlannerContract,
    PriceSourceContract,
    ProfilerContract,
    ProfileSourceContract,
    ReportSinkContract,
    tiny_jobs,
)

A100 = PriceQuery("us-central1-a", "a2-highgpu-1g", Market.ON_DEMAND)
FP32 = Training(global_batch=64, precision="fp32")


@cache
def registry() -> Registry:
    return Registry.load()


@cache
def problems() -> Sequence[Problem]:
    return tuple(sailor.build_problem(job, registry=registry()) for job in tiny_jobs())


def one_replica(num_microbatches: int = 16, tp: int = 1) -> Plan:
    replica = Replica(
        gpu="A100-40GB", node_type="a2-highgpu-1g", zone="us-central1-a",
        tp=tp, microbatch=1, num_microbatches=num_microbatches,
    )  # fmt: skip
    return Plan(
        model="opt-350m",
        num_units=26,
        global_batch=16,
        stages=(Stage(start=0, stop=26, replicas=(replica,)),),
    )


class TestGcpPrices(PriceSourceContract):
    def provided(self) -> PriceSource:
        return registry().price_source("gcp")

    def known(self) -> Sequence[PriceQuery]:
        return (
            A100,
            PriceQuery("us-central1-a", "a2-highgpu-1g", Market.SPOT),
            PriceQuery("us-west1-b", "n1-v100-4", Market.ON_DEMAND),
        )


class TestFilePrices(PriceSourceContract):
    @pytest.fixture(autouse=True)
    def price_list(self, tmp_path: Path) -> None:
        self.path = tmp_path / "prices.yaml"
        write_atomic(
            self.path,
            "source: a contract test\n"
            "as_of: 2026-01-01\n"
            "prices:\n"
            "  - {node_type: a2-highgpu-1g, zone: us-central1-a, usd_per_hour: 3.6}\n",
        )

    def provided(self) -> PriceSource:
        return registry().price_source("file")

    def known(self) -> Sequence[PriceQuery]:
        return (A100,)

    def context(self) -> SourceContext:
        return SourceContext(Catalog.builtin(), self.path)


class TestEmbeddedProfiles(ProfileSourceContract):
    def provided(self) -> ProfileSource:
        return registry().profile_source("embedded")

    def known(self) -> tuple[ModelSpec, Training, str]:
        return preset("opt-350m"), FP32, "V100-16GB"


class TestAnalyticProfiles(ProfileSourceContract):
    def provided(self) -> ProfileSource:
        return registry().profile_source("analytic")

    def known(self) -> tuple[ModelSpec, Training, str]:
        return preset("llama-3-8b"), Training(global_batch=64), "H100-80GB"


class TestMeasuredNetwork(NetworkModelContract):
    def provided(self) -> NetworkModel:
        return registry().network_model("measured")

    def known(self) -> Sequence[tuple[WorkerGroup, WorkerGroup]]:
        one, four = (
            WorkerGroup("us-central1-a", "A100-40GB", f"a2-highgpu-{n}g", n) for n in (1, 4)
        )
        return ((one, one), (four, one), (one, four), (four, four))


class TestZonesNetwork(NetworkModelContract):
    def provided(self) -> NetworkModel:
        return registry().network_model("zones")

    def known(self) -> Sequence[tuple[WorkerGroup, WorkerGroup]]:
        here = WorkerGroup("us-central1-a", "A100-40GB", "a2-highgpu-4g", 4)
        near = WorkerGroup("us-central1-b", "V100-16GB", "n1-v100-4", 2)
        far = WorkerGroup("us-west1-b", "V100-16GB", "n1-v100-4", 1)
        return ((here, here), (here, near), (near, far))


class _Stored:
    """A store file with what the embedded sources know of OPT-350M on V100."""

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = tmp_path / "profiles.json"
        write_atomic(self.path, store_text())

    def context(self) -> SourceContext:
        return SourceContext(Catalog.builtin(), self.path)


@cache
def store_text() -> str:
    embedded = registry().profile_source("embedded")
    context = SourceContext(Catalog.builtin())
    model, gpu = preset("opt-350m"), "V100-16GB"
    grid = embedded.grid(model, FP32, gpu, context)
    network = registry().network_model("zones")
    group = WorkerGroup("us-central1-a", gpu, "n1-v100-4", 4)
    store = ProfileStore(
        source="a contract test",
        licence="none",
        models=(model,),
        profiles=tuple(
            found
            for tp, microbatch in grid
            if (found := embedded.profile(model, FP32, gpu, tp, microbatch, context))
        ),
        footprints=tuple(
            found
            for tp in sorted({tp for tp, _ in grid})
            if (found := embedded.footprint(model, FP32, tp, context))
        ),
        links=tuple(link for link in [network.link(group, group, context)] if link),
    )
    return store.to_text()


class TestStoreProfiles(_Stored, ProfileSourceContract):
    def provided(self) -> ProfileSource:
        return registry().profile_source("store")

    def known(self) -> tuple[ModelSpec, Training, str]:
        return preset("opt-350m"), FP32, "V100-16GB"


class TestStoreNetwork(_Stored, NetworkModelContract):
    def provided(self) -> NetworkModel:
        return registry().network_model("store")

    def known(self) -> Sequence[tuple[WorkerGroup, WorkerGroup]]:
        group = WorkerGroup("us-central1-a", "V100-16GB", "n1-v100-4", 4)
        return ((group, group),)


class TestStaticAvailability(AvailabilitySourceContract):
    def provided(self) -> AvailabilitySource:
        return registry().availability_source("static")


class TestFileAvailability(AvailabilitySourceContract):
    @pytest.fixture(autouse=True)
    def quotas(self, tmp_path: Path) -> None:
        self.path = tmp_path / "quotas.yaml"
        write_atomic(self.path, "pool:\n  - {zone: us-central1-a, gpu: T4-16GB, quota: 8}\n")

    def provided(self) -> AvailabilitySource:
        return registry().availability_source("file")

    def context(self) -> SourceContext:
        return SourceContext(Catalog.builtin(), self.path)


class TestDynamicPlanner(PlannerContract):
    def provided(self) -> Planner:
        return registry().planner("dynamic")

    def problems(self) -> Sequence[Problem]:
        return problems()

    def oracle(self) -> Planner:
        return registry().planner("exhaustive")


class TestCpSatPlanner(TestDynamicPlanner):
    def provided(self) -> Planner:
        return registry().planner("cpsat")


class TestAutoPlanner(TestDynamicPlanner):
    def provided(self) -> Planner:
        return registry().planner("auto")


class TestExhaustivePlanner(PlannerContract):
    def provided(self) -> Planner:
        return registry().planner("exhaustive")

    def problems(self) -> Sequence[Problem]:
        return problems()


class TestMegatronBackend(BackendContract):
    def provided(self) -> Backend:
        return registry().backend("megatron")

    def runnable(self) -> tuple[Job, Plan]:
        return tiny_jobs()[0], one_replica()

    def not_runnable(self) -> tuple[Job, Plan]:
        return tiny_jobs()[0], one_replica(tp=3)


class TestTorchtitanBackend(BackendContract):
    def provided(self) -> Backend:
        return registry().backend("torchtitan")

    def runnable(self) -> tuple[Job, Plan]:
        wanted = {
            "name": "titan", "model": "llama-3-8b", "training": {"global_batch": 16},
            "pool": [{"zone": "us-central1-a", "node_type": "a3-highgpu-8g", "count": 1}],
        }  # fmt: skip
        replica = Replica(
            gpu="H100-80GB", node_type="a3-highgpu-8g", zone="us-central1-a", tp=4, microbatch=1,
            num_microbatches=16,
        )  # fmt: skip
        stages = (Stage(start=0, stop=34, replicas=(replica,)),)
        plan = Plan(model="llama-3-8b", num_units=34, global_batch=16, stages=stages)
        return Job.model_validate(wanted), plan

    def not_runnable(self) -> tuple[Job, Plan]:
        return tiny_jobs()[0], one_replica()


class _Profiler(ProfilerContract):
    profiler: str

    def provided(self) -> Profiler:
        return registry().profiler(self.profiler)

    def request(self) -> ProfileRequest:
        pytest.importorskip("torch")
        tiny = preset("opt-350m").model_copy(
            update={
                "name": "tiny", "hidden": 32, "ffn": 64, "num_heads": 2, "num_kv_heads": 2,
                "head_dim": 16, "vocab": 100, "seq_len": 16,
            }
        )  # fmt: skip
        return ProfileRequest(tiny, "fp32", "cpu", repeats=3, warmup=1)


class TestTorchProfiler(_Profiler):
    profiler = "torch"


class TestCountedProfiler(_Profiler):
    profiler = "counted"


class _Sink(ReportSinkContract):
    sink: str

    def provided(self) -> ReportSink:
        return registry().report_sink(self.sink)

    def results(self) -> Sequence[Result]:
        return planned()


@cache
def planned() -> Sequence[Result]:
    jobs = (tiny_jobs()[0], tiny_jobs()[-1])
    return tuple(sailor.optimize(job, registry=registry()) for job in jobs)


class TestTableSink(_Sink):
    sink = "table"


class TestJsonSink(_Sink):
    sink = "json"


class TestCsvSink(_Sink):
    sink = "csv"


def test_the_results_hold_one_with_a_plan_and_one_without() -> None:
    assert [result.plan is not None for result in planned()] == [True, False]


def test_everything_that_registers_is_under_contract() -> None:
    provided = {
        (kind, name)
        for kind in (
            "price_sources", "profile_sources", "profilers", "network_models",
            "availability_sources", "planners", "backends", "report_sinks",
        )
        for name in getattr(registry(), kind)
    }  # fmt: skip
    kinds = {
        PriceSourceContract: "price_sources",
        ProfileSourceContract: "profile_sources",
        ProfilerContract: "profilers",
        NetworkModelContract: "network_models",
        AvailabilitySourceContract: "availability_sources",
        PlannerContract: "planners",
        BackendContract: "backends",
        ReportSinkContract: "report_sinks",
    }
    tested = {
        (kinds[contract], suite().provided().name)
        for name, suite in globals().items()
        if name.startswith("Test") and issubclass(suite, Contract)
        for contract in kinds
        if issubclass(suite, contract)
    }
    assert tested == provided
    assert registry().cost_terms() == ()
