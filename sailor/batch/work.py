"""One job of a batch, from its text to its entry in the manifest. Runs in a worker process."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sailor.batch.blame import BUG, blamed
from sailor.batch.inputs import JobInput, content_digest, job_name
from sailor.batch.manifest import Entry, Manifest
from sailor.errors import InputError, SailorError
from sailor.model.document import Document, one_line, relocated
from sailor.model.files import load_record, write_atomic
from sailor.model.job import Job
from sailor.model.job_paths import job_of_document
from sailor.model.result import Result, Status
from sailor.plugin_check import Guard

if TYPE_CHECKING:
    from sailor.interfaces import Limits
    from sailor.model.problem import Problem
    from sailor.registry import Registry

_EXIT_CODES = {Status.INFEASIBLE: 3, Status.NO_PLAN: 4}

What = Literal[
    "done",  # ended now
    "up_to_date",  # ended before, with the same content and options
    "failed_before",  # failed before, and nothing changed since
    "would_run",  # dry run
    "busy",  # another process has it
    "no_job",  # a file in a folder that is no job
]


@dataclass(frozen=True)
class Options:
    """How the jobs of a batch are planned. All but `retry_failed` and `strict` are in the key."""

    planner: str
    limits: Limits
    objective: str | None = None
    strict: bool = False
    retry_failed: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of one job. `why` says in words why it ran or would run."""

    origin: str
    name: str
    what: What
    entry: Entry | None = None
    why: str = ""


@dataclass
class _Attempt:
    """What is known of a job so far; the rest of it may fail."""

    job: JobInput
    content: str = ""
    document: Document | None = None
    fault: str | None = None
    exit_code: int = BUG
    started_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return job_name(self.document, self.job)

    def fail(self, sentence: str, cause: BaseException | None = None, /) -> None:
        """Take what a Guard caught: the job's own fault, or a bug of a plug-in or of sailor."""
        if isinstance(cause, SailorError):
            if self.document is not None:
                relocated(cause, self.document, Job.model_fields)
            self.fault, self.exit_code = one_line(str(cause)), cause.exit_code
        elif cause is not None:
            self.fault, self.exit_code = blamed(cause)
        else:
            self.fault, self.exit_code = one_line(sentence), BUG


