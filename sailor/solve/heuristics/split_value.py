"""What one split of the units is worth where pipelines may be unlike and share microbatches.

All pipelines have the same split; each has a kind for every stage, its slowest stage S and the sum
of its stages F. Within a gradient sync G, prices d of what there is, 1 in all, say of a time T that
no pipelines over this split reach it together:

    T >= G + min over chains of [ F + (total d(chain) - 1) S ].

The most of that over prices, and the least over G, is the split's value. It is what pipelines in
fractions would reach; `mixing` finds whole ones near it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.sim.closed_form import MANY
from sailor.solve import work
from sailor.solve.cell import SearchTables
from sailor.solve.kernels.compiled import kernels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_STEPS = 12  # of the prices
_STEP = 0.5  # the first one
_LEAST_PRICE = 1e-3
_FINENESS = 0.008  # of stage times


@dataclass(frozen=True)
class Pipes:
    """The chains over one split: stages P, and kinds K of those that may be used.

    Of the transfers between neighbours, `edge_s`, the first stage has `left_s` and the second
    `right_s`.
    """

    cost_s: Floats  # [P, K]; infinite where the stage doesn't fit
    left_s: Floats  # [P - 1, K, K]
    right_s: Floats  # [P - 1, K, K]
    edge_s: Floats  # [P - 1, K, K]
    sync_s: Floats  # [P, K] with the update

    def levels(self) -> Floats:
        """Return the values of G from which on there is a chain."""
        fits = np.isfinite(self.cost_s) & np.isfinite(self.sync_s)
        if not fits.any(axis=1).all():
            return np.zeros(0)
        least = np.where(fits, self.sync_s, np.inf).min(axis=1).max()
        values = np.unique(self.sync_s[fits])
        found: Floats = values[values >= least]
        return found

    def ceilings(self) -> Floats:
        """Return values that a chain's slowest stage may have, rounded up by 0.8 % at most."""
        alone = len(self.cost_s) == 1
        paces = [self.cost_s[0] if alone else self.cost_s[0][:, None] + self.left_s[0]]
        for i in range(1, len(self.cost_s)):
            both = self.right_s[i - 1] + self.cost_s[i]
            inner = i < len(self.cost_s) - 1
            paces.append(both[:, :, None] + self.left_s[i][None] if inner else both)
        least = max(float(one.min()) for one in paces)
        values = np.concatenate([one.ravel() for one in paces])
        values = values[np.isfinite(values) & (values >= least)]
        rounded: Floats = np.exp(_FINENESS * np.unique(np.ceil(np.log(values) / _FINENESS)))
        return rounded * (1 + 1e-12)


@dataclass(frozen=True)
class Worth:
    """A split's value, and where it is: the gradient sync and the prices [R]."""

    seconds: float
    sync_s: float
    prices: Floats


