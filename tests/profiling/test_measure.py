"""Times measured here: that they are times, that a plan uses them, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import sailor
from sailor.cli.app import build
from sailor.cli.session import Session
from sailor.errors import InputError
from sailor.interfaces import ProfileRequest, UnitStyle
from sailor.model.arch import ModelSpec
from sailor.model.job import Job
from sailor.model.presets import preset
from sailor.model.profile import Provenance
from sailor.profiling.merge import merged
from sailor.profiling.profilers import CountedProfiler, TorchProfiler, profiled
from sailor.profiling.store import ProfileStore

torch = pytest.importorskip("torch")
measure = pytest.importorskip("sailor.profiling.measure")

TINY = ModelSpec(
    name="tiny-gpt", num_layers=3, hidden=64, ffn=256, num_heads=4, num_kv_heads=4, head_dim=16,
    vocab=200, seq_len=32, max_positions=32,
)  # fmt: skip
LLAMA = TINY.model_copy(
    update={
        "name": "tiny-llama", "num_kv_heads": 2, "max_positions": 0, "gated_mlp": True,
        "norm": "rmsnorm", "biases": False,
    }
)  # fmt: skip
MODEL_FILE = """
name: tiny-gpt
num_layers: 3
hidden: 64
ffn: 256
num_heads: 4
num_kv_heads: 4
head_dim: 16
vocab: 200
seq_len: 32
max_positions: 32
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take 100 ms now and then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def request(model: ModelSpec = TINY, precision: str = "fp32", **more: object) -> ProfileRequest:
    return ProfileRequest(model, precision, "cpu", repeats=3, warmup=1, **more)


def run(*arguments: str):
    return CliRunner().invoke(build(), list(arguments), obj=Session(), catch_exceptions=True)


