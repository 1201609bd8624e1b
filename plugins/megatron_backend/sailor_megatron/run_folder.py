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
from sailor_megatron.machine import Device
from sailor_megatron.options import RunOptions

RUN_FILE = "run.json"
JOB_FILE = "job.json"
METRICS_FILE = "metrics.csv"
PROFILE_FILE = "profile.json"
JOINS_VARIABLE = "SAILOR_JOINS"  # tells a worker with which change of plan it comes
LOCK_FILE = "running.lock"  # held by the launcher while the run goes on


class RunSpec(Record):
    """Everything that a worker needs to know. `text` None: the text that ships with Python.

    `load` is a checkpoint folder to go on from; `init_from` a Hugging Face folder to take weights
    from, `export` one to write them to after the last step. `save_every` counts iterations.
    `measure` times stages, units and links; `tensorboard` writes event files beside the CSV.
    `device` "auto": a GPU for each worker where the machine has so many, else the CPU.
    """

    schema_version: Literal[1] = 1
    spec: ModelSpec
    plan: Plan
    options: RunOptions
    steps: int = Field(ge=1)
    text: str | None = None
    load: str | None = None
    init_from: str | None = None
    export: str | None = None
    save_every: int | None = Field(default=None, ge=1)
    measure: bool = False
    device: Device = "auto"
    tensorboard: bool = False


def read_run(folder: Path) -> RunSpec:
    """Return what the launcher wrote."""
    return load_record(RunSpec, folder / RUN_FILE)


def change_file(folder: Path, number: int) -> Path:
    """Return where the plan is that a run follows after its `number`-th change."""
    return folder / f"change-{number}.json"


def plan_after(folder: Path, run: RunSpec, number: int) -> Plan:
    """Return a run's plan after so many changes."""
    return run.plan if number == 0 else load_record(Plan, change_file(folder, number))


def log_file(folder: Path, rank: int) -> Path:
    """Return where a worker's output goes."""
    return folder / "logs" / f"worker-{rank}.log"


def worker_file(folder: Path, rank: int) -> Path:
    """Return where a worker writes what it has measured."""
    return folder / "workers" / f"worker-{rank}.json"


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
