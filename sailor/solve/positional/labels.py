"""Labels of the positional programme: partial pipelines from a unit to the end of the model."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COST, PENDING, SLOWEST, SYNC = range(4)  # columns of the times


class TooManyLabelsError(Exception):
    """The programme was given up: nothing is known of the box."""


@dataclass
class Labels:
    """Partial pipelines of one number of stages, sorted by the unit that they start at.

    `times` [N, 4] in seconds: what they cost without the transfer to the stage in front; the first
    stage, without the gradient that it sends back; the slowest stage behind it; the slowest sync.
    """

    start: Ints
    kinds: Ints  # index of the first stage's kind set
    use: Ints  # [N, W] of the weighted pools, packed
    times: Floats
    price: Floats  # [N, Z] at several prices
    parent: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: object) -> Labels:
        """Return some of the labels."""
        return Labels(*(getattr(self, field.name)[rows] for field in fields(self)))

    def trace(self) -> Trace:
        """Return what it takes to tell their stages."""
        return Trace(
            self.start.astype(np.int16), self.kinds.astype(np.int16), self.parent.astype(np.int32)
        )


@dataclass(frozen=True)
class Trace:
    """The first stages of the labels of a layer, and the labels behind them."""

    start: NDArray[np.int16]
    kinds: NDArray[np.int16]
    parent: NDArray[np.int32]
