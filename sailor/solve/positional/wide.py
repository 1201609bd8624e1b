"""Stages too large for a zone, told apart by the zones in which two replicas or more lie.

A ring has a hop out of each of those zones and one into each, and many such stages together fill
them. In any other zone of its group a stage has one replica at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.layouts import CellRings

Ints = NDArray[np.int64]


def zones_of_group(rings: CellRings, group: int) -> list[int]:
    """Return the zones of a group."""
    return [zone for zone, groups in enumerate(rings.groups) if groups == {group}]


def wide_in(rings: CellRings, group: int, tp: int, dp: int) -> list[tuple[int, ...]]:
    """Return the sets of zones in which a stage of `dp` replicas can have two or more.

    Each replica has `tp` GPUs or more, all of the group. Empty where one zone is enough, or none.
    """
    own = zones_of_group(rings, group)
    found = [
        zones
        for size in range(len(own) + 1)
        for zones in combinations(own, size)
        if all(rings.gpus[zone] >= 2 * tp for zone in zones)
        and _elsewhere(rings, own, zones, (), tp, dp) <= 0
    ]
    return [] if any(len(zones) < 2 for zones in found) else found


def _elsewhere(
    rings: CellRings,
    own: Sequence[int],
    twice_in: Sequence[int],
    within: Sequence[int],
    tp: int,
    dp: int,
) -> int:
    """Return the GPUs that a stage takes at least, but for what the zones not `within` can have.

    Two replicas or more are in each of the zones `twice_in`, one at most in any other.
    """
    alone = sum(zone not in twice_in and zone not in within for zone in own)
    full = sum(rings.gpus[zone] for zone in twice_in if zone not in within)
    return tp * (dp - alone) - full


def rows(
    rings: CellRings, group: int, stages: Sequence[tuple[int, tuple[int, ...]] | None], dp: int
) -> list[tuple[Ints, int]]:
    """Return what stages take [J] of sets of zones of a group, and what there is in those.

    A stage is its tp and the zones in which it has two replicas or more; None: not known, or of
    another group.
    """
    own = zones_of_group(rings, group)
    found: list[tuple[Ints, int]] = []
    for size in range(1, len(own)):
        for within in combinations(own, size):
            use = [
                0 if stage is None else _least_in(rings, own, stage, within, dp) for stage in stages
            ]
            room = sum(rings.gpus[zone] for zone in within)
            divisor = int(np.gcd.reduce([*use, room]))
            if any(use):
                found.append((np.array(use, dtype=np.int64) // divisor, room // divisor))
    return found


def _least_in(
    rings: CellRings,
    own: Sequence[int],
    stage: tuple[int, tuple[int, ...]],
    within: Sequence[int],
    dp: int,
) -> int:
    tp, twice_in = stage
    here = sum(zone in twice_in for zone in within)
    return max(2 * tp * here, _elsewhere(rings, own, twice_in, within, tp, dp), 0)
