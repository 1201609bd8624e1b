"""The folder of a run: what the launcher writes for its workers, and what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from sailor.model.arch import ModelSpec
from sailor.model.base import Record
from sailor.model.files import load_record
from sailor.model.huggingface import read_config
from sailor.model.job import HuggingFaceModel, Job
from sailor.model.plan import Plan
from sailor.model.presets import preset
from sailor_megatron.options import RunOptions

RUN_FILE = "run.json"
METRICS_FILE = "metrics.csv"
WORKERS_FILE = "workers.csv"


class RunSpec(Record):
    """Everything that a worker needs to know. `text` None: the text that ships with Python.

    `load` is a checkpoint folder to go on from; `save_every` counts iterations.
    """

    schema_version: Literal[1] = 1
    spec: ModelSpec
    plan: Plan
    options: RunOptions
    steps: int = Field(ge=1)
    text: str | None = None
    load: str | None = None
    save_every: int | None = Field(default=None, ge=1)


def read_run(folder: Path) -> RunSpec:
    """Return what the launcher wrote."""
    return load_record(RunSpec, folder / RUN_FILE)


def log_file(folder: Path, rank: int) -> Path:
    """Return where a worker's output goes."""
    return folder / "logs" / f"worker-{rank}.log"


def checkpoint_folder(folder: Path) -> Path:
    """Return where a run's checkpoints are."""
    return folder / "checkpoints"


def model_of(job: Job) -> ModelSpec:
    """Return the shape of a job's model."""
    if isinstance(job.model, ModelSpec):
        return job.model
    if isinstance(job.model, HuggingFaceModel):
        return read_config(job.model.huggingface, job.model.seq_len)
    return preset(job.model, where=f"{job.name}: model")
