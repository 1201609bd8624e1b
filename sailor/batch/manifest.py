"""The manifest of a batch: one JSON line for each job that ended, whoever ran it.

Lines are appended under a file lock and synced; the last line for a key counts. A line that a
kill cut short is passed over by readers and removed by the next writer. While a job runs, its
key is claimed by a lock of its own, which the system frees when the process dies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import Field, ValidationError

from sailor.errors import InputError
from sailor.model.base import Record

CLAIM_POLL_S = 0.05
_LITTER_AFTER_S = 3600.0
_ANSWERS = (0, 3)  # exit codes that answer the job: a plan, or a proof that there is none


class Entry(Record):
    """How one job ended."""

    key: str = Field(min_length=64, max_length=64)
    name: str
    origin: str  # file or file:line
    status: str  # of the result; "failed" when there is none
    exit_code: int
    result: str | None = None  # file, relative to the batch's folder
    error: str | None = None  # the sentence of a failed job
    problem_digest: str | None = None
    planner: str
    sailor_version: str
    wall_s: float = Field(ge=0)
    finished_at: str  # UTC, ISO 8601

    @property
    def failed(self) -> bool:
        """Return whether the job has no answer."""
        return self.exit_code not in _ANSWERS


class Manifest:
    """The entries of one batch folder, by key; `refresh` reads what was appended since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "manifest.jsonl"
        self._by_key: dict[str, Entry] = {}
        self._by_origin: dict[str, Entry] = {}
        self._read_bytes = 0
        self.unreadable_lines = 0

    @property
    def results(self) -> Path:
        """Return the folder of the result files."""
        return self.folder / "results"

    @property
    def _locks(self) -> Path:
        return self.folder / ".locks"

    def create(self) -> None:
        """Make the batch's folders."""
        try:
            self.results.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
            self._remove_litter()
        except OSError as error:
            raise InputError(
                f"can't be made a batch folder: {str(error.strerror).lower()}",
                where=str(self.folder),
                hint="give --out a folder that you may write to",
            ) from None

    def _remove_litter(self) -> None:
        """Remove what killed writers left half written, once no living one can need it."""
        for path in self.results.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _LITTER_AFTER_S:
                    path.unlink()

    def find(self, key: str) -> Entry | None:
        """Return the last entry of a key."""
        return self._by_key.get(key)

    def last_of(self, origin: str) -> Entry | None:
        """Return the last entry of a place, whatever its content was."""
        return self._by_origin.get(origin)

    def refresh(self) -> None:
        """Read the lines that were appended since the last time; a line without end waits."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            try:
                entry = Entry.model_validate_json(line)
            except ValidationError:
                self.unreadable_lines += 1
                continue
            self._by_key[entry.key] = entry
            self._by_origin[entry.origin] = entry

    def append(self, entry: Entry) -> None:
        """Add an entry for good: when this returns, a power cut does not lose it."""
        with FileLock(self._locks / "manifest.lock"), self.path.open("ab+") as file:
            _drop_torn_line(file.fileno())
            file.write(entry.model_dump_json(exclude_none=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.refresh()

    @contextmanager
    def claim(self, key: str, *, wait_s: float = 0.0) -> Iterator[bool]:
        """Hold a key while its job runs; False when another process holds it after `wait_s`."""
        # Keys that share four digits share a lock file: they wait for each other, no more.
        path = self._locks / f"{key[:4]}.lock"
        lock = FileLock(path, poll_interval=CLAIM_POLL_S)
        try:
            lock.acquire(timeout=wait_s)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def _drop_torn_line(descriptor: int) -> None:
    """Cut what follows the last newline: an append that a kill ended half way."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - 4096)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
