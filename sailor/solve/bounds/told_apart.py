"""Kinds told apart by who may stand before them.

A stage sends its gradients back to the stage before it, and its time counts that. A programme that
lays stages from the end knows what lies behind a stage, not what will lie in front. So a kind is
taken once for each level of its gradient transfer, and only the kinds of that level may precede
it: the ceiling on a stage's time then counts its own transfers both ways.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_tables import BoundTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEVELS = 3  # of a kind


def told_apart(tables: BoundTables) -> tuple[BoundTables, Ints]:
    """Return the tables with every kind once a level, and [K] which kind of the old ones it is."""
    of: list[int] = []
    before: list[NDArray[np.bool_]] = []
    for kind in range(tables.num_kinds):
        seconds = tables.backward_s[:, kind, 1:].min(axis=1)
        known = np.isfinite(seconds)
        values = np.unique(np.round(seconds[known], 12))
        if len(values) > _LEVELS:
            values = values[np.unique(np.linspace(0, len(values) - 1, _LEVELS).astype(int))]
        rank = np.searchsorted(values, np.round(seconds, 12), side="right") - 1
        for level in range(max(len(values), 1)):
            of.append(kind)
            before.append(known & (rank == level))
    own = np.array(of, dtype=np.int64)
    may = np.stack(before, axis=1)[own]  # [K, K] whether the one may stand before the other
    found = replace(
        tables,
        group=tables.group[own],
        tp=tables.tp[own],
        gpus=tuple(tables.gpus[kind] for kind in of),
        members=tuple(tables.members[kind] for kind in of),
        compute_s=tables.compute_s[own],
        update_s=tables.update_s[own],
        forward_s=np.where(may[:, :, None], tables.forward_s[own[:, None], own[None]], np.inf),
        backward_s=np.where(may[:, :, None], tables.backward_s[own[:, None], own[None]], np.inf),
        usd_per_s=tables.usd_per_s[own],
    )
    return found, own
