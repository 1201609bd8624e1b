"""Why there is no plan, and what would be needed for one."""

from __future__ import annotations

import numpy as np

from sailor.model.problem import Problem
from sailor.sim.models import cost_model
from sailor.solve.grid import microbatches
from sailor.solve.pools import pools_of, slots_of

GIB = 2.0**30


def why_nothing_fits(problem: Problem) -> tuple[list[str], bool]:
    """Return sentences, and whether they prove that no plan exists."""
    if not problem.placements:
        return (
            ["nothing of the pool can be rented: " + ("; ".join(problem.excluded) or "it is empty")],
            True,
        )
    if not problem.profiles:
        return (["no GPU type of the pool has a profile: " + "; ".join(problem.excluded)], True)
    sizes = microbatches(problem)
    if not sizes:
        known = sorted({profile.microbatch for profile in problem.profiles})
        return (
            [
                f"no profiled microbatch size ({', '.join(map(str, known))}) divides the global "
                f"batch {problem.training.global_batch}; allow an error with batch: {{within: ...}}"
            ],
            True,
        )
    memory = _memory_reason(problem, min(sizes))
    if memory is not None:
        return [memory], True
    reasons = []
    limits = problem.constraints
    for name in (
        "max_usd_per_iteration", "min_iterations_per_s", "max_gpus", "tp", "pp", "dp", "microbatch"
    ):
        value = getattr(limits, name)
        if value is not None:
            reasons.append(f"{name} {value:g}")
    if reasons:
        return (
            ["no plan was found that meets " + ", ".join(reasons) + "; relax one of them"],
            False,
        )
    return (["no plan was found in which every worker has room"], False)


def _memory_reason(problem: Problem, microbatch: int) -> str | None:
    """Return a sentence when even one unit a stage doesn't fit on any GPU of the pool."""
    pools = pools_of(problem, slots_of(problem), merge_zones=True)
    kinds = tuple(
        pool.lead(tp)
        for pool in pools
        for tp in pool.tp_degrees()
        if pool.replicas(tp) > 0
    )
    if not kinds:
        return "no replica of any profiled tp degree fits into the pool's nodes"
    memory = cost_model(problem.cost_model).tables(problem, kinds, microbatch).memory
    units = problem.arch.num_units
    start = np.arange(units)
    worst_unit, need, have = 0, 0.0, 0.0
    for number in range(len(kinds)):
        alone = memory.total_bytes(
            np.full(units, number), start, start + 1, np.ones(units, dtype=np.int64), units
        )
        room = memory.capacity_bytes[number] - problem.constraints.memory_headroom
        unit = int(np.argmax(alone))
        if alone[unit] <= room:
            return _too_few(problem, pools, kinds, memory, microbatch)
        if need == 0.0 or alone[unit] - room < need - have:
            worst_unit, need, have = unit, float(alone[unit]), float(room)
    return (
        f"{problem.arch.name} fits nowhere: unit {worst_unit} alone needs {need / GIB:.1f} GiB at "
        f"microbatch {microbatch} and the best GPU of the pool has {have / GIB:.1f} GiB; offer "
        "GPUs with more memory, a larger tp or a smaller microbatch"
    )


def _too_few(problem, pools, kinds, memory, microbatch):  # type: ignore[no-untyped-def]
    """Return a sentence when all GPUs of the pool together can't hold the model once."""
    units = problem.arch.num_units
    total = 0.0
    least = np.inf
    for number, kind in enumerate(kinds):
        state = float(memory.state_prefix_bytes[number, units]) * kind.tp
        least = min(least, state)
    for pool in pools:
        degrees = [n for n, kind in enumerate(kinds) if kind.gpu == pool.gpu]
        total += pool.num_gpus * max(
            float(memory.capacity_bytes[n] - memory.reserve_bytes[n]) for n in degrees
        )
    if total < least:
        return (
            f"{problem.arch.name} fits nowhere: its parameters, gradients and optimizer states "
            f"take {least / GIB:.0f} GiB and all GPUs of the pool together have "
            f"{total / GIB:.0f} GiB; offer more GPUs"
        )
    return None
