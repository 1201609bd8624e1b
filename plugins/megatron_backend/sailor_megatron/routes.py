"""How an activation travels between unlike stages: which rank sends which elements to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """Elements [lo, hi) of a flattened activation, from one rank to another."""

    src: int
    dst: int
    lo: int
    hi: int


def piece_elements(num_elements: int, ranks: int) -> int:
    """Return the elements of one of `ranks` equal pieces; the last ones may be cut short."""
    return -(-num_elements // ranks)


def routes(senders: Sequence[int], receivers: Sequence[int], num_elements: int) -> list[Route]:
    """Return the transfers of one activation from one replica to the next.

    Every sender holds the whole activation. Receiver j takes piece j from the senders whose
    pieces it overlaps, and the receivers then exchange pieces among themselves: between replicas
    each element travels once, whatever the two tensor-parallel degrees.
    """
    found = []
    sent = piece_elements(num_elements, len(senders))
    taken = piece_elements(num_elements, len(receivers))
    for j, dst in enumerate(receivers):
        start, stop = j * taken, min((j + 1) * taken, num_elements)
        for i, src in enumerate(senders):
            lo, hi = max(start, i * sent), min(stop, (i + 1) * sent, num_elements)
            if lo < hi:
                found.append(Route(src, dst, lo, hi))
    return found
