"""Pipeline schedules: the order in which every stage computes, sends and receives.

Most orders are fixed before the run, and only the times are the engine's business. The two
work-conserving schedules fix a rule instead: a free stage takes what has arrived, forwards first
or backwards first, and keeps no more microbatches than its window.

With C chunks a stage (interleaving) stage i of P holds the virtual stages i, P + i, 2 P + i, ...;
activations go from virtual stage v to v + 1, gradients back.

Sources: GPipe (Huang et al. 2019); 1F1B, plain and interleaved (Narayanan et al. 2021, as
Megatron-LM runs it); DeepSpeed's pipeline engine (its instruction order); ZB-H1 (Qi et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sailor.errors import InputError, UnknownNameError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Op(IntEnum):
    """One instruction of a stage.

    A sender waits for its transfer where sends are a rendezvous, and goes on at once where they
    are buffered. A `POST_` is the first half of an exchange: the sender waits for the transfer
    only after its next receive.
    """

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2  # the gradient of the stage's input
    BACKWARD_WEIGHT = 3  # the gradient of its weights
    RECV_ACTIVATION = 4
    RECV_GRADIENT = 5
    SEND_ACTIVATION = 6
    SEND_GRADIENT = 7
    POST_ACTIVATION = 8
    POST_GRADIENT = 9


NUM_COMPUTE_OPS = 4
FORWARD_FIRST, BACKWARD_FIRST = "forward_first", "backward_first"
_POSTED = 2  # from a send to the post of the same tensor


@dataclass(frozen=True)
class StageOrder:
    """The instructions of one stage, in order: operation, microbatch and chunk of each."""

    op: Ints
    microbatch: Ints
    chunk: Ints

    def __len__(self) -> int:
        return len(self.op)

    def computes(self) -> StageOrder:
        """Return the computations alone."""
        return self._where(self.op < NUM_COMPUTE_OPS)

    def _where(self, chosen: Bools) -> StageOrder:
        return StageOrder(self.op[chosen], self.microbatch[chosen], self.chunk[chosen])


@dataclass(frozen=True)
class PipelineOrder:
    """The orders of all stages of one pipeline.

    A work-conserving schedule has no `stages` but `windows`: the most microbatches that each
    stage keeps.
    """

    schedule: str
    num_stages: int
    num_microbatches: int
    num_chunks: int
    stages: tuple[StageOrder, ...]
    windows: tuple[int, ...] = ()

    @property
    def num_virtual_stages(self) -> int:
        """Return stages times chunks."""
        return self.num_stages * self.num_chunks

    @property
    def prefers_forward(self) -> bool:
        """Return which of two that wait a work-conserving stage takes."""
        return self.schedule == FORWARD_FIRST

    @property
    def splits_backward(self) -> bool:
        """Return whether input and weight gradients are computed apart."""
        return self.schedule == "zb_h1"


def max_in_flight(order: StageOrder) -> int:
    """Return the largest number of (microbatch, chunk)s whose activations a stage keeps at once.

    They are kept from the start of the forward to the end of the backward, or of its weight half.
    """
    op = order.op
    step = (op == Op.FORWARD).astype(np.int64)
    step -= (op == Op.BACKWARD) | (op == Op.BACKWARD_WEIGHT)
    return int(np.cumsum(step).max(initial=0))


def pipeline_order(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    *,
    num_chunks: int = 1,
    windows: Sequence[int] | None = None,
) -> PipelineOrder:
    """Return the orders of a schedule by name (see `SCHEDULES`).

    `num_chunks` goes with "interleaved"; `windows` (the most microbatches that each stage keeps)
    with "forward_first" and "backward_first". Raises InputError for a schedule that can't be.
    """
    if schedule not in SCHEDULES:
        raise UnknownNameError("schedule", schedule, SCHEDULES, where="schedule")
    for what, value in (
        ("num_stages", num_stages),
        ("num_microbatches", num_microbatches),
        ("num_chunks", num_chunks),
    ):
        if value < 1:
            raise InputError(f"{what} is {value}", where="schedule", hint="take at least 1")
    if num_chunks > 1 and schedule != "interleaved":
        raise InputError(
            f"schedule {schedule!r} has one chunk a stage, not {num_chunks}",
            where="num_chunks", hint="use schedule: interleaved",
        )  # fmt: skip
    if schedule == "interleaved" and num_microbatches % num_stages:
        raise InputError(
            f"{num_microbatches} microbatches don't divide by {num_stages} stages",
            where="schedule",
            hint="the interleaved schedule runs groups of as many microbatches as stages",
        )
    build = SCHEDULES[schedule]
    _check_windows(windows, schedule, num_stages, needed=build is None)
    return PipelineOrder(
        schedule=schedule,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        stages=()
        if build is None
        else tuple(
            build(stage, num_stages, num_microbatches, num_chunks) for stage in range(num_stages)
        ),
        windows=tuple(windows or ()),
    )


def _check_windows(
    windows: Sequence[int] | None, schedule: str, num_stages: int, *, needed: bool
) -> None:
    if windows is None and not needed:
        return
    if windows is None or not needed:
        raise InputError(
            f"schedule {schedule!r} "
            + ("needs windows" if needed else "has a fixed order and takes no windows"),
            where="windows",
            hint="windows say how many microbatches each stage keeps under forward_first or "
            "backward_first",
        )
    if len(windows) != num_stages or min(windows) < 1:
        raise InputError(
            f"windows are {list(windows)} for {num_stages} stages",
            where="windows", hint="give one number of at least 1 a stage",
        )  # fmt: skip


def _window_computes(num_microbatches: int, window: int) -> StageOrder:
    """Return `window` forwards, then a backward and a forward in turn, then the other backwards."""
    first = min(window, num_microbatches)
    number = np.arange(num_microbatches)
    op = np.zeros(2 * num_microbatches, dtype=np.int64)
    microbatch = np.zeros_like(op)
    forward_at = np.where(number < first, number, 2 * number - first + 1)
    backward_at = np.where(
        number < num_microbatches - first, first + 2 * number, num_microbatches + number
    )
    op[backward_at] = Op.BACKWARD
    microbatch[forward_at] = number
    microbatch[backward_at] = number
    return StageOrder(op, microbatch, np.zeros_like(op))


def _gpipe(stage: int, num_stages: int, num_microbatches: int, _chunks: int) -> StageOrder:
    computes = _window_computes(num_microbatches, num_microbatches)
    return _with_transfers(computes, stage, num_stages)


def _one_f_one_b(stage: int, num_stages: int, num_microbatches: int, _chunks: int) -> StageOrder:
    computes = _window_computes(num_microbatches, num_stages - stage)
    return _with_transfers(computes, stage, num_stages)


def _zb_h1(stage: int, num_stages: int, num_microbatches: int, _chunks: int) -> StageOrder:
    """1F1B whose weight gradients stay behind by as many microbatches as the stage's number.

    Every stage then keeps at most as many microbatches as the first stage of 1F1B.
    """
    base = _window_computes(num_microbatches, num_stages - stage)
    backward = base.op == Op.BACKWARD
    op = np.where(backward, Op.BACKWARD_INPUT, base.op)
    # Weight gradient m follows the input gradient of m + stage; the last ones close the order.
    own = np.flatnonzero(backward)
    number = np.arange(num_microbatches)
    after = np.minimum(number + stage, num_microbatches - 1)
    key = np.concatenate((np.arange(len(op)) * 2, own[after] * 2 + 1))
    place = np.argsort(key, kind="stable")
    op = np.concatenate((op, np.full(num_microbatches, Op.BACKWARD_WEIGHT)))[place]
    microbatch = np.concatenate((base.microbatch, number))[place]
    return _with_transfers(StageOrder(op, microbatch, np.zeros_like(op)), stage, num_stages)


def _interleaved(stage: int, num_stages: int, num_microbatches: int, num_chunks: int) -> StageOrder:
    """Groups of P microbatches pass chunk after chunk; forwards lead by Megatron-LM's warm-up."""
    total = num_microbatches * num_chunks
    lead = 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages
    base = _window_computes(total, lead + 1)
    group, rest = np.divmod(base.microbatch, num_stages * num_chunks)
    chunk, inside = np.divmod(rest, num_stages)
    chunk = np.where(base.op == Op.BACKWARD, num_chunks - 1 - chunk, chunk)
    computes = StageOrder(base.op, group * num_stages + inside, chunk)
    # Neighbours form a ring, so that a blocking send could wait for itself.
    return _with_transfers(computes, stage, num_stages, num_chunks, always_post=True)


