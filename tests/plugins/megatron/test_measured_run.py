"""`sailor train --measure` and `sailor compare-run`: figures of a run, and the simulator's."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import click
import pytest

pytest.importorskip("torch")

from click.testing import CliRunner
from layout_strategies import replica

import sailor
from sailor.errors import InputError, PluginError
from sailor.model.job import Job
from sailor.model.plan import Plan, Stage
from sailor_megatron.command import train
from sailor_megatron.compare import Row, as_run, compare_run
from sailor_megatron.compare_command import compare
from sailor_megatron.measured import (
    HandOver,
    StageSeconds,
    UnitFigures,
    WorkerFigures,
    read_workers,
)
from sailor_megatron.options import RunOptions
from sailor_megatron.own_profile import profile_of
from sailor_megatron.run_folder import (
    JOB_FILE,
    RUN_FILE,
    RunSpec,
    change_file,
    model_of,
    worker_file,
)
from sailor_megatron.run_request import run_spec

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples/jobs/tiny-gpt-cpu.yaml"


def job() -> Job:
    spec = model_of(sailor.load_job(JOB)).model_copy(update={"name": "micro", "num_layers": 2})
    return sailor.load_job(JOB).model_copy(update={"model": spec})


def plan() -> Plan:
    """Return two blocks on two small GPUs at tp 2, the head on a large one."""
    small = replica(2, 2, 3).model_copy(
        update={"gpu": "cpu-small", "node_type": "pair-of-small", "zone": "this-machine"}
    )
    large = small.model_copy(update={"gpu": "cpu-large", "node_type": "one-large", "tp": 1})
    return Plan(
        model="micro", num_units=4, global_batch=6,
        stages=(
            Stage(start=0, stop=3, replicas=(small,)), Stage(start=3, stop=4, replicas=(large,))
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a measured run of three workers."""
    place = tmp_path_factory.mktemp("measured")
    (place / "job.json").write_text(job().model_dump_json())
    (place / "plan.json").write_text(plan().model_dump_json())
    arguments = ["--steps", "4", "--measure", "--out", str(place / "run")]
    train.main(
        [str(place / "job.json"), str(place / "plan.json"), *arguments], standalone_mode=False
    )
    return place / "run"


@pytest.mark.timeout(100)
def test_every_worker_times_its_stage_its_units_and_its_links(folder: Path) -> None:
    run = RunSpec.model_validate_json((folder / RUN_FILE).read_text())
    workers = read_workers(folder, run)
    assert [(w.rank, w.stage, w.tp_rank) for w in workers] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    for worker in workers:
        assert worker.iterations == 4
        assert worker.peak_bytes > worker.before_bytes > 0
        (stage,) = worker.stages
        assert stage.passes == 9  # three iterations after the first, of three microbatches
        assert 0 < stage.forward_s < 5
        assert 0 < stage.backward_s < 5
        assert [unit.kind for unit in worker.units] == ["embedding", "block", "head"]
        pipeline = (worker.stages[0].forward_s + worker.stages[0].backward_s) * 3
        assert worker.iteration_s is not None
        assert pipeline < 2 * worker.iteration_s
    assert [len(worker.hand_overs) for worker in workers] == [1, 0, 0]
    (moved,) = workers[0].hand_overs
    assert moved.message_bytes == 2 * 128 * 128 * 4  # microbatch x positions x hidden x fp32
    assert moved.latency_s < 1


