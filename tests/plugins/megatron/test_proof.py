"""The mathematics of a plan is that of a single process."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

import torch
from gang import run_gang
from layout_strategies import replica, small_model, small_plan
from proof import CPU, compare, opened, text_losses, train_rank, windows
from single_process import Reference

from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Stage
from sailor_megatron.engine import POSTED_ACTIONS, Engine, as_planned
from sailor_megatron.layout import PlanLayout
from sailor_megatron.options import RunOptions
from sailor_megatron.point_to_point import MAX_SENDS
from sailor_megatron.process_groups import leave
from sailor_megatron.text_data import TextSamples, standard_text

FP32_GRADIENT, FP64_STATE = 1e-6, 1e-10
LIMIT_S = 60


@dataclass(frozen=True)
class Case:
    """One generated run."""

    seed: int
    spec: ModelSpec
    plan: Plan
    options: RunOptions

    def label(self) -> str:
        shape = "|".join("+".join(str(r.tp) for r in stage.replicas) for stage in self.plan.stages)
        return f"{self.seed}-{self.spec.name}-{shape}-{self.options.precision}"


def generated(seed: int) -> Case:
    """Return a run on 2 to 7 processes; fp32 and fp64 in turn, options drawn."""
    rng = random.Random(seed)
    spec = small_model(rng)
    plan = small_plan(rng, spec, max_ranks=7, min_ranks=2)
    options = RunOptions(
        precision="fp32" if seed % 2 else "fp64",
        learning_rate=1e-2,
        clip_norm=rng.choice((None, 0.05)),
        recompute=rng.random() < 0.5,
        recompute_attention=rng.random() < 0.5,
        zero1=rng.random() < 0.4,
        sequence_parallel=rng.random() < 0.4,
        dropout=rng.choice((0.0, 0.1)),
        attention_dropout=rng.choice((0.0, 0.0, 0.1)),
        activation="relu" if spec.name == "opt" else "gelu",
        seed=seed,
    )
    return Case(seed, spec, plan, options)


def check(case: Case) -> None:
    found = compare(case.spec, case.plan, case.options, limit_s=LIMIT_S)
    assert found.replicas_agree
    assert found.gradient < FP32_GRADIENT
    if case.options.precision == "fp64":
        assert found.loss < FP64_STATE
        assert found.norm < FP64_STATE
        assert found.gradient < 1e-13
        assert found.parameter < FP64_STATE
        assert found.moment < FP64_STATE


# Mixed tp within and across stages, uneven units, unequal microbatches, tied table, all options.
SPEC = ModelSpec(
    name="gpt", num_layers=3, hidden=20, ffn=24, num_heads=5, num_kv_heads=5, head_dim=4,
    vocab=31, seq_len=8, max_positions=8, tied_embeddings=True,
)  # fmt: skip
MIXED = Plan(
    model="gpt", num_units=5, global_batch=8,
    stages=(
        Stage(start=0, stop=2, replicas=(replica(2, 2, 3), replica(1, 1, 2))),
        Stage(start=2, stop=5, replicas=(replica(1, 2, 3), replica(2, 1, 2))),
    ),
)  # fmt: skip


def test_mixed_tp_with_a_tied_table_in_fp64() -> None:
    options = RunOptions(
        precision="fp64", learning_rate=1e-2, clip_norm=0.05, recompute=True, dropout=0.1
    )
    check(Case(0, SPEC, MIXED, options))


def test_mixed_tp_with_zero1_in_fp64() -> None:
    untied = SPEC.model_copy(update={"tied_embeddings": False})
    options = RunOptions(precision="fp64", learning_rate=1e-2, clip_norm=0.05, zero1=True)
    check(Case(0, untied, MIXED, options))


LLAMA = ModelSpec(
    name="llama", num_layers=3, hidden=24, ffn=13, num_heads=6, num_kv_heads=2, head_dim=4,
    vocab=31, seq_len=7, biases=False, norm="rmsnorm", gated_mlp=True, tied_embeddings=True,
)  # fmt: skip
INTERLEAVED = Plan(
    model="llama", num_units=5, global_batch=8, schedule="interleaved", vpp=2,
    stages=tuple(
        Stage(start=a, stop=b, replicas=row)
        for (a, b), row in zip(
            ((0, 1), (1, 3), (3, 4), (4, 5)),
            ((replica(1, 1, 2), replica(1, 1, 4)), (replica(4, 1, 2), replica(1, 1, 4))) * 2,
            strict=True,
        )
    ),
)  # fmt: skip


def test_interleaved_chunks_and_split_positions_with_shared_heads_in_fp64() -> None:
    """Four ranks on two key-value heads, and on seven positions: none of it divides."""
    options = RunOptions(
        precision="fp64", learning_rate=1e-2, clip_norm=0.05, sequence_parallel=True,
        dropout=0.1, attention_dropout=0.1, recompute=True,
    )  # fmt: skip
    check(Case(0, LLAMA, INTERLEAVED, options))


def test_a_plan_says_what_is_recomputed_and_shared_out() -> None:
    def planned(**fields: object) -> RunOptions:
        return as_planned(RunOptions(recompute=True), MIXED.model_copy(update=fields))

    assert planned() == RunOptions(recompute=True)
    assert planned(recompute="selective") == RunOptions(recompute_attention=True)
    assert planned(recompute="none", zero=1) == RunOptions(zero1=True)
    assert planned(recompute="full", zero=0) == RunOptions(recompute=True)


def test_the_played_schedules_have_the_engine_s_bounds() -> None:
    assert (POSTED_ACTIONS, MAX_SENDS) == (3, 3)  # as in test_schedule.py


def test_tp_3_beside_tp_2_in_fp32() -> None:
    """Five heads over 3 and 2 ranks: no degree divides them."""
    plan = Plan(
        model="gpt", num_units=5, global_batch=5,
        stages=(Stage(start=0, stop=5, replicas=(replica(3, 1, 3), replica(2, 2, 1))),),
    )  # fmt: skip
    check(Case(1, SPEC, plan, RunOptions(precision="fp32", clip_norm=None)))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bit_runs_follow_the_fp32_loss(precision: str) -> None:
    """Two of each 16-bit format's steps (2^-8, 2^-11) are allowed at a loss of 3.4 nats."""
    options = RunOptions.model_validate(
        {
            "precision": precision,
            "learning_rate": 1e-3,
            "loss_scale": 1024.0,
            "zero1": True,
            "sequence_parallel": True,
            "attention_dropout": 0.1,
            "recompute_attention": True,
        }
    )
    runs = run_gang(train_rank, MIXED.num_gpus, SPEC, MIXED, options, 3, limit_s=LIMIT_S)
    wanted = []
    reference = Reference(SPEC, options, torch.float32)
    for step in range(3):
        samples = range(step * MIXED.samples, (step + 1) * MIXED.samples)
        wanted.append(reference.step(windows(SPEC, samples), samples)[0])
    for run in runs:
        assert run.losses == pytest.approx(
            wanted, rel=2 * {"bf16": 2**-8, "fp16": 2**-11}[precision]
        )
        assert all(value.dtype is torch.float32 for value in run.parameters.values())


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale() -> None:
    options = RunOptions(precision="fp16", loss_scale=2.0**40)
    plan = MIXED.model_copy(
        update={"stages": (Stage(start=0, stop=5, replicas=(replica(2, 8, 1),)),)}
    )
    for scale, before, after in run_gang(overflowing_rank, 2, SPEC, plan, options):
        assert scale == 2.0**39
        assert before == after


