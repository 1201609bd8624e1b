"""What lies in front of a stage costs at least, by its place from the end.

The stages in front keep more microbatches in memory the further they are from the end, so each
place has its own least cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Reach, Rows

Floats = NDArray[np.float64]


def ahead_by_place(programme: ChainProgramme, rows: Rows, reach: Reach) -> list[Floats]:
    """Return, by place, [B, K, U]: the least cost with prices of the units in front of a stage.

    The stage is of kind k, starts at a unit and stands at the place, the last one at 1 (entry 0
    is that of place 1 too). The transfer between them is counted; at unit 0 there is nothing.
    """
    if programme.fast is not None:
        return programme.fast.ahead_by_place(rows, reach)
    tables, units, kinds = programme.tables, programme.units, programme.kinds
    size = len(rows.ceiling_s)
    middle = programme.by_kind(reach.middle)
    opening = np.maximum(reach.long_first, reach.short_first)
    middle[:, :, 0] = programme.by_kind(opening[:, :, None])[:, :, 0]
    edge = (tables.forward_s + tables.backward_s)[:, :, :units]  # [K, K, U]
    cut = np.arange(units)
    found = np.full((size, kinds, units), np.inf)
    found[:, :, 0] = 0.0
    places = [found]
    for place in range(programme.max_stages, 1, -1):
        limit = np.minimum(middle, programme.memory_reach(place, rows.num_microbatches))
        # A stage of units [w, v) at this place, and what is in front of it.
        stage = found[:, :, :, None] + tables.compute_s[None, :, :, :units]
        stage = np.where(limit[:, :, :, None] >= cut, stage, np.inf).min(axis=2)
        stage += rows.prices[:, :, None]
        found = np.full((size, kinds, units), np.inf)
        for kind in range(kinds):
            np.minimum(found, stage[:, kind, None] + edge[None, kind], out=found)
        found[:, :, 0] = 0.0
        places.append(found)
    places.append(found)
    return places[::-1]
