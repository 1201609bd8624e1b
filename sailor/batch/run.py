"""A batch from its inputs to its summary."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from sailor.batch.blame import BUG
from sailor.batch.inputs import JobInput, content_digest
from sailor.batch.manifest import Entry, Manifest
from sailor.batch.slots import Setup, Slot, Started
from sailor.batch.work import Outcome, failure, resume_key
from sailor.errors import SailorError

_POLL_S = 0.2
_CLAIM_WAIT_S = 1.0  # for a job that another process has, before it is asked for again
_RATE_OVER = 20  # jobs that the estimate of the time left looks back on


@dataclass
class Tally:
    """How far a batch is."""

    total: int
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: bool = False  # before all jobs had their turn
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_OVER))

    def add(self, outcome: Outcome) -> None:
        """Count one more job."""
        self.outcomes.append(outcome)
        self._times_s.append(time.monotonic())

    @property
    def done(self) -> int:
        """Return the number of jobs that had their turn."""
        return len(self.outcomes)

    def left_s(self) -> float | None:
        """Return an estimate of the seconds left from the pace of the last jobs."""
        if len(self._times_s) < 2:
            return None
        pace_s = (self._times_s[-1] - self._times_s[0]) / (len(self._times_s) - 1)
        return pace_s * (self.total - self.done)

    def counts(self) -> Counter[str]:
        """Return how many jobs came to which end, in words."""
        return Counter(_word(outcome) for outcome in self.outcomes)

    def failures(self) -> list[Outcome]:
        """Return the jobs without an answer, those of earlier runs included."""
        return [o for o in self.outcomes if o.entry is not None and o.entry.failed]


def _word(outcome: Outcome) -> str:
    if outcome.what == "done" and outcome.entry is not None:
        return outcome.entry.status.replace("_", " ")
    return {
        "up_to_date": "up to date",
        "failed_before": "failed before",
        "would_run": "would run",
        "busy": "left to another process",
        "no_job": "not a job",
    }.get(outcome.what, outcome.what)


def run_batch(
    jobs: Sequence[JobInput],
    setup: Setup,
    *,
    workers: int,
    on_outcome: Callable[[Outcome, Tally], None] = lambda outcome, tally: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tally:
    """Run the jobs on `workers` processes; after `should_stop` only what runs is finished."""
    manifest = Manifest(setup.folder)
    if not setup.options.dry_run:
        manifest.create()
    order = {job.origin: index for index, job in enumerate(jobs)}
    batch = _Batch(jobs, setup, manifest, min(workers, len(jobs)), on_outcome)
    try:
        while batch.step(stopping=should_stop()):
            pass
        batch.finish()
    finally:
        batch.close()
    batch.tally.outcomes.sort(key=lambda outcome: order[outcome.origin])
    return batch.tally


class _Batch:
    """The jobs that wait, the jobs that run, and the processes that run them."""

    def __init__(
        self,
        jobs: Sequence[JobInput],
        setup: Setup,
        manifest: Manifest,
        workers: int,
        on_outcome: Callable[[Outcome, Tally], None],
    ) -> None:
        self.tally = Tally(len(jobs))
        self._setup = setup
        self._manifest = manifest
        self._on_outcome = on_outcome
        self._waiting: deque[tuple[JobInput, float]] = deque((job, 0.0) for job in jobs)
        self._running: dict[Future[Outcome], tuple[Slot, JobInput]] = {}
        self._idle = [Slot(setup) for _ in range(workers)]
        self._slots = tuple(self._idle)

    def step(self, *, stopping: bool) -> bool:
        """Start what can start, take what has ended; return whether anything is left to do."""
        if stopping:
            self.tally.stopped = bool(self._waiting) or self.tally.stopped
            self._waiting.clear()
        while self._waiting and self._idle:
            job, wait_s = self._waiting.popleft()
            slot = self._idle.pop(0)
            self._running[slot.submit(job, wait_s)] = (slot, job)
        if not self._running:
            return False
        ended, _ = wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for future in ended:
            self._take(future)
        return True

    def _take(self, future: Future[Outcome]) -> None:
        slot, job = self._running.pop(future)
        try:
            outcome = future.result()
        except BrokenProcessPool:
            outcome = self._died(job, slot.started())
            slot.close()
        self._idle.append(slot)
        if outcome.what == "busy":
            # Jobs of its own first; then wait for the other process, to know how it went.
            self._waiting.append((job, _CLAIM_WAIT_S))
            return
        self.tally.add(outcome)
        self._on_outcome(outcome, self.tally)

    def _died(self, job: JobInput, started: Started | None) -> Outcome:
        """Record the job whose worker process ended without an answer."""
        if started is None:
            try:
                content = job.content()
            except SailorError:
                content = ""
            key = resume_key(content_digest(job, content), self._setup.options)
            started = Started(key, job.origin)
        sentence = (
            f"{job.origin}: the worker process of this job died (out of memory, killed, or a crash "
            "in a library); try fewer --workers, then --retry failed"
        )
        entry = failure(
            started.key, started.name, job.origin, sentence, self._setup.options.planner,
            exit_code=BUG,
        )  # fmt: skip
        if not self._setup.options.dry_run:
            self._record(entry)
        return Outcome(job.origin, started.name, "done", entry)

    def _record(self, entry: Entry) -> None:
        self._manifest.append(entry)

    def finish(self) -> None:
        """Let the processes end."""
        for slot in self._slots:
            slot.finish()

    def close(self) -> None:
        """End the processes at once."""
        for slot in self._slots:
            slot.close()