def test_the_profile_is_one_that_sailor_reads(folder: Path) -> None:
    store = sailor.ProfileStore.load(folder / "profile.json")
    assert store.models[0].name == "micro"
    assert {(p.gpu, p.tp, p.microbatch) for p in store.profiles} == {
        ("cpu-large", 1, 2),
        ("cpu-small", 2, 2),
    }
    assert all(p.optimizer_s > 0 for p in store.profiles)
    whole = store.footprint("micro", 1, "fp32")
    assert whole is not None
    # By the shapes: 12 h^2 + 13 h of a block with ffn 4h and biases, and both tables.
    assert whole.block.params == 12 * 128**2 + 13 * 128
    assert whole.embedding.params == (256 + 128) * 128
    assert whole.block.output_bytes == 128 * 128 * 4
    assert whole.head.output_bytes == 128 * 256 * 4
    # A block keeps at least its input twice normed, q, k, v and the mlp's 4h, in fp32.
    assert 128 * 128 * 4 * 9 < whole.block.activation_bytes < 128 * 128 * 4 * 40
    assert {(link.src_gpu, link.dst_gpu) for link in store.links} == {
        ("cpu-small", "cpu-large"),
        ("cpu-large", "cpu-small"),
    }


def test_a_stage_of_the_profile_takes_what_it_took_in_the_run(folder: Path) -> None:
    run = RunSpec.model_validate_json((folder / RUN_FILE).read_text())
    last = read_workers(folder, run)[2]
    profile = sailor.ProfileStore.load(folder / "profile.json").profile(
        "micro", "cpu-large", 1, 2, "fp32"
    )
    assert profile is not None
    assert profile.head.forward_s == pytest.approx(last.stages[0].forward_s)
    assert profile.head.backward_s == pytest.approx(last.stages[0].backward_s)


def test_compare_run_with_the_runs_own_profile(folder: Path) -> None:
    """Its own times put each stage right: two tp ranks are averaged, so within their spread."""
    found = compare_run(folder, own_profile=True)
    rows = {(row.what, row.place): row for row in found.rows}
    head = rows["forward", "stage 1, replica 0: cpu-large x1"]
    assert head.simulated == pytest.approx(head.measured, rel=1e-6)
    transfer = rows["transfer", "stage 0 to 1, replica 0"]
    assert transfer.measured is not None
    assert transfer.simulated is not None
    # The simulator gives the link at most the node's card; the run's own latency counts in full.
    assert transfer.simulated > 0
    iteration = rows["iteration, events", ""]
    assert iteration.measured is not None
    assert iteration.simulated is not None
    assert 0.1 < iteration.simulated / iteration.measured < 3
    assert {what for what, _ in rows} == {
        "iteration, closed form", "iteration, events", "pipeline", "gradient sums", "optimizer",
        "forward", "backward", "transfer", "memory",
    }  # fmt: skip
    assert all(row.simulated and row.measured for row in found.rows if row.what != "gradient sums")


def test_compare_run_prints_a_table_or_json(folder: Path) -> None:
    text = CliRunner().invoke(compare, [str(folder)], obj=None, catch_exceptions=False).output
    lines = text.splitlines()
    assert lines[0] == f"{folder}, simulated with the job's own sources"
    assert lines[1].split() == ["simulated", "measured", "error"]
    assert any(line.startswith("forward") and line.endswith("%") for line in lines)
    text = (
        CliRunner()
        .invoke(compare, [str(folder), "--format", "json"], obj=None, catch_exceptions=False)
        .output
    )
    document = json.loads(text)
    assert document["iterations"] == 4
    assert document["rows"][0]["what"] == "iteration, closed form"
    simulated = sailor.simulate(as_run(job(), RunOptions()), plan()).iteration_s
    assert document["rows"][0]["simulated"] == pytest.approx(simulated)


def unit(kind: str, forward_s: float, backward_s: float) -> UnitFigures:
    return UnitFigures.model_validate(
        {
            "kind": kind, "forward_s": forward_s, "backward_s": backward_s,
            "params": 10, "activation_bytes": 100.0, "output_bytes": 50.0,
        }
    )  # fmt: skip


def worker(rank: int, **fields: object) -> WorkerFigures:
    stage = 1 if rank == 2 else 0
    units = (unit("embedding", 0.1, 0.2), unit("block", 0.2, 0.4), unit("head", 0.3, 0.3))
    return WorkerFigures.model_validate(
        {
            "rank": rank, "stage": stage, "replica": 0, "tp_rank": rank % 2, "device": "cpu",
            "memory": "test", "before_bytes": 100, "peak_bytes": 150, "update_s": 0.5,
            "optimizer_params": 7, "units": units, **fields,
        }
    )  # fmt: skip


