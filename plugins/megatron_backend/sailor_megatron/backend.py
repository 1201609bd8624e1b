"""The backend `megatron`: says why Megatron-LM can't run a plan, or renders how to run it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sailor.errors import InputError
from sailor.interfaces import LaunchSpec
from sailor.model.job import Job
from sailor.model.plan import Plan
from sailor_megatron import arguments
from sailor_megatron.hosts import spread_reasons
from sailor_megatron.run_folder import model_of
from sailor_megatron.uniform_plans import (
    first_reasons,
    gpus_of_nodes,
    hosts_of,
    shape_reasons,
    torchrun,
    uniformity_reasons,
)

TRAINER = "Megatron-LM"
ENTRY_SCRIPT = "pretrain_gpt.py"

# Megatron-LM wants one hardware queue for tensor-parallel overlap on GPUs before Blackwell.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class MegatronBackend:
    """Renders a plan as one torchrun command a host. Nothing is launched."""

    name = "megatron"

    def unsupported(self, job: Job, plan: Plan) -> Sequence[str]:
        """Return why Megatron-LM can't run the plan as it is; empty means it can."""
        return first_reasons(
            lambda: (
                *shape_reasons(model_of(job), plan),
                *uniformity_reasons(
                    plan, TRAINER, "--tensor-model-parallel-size", "--micro-batch-size"
                ),
                *_option_reasons(job, plan),
            ),
            lambda: spread_reasons(plan, hosts_of(job, plan), gpus_of_nodes(job, plan), TRAINER),
        )

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
        hosts = hosts_of(job, plan)
        training = [
            ENTRY_SCRIPT,
            *arguments.of_model(model_of(job)),
            *arguments.of_plan(plan),
            *arguments.of_training(job.training, plan),
        ]
        return LaunchSpec(
            files={
                "plan.json": plan.model_dump_json(indent=2) + "\n",
                "hosts.json": json.dumps([asdict(host) for host in hosts], indent=2) + "\n",
            },
            commands=tuple((*torchrun(host, len(hosts)), *training) for host in hosts),
            env=dict(ENVIRONMENT),
        )


def _option_reasons(job: Job, plan: Plan) -> Iterator[str]:
    """Yield what the plan or job asks for that Megatron-LM's arguments don't say."""
    training = job.training
    if plan.schedule == "gpipe":
        yield "its schedule is gpipe, and Megatron-LM has 1F1B and the interleaved one"
    zero = arguments.zero_of(training, plan)
    if zero > 1:
        yield (
            f"it has zero {zero}, and Megatron-LM's distributed optimizer shares out optimizer "
            "states only (zero 1)"
        )
    if zero and training.zero_group is not None:
        yield "it shares optimizer states in groups of replicas (zero_group), which isn't rendered"
    if arguments.recompute_of(training, plan) == "operators":
        yield "it recomputes every other matrix product, which Megatron-LM does not do"
    if training.ep > 1 and model_of(job).experts is None:
        yield f"it spreads experts (ep {training.ep}), and {model_of(job).name} has none"
