"""A run that stops and goes on under another plan is the run that never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from gang import run_gang
from layout_strategies import replica
from proof import CPU, opened, windows
from single_process import Reference

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Stage
from sailor_megatron.checkpoint import Checkpoints
from sailor_megatron.checkpoint_facts import check_same_model, read_index
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.options import RunOptions
from sailor_megatron.process_groups import leave

SPEC = ModelSpec(
    name="gpt", num_layers=2, hidden=12, ffn=13, num_heads=3, num_kv_heads=3, head_dim=4,
    vocab=31, seq_len=8, max_positions=8, tied_embeddings=True,
)  # fmt: skip
OPTIONS = RunOptions(precision="fp64", learning_rate=1e-2, clip_norm=0.05, dropout=0.1)
BEFORE = Plan(
    model="gpt", num_units=4, global_batch=6,
    stages=(
        Stage(start=0, stop=2, replicas=(replica(2, 2, 2), replica(1, 1, 2))),
        Stage(start=2, stop=4, replicas=(replica(1, 2, 2), replica(1, 1, 2))),
    ),
)  # fmt: skip
AFTER = Plan(
    model="gpt", num_units=4, global_batch=4,
    stages=(
        Stage(start=0, stop=3, replicas=(replica(3, 2, 2),)),
        Stage(start=3, stop=4, replicas=(replica(2, 2, 2),)),
    ),
)  # fmt: skip


def engine_of(rank: int, port: int, plan: Plan, options: RunOptions, spec: ModelSpec) -> Engine:
    opened(rank, port, plan.num_gpus)
    return Engine(
        PlanLayout(spec, plan), rank, options, CPU, lambda samples: windows(spec, samples)
    )


def run_and_save(rank: int, port: int, folder: Path) -> None:
    engine = engine_of(rank, port, BEFORE, OPTIONS, SPEC)
    checkpoints = Checkpoints(folder, engine)
    for _ in range(2):
        engine.step()
    checkpoints.save()
    engine.step()  # while it is being written: must not show in the checkpoint
    checkpoints.finish()
    leave()


def load_and_go_on(rank: int, port: int, folder: Path, zero1: bool) -> tuple[float, float]:
    """Return the loss of the third step and the largest difference after it."""
    options = OPTIONS.model_copy(update={"zero1": zero1})
    engine = engine_of(rank, port, AFTER, options, SPEC)
    Checkpoints(folder, engine).load(folder / "step-2")
    assert (engine.iteration, engine.next_sample, engine.num_updates) == (2, 12, 2)
    report = engine.step()
    reference = Reference(SPEC, OPTIONS, torch.float64)
    for samples in (range(6), range(6, 12), range(12, 16)):
        loss, _ = reference.step(windows(SPEC, samples), samples)
    params, far = engine.params, abs(loss - report.loss)
    for name, shard in params.shards.items():
        full = reference.parameters[name].detach()
        dim = engine.layout.tensors[name].dim or 0
        wanted = full.narrow(dim, shard.lo, shard.hi - shard.lo)
        far = max(far, (params.view(params.master, name) - wanted).abs().max().item())
    leave()
    return report.loss, far


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    run_gang(run_and_save, BEFORE.num_gpus, folder, limit_s=60)
    return folder


def test_the_checkpoint_is_whole_and_in_one_place(saved: Path) -> None:
    assert [path.name for path in saved.iterdir()] == ["step-2"]
    index = read_index(saved / "step-2")
    table = index["tensors"]["parameter.embedding.weight"]
    assert sum(piece["sizes"][0] for piece in table["pieces"]) == SPEC.vocab
    assert not list(saved.rglob("*.metadata"))


@pytest.mark.parametrize("zero1", [pytest.param(False, marks=pytest.mark.slow), True])
def test_another_plan_goes_on_where_the_first_stopped(saved: Path, zero1: bool) -> None:
    results = run_gang(load_and_go_on, AFTER.num_gpus, saved, zero1, limit_s=60)
    assert max(far for _, far in results) < 1e-10


def test_a_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    folder = saved / "step-2"
    index = read_index(folder)
    check_same_model(index, SPEC.model_copy(update={"name": "renamed"}), "adam", folder)
    with pytest.raises(PluginError, match="of another model: ffn is 13, not 14"):
        check_same_model(index, SPEC.model_copy(update={"ffn": 14}), "adam", folder)
    with pytest.raises(PluginError, match="was saved by optimizer adam, not sgd"):
        check_same_model(index, SPEC, "sgd", folder)


def test_a_missing_file_and_no_checkpoint_are_one_sentence(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="is no checkpoint"):
        read_index(tmp_path)
    text = (saved / "step-2" / "index.json").read_text()
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(PluginError, match=r"the checkpoint lacks __0_0\.distcp"):
        read_index(tmp_path)
    (tmp_path / "index.json").write_text(text[:100])
    with pytest.raises(PluginError, match="is not the index of a checkpoint"):
        read_index(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"tensors": {}}))
    with pytest.raises(PluginError, match="format None"):
        read_index(tmp_path)
