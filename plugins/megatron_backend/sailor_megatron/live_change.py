"""Change the plan of running processes: state moves between them, nothing is read from a disk.

The processes meet twice: once all that live, to move what the transfer list says, and then those
of the new plan, to train. Processes that leave hand on what only they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from sailor.errors import PluginError
from sailor_megatron.engine import Engine, ReadSamples
from sailor_megatron.layout import PlanLayout, Shard
from sailor_megatron.optimizer import moment_names
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters
from sailor_megatron.position import Position
from sailor_megatron.process_groups import Place, join, leave
from sailor_megatron.sync_groups import sync_groups
from sailor_megatron.transfer import Move, transfers

_MASTER = "master"


@dataclass(frozen=True)
class Change:
    """A change of plan that every process knows.

    Process i of the change is rank i of the new plan; those behind its last rank leave. `was` has
    the old rank of each, None for a newcomer. Old ranks that aren't in it are dead. `number`
    counts the changes of a run.
    """

    old: PlanLayout
    new: PlanLayout
    was: tuple[int | None, ...]
    number: int


@dataclass(frozen=True)
class _State:
    """What one rank keeps of a model: flat buffers by name, in the order of `params`."""

    params: Parameters
    buffers: dict[str, Tensor]


def change_plan(
    engine: Engine | None,
    change: Change,
    index: int,
    store: Store,
    options: RunOptions,
    place: Place,
    read_samples: ReadSamples,
    *,
    checkpoint: Path | None = None,
) -> Engine | None:
    """Take part as process `index` of a change; return the new engine, None where this one leaves.

    `engine` is the old one, None for a newcomer; it must not be used afterwards. Under ZeRO-1
    all old ranks must live. Where a piece is on no living process, the state is that of
    `checkpoint`, and without one the change is refused, by all processes alike.
    """
    plan = transfers(change.old, change.new, change.was)
    if plan.lost and checkpoint is None:
        names = sorted({lost.piece.name for lost in plan.lost})
        raise PluginError(
            f"{len(names)} tensors have parts that no living worker holds, {names[0]} for one",
            where="change of plan",
            hint="go on from a checkpoint",
        )
    held = None if engine is None else _state_of(engine)
    position = None if engine is None else engine.position
    leave()
    stays = index < len(change.new.workers)
    wanted = _empty(change.new, index, options, place) if stays else None
    join(_room(store, change, "move"), index, len(change.was), place)
    if not plan.lost:
        _move(plan.moves, change.was, index, held, wanted, place)
    position = _agreed(position, change.was, place)
    leave()
    if wanted is None:
        return None
    join(_room(store, change, "train"), index, len(change.new.workers), place)
    fresh = Engine(change.new, index, options, place, read_samples, params=wanted.params)
    if plan.lost and checkpoint is not None:
        from sailor_megatron.checkpoint import Checkpoints

        Checkpoints(checkpoint.parent, fresh).load(checkpoint)
        return fresh
    fresh.params.refresh_compute()
    moments = {name: wanted.buffers[name] for name in wanted.buffers if name != _MASTER}
    fresh.optimizer.load_moments(moments, position.num_updates)
    fresh.position = position
    return fresh


def _room(store: Store, change: Change, purpose: str) -> Store:
    return PrefixStore(f"change-{change.number}-{purpose}", store)


def _state_of(engine: Engine) -> _State:
    return _State(engine.params, {_MASTER: engine.params.master, **engine.optimizer.moments()})


def _empty(layout: PlanLayout, rank: int, options: RunOptions, place: Place) -> _State:
    params = Parameters(layout, sync_groups(layout), rank, options, place.device)
    names = moment_names(options)
    return _State(
        params, {_MASTER: params.master, **{n: torch.zeros_like(params.master) for n in names}}
    )


def _move(
    moves: Sequence[Move],
    was: Sequence[int | None],
    index: int,
    held: _State | None,
    wanted: _State | None,
    place: Place,
) -> None:
    """Execute this process's part of a transfer list: one message a buffer and pair."""
    process_of = {rank: process for process, rank in enumerate(was) if rank is not None}
    own = was[index]
    parcels: dict[tuple[int, int], list[Shard]] = {}
    for move in moves:
        if move.local and move.dst == index and held is not None and wanted is not None:
            for name, buffer in wanted.buffers.items():
                source = held.params.piece(held.buffers[name], move.piece)
                wanted.params.piece(buffer, move.piece).copy_(source)
        elif not move.local and (move.src == own or move.dst == index):
            parcels.setdefault((process_of[move.src], move.dst), []).append(move.piece)
    state = wanted or held
    for name in state.buffers if state is not None else ():
        _exchange(name, parcels, index, held, wanted, place)


def _exchange(
    name: str,
    parcels: dict[tuple[int, int], list[Shard]],
    index: int,
    held: _State | None,
    wanted: _State | None,
    place: Place,
) -> None:
    """Send and receive the parcels of one buffer; they are in the same order everywhere."""
    requests: list[dist.P2POp] = []
    arriving: list[tuple[Tensor, list[Tensor]]] = []
    for (src, dst), pieces in parcels.items():
        if src == index and held is not None:
            buffer = held.buffers[name]
            parts = [held.params.piece(buffer, piece).reshape(-1) for piece in pieces]
            requests.append(dist.P2POp(dist.isend, torch.cat(parts).to(place.messages), dst))
        elif wanted is not None:
            buffer = wanted.buffers[name]
            targets = [wanted.params.piece(buffer, piece) for piece in pieces]
            size = sum(target.numel() for target in targets)
            parcel = torch.empty(size, dtype=buffer.dtype, device=place.messages)
            requests.append(dist.P2POp(dist.irecv, parcel, src))
            arriving.append((parcel, targets))
    for work in dist.batch_isend_irecv(requests) if requests else ():
        work.wait()
    for parcel, targets in arriving:
        start = 0
        for target in targets:
            target.copy_(parcel[start : start + target.numel()].view(target.shape))
            start += target.numel()


def _agreed(position: Position | None, was: Sequence[int | None], place: Place) -> Position:
    """Return how far the run is, which a newcomer hears from an old process."""
    teller = next((process for process, rank in enumerate(was) if rank is not None), None)
    if teller is None:
        raise PluginError("no worker of the old plan lives", where="change of plan",
                          hint="start again from a checkpoint")  # fmt: skip
    said = position.numbers() if position is not None else Position().numbers()
    numbers = torch.tensor(said, dtype=torch.float64, device=place.messages)
    dist.broadcast(numbers, teller)
    return Position.of_numbers(numbers.tolist())
