"""One kernel: the tables that planners use say what the profile-free model of `validate` says.

For uniform replicas, time and memory of a (Problem, Plan) are those of `iteration_time` and
`rank_memory`, whatever the framework, ZeRO stage, recomputation, experts, context parallelism or
chunks. The two differ in how they count the latency of messages: within 1 % of the time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.api import build_problem
from sailor.model.arch import Experts, ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.estimate import Estimate
from sailor.model.execution import Execution, Layout, even_chunks
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.problem import Problem
from sailor.sim.analytic_memory import RankMemory, rank_memory
from sailor.sim.analytic_time import Setting, TimeParts, iteration_time
from sailor.sim.clusters import in_nodes
from sailor.sim.device import gpu_facts
from sailor.sim.estimate import estimate
from sailor.sim.fidelity import estimate_events

ZONE = "us-central1-a"
NODES = {"A100-80GB": "a2-ultragpu-8g", "H100-80GB": "a3-highgpu-8g"}
LLAMA = ModelSpec(
    name="llama", num_layers=16, hidden=4096, ffn=11008, num_heads=32, num_kv_heads=8,
    head_dim=128, vocab=32000, seq_len=4096, gated_mlp=True, biases=False, norm="rmsnorm",
)  # fmt: skip
TIED = ModelSpec(
    name="gpt", num_layers=16, hidden=2048, ffn=8192, num_heads=16, num_kv_heads=16,
    head_dim=128, vocab=50257, seq_len=1024, max_positions=1024, tied_embeddings=True,
)  # fmt: skip
SPARSE = LLAMA.model_copy(
    update={"name": "moe", "experts": Experts(num_experts=8, top_k=2, ffn=4096, shared_ffn=1024)}
)
MODELS = {model.name: model for model in (LLAMA, TIED, SPARSE)}


@dataclass(frozen=True)
class Case:
    """A uniform plan of a job."""

    model: ModelSpec
    gpu: str
    tp: int
    pp: int
    dp: int
    microbatch: int
    num_microbatches: int
    vpp: int
    training: dict[str, Any]

    @property
    def num_nodes(self) -> int:
        """Return nodes of 8 GPUs that hold it; one more, so that the pool is not a single node."""
        return 1 + -(-self.tp * self.pp * self.dp * self.training.get("cp", 1) // 8)

    def problem(self) -> Problem:
        """Return the closed problem, all modelled."""
        return build_problem(
            {
                "name": "one-kernel",
                "model": self.model.model_dump(),
                "training": {
                    "global_batch": self.dp * self.microbatch * self.num_microbatches,
                    **self.training,
                },
                "pool": [{"zone": ZONE, "node_type": NODES[self.gpu], "count": self.num_nodes}],
                "sources": {"profiles": "analytic", "network": "zones"},
            }
        )

    def plan(self) -> Plan:
        """Return the plan of the even cut."""
        cuts = [0]
        for chunk in even_chunks(self.model.num_layers, self.pp, self.vpp):
            cuts.append(cuts[-1] + chunk.blocks + chunk.embedding + chunk.head)
        replica = Replica(
            gpu=self.gpu, node_type=NODES[self.gpu], zone=ZONE, tp=self.tp,
            microbatch=self.microbatch, num_microbatches=self.num_microbatches,
        )  # fmt: skip
        return Plan(
            model=self.model.name, num_units=cuts[-1],
            global_batch=self.dp * self.microbatch * self.num_microbatches,
            schedule="interleaved" if self.vpp > 1 else "1f1b", vpp=self.vpp,
            cp=self.training.get("cp", 1),
            stages=tuple(
                Stage(start=a, stop=b, replicas=(replica,) * self.dp)
                for a, b in itertools.pairwise(cuts)
            ),
        )  # fmt: skip

    def formulas(self, problem: Problem) -> tuple[TimeParts, list[RankMemory]]:
        """Return what the profile-free model says."""
        layout = Layout(
            tp=self.tp, dp=self.dp, microbatch=self.microbatch, pp=self.pp,
            num_microbatches=self.num_microbatches,
            chunks=even_chunks(self.model.num_layers, self.pp, self.vpp),
        )  # fmt: skip
        gpu = Catalog.builtin().gpu(self.gpu)
        facts = in_nodes(problem.cluster, problem.node(NODES[self.gpu]))
        setting = Setting.of(self.model, problem.training, layout, gpu, facts)
        ranks = [
            rank_memory(self.model, setting.execution, layout, rank, gpu_facts(gpu))
            for rank in range(self.pp)
        ]
        return iteration_time(setting), ranks


def same_memory(found: Estimate, ranks: list[RankMemory]) -> None:
    """Compare every rank's best estimate, bound and parts."""
    assert len(found.memory) == len(ranks)
    for worker, rank in zip(found.memory, ranks, strict=True):
        parts = rank.parts
        for name, mine, theirs in (
            ("total", worker.total_bytes, parts.device),
            ("bound", worker.bound_bytes, rank.bound_device),
            ("parameters", worker.parameters_bytes, parts.parameters),
            ("gradients", worker.gradients_bytes, parts.gradients),
            ("optimizer", worker.optimizer_bytes, parts.master + parts.optimizer),
            ("activations", worker.activations_bytes, parts.activations + parts.logits),
        ):
            assert mine == pytest.approx(theirs, rel=1e-6, abs=64), (rank.rank, name)


