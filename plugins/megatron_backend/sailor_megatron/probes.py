"""Timed after a run, with its own groups: every kind of unit alone, and hand-overs of activations.

A stage holds some kinds of units; a profile needs all. So each worker also runs an embedding, a
block and a head of its model by themselves, at its own tp and microbatch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sailor.model.arch import UnitKind
from sailor.model.plan import Plan, Replica, Stage
from sailor_megatron.clocks import clock_of
from sailor_megatron.layout import PlanLayout
from sailor_megatron.measured import HandOver, UnitFigures
from sailor_megatron.models.contract import Stage as ComputedStage
from sailor_megatron.models.factory import stage_maker
from sailor_megatron.parameters import INIT_STD, Parameters
from sailor_megatron.point_to_point import Inlet, Outlet, Wire
from sailor_megatron.sync_groups import sync_groups

if TYPE_CHECKING:
    from sailor_megatron.engine import Engine

WARMUPS, REPEATS = 2, 7
SMALL_ELEMENTS = 64  # of a message that is nothing but latency
TAG = 10_001  # apart from the engine's, which count chunks
_Place = tuple[int, int]  # stage, replica
_KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")


def unit_figures(engine: Engine) -> Sequence[UnitFigures]:
    """Return figures of each kind of unit. All ranks of a replica call this together."""
    spec = engine.layout.spec.model_copy(update={"num_layers": 1})
    replica = engine.layout.plan.stages[engine.worker.stage].replicas[engine.worker.replica]
    layout = PlanLayout(spec, _one_unit_a_stage(engine.layout.plan.model, replica))
    return [
        _figures(engine, layout, index, kind, replica.microbatch)
        for index, kind in enumerate(_KINDS)
    ]


def _one_unit_a_stage(model: str, replica: Replica) -> Plan:
    one = replica.model_copy(update={"num_microbatches": 1})
    return Plan(
        model=model,
        num_units=len(_KINDS),
        global_batch=replica.microbatch,
        stages=tuple(
            Stage(start=unit, stop=unit + 1, replicas=(one,)) for unit in range(len(_KINDS))
        ),
    )


def _figures(
    engine: Engine, layout: PlanLayout, index: int, kind: UnitKind, microbatch: int
) -> UnitFigures:
    spec, device = layout.spec, engine.groups.place.device
    worker = layout.workers[layout.replica_ranks[index, 0][engine.worker.tp_rank]]
    # Recomputation is left out: who uses a profile adds it.
    options = engine.options.model_copy(update={"recompute": False})
    params = Parameters(layout, sync_groups(layout), worker.rank, options, device)
    params.master.normal_(std=INIT_STD)
    params.refresh_compute()
    stage = stage_maker(params, engine.tp, options, engine.groups)(index)
    samples = range(microbatch)
    tokens = torch.randint(spec.vocab, (microbatch, spec.seq_len), device=device)
    shape = (microbatch, spec.seq_len, spec.hidden)
    if engine.tp.split:
        shape = (engine.tp.rows, microbatch, spec.hidden)
    activation = torch.zeros(shape, dtype=params.dtype, device=device).normal_()
    x = tokens if stage.first else activation.requires_grad_()
    targets = tokens if stage.last else None
    clock, forward, backward = clock_of(device), [], []
    for _ in range(WARMUPS + REPEATS):
        begin = clock.mark()
        out = stage(x, targets, samples)
        middle = clock.mark()
        torch.autograd.backward(out, torch.ones_like(out))
        end = clock.mark()
        clock.settle()
        forward.append(clock.seconds(begin, middle))
        backward.append(clock.seconds(middle, end))
        x.grad = None
    word = params.dtype.itemsize
    output = spec.hidden
    if stage.last:
        shard = params.shards["embedding.weight" if spec.tied_embeddings else "head.weight"]
        output = shard.hi - shard.lo
    return UnitFigures(
        kind=kind,
        forward_s=statistics.median(forward[WARMUPS:]),
        backward_s=statistics.median(backward[WARMUPS:]),
        params=sum(math.prod(params.local_shape(name)) for name in params.shards),
        activation_bytes=_kept_bytes(stage, params, x, targets, samples) / microbatch,
        output_bytes=output * spec.seq_len * word,
    )


def _kept_bytes(
    stage: ComputedStage,
    params: Parameters,
    x: Tensor,
    targets: Tensor | None,
    samples: Sequence[int],
) -> int:
    """Return the bytes of storages that one pass keeps, parameters and input not counted."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = stage(x, targets, samples)
    keep(out)
    given = {tensor.untyped_storage().data_ptr() for tensor in (params.compute, x)}
    return sum(storage.nbytes() for place, storage in kept.items() if place not in given)


