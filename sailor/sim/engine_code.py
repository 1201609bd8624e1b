"""Orders compiled for the event engine: flat lists of instructions with seconds or a message.

Messages of a pipeline are numbered from `first_message`: the activations that leave virtual stage
0, 1, ... by microbatch, then the gradients that reach virtual stage 0, 1, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.sim.engine_state import WorkerSpans
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op, PipelineOrder, StageOrder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COMPUTE = 0  # or the receiver's work on a message
SEND = 1  # buffered
RECEIVE = 2  # of a buffered send
MEET_RECEIVE = 3  # the rest: rendezvous
MEET_SEND = 4
POST = 5
AWAIT = 6  # the end of a posted send

_BY_OP = np.array(
    [
        [COMPUTE] * NUM_COMPUTE_OPS + [MEET_RECEIVE] * 2 + [MEET_SEND] * 2 + [POST] * 2,
        [COMPUTE] * NUM_COMPUTE_OPS + [RECEIVE] * 2 + [SEND] * 4,
    ]
)


@dataclass(frozen=True)
class WorkerCode:
    """One worker's instructions, and which of them are spans of its timeline."""

    code: list[int]
    seconds: list[float]
    message: list[int]
    span_rows: Ints
    span_op: Ints
    span_microbatch: Ints
    span_stage: Ints
    span_s: Floats


@dataclass(frozen=True)
class Messages:
    """The messages of one pipeline as columns; workers count within the pipeline."""

    op: Ints
    microbatch: Ints
    stage: Ints  # virtual stage of the sender
    src: Ints
    dst: Ints

    def __len__(self) -> int:
        return len(self.op)


def pipeline_messages(order: PipelineOrder) -> Messages:
    """Return what a pipeline sends, in the order of its message numbers."""
    links, count = order.num_virtual_stages - 1, order.num_microbatches
    routes = np.arange(2 * links)
    sender = np.where(routes < links, routes, routes - links + 1)
    receiver = np.where(routes < links, routes + 1, routes - links)
    op = np.where(routes < links, int(Op.SEND_ACTIVATION), int(Op.SEND_GRADIENT))
    return Messages(
        op=np.repeat(op, count),
        microbatch=np.tile(np.arange(count), 2 * links),
        stage=np.repeat(sender, count),
        src=np.repeat(sender % order.num_stages, count),
        dst=np.repeat(receiver % order.num_stages, count),
    )


def compile_workers(
    order: PipelineOrder,
    compute_s: Floats,
    buffered: Sequence[bool],
    receive_s: Sequence[float],
    first_message: int,
) -> tuple[WorkerCode, ...]:
    """Compile the stages of a pipeline; `buffered` and `receive_s` by route, activations first."""
    buffers = np.array(buffered, dtype=np.bool_)
    work_s = np.array(receive_s, dtype=np.float64)
    return tuple(
        _worker(order, stage, compute_s, buffers, work_s, first_message)
        for stage in range(order.num_stages)
    )


def _worker(
    order: PipelineOrder,
    stage: int,
    compute_s: Floats,
    buffered: NDArray[np.bool_],
    receive_s: Floats,
    first_message: int,
) -> WorkerCode:
    own = order.stages[stage]
    op, microbatch = own.op, own.microbatch
    virtual = own.chunk * order.num_stages + stage
    computes = op < NUM_COMPUTE_OPS
    route = np.where(computes, 0, _route(own, virtual, order.num_virtual_stages - 1))
    code = np.where(computes, COMPUTE, 0)
    seconds = np.zeros(len(op))
    seconds[computes] = compute_s[op[computes], virtual[computes]]
    message = np.zeros(len(op), dtype=np.int64)
    moves = ~computes
    code[moves] = _BY_OP[buffered[route[moves]].astype(np.int64), op[moves]]
    message[moves] = first_message + route[moves] * order.num_microbatches + microbatch[moves]

    # A receiver's work follows its receive; the wait for a post follows the next receive's work.
    receives = np.flatnonzero((op == Op.RECV_ACTIVATION) | (op == Op.RECV_GRADIENT))
    works = receives[receive_s[route[receives]] > 0]
    posts = np.flatnonzero(code == POST)
    after = np.append(receives, len(op))[np.searchsorted(receives, posts)]
    rows = np.concatenate((np.arange(len(op)), works, posts))
    kind = np.concatenate((code, np.full(len(works), COMPUTE), np.full(len(posts), AWAIT)))
    length = np.concatenate((seconds, receive_s[route[works]], np.zeros(len(posts))))
    place = np.argsort(
        np.concatenate((3 * np.arange(len(op)), 3 * works + 1, 3 * after + 2)), kind="stable"
    )
    rows, kind, length = rows[place], kind[place], length[place]
    spans = np.flatnonzero(kind == COMPUTE)
    shown = rows[spans]
    return WorkerCode(
        code=kind.tolist(),
        seconds=length.tolist(),
        message=message[rows].tolist(),
        span_rows=spans,
        span_op=op[shown],
        span_microbatch=microbatch[shown],
        span_stage=virtual[shown],
        span_s=length[spans],
    )


def order_spans(worker: WorkerCode, log: Sequence[float]) -> WorkerSpans:
    """Return the spans of a worker; `log` says when each instruction was done."""
    stop_s = np.array(log)[worker.span_rows]
    return WorkerSpans(
        op=worker.span_op,
        microbatch=worker.span_microbatch,
        stage=worker.span_stage,
        start_s=stop_s - worker.span_s,
        stop_s=stop_s,
    )


def _route(order: StageOrder, virtual: Ints, links: int) -> Ints:
    """Return the pipeline's route of every send and receive (others: meaningless)."""
    return np.select(
        [
            order.op == Op.RECV_ACTIVATION,
            order.op == Op.RECV_GRADIENT,
            (order.op == Op.SEND_ACTIVATION) | (order.op == Op.POST_ACTIVATION),
        ],
        [virtual - 1, links + virtual, virtual],
        links + virtual - 1,
    )
