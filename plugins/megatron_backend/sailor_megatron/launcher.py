"""Runs a plan's workers as processes of this machine, and watches them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from sailor.errors import PluginError
from sailor.model.files import write_atomic
from sailor_megatron.layout import PlanLayout
from sailor_megatron.machine import Device
from sailor_megatron.metrics import MetricsReader, StepMetrics
from sailor_megatron.run_folder import (
    JOINS_VARIABLE,
    LOCK_FILE,
    METRICS_FILE,
    RUN_FILE,
    RunSpec,
    change_file,
    log_file,
    plan_after,
)

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

POLL_S = 0.05
SETTLE_S = 0.5  # after the first death: others that die of it are not the cause
EXIT_LOST_PEER = 7


def device_environment(device: Device) -> dict[str, str]:
    """Return what tells workers where to compute; nothing where they choose themselves."""
    return {} if device == "auto" else {"SAILOR_DEVICE": device}


def host_store(port: int) -> TCPStore:
    """Return the store at which the workers meet; port 0: one that is free."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistError

    try:
        return TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    except DistError:
        raise PluginError(
            f"port {port} is in use, or may not be used",
            where="--port",
            hint="leave --port out: a free one is taken",
        ) from None


def write_run(folder: Path, run: RunSpec) -> None:
    """Make a run's folder; one that holds a run already is refused."""
    if (folder / RUN_FILE).exists():
        raise PluginError(
            "holds a run already", where=str(folder), hint="name another folder with --out"
        )
    try:
        log_file(folder, 0).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PluginError(
            f"can't be made: {(error.strerror or str(error)).lower()}",
            where=str(folder),
            hint="name a folder that you may write to with --out",
        ) from None
    write_atomic(folder / RUN_FILE, run.model_dump_json(indent=1) + "\n")


class LocalRun:
    """The processes of one run. They end when this object's process does."""

    def __init__(self, folder: Path, run: RunSpec, port: int = 0) -> None:
        self._folder = folder
        self._run, self._changes = run, 0
        self._layout = PlanLayout(run.spec, run.plan)
        self._device = run.device
        self._store = host_store(port)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._metrics = MetricsReader(folder / METRICS_FILE)
        self._last_step = 0

    @property
    def process_ids(self) -> Sequence[int]:
        """Return the process of each rank, once started."""
        return tuple(process.pid for process in self._processes)

    def run(self, on_step: Callable[[StepMetrics], None]) -> None:
        """Start the workers and wait for all of them; the first death ends the run."""
        lock = FileLock(self._folder / LOCK_FILE, timeout=0)
        try:
            lock.acquire()
            for worker in self._layout.workers:
                self._processes.append(self._start(worker.rank))
            while any(process.poll() is None for process in self._processes):
                self._report(on_step)
                self._follow_changes()
                if any(process.returncode for process in self._processes):
                    time.sleep(SETTLE_S)
                    break
                time.sleep(POLL_S)
            self._report(on_step)
            for process in self._processes:
                process.poll()
        finally:
            lock.release()
            codes = [process.returncode for process in self._processes]
            self._end()
        self._judge(codes)

    def _follow_changes(self) -> None:
        """Start the workers that the run's next plan has more, once those it had no more ended."""
        beyond = self._processes[len(self._layout.workers) :]
        path = change_file(self._folder, self._changes + 1)
        if not path.exists() or any(process.poll() is None for process in beyond):
            return
        self._changes += 1
        before = len(self._layout.workers)
        self._layout = PlanLayout(
            self._run.spec, plan_after(self._folder, self._run, self._changes)
        )
        for worker in self._layout.workers[before:]:
            process = self._start(worker.rank, joins=self._changes)
            if worker.rank == len(self._processes):
                self._processes.append(process)
                continue
            ended, self._processes[worker.rank] = self._processes[worker.rank], process
            if ended.stdin is not None:
                ended.stdin.close()

    def _report(self, on_step: Callable[[StepMetrics], None]) -> None:
        for metrics in self._metrics.new():
            self._last_step = metrics.step
            on_step(metrics)

    def _start(self, rank: int, *, joins: int = 0) -> subprocess.Popen[bytes]:
        world = str(len(self._layout.workers))
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "SAILOR_WATCH_STDIN": "1",
            JOINS_VARIABLE: str(joins),
            **device_environment(self._device),
        }
        environment.setdefault(
            "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(self._layout.workers)))
        )
        with log_file(self._folder, rank).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "sailor_megatron.worker", str(self._folder)],
                stdin=subprocess.PIPE,  # its end tells the worker that the launcher has gone
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _judge(self, codes: Sequence[int | None]) -> None:
        # A worker that only lost its peer (or was still running) is not the cause.
        failed = [rank for rank, code in enumerate(codes) if code]
        if not failed:
            return
        rank = min(failed, key=lambda rank: (codes[rank] == EXIT_LOST_PEER, rank))
        log = log_file(self._folder, rank)
        after = f" after step {self._last_step}" if self._last_step else " before the first step"
        workers = self._layout.workers
        place = workers[rank].label() if rank < len(workers) else "not of the present plan"
        raise PluginError(
            f"worker {rank} ({place}) {_ending(codes[rank] or 0)}{after}: {_last_line(log)}",
            where=str(log),
        )


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "it wrote nothing"
