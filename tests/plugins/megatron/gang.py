"""Processes of one test: forked from a server that has imported torch, killed at a deadline."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["sailor_megatron.engine", "sailor_megatron.checkpoint"])


def run_gang(
    work: Callable[..., Any], num_ranks: int, *arguments: Any, limit_s: float = 60.0
) -> list[Any]:
    """Run work(rank, store_port, *arguments) in `num_ranks` processes; return what each returns.

    The first failure, or the deadline, ends all of them. None is left when this returns.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipes, processes = [], []
    try:
        for rank in range(num_ranks):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_main, args=(theirs, work, rank, store.port, arguments), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        return _collect(pipes, limit_s)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(10)
        for pipe in pipes:
            pipe.close()
        assert not any(process.is_alive() for process in processes)


def _collect(pipes: list[Any], limit_s: float) -> list[Any]:
    deadline = time.monotonic() + limit_s
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for index, pipe in enumerate(pipes) if index not in results]
        ready = multiprocessing.connection.wait(waiting, max(deadline - time.monotonic(), 0))
        if not ready:
            missing = sorted(set(range(len(pipes))) - set(results))
            raise TimeoutError(f"ranks {missing} did not end within {limit_s} s")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                failed, results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} died") from None
            if failed:
                raise RuntimeError(f"rank {rank} failed:\n{results[rank]}")
    return [results[rank] for rank in range(len(pipes))]


def _main(pipe: Any, work: Callable[..., Any], rank: int, port: int, arguments: Any) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        message = (False, work(rank, port, *arguments))
    except BaseException:  # noqa: BLE001
        message = (True, traceback.format_exc())
    # Not pipe.send: torch would hand tensors over through a process that is gone by then.
    pipe.send_bytes(pickle.dumps(message))
    pipe.close()
