"""The pieces of a sync group as one vector, the same on each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_megatron.layout import Shard
from sailor_megatron.parameters import Parameters
from sailor_megatron.process_groups import ProcessGroups
from sailor_megatron.sync_groups import SyncGroup


@dataclass(frozen=True)
class PackedGroup:
    """One sync group as this rank sees it.

    `span` is where its pieces lie in the flat buffers, where they lie there side by side in
    packing order; else None, and packing copies. `weight` multiplies this rank's gradient.
    """

    params: Parameters
    atoms: tuple[Shard, ...]
    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None
    weight: float
    span: tuple[int, int] | None
    num_elements: int

    @property
    def leads(self) -> bool:
        """Return whether this rank counts the group's elements in sums over the whole model."""
        return self.rank == self.ranks[0]

    def pack(self, buffer: Tensor) -> Tensor:
        """Return the group's vector: a view of the buffer where that is possible."""
        if self.span is not None:
            return buffer[self.span[0] : self.span[1]]
        return torch.cat([self.params.piece(buffer, atom).reshape(-1) for atom in self.atoms])

    def unpack(self, packed: Tensor, buffer: Tensor) -> None:
        """Write the group's vector back."""
        if self.span is not None:
            part = buffer[self.span[0] : self.span[1]]
            if part.data_ptr() != packed.data_ptr():
                part.copy_(packed)
            return
        start = 0
        for atom in self.atoms:
            piece = self.params.piece(buffer, atom)
            piece.copy_(packed[start : start + piece.numel()].view(piece.shape))
            start += piece.numel()


def packed_groups(
    params: Parameters, sync: Sequence[SyncGroup], groups: ProcessGroups, *, split: bool = False
) -> tuple[PackedGroup, ...]:
    """Return the sync groups of this rank, in the order in which all ranks use them.

    `split` (sequence parallelism): gradients of whole tensors are those of a rank's positions.
    """
    found = []
    for group, process_group in zip(sync, groups.sync, strict=True):
        if groups.rank not in group.ranks:
            continue
        pieces = [params.piece(params.grad, atom) for atom in group.atoms]
        total = sum(piece.numel() for piece in pieces)
        found.append(
            PackedGroup(
                params=params,
                atoms=group.atoms,
                ranks=group.ranks,
                rank=groups.rank,
                group=process_group,
                weight=1.0 / groups.tp_size if group.whole and not split else 1.0,
                span=_span(pieces),
                num_elements=total,
            )
        )
    return tuple(found)


def _span(pieces: Sequence[Tensor]) -> tuple[int, int] | None:
    start = stop = int(pieces[0].storage_offset())
    for piece in pieces:
        if not piece.is_contiguous() or piece.storage_offset() != stop:
            return None
        stop += piece.numel()
    return start, stop


def sum_gradients(packed: Sequence[PackedGroup], grad: Tensor) -> float:
    """Sum every gradient over the replicas that hold it. Returns this rank's squares.

    Gradients are added, never averaged: each rank's are already those of its share of the tokens
    divided by all tokens. The squares are of the elements that this rank leads, so that their sum
    over all ranks is the square of the model's gradient norm.
    """
    vectors = [group.pack(grad) for group in packed]
    works = []
    for group, vector in zip(packed, vectors, strict=True):
        if group.group is not None:
            if group.weight != 1.0:
                vector.mul_(group.weight)
            works.append(dist.all_reduce(vector, group=group.group, async_op=True))
    for work in works:
        if work is not None:
            work.wait()
    squares = 0.0
    for group, vector in zip(packed, vectors, strict=True):
        group.unpack(vector, grad)
        if group.leads:
            squares += float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2
    return squares
