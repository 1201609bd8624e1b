"""The backend `torchtitan`: says why torchtitan can't run a plan, or renders how to run it.

Names are those of torchtitan 0.3.0, whose configuration is a Python function (TOML files were of
releases before): `torchtitan/config/configs.py`, `torchtitan/models/llama3/config_registry.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from sailor.errors import InputError
from sailor.interfaces import LaunchSpec
from sailor.model.arch import ModelSpec
from sailor.model.job import Job
from sailor.model.plan import Plan
from sailor_megatron.arguments import recompute_of, zero_of
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

TRAINER = "torchtitan"
MODULE, FUNCTION = "sailor_plan", "planned"

# Its llama3 configurations: blocks, hidden, ffn, heads, key-value heads. 128256 words each.
_CONFIGURATIONS: Mapping[tuple[int, int, int, int, int], str] = {
    (32, 4096, 14336, 32, 8): "llama3_8b",
    (80, 8192, 28672, 64, 8): "llama3_70b",
    (126, 16384, 53248, 128, 8): "llama3_405b",
}
_VOCAB = 128_256
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}


class TorchtitanBackend:
    """Renders a plan as a configuration module and one torchrun command a host."""

    name = "torchtitan"

    def unsupported(self, job: Job, plan: Plan) -> Sequence[str]:
        """Return why torchtitan can't run the plan as it is; empty means it can."""
        return first_reasons(
            lambda: (
                *shape_reasons(model_of(job), plan),
                *uniformity_reasons(
                    plan, TRAINER, "tensor_parallel_degree", "pipeline_parallel_microbatch_size"
                ),
                *_option_reasons(job, plan),
            ),
            lambda: spread_reasons(plan, hosts_of(job, plan), gpus_of_nodes(job, plan), TRAINER),
        )

    def render(self, job: Job, plan: Plan) -> LaunchSpec:
        """Return files, one torchrun command a host, and the environment of all of them.

        Commands are started where the files lie, with PET_MASTER_ADDR set to the address of host
        0. Data, tokenizer, learning rate and checkpoints are those of torchtitan's own
        configuration of the model: append other values.
        """
        reasons = self.unsupported(job, plan)
        if reasons:
            raise InputError(
                f"the plan can't be run with torchtitan: {'; '.join(reasons)}", where=job.name
            )
        hosts = hosts_of(job, plan)
        training = ("-m", "torchtitan.train", "--module", MODULE, "--config", FUNCTION)
        return LaunchSpec(
            files={
                f"{MODULE}.py": _module(job, plan),
                "plan.json": plan.model_dump_json(indent=2) + "\n",
                "hosts.json": json.dumps([asdict(host) for host in hosts], indent=2) + "\n",
            },
            commands=tuple((*torchrun(host, len(hosts)), *training) for host in hosts),
            env={},
        )


def configuration_of(spec: ModelSpec) -> str | None:
    """Return torchtitan's own configuration of a model of this shape, if it has one."""
    llama = (
        spec.experts is None
        and spec.vocab == _VOCAB
        and spec.head_dim * spec.num_heads == spec.hidden
        and spec.max_positions == 0
        and spec.norm == "rmsnorm"
        and spec.gated_mlp
        and not spec.biases
        and not spec.tied_embeddings
    )
    shape = (spec.num_layers, spec.hidden, spec.ffn, spec.num_heads, spec.num_kv_heads)
    return _CONFIGURATIONS.get(shape) if llama else None


def _option_reasons(job: Job, plan: Plan) -> Iterator[str]:
    """Yield what the plan or job asks for that torchtitan's configuration doesn't say."""
    training, spec = job.training, model_of(job)
    if configuration_of(spec) is None:
        yield (
            f"torchtitan has no configuration of {spec.name}'s shape (it has Llama 3 of 8, 70 and "
            "405 B parameters)"
        )
    if training.precision == "fp16":
        yield "it trains in fp16, and torchtitan in bf16 or fp32"
    if training.fp8:
        yield "it computes in 8 bits, which isn't rendered"
    if training.optimizer != "adam":
        yield f"its optimizer is {training.optimizer}, and torchtitan's is AdamW"
    zero = zero_of(training, plan)
    if zero == 1:
        yield "it has zero 1, and torchtitan shards gradients too (2), or parameters as well (3)"
    if zero and training.zero_group is not None:
        yield "it shares states in groups of replicas (zero_group), which isn't rendered"
    if recompute_of(training, plan) == "selective":
        yield (
            "it recomputes attention's core only, and torchtitan every other matrix product "
            "(recompute: operators) or all"
        )
    if training.ep > 1:
        yield f"it spreads experts (ep {training.ep}), and Llama 3 has none"
    if plan.vpp > 1 and plan.pp == 1:
        yield "it interleaves chunks of a single pipeline rank"