def _with_transfers(
    computes: StageOrder,
    stage: int,
    num_stages: int,
    num_chunks: int = 1,
    *,
    always_post: bool = False,
) -> StageOrder:
    """Receive just before a computation, send right after it.

    A send that is followed by a receive from the same neighbour is an exchange, as in Megatron-LM.
    """
    virtual = computes.chunk * num_stages + stage
    last = num_stages * num_chunks - 1
    forward = computes.op == Op.FORWARD
    backward = (computes.op == Op.BACKWARD) | (computes.op == Op.BACKWARD_INPUT)
    before = np.where(forward, Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
    after = np.where(forward, Op.SEND_ACTIVATION, Op.SEND_GRADIENT)
    has_before = (forward & (virtual > 0)) | (backward & (virtual < last))
    has_after = (forward & (virtual < last)) | (backward & (virtual > 0))
    present = np.stack((has_before, np.ones_like(forward), has_after), axis=1)
    op = np.stack((before, computes.op, after), axis=1)[present]
    widths = present.sum(axis=1)
    order = StageOrder(
        op, np.repeat(computes.microbatch, widths), np.repeat(computes.chunk, widths)
    )
    return _with_exchanges(order, always_post=always_post)


def _with_exchanges(order: StageOrder, *, always_post: bool) -> StageOrder:
    op = order.op
    following = np.append(op[1:], -1)
    posted = ((op == Op.SEND_ACTIVATION) & (following == Op.RECV_GRADIENT)) | (
        (op == Op.SEND_GRADIENT) & (following == Op.RECV_ACTIVATION)
    )
    if always_post:
        posted = (op == Op.SEND_ACTIVATION) | (op == Op.SEND_GRADIENT)
    return StageOrder(np.where(posted, op + _POSTED, op), order.microbatch, order.chunk)


def _deepspeed(stage: int, num_stages: int, num_microbatches: int, _chunks: int) -> StageOrder:
    """1F1B by alternating slots, a stage's forward slots falling on its neighbours' backward ones.

    A tensor leaves in the slot after the one that made it. A forward slot sends the gradient,
    receives the activation and computes; a backward slot receives the gradient *before* it sends
    the activation, then computes. Slots without a microbatch only send.
    """
    slot = np.arange(2 * (num_microbatches + num_stages - 1))
    forward = slot % 2 == stage % 2
    microbatch = np.where(
        forward,
        (slot - stage) // 2,
        (slot + stage + 1) // 2 - num_stages,
    )
    valid = (microbatch >= 0) & (microbatch < num_microbatches)
    previous = np.append(-1, microbatch[:-1])
    leaves = np.append(False, valid[:-1])
    not_first, not_last = stage > 0, stage < num_stages - 1
    op = np.stack(
        (
            np.where(forward, Op.SEND_GRADIENT, Op.RECV_GRADIENT),
            np.where(forward, Op.RECV_ACTIVATION, Op.SEND_ACTIVATION),
            np.where(forward, Op.FORWARD, Op.BACKWARD),
        ),
        axis=1,
    )
    whose = np.stack(
        (
            np.where(forward, previous, microbatch),
            np.where(forward, microbatch, previous),
            microbatch,
        ),
        axis=1,
    )
    present = np.stack(
        (
            np.where(forward, leaves & not_first, valid & not_last),
            np.where(forward, valid & not_first, leaves & not_last),
            valid,
        ),
        axis=1,
    )
    op, whose = op[present], whose[present]
    return StageOrder(op, whose, np.zeros_like(op))


# None: work-conserving, no fixed order.
SCHEDULES: Mapping[str, Callable[[int, int, int, int], StageOrder] | None] = MappingProxyType(
    {
        "gpipe": _gpipe,
        "1f1b": _one_f_one_b,
        "1f1b_deepspeed": _deepspeed,
        "interleaved": _interleaved,
        "zb_h1": _zb_h1,
        FORWARD_FIRST: None,
        BACKWARD_FIRST: None,
    }
)
