"""The loss scale of fp16: halved when a gradient overflows, doubled after a quiet while."""

from __future__ import annotations

GROWTH_STEPS = 2000
LARGEST = 2.0**24


class LossScale:
    """A power-of-two factor on the loss; 1 and fixed in every other precision."""

    def __init__(self, first: float, *, dynamic: bool) -> None:
        self.value = first if dynamic else 1.0
        self._dynamic = dynamic
        self._quiet_steps = 0

    def update(self, *, overflowed: bool) -> None:
        """Take note of one step."""
        if not self._dynamic:
            return
        if overflowed:
            self.value = max(self.value / 2, 1.0)
            self._quiet_steps = 0
            return
        self._quiet_steps += 1
        if self._quiet_steps == GROWTH_STEPS:
            self.value = min(self.value * 2, LARGEST)
            self._quiet_steps = 0
