"""The least time at which pipelines of given times and uses can share the pools.

Of n pipelines, `larger` take at most T with M microbatches and the rest at most T with one less.
At prices that add up to 1 for all that there is, each costs at least as much as the cheapest one
within T; when those are more than 1 together, T is out of reach. The prices come from a small
linear programme over the pipelines that were cheapest so far; whatever they are, the bound holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-9
_TURNS = 25
_PIVOTS = 200


@dataclass(frozen=True)
class Times:
    """Pipelines: [N] seconds with the larger and the smaller count, uses [N, R] of 1 each."""

    larger_s: Floats
    smaller_s: Floats
    use: Floats


class Sharing:
    """How many pipelines of both counts there are, and the region of uses that is known.

    The rows are the GPUs of each group and those of all groups, of which a group is `share` [G].
    Pipelines outside the region cost at least `spread` times their part at `centre`; nothing is
    known of their times. Prices keep to at least `1 / spread` of the centre.
    """

    def __init__(
        self, larger: int, smaller: int, centre: Floats, share: Floats, spread: float
    ) -> None:
        self.larger, self.smaller = larger, smaller
        self.centre, self.share = centre, share
        self.budget = spread / (larger + smaller)
        self.part = min(1.0, (1 + 1e-6) / spread)  # of the centre in all prices

    def by_group(self, prices: Floats) -> Floats:
        """Return [G]: what all GPUs of a group cost at the prices of the rows."""
        found: Floats = prices[:-1] + prices[-1] * self.share
        return found

    def outside(self, prices: Floats) -> float:
        """Return the least that a pipeline outside the region costs."""
        centre = self.by_group(self.centre)
        known = centre > 0
        return self.budget * float((self.by_group(prices)[known] / centre[known]).min())

    def least(self, times: Times, prices: Floats, cutoff_s: float) -> tuple[float, Floats | None]:
        """Return a time that is out of reach below, and what the cheapest pipelines take then.

        No use is returned where the cutoff is out of reach, too.
        """
        outside = self.outside(prices)
        cost = times.use @ prices
        budget = 1 + _SLACK
        if outside * (self.larger + self.smaller) <= budget:
            return 0.0, None
        seconds: list[Floats] = []
        cheapest: list[Floats] = []
        which: list[Ints] = []
        for own in (times.larger_s, times.smaller_s):
            order = np.argsort(own, kind="stable")
            order = order[own[order] < cutoff_s]
            falling = np.minimum.accumulate(cost[order]) if len(order) else np.zeros(0)
            # Where the running least changes, with the first point that has it.
            fresh = np.flatnonzero(np.diff(falling, prepend=np.inf) < 0)
            seconds.append(own[order[fresh]])
            cheapest.append(falling[fresh])
            which.append(order[fresh])
        if not self.smaller:
            within = np.flatnonzero(self.larger * cheapest[0] <= budget)
            if not len(within):
                return cutoff_s, None
            first = int(within[0])
            return float(seconds[0][first]), self.larger * times.use[which[0][first]]
        both = np.unique(np.concatenate(seconds))
        place = [np.searchsorted(own, both, side="right") - 1 for own in seconds]
        paid = [
            np.where(at >= 0, np.append(own, np.inf)[at], np.inf)
            for at, own in zip(place, cheapest, strict=True)
        ]
        # One of the kinds may lie outside the region.
        total = self.larger * np.minimum(paid[0], outside)
        total = total + self.smaller * np.minimum(paid[1], outside)
        within = np.flatnonzero(total <= budget)
        if not len(within):
            return cutoff_s, None
        first = int(within[0])
        use = np.zeros(times.use.shape[1])
        for number, count in enumerate((self.larger, self.smaller)):
            if paid[number][first] <= outside:
                point = int(which[number][place[number][first]])
                use = use + count * times.use[point]
            else:
                use = use + count * outside
        return float(both[first]), use

    def best(
        self, times: Times, start: Floats, cutoff_s: float, enough_s: float
    ) -> tuple[float, Floats]:
        """Return the best time out of reach below that was found, and its prices.

        Prices stop being improved at `enough_s`.
        """
        prices, found = start, (0.0, start)
        columns: list[Floats] = []
        for _ in range(_TURNS):
            seconds, use = self.least(times, prices, cutoff_s)
            if seconds > found[0]:
                found = seconds, prices
            if use is None or found[0] >= enough_s:
                break
            columns.append(self.part * float(self.centre @ use) + (1 - self.part) * use)
            most, dual = packed(np.stack(columns))
            if most >= 1 - _SLACK:
                break  # these pipelines do share the pools
            prices = self.part * self.centre + (1 - self.part) * dual
        return found


def packed(columns: Floats) -> tuple[float, Floats]:
    """Return the most that a sum of shares of the columns [N, R] can be, each row at most 1.

    With it the prices of the rows, which add up to 1. Columns are positive somewhere.
    """
    count, rows = columns.shape
    table = np.zeros((rows + 1, count + rows + 1))
    table[:rows, :count] = columns.T
    table[:rows, count : count + rows] = np.eye(rows)
    table[:rows, -1] = 1.0
    table[rows, :count] = -1.0
    for _ in range(_PIVOTS):
        enter = int(table[rows, :-1].argmin())
        if table[rows, enter] >= -1e-12:
            break
        column = table[:rows, enter]
        ratio = np.full(rows, np.inf)
        positive = column > 1e-12
        ratio[positive] = table[:rows, -1][positive] / column[positive]
        leave = int(ratio.argmin())
        if not np.isfinite(ratio[leave]):
            break
        table[leave] /= table[leave, enter]
        for row in range(rows + 1):
            if row != leave:
                table[row] -= table[row, enter] * table[leave]
    dual = np.maximum(table[rows, count : count + rows], 0.0)
    total = float(dual.sum())
    if total <= 0:
        return np.inf, np.full(rows, 1.0 / rows)
    return float(table[rows, -1]), dual / total
