"""Boxes of the Lagrangian bound: what a cell is, and ranges in which its plans lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-9  # limits on times tolerate rounding, so that no attainable value is lost


@dataclass(frozen=True)
class Money:
    """What the bound is of and which limits hold; times in seconds, money in dollars."""

    cost: bool  # minimise dollars, not seconds
    max_s: float | None = None
    max_usd: float | None = None
    max_gpus: int | None = None

    @property
    def counts(self) -> bool:
        """Return whether dollars are minimised or limited."""
        return self.cost or self.max_usd is not None


@dataclass(frozen=True)
class Home:
    """The zone in which all pipelines lie that don't cross between zones."""

    zone: str
    room: Ints  # [R] GPUs of each group in the zone
    kinds: NDArray[np.bool_]  # [K] that the zone offers


@dataclass(frozen=True)
class BoundCell:
    """All plans with `num_microbatches` a pipeline and `dp` or more pipelines, of one size."""

    dp: int
    num_microbatches: int
    degrees: tuple[int, ...]  # degrees of data parallelism that it stands for
    sync_s: Floats  # [K, U, U + 1] with the update
    others: int = 0  # further pipelines, of which only the smallest replica is counted
    egress_usd: float = 0.0  # every plan pays so much an iteration at least
    crossing_usd: float = 0.0  # and for each pipeline that crosses between zones, of one or more
    home: Home | None = None  # where the others lie; None: nothing is known


@dataclass(frozen=True)
class Box:
    """Ranges of S, G and R of one cell, with the bound found so far and its prices."""

    cell: int
    low_s: float
    high_s: float
    low_g: float
    high_g: float
    bound: float
    prices: Floats = field(repr=False)
    low_r: float = 0.0  # dollars a second
    high_r: float = np.inf
    settled: bool = False  # too narrow to be split, with prices as good as can be found


@dataclass(frozen=True)
class CellBound:
    """No plan of the cell is below `bound`; `boxes` are those that are not closed.

    No plan outside of them is below `elsewhere`, if that is known.
    """

    bound: float
    boxes: tuple[Box, ...]
    elsewhere: float | None = None


def halves(values: Floats, low: float, high: float) -> list[tuple[float, float]]:
    """Return the halves of a range that hold values, each from value to value.

    `values` ascend: what a stage attains.
    """
    middle, parts = (low + high) / 2, []
    for start, stop in ((low, middle), (middle, high)):
        inside = values[(values >= start * (1 - _SLACK)) & (values <= stop * (1 + _SLACK))]
        if len(inside):
            first = max(start, float(inside[0]) * (1 - 1e-11))
            parts.append((first, max(first, float(inside[-1]))))
    return parts
