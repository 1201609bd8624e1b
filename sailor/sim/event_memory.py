"""Peak memory of every worker under a platform, part by part.

The parts are those of cost model `sailor`, on the platform's base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sailor.model.estimate import WorkerMemory
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.profile import Provenance
from sailor.sim.columns import Column
from sailor.sim.kinds import WorkerKind
from sailor.sim.native import SailorModel
from sailor.sim.platforms import Platform
from sailor.sim.profiles import ProfileIndex
from sailor.sim.tables import StageTables
from sailor.sim.worker_memory import worker_memory


def event_memory(
    problem: Problem,
    columns: Sequence[Column],
    plan: Plan,
    kinds: Sequence[WorkerKind],
    platforms: Mapping[str, Platform],
) -> tuple[WorkerMemory, ...]:
    """Return one entry for every stage and group of like replicas."""
    base = np.array([platforms[kind.gpu].base_memory_bytes.value for kind in kinds])
    index = ProfileIndex(problem)
    footprints = [index.footprint(kind.tp) for kind in kinds]
    tables: dict[int, StageTables] = {}
    for size in sorted({column.microbatch for column in columns}):
        own = SailorModel().tables(problem, kinds, size)
        measured = np.array(
            [fp is not None and fp.provenance is Provenance.MEASURED for fp in footprints]
        )
        reserve = np.where(measured, base, own.memory.reserve_bytes)
        tables[size] = replace(own, memory=replace(own.memory, reserve_bytes=reserve))
    return worker_memory(
        tables, columns, plan, kinds, warmup_overlaps=problem.training.overlap_warmup
    )
