"""Every term of the `sailor` model matters: broken by 1 % or left out, a hand-made sum is missed.

One pipeline shape, small enough for a pencil. `check_*` compare an estimate with figures that were
added up by hand in the comments; each breakage must make the same comparison fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from sailor.model.arch import ModelSpec
from sailor.model.estimate import Estimate
from sailor.model.hardware import EgressPrice, GpuType, Link, Market, NodeType, Zone
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.problem import Placement, Problem
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor.sim import closed_form, native, scores
from sailor.sim import estimate as estimate_module
from sailor.sim.closed_form import StageTerms
from sailor.sim.columns import Column, plan_of
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.sim.native import NodeSharedSync, SailorModel
from sailor.sim.tables import MemoryMargin, MemoryTables, StageTables

ARCH = ModelSpec(
    name="pencil", num_layers=4, hidden=256, ffn=1024, num_heads=4, num_kv_heads=4, head_dim=64,
    vocab=1024, seq_len=512,
)  # fmt: skip
DAY = date(2025, 1, 1)


def _unit(forward_ms: float, backward_ms: float) -> UnitTime:
    return UnitTime(forward_s=forward_ms / 1e3, backward_s=backward_ms / 1e3)


def _footprint(tp: int, provenance: Provenance) -> LayerFootprint:
    def of(millions: float, kept: float, output: float) -> UnitBytes:
        return UnitBytes(
            params=round(millions * 1e6 / tp), activation_bytes=kept * 1e6 / tp,
            output_bytes=output * 1e6,
        )  # fmt: skip

    block = of(160, 800, 10)
    return LayerFootprint(
        model="pencil", tp=tp, precision="fp32", embedding=of(80, 40, 10), first_block=block,
        block=block, head=of(60, 120, 100 / tp), provenance=provenance, source="test",
    )  # fmt: skip


def problem(
    precision: str = "fp32",
    provenance: Provenance = Provenance.MEASURED,
    half_flop_per_s: float = 1e14,
    **training: Any,
) -> Problem:
    """Two zones; there and back between them are unlike, so that directions can't be mixed up."""

    def link(src: str, dst: str, latency_ms: float, rate: float) -> Link:
        return Link(src=src, dst=dst, latency_s=latency_ms / 1e3, bandwidth=rate, source="test")

    def egress(src: str, dst: str, usd: float) -> EgressPrice:
        return EgressPrice(src=src, dst=dst, usd_per_byte=usd, source="test", as_of=DAY)

    return Problem(
        job="test", arch=ARCH, training=Training(global_batch=9, precision=precision, **training),
        batch=BatchTolerance(), objective=Objective.MAX_THROUGHPUT, constraints=Constraints(),
        search_space=SearchSpace(), cost_model="sailor",
        gpus=(
            GpuType(name="card", memory_bytes=10**10, marketed_gib=10, fp32_flop_per_s=1e13,
                    half_flop_per_s=half_flop_per_s, memory_bandwidth=1e11,
                    bf16=provenance is Provenance.MEASURED, source="test"),
        ),
        nodes=(
            NodeType(name="pair", provider="test", gpu="card", num_gpus=2,
                     intra_node_bandwidth=1e10, nic_bandwidth=1e9, source="test"),
        ),
        zones=tuple(Zone(name=name, region=name, provider="test") for name in "ab"),
        placements=tuple(
            Placement(zone=zone, node_type="pair", market=Market.ON_DEMAND, usd_per_hour=usd,
                      price_source="test")
            for zone, usd in (("a", 3.0), ("b", 5.0))
        ),
        capacities=(),
        links=(link("a", "a", 1, 2e9), link("b", "b", 1, 2e9), link("a", "b", 1, 2e9),
               link("b", "a", 2, 1e9)),
        egress=(egress("a", "a", 0.0), egress("b", "b", 0.0), egress("a", "b", 1e-8),
                egress("b", "a", 2e-8)),
        profiles=(
            LayerProfile(
                model="pencil", gpu="card", tp=2, microbatch=1, precision="fp32",
                embedding=_unit(1, 2), first_block=_unit(11, 20), block=_unit(10, 20),
                head=_unit(5, 10), optimizer_s=4e-3, optimizer_params=100_000_000,
                provenance=Provenance.MEASURED, source="test",
            ),
        ),
        footprints=tuple(_footprint(tp, provenance) for tp in (1, 2)),
    )  # fmt: skip


def run(the_problem: Problem) -> Estimate:
    """Four stages a, b, a, b; three pipelines at tp 2, three microbatches of one sample each."""
    a, b = (WorkerKind("card", zone, Market.ON_DEMAND, "pair", 2) for zone in "ab")
    return estimate(
        the_problem, plan_of("pencil", (0, 2, 3, 4, 6), [Column((a, b, a, b), 3, 1, 3)], 9)
    )