@pytest.mark.parametrize("model", [TINY, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("precision", "style"), [("fp32", UnitStyle()), ("bf16", UnitStyle("eager", "relu", 0.1))]
)
def test_every_kind_of_unit_can_be_timed(model, precision, style) -> None:
    answer = TorchProfiler().profile(
        request(model, precision, tps=(1, 2), microbatches=(2, 1), style=style), lambda p: None
    )
    assert [(p.tp, p.microbatch) for p in answer.profiles] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for profile in answer.profiles:
        for kind in ("embedding", "first_block", "block", "head"):
            time = profile.unit(kind)
            assert 0 < time.forward_s < 5
            assert 0 < time.backward_s < 5  # the embedding's too
        params = sum(
            model.unit_params(kind, profile.tp) for kind in ("embedding", "block", "block", "head")
        )
        assert profile.optimizer_params == params
        assert profile.optimizer_s > 0
        assert profile.provenance is Provenance.MEASURED
        assert profile.as_of is not None
        assert abs((profile.as_of - datetime.now(tz=UTC).date()).days) <= 1
        assert f"torch {torch.__version__}" in profile.source
        assert "median of 3 passes after 1 warm-up" in profile.source
        assert ("communication not included" in profile.source) == (profile.tp > 1)
    assert [remark for remark in answer.remarks if "not in them" in remark] == [
        "tp 2: the times are one rank's work; the communication between 2 ranks is not in them, "
        "so plans with this tp look faster than they are"
    ]


def test_times_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks 1 s a stamp: 1 s a unit and way, scaled to the pass of 1 s a way."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(ticks)))
    (profile,) = TorchProfiler().profile(request(), lambda p: None).profiles
    for kind in ("embedding", "first_block", "block", "head"):
        assert profile.unit(kind).forward_s == pytest.approx(1 / 4)
        assert profile.unit(kind).backward_s == pytest.approx(1 / 4)
    assert profile.optimizer_s == 1.0
    assert "took 4.00 of the pass" in profile.source
    assert "interquartile range 0% forward and 0% backward" in profile.source


def test_larger_work_takes_longer() -> None:
    wide = TINY.model_copy(update={"name": "wide", "hidden": 256, "ffn": 2048, "seq_len": 32})
    (small,) = TorchProfiler().profile(request(), lambda p: None).profiles
    (large,) = TorchProfiler().profile(request(wide, microbatches=(8,)), lambda p: None).profiles
    # 32 times the products' work in one block and 8 times the samples
    assert large.block.backward_s > 4 * small.block.backward_s
    assert large.optimizer_s > small.optimizer_s


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert measure.spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def test_a_size_that_memory_cannot_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 B a float: weights and states of 4 units take 2 MB, a sample's activations about 1 MB
    monkeypatch.setattr(measure, "_free_bytes", lambda: 20_000_000)
    answer = TorchProfiler().profile(request(microbatches=(1, 64, 128)), lambda p: None)
    assert [p.microbatch for p in answer.profiles] == [1]
    (remark,) = answer.remarks
    assert remark.startswith(
        "tp 1, microbatch 64, 128 left out: microbatch 64 is out of memory on cpu (it needs about"
    )
    assert "and 0.0 GB are free" in remark


def test_an_allocation_that_fails_leaves_the_size_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real refusal by the allocator: score matrices of 4 heads over 2^24 positions, 4.5 PB."""
    monkeypatch.setattr(measure, "_free_bytes", lambda: None)
    long = TINY.model_copy(update={"seq_len": 2**24, "max_positions": 0, "hidden": 8, "ffn": 8})
    answer = TorchProfiler().profile(
        request(long, style=UnitStyle("eager"), tps=(1,)), lambda p: None
    )
    assert answer.profiles == ()
    assert "microbatch 1 is out of memory on cpu" in answer.remarks[0]
    assert "allocate" in answer.remarks[0]


@pytest.mark.parametrize(
    ("change", "tps", "reason"),
    [
        ({}, (3,), "tp 3 doesn't divide its 4 heads and 4 key-value heads"),
        ({"seq_len": 64}, (1,), "seq_len 64 is longer than its 32 learned positions"),
        ({"max_positions": 0, "head_dim": 15}, (1,), "head_dim 15 is odd"),
    ],
)
def test_what_cannot_be_built_is_refused_in_words(change, tps, reason) -> None:
    model = TINY.model_copy(update=change)
    with pytest.raises(InputError, match="the profiler 'counted' can't take tiny-gpt") as caught:
        profiled(request(model, tps=tps), [CountedProfiler()], lambda p: None)
    assert reason in str(caught.value)


def test_a_device_that_is_not_there_is_refused() -> None:
    for name in ("cuda:99", "abacus", "meta"):
        with pytest.raises(InputError, match=f"the device '{name}'|can't use the device"):
            measure.open_device(name)


def job_of(store: str) -> Job:
    made_up = {"source": "test"}
    rate = "1 GFLOP/s"
    return Job.model_validate(
        {
            "name": "here",
            "model": TINY.model_dump(),
            "training": {"global_batch": 8, "precision": "fp32"},
            "pool": [{"zone": "desk", "node_type": "box", "count": 1}],
            "sources": {"profiles": {"store": store}, "network": "zones"},
            "catalog": {
                "gpus": [
                    {
                        "name": "cpu", "memory_bytes": "64 GiB", "marketed_gib": 64,
                        "fp32_flop_per_s": rate, "half_flop_per_s": rate,
                        "memory_bandwidth": "1 GB/s", **made_up,
                    }
                ],
                "nodes": [
                    {
                        "name": "box", "provider": "local", "gpu": "cpu", "num_gpus": 1,
                        "intra_node_bandwidth": "1 GB/s", "nic_bandwidth": "1 GB/s", **made_up,
                    }
                ],
                "zones": [{"name": "desk", "region": "home", "provider": "local"}],
                "prices": [
                    {
                        "zone": "desk", "node_type": "box", "market": "on_demand",
                        "usd_per_hour": 0.1, "as_of": "2026-01-01", **made_up,
                    }
                ],
            },
        }
    )  # fmt: skip


def test_a_plan_uses_what_was_measured_here(tmp_path: Path) -> None:
    model, out = tmp_path / "model.yaml", tmp_path / "here.json"
    model.write_text(MODEL_FILE, encoding="utf-8")
    done = run(
        "profile", "measure", str(model), "--out", str(out), "--microbatch", "2,1",
        "--repeats", "3", "--warmup", "1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "2 layer profiles of tiny-gpt on cpu (fp32) and 1 footprints written" in done.output
    store = ProfileStore.load(out)
    assert store.describes(TINY)
    result = sailor.optimize(job_of(str(out)))
    assert result.plan is not None
    assert result.estimate is not None
    replica = result.plan.stages[0].replicas[0]
    profile = store.profile("tiny-gpt", "cpu", 1, replica.microbatch, "fp32")
    assert profile is not None
    # One worker does everything in turn: each microbatch through embedding, three blocks and head.
    blocks = (profile.first_block, profile.block, profile.block)
    one = sum(t.forward_s + t.backward_s for t in (profile.embedding, *blocks, profile.head))
    step = profile.optimizer_s * sum(
        TINY.unit_params(kind) for kind in ("embedding", "block", "block", "block", "head")
    ) / profile.optimizer_params  # fmt: skip
    expected_s = replica.num_microbatches * one + step
    assert result.estimate.iteration_s == pytest.approx(expected_s, rel=0.02)


def test_figures_are_added_to_a_file_and_replace_those_of_the_same_size(tmp_path: Path) -> None:
    first = profiled(request(microbatches=(1, 2)), [TorchProfiler()], lambda p: None)
    second = profiled(request(), [TorchProfiler(), CountedProfiler()], lambda p: None)
    both = merged(first, second, "here")
    assert both.grid("tiny-gpt", "cpu", "fp32") == ((1, 1), (1, 2))
    assert both.profile("tiny-gpt", "cpu", 1, 1, "fp32") == second.profiles[0]
    assert both.profile("tiny-gpt", "cpu", 1, 2, "fp32") == first.profiles[1]
    assert both.footprints == second.footprints
    both.save(tmp_path / "store.json")
    assert ProfileStore.load(tmp_path / "store.json") == both
    other = second.model_copy(update={"models": (TINY.model_copy(update={"hidden": 128}),)})
    with pytest.raises(InputError, match="figures of another model named tiny-gpt"):
        merged(both, other, "here")


def test_bad_input_of_the_verb_is_said_before_anything_runs(tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    notes.write_text('{"a": 1}', encoding="utf-8")
    model = preset("opt-350m").name
    for arguments, said in (
        ((model, "--out", str(notes)), "is not a profile store"),
        (("opt-351m", "--out", str(tmp_path / "x")), "did you mean 'opt-350m'"),
        ((model, "--out", str(tmp_path / "x"), "--tp", "1,two"), "not a list of numbers"),
        ((model, "--out", str(tmp_path / "x"), "--profiler", "touch"), "did you mean 'torch'"),
    ):
        done = run("profile", "measure", *arguments)
        assert done.exit_code != 0
        assert said in f"{done.output} {done.exception}"
    assert notes.read_text(encoding="utf-8") == '{"a": 1}'
