"""A problem small enough for a pencil, for the event engine: two cards, three node types."""

from __future__ import annotations

from sailor.model.arch import ModelSpec
from sailor.model.hardware import GpuType, Link, NodeType, Zone
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor.sim.event_estimate import EventEstimate
from sailor.sim.platforms import Figure, Platform

MIB = 2**20
ARCH = ModelSpec(
    name="tiny", num_layers=4, hidden=256, ffn=1024, num_heads=4, num_kv_heads=4, head_dim=64,
    vocab=1024, seq_len=512, max_positions=512,
)  # fmt: skip
# Units: embedding, first block, three blocks, head. Boundary 2 MiB a sample, logits 4 MiB.
PARAMS = {"embedding": 400_000, "first_block": 800_000, "block": 800_000, "head": 300_000}


def gpu(name: str) -> GpuType:
    return GpuType(
        name=name, memory_bytes=10**10, marketed_gib=10, fp32_flop_per_s=1e13,
        half_flop_per_s=1e14, memory_bandwidth=1e11, source="test",
    )  # fmt: skip


def node(name: str, gpu_name: str, num_gpus: int) -> NodeType:
    return NodeType(
        name=name, provider="test", gpu=gpu_name, num_gpus=num_gpus, intra_node_bandwidth=1e10,
        nic_bandwidth=1e9, source="test",
    )  # fmt: skip


def profile(
    gpu_name: str, tp: int, microbatch: int, scale: float, provenance: Provenance
) -> LayerProfile:
    def unit(forward_ms: float, backward_ms: float) -> UnitTime:
        return UnitTime(forward_s=scale * forward_ms / 1e3, backward_s=scale * backward_ms / 1e3)

    return LayerProfile(
        model="tiny", gpu=gpu_name, tp=tp, microbatch=microbatch, precision="fp32",
        embedding=unit(1, 0), first_block=unit(10, 20), block=unit(10, 20), head=unit(5, 10),
        optimizer_s=4e-3, optimizer_params=2_000_000, provenance=provenance, source="test",
    )  # fmt: skip


def footprint(tp: int) -> LayerFootprint:
    def unit(kind: str, activation: float, output: float) -> UnitBytes:
        return UnitBytes(
            params=PARAMS[kind] // tp, activation_bytes=activation * MIB / tp, output_bytes=output
        )

    return LayerFootprint(
        model="tiny", tp=tp, precision="fp32", embedding=unit("embedding", 2, 2 * MIB),
        first_block=unit("first_block", 40, 2 * MIB), block=unit("block", 40, 2 * MIB),
        head=unit("head", 8, 4 * MIB / tp), provenance=Provenance.MEASURED, source="test",
    )  # fmt: skip


def training(framework: str = "megatron-deepspeed") -> Training:
    return Training.model_validate({"global_batch": 8, "precision": "fp32", "framework": framework})


def problem(**changes: object) -> Problem:
    base = Problem(
        job="test", arch=ARCH, training=training(),
        batch=BatchTolerance(), objective=Objective.MAX_THROUGHPUT, constraints=Constraints(),
        search_space=SearchSpace(), cost_model="sailor",
        gpus=(gpu("fast"), gpu("slow")),
        nodes=(node("fast-4", "fast", 4), node("fast-8", "fast", 8), node("slow-2", "slow", 2)),
        zones=(Zone(name="z", region="r", provider="test"),),
        placements=(), capacities=(),
        links=(Link(src="z", dst="z", latency_s=1e-3, bandwidth=2e9, source="test"),),
        egress=(),
        profiles=tuple(
            profile(name, tp, size, scale * size * factor, Provenance.MEASURED)
            for name, scale in (("fast", 1.0), ("slow", 2.0))
            for tp in (1, 2, 4)
            # At twice the microbatch 1.9 times as long: bound by the GPU, not by launches.
            for size, factor in ((1, 1.0), (2, 0.95))
        ),
        footprints=tuple(footprint(tp) for tp in (1, 2, 4)),
    )  # fmt: skip
    return base.model_copy(update=changes)


def platform(gpu_name: str, **figures: float) -> Platform:
    values = {
        "link_efficiency": 0.5,
        "transport_buffer_bytes": 1.0 * MIB,
        "host_s_per_message": 2e-3,
        "hook_s_per_pass": 0.0,
        "launch_s_per_tensor": 1e-4,
        "base_memory_bytes": 1e9,
        **figures,
    }
    return Platform(
        gpu=gpu_name, framework="megatron-deepspeed", schedule="1f1b_deepspeed",
        **{name: Figure(value=value, source="test") for name, value in values.items()},
    )  # fmt: skip


def both(**figures: float) -> dict[str, Platform]:
    return {name: platform(name, **figures) for name in ("fast", "slow")}


def plan(
    *stages: tuple[int, list[tuple[str, int]]], microbatch: int = 1, counts: list[int] | None = None
) -> Plan:
    """Stages as (number of units, replicas as (node type, tp))."""
    found, position = [], 0
    for units, replicas in stages:
        numbers = counts or [4] * len(replicas)
        found.append(
            Stage(
                start=position,
                stop=position + units,
                replicas=tuple(
                    Replica(
                        gpu=name.partition("-")[0], node_type=name, zone="z", tp=tp,
                        microbatch=microbatch, num_microbatches=number,
                    )
                    for (name, tp), number in zip(replicas, numbers, strict=True)
                ),
            )
        )  # fmt: skip
        position += units
    return Plan(model="tiny", num_units=6, global_batch=8, stages=tuple(found))


def parts(found: EventEstimate) -> float:
    return (
        found.compute_s + found.bubble_s + found.p2p_s + found.allreduce_s + found.local_s
        + found.update_s
    )  # fmt: skip
