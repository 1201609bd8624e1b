"""The backend: says why a plan can't be run with Megatron-LM, or renders how to run it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from sailor.errors import InputError
from sailor.interfaces import LaunchSpec
from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.huggingface import read_config
from sailor.model.job import HuggingFaceModel, Job
from sailor.model.plan import Plan
from sailor.model.presets import preset
from sailor_megatron import arguments
from sailor_megatron.hosts import Host, pack, spread_reasons

MASTER_PORT = 29500  # torchrun's own default, written out so that a firewall rule can name it
ENTRY_SCRIPT = "pretrain_gpt.py"

# Megatron-LM wants one hardware queue for tensor-parallel overlap on GPUs before Blackwell.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class MegatronBackend:
    """Renders a plan as one torchrun command a host. Nothing is launched."""

    name = "megatron"

    def unsupported(self, job: Job, plan: Plan) -> Sequence[str]:
        """Return why Megatron-LM can't run the plan as it is; empty means it can."""
        spec = _spec(job)
        reasons = [*_shape_reasons(spec, plan), *_uniformity_reasons(plan)]
        if reasons:
            return tuple(reasons)
        return tuple(spread_reasons(plan, _hosts(job, plan), _gpus_of_nodes(job, plan)))

    def render(self, job: Job, plan: Plan) -> LaunchSpec:
        """Return files, one torchrun command a host, and the environment of all of them.

        Where there are several hosts, each needs PET_MASTER_ADDR, the address of host 0, which
        isn't known before the nodes are rented. Data, tokenizer, learning rate and checkpoints
        are no part of a plan: append their arguments.
        """
        reasons = self.unsupported(job, plan)
        if reasons:
            raise InputError(
                f"the plan can't be run with Megatron-LM: {'; '.join(reasons)}", where=job.name
            )
        hosts = _hosts(job, plan)
        training = [
            ENTRY_SCRIPT,
            *arguments.of_model(_spec(job)),
            *arguments.of_plan(plan),
            *arguments.of_training(job.training),
        ]
        return LaunchSpec(
            files={
                "plan.json": plan.model_dump_json(indent=2) + "\n",
                "hosts.json": json.dumps([asdict(host) for host in hosts], indent=2) + "\n",
            },
            commands=tuple((*_torchrun(host, len(hosts)), *training) for host in hosts),
            env=dict(ENVIRONMENT),
        )


def _torchrun(host: Host, num_hosts: int) -> Sequence[str]:
    return (
        "torchrun",
        f"--nnodes={num_hosts}",
        f"--node-rank={host.node_rank}",
        f"--nproc-per-node={host.num_ranks}",
        f"--master-port={MASTER_PORT}",
    )


def _spec(job: Job) -> ModelSpec:
    if isinstance(job.model, ModelSpec):
        return job.model
    if isinstance(job.model, HuggingFaceModel):
        return read_config(job.model.huggingface, job.model.seq_len)
    return preset(job.model, where=f"{job.name}: model")


def _gpus_of_nodes(job: Job, plan: Plan) -> dict[str, int]:
    catalog = Catalog.builtin().with_additions(job.catalog)
    names = {replica.node_type for stage in plan.stages for replica in stage.replicas}
    return {name: catalog.node(name, where="plan").num_gpus for name in sorted(names)}


def _hosts(job: Job, plan: Plan) -> Sequence[Host]:
    return pack(plan, _gpus_of_nodes(job, plan))


def _shape_reasons(spec: ModelSpec, plan: Plan) -> Sequence[str]:
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


def _uniformity_reasons(plan: Plan) -> Sequence[str]:
    replicas = [replica for stage in plan.stages for replica in stage.replicas]
    wanted = (
        ("tp", {replica.tp for replica in replicas}, "--tensor-model-parallel-size"),
        ("microbatch", {replica.microbatch for replica in replicas}, "--micro-batch-size"),
        (
            "num_microbatches",
            {replica.num_microbatches for replica in replicas},
            "number of microbatches, the same for every pipeline",
        ),
    )
    return [
        f"its replicas have {field} {_listed(values)}, and Megatron-LM has one {option}"
        for field, values, option in wanted
        if len(values) > 1
    ]


def _listed(values: set[int]) -> str:
    *head, last = [str(value) for value in sorted(values)]
    return f"{', '.join(head)} and {last}"
