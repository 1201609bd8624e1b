"""Running processes go from plan to plan, and the run is that of a single process."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from gang import run_gang
from layout_strategies import replica
from proof import CPU, opened, windows
from single_process import Reference
from torch import Tensor

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Stage
from sailor_megatron.checkpoint import Checkpoints
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.live_change import Change, change_plan
from sailor_megatron.options import RunOptions
from sailor_megatron.process_groups import leave

SPEC = ModelSpec(
    name="gpt", num_layers=2, hidden=12, ffn=13, num_heads=3, num_kv_heads=3, head_dim=4,
    vocab=31, seq_len=8, max_positions=8, tied_embeddings=True,
)  # fmt: skip
OPTIONS = RunOptions(precision="fp64", learning_rate=1e-2, clip_norm=0.05, dropout=0.1)
FIRST = Plan(  # ranks 0, 1 and 2 hold the first stage, 3 and 4 the second
    model="gpt", num_units=4, global_batch=6,
    stages=(
        Stage(start=0, stop=2, replicas=(replica(2, 2, 2), replica(1, 1, 2))),
        Stage(start=2, stop=4, replicas=(replica(1, 2, 2), replica(1, 1, 2))),
    ),
)  # fmt: skip
SECOND = Plan(
    model="gpt", num_units=4, global_batch=4, schedule="interleaved", vpp=2,
    stages=tuple(
        Stage(start=index, stop=index + 1, replicas=(replica((3, 2)[index % 2], 2, 2),))
        for index in range(4)
    ),
)  # fmt: skip
LIMIT_S = 60


def change(number: int, old: Plan, new: Plan, was: tuple[int | None, ...]) -> Change:
    return Change(PlanLayout(SPEC, old), PlanLayout(SPEC, new), was, number)


# Six processes. Of the first plan's five, rank 1 leaves and the sixth process comes; then the one
# that left comes back for another. In the second story rank 3 dies instead and none comes back.
LEAVES = (
    (change(0, FIRST, SECOND, (4, None, 0, 3, 2, 1)), (4, 5, 0, 3, 2, 1)),
    (change(1, SECOND, FIRST, (1, 3, None, 0, 2, 4)), (5, 3, 1, 4, 0, 2)),
)
DIES = (
    (change(0, FIRST, SECOND, (4, None, 0, 1, 2)), (4, 5, 0, 1, 2)),
    (change(1, SECOND, FIRST, (1, 3, 4, 0, 2)), (5, 1, 2, 4, 0)),
)
SAMPLES = ((0, 6), (6, 10), (10, 16))  # of the three steps


def live(
    process: int,
    port: int,
    story: tuple[tuple[Change, tuple[int, ...]], ...],
    options: RunOptions,
) -> list[tuple[float, float]]:
    """Take a step under each plan; return each one's loss and largest difference."""
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=30))

    def read(samples: object) -> Tensor:
        return windows(SPEC, samples)  # type: ignore[arg-type]

    engine: Engine | None = None
    found = []
    if process < FIRST.num_gpus:
        opened(process, port, FIRST.num_gpus)
        engine = Engine(PlanLayout(SPEC, FIRST), process, options, CPU, read)
        found.append(stepped(engine, 1))
    for step, (then, processes) in enumerate(story, 2):
        if process not in processes:
            leave()
            return found  # dead
        index = processes.index(process)
        engine = change_plan(engine, then, index, store, options, CPU, read)
        if engine is not None:
            assert (engine.iteration, engine.num_updates) == (step - 1, step - 1)
            found.append(stepped(engine, step))
    leave()
    return found


def stepped(engine: Engine, steps: int) -> tuple[float, float]:
    """Take one step and compare with the single process after as many."""
    assert engine.next_sample == SAMPLES[steps - 1][0]
    report = engine.step()
    reference = Reference(SPEC, engine.options, torch.float64)
    for start, stop in SAMPLES[:steps]:
        samples = range(start, stop)
        loss, _ = reference.step(windows(SPEC, samples), samples)
    params, moments = engine.params, engine.optimizer.moments()
    far = abs(loss - report.loss)
    for name, shard in params.shards.items():
        parameter = reference.parameters[name]
        state = reference.optimizer.state[parameter]
        dim = engine.layout.tensors[name].dim or 0
        for flat, full in (
            (params.master, parameter.detach()),
            (moments["exp_avg"], state["exp_avg"]),
            (moments["exp_avg_sq"], state["exp_avg_sq"]),
        ):
            wanted = full.narrow(dim, shard.lo, shard.hi - shard.lo)
            far = max(far, (params.view(flat, name) - wanted).abs().max().item())
    return report.loss, far


@pytest.mark.parametrize("zero1", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_leave_and_come_and_the_run_goes_on(zero1: bool) -> None:
    options = OPTIONS.model_copy(update={"zero1": zero1})
    results = run_gang(live, 6, LEAVES, options, limit_s=LIMIT_S)
    assert [len(found) for found in results] == [3, 2, 2, 3, 3, 2]
    assert max(far for found in results for _, far in found) < 1e-10


@pytest.mark.slow
def test_a_dead_replica_is_not_missed() -> None:
    results = run_gang(live, 6, DIES, OPTIONS, limit_s=LIMIT_S)
    assert [len(found) for found in results] == [3, 3, 3, 1, 3, 2]
    assert max(far for found in results for _, far in found) < 1e-10


def lose_a_stage(process: int, port: int, folder: Path) -> tuple[str, float]:
    """Both holders of the second stage die: refused, or taken from a checkpoint."""
    opened(process, port, FIRST.num_gpus)
    engine = Engine(PlanLayout(SPEC, FIRST), process, OPTIONS, CPU, lambda s: windows(SPEC, s))
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=30))
    engine.step()
    checkpoints = Checkpoints(folder, engine)
    checkpoints.save()
    checkpoints.finish()
    if process > 2:
        leave()
        return "dead", 0.0
    alone = Plan(
        model="gpt", num_units=4, global_batch=4,
        stages=(Stage(start=0, stop=4, replicas=(replica(3, 2, 2),)),),
    )  # fmt: skip
    then = change(0, FIRST, alone, (0, 1, 2))
    said = ""
    try:
        change_plan(engine, then, process, store, OPTIONS, CPU, engine._read_samples)
    except PluginError as error:
        said = str(error)
    fresh = change_plan(
        engine, then, process, store, OPTIONS, CPU, engine._read_samples,
        checkpoint=folder / "step-1",
    )  # fmt: skip
    assert fresh is not None
    _, far = stepped(fresh, 2)
    leave()
    return said, far


@pytest.mark.slow
def test_what_no_living_process_holds_comes_from_a_checkpoint(tmp_path: Path) -> None:
    results = run_gang(lose_a_stage, FIRST.num_gpus, tmp_path / "saved", limit_s=LIMIT_S)
    assert [said for said, _ in results[3:]] == ["dead", "dead"]
    for said, far in results[:3]:
        assert "tensors have parts that no living worker holds, blocks.1" in said
        assert "go on from a checkpoint" in said
        assert far < 1e-10
