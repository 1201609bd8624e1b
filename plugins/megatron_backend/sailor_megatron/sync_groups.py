"""Who sums which gradients: groups of ranks at the union of shard boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sailor_megatron.layout import PlanLayout, Shard, TensorSpec, cuts


@dataclass(frozen=True)
class SyncGroup:
    """Ranks that hold the same pieces, and the pieces in the order in which they are packed.

    Each replica has one rank in the group, except for whole tensors where some replica has tp > 1
    (`weighted`): then all its ranks, which hold equal gradients, add 1/tp of theirs. So a whole
    tensor is summed once, and every holder gets the same bits.
    """

    ranks: tuple[int, ...]
    weighted: bool
    atoms: tuple[Shard, ...]


def boundaries(layout: PlanLayout, tensor: TensorSpec) -> tuple[int, ...]:
    """Return the union of the boundaries at which the holders cut a tensor."""
    if tensor.dim is None:
        return (0, tensor.extent)
    degrees = {len(holder.ranks) for holder in layout.holders[tensor.name]}
    return tuple(
        sorted({edge for tp in degrees for edge in cuts(tensor.extent, tensor.granule, tp)})
    )


def sync_groups(layout: PlanLayout) -> tuple[SyncGroup, ...]:
    """Return every group of a plan, in the one order in which all ranks use them.

    Each element of each tensor is in exactly one atom. A group of one rank has nothing to sum.
    """
    found: dict[tuple[tuple[int, ...], bool], list[Shard]] = {}
    for tensor in layout.tensors.values():
        holders = layout.holders[tensor.name]
        edges = boundaries(layout, tensor)
        for lo, hi in pairwise(edges):
            if tensor.dim is None:
                ranks = tuple(rank for holder in holders for rank in holder.ranks)
                weighted = any(len(holder.ranks) > 1 for holder in holders)
            else:
                ranks = tuple(layout.owner(tensor, holder, lo) for holder in holders)
                weighted = False
            found.setdefault((tuple(sorted(ranks)), weighted), []).append(
                Shard(tensor.name, lo, hi)
            )
    return tuple(
        SyncGroup(ranks, weighted, tuple(atoms))
        for (ranks, weighted), atoms in sorted(found.items(), key=lambda item: item[0])
    )


def groups_of(groups: Sequence[SyncGroup], rank: int) -> tuple[int, ...]:
    """Return the indices of the groups that a rank is in."""
    return tuple(index for index, group in enumerate(groups) if rank in group.ranks)
