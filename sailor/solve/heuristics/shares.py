"""Unequal microbatch shares: faster pipelines take more microbatches.

A pipeline with total stage time F and slowest stage S ends its n-th microbatch after
F + (n - 1) S. All pipelines end by X when each takes floor((X - F) / S) + 1; the least X for which
that is enough is found by bisection, and what is too much is taken off again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sailor.sim.closed_form import PlanBatch, stage_terms
from sailor.sim.columns import Column, batch_of_one
from sailor.sim.tables import StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEPS = 60
_FEW_STEPS = 24  # during a search


def shared(tables: StageTables, batch: PlanBatch, total: int) -> PlanBatch:
    """Return the plans with the counts that end soonest; all together at least `total` a plan."""
    terms = stage_terms(tables, batch)
    stage = terms.compute_s + terms.p2p_s
    fill, pace = stage.sum(axis=1), np.maximum(stage.max(axis=1), 1e-12)
    used = batch.width > 0
    known: NDArray[np.bool_] = np.all(np.isfinite(np.where(used, fill, 0.0)), axis=1)
    fill, pace = np.where(used, fill, 0.0), np.where(used, pace, 1.0)

    def done_by(seconds: Floats) -> Ints:
        counts = np.floor((seconds[:, None] - fill) / pace * (1 + 1e-12)) + 1
        return np.where(used, np.maximum(counts, 1), 0).astype(np.int64)

    low, high = np.zeros(len(fill)), (fill + total * pace).max(axis=1)
    low, high = np.where(known, low, 0.0), np.where(known, high, 0.0)
    fill = np.where(known[:, None], fill, 0.0)
    pace = np.where(known[:, None], pace, 1.0)
    for _ in range(_FEW_STEPS):
        middle = (low + high) / 2
        enough = (done_by(middle) * batch.width).sum(axis=1) >= total
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    counts = np.where(known[:, None], done_by(high), batch.num_microbatches)
    return replace(batch, num_microbatches=counts)


def with_shares(
    tables: StageTables, cuts: Sequence[int], columns: Sequence[Column]
) -> list[Column] | None:
    """Return the columns with the best shares of the same microbatches; None: nothing to gain.

    A coupled cost model knows one pace for all pipelines, so shares can't help there.
    """
    if tables.coupled or len({column.kinds for column in columns}) < 2:
        return None
    terms = stage_terms(tables, batch_of_one(cuts, columns, tables.kinds))
    stage = (terms.compute_s + terms.p2p_s)[0]
    fill, pace = stage.sum(axis=0), stage.max(axis=0)
    if not np.isfinite(fill).all():
        return None
    width = np.array([column.width for column in columns])
    total = sum(column.width * column.num_microbatches for column in columns)

    def done_by(seconds: float) -> Ints:
        counts: Ints = np.floor((seconds - fill) / pace * (1 + 1e-12)).astype(np.int64) + 1
        return np.maximum(counts, 1)  # every pipeline takes part: it is rented anyway

    low, high = 0.0, float((fill + total * pace).max())
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if int((done_by(middle) * width).sum()) >= total:
            high = middle
        else:
            low = middle
    counts = done_by(high)
    surplus = int((counts * width).sum()) - total
    return _without(columns, counts, surplus, fill, pace)


def _without(
    columns: Sequence[Column],
    counts: Ints,
    surplus: int,
    fill: Floats,
    pace: Floats,
) -> list[Column] | None:
    """Take `surplus` microbatches off, one a pipeline, from those that end last."""
    less = np.zeros(len(columns), dtype=np.int64)
    ends = fill + (counts - 1) * pace
    for index in np.argsort(-ends, kind="stable"):
        room = columns[index].width if counts[index] > 1 else 0
        less[index] = min(surplus, room)
        surplus -= int(less[index])
    if surplus > 0:
        return None
    shared: list[Column] = []
    for index, column in enumerate(columns):
        for width, count in (
            (column.width - int(less[index]), int(counts[index])),
            (int(less[index]), int(counts[index]) - 1),
        ):
            if width > 0:
                shared.append(Column(column.kinds, width, column.microbatch, count))
    return shared
