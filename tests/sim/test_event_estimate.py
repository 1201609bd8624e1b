"""One iteration in the event engine, term by term, on a problem small enough for a pencil."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.hardware import BandwidthCurve, GpuType, Link, NodeType, Zone
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor.sim.event_costs import num_tensors
from sailor.sim.event_estimate import EventEstimate, event_time
from sailor.sim.platforms import PLATFORMS, Figure, Platform, platform_of
from sailor.sim.schedule import Op

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


def problem(**changes: object) -> Problem:
    base = Problem(
        job="test", arch=ARCH, training=Training(global_batch=8, precision="fp32"),
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


def test_one_stage_takes_its_layers_copies_and_step() -> None:
    found = event_time(problem(), plan((6, [("fast-4", 4)])), platforms=both())
    # Embedding 1, four blocks of 30, head 15 ms.
    assert found.compute_s == pytest.approx(4 * 136e-3)
    assert found.bubble_s == pytest.approx(0)
    assert found.p2p_s == found.allreduce_s == found.waiting_s == 0
    # 2 + 4 x 12 + 3 tensors of 0.1 ms; six passes of 3.9 MB of gradients at 100 GB/s.
    assert found.local_s == pytest.approx(53e-4 + 6 * 3.9e6 / 1e11)
    # 975,000 parameters of a rank, 2 ns each.
    assert found.update_s == pytest.approx(975_000 * 2e-9)
    assert found.total_s == pytest.approx(parts(found))
    assert found.reduction_s(0, 0) == found.local_s
    assert found.assumptions == ()


def test_two_stages_pay_wire_host_and_gather_twice_a_microbatch() -> None:
    """Period F1 + B1 + 2 (x + own work): DeepSpeed's order hides no transfer of two stages."""
    times = []
    for count in (8, 9):
        cut = plan((3, [("fast-4", 4)]), (3, [("fast-4", 4)]), counts=[count])
        times.append(event_time(problem(), cut, platforms=both()).pipeline_s)
    # 2 MiB at half of 2 GB/s, 1 ms of latency, 2 ms of host, 3/4 of it over 10 GB/s.
    message_s = 2 * MIB / 1e9 + 1e-3 + 2e-3 + 1.5 * MIB / 1e10
    assert times[1] - times[0] == pytest.approx(75e-3 + 2 * message_s)


@pytest.mark.parametrize(("tp", "gap_s"), [(4, 0.0), (2, 0.0), (1, 3 * 2 * MIB / 1e9)])
def test_large_parts_are_a_rendezvous(tp: int, gap_s: float) -> None:
    """2 MiB over tp pairs: up to the buffer's 1 MiB a pair the sender's next forward follows.

    At tp 1 it waits for the transfer; its three stages share the card of one node, 1 GB/s.
    """
    stage = [("fast-4", tp)]
    cut = plan((1, stage), (1, stage), (4, stage), counts=[6])
    line = event_time(problem(), cut, platforms=both(), with_timeline=True).timeline
    assert line is not None
    forwards = [span for span in line.spans_of(0) if span.op == Op.FORWARD]
    assert forwards[1].start_s - forwards[0].stop_s == pytest.approx(gap_s, rel=1e-6)


def test_a_measured_curve_holds_its_latency() -> None:
    """1 GB/s at any size; never less than the latency, which isn't added."""
    curve = BandwidthCurve(coefficients=(0, 0, 1.0), peak_bytes_per_s=1e9)
    for latency_s, wire_s in ((1e-4, 2 * MIB / 0.5e9), (9e-3, 9e-3)):
        link = Link(src="z", dst="z", latency_s=latency_s, curve=curve, source="test")
        cut = plan((3, [("fast-4", 4)]), (3, [("fast-4", 4)]), counts=[2])
        found = event_time(problem(links=(link,)), cut, platforms=both(), with_timeline=True)
        assert found.timeline is not None
        sent = found.timeline.transfer(0)
        assert sent.stop_s - sent.start_s == pytest.approx(wire_s)
        assert sent.arrival_s == sent.stop_s


