"""Runs a plan on a gang and compares every rank with the single process."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from gang import run_gang
from single_process import Reference
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.options import RunOptions
from sailor_megatron.process_groups import Place, join, leave
from sailor_megatron.text_data import TextSamples, standard_text

STEPS = 3
CPU = Place("gloo", torch.device("cpu"))
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}


def windows(spec: ModelSpec, samples: Sequence[int]) -> Tensor:
    """Return token windows that depend on the sample indices only."""
    rows = []
    for sample in samples:
        generator = torch.Generator().manual_seed(1000 + sample)
        rows.append(torch.randint(spec.vocab, (spec.seq_len + 1,), generator=generator))
    return torch.stack(rows)


@dataclass
class RankRecord:
    """What one rank hands back: losses, norms, and pieces by name."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]  # of the first step, before clipping
    parameters: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]


def opened(rank: int, port: int, world: int) -> None:
    """Join the gang's default group."""
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=30))
    join(store, rank, world, CPU, timeout_s=30)


def train_rank(
    rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions, steps: int
) -> RankRecord:
    opened(rank, port, plan.num_gpus)
    layout = PlanLayout(spec, plan)
    engine = Engine(layout, rank, options, CPU, lambda samples: windows(spec, samples))
    params = engine.params
    losses, norms, gradients = [], [], {}
    for step in range(steps):
        if step == 0:
            loss, norm = engine.reduce(engine.accumulate())
            gradients = {name: params.view(params.grad, name).clone() for name in params.shards}
        report = engine.step()
        if step == 0:
            assert (report.loss, report.gradient_norm) == (loss, norm)
        losses.append(report.loss)
        norms.append(report.gradient_norm)
    moments = engine.optimizer.moments()
    record = RankRecord(
        losses=losses,
        norms=norms,
        gradients=gradients,
        parameters={name: params.view(params.master, name).clone() for name in params.shards},
        moments={
            kind: {name: params.view(flat, name).clone() for name in params.shards}
            for kind, flat in moments.items()
        },
    )
    leave()
    return record


def text_losses(
    rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions, steps: int
) -> list[float]:
    """Train on the text that ships with Python and return the losses."""
    opened(rank, port, plan.num_gpus)
    text = TextSamples(standard_text(), spec.seq_len, options.seed, where="test")
    engine = Engine(PlanLayout(spec, plan), rank, options, CPU, text)
    losses = [engine.step().loss for _ in range(steps)]
    leave()
    return losses


@dataclass
class Differences:
    """Largest absolute differences from the single process, over ranks and tensors."""

    loss: float
    norm: float
    gradient: float
    parameter: float
    moment: float
    replicas_agree: bool


def compare(
    spec: ModelSpec, plan: Plan, options: RunOptions, *, steps: int = STEPS, limit_s: float = 60
) -> Differences:
    """Run the plan and the reference, and return how far apart they are."""
    records = run_gang(train_rank, plan.num_gpus, spec, plan, options, steps, limit_s=limit_s)
    reference = Reference(spec, options, DTYPES[options.precision])
    first: dict[str, Tensor] = {}
    losses, norms = [], []
    for step in range(steps):
        samples = range(step * plan.samples, (step + 1) * plan.samples)
        loss, norm = reference.step(windows(spec, samples), samples)
        losses.append(loss)
        norms.append(norm)
        if step == 0:
            first = reference.gradients
    layout = PlanLayout(spec, plan)
    found = Differences(0, 0, 0, 0, 0, True)
    seen: dict[tuple[str, int, int], Tensor] = {}
    for rank, record in enumerate(records):
        found.loss = max(found.loss, _apart(record.losses, losses))
        found.norm = max(found.norm, _apart(record.norms, norms))
        assert set(record.gradients) == {shard.name for shard in layout.shards(rank)}
        for shard in layout.shards(rank):
            tensor, name = layout.tensors[shard.name], shard.name

            def cut(full: Tensor) -> Tensor:
                return full.narrow(tensor.dim or 0, shard.lo, shard.hi - shard.lo)  # noqa: B023

            parameter = reference.parameters[name]
            state = reference.optimizer.state[parameter]
            found.gradient = max(found.gradient, _far(record.gradients[name], cut(first[name])))
            held = record.parameters[name]
            found.parameter = max(found.parameter, _far(held, cut(parameter.detach())))
            for kind in ("exp_avg", "exp_avg_sq"):
                moment = record.moments[kind][name]
                found.moment = max(found.moment, _far(moment, cut(state[kind])))
            twin = seen.setdefault((name, shard.lo, shard.hi), held)
            found.replicas_agree &= torch.equal(twin, held)
    return found


def _far(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))
