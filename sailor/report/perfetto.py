"""A simulated iteration as trace events, to be opened in Perfetto (or chrome://tracing).

The format is Chrome's JSON trace: complete spans ("X"), names ("M"), arrows ("s", "t", "f") and
counters ("C"), times in microseconds. One process per zone with one thread per worker, one process
with a track for every lane, and a counter of the microbatches that each worker keeps. The file
needs nothing but itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from sailor.errors import InputError
from sailor.model.plan import Plan
from sailor.sim.event_estimate import EventEstimate
from sailor.sim.schedule import Op
from sailor.sim.timeline import Span, Timeline

Event = dict[str, Any]

_NAMES: Mapping[Op, str] = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "input gradient",
    Op.BACKWARD_WEIGHT: "weight gradient",
    Op.RECV_ACTIVATION: "receive activation",
    Op.RECV_GRADIENT: "receive gradient",
    Op.SEND_ACTIVATION: "activation",
    Op.SEND_GRADIENT: "gradient",
}


@dataclass(frozen=True)
class WorkerLabel:
    """Where a worker's track stands, and what it is called."""

    zone: str
    name: str


def worker_labels(plan: Plan) -> tuple[WorkerLabel, ...]:
    """Return the labels of a plan's workers in the timeline's order: by pipeline, then stage."""
    return tuple(
        WorkerLabel(
            zone=stage.replicas[pipeline].zone,
            name=f"pipeline {pipeline} stage {index}: {stage.replicas[pipeline].gpu} "
            f"x{stage.replicas[pipeline].tp}",
        )
        for pipeline in range(plan.dp)
        for index, stage in enumerate(plan.stages)
    )


def write_trace(estimate: EventEstimate, plan: Plan, file: TextIO) -> None:
    """Write the trace of an estimate that was made with its timeline."""
    if estimate.timeline is None:
        raise InputError(
            "the estimate holds no timeline", where="trace", hint="simulate with the timeline"
        )
    labels = worker_labels(plan)
    events = [
        *trace_events(estimate.timeline, labels),
        *_closing_events(estimate, estimate.timeline, labels),
    ]
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    file.write(",\n".join(json.dumps(event, separators=(",", ":")) for event in events))
    file.write("\n]}\n")


def trace_events(timeline: Timeline, labels: Sequence[WorkerLabel]) -> Iterator[Event]:
    """Yield the events of a timeline; `labels` by worker."""
    places = _places(labels)
    spans = [list(timeline.spans_of(worker)) for worker in range(timeline.num_workers)]
    yield from _track_names(labels, places)
    for worker, mine in enumerate(spans):
        process, thread = places[worker]
        for span in mine:
            yield {
                "ph": "X",
                "pid": process,
                "tid": thread,
                "name": f"{_NAMES[span.op]} {span.microbatch}",
                "cat": _NAMES[span.op].replace(" ", "_"),
                "ts": _us(span.start_s),
                "dur": _us(span.stop_s - span.start_s),
                "args": {"microbatch": span.microbatch, "stage": span.stage},
            }
        yield from _memory_events(timeline, worker, process, labels[worker].name)
    yield from _lane_events(timeline, spans, places)


def _us(seconds: float) -> float:
    """Return microseconds, to the picosecond."""
    return round(seconds * 1e6, 6)


def _places(labels: Sequence[WorkerLabel]) -> list[tuple[int, int]]:
    """Return (process, thread) of every worker; processes count from 1 by zone."""
    zones = {zone: number for number, zone in enumerate(sorted({x.zone for x in labels}), 1)}
    return [(zones[label.zone], thread) for thread, label in enumerate(labels, 1)]


def _lanes_process(places: Iterable[tuple[int, int]]) -> int:
    return max(process for process, _ in places) + 1


def _named(process: int, thread: int | None, name: str) -> Iterator[Event]:
    what = "process" if thread is None else "thread"
    event: Event = {"ph": "M", "pid": process, "name": f"{what}_name", "args": {"name": name}}
    order = process if thread is None else thread
    sort: Event = {
        "ph": "M",
        "pid": process,
        "name": f"{what}_sort_index",
        "args": {"sort_index": order},
    }
    if thread is not None:
        event["tid"] = sort["tid"] = thread
    yield event
    yield sort


