"""Seconds of collectives over a node's links and its shared NICs.

A group is described by how many ranks it has, how many of them share a node, and how many such
groups use the node's NICs at the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NIC_STEP_S = 60e-6  # for each doubling of the nodes
SEND_S = 0.1e-3  # of a message between pipeline stages


@dataclass(frozen=True)
class Wires:
    """What a collective runs over: bytes/s reached by one GPU's link and by a node's NICs."""

    link: float
    node_nics: float
    link_step_s: float  # for each doubling of the ranks in a node


@dataclass(frozen=True)
class Group:
    """Ranks of a collective: all of them, those in one node, groups that share a node's NICs."""

    ranks: int
    ranks_in_node: int
    groups_per_node: int


def group_of(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """Return the group of ranks `stride` apart, numbered node by node.

    Tensor-parallel ranks have stride 1, data-parallel ones the size of a replica's stage.
    """
    if ranks == 1:
        return Group(1, 1, 1)
    inside = max(1, min(ranks, gpus_per_node // stride))
    sharing = max(1, gpus_per_node // inside)
    return Group(ranks, inside, sharing)


def allreduce_s(message_bytes: float, group: Group, wires: Wires) -> float:
    """Return the seconds of an all-reduce: a ring over all ranks, its slowest hop counts.

    2 (n - 1) / n of the message pass each hop; between nodes `groups_per_node` rings share the
    NICs, and the library splits a ring so that every GPU of a node carries a part.
    """
    return _ring_s(message_bytes, 2.0, group, wires)


def gather_s(message_bytes: float, group: Group, wires: Wires) -> float:
    """Return the seconds of an all-gather or a reduce-scatter of a whole message."""
    return _ring_s(message_bytes, 1.0, group, wires)


def exchange_s(sent_bytes: float, group: Group, wires: Wires) -> float:
    """Return the seconds of an all-to-all in which each rank sends `sent_bytes` in all.

    Of them (n - 1) / n leave the rank; those for other nodes share the NICs of the node with what
    its other GPUs send.
    """
    ranks = group.ranks
    if ranks == 1 or sent_bytes <= 0:
        return 0.0
    inside = sent_bytes * (ranks - 1) / ranks / wires.link
    seconds = inside + wires.link_step_s * math.log2(max(2, group.ranks_in_node))
    if group.ranks_in_node >= ranks:
        return seconds
    away = sent_bytes * (ranks - group.ranks_in_node) / ranks
    senders = group.ranks_in_node * group.groups_per_node
    across = away * senders / wires.node_nics
    return max(seconds, across) + NIC_STEP_S * math.log2(ranks / group.ranks_in_node)


def _ring_s(message_bytes: float, rounds: float, group: Group, wires: Wires) -> float:
    return float(
        ring_seconds(
            np.asarray(message_bytes), rounds,
            np.asarray(group.ranks), np.asarray(group.ranks_in_node),
            np.asarray(group.groups_per_node),
            np.asarray(wires.link), np.asarray(wires.node_nics), wires.link_step_s,
        )
    )  # fmt: skip


def ring_seconds(
    message_bytes: Floats,
    rounds: float,
    ranks: Ints,
    ranks_in_node: Ints,
    groups_per_node: Ints,
    link: Floats,
    node_nics: Floats,
    link_step_s: float,
) -> Floats:
    """Return the seconds of rings that pass (ranks - 1) / ranks of a message `rounds` times.

    Arguments broadcast against each other.
    """
    moved = rounds * (ranks - 1) / ranks * message_bytes
    seconds = moved / link + link_step_s * np.log2(np.maximum(2, ranks_in_node))
    nodes = ranks / ranks_in_node
    across = np.maximum(seconds, moved * groups_per_node / node_nics) + NIC_STEP_S * np.log2(nodes)
    seconds = np.where(ranks_in_node >= ranks, seconds, across)
    found: Floats = np.where((ranks > 1) & (message_bytes > 0), seconds, 0.0)
    return found


def send_s(message_bytes: float, sharing: int, wires: Wires, *, across: bool) -> float:
    """Return the seconds of a message to the next stage, `sharing` GPUs of the node at once."""
    rate = wires.node_nics / sharing if across else wires.link
    return SEND_S + message_bytes / rate
