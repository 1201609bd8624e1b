"""Seconds of a model's units on the device at hand, by running them.

A chain of embedding, two blocks and head runs as one pass without anything between its units, and
again unit by unit with a time stamp between them. The stamps give each unit's share, the pass
without them the sum: stamps and cut graphs cost host time that no training run has. Gradients are
added to those of the pass before, as in every microbatch but the first, the embedding's included.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sailor.errors import InputError
from sailor.interfaces import ProfileAnswer, ProfileRequest, Progress
from sailor.model.profile import LayerProfile, Provenance, UnitTime
from sailor.profiling.blocks import Block, Build, Embedding, Head, Kernels
from sailor.profiling.counted import count_footprint

UNITS = ("embedding", "first_block", "block", "head")
MIN_REPEATS = 3
# A size whose passes are slow gets fewer than were asked for once it has run this long.
LIMIT_S = 60.0
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def measure(request: ProfileRequest, on_progress: Callable[[Progress], None]) -> ProfileAnswer:
    """Return a profile for each tp and microbatch size that fits, remarks on those that don't."""
    device = open_device(request.device)
    profiles: list[LayerProfile] = []
    remarks: list[str] = []
    for tp in request.tps:
        found = list(_measure_degree(request, tp, device, on_progress, remarks))
        profiles.extend(found)
        if found and tp > 1:
            remarks.append(
                f"tp {tp}: the times are one rank's work; the communication between {tp} ranks is "
                "not in them, so plans with this tp look faster than they are"
            )
    return ProfileAnswer(profiles=tuple(profiles), remarks=tuple(remarks))


def open_device(name: str) -> torch.device:
    """Return a device that torch can use here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise InputError(
            f"torch {torch.__version__} can't use the device {name!r} here "
            f"({str(error).splitlines()[0]})",
            where="device",
            hint="give cpu, cuda, or cuda:0 and so on",
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(
            f"the device {name!r} can't be timed", where="device", hint="give cpu or cuda"
        )
    return device


def device_label(device: torch.device) -> str:
    """Return the device, and the versions that decide how fast it is, for a source."""
    versions = f"torch {torch.__version__}"
    if device.type == "cuda":
        tf32 = "TF32" if torch.backends.cuda.matmul.allow_tf32 else "no TF32"
        name = torch.cuda.get_device_name(device)
        return f"{name}, {versions}, CUDA {torch.version.cuda}, {tf32}"
    return f"{_cpu_name()}, {torch.get_num_threads()} threads, {versions}"


def default_gpu_name(device: torch.device) -> str:
    """Return a name for a device whose user gave none: "cpu", or the driver's with dashes."""
    if device.type == "cuda":
        return "-".join(torch.cuda.get_device_name(device).split())
    return device.type


class _OutOfMemoryError(Exception):
    """The device has too little memory for a size."""


@dataclass
class _Clock:
    """Time stamps in the order of the device's own work."""

    device: torch.device

    def stamp(self) -> Any:
        """Return the present moment; on CUDA the one at which the device gets there."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Return the seconds from one stamp to another, once the device has passed both."""
        if self.device.type != "cuda":
            return float(stop - start)
        return float(start.elapsed_time(stop)) / 1e3

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass
class _Samples:
    """Seconds of every timed pass: by unit, and of the pass without stamps."""

    forward: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in UNITS})
    backward: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in UNITS})
    whole_forward: list[float] = field(default_factory=list)
    whole_backward: list[float] = field(default_factory=list)


