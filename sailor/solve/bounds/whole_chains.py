"""The least time of pipelines by what they take of the pools: exact, with whole GPUs.

For every number of stages and every point of a region of uses (`whole_uses`), the least sum of
stage times F of a chain within ceilings on stage time and gradient sync that takes exactly those
GPUs. Stages are laid from the last one forwards; ceilings and memory are those of `lagrange_dp`,
over kinds that are told apart by who stands before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.bounds.lagrange_ahead import ahead_by_place
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Reach, Rows
from sailor.solve.bounds.told_apart import told_apart
from sailor.solve.bounds.whole_uses import Uses
from sailor.solve.kernels.compiled import kernels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AT_ONCE = 4_000_000  # numbers in one array of the numpy version
_SLACK = 1e-9


@dataclass(frozen=True)
class _Bounds:
    """Several ways to tell what can't be completed: [Z, F + 1, B, K, U], [Z, N] and [Z, B]."""

    ahead: Floats
    price: Floats
    limit: Floats

    def take(self, rows: Ints) -> _Bounds:
        return _Bounds(self.ahead[:, :, rows], self.price, self.limit[:, rows])

    def ways(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        return zip(self.ahead, self.price, self.limit, strict=True)


class WholeChains:
    """The programme over one microbatch size.

    `first_s` [F, P, U + 1] is the first stage of a pipeline of so many stages up to a cut, by pair
    of a kind and a level.
    """

    def __init__(self, programme: ChainProgramme, *, exact: bool = True) -> None:
        """Tell kinds apart by who is before them; not `exact`: faster, S is a looser ceiling."""
        tables, self.of = programme.tables, np.arange(programme.kinds)
        if exact:
            tables, self.of = told_apart(tables)
            programme = ChainProgramme(tables, programme.max_stages, programme.pinned)
        self.programme = programme
        self.compute = np.ascontiguousarray(tables.compute_s)
        both = tables.forward_s + tables.backward_s
        self.edge = np.ascontiguousarray(both)
        self.edge_end = np.ascontiguousarray(tables.forward_s + 2.0 * tables.backward_s)
        # From some number of stages on the first send counts alike.
        short = tables.real.short_pipeline_factor[0]
        self.factors = [tables.real.first_send_factor(n) for n in range(max(short, 2) + 2)]
        self.first_s = np.stack([programme.first_s(factor) for factor in self.factors])

    def least_times(
        self, rows: Rows, uses: Uses, most_s: Floats, worth_s: float, deepest: int
    ) -> Floats:
        """Return [B, F + 1, N]: the least time by number of stages and use, where below `most_s`.

        All rows have one number of microbatches; their prices don't count. At prices at which the
        whole budget of the region is worth so many seconds, what can't be completed is dropped.
        """
        programme = self.programme
        rows = replace(rows, reach=rows.reach[:, self.of], prices=rows.prices[:, self.of])
        onward, stage_cost = uses.onward[self.of], uses.stage_cost[self.of]
        pinned = programme.pinned
        stages = min(pinned or programme.max_stages, programme.units, deepest)
        out = np.full((len(most_s), stages + 1, len(uses)), np.inf)
        if not len(uses) or stages < 1:
            return out
        work.add(work.WHOLE_S * out.size * programme.kinds * programme.units**2)
        reach = programme.ceilings(rows)
        memory = np.stack(
            [
                programme.memory_reach(place, rows.num_microbatches[:1])[0]
                for place in range(1, stages + 1)
            ]
        )
        alone = programme.reach_single[:, 0] >= programme.units
        single = reach.single & alone[None]
        # A chain within the region and `most_s` costs less than both together.
        price = np.stack((np.zeros(len(uses)), worth_s * uses.cost))
        limit = np.stack((most_s, (most_s + worth_s) * (1 + _SLACK)))
        ahead = np.stack(
            [
                np.stack(ahead_by_place(programme, self._priced(rows, one), reach)[: stages + 1])
                for one in (0.0 * stage_cost, worth_s * stage_cost)
            ]
        )
        bounds = _Bounds(ahead, price, limit)
        fast = kernels("whole_kernels")
        if fast is None:
            size = programme.kinds * programme.units * len(uses)
            step = max(1, _AT_ONCE // size)
            for begin in range(0, len(most_s), step):
                part = np.arange(begin, min(begin + step, len(most_s)))
                self._plain(
                    reach.take(part), single[part], memory, onward, bounds.take(part),
                    out[begin : begin + step],
                )  # fmt: skip
        else:
            first = np.stack([reach.first(factor)[:, :, None] for factor in self.factors])
            fast.least_times(
                self.compute, self.edge, self.edge_end, np.ascontiguousarray(ahead), price, limit,
                programme.level, programme.pair_kind, self.first_s,
                np.ascontiguousarray(reach.middle), np.ascontiguousarray(first),
                np.ascontiguousarray(reach.last),
                np.ascontiguousarray(single), np.ascontiguousarray(memory), onward,
                out,
            )  # fmt: skip
        if pinned is not None:
            out[:, np.arange(stages + 1) != pinned] = np.inf
        return out

    def _priced(self, rows: Rows, stage: Floats) -> Rows:
        return replace(rows, prices=np.tile(stage, (len(rows.ceiling_s), 1)))

    def _plain(
        self, reach: Reach, single: NDArray[np.bool_], memory: Ints, onward: Ints,
        bounds: _Bounds, out: Floats,
    ) -> None:  # fmt: skip
        """Set `out` without compiled code."""
        programme, units, compute = self.programme, self.programme.units, self.compute
        most, points = bounds.limit[0], out.shape[2]
        size = len(most)
        best = np.full((size, programme.kinds, units, points), np.inf)
        for kind in range(programme.kinds):
            place = int(onward[kind, 0])
            if place < 0:
                continue
            whole = compute[kind, 0, units]
            better = single[:, kind] & (whole < most) & (whole < out[:, 1, place])
            out[better, 1, place] = whole
            here = compute[kind, :, units]
            fits = reach.last[:, kind] & (memory[0, kind] >= units)
            fits[:, 0] = False
            for ahead, price, limit in bounds.ways():
                fits &= here + price[place] + ahead[1, :, kind] < limit[:, None]
            best[:, kind, :, place] = np.where(fits, here, np.inf)
        for from_end in range(2, out.shape[1]):
            best = self._further(reach, memory, onward, bounds, best, from_end, out)

    def _further(
        self, reach: Reach, memory: Ints, onward: Ints, bounds: _Bounds, best: Floats,
        from_end: int, out: Floats,
    ) -> Floats:  # fmt: skip
        programme, units, compute = self.programme, self.programme.units, self.compute
        link = self.edge_end if from_end == 2 else self.edge
        after = np.full_like(best, np.inf)
        short = min(from_end, len(self.factors) - 1)
        start = np.arange(units)
        for pair, kind in enumerate(programme.pair_kind):
            behind = np.full((len(best), units, best.shape[3]), np.inf)
            for partner in programme.partners[pair]:
                joined = best[:, partner] + link[kind, partner, :units][None, :, None]
                np.minimum(behind, joined, out=behind)
            room = memory[from_end - 1, kind]
            furthest = np.minimum(reach.middle[:, pair], room)
            least = np.full_like(behind, np.inf)
            longest = int((furthest - start)[:, 1:].max(initial=0))
            for length in range(1, min(longest, units - 2) + 1):
                own = start[1 : units - length]
                value = behind[:, own + length] + compute[kind, own, own + length][None, :, None]
                legal = (furthest[:, own] >= own + length)[:, :, None]
                np.minimum(least[:, own], np.where(legal, value, np.inf), out=value)
                least[:, own] = value
            inside = np.flatnonzero(onward[kind, 1:] >= 0)
            place = onward[kind, 1:][inside]
            least = least[:, :, inside]
            for ahead, price, limit in bounds.ways():
                left = least + price[place] + ahead[from_end, :, kind, :, None]
                least = np.where(left < limit[:, None, None], least, np.inf)
            least[:, 0] = np.inf
            after[:, kind, :, place] = np.minimum(
                after[:, kind, :, place], least.transpose(2, 0, 1)
            )
            limit = np.minimum(reach.first(self.factors[short])[:, pair], room[0])
            value = behind + self.first_s[short, pair, :units][None, :, None]
            value[start[None, :] > limit[:, None]] = np.inf
            value[:, 0] = np.inf
            opened = value.min(axis=1)
            opened[opened >= bounds.limit[0][:, None]] = np.inf
            out[:, from_end, place] = np.minimum(out[:, from_end, place], opened[:, inside])
        return after
