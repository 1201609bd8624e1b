"""What the megatron backend renders, and what it refuses."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import LaunchSpec
from sailor.model.arch import ModelSpec
from sailor.model.job import Job
from sailor.model.plan import Plan, Replica, Stage
from sailor.registry import Registry
from sailor.testing import tiny_jobs
from sailor_megatron.backend import MegatronBackend
from sailor_megatron.run_folder import model_of

A100 = Replica(
    gpu="A100-40GB", node_type="a2-highgpu-4g", zone="us-central1-a",
    tp=2, microbatch=4, num_microbatches=8,
)  # fmt: skip
V100 = A100.model_copy(
    update={"gpu": "V100-16GB", "node_type": "n1-v100-4", "zone": "us-central1-a"}
)


def job(model: str = "opt-350m", precision: str = "fp16", **training: object) -> Job:
    return Job.model_validate(
        {
            "name": "test",
            "model": model,
            "training": {"global_batch": 64, "precision": precision, **training},
            "pool": [{"zone": "us-central1-a", "node_type": "a2-highgpu-4g", "count": 2}],
        }
    )


def plan(*stages: tuple[int, int, list[Replica]], model: str = "opt-350m") -> Plan:
    return Plan(
        model=model,
        num_units=stages[-1][1],
        global_batch=64,
        stages=tuple(Stage(start=a, stop=b, replicas=tuple(rows)) for a, b, rows in stages),
    )


def test_opt_350m_on_two_stages_of_unlike_gpus() -> None:
    """24 blocks as 16 on A100 and 8 on V100; two pipelines of tp 2 fill one 4-GPU node each."""
    spec = MegatronBackend().render(job(), plan((0, 17, [A100] * 2), (17, 26, [V100] * 2)))
    training = (
        "pretrain_gpt.py",
        "--num-layers=24", "--hidden-size=1024", "--ffn-hidden-size=4096",
        "--num-attention-heads=16", "--kv-channels=64", "--seq-length=2048",
        "--max-position-embeddings=2048", "--position-embedding-type=learned_absolute",
        "--vocab-size=50272", "--make-vocab-size-divisible-by=128",
        "--normalization=LayerNorm", "--untie-embeddings-and-output-weights",
        "--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2",
        "--decoder-first-pipeline-num-layers=16", "--decoder-last-pipeline-num-layers=8",
        "--micro-batch-size=4", "--global-batch-size=64", "--optimizer=adam", "--fp16",
    )  # fmt: skip
    start = ("torchrun", "--nnodes=2")
    rest = ("--nproc-per-node=4", "--master-port=29500")
    assert spec.commands == (
        (*start, "--node-rank=0", *rest, *training),
        (*start, "--node-rank=1", *rest, *training),
    )
    assert spec.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert sorted(spec.files) == ["hosts.json", "plan.json"]
    assert json.loads(spec.files["hosts.json"]) == [
        {
            "node_rank": 0, "zone": "us-central1-a", "node_type": "a2-highgpu-4g",
            "market": "on_demand", "gpu": "A100-40GB", "first_rank": 0, "num_ranks": 4,
        },
        {
            "node_rank": 1, "zone": "us-central1-a", "node_type": "n1-v100-4",
            "market": "on_demand", "gpu": "V100-16GB", "first_rank": 4, "num_ranks": 4,
        },
    ]  # fmt: skip


def test_the_plan_file_is_the_plan() -> None:
    wanted = plan((0, 26, [A100] * 2))
    spec = MegatronBackend().render(job(), wanted)
    assert Plan.model_validate_json(spec.files["plan.json"]) == wanted


def test_llama_3_8b_has_grouped_queries_rotary_positions_and_no_biases() -> None:
    spec = MegatronBackend().render(
        job("llama-3-8b", "bf16"), plan((0, 34, [A100] * 2), model="llama-3-8b")
    )
    arguments = set(spec.commands[0])
    assert {
        "--group-query-attention", "--num-query-groups=8", "--swiglu", "--disable-bias-linear",
        "--normalization=RMSNorm", "--position-embedding-type=rope",
        "--max-position-embeddings=8192", "--seq-length=8192", "--bf16",
        "--pipeline-model-parallel-size=1",
    } <= arguments  # fmt: skip
    assert not [argument for argument in arguments if "pipeline-num-layers" in argument]


def test_tied_embeddings_stay_tied_and_fp32_has_no_precision_argument() -> None:
    spec = MegatronBackend().render(
        job("gpt-neo-2.7b", "fp32"), plan((0, 34, [A100] * 2), model="gpt-neo-2.7b")
    )
    assert "--untie-embeddings-and-output-weights" not in spec.commands[0]
    assert not {"--fp16", "--bf16", "--fp32"} & set(spec.commands[0])


@pytest.mark.parametrize(
    ("cuts", "wanted"),
    [
        # units: 0 embedding, 1..24 blocks, 25 head
        ((0, 13, 26), []),  # 12 and 12
        ((0, 9, 17, 26), []),  # 8, 8 and 8
        ((0, 7, 16, 26), ["--decoder-first-pipeline-num-layers=6"]),  # 6, 9, 9
        ((0, 10, 19, 26), ["--decoder-last-pipeline-num-layers=6"]),  # 9, 9, 6
        (
            (0, 5, 15, 26),  # 4, 10, 10: the last stage is like the middle one
            ["--decoder-first-pipeline-num-layers=4"],
        ),
        (
            (0, 4, 11, 18, 26),  # 3, 7, 7, 7
            ["--decoder-first-pipeline-num-layers=3"],
        ),
        (
            (0, 8, 13, 18, 26),  # 7, 5, 5, 7
            ["--decoder-first-pipeline-num-layers=7", "--decoder-last-pipeline-num-layers=7"],
        ),
        (
            (0, 6, 13, 19, 26),  # 5, 7, 6, 6
            ["--pipeline-model-parallel-layout=Et*5|t*7|t*6|t*6L"],
        ),
        ((0, 1, 25, 26), ["--pipeline-model-parallel-layout=E|t*24|L"]),
        ((0, 13, 25, 26), ["--pipeline-model-parallel-layout=Et*12|t*12|L"]),
    ],
)
def test_layer_splits(cuts: tuple[int, ...], wanted: list[str]) -> None:
    stages = [(a, b, [A100] * 2) for a, b in pairwise(cuts)]
    command = MegatronBackend().render(job(), plan(*stages)).commands[0]
    ours = ("--decoder-", "--pipeline-model-parallel-layout")
    assert [part for part in command if part.startswith(ours)] == wanted


def chunked(*cuts: int) -> Plan:
    """Return an interleaved plan of two ranks with two chunks each."""
    stages = [
        {"start": a, "stop": b, "replicas": [A100.model_dump()] * 2} for a, b in pairwise(cuts)
    ]
    return Plan.model_validate(
        {
            "model": "opt-350m", "num_units": cuts[-1], "global_batch": 64, "stages": stages,
            "schedule": "interleaved", "vpp": 2,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cuts", "wanted"),
    [
        ((0, 7, 13, 19, 26), ["--num-virtual-stages-per-pipeline-rank=2"]),  # 6 blocks each
        (
            (0, 6, 13, 20, 26),  # 5, 7, 7, 5
            ["--pipeline-model-parallel-layout=Et*5|t*7|t*7|t*5L"],
        ),
    ],
)
def test_chunks_of_an_interleaved_pipeline(cuts: tuple[int, ...], wanted: list[str]) -> None:
    spec = MegatronBackend().render(job(), chunked(*cuts))
    ours = ("--num-virtual", "--decoder-", "--pipeline-model-parallel-layout")
    assert [part for part in spec.commands[0] if part.startswith(ours)] == wanted
    assert "--pipeline-model-parallel-size=2" in spec.commands[0]
    hosts = json.loads(spec.files["hosts.json"])  # a chunk lies where its rank's first one does
    assert [host["num_ranks"] for host in hosts] == [4, 4]


def options(wanted: Job, given: Plan) -> list[str]:
    """Return what is rendered behind the batch sizes."""
    command = list(MegatronBackend().render(wanted, given).commands[0])
    return command[command.index("--global-batch-size=64") + 1 :]


def test_what_is_split_or_computed_again() -> None:
    one = plan((0, 26, [A100] * 2))
    assert options(job(), one) == ["--optimizer=adam", "--fp16"]
    wanted = job(
        zero=1, recompute="full", sequence_parallel=True, dropout=False, optimizer="sgd", fp8=True
    )
    assert options(wanted, one) == [
        "--optimizer=sgd", "--fp16", "--fp8-format=hybrid",
        "--hidden-dropout=0.0", "--attention-dropout=0.0",
        "--use-distributed-optimizer", "--sequence-parallel",
        "--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1",
    ]  # fmt: skip
    assert options(job(recompute="selective"), one) == [
        "--optimizer=adam", "--fp16", "--recompute-granularity=selective",
    ]  # fmt: skip


def test_the_plan_decides_before_the_job() -> None:
    given = plan((0, 26, [A100] * 2)).model_copy(update={"zero": 0, "recompute": "none"})
    assert options(job(zero=1, recompute="full"), given) == ["--optimizer=adam", "--fp16"]


def test_sequence_parallel_needs_tensor_parallel_ranks() -> None:
    one = A100.model_copy(update={"tp": 1})
    assert "--sequence-parallel" not in options(
        job(sequence_parallel=True), plan((0, 26, [one] * 2))
    )


def test_context_parallel_ranks_lie_on_the_replicas_node() -> None:
    """tp 2 x cp 2 fills a node of 4 GPUs: two replicas, two hosts."""
    given = plan((0, 26, [A100] * 2)).model_copy(update={"cp": 2})
    spec = MegatronBackend().render(job(cp=2), given)
    assert "--context-parallel-size=2" in spec.commands[0]
    assert [host["num_ranks"] for host in json.loads(spec.files["hosts.json"])] == [4, 4]
    wide = plan((0, 26, [A100] * 2)).model_copy(update={"cp": 4})
    assert MegatronBackend().unsupported(job(cp=4), wide) == (
        "tp 2 times cp 4 is more than the 4 GPUs of one node a2-highgpu-4g",
    )


def test_experts() -> None:
    wanted = job("llama-3-8b", "bf16", ep=2, sequence_parallel=True)
    dense = model_of(wanted)
    experts = {"num_experts": 8, "top_k": 2, "ffn": 4096, "shared_ffn": 1024, "dense_blocks": 2}
    spec = ModelSpec.model_validate({**dense.model_dump(), "name": "moe", "experts": experts})
    command = (
        MegatronBackend()
        .render(wanted.model_copy(update={"model": spec}), plan((0, 34, [A100] * 2), model="moe"))
        .commands[0]
    )
    assert {
        "--num-experts=8", "--moe-router-topk=2", "--moe-ffn-hidden-size=4096",
        "--moe-shared-expert-intermediate-size=1024", "--moe-layer-freq=([0]*2+[1]*30)",
        "--expert-model-parallel-size=2",
    } <= set(command)  # fmt: skip


@pytest.mark.parametrize(
    ("training", "changed", "reason"),
    [
        ({}, {"schedule": "gpipe"}, "its schedule is gpipe"),
        ({}, {"zero": 3}, "it has zero 3, and Megatron-LM's distributed optimizer"),
        ({"zero": 1, "zero_group": 2}, {}, "it shares optimizer states in groups"),
        ({}, {"recompute": "operators"}, "it recomputes every other matrix product"),
    ],
)
def test_what_has_no_argument_is_refused(
    training: dict[str, object], changed: dict[str, object], reason: str
) -> None:
    given = plan((0, 26, [A100] * 2)).model_copy(update=changed)
    (found,) = MegatronBackend().unsupported(job(**training), given)  # type: ignore[arg-type]
    assert found.startswith(reason)


def test_unlike_tp_is_refused() -> None:
    wide = A100.model_copy(update={"tp": 4})
    reasons = MegatronBackend().unsupported(job(), plan((0, 13, [A100] * 2), (13, 26, [wide] * 2)))
    assert reasons == (
        "its replicas have tp 2 and 4, and Megatron-LM has one --tensor-model-parallel-size",
    )


def test_unlike_pipelines_are_refused() -> None:
    small = A100.model_copy(update={"microbatch": 2, "num_microbatches": 16})
    mixed = plan((0, 26, [A100, small]))
    reasons = MegatronBackend().unsupported(job(), mixed)
    assert len(reasons) == 2
    assert "microbatch 2 and 4" in reasons[0]
    assert "num_microbatches 8 and 16" in reasons[1]
    with pytest.raises(InputError) as caught:
        MegatronBackend().render(job(), mixed)
    assert str(caught.value).startswith("test: the plan can't be run with Megatron-LM: its repl")


def test_a_node_order_that_needs_more_nodes_than_are_rented_is_refused() -> None:
    """Alternating kinds: each of the four replicas starts a node of its own, two would do."""
    reasons = MegatronBackend().unsupported(job(), plan((0, 26, [A100, V100, A100, V100])))
    assert reasons == (
        "Megatron-LM numbers ranks stage by stage, and in that order the replicas take 2 nodes "
        "a2-highgpu-4g (on_demand, us-central1-a) where the plan rents 1",
        "Megatron-LM numbers ranks stage by stage, and in that order the replicas take 2 nodes "
        "n1-v100-4 (on_demand, us-central1-a) where the plan rents 1",
    )


def test_the_end_of_one_stage_and_the_start_of_the_next_share_a_node() -> None:
    one = A100.model_copy(update={"tp": 1})
    spec = MegatronBackend().render(job(), plan((0, 13, [one] * 3), (13, 26, [one] * 3)))
    hosts = json.loads(spec.files["hosts.json"])
    assert [(host["first_rank"], host["num_ranks"]) for host in hosts] == [(0, 4), (4, 2)]
    assert "--nproc-per-node=2" in spec.commands[1]


def test_a_plan_of_another_model_is_refused() -> None:
    reasons = MegatronBackend().unsupported(job("llama-3-8b"), plan((0, 26, [A100])))
    assert reasons == (
        "it is a plan of 26 units, and llama-3-8b has 34 (32 blocks, embedding, head)",
    )


def test_a_tp_that_does_not_divide_the_heads_is_refused() -> None:
    odd = A100.model_copy(update={"tp": 3})
    reasons = MegatronBackend().unsupported(job(), plan((0, 26, [odd])))
    assert reasons == ("tp 3 does not divide the 16 heads and 16 key-value heads of opt-350m",)


def test_a_node_that_is_too_small_is_refused() -> None:
    wide = A100.model_copy(update={"tp": 8})
    reasons = MegatronBackend().unsupported(job(), plan((0, 26, [wide])))
    assert reasons == ("tp 8 is more than the 4 GPUs of one node a2-highgpu-4g",)


def test_rendering_is_pure() -> None:
    wanted = plan((0, 13, [A100] * 2), (13, 26, [A100] * 2))
    assert MegatronBackend().render(job(), wanted) == MegatronBackend().render(job(), wanted)


def test_the_backend_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_PLUGINS", "megatron_backend")
    registry = Registry.load()
    assert registry.backend("megatron").name == "megatron"
    assert registry.broken() == ()


def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "plugins/megatron_backend/README.md"
    (code,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(tiny_jobs()[0].model_dump_json(), encoding="utf-8")
    names: dict[str, object] = {}
    exec(code, names)
    launch = names["launch"]
    assert isinstance(launch, LaunchSpec)
    assert [command[0] for command in launch.commands] == ["torchrun"] * 2  # two nodes of one GPU
