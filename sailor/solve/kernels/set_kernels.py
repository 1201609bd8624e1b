"""The dynamic programme over kind sets in compiled code: what `set_bound` does in numpy.

Sums are added up in the same order and of equal values the first counts, so that both give the
same numbers. Import this module through `compiled.kernels` only: it needs numba.

Shapes: J kind sets, C classes of sets with the same transfers, U units, Q weighted rooms.
`edge` and `edge_end` [U, C, C] are transfers forth and back at a cut, class before and class
after, the latter in front of the last stage. `reach` [J, U] is the furthest cut of a stage from
each unit (0: none), `last` [J, U] whether the last stage may start there, `whole` [J] whether
one stage may be all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.ascent import BEYOND, ENOUGH, LESS, MOMENTUM, MORE, PATIENCE
from sailor.solve.kernels.compiled import inner, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@inner
def _joined(
    before: Floats, by_class: Ints, edge: Floats, out: Floats, partner: Ints, leader: Ints
) -> None:
    """Set [C]: the least of [J] with the edge to a stage of each class, and the set it is of."""
    classes = len(out)
    for c in range(classes):
        leader[c] = -1
    for j in range(len(before)):
        c = by_class[j]
        if leader[c] < 0 or before[j] < before[leader[c]]:
            leader[c] = j
    for after in range(classes):
        best, who = np.inf, leader[0]
        for c in range(classes):
            value = before[leader[c]] + edge[c, after]
            if value < best:
                best, who = value, leader[c]
        out[after], partner[after] = best, who


@inner
def _fill(
    compute: Floats,
    reach: Ints,
    by_class: Ints,
    edges: tuple[Floats, Floats],
    price: Floats,
    starts: Ints,
    joined: tuple[Floats, Floats],
    partner: tuple[Ints, Ints],
) -> None:
    """Set, by cut, the start [U, J] of the last stage, and [U, C] of the cheapest chains so far.

    `joined` and `partner` are of a next stage between, and of a next stage that is the last.
    """
    sets, units = reach.shape
    before = np.empty(sets)
    leader = np.zeros(len(joined[0][0]), dtype=np.int64)
    joined[0][0] = 0.0
    for cut in range(1, units):
        for j in range(sets):
            least, where, c = np.inf, 0, by_class[j]
            for v in range(cut):
                if reach[j, v] >= cut:
                    value = joined[0][v, c] + compute[j, v, cut]
                    if value < least:
                        least, where = value, v
            before[j] = least + price[j]
            starts[cut, j] = where
        for end in range(2):
            _joined(before, by_class, edges[end][cut], joined[end][cut], partner[end][cut], leader)


@inner
def _closed(
    compute: Floats, last: Bools, whole: Bools, by_class: Ints, price: Floats, ended: Floats
) -> tuple[float, int, int]:
    """Return the cost of the cheapest chain, the start of its last stage, and its kind set."""
    sets, units = last.shape
    value, at, kinds = np.inf, 0, 0
    for j in range(sets):
        if whole[j]:
            total = compute[j, 0, units] + price[j]
            if total < value:
                value, at, kinds = total, 0, j
        for v in range(1, units):
            if last[j, v]:
                total = ended[v, by_class[j]] + compute[j, v, units] + price[j]
                if total < value:
                    value, at, kinds = total, v, j
    return value, at, kinds


@inner
def _take(
    at: int,
    kinds: int,
    use: Floats,
    by_class: Ints,
    starts: Ints,
    partner: tuple[Ints, Ints],
    taken: Floats,
) -> None:
    """Set [Q]: what the stages of a chain take, the last one of `kinds` from `at`."""
    for q in range(len(taken)):
        taken[q] = use[kinds, q]
    end = 1
    while at > 0:
        kinds = partner[end][at, by_class[kinds]]
        for q in range(len(taken)):
            taken[q] += use[kinds, q]
        at, end = starts[at, kinds], 0


@inner
def _moved(prices: Floats, move: Floats, slope: Floats, wanted: float) -> bool:
    """Move prices [Q] along the slope and part of the last move; return whether they could."""
    steepness = 0.0
    for q in range(len(prices)):
        move[q] = slope[q] + MOMENTUM * move[q]
        if prices[q] <= 0.0 and move[q] < 0.0:
            move[q] = 0.0
        steepness += move[q] * move[q]
    if steepness == 0.0:
        return False
    length = wanted / steepness
    for q in range(len(prices)):
        prices[q] = max(prices[q] + length * move[q], 0.0)
    return True


@inner
def advance(
    known: Floats, prices: Floats, best_prices: Floats, move: Floats, slope: Floats,
    value: float, cutoff: float,
) -> bool:  # fmt: skip
    """Take the value and slope at prices [Q], and move them; return False at the end.

    `known` are the best value, what steps aim at beyond it, and steps without a gain; at first
    minus infinity, infinity and 0.
    """
    most = cutoff * BEYOND - value
    known[1] = min(known[1], most)
    if value > known[0]:
        if value - known[0] >= ENOUGH * known[1]:
            known[1] = min(known[1] * MORE, most)
        known[0], known[2] = value, 0.0
        best_prices[:] = prices
    else:
        known[2] += 1.0
        if known[2] == PATIENCE:
            known[1], known[2] = known[1] * LESS, 0.0
            prices[:] = best_prices
            move[:] = 0.0
    if value >= cutoff:
        return False
    return _moved(prices, move, slope, known[0] + known[1] - value)


@kernel(
    "Tuple((f8, f8[::1]))(f8[:,:,::1], i8[:,::1], b1[:,::1], b1[::1], i8[::1], f8[:,:,::1], "
    "f8[:,:,::1], f8[:,::1], f8[::1], f8[::1], f8, f8, i8)"
)
def best_bound(
    compute: Floats,
    reach: Ints,
    last: Bools,
    whole: Bools,
    by_class: Ints,
    edge: Floats,
    edge_end: Floats,
    use: Floats,
    room: Floats,
    prices: Floats,
    fixed: float,
    cutoff: float,
    steps: int,
) -> tuple[float, Floats]:
    """Return the best bound that subgradient steps from `prices` [Q] find, and its prices."""
    sets, units = reach.shape
    rows, classes = len(room), edge.shape[1]
    price, taken = np.zeros(sets), np.zeros(rows)
    starts = np.zeros((units, sets), dtype=np.int64)
    joined = (np.empty((units, classes)), np.empty((units, classes)))
    partner = (
        np.zeros((units, classes), dtype=np.int64),
        np.zeros((units, classes), dtype=np.int64),
    )
    known, best_prices = np.array([-np.inf, np.inf, 0.0]), prices.copy()
    prices, move, slope = prices.copy(), np.zeros(rows), np.zeros(rows)
    for _ in range(steps):
        for j in range(sets):
            price[j] = 0.0
            for q in range(rows):
                price[j] += use[j, q] * prices[q]
        _fill(compute, reach, by_class, (edge, edge_end), price, starts, joined, partner)
        value, at, kinds = _closed(compute, last, whole, by_class, price, joined[1])
        if not np.isfinite(value):
            return np.inf, best_prices
        _take(at, kinds, use, by_class, starts, partner, taken)
        value += fixed
        for q in range(rows):
            value -= prices[q] * room[q]
            slope[q] = taken[q] - room[q]
        if not advance(known, prices, best_prices, move, slope, value, cutoff):
            break
    return known[0], best_prices


@kernel("f8[:,::1](f8[:,:,::1], i8[:,::1], i8[:,::1], i8[::1], f8[:,:,::1], f8[::1], f8[:,::1])")
def step_ahead(
    compute: Floats,
    reach: Ints,
    memory: Ints,
    by_class: Ints,
    edge: Floats,
    price: Floats,
    found: Floats,
) -> Floats:
    """Return [J, U]: the least in front of a stage, from `found`, that in front of the one before.

    The stage before it reaches no further than `memory` [J, U] allows.
    """
    sets, units = reach.shape
    classes = edge.shape[1]
    before = np.empty(sets)
    joined = np.empty(classes)
    partner = np.zeros(classes, dtype=np.int64)
    leader = np.zeros(classes, dtype=np.int64)
    out = np.zeros((sets, units))
    for cut in range(1, units):
        for j in range(sets):
            least = np.inf
            for v in range(cut):
                if reach[j, v] >= cut and memory[j, v] >= cut:
                    value = found[j, v] + compute[j, v, cut]
                    least = min(least, value)
            before[j] = least + price[j]
        _joined(before, by_class, edge[cut], joined, partner, leader)
        for j in range(sets):
            out[j, cut] = joined[by_class[j]]
    return out
