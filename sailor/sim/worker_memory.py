"""Memory of every kind of worker of one plan, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sailor.model.estimate import WorkerMemory
from sailor.sim.columns import Column
from sailor.sim.kinds import WorkerKind
from sailor.sim.tables import StageTables


def worker_memory(
    tables: Mapping[int, StageTables],
    columns: Sequence[Column],
    cuts: Sequence[int],
    kinds: Sequence[WorkerKind],
) -> tuple[WorkerMemory, ...]:
    """Return one entry for every stage and group of like replicas; `tables` by microbatch."""
    index = {kind: number for number, kind in enumerate(kinds)}
    num_stages = len(cuts) - 1
    dp = sum(column.width for column in columns)
    found: list[WorkerMemory] = []
    for stage in range(num_stages):
        groups: dict[tuple[int, int, int], list[int]] = {}
        position = 0
        for column in columns:
            own = tables[column.microbatch].memory
            in_flight = int(own.in_flight(num_stages - stage, column.num_microbatches))
            key = (index[column.kinds[stage]], column.microbatch, in_flight)
            groups.setdefault(key, []).extend(range(position, position + column.width))
            position += column.width
        for (kind, microbatch, in_flight), replicas in groups.items():
            found.append(
                _one_worker(tables[microbatch], kind, stage, cuts, tuple(replicas), in_flight, dp)
            )
    return tuple(found)


def _one_worker(
    tables: StageTables,
    kind: int,
    stage: int,
    cuts: Sequence[int],
    replicas: tuple[int, ...],
    in_flight: int,
    dp: int,
) -> WorkerMemory:
    memory = tables.memory
    start, stop = cuts[stage], cuts[stage + 1]

    whole = (start, stop) == (0, tables.num_units)
    once = 1.0 - float(memory.tied_share[kind]) if whole else 1.0

    def part(prefix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
        return round(once * float(prefix[kind, stop] - prefix[kind, start]))

    where = (np.asarray(kind), np.asarray(start), np.asarray(stop), np.asarray(in_flight))
    total = float(memory.total_bytes(*where, len(cuts) - 1, dp))
    bound = float(memory.bound_bytes(*where, len(cuts) - 1, dp))
    not_shared = 1.0 - 1.0 / dp
    sharded = round(
        once
        * float(memory.sharded_prefix_bytes[kind, stop] - memory.sharded_prefix_bytes[kind, start])
        * not_shared
    )
    parameters = part(memory.parameters_prefix_bytes)
    gradients = part(memory.gradients_prefix_bytes)
    optimizer = part(memory.optimizer_prefix_bytes) - sharded
    communication = part(memory.communication_prefix_bytes)
    activations = round(
        in_flight
        * float(
            memory.activations_prefix_bytes[kind, stop]
            - memory.activations_prefix_bytes[kind, start]
        )
    )
    boundary = round(float(memory.boundary_bytes[kind])) if len(cuts) > 2 else 0
    reserve = round(float(memory.reserve_bytes[kind]))
    named = parameters + gradients + optimizer + communication + activations + boundary + reserve
    return WorkerMemory(
        stage=stage,
        replicas=replicas,
        gpu=tables.kinds[kind].gpu,
        tp=tables.kinds[kind].tp,
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        communication_bytes=communication + boundary,
        activations_bytes=activations,
        transient_bytes=max(0, round(total) - named),
        reserve_bytes=reserve,
        total_bytes=round(total),
        bound_bytes=round(bound),
        capacity_bytes=round(float(memory.capacity_bytes[kind])),
        in_flight=in_flight,
    )
