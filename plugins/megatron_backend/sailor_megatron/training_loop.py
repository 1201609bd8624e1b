"""One worker's iterations, with what is saved, written down and changed between them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sailor_megatron.checkpoint_facts import read_index
from sailor_megatron.engine import Engine, StepReport
from sailor_megatron.event_files import EventWriter
from sailor_megatron.metrics import MetricsWriter, StepMetrics
from sailor_megatron.models.factory import chosen_stages
from sailor_megatron.peak_memory import peak_memory
from sailor_megatron.recorder import Recorder
from sailor_megatron.run_folder import METRICS_FILE, RunSpec, checkpoint_folder
from sailor_megatron.running_changes import RunningChanges
from sailor_megatron.weights.save import export

if TYPE_CHECKING:
    from sailor_megatron.checkpoint import Checkpoints

log = logging.getLogger("sailor.worker")


class TrainingLoop:
    """Runs one worker's part of a run to its last iteration, or until no plan needs it."""

    def __init__(
        self, folder: Path, run: RunSpec, recorder: Recorder, changes: RunningChanges
    ) -> None:
        self._folder, self._run = folder, run
        self._recorder, self._changes = recorder, changes
        first = 0 if run.load is None else read_index(Path(run.load))["iteration"]
        self._last = first + run.steps
        self._checkpoints: Checkpoints | None = None

    def run(self, engine: Engine) -> None:
        """Train from where the engine is: a checkpoint is loaded where it is at the start."""
        fresh = engine.iteration == 0
        self._take(engine)
        if self._checkpoints is not None and self._run.load is not None and fresh:
            self._checkpoints.load(Path(self._run.load))
        with ExitStack() as stack:
            writers = _metric_writers(self._folder, self._run, engine.worker.rank, stack)
            while engine.iteration < self._last:
                if self._step(engine, writers).pauses:
                    changed = self._change(engine)
                    if changed is None:
                        log.info("the new plan has no work for this process")
                        return
                    engine = changed
        self._end(engine)

    def _take(self, engine: Engine) -> None:
        """Go on with this engine."""
        self._recorder.watch(engine)
        kind, reason = chosen_stages(self._run.spec, engine.layout.plan, self._run.options)
        size = engine.params.master.numel()
        log.info("%s: %s stages (%s), %d parameters", engine.worker.label(), kind, reason, size)
        if self._run.load is not None or self._run.save_every is not None:
            # Not at the top: a second for every worker, which most runs can do without.
            from sailor_megatron.checkpoint import Checkpoints

            self._checkpoints = Checkpoints(checkpoint_folder(self._folder), engine)

    def _step(self, engine: Engine, writers: Sequence[MetricsWriter | EventWriter]) -> StepReport:
        tokens = engine.layout.plan.samples * self._run.spec.seq_len
        engine.asks_to_pause = self._changes.ready()
        report = engine.step()
        log.info("step %d: loss %.6f, %.4f s", report.iteration, report.loss, report.total_s)
        self._recorder.add(report)
        for writer in writers:
            writer.add(StepMetrics.of(report, tokens))
        every = self._run.save_every
        if self._checkpoints and every and engine.iteration % every == 0:
            self._checkpoints.save()
        return report

    def _change(self, engine: Engine) -> Engine | None:
        if self._checkpoints:
            self._checkpoints.finish()
        changed = self._changes.make(engine)
        if changed is not None:
            self._take(changed)
        return changed

    def _end(self, engine: Engine) -> None:
        self._changes.end()
        if self._checkpoints:
            self._checkpoints.finish()
        if self._run.export is not None:
            export(engine, Path(self._run.export))
        self._recorder.finish()
        log.info("peak memory %d bytes", peak_memory(engine.groups.place.device))


def _metric_writers(
    folder: Path, run: RunSpec, rank: int, stack: ExitStack
) -> Sequence[MetricsWriter | EventWriter]:
    """Return the writers of a run's metrics, which rank 0 has, entered into `stack`."""
    if rank != 0:
        return ()
    found: list[MetricsWriter | EventWriter] = []
    if run.tensorboard:
        found.append(stack.enter_context(EventWriter(folder)))
    found.append(stack.enter_context(MetricsWriter(folder / METRICS_FILE)))
    return found
