"""What the time of a pipeline in a box is worth: seconds, or dollars at the box's rate.

Money makes a limit of seconds in each box: at R >= Ra a pipeline is of interest only if T Ra and
what it pays for egress are below what there is. So a programme that finds the least time with
R <= Rb decides a box, whether dollars are limited or minimised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from sailor.solve.bounds.lagrange import BoxSearch
from sailor.solve.bounds.lagrange_boxes import Box
from sailor.solve.positional.kind_sets import KindSets

# Of a rate: ranges of R narrower than this are taken for a point.
_NARROWEST, _NARROWEST_AT_HOME = 5e-4, 4e-3
_RANGES = 16  # of R, that a cell is begun with
_SLACK = 1e-9


class BoxValues:
    """Values of the boxes of a search of one cell; `value` is seconds or dollars."""

    def __init__(self, search: BoxSearch, space: KindSets) -> None:
        self.search, self.money = search, search.money
        self.attainable_g = np.unique(space.sync_s[np.isfinite(space.sync_s)])
        self.spent_usd = float(search.egress_usd[0] + search.crossing_usd[0])
        self.further = int(search.further[0])

    def limit_s(self, box: Box, best: float) -> float:
        """Return the seconds from which on no pipeline of the box has a value below `best`."""
        rates = self.search.rates
        if not self.money.counts:
            return best
        usd = self.search.max_usd
        limit = min(rates.max_s, np.inf if self.money.cost else best)
        usd = min(usd, best) if self.money.cost else usd
        return min(limit, (usd - self.spent_usd) / box.low_r)

    def value(self, box: Box, seconds: float) -> float:
        """Return the least value of pipelines of the box that take so long or longer."""
        if not self.money.cost:
            return seconds
        return box.low_r * seconds + self.spent_usd

    def narrowed(self, box: Box, seconds: float, best: float) -> Box:
        """Return the box without rates that are too high for pipelines that take so long."""
        if not self.money.counts or seconds <= 0:
            return box
        usd = min(self.search.max_usd, best) if self.money.cost else self.search.max_usd
        most = (usd - self.spent_usd) / seconds * (1 + _SLACK)
        return replace(box, high_r=max(min(box.high_r, most), box.low_r))

    def width_s(self, box: Box) -> float:
        """Return the seconds that the ranges of S and G leave open."""
        by_s = self.further * (box.high_s - box.low_s) if self.further else 0.0
        return by_s + box.high_g - box.low_g

    def first(self, boxes: Sequence[Box], best: float) -> list[Box]:
        """Return boxes of all plans that boxes of the search stand for, by ranges of R.

        R is the plan's own in both.
        """
        if not boxes:
            return []
        if not self.money.counts:
            found = [self._above(boxes, best)]
        else:
            ends = np.unique([end for box in boxes for end in (box.low_r, box.high_r)])
            places = np.unique(np.linspace(0, len(ends) - 1, _RANGES + 1).astype(int))
            found = []
            for low, high in pairwise(ends[places].tolist()) if len(places) > 1 else ():
                some = [
                    replace(box, low_r=max(box.low_r, low), high_r=min(box.high_r, high))
                    for box in boxes
                    if box.low_r <= high and box.high_r >= low
                ]
                found.append(self._above(some, best))
            if len(places) == 1:
                found = [self._above(boxes, best)]
        return [box for box in found if box is not None]

    def _above(self, boxes: Sequence[Box], best: float) -> Box | None:
        """Return a box of all plans that boxes of the search stand for.

        Those have the times of single kinds. With kind sets a plan has an S and a G that are no
        less, and may lie beyond: up to what the limit of time leaves.
        """
        if not boxes:
            return None
        lowest = min(boxes, key=lambda box: box.bound)
        found = replace(
            lowest,
            low_s=min(box.low_s for box in boxes),
            low_g=min(box.low_g for box in boxes),
            low_r=min(box.low_r for box in boxes), high_r=max(box.high_r for box in boxes),
        )  # fmt: skip
        # The chain takes as long as its slowest stage, at least.
        spare = self.limit_s(found, best) * (1 + _SLACK)
        spare -= (self.further + 1) * found.low_s + found.low_g
        if spare <= 0:
            return None
        high_s = found.low_s + spare / (self.further + 1)
        return self._snapped(replace(found, high_s=high_s, high_g=found.low_g + spare))

    def _snapped(self, box: Box) -> Box | None:
        """Return the box with ends of G that stages of the sets have; None: there are none."""
        values = self.attainable_g
        first = int(np.searchsorted(values, box.low_g * (1 - _SLACK)))
        last = int(np.searchsorted(values, box.high_g * (1 + _SLACK), side="right")) - 1
        if first > last:
            return None
        low_g = max(box.low_g, float(values[first]) * (1 - 1e-11))
        return replace(box, low_g=low_g, high_g=max(low_g, min(box.high_g, float(values[last]))))

    def split(self, box: Box) -> list[Box]:
        """Return parts of a box, by the range that leaves most open.

        Where dollars are limited, a range of R from below says nothing that the times don't, but
        for how many pipelines can pay for crossing zones.
        """
        seconds = max(self.further * box.low_s + box.low_g, 1e-12)
        by_s = self.further * (box.high_s - box.low_s) / seconds
        by_g = (box.high_g - box.low_g) / seconds
        rates = self.money.cost or self.search.home is not None
        if rates and math.log(box.high_r / box.low_r) > max(by_s, by_g):
            return self.by_rate(box)
        if by_s >= by_g:
            middle = (box.low_s + box.high_s) / 2
            return [replace(box, high_s=middle), replace(box, low_s=middle)]
        middle = (box.low_g + box.high_g) / 2
        parts = (replace(box, high_g=middle), replace(box, low_g=middle))
        return [part for one in parts if (part := self._snapped(one)) is not None]

    def wide_rates(self, box: Box) -> bool:
        """Return whether the range of R leaves dollars open."""
        if not self.money.cost and self.search.home is None:
            return False
        most = _NARROWEST if self.money.cost else _NARROWEST_AT_HOME
        return math.log(box.high_r / box.low_r) > most

    def at_home(self, box: Box, least_s: float, best: float) -> int:
        """Return how many pipelines lie in the home zone at least: the others pay for crossing.

        `least_s` is the least time of the box, if it is known.
        """
        search = self.search
        each = float(search.crossing_usd[0])
        if search.home is None or each <= 0:
            return 0
        usd = min(search.max_usd, best) if self.money.cost else search.max_usd
        seconds = max(least_s, self.further * box.low_s + box.low_g)
        if not self.money.cost:
            seconds = max(seconds, box.bound)
        left = usd - self.spent_usd - box.low_r * seconds
        return int(search.dp[0]) - 1 - math.floor(max(left, 0.0) / each * (1 + _SLACK) + _SLACK)

    def by_rate(self, box: Box) -> list[Box]:
        """Return the halves of a box by its rates."""
        middle = math.sqrt(box.low_r * box.high_r)
        return [replace(box, high_r=middle), replace(box, low_r=middle)]
