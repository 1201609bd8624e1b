"""One of the two processes of the network probe: `python -m sailor.profiling.network_worker`.

Takes one argument, the `Orders` as JSON. The first process writes what it found as JSON to the
file that the orders name.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from sailor.profiling.network_orders import Findings, Orders, repeats_of


def run(orders: Orders) -> Findings | None:
    """Measure both directions with the other process; only rank 0 returns what was found."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if orders.backend == "nccl":
        device = torch.device("cuda", orders.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        orders.backend,
        init_method=orders.init,
        rank=orders.rank,
        world_size=2,
        timeout=timedelta(seconds=orders.time_limit_s),
    )
    try:
        round_trip_s = [_median_s(orders, device, sender, 1, 50) for sender in (0, 1)]
        seconds = [
            [_median_s(orders, device, sender, size, repeats_of(size)) for size in orders.sizes]
            for sender in (0, 1)
        ]
        mine = torch.tensor([round_trip_s[1], *seconds[1]], dtype=torch.float64, device=device)
        if orders.rank == 1:
            dist.send(mine, 0)
            _settle(device)
            return None
        dist.recv(mine, 1)
        back_round_trip_s, *back_s = mine.tolist()
        return Findings(
            torch_version=torch.__version__,
            round_trip_s=(round_trip_s[0], back_round_trip_s),
            seconds=(tuple(seconds[0]), tuple(back_s)),
        )
    finally:
        dist.destroy_process_group()


def _median_s(
    orders: Orders, device: torch.device, sender: int, num_bytes: int, repeats: int
) -> float:
    """Return the median seconds of a message and its one-byte answer, as the sender saw them.

    The other process measures nothing: what it returns means nothing.
    """
    message = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    answer = torch.zeros(1, dtype=torch.uint8, device=device)
    exchange = _sending if orders.rank == sender else _answering
    samples = []
    for turn in range(repeats + 1):  # the first one opens the connection and touches the pages
        started = time.perf_counter()
        exchange(message, answer, 1 - orders.rank)
        _settle(device)
        if turn:
            samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def _sending(message: Tensor, answer: Tensor, peer: int) -> None:
    dist.send(message, peer)
    dist.recv(answer, peer)


def _answering(message: Tensor, answer: Tensor, peer: int) -> None:
    dist.recv(message, peer)
    dist.send(answer, peer)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(argument: str) -> None:
    """Do as the orders in JSON say."""
    orders = Orders.from_text(argument)
    found = run(orders)
    if found is not None:
        Path(orders.result).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