CASES = {
    "data parallel": Case(LLAMA, "A100-80GB", 1, 1, 16, 1, 4, 1, {}),
    "tensor parallel": Case(LLAMA, "H100-80GB", 8, 1, 2, 1, 4, 1, {"sequence_parallel": True}),
    "pipeline": Case(LLAMA, "A100-80GB", 4, 4, 8, 2, 16, 1, {"recompute": "full"}),
    "zero 1": Case(LLAMA, "A100-80GB", 4, 4, 8, 2, 16, 1, {"zero": 1, "overlap_grads": True}),
    "zero 2": Case(LLAMA, "A100-80GB", 4, 2, 8, 2, 16, 1, {"zero": 2, "recompute": "selective"}),
    "zero in groups": Case(LLAMA, "A100-80GB", 2, 1, 16, 1, 4, 1, {"zero": 1, "zero_group": 4}),
    "fsdp2": Case(LLAMA, "H100-80GB", 1, 1, 64, 1, 4, 1, {"zero": 3, "framework": "torchtitan"}),
    "fsdp": Case(LLAMA, "A100-80GB", 1, 1, 64, 2, 2, 1,
                 {"zero": 3, "framework": "llm-foundry", "keep_gathered": True}),
    "tied, one stage": Case(TIED, "A100-80GB", 4, 1, 8, 4, 4, 1, {}),
    "tied, two stages": Case(TIED, "A100-80GB", 4, 2, 8, 4, 8, 1, {"zero": 1}),
    "deepspeed": Case(TIED, "A100-80GB", 2, 2, 8, 4, 8, 1,
                      {"framework": "megatron-deepspeed", "precision": "fp16", "zero": 1}),
    "unfused, eager": Case(TIED, "A100-80GB", 2, 2, 8, 4, 8, 1,
                           {"fused_norms": False, "attention": "eager", "dropout": False}),
    "experts": Case(SPARSE, "A100-80GB", 2, 2, 16, 1, 8, 1, {"ep": 4, "zero": 1}),
    "experts everywhere": Case(SPARSE, "H100-80GB", 1, 1, 16, 1, 4, 1, {"ep": 8}),
    "context parallel": Case(LLAMA, "A100-80GB", 2, 2, 8, 1, 8, 1, {"cp": 2, "zero": 1}),
    "interleaved": Case(LLAMA, "A100-80GB", 8, 4, 2, 1, 16, 2, {}),
    "interleaved, four chunks": Case(LLAMA, "A100-80GB", 8, 4, 2, 1, 16, 4, {"zero": 1}),
    "interleaved, overlapped": Case(LLAMA, "A100-80GB", 8, 2, 2, 1, 8, 4,
                                    {"overlap_warmup": True, "recompute": "full"}),
    "fp32": Case(TIED, "A100-80GB", 2, 2, 8, 4, 8, 1, {"precision": "fp32"}),
    "sgd": Case(TIED, "A100-80GB", 2, 1, 8, 4, 8, 1, {"optimizer": "sgd"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_tables_and_formulas_agree(name: str) -> None:
    case = CASES[name]
    problem = case.problem()
    found = estimate(problem, case.plan())
    time, ranks = case.formulas(problem)
    same_memory(found, ranks)
    assert found.iteration_s == pytest.approx(time.total, rel=0.01)
    assert found.time.compute_s == pytest.approx(time.compute, rel=1e-6)
    assert found.time.update_s == pytest.approx(time.optimizer + time.step, rel=1e-6)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4, 8]))
    # Stages that fill nodes: within one node the closed form charges the network instead.
    dp = draw(st.sampled_from([8, 16])) // min(tp, 8) * (1 if tp < 8 else 2)
    training: dict[str, Any] = {
        "zero": draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sequence_parallel": draw(st.booleans()),
        "framework": draw(
            st.sampled_from(["megatron-lm", "torchtitan", "llm-foundry", "nanotron"])
        ),
        "overlap_grads": draw(st.booleans()),
        "overlap_params": draw(st.booleans()),
        "overlap_tp": draw(st.booleans()),
        "fused_accumulation": draw(st.booleans()),
        "dropout": draw(st.booleans()),
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32"])),
    }
    if model.experts and dp % 4 == 0:
        training["ep"] = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    return Case(
        model, draw(st.sampled_from(["A100-80GB", "H100-80GB"])), tp, pp, dp,
        draw(st.sampled_from([1, 2])), pp * draw(st.sampled_from([2, 4])), vpp, training,
    )  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_whatever_the_options_they_agree(case: Case) -> None:
    problem = case.problem()
    found = estimate(problem, case.plan())
    time, ranks = case.formulas(problem)
    same_memory(found, ranks)
    assert found.iteration_s == pytest.approx(time.total, rel=0.02)


