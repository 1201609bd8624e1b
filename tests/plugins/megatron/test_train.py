"""`sailor train`: a mixed plan on processes of this machine, and what goes wrong."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from layout_strategies import replica

import sailor
from sailor.errors import InputError, PluginError
from sailor.model.plan import Plan, Stage
from sailor_megatron.command import train
from sailor_megatron.compare import as_run
from sailor_megatron.launcher import LocalRun, write_run
from sailor_megatron.machine import check_machine
from sailor_megatron.metrics import StepMetrics
from sailor_megatron.options import RunOptions
from sailor_megatron.run_folder import RunSpec, model_of
from sailor_megatron.text_data import TextSamples, standard_text

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples/jobs/tiny-gpt-cpu.yaml"
TINY = {
    "name": "micro", "num_layers": 1, "hidden": 16, "ffn": 32, "num_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "vocab": 256, "seq_len": 16, "max_positions": 16,
}  # fmt: skip


def run_train(*arguments: object) -> None:
    """Run the command in this process; errors come as exceptions."""
    train.main([str(argument) for argument in arguments], standalone_mode=False)


def micro_job(**model: object) -> sailor.Job:
    job = sailor.load_job(JOB)
    spec = model_of(job).model_copy(update={**TINY, **model})
    return job.model_copy(update={"model": spec})


def micro_plan(first: list[int], second: list[int]) -> Plan:
    rows = ((0, 2, first), (2, 3, second))
    return Plan(
        model="micro", num_units=3, global_batch=2 * len(first),
        stages=tuple(
            Stage(start=a, stop=b, replicas=tuple(replica(tp, 1, 2) for tp in tps))
            for a, b, tps in rows
        ),
    )  # fmt: skip


def files(folder: Path, job: sailor.Job, plan: Plan) -> tuple[Path, Path]:
    (folder / "job.json").write_text(job.model_dump_json())
    (folder / "plan.json").write_text(plan.model_dump_json())
    return folder / "job.json", folder / "plan.json"


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(110)
def test_the_example_is_planned_with_mixed_tp_and_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = sailor.optimize(JOB)
    assert result.plan is not None
    degrees = {r.tp for stage in result.plan.stages for r in stage.replicas}
    assert degrees == {1, 2}
    assert result.plan.num_gpus == 6
    plan = tmp_path / "plan.json"
    plan.write_text(result.model_dump_json())
    run_train(JOB, plan, "--steps", 4, "--out", tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    losses = [float(row["loss"]) for row in rows]
    assert 5.3 < losses[0] < 5.9  # untrained: about ln 256 = 5.55 nats a byte
    assert losses[-1] < losses[0] - 0.3
    shown = capsys.readouterr().out
    predicted = sailor.simulate(as_run(sailor.load_job(JOB), RunOptions()), result.plan)
    assert f"(predicted {predicted.iteration_s:.4f} s)" in shown
    most = max(worker.total_bytes - worker.reserve_bytes for worker in predicted.memory) / 2**20
    assert f" MiB (predicted {most:.1f} MiB)" in shown
    assert re.search(
        r"done: .*; memory at most \d+\.\d MiB \(worker \d: growth of the resid", shown
    )
    assert "tokens/s" in shown
    assert sorted(path.name for path in (tmp_path / "run/logs").iterdir()) == [
        f"worker-{rank}.log" for rank in range(6)
    ]


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_run_goes_on_from_a_checkpoint_under_another_plan(tmp_path: Path) -> None:
    job, plan = files(tmp_path, micro_job(), micro_plan([2], [1]))
    run_train(job, plan, "--steps", 2, "--save-every", 1, "--out", tmp_path / "first")
    saved = tmp_path / "first/checkpoints"
    assert sorted(path.name for path in saved.iterdir()) == ["step-1", "step-2"]
    job, plan = files(tmp_path, micro_job(), micro_plan([1], [1]))
    run_train(job, plan, "--steps", 1, "--load", saved / "step-2", "--out", tmp_path / "second")
    (row,) = csv.DictReader((tmp_path / "second/metrics.csv").read_text().splitlines())
    assert row["step"] == "3"


@pytest.mark.timeout(100)
def test_one_sentence_when_a_worker_is_killed(tmp_path: Path) -> None:
    job = micro_job()
    run = RunSpec(spec=model_of(job), plan=micro_plan([2], [1]), options=RunOptions(), steps=10_000)
    write_run(tmp_path, run)
    local = LocalRun(tmp_path, run)

    def kill_at_step_2(metrics: StepMetrics) -> None:
        if metrics.step == 2:
            os.kill(local.process_ids[1], signal.SIGKILL)

    with pytest.raises(PluginError) as caught:
        local.run(kill_at_step_2)
    assert caught.value.exit_code == 6
    assert "worker 1 (stage 0, replica 0, tp rank 1) was killed by SIGKILL" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(alive(process) for process in local.process_ids)


LAUNCH = """
import sys
from pathlib import Path
from sailor_megatron.launcher import LocalRun
from sailor_megatron.run_folder import read_run
folder = Path(sys.argv[1])
local = LocalRun(folder, read_run(folder))
local.run(lambda metrics: print(*local.process_ids, flush=True))
"""


@pytest.mark.timeout(100)
def test_workers_end_with_their_launcher(tmp_path: Path) -> None:
    run = RunSpec(
        spec=model_of(micro_job()), plan=micro_plan([1], [1]), options=RunOptions(), steps=100_000
    )
    write_run(tmp_path, run)
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        workers = [int(word) for word in launcher.stdout.readline().split()]
        launcher.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)


def test_render_only_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = sailor.optimize(JOB)
    plan = tmp_path / "plan.json"
    plan.write_text(result.model_dump_json())
    run_train(JOB, plan, "--render-only", "--out", "shared/run")
    shown = capsys.readouterr().out.splitlines()
    commands = [line for line in shown if line.startswith("torchrun")]
    processes = [line.split("--nproc-per-node=")[1].split()[0] for line in commands]
    assert sorted(processes) == list("1122")  # a host of each pair, and of each single worker
    assert commands[0].endswith("--master-port=29500 -m sailor_megatron.worker shared/run")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def bad_runs(folder: Path) -> Iterator[tuple[list[object], type[Exception], str]]:
    job, plan = files(folder, micro_job(), micro_plan([1], [1]))
    short = folder / "short.txt"
    short.write_text("too short")
    common = [job, plan, "--out", folder / "run"]
    yield [*common, "--text", short], PluginError, "the text has 9 bytes, and one sample takes 17"
    yield [*common, "--text", folder / "no.txt"], PluginError, "no.txt: can't be read: no such"
    yield [*common, "--load", folder], PluginError, "is no checkpoint"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        yield [*common, "--port", port], PluginError, f"port {port} is in use"
    wide = files(folder, micro_job(), micro_plan([3], [1]))
    yield [*wide, "--out", folder / "run"], InputError, "tp 3 is more than micro can be cut into"
    other = files(folder, micro_job(num_layers=2), micro_plan([1], [1]))
    yield [*other, "--out", folder / "run"], InputError, "3 units and micro has 4"
    few_words = files(folder, micro_job(vocab=40), micro_plan([1], [1]))
    yield [*few_words, "--out", folder / "run"], PluginError, "the model has only 40 words"


def test_what_can_not_run_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    for arguments, kind, sentence in bad_runs(tmp_path):
        with pytest.raises(kind, match=sentence) as caught:
            run_train(*arguments)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_a_plan_that_this_machine_can_not_hold_is_refused() -> None:
    spec = model_of(micro_job())
    many = micro_plan([1] * 4000, [1] * 4000)
    with pytest.raises(PluginError, match="the plan has 8000 workers and this machine"):
        check_machine(spec, many, RunOptions())
    huge = spec.model_copy(update={"ffn": 4_000_000, "hidden": 1_000_000})
    with pytest.raises(PluginError, match=r"need about \d+\.\d GiB before any activation"):
        check_machine(huge, micro_plan([1], [1]), RunOptions())


def test_a_folder_of_another_run_is_left_alone(tmp_path: Path) -> None:
    run = RunSpec(
        spec=model_of(micro_job()), plan=micro_plan([1], [1]), options=RunOptions(), steps=1
    )
    write_run(tmp_path, run)
    with pytest.raises(PluginError, match="holds a run already"):
        write_run(tmp_path, run)


def test_an_epoch_shows_every_window_once() -> None:
    text = standard_text()[:1001]
    samples = TextSamples(text, 10, seed=3, where="test")
    assert samples.num_windows == 100
    first = [samples.window(i) for i in range(100)]
    second = [samples.window(i) for i in range(100, 200)]
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    window = samples([7])[0].tolist()
    start = first[7] * 10
    assert bytes(window) == text[start : start + 11]
