"""Pipelines that fill one pool after the other, with a mixed stage where the first one ends.

Where no kind has room for all replicas of a stage there are no pure pipelines to start from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from sailor.solve.cell import BREACH, Cell, Scorer
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Sketches, to_batch

_MOST_SHARES = 16  # ways to part a stage between two kinds


def filled(cell: Cell, scorer: Scorer, max_stages: int, stages: int | None) -> list[Scored]:
    """Return the pipelines of a cell with at most one mixed stage that break no limit."""
    depths = [stages] if stages is not None else range(1, max_stages + 1)
    found: list[Scored] = []
    for depth in depths:
        if depth > cell.search.tables.num_units:
            break
        parts = list(_pipelines(cell, depth))
        if not parts:
            continue
        sketches = Sketches.join(parts)
        scores = scorer(cell.search, to_batch(cell, sketches))
        found += [
            Scored(float(scores[row]), cell, sketches.take([row]))
            for row in np.flatnonzero(scores < BREACH)
        ]
    return sorted(found, key=lambda one: one.score)


def _pipelines(cell: Cell, depth: int) -> Iterator[Sketches]:
    """Yield, for each two kinds of unlike pools, all places of the mixed stage and its shares."""
    search = cell.search
    kinds = np.flatnonzero(search.tables.usable & (search.num_replicas > 0)).tolist()
    cuts = np.round(np.linspace(0, search.tables.num_units, depth + 1)).astype(np.int64)
    shares = np.unique(np.linspace(1, cell.dp - 1, _MOST_SHARES).astype(np.int64))
    for a, b in product(kinds, kinds):
        if search.pool[a] == search.pool[b] or not search.mixable[a, b] or cell.dp < 2:
            continue
        # The share that uses the first pool up is one of them.
        full = int(search.num_replicas[a]) % cell.dp
        own = np.unique([*shares.tolist(), *([cell.dp - full] if full else [])])
        rows = np.repeat(np.arange(depth), len(own))
        count = np.tile(own, depth)
        place = np.arange(depth)[None, :]
        first = np.where(place <= rows[:, None], a, b)
        mixed = place == rows[:, None]
        yield Sketches(
            np.repeat(cuts[None], len(rows), axis=0),
            first,
            np.where(mixed, b, first),
            np.where(mixed, count[:, None], 0),
        )
