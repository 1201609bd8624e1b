"""A line on the terminal that says how a search is going; nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from sailor.cli.output import on_terminal

if TYPE_CHECKING:
    from rich.text import Text

    from sailor.interfaces import Progress


class ProgressLine:
    """Incumbent, bound, gap, cells left and seconds, as the planner reports them."""

    def __init__(self, *, shown: bool = True) -> None:
        """`shown` False: draw nothing, terminal or not."""
        self._shown = shown
        self._status: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> Callable[[Progress], None]:
        if not self._shown or not on_terminal():
            return _quiet
        from rich.console import Console

        line = _Line()
        self._status = Console(stderr=True).status(line)
        self._status.__enter__()
        return line.take

    def __exit__(self, *raised: Any) -> None:
        self._status.__exit__(*raised)


class _Line:
    """The newest report; rich asks for its text at each redraw, so the seconds go on."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._newest: Progress | None = None

    def take(self, progress: Progress) -> None:
        self._newest = progress

    def __rich__(self) -> Text:
        from rich.text import Text

        elapsed_s = time.monotonic() - self._started_s
        if self._newest is None:
            return Text(f"searching, {elapsed_s:.0f} s")
        return Text(progress_text(self._newest, elapsed_s))


def progress_text(progress: Progress, elapsed_s: float) -> str:
    """Return a report as one line: `bounds, best 0.4175, bound 0.4176, gap 0.02%, 3 s`."""
    parts = [progress.message]
    if progress.objective_value is not None:
        parts.append(f"best {progress.objective_value:.4g}")
    if progress.bound is not None:
        parts.append(f"bound {progress.bound:.4g}")
    if progress.gap is not None:
        parts.append(f"gap {progress.gap:.2%}")
    if progress.cells_left is not None:
        parts.append(f"{progress.cells_left} cells left")
    if progress.evaluations:
        parts.append(f"{progress.evaluations:,} plans")
    parts.append(f"{elapsed_s:.0f} s")
    return ", ".join(parts)


def _quiet(progress: Progress) -> None:
    """Show nothing: stderr is not a terminal, or the output is for machines."""
