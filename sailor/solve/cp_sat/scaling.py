"""Seconds as integers for CP-SAT, and how far the rounding can be off.

Terms of a lower bound are rounded down, limits up: what the integer model can't reach, no plan
can. A sum of n rounded terms is less than n units below the exact one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A cutoff becomes so many units: fine enough that 1,000 rounded terms are under 0.1 per mille.
_UNITS = 2e7
# Products of floats that should be whole aren't; this much of a unit is forgiven.
_SLACK_UNITS = 1e-6


@dataclass(frozen=True)
class Scale:
    """So many integer units a second."""

    units_per_s: float

    @classmethod
    def of_cutoff(cls, cutoff_s: float) -> Scale:
        """Return the scale at which a cutoff is about 2e7 units."""
        if not (math.isfinite(cutoff_s) and cutoff_s > 0):
            raise ValueError(f"a cutoff is a positive number of seconds, not {cutoff_s}")
        return cls(_UNITS / cutoff_s)

    def down(self, seconds: float) -> int:
        """Return the units of a term of a lower bound; error in [0, 1 + 1e-6) units."""
        return math.floor(seconds * self.units_per_s - _SLACK_UNITS)

    def up(self, seconds: float) -> int:
        """Return the units of a limit; error in [0, 1 + 1e-6) units."""
        return math.ceil(seconds * self.units_per_s + _SLACK_UNITS)

    def all_down(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return `down` of every element."""
        found: NDArray[np.int64] = np.floor(seconds * self.units_per_s - _SLACK_UNITS).astype(
            np.int64
        )
        return found

    def seconds(self, units: float) -> float:
        """Return the seconds of an integer bound; never above the bound's exact value."""
        return units / self.units_per_s

    def error_s(self, num_terms: int) -> float:
        """Return how far a sum of rounded terms can be below the exact sum."""
        return num_terms * (1 + _SLACK_UNITS) / self.units_per_s
