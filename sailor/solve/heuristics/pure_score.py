"""Scores of pure pipelines by table: what annealing asks for, many times over.

Of a pipeline without mixed stages the closed form is a sum and three maxima of numbers that
depend on a stage and its neighbours alone. They are looked up here, with the terms of every cell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.sim.tables import StageTables
from sailor.solve.bounds.lagrange_sync import alike_segments
from sailor.solve.cell import BREACH, Cell

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def by_table(tables: StageTables) -> bool:
    """Return whether a stage's compute, update and memory are the same for all numbers of replicas.

    Sharded states and weights aren't.
    """
    shared = any(state.shared for state in tables.memory.states)
    return not shared and tables.gather is None and tables.shared_update is None


class PureScore:
    """Iteration seconds of pipelines of one number of stages, over cells of one microbatch size."""

    def __init__(self, cells: Sequence[Cell], depth: int, headroom_bytes: int) -> None:
        tables = cells[0].search.tables
        self.tables, self.depth = tables, depth
        self.count = np.array([cell.num_microbatches for cell in cells], dtype=np.int64)
        units, num_kinds = tables.num_units, len(tables.tp)
        self.width = units + 1
        kind = np.arange(num_kinds)[:, None, None]
        start = np.broadcast_to(np.arange(units)[:, None], (units, units + 1))
        stop = np.maximum(np.arange(units + 1)[None], start + 1)
        self.compute_s = tables.compute_s(kind, start[None], stop[None], 1).ravel()
        self.update_s = tables.update_seconds(kind, start[None], stop[None], 1).ravel()
        self.same_update = bool((self.update_s == self.update_s[0]).all())
        self._segment(cells)
        self._memory(start, stop, headroom_bytes)
        self.forward, self.backward = self._sends(tables.send_s)
        self.blocked = None if tables.blocked_s is None else self._sends(tables.blocked_s)

    def _segment(self, cells: Sequence[Cell]) -> None:
        """Evaluate the rings of every cell, kind and segment."""
        tables = self.tables
        first, second, (start, stop), inverse = alike_segments(tables)
        self.of_segment = np.zeros(tables.num_units * self.width, dtype=np.int64)
        self.of_segment[first * self.width + second] = inverse
        dp = np.array([cell.dp for cell in cells], dtype=np.int64)[:, None, None]
        kind = np.arange(len(tables.tp))[None, :, None]
        self.sync_s = tables.sync.seconds(
            start[None, None], stop[None, None], tables.tp[kind], dp, kind, kind, dp
        )  # [C, K, N]
        self.num_segments = len(start)
        self.sync_s = self.sync_s.ravel()

    def _memory(self, start: Ints, stop: Ints, headroom_bytes: int) -> None:
        """Say which segments fit with so many microbatches kept, [F + 1, K, U, U + 1] flat."""
        memory, depth = self.tables.memory, self.depth
        kind = np.arange(len(self.tables.tp))[:, None, None]
        room = memory.capacity_bytes[kind] - headroom_bytes
        fits = [
            memory.bound_bytes(kind, start[None], stop[None], np.asarray(kept), depth) <= room
            for kept in range(1, depth + 1)
        ]
        self.fits = np.stack([fits[0], *fits]).ravel()
        self.size = len(self.compute_s)
        # [C, P] microbatches that the stage at each place keeps.
        self.kept = np.stack(
            [
                np.broadcast_to(memory.in_flight(depth - place, self.count), self.count.shape)
                for place in range(depth)
            ],
            axis=1,
        )

    def _sends(self, seconds: Floats) -> tuple[Floats, Floats]:
        """Return [K, K, U + 1] flat: activations and gradients over a cut, [before, after, cut]."""
        tables, units = self.tables, self.tables.num_units
        cut = np.arange(units + 1)
        forward = seconds[tables.forward_size[np.clip(cut - 1, 0, units - 1)]].transpose(1, 2, 0)
        backward = seconds[tables.backward_size[np.clip(cut, 0, units - 1)]].transpose(2, 1, 0)
        return forward.ravel(), backward.ravel()

    def __call__(self, cell: Ints, cuts: Ints, kinds: Ints) -> Floats:
        """Return [B] seconds; BREACH and more where a stage doesn't fit or a link is unknown."""
        tables, depth, width = self.tables, self.depth, self.width
        num_kinds = len(tables.tp)
        segment = cuts[:, :-1] * width + cuts[:, 1:]
        stage = kinds * (tables.num_units * width) + segment
        seconds = np.where(tables.usable[kinds], self.compute_s[stage], np.inf)
        if depth > 1:
            pair = (kinds[:, :-1] * num_kinds + kinds[:, 1:]) * width + cuts[:, 1:-1]
            forward, backward = self.forward[pair], self.backward[pair]
            seconds[:, 1:-1] += forward[:, 1:] + backward[:, :-1]
            if self.blocked is not None:
                seconds[:, 1:-1] += self.blocked[0][pair[:, :-1]] + self.blocked[1][pair[:, 1:]]
            seconds[:, 0] += tables.first_send_factor(depth) * forward[:, 0]
            seconds[:, -1] += 2.0 * backward[:, -1]
        ring = (cell[:, None] * num_kinds + kinds) * self.num_segments + self.of_segment[segment]
        sync = self.sync_s[ring]
        if tables.tied_send_s is not None and depth > 1:
            tied = tables.tied_send_s[kinds[:, 0], kinds[:, -1]]
            sync[:, 0] += tied
            sync[:, -1] += tied
        further = np.maximum(self.count[cell] - 1, 0)
        slowest = seconds.max(axis=1)
        total = seconds.sum(axis=1) + np.where(further > 0, further * slowest, 0.0)
        total += sync.max(axis=1)
        total += self.update_s[0] if self.same_update else self.update_s[stage].max(axis=1)
        fits = self.fits[self.kept[cell] * self.size + stage].all(axis=1)
        score = np.where(fits, total, BREACH * 4)
        return np.where(np.isfinite(total), score, BREACH * 1e6)