def near(found: float, wanted: float) -> None:
    assert found == pytest.approx(wanted, rel=1e-6)


def check_measured() -> None:
    """Compare with hand figures: fp32, ZeRO-1 over three replicas, measured layers."""
    found = run(problem(zero=1))
    ms = 1e-3
    # Layers: 3 + 31, 30, 30, 30 + 15. A message is 10 MB: 1 + 5 a to b, 2 + 10 b to a; its 5 MB a
    # pair of GPUs is more than 4 MiB, so inner stages wait for what comes in as well.
    for stage, (layers, transfers) in zip(
        found.stages, ((34, 2 * 6), (30, 12 + 12 + 6 + 6), (30, 6 + 6 + 12 + 12), (45, 2 * 12)),
        strict=True,
    ):  # fmt: skip
        near(stage.compute_s, layers * ms)
        near(stage.p2p_s, transfers * ms)
    # Stages of 46, 66, 66, 69 ms: their sum once and the slowest twice more.
    pipeline = (46 + 66 + 66 + 69 + 2 * 69) * ms
    # 240 M parameters of stage 0 in fp32 over 3 replicas: 4 steps of 320 MB at 2 GB/s and 1 ms.
    sync = 4 * (160 + 1) * ms
    for stage, parameters in zip(found.stages, (240, 160, 160, 220), strict=True):
        near(stage.dp_sync_s, 4 * (parameters * 4 / 3 / 2 + 1) * ms)
    # 40 ps a parameter of 120 M.
    update = 4.8 * ms
    near(found.time.dp_sync_s, sync)
    near(found.time.update_s, update)
    near(found.time.compute_s, 3 * 45 * ms)
    near(found.time.p2p_s, 3 * 24 * ms)
    near(found.time.bubble_s, (46 + 66 + 66) * ms)
    near(found.time.total_s, pipeline + sync + update)
    # Three pipelines, three microbatches, three boundaries, 10 MB there (1e-8) and back (2e-8).
    near(found.cost[1].usd_per_iteration, 3 * 3 * 3 * 10e6 * 3e-8)
    # Six nodes at 3 and six at 5 dollars an hour.
    near(found.cost[0].usd_per_iteration, 48 / 3600 * (pipeline + sync + update))

    scores_bytes = 3 * (4 / 2) * 512**2 * 4
    # Parameters in millions, kept of one sample in MB, in flight (never more than the three that
    # there are), for a moment: scores, or three copies of a rank's 50 MB of logits.
    wanted = (
        (120, 20 + 400, 3, scores_bytes), (80, 400, 3, scores_bytes), (80, 400, 2, scores_bytes),
        (110, 400 + 60, 1, 150e6),
    )  # fmt: skip
    for worker, (millions, kept, in_flight, transient) in zip(found.memory, wanted, strict=True):
        params, boundary = millions * 1e6, 10e6
        assert worker.in_flight == in_flight
        near(worker.parameters_bytes, 4 * params)
        near(worker.gradients_bytes, 4 * params)
        near(worker.optimizer_bytes, 8 * params / 3)
        near(worker.communication_bytes, 4 * params + boundary)
        near(worker.activations_bytes, in_flight * kept * 1e6)
        near(worker.transient_bytes, transient)
        near(worker.reserve_bytes, 3e9)
        states, moving = (12 + 8 / 3) * params, in_flight * kept * 1e6 + transient
        near(worker.total_bytes, states + moving + boundary + 3e9)
        # 5 % of what was measured, 0.8 GB between campaigns, 1 GB for a context not measured.
        near(worker.bound_bytes, worker.total_bytes + 0.05 * (states + moving) + 1.8e9)
        near(worker.capacity_bytes, 10e9)


def check_modelled() -> None:
    """Compare with hand figures: fp16 on a card without fused attention, modelled layers."""
    first = run(problem("fp16", Provenance.MODELLED)).memory[0]
    # 2 of weights, 4 of gradients, 4 of the master copy and 8 of moments.
    near(first.parameters_bytes, 2 * 120e6)
    near(first.gradients_bytes, 4 * 120e6)
    near(first.optimizer_bytes, 12 * 120e6)
    near(first.communication_bytes, 10e6)
    # A score is kept in 2 bytes, dropped out in 2, masked in 1; flash keeps 4 bytes a row instead.
    near(first.activations_bytes, 3 * (420e6 + 2 * (5 * 512**2 - 4 * 512)))
    transient = 3 * 2 * 512**2 * 2
    near(first.transient_bytes, transient)
    # Modelled: 6 % of states, 18 % of what moves.
    moving = first.activations_bytes + transient
    near(first.bound_bytes, first.total_bytes + 0.06 * 18 * 120e6 + 0.18 * moving + 1.8e9)


