"""A worker's figures: memory in every run, seconds of stages where the run is measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from sailor.model.files import write_atomic
from sailor_megatron.clocks import Clock, clock_of
from sailor_megatron.measured import HandOver, StageSeconds, UnitFigures, WorkerFigures
from sailor_megatron.peak_memory import memory_before, peak_memory, what_is_measured
from sailor_megatron.process_groups import Place
from sailor_megatron.run_folder import RunSpec, worker_file

if TYPE_CHECKING:
    from sailor_megatron.engine import Engine, StepReport
    from sailor_megatron.models.contract import Stage

_Spans = list[tuple[Any, Any]]


class Recorder:
    """Notes what one worker takes, and writes it to the run's folder.

    Make it before the engine, so that it knows the memory without a model. The first iteration
    warms up and is left out of the times, unless it is the only one.
    """

    def __init__(self, folder: Path, run: RunSpec, place: Place) -> None:
        self._folder, self._run, self._place = folder, run, place
        self._before_bytes = memory_before(place.device)
        self._reports: list[StepReport] = []
        self._timer: _Timer | None = None
        self._engine: Engine | None = None

    def watch(self, engine: Engine) -> None:
        """Take the engine whose iterations follow; a measured run times its stages from now on."""
        self._engine = engine
        if self._run.measure:
            self._timer = _Timer(engine, clock_of(self._place.device))

    def add(self, report: StepReport) -> None:
        """Note one iteration. Memory is written when it may have grown: after 1, 2, 4, 8 ..."""
        self._reports.append(report)
        if self._timer is not None:
            self._timer.end_iteration()
        count = len(self._reports)
        if count & (count - 1) == 0:
            self._write((), (), peak_memory(self._place.device))

    def finish(self) -> None:
        """Write all figures; a measured run times units and links for them first."""
        peak_bytes = peak_memory(self._place.device)  # before units alone take theirs
        if self._engine is None or not self._run.measure:
            self._write((), (), peak_bytes)
            return
        from sailor_megatron.probes import hand_overs, unit_figures

        self._write(unit_figures(self._engine), hand_overs(self._engine), peak_bytes)

    def _write(
        self, units: Sequence[UnitFigures], moved: Sequence[HandOver], peak_bytes: int
    ) -> None:
        engine = self._engine
        if engine is None:
            raise RuntimeError("watch() comes before add()")
        counted = self._reports[1:] or self._reports
        worker, timer = engine.worker, self._timer
        figures = WorkerFigures(
            rank=worker.rank,
            stage=worker.stage,
            replica=worker.replica,
            tp_rank=worker.tp_rank,
            device=_device_name(self._place.device),
            memory=what_is_measured(self._place.device),
            before_bytes=self._before_bytes,
            peak_bytes=peak_bytes,
            iterations=len(self._reports),
            iteration_s=_median([report.total_s for report in counted]),
            pipeline_s=_median([report.pipeline_s for report in counted]),
            sync_s=_median(timer.sync_s) if timer else None,
            update_s=_median([report.update_s for report in counted]),
            optimizer_params=_stepped_params(engine),
            stages=timer.seconds() if timer else (),
            units=tuple(units),
            hand_overs=tuple(moved),
        )
        file = worker_file(self._folder, worker.rank)
        file.parent.mkdir(exist_ok=True)
        write_atomic(file, figures.model_dump_json(indent=1) + "\n")


class _Timer:
    """Times every pass of an engine's stages, and its sums of gradients."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._clock = clock
        self._engine = engine
        self._iterations = 0
        self.sync_s: list[float] = []
        self._stages: list[_TimedStage] = []
        self._reduce = engine.reduce
        engine.wrap_stages(self._wrapped)
        engine.reduce = self.reduce  # type: ignore[method-assign]

    def _wrapped(self, stage: Stage) -> Stage:
        timed = _TimedStage(stage, self._clock)
        self._stages.append(timed)
        return timed

    def reduce(self, loss_sum: Tensor) -> tuple[float, float]:
        """Sum gradients once every rank is there, so that waiting isn't taken for summing."""
        if dist.get_world_size() > 1:
            dist.barrier()
        self._clock.settle()
        begin = self._clock.mark()
        found = self._reduce(loss_sum)
        end = self._clock.mark()
        self._clock.settle()
        self.sync_s.append(self._clock.seconds(begin, end))
        return found

    def end_iteration(self) -> None:
        """Turn the moments of an iteration into seconds."""
        self._iterations += 1
        self._clock.settle()
        warmed_up = self._iterations == 2
        if warmed_up:
            del self.sync_s[:-1]
        for stage in self._stages:
            stage.end_iteration(forget=warmed_up)

    def seconds(self) -> tuple[StageSeconds, ...]:
        """Return what one microbatch takes in each chunk."""
        layout = self._engine.layout
        chunks = layout.chunks(self._engine.worker.stage)
        return tuple(
            StageSeconds(
                start=layout.plan.stages[chunk].start,
                stop=layout.plan.stages[chunk].stop,
                forward_s=statistics.median(stage.forward_s),
                backward_s=statistics.median(stage.backward_s),
                passes=len(stage.forward_s),
            )
            for chunk, stage in zip(chunks, self._stages, strict=True)
            if stage.forward_s and stage.backward_s
        )


class _TimedStage:
    """Stands between an engine and one of its stages.

    A backward pass begins when the gradient of the stage's output is there, and ends when
    autograd has nothing left to do.
    """

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self._stage, self._clock = stage, clock
        self.kind, self.first, self.last = stage.kind, stage.first, stage.last
        self._spans: dict[str, _Spans] = {"forward": [], "backward": []}
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []

    def __call__(self, x: Tensor, targets: Tensor | None, samples: Sequence[int]) -> Tensor:
        """Run one microbatch and note when."""
        begin = self._clock.mark()
        out = self._stage(x, targets, samples)
        self._spans["forward"].append((begin, self._clock.mark()))
        register: Callable[..., object] = out.register_hook
        register(self._begin_backward)
        return out

    def _begin_backward(self, _gradient: Tensor) -> None:
        begin = self._clock.mark()

        def end_backward() -> None:
            self._spans["backward"].append((begin, self._clock.mark()))

        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(end_backward)

    def end_iteration(self, *, forget: bool) -> None:
        """Turn moments into seconds; `forget` those of earlier iterations."""
        for kind, seconds in (("forward", self.forward_s), ("backward", self.backward_s)):
            if forget:
                seconds.clear()
            spans = self._spans[kind]
            seconds += [self._clock.seconds(begin, end) for begin, end in spans]
            spans.clear()


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _stepped_params(engine: Engine) -> int:
    """Return the parameters that this rank's optimizer steps: under ZeRO-1 its shares."""
    if not engine.options.zero1:
        return sum(group.num_elements for group in engine.packed)
    return sum(-(-group.num_elements // len(group.ranks)) for group in engine.packed)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
