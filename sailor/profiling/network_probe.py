"""The network probe: two processes send each other messages, a curve is fitted to the medians.

A message of n bytes and its answer of one byte take a round trip and n / bandwidth: what the
smallest exchange takes is subtracted, and half of it is the latency. A message that takes less
than two such exchanges says nothing about bandwidth. The curve is the one that `BandwidthCurve`
holds, a polynomial of degree 2 in log2(MB), fitted by least squares of the relative distance.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.profiling.network_orders import MAX_BYTES, Findings, Orders, message_sizes
from sailor.profiling.profilers import OWN_FIGURES, need_torch
from sailor.profiling.store import ProfileStore
from sailor.profiling.worker_processes import WorkerCrew, run_workers

MIN_SIZES = 3  # a polynomial of degree 2 has three coefficients
LOCAL = "both processes on one machine"


@dataclass(frozen=True)
class NetworkRequest:
    """Which link to measure, and how the two processes find each other.

    `init` None: both run here, over the loopback device. Otherwise it is torch's address of the
    meeting, tcp://HOST:PORT with the host of rank 0, and this machine runs one of them. Rank 0
    stands in zone `src`, rank 1 in zone `dst`. `max_bytes` is the largest message.
    """

    src: str
    dst: str
    src_gpu: str | None = None
    dst_gpu: str | None = None
    init: str | None = None
    rank: int = 0
    backend: str = "gloo"
    max_bytes: int = MAX_BYTES
    time_limit_s: float = 300.0


def probe(request: NetworkRequest) -> ProfileStore | None:
    """Return a store with the links of both directions; None where this machine ran rank 1."""
    _check(request)
    need_torch("for the network probe")
    findings = _exchange(request)
    return None if findings is None else _store(request, findings)


def rates(
    sizes: Sequence[int], seconds: Sequence[float], round_trip_s: float
) -> Mapping[int, float]:
    """Return bytes/s by message size, for the sizes that say something about it.

    Sizes are left out up to the largest whose message took less than two smallest exchanges: the
    difference would be noise.
    """
    taken_s = dict(zip(sizes, seconds, strict=True))
    hidden = max((size for size in sizes if taken_s[size] < 2 * round_trip_s), default=0)
    return {size: size / (taken_s[size] - round_trip_s) for size in sizes if size > hidden}


def fit_curve(measured: Mapping[int, float]) -> tuple[BandwidthCurve, float]:
    """Return the curve through at least three rates, and its largest relative distance to one."""
    x = np.log2(np.array(list(measured)) / 1e6)
    y = np.array(list(measured.values())) / 1e9
    c2, c1, c0 = (float(c) for c in np.polyfit(x, y, 2, w=1 / y))
    curve = BandwidthCurve(
        coefficients=(c2, c1, c0),
        min_bytes=min(measured),
        max_bytes=max(measured),
        peak_bytes_per_s=max(measured.values()),
    )
    worst = max(abs(curve.bytes_per_s(size) / rate - 1) for size, rate in measured.items())
    return curve, worst


def _check(request: NetworkRequest) -> None:
    if len(message_sizes(request.max_bytes)) < MIN_SIZES or request.max_bytes > MAX_BYTES:
        raise InputError(
            f"messages of at most {request.max_bytes} bytes",
            where="max-bytes",
            hint="give from 262144 (64, 128 and 256 KiB are measured) to 1073741824 bytes",
        )
    if request.rank not in (0, 1):
        raise InputError(f"rank {request.rank}", where="rank", hint="the processes are 0 and 1")
    if request.init is None and request.rank:
        raise InputError(
            "rank 1 without an address to meet at",
            where="rank",
            hint="give --init tcp://HOST:PORT with the host of rank 0",
        )
    if request.init is not None and not request.init.startswith(("tcp://", "file://")):
        raise InputError(
            f"the address {request.init!r}", where="init", hint="write tcp://HOST:PORT"
        )


def _exchange(request: NetworkRequest) -> Findings | None:
    """Run this machine's processes to their end; none of them outlives this call."""
    with tempfile.TemporaryDirectory(prefix="sailor-network-") as folder:
        result = Path(folder, "found.json")
        init = request.init or f"file://{Path(folder, 'meeting')}"
        ranks = (0, 1) if request.init is None else (request.rank,)
        orders = [
            Orders(
                rank, init, request.backend, message_sizes(request.max_bytes),
                request.time_limit_s, str(result),
            )
            for rank in ranks
        ]  # fmt: skip
        run_workers(
            WorkerCrew(
                what="the network probe",
                module="sailor.profiling.network_worker",
                arguments=tuple(order.to_text() for order in orders),
                loopback=request.init is None and request.backend == "gloo",
                late_hint="check that both processes can reach the address of --init, lower "
                "--max-bytes, or raise --time-limit",
                failed_hint="check --init and --backend, and that the other process was started",
            ),
            request.time_limit_s,
            folder,
        )
        return Findings.from_text(result.read_text("utf-8")) if 0 in ranks else None


def _store(request: NetworkRequest, findings: Findings) -> ProfileStore:
    day = datetime.now().astimezone().date()
    sizes = message_sizes(request.max_bytes)
    remarks: list[str] = []
    if request.init is None:
        remarks.append(
            f"{LOCAL}: the figures are those of its loopback device; run one process in each zone "
            "with --init to measure a network"
        )
    how = (
        f"measured {day} by two processes ({request.backend}, torch {findings.torch_version}"
        f"{', ' + LOCAL if request.init is None else ''})"
    )
    ends = [(request.src, request.src_gpu), (request.dst, request.dst_gpu)]
    links = []
    for direction, (src, dst) in enumerate(((ends[0], ends[1]), (ends[1], ends[0]))):
        if direction and src == dst:
            break  # within one zone and GPU type both directions are one link
        links.append(_link(src, dst, sizes, findings, direction, how, remarks))
    return ProfileStore(
        source=f"sailor profile network of {request.src} and {request.dst}",
        licence=OWN_FIGURES,
        as_of=day,
        remarks=tuple(remarks),
        links=tuple(links),
    )


def _link(
    src: tuple[str, str | None],
    dst: tuple[str, str | None],
    sizes: Sequence[int],
    findings: Findings,
    direction: int,
    how: str,
    remarks: list[str],
) -> Link:
    round_trip_s = findings.round_trip_s[direction]
    found = rates(sizes, findings.seconds[direction], round_trip_s)
    if not found:
        raise InputError(
            f"{src[0]} to {dst[0]}: even {sizes[-1]} bytes took less than twice the smallest "
            f"message's {round_trip_s * 1e6:.0f} us, which says nothing about bandwidth",
            hint="raise --max-bytes, or measure again when the machines are idle",
        )
    if len(found) < len(sizes):
        remarks.append(
            f"{src[0]} to {dst[0]}: messages under {min(found)} bytes left out: most of their time "
            f"is the latency of {round_trip_s / 2 * 1e6:.0f} us"
        )
    curve, bandwidth = None, None
    if len(found) >= MIN_SIZES:
        curve, worst = fit_curve(found)
        fitted = f"the fit within {worst:.0%} of them"
    else:
        bandwidth = found[max(found)]
        fitted = f"too few for a curve: the bandwidth is that of {max(found)} bytes"
    return Link(
        src=src[0],
        dst=dst[0],
        src_gpu=src[1],
        dst_gpu=dst[1],
        latency_s=round_trip_s / 2,
        bandwidth=bandwidth,
        curve=curve,
        source=f"{how}: medians of messages from {min(found)} to {max(found)} bytes, {fitted}",
    )
