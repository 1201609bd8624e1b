"""Which stages the cheapest chains of the bound's dynamic programme have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_rows import Reach, Rows

if TYPE_CHECKING:
    from sailor.solve.bounds.lagrange_dp import ChainProgramme

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layers:
    """Least costs [B, K, U] of suffixes of 1, 2, ... stages, and how many the best chains have."""

    best: list[Floats]
    depth: Ints  # [B], 0: no chain


def stages_of(programme: ChainProgramme, rows: Rows, reach: Reach, layers: Layers) -> Ints:
    """Return [B, K] stages of each kind in the cheapest chains."""
    depth = layers.depth
    size, units = len(depth), programme.units
    count = np.zeros((size, programme.kinds), dtype=np.int64)
    kind = np.zeros(size, dtype=np.int64)
    start = np.full(size, units, dtype=np.int64)
    for from_end in range(int(depth.max(initial=0)), 0, -1):
        memory = programme.memory_reach(from_end, rows.num_microbatches)
        memory = np.broadcast_to(memory, (size, *memory.shape[1:]))
        inside = np.flatnonzero((depth > from_end) & (start < units))
        if len(inside):
            count[inside, kind[inside]] += 1
            if from_end > 1:
                kind[inside], start[inside] = _after(
                    programme, reach, memory, layers.best[from_end - 2], inside, from_end,
                    kind[inside], start[inside],
                )  # fmt: skip
        opening = np.flatnonzero(depth == from_end)
        if len(opening):
            first, kind[opening], start[opening] = _opening(
                programme, rows, reach, memory, layers.best, opening, from_end
            )
            count[opening, first] += 1
    return count


def _opening(
    programme: ChainProgramme, rows: Rows, reach: Reach, memory: Ints, best: list[Floats],
    some: Ints, from_end: int,
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Return the first stage's kind, the kind after it and the cut between them."""
    tables, units = programme.tables, programme.units
    if from_end == 1:
        alone = reach.single[some] & (programme.reach_single[None, :, 0] >= units)
        cost = tables.compute_s[None, :, 0, units] + rows.prices[some]
        first = np.where(alone, cost, np.inf).argmin(axis=1)
        return first, first, np.full(len(some), units, dtype=np.int64)
    factor = tables.real.first_send_factor(from_end)
    back = 2.0 if from_end == 2 else 1.0
    edge = factor * tables.forward_s + back * tables.backward_s  # [K, K, U + 1]
    total = (
        edge[None, :, :, :units]
        + tables.compute_s[None, :, None, 0, :units]
        + rows.prices[some][:, :, None, None]
        + best[from_end - 2][some][:, None, :, :]
    )
    by_pair = reach.first(factor)[some]
    fits = np.where(programme.level[None] >= 0, by_pair[:, programme.level], 0)
    fits = np.minimum(fits, memory[some][:, :, None, 0])
    legal = np.arange(units)[None, None, None, :] <= fits[:, :, :, None]
    flat = np.where(legal, total, np.inf).reshape(len(some), -1).argmin(axis=1)
    first, after, cut = np.unravel_index(flat, (programme.kinds, programme.kinds, units))
    return first, after, cut


def _after(
    programme: ChainProgramme, reach: Reach, memory: Ints, after: Floats, some: Ints,
    from_end: int, kind: Ints, start: Ints,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return the kind behind a stage of `kind` from `start`, and the cut between them."""
    tables, units = programme.tables, programme.units
    back = 2.0 if from_end == 2 else 1.0
    edge = tables.forward_s[kind] + back * tables.backward_s[kind]  # [b, K, U + 1]
    total = edge[:, :, :units] + tables.compute_s[kind, start][:, None, :units] + after[some]
    level = programme.level[kind]
    fits = np.where(level >= 0, reach.middle[some[:, None], level, start[:, None]], 0)
    fits = np.minimum(fits, memory[some, kind, start][:, None])
    legal = np.arange(units)[None, None, :] <= fits[:, :, None]
    flat = np.where(legal, total, np.inf).reshape(len(some), -1).argmin(axis=1)
    behind, cut = np.unravel_index(flat, (programme.kinds, units))
    return behind, cut
