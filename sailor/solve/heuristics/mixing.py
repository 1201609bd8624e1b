"""Whole pipelines over one split of the units that pass all microbatches soonest.

Chains that the prices of a split's value find good are listed; for a time T each passes
floor((T - G - F) / S) + 1 microbatches. How many of each to take is a knapsack over the pools: most
of it is as the linear programme says, the rest is found exactly by dynamic programming.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.heuristics.split_value import Pipes, SplitTables, Worth

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEAR = 0.5  # of the time: chains so much worse than the best at the prices aren't listed
_MOST_OF_A_CEILING = 60
_MOST_COLUMNS = 60
_MOST_STATES = 40_000  # of the knapsack
_KEPT_OPEN = (4, 3, 2, 1, 0)  # pipelines of each chosen kind that the knapsack may place anew
_HALVINGS = 9
_PIVOTS = 200


@dataclass(frozen=True)
class Mix:
    """Pipelines: the kinds of each chain [C, P] (indices of the search's kinds), how many [C]."""

    seconds: float  # within which they pass all microbatches, as far as the split's tables know
    chains: Ints
    width: Ints


@dataclass(frozen=True)
class _Chains:
    """Chains [C, P] (indices of the split's kinds) with their F, S and use [C, R]."""

    kinds: Ints
    fill_s: Floats
    pace_s: Floats
    use: Ints

    def take(self, rows: Ints) -> _Chains:
        return _Chains(self.kinds[rows], self.fill_s[rows], self.pace_s[rows], self.use[rows])


def mixed(
    tables: SplitTables, pipes: Pipes, worth: Worth, total: int, cutoff_s: float
) -> Mix | None:
    """Return the best pipelines within the split's gradient sync, if they end before a cutoff."""
    chains = _near(tables, pipes, worth, total)
    if not len(chains.fill_s):
        return None
    low, high, found = worth.seconds, cutoff_s, None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mix = _within(tables, chains, middle, worth.sync_s, total)
        if mix is None:
            low = middle
        else:
            high, found = middle, mix
    return found


def _near(tables: SplitTables, pipes: Pipes, worth: Worth, total: int) -> _Chains:
    """Return the chains that are nearly as good as the best at the prices of the split's value."""
    allowed = pipes.sync_s <= worth.sync_s
    price = (worth.prices[:, None] * tables.part).sum(axis=0)
    place = float((worth.prices * tables.part_alone).sum())
    most_s = (worth.seconds - worth.sync_s) + _NEAR * worth.seconds
    seen: list[Ints] = []
    for ceiling in pipes.ceilings():
        # Transfers are left out here; the chains' own times count in the end.
        fits = allowed & (pipes.cost_s <= ceiling)
        stage = np.where(fits, pipes.cost_s + total * ceiling * price, np.inf)
        seen.append(_listed(pipes.edge_s, stage, most_s - total * ceiling * place + ceiling))
    kinds = np.unique(np.concatenate(seen), axis=0) if seen else np.zeros((0, tables.depth), int)
    return _measured(tables, pipes, kinds)


def _listed(edge: Floats, stage: Floats, most_s: float) -> Ints:
    """Return the chains whose stages and edges add up to less than `most_s`, cheapest first."""
    depth, kinds = stage.shape
    ahead = [np.zeros(kinds)]  # the least behind each stage, from the last to the first
    for i in range(depth - 2, -1, -1):
        ahead.insert(0, (edge[i] + stage[i + 1] + ahead[0]).min(axis=1))
    some = np.flatnonzero(stage[0] + ahead[0] < most_s)[:, None]
    spent = stage[0][some[:, 0]]
    for i in range(1, depth):
        onward = spent[:, None] + edge[i - 1][some[:, -1]] + stage[i]
        rank = onward + ahead[i]
        row, kind = np.nonzero(rank < most_s)
        if len(row) > _MOST_OF_A_CEILING:
            first = np.argsort(rank[row, kind], kind="stable")[:_MOST_OF_A_CEILING]
            row, kind = row[first], kind[first]
        some, spent = np.column_stack((some[row], kind)), onward[row, kind]
    return some.astype(np.int64)


def _measured(tables: SplitTables, pipes: Pipes, kinds: Ints) -> _Chains:
    place = np.arange(kinds.shape[1])
    stage = pipes.cost_s[place, kinds]
    if kinds.shape[1] > 1:
        stage[:, :-1] += pipes.left_s[place[:-1], kinds[:, :-1], kinds[:, 1:]]
        stage[:, 1:] += pipes.right_s[place[:-1], kinds[:, :-1], kinds[:, 1:]]
    use = tables.use[:, kinds].sum(axis=2).T + tables.alone
    return _Chains(kinds, stage.sum(axis=1), stage.max(axis=1), use)


def _within(
    tables: SplitTables, chains: _Chains, seconds: float, sync_s: float, total: int
) -> Mix | None:
    """Return pipelines that pass all microbatches by a time, if there are any."""
    passed = np.floor((seconds - sync_s - chains.fill_s) / chains.pace_s).astype(np.int64) + 1
    some = np.flatnonzero(passed > 0)
    if not len(some):
        return None
    # Of chains that take the same, the one that passes most; of equal ones the first.
    order = some[np.lexsort((some, -passed[some], *chains.use[some].T[::-1]))]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (chains.use[order[1:]] != chains.use[order[:-1]]).any(axis=1)
    order = order[fresh]
    own, count = chains.take(order), passed[order]
    columns = own.use / np.maximum(tables.limits, 1) / count[:, None]
    most, share, dual = _packing(columns)
    if most < total:
        return None
    # What the prices say is dearest is left out; what the programme took stays.
    cost = columns @ dual
    cost[share > 0] = -np.inf
    kept = np.sort(np.argsort(cost, kind="stable")[:_MOST_COLUMNS])
    own, count, share = own.take(kept), count[kept], share[kept]
    fixed = np.floor(share / count + 1e-9).astype(np.int64)
    for back in _KEPT_OPEN:
        base: Ints = np.maximum(fixed - back, 0)
        left: Ints = tables.limits - base @ own.use
        if np.prod(left + 1.0) <= _MOST_STATES:
            break
    else:
        return None
    width = base + _knapsack(own.use, count, left)
    if int(width @ count) < total:
        return None
    taken = np.flatnonzero(width)
    return Mix(seconds, tables.kinds[own.kinds[taken]], width[taken])


def _knapsack(use: Ints, count: Ints, room: Ints) -> Ints:
    """Return how often to take each column [C, R], so that the counts add up to most."""
    shape = tuple(int(one) + 1 for one in room)
    best = np.zeros(shape, dtype=np.int64)
    choice = np.full(shape, -1, dtype=np.int64)
    fitting = np.flatnonzero((use <= room).all(axis=1) & use.any(axis=1))
    work.add(work.ROOM_S * best.size * len(fitting))
    for column in fitting:
        # Along the first row that it takes of, a column may come again.
        axis = int(np.argmax(use[column] > 0))
        step = int(use[column][axis])
        to = [slice(int(n), None) for n in use[column]]
        source = [slice(None, size - int(n)) for n, size in zip(use[column], shape, strict=True)]
        for begin in range(step, shape[axis], step):
            stop = min(begin + step, shape[axis])
            to[axis], source[axis] = slice(begin, stop), slice(begin - step, stop - step)
            there, here = tuple(to), tuple(source)
            value = best[here] + count[column]
            better = value > best[there]
            best[there] = np.where(better, value, best[there])
            choice[there] = np.where(better, column, choice[there])
    width = np.zeros(len(use), dtype=np.int64)
    at = tuple(int(one) for one in room)
    while choice[at] >= 0:
        taken = int(choice[at])
        width[taken] += 1
        at = tuple(have - int(n) for have, n in zip(at, use[taken], strict=True))
    return width


def _packing(columns: Floats) -> tuple[float, Floats, Floats]:
    """Return the most that shares of the columns [C, R] add up to, each row at most 1.

    With it the shares [C] and the prices of the rows [R], which add up to that, too.
    """
    count, rows = columns.shape
    table = np.zeros((rows + 1, count + rows + 1))
    table[:rows, :count] = columns.T
    table[:rows, count : count + rows] = np.eye(rows)
    table[:rows, -1] = 1.0
    table[rows, :count] = -1.0
    basis = np.arange(count, count + rows)
    # Columns are scaled so that the tests below suit them.
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
        factor = table[:, enter].copy()
        factor[leave] = 0.0
        table -= factor[:, None] * table[leave]
        basis[leave] = enter
    share = np.zeros(count + rows)
    share[basis] = table[:rows, -1]
    return float(table[rows, -1]), share[:count], np.maximum(table[rows, count:-1], 0.0)
