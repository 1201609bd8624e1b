"""The event engine: when each instruction of every stage takes place.

Rules. A worker runs its order serially in one stream. A transfer holds all of its lanes for its
whole duration; lanes serve transfers first come, first served, by the time they are ready (ties by
pipeline, activations first, stage, microbatch). It is ready when it is sent (buffered), or when
both sides have come to it (rendezvous: then the sender goes on when it ends). The receiver goes on
at its arrival, plus its own work on the message.

Exactness. All durations are rounded to one power of two, small enough that every sum the run can
form is exact in double precision (at 1e6 operations, below 1e-10 of a mean duration). So results
don't depend on the order of additions, and what is simultaneous on paper is simultaneous here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sailor.errors import InputError
from sailor.sim.engine_code import (
    AWAIT,
    COMPUTE,
    MEET_RECEIVE,
    POST,
    RECEIVE,
    SEND,
    Messages,
    WorkerCode,
    compile_workers,
    order_spans,
    pipeline_messages,
)
from sailor.sim.engine_rule import RuleWorker, rule_spans, rule_workers, run_by_rule
from sailor.sim.engine_state import RunState
from sailor.sim.schedule import NUM_COMPUTE_OPS, PipelineOrder
from sailor.sim.timeline import SpanTable, Timeline, TransferTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_Running = Generator[None, float | None, None]


@dataclass(frozen=True)
class Route:
    """How a tensor gets from one virtual stage to a neighbour.

    `transfer_s` is how long it holds its `lanes` (indices into the engine's list), `latency_s`
    what passes until arrival without holding them, `receive_s` the receiver's own work on it then.
    """

    transfer_s: float
    lanes: tuple[int, ...] = ()
    latency_s: float = 0.0
    receive_s: float = 0.0
    buffered: bool = True


@dataclass(frozen=True)
class PipelineWork:
    """One pipeline: its orders, seconds by operation and virtual stage, and its routes.

    `compute_s` is [4, virtual stages]: forward, backward, and the backward's two halves.
    `activation_routes[v]` leads from virtual stage v to v + 1, `gradient_routes[v]` back.
    """

    order: PipelineOrder
    compute_s: Floats
    activation_routes: tuple[Route, ...]
    gradient_routes: tuple[Route, ...]

    @property
    def routes(self) -> tuple[Route, ...]:
        """Return all routes, activations first."""
        return (*self.activation_routes, *self.gradient_routes)


@dataclass(frozen=True)
class _Started:
    """A pipeline made ready to run."""

    order: PipelineOrder
    messages: Messages
    workers: Sequence[WorkerCode | RuleWorker]


def simulate(pipelines: Sequence[PipelineWork], lane_names: Sequence[str] = ()) -> Timeline:
    """Run one iteration of pipelines that share lanes.

    Raises InputError for durations that aren't finite and positive, and for an order that waits
    for itself.
    """
    if not pipelines:
        raise InputError("there is no pipeline to simulate", where="pipelines")
    works = _on_grid(pipelines, len(lane_names))
    started: list[_Started] = []
    num_messages = 0
    for work in works:
        started.append(_start(work, num_messages))
        num_messages += len(started[-1].messages)
    state = RunState(num_messages)
    routes = tuple(route for work in works for route in work.routes)
    counts = [work.order.num_microbatches for work in works for _ in work.routes]
    route_of = np.repeat(np.arange(len(routes)), counts)
    workers = [worker for pipeline in started for worker in pipeline.workers]
    logs = _run(workers, _coupled(works), routes, route_of.tolist(), len(lane_names), state)
    stuck = sum(
        isinstance(worker, WorkerCode) and len(log) < len(worker.code)
        for worker, log in zip(workers, logs, strict=True)
    )
    if stuck:
        raise InputError(
            f"{stuck} of {len(workers)} workers wait for one another for ever",
            where="schedule",
            hint="its sends can't be a rendezvous: let them be buffered, or choose another order",
        )
    return _timeline(started, routes, route_of, tuple(lane_names), state, logs)


def _start(work: PipelineWork, first_message: int) -> _Started:
    order, routes = work.order, work.routes
    receive_s = [route.receive_s for route in routes]
    workers: Sequence[WorkerCode | RuleWorker]
    if order.windows:
        workers = rule_workers(order, work.compute_s, receive_s, first_message)
    else:
        buffered = [route.buffered for route in routes]
        workers = compile_workers(order, work.compute_s, buffered, receive_s, first_message)
    return _Started(order, pipeline_messages(order), workers)


def _run_in_order(
    number: int, worker: WorkerCode, state: RunState, log: Callable[[float], None]
) -> _Running:
    """Run one worker's instructions; yield where it has to wait for a message."""
    now = 0.0
    arrival_s, stop_s, queue = state.arrival_s, state.stop_s, state.queue
    for code, seconds, message in zip(worker.code, worker.seconds, worker.message, strict=True):
        if code == COMPUTE:
            now += seconds
        elif code == SEND:
            heappush(queue, (now, message))
        elif code == RECEIVE:
            if arrival_s[message] < 0:
                state.receivers[message] = number
                yield
            if arrival_s[message] > now:
                now = arrival_s[message]
        else:
            if code != AWAIT:
                _meet(message, now, state)
            if code != POST:
                end_s, waiting = (
                    (arrival_s, state.receivers)
                    if code == MEET_RECEIVE
                    else (stop_s, state.senders)
                )
                if end_s[message] < 0:
                    waiting[message] = number
                    yield
                now = max(now, end_s[message])
        log(now)


def _meet(message: int, now: float, state: RunState) -> None:
    """Come to a rendezvous; whoever is second puts the transfer into the queue."""
    first = state.met.pop(message, None)
    if first is None:
        state.met[message] = now
    else:
        heappush(state.queue, (max(now, first), message))


def _coupled(works: Sequence[PipelineWork]) -> list[list[int]]:
    """Return the workers by groups of pipelines that share lanes, directly or through others."""
    parent = list(range(len(works)))

    def root(pipeline: int) -> int:
        while parent[pipeline] != pipeline:
            parent[pipeline] = pipeline = parent[parent[pipeline]]
        return pipeline

    user_of: dict[int, int] = {}
    for pipeline, work in enumerate(works):
        for route in work.routes:
            for lane in route.lanes:
                parent[root(user_of.setdefault(lane, pipeline))] = root(pipeline)
    groups: dict[int, list[int]] = {}
    first = 0
    for pipeline, work in enumerate(works):
        groups.setdefault(root(pipeline), []).extend(range(first, first + work.order.num_stages))
        first += work.order.num_stages
    return list(groups.values())


def _run(
    workers: Sequence[WorkerCode | RuleWorker],
    groups: Sequence[Sequence[int]],
    routes: Sequence[Route],
    route_of: Sequence[int],
    num_lanes: int,
    state: RunState,
) -> list[list[float]]:
    """Run all workers as far as they get; return when each instruction in order was done.

    Group by group: every worker runs until it waits; then the earliest transfer is served.
    Whatever is sent later is ready no earlier than that transfer, so lanes are served in the order
    of readiness. Groups share nothing; apart they keep the queue short.
    """
    logs: list[list[float]] = [[] for _ in workers]
    running: list[_Running] = [
        run_by_rule(number, worker, state)
        if isinstance(worker, RuleWorker)
        else _run_in_order(number, worker, state, logs[number].append)
        for number, worker in enumerate(workers)
    ]
    free = [0.0] * num_lanes
    plain = [(route.transfer_s, route.latency_s, route.lanes) for route in routes]
    for group in groups:
        for number in group:
            next(running[number], None)
        _serve(running, plain, route_of, free, state)
    return logs


def _serve(
    running: Sequence[_Running],
    routes: Sequence[tuple[float, float, tuple[int, ...]]],
    route_of: Sequence[int],
    free: list[float],
    state: RunState,
) -> None:
    """Serve transfers and decisions until the queue is empty."""
    num_messages = state.num_messages
    queue, arrival_s, stop_s, ready_s = state.queue, state.arrival_s, state.stop_s, state.ready_s
    receivers, senders = state.receivers, state.senders
    while queue:
        now, message = heappop(queue)
        if message >= num_messages:
            with suppress(StopIteration):
                running[message - num_messages].send(now)
            continue
        seconds, latency, lanes = routes[route_of[message]]
        ready_s[message] = now
        for lane in lanes:
            if free[lane] > now:
                now = free[lane]
        now += seconds
        for lane in lanes:
            free[lane] = now
        stop_s[message] = now
        arrival_s[message] = now + latency
        if message in receivers:
            next(running[receivers.pop(message)], None)
        if message in senders:
            next(running[senders.pop(message)], None)


def _on_grid(pipelines: Sequence[PipelineWork], num_lanes: int) -> list[PipelineWork]:
    """Return the work with every duration rounded to the run's grid."""
    for number, work in enumerate(pipelines):
        _check(work, num_lanes, f"pipelines[{number}]")
    total = 0.0
    for work in pipelines:
        passes = work.order.num_microbatches
        routes = work.routes
        total += passes * float(work.compute_s.sum())
        total += passes * sum(r.transfer_s + r.latency_s + r.receive_s for r in routes)
    if total == 0:
        return list(pipelines)
    # Something is always under way, so no time exceeds the sum of all durations (twice that, after
    # rounding up): with 52 bits below it, every time is a whole number of grid steps.
    grid = 2.0 ** (math.frexp(2 * total)[1] - 52)

    def rounded(route: Route) -> Route:
        return replace(
            route,
            transfer_s=round(route.transfer_s / grid) * grid,
            latency_s=round(route.latency_s / grid) * grid,
            receive_s=round(route.receive_s / grid) * grid,
        )

    return [
        replace(
            work,
            compute_s=np.round(work.compute_s / grid) * grid,
            activation_routes=tuple(map(rounded, work.activation_routes)),
            gradient_routes=tuple(map(rounded, work.gradient_routes)),
        )
        for work in pipelines
    ]


def _check(work: PipelineWork, num_lanes: int, where: str) -> None:
    stages = work.order.num_virtual_stages
    if work.compute_s.shape != (NUM_COMPUTE_OPS, stages):
        raise InputError(
            f"compute_s has shape {work.compute_s.shape}",
            where=where, hint=f"expected ({NUM_COMPUTE_OPS}, {stages})",
        )  # fmt: skip
    if len(work.activation_routes) != stages - 1 or len(work.gradient_routes) != stages - 1:
        raise InputError(
            f"{stages} virtual stages need {stages - 1} routes each way",
            where=where, hint="give one for every pair of neighbours",
        )  # fmt: skip
    routes = work.routes
    figures = [v for r in routes for v in (r.transfer_s, r.latency_s, r.receive_s)]
    if not (np.isfinite(work.compute_s).all() and (work.compute_s >= 0).all()) or not all(
        math.isfinite(value) and value >= 0 for value in figures
    ):
        raise InputError(
            "a duration is negative or not finite",
            where=where, hint="an unknown time can't be simulated",
        )  # fmt: skip
    if any(not 0 <= lane < num_lanes for route in routes for lane in route.lanes):
        raise InputError(
            f"a route names a lane outside 0..{num_lanes - 1}", where=where,
            hint="give every lane a name",
        )  # fmt: skip


def _timeline(
    started: Sequence[_Started],
    routes: Sequence[Route],
    route_of: Ints,
    lane_names: tuple[str, ...],
    state: RunState,
    logs: Sequence[Sequence[float]],
) -> Timeline:
    stages = np.array([len(pipeline.workers) for pipeline in started])
    offset = np.repeat(np.cumsum(stages) - stages, [len(p.messages) for p in started])
    workers = [worker for pipeline in started for worker in pipeline.workers]
    spans = [
        rule_spans(worker) if isinstance(worker, RuleWorker) else order_spans(worker, log)
        for worker, log in zip(workers, logs, strict=True)
    ]
    stop_s = np.array(state.stop_s)
    carried_s = np.array([route.transfer_s for route in routes])
    return Timeline(
        num_workers=len(workers),
        worker_pipeline=np.repeat(np.arange(len(started)), stages),
        worker_stage=np.concatenate([np.arange(number) for number in stages]),
        lane_names=lane_names,
        route_lanes=tuple(route.lanes for route in routes),
        spans=SpanTable(
            worker=np.repeat(np.arange(len(workers)), [len(mine.op) for mine in spans]),
            op=np.concatenate([mine.op for mine in spans]),
            microbatch=np.concatenate([mine.microbatch for mine in spans]),
            stage=np.concatenate([mine.stage for mine in spans]),
            start_s=np.concatenate([mine.start_s for mine in spans]),
            stop_s=np.concatenate([mine.stop_s for mine in spans]),
        ),
        transfers=TransferTable(
            src=np.concatenate([pipeline.messages.src for pipeline in started]) + offset,
            dst=np.concatenate([pipeline.messages.dst for pipeline in started]) + offset,
            op=np.concatenate([pipeline.messages.op for pipeline in started]),
            microbatch=np.concatenate([pipeline.messages.microbatch for pipeline in started]),
            stage=np.concatenate([pipeline.messages.stage for pipeline in started]),
            route=route_of,
            ready_s=np.array(state.ready_s),
            start_s=stop_s - carried_s[route_of],
            stop_s=stop_s,
            arrival_s=np.array(state.arrival_s),
        ),
    )
