"""Why a plan can't be run: capacity, memory, batch and the job's constraints, in words."""

from __future__ import annotations

from sailor.model.estimate import Estimate
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.renting import capacity_violations

GIB = 2.0**30
# A limit that is met up to rounding is met: costs and rates are sums of floats.
RELATIVE_TOLERANCE = 1e-9


def plan_violations(problem: Problem, plan: Plan, estimate: Estimate) -> list[str]:
    """Return what makes the plan impossible on this pool, one sentence each."""
    found = capacity_violations(problem, estimate.nodes)
    for worker in estimate.memory:
        need = worker.bound_bytes + problem.constraints.memory_headroom
        if need > worker.capacity_bytes:
            found.append(
                f"stage {worker.stage}: up to {need / GIB:.1f} GiB don't fit on {worker.gpu} "
                f"({worker.capacity_bytes / GIB:.1f} GiB) at tp {worker.tp}"
            )
    found += _degree_violations(problem, plan)
    if abs(estimate.batch_error) > problem.batch.within + RELATIVE_TOLERANCE:
        found.append(
            f"the plan processes {estimate.samples} samples an iteration, the global batch is "
            f"{problem.training.global_batch} (allowed error {problem.batch.within:g})"
        )
    if (
        problem.cost_model == "published"
        and len({replica.microbatch for replica in plan.stages[0].replicas}) > 1
    ):
        found.append("cost model 'published' knows one microbatch size for all pipelines")
    return found


def _degree_violations(problem: Problem, plan: Plan) -> list[str]:
    found = []
    training = problem.training
    if plan.cp != training.cp:
        found.append(f"the plan has cp {plan.cp}, the job's training has cp {training.cp}")
    ranks = plan.dp * plan.cp * min(r.tp for stage in plan.ranks for r in stage.replicas)
    if training.ep * (training.expert_tp or 1) > ranks:
        found.append(
            f"ep {training.ep} needs as many ranks that hold a stage, the plan has {ranks}"
        )
    for index, stage in enumerate(plan.ranks):
        for number, replica in enumerate(stage.replicas):
            node = problem.node(replica.node_type)
            if replica.tp * plan.cp > node.num_gpus:
                each = f"tp {replica.tp}" + (f" x cp {plan.cp}" if plan.cp > 1 else "")
                found.append(
                    f"stage {index}, replica {number}: {each} doesn't lie in one "
                    f"{node.name} of {node.num_gpus} GPUs"
                )
            if not problem.arch.allows_tp(replica.tp):
                found.append(
                    f"stage {index}, replica {number}: tp {replica.tp} doesn't divide "
                    f"{problem.arch.num_heads} heads and {problem.arch.num_kv_heads} "
                    "key-value heads"
                )
    return found


def constraint_violations(problem: Problem, plan: Plan, estimate: Estimate) -> list[str]:
    """Return the wishes of the job that the plan doesn't meet, one sentence each."""
    limits = problem.constraints
    found = []
    usd = estimate.usd_per_iteration
    ceiling, floor = limits.max_usd_per_iteration, limits.min_iterations_per_s
    if ceiling is not None and usd > ceiling * (1 + RELATIVE_TOLERANCE):
        found.append(f"{usd:.6g} USD an iteration is over max_usd_per_iteration {ceiling:g}")
    if floor is not None and estimate.iterations_per_s < floor * (1 - RELATIVE_TOLERANCE):
        found.append(
            f"{estimate.iterations_per_s:.6g} iterations/s is under min_iterations_per_s {floor:g}"
        )
    rented = sum(node.gpus_rented for node in estimate.nodes)
    if limits.max_gpus is not None and rented > limits.max_gpus:
        found.append(f"{rented} rented GPUs are over max_gpus {limits.max_gpus}")
    nodes = sum(node.count for node in estimate.nodes)
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        found.append(f"{nodes} rented nodes are over max_nodes {limits.max_nodes}")
    zones = sorted({node.zone for node in estimate.nodes})
    if limits.max_zones is not None and len(zones) > limits.max_zones:
        found.append(f"zones {', '.join(zones)} are more than max_zones {limits.max_zones}")
    replicas = [replica for stage in plan.stages for replica in stage.replicas]
    for name, pinned, values in (
        ("tp", limits.tp, {replica.tp for replica in replicas}),
        ("microbatch", limits.microbatch, {replica.microbatch for replica in replicas}),
        ("pp", limits.pp, {plan.pp}),
        ("dp", limits.dp, {plan.dp}),
    ):
        if pinned is not None and values != {pinned}:
            found.append(f"{name} is {sorted(values)}, the job pins {pinned}")
    return found
