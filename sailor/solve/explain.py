"""Why there is no plan, and what would be needed for one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind
from sailor.sim.memory_tables import MemoryTables
from sailor.sim.models import cost_model
from sailor.solve.grid import microbatches
from sailor.solve.pools import Pool, pools_of, slots_of

GIB = 2.0**30

# An optimizer's shards get smaller with every replica; beyond this they are nothing.
_MOST_REPLICAS = 10**9

_LIMITS = (
    "max_usd_per_iteration",
    "min_iterations_per_s",
    "max_gpus",
    "max_nodes",
    "max_zones",
    "tp",
    "pp",
    "dp",
    "microbatch",
)


def why_nothing_fits(problem: Problem) -> tuple[list[str], bool]:
    """Return sentences, and whether they prove that no plan exists."""
    proven = _impossible(problem)
    if proven is not None:
        return [proven], True
    wishes = [
        f"{name} {value:g}"
        for name in _LIMITS
        if (value := getattr(problem.constraints, name)) is not None
    ]
    if wishes:
        return [f"no plan was found that meets {', '.join(wishes)}; relax one of them"], False
    return ["no plan was found in which every worker has room; offer more GPUs"], False


def _impossible(problem: Problem) -> str | None:
    """Return what makes every plan impossible, or None."""
    if not problem.placements:
        reasons = "; ".join(problem.excluded) or "it is empty"
        return f"nothing of the pool can be rented: {reasons}"
    if not problem.profiles:
        return f"no GPU type of the pool has a profile: {'; '.join(problem.excluded)}"
    ranks = problem.training.ep * (problem.training.expert_tp or 1)
    gpus = sum(slot.num_gpus for slot in slots_of(problem)) * problem.training.cp
    if ranks > gpus:
        return (
            f"ep {problem.training.ep} needs {ranks} GPUs that hold one stage, the pool has "
            f"{gpus}; choose a smaller ep or offer more GPUs"
        )
    sizes = microbatches(problem)
    if not sizes:
        known = ", ".join(str(size) for size in sorted({p.microbatch for p in problem.profiles}))
        return (
            f"no profiled microbatch size ({known}) divides the global batch "
            f"{problem.training.global_batch}; allow an error with batch: {{within: ...}}"
        )
    return _memory_reason(problem, min(sizes))


def _memory_reason(problem: Problem, microbatch: int) -> str | None:
    """Return a sentence when memory alone rules out every plan at the smallest microbatch."""
    pools = pools_of(problem, slots_of(problem), merge_zones=True)
    kinds = tuple(
        pool.lead(tp) for pool in pools for tp in pool.tp_degrees() if pool.replicas(tp) > 0
    )
    if not kinds:
        return "no replica of any profiled tp degree fits into the pool's nodes"
    memory = cost_model(problem.cost_model).tables(problem, kinds, microbatch).memory
    return _no_unit_fits(problem, memory, kinds, microbatch) or _too_few(
        problem, pools, memory, kinds
    )


def _no_unit_fits(
    problem: Problem, memory: MemoryTables, kinds: Sequence[WorkerKind], microbatch: int
) -> str | None:
    """Return a sentence when some unit, alone on a stage, fits on no GPU of the pool."""
    units = problem.arch.num_units
    start = np.arange(units)
    alone = np.stack(
        [
            memory.bound_bytes(
                np.full(units, number),
                start,
                start + 1,
                np.ones(units, dtype=np.int64),
                units,
                _MOST_REPLICAS,
            )
            for number in range(len(kinds))
        ]
    )
    room = memory.capacity_bytes - problem.constraints.memory_headroom
    missing = (alone - room[:, None]).min(axis=0)
    unit = int(missing.argmax())
    if missing[unit] <= 0:
        return None
    kind = int((alone[:, unit] - room).argmin())
    return (
        f"{problem.arch.name} fits nowhere: unit {unit} ({problem.arch.unit_kind(unit)}) alone "
        f"needs {alone[kind, unit] / GIB:.1f} GiB at microbatch {microbatch}, and a "
        f"{kinds[kind].gpu} at tp {kinds[kind].tp} has {room[kind] / GIB:.1f} GiB; offer GPUs "
        "with more memory or nodes for a larger tp"
    )


def _too_few(
    problem: Problem, pools: Sequence[Pool], memory: MemoryTables, kinds: Sequence[WorkerKind]
) -> str | None:
    """Return a sentence when all GPUs of the pool together can't hold the model once."""
    units = problem.arch.num_units
    tp = np.array([kind.tp for kind in kinds])
    # Each replica holds its own states but for what the optimizer shards among all of them.
    whole = (np.arange(len(kinds)), np.asarray(0), np.asarray(units))
    kept, shared = memory.split_states_bytes(*whole)
    least = float((kept * tp).min() + (shared * tp).min())
    usable = memory.capacity_bytes - memory.reserve_bytes
    total = sum(
        pool.num_gpus * max(float(usable[n]) for n, k in enumerate(kinds) if k.gpu == pool.gpu)
        for pool in pools
        if any(kind.gpu == pool.gpu for kind in kinds)
    )
    if total >= least:
        return None
    return (
        f"{problem.arch.name} fits nowhere: its parameters, gradients and optimizer states take "
        f"{least / GIB:.0f} GiB and all GPUs of the pool together have {total / GIB:.0f} GiB; "
        "offer more GPUs"
    )
