"""The cluster probe: what `ClusterRef` names, measured on the machine where it runs.

- `link_share`, `link_step_s`: an all-reduce of S bytes over n processes of the machine takes
  step x log2(n) + 2 (n - 1) / n x S / (share x the node type's link); both by least squares of the
  relative distance to the medians by message size (`sailor.sim.collectives` has the equation).
- `nic_share`: the same over the processes of two machines, and the node type's network cards,
  for messages that take longer than the steps do.
- `host_factor`: host time to launch a block in eager PyTorch (`sailor.profiling.host_launch`) over
  `REFERENCE_BLOCK_S`, and over what hosts of the GPU type take of it.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sailor.errors import InputError
from sailor.model.cluster import Cluster
from sailor.model.hardware import GpuType, NodeType
from sailor.profiling.cluster_orders import ClusterFindings, ClusterOrders, to_text
from sailor.profiling.network_orders import MIN_BYTES, message_sizes
from sailor.profiling.profilers import need_torch
from sailor.profiling.worker_processes import WorkerCrew, run_workers
from sailor.sim.device import gpu_facts

MIN_SIZES = 3
MAX_BYTES = 2**30
# Host time of a Llama-7B block's forward pass in eager PyTorch beside an A100: 25.5 tokens/s of 32
# blocks, one at a time, which its authors found to be bound by the host (PyTorch blog,
# "Accelerating Generative AI with PyTorch II: GPT, Fast", November 2023).
REFERENCE_BLOCK_S = 1 / (25.5 * 32)
_ABOVE_SHEET = 1.02  # of the data sheet: what noise may add to a share of 1
_TOO_FAR = 0.5  # median relative distance of a fit that says nothing


@dataclass(frozen=True)
class ClusterRequest:
    """What to measure.

    `node` and `gpu`: the catalogue's entries for this machine. `processes` of each machine, one a
    GPU. `init` None: one machine; otherwise torch's address of the meeting, tcp://HOST:PORT with
    the host of machine 0, and this one is `machine`. `max_bytes` is the largest message.
    """

    node: NodeType
    gpu: GpuType
    device: str
    processes: int
    init: str | None = None
    machine: int = 0
    max_bytes: int = 2**28
    time_limit_s: float = 300.0


@dataclass(frozen=True)
class Figure:
    """One figure of `ClusterRef`: its value, how far samples or fit spread, and what it is."""

    name: str
    value: float
    spread: float
    what: str

    @property
    def text(self) -> str:
        """Return the value with three significant digits, as a job writes it."""
        return f"{self.value:.3g}"


@dataclass(frozen=True)
class Message:
    """An all-reduce of one size: median seconds, spread, bytes/s that pass each hop."""

    among: str
    num_bytes: int
    seconds: float
    spread: float
    bytes_per_s: float


@dataclass(frozen=True)
class ClusterProbe:
    """What was found: figures for a job, the medians behind them, what is left out and why."""

    device: str
    figures: tuple[Figure, ...]
    messages: tuple[Message, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class RingFit:
    """An all-reduce's bytes/s past each hop, seconds that don't grow with the message, spread."""

    bytes_per_s: float
    fixed_s: float
    spread: float


def probe(request: ClusterRequest) -> ClusterProbe | None:
    """Return what was found; None where this is machine 1. Raises InputError."""
    _check(request)
    need_torch("for the cluster probe")
    findings = _exchange(request)
    return None if findings is None else figures_of(request, findings)


def fit_ring(ranks: int, seconds: Mapping[int, float], where: str) -> RingFit:
    """Return the line through seconds by message size; `where` names the ring in messages."""
    sizes = np.array(list(seconds), dtype=float)
    taken = np.array(list(seconds.values()))
    moved = 2 * (ranks - 1) / ranks * sizes
    rows = np.column_stack((1 / taken, moved / taken))
    (fixed_s, each_s), *_ = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)
    if fixed_s < 0:
        fixed_s, each_s = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if each_s * moved.max() < fixed_s:
        raise InputError(
            f"all-reduces {where} take hardly longer for larger messages, which says nothing about "
            "bandwidth",
            hint="raise --max-bytes, or measure again when the machines are idle",
        )
    spread = float(np.median(np.abs((fixed_s + each_s * moved) / taken - 1)))
    if spread > _TOO_FAR:
        raise InputError(
            f"all-reduces {where} lie on no line: half of the sizes are over {_TOO_FAR:.0%} off it",
            hint="measure again when the machines are idle",
        )
    return RingFit(float(1 / each_s), float(fixed_s), spread)


def beyond_fixed(seconds: Mapping[int, float]) -> Mapping[int, float]:
    """Return the sizes that take at least twice as long as the smallest; all if these are few.

    Between machines small messages wait for the links inside and for steps, not for the network.
    """
    least = 2 * min(seconds.values())
    kept = {size: taken for size, taken in seconds.items() if taken >= least}
    return kept if len(kept) >= MIN_SIZES else seconds


def figures_of(request: ClusterRequest, findings: ClusterFindings) -> ClusterProbe:
    """Return the figures that findings give. Raises InputError for what can't be right."""
    node, remarks = request.node, list(_part_remarks(request))
    figures: list[Figure] = []
    messages: list[Message] = []
    inside = across = None
    if findings.inside:
        ranks, where = request.processes, "inside the machine"
        medians, shown = _medians(where, ranks, findings.inside, request)
        inside = fit_ring(ranks, medians, where)
        messages.extend(shown)
        share = _share(inside, node.intra_node_bandwidth, node, "links inside the node")
        step_s = inside.fixed_s / math.log2(ranks)
        figures += [
            Figure("link_share", share, inside.spread,
                   f"{inside.bytes_per_s / 1e9:.3g} of {node.intra_node_bandwidth / 1e9:.3g} GB/s "
                   f"in all-reduces of {ranks} processes"),
            Figure("link_step_s", step_s, inside.spread,
                   f"{step_s * 1e6:.3g} us for each doubling of the processes"),
        ]  # fmt: skip
    else:
        remarks.append("link_share and link_step_s are left out: one process has no links to use")
    if findings.across:
        ranks, where = 2 * request.processes, "between the machines"
        medians, shown = _medians(where, ranks, findings.across, request)
        across = fit_ring(ranks, beyond_fixed(medians), where)
        messages.extend(shown)
        share = _share(across, node.nic_bandwidth, node, "network")
        figures.append(
            Figure("nic_share", share, across.spread,
                   f"{across.bytes_per_s / 1e9:.3g} of {node.nic_bandwidth / 1e9:.3g} GB/s "
                   f"in all-reduces of {ranks} processes")
        )  # fmt: skip
        if inside is not None and across.bytes_per_s > 0.95 * inside.bytes_per_s:
            remarks.append(
                "nic_share is a lower bound: an all-reduce inside one machine is no faster"
            )
    else:
        remarks.append(
            "nic_share is left out: it takes two machines (--init tcp://HOST:PORT, and --machine 0 "
            "and 1)"
        )
    if findings.launches:
        figures.append(_host_figure(request, findings))
        remarks.append(
            "host_factor is right within a half, however small its spread: its reference is a rate "
            "that others published (docs/cost-model.md)"
        )
    else:
        remarks.append(
            "host_factor is left out: a CPU device computes while the host launches, so there is "
            "no launching time to tell apart"
        )
    if not figures:
        raise InputError(
            "one process on a CPU measures nothing", where="processes", hint="give at least 2"
        )
    return ClusterProbe(findings.device, tuple(figures), tuple(messages), tuple(remarks))


