"""Dollars a second of the plans of a cell: which there are, and how slow a plan may be at each.

The rate R of a plan is that of its GPUs at the least prices of their groups. Its dollars are at
least T R and what it pays for egress, so at R >= Ra no plan of interest takes longer than what is
left of the money over Ra.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_boxes import BoundCell, Money
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Rows
from sailor.solve.bounds.lagrange_tables import BoundTables

Floats = NDArray[np.float64]

_SLACK = 1e-9
_MOST_RATES = 200_000  # attainable rates beyond this are not listed
_DEAR = 1e4  # times the horizon: what the dollars of a chain count, so that its seconds don't


class Rates:
    """Rates of the cells of one microbatch size."""

    def __init__(
        self, programme: ChainProgramme, cells: Sequence[BoundCell], money: Money, cutoff: float
    ) -> None:
        tables = programme.tables
        self.counts, self.cost = money.counts, money.cost
        self.max_s = np.inf if money.max_s is None else money.max_s * (1 + _SLACK)
        max_usd = np.inf if money.max_usd is None else money.max_usd * (1 + _SLACK)
        self.slowest_s = self.max_s if money.cost else min(self.max_s, cutoff)
        spent = np.array([cell.egress_usd + cell.crossing_usd for cell in cells])
        # [C] dollars for GPUs, of a plan of interest
        self.left_usd = (min(max_usd, cutoff) if money.cost else max_usd) - spent
        dp = np.array([cell.dp for cell in cells])
        self.least = dp * float(tables.usd_per_s.min())  # [C]
        self.most = _most(tables, money)
        self.attainable = _rates(tables) if self.counts else np.zeros(0)
        if self.counts and len(cells):
            self.least = np.maximum(self.least, self._least_of_chains(programme, cells, dp))

    def _least_of_chains(
        self, programme: ChainProgramme, cells: Sequence[BoundCell], dp: NDArray[np.int64]
    ) -> Floats:
        """Return [C]: no plan that takes less than the horizon pays less a second."""
        usd_per_s = programme.tables.usd_per_s
        horizon = np.array([self.horizon(n, float(r)) for n, r in enumerate(self.least)])
        sensible = np.isfinite(horizon) & (horizon > 0)
        horizon = np.where(sensible, horizon, 1.0)
        worth = _DEAR * horizon / float(usd_per_s.min())  # seconds for a dollar a second
        units = programme.units
        rows = Rows(
            ceiling_s=horizon * (1 + _SLACK),
            reach=np.full((len(cells), programme.kinds, units), units, dtype=np.int64),
            prices=worth[:, None] * usd_per_s,
            num_microbatches=np.array([cell.num_microbatches for cell in cells], dtype=np.int64),
        )
        found = programme.relaxed(rows, programme.ceilings(rows)).cost_s
        # A chain of interest has seconds below the horizon.
        least = np.where(np.isfinite(found), (found - horizon * (1 + _SLACK)) / worth, 0.0)
        return np.where(sensible, dp * np.maximum(least, 0.0), 0.0)

    def horizon(self, cell: int, low_r: float) -> float:
        """Return the seconds beyond which no plan of interest at that rate or more lies."""
        if not self.counts or low_r <= 0:
            return self.slowest_s
        return min(self.slowest_s, float(self.left_usd[cell]) / low_r)

    def first(self, cell: int) -> tuple[float, float]:
        """Return the range of all rates of a cell."""
        if not self.counts:
            return 0.0, np.inf
        return float(self.least[cell]), max(self.most, float(self.least[cell]))

    def highest(self, cell: int, high_r: float, least_s: float) -> float:
        """Return the rate beyond which no plan of so many seconds or more is of interest."""
        if not self.counts or least_s <= 0:
            return high_r
        return min(high_r, float(self.left_usd[cell]) / least_s * (1 + _SLACK))

    def snapped(self, low_r: float) -> float:
        """Return the least rate that a plan can have from there on; infinite: none."""
        return next_value(self.attainable, low_r)


def next_value(values: Floats, low: float) -> float:
    """Return the least of the sorted values that is not below `low`, less rounding."""
    if not len(values):
        return low
    place = int(np.searchsorted(values, low * (1 - _SLACK)))
    return max(low, float(values[place]) * (1 - 1e-11)) if place < len(values) else np.inf


def _prices_of_groups(tables: BoundTables) -> tuple[Floats, Floats]:
    """Return [R]: least and most dollars a second of one GPU."""
    each = tables.usd_per_s / tables.tp
    groups = range(len(tables.room))
    own = [each[tables.group == group] for group in groups]
    return (
        np.array([prices.min(initial=np.inf) for prices in own]),
        np.array([prices.max(initial=0.0) for prices in own]),
    )


def _most(tables: BoundTables, money: Money) -> float:
    """Return what all GPUs together cost a second, or as many of them as there may be."""
    _, dearest = _prices_of_groups(tables)
    everything = float((tables.room * dearest).sum())
    if money.max_gpus is None:
        return everything * (1 + _SLACK)
    return min(everything, money.max_gpus * float(dearest.max())) * (1 + _SLACK)


def _rates(tables: BoundTables) -> Floats:
    """Return every rate that GPUs of the groups can have together, sorted.

    Empty when there are too many, or where the GPUs of a group cost unlike.
    """
    cheapest, dearest = _prices_of_groups(tables)
    used = dearest > 0
    if (dearest[used] > cheapest[used] * (1 + 1e-12)).any():
        return np.zeros(0)
    sums = np.zeros(1)
    for group in np.flatnonzero(used):
        part = int(np.gcd.reduce(tables.tp[tables.group == group]))
        counts = np.arange(0, int(tables.room[group]) + 1, part)
        if len(counts) * len(sums) > _MOST_RATES:
            return np.zeros(0)
        sums = np.unique((sums[:, None] + counts[None, :] * cheapest[group]).ravel())
    return sums[1:]