@pytest.mark.parametrize(
    ("growth", "wanted_ms"),
    [
        (1.0, 9.8),  # bound by launches: less 0.2 ms of hook
        (1.49, 9.8),
        (1.5, 10.0),  # bound by the GPU: as measured
        (1.9, 10.0),
    ],
)
def test_hooks_are_taken_out_where_launches_bind(growth: float, wanted_ms: float) -> None:
    pair = [
        profile("fast", 4, 1, 1.0, Provenance.MEASURED),
        profile("fast", 4, 2, growth, Provenance.MEASURED),
    ]
    found = event_time(
        problem(profiles=tuple(pair)),
        plan((6, [("fast-4", 4)]), counts=[1]),
        platforms=both(hook_s_per_pass=0.2e-3),
        with_timeline=True,
    )
    assert found.timeline is not None
    forward, backward = found.timeline.spans_of(0)
    hook = 0.2 if wanted_ms < 10 else 0.0
    assert forward.stop_s - forward.start_s == pytest.approx((46 - 6 * hook) / 1e3)
    # The embedding's backward is 0: there is nothing to take out.
    assert backward.stop_s - backward.start_s == pytest.approx((90 - 5 * hook) / 1e3)


def test_a_hook_takes_no_more_than_half_of_the_doubled_time_leaves() -> None:
    """10 ms at 1, 14.8 ms at 2: the GPU needs 7.4 ms, whatever the hook."""
    pair = tuple(
        profile("fast", 4, size, scale, Provenance.MEASURED)
        for size, scale in ((1, 1.0), (2, 1.48))
    )
    found = event_time(
        problem(profiles=pair), plan((6, [("fast-4", 4)]), counts=[1]),
        platforms=both(hook_s_per_pass=9e-3),
    )  # fmt: skip
    assert found.compute_s == pytest.approx(136e-3 * 0.74)


def test_modelled_times_have_no_hooks() -> None:
    pair = tuple(profile("fast", 4, size, 1.0, Provenance.MODELLED) for size in (1, 2))
    found = event_time(
        problem(profiles=pair), plan((6, [("fast-4", 4)]), counts=[1]),
        platforms=both(hook_s_per_pass=0.2e-3),
    )  # fmt: skip
    assert found.compute_s == pytest.approx(136e-3)


def test_all_ranks_of_a_node_share_its_links_in_the_all_reduce() -> None:
    """tp 4: 3.9 MB of gradients a rank, 15.6 MB a node, each way once for two replicas."""
    found = event_time(problem(), plan((6, [("fast-4", 4)] * 2)), platforms=both())
    steps, chunk = 2, 15.6e6 / 2
    assert found.allreduce_s == pytest.approx(steps * (chunk / 1e9 + 1e-3))
    four = event_time(problem(), plan((6, [("fast-4", 4)] * 4)), platforms=both())
    assert four.allreduce_s == pytest.approx(6 * (15.6e6 / 4 / 1e9 + 1e-3))


def test_the_ring_closes() -> None:
    """fast, fast, slow: the hop from the last back to the first counts as well."""
    ring = plan((6, [("fast-4", 2), ("fast-4", 2), ("slow-2", 2)]))
    even = event_time(problem(), ring, platforms=both())
    back = Link(
        src="z", dst="z", src_gpu="slow", dst_gpu="fast", latency_s=1e-3, bandwidth=1e8,
        source="test",
    )  # fmt: skip
    slow = event_time(problem(links=(*problem().links, back)), ring, platforms=both())
    # 1.95 M parameters a rank: 15.6 MB a node, a third of it four times, over half of 0.1 GB/s.
    assert slow.allreduce_s == pytest.approx(4 * (15.6e6 / 3 / 0.5e8 + 1e-3))
    assert even.allreduce_s < slow.allreduce_s / 5


def test_the_curve_is_read_at_the_message_of_one_pair() -> None:
    """Bandwidth that grows with the size: 1 GB/s at 1 MB, 1 more for every doubling."""
    curve = BandwidthCurve(coefficients=(0, 1.0, 1.0), min_bytes=1e6, peak_bytes_per_s=1e11)
    link = Link(src="z", dst="z", latency_s=0, curve=curve, source="test")
    found = event_time(
        problem(links=(link,)), plan((6, [("fast-4", 4)] * 2)),
        platforms=both(link_efficiency=1.0),
    )  # fmt: skip
    rate = (1 + math.log2(3.9 / 2)) * 1e9
    assert found.allreduce_s == pytest.approx(2 * 7.8e6 / rate)