def measured_run() -> RunSpec:
    return RunSpec(spec=model_of(job()), plan=plan(), options=RunOptions(), steps=4, measure=True)


def test_units_are_scaled_to_what_their_stage_took() -> None:
    """Embedding and two blocks alone: 0.5 s and 1.0 s; the run took 1.0 s and 1.5 s."""
    first = StageSeconds(start=0, stop=3, forward_s=1.0, backward_s=1.5, passes=3)
    last = StageSeconds(start=3, stop=4, forward_s=0.9, backward_s=0.3, passes=3)
    moved = HandOver(
        stage=0, replica=0, to_stage=1, to_replica=0, message_bytes=1000, seconds=1.5, latency_s=1.0
    )
    store = profile_of(
        measured_run(),
        [
            worker(0, stages=(first,), hand_overs=(moved,)),
            worker(1, stages=(first,)),
            worker(2, stages=(last,)),
        ],
        date(2026, 1, 2),
    )
    small = store.profile("micro", "cpu-small", 2, 2, "fp32")
    assert small is not None
    assert (small.embedding.forward_s, small.block.forward_s) == pytest.approx((0.2, 0.4))
    assert small.block.backward_s == pytest.approx(0.6)
    assert small.head.forward_s == pytest.approx(0.6)  # not held: scaled as the others
    large = store.profile("micro", "cpu-large", 1, 2, "fp32")
    assert large is not None
    assert large.block.forward_s == pytest.approx(0.6)
    assert large.block.backward_s == pytest.approx(0.4)
    assert (large.optimizer_s, large.optimizer_params) == (0.5, 7)
    link = store.link("this-machine", "this-machine", "cpu-small", "cpu-large", 2, 1)
    assert link is not None
    assert link.latency_s == 1.0
    assert link.bandwidth == pytest.approx(1000 / 0.5)
    assert store.as_of == date(2026, 1, 2)


def test_a_message_as_fast_as_an_empty_one_has_a_rate_all_the_same() -> None:
    moved = HandOver(
        stage=0, replica=0, to_stage=1, to_replica=0, message_bytes=1000, seconds=0.5, latency_s=0.6
    )
    assert moved.bytes_per_s == 2000


def test_errors_are_simulated_over_measured() -> None:
    assert Row("x", "", "s", 1.5, 1.0).error_pct == pytest.approx(50.0)
    assert Row("x", "", "s", 0.5, 1.0).error_pct == pytest.approx(-50.0)
    assert Row("x", "", "s", None, 1.0).error_pct is None
    assert Row("x", "", "s", 1.0, None).error_pct is None


def test_a_run_is_simulated_as_it_was_run() -> None:
    training = as_run(
        job(), RunOptions(precision="bf16", recompute=True, zero1=True, optimizer="sgd")
    ).training
    assert (training.precision, training.recompute, training.zero, training.optimizer) == (
        "bf16", "full", 1, "sgd",
    )  # fmt: skip
    assert as_run(job(), RunOptions(precision="fp64")).training.precision == "fp32"


def without_measuring(folder: Path) -> Path:
    (folder / "workers").mkdir(parents=True)
    run = measured_run().model_copy(update={"measure": False})
    (folder / RUN_FILE).write_text(run.model_dump_json())
    (folder / JOB_FILE).write_text(job().model_dump_json())
    for rank in range(3):
        figures = worker(rank, units=(), iteration_s=0.5, pipeline_s=0.4, iterations=4)
        worker_file(folder, rank).write_text(figures.model_dump_json())
    return folder


