"""Who sums which gradients: groups of ranks at the union of shard boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sailor_megatron.layout import PlanLayout, Shard, TensorSpec


@dataclass(frozen=True)
class SyncGroup:
    """Ranks that hold the same pieces, and the pieces in the order in which they are packed.

    Each replica has one rank in the group, with two exceptions. Ranks that share a key-value head
    are all in it: each has the gradient of its own query heads. And whole tensors where some
    replica has tp > 1 (`whole`): there all ranks hold equal gradients and add 1/tp of theirs, or,
    under sequence parallelism, those of their own positions. So every tensor is summed once, and
    all holders get the same bits.
    """

    ranks: tuple[int, ...]
    whole: bool
    atoms: tuple[Shard, ...]


def boundaries(layout: PlanLayout, tensor: TensorSpec) -> tuple[int, ...]:
    """Return the union of the boundaries at which the holders cut a tensor."""
    if tensor.dim is None:
        return (0, tensor.extent)
    degrees = {len(holder.ranks) for holder in layout.holders[tensor.name]}
    return tuple(sorted({edge for tp in degrees for piece in tensor.pieces(tp) for edge in piece}))


def sync_groups(layout: PlanLayout) -> tuple[SyncGroup, ...]:
    """Return every group of a plan, in the one order in which all ranks use them.

    Each element of each tensor is in exactly one atom. A group of one rank has nothing to sum.
    """
    found: dict[tuple[tuple[int, ...], bool], list[Shard]] = {}
    for tensor in layout.tensors.values():
        holders = layout.holders[tensor.name]
        edges = boundaries(layout, tensor)
        for lo, hi in pairwise(edges):
            ranks = [rank for holder in holders for rank in layout.owners(tensor, holder, lo)]
            whole = tensor.dim is None and any(len(holder.ranks) > 1 for holder in holders)
            found.setdefault((tuple(sorted(ranks)), whole), []).append(Shard(tensor.name, lo, hi))
    return tuple(
        SyncGroup(ranks, whole, tuple(atoms))
        for (ranks, whole), atoms in sorted(found.items(), key=lambda item: item[0])
    )


def groups_of(groups: Sequence[SyncGroup], rank: int) -> tuple[int, ...]:
    """Return the indices of the groups that a rank is in."""
    return tuple(index for index, group in enumerate(groups) if rank in group.ranks)
