"""Traces against the Trace Event Format, as strictly as its readers: every event, every track.

The rules are those of the public format description (complete, metadata, counter and flow events
of the JSON object form) and of Perfetto's importer, which keeps times in whole nanoseconds and
drops a slice that only partly overlaps another one of its track.
"""

from __future__ import annotations

import copy
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sailor.cli import run

Event = dict[str, Any]

NAMES = {"process_name": "name", "thread_name": "name"}
ORDERS = {"process_sort_index": "sort_index", "thread_sort_index": "sort_index"}
KEYS = {
    "X": ({"ph", "pid", "tid", "name", "cat", "ts", "dur"}, {"args"}),
    "M": ({"ph", "pid", "name", "args"}, {"tid"}),
    "C": ({"ph", "pid", "name", "ts", "args"}, set()),
    "s": ({"ph", "pid", "tid", "name", "cat", "id", "ts"}, set()),
    "t": ({"ph", "pid", "tid", "name", "cat", "id", "ts"}, set()),
    "f": ({"ph", "pid", "tid", "name", "cat", "id", "ts", "bp"}, set()),
}

JOB = """\
name: two-zones
model: opt-350m
training: {global_batch: 12, precision: fp32}
pool:
  - {zone: us-central1-a, gpu: A100-40GB, quota: 8}
  - {zone: us-west1-b, gpu: A100-40GB, quota: 8}
sources: {profiles: analytic}
"""


def plan(schedule: str) -> dict[str, Any]:
    """Return three stages of two pipelines; the last stage is in another zone."""
    cuts = (0, 9, 17, 26)

    def replica(zone: str) -> dict[str, Any]:
        return {
            "gpu": "A100-40GB", "node_type": "a2-highgpu-2g", "zone": zone, "tp": 2,
            "microbatch": 1, "num_microbatches": 6,
        }  # fmt: skip

    zones = ("us-central1-a", "us-central1-a", "us-west1-b")
    stages = [
        {"start": cuts[i], "stop": cuts[i + 1], "replicas": [replica(zones[i])] * 2}
        for i in range(3)
    ]
    return {
        "model": "opt-350m", "num_units": 26, "global_batch": 12, "stages": stages,
        "schedule": schedule,
    }  # fmt: skip


@pytest.fixture(scope="module", params=["1f1b", "gpipe"])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Event:
    """Return the trace of a real plan, as written by the command line."""
    folder = tmp_path_factory.mktemp("trace")
    job, plan_file, trace = folder / "job.yaml", folder / "plan.json", folder / "trace.json"
    job.write_text(JOB)
    plan_file.write_text(json.dumps(plan(request.param)))
    arguments = [
        "simulate", str(job), str(plan_file), "--fidelity", "event", "--trace", str(trace),
        "--out", str(folder / "estimate.txt"),
    ]  # fmt: skip
    assert run(arguments) == 0
    return strict(trace)


def strict(path: Path) -> Event:
    """Read JSON as browsers do: no NaN or infinity, no key twice."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    found = json.loads(path.read_text(), parse_constant=refuse, object_pairs_hook=once)
    assert isinstance(found, dict)
    return found


def faults(document: Event) -> list[str]:
    """Return what a reader of the format would stumble over."""
    if set(document) - {"traceEvents", "displayTimeUnit"}:
        return ["unknown keys beside the events"]
    if document.get("displayTimeUnit") not in ("ms", "ns"):
        return ["displayTimeUnit is neither ms nor ns"]
    events = document["traceEvents"]
    shapes = [fault for event in events for fault in _shape_faults(event)]
    if shapes:
        return shapes
    return [*_name_faults(events), *_nesting_faults(events), *_flow_faults(events),
            *_counter_faults(events)]  # fmt: skip


def _shape_faults(event: Event) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in KEYS:
        yield f"phase {phase!r}"
        return
    required, optional = KEYS[phase]
    if not required <= set(event) <= required | optional:
        yield f"keys {sorted(event)} of phase {phase}"
        return
    yield from _value_faults(event)
    if phase == "M":
        yield from _metadata_faults(event)
    if phase == "C" and not all(type(value) in (int, float) for value in event["args"].values()):
        yield f"counter {event['args']!r}"


def _value_faults(event: Event) -> Iterator[str]:
    for key in {"pid", "tid", "id"} & set(event):
        if type(event[key]) is not int or event[key] < 0:
            yield f"{key} {event[key]!r}"
    for key in {"ts", "dur"} & set(event):
        time = event[key]
        if type(time) not in (int, float) or not math.isfinite(time) or time < 0:
            yield f"{key} {time!r} of {event['name']}"
    for key in {"name", "cat"} & set(event):
        if not isinstance(event[key], str) or not event[key]:
            yield f"{key} {event[key]!r}"
    if event.get("bp", "e") != "e":
        yield f"bp {event['bp']!r}"


def _metadata_faults(event: Event) -> Iterator[str]:
    name = event["name"]
    wanted = NAMES.get(name) or ORDERS.get(name)
    if wanted is None or set(event["args"]) != {wanted}:
        yield f"metadata {name} with {event['args']!r}"
    elif (name in NAMES) != isinstance(event["args"][wanted], str):
        yield f"metadata {name} is {event['args'][wanted]!r}"
    if name.startswith("thread") and "tid" not in event:
        yield f"metadata {name} without tid"


def _name_faults(events: list[Event]) -> Iterator[str]:
    """Yield tracks and processes without a name, with two, or with one that another has."""
    given: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "M" and event["name"] in NAMES:
            key = event["pid"], event.get("tid") if event["name"] == "thread_name" else None
            given[key].append(event["args"]["name"])
    used = {(event["pid"], event.get("tid")) for event in events if event["ph"] != "M"}
    used |= {(process, None) for process, _ in used}
    yield from (f"no name for {track}" for track in sorted(used - set(given), key=str))
    yield from (f"names {names} for {track}" for track, names in given.items() if len(names) > 1)
    labels = [(process, names[0]) for (process, _), names in given.items()]
    yield from {f"name {label} twice" for label in labels if labels.count(label) > 1}


def _tracks(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the slices of every track in whole nanoseconds, as the importer cuts them."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + length))
    return tracks


def _nesting_faults(events: list[Event]) -> Iterator[str]:
    for track, slices in _tracks(events).items():
        open_ends: list[int] = []
        for start, stop in sorted(slices, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and stop > open_ends[-1]:
                yield f"track {track}: a slice from {start} to {stop} ns only partly overlaps one"
            open_ends.append(stop)


def _flow_faults(events: list[Event]) -> Iterator[str]:
    """Yield arrows that don't go start, steps, end in time, or hang on no slice."""
    tracks = _tracks(events)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["cat"], event["name"], event["id"]].append(event)
    for key, arrow in flows.items():
        phases = "".join(event["ph"] for event in arrow)
        if phases != "s" + "t" * (len(arrow) - 2) + "f":
            yield f"arrow {key} has the phases {phases}"
        if [event["ts"] for event in arrow] != sorted(event["ts"] for event in arrow):
            yield f"arrow {key} goes back in time"
        for event in arrow:
            at = int(event["ts"] * 1000)
            around = tracks.get((event["pid"], event["tid"]), [])
            if not any(start <= at <= stop for start, stop in around):
                yield f"arrow {key} hangs on no slice"


