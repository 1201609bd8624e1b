"""Prices at which what is in front of a partial pipeline costs most, in compiled code.

Import this module through `compiled.kernels` only: it needs numba.

Shapes: J kind sets, C classes of sets with the same transfers, U units, Q rows of weighted pools;
`edge` [U, C, C] by cut, class before and class after; `reach` [J, U] the furthest cut of a stage
from each unit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inner, kernel
from sailor.solve.kernels.set_kernels import advance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@inner
def _front(
    last: int, price: Floats, compute_s: Floats, reach: Ints, by_class: Ints, edge: Floats,
    starts: Ints, partner: Ints, joined: Floats,
) -> None:  # fmt: skip
    """Set the cheapest chains of units [0, v) up to a unit, with the edge to a stage behind them.

    `starts` [J, U] are their last stages' starts, `partner` [U, C] those stages' sets.
    """
    sets, classes = len(price), joined.shape[1]
    joined[:] = np.inf
    joined[0] = 0.0
    for v in range(1, last + 1):
        for j in range(sets):
            best, start = np.inf, -1
            for w in range(v):
                if reach[j, w] >= v:
                    total = joined[w, by_class[j]] + compute_s[j, w, v]
                    if total < best:
                        best, start = total, w
            starts[j, v] = start
            for after in range(classes if start >= 0 else 0):
                total = best + price[j] + edge[v, by_class[j], after]
                if total < joined[v, after]:
                    joined[v, after], partner[v, after] = total, j


@inner
def _over(
    unit: int, after: int, use: Floats, left: Floats, by_class: Ints, starts: Ints, partner: Ints,
    slope: Floats,
) -> None:  # fmt: skip
    """Set by how much the cheapest chain takes more than is left."""
    for row in range(len(left)):
        slope[row] = -left[row]
    while unit > 0:
        j = partner[unit, after]
        for row in range(len(left)):
            slope[row] += use[j, row]
        unit, after = starts[j, unit], by_class[j]


@inner
def _paid(prices: Floats, use: Floats, price: Floats) -> None:
    for j in range(len(price)):
        price[j] = 0.0
        for row in range(len(prices)):
            price[j] += use[j, row] * prices[row]


@kernel(
    "Tuple((f8, f8[::1]))(f8, f8, i8, i8, f8[::1], f8[::1], f8[:,::1], f8[:,:,::1], i8[:,::1],"
    " i8[::1], f8[:,:,::1], i8)"
)
def ascend(
    seconds: float, target: float, unit: int, after: int, first: Floats, left: Floats,
    use: Floats, compute_s: Floats, reach: Ints, by_class: Ints, edge: Floats, steps: int,
) -> tuple[float, Floats]:  # fmt: skip
    """Return a bound on all pipelines that end with one of `seconds` from a unit, and its prices.

    The partial pipeline's first stage is of the class `after`, and `left` [Q] is what it leaves of
    the rows. Begins at the prices `first`, ends at the target.
    """
    sets, units, classes = len(use), reach.shape[1], edge.shape[1]
    starts = np.empty((sets, units), dtype=np.int64)
    partner = np.empty((units, classes), dtype=np.int64)
    joined, price = np.empty((units, classes)), np.empty(sets)
    prices, slope, best_prices = first.copy(), np.empty(len(first)), first.copy()
    known, move = np.array([-np.inf, np.inf, 0.0]), np.zeros(len(first))
    for _ in range(steps):
        _paid(prices, use, price)
        _front(unit, price, compute_s, reach, by_class, edge, starts, partner, joined)
        value = seconds + joined[unit, after]
        if value == np.inf:
            return value, prices
        for row in range(len(left)):
            value -= prices[row] * left[row]
        _over(unit, after, use, left, by_class, starts, partner, slope)
        if not advance(known, prices, best_prices, move, slope, value, target):
            break
    return known[0], best_prices
