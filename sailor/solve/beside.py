"""Work in a thread of this process, while it waits for a crew."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import Generic, Self, TypeVar

R = TypeVar("R")


class Beside(Generic[R]):
    """One piece of work at a time, each told when to stop. A context manager."""

    def __init__(self) -> None:
        self.begun = 0  # pieces of work
        self._stop = Event()
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._running: Future[R] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Return whether a piece of work isn't done yet."""
        return self._running is not None and not self._running.done()

    def begin(self, work: Callable[[Callable[[], bool]], R]) -> None:
        """Begin a piece of work; it is passed what says whether to stop."""
        self.begun += 1
        self._running = self._threads.submit(work, self._stop.is_set)

    def taken(self) -> R | None:
        """Return the result of the last piece of work, once; None: there is none (yet)."""
        done, self._running = self._running, None
        return None if done is None else done.result()