def default_text(name: str) -> str:
    """Return what is assumed where a job doesn't state a figure."""
    return f"{Cluster.model_fields[name].default:.3g}"


def _medians(
    where: str, ranks: int, samples: Sequence[Sequence[float]], request: ClusterRequest
) -> tuple[Mapping[int, float], list[Message]]:
    from sailor.profiling.measure import spread_of

    sizes = message_sizes(request.max_bytes)
    medians = {size: statistics.median(taken) for size, taken in zip(sizes, samples, strict=True)}
    shown = [
        Message(where, size, medians[size], spread_of(taken),
                2 * (ranks - 1) / ranks * size / medians[size])
        for size, taken in zip(sizes, samples, strict=True)
    ]  # fmt: skip
    return medians, shown


def _share(fit: RingFit, bandwidth: float, node: NodeType, what: str) -> float:
    share = fit.bytes_per_s / bandwidth
    if share > _ABOVE_SHEET:
        raise InputError(
            f"all-reduces pass {fit.bytes_per_s / 1e9:.3g} GB/s, and the {what} of {node.name} "
            f"carries {bandwidth / 1e9:.3g} GB/s: this machine is not of that node type",
            where="node-type",
            hint="name the machine's own; `sailor catalog nodes` shows what each carries",
        )
    return min(share, 1.0)


