"""The exact dynamic programme of the bound in compiled code: suffixes by their number of stages.

It does what `ChainProgramme.solve` does with numpy, row by row. Sums are added up in numpy's order
and of equal values the first counts, so that both give the same numbers. Import this module
through `compiled.kernels` only: it needs numba.

Shapes: K kinds, P pairs of a kind and a level of transfer, U units, B rows, F places from the end.
Layers [F, K, U] are the least costs of suffixes of so many stages, from each unit; `behind` [P, U]
is the cheapest one behind a cut, with its edge, and `span` [P, 2] where that is finite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inner, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@inner
def _kept(place: int, count: int, capped: bool) -> int:
    """Return how many microbatches a stage keeps."""
    return min(place, count) if capped else place


@inner
def _last_layer(last: Bools, memory: Ints, compute: Floats, price: Floats, out: Floats) -> None:
    kinds, units = out.shape
    for kind in range(kinds):
        for v in range(units):
            fits = last[kind, v] and memory[kind, v] >= units
            out[kind, v] = compute[kind, v, units] + price[kind] if fits else np.inf


@inner
def _behind(after: Floats, edge: Floats, level: Ints, behind: Floats, span: Ints) -> None:
    """Set [P, U]: the cheapest suffix behind a cut with its edge, and where it is finite."""
    kinds, units = after.shape
    behind[:] = np.inf
    span[:, 0], span[:, 1] = units, 0
    for other in range(kinds):
        low, high = units, 0
        for v in range(1, units):
            if after[other, v] < np.inf:
                low, high = min(low, v), v + 1
        for kind in range(kinds):
            pair = level[kind, other]
            if low < high and pair >= 0:
                span[pair, 0] = min(span[pair, 0], low)
                span[pair, 1] = max(span[pair, 1], high)
                for v in range(low, high):
                    total = after[other, v] + edge[kind, other, v]
                    behind[pair, v] = min(behind[pair, v], total)


@inner
def _layer(
    behind: Floats, span: Ints, middle: Ints, memory: Ints, compute: Floats, price: Floats,
    pair_kind: Ints, out: Floats,
) -> None:  # fmt: skip
    """Set [K, U]: the cheapest suffix with one more stage, from each unit but the first."""
    kinds, units = out.shape
    out[:] = np.inf
    for pair in range(len(pair_kind)):
        kind = pair_kind[pair]
        low, high = span[pair]
        for v in range(1, high - 1):
            best = out[kind, v]
            reach = min(middle[pair, v], memory[kind, v])
            for cut in range(max(low, v + 1), min(high, reach + 1)):
                best = min(best, behind[pair, cut] + compute[kind, v, cut])
            out[kind, v] = best
    for kind in range(kinds):
        for v in range(units):
            out[kind, v] += price[kind]


@inner
def _complete(
    behind: Floats, span: Ints, first_reach: Ints, memory: Ints, first: Floats, price: Floats,
    pair_kind: Ints,
) -> float:  # fmt: skip
    """Return the least cost of a chain with a first stage in front."""
    found = np.inf
    for pair in range(len(pair_kind)):
        kind, best = pair_kind[pair], np.inf
        reach = min(first_reach[pair], memory[kind, 0])
        for cut in range(span[pair, 0], min(span[pair, 1], reach + 1)):
            best = min(best, behind[pair, cut] + first[pair, cut])
        found = min(found, best + price[kind])
    return found


@inner
def _prune(layer: Floats, joined: Floats, most: float) -> bool:
    """Drop what no completion brings below `most`; return whether anything is left."""
    kinds, units = layer.shape
    left = False
    for kind in range(kinds):
        for v in range(units):
            if layer[kind, v] + joined[v, kind] >= most:
                layer[kind, v] = np.inf
            elif v > 0:
                left = True
    return left


@inner
def _opening(
    layer: Floats, reach: Ints, memory: Ints, factor: float, back: float, level: Ints,
    compute: Floats, forward: Floats, backward: Floats, price: Floats,
) -> tuple[int, int, int]:  # fmt: skip
    """Return the first stage's kind, the kind after it and the cut between them."""
    kinds, units = layer.shape
    best, found = np.inf, (0, 0, 0)
    for kind in range(kinds):
        for after in range(kinds):
            pair = level[kind, after]
            fits = min(reach[pair], memory[kind, 0]) if pair >= 0 else 0
            for cut in range(1, min(units, fits + 1)):
                edge = factor * forward[kind, after, cut] + back * backward[kind, after, cut]
                total = edge + compute[kind, 0, cut] + price[kind] + layer[after, cut]
                if total < best:
                    best, found = total, (kind, after, cut)
    return found