class _Chain:
    """Embedding, two blocks and head of one rank, with their gradients and inputs."""

    def __init__(self, build: Build) -> None:
        self.units: tuple[nn.Module, ...] = (
            Embedding(build), Block(build), Block(build), Head(build)
        )  # fmt: skip
        self._build = build
        self._clock = _Clock(build.device)
        self.params = [parameter for unit in self.units for parameter in unit.parameters()]

    def inputs(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """Return random tokens and targets."""
        model, device = self._build.model, self._build.device
        shape = (model.seq_len, microbatch)
        tokens = torch.randint(model.vocab, shape, device=device)
        return tokens, torch.randint(model.vocab, shape, device=device)

    def whole_pass(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return the seconds of one forward and one backward pass."""
        clock = self._clock
        clock.wait()
        start = clock.stamp()
        x = tokens
        for unit in self.units[:-1]:
            x = unit(x)
        loss: Tensor = self.units[-1](x, targets)
        turn = clock.stamp()
        loss.backward()  # type: ignore[no-untyped-call]
        stop = clock.stamp()
        clock.wait()
        return clock.between(start, turn), clock.between(turn, stop)

    def pass_by_unit(self, tokens: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
        """Return the seconds of each unit, forward and backward, in the order of the units."""
        clock = self._clock
        clock.wait()
        ahead = [clock.stamp()]
        inputs, outputs = [], []
        x = tokens
        for unit in self.units:
            given = x.detach().requires_grad_(x.is_floating_point())
            x = unit(given, targets) if unit is self.units[-1] else unit(given)
            inputs.append(given)
            outputs.append(x)
            ahead.append(clock.stamp())
        back = [clock.stamp()]
        grad: Tensor | None = None
        while outputs:
            torch.autograd.backward(outputs.pop(), grad)
            grad = inputs.pop().grad
            back.append(clock.stamp())
        clock.wait()
        forward = [clock.between(*pair) for pair in pairwise(ahead)]
        backward = [clock.between(*pair) for pair in pairwise(back)]
        return forward, backward[::-1]

    def optimizer_s(self, repeats: int) -> float:
        """Return the median seconds of an AdamW step over all parameters.

        With 16-bit weights the step works on fp32 copies, as mixed-precision training does:
        gradients are widened before it and the weights rounded after it.
        """
        masters = self.params
        if self._build.precision != "fp32":
            masters = [nn.Parameter(parameter.detach().float()) for parameter in self.params]
        optimizer = torch.optim.AdamW(masters)
        samples = []
        for _ in range(1 + repeats):  # the first one makes the moments
            self._clock.wait()
            start = self._clock.stamp()
            if masters is not self.params:
                for master, parameter in zip(masters, self.params, strict=True):
                    master.grad = None if parameter.grad is None else parameter.grad.float()
            optimizer.step()
            if masters is not self.params:
                with torch.no_grad():
                    torch._foreach_copy_(tuple(self.params), tuple(masters))
            stop = self._clock.stamp()
            self._clock.wait()
            samples.append(self._clock.between(start, stop))
        return statistics.median(samples[1:])


def _measure_degree(
    request: ProfileRequest,
    tp: int,
    device: torch.device,
    on_progress: Callable[[Progress], None],
    remarks: list[str],
) -> Iterator[LayerProfile]:
    """Yield the profiles of one tp, small microbatches first; what is left out goes to remarks."""
    build = Build(request.model, tp, request.precision, request.style, device, Kernels())
    sizes = sorted(request.microbatches)
    chain: _Chain | None = None
    optimizer_s: float | None = None
    for index, size in enumerate(sizes):
        on_progress(Progress(f"tp {tp}, microbatch {size} on {request.gpu}"))
        try:
            with _memory_watched():
                _check_memory(request, tp, size, device)
                if chain is None:
                    chain = _Chain(build)
                samples = _run(chain, request, size)
                if optimizer_s is None:
                    optimizer_s = chain.optimizer_s(max(MIN_REPEATS, request.repeats))
        except _OutOfMemoryError as error:
            left_out = ", ".join(str(larger) for larger in sizes[index:])
            remarks.append(
                f"tp {tp}, microbatch {left_out} left out: microbatch {size} is out of memory on "
                f"{request.gpu} ({error})"
            )
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            return
        yield _profile(request, tp, size, samples, optimizer_s, chain, device)


def _run(chain: _Chain, request: ProfileRequest, microbatch: int) -> _Samples:
    """Take samples; whole passes and passes by unit take turns, so that a drift hits both."""
    tokens, targets = chain.inputs(microbatch)
    samples = _Samples()
    for _ in range(request.warmup):
        chain.whole_pass(tokens, targets)
        chain.pass_by_unit(tokens, targets)
    end = time.monotonic() + LIMIT_S
    for done in range(max(MIN_REPEATS, request.repeats)):
        if done >= MIN_REPEATS and time.monotonic() > end:
            break
        forward_s, backward_s = chain.whole_pass(tokens, targets)
        samples.whole_forward.append(forward_s)
        samples.whole_backward.append(backward_s)
        forward, backward = chain.pass_by_unit(tokens, targets)
        for unit, ahead, back in zip(UNITS, forward, backward, strict=True):
            samples.forward[unit].append(ahead)
            samples.backward[unit].append(back)
    return samples


def _profile(
    request: ProfileRequest,
    tp: int,
    microbatch: int,
    samples: _Samples,
    optimizer_s: float,
    chain: _Chain,
    device: torch.device,
) -> LayerProfile:
    forward = {unit: statistics.median(taken) for unit, taken in samples.forward.items()}
    backward = {unit: statistics.median(taken) for unit, taken in samples.backward.items()}
    whole = (statistics.median(samples.whole_forward), statistics.median(samples.whole_backward))
    parts = (sum(forward.values()), sum(backward.values()))
    times = {
        unit: UnitTime(
            forward_s=forward[unit] * whole[0] / parts[0],
            backward_s=backward[unit] * whole[1] / parts[1],
        )
        for unit in UNITS
    }
    spread = (spread_of(samples.whole_forward), spread_of(samples.whole_backward))
    source = (
        f"measured on {device_label(device)}: median of {len(samples.whole_forward)} passes after "
        f"{request.warmup} warm-up passes, interquartile range {spread[0]:.0%} forward and "
        f"{spread[1]:.0%} backward; units timed one by one took {sum(parts) / sum(whole):.2f} of "
        "the pass without time stamps and are scaled to it; "
        f"{request.style.described(request.model)}; AdamW"
    )
    if tp > 1:
        source += f"; the work of one of {tp} ranks, their communication not included"
    return LayerProfile(
        model=request.model.name,
        gpu=request.gpu,
        tp=tp,
        microbatch=microbatch,
        precision=request.precision,
        embedding=times["embedding"],
        first_block=times["first_block"],
        block=times["block"],
        head=times["head"],
        optimizer_s=optimizer_s,
        optimizer_params=sum(parameter.numel() for parameter in chain.params),
        provenance=Provenance.MEASURED,
        source=source,
        as_of=datetime.now().astimezone().date(),
    )


def spread_of(samples: Sequence[float]) -> float:
    """Return the interquartile range over the median."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


@contextmanager
def _memory_watched() -> Iterator[None]:
    """Turn every way in which a device says that it has no memory into one error."""
    try:
        yield
    except MemoryError as error:
        raise _OutOfMemoryError("the system refused memory") from error
    except RuntimeError as error:
        text = str(error)
        if not any(sign in text.lower() for sign in _NO_MEMORY):
            raise
        raise _OutOfMemoryError(text.splitlines()[0][:200]) from error


def _check_memory(request: ProfileRequest, tp: int, microbatch: int, device: torch.device) -> None:
    """Refuse a size that the main memory can't hold: the system would end the process instead.

    Weights, gradients and two fp32 moments (with 16-bit weights fp32 copies of both as well), the
    counted activations, and once more the logits for their gradient.
    """
    free = _free_bytes()
    if device.type != "cpu" or free is None:
        return
    footprint = count_footprint(request.model, tp, request.precision, request.style)
    units = [footprint.unit(kind) for kind in ("embedding", "block", "block", "head")]
    each = 16 if request.precision == "fp32" else 20
    needed = float(each * sum(unit.params for unit in units))
    needed += microbatch * sum(unit.activation_bytes for unit in units)
    needed += microbatch * footprint.head.output_bytes
    if needed > free:
        raise _OutOfMemoryError(
            f"it needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )


def _free_bytes() -> int | None:
    """Return the main memory that can be had without swapping, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] * 1024 if found else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"
