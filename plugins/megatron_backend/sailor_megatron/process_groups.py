"""Device, communication library and process groups of one rank: the choice is made here only."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

# torch.distributed.nn binds the default group where it is imported after init_process_group, and
# keeps that group's sockets open for ever; imported before, it binds nothing.
import torch.distributed.nn.functional as _nn_functional  # noqa: F401
from torch import Tensor
from torch._C._distributed_c10d import Store

from sailor_megatron.layout import PlanLayout
from sailor_megatron.sync_groups import SyncGroup

# torch 2.13 renamed all_gather_into_tensor, and warns about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Place:
    """Where a rank computes and how it talks.

    `through_host`: activations travel by way of main memory. Ranks that share a GPU talk over
    gloo, which can't send from one.
    """

    backend: str  # "gloo" or "nccl"
    device: torch.device
    through_host: bool = False

    @property
    def messages(self) -> torch.device:
        """Return where a tensor must lie to be sent to one other rank: gloo sends from the CPU."""
        return torch.device("cpu") if self.backend == "gloo" else self.device


def choose_place(local_rank: int, local_world: int) -> Place:
    """Return a GPU of its own and NCCL where the machine has one for every local rank.

    Otherwise the CPU and gloo. SAILOR_DEVICE=cpu asks for the latter on any machine.
    """
    wants_gpu = os.environ.get("SAILOR_DEVICE") != "cpu" and torch.cuda.is_available()
    if wants_gpu and torch.cuda.device_count() >= local_world:
        return Place("nccl", torch.device("cuda", local_rank))
    return Place("gloo", torch.device("cpu"))


@dataclass(frozen=True)
class ProcessGroups:
    """The groups that one rank takes part in.

    `sync[i]` is None where the rank isn't in sync group i, or is alone in it. Activations and
    their gradients have a group each, and so have those that travel from the last pipeline rank
    back to the first: on NCCL none waits for another.
    """

    place: Place
    rank: int
    tp: dist.ProcessGroup | None
    tp_rank: int
    tp_size: int
    sync: tuple[dist.ProcessGroup | None, ...]
    forward: dist.ProcessGroup
    backward: dist.ProcessGroup
    forward_wrap: dist.ProcessGroup
    backward_wrap: dist.ProcessGroup
    alone: dist.ProcessGroup | None  # of this rank only, where build_groups was asked for it


def join(store: Store, rank: int, world: int, place: Place, *, timeout_s: float = 600.0) -> None:
    """Join the default group of a run."""
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    dist.init_process_group(
        place.backend,
        store=store,
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def leave() -> None:
    """Destroy all groups of a run."""
    if dist.is_initialized():
        dist.destroy_process_group()


def build_groups(
    layout: PlanLayout, sync: Sequence[SyncGroup], rank: int, place: Place, *, alone: bool = False
) -> ProcessGroups:
    """Make every group of a plan. All ranks call this: groups are made in one fixed order.

    `alone`: each rank gets a group of its own too, as megatron-core wants one for everything.
    """
    world = dist.group.WORLD
    if world is None:
        raise RuntimeError("join() comes before build_groups()")
    wanted = {ranks for ranks in layout.replica_ranks.values() if len(ranks) > 1}
    wanted |= {group.ranks for group in sync if len(group.ranks) > 1}
    everyone = tuple(range(len(layout.workers)))
    if alone:
        wanted |= {(index,) for index in everyone}
    made: dict[tuple[int, ...], dist.ProcessGroup] = {everyone: world}
    for ranks in sorted(wanted - {everyone}):
        group = dist.new_group(list(ranks))
        if rank in ranks:
            made[ranks] = group
    travel = [world] * 4
    if place.backend == "nccl" and layout.plan.pp > 1:
        travel = [dist.new_group(list(everyone)) for _ in range(4 if layout.plan.vpp > 1 else 2)]
        travel = (travel * 2)[:4]
    worker = layout.workers[rank]
    mine = layout.replica_ranks[worker.stage, worker.replica]
    return ProcessGroups(
        place=place,
        rank=rank,
        tp=made[mine] if len(mine) > 1 else None,
        tp_rank=worker.tp_rank,
        tp_size=worker.tp,
        sync=tuple(
            made[group.ranks] if rank in group.ranks and len(group.ranks) > 1 else None
            for group in sync
        ),
        forward=travel[0],
        backward=travel[1],
        forward_wrap=travel[2],
        backward_wrap=travel[3],
        alone=made.get((rank,)),
    )


def gather_shares(whole: Tensor, share: Tensor, group: dist.ProcessGroup) -> None:
    """Fill `whole` with the equal shares of all ranks of a group, in rank order."""
    _all_gather(whole, share, group=group)


def reduce_shares(share: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
    """Fill `share` with this rank's equal share of the sum of `whole` over a group."""
    if dist.get_backend(group) == "nccl":
        _reduce_scatter(share, whole, group=group)
        return
    # gloo's own takes 16 times as long as its all-reduce (three processes, 1.5 MB).
    total = whole.clone()
    dist.all_reduce(total, group=group)
    start = dist.get_rank(group) * share.shape[0]
    share.copy_(total[start : start + share.shape[0]])
