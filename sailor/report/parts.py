"""The parts of a report: what to rent, the stages, time, money, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sailor.model.estimate import Estimate, WorkerMemory
from sailor.model.plan import Plan, Stage
from sailor.report.layout import Footnotes, gib, number, section, share, table


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas of one stage that are alike."""

    gpu: str
    node_type: str
    zone: str
    market: str
    tp: int
    members: tuple[int, ...]  # pipelines


def replica_groups(stage: Stage) -> list[ReplicaGroup]:
    """Return the like replicas of a stage, in the order of their first pipeline."""
    found: dict[tuple[str, str, str, str, int], list[int]] = {}
    for index, r in enumerate(stage.replicas):
        key = (r.gpu, r.node_type, r.zone, str(r.market), r.tp)
        found.setdefault(key, []).append(index)
    return [ReplicaGroup(*key, members=tuple(members)) for key, members in found.items()]


def headline(estimate: Estimate, event: Estimate | None = None) -> str:
    """Return speed in one line, price in the next, and what the event engine says of both."""
    iteration_s = estimate.iteration_s
    speed = [
        f"{number(iteration_s)} s/iteration",
        f"{number(estimate.iterations_per_s)} it/s",
        f"{number(estimate.samples / iteration_s)} samples/s",
        f"{number(estimate.tokens / iteration_s)} tokens/s",
    ]
    price = [
        f"{number(estimate.usd_per_iteration)} USD/iteration",
        f"{number(estimate.usd_per_hour)} USD/h",
    ]
    lines = ["  " + "   ".join(figures) for figures in (speed, price)]
    if event is not None:
        lines.append(
            f"  with every operation simulated: {number(event.iteration_s)} s/iteration, "
            f"{number(event.usd_per_iteration)} USD/iteration"
        )
    return "\n".join(lines)


def shape(plan: Plan, estimate: Estimate) -> str:
    """Return the degrees of parallelism and the batch in one line."""
    rented = sum(node.gpus_rented for node in estimate.nodes)
    gpus = f"{plan.num_gpus} GPUs" + (f" of {rented} rented" if rented != plan.num_gpus else "")
    sizes = Counter((r.num_microbatches, r.microbatch) for r in plan.stages[0].replicas)
    pipelines = ", ".join(
        f"{count} x {num} microbatches of {size}"
        for (num, size), count in sorted(sizes.items(), reverse=True)
    )
    error = f" ({estimate.batch_error:+.2%} of the batch)" if estimate.batch_error else ""
    decided = [f"{plan.schedule}, {plan.vpp} chunks a stage"] if plan.vpp > 1 else []
    decided += [plan.schedule] if plan.schedule == "gpipe" else []
    decided += [f"cp {plan.cp}"] if plan.cp > 1 else []
    decided += [f"recompute {plan.recompute}"] if plan.recompute is not None else []
    decided += [f"zero {plan.zero}"] if plan.zero is not None else []
    choice = f"; {', '.join(decided)}" if decided else ""
    return f"  pp {plan.pp}, dp {plan.dp}, {gpus}; pipelines: {pipelines}{error}{choice}"


def rent_section(estimate: Estimate) -> str:
    """Return the nodes to rent."""
    notes = Footnotes()
    rows = [
        (
            str(node.count), node.node_type, f"{node.gpus_used}/{node.gpus_rented} {node.gpu}",
            node.zone, str(node.market), number(node.usd_per_hour), notes.mark(node.price_source),
        )
        for node in estimate.nodes
    ]  # fmt: skip
    headings = ("nodes", "type", "GPUs used", "zone", "market", "USD/h", "price from")
    return section("Rent", notes.under(table(headings, rows, left="rllllrl")))


