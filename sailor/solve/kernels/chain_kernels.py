"""The dynamic programme of the bound in compiled code: what `lagrange_dp` does, row by row.

Sums are added up in numpy's order and of equal values the first counts, so that both give the
same numbers. Import this module through `compiled.kernels` only: it needs numba.

Shapes: K kinds, P pairs of a kind and a level of transfer, U units, B rows, F places from the end.
`edge` and `edge_end` are transfers forth and back between two stages, the latter in front of the
last stage; [U, K, K] by cut, kind before and kind after, or [K, K, U] in that order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inner, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@inner
def _last_within(ascending: Floats, limit: float) -> int:
    """Return the last place of an ascending row that is within the limit; 0 where none is."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


@kernel("i8[:,:,::1](f8[:,:,:,::1], i8[::1], f8[::1])")
def furthest(ascending: Floats, table: Ints, limit: Floats) -> Ints:
    """Return [B, X, V]: the last cut within the limit, of [N, X, V, U + 1] rows that ascend."""
    _, first, second, _ = ascending.shape
    out = np.empty((len(table), first, second), dtype=np.int64)
    for row in range(len(table)):
        for x in range(first):
            for v in range(second):
                out[row, x, v] = _last_within(ascending[table[row], x, v], limit[row])
    return out


@inner
def _kept(place: int, count: int, capped: bool) -> int:
    """Return how many microbatches a stage keeps."""
    return min(place, count) if capped else place


@inner
def _limits(
    middle: Ints, short_first: Ints, long_first: Ints, memory: Ints, pair_kind: Ints, limit: Ints
) -> None:
    """Set [K, U]: how far a stage of the kind reaches from each unit, the most over its pairs."""
    kinds, units = limit.shape
    limit[:] = 0
    for pair in range(len(pair_kind)):
        kind = pair_kind[pair]
        limit[kind, 0] = max(limit[kind, 0], long_first[pair], short_first[pair])
        for v in range(1, units):
            limit[kind, v] = max(limit[kind, v], middle[pair, v])
    for kind in range(kinds):
        for v in range(units):
            limit[kind, v] = min(limit[kind, v], memory[kind, v])


@inner
def _lay(
    limit: Ints, compute: Floats, price: Floats, edge: Floats, before: Floats, joined: Floats
) -> None:
    """Set `before` [K, U], the least cost of units [0, v), and `joined` [U, K], with an edge."""
    kinds, units = limit.shape
    before[:] = np.inf
    joined[:] = np.inf
    joined[0] = 0.0
    for v in range(units):
        for kind in range(kinds):
            if v > 0 and before[kind, v] < np.inf:
                cost = before[kind, v] + price[kind]
                before[kind, v] = cost
                for after in range(kinds):
                    joined[v, after] = min(joined[v, after], cost + edge[v, kind, after])
        for kind in range(kinds):
            front = joined[v, kind]
            if front < np.inf:
                for cut in range(v + 1, min(limit[kind, v] + 1, units)):
                    total = front + compute[kind, v, cut]
                    before[kind, cut] = min(before[kind, cut], total)


@inner
def _close(
    last: Bools, memory: Ints, compute: Floats, price: Floats, before: Floats, edge_end: Floats
) -> tuple[float, int, int]:
    """Return the least cost of a chain of two or more, and kind and start of its last stage."""
    kinds, units = before.shape
    best, best_kind, best_cut = np.inf, 0, 0
    for kind in range(kinds):
        for v in range(1, units):
            if last[kind, v] and memory[kind, v] >= units:
                behind = np.inf
                for other in range(kinds):
                    behind = min(behind, before[other, v] + edge_end[v, other, kind])
                total = compute[kind, v, units] + price[kind] + behind
                if total < best:
                    best, best_kind, best_cut = total, kind, v
    return best, best_kind, best_cut


@inner
def _neighbour(before: Floats, cut: int, edge: Floats, kind: int) -> int:
    """Return the kind of the stage before one of `kind` at a cut."""
    best, found = np.inf, 0
    for other in range(len(before)):
        total = before[other, cut] + edge[cut, other, kind]
        if total < best:
            best, found = total, other
    return found


