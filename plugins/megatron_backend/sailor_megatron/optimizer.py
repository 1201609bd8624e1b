"""Adam and SGD over flat buffers, whole or (ZeRO-1) split over the ranks of each sync group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sailor_megatron.options import RunOptions
from sailor_megatron.packing import PackedGroup
from sailor_megatron.parameters import Parameters
from sailor_megatron.process_groups import gather_shares

MOMENTS = ("exp_avg", "exp_avg_sq")


def moment_names(options: RunOptions) -> tuple[str, ...]:
    """Return which states the optimizer keeps for each parameter."""
    return MOMENTS if options.optimizer == "adam" else ()


@dataclass(frozen=True)
class _Segment:
    """A part of a flat buffer whose state this rank keeps: all of it, or its share of a group."""

    parameter: Tensor
    group: PackedGroup | None  # None: the whole flat buffer
    lo: int
    hi: int
    share: int  # elements of a full share; the last rank's may be shorter


class Optimizer:
    """Steps the master parameters with the summed gradients.

    Adam is torch's own fused kernel, called as torch.optim.Adam(fused=True) calls it: importing
    torch.optim's machinery would take every worker a second.
    """

    def __init__(
        self, params: Parameters, packed: Sequence[PackedGroup], options: RunOptions
    ) -> None:
        self._params = params
        self._options = options
        self._segments = (
            [_share(params, group) for group in packed]
            if options.zero1
            else [_Segment(params.master, None, 0, params.master.numel(), params.master.numel())]
        )
        self._moments: dict[str, list[Tensor]] = {
            name: [torch.zeros_like(segment.parameter) for segment in self._segments]
            for name in moment_names(options)
        }
        self._steps = [
            torch.zeros((), dtype=torch.float32, device=params.master.device)
            for _ in self._segments
        ]

    def step(self, learning_rate: float) -> None:
        """Take one step, and refresh what the layers compute with."""
        params, gradients = self._params, []
        if self._options.weight_decay:
            self._decay(1.0 - learning_rate * self._options.weight_decay)
        for segment in self._segments:
            if segment.group is None:
                gradients.append(params.grad)
                continue
            if segment.group.span is None:
                packed = segment.group.pack(params.master)
                segment.parameter.copy_(packed[segment.lo : segment.hi])
            gradients.append(segment.group.pack(params.grad)[segment.lo : segment.hi])
        self._update(gradients, learning_rate)
        for segment in self._segments:
            if segment.group is not None:
                _spread(segment, segment.parameter, params.master)
        params.refresh_compute()

    def _update(self, gradients: list[Tensor], learning_rate: float) -> None:
        options = self._options
        parameters = [segment.parameter for segment in self._segments]
        if options.optimizer == "sgd":
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-learning_rate)
            return
        for count in self._steps:
            count += 1
        torch._fused_adam_(
            parameters,
            gradients,
            self._moments["exp_avg"],
            self._moments["exp_avg_sq"],
            [],
            self._steps,
            lr=learning_rate,
            beta1=options.beta1,
            beta2=options.beta2,
            weight_decay=0.0,
            eps=options.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _decay(self, factor: float) -> None:
        for name in self._params.shards:
            if len(self._params.local_shape(name)) > 1:
                self._params.view(self._params.master, name).mul_(factor)

    def moments(self) -> dict[str, Tensor]:
        """Return Adam's moments as flat buffers like `master`; under ZeRO-1 all ranks call this."""
        found = {}
        for name, states in self._moments.items():
            flat = torch.zeros_like(self._params.master)
            for segment, state in zip(self._segments, states, strict=True):
                if segment.group is None:
                    flat.copy_(state)
                else:
                    _spread(segment, state, flat)
            found[name] = flat
        return found

    def load_moments(self, moments: dict[str, Tensor], num_steps: int) -> None:
        """Set Adam's moments from flat buffers like `master`."""
        for count in self._steps:
            count.fill_(num_steps)
        for name, states in self._moments.items():
            for segment, state in zip(self._segments, states, strict=True):
                flat = moments[name]
                vector = flat if segment.group is None else segment.group.pack(flat)
                state.copy_(vector[segment.lo : segment.hi])


def _share(params: Parameters, group: PackedGroup) -> _Segment:
    ranks = len(group.ranks)
    share = -(-group.num_elements // ranks)
    index = group.ranks.index(group.rank)
    lo = min(index * share, group.num_elements)
    hi = min(lo + share, group.num_elements)
    packed = group.pack(params.master)
    # A view of the flat buffer where the group lies in it, else a copy that step() fills.
    return _Segment(packed[lo:hi].detach(), group, lo, hi, share)


def _spread(segment: _Segment, own: Tensor, buffer: Tensor) -> None:
    """Bring every rank's share of a group to all its ranks, into a flat buffer."""
    group = segment.group
    if group is None:
        return
    if group.group is None:
        group.unpack(own, buffer)
        return
    padded = torch.zeros(segment.share, dtype=own.dtype, device=own.device)
    padded[: own.numel()] = own
    whole = torch.empty(segment.share * len(group.ranks), dtype=own.dtype, device=own.device)
    gather_shares(whole, padded, group.group)
    group.unpack(whole[: group.num_elements], buffer)
