"""What the torchtitan backend renders, and what it refuses."""

from __future__ import annotations

import ast
import json
from itertools import pairwise

import pytest

from sailor.errors import InputError
from sailor.model.job import Job
from sailor.model.plan import Plan, Replica, Stage
from sailor.registry import Registry
from sailor_megatron.torchtitan_backend import TorchtitanBackend

H100 = Replica(
    gpu="H100-80GB", node_type="a3-highgpu-8g", zone="us-central1-a",
    tp=4, microbatch=1, num_microbatches=8,
)  # fmt: skip


def job(model: str = "llama-3-8b", **training: object) -> Job:
    return Job.model_validate(
        {
            "name": "test",
            "model": model,
            "training": {"global_batch": 16, "precision": "bf16", **training},
            "pool": [{"zone": "us-central1-a", "node_type": "a3-highgpu-8g", "count": 2}],
        }
    )


def plan(*cuts: int, **fields: object) -> Plan:
    replicas = fields.pop("replicas", (H100, H100))
    return Plan.model_validate(
        {
            "model": "llama-3-8b", "num_units": cuts[-1], "global_batch": 16, **fields,
            "stages": [
                Stage(start=a, stop=b, replicas=replicas)  # type: ignore[arg-type]
                for a, b in pairwise(cuts)
            ],
        }
    )  # fmt: skip


GOLDEN = '''\
"""A plan of sailor as a configuration of torchtitan 0.3."""

from dataclasses import replace

from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.trainer import Trainer


def planned() -> Trainer.Config:
    config = llama3_8b()
    config.training = replace(
        config.training,
        local_batch_size=8,
        global_batch_size=16,
        seq_len=8192,
        mixed_precision_param="bfloat16",
        disable_cuda_graphs=True,
    )
    config.parallelism = replace(
        config.parallelism,
        data_parallel_replicate_degree=1,
        data_parallel_shard_degree=2,
        tensor_parallel_degree=4,
        enable_sequence_parallel=True,
        context_parallel_degree=1,
        pipeline_parallel_degree=2,
        fsdp_reshard_after_forward="always",
        pipeline_parallel_schedule="1F1B",
        pipeline_parallel_microbatch_size=1,
        module_fqns_per_model_part=[
            ["tok_embeddings", {first}],
            [{last}, "norm", "lm_head"],
        ],
    )
    config.activation_checkpoint = FullAC.Config()
    return config
'''


def layers(start: int, stop: int) -> str:
    return ", ".join(f'"layers.{index}"' for index in range(start, stop))


def test_an_uneven_pipeline_with_sharding_and_full_recomputation() -> None:
    """20 blocks on the first stage, 12 and the head on the second; two nodes of 8 GPUs."""
    wanted = job(zero=3, recompute="full", sequence_parallel=True)
    spec = TorchtitanBackend().render(wanted, plan(0, 21, 34))
    golden = GOLDEN.format(first=layers(0, 20), last=layers(20, 32))
    assert spec.files["sailor_plan.py"] == golden
    start = ("torchrun", "--nnodes=2")
    rest = (
        "--nproc-per-node=8", "--master-port=29500",
        "-m", "torchtitan.train", "--module", "sailor_plan", "--config", "planned",
    )  # fmt: skip
    assert spec.commands == (
        (*start, "--node-rank=0", *rest),
        (*start, "--node-rank=1", *rest),
    )
    assert [host["num_ranks"] for host in json.loads(spec.files["hosts.json"])] == [8, 8]
    assert Plan.model_validate_json(spec.files["plan.json"]) == plan(0, 21, 34)