def hand_overs(engine: Engine) -> Sequence[HandOver]:
    """Return what an activation takes from this rank's replica to its neighbours.

    All ranks of a run call this together: one pair of replicas at a time is timed, while the
    others wait.
    """
    worker, found = engine.worker, []
    for src, dst in neighbours(engine.layout.plan):
        dist.barrier()
        if (worker.stage, worker.replica) in (src, dst):
            measured = _hand_over(engine, src, dst)
            if (worker.stage, worker.replica) == src and worker.tp_rank == 0:
                found.append(measured)
    if len(engine.layout.workers) > 1:
        dist.barrier()  # a process that ends closes connections that others still use
    return found


def neighbours(plan: Plan) -> Sequence[tuple[_Place, _Place]]:
    """Return the pairs of replicas that talk: stage to stage, and around a stage's ring.

    Chunks of an interleaved plan take the same ways as its first ones.
    """
    along = [
        ((stage, replica), (stage + 1, replica))
        for stage in range(plan.pp - 1)
        for replica in range(plan.dp)
    ]
    around = [
        ((stage, replica), (stage, replica + 1))
        for stage in range(plan.pp)
        for replica in range(plan.dp - 1)
    ]
    return along + around


def _hand_over(engine: Engine, src: _Place, dst: _Place) -> HandOver:
    spec = engine.layout.spec
    microbatch = engine.layout.plan.stages[src[0]].replicas[src[1]].microbatch
    elements = microbatch * spec.seq_len * spec.hidden
    return HandOver(
        stage=src[0],
        replica=src[1],
        to_stage=dst[0],
        to_replica=dst[1],
        message_bytes=elements * engine.params.dtype.itemsize,
        seconds=_round_trip_s(engine, src, dst, elements) / 2,
        latency_s=_round_trip_s(engine, src, dst, SMALL_ELEMENTS) / 2,
    )


def _round_trip_s(engine: Engine, src: _Place, dst: _Place, elements: int) -> float:
    """Return the median seconds of a message from one replica to another and one back."""
    here, there = engine.layout.replica_ranks[src], engine.layout.replica_ranks[dst]
    groups, dtype = engine.groups, engine.params.dtype
    out_way, in_way = groups.forward, groups.backward
    sends = (engine.worker.stage, engine.worker.replica) == src
    if not sends:
        here, there, out_way, in_way = there, here, in_way, out_way
    outlet = Outlet(
        Wire(here, there, elements, 1, split=False), engine.worker.rank, out_way, TAG,
        through_host=groups.place.through_host,
    )  # fmt: skip
    inlet = Inlet(
        Wire(there, here, elements, 1, split=False), (elements,), dtype, groups, in_way, TAG
    )
    message = torch.zeros(elements, dtype=dtype, device=groups.place.device)
    clock, seconds = clock_of(groups.place.device), []
    for _ in range(WARMUPS + REPEATS):
        if not sends:
            inlet.post()
        begin = clock.mark()
        if sends:
            outlet.send(message)
            inlet.post()  # not before: NCCL works off what one pair of ranks has asked for in order
            inlet.take()
        else:
            inlet.take()
            outlet.send(message)
        end = clock.mark()
        outlet.finish()
        clock.settle()
        seconds.append(clock.seconds(begin, end))
    return statistics.median(seconds[WARMUPS:])
