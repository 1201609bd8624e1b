"""Progress of a batch on stderr: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sailor.cli.output import note, on_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sailor.batch.run import Tally
    from sailor.batch.work import Outcome

LINE_EVERY_S = 10.0


class Progress:
    """Shows each outcome as it comes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._last_line_s = time.monotonic()

    def __enter__(self) -> Progress:
        if on_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total)
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, outcome: Outcome, tally: Tally) -> None:
        """Take one more outcome."""
        failed = len(tally.failures())
        text = f"{duration(tally.left_s())} left" + (f", {failed} failed" if failed else "")
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=tally.done, description=f"{text}, {outcome.name[:40]}"
            )
            return
        now_s = time.monotonic()
        if now_s - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now_s
            note(f"{tally.done} of {tally.total} jobs, {text}")


def duration(seconds: float | None) -> str:
    """Return seconds as people say them: 40 s, 3 min, 2 h 5 min."""
    if seconds is None:
        return "unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
