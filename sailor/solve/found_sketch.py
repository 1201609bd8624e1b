"""Pipelines that the positional programme found, as sketches with whole replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.solve.cell import Cell
from sailor.solve.certificate import Part
from sailor.solve.dynamic import Search
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Sketches, to_batch
from sailor.solve.positional.programme import Found

Ints = NDArray[np.int64]

_MOST_SHARES = 64


def sketch_of(
    part: Part, number: int, found: Found, grid: Sequence[Cell], search: Search
) -> Scored | None:
    """Return a pipeline as a sketch with whole replicas, scored exactly."""
    cell = next(
        (
            one
            for one in grid
            if one.dp == part.cells[number].dp
            and one.search.tables.microbatch == part.tables.microbatch
        ),
        None,
    )
    if cell is None:
        return None
    problem = search.problem
    of = {
        (kind.gpu, problem.zone(kind.zone).region, kind.market, kind.tp): place
        for place, kind in enumerate(cell.search.tables.kinds)
    }
    lead = [part.tables.real.kinds[int(own[0])] for own in part.tables.members]
    pairs: list[tuple[int, int]] = []
    for stage in found.stages:
        own = [
            of.get((k.gpu, problem.zone(k.zone).region, k.market, k.tp))
            for k in (lead[kind] for kind in stage.kinds[:2])
        ]
        known = [kind for kind in own if kind is not None]
        if len(known) < len(own):
            return None
        pairs.append((known[0], known[-1]))
    cuts = [stage.start for stage in found.stages] + [found.stages[-1].stop]
    first, second = (np.array([side], dtype=np.int64) for side in zip(*pairs, strict=True))
    shares = _shares(cell, first[0], second[0])
    count = len(shares)
    sketches = Sketches(
        np.repeat(np.array([cuts], dtype=np.int64), count, axis=0),
        np.repeat(first, count, axis=0),
        np.repeat(second, count, axis=0),
        shares,
    )
    scores = search.scorer(cell.search, to_batch(cell, sketches))
    best = int(scores.argmin())
    return Scored(float(scores[best]), cell, sketches.take([best]))


def _shares(cell: Cell, first: Ints, second: Ints) -> Ints:
    """Return [B, P]: numbers of replicas of the second kinds, for the mixed stages."""
    mixed = np.flatnonzero(first != second)
    values = np.unique(np.linspace(1, cell.dp - 1, _MOST_SHARES).astype(np.int64))
    if not len(mixed) or not len(values):
        return np.zeros((1, len(first)), dtype=np.int64)
    if len(mixed) == 1:
        values = np.arange(1, cell.dp)
    grids = np.meshgrid(*([values] * min(len(mixed), 2)))
    rows = np.stack([grid.ravel() for grid in grids], axis=1)
    shares = np.zeros((len(rows), len(first)), dtype=np.int64)
    shares[:, mixed[:2]] = rows
    for stage in mixed[2:]:
        shares[:, stage] = max(1, cell.dp // 2)
    return shares
