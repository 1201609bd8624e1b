"""From an old plan to a new one: who sends which piece to whom, and what nobody has any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sailor_megatron.layout import PlanLayout, Shard, TensorSpec


@dataclass(frozen=True)
class Move:
    """A piece that goes from an old rank to a new one.

    `local` where both are the same process: the piece is copied, not sent.
    """

    piece: Shard
    src: int
    dst: int
    local: bool


@dataclass(frozen=True)
class Lost:
    """A piece that a new rank needs and that no survivor holds: it comes from a checkpoint."""

    piece: Shard
    dst: int


@dataclass(frozen=True)
class Transfers:
    """Everything that a change of plan moves."""

    moves: tuple[Move, ...]
    lost: tuple[Lost, ...]


def transfers(
    old: PlanLayout, new: PlanLayout, was: Mapping[int, int] | Sequence[int | None]
) -> Transfers:
    """Return the transfer list; every rank derives the same one.

    `was` says which old rank the process of each new rank had; None or absent for a newcomer.
    Old ranks that no new rank had are gone. A piece that the process holds already stays; others
    come from the survivor that has sent the least so far.
    """
    former = dict(was) if isinstance(was, Mapping) else dict(enumerate(was))
    survivors = {rank for rank in former.values() if rank is not None}
    sent: dict[int, int] = dict.fromkeys(sorted(survivors), 0)
    moves: list[Move] = []
    lost: list[Lost] = []
    for worker in new.workers:
        own = former.get(worker.rank)
        for shard in new.shards(worker.rank):
            tensor = new.tensors[shard.name]
            for piece in _pieces(old, tensor, shard):
                sources = [rank for rank in _holding(old, tensor, piece) if rank in survivors]
                if not sources:
                    lost.append(Lost(piece, worker.rank))
                elif own in sources:
                    moves.append(Move(piece, own, worker.rank, local=True))
                else:
                    src = min(sources, key=lambda rank: (sent[rank], rank))
                    sent[src] += (piece.hi - piece.lo) * tensor.row_elements
                    moves.append(Move(piece, src, worker.rank, local=False))
    return Transfers(tuple(moves), tuple(lost))


def _pieces(old: PlanLayout, tensor: TensorSpec, shard: Shard) -> list[Shard]:
    """Cut a new shard wherever some old holder cuts the tensor."""
    if tensor.dim is None:
        return [shard]
    edges = {shard.lo, shard.hi}
    for holder in old.holders[tensor.name]:
        for rank in holder.ranks:
            held = old.shard(tensor, old.workers[rank])
            edges.update(edge for edge in (held.lo, held.hi) if shard.lo < edge < shard.hi)
    ordered = sorted(edges)
    return [Shard(tensor.name, lo, hi) for lo, hi in pairwise(ordered)]


def _holding(old: PlanLayout, tensor: TensorSpec, piece: Shard) -> list[int]:
    holders = old.holders[tensor.name]
    return sorted(rank for holder in holders for rank in old.owners(tensor, holder, piece.lo))
