"""Prices of the weighted pools, at which labels are looked at.

A label can't become a pipeline below the cutoff if at some prices

    seconds so far + cheapest priced stages in front + what it took - what there is

is no less. The prices of a box say little about labels that took much of one pool and little of
another. Where there are many labels, prices are found for some of them, and tried on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.kernels.compiled import kernels
from sailor.solve.positional.set_bound import Ranges, SetProgramme

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_KERNELS = "price_kernels"  # the module

# Labels are looked at with the prices of the box, and with less and more of all of them.
_WEIGHTS = (1.0, 0.6, 1.5, 3.0, 30.0)
_STEPS = 30  # for the prices of one label
_FEW = 400  # labels are not worth more prices
_MOST, _AT_ONCE = 40, 12  # price vectors, and new ones for a layer
_LITTLE = 0.01  # of the labels, that prices should at least drop
_USELESS = 4  # such prices in a row


@dataclass(frozen=True)
class Rest:
    """Labels, as prices see them: what is left to be laid, and what is left to take."""

    unit: Ints  # [N] at which they start
    kinds: Ints  # [N] of their first stages
    seconds: Floats  # [N] at least, without what is in front
    use: Floats  # [N, Q] of every row


class Prices(Protocol):
    """Prices of Z kinds."""

    @property
    def price(self) -> Floats:
        """Return [J, Z]: what a stage of each set costs."""
        ...

    def ahead(self, place: int) -> Floats:
        """Return [J, U, Z]: the least in front of a stage there, less what there is."""
        ...

    def of(self, use: Floats) -> Floats:
        """Return [N, Z]: what labels pay for what they took."""
        ...

    def learn(self, rest: Rest, place: int, target_s: float) -> Bools:
        """Find more prices for labels at a place; return which [N] may stay below the target."""
        ...


class PriceVectors:
    """Price vectors of one box, each with what a stage and what is in front of one costs."""

    def __init__(self, bounds: SetProgramme, box: Ranges, prices: Floats) -> None:
        self.bounds, self.box = bounds, box
        self.prices: list[Floats] = []
        self._price: list[Floats] = []  # by vector, [J]
        self._ahead: list[Sequence[Floats]] = []  # by vector and place, [J, U]
        for weight in _WEIGHTS:
            self._add(weight * prices)

    def _add(self, prices: Floats) -> None:
        paid = float(self.bounds.room @ prices)
        ahead = self.bounds.ahead_by_place(self.box, prices)
        self.prices.append(prices)
        self._price.append(self.bounds.price(prices))
        self._ahead.append([one - paid for one in ahead])

    @property
    def price(self) -> Floats:
        """Return [J, Z]: what a stage of each set costs."""
        return np.stack(self._price, axis=1)

    def ahead(self, place: int) -> Floats:
        """Return [J, U, Z]: the least in front of a stage there, less what there is."""
        return np.stack([ahead[place] for ahead in self._ahead], axis=2)

    def of(self, use: Floats) -> Floats:
        """Return [N, Z]: what labels pay for what they took."""
        found: Floats = use @ np.stack(self.prices, axis=1)
        return found

    def learn(self, rest: Rest, place: int, target_s: float) -> Bools:
        """Find prices for labels at a place; return which [N] are left below the target.

        The vectors that dropped most come first then, and no more than there is space for stay.
        """
        left = np.ones(len(rest.unit), dtype=np.bool_)
        fast = kernels(_KERNELS)
        if fast is None:
            return left
        bounds = self.bounds
        reach = np.minimum(bounds.reach(self.box).middle, bounds.space.memory(place + 1))
        dropped = [0] * len(self.prices)
        random, useless = np.random.default_rng(0), 0
        for _ in range(_AT_ONCE):
            some = np.flatnonzero(left)
            if len(some) < _FEW or useless >= _USELESS:
                break
            one = int(random.choice(some))
            room = bounds.room - rest.use[one]
            work.add(work.SET_S * _STEPS * len(bounds.use) * bounds.units**2)
            _, prices = fast.ascend(
                float(rest.seconds[one]), target_s, int(rest.unit[one]),
                int(bounds.by_class[rest.kinds[one]]), self.prices[0], room, bounds.use,
                bounds.compute_s, reach, bounds.by_class, bounds.edge, _STEPS,
            )  # fmt: skip
            self._add(prices)
            least = rest.seconds[some] + rest.use[some] @ prices
            least += self._ahead[-1][place][rest.kinds[some], rest.unit[some]]
            closed = some[least >= target_s]
            left[closed] = False
            dropped.append(len(closed))
            useless = useless + 1 if len(closed) < _LITTLE * len(some) else 0
        order = sorted(range(len(dropped)), key=lambda vector: -dropped[vector])[:_MOST]
        self.prices = [self.prices[vector] for vector in order]
        self._price = [self._price[vector] for vector in order]
        self._ahead = [self._ahead[vector] for vector in order]
        return left
