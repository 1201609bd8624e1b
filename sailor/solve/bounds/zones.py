"""Stages in one zone or in several, where the zones of a region are one pool.

A stage whose replicas lie in several zones has a hop between two of them in its ring. A stage in
one zone next to one in several has a pipeline that crosses, and so have two stages in one zone
each that together are too large for a zone. All that holds where no two groups share a zone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_tables import BoundTables

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def several_zones(tables: BoundTables) -> bool:
    """Return whether some group has several zones, and no zone belongs to two groups."""
    zones: dict[int, set[str]] = {}
    for kind, members in enumerate(tables.members):
        own = zones.setdefault(int(tables.group[kind]), set())
        own.update(tables.zone_of[member] for member in members)
    apart = sum(len(own) for own in zones.values()) == len(set().union(*zones.values()))
    return apart and any(len(own) > 1 for own in zones.values())


def with_zones(
    tables: BoundTables, sets: Sequence[tuple[int, ...]], dp: int, *, cut_down: bool
) -> tuple[list[tuple[int, ...]], Bools]:
    """Return kind sets, those of one kind once for one zone and once for several, and which is it.

    A stage of kinds of several groups lies in several zones; one too large for a zone does, too.
    Where stages are `cut_down` to fewer kinds, one of a single kind may be what is left of such.
    """
    found: list[tuple[tuple[int, ...], bool]] = []
    for kinds in sets:
        members = tables.members[kinds[0]]
        many = len(kinds) > 1 or len({tables.zone_of[member] for member in members}) > 1
        many = many or (cut_down and len(tables.room) > 1)
        if len(kinds) == 1 and int(tables.tp[kinds[0]]) * dp <= tables.largest_zone:
            found.append((kinds, False))
        if many and dp > 1:
            found.append((kinds, True))
    return [kinds for kinds, _ in found], np.array([spread for _, spread in found])


def between_groups(tables: BoundTables, kinds: Sequence[int]) -> tuple[int, ...]:
    """Return the groups that the ring of a stage of these kinds has a hop between, if it must.

    Of three groups the third may lie between the two, also where its kinds were cut away.
    """
    groups = tuple(sorted({int(tables.group[kind]) for kind in kinds}))
    return groups if len(groups) == len(tables.room) == 2 else ()


def crossing_sync_s(tables: BoundTables, degrees: Sequence[int], kinds: Sequence[int]) -> Floats:
    """Return [U, U + 1]: least all-reduce with update of a stage in several zones.

    Where its kinds are of all groups that there are, two, its ring has a hop between them.
    """
    most_tp = int(tables.tp[list(kinds)].min())
    between = between_groups(tables, kinds)
    units = tables.num_units
    legal = np.arange(units + 1)[None, :] > np.arange(units)[:, None]
    first, second = np.nonzero(legal)
    out = np.full((units, units + 1), np.inf)
    for tp in sorted({int(t) for t in tables.tp if t <= most_tp}):
        some = np.array(degrees, dtype=np.int64)
        seconds = tables.crossing_s((first, second), tp, some, between)
        out[first, second] = np.minimum(out[first, second], seconds.min(axis=1))
    found: Floats = out + tables.update_s[list(kinds)].min(axis=0)
    return found


def crossing_sends_s(tables: BoundTables) -> tuple[Floats, Floats]:
    """Return forward and backward [K, K, U + 1] between kinds in different zones, at least."""
    real, units = tables.real, tables.num_units
    zone = np.array(tables.zone_of)
    apart = zone[:, None] != zone[None, :]
    send = np.where(apart[None], real.send_s, np.inf)
    least = np.stack(
        [
            np.stack(
                [send[:, a[:, None], b[None]].min(axis=(1, 2)) for b in tables.members], axis=1
            )
            for a in tables.members
        ],
        axis=1,
    )  # [S, K, K]
    cut = np.arange(units + 1)
    forward = least[real.forward_size[np.clip(cut - 1, 0, units - 1)]].transpose(1, 2, 0)
    backward = least[real.backward_size[np.clip(cut, 0, units - 1)]].transpose(2, 1, 0)
    return forward, backward


def crossing_send_s(tables: BoundTables, before: tuple[int, ...], after: tuple[int, ...]) -> Floats:
    """Return [2, U + 1]: least seconds forth and back between kinds of two sets in other zones."""
    kept = tables.kept.setdefault("crossing sends", {})
    if not kept:
        kept[()] = crossing_sends_s(tables)
    if (before, after) not in kept:
        pair = np.ix_(before, after)
        kept[before, after] = np.stack([apart[pair].min(axis=(0, 1)) for apart in kept[()]])
    found: Floats = kept[before, after]
    return found


def crosses(tables: BoundTables, sets: Sequence[tuple[int, ...]], spread: Bools, dp: int) -> Bools:
    """Return [J, J]: whether a pipeline must cross zones between two neighbouring stages."""
    least = np.array([int(tables.tp[list(kinds)].min()) for kinds in sets])
    large = dp * (least[:, None] + least[None, :]) > tables.largest_zone
    inside = ~spread[:, None] & ~spread[None, :]
    found: Bools = (spread[:, None] != spread[None, :]) | (inside & large)
    return found
