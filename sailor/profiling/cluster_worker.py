"""A process of the cluster probe: `python -m sailor.profiling.cluster_worker`.

Takes one argument, the `ClusterOrders` as JSON. Rank 0 writes what all found to the file that the
orders name. Also tells how many devices this machine has.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from sailor.profiling.cluster_orders import (
    REPEATS,
    ClusterFindings,
    ClusterOrders,
    batch_of,
    to_text,
)
from sailor.profiling.host_launch import launch_seconds
from sailor.profiling.measure import device_label


def cuda_devices() -> int:
    """Return how many CUDA devices torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def run(orders: ClusterOrders) -> ClusterFindings | None:
    """Measure with the other processes; only rank 0 returns what was found."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if orders.device == "cuda":
        device = torch.device("cuda", orders.local_ranks.index(orders.rank))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if orders.device == "cuda" else "gloo",
        init_method=orders.init,
        rank=orders.rank,
        world_size=orders.world,
        timeout=timedelta(seconds=orders.time_limit_s),
    )
    try:
        return _found(orders, device)
    finally:
        dist.destroy_process_group()


def _found(orders: ClusterOrders, device: torch.device) -> ClusterFindings | None:
    inside: Sequence[Sequence[float]] = ()
    across: Sequence[Sequence[float]] = ()
    per_machine = len(orders.local_ranks)
    if per_machine > 1:
        inside = _allreduces(orders, device, _own_group(orders))
    if orders.world > per_machine:
        across = _allreduces(orders, device, dist.group.WORLD)
    launches: Sequence[tuple[float, float]] = ()
    if orders.host:
        dist.barrier()  # all hosts launch at the same time, as in training
        launches = _gathered(launch_seconds(device), orders.world, device)
    dist.barrier()
    if orders.rank:
        return None
    own = [launches[rank] for rank in orders.local_ranks] if launches else []
    return ClusterFindings(
        device=device_label(device),
        inside=tuple(map(tuple, inside)),
        across=tuple(map(tuple, across)),
        launches=tuple(median_s for median_s, _ in own),
        spread=max((spread for _, spread in own), default=0.0),
    )


def _own_group(orders: ClusterOrders) -> dist.ProcessGroup | None:
    """Return the group of this machine's ranks. All processes make the groups of all machines."""
    size = len(orders.local_ranks)
    groups = [
        dist.new_group(list(range(first, first + size))) for first in range(0, orders.world, size)
    ]
    found: dist.ProcessGroup | None = groups[orders.rank // size]
    return found


def _allreduces(
    orders: ClusterOrders, device: torch.device, group: dist.ProcessGroup | None
) -> list[list[float]]:
    """Return samples of seconds an all-reduce, by message size; the slowest rank's count."""
    found = []
    for size in orders.sizes:
        message = torch.zeros(size // 4, dtype=torch.float32, device=device)
        samples = []
        for turn in range(REPEATS + 1):  # the first one opens connections and touches the pages
            dist.barrier(group=group)
            _settle(device)
            started = time.perf_counter()
            for _ in range(batch_of(size)):
                dist.all_reduce(message, group=group)
            _settle(device)
            if turn:
                samples.append((time.perf_counter() - started) / batch_of(size))
        slowest = torch.tensor(samples, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        found.append(slowest.tolist())
    return found


def _gathered(
    mine: tuple[float, float], world: int, device: torch.device
) -> list[tuple[float, float]]:
    own = torch.tensor(mine, dtype=torch.float64, device=device)
    pairs: list[Tensor] = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(pairs, own)
    return [(float(median_s), float(spread)) for median_s, spread in pairs]


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(argument: str) -> None:
    """Do as the orders in JSON say."""
    orders = ClusterOrders.from_text(argument)
    found = run(orders)
    if found is not None:
        Path(orders.result).write_text(to_text(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