def _module(job: Job, plan: Plan) -> str:
    """Return the text of the configuration module."""
    recompute = recompute_of(job.training, plan)
    policy = {"none": None, "operators": "SelectiveAC", "full": "FullAC"}[recompute]
    imports = [
        "from dataclasses import replace",
        "",
        *([f"from torchtitan.distributed.activation_checkpoint import {policy}"] if policy else []),
        f"from torchtitan.models.llama3.config_registry import {configuration_of(model_of(job))}",
        "from torchtitan.trainer import Trainer",
    ]
    return "\n".join(
        [
            '"""A plan of sailor as a configuration of torchtitan 0.3."""',
            "",
            *imports,
            "",
            "",
            f"def {FUNCTION}() -> Trainer.Config:",
            f"    config = {configuration_of(model_of(job))}()",
            *_replaced("training", _training(job, plan)),
            *_replaced("parallelism", _parallelism(job, plan)),
            f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else None}",
            "    return config",
            "",
        ]
    )


def _replaced(section: str, fields: Mapping[str, object]) -> Iterator[str]:
    yield f"    config.{section} = replace("
    yield f"        config.{section},"
    for name, value in fields.items():
        if name == "module_fqns_per_model_part" and isinstance(value, list):
            yield f"        {name}=["
            for part in value:
                yield f"            [{', '.join(json.dumps(module) for module in part)}],"
            yield "        ],"
        else:
            yield f"        {name}={_literal(value)},"
    yield "    )"


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _training(job: Job, plan: Plan) -> Mapping[str, object]:
    """Return the fields of TrainingConfig.

    Without a pipeline the microbatches are steps of gradient accumulation, which torchtitan
    derives from the global batch.
    """
    replica = plan.stages[0].replicas[0]
    piped = plan.pp > 1
    fields: dict[str, object] = {
        "local_batch_size": replica.microbatch * (replica.num_microbatches if piped else 1),
        "global_batch_size": plan.samples,
        "seq_len": model_of(job).seq_len,
        "mixed_precision_param": "bfloat16" if job.training.precision == "bf16" else "float32",
    }
    if piped:
        fields["disable_cuda_graphs"] = True  # which a pipeline can't be captured in
    return fields


def _parallelism(job: Job, plan: Plan) -> Mapping[str, object]:
    """Return the fields of ParallelismConfig."""
    replica, zero = plan.stages[0].replicas[0], zero_of(job.training, plan)
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": 1 if zero else plan.dp,
        "data_parallel_shard_degree": plan.dp if zero else 1,
        "tensor_parallel_degree": replica.tp,
        "enable_sequence_parallel": job.training.sequence_parallel and replica.tp > 1,
        "context_parallel_degree": plan.cp,
        "pipeline_parallel_degree": plan.pp,
    }
    if zero:
        fields["fsdp_reshard_after_forward"] = "always" if zero == 3 else "never"
    if plan.pp > 1:
        fields["pipeline_parallel_schedule"] = _SCHEDULES[plan.schedule]
        fields["pipeline_parallel_microbatch_size"] = replica.microbatch
        fields["module_fqns_per_model_part"] = [
            [_module_name(unit, plan.num_units) for unit in range(stage.start, stage.stop)]
            + (["lm_head"] if stage.stop == plan.num_units else [])
            for stage in plan.stages
        ]
    return fields


def _module_name(unit: int, num_units: int) -> str:
    if unit == 0:
        return "tok_embeddings"
    return "norm" if unit == num_units - 1 else f"layers.{unit - 1}"
