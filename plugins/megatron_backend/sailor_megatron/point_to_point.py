"""Activations and their gradients between the replicas of neighbouring stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_megatron.process_groups import ProcessGroups, gather_shares
from sailor_megatron.routes import Route, piece_elements, routes

# Both ends call the group's own send and recv, without the checks of dist.isend and dist.irecv,
# which take longer than the call. The groups hold all ranks, so a rank has the same number there.

# Sends that may be under way before the oldest is waited for. In every schedule its receiver gets
# to the matching receive without what the sender does next: tests/plugins/megatron/test_schedule.py
# plays the orders with this bound.
MAX_SENDS = 3


@dataclass(frozen=True)
class Wire:
    """What travels between two replicas in one direction: `rows` of `row_elements` each.

    `split`: each rank holds only its rows (sequence parallelism), ceil(rows / ranks) of them, the
    last ranks fewer. Else every rank holds the whole, and rows are single elements.
    """

    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    rows: int
    row_elements: int
    split: bool

    def routes(self) -> list[Route]:
        """Return who sends which rows to whom."""
        return routes(self.senders, self.receivers, self.rows)


class Outlet:
    """The sending end of a wire."""

    def __init__(
        self,
        wire: Wire,
        rank: int,
        group: dist.ProcessGroup,
        tag: int,
        *,
        through_host: bool = False,
    ) -> None:
        first = 0
        if wire.split:
            first = wire.senders.index(rank) * piece_elements(wire.rows, len(wire.senders))
        size = wire.row_elements
        self._parts = [
            (route.dst, (route.lo - first) * size, (route.hi - first) * size)
            for route in wire.routes()
            if route.src == rank
        ]
        self._through_host = through_host
        # Most tensors go to one rank whole: no need to cut them.
        elements = wire.rows * size
        whole = [dst for dst, lo, hi in self._parts if hi - lo == elements]
        self._whole_to = whole[0] if whole else None
        self._group, self._tag = group, tag
        self._under_way: list[list[tuple[dist.Work, Tensor]]] = []

    def send(self, tensor: Tensor) -> None:
        """Start sending; the tensor must not be written to afterwards."""
        tensor = tensor.contiguous()
        if self._through_host:
            tensor = tensor.cpu()
        if self._whole_to is not None:
            works = [(self._group.send([tensor], self._whole_to, self._tag), tensor)]
        else:
            flat, works = tensor.view(-1), []
            for dst, lo, hi in self._parts:
                part = flat[lo:hi]
                works.append((self._group.send([part], dst, self._tag), part))
        self._under_way.append(works)
        if len(self._under_way) > MAX_SENDS:
            _wait(self._under_way.pop(0))

    def finish(self) -> None:
        """Wait until all has been sent."""
        while self._under_way:
            _wait(self._under_way.pop(0))


@dataclass
class _Arrival:
    buffer: Tensor
    works: list[dist.Work]


class Inlet:
    """The receiving end. Where every rank needs the whole, the replica's ranks exchange pieces."""

    def __init__(
        self,
        wire: Wire,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        groups: ProcessGroups,
        group: dist.ProcessGroup,
        tag: int,
    ) -> None:
        self._shape, self._dtype, self._groups = shape, dtype, groups
        self._num_elements = math.prod(shape)
        self._piece = piece_elements(wire.rows, len(wire.receivers)) * wire.row_elements
        self._exchanges = groups.tp is not None and not wire.split
        own = wire.receivers.index(groups.rank) * self._piece
        first = own if wire.split else 0
        size = wire.row_elements
        self._parts = [
            (route.src, route.lo * size - first, route.hi * size - first)
            for route in wire.routes()
            if route.dst == groups.rank
        ]
        self._own = own - first
        self._size = self._piece * (1 if wire.split else groups.tp_size)
        # Rows behind the sequence's end are never sent, and are computed with.
        self._pads = wire.split and sum(hi - lo for _, lo, hi in self._parts) < self._size
        # Most activations come from one rank whole, and need no cutting.
        whole = [src for src, lo, hi in self._parts if hi - lo == self._num_elements]
        self._whole_from = whole[0] if whole and not self._exchanges else None
        self._group, self._tag = group, tag
        self._posted: list[_Arrival] = []

    def post(self) -> None:
        """Say that the next activation may come."""
        place = self._groups.place
        device = torch.device("cpu") if place.through_host else place.device
        if self._whole_from is not None:
            buffer = torch.empty(self._shape, dtype=self._dtype, device=device)
            works = [self._group.recv([buffer], self._whole_from, self._tag)]
        else:
            make = torch.zeros if self._pads else torch.empty
            buffer = make(self._size, dtype=self._dtype, device=device)
            works = [self._group.recv([buffer[a:b]], src, self._tag) for src, a, b in self._parts]
        self._posted.append(_Arrival(buffer, works))

    def take(self) -> Tensor:
        """Return the oldest posted activation once it is there."""
        arrival = self._posted.pop(0)
        for work in arrival.works:
            work.wait()
        buffer = arrival.buffer
        if self._whole_from is None:
            if self._exchanges and self._groups.tp is not None:
                own = buffer[self._own : self._own + self._piece].clone()
                gather_shares(buffer, own, self._groups.tp)
            buffer = buffer[: self._num_elements].view(self._shape)
        place = self._groups.place
        return buffer.to(place.device) if place.through_host else buffer


def _wait(works: Sequence[tuple[dist.Work, Tensor]]) -> None:
    for work, _ in works:
        work.wait()