class SplitTables:
    """Stages of one microbatch size and number of stages, with `dp` pipelines or about so many.

    `kinds` are those that may be used. The rows of prices are the pools, and a limit on all GPUs
    or on pipelines where there is one.
    """

    def __init__(
        self, search: SearchTables, depth: int, dp: int, kinds: Ints, headroom_bytes: int,
        max_gpus: int | None, pinned_dp: int | None,
    ) -> None:  # fmt: skip
        self.search, self.depth, self.kinds = search, depth, kinds
        tables = search.tables
        units = tables.num_units
        self.units = units
        kind = kinds[:, None, None]
        start = np.broadcast_to(np.arange(units)[:, None], (units, units + 1))
        stop = np.maximum(np.arange(units + 1)[None], start + 1)
        where = (kind, start[None], stop[None])
        compute = np.where(tables.usable[kind], tables.compute_s(*where, dp), np.inf)
        room = tables.memory.capacity_bytes[kind] - headroom_bytes
        self.compute_s = [
            np.where(
                tables.memory.bound_bytes(*where, np.asarray(depth - place), depth, dp) <= room,
                compute,
                np.inf,
            )
            for place in range(depth)
        ]
        sync = tables.sync.seconds(where[1], where[2], tables.tp[kind], dp, kind, kind, MANY)
        self.sync_s = np.broadcast_to(sync, compute.shape) + tables.update_seconds(*where, dp)
        self._tied(kinds)
        self._edges(kinds)
        tp = tables.tp[kinds].astype(float)
        use = [np.where(search.pool[kinds] == n, tp, 0.0) for n in range(len(search.room))]
        limits = [float(gpus) for gpus in search.room]
        alone = [0.0] * len(limits)
        if max_gpus is not None:
            use, limits, alone = [*use, tp], [*limits, float(max_gpus)], [*alone, 0.0]
        if pinned_dp is not None:
            use, alone = [*use, 0.0 * tp], [*alone, 1.0]
            limits = [*limits, float(pinned_dp)]
        self.limits = np.array(limits, dtype=np.int64)
        self.use = np.stack(use).astype(np.int64)  # [R, K] of one stage
        self.alone = np.array(alone, dtype=np.int64)  # [R] of one pipeline
        self.part = self.use / np.maximum(self.limits, 1)[:, None]
        self.part_alone = self.alone / np.maximum(self.limits, 1)

    def _tied(self, kinds: Ints) -> None:
        """Add the exchange of a tied table's gradients to stages at the ends, between like kinds.

        In a plan it is that of the slowest pair of ends.
        """
        seconds = self.search.tables.tied_send_s
        if seconds is not None and self.depth > 1:
            own = seconds[kinds, kinds]
            self.sync_s[:, 0, : self.units] += own[:, None]
            self.sync_s[:, 1:, self.units] += own[:, None]

    def _edges(self, kinds: Ints) -> None:
        """Set what a cut adds to the stages on its sides, where they are the ends or not."""
        tables, units = self.search.tables, self.units
        cut = np.arange(units + 1)
        forth = tables.forward_size[np.clip(cut - 1, 0, units - 1)]
        back = tables.backward_size[np.clip(cut, 0, units - 1)]
        pairs = np.ix_(kinds, kinds)

        def over(seconds: Floats) -> tuple[Floats, Floats]:
            own = np.stack([one[pairs] for one in seconds])
            return own[forth], own[back].transpose(0, 2, 1)  # [U + 1, before, after]

        forward, backward = over(tables.send_s)
        waits = over(0.0 * tables.send_s if tables.blocked_s is None else tables.blocked_s)
        factor = tables.first_send_factor(self.depth)
        self.left = np.stack((forward + waits[1], factor * forward))  # inner, first
        self.right = np.stack((backward + waits[0], 2.0 * backward))  # inner, last

    def pipes(self, cuts: Ints) -> Pipes:
        """Return the chains over a split [P + 1]."""
        work.add(work.PIPES_S)
        start, stop, inner = cuts[:-1], cuts[1:], cuts[1:-1]
        places = range(self.depth)
        cost = np.stack([self.compute_s[n][:, start[n], stop[n]] for n in places])
        sync = self.sync_s[:, start, stop].T
        first = (np.arange(len(inner)) == 0).astype(int)
        last = (np.arange(len(inner)) == len(inner) - 1).astype(int)
        left, right = self.left[first, inner], self.right[last, inner]
        return Pipes(cost, left, right, left + right, np.ascontiguousarray(sync))

    def worth(self, pipes: Pipes, total: int, prices: Floats, cutoff_s: float) -> Worth | None:
        """Return the value of a split where it is below a cutoff; else None.

        `prices` [R] are where the search of prices starts.
        """
        best: Worth | None = None
        for one in self.worths(pipes, total, prices, cutoff_s, falling=True):
            best = one
        return best

    def worths(
        self, pipes: Pipes, total: int, prices: Floats, cutoff_s: float, *, falling: bool
    ) -> Iterator[Worth]:
        """Yield the values within each gradient sync that are below a cutoff.

        `falling`: below those that came before, too.
        """
        ceilings = pipes.ceilings()
        for level in pipes.levels():
            if level >= cutoff_s:
                return
            allowed = pipes.sync_s <= level
            seconds, at = self._priced(pipes, allowed, ceilings, total, prices, cutoff_s - level)
            if level + seconds < cutoff_s:
                yield Worth(float(level + seconds), float(level), at)
                if falling:
                    cutoff_s = float(level + seconds)

    def _priced(
        self, pipes: Pipes, allowed: Bools, ceilings: Floats, total: int, prices: Floats,
        enough_s: float,
    ) -> tuple[float, Floats]:  # fmt: skip
        """Return the most over prices, up to `enough_s`, and the prices."""
        most, best = -np.inf, prices
        for step in range(_STEPS):
            seconds, chain = self.cheapest(pipes, allowed, ceilings, total, prices)
            if seconds > most:
                most, best = seconds, prices
            if most >= enough_s:
                break
            use = self.part[:, chain].sum(axis=1) + self.part_alone
            over = use / float((prices * use).sum()) - 1.0
            prices = prices * (1.0 + _STEP / (1 + step) * np.clip(over, -0.9, 1.0))
            prices = np.maximum(prices, _LEAST_PRICE)
            prices = prices / prices.sum()
        return most, best

    def cheapest(
        self, pipes: Pipes, allowed: Bools, ceilings: Floats, total: int, prices: Floats
    ) -> tuple[float, Ints]:
        """Return the least of F + (total d - 1) S over chains, and the chain that has it [P]."""
        work.add(work.PIPE_S * len(ceilings) * self.depth * len(self.kinds) ** 3)
        price = (prices[:, None] * self.part).sum(axis=0)
        place = float((prices * self.part_alone).sum())
        chain = np.zeros(self.depth, dtype=np.int64)
        if self.depth == 1:
            return self._single(pipes, allowed, ceilings, price, place, float(total))
        fast = kernels("split_kernels")
        if fast is None:
            return self._plain(pipes, allowed, ceilings, price, place, float(total))
        kinds = len(self.kinds)
        value = np.empty((self.depth, kinds, kinds))
        came = np.zeros(value.shape, dtype=np.int64)
        seconds: float = fast.cheapest(
            pipes.cost_s, pipes.left_s, pipes.right_s, pipes.edge_s, allowed, ceilings, price,
            place, float(total), value, came, chain,
        )  # fmt: skip
        return seconds, chain

    def _single(
        self, pipes: Pipes, allowed: Bools, ceilings: Floats, price: Floats, place: float,
        total: float,
    ) -> tuple[float, Ints]:  # fmt: skip
        """Return what `cheapest` does for pipelines of one stage."""
        cost = pipes.cost_s[0]
        fits = allowed[0] & (cost <= ceilings[:, None])
        value = np.where(fits, cost + (total * ceilings)[:, None] * price, np.inf)
        value = value + (total * place * ceilings - ceilings)[:, None]
        row, kind = np.unravel_index(int(value.argmin()), value.shape)
        return float(value[row, kind]), np.array([kind], dtype=np.int64)

    def _plain(
        self, pipes: Pipes, allowed: Bools, ceilings: Floats, price: Floats, place: float,
        total: float,
    ) -> tuple[float, Ints]:  # fmt: skip
        """Do without compiled code what the kernel does, all ceilings at once."""
        cost, left, right, edge = pipes.cost_s, pipes.left_s, pipes.right_s, pipes.edge_s
        weight = total * ceilings
        paid = weight[:, None] * price
        top = ceilings[:, None, None]
        fits = allowed[0][:, None] & (cost[0][:, None] + left[0] <= top)
        value = np.where(fits, (cost[0] + paid)[:, :, None] + edge[0], np.inf)
        came: list[Ints] = []
        end = self.depth - 1
        for i in range(1, end):
            # [S, q, k, n]: kinds before, of, and behind the stage
            pace = (cost[i] + right[i - 1])[:, :, None] + left[i]
            fits = allowed[i][:, None] & (pace <= top[:, None])
            joined = np.where(fits, value[:, :, :, None], np.inf)
            came.append(joined.argmin(axis=1))
            value = joined.min(axis=1) + cost[i][:, None] + paid[:, :, None] + edge[i]
        fits = allowed[end] & (cost[end] + right[end - 1] <= top)
        joined = np.where(fits, value, np.inf)
        closed = joined.min(axis=1) + cost[end] + paid
        last = closed.argmin(axis=1)
        row = np.arange(len(closed))
        found = closed[row, last] + weight * place - ceilings
        chain = np.zeros(self.depth, dtype=np.int64)
        best = int(found.argmin())
        if not np.isfinite(found[best]):
            return np.inf, chain
        chain[end] = last[best]
        chain[end - 1] = int(joined[best, :, chain[end]].argmin())
        for i in range(end - 1, 0, -1):
            chain[i - 1] = came[i - 1][best, chain[i], chain[i + 1]]
        return float(found[best]), chain
