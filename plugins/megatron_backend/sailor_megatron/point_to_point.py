"""Activations and their gradients between the replicas of neighbouring stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_megatron.process_groups import ProcessGroups, gather_shares
from sailor_megatron.routes import Route, piece_elements, routes

# Both ends call the group's own send and recv, without the checks of dist.isend and dist.irecv,
# which take longer than the call. The groups hold all ranks, so a rank has the same number there.

# Sends that may be under way before the oldest is waited for. Their receiver has posted the
# matching receives by then in either schedule, so waiting can't close a circle.
MAX_SENDS = 3


class Outlet:
    """The sending end of one direction between two replicas."""

    def __init__(
        self,
        senders: Sequence[int],
        receivers: Sequence[int],
        num_elements: int,
        rank: int,
        group: dist.ProcessGroup,
        tag: int,
    ) -> None:
        found = routes(senders, receivers, num_elements)
        self._num_elements = num_elements
        self._routes = [route for route in found if route.src == rank]
        self._group, self._tag = group, tag
        self._under_way: list[list[tuple[dist.Work, Tensor]]] = []

    def send(self, tensor: Tensor) -> None:
        """Start sending; the tensor must not be written to afterwards."""
        flat = tensor.contiguous().view(-1)
        works = []
        for route in self._routes:
            part = flat if route.hi - route.lo == self._num_elements else flat[route.lo : route.hi]
            works.append((self._group.send([part], route.dst, self._tag), part))
        self._under_way.append(works)
        if len(self._under_way) > MAX_SENDS:
            _wait(self._under_way.pop(0))

    def finish(self) -> None:
        """Wait until all has been sent."""
        while self._under_way:
            _wait(self._under_way.pop(0))


@dataclass
class _Arrival:
    whole: Tensor
    works: list[dist.Work]


class Inlet:
    """The receiving end: pieces come from the senders, and the replica's ranks exchange them."""

    def __init__(
        self,
        senders: Sequence[int],
        receivers: Sequence[int],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        groups: ProcessGroups,
        group: dist.ProcessGroup,
        tag: int,
    ) -> None:
        self._num_elements = 1
        for size in shape:
            self._num_elements *= size
        self._shape, self._dtype, self._groups = shape, dtype, groups
        found = routes(senders, receivers, self._num_elements)
        self._routes: list[Route] = [route for route in found if route.dst == groups.rank]
        self._piece = piece_elements(self._num_elements, len(receivers))
        self._group, self._tag = group, tag
        self._posted: list[_Arrival] = []

    def post(self) -> None:
        """Say that the next activation may come."""
        size = self._piece * self._groups.tp_size
        whole = torch.empty(size, dtype=self._dtype, device=self._groups.place.device)
        works = []
        for route in self._routes:
            part = whole[route.lo : route.hi]
            works.append(self._group.recv([part], route.src, self._tag))
        self._posted.append(_Arrival(whole, works))

    def take(self) -> Tensor:
        """Return the oldest posted activation once it is there."""
        arrival = self._posted.pop(0)
        for work in arrival.works:
            work.wait()
        whole = arrival.whole
        if self._groups.tp is not None:
            start = self._piece * self._groups.tp_rank
            own = whole[start : start + self._piece].clone()
            gather_shares(whole, own, self._groups.tp)
        return whole[: self._num_elements].view(self._shape)


def _wait(works: Sequence[tuple[dist.Work, Tensor]]) -> None:
    for work, _ in works:
        work.wait()
