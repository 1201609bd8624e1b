"""The dynamic programme of the bound: the cheapest chain of pure stages at given prices.

A chain's cost is the sum of its stages' compute seconds, of the transfers between neighbours (of
the actual kinds) and of the prices of the GPUs. Many rows (boxes, cells) are solved at once.
Stages are laid from the last one backwards, since memory depends on the distance from the end.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.bounds.chain_compiled import KERNELS, CompiledChains
from sailor.solve.bounds.lagrange_rows import Chains, Furthest, Reach, Rows
from sailor.solve.bounds.lagrange_tables import BoundTables
from sailor.solve.bounds.lagrange_trace import Layers, stages_of
from sailor.solve.kernels.compiled import kernels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Transfers to partners of a kind are told apart at so many levels in a stage's time limit; all
# levels are exact in its cost.
_LEVELS = 3
_SLACK = 1e-9  # limits on times tolerate rounding, so that no attainable stage is lost


class ChainProgramme:
    """The programme over one microbatch size."""

    def __init__(self, tables: BoundTables, max_stages: int, stages: int | None) -> None:
        self.tables = tables
        self.max_stages = stages or max_stages
        self.pinned = stages
        units, kinds = tables.num_units, tables.num_kinds
        self.units, self.kinds = units, kinds
        self._levels()
        # Least gradient that a stage sends back at its first cut, whoever stands before it.
        self.least_back = tables.backward_s.min(axis=0)  # [K, U + 1]
        capped = tables.real.memory.in_flight_capped
        self.capped = capped
        self.reach_single = tables.longest(1, single=True)
        self._reach: dict[int, Ints] = {}
        self.compute_by_size = self._by_size(tables.compute_s)

    def with_stages(self, stages: int) -> ChainProgramme:
        """Return the programme of pipelines of exactly so many stages, over the same tables."""
        other = copy(self)
        other.__dict__.pop("fast", None)  # which knows the number of stages
        other.pinned = other.max_stages = stages
        return other

    def _by_size(self, segments: Floats) -> list[Floats]:
        """Return, for each size m, [P, U + 1 - m] seconds of units [v, v + m) by pair."""
        found = []
        for size in range(1, self.units + 1):
            start = np.arange(self.units + 1 - size)
            found.append(segments[self.pair_kind][:, start, start + size])
        return found

    def _levels(self) -> None:
        """Sort each kind's partners (the stage after it) into levels of forward transfer."""
        tables = self.tables
        pair_kind: list[int] = []
        partners: list[list[int]] = []
        self.level: Ints = np.zeros((self.kinds, self.kinds), dtype=np.int64)
        for kind in range(self.kinds):
            seconds = tables.forward_s[kind, :, 1:].min(axis=1)
            values = np.unique(np.round(seconds[np.isfinite(seconds)], 12))
            if len(values) > _LEVELS:
                values = values[np.unique(np.linspace(0, len(values) - 1, _LEVELS).astype(int))]
            rank = np.searchsorted(values, np.round(seconds, 12), side="right") - 1
            for number in range(len(values)):
                mine = np.flatnonzero((rank == number) & np.isfinite(seconds))
                self.level[kind, mine] = len(pair_kind)
                pair_kind.append(kind)
                partners.append(mine.tolist())
            self.level[kind, ~np.isfinite(seconds)] = -1
        self.pair_kind = np.array(pair_kind, dtype=np.int64)
        self.partners = partners
        self.pair_forward = (
            np.stack(
                [
                    tables.forward_s[kind, mine].min(axis=0)
                    for kind, mine in zip(pair_kind, partners, strict=True)
                ]
            )
            if pair_kind
            else np.zeros((0, self.units + 1))
        )

    def memory_reach(self, from_end: int, num_microbatches: Ints) -> Ints:
        """Return [B, K, U] (or [1, K, U]): the furthest cut by memory at a place from the end."""
        if not self.capped:
            return self.reach_at(from_end)[None]
        kept = np.minimum(from_end, num_microbatches)
        distinct, inverse = np.unique(kept, return_inverse=True)
        found: Ints = np.stack([self.reach_at(int(one)) for one in distinct])[inverse]
        return found

    def reach_at(self, in_flight: int) -> Ints:
        if in_flight not in self._reach:
            self._reach[in_flight] = self.tables.longest(in_flight, single=False)
        return self._reach[in_flight]

    @cached_property
    def fast(self) -> CompiledChains | None:
        """Return the compiled programme; None where there is none."""
        return None if kernels(KERNELS) is None else CompiledChains(self)

    def first_s(self, factor: float) -> Floats:
        """Return [P, U + 1]: a first stage whose transfer counts so often, beyond its edge."""
        found: Floats = self.tables.compute_s[self.pair_kind, 0]
        return found + (factor - 1.0) * self.pair_forward

    @cached_property
    def _by_time(self) -> tuple[Furthest, Furthest, Furthest]:
        """Return the stage times that decide how far a stage reaches: middle and first ones."""
        tables, units = self.tables, self.units
        back = np.where(np.arange(units) > 0, self.least_back[:, :units], 0.0)
        # A stage at the front of the model sends no gradient; the others at least the least.
        middle = (tables.compute_s + back[:, :, None])[self.pair_kind]
        opening = tables.compute_s[self.pair_kind, 0]
        factor = tables.real.short_pipeline_factor[1]
        short, long = opening + factor * self.pair_forward, opening + 2.0 * self.pair_forward
        return (
            Furthest((middle + self.pair_forward[:, None, :])[None]),
            Furthest(short[None, :, None]),
            Furthest(long[None, :, None]),
        )

    def ceilings(self, rows: Rows) -> Reach:
        """Return the furthest cuts by stage time; they don't depend on prices."""
        tables, units = self.tables, self.units
        limit = rows.ceiling_s * (1 + _SLACK)
        last = tables.compute_s[:, :, units] + 2.0 * self.least_back[:, :units]
        by_sync = rows.reach
        pair_sync = by_sync[:, self.pair_kind]
        middle, short, long = (
            one.within(np.zeros(len(limit), dtype=np.int64), limit) for one in self._by_time
        )
        single = tables.compute_s[:, 0, units]
        return Reach(
            middle=np.minimum(middle, pair_sync),
            short_first=np.minimum(short[:, :, 0], pair_sync[:, :, 0]),
            long_first=np.minimum(long[:, :, 0], pair_sync[:, :, 0]),
            last=(last[None] <= limit[:, None, None]) & (by_sync >= units),
            single=(single[None] <= limit[:, None]) & (by_sync[:, :, 0] >= units),
        )

    def relaxed(self, rows: Rows, reach: Reach) -> Chains:
        """Return a bound on the cheapest chain of every row, and the stages that reach it.

        Memory is that of the place nearest to the end, and a stage's time limit counts the least
        transfers of its kind; its cost counts the actual ones.
        """
        work.add(work.CHAIN_S * len(rows.ceiling_s) * self.kinds * self.units**2)
        if self.fast is not None:
            return self.fast.relaxed(rows, reach)
        before, start, kind_before = self.before(rows, reach)
        _, chain, single = self._closing(rows, reach, before)
        size, units = len(chain), self.units
        flat = chain.reshape(size, -1).argmin(axis=1)
        value = chain.reshape(size, -1)[np.arange(size), flat]
        alone = single.argmin(axis=1)
        whole = single[np.arange(size), alone]
        kind, cut = np.unravel_index(flat, (self.kinds, units))
        one = whole <= value
        stages = np.zeros((size, self.kinds), dtype=np.int64)
        row = np.arange(size)
        stages[row, np.where(one, alone, kind)] += 1
        cut = np.where(one, 0, cut)
        kind = self._neighbour(before, kind, cut, 2.0)
        while (cut > 0).any():
            inside = np.flatnonzero(cut > 0)
            here, mine = cut[inside], kind[inside]
            stages[inside, mine] += 1
            cut[inside] = start[inside, mine, here]
            kind[inside] = kind_before[inside, mine, here]
        value = np.minimum(value, whole)
        stages[np.isinf(value)] = 0
        return Chains(value, stages)

    def _neighbour(self, before: Floats, kind: Ints, cut: Ints, back: float) -> Ints:
        """Return the kind of the stage before `kind` at a cut, by row."""
        tables = self.tables
        edge = tables.forward_s[:, kind, cut] + back * tables.backward_s[:, kind, cut]
        found: Ints = (before[np.arange(len(cut)), :, cut] + edge.T).argmin(axis=1)
        return found

    def solve(self, rows: Rows, reach: Reach, enough: Floats | None = None) -> Chains:
        """Return the cheapest chain of every row.

        A row whose chains all cost `enough` [B] or more may get any bound between that and its
        cost, and no stages.
        """
        size = len(rows.ceiling_s)
        work.add(
            work.PLACE_S * size * self.kinds * self.units**2 * min(self.max_stages, self.units)
        )
        enough = np.full(size, np.inf) if enough is None else enough
        if self.fast is not None:
            return self.fast.solve(rows, reach, enough)
        before = self.before(rows, reach)[0]
        _, chain, single = self._closing(rows, reach, before)
        value = np.minimum(chain.min(axis=(1, 2)), single.min(axis=1))
        stages = np.zeros((size, self.kinds), dtype=np.int64)
        some = np.flatnonzero(value < enough)
        if len(some):
            part, within = rows.take(some), reach.take(some)
            value[some], stages[some] = self._positional(
                part, within, self.ahead(before[some]), enough[some]
            )
        return Chains(value, stages)

    def _positional(
        self, rows: Rows, reach: Reach, before: Floats, enough: Floats
    ) -> tuple[Floats, Ints]:
        size = len(enough)
        best: list[Floats] = []
        value = np.full(size, np.inf)
        depth = np.zeros(size, dtype=np.int64)
        for from_end in range(1, self.max_stages + 1):
            memory = self.memory_reach(from_end, rows.num_microbatches)
            if from_end == 1:
                here, single = self._last(rows, reach, memory)
                complete = single.min(axis=1)
            else:
                here, complete = self._further(rows, reach, memory, best[-1], from_end)
            best.append(here)
            if self.pinned is None or self.pinned == from_end:
                better = complete < value
                value = np.where(better, complete, value)
                depth = np.where(better, from_end, depth)
            # What no completion can bring below the best (or below what is enough) is dropped.
            left = here + before
            hopeless = left >= np.minimum(value, enough)[:, None, None]
            here[hopeless] = np.inf
            if hopeless.all():
                break
        stages = np.zeros((size, self.kinds), dtype=np.int64)
        done = np.flatnonzero(depth > 0)
        if len(done):
            stages[done] = stages_of(self, rows, reach, Layers(best, depth))[done]
        return np.minimum(value, np.maximum(enough, 0.0)), stages

    def before(self, rows: Rows, reach: Reach) -> tuple[Floats, Ints, Ints]:
        """Return [B, K, U + 1]: the least cost of units [0, v) with a last stage of kind k.

        With it the start of that stage, and the kind of the stage before it.
        """
        units, tables = self.units, self.tables
        size, kinds = len(rows.ceiling_s), self.kinds
        memory = self.memory_reach(2, rows.num_microbatches)
        limit = np.minimum(self.by_kind(reach.middle), memory)
        opening = np.maximum(reach.long_first, reach.short_first)
        limit[:, :, 0] = np.minimum(self.by_kind(opening[:, :, None])[:, :, 0], memory[:, :, 0])
        before = np.full((size, kinds, units + 1), np.inf)
        joined = np.full((size, kinds, units + 1), np.inf)  # with the edge to a stage of kind k
        joined[:, :, 0] = 0.0
        start = np.zeros((size, kinds, units + 1), dtype=np.int64)
        partner = np.zeros((size, kinds, units + 1), dtype=np.int64)
        longest = max(1, int((limit - np.arange(units)).max(initial=0)))
        edge = tables.forward_s + tables.backward_s  # [K, K, U + 1]
        for cut in range(1, units):
            low = max(0, cut - longest)
            total = joined[:, :, low:cut] + tables.compute_s[:, low:cut, cut]
            total = np.where(limit[:, :, low:cut] >= cut, total, np.inf)
            best = total.argmin(axis=2)
            start[:, :, cut] = best + low
            before[:, :, cut] = (
                np.take_along_axis(total, best[:, :, None], axis=2)[:, :, 0] + rows.prices
            )
            behind = before[:, :, None, cut] + edge[None, :, :, cut]
            partner[:, :, cut] = behind.argmin(axis=1)
            joined[:, :, cut] = behind.min(axis=1)
        row, own = np.arange(size)[:, None, None], np.arange(kinds)[None, :, None]
        return before, start, partner[row, own, start]

    def _closing(self, rows: Rows, reach: Reach, before: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the last stages [B, K, U], chains with them [B, K, U], single stages [B, K]."""
        memory = self.memory_reach(1, rows.num_microbatches)
        tables, units = self.tables, self.units
        last, single = self._last(rows, reach, memory)
        edge = (tables.forward_s + 2.0 * tables.backward_s)[None, :, :, :units]
        behind = np.full_like(last, np.inf)
        for kind in range(self.kinds):
            np.minimum(behind, before[:, kind, None, :units] + edge[:, kind], out=behind)
        chain = last + behind
        if self.pinned == 1:
            chain[:] = np.inf
        elif self.pinned is not None:
            single = np.full_like(single, np.inf)
        return last, chain, single

    def ahead(self, before: Floats) -> Floats:
        """Return [B, K, U]: the least cost in front of a stage of kind k from each unit."""
        edge = (self.tables.forward_s + self.tables.backward_s)[:, :, : self.units]
        out = np.full((len(before), self.kinds, self.units), np.inf)
        for kind in range(self.kinds):
            np.minimum(out, before[:, kind, None, : self.units] + edge[None, kind], out=out)
        out[:, :, 0] = 0.0
        return out

    def by_kind(self, by_pair: Ints) -> Ints:
        """Return [B, K, ...]: the most over a kind's pairs; 0 where it has none."""
        out = np.zeros((len(by_pair), self.kinds, *by_pair.shape[2:]), dtype=np.int64)
        for pair, kind in enumerate(self.pair_kind):
            np.maximum(out[:, kind], by_pair[:, pair], out=out[:, kind])
        return out

    def _last(self, rows: Rows, reach: Reach, memory: Ints) -> tuple[Floats, Floats]:
        units, compute = self.units, self.tables.compute_s[:, :, self.units]
        fits = reach.last & (memory >= units)
        here = np.where(fits, compute[None] + rows.prices[:, :, None], np.inf)
        alone = reach.single & (self.reach_single[None, :, 0] >= units)
        single = np.where(alone, compute[None, :, 0] + rows.prices, np.inf)
        return here, single

    def _edges(self, after: Floats, from_end: int) -> Floats:
        """Return [B, P, U + 1]: the cheapest suffix behind a cut, its edge included, by pair."""
        tables, units = self.tables, self.units
        backward_factor = 2.0 if from_end == 2 else 1.0
        out = np.full((len(after), len(self.pair_kind), units + 1), np.inf)
        for pair, kind in enumerate(self.pair_kind):
            for partner in self.partners[pair]:
                edge = (
                    tables.forward_s[kind, partner, :units]
                    + backward_factor * tables.backward_s[kind, partner, :units]
                )
                np.minimum(out[:, pair, :units], after[:, partner] + edge, out=out[:, pair, :units])
        return out

    def _further(
        self, rows: Rows, reach: Reach, memory: Ints, after: Floats, from_end: int
    ) -> tuple[Floats, Floats]:
        units, size = self.units, len(after)
        behind = self._edges(after, from_end)
        pair_memory = memory[:, self.pair_kind]
        limit = np.minimum(reach.middle, pair_memory) - np.arange(units)
        out = np.full((size, len(self.pair_kind), units), np.inf)
        for length in range(1, int(limit.max(initial=0)) + 1):
            last = units + 1 - length
            cand = behind[:, :, length:] + self.compute_by_size[length - 1]
            np.minimum(
                out[:, :, :last], cand, out=out[:, :, :last], where=limit[:, :, :last] >= length
            )
        here = np.full((size, self.kinds, units), np.inf)
        for pair, kind in enumerate(self.pair_kind):
            np.minimum(here[:, kind], out[:, pair], out=here[:, kind])
        here += rows.prices[:, :, None]
        # The first stage's transfer may count more; its level's least is added.
        factor = self.tables.real.first_send_factor(from_end)
        cut = np.arange(units + 1)
        furthest = np.minimum(reach.first(factor), pair_memory[:, :, 0])
        legal = cut[None, None, :] <= furthest[:, :, None]
        total = np.where(legal, behind + self.first_s(factor), np.inf).min(axis=2)
        total += rows.prices[:, self.pair_kind]
        complete = total.min(axis=1, initial=np.inf)
        return here, complete
