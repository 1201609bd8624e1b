"""The cheapest chain over one split of the units, in compiled code.

Gives what `split_value` gives in numpy, bit by bit. Import it through `compiled.kernels` only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inner, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@inner
def _opened(
    cost: Floats, left: Floats, edge: Floats, allowed: Bools, ceiling: float, paid: Floats,
    value: Floats,
) -> None:  # fmt: skip
    """Set [K, K]: the cost of a first stage by its kind and the one behind it."""
    kinds = len(cost)
    for k in range(kinds):
        for n in range(kinds):
            fits = allowed[k] and cost[k] + left[k, n] <= ceiling
            value[k, n] = cost[k] + paid[k] + edge[k, n] if fits else np.inf


@inner
def _further(
    cost: Floats, right: Floats, left: Floats, edge: Floats, allowed: Bools, ceiling: float,
    paid: Floats, before: Floats, value: Floats, came: Ints,
) -> None:  # fmt: skip
    """Set [K, K]: the least cost up to an inner stage, and the kind in front of it."""
    kinds = len(cost)
    for k in range(kinds):
        for n in range(kinds):
            best, found = np.inf, 0
            if allowed[k]:
                for q in range(kinds):
                    fits = cost[k] + right[q, k] + left[k, n] <= ceiling
                    if fits and before[q, k] < best:
                        best, found = before[q, k], q
            value[k, n] = best + cost[k] + paid[k] + edge[k, n]
            came[k, n] = found


@inner
def _closed(
    cost: Floats, right: Floats, allowed: Bools, ceiling: float, paid: Floats, before: Floats,
) -> tuple[float, int, int]:  # fmt: skip
    """Return the least cost with a last stage, its kind and the one in front of it."""
    least, last, found = np.inf, 0, 0
    for k in range(len(cost)):
        best, own = np.inf, 0
        if allowed[k]:
            for q in range(len(cost)):
                if cost[k] + right[q, k] <= ceiling and before[q, k] < best:
                    best, own = before[q, k], q
        total = best + cost[k] + paid[k]
        if total < least:
            least, last, found = total, k, own
    return least, last, found


@kernel(
    "f8(f8[:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], b1[:,::1], f8[::1], f8[::1], f8, f8,"
    " f8[:,:,::1], i8[:,:,::1], i8[::1])"
)
def cheapest(
    cost: Floats, left: Floats, right: Floats, edge: Floats, allowed: Bools, ceilings: Floats,
    price: Floats, place: float, total: float, value: Floats, came: Ints, chain: Ints,
) -> float:  # fmt: skip
    """Return the least over ceilings S of F + (total d - 1) S; set the chain that has it.

    Of two stages or more. Shapes are those of `split_value`; `value` and `came` [P, K, K] are for
    work.
    """
    stages, least = len(cost), np.inf
    for s in range(len(ceilings)):
        ceiling = ceilings[s]
        weight = total * ceiling
        paid = weight * price
        _opened(cost[0], left[0], edge[0], allowed[0], ceiling, paid, value[0])
        for i in range(1, stages - 1):
            _further(
                cost[i], right[i - 1], left[i], edge[i], allowed[i], ceiling, paid, value[i - 1],
                value[i], came[i],
            )  # fmt: skip
        end = stages - 1
        seconds, last, before = _closed(
            cost[end], right[end - 1], allowed[end], ceiling, paid, value[end - 1]
        )
        found = seconds + weight * place - ceiling
        if found < least:
            least = found
            chain[end], chain[end - 1] = last, before
            for i in range(end - 1, 0, -1):
                chain[i - 1] = came[i, chain[i], chain[i + 1]]
    return least
