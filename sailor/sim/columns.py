"""A plan as columns: runs of like pipelines, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sailor.model.plan import Plan, Replica, Stage
from sailor.sim.closed_form import PlanBatch
from sailor.sim.kinds import WorkerKind


@dataclass(frozen=True)
class Column:
    """`width` neighbouring pipelines whose stages are held by the same kinds."""

    kinds: tuple[WorkerKind, ...]
    width: int
    microbatch: int
    num_microbatches: int


def columns_of(plan: Plan) -> tuple[Column, ...]:
    """Return the plan's runs of like pipelines, in plan order."""
    found: list[Column] = []
    for pipeline in zip(*(stage.replicas for stage in plan.ranks), strict=True):
        lead = pipeline[0]
        column = Column(
            tuple(WorkerKind.of(replica, plan.cp) for replica in pipeline),
            1,
            lead.microbatch,
            lead.num_microbatches,
        )
        if found and (found[-1].kinds, found[-1].microbatch, found[-1].num_microbatches) == (
            column.kinds,
            column.microbatch,
            column.num_microbatches,
        ):
            found[-1] = Column(
                column.kinds, found[-1].width + 1, column.microbatch, column.num_microbatches
            )
        else:
            found.append(column)
    return tuple(found)


def plan_of(model: str, cuts: Sequence[int], columns: Sequence[Column], global_batch: int) -> Plan:
    """Return the plan of unit boundaries and columns (units cuts[i]..cuts[i + 1] in stage i)."""
    stages = []
    for i in range(len(cuts) - 1):
        replicas = [
            Replica(
                gpu=column.kinds[i].gpu,
                node_type=column.kinds[i].node_type,
                zone=column.kinds[i].zone,
                market=column.kinds[i].market,
                tp=column.kinds[i].tp,
                microbatch=column.microbatch,
                num_microbatches=column.num_microbatches,
            )
            for column in columns
            for _ in range(column.width)
        ]
        stages.append(Stage(start=cuts[i], stop=cuts[i + 1], replicas=tuple(replicas)))
    return Plan(
        model=model, num_units=cuts[-1], global_batch=global_batch, stages=tuple(stages),
        cp=columns[0].kinds[0].cp,
    )  # fmt: skip


def batch_of_one(
    cuts: Sequence[int], columns: Sequence[Column], kinds: Sequence[WorkerKind], vpp: int = 1
) -> PlanBatch:
    """Return the columns of one plan as a batch; `kinds` gives the indices.

    With `vpp` above 1 the cuts are those of the chunks, and a column's kinds those of the ranks.
    """
    index = {kind: number for number, kind in enumerate(kinds)}
    pp = (len(cuts) - 1) // vpp
    return PlanBatch(
        cuts=np.array([cuts], dtype=np.int64),
        kinds=np.array(
            [[[index[column.kinds[i % pp]] for column in columns] for i in range(len(cuts) - 1)]],
            dtype=np.int64,
        ),
        width=np.array([[column.width for column in columns]], dtype=np.int64),
        num_microbatches=np.array([[c.num_microbatches for c in columns]], dtype=np.int64),
        vpp=vpp,
    )


def split_microbatches(
    global_batch: int, microbatch: int, widths: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Spread the global batch over pipelines so that counts differ by at most one.

    `widths` are the columns' pipelines in order; returns (column, width, num_microbatches) with
    columns cut where the count changes. The first pipelines take the larger count. The batch is
    rounded to the nearest number of microbatches (exact where `microbatch` divides it). Empty if
    a pipeline would get none.
    """
    dp = sum(widths)
    total = max(1, round(global_batch / microbatch))
    low, extra = divmod(total, dp)
    if low == 0:
        return []
    parts: list[tuple[int, int, int]] = []
    for column, width in enumerate(widths):
        more = min(width, extra)
        extra -= more
        parts.extend(
            (column, share, count)
            for share, count in ((more, low + 1), (width - more, low))
            if share > 0
        )
    return parts
