"""Runs that can't be: one sentence, exit code 6, nothing written."""

from __future__ import annotations

import datetime
import importlib.util
import json
import logging
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from layout_strategies import replica

import sailor
import sailor_megatron.worker as worker_module
from sailor.cli import run as sailor_command
from sailor.errors import PluginError
from sailor.model.plan import Plan, Stage
from sailor_megatron import machine
from sailor_megatron.checkpoint_facts import FORMAT_VERSION, facts_of
from sailor_megatron.event_files import EventWriter
from sailor_megatron.launcher import write_run
from sailor_megatron.layout import PlanLayout
from sailor_megatron.machine import check_machine, model_bytes
from sailor_megatron.metrics import StepMetrics
from sailor_megatron.options import RunOptions
from sailor_megatron.run_folder import RunSpec, model_of

ROOT = Path(__file__).resolve().parents[3]
TINY = {
    "name": "micro", "num_layers": 1, "hidden": 16, "ffn": 32, "num_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "vocab": 256, "seq_len": 16, "max_positions": 16,
}  # fmt: skip


def job() -> sailor.Job:
    example = sailor.load_job(ROOT / "examples/jobs/tiny-gpt-cpu.yaml")
    return example.model_copy(update={"model": model_of(example).model_copy(update=TINY)})


def plan() -> Plan:
    rows = ((0, 2), (2, 3))
    return Plan(
        model="micro", num_units=3, global_batch=2,
        stages=tuple(Stage(start=a, stop=b, replicas=(replica(1, 1, 2),)) for a, b in rows),
    )  # fmt: skip


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run `sailor train`, which must end with 6 and write nothing, and return what it says."""
    (folder / "job.json").write_text(job().model_dump_json())
    (folder / "plan.json").write_text(plan().model_dump_json())
    before = sorted(folder.rglob("*"))
    names = [folder / "job.json", folder / "plan.json", "--out", folder / "run", *arguments]
    assert sailor_command(["train", *(str(name) for name in names)]) == 6
    assert sorted(folder.rglob("*")) == before
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def checkpoint(folder: Path, **model: object) -> Path:
    """Write the index of a checkpoint whose one file isn't there."""
    folder.mkdir()
    spec = model_of(job()).model_copy(update=model)
    tensors = {"master.head.weight": {"pieces": [{"file": "__1_0.distcp"}]}}
    facts = {"format_version": FORMAT_VERSION, **facts_of(spec, RunOptions()), "tensors": tensors}
    (folder / "index.json").write_text(json.dumps(facts))
    return folder


def test_a_checkpoint_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = checkpoint(tmp_path / "step-2", hidden=32)
    (saved / "__1_0.distcp").write_bytes(b"")
    line = refused(tmp_path, capsys, "--load", saved)
    assert "step-2: is a checkpoint of another model: hidden is 32, not 16" in line


def test_a_checkpoint_without_one_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path, capsys, "--load", checkpoint(tmp_path / "step-2"))
    assert "step-2: the checkpoint lacks __1_0.distcp" in line


def test_a_text_that_is_too_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "short.txt"
    text.write_text("two words")
    line = refused(tmp_path, capsys, "--text", text)
    assert "short.txt: the text has 9 bytes, and one sample takes 17; give a longer text" in line


def test_fewer_gpus_than_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpu_bytes", lambda: (2**30,))
    line = refused(tmp_path, capsys, "--device", "cuda")
    assert "the plan has 2 workers and this machine 1 GPUs; each worker takes one" in line


def test_a_gpu_that_is_too_small_for_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0: both tables, a block. By hand: 4 fp32 words a parameter."""
    spec, options = model_of(job()), RunOptions()
    block = 12 * 16 * 16 - 2 * 16 * 16 * 2 + 0  # attention 4 h^2, mlp 2 h 32
    assert block == 4 * 16 * 16 + 2 * 16 * 32
    vectors = 9 * 16 + 32 + 16 - 16  # two norms, qkv, output, up (32) and down biases
    params = (256 + 16) * 16 + block + 4 * 16 + 3 * 16 + 16 + 32 + 16
    assert vectors == 4 * 16 + 3 * 16 + 16 + 32 + 16
    needed = model_bytes(PlanLayout(spec, plan()), 0, options)
    assert needed == params * 16
    half = model_bytes(PlanLayout(spec, plan()), 0, RunOptions(precision="bf16", zero1=True))
    assert half == params * (4 + 4 + 2)
    monkeypatch.setattr(machine, "gpu_bytes", lambda: (2**30, 1000))
    with pytest.raises(PluginError, match=r"worker 1 needs 0\.0 GiB before any activation, and"):
        check_machine(spec, plan(), options)
    check_machine(spec, plan(), options, "cpu")
    monkeypatch.setattr(machine, "gpu_bytes", lambda: (2**30, 2**30))
    check_machine(spec, plan(), options, "cuda")


def test_too_little_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 500 * 2**20)
    with pytest.raises(PluginError, match=r"need about 0\.8 GiB before any activation, and"):
        check_machine(model_of(job()), plan(), RunOptions())


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed"
)
def test_event_files_without_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path, capsys, "--tensorboard")
    assert "--tensorboard: event files need the package tensorboard, which is not installed" in line


class RecordingWriter:
    """Stands for torch's writer, which needs a package."""

    seen: list[tuple[object, ...]]

    def __init__(self, folder: str) -> None:
        RecordingWriter.seen = [("opened", folder)]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.append((name, value, step))

    def flush(self) -> None:
        self.seen.append(("flushed",))

    def close(self) -> None:
        self.seen.append(("closed",))


METRICS = StepMetrics(
    step=7, loss=1.5, gradient_norm=2.0, tokens_per_s=100.0, iteration_s=0.5, pipeline_s=0.3,
    sync_s=0.1, update_s=0.1, skipped=0,
)  # fmt: skip


def test_each_figure_of_an_iteration_is_a_scalar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = RecordingWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with EventWriter(tmp_path) as writer:
        writer.add(METRICS)
    seen = RecordingWriter.seen
    assert seen[0] == ("opened", str(tmp_path / "tensorboard"))
    assert ("loss", 1.5, 7) in seen
    assert ("tokens_per_s", 100.0, 7) in seen
    assert len(seen) == 1 + 8 + 2  # eight figures beside the step
    assert seen[-2:] == [("flushed",), ("closed",)]


def test_event_files_are_what_tensorboard_reads(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with EventWriter(tmp_path) as writer:
        writer.add(METRICS)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (loss,) = events.Scalars("loss")
    assert (loss.step, loss.value) == (7, 1.5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_host_that_can_not_be_reached(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunSpec(spec=model_of(job()), plan=plan(), options=RunOptions(), steps=1)
    write_run(tmp_path, run)
    monkeypatch.setattr(worker_module, "CONNECT_TIMEOUT", datetime.timedelta(seconds=1))
    for name, value in {
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": "9",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    try:
        with caplog.at_level(logging.ERROR, logger="sailor.worker"):
            assert worker_module.main([str(tmp_path)]) == 6
    finally:
        torch.set_num_threads(threads)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"{host}:9: can't be reached or used: ")
    assert "\n" not in said


@pytest.mark.timeout(60)
def test_a_host_with_too_few_gpus_for_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunSpec(spec=model_of(job()), plan=plan(), options=RunOptions(), steps=1, device="cuda")
    write_run(tmp_path, run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    assert worker_module.main([str(tmp_path)]) == 6
    assert "2 workers were started here, and this machine has" in caplog.text
