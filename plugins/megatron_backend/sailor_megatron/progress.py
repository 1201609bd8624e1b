"""What `sailor train` says while a run goes on: one line a step, and a summary."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_megatron.measured import WorkerFiles
from sailor_megatron.run_folder import change_file

if TYPE_CHECKING:
    from sailor.model.estimate import Estimate
    from sailor_megatron.metrics import StepMetrics


class ProgressLines:
    """Loss, speed and memory of each iteration beside what was predicted.

    Memory is that of the fullest worker of this machine: what the model took there. Predicted is
    the fullest worker's without the reserve for driver and libraries.
    """

    def __init__(self, folder: Path, predicted: Estimate | None) -> None:
        self._folder, self._workers = folder, WorkerFiles(folder)
        self._predicted = predicted
        self._seconds: list[float] = []

    @property
    def predicted_bytes(self) -> int | None:
        """Return what the simulator says of the fullest worker."""
        if self._predicted is None:
            return None
        return max(m.total_bytes - m.reserve_bytes for m in self._predicted.memory)

    def add(self, metrics: StepMetrics) -> None:
        """Print one iteration."""
        self._seconds.append(metrics.iteration_s)
        if change_file(self._folder, 1).exists():
            self._predicted = None  # it was another plan's
        line = (
            f"step {metrics.step:>5}  loss {metrics.loss:8.4f}  norm {metrics.gradient_norm:8.3f}"
            f"  {metrics.tokens_per_s:9.0f} tokens/s  {metrics.iteration_s:8.4f} s"
        )
        if self._predicted is not None:
            line += f" (predicted {self._predicted.iteration_s:.4f} s)"
        worker = self._workers.fullest()
        if worker is not None:
            line += f"  {_mib(worker.model_bytes)}"
            if self.predicted_bytes is not None:
                line += f" (predicted {_mib(self.predicted_bytes)})"
        click.echo(line + ("  skipped: overflow" if metrics.skipped else ""))

    def end(self) -> None:
        """Print the summary; the first iteration warms up and isn't counted."""
        if not self._seconds:
            return
        median_s = statistics.median(self._seconds[1:] or self._seconds)
        line = f"done: median {median_s:.4f} s an iteration"
        if self._predicted is not None:
            ratio = median_s / self._predicted.iteration_s
            line += f", {ratio:.2f} times the predicted {self._predicted.iteration_s:.4f} s"
        worker = self._workers.fullest()
        if worker is not None:
            line += f"; memory at most {_mib(worker.model_bytes)} (worker {worker.rank}"
            line += f": {worker.memory})"
            if self.predicted_bytes is not None:
                ratio = worker.model_bytes / self.predicted_bytes
                line += f", {ratio:.2f} times the predicted {_mib(self.predicted_bytes)}"
        click.echo(line)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
