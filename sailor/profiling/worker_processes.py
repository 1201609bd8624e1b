"""Processes that a probe starts on this machine: none of them outlives the call that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sailor.errors import InputError


@dataclass(frozen=True)
class WorkerCrew:
    """Processes of one module, each with one argument.

    `what` names the probe in messages; the hints say what to do where it is late or a process
    failed. `loopback`: gloo's processes are all here, and use the loopback device.
    """

    what: str
    module: str
    arguments: tuple[str, ...]
    loopback: bool
    late_hint: str
    failed_hint: str


def run_workers(crew: WorkerCrew, time_limit_s: float, folder: str) -> None:
    """Run a crew until all have ended well; its messages go to `folder`. Raises InputError."""
    with _processes(crew, folder) as processes:
        _wait(processes, crew, time_limit_s, folder)


def _environment(crew: WorkerCrew) -> Mapping[str, str]:
    own = dict(os.environ)
    if crew.loopback:
        own.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    return own


@contextmanager
def _processes(crew: WorkerCrew, folder: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    environment = _environment(crew)
    try:
        for number, argument in enumerate(crew.arguments):
            with Path(folder, f"errors-{number}").open("wb") as errors:
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-m", crew.module, argument],
                        stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment,
                    )
                )  # fmt: skip
        yield running
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    crew: WorkerCrew,
    time_limit_s: float,
    folder: str,
) -> None:
    """Wait until all have ended well; the first that fails ends the wait."""
    end = time.monotonic() + time_limit_s
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            raise _failed(crew, folder)
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > end:
            raise InputError(
                f"{crew.what} was not done after {time_limit_s:g} s", hint=crew.late_hint
            )
        time.sleep(0.02)


def _failed(crew: WorkerCrew, folder: str) -> InputError:
    lines = [
        line.strip()
        for path in sorted(Path(folder).glob("errors-*"))
        for line in path.read_text("utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    told = [line for line in lines if "Error" in line] or lines or ["it said nothing"]
    return InputError(f"a process of {crew.what} failed: {told[-1][:300]}", hint=crew.failed_hint)
