"""What all planners share: a budget of time, and being told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

PROVEN_GAP = 1e-4  # a plan this near the bound counts as proven


class Budget:
    """Wall-clock limit and stop signal; once over, it stays over."""

    def __init__(self, wall_s: float | None, should_stop: Callable[[], bool]) -> None:
        self._deadline = None if wall_s is None else time.monotonic() + wall_s
        self._should_stop = should_stop
        self.exceeded = False

    def left_s(self) -> float | None:
        """Return the seconds that are left, or None without a limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def over(self) -> bool:
        """Return whether the search must end now."""
        if not self.exceeded:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            self.exceeded = late or self._should_stop()
        return self.exceeded
