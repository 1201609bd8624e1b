"""What all planners share: a budget of time, and being told to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from sailor.interfaces import Limits
from sailor.solve.work import Clock, counted_s

PROVEN_GAP = 1e-4  # a plan this near the bound counts as proven


class Budget:
    """Limits of wall-clock time and of counted work, and a stop signal; once over, it stays over.

    `clock` is what shares of the time are measured with: CPU seconds, or counted ones where work
    is limited, so that chance has no part in the answer.
    """

    def __init__(
        self,
        wall_s: float | None,
        should_stop: Callable[[], bool],
        *,
        work_s: float | None = None,
        clock: Clock = time.process_time,
    ) -> None:
        self._deadline = None if wall_s is None else time.monotonic() + wall_s
        self._should_stop = should_stop
        self._end_of_work = math.inf if work_s is None else counted_s() + work_s
        self.clock = clock if work_s is None else counted_s
        self.exceeded = False

    def left_s(self) -> float | None:
        """Return the seconds that are left, or None without a limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def over(self) -> bool:
        """Return whether the search must end now."""
        if not self.exceeded:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            done = counted_s() >= self._end_of_work
            self.exceeded = late or done or self._should_stop()
        return self.exceeded

    def within(self, most_s: float) -> Budget:
        """Return a budget that also ends after so many seconds of this one's clock."""
        end_s = self.clock() + most_s
        return Budget(self.left_s(), lambda: self.over() or self.clock() > end_s, clock=self.clock)


class Shared:
    """Limits that several searches share: each gets its part of what is left."""

    def __init__(self, limits: Limits, default_wall_s: float | None = None) -> None:
        wall_s = limits.wall_s
        if wall_s is None and limits.work_s is None:
            wall_s = default_wall_s
        self.wall_s = wall_s
        self._limits, self._left = limits, Budget(wall_s, lambda: False)
        self._end_of_work = None if limits.work_s is None else counted_s() + limits.work_s

    def part(self, searches: int) -> Limits:
        """Return the limits of the next of so many searches."""
        left_s, work_s = self._left.left_s(), None
        if self._end_of_work is not None:
            work_s = max(0.0, self._end_of_work - counted_s()) / searches
        wall_s = None if left_s is None else left_s / searches
        return replace(self._limits, wall_s=wall_s, work_s=work_s)
