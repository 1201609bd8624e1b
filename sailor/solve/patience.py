"""When to give up hoping: a search that gains nothing for a while is stopped.

A planner with a bound may spend its whole time limit on a gap that it can't close. Watched from
outside, by what it reports, it is stopped once it has gained nothing for as long as it needed to
get where it is. Time is the process's CPU time, so that a busy machine makes nobody impatient.
"""

from __future__ import annotations

from collections.abc import Callable

from sailor.interfaces import Progress
from sailor.solve.crew import search_cpu_s

_GAIN = 1e-3  # of the incumbent's value
_CLOSER = 0.05  # of the gap
# A gap above this says nothing yet: the first bounds of all cells are rough, and the next ones are
# worth waiting for several times as long.
_SAYS_NOTHING, _TIMES = 0.5, 3.0


class Patience:
    """Wraps the two callbacks of a search; `stalled` says whether it was stopped for no gain."""

    def __init__(
        self,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
        *,
        least_s: float,
        share: float,
        clock: Callable[[], float] = search_cpu_s,
    ) -> None:
        """Be patient for `least_s` CPU seconds, and for `share` of the time up to the last gain."""
        self._on_progress, self._should_stop = on_progress, should_stop
        self._least_s, self._share, self._clock = least_s, share, clock
        self._start = self._last = clock()
        self._value: float | None = None
        self._cells_left: int | None = None
        self.gap: float | None = None  # the least that was reported
        self.stalled = False

    @property
    def patience_s(self) -> float:
        """Return how long the search may be silent now, in seconds."""
        rough = self.gap is not None and self.gap > _SAYS_NOTHING
        share = self._share * (_TIMES if rough else 1.0)
        return max(self._least_s, share * (self._last - self._start))

    def on_progress(self, progress: Progress) -> None:
        """Pass on a report, and note whether it is a gain."""
        value, gap = progress.objective_value, progress.gap
        better = value is not None and (
            self._value is None or abs(value - self._value) > _GAIN * abs(self._value)
        )
        closer = gap is not None and (self.gap is None or gap < self.gap * (1 - _CLOSER))
        # The bound is that of the weakest cell, and says nothing of the others that are closed.
        left = progress.cells_left
        fewer = left is not None and (self._cells_left is None or left < self._cells_left)
        if better or closer or fewer:
            self._last = self._clock()
            self._value = value if better else self._value
            self.gap = gap if closer else self.gap
            self._cells_left = left if fewer else self._cells_left
        self._on_progress(progress)

    def should_stop(self) -> bool:
        """Return whether the caller wants an end, or nothing was gained for too long."""
        if self._should_stop():
            return True
        # Before the first bound there is something to wait for.
        if not self.stalled and self.gap is not None:
            self.stalled = self._clock() - self._last > self.patience_s
        return self.stalled