def test_waiting_for_a_slow_replica_is_told_apart_from_the_all_reduce() -> None:
    found = event_time(problem(), plan((6, [("fast-4", 2), ("slow-2", 2)])), platforms=both())
    assert found.compute_s == pytest.approx(4 * 272e-3)
    assert [p.waiting_s for p in found.pipelines] == [pytest.approx(4 * 136e-3), 0]
    assert found.waiting_s == pytest.approx(4 * 136e-3)
    own = found.allreduce_s + found.local_s
    assert found.reduction_s(0, 0) == pytest.approx(4 * 136e-3 + own)
    assert found.reduction_s(1, 0) == pytest.approx(own)
    assert found.total_s == pytest.approx(parts(found))
    with pytest.raises(InputError, match="no stage 0 of pipeline 2"):
        found.reduction_s(2, 0)


def test_replicas_that_share_a_node_share_its_card() -> None:
    """Two of tp 4 on a node of 8 have half of its 1 GB/s each; one alone has the link's rate."""
    alone = event_time(
        problem(), plan((3, [("fast-8", 4)]), (3, [("slow-2", 2)])), platforms=both()
    )
    shared = event_time(
        problem(), plan((3, [("fast-8", 4)]), (3, [("fast-8", 4)])), platforms=both(),
        with_timeline=True,
    )  # fmt: skip
    assert alone.pipelines[0].total_s > 0
    assert shared.timeline is not None
    sent = shared.timeline.transfer(0)
    assert sent.stop_s - sent.start_s == pytest.approx(2 * MIB / 0.5e9)


def test_like_pipelines_are_simulated_once_and_give_the_same_timeline() -> None:
    cut = plan((3, [("fast-4", 4)] * 3), (3, [("fast-4", 4)] * 3), counts=[4, 4, 3])
    found = event_time(problem(), cut, platforms=both(), with_timeline=True)
    assert [(p.first_pipeline, p.width) for p in found.pipelines] == [(0, 2), (2, 1)]
    line = found.timeline
    assert line is not None
    assert line.num_workers == 6
    assert line.pipeline_finish_s.tolist() == pytest.approx(
        [found.pipelines[0].total_s] * 2 + [found.pipelines[1].total_s]
    )
    assert line.max_in_flight(0) == 2
    assert line.lane_names[4] == "pipeline 1 stage 0 out"


def test_stages_close_the_iteration_together() -> None:
    cut = plan((2, [("fast-4", 4)] * 2), (4, [("fast-4", 4)] * 2))
    found = event_time(problem(), cut, platforms=both())
    for stage in (0, 1):
        mine = [closing for closing in found.closings() if closing.stage == stage]
        assert [closing.name for closing in mine] == ["all-reduce", "copy gradients", "optimizer"]
        assert mine[0].start_s == found.pipeline_s
        for before, after in pairwise(mine):
            assert after.start_s >= before.stop_s
    assert max(closing.stop_s for closing in found.closings()) == pytest.approx(found.total_s)


def test_bubbles_and_transfers_are_separate_parts() -> None:
    """Two like stages, instant transfers: (M + 1) (f + b) less M (f + b) is bubble."""
    fast = both(link_efficiency=1e9, host_s_per_message=0.0)
    near = problem(
        links=(Link(src="z", dst="z", latency_s=0.0, bandwidth=1e18, source="test"),),
        nodes=tuple(n.model_copy(update={"intra_node_bandwidth": 1e18}) for n in problem().nodes),
    )
    cut = plan((3, [("fast-4", 4)]), (3, [("fast-4", 4)]))
    found = event_time(near, cut, platforms=fast)
    assert found.p2p_s == pytest.approx(0, abs=1e-9)
    assert found.compute_s == pytest.approx(4 * 75e-3)
    assert found.bubble_s == pytest.approx(61e-3)
    slow = event_time(problem(), cut, platforms=both())
    assert slow.bubble_s == pytest.approx(61e-3)
    assert slow.p2p_s > 4 * 2e-3


def test_schedules_can_be_chosen() -> None:
    cut = plan((2, [("fast-4", 4)]), (2, [("fast-4", 4)]), (2, [("fast-4", 4)]), counts=[8])
    times = {
        name: event_time(problem(), cut, platforms=both(), schedule=name)
        for name in ("gpipe", "1f1b", "1f1b_deepspeed", "zb_h1")
    }
    assert times["zb_h1"].total_s < times["1f1b"].total_s < times["1f1b_deepspeed"].total_s
    assert times["zb_h1"].assumptions == (
        "input and weight gradients take half of the backward pass each",
    )
    wide = event_time(
        problem(), cut, platforms=both(), schedule="backward_first", windows=[8, 8, 8]
    )
    assert wide.total_s <= times["1f1b"].total_s
    with pytest.raises(InputError, match="can't be interleaved"):
        event_time(problem(), cut, platforms=both(), schedule="interleaved")