def _counter_faults(events: list[Event]) -> Iterator[str]:
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
    for key, samples in counters.items():
        if [event["ts"] for event in samples] != sorted(event["ts"] for event in samples):
            yield f"counter {key} goes back in time"
        if len({frozenset(event["args"]) for event in samples}) > 1:
            yield f"counter {key} changes its series"


def test_a_written_trace_has_no_fault(document: Event) -> None:
    assert faults(document) == []


def test_every_worker_and_link_in_use_has_one_track(document: Event) -> None:
    events = document["traceEvents"]
    names = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] in NAMES
    }
    processes = {name: pid for (pid, tid), name in names.items() if tid is None}
    assert list(processes) == ["zone us-central1-a", "zone us-west1-b", "links"]
    workers = [
        name for (pid, tid), name in names.items() if tid is not None and pid != processes["links"]
    ]
    assert sorted(workers) == [
        f"pipeline {pipeline} stage {stage}: A100-40GB x2" for pipeline in (0, 1)
        for stage in (0, 1, 2)
    ]  # fmt: skip
    spans = [event for event in events if event["ph"] == "X"]
    by_track = defaultdict(list)
    for event in spans:
        by_track[names[event["pid"], event["tid"]]].append(event)
    assert set(by_track) == {name for (_, tid), name in names.items() if tid is not None}
    for worker in workers:
        for what in ("forward", "backward"):
            found = sorted(e["args"]["microbatch"] for e in by_track[worker] if e["cat"] == what)
            assert found == list(range(6)), (worker, what)
    # Six activations and six gradients cross each of two boundaries of two pipelines.
    assert len({e["id"] for e in events if e["ph"] == "s"}) == 2 * 2 * 12


def test_all_workers_end_with_the_iteration(document: Event) -> None:
    ends: dict[tuple[int, int], float] = defaultdict(float)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "closing":
            track = event["pid"], event["tid"]
            ends[track] = max(ends[track], event["ts"] + event["dur"])
    assert len(ends) == 6
    last = max(event["ts"] + event["dur"] for event in document["traceEvents"] if "dur" in event)
    assert max(ends.values()) == last


def spans_of(document: Event) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def first(document: Event, phase: str) -> Event:
    event: Event = next(event for event in document["traceEvents"] if event["ph"] == phase)
    return event


def stretch(document: Event) -> None:
    """Let a slice end inside the one that follows it on its track."""
    spans = spans_of(document)
    follower = next(
        event for event in spans
        if event["tid"] == spans[0]["tid"] and event["pid"] == spans[0]["pid"]
        and event["ts"] > spans[0]["ts"] and event["dur"] > 1
    )  # fmt: skip
    spans[0]["dur"] = follower["ts"] + 0.5 * follower["dur"] - spans[0]["ts"]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda d: first(d, "X").pop("dur"), "keys"),
        (lambda d: first(d, "X").update(ts=-1.0), "ts -1.0"),
        (lambda d: first(d, "X").update(dur=math.nan), "dur nan"),
        (lambda d: first(d, "X").update(tid="1"), "tid '1'"),
        (lambda d: first(d, "X").update(tid=99), "no name for"),
        (lambda d: first(d, "M")["args"].clear(), "metadata process_name with"),
        (lambda d: d["traceEvents"].append(first(d, "M")), "names"),
        (lambda d: first(d, "C")["args"].update(microbatches="2"), "counter"),
        (lambda d: d["traceEvents"].remove(first(d, "f")), "phases st"),
        (lambda d: first(d, "t").update(ts=1e15), "hangs on no slice"),
        (lambda d: d["traceEvents"].append({"ph": "Q"}), "phase 'Q'"),
        (lambda d: d.update(displayTimeUnit="s"), "displayTimeUnit"),
        (stretch, "only partly overlaps"),
    ],
)
def test_the_rules_find_what_is_broken(
    document: Event, break_it: Callable[[Event], object], said: str
) -> None:
    broken = copy.deepcopy(document)
    break_it(broken)
    assert any(said in fault for fault in faults(broken)), faults(broken)[:3]
