"""Ctrl-C: the first asks for an orderly end, the second aborts."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from sailor.cli.output import note


class Interrupt:
    """While entered, the first SIGINT only sets a flag; the second raises KeyboardInterrupt."""

    def __init__(self, promise: str) -> None:
        """`promise` says what happens after the first Ctrl-C."""
        self._promise = promise
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._asked

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        note(f"{self._promise} (Ctrl-C again aborts)")
