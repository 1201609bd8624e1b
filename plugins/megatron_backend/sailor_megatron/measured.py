"""What each worker of a run has measured: records that it writes and others read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from sailor.errors import InputError
from sailor.model.arch import UnitKind
from sailor.model.base import Record
from sailor.model.files import load_record
from sailor_megatron.run_folder import RunSpec, worker_file


class StageSeconds(Record):
    """One microbatch through units [start, stop): medians over `passes` of the run itself."""

    start: int
    stop: int
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    passes: int = Field(ge=1)


class UnitFigures(Record):
    """One unit alone, timed after the run: seconds of one microbatch, bytes of one sample."""

    kind: UnitKind
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    params: int = Field(ge=0)
    activation_bytes: float = Field(ge=0)
    output_bytes: float = Field(ge=0)


class HandOver(Record):
    """An activation from one replica to another, all tp ranks together.

    To the next stage's, or (as gradient sums do) to the next replica of the stage. Half a round
    trip, timed after the run on links that were otherwise idle; `latency_s` is that of a message
    of a few bytes.
    """

    stage: int  # the sender
    replica: int
    to_stage: int
    to_replica: int
    message_bytes: int = Field(ge=1)
    seconds: float = Field(gt=0)
    latency_s: float = Field(gt=0)

    @property
    def bytes_per_s(self) -> float:
        """Return the rate beyond the latency."""
        moving_s = self.seconds - self.latency_s
        return self.message_bytes / (moving_s if moving_s > 0 else self.seconds)


class WorkerFigures(Record):
    """One worker of a run. Seconds are medians over iterations after the first.

    `peak_bytes` less `before_bytes` is what the model took; `memory` says of what kind. The lists
    and `sync_s` are there where the run was measured: summing gradients without the wait for
    slower pipelines, each stage that the worker holds, each unit alone, and (on the first rank
    of a replica) hand-overs to its neighbours.
    """

    rank: int
    stage: int
    replica: int
    tp_rank: int
    device: str
    memory: str
    before_bytes: int = Field(ge=0)
    peak_bytes: int = Field(ge=0)
    iterations: int = Field(default=0, ge=0)
    iteration_s: float | None = None
    pipeline_s: float | None = None
    sync_s: float | None = None
    update_s: float | None = None
    optimizer_params: int | None = None
    stages: tuple[StageSeconds, ...] = ()
    units: tuple[UnitFigures, ...] = ()
    hand_overs: tuple[HandOver, ...] = ()

    @property
    def model_bytes(self) -> int:
        """Return the memory that the model took on this worker."""
        return max(self.peak_bytes - self.before_bytes, 0)


def read_workers(folder: Path, run: RunSpec) -> Sequence[WorkerFigures]:
    """Return the figures of every worker of a run, by rank."""
    missing = [
        str(rank) for rank in range(run.plan.num_gpus) if not worker_file(folder, rank).exists()
    ]
    if missing:
        raise InputError(
            f"has no figures of worker {', '.join(missing)}",
            where=str(folder),
            hint="wait for the run's first iteration, or bring the files of all hosts together",
        )
    return [
        load_record(WorkerFigures, worker_file(folder, rank)) for rank in range(run.plan.num_gpus)
    ]


class WorkerFiles:
    """The figures that a run's workers on this machine have written so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = worker_file(folder, 0).parent
        self._seen: dict[Path, tuple[int, WorkerFigures]] = {}

    def fullest(self) -> WorkerFigures | None:
        """Return the worker with the most model bytes, if any has written; reads what is new."""
        for file in sorted(self._folder.glob("worker-*.json")):
            written = file.stat().st_mtime_ns
            if file not in self._seen or self._seen[file][0] != written:
                self._seen[file] = (written, load_record(WorkerFigures, file))
        found = [figures for _, figures in self._seen.values()]
        return max(found, key=lambda worker: worker.model_bytes, default=None)