@inner
def _after(
    layer: Floats, kind: int, start: int, middle: Ints, memory: Ints, back: float, level: Ints,
    compute: Floats, forward: Floats, backward: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Return the kind behind a stage of `kind` from `start`, and the cut between them."""
    kinds, units = layer.shape
    best, found = np.inf, (0, 0)
    for after in range(kinds):
        pair = level[kind, after]
        fits = min(middle[pair, start], memory[kind, start]) if pair >= 0 else 0
        for cut in range(start + 1, min(units, fits + 1)):
            edge = forward[kind, after, cut] + back * backward[kind, after, cut]
            total = edge + compute[kind, start, cut] + layer[after, cut]
            if total < best:
                best, found = total, (after, cut)
    return found


@inner
def _count(
    depth: int, layers: Floats, middle: Ints, first_reach: Ints, memory: Ints, count: int,
    capped: bool, factor: float, level: Ints, compute: Floats, forward: Floats, backward: Floats,
    price: Floats, stages: Ints,
) -> None:  # fmt: skip
    """Count the stages of the cheapest chain of `depth` > 1 stages."""
    keeps = memory[_kept(depth, count, capped)]
    first, kind, start = _opening(
        layers[depth - 1], first_reach, keeps, factor, 2.0 if depth == 2 else 1.0, level,
        compute, forward, backward, price,
    )  # fmt: skip
    stages[first] += 1
    for place in range(depth - 1, 0, -1):
        stages[kind] += 1
        if place > 1:
            keeps = memory[_kept(place, count, capped)]
            kind, start = _after(
                layers[place - 1], kind, start, middle, keeps, 2.0 if place == 2 else 1.0, level,
                compute, forward, backward,
            )  # fmt: skip


@inner
def _deepen(
    enough: float, middle: Ints, short_first: Ints, long_first: Ints, last: Bools, alone: float,
    memory: Ints, count: int, capped: bool, pinned: int, factors: Floats, pair_kind: Ints,
    level: Ints, compute: Floats, edge: Floats, edge_end: Floats, firsts: Floats, price: Floats,
    joined: Floats, layers: Floats, behind: Floats, span: Ints,
) -> tuple[float, int]:  # fmt: skip
    """Fill the layers, by number of stages; return the least cost and its number of stages."""
    value, depth = np.inf, 0
    for place in range(1, len(layers)):
        keeps = memory[_kept(place, count, capped)]
        if place == 1:
            _last_layer(last, keeps, compute, price, layers[1])
            complete = alone
        else:
            _behind(layers[place - 1], edge_end if place == 2 else edge, level, behind, span)
            _layer(behind, span, middle, keeps, compute, price, pair_kind, layers[place])
            first_reach = long_first if factors[place] == 2.0 else short_first
            complete = _complete(behind, span, first_reach, keeps, firsts[place], price, pair_kind)
        if (pinned == 0 or pinned == place) and complete < value:
            value, depth = complete, place
        if not _prune(layers[place], joined, min(value, enough)):
            break
    return value, depth


@kernel(
    "void(f8[:,::1], i8[::1], i8[:,:,::1], i8[:,::1], i8[:,::1], b1[:,:,::1], f8[:,::1],"
    " f8[::1], f8[:,:,::1], i8[:,:,::1], b1, i8, f8[::1], i8[::1], i8[:,::1], f8[:,:,::1],"
    " f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], f8[::1], i8[:,::1])"
)
def solve(
    prices: Floats, count: Ints, middle: Ints, short_first: Ints, long_first: Ints, last: Bools,
    alone: Floats, enough: Floats, joined: Floats, memory: Ints, capped: bool, pinned: int,
    factors: Floats, pair_kind: Ints, level: Ints, compute: Floats, forward: Floats,
    backward: Floats, edge: Floats, edge_end: Floats, firsts: Floats, cost: Floats, stages: Ints,
) -> None:  # fmt: skip
    """Raise the least costs [B] of the relaxed programme to those of the exact one; set stages.

    Rows that cost `enough` are left alone. `alone` and `joined` are as in the relaxed programme.
    """
    kinds, units, pairs = compute.shape[0], compute.shape[1], len(pair_kind)
    layers, behind = np.empty((len(factors), kinds, units)), np.empty((pairs, units))
    span = np.empty((pairs, 2), dtype=np.int64)
    for row in range(len(prices)):
        if cost[row] >= enough[row]:
            continue
        sole = np.argmin(alone[row])
        value, depth = _deepen(
            enough[row], middle[row], short_first[row], long_first[row], last[row],
            alone[row, sole], memory, count[row], capped, pinned, factors, pair_kind, level,
            compute, edge, edge_end, firsts, prices[row], joined[row], layers, behind, span,
        )  # fmt: skip
        cost[row] = min(value, max(enough[row], 0.0))
        if depth == 1:
            stages[row, sole] += 1
        elif depth > 1:
            first_reach = long_first[row] if factors[depth] == 2.0 else short_first[row]
            _count(
                depth, layers, middle[row], first_reach, memory, count[row], capped,
                factors[depth], level, compute, forward, backward, prices[row], stages[row],
            )  # fmt: skip
