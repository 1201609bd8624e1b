"""One iteration in the event engine, term by term: pipelines, messages, schedules."""

from __future__ import annotations

import pytest
from event_problem import ARCH, MIB, both, footprint, parts, plan, problem, profile, training

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.model.plan import Plan
from sailor.model.profile import Provenance, UnitTime
from sailor.sim.event_estimate import event_time
from sailor.sim.schedule import Op


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


@pytest.mark.parametrize(
    ("tp", "middle", "gap_s"),
    [
        (4, "fast-4", 0.0),
        (2, "fast-4", 0.0),
        # Three stages on one node: over its own links, 0.8 of 10 GB/s.
        (1, "fast-4", 2 * MIB / 8e9),
        # What goes to the node in the middle and comes back from it shares a card of 1 GB/s.
        (1, "slow-2", 2 * MIB / 0.5e9),
    ],
)
def test_large_parts_are_a_rendezvous(tp: int, middle: str, gap_s: float) -> None:
    """2 MiB over tp pairs: up to the buffer's 1 MiB a pair the sender's next forward follows.

    At tp 1 it waits for the transfer.
    """
    stage = [("fast-4", tp)]
    cut = plan((1, stage), (1, [(middle, tp)]), (4, stage), counts=[6])
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
    # Of a modelled stage: 1.25 ms a microbatch, 6 bytes a parameter to add gradients up.
    assert found.compute_s == pytest.approx(136e-3 + 1.25e-3 + 975_000 * 6 / (0.738 * 1e11))


def test_modelled_stages_take_what_the_closed_form_says_by_pass() -> None:
    """Hosts of 20 ms forward and 30 back a block; passes share (D^4 + H^4)^(1/4) of both."""
    host = UnitTime(forward_s=20e-3, backward_s=30e-3)
    own = profile("fast", 4, 1, 1.0, Provenance.MODELLED).model_copy(update={"block_host": host})
    cut = plan((6, [("fast-4", 4)]), counts=[1])
    found = event_time(
        problem(profiles=(own,), training=training("megatron-lm")), cut, with_timeline=True
    )
    # Device 46 + 90 ms and 2.9 bytes a parameter; host 80 + 120; 2.5 ms a microbatch.
    device = 0.136 + 975_000 * 2.9 / (0.738 * 1e11)
    total = (device**4 + 0.2**4) ** 0.25 + 2.5e-3
    assert found.compute_s == pytest.approx(total)
    forward, backward = ((d**4 + h**4) ** 0.25 for d, h in ((0.046, 0.08), (0.09, 0.12)))
    assert found.timeline is not None
    first, last = found.timeline.spans_of(0)
    assert first.stop_s - first.start_s == pytest.approx(total * forward / (forward + backward))
    assert last.stop_s - last.start_s == pytest.approx(total * backward / (forward + backward))
    # Nothing is flattened, and hosts have their part in the stage's time.
    assert found.local_s == 0
    assert found.schedule == "1f1b"


def test_replicas_that_share_a_node_share_its_card() -> None:
    """Two of tp 4 on a node of 8 have half of its 1 GB/s each; one alone has the link's rate.

    Both stages on one node have its own links, 0.8 of 10 GB/s for each of four pairs.
    """
    big, small = ("fast-8", 4), ("slow-2", 2)
    for cut, wire_s in (
        (plan((3, [big]), (3, [small])), 2 * MIB / 1e9),
        (plan((3, [big] * 2), (3, [big] * 2)), 2 * MIB / 0.5e9),
        (plan((3, [big]), (3, [big])), 0.5 * MIB / 8e9),
    ):
        line = event_time(problem(), cut, platforms=both(), with_timeline=True).timeline
        assert line is not None
        sent = line.transfer(0)
        assert sent.stop_s - sent.start_s == pytest.approx(wire_s)


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


@pytest.mark.parametrize(
    ("changes", "cut", "sentence"),
    [
        ({"links": ()}, plan((3, [("fast-4", 4)]), (3, [("fast-4", 4)])), "no link is known from"),
        ({"profiles": ()}, plan((6, [("fast-4", 4)])), "no profile of tiny on fast at tp 4"),
        ({}, plan((6, [("slow-4", 4)])), "no node type slow-4 that holds slow"),
        ({"footprints": (footprint(1),)}, plan((6, [("fast-4", 4)])), "layers at tp 4 are unknown"),
        (
            {"footprints": (footprint(1),), "training": training("megatron-lm")},
            plan((6, [("fast-4", 4)])),
            "layers at tp 4 are unknown",
        ),
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
