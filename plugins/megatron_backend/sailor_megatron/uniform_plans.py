"""What trainers of one shape for all ranks can't express of a plan, and where its ranks lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.job import Job
from sailor.model.plan import Plan
from sailor_megatron.hosts import Host, pack

MASTER_PORT = 29500  # torchrun's own default, written out so that a firewall rule can name it


def shape_reasons(spec: ModelSpec, plan: Plan) -> Sequence[str]:
    """Return why the plan is no plan of this model, or cuts it where heads can't be cut."""
    if plan.num_units != spec.num_units:
        return (
            f"it is a plan of {plan.num_units} units, and {spec.name} has {spec.num_units} "
            f"({spec.num_layers} blocks, embedding, head)",
        )
    reasons = []
    for tp in sorted({replica.tp for stage in plan.stages for replica in stage.replicas}):
        if not spec.allows_tp(tp):
            reasons.append(
                f"tp {tp} does not divide the {spec.num_heads} heads and {spec.num_kv_heads} "
                f"key-value heads of {spec.name}"
            )
        elif spec.ffn % tp:
            reasons.append(f"tp {tp} does not divide ffn {spec.ffn} of {spec.name}")
    return reasons


def uniformity_reasons(
    plan: Plan, trainer: str, tp_option: str, microbatch_option: str
) -> Sequence[str]:
    """Return which figures differ between replicas, where the trainer has one for all."""
    replicas = [replica for stage in plan.stages for replica in stage.replicas]
    wanted = (
        ("tp", {replica.tp for replica in replicas}, tp_option),
        ("microbatch", {replica.microbatch for replica in replicas}, microbatch_option),
        (
            "num_microbatches",
            {replica.num_microbatches for replica in replicas},
            "number of microbatches, the same for every pipeline",
        ),
    )
    return [
        f"its replicas have {field} {_listed(values)}, and {trainer} has one {option}"
        for field, values, option in wanted
        if len(values) > 1
    ]


def first_reasons(*checks: Callable[[], Iterator[str] | Sequence[str]]) -> Sequence[str]:
    """Return the reasons of the first check that has any: later ones rely on earlier ones."""
    for check in checks:
        reasons = tuple(check())
        if reasons:
            return reasons
    return ()


def gpus_of_nodes(job: Job, plan: Plan) -> dict[str, int]:
    """Return the GPUs of each node type that a plan uses."""
    catalog = Catalog.builtin().with_additions(job.catalog)
    names = {replica.node_type for stage in plan.stages for replica in stage.replicas}
    return {name: catalog.node(name, where="plan").num_gpus for name in sorted(names)}


def hosts_of(job: Job, plan: Plan) -> Sequence[Host]:
    """Return the hosts of a plan, by node rank."""
    return pack(plan, gpus_of_nodes(job, plan))


def torchrun(host: Host, num_hosts: int) -> Sequence[str]:
    """Return the start of a host's command."""
    return (
        "torchrun",
        f"--nnodes={num_hosts}",
        f"--node-rank={host.node_rank}",
        f"--nproc-per-node={host.num_ranks}",
        f"--master-port={MASTER_PORT}",
    )


def _listed(values: set[int]) -> str:
    *head, last = [str(value) for value in sorted(values)]
    return f"{', '.join(head)} and {last}"