def _track_names(
    labels: Sequence[WorkerLabel], places: Sequence[tuple[int, int]]
) -> Iterator[Event]:
    seen: set[int] = set()
    for label, (process, thread) in zip(labels, places, strict=True):
        if process not in seen:
            seen.add(process)
            yield from _named(process, None, f"zone {label.zone}")
        yield from _named(process, thread, label.name)


def _memory_events(timeline: Timeline, worker: int, process: int, name: str) -> Iterator[Event]:
    times, counts = timeline.in_flight(worker)
    for time_s, count in zip(times.tolist(), counts.tolist(), strict=True):
        yield {
            "ph": "C",
            "pid": process,
            "name": f"microbatches kept: {name}",
            "ts": _us(time_s),
            "args": {"microbatches": count},
        }


def _lane_events(
    timeline: Timeline, spans: Sequence[Sequence[Span]], places: Sequence[tuple[int, int]]
) -> Iterator[Event]:
    """Yield lanes' spans, and an arrow from the computation that made a tensor to the next one."""
    process = _lanes_process(places)
    if timeline.lane_names:
        yield from _named(process, None, "links")
    used = sorted({lane for lanes in timeline.route_lanes for lane in lanes})
    for lane in used:
        yield from _named(process, lane + 1, timeline.lane_names[lane])
    at = {
        (worker, span.op, span.microbatch, span.stage): span
        for worker, mine in enumerate(spans)
        for span in mine
    }
    for row in range(len(timeline.transfers)):
        transfer = timeline.transfer(row)
        forward = transfer.op == Op.SEND_ACTIVATION
        for lane in transfer.lanes:
            yield {
                "ph": "X",
                "pid": process,
                "tid": lane + 1,
                "name": f"{_NAMES[transfer.op]} {transfer.microbatch}",
                "cat": "transfer",
                "ts": _us(transfer.start_s),
                "dur": _us(transfer.stop_s - transfer.start_s),
                "args": {
                    "microbatch": transfer.microbatch,
                    "from_stage": transfer.stage,
                    "to_stage": transfer.stage + (1 if forward else -1),
                    "queued_us": _us(transfer.start_s - transfer.ready_s),
                },
            }
        ops = (Op.FORWARD,) if forward else (Op.BACKWARD, Op.BACKWARD_INPUT)
        there = transfer.stage + (1 if forward else -1)
        receive = Op.RECV_ACTIVATION if forward else Op.RECV_GRADIENT
        made = _first(at, transfer.src, ops, transfer.microbatch, transfer.stage)
        used_by = _first(at, transfer.dst, (receive, *ops), transfer.microbatch, there)
        arrow: Event = {"name": _NAMES[transfer.op], "cat": "flow", "id": row}
        yield {**arrow, "ph": "s", **_inside(places[transfer.src], made.start_s)}
        for lane in transfer.lanes[:1]:
            yield {**arrow, "ph": "t", **_inside((process, lane + 1), transfer.start_s)}
        yield {**arrow, "ph": "f", "bp": "e", **_inside(places[transfer.dst], used_by.start_s)}


def _first(
    at: Mapping[tuple[int, Op, int, int], Span],
    worker: int,
    ops: Iterable[Op],
    microbatch: int,
    stage: int,
) -> Span:
    keys = ((worker, op, microbatch, stage) for op in ops)
    return next(at[key] for key in keys if key in at)


def _inside(place: tuple[int, int], time_s: float) -> Event:
    return {"pid": place[0], "tid": place[1], "ts": _us(time_s)}


def _closing_events(
    estimate: EventEstimate, timeline: Timeline, labels: Sequence[WorkerLabel]
) -> Iterator[Event]:
    """Yield what every worker does after its pipeline: wait, all-reduce, copies, optimizer."""
    places = _places(labels)
    closings = estimate.closings()
    finish_s = timeline.pipeline_finish_s.tolist()
    for worker, (process, thread) in enumerate(places):
        own_s = finish_s[int(timeline.worker_pipeline[worker])]
        stage = int(timeline.worker_stage[worker])
        parts = [(c.name, c.start_s, c.stop_s) for c in closings if c.stage == stage]
        # Differences below a nanosecond are the rounding of the engine's grid.
        if estimate.pipeline_s > own_s + 1e-9:
            parts.insert(0, ("wait for the slowest pipeline", own_s, estimate.pipeline_s))
        for name, start_s, stop_s in parts:
            yield {
                "ph": "X",
                "pid": process,
                "tid": thread,
                "name": name,
                "cat": "closing",
                "ts": _us(start_s),
                "dur": _us(stop_s - start_s),
            }
