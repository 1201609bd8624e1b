"""What every worker and link does when: spans, transfers, bubbles, activations in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sailor.sim.schedule import NUM_COMPUTE_OPS, Op

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Span:
    """A worker at work: a computation, or its own work on a received tensor."""

    worker: int
    op: Op
    microbatch: int
    stage: int  # virtual stage: chunk * num_stages + the worker's stage
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Transfer:
    """One tensor on its way. It holds its lanes from start to stop, and arrives at `arrival_s`.

    `ready_s` is when it joined the queue of its lanes.
    """

    src: int
    dst: int
    op: Op  # SEND_ACTIVATION or SEND_GRADIENT
    microbatch: int
    stage: int  # virtual stage of the sender
    ready_s: float
    start_s: float
    stop_s: float
    arrival_s: float
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class SpanTable:
    """Spans as columns, ordered by worker, then time."""

    worker: Ints
    op: Ints
    microbatch: Ints
    stage: Ints
    start_s: Floats
    stop_s: Floats

    def __len__(self) -> int:
        return len(self.worker)


@dataclass(frozen=True)
class TransferTable:
    """Transfers as columns, ordered by pipeline, direction, sending stage, microbatch."""

    src: Ints
    dst: Ints
    op: Ints
    microbatch: Ints
    stage: Ints
    route: Ints  # index into Timeline.route_lanes
    ready_s: Floats
    start_s: Floats
    stop_s: Floats
    arrival_s: Floats

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class Timeline:
    """One simulated iteration, from the first computation to the last one's end.

    Worker w is stage `worker_stage[w]` of pipeline `worker_pipeline[w]`. A lane is something that
    carries one transfer at a time: one direction of a NIC, or of a link between zones.
    """

    num_workers: int
    worker_pipeline: Ints
    worker_stage: Ints
    lane_names: tuple[str, ...]
    route_lanes: tuple[tuple[int, ...], ...]
    spans: SpanTable
    transfers: TransferTable

    @cached_property
    def makespan_s(self) -> float:
        """Return the end of the last span."""
        return float(self.spans.stop_s.max(initial=0.0))

    @cached_property
    def _first_span(self) -> Ints:
        return np.searchsorted(self.spans.worker, np.arange(self.num_workers + 1))

    def _rows(self, worker: int) -> slice:
        return slice(int(self._first_span[worker]), int(self._first_span[worker + 1]))

    def spans_of(self, worker: int) -> Iterator[Span]:
        """Yield the spans of a worker in time order."""
        rows, table = self._rows(worker), self.spans
        for op, microbatch, stage, start_s, stop_s in zip(
            table.op[rows].tolist(),
            table.microbatch[rows].tolist(),
            table.stage[rows].tolist(),
            table.start_s[rows].tolist(),
            table.stop_s[rows].tolist(),
            strict=True,
        ):
            yield Span(worker, Op(op), microbatch, stage, start_s, stop_s)

    def transfers_of_lane(self, lane: int) -> Iterator[Transfer]:
        """Yield the transfers that hold a lane, in time order."""
        routes = [r for r, lanes in enumerate(self.route_lanes) if lane in lanes]
        mine = np.flatnonzero(np.isin(self.transfers.route, routes))
        start_s, stop_s = self.transfers.start_s[mine], self.transfers.stop_s[mine]
        order = mine[np.lexsort((mine, stop_s, start_s))]
        return (self.transfer(int(row)) for row in order)

    def transfer(self, row: int) -> Transfer:
        """Return one transfer by its row."""
        table = self.transfers
        return Transfer(
            src=int(table.src[row]),
            dst=int(table.dst[row]),
            op=Op(int(table.op[row])),
            microbatch=int(table.microbatch[row]),
            stage=int(table.stage[row]),
            ready_s=float(table.ready_s[row]),
            start_s=float(table.start_s[row]),
            stop_s=float(table.stop_s[row]),
            arrival_s=float(table.arrival_s[row]),
            lanes=self.route_lanes[int(table.route[row])],
        )

    def _sum_by_worker(self, chosen: Bools) -> Floats:
        length = (self.spans.stop_s - self.spans.start_s)[chosen]
        found = np.bincount(self.spans.worker[chosen], length, minlength=self.num_workers)
        return found.astype(np.float64)

    @cached_property
    def compute_s(self) -> Floats:
        """Return [workers]: seconds of computation."""
        return self._sum_by_worker(self.spans.op < NUM_COMPUTE_OPS)

    @cached_property
    def receive_s(self) -> Floats:
        """Return [workers]: seconds of own work on received tensors."""
        return self._sum_by_worker(self.spans.op >= NUM_COMPUTE_OPS)

    @cached_property
    def finish_s(self) -> Floats:
        """Return [workers]: the end of the worker's last computation."""
        found = np.zeros(self.num_workers)
        compute = self.spans.op < NUM_COMPUTE_OPS
        np.maximum.at(found, self.spans.worker[compute], self.spans.stop_s[compute])
        return found

    @cached_property
    def pipeline_finish_s(self) -> Floats:
        """Return [pipelines]: the end of the pipeline's last computation."""
        found = np.zeros(int(self.worker_pipeline.max(initial=-1)) + 1)
        np.maximum.at(found, self.worker_pipeline, self.finish_s)
        return found

    def bubbles(self, worker: int) -> Floats:
        """Return [n, 2]: start and stop of the intervals of [0, makespan] without computation."""
        rows = self._rows(worker)
        compute = self.spans.op[rows] < NUM_COMPUTE_OPS
        start = np.append(self.spans.start_s[rows][compute], self.makespan_s)
        stop = np.append(0.0, self.spans.stop_s[rows][compute])
        gaps = np.stack((stop, start), axis=1)
        return gaps[gaps[:, 1] > gaps[:, 0]]

    @property
    def bubble_fraction(self) -> Floats:
        """Return [workers]: the share of the makespan without computation."""
        return 1.0 - self.compute_s / self.makespan_s if self.makespan_s > 0 else self.compute_s

    @cached_property
    def lane_busy_s(self) -> Floats:
        """Return [lanes]: seconds in which a lane carries a transfer."""
        length = self.transfers.stop_s - self.transfers.start_s
        by_route = np.bincount(self.transfers.route, length, minlength=len(self.route_lanes))
        busy = np.zeros(len(self.lane_names))
        for lanes, seconds in zip(self.route_lanes, by_route, strict=True):
            busy[list(lanes)] += seconds
        return busy

    def in_flight(self, worker: int) -> tuple[Floats, Ints]:
        """Return the times at which the number of kept activations changes, and the number then.

        A (microbatch, chunk) is kept from the start of its forward to the end of its backward, or
        of its weight half where the backward is split.
        """
        return self.kept(worker, np.ones(int(self.spans.stage.max(initial=0)) + 1, dtype=np.int64))

    def kept(self, worker: int, amount: NDArray[np.int64]) -> tuple[Floats, Ints]:
        """Return change times and sums of `amount[virtual stage]` over the kept activations."""
        rows, table = self._rows(worker), self.spans
        op, stage = table.op[rows], table.stage[rows]
        begins = op == Op.FORWARD
        ends = (op == Op.BACKWARD) | (op == Op.BACKWARD_WEIGHT)
        times = np.concatenate((table.start_s[rows][begins], table.stop_s[rows][ends]))
        steps = np.concatenate((amount[stage[begins]], -amount[stage[ends]]))
        # What ends at a time is freed before what begins then is kept.
        order = np.lexsort((steps, times))
        return times[order], np.cumsum(steps[order])

    def max_in_flight(self, worker: int) -> int:
        """Return the most activations that a worker keeps at once."""
        return int(self.in_flight(worker)[1].max(initial=0))
