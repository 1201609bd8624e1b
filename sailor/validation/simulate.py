"""What the simulator says about a row: seconds, bytes and bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sailor.model.execution import Layout
from sailor.sim.analytic_memory import RankMemory, peak_memory, rank_memory, static_bytes
from sailor.sim.analytic_time import Setting, TimeParts, iteration_time
from sailor.sim.device import gpu_facts
from sailor.sim.event_estimate import EventEstimate
from sailor.validation.profiled import profiled_run
from sailor.validation.subject import Subject


@dataclass(frozen=True)
class Prediction:
    """Figures that stand beside the measured ones; None where nothing was measured.

    `bound_bytes` is the upper bound of `memory_bytes`; `fits` the verdict that it gives on the
    row's GPU type. `parts_bytes` are states and activations where a source prints them apart.
    """

    time: TimeParts | None
    layout: Layout
    memory: RankMemory | None
    memory_bytes: float | None
    bound_bytes: float | None
    fits: bool | None
    parts_bytes: dict[str, float]
    profiled_s: float | None = None  # from measured layer times, in the event engine

    @property
    def seconds(self) -> float | None:
        """Return the iteration's seconds."""
        if self.profiled_s is not None:
            return self.profiled_s
        return self.time.total if self.time else None


def predict(subject: Subject) -> Prediction:
    """Return the simulator's figures for a row.

    Of several layouts the fastest counts. Where a source doesn't say which of two attention
    kernels ran, the simulator gives two answers, and the one nearer to the memory counts.
    """
    profiled = profiled_run(subject.fields, subject.gpu.name)
    if profiled is not None:
        return _with_profile(subject, profiled)
    if subject.other is None:
        return _predict(subject)
    both = (_predict(subject), _predict(replace(subject, execution=subject.other)))
    measured = subject.measured_bytes
    if measured is None:
        return both[0]
    return min(both, key=lambda one: abs((one.memory_bytes or 0.0) - measured))


def _with_profile(subject: Subject, profiled: EventEstimate) -> Prediction:
    """Return what the engine says of a row whose layers were measured."""
    fullest = max(profiled.memory, key=lambda worker: worker.bound_bytes)
    return Prediction(
        time=None,
        layout=subject.layouts[0],
        memory=None,
        memory_bytes=float(max(worker.total_bytes for worker in profiled.memory)),
        bound_bytes=float(fullest.bound_bytes),
        fits=fullest.bound_bytes <= subject.gpu.memory_bytes,
        parts_bytes={},
        profiled_s=profiled.total_s,
    )


def _predict(subject: Subject) -> Prediction:
    time, layout = None, subject.layouts[0]
    if subject.measured_s is not None:
        time, layout = min(
            ((iteration_time(_setting(subject, one)), one) for one in subject.layouts),
            key=lambda pair: pair[0].total,
        )
    if subject.measured_bytes is None and not subject.oom and not subject.parts:
        return Prediction(time, layout, None, None, None, None, {})
    facts = gpu_facts(subject.gpu)
    if subject.rank is None:
        memory = peak_memory(subject.model, subject.execution, layout, facts)
    else:
        memory = rank_memory(subject.model, subject.execution, layout, subject.rank, facts)
    value, bound = _view(memory, subject.view)
    parts: dict[str, float] = {}
    if subject.parts:
        parts = {
            "states": static_bytes(memory, subject.model, subject.execution, layout),
            "activation": memory.parts.activations + memory.parts.logits,
        }
    fits = memory.bound_device <= subject.gpu.memory_bytes
    return Prediction(time, layout, memory, value, bound, fits, parts)


def _setting(subject: Subject, layout: Layout) -> Setting:
    return Setting.of(subject.model, subject.execution, layout, subject.gpu, subject.cluster)


def _view(memory: RankMemory, view: str) -> tuple[float, float]:
    parts = memory.parts
    if view == "device":
        return parts.device, memory.bound_device
    if view == "states+activations":
        return parts.states + parts.activations, memory.bound_allocated
    return parts.allocated, memory.bound_allocated
