"""Peak memory of every worker under a platform, part by part.

The states, activations in flight and sizes are those of cost model `sailor`; on top come the
backward pass's temporaries and the platform's base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sailor.model.estimate import WorkerMemory
from sailor.model.problem import Problem
from sailor.model.profile import Provenance
from sailor.sim.columns import Column
from sailor.sim.kinds import WorkerKind
from sailor.sim.layers import element_bytes
from sailor.sim.native import SailorModel
from sailor.sim.platforms import Platform
from sailor.sim.tables import MemoryTables, StageTables
from sailor.sim.worker_memory import worker_memory

# The backward pass of unfused attention holds three score matrices at once: the softmax's output,
# its gradient, and the gradient of the scores.
_SCORE_MATRICES = 3.0


def event_memory(
    problem: Problem,
    columns: Sequence[Column],
    cuts: Sequence[int],
    kinds: Sequence[WorkerKind],
    platforms: Mapping[str, Platform],
) -> tuple[WorkerMemory, ...]:
    """Return one entry for every stage and group of like replicas."""
    tables: dict[int, StageTables] = {}
    for size in sorted({column.microbatch for column in columns}):
        base = SailorModel().tables(problem, kinds, size)
        tables[size] = replace(
            base, memory=_on_platform(problem, base.memory, kinds, size, platforms)
        )
    return worker_memory(tables, columns, cuts, kinds)


def score_matrix_bytes(problem: Problem, tp: int) -> float:
    """Return the bytes of one block's attention scores of one sample on one rank.

    heads / tp * s^2 values; none where attention is fused: layer sizes from formulas are, and
    measured ones that are too small to hold a score matrix.
    """
    arch = problem.arch
    values = arch.num_heads / tp * float(arch.seq_len) ** 2
    size = element_bytes(problem.training.precision) * values
    footprint = next((f for f in problem.footprints if f.tp == tp), None)
    if footprint is None or footprint.provenance is Provenance.MODELLED:
        return 0.0
    return size if footprint.block.activation_bytes >= size else 0.0


def _on_platform(
    problem: Problem,
    memory: MemoryTables,
    kinds: Sequence[WorkerKind],
    microbatch: int,
    platforms: Mapping[str, Platform],
) -> MemoryTables:
    scores = [_SCORE_MATRICES * microbatch * score_matrix_bytes(problem, k.tp) for k in kinds]
    return replace(
        memory,
        block_transient_bytes=np.array(scores),
        reserve_bytes=np.array([platforms[k.gpu].base_memory_bytes.value for k in kinds]),
    )