def test_an_unmeasured_run_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    found = compare_run(without_measuring(tmp_path))
    rows = {row.what: row for row in found.rows}
    assert rows["iteration, events"].measured == 0.5
    assert rows["forward"].measured is None
    assert rows["memory"].measured == 50
    assert any("train --measure" in remark for remark in found.remarks)


def test_what_can_not_be_compared_is_one_sentence(tmp_path: Path) -> None:
    folder = without_measuring(tmp_path)
    with pytest.raises(InputError, match="the run measured no profile"):
        compare_run(folder, own_profile=True)
    worker_file(folder, 1).unlink()
    with pytest.raises(InputError, match="has no figures of worker 1"):
        compare_run(folder)
    with pytest.raises(InputError, match="no such file"):
        compare_run(tmp_path / "nowhere")


def test_too_few_iterations_to_measure(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(job().model_dump_json())
    (tmp_path / "plan.json").write_text(plan().model_dump_json())
    arguments = ["--steps", "2", "--measure", "--out", str(tmp_path / "run")]
    with pytest.raises(PluginError, match="2 iterations are too few to measure"):
        train.main(
            [str(tmp_path / "job.json"), str(tmp_path / "plan.json"), *arguments],
            standalone_mode=False,
        )
    assert not (tmp_path / "run").exists()


def test_the_commands_are_there() -> None:
    group = click.Group()
    from sailor_megatron import sailor_commands

    sailor_commands(group)
    assert sorted(group.commands) == ["change-plan", "compare-run", "train"]


def test_what_the_plan_says_comes_before_flag_and_job() -> None:
    options = train.make_context("train", ["JOB", "PLAN"]).params
    full = job().model_copy(
        update={"training": job().training.model_copy(update={"recompute": "full", "zero": 1})}
    )
    assert run_spec(full, plan(), options).options.recompute
    assert run_spec(full, plan(), options).options.zero1
    neither = plan().model_copy(update={"recompute": "none", "zero": 0})
    assert not run_spec(full, neither, options).options.recompute
    assert not run_spec(full, neither, options).options.zero1
    assert run_spec(job(), plan(), {**options, "recompute": True}).options.recompute
    with pytest.raises(PluginError, match="--recompute: the plan was made with 'none'"):
        run_spec(job(), neither, {**options, "recompute": True})
    sharded = job().training.model_copy(update={"zero": 3})
    with pytest.raises(PluginError, match="this runtime does not run zero 3"):
        run_spec(job().model_copy(update={"training": sharded}), plan(), options)


def test_a_run_that_changed_its_plan_is_not_compared(tmp_path: Path) -> None:
    folder = without_measuring(tmp_path)
    change_file(folder, 1).parent.mkdir(exist_ok=True)
    change_file(folder, 1).write_text(plan().model_dump_json())
    with pytest.raises(InputError, match="the run changed its plan while it went on"):
        compare_run(folder)


def test_selective_recomputation_is_that_of_attention() -> None:
    options = train.make_context("train", ["JOB", "PLAN"]).params
    selective = plan().model_copy(update={"recompute": "selective"})
    chosen = run_spec(job(), selective, options).options
    assert (chosen.recompute, chosen.recompute_attention) == (False, True)
    assert as_run(job(), chosen).training.recompute == "selective"


def test_a_profile_that_nobody_wrote_yet_is_made(folder: Path, tmp_path: Path) -> None:
    """As after a run on several hosts: the workers' files are brought together."""
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (again / "profile.json").unlink()
    found = compare_run(again, own_profile=True)
    assert found.rows == compare_run(folder, own_profile=True).rows
    made, written = (sailor.ProfileStore.load(f / "profile.json") for f in (again, folder))
    assert made.profiles == written.profiles


def test_a_run_that_ended_early_has_no_profile(tmp_path: Path) -> None:
    folder = without_measuring(tmp_path)
    (folder / RUN_FILE).write_text(measured_run().model_dump_json())
    with pytest.raises(InputError, match="the run ended before its units were timed"):
        compare_run(folder, own_profile=True)