def overflowing_rank(
    rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions
) -> tuple[float, float, float]:
    opened(rank, port, plan.num_gpus)
    engine = Engine(PlanLayout(spec, plan), rank, options, CPU, lambda s: windows(spec, s))
    before = float(engine.params.master.sum())
    report = engine.step()
    assert report.skipped
    leave()
    return engine.loss_scale.value, before, float(engine.params.master.sum())


@pytest.mark.slow
def test_200_steps_on_real_text_have_the_losses_of_a_single_process() -> None:
    spec = SPEC.model_copy(update={"vocab": 256, "seq_len": 32, "max_positions": 32})
    options = RunOptions(precision="fp64", learning_rate=3e-3, clip_norm=1.0)
    runs = run_gang(text_losses, MIXED.num_gpus, spec, MIXED, options, 200, limit_s=110)
    text = TextSamples(standard_text(), spec.seq_len, options.seed, where="test")
    reference = Reference(spec, options, torch.float64)
    wanted = []
    for step in range(200):
        samples = range(step * MIXED.samples, (step + 1) * MIXED.samples)
        wanted.append(reference.step(text(samples), samples)[0])
    assert wanted[-1] < wanted[0] - 1.5
    for losses in runs:
        assert losses == pytest.approx(wanted, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("case", [generated(seed) for seed in range(48)], ids=Case.label)
def test_generated_plans(case: Case) -> None:
    check(case)
