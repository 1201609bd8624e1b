"""The model chunks of one rank: a stage each, and the ends of its connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sailor_megatron.layout import PlanLayout
from sailor_megatron.models.contract import Stage
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.point_to_point import Inlet, Outlet, Wire
from sailor_megatron.process_groups import ProcessGroups


@dataclass
class ModelChunk:
    """A stage of the plan on this rank. Its neighbours are None at the ends of the model."""

    stage: Stage
    activation_in: Inlet | None
    activation_out: Outlet | None
    gradient_in: Inlet | None
    gradient_out: Outlet | None

    def finish(self) -> None:
        """Wait until all has been sent."""
        for outlet in (self.activation_out, self.gradient_out):
            if outlet is not None:
                outlet.finish()


def model_chunks(
    layout: PlanLayout,
    groups: ProcessGroups,
    tp: TensorParallel,
    dtype: torch.dtype,
    stage_of: Callable[[int], Stage],
) -> tuple[ModelChunk, ...]:
    """Return a rank's chunks in model order: one, or `vpp` of an interleaved plan."""
    wiring = _Wiring(layout, groups, tp, dtype)
    last = len(layout.plan.stages) - 1
    return tuple(
        ModelChunk(
            stage=stage_of(index),
            activation_in=wiring.inlet(index - 1, index) if index > 0 else None,
            activation_out=wiring.outlet(index, index + 1) if index < last else None,
            gradient_in=wiring.inlet(index + 1, index) if index < last else None,
            gradient_out=wiring.outlet(index, index - 1) if index > 0 else None,
        )
        for index in layout.chunks(layout.workers[groups.rank].stage)
    )


@dataclass(frozen=True)
class _Wiring:
    layout: PlanLayout
    groups: ProcessGroups
    tp: TensorParallel
    dtype: torch.dtype

    def inlet(self, src: int, dst: int) -> Inlet:
        spec, samples = self.layout.spec, self._samples
        shape = (samples, spec.seq_len, spec.hidden)
        if self.tp.split:
            shape = (self.tp.rows, samples, spec.hidden)
        group, tag = self._lane(src, dst)
        return Inlet(self._wire(src, dst), shape, self.dtype, self.groups, group, tag)

    def outlet(self, src: int, dst: int) -> Outlet:
        group, tag = self._lane(src, dst)
        wire, through_host = self._wire(src, dst), self.groups.place.through_host
        return Outlet(wire, self.groups.rank, group, tag, through_host=through_host)

    @property
    def _samples(self) -> int:
        worker = self.layout.workers[self.groups.rank]
        return self.layout.plan.stages[worker.stage].replicas[worker.replica].microbatch

    def _lane(self, src: int, dst: int) -> tuple[dist.ProcessGroup, int]:
        """Return the group and tag of one direction between two stages of the plan."""
        groups, before = self.groups, min(src, dst)
        wraps = (before + 1) % self.layout.plan.pp == 0
        if src < dst:
            return (groups.forward_wrap if wraps else groups.forward), 2 * before + 1
        return (groups.backward_wrap if wraps else groups.backward), 2 * before + 2

    def _wire(self, src: int, dst: int) -> Wire:
        layout, pp = self.layout, self.layout.plan.pp
        replica = layout.workers[self.groups.rank].replica
        senders, receivers = (layout.replica_ranks[i % pp, replica] for i in (src, dst))
        row = self._samples * layout.spec.hidden
        if self.tp.split:
            return Wire(senders, receivers, layout.spec.seq_len, row, split=True)
        return Wire(senders, receivers, layout.spec.seq_len * row, 1, split=False)
