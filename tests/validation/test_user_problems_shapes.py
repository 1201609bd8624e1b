"""Faults that users of other planners met: shapes, times and what an answer must say."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from sailor.api import build_problem, load_plan
from sailor.errors import InputError
from sailor.model.arch import Experts, ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.execution import Chunk, Execution, Layout, chunks_of, even_chunks
from sailor.model.hardware import Market
from sailor.model.plan import Plan
from sailor.model.presets import preset
from sailor.model.problem import Problem
from sailor.model.profile import Provenance
from sailor.sim.analytic_memory import rank_params
from sailor.sim.analytic_time import Setting, block_times, iteration_time, unit_seconds
from sailor.sim.columns import Column, plan_of
from sailor.sim.device import gpu_facts
from sailor.sim.estimate import estimate
from sailor.sim.frameworks import framework_times
from sailor.sim.kinds import WorkerKind

GQA = ModelSpec(
    name="gqa", num_layers=4, hidden=1024, ffn=2816, num_heads=16, num_kv_heads=2, head_dim=64,
    vocab=32000, seq_len=1024, gated_mlp=True, biases=False, norm="rmsnorm",
)  # fmt: skip


def job(**changes: Any) -> dict[str, Any]:
    return {
        "name": "job", "model": "opt-350m",
        "training": {"global_batch": 16, "precision": "fp32"},
        "pool": [{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 8}],
        **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(job())


def a100(tp: int = 1) -> WorkerKind:
    return WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, f"a2-highgpu-{tp}g", tp)


def plan(cuts: list[int], num_units: int = 26, **changes: Any) -> dict[str, Any]:
    """A plan file of stages [cuts[i], cuts[i + 1])."""
    replica = {"gpu": "A100-40GB", "node_type": "a2-highgpu-1g", "zone": "us-central1-a", "tp": 1,
               "microbatch": 1, "num_microbatches": 16}  # fmt: skip
    stages = [
        {"start": start, "stop": stop, "replicas": [replica]} for start, stop in pairwise(cuts)
    ]
    return {"model": "opt-350m", "num_units": num_units, "global_batch": 16, "stages": stages,
            **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "pp", "wanted"),
    [
        # Megatron-LM #1304: 30 layers on 4 stages became 28 without a word.
        (30, 4, [8, 8, 7, 7]),
        # Megatron-LM #1303, PR #823: 40 layers on 16 stages became 32.
        (40, 16, [3] * 8 + [2] * 8),
        # torchtitan PR #963: the remainder of an odd count was ignored.
        (61, 8, [8] * 5 + [7] * 3),
        # Megatron-LM fork PR #53: 43 and 78 layers over any number of stages.
        (43, 5, [9, 9, 9, 8, 8]), (78, 12, [7] * 6 + [6] * 6),
    ],
)  # fmt: skip
def test_uneven_cuts_hold_every_layer(layers: int, pp: int, wanted: list[int]) -> None:
    chunks = even_chunks(layers, pp)
    assert [chunk.blocks for chunk in chunks] == wanted
    model = GQA.model_copy(update={"num_layers": layers})
    cut = Layout(tp=1, dp=1, pp=pp, microbatch=1, num_microbatches=1, chunks=chunks)
    total = sum(rank_params(model, Execution(), cut, cut.rank_chunks(r))[0] for r in range(pp))
    assert total == model.num_params()


def test_layers_of_each_stage_can_be_named() -> None:
    # Megatron-LM #381, #857: 7 layers as 3 and 4; BLOOM's prequel: 7 a stage and 1 on the last.
    assert [chunk.blocks for chunk in chunks_of([3, 4])] == [3, 4]
    last = chunks_of([7] * 11 + [1])
    assert sum(chunk.blocks for chunk in last) == 78
    assert last[-1] == Chunk(blocks=1, head=True)


@pytest.mark.parametrize(
    ("cuts", "sentence"),
    [
        ([0, 13, 25], "the stages stop at unit 25, but the model has units 0..25"),
        ([0, 13, 13, 26], "stage 1 holds no unit"),
    ],
)
def test_a_plan_that_drops_layers_is_refused(cuts: list[int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_plan(plan(cuts))


def test_a_plan_that_doubles_one_layer_and_drops_another_is_refused() -> None:
    # Five of Sailor's own validation plans list layer 29 in two stages and layer 19 in none.
    for stages, sentence in (
        (((0, 20), (21, 30), (29, 26)), "units 20..20 are in no stage"),
        (((0, 20), (19, 26)), "unit 19 is in two stages"),
    ):
        broken = plan([0, 26])
        (whole,) = broken["stages"]
        broken["stages"] = [{**whole, "start": a, "stop": b} for a, b in stages]
        with pytest.raises(InputError, match=sentence):
            load_plan(broken)


def test_layers_of_plan_and_model_are_compared(problem: Problem) -> None:
    # Megatron-LM #1778: a model built with fewer layers than its FLOPs were counted for reported an
    # impossible speed. OPT-350M has 24 blocks and two ends.
    short = load_plan(plan([0, 20], num_units=20))
    with pytest.raises(InputError, match="the plan has 20 units and opt-350m has 26"):
        estimate(problem, short)


def test_time_is_of_as_many_layers_as_the_model_has(problem: Problem) -> None:
    # The same: cut anyhow, the stages' compute adds up to that of 24 blocks and two ends.
    (profile,) = (p for p in problem.profiles if (p.tp, p.microbatch) == (1, 1))
    units = [profile.embedding, profile.first_block, *[profile.block] * 23, profile.head]
    whole = sum(unit.forward_s + unit.backward_s for unit in units)
    for cuts in ((0, 26), (0, 9, 26), (0, 1, 25, 26), (0, 7, 14, 20, 26)):
        column = Column((a100(),) * (len(cuts) - 1), 1, 1, 16)
        found = estimate(problem, plan_of("opt-350m", cuts, [column], 16))
        assert sum(stage.compute_s for stage in found.stages) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("model", "tp", "sentence"),
    [
        # torchtitan PR #2577: two key-value heads at tp 4 ended in a reshape's traceback.
        (GQA, 4, "tp 4 doesn't divide 16 heads and 2 key-value heads of gqa; .*allowed: 1, 2"),
        # gpustack #814: tp 3 was chosen for 64 heads.
        (GQA.model_copy(update={"num_heads": 64, "num_kv_heads": 8}), 3, "tp 3 doesn't divide 64"),
    ],
)
def test_degrees_that_do_not_divide_are_refused_early(
    model: ModelSpec, tp: int, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        build_problem(job(model=model.model_dump(), constraints={"tp": tp}))


def test_uneven_vocabularies_are_padded_not_refused() -> None:
    # vllm #31474: 96 heads split over 6, the vocabulary of 151,552 doesn't. 198 x 768 rows do.
    model = GQA.model_copy(update={"num_heads": 96, "num_kv_heads": 96, "vocab": 151_552})
    assert model.allows_tp(6)
    assert model.padded_vocab(6) == 152_064


@pytest.mark.parametrize(
    ("vocab", "tp", "divisor", "rows"),
    [
        # ColossalAI PR #6124: 8 ranks of 16,064 rows, multiples of 64.
        (128_256, 8, 64, 8 * 16_064),
        # Megatron-LLM #103: Llama-2's 32,000 rows are 125 x 256; with a few tokens more they are
        # 32,256, and a checkpoint of 32,000 doesn't load.
        (32_000, 2, 128, 32_000), (32_001, 2, 128, 32_256), (32_017, 2, 128, 32_256),
        # Megatron-Bridge PR #5353: padded once for two ranks, never to 303,872.
        (151_936, 2, 128, 152_064), (152_064, 2, 128, 152_064), (151_936, 2, 1, 151_936),
    ],
)  # fmt: skip
def test_padding_is_counted_once(vocab: int, tp: int, divisor: int, rows: int) -> None:
    model = GQA.model_copy(update={"vocab": vocab})
    assert model.padded_vocab(tp, divisor) == rows
    execution = Execution(vocab_divisor=divisor)
    cut = Layout(tp=tp, dp=1, pp=1, microbatch=1, num_microbatches=1, chunks=chunks_of([0]))
    (table, _) = rank_params(model, execution, cut, (Chunk(blocks=0, embedding=True),))
    assert table == rows / tp * 1024


def test_a_tied_table_is_on_both_end_stages() -> None:
    # Megatron-LM #299: first and last stage hold a copy each, the stages between none.
    model = GQA.model_copy(update={"tied_embeddings": True})
    cut = Layout(tp=1, dp=1, pp=4, microbatch=1, num_microbatches=1, chunks=chunks_of([1] * 4))
    ranks = [rank_params(model, Execution(), cut, cut.rank_chunks(r))[0] for r in range(4)]
    table, norm = 32_000 * 1024, 1024
    assert [count - ranks[1] for count in ranks] == [table, 0, 0, table + norm]


def test_a_step_is_answered_in_tokens_time_and_money(problem: Problem) -> None:
    # SimAI #63, #70, #102: a simulation gave no time of a step, or ended without any and without
    # an error.
    found = estimate(problem, plan_of("opt-350m", (0, 26), [Column((a100(),), 2, 1, 8)], 16))
    assert found.tokens == 16 * 2048
    assert math.isfinite(found.time.total_s)
    assert found.time.total_s > 0
    assert found.usd_per_iteration > 0
    assert found.iterations_per_s == pytest.approx(1 / found.time.total_s)


def test_a_microbatch_beyond_the_profile_is_refused(problem: Problem) -> None:
    # SimAI #241: outside of what was measured the predictor guessed in silence.
    beyond = 3
    column = Column((a100(),), 1, beyond, 5)
    with pytest.raises(
        InputError, match="no profile of opt-350m on A100-40GB at tp 1, microbatch 3"
    ) as error:
        estimate(problem, plan_of("opt-350m", (0, 26), [column], 15))
    assert "profiled (tp, microbatch): (1, 1)" in str(error.value)


def test_every_estimate_says_how_far_such_figures_have_been_off(problem: Problem) -> None:
    # SimAI #305: is 20 % expected? Bands are by regime; modelled layers are less sure of memory.
    def bands(of: Problem) -> dict[str, tuple[Provenance, float | None]]:
        found = estimate(of, plan_of(of.arch.name, (0, of.arch.num_units),
                                     [Column((a100(),), 1, 1, 16)], 16))  # fmt: skip
        return {figure.name: (figure.provenance, figure.error_pct) for figure in found.figures}

    measured = bands(problem)
    modelled = bands(build_problem(job(sources={"profiles": "analytic"})))
    assert measured["memory of a worker"][0] is Provenance.MEASURED
    assert modelled["memory of a worker"][0] is Provenance.MODELLED
    for name in ("time of layers on A100-40GB", "memory of a worker"):
        for _, band in (measured[name], modelled[name]):
            assert band is not None
            assert 0 < band < 15
    (sure, guess) = (b["memory of a worker"][1] for b in (measured, modelled))
    assert sure is not None
    assert guess is not None
    assert sure < guess


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        # SimAI #263: a number of epochs was taken and had no effect.
        ({"training": {"global_batch": 16, "epoch_num": 3}}, "unknown key 'epoch_num' in training"),
        # ms-swift #5737, slime PR #1486: renamed arguments were lost on the way.
        ({"constraints": {"pipeline_parallel": 4}}, "unknown key 'pipeline_parallel'"),
        ({"epochs": 3}, "unknown key 'epochs'"),
    ],
)
def test_options_without_effect_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_problem(job(**changes))


def test_equal_memory_is_not_equal_speed() -> None:
    # exo #957: layers in proportion to memory on machines of unlike speed: the slow one sets the
    # pace. Four blocks more on the A100 than on the V100 are faster than equal halves.
    problem = build_problem(
        job(pool=[{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 1},
                  {"zone": "us-central1-a", "gpu": "V100-16GB", "quota": 1}])
    )  # fmt: skip
    v100 = WorkerKind("V100-16GB", "us-central1-a", Market.ON_DEMAND, "n1-v100-1", 1)

    def at(cut: int) -> Any:
        made: Plan = plan_of("opt-350m", (0, cut, 26), [Column((a100(), v100), 1, 1, 16)], 16)
        return estimate(problem, made)

    equal, shifted = at(13), at(17)
    fast, slow = equal.stages
    assert slow.compute_s > 1.3 * fast.compute_s
    assert shifted.time.total_s < equal.time.total_s
    # The slower stage's time is paid for every microbatch.
    assert equal.time.total_s > 16 * slow.compute_s


def test_presets_and_plans_mean_the_same_layers() -> None:
    # Megatron-LM #1778 again, for every shape that ships: units are blocks and two ends.
    for name in ("opt-350m", "gpt-3-175b", "llama-3-8b"):
        model = preset(name)
        kinds = [model.unit_kind(unit) for unit in range(model.num_units)]
        assert kinds.count("block") + kinds.count("first_block") == model.num_layers
        assert (kinds[0], kinds[-1]) == ("embedding", "head")


def test_experts_are_reduced_and_updated_too() -> None:
    # Megatron-Bridge PR #5077's mixed variant: a stage's experts are part of its work. Eight
    # experts on one rank of each of four replicas; 7 more than a dense block holds.
    gpu = Catalog.builtin().gpu("A100-80GB")
    cut = Layout(tp=1, dp=4, pp=1, microbatch=1, num_microbatches=1, chunks=even_chunks(4, 1))
    experts = Experts(num_experts=8, top_k=2, ffn=2816)
    dense, sparse = (
        iteration_time(Setting.of(GQA.model_copy(update={"experts": one}), Execution(), cut, gpu))
        for one in (None, experts)
    )
    # Blocks: 2 x 1024 x (1024 + 128) of attention, 3 x 1024 x 2816 an expert, norms; two tables.
    expert = 3 * 1024 * 2816
    rest = 4 * (2 * 1024 * (1024 + 128) + 2 * 1024) + 2 * 32_000 * 1024 + 1024
    ratio = (rest + 4 * (8 * expert + 8 * 1024)) / (rest + 4 * expert)
    assert sparse.gradients / dense.gradients == pytest.approx(ratio, rel=0.01)
    times, facts = framework_times("megatron-lm"), gpu_facts(gpu)
    more = 4 * (7 * expert + 8 * 1024) * times.optimizer_bytes
    traffic = gpu.memory_bandwidth * facts.memory_share
    assert sparse.optimizer - dense.optimizer == pytest.approx(more / traffic)


def test_recomputing_half_of_the_operators_takes_half_a_forward_pass() -> None:
    gpu = Catalog.builtin().gpu("A100-80GB")
    cut = Layout(tp=1, dp=1, pp=1, microbatch=8, num_microbatches=1, chunks=even_chunks(4, 1))
    none, half = (
        Setting.of(GQA, Execution(recompute=how), cut, gpu) for how in ("none", "operators")
    )
    more = block_times(half)[0] - block_times(none)[0]
    assert more == pytest.approx(0.5 * unit_seconds(none, "block").forward)