def check_recomputed() -> None:
    """Compare with hand figures: as above, blocks computed again; one of them is there whole."""
    first = run(problem("fp16", Provenance.MODELLED, recompute="full")).memory[0]
    near(first.activations_bytes, 3 * 420e6)  # no scores; the blocks' figures are the footprint's
    # Of 512 tokens: inputs 8 h, keys and values and queries and output 8 h / 2, feed-forward
    # 4 x 4 h / 2, masks 2 h; then 5 bytes a score of two heads.
    block = 512 * 256 * (8 + 4 + 8 + 2) + 5 * 2 * 512**2
    near(first.transient_bytes, 3 * 2 * 512**2 * 2 + block)


CHECKS: dict[str, Callable[[], None]] = {
    "measured": check_measured, "modelled": check_modelled, "recomputed": check_recomputed,
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_unbroken_model_gives_the_hand_made_sums(name: str) -> None:
    CHECKS[name]()


Change = Callable[[StageTables], StageTables]
MEMORY_FIELDS = (
    "parameters_prefix_bytes", "gradients_prefix_bytes", "optimizer_prefix_bytes",
    "communication_prefix_bytes", "activations_prefix_bytes", "block_transient_bytes",
    "head_transient_bytes", "boundary_bytes", "reserve_bytes", "capacity_bytes",
    "state_prefix_bytes", "sharded_prefix_bytes",
)  # fmt: skip
TIME_FIELDS = ("compute_prefix_s", "update_prefix_s", "send_s", "blocked_s", "size_bytes")
MONEY_FIELDS = ("egress_usd_per_byte",)
# Not a term: what the tables are about, and look-ups that other breakages cover. Rent of an
# estimate is that of whole nodes; the rate by GPU ranks plans (tests/sim/test_closed_form.py).
NO_TERM = {
    "kinds", "microbatch", "num_units", "usable", "tp", "usd_per_gpu_hour", "coupled", "memory",
    "gradient_prefix_bytes", "sync", "update_s", "forward_size", "backward_size",
    "short_pipeline_factor", "in_flight_capped", "margin", "tied_share",
}  # fmt: skip


def _scaled(record: Any, name: str, factor: float) -> Any:
    return replace(record, **{name: factor * getattr(record, name)})


def _memory(change: Callable[[MemoryTables], MemoryTables]) -> Change:
    return lambda tables: replace(tables, memory=change(tables.memory))


def _margin(name: str, factor: float) -> Change:
    def change(memory: MemoryTables) -> MemoryTables:
        margin: MemoryMargin = _scaled(memory.margin, name, factor)
        return replace(memory, margin=margin)

    return _memory(change)


def _field(name: str, factor: float) -> Change:
    if name in MEMORY_FIELDS:
        return _memory(lambda memory: _scaled(memory, name, factor))
    return lambda tables: _scaled(tables, name, factor)


def _ring(**factors: float) -> Change:
    """Return a change of the gradients' bytes or of the ring's links."""

    def change(tables: StageTables) -> StageTables:
        sync = tables.sync
        assert isinstance(sync, NodeSharedSync)
        for name, factor in factors.items():
            if name == "gradient_prefix_bytes":
                sync = _scaled(sync, name, factor)
            else:
                sync = replace(sync, links=_scaled(sync.links, name, factor))
        return replace(tables, sync=sync)

    return change


class _StepsMissed:
    """An all-reduce that forgets half of its steps: it scatters and never gathers."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def seconds(self, *arguments: Any) -> Any:
        return 0.5 * self.whole.seconds(*arguments)


BROKEN_TABLES: dict[str, Change] = {
    **{
        f"{name} x {factor}": _field(name, factor)
        for name in (*MEMORY_FIELDS, *TIME_FIELDS, *MONEY_FIELDS)
        for factor in (0.0, 1.01)
    },
    **{
        f"margin {name} x {factor}": _margin(name, factor)
        for name in ("states", "moving", "fixed_bytes")
        for factor in (0.0, 1.01)
    },
    "all-reduce bytes": _ring(gradient_prefix_bytes=1.01),
    "all-reduce latency": _ring(latency_s=0.0),
    "all-reduce bandwidth": _ring(coefficients=1.01, peak=1.01),
    "all-reduce steps": lambda tables: replace(tables, sync=_StepsMissed(tables.sync)),
    "a step's fixed part": lambda tables: replace(tables, update_s=tables.update_s + 1e-4),
    "receivers never wait": lambda tables: replace(tables, blocked_s=None),
    "forward message": lambda tables: replace(
        tables, forward_size=np.full_like(tables.forward_size, len(tables.size_bytes) - 1)
    ),
    "backward message": lambda tables: replace(
        tables, backward_size=np.full_like(tables.backward_size, len(tables.size_bytes) - 1)
    ),
    "sends go the other way": lambda tables: replace(
        tables, send_s=tables.send_s.transpose(0, 2, 1)
    ),
    "waits are for the other way": lambda tables: replace(
        tables, blocked_s=None if tables.blocked_s is None else tables.blocked_s.transpose(0, 2, 1)
    ),
    "the first stage sends once": lambda tables: replace(tables, short_pipeline_factor=(4, 1.0)),
    "in flight without a cap": _memory(lambda memory: replace(memory, in_flight_capped=False)),
}


@pytest.mark.parametrize("name", BROKEN_TABLES)
def test_a_broken_table_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, change = SailorModel.tables, BROKEN_TABLES[name]
    monkeypatch.setattr(
        SailorModel, "tables", lambda self, *arguments: change(whole(self, *arguments))
    )
    with pytest.raises(AssertionError):
        check_measured()


def test_every_field_of_the_tables_is_broken_or_named_as_no_term() -> None:
    known = {*MEMORY_FIELDS, *TIME_FIELDS, *MONEY_FIELDS, *NO_TERM}
    assert {field.name for kind in (StageTables, MemoryTables) for field in fields(kind)} == known
    assert {field.name for field in fields(MemoryMargin)} == {"states", "moving", "fixed_bytes"}


# Constants and functions of the model: (module, name, value, the check that misses it).
BYTES = {"fp32": 4.04, "fp16": 2.02, "bf16": 2.02}
BROKEN_CODE: dict[str, tuple[Any, str, Any, str]] = {
    "bytes of a weight": (native, "_WEIGHT_BYTES", BYTES, "measured"),
    "bytes of a weight, 16-bit": (native, "_WEIGHT_BYTES", BYTES, "modelled"),
    "bytes of a gradient": (native, "_GRADIENT_BYTES", {"fp32": 2.0}, "measured"),
    "bytes of a gradient, 16-bit": (native, "_GRADIENT_BYTES", {"fp16": 2.0}, "modelled"),
    "master copy": (native, "_MASTER_BYTES", {"fp16": 0.0}, "modelled"),
    "moments": (native, "_MOMENT_BYTES", {"adam": 4.0}, "measured"),
    "flat copy": (native, "_FLAT_COPY_BYTES", {"fp32": 0.0}, "measured"),
    "bytes on the wire": (native, "_WIRE_BYTES", {"fp32": 2.0}, "measured"),
    "copies of the logits": (native, "_LOGITS_COPIES", 2.0, "measured"),
    "spread of campaigns": (native, "_CAMPAIGN_SPREAD_BYTES", 0.0, "measured"),
    "margin of measured layers": (native, "_MEASURED_MARGIN", 0.0, "measured"),
    "transport buffer": (native, "_TRANSPORT_BUFFER_BYTES", 8.0 * 2**20, "measured"),
    "score matrices": (scores, "_SCORE_MATRICES", 2.0, "measured"),
    "score matrices, modelled": (scores, "_SCORE_MATRICES", 2.0, "modelled"),
    "kept scores": (native, "kept_score_bytes", lambda *_: 0.0, "modelled"),
    "scores for a moment": (native, "transient_score_bytes", lambda *_: 0.0, "measured"),
    "the block computed again": (native, "recomputed_bytes", lambda *_: 0.0, "recomputed"),
    "scores kept under recomputation": (native, "kept_score_bytes", lambda *_: 1e6, "recomputed"),
    "waiting": (
        closed_form, "_blocked_seconds", lambda tables, batch: np.zeros(batch.kinds.shape),
        "measured",
    ),
    "optimizer step": (
        estimate_module, "update_seconds", lambda tables, batch: np.zeros(len(batch.cuts)),
        "measured",
    ),
    "filling the pipeline": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).max(axis=1) * terms.num_microbatches, "measured",
    ),
    "steady state": (
        estimate_module, "pipeline_seconds", lambda terms: _stage_s(terms).sum(axis=1), "measured",
    ),
    "one microbatch too many": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).sum(axis=1)
        + terms.num_microbatches * _stage_s(terms).max(axis=1),
        "measured",
    ),
    "the average stage instead of the slowest": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).sum(axis=1)
        + (terms.num_microbatches - 1) * _stage_s(terms).mean(axis=1),
        "measured",
    ),
    "egress": (
        estimate_module, "transfer_dollars", lambda tables, batch: np.zeros(len(batch.cuts)),
        "measured",
    ),
}  # fmt: skip


def _stage_s(terms: StageTerms) -> Any:
    return terms.compute_s + terms.p2p_s


@pytest.mark.parametrize("name", BROKEN_CODE)
def test_a_broken_constant_or_function_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, attribute, value, check = BROKEN_CODE[name]
    if isinstance(value, dict):
        value = {**getattr(module, attribute), **value}
    monkeypatch.setattr(module, attribute, value)
    with pytest.raises(AssertionError):
        CHECKS[check]()
