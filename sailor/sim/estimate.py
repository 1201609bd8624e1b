"""The estimate of one plan: every part named, every reason it can't be run said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sailor.errors import InputError
from sailor.model.estimate import CostTerm, Estimate, StageTime, TimeBreakdown
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.check import constraint_violations, plan_violations
from sailor.sim.closed_form import (
    PlanBatch,
    pipeline_seconds,
    ring_dollars,
    stage_terms,
    sync_seconds,
    transfer_dollars,
    update_seconds,
)
from sailor.sim.columns import Column, batch_of_one, columns_of
from sailor.sim.kinds import WorkerKind, kinds_of_plan
from sailor.sim.models import cost_model
from sailor.sim.provenance import figures
from sailor.sim.renting import rentals
from sailor.sim.tables import StageTables
from sailor.sim.worker_memory import worker_memory


@dataclass(frozen=True)
class _Slowest:
    """The slowest pipeline: seconds by stage for one microbatch, and how many it has."""

    total_s: float
    compute_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    p2p_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    num_microbatches: int
    vpp: int


def estimate(problem: Problem, plan: Plan) -> Estimate:
    """Return what the plan takes under the problem's cost model.

    Raises InputError when the plan names something that the problem doesn't know (a node that
    isn't offered, a degree without profile, a pair of zones without link or price). A plan that
    is understood but can't be run has `violations`.
    """
    _refuse_unknown(problem, plan)
    model = cost_model(problem.cost_model)
    columns = columns_of(plan)
    cuts = [0, *(stage.stop for stage in plan.stages)]
    kinds = kinds_of_plan(plan)
    sizes = sorted({column.microbatch for column in columns})
    tables = {size: model.tables(problem, kinds, size) for size in sizes}
    whole = batch_of_one(cuts, columns, kinds, plan.vpp)
    slowest = max(
        (_slowest(tables[size], _only(whole, columns, size)) for size in sizes),
        key=lambda found: found.total_s,
    )
    some = tables[sizes[0]]
    sync_s = sync_seconds(some, whole)[0]
    update_s = max(
        float(update_seconds(tables[size], _only(whole, columns, size))[0]) for size in sizes
    )
    if not math.isfinite(slowest.total_s + float(sync_s.max())):
        _refuse_unknown_links(problem, tables[sizes[0]], kinds)
    egress_usd = float(ring_dollars(some, whole)[0]) + sum(
        float(transfer_dollars(tables[size], _only(whole, columns, size))[0]) for size in sizes
    )
    if math.isnan(egress_usd):
        _refuse_unknown_egress(some)
    time = _breakdown(slowest, float(sync_s.max()), update_s)
    nodes = rentals(problem, plan)
    rent = sum(node.usd_per_hour for node in nodes) / 3600.0 * time.total_s
    found = Estimate(
        cost_model=model.name,
        time=time,
        stages=tuple(
            StageTime(
                stage=index,
                compute_s=float(slowest.compute_s[index]),
                p2p_s=float(slowest.p2p_s[index]),
                dp_sync_s=float(sync_s[index]),
            )
            for index in range(plan.pp)
        ),
        memory=worker_memory(
            tables, columns, plan, kinds, warmup_overlaps=problem.training.overlap_warmup
        ),
        cost=(
            CostTerm(name="compute", usd_per_iteration=rent),
            CostTerm(name="egress", usd_per_iteration=egress_usd),
        ),
        usd_per_iteration=rent + egress_usd,
        nodes=nodes,
        samples=plan.samples,
        tokens=plan.samples * problem.arch.seq_len,
        batch_error=(plan.samples - problem.training.global_batch) / problem.training.global_batch,
        assumptions=(*problem.assumptions, *model.assumptions(problem)),
        figures=figures(problem, plan, "closed_form"),
    )
    violations = plan_violations(problem, plan, found) + constraint_violations(problem, plan, found)
    return found.model_copy(update={"violations": tuple(violations)})


def _only(batch: PlanBatch, columns: Sequence[Column], microbatch: int) -> PlanBatch:
    """Return the batch with the columns of other microbatch sizes unused."""
    mine = np.array([[column.microbatch == microbatch for column in columns]])
    return replace(batch, width=np.where(mine, batch.width, 0))


def _slowest(tables: StageTables, batch: PlanBatch) -> _Slowest:
    terms = stage_terms(tables, batch)
    seconds = pipeline_seconds(terms)[0]
    column = int(np.argmax(seconds))
    return _Slowest(
        total_s=float(seconds[column]),
        compute_s=terms.compute_s[0, :, column],
        p2p_s=terms.p2p_s[0, :, column],
        num_microbatches=int(terms.num_microbatches[0, column]),
        vpp=batch.vpp,
    )


def _breakdown(slowest: _Slowest, sync_s: float, update_s: float) -> TimeBreakdown:
    stage = slowest.compute_s + slowest.p2p_s
    straggler = int(np.argmax(stage))
    compute_s = slowest.num_microbatches * float(slowest.compute_s[straggler])
    p2p_s = slowest.num_microbatches * float(slowest.p2p_s[straggler])
    bubble_s = float(stage.sum() - stage[straggler]) / slowest.vpp
    return TimeBreakdown(
        compute_s=compute_s,
        p2p_s=p2p_s,
        bubble_s=bubble_s,
        dp_sync_s=sync_s,
        update_s=update_s,
        total_s=slowest.total_s + sync_s + update_s,
    )


def _refuse_unknown(problem: Problem, plan: Plan) -> None:
    offered = {(p.zone, p.node_type, p.market) for p in problem.placements}
    profiled = {(p.gpu, p.tp, p.microbatch) for p in problem.profiles}
    gpu_of = {node.name: node.gpu for node in problem.nodes}
    if plan.num_units != problem.arch.num_units:
        raise InputError(
            f"the plan has {plan.num_units} units and {problem.arch.name} has "
            f"{problem.arch.num_units}",
            where="plan",
            hint="units are the embedding, every block, and the head",
        )
    for index, stage in enumerate(plan.stages):
        for number, replica in enumerate(stage.replicas):
            where = f"stages[{index}].replicas[{number}]"
            if (replica.zone, replica.node_type, replica.market) not in offered:
                raise InputError(
                    f"the job offers no {replica.node_type} ({replica.market}) in {replica.zone}",
                    where=where,
                    hint="add it to the job's pool, or take a node from there"
                    + _why_excluded(problem, replica.zone, replica.node_type),
                )
            if gpu_of[replica.node_type] != replica.gpu:
                raise InputError(
                    f"a {replica.node_type} holds {gpu_of[replica.node_type]}, not {replica.gpu}",
                    where=where,
                    hint=f"write gpu: {gpu_of[replica.node_type]}",
                )
            key = (replica.gpu, replica.tp, replica.microbatch)
            if key not in profiled:
                known = sorted((tp, size) for gpu, tp, size in profiled if gpu == replica.gpu)
                raise InputError(
                    f"there is no profile of {problem.arch.name} on {replica.gpu} at tp "
                    f"{replica.tp}, microbatch {replica.microbatch}",
                    where=where,
                    hint="profiled (tp, microbatch): " + ", ".join(map(str, known)),
                )


def _why_excluded(problem: Problem, zone: str, node_type: str) -> str:
    for reason in problem.excluded:
        if zone in reason and node_type in reason:
            return f" ({reason})"
    return ""


def _refuse_unknown_links(
    problem: Problem, tables: StageTables, kinds: Sequence[WorkerKind]
) -> None:
    missing = [
        (kinds[a], kinds[b])
        for a in range(len(kinds))
        for b in range(len(kinds))
        if not np.isfinite(tables.send_s[:, a, b]).all()
    ]
    src, dst = missing[0] if missing else (kinds[0], kinds[-1])
    raise InputError(
        f"no link is known from {src.gpu} x{src.tp} in {src.zone} to {dst.gpu} x{dst.tp} in "
        f"{dst.zone} under cost model {problem.cost_model!r}",
        where="network",
        hint="add it under catalog.links of the job, or choose another sources.network",
    )


def _refuse_unknown_egress(tables: StageTables) -> None:
    a, b = np.argwhere(np.isnan(tables.egress_usd_per_byte))[0]
    raise InputError(
        f"the price of bytes from {tables.kinds[a].zone} to {tables.kinds[b].zone} is unknown",
        where="egress",
        hint="add it under catalog.egress of the job, or choose another sources.prices",
    )
