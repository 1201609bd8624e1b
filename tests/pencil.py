"""A problem small enough for a pencil: what every term of cost model `sailor` is checked on.

Two zones, one card, blocks of 160 M parameters. Figures that a test doesn't care about are the
same everywhere, so that a hand-made sum in a comment can be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from sailor.model.arch import Experts, ModelSpec
from sailor.model.cluster import Cluster
from sailor.model.estimate import Estimate, WorkerMemory
from sailor.model.hardware import EgressPrice, GpuType, Link, Market, NodeType, Zone
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.plan import Plan
from sailor.model.problem import Placement, Problem
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor.sim.columns import Column, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind

ARCH = ModelSpec(
    name="pencil", num_layers=4, hidden=256, ffn=1024, num_heads=4, num_kv_heads=4, head_dim=64,
    vocab=1024, seq_len=512,
)  # fmt: skip
# Without biases an expert has 2 x 256 x 32768 parameters: 2**24, on one of two ranks 2**23.
EXPERTS = ARCH.model_copy(
    update={"biases": False, "experts": Experts(num_experts=4, top_k=2, ffn=32768)}
)
TIED = ARCH.model_copy(update={"tied_embeddings": True})
MODELLED = Provenance.MODELLED
RATE = 0.738 * 1e11  # bytes/s that the card's kernels reach, as those of an A100 do
GIB = 2**30
DAY = date(2025, 1, 1)


def _unit(forward_ms: float, backward_ms: float) -> UnitTime:
    return UnitTime(forward_s=forward_ms / 1e3, backward_s=backward_ms / 1e3)


def _footprint(tp: int, precision: str, provenance: Provenance) -> LayerFootprint:
    def of(millions: float, kept: float, output: float) -> UnitBytes:
        return UnitBytes(
            params=round(millions * 1e6 / tp), activation_bytes=kept * 1e6 / tp,
            output_bytes=output * 1e6,
        )  # fmt: skip

    block = of(160, 800, 10)
    return LayerFootprint(
        model="pencil", tp=tp, precision=precision, embedding=of(80, 40, 10), first_block=block,
        block=block, head=of(60, 120, 100 / tp), provenance=provenance, source="test",
    )  # fmt: skip


def _profile(precision: str, provenance: Provenance) -> LayerProfile:
    """Embedding 3, blocks 31, 30, 30, 30, head 15 ms; modelled: hosts take 25 ms a block."""
    return LayerProfile(
        model="pencil", gpu="card", tp=2, microbatch=1, precision=precision,
        embedding=_unit(1, 2), first_block=_unit(11, 20), block=_unit(10, 20), head=_unit(5, 10),
        block_host=_unit(10, 15) if provenance is MODELLED else _unit(0, 0),
        optimizer_s=4e-3, optimizer_params=100_000_000, provenance=provenance, source="test",
    )  # fmt: skip


def problem(
    provenance: Provenance = Provenance.MEASURED,
    *,
    arch: ModelSpec = ARCH,
    num_gpus: int = 2,
    bf16: bool = True,
    cluster: Cluster | None = None,
    **training: Any,
) -> Problem:
    """Two zones; there and back between them are unlike, so that directions can't be mixed up.

    Nodes of `num_gpus`, with 10 GB/s between GPUs and a card of 1 GB/s.
    """

    def link(src: str, dst: str, latency_ms: float, rate: float) -> Link:
        return Link(src=src, dst=dst, latency_s=latency_ms / 1e3, bandwidth=rate, source="test")

    def egress(src: str, dst: str, usd: float) -> EgressPrice:
        return EgressPrice(src=src, dst=dst, usd_per_byte=usd, source="test", as_of=DAY)

    options = Training.model_validate({"global_batch": 9, **training})
    return Problem(
        job="test", arch=arch, training=options, batch=BatchTolerance(),
        objective=Objective.MAX_THROUGHPUT, constraints=Constraints(), search_space=SearchSpace(),
        cost_model="sailor", cluster=cluster or Cluster(),
        gpus=(
            GpuType(name="card", memory_bytes=10**10, marketed_gib=10, fp32_flop_per_s=1e13,
                    half_flop_per_s=1e14, memory_bandwidth=1e11, bf16=bf16, source="test"),
        ),
        nodes=(
            NodeType(name="node", provider="test", gpu="card", num_gpus=num_gpus,
                     intra_node_bandwidth=1e10, nic_bandwidth=1e9, source="test"),
        ),
        zones=tuple(Zone(name=name, region=name, provider="test") for name in "ab"),
        placements=tuple(
            Placement(zone=zone, node_type="node", market=Market.ON_DEMAND, usd_per_hour=usd,
                      price_source="test")
            for zone, usd in (("a", 3.0), ("b", 5.0))
        ),
        capacities=(),
        links=(link("a", "a", 1, 2e9), link("b", "b", 1, 2e9), link("a", "b", 1, 2e9),
               link("b", "a", 2, 1e9)),
        egress=(egress("a", "a", 0.0), egress("b", "b", 0.0), egress("a", "b", 1e-8),
                egress("b", "a", 2e-8)),
        profiles=(_profile(options.precision, provenance),),
        footprints=tuple(_footprint(tp, options.precision, provenance) for tp in (1, 2)),
    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A plan's shape: zones of the stages, unit boundaries, like pipelines, microbatches each.

    As many pipelines again lie in the zones `beside`, if there are any.
    """

    zones: str = "abab"
    cuts: Sequence[int] = (0, 2, 3, 4, 6)
    width: int = 3
    count: int = 3
    beside: str = ""
    schedule: str = "1f1b"
    vpp: int = 1  # chunks of a rank, whose zones repeat


def planned(the_problem: Problem, shape: Run) -> Plan:
    """Return the plan of a shape at tp 2, microbatches of one sample."""
    cp = the_problem.training.cp
    columns = [
        Column(
            tuple(WorkerKind("card", zone, Market.ON_DEMAND, "node", 2, cp) for zone in zones),
            shape.width, 1, shape.count,
        )
        for zones in (shape.zones, shape.beside)
        if zones
    ]  # fmt: skip
    own = plan_of("pencil", shape.cuts, columns, len(columns) * shape.width * shape.count)
    return Plan.model_validate({**own.model_dump(), "schedule": shape.schedule, "vpp": shape.vpp})


def run(the_problem: Problem, shape: Run = Run()) -> Estimate:
    """Return the closed form's estimate of a shape."""
    return estimate(the_problem, planned(the_problem, shape))


def near(found: float, wanted: float) -> None:
    """Compare to a millionth: sums of a pencil are exact."""
    assert found == pytest.approx(wanted, rel=1e-6)


def bytes_are(worker: WorkerMemory, **wanted: float) -> None:
    """Compare parts of a worker's memory to the byte that rounding leaves open."""
    for name, value in wanted.items():
        found = getattr(worker, f"{name}_bytes")
        assert found == pytest.approx(value, rel=1e-9, abs=1.0), name
