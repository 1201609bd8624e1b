"""Worker processes that take one job at a time, so that a death is blamed on the right job.

One process pool of one process each: a pool of several breaks as a whole when one of its
processes dies, and takes the jobs of the others with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sailor.batch.inputs import JobInput
from sailor.batch.work import Options, Outcome, Worker

_state: list[Worker] = []  # of a worker process: its one worker


@dataclass(frozen=True)
class Setup:
    """What a worker process needs before its first job."""

    folder: Path
    options: Options
    plugin_files: tuple[Path, ...]


@dataclass(frozen=True)
class Started:
    """The job that a worker process is searching for."""

    key: str
    name: str


def _initialise(setup: Setup, parent: Connection) -> None:
    from sailor.registry import Registry

    # The terminal sends Ctrl-C to the whole process group; only the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    registry = Registry.load(files=setup.plugin_files)
    _state.append(
        Worker(
            setup.folder,
            setup.options,
            registry,
            on_start=lambda key, name: parent.send(Started(key, name)),
        )
    )


def _die_with(parent: Connection) -> None:
    """End this process when the parent closes its side or dies, however it dies.

    The parent never sends anything, so the connection becomes readable only at its end.
    """
    wait([parent])
    os._exit(1)


def _run(job: JobInput, wait_s: float) -> Outcome:
    return _state[0].run(job, wait_s=wait_s)


class Slot:
    """One worker process, replaced when it dies."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._context = multiprocessing.get_context("spawn")
        self._executor: ProcessPoolExecutor | None = None
        self._ours: Connection | None = None
        self._theirs: Connection | None = None

    def submit(self, job: JobInput, wait_s: float) -> Future[Outcome]:
        """Start a job. The process is started with the first."""
        if self._executor is None:
            self._ours, self._theirs = self._context.Pipe()
            self._executor = ProcessPoolExecutor(
                1, self._context, _initialise, (self._setup, self._theirs)
            )
        self.started()  # what an earlier job said is old
        try:
            # An ignored SIGINT stays ignored in the new process, also before `_initialise`.
            with _SigintIgnored():
                return self._executor.submit(_run, job, wait_s)
        except BrokenProcessPool:  # it died idle, between two jobs
            self.close()
            return self.submit(job, wait_s)

    def started(self) -> Started | None:
        """Return the job that the process began to search for, since the last time asked."""
        last: Started | None = None
        try:
            while self._ours is not None and self._ours.poll():
                last = self._ours.recv()
        except (EOFError, OSError):
            pass
        return last

    def close(self) -> None:
        """End the process at once."""
        for connection in (self._ours, self._theirs):
            if connection is not None:
                connection.close()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = self._ours = self._theirs = None

    def finish(self) -> None:
        """End the process when it is idle."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self.close()


class _SigintIgnored:
    """Ignores SIGINT for the moment in which a process starts, where signals can be set."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *raised: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