@inner
def _walk(
    kind: int, cut: int, limit: Ints, compute: Floats, before: Floats, joined: Floats,
    edge: Floats, edge_end: Floats, stages: Ints,
) -> None:  # fmt: skip
    """Count the stages of a chain whose last stage is of a kind and starts at a cut."""
    stages[kind] += 1
    kind = _neighbour(before, cut, edge_end, kind)
    while cut > 0:
        stages[kind] += 1
        best, start = np.inf, 0
        for v in range(cut):
            if limit[kind, v] >= cut:
                total = joined[v, kind] + compute[kind, v, cut]
                if total < best:
                    best, start = total, v
        if start > 0:
            kind = _neighbour(before, start, edge, kind)
        cut = start


@kernel(
    "void(f8[:,::1], i8[::1], i8[:,:,::1], i8[:,::1], i8[:,::1], b1[:,:,::1], f8[:,::1],"
    " i8[:,:,::1], b1, i8, i8[::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], b1, f8[:,:,::1],"
    " f8[::1], i8[:,::1])"
)
def relaxed(
    prices: Floats, count: Ints, middle: Ints, short_first: Ints, long_first: Ints, last: Bools,
    alone: Floats, memory: Ints, capped: bool, pinned: int, pair_kind: Ints, compute: Floats,
    edge: Floats, edge_end: Floats, traced: bool, joined: Floats, cost: Floats, stages: Ints,
) -> None:  # fmt: skip
    """Set the least costs [B] of the relaxed programme; the stages [B, K] where they are traced.

    `alone` [B, K] are the costs of single stages; `joined` [B, U, K] becomes what is in front of a
    stage of a kind at least.
    """
    kinds, units = compute.shape[0], compute.shape[1]
    limit = np.empty((kinds, units), dtype=np.int64)
    before = np.empty((kinds, units))
    for row in range(len(prices)):
        price = prices[row]
        near, end = _kept(2, count[row], capped), _kept(1, count[row], capped)
        _limits(middle[row], short_first[row], long_first[row], memory[near], pair_kind, limit)
        _lay(limit, compute, price, edge, before, joined[row])
        chain, kind, cut = _close(last[row], memory[end], compute, price, before, edge_end)
        sole = np.argmin(alone[row])
        single = alone[row, sole]
        if pinned == 1:
            chain = np.inf
        elif pinned > 1:
            single = np.inf
        cost[row] = min(chain, single)
        if traced and single <= chain and single < np.inf:
            stages[row, sole] += 1
        elif traced and chain < np.inf:
            _walk(kind, cut, limit, compute, before, joined[row], edge, edge_end, stages[row])


@inner
def _stages_behind(front: Floats, limit: Ints, compute: Floats, stage: Floats) -> None:
    """Set [U]: the least cost of units [0, v) with a last stage of one kind, without its price."""
    units = len(front)
    for start in range(units):
        if front[start] < np.inf:
            for cut in range(start + 1, min(limit[start] + 1, units)):
                stage[cut] = min(stage[cut], front[start] + compute[start, cut])


@inner
def _joined(stage: Floats, price: Floats, edge: Floats, out: Floats) -> None:
    """Lower [K, U] to the least over the stages in front, with the edge between."""
    kinds, units = stage.shape
    for v in range(1, units):
        for kind in range(kinds):
            if stage[kind, v] < np.inf:
                cost = stage[kind, v] + price[kind]
                for after in range(kinds):
                    out[after, v] = min(out[after, v], cost + edge[v, kind, after])


@kernel(
    "void(f8[:,::1], i8[::1], i8[:,:,::1], i8[:,::1], i8[:,::1], i8[:,:,::1], b1, i8[::1],"
    " f8[:,:,::1], f8[:,:,::1], f8[:,:,:,::1])"
)
def ahead(
    prices: Floats, count: Ints, middle: Ints, short_first: Ints, long_first: Ints,
    memory: Ints, capped: bool, pair_kind: Ints, compute: Floats, edge: Floats, out: Floats,
) -> None:  # fmt: skip
    """Set [F + 1, B, K, U]: by place, the least cost of what is in front of a stage."""
    kinds, units = compute.shape[0], compute.shape[1]
    limit, stage = np.empty((kinds, units), dtype=np.int64), np.empty((kinds, units))
    out[:] = np.inf
    out[:, :, :, 0] = 0.0
    for row in range(len(prices)):
        for place in range(len(out) - 1, 1, -1):
            keeps = memory[_kept(place, count[row], capped)]
            _limits(middle[row], short_first[row], long_first[row], keeps, pair_kind, limit)
            stage[:] = np.inf
            for kind in range(kinds):
                _stages_behind(out[place, row, kind], limit[kind], compute[kind], stage[kind])
            _joined(stage, prices[row], edge, out[place - 1, row])
        out[0, row] = out[1, row]