def stage_section(plan: Plan, estimate: Estimate) -> str:
    """Return the stages: units, replicas by kind, seconds a microbatch, the fullest GPU."""
    times = {time.stage: time for time in estimate.stages}
    zones = {r.zone for stage in plan.stages for r in stage.replicas}
    rows: list[tuple[str, ...]] = []
    for index, stage in enumerate(plan.ranks):
        time = times[index]
        chunks = plan.stages[index :: plan.pp]
        held = ", ".join(units(chunk, plan.num_units) for chunk in chunks)
        first: tuple[str, ...] = (str(index), held)
        seconds: tuple[str, ...] = (
            number(time.compute_s),
            number(time.p2p_s),
            number(time.dp_sync_s),
        )
        for group in replica_groups(stage):
            what = f"{len(group.members)} x {group.gpu}"
            place = (what, f"{group.tp}") if len(zones) == 1 else (what, f"{group.tp}", group.zone)
            rows.append((*first, *place, *seconds, *_fullest(estimate.memory, index, group)))
            first, seconds = ("", ""), ("", "", "")
    where = () if len(zones) == 1 else ("zone",)
    headings = (
        "stage",
        "units",
        "replicas",
        "tp",
        *where,
        "compute s",
        "p2p s",
        "sync s",
        "peak/GiB",
        "bound",
        "of",
    )
    left = "rllr" + ("" if len(zones) == 1 else "l")
    return section("Stages (seconds of one microbatch)", table(headings, rows, left=left))


def units(stage: Stage, num_units: int) -> str:
    """Return a stage's units in words: `emb + 1..12`, `13..24 + head`."""
    first, last = max(stage.start, 1), min(stage.stop, num_units - 1) - 1
    parts = ["emb"] if stage.start == 0 else []
    if last >= first:
        parts.append(f"{first}..{last}" if last > first else str(first))
    if stage.stop == num_units:
        parts.append("head")
    return " + ".join(parts)


def _fullest(
    memory: Sequence[WorkerMemory], stage: int, group: ReplicaGroup
) -> tuple[str, str, str]:
    mine = [
        worker
        for worker in memory
        if worker.stage == stage
        and worker.gpu == group.gpu
        and worker.tp == group.tp
        and not set(worker.replicas).isdisjoint(group.members)
    ]
    if not mine:
        return ("", "", "")
    worker = max(mine, key=lambda found: found.bound_bytes)
    return gib(worker.total_bytes), gib(worker.bound_bytes), gib(worker.capacity_bytes)


def time_section(estimate: Estimate) -> str:
    """Return what an iteration's seconds are made of."""
    time = estimate.time
    parts = (
        ("compute", time.compute_s),
        ("stage to stage", time.p2p_s),
        ("pipeline bubble", time.bubble_s),
        ("gradient all-reduce", time.dp_sync_s),
        ("update", time.update_s),
        ("total", time.total_s),
    )
    rows = [(name, number(value), share(value, time.total_s)) for name, value in parts]
    return section("Time of one iteration", table(("part", "s", ""), rows, left="l"))


def cost_section(estimate: Estimate) -> str:
    """Return what an iteration's dollars are made of."""
    total = estimate.usd_per_iteration
    rows = [
        (
            term.name + ("" if term.optimised else " (reported only)"),
            number(term.usd_per_iteration),
            share(term.usd_per_iteration, total),
        )
        for term in estimate.cost
    ]
    rows.append(("total", number(total), share(total, total)))
    return section("Cost of one iteration", table(("term", "USD", ""), rows, left="l"))


_MEMORY_PARTS = (
    ("params", "parameters_bytes"),
    ("grads", "gradients_bytes"),
    ("optim", "optimizer_bytes"),
    ("comm", "communication_bytes"),
    ("activ", "activations_bytes"),
    ("trans", "transient_bytes"),
    ("resv", "reserve_bytes"),
    ("total", "total_bytes"),
    ("bound", "bound_bytes"),
    ("of", "capacity_bytes"),
)


def memory_section(estimate: Estimate) -> str:
    """Return every worker group's memory by part, in GiB."""
    rows = [
        (
            str(worker.stage),
            f"{len(worker.replicas)} x {worker.gpu}",
            str(worker.tp),
            str(worker.in_flight),
            *(gib(getattr(worker, name)) for _, name in _MEMORY_PARTS),
        )
        for worker in estimate.memory
    ]
    headings = ("stage", "replicas", "tp", "kept", *(heading for heading, _ in _MEMORY_PARTS))
    return section("Memory of one GPU (GiB)", table(headings, rows, left="rl"))