ENGINE = ("data parallel", "pipeline", "zero 1", "fsdp2", "experts", "context parallel")


@pytest.mark.parametrize("name", ENGINE)
def test_the_engine_is_near_the_closed_form(name: str) -> None:
    # The closed form sends both ways at the ends; the engine hides what it can.
    case = CASES[name]
    problem, plan = case.problem(), case.plan()
    closed = estimate(problem, plan)
    events = estimate_events(problem, plan).estimate
    assert events.iteration_s == pytest.approx(closed.iteration_s, rel=0.09)
    assert events.iteration_s <= closed.iteration_s * 1.01
    assert events.memory == closed.memory


def test_chunks_shorten_the_bubble_and_keep_more() -> None:
    """Interleaving fills the pipeline with chunks; in the engine, too, the iteration is shorter."""
    plain = Case(LLAMA, "A100-80GB", 8, 4, 2, 1, 16, 1, {})
    chunked = CASES["interleaved"]
    problem = plain.problem()
    one, two = (estimate_events(problem, case.plan()) for case in (plain, chunked))
    assert two.estimate.time.bubble_s == pytest.approx(one.estimate.time.bubble_s / 2, rel=0.1)
    assert two.estimate.iteration_s < one.estimate.iteration_s
    assert two.estimate.memory[0].activations_bytes > one.estimate.memory[0].activations_bytes
    assert two.events.schedule == "interleaved"


def test_gpipe_keeps_every_microbatch() -> None:
    case = Case(LLAMA, "A100-80GB", 8, 4, 2, 1, 16, 1, {})
    problem, plan = case.problem(), case.plan()
    gpipe = plan.model_copy(update={"schedule": "gpipe"})
    usual, all_kept = estimate(problem, plan), estimate(problem, gpipe)
    assert [worker.in_flight for worker in usual.memory] == [4, 3, 2, 1]
    assert [worker.in_flight for worker in all_kept.memory] == [16] * 4
    # Stage 1 has blocks alone: what it keeps grows with the microbatches.
    ratio = all_kept.memory[1].activations_bytes / usual.memory[1].activations_bytes
    assert ratio == pytest.approx(16 / 3)
    assert estimate_events(problem, gpipe).events.schedule == "gpipe"


def test_the_training_of_a_job_is_the_execution_of_the_formulas() -> None:
    assert issubclass(type(CASES["fsdp"].problem().training), Execution)
