"""The best unit boundaries of a sketch whose kinds stay where they are.

Moving one unit at a time often can't improve a plan: two stages are the slowest, or another one
becomes it. Over ceilings on stage time and on gradient sync a small programme finds the boundaries
of least total stage time. A stage of several kinds takes as long as its slowest pipeline, so with
mixed stages the result is a proposal, like all sketches: the closed form scores it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sailor.sim.closed_form import PlanBatch, stage_terms, sync_seconds, update_seconds
from sailor.sim.tables import StageTables
from sailor.solve import work
from sailor.solve.cell import Cell
from sailor.solve.heuristics.sketch import Sketches, to_batch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PACES, _SYNCS = 24, 12  # ceilings that are tried
_BEST_PACES = 4  # ceilings on stage time at which sync is limited, too
_SLACK = 1e-12


def rebalanced(cell: Cell, sketch: Sketches, most: int, headroom_bytes: int = 0) -> Sketches | None:
    """Return up to `most` sketches like the one given, with other boundaries; None: nothing fits.

    Objectives don't matter: the GPUs that a sketch takes are those of its kinds.
    """
    terms = _Terms(cell, to_batch(cell, sketch), headroom_bytes)
    further = float(max(cell.num_microbatches - 1, 0))
    least_s = terms.least_bottleneck(terms.seconds)
    if not np.isfinite(least_s):
        return None
    paces = np.unique(terms.seconds[np.isfinite(terms.seconds)])
    paces = paces[paces >= least_s]
    first = terms.solve(paces[:1], np.full(1, np.inf))
    # No more of a slower pace than the fastest pace takes altogether can pay.
    worst_s = first.total_s[0] + further * least_s
    if further:
        paces = paces[paces <= worst_s / further]
    paces = _some(paces, _PACES)
    loose = terms.solve(paces, np.full(len(paces), np.inf))
    value = loose.total_s + further * loose.slowest_s + loose.sync_s
    best = np.argsort(value, kind="stable")[:_BEST_PACES]
    syncs = np.unique(terms.sync_s[np.isfinite(terms.sync_s)])
    syncs = syncs[syncs < float(loose.sync_s[best].max())]
    syncs = _some(syncs[syncs >= terms.least_bottleneck(terms.sync_s)], _SYNCS)
    tight = terms.solve(np.repeat(paces[best], len(syncs)), np.tile(syncs, len(best)))
    value = np.concatenate((value, tight.total_s + further * tight.slowest_s + tight.sync_s))
    cuts = np.concatenate((loose.cuts, tight.cuts))
    order = [row for row in np.argsort(value, kind="stable") if np.isfinite(value[row])]
    distinct = list(dict.fromkeys(tuple(cuts[row].tolist()) for row in order))[:most]
    if not distinct:
        return None
    rows = np.zeros(len(distinct), dtype=np.int64)
    like = sketch.take(rows)
    chosen = np.array(distinct, dtype=np.int64)
    return Sketches(chosen, like.first, like.second, like.num_second)


def _some(values: Floats, most: int) -> Floats:
    """Return up to `most` of ascending values: half of them the lowest, the others spread out."""
    if len(values) <= most:
        return values
    near = most // 2
    far = np.linspace(near, len(values) - 1, most - near).astype(np.int64)
    return values[np.unique(np.concatenate((np.arange(near), far)))]


class _Cuts:
    """Boundaries [R, P + 1] with their total and slowest stage times and slowest sync."""

    def __init__(self, cuts: Ints, total_s: Floats, slowest_s: Floats, sync_s: Floats) -> None:
        self.cuts, self.total_s = cuts, total_s
        self.slowest_s, self.sync_s = slowest_s, sync_s


class _Terms:
    """Seconds of every stage [P, U, U] by first unit and units less one; infinite: doesn't fit."""

    def __init__(self, cell: Cell, batch: PlanBatch, headroom_bytes: int) -> None:
        used = batch.width[0] > 0
        tables = cell.search.tables
        kinds, width, counts = (
            batch.kinds[0][:, used], batch.width[0][used], batch.num_microbatches[0][used],
        )  # fmt: skip
        self.units, self.depth = tables.num_units, len(kinds)
        start, stop = np.triu_indices(self.units)
        self.start, self.stop = start, stop + 1
        seconds, sync = self._alone(tables, kinds, width, counts)
        if self.depth > 1:
            seconds = seconds + self._transfers(tables, kinds)
        seconds = seconds.max(axis=2)
        fits = self._fits(tables, kinds, counts, int(width.sum()), headroom_bytes)
        shape = (self.depth, self.units, self.units)
        more = self.stop - self.start - 1
        self.seconds, self.sync_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self.seconds[:, self.start, more] = np.where(fits, seconds, np.inf)
        self.sync_s[:, self.start, more] = np.where(fits, sync, np.inf)

    def _alone(
        self, tables: StageTables, kinds: Ints, width: Ints, counts: Ints
    ) -> tuple[Floats, Floats]:
        """Return [P, N, C] seconds without transfers, and [P, N] sync and update."""
        alike, of_stage = np.unique(kinds, axis=0, return_inverse=True)
        size = len(self.start)
        rows = len(alike) * size
        batch = PlanBatch(
            cuts=np.tile(np.column_stack((self.start, self.stop)), (len(alike), 1)),
            kinds=np.repeat(alike, size, axis=0)[:, None, :],
            width=np.tile(width, (rows, 1)),
            num_microbatches=np.tile(counts, (rows, 1)),
        )
        compute = stage_terms(tables, batch).compute_s[:, 0]
        sync = sync_seconds(tables, batch)[:, 0] + update_seconds(tables, batch)
        of = of_stage.ravel()
        return compute.reshape(len(alike), size, -1)[of], sync.reshape(len(alike), size)[of]

    def _transfers(self, tables: StageTables, kinds: Ints) -> Floats:
        """Return [P, N, C] seconds; with a coupled model those of the slowest, [P, N, 1]."""
        depth, columns = kinds.shape
        activation = tables.forward_size[np.clip(self.stop - 1, 0, self.units - 1)]
        gradient = tables.backward_size[self.start]
        shape = (depth, len(self.start), columns)
        forward, backward, blocked = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for stage in range(depth):
            own = kinds[stage]
            if stage + 1 < depth:
                forward[stage] = tables.send_s[activation[:, None], own, kinds[stage + 1]]
            if stage > 0:
                backward[stage] = tables.send_s[gradient[:, None], own, kinds[stage - 1]]
            if tables.blocked_s is not None and 0 < stage < depth - 1:
                before = tables.forward_size[np.maximum(self.start - 1, 0)][:, None]
                after = tables.backward_size[np.minimum(self.stop, self.units - 1)][:, None]
                blocked[stage] = tables.blocked_s[before, kinds[stage - 1], own]
                blocked[stage] += tables.blocked_s[after, kinds[stage + 1], own]
        if tables.coupled:
            forward, backward, blocked = (
                part.max(axis=2, keepdims=True) for part in (forward, backward, blocked)
            )
        total = forward + backward + blocked
        total[0] = tables.first_send_factor(depth) * forward[0]
        total[-1] = 2.0 * backward[-1]
        return total

    def _fits(
        self, tables: StageTables, kinds: Ints, counts: Ints, dp: int, headroom_bytes: int
    ) -> NDArray[np.bool_]:
        """Return [P, N]: whether every pipeline has room for the stage."""
        memory = tables.memory
        from_end = np.arange(self.depth, 0, -1)[:, None, None]
        need = memory.bound_bytes(
            kinds[:, None, :], self.start[None, :, None], self.stop[None, :, None],
            memory.in_flight(from_end, counts[None, None, :]), self.depth, dp,
        )  # fmt: skip
        room = memory.capacity_bytes[kinds][:, None, :] - headroom_bytes
        spare: Floats = np.asarray(room - need)
        fits: NDArray[np.bool_] = spare.min(axis=2) >= 0
        return fits

    def least_bottleneck(self, of: Floats) -> float:
        """Return the least ceiling on `of` [P, U, U] under which boundaries exist."""
        after = np.full((1, self.units + 1), np.inf)
        after[0, self.units] = -np.inf
        for stage in range(self.depth - 1, -1, -1):
            behind = self._behind(after, self.units)[0]
            after = np.append(np.maximum(of[stage], behind).min(axis=1), np.inf)[None]
        return float(after[0, 0])

    def solve(self, pace_s: Floats, sync_s: Floats) -> _Cuts:
        """Return for every pair of ceilings the boundaries of least total stage time."""
        rows = len(pace_s)
        work.add(work.MOVED_S * rows * self.depth * self.units**2)
        within = (self.seconds <= pace_s.max(initial=0.0) * (1 + _SLACK)).any(axis=(0, 1))
        longest = int(np.flatnonzero(within)[-1]) + 1 if within.any() else 1
        after = np.full((rows, self.units + 1), np.inf)
        after[:, self.units] = 0.0
        chosen = np.zeros((self.depth, rows, self.units), dtype=np.int64)
        for stage in range(self.depth - 1, -1, -1):
            seconds = self.seconds[stage, :, :longest]
            legal = seconds <= pace_s[:, None, None] * (1 + _SLACK)
            legal &= self.sync_s[stage, :, :longest] <= sync_s[:, None, None] * (1 + _SLACK)
            total = np.where(legal, seconds + self._behind(after, longest), np.inf)
            chosen[stage] = total.argmin(axis=2)
            after = np.full((rows, self.units + 1), np.inf)
            after[:, : self.units] = np.take_along_axis(total, chosen[stage][:, :, None], 2)[..., 0]
        row = np.arange(rows)
        cuts = np.zeros((rows, self.depth + 1), dtype=np.int64)
        slowest, sync = np.zeros(rows), np.zeros(rows)
        for stage in range(self.depth):
            start = np.minimum(cuts[:, stage], self.units - 1)
            more = chosen[stage][row, start]
            cuts[:, stage + 1] = start + more + 1
            slowest = np.maximum(slowest, self.seconds[stage, start, more])
            sync = np.maximum(sync, self.sync_s[stage, start, more])
        # Where nothing fits, the boundaries that were traced mean nothing.
        there = np.isfinite(after[:, 0])
        return _Cuts(cuts, after[:, 0], np.where(there, slowest, 0.0), np.where(there, sync, 0.0))

    def _behind(self, after: Floats, longest: int) -> Floats:
        """Return [R, U, L]: `after` [R, U + 1] behind a stage, by first unit and units less one."""
        beyond = np.full((len(after), longest - 1), np.inf)
        padded = np.concatenate((after[:, 1:], beyond), axis=1)
        found: Floats = sliding_window_view(padded, longest, axis=1)
        return found