def test_memory_by_parts() -> None:
    """20 B a parameter, min(M, P - i) microbatches, three score matrices or logits, base."""
    cut = plan((3, [("fast-4", 2)]), (3, [("fast-4", 2)]), microbatch=2)
    first, last = event_time(problem(), cut, platforms=both()).memory
    params = 1_000_000
    assert first.parameters_bytes == first.gradients_bytes == 4 * params
    assert first.optimizer_bytes == 8 * params
    # The flat copy for the all-reduce, and one boundary tensor of two samples.
    assert first.communication_bytes == 4 * params + 4 * MIB
    assert first.in_flight == 2
    assert first.activations_bytes == 2 * 2 * 41 * MIB
    # Four heads over two ranks, 512 x 512 fp32 scores of two samples, three times.
    assert first.transient_bytes == 3 * 2 * 2 * 512 * 512 * 4
    assert first.reserve_bytes == 10**9
    assert last.in_flight == 1
    assert last.activations_bytes == 2 * 44 * MIB
    # Logits: 4 MiB over two ranks, two samples, three times - as much as the scores here.
    assert last.transient_bytes == 12 * MIB
    for worker in (first, last):
        assert worker.total_bytes == (
            worker.parameters_bytes + worker.gradients_bytes + worker.optimizer_bytes
            + worker.communication_bytes + worker.activations_bytes + worker.transient_bytes
            + worker.reserve_bytes
        )  # fmt: skip
    assert event_time(problem(), plan((6, [("fast-4", 2)]), counts=[1])).memory[0].in_flight == 1


def test_fused_attention_has_no_score_matrices() -> None:
    fused = tuple(
        f.model_copy(update={"provenance": Provenance.MODELLED}) for f in problem().footprints
    )
    cut = plan((3, [("fast-4", 2)]), (3, [("fast-4", 2)]))
    first, last = event_time(problem(footprints=fused), cut, platforms=both()).memory
    assert first.transient_bytes == 0
    # A modelled head counts logits and softmax as kept, and its loss works in place.
    assert last.transient_bytes == 0


def test_tensors_of_a_unit() -> None:
    assert num_tensors(ARCH, "embedding") == 2
    assert num_tensors(ARCH, "block") == 12
    assert num_tensors(ARCH, "head") == 3
    llama = ARCH.model_copy(update={"biases": False, "norm": "rmsnorm", "max_positions": 0})
    assert [num_tensors(llama, kind) for kind in ("embedding", "block", "head")] == [1, 6, 2]


def test_platforms_say_what_they_assume() -> None:
    measured = PLATFORMS["megatron-deepspeed", "GH200-96GB"]
    assert measured.assumptions() == ()
    assert measured.link_efficiency.value == 0.63
    unknown = platform_of("H100-80GB")
    names = [text.split()[1] for text in unknown.assumptions()]
    assert names == [
        "link_efficiency", "host_s_per_message", "hook_s_per_pass", "launch_s_per_tensor",
        "base_memory_bytes",
    ]  # fmt: skip
    found = event_time(problem(), plan((6, [("fast-4", 4)])))
    assert found.assumptions[0].startswith("fast: link_efficiency 1 assumed (not measured")
    with pytest.raises(InputError, match="unknown framework 'galvatron'"):
        platform_of("H100-80GB", "galvatron")


@pytest.mark.parametrize(
    ("changes", "cut", "sentence"),
    [
        ({"links": ()}, plan((3, [("fast-4", 4)]), (3, [("fast-4", 4)])), "no link is known from"),
        ({"profiles": ()}, plan((6, [("fast-4", 4)])), "no profile of tiny on fast at tp 4"),
        ({}, plan((6, [("slow-4", 4)])), "no node type slow-4 that holds slow"),
        ({"footprints": (footprint(1),)}, plan((6, [("fast-4", 4)])), "layers at tp 4 are unknown"),
        (
            {"arch": ARCH.model_copy(update={"num_layers": 5})},
            plan((6, [("fast-4", 4)])),
            "the plan has 6 units and tiny has 7",
        ),
    ],
)
def test_what_is_unknown_is_refused(changes: dict[str, object], cut: Plan, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        event_time(problem(**changes), cut)
