"""A run of `sailor train` follows another plan while it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from click.testing import CliRunner
from filelock import FileLock
from single_process import Reference
from test_train import micro_job, micro_plan

from sailor.errors import InputError, PluginError
from sailor_megatron.change_command import change_plan
from sailor_megatron.changes import ask_for
from sailor_megatron.launcher import LocalRun, write_run
from sailor_megatron.metrics import StepMetrics
from sailor_megatron.options import RunOptions
from sailor_megatron.run_folder import LOCK_FILE, RunSpec, change_file, log_file, model_of
from sailor_megatron.text_data import TextSamples, standard_text

OPTIONS = RunOptions(precision="fp64", learning_rate=1e-3)


class _EnoughError(Exception):
    """Ends a run from its callback."""


@pytest.mark.slow
@pytest.mark.timeout(115)
def test_workers_come_and_go_between_two_steps_and_no_sample_is_lost(tmp_path: Path) -> None:
    """Two workers, then four, then two again: the losses are those of a single process."""
    spec = model_of(micro_job())
    run = RunSpec(
        spec=spec, plan=micro_plan([1], [1]), options=OPTIONS, steps=100_000, save_every=5
    )
    write_run(tmp_path, run)
    local = LocalRun(tmp_path, run)
    (tmp_path / "more.json").write_text(micro_plan([2], [2]).model_dump_json())
    (tmp_path / "fewer.json").write_text(micro_plan([1], [1]).model_dump_json())
    losses: list[float] = []
    grown = shrunk = 0

    def ask(name: str) -> None:
        said = CliRunner().invoke(change_plan, [str(tmp_path), str(tmp_path / name)])
        assert said.exit_code == 0, said.output

    def follow(metrics: StepMetrics) -> None:
        nonlocal grown, shrunk
        losses.append(metrics.loss)
        if metrics.step == 2:
            ask("more.json")
        newcomer = log_file(tmp_path, 3)
        said = newcomer.read_text() if newcomer.exists() else ""
        if not grown and "step " in said:
            grown = metrics.step
            ask("fewer.json")
        if grown and not shrunk and "no work for this process" in said:
            shrunk = metrics.step
        if shrunk and metrics.step >= shrunk + 11:
            raise _EnoughError

    with pytest.raises(_EnoughError):
        local.run(follow)
    assert 2 < grown < shrunk
    saved = [int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*")]
    assert min(saved) < grown < max(saved)
    text = TextSamples(standard_text(), spec.seq_len, OPTIONS.seed, where="test")
    reference = Reference(spec, OPTIONS, torch.float64)
    wanted = [
        reference.step(text(range(2 * step, 2 * step + 2)), range(2 * step, 2 * step + 2))[0]
        for step in range(len(losses))
    ]
    assert losses == pytest.approx(wanted, abs=1e-6)


def test_what_can_not_be_followed_is_one_sentence(tmp_path: Path) -> None:
    spec = model_of(micro_job())
    run = RunSpec(spec=spec, plan=micro_plan([1], [1]), options=OPTIONS, steps=10)
    write_run(tmp_path, run)
    with pytest.raises(PluginError, match="no run goes on in this folder"):
        ask_for(tmp_path, micro_plan([2], [1]))
    with FileLock(tmp_path / LOCK_FILE):
        with pytest.raises(InputError, match="tp 3 is more than micro can be cut into"):
            ask_for(tmp_path, micro_plan([3], [1]))
        with pytest.raises(PluginError, match="a core are started on one machine"):
            ask_for(tmp_path, micro_plan([1] * 4000, [1] * 4000))
        assert not change_file(tmp_path, 1).exists()
        assert ask_for(tmp_path, micro_plan([2], [1])) == (1, 3)
        assert ask_for(tmp_path, micro_plan([1], [1])) == (2, 2)
    with pytest.raises(InputError):
        ask_for(tmp_path / "absent", micro_plan([1], [1]))