def _host_figure(request: ClusterRequest, findings: ClusterFindings) -> Figure:
    """Return the host's time over the reference, and over what the GPU type's usual host takes.

    The estimate multiplies a framework's launches by both factors.
    """
    measured_s = statistics.median(findings.launches)
    usual_s = REFERENCE_BLOCK_S * gpu_facts(request.gpu).host_factor
    return Figure(
        "host_factor", measured_s / usual_s, findings.spread,
        f"{measured_s * 1e3:.3g} ms to launch a block, {usual_s * 1e3:.3g} ms usual beside "
        f"{request.gpu.name}",
    )  # fmt: skip


def _part_remarks(request: ClusterRequest) -> list[str]:
    remarks = []
    if request.device == "cpu":
        remarks.append("measured with gloo between CPU processes: GPUs of this machine reach more")
    if request.processes != request.node.num_gpus:
        remarks.append(
            f"{request.processes} of the {request.node.num_gpus} GPUs of {request.node.name} "
            "took part"
        )
    return remarks


def _check(request: ClusterRequest) -> None:
    if not MIN_BYTES << (MIN_SIZES - 1) <= request.max_bytes <= MAX_BYTES:
        raise InputError(
            f"messages of at most {request.max_bytes} bytes",
            where="max-bytes",
            hint="give from 262144 (64, 128 and 256 KiB are measured) to 1073741824 bytes",
        )
    if not 1 <= request.processes <= request.node.num_gpus:
        raise InputError(
            f"{request.processes} processes, and {request.node.name} has "
            f"{request.node.num_gpus} GPUs",
            where="processes",
            hint=f"give 1 to {request.node.num_gpus}, or the machine's own --node-type",
        )
    if request.device == "cuda":
        _check_devices(request.processes)
    if request.init is None and request.machine:
        raise InputError(
            "machine 1 without an address to meet at",
            where="machine",
            hint="give --init tcp://HOST:PORT with the host of machine 0",
        )
    if request.init is None and request.processes == 1 and request.device == "cpu":
        raise InputError(
            "one process on a CPU measures nothing", where="processes", hint="give at least 2"
        )
    if request.init is not None and not request.init.startswith(("tcp://", "file://")):
        raise InputError(
            f"the address {request.init!r}", where="init", hint="write tcp://HOST:PORT"
        )


def _check_devices(processes: int) -> None:
    need_torch("for the cluster probe")
    from sailor.profiling.cluster_worker import cuda_devices

    found = cuda_devices()
    if processes > found:
        raise InputError(
            f"{processes} processes, and torch can use {found} CUDA devices here",
            where="processes",
            hint=f"give 1 to {found}" if found else "give --device cpu, or install torch for CUDA",
        )


def _exchange(request: ClusterRequest) -> ClusterFindings | None:
    """Run this machine's processes to their end; none of them outlives this call."""
    count = request.processes
    first = request.machine * count
    local = tuple(range(first, first + count))
    with tempfile.TemporaryDirectory(prefix="sailor-cluster-") as folder:
        result = Path(folder, "found.json")
        orders = [
            ClusterOrders(
                rank=rank,
                world=count if request.init is None else 2 * count,
                local_ranks=local,
                init=request.init or f"file://{Path(folder, 'meeting')}",
                device=request.device,
                sizes=message_sizes(request.max_bytes),
                host=request.device != "cpu",
                time_limit_s=request.time_limit_s,
                result=str(result),
            )
            for rank in local
        ]
        crew = WorkerCrew(
            what="the cluster probe",
            module="sailor.profiling.cluster_worker",
            arguments=tuple(map(to_text, orders)),
            loopback=request.init is None and request.device == "cpu",
            late_hint="check that both machines can reach the address of --init, lower "
            "--max-bytes, or raise --time-limit",
            failed_hint="check --device and --init, and that the other machine runs as many "
            "--processes with the same --max-bytes",
        )
        run_workers(crew, request.time_limit_s, folder)
        if request.machine:
            return None
        return ClusterFindings.from_text(result.read_text("utf-8"))
