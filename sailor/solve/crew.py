"""A crew: processes beside this one that work on the cells of a certificate.

Each is a fresh interpreter that is sent the certificate once and then one task at a time, through
its standard input and output. Nothing is forked or imported again, so scripts without a guard
around their main part, and threads, are no matter. A process ends when its input does, so also
with this one.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from sailor.solve.certificate import Certificate
from sailor.solve.search import Budget

R = TypeVar("R", covariant=True)

MODULE = "sailor.solve.crew_process"
_LOOK_EVERY_S = 0.05  # whether to stop, while the processes work
_MOST_PROCESSES = 4  # of a search that wasn't told how many: each takes 0.1 GB and more


def default_processes() -> int:
    """Return how many processes suit this machine: its cores, four at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, _MOST_PROCESSES))


class _Elsewhere:
    """CPU seconds that the crews of this process used."""

    def __init__(self) -> None:
        self.ended_s = 0.0
        self.members: set[_Member] = set()
        self.most = 0  # at once

    def add(self, member: _Member) -> None:
        self.members.add(member)
        self.most = max(self.most, len(self.members))

    def seconds(self) -> float:
        return self.ended_s + sum(member.cpu_s() for member in self.members)


_elsewhere = _Elsewhere()


def search_cpu_s() -> float:
    """Return the CPU seconds of this process and its crews.

    Of a task that isn't ended the seconds on the clock count, until its CPU seconds are known.
    """
    return time.process_time() + _elsewhere.seconds()


def most_members() -> int:
    """Return how many processes the crews of this one had at most, at once."""
    return _elsewhere.most


class Task(Protocol[R]):
    """Work on a certificate; it and its answer can be pickled."""

    def run(self, certificate: Certificate, budget: Budget) -> R:
        """Return the answer; the certificate may be changed on the way, it is a copy or waits."""
        ...


@dataclass(frozen=True)
class Order:
    """What a process is sent: a task, the cutoff, and how many seconds are left (None: any)."""

    task: Any
    cutoff: float
    left_s: float | None


@dataclass(frozen=True)
class Answer:
    """What a process sends back: the task's answer and the CPU seconds that it took."""

    value: Any
    cpu_s: float


class BrokenCrewError(Exception):
    """A process of the crew died, or what it was to be sent can't be pickled."""


class _Member:
    """One process, with a thread that waits for its answers."""

    def __init__(self, state: bytes, answers: queue.SimpleQueue[tuple[_Member, Any]]) -> None:
        self._answers = answers
        self._reported_s = 0.0
        self._began: float | None = None
        # It has to find the modules of plug-ins wherever this process found them. In a session of
        # its own it doesn't hear a terminal's Ctrl-C: only this process decides what that means.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        _elsewhere.add(self)
        try:
            self._send(state)
        except BrokenCrewError:
            self.end()
            raise
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, order: Order) -> None:
        self._began = time.monotonic()
        self._send(pickle.dumps(order))

    def ended(self, cpu_s: float) -> None:
        """Note that the task took so many CPU seconds."""
        self._began = None
        self._reported_s += cpu_s

    def cpu_s(self) -> float:
        """Return the CPU seconds of its tasks so far."""
        running_s = 0.0 if self._began is None else time.monotonic() - self._began
        return self._reported_s + running_s

    def _send(self, message: bytes) -> None:
        stdin = self._process.stdin
        try:
            if stdin is None:
                raise BrokenPipeError
            stdin.write(message)
            stdin.flush()
        except OSError as error:
            raise BrokenCrewError("a process of the crew has ended") from error

    def _listen(self) -> None:
        stdout = self._process.stdout
        try:
            while stdout is not None:
                self._answers.put((self, pickle.load(stdout)))
        except (EOFError, OSError, pickle.UnpicklingError, ValueError, LookupError):
            self._answers.put((self, None))

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # what it still held can't be sent any more
        before_s = _children_cpu_s()
        self._process.wait()
        _elsewhere.members.discard(self)
        _elsewhere.ended_s += max(self._reported_s, _children_cpu_s() - before_s)


def _children_cpu_s() -> float:
    """Return the CPU seconds of the processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


class _Crew:
    """`size` processes with a copy of a certificate."""

    def __init__(self, size: int, certificate: Certificate) -> None:
        try:
            state = pickle.dumps(certificate)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BrokenCrewError("the cost model's tables can't be sent") from error
        self.members: list[_Member] = []
        self.answers: queue.SimpleQueue[tuple[_Member, Any]] = queue.SimpleQueue()
        try:
            self.members.extend(_Member(state, self.answers) for _ in range(size))
        except (OSError, BrokenCrewError) as error:
            self.end()
            raise BrokenCrewError("no process can be started") from error

    def end(self) -> None:
        for member in self.members:
            member.end()
        self.members = []


class Workers:
    """Whoever works on the cells of a certificate: this process, or a crew of several.

    The crew is started when there is first something to do. Where one can't be had (a plug-in's
    tables can't be sent, a process died) this process does the work. A context manager.

    `beside`: this process has work of its own meanwhile, and counts as one of the `size`.
    """

    def __init__(self, size: int, certificate: Certificate, *, beside: bool = False) -> None:
        self._size, self._certificate = size - beside, certificate
        self._crew: _Crew | None = None
        self._alone = size < 2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._crew is not None:
            self._crew.end()

    def run(
        self, pick: Callable[[], Task[R] | None], budget: Budget
    ) -> Iterator[tuple[Task[R], R]]:
        """Yield tasks with their answers as they end; `pick` gives the next one (None: no more).

        The certificate's cutoff may fall between two yields. Ends when the budget is over,
        without the answers that are still out.
        """
        out: dict[_Member, Task[R]] = {}
        picked: list[Task[R]] = []
        if not self._alone:
            try:
                yield from self._together(pick, budget, picked, out)
                return
            except BrokenCrewError:
                self._alone = True
        for task in (*out.values(), *picked):
            if budget.over():
                return
            yield task, task.run(self._certificate, budget)
        while not budget.over() and (one := pick()) is not None:
            yield one, one.run(self._certificate, budget)

    def _together(
        self,
        pick: Callable[[], Task[R] | None],
        budget: Budget,
        picked: list[Task[R]],
        out: dict[_Member, Task[R]],
    ) -> Iterator[tuple[Task[R], R]]:
        # A crew takes a while to start and much memory, so not before there is something to do.
        if budget.over() or (first := pick()) is None:
            return
        picked.append(first)
        crew = self._crew = self._crew or _Crew(self._size, self._certificate)
        idle = list(crew.members)
        try:
            while not budget.over():
                while idle and (task := picked.pop() if picked else pick()) is not None:
                    member = idle.pop()
                    out[member] = task
                    member.start(Order(task, self._certificate.cutoff, budget.left_s()))
                if not out:
                    return
                try:
                    member, answer = crew.answers.get(timeout=_LOOK_EVERY_S)
                except queue.Empty:
                    continue
                if not isinstance(answer, Answer):
                    raise BrokenCrewError("a process of the crew has ended")
                idle.append(member)
                member.ended(answer.cpu_s)
                yield out.pop(member), answer.value
        finally:
            if out:  # nobody waits for these answers
                crew.end()
                self._crew = None
