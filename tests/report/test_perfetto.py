"""The trace of a simulated iteration: what a viewer needs to draw it."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sailor.errors import InputError
from sailor.model.plan import Plan, Replica, Stage
from sailor.report.perfetto import write_trace
from sailor.sim.engine import PipelineWork, Route, simulate
from sailor.sim.event_estimate import EventEstimate, PipelineTime, StageStep
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op, pipeline_order
from sailor.sim.timeline import Timeline

Event = dict[str, Any]


def work(schedule: str, count: int, first_lane: int, route: Route) -> PipelineWork:
    """Two stages: forward 1 s, backward 2 s."""
    seconds = np.zeros((NUM_COMPUTE_OPS, 2))
    seconds[Op.FORWARD], seconds[Op.BACKWARD] = 1.0, 2.0
    seconds[Op.BACKWARD_INPUT] = seconds[Op.BACKWARD_WEIGHT] = 1.0
    out, into = first_lane, first_lane + 1
    return PipelineWork(
        order=pipeline_order(schedule, 2, count),
        compute_s=seconds,
        activation_routes=(Route(route.transfer_s, (out, into + 2), receive_s=route.receive_s),),
        gradient_routes=(Route(route.transfer_s, (out + 2, into), receive_s=route.receive_s),),
    )


def plan() -> Plan:
    """Two pipelines of two stages; the second stage is in another zone."""

    def stage(start: int, stop: int, zone: str) -> Stage:
        return Stage(
            start=start,
            stop=stop,
            replicas=tuple(
                Replica(
                    gpu="X", node_type="x-4", zone=zone, tp=4, microbatch=1, num_microbatches=count
                )
                for count in (3, 2)
            ),
        )

    return Plan(
        model="tiny", num_units=4, global_batch=5, stages=(stage(0, 2, "east"), stage(2, 4, "west"))
    )


def estimate(timeline: Timeline | None, pipeline_s: float) -> EventEstimate:
    def pipeline(number: int, total_s: float) -> PipelineTime:
        return PipelineTime(number, 1, 0, total_s, 0, 0, total_s, pipeline_s - total_s)

    times = timeline.pipeline_finish_s.tolist() if timeline else [pipeline_s] * 2
    return EventEstimate(
        compute_s=pipeline_s, bubble_s=0, p2p_s=0, allreduce_s=2, local_s=0.5, update_s=0.25,
        total_s=pipeline_s + 2.75, waiting_s=0,
        pipelines=tuple(pipeline(number, total) for number, total in enumerate(times)),
        stages=(StageStep(0, 2, 0.5, 0.25), StageStep(1, 1, 0.5, 0.125)),
        memory=(), schedule="1f1b", assumptions=(), timeline=timeline,
    )  # fmt: skip


WITH_RECEIVE = Route(0.5, receive_s=0.25)


def trace(schedule: str = "1f1b", route: Route = WITH_RECEIVE) -> list[Event]:
    line = simulate(
        [work(schedule, 3, 0, route), work(schedule, 2, 4, route)], [f"lane {n}" for n in range(8)]
    )
    file = io.StringIO()
    write_trace(estimate(line, line.makespan_s), plan(), file)
    document = json.loads(file.getvalue())
    assert "http" not in file.getvalue()
    assert document["displayTimeUnit"] == "ms"
    events: list[Event] = document["traceEvents"]
    return events


def named(events: list[Event], what: str) -> dict[tuple[int, int | None], str]:
    return {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == what
    }


def test_zones_are_processes_workers_and_lanes_are_tracks() -> None:
    events = trace()
    assert list(named(events, "process_name").values()) == ["zone east", "zone west", "links"]
    threads = named(events, "thread_name")
    assert threads[1, 1] == "pipeline 0 stage 0: X x4"
    assert threads[2, 4] == "pipeline 1 stage 1: X x4"
    assert [name for (process, _), name in threads.items() if process == 3] == [
        f"lane {number}" for number in range(8)
    ]
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert used == set(threads)


def test_the_spans_of_a_track_follow_one_another() -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in trace():
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for events in tracks.values():
        events.sort(key=lambda event: event["ts"])
        for before, after in pairwise(events):
            assert after["ts"] >= before["ts"] + before["dur"]
    first = tracks[1, 1]
    assert [(event["name"], event["ts"], event["dur"]) for event in first[:3]] == [
        ("forward 0", 0.0, 1e6),
        ("forward 1", 1e6, 1e6),
        ("receive gradient 0", 5.25e6, 0.25e6),
    ]
    assert [event["name"] for event in first[-3:]] == ["all-reduce", "copy gradients", "optimizer"]
    # The pipeline with fewer microbatches waits for the other one, then all reduce together.
    names = [event["name"] for event in tracks[1, 3]]
    assert names[-4:] == [
        "wait for the slowest pipeline", "all-reduce", "copy gradients", "optimizer",
    ]  # fmt: skip
    assert tracks[1, 3][-3]["ts"] == first[-3]["ts"]
    assert first[-1]["ts"] + first[-1]["dur"] == pytest.approx(
        tracks[1, 3][-1]["ts"] + tracks[1, 3][-1]["dur"]
    )


@pytest.mark.parametrize(
    ("schedule", "route"),
    [("1f1b", WITH_RECEIVE), ("1f1b", Route(0.5)), ("zb_h1", Route(0.5))],
)
def test_arrows_lead_from_the_maker_over_the_lane_to_the_user(schedule: str, route: Route) -> None:
    events = trace(schedule, route)
    spans = [event for event in events if event["ph"] == "X"]
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
            # An arrow is drawn only where it starts or ends inside a span of its track.
            assert any(
                (span["pid"], span["tid"]) == (event["pid"], event["tid"])
                and span["ts"] <= event["ts"] <= span["ts"] + span["dur"]
                for span in spans
            )
    # Activations and gradients of 3 + 2 microbatches.
    assert len(flows) == 10
    for arrow in flows.values():
        assert [event["ph"] for event in arrow] == ["s", "t", "f"]
        assert arrow[0]["ts"] <= arrow[1]["ts"] <= arrow[2]["ts"]
        assert arrow[0]["pid"] != arrow[2]["pid"]


def test_kept_microbatches_are_counted_over_time() -> None:
    counts = [
        (event["ts"], event["args"]["microbatches"])
        for event in trace()
        if event["ph"] == "C" and event["name"].endswith("pipeline 0 stage 0: X x4")
    ]
    assert counts[0] == (0.0, 1)
    assert max(count for _, count in counts) == 2
    assert counts[-1][1] == 0


def test_a_trace_needs_a_timeline() -> None:
    with pytest.raises(InputError, match="holds no timeline"):
        write_trace(estimate(None, 1.0), plan(), io.StringIO())
