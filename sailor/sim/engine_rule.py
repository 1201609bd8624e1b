"""Work-conserving stages of the event engine: a rule instead of a fixed order.

Whenever a stage is free it takes what has arrived: of a forward and a backward that both could
start, the one that the schedule prefers; a forward only while fewer microbatches than its window
are kept. Microbatches pass every stage in order.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from heapq import heappush
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sailor.sim.engine_state import RunState, WorkerSpans
from sailor.sim.schedule import Op, PipelineOrder

Floats = NDArray[np.float64]
_Value = TypeVar("_Value", np.int64, np.float64)


@dataclass(frozen=True)
class RuleWorker:
    """One stage: its durations and the first message of each of its four kinds (None: no such)."""

    stage: int
    num_microbatches: int
    window: int
    prefers_forward: bool
    forward_s: float
    backward_s: float
    activation_in: int | None
    activation_out: int | None
    gradient_in: int | None
    gradient_out: int | None
    activation_receive_s: float
    gradient_receive_s: float
    # What it did, in order: forward or backward, and when it began to compute.
    done_op: list[int] = field(default_factory=list)
    done_start_s: list[float] = field(default_factory=list)


def rule_workers(
    order: PipelineOrder, compute_s: Floats, receive_s: list[float], first_message: int
) -> tuple[RuleWorker, ...]:
    """Return the stages of a pipeline; `receive_s` by route, activations first."""
    links, count = order.num_stages - 1, order.num_microbatches
    found = []
    for stage in range(order.num_stages):
        first, last = stage == 0, stage == links
        found.append(
            RuleWorker(
                stage=stage,
                num_microbatches=count,
                window=order.windows[stage],
                prefers_forward=order.prefers_forward,
                forward_s=float(compute_s[Op.FORWARD, stage]),
                backward_s=float(compute_s[Op.BACKWARD, stage]),
                activation_in=None if first else first_message + (stage - 1) * count,
                activation_out=None if last else first_message + stage * count,
                gradient_in=None if last else first_message + (links + stage) * count,
                gradient_out=None if first else first_message + (links + stage - 1) * count,
                activation_receive_s=0.0 if first else receive_s[stage - 1],
                gradient_receive_s=0.0 if last else receive_s[links + stage],
            )
        )
    return tuple(found)


def run_by_rule(
    number: int, worker: RuleWorker, state: RunState
) -> Generator[None, float | None, None]:
    """Run one stage. It is resumed with the time of a decision, or None: a message was served."""
    forwards = backwards = 0
    free_s = 0.0
    planned_s = math.inf  # the next decision that is in the queue
    decide_at: float | None = None
    while backwards < worker.num_microbatches:
        forward_s, backward_s, certain_s = _chances(worker, forwards, backwards, number, state)
        if decide_at is None and certain_s <= free_s:
            # Whatever else arrives by then, this is what it takes.
            decide_at, planned_s = free_s, math.inf
        if decide_at is None:
            # Something may still arrive: the choice is made when its time has come.
            earliest_s = max(free_s, min(forward_s, backward_s))
            if earliest_s < planned_s:
                planned_s = earliest_s
                heappush(state.queue, (planned_s, state.num_messages + number))
            woken_at = yield
            if woken_at == planned_s:
                decide_at, planned_s = woken_at, math.inf
            continue
        both = max(forward_s, backward_s) <= decide_at
        if worker.prefers_forward if both else forward_s <= decide_at:
            start_s = decide_at + worker.activation_receive_s
            free_s = start_s + worker.forward_s
            worker.done_op.append(Op.FORWARD)
            if worker.activation_out is not None:
                heappush(state.queue, (free_s, worker.activation_out + forwards))
            forwards += 1
        else:
            start_s = decide_at + worker.gradient_receive_s
            free_s = start_s + worker.backward_s
            worker.done_op.append(Op.BACKWARD)
            if worker.gradient_out is not None:
                heappush(state.queue, (free_s, worker.gradient_out + backwards))
            backwards += 1
        worker.done_start_s.append(start_s)
        decide_at = None


def _chances(
    worker: RuleWorker, forwards: int, backwards: int, number: int, state: RunState
) -> tuple[float, float, float]:
    """Return when the tensors of the next forward and backward are there, as far as is known.

    Third, the time from which on the choice is certain: that of the preferred one, or of the other
    where the preferred one can't come next.
    """
    forward_s = backward_s = certain_s = math.inf
    if backwards < forwards:
        backward_s = certain_s = _arrival(worker.gradient_in, backwards, number, state)
    if forwards < worker.num_microbatches and forwards - backwards < worker.window:
        forward_s = _arrival(worker.activation_in, forwards, number, state)
        if worker.prefers_forward or backwards == forwards:
            certain_s = forward_s
    return forward_s, backward_s, certain_s


def _arrival(first: int | None, microbatch: int, number: int, state: RunState) -> float:
    """Return when a message is there (0 where none is needed); if unknown, ask to be told."""
    if first is None:
        return 0.0
    arrived = state.arrival_s[first + microbatch]
    if arrived < 0:
        state.receivers[first + microbatch] = number
        return math.inf
    return arrived


def rule_spans(worker: RuleWorker) -> WorkerSpans:
    """Return the spans of a stage that has run."""
    op = np.array(worker.done_op)
    start_s = np.array(worker.done_start_s)
    forward = op == Op.FORWARD
    microbatch = np.where(forward, np.cumsum(forward), np.cumsum(~forward)) - 1
    receive_s = np.where(forward, worker.activation_receive_s, worker.gradient_receive_s)
    receive_op = np.where(forward, Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
    stop_s = start_s + np.where(forward, worker.forward_s, worker.backward_s)
    # The work on a received tensor comes just before its computation.
    shown = np.stack((receive_s > 0, np.ones_like(forward)), axis=1)

    def pairs(before: NDArray[_Value], own: NDArray[_Value]) -> NDArray[_Value]:
        both: NDArray[_Value] = np.stack((before, own), axis=1)[shown]
        return both

    return WorkerSpans(
        op=pairs(receive_op, op),
        microbatch=pairs(microbatch, microbatch),
        stage=np.full(int(shown.sum()), worker.stage),
        start_s=pairs(start_s - receive_s, start_s),
        stop_s=pairs(start_s, stop_s),
    )
