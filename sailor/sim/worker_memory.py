"""Memory of every kind of worker of one plan, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sailor.model.estimate import WorkerMemory
from sailor.model.plan import Plan
from sailor.sim.columns import Column
from sailor.sim.interleaved import interleaved_peak, warmup_passes
from sailor.sim.kinds import WorkerKind
from sailor.sim.memory_tables import MemoryTables, StateTable
from sailor.sim.tables import StageTables

Span = tuple[int, int]  # units [start, stop)


@dataclass(frozen=True)
class _Rank:
    """A pipeline rank: its runs of units, and what the schedule keeps for them."""

    stage: int
    spans: tuple[Span, ...]
    num_stages: int
    dp: int


def worker_memory(
    tables: Mapping[int, StageTables],
    columns: Sequence[Column],
    plan: Plan,
    kinds: Sequence[WorkerKind],
    *,
    warmup_overlaps: bool = False,
) -> tuple[WorkerMemory, ...]:
    """Return one entry for every stage and group of like replicas; `tables` by microbatch.

    `warmup_overlaps`: an interleaved schedule that sends beside its first passes keeps two more.
    """
    index = {kind: number for number, kind in enumerate(kinds)}
    units = [(stage.start, stage.stop) for stage in plan.stages]
    found: list[WorkerMemory] = []
    for stage in range(plan.pp):
        rank = _Rank(stage, tuple(units[stage :: plan.pp]), plan.pp, plan.dp)
        groups: dict[tuple[int, int, int], list[int]] = {}
        position = 0
        for column in columns:
            count = column.num_microbatches
            if plan.schedule == "1f1b":
                memory = tables[column.microbatch].memory
                count = int(memory.in_flight(plan.pp - stage, count))
            key = (index[column.kinds[stage]], column.microbatch, count)
            groups.setdefault(key, []).extend(range(position, position + column.width))
            position += column.width
        for (kind, microbatch, count), replicas in groups.items():
            own = tables[microbatch]
            passes = [count]
            logits_of = count if plan.schedule == "gpipe" else 1
            if plan.vpp > 1:
                warmup = warmup_passes(plan.pp, plan.vpp, stage, overlaps=warmup_overlaps)
                passes = _passes_at_peak(own.memory, kind, rank, count, warmup)
            found.append(_one_worker(own, kind, rank, tuple(replicas), passes, logits_of))
    return tuple(found)


def _passes_at_peak(
    memory: MemoryTables, kind: int, rank: _Rank, num_microbatches: int, warmup: int
) -> list[int]:
    """Return how many microbatches of each chunk are kept when their sum is largest."""
    kept = [_activations(memory, kind, span, rank.num_stages) for span in rank.spans]
    return interleaved_peak(kept, rank.num_stages, num_microbatches, warmup)


def _activations(memory: MemoryTables, kind: int, span: Span, num_stages: int) -> float:
    """Return what a chunk keeps of one microbatch; a head's logits are gone before the next."""
    start, stop = span
    prefix = memory.activations_prefix_bytes
    kept = float(prefix[kind, stop] - prefix[kind, start])
    if stop == prefix.shape[1] - 1:
        kept -= float(memory.head_freed_bytes[kind])
    return kept + (float(memory.received_bytes[kind]) if num_stages > 1 else 0.0)


def _one_worker(
    tables: StageTables,
    kind: int,
    rank: _Rank,
    replicas: tuple[int, ...],
    passes: Sequence[int],
    logits_of: int,
) -> WorkerMemory:
    """Return a worker that keeps `passes` microbatches of its chunks, logits of `logits_of`.

    With every schedule but GPipe a backward pass follows the head's forward pass at once.
    """
    memory, dp = tables.memory, rank.dp
    has_head = rank.spans[-1][1] == tables.num_units
    logits = float(memory.head_freed_bytes[kind]) if has_head else 0.0
    where = np.asarray(kind)
    states = transient = fixed = 0.0
    activations = logits_of * logits
    for span, count in zip(rank.spans, passes, strict=True):
        at = (where, np.asarray(span[0]), np.asarray(span[1]))
        own, moving, parts = (
            float(part) for part in memory.parts_bytes(*at, np.asarray(1), rank.num_stages, dp)
        )
        kept = _activations(memory, kind, span, rank.num_stages)
        states += own
        # A head's logits are gone, or not there yet, when other chunks run backward.
        transient = max(transient, moving - kept - logits)
        activations += count * kept
        fixed = max(fixed, parts)
    moving = activations + transient
    slack, margin = memory.slack, memory.margin
    reserve = float(memory.reserve_bytes[kind])
    slack_bytes = float(slack.states[kind] * states + slack.moving[kind] * moving)
    total = states + moving + fixed + slack_bytes
    ends = any(span[0] == 0 or span[1] == tables.num_units for span in rank.spans)
    bound = total + float(
        margin.states[kind] * states
        + margin.moving[kind] * moving
        + margin.fixed_bytes[kind]
        + (memory.ends_bytes[kind] if ends else 0.0)
    )
    named = {part.name: _state_bytes(memory, part, kind, rank) for part in memory.states}
    return WorkerMemory(
        stage=rank.stage,
        replicas=replicas,
        gpu=tables.kinds[kind].gpu,
        tp=tables.kinds[kind].tp,
        parameters_bytes=round(named["parameters"]),
        gradients_bytes=round(named["gradients"]),
        optimizer_bytes=round(named["optimizer"]),
        communication_bytes=round(named["communication"] + fixed - reserve),
        activations_bytes=round(activations),
        transient_bytes=round(transient),
        reserve_bytes=round(reserve + slack_bytes),
        total_bytes=round(total),
        bound_bytes=round(bound),
        capacity_bytes=round(float(memory.capacity_bytes[kind])),
        in_flight=max(passes),
    )


def _state_bytes(memory: MemoryTables, part: StateTable, kind: int, rank: _Rank) -> float:
    """Return one part of the states, shared out over the replicas."""
    own = replace(memory, states=(part,))
    return sum(
        float(
            own.states_bytes(np.asarray(kind), np.asarray(start), np.asarray(stop), rank.dp)
        )
        for start, stop in rank.spans
    )  # fmt: skip
