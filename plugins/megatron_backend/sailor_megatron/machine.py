"""Whether this machine can hold a plan's workers: processes, GPUs, memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan
from sailor_megatron.layout import PlanLayout
from sailor_megatron.options import RunOptions

Device = Literal["auto", "cpu", "cuda"]

MAX_WORKERS_PER_CORE = 8
WORKER_BYTES = 400 * 2**20  # of a process with torch, before the model
ELSEWHERE = "use --render-only for the commands of several hosts"


def check_machine(
    spec: ModelSpec, plan: Plan, options: RunOptions, device: Device = "auto"
) -> None:
    """Refuse a plan that this machine can't hold, before any process is started."""
    layout = PlanLayout(spec, plan)
    gpus = gpu_bytes() if device != "cpu" else ()
    workers = len(layout.workers)
    _check_cores(workers)
    if device == "cuda" and len(gpus) < workers:
        raise PluginError(
            f"the plan has {workers} workers and this machine {len(gpus)} GPUs; each worker takes "
            "one",
            where="--device cuda",
            hint=f"compute on the CPU with --device cpu, or {ELSEWHERE}",
        )
    needed = [model_bytes(layout, worker.rank, options) for worker in layout.workers]
    if gpus and len(gpus) >= workers:
        _check_gpus(needed, gpus)
    else:
        _check_main_memory(workers, sum(needed))


def model_bytes(layout: PlanLayout, rank: int, options: RunOptions) -> int:
    """Return what a worker holds before any activation: parameters, gradients, optimizer states.

    A lower bound: moments that ZeRO-1 shares out are left out.
    """
    elements = sum(
        (shard.hi - shard.lo) * layout.tensors[shard.name].row_elements
        for shard in layout.shards(rank)
    )
    word = 8 if options.precision == "fp64" else 4
    moments = 2 if options.optimizer == "adam" and not options.zero1 else 0
    copy = 2 if options.precision in ("bf16", "fp16") else 0
    return elements * (word * (2 + moments) + copy)


def gpu_bytes() -> Sequence[int]:
    """Return the free memory of each GPU of this machine."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return [int(torch.cuda.mem_get_info(index)[0]) for index in range(torch.cuda.device_count())]


def available_bytes() -> int | None:
    """Return the main memory that can be had, where the system says."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _check_cores(workers: int) -> None:
    cores = os.cpu_count() or 1
    if workers > cores * MAX_WORKERS_PER_CORE:
        raise PluginError(
            f"the plan has {workers} workers and this machine {cores} cores; at most "
            f"{MAX_WORKERS_PER_CORE} a core are started on one machine",
            where="plan",
            hint=ELSEWHERE,
        )


def _check_gpus(needed: Sequence[int], gpus: Sequence[int]) -> None:
    for rank, (wanted, free) in enumerate(zip(needed, gpus, strict=False)):
        if wanted > free:
            raise PluginError(
                f"worker {rank} needs {wanted / 2**30:.1f} GiB before any activation, and GPU "
                f"{rank} has {free / 2**30:.1f} GiB free",
                where="plan",
                hint=f"plan more GPUs, or {ELSEWHERE}",
            )


def _check_main_memory(workers: int, needed: int) -> None:
    wanted, free = workers * WORKER_BYTES + needed, available_bytes()
    if free is not None and wanted > free:
        raise PluginError(
            f"the plan's workers need about {wanted / 2**30:.1f} GiB before any activation, and "
            f"this machine has {free / 2**30:.1f} GiB free",
            where="plan",
            hint=f"{ELSEWHERE}, or a smaller model",
        )