def fields(spec_text: str, section: str) -> dict[str, object]:
    """Return the keyword arguments of `config.SECTION = replace(...)`, read as Python."""
    for node in ast.walk(ast.parse(spec_text)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"config.{section}":
            assert isinstance(node.value, ast.Call)
            return {str(k.arg): ast.literal_eval(k.value) for k in node.value.keywords}
    raise AssertionError(f"no config.{section}")


def test_an_interleaved_plan_lists_its_chunks_in_model_order() -> None:
    chunked = plan(0, 9, 17, 26, 34, schedule="interleaved", vpp=2)
    text = TorchtitanBackend().render(job(), chunked).files["sailor_plan.py"]
    found = fields(text, "parallelism")
    assert found["pipeline_parallel_degree"] == 2
    assert found["pipeline_parallel_schedule"] == "Interleaved1F1B"
    parts = found["module_fqns_per_model_part"]
    assert isinstance(parts, list)
    assert [len(part) for part in parts] == [9, 8, 9, 9]  # the last has norm and lm_head
    assert parts[1][0] == "layers.8"
    assert parts[3] == [*(f"layers.{index}" for index in range(25, 32)), "norm", "lm_head"]


def test_one_stage_accumulates_gradients_over_microbatches() -> None:
    """No pipeline: the batch of a step is one microbatch, 8 steps of two replicas make 16."""
    text = (
        TorchtitanBackend().render(job(recompute="operators"), plan(0, 34)).files["sailor_plan.py"]
    )
    training, parallelism = fields(text, "training"), fields(text, "parallelism")
    assert (training["local_batch_size"], training["global_batch_size"]) == (1, 16)
    assert "disable_cuda_graphs" not in training
    assert parallelism["data_parallel_replicate_degree"] == 2
    assert parallelism["data_parallel_shard_degree"] == 1
    assert parallelism["enable_sequence_parallel"] is False
    assert "module_fqns_per_model_part" not in parallelism
    assert "config.activation_checkpoint = SelectiveAC.Config()" in text


def test_without_recomputation_the_policy_is_none() -> None:
    text = TorchtitanBackend().render(job(), plan(0, 34)).files["sailor_plan.py"]
    assert "    config.activation_checkpoint = None\n" in text
    assert "activation_checkpoint import" not in text


def test_context_parallel_ranks_lie_on_the_replicas_node() -> None:
    """tp 4 x cp 2 fills a node of 8: two replicas, two hosts."""
    spec = TorchtitanBackend().render(job(cp=2), plan(0, 34, cp=2))
    assert fields(spec.files["sailor_plan.py"], "parallelism")["context_parallel_degree"] == 2
    assert [host["num_ranks"] for host in json.loads(spec.files["hosts.json"])] == [8, 8]


@pytest.mark.parametrize(
    ("wanted", "given", "reason"),
    [
        (job("opt-350m"), plan(0, 26), "torchtitan has no configuration of opt-350m's shape"),
        (job(precision="fp16"), plan(0, 34), "it trains in fp16, and torchtitan in bf16 or fp32"),
        (job(optimizer="sgd"), plan(0, 34), "its optimizer is sgd, and torchtitan's is AdamW"),
        (job(), plan(0, 34, zero=1), "it has zero 1, and torchtitan shards gradients too"),
        (job(), plan(0, 34, recompute="selective"), "it recomputes attention's core only"),
        (
            job(),
            plan(0, 34, replicas=(H100, H100.model_copy(update={"tp": 2}))),
            "its replicas have tp 2 and 4, and torchtitan has one tensor_parallel_degree",
        ),
        (
            job(),
            plan(0, 34, replicas=(H100, H100.model_copy(update={"num_microbatches": 4}))),
            "its replicas have num_microbatches 4 and 8, and torchtitan has one number",
        ),
        (job(), plan(0, 26), "it is a plan of 26 units, and llama-3-8b has 34"),
    ],
)
def test_refusals_say_why(wanted: Job, given: Plan, reason: str) -> None:
    reasons = TorchtitanBackend().unsupported(wanted, given)
    assert len(reasons) == 1
    assert reasons[0].startswith(reason)
    with pytest.raises(InputError, match="the plan can't be run with torchtitan: "):
        TorchtitanBackend().render(wanted, given)


def test_the_backend_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_PLUGINS", "megatron_backend")
    assert Registry.load().backend("torchtitan").name == "torchtitan"