class Worker:
    """Runs jobs one after the other, with one registry and one view of the manifest."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        registry: Registry,
        on_start: Callable[[str, str], None] = lambda key, name: None,
    ) -> None:
        """`on_start` is told the key and name of a job just before its search begins."""
        self.manifest = Manifest(folder)
        self.options = options
        self.registry = registry
        self.on_start = on_start

    def run(self, job: JobInput, *, wait_s: float = 0.0) -> Outcome:
        """Bring one job to its end; wait up to `wait_s` where another process has it."""
        attempt = _Attempt(job)
        outcomes: list[Outcome] = []
        with Guard(attempt.fail):
            outcomes.append(self._run(attempt, wait_s))
        if outcomes:
            return outcomes[0]
        return self._failed_early(attempt)

    def _run(self, attempt: _Attempt, wait_s: float) -> Outcome:
        from sailor.api import build_problem

        job, options = attempt.job, self.options
        attempt.content = job.content()
        attempt.document = job.document(attempt.content)
        if job.is_other_file(attempt.document):
            return Outcome(job.origin, attempt.name, "no_job")
        parsed = job_of_document(attempt.document)
        problem = build_problem(
            parsed, objective=options.objective, registry=self.registry, strict=options.strict
        )
        key = resume_key(problem.digest(), options)
        self.manifest.refresh()
        before = self.manifest.find(key)
        settled = self._settled(attempt, before)
        if settled is not None:
            return settled
        why = self._why(attempt, before)
        if options.dry_run:
            return Outcome(job.origin, attempt.name, "would_run", why=why)
        with self.manifest.claim(key, wait_s=wait_s) as mine:
            if not mine:
                return Outcome(job.origin, attempt.name, "busy", why="another process runs it")
            self.manifest.refresh()
            now = self.manifest.find(key)
            if now is not None and now != before:  # another process ended it meanwhile
                return self._ended(attempt, now)
            entry = self._recovered(attempt, problem, key)
            entry = entry or self._search(attempt, parsed, problem, key)
            self.manifest.append(entry)
        return Outcome(job.origin, attempt.name, "done", entry, why)

    def _settled(self, attempt: _Attempt, before: Entry | None) -> Outcome | None:
        """Return the outcome of a job that needs no run."""
        if before is None or self._result_is_missing(before):
            return None
        if before.failed and self.options.retry_failed:
            return None
        return self._ended(attempt, before)

    def _ended(self, attempt: _Attempt, entry: Entry) -> Outcome:
        what: What = "failed_before" if entry.failed else "up_to_date"
        return Outcome(attempt.job.origin, attempt.name, what, entry)

    def _result_is_missing(self, entry: Entry) -> bool:
        return entry.result is not None and not (self.manifest.folder / entry.result).is_file()

    def _why(self, attempt: _Attempt, before: Entry | None) -> str:
        if before is not None:
            return "failed before" if before.failed else "its result file is gone"
        if self.manifest.last_of(attempt.job.origin) is not None:
            return "the job, a figure it uses or an option changed"
        return "new"

    def _recovered(self, attempt: _Attempt, problem: Problem, key: str) -> Entry | None:
        """Return an entry for a result that was written just before its process was killed."""
        path = self._result_path(problem, key)
        if not path.is_file() or self.options.retry_failed:
            return None
        try:
            result = load_record(Result, path)
        except InputError:
            return None
        known = (problem.digest(), _sailor_version())
        if (result.problem_digest, result.sailor_version) != known:
            return None
        return self._entry(attempt, problem, key, result)

    def _search(self, attempt: _Attempt, job: Job, problem: Problem, key: str) -> Entry:
        from sailor.api import optimize

        options = self.options
        self.on_start(key, attempt.name)
        entries: list[Entry] = []
        with Guard(attempt.fail):
            result = optimize(
                job,
                objective=options.objective,
                planner=options.planner,
                limits=options.limits,
                registry=self.registry,
                strict=options.strict,
            )
            if result.problem_digest != problem.digest():
                raise InputError(
                    "a file that this job reads changed while it ran", hint="run the batch again"
                )
            path = self._result_path(problem, key)
            write_atomic(path, result.model_dump_json(indent=2) + "\n")
            entries.append(self._entry(attempt, problem, key, result))
        return entries[0] if entries else self._failure(attempt, key, problem.digest())

    def _result_path(self, problem: Problem, key: str) -> Path:
        return self.manifest.results / f"{problem.job}-{key[:12]}.json"

    def _entry(self, attempt: _Attempt, problem: Problem, key: str, result: Result) -> Entry:
        path = self._result_path(problem, key).relative_to(self.manifest.folder)
        return Entry(
            key=key,
            name=problem.job,
            origin=attempt.job.origin,
            status=str(result.status),
            exit_code=_EXIT_CODES.get(result.status, 0),
            result=path.as_posix(),
            error=None if result.plan is not None else one_line(result.summary()),
            problem_digest=result.problem_digest,
            planner=result.planner,
            sailor_version=result.sailor_version,
            wall_s=time.monotonic() - attempt.started_s,
            finished_at=now_text(),
        )

    def _failure(self, attempt: _Attempt, key: str, problem_digest: str | None) -> Entry:
        return failure(
            key,
            attempt.name,
            attempt.job.origin,
            attempt.fault or "",
            self.options.planner,
            exit_code=attempt.exit_code,
            problem_digest=problem_digest,
            wall_s=time.monotonic() - attempt.started_s,
        )

    def _failed_early(self, attempt: _Attempt) -> Outcome:
        """Record a job that could not be resolved, once for each content and sentence."""
        job = attempt.job
        key = resume_key(content_digest(job, attempt.content), self.options)
        self.manifest.refresh()
        before = self.manifest.find(key)
        if before is not None and before.error == attempt.fault:
            return Outcome(job.origin, attempt.name, "failed_before", before)
        entry = self._failure(attempt, key, None)
        if self.options.dry_run:
            return Outcome(job.origin, attempt.name, "would_run", entry, "it would fail")
        self.manifest.append(entry)
        return Outcome(job.origin, attempt.name, "done", entry)


def resume_key(digest: str, options: Options) -> str:
    """Return the identity of a job's run: the resolved problem, how it is searched, by what."""
    limits = options.limits
    search: list[object] = [
        options.planner,
        limits.wall_s,
        limits.seed,
        sorted(limits.disabled_rules),
    ]
    if limits.gap is not None:
        search.append(limits.gap)
    if limits.work_s is not None:
        search.append(["work", limits.work_s])
    text = json.dumps([digest, search, _sailor_version()])
    return hashlib.sha256(text.encode()).hexdigest()


def failure(
    key: str,
    name: str,
    origin: str,
    sentence: str,
    planner: str,
    *,
    exit_code: int,
    problem_digest: str | None = None,
    wall_s: float = 0.0,
) -> Entry:
    """Return the entry of a failed job."""
    return Entry(
        key=key,
        name=name,
        origin=origin,
        status="failed",
        exit_code=exit_code,
        error=sentence,
        problem_digest=problem_digest,
        planner=planner,
        sailor_version=_sailor_version(),
        wall_s=wall_s,
        finished_at=now_text(),
    )


def now_text() -> str:
    """Return the time in UTC, for records of when something happened."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sailor_version() -> str:
    return version("sailor-planner")
