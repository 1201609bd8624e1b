"""Neighbours of sketches: every small change, as arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sailor.solve.cell import Cell
from sailor.solve.heuristics.sketch import Sketches
from sailor.solve.heuristics.stage_dp import StageRules

Ints = NDArray[np.int64]


def neighbours(
    cell: Cell, sketches: Sketches, rules: StageRules, *, mixed: bool
) -> Iterator[Sketches]:
    """Yield sets of changed sketches; a set has one number of stages.

    Moves: a unit from one stage to any other, another kind for a stage, two stages swapped, a
    stage put elsewhere, a stage split or two merged, and a second kind for the pipelines that the
    pool has no room for.
    """
    kinds = np.array(
        [
            kind
            for kind in (rules.kinds or range(cell.search.num_kinds))
            if cell.search.tables.usable[kind]
        ],
        dtype=np.int64,
    )
    if not rules.even:
        yield from _moved_units(sketches)
    yield _other_kinds(sketches, kinds)
    yield from _swapped(sketches)
    yield from reinserted(sketches, 2)
    if rules.stages is None and not rules.even:
        yield from _split(sketches, kinds, rules.max_stages)
        yield from _merged(sketches, kinds)
    if mixed:
        yield from _mixed(cell, sketches, kinds)


def _repeat(sketches: Sketches, times: int) -> Sketches:
    return sketches.take(np.repeat(np.arange(len(sketches)), times))


def _moved_units(sketches: Sketches) -> Iterator[Sketches]:
    stages = sketches.num_stages
    for units in (1, 2):
        for source in range(stages):
            for target in range(stages):
                if source == target:
                    continue
                cuts = sketches.cuts.copy()
                if source < target:
                    cuts[:, source + 1 : target + 1] -= units
                else:
                    cuts[:, target + 1 : source + 1] += units
                legal = (np.diff(cuts, axis=1) > 0).all(axis=1)
                if legal.any():
                    yield Sketches(
                        cuts[legal],
                        sketches.first[legal],
                        sketches.second[legal],
                        sketches.num_second[legal],
                    )


def _other_kinds(sketches: Sketches, kinds: Ints) -> Sketches:
    stages = sketches.num_stages
    out = _repeat(sketches, stages * len(kinds))
    stage = np.tile(np.repeat(np.arange(stages), len(kinds)), len(sketches))
    kind = np.tile(kinds, len(sketches) * stages)
    first, count = out.first.copy(), out.num_second.copy()
    rows = np.arange(len(out))
    first[rows, stage] = kind
    count[rows, stage] = 0
    return Sketches(out.cuts, first, out.second, count)


def _swapped(sketches: Sketches) -> Iterator[Sketches]:
    stages = sketches.num_stages
    sizes = np.diff(sketches.cuts, axis=1)
    for a in range(stages):
        for b in range(a + 1, stages):
            order = np.arange(stages)
            order[[a, b]] = order[[b, a]]
            cuts = sketches.cuts.copy()
            cuts[:, 1:] = np.cumsum(sizes[:, order], axis=1)
            moved = Sketches(
                cuts,
                sketches.first[:, order],
                sketches.second[:, order],
                sketches.num_second[:, order],
            )
            yield moved
            # Only the kinds, the units stay.
            yield Sketches(sketches.cuts, moved.first, moved.second, moved.num_second)


def reinserted(sketches: Sketches, nearest: int) -> Iterator[Sketches]:
    """Take one stage out and put it in again, at least `nearest` places from where it was."""
    sizes = np.diff(sketches.cuts, axis=1)
    for source in range(sketches.num_stages):
        others = [stage for stage in range(sketches.num_stages) if stage != source]
        for target in range(sketches.num_stages):
            if abs(target - source) < nearest:
                continue
            order = np.array([*others[:target], source, *others[target:]])
            cuts = sketches.cuts.copy()
            cuts[:, 1:] = np.cumsum(sizes[:, order], axis=1)
            yield Sketches(
                cuts,
                sketches.first[:, order],
                sketches.second[:, order],
                sketches.num_second[:, order],
            )


def _split(sketches: Sketches, kinds: Ints, max_stages: int) -> Iterator[Sketches]:
    if sketches.num_stages >= max_stages:
        return
    for stage in range(sketches.num_stages):
        size = sketches.cuts[:, stage + 1] - sketches.cuts[:, stage]
        rows = np.flatnonzero(size > 1)
        if not len(rows):
            continue
        part = sketches.take(rows)
        for share in (size[rows] // 2, (size[rows] + 1) // 2, np.ones_like(rows), size[rows] - 1):
            cut = part.cuts[:, stage] + np.clip(share, 1, size[rows] - 1)
            # Of every kind in turn, all rows.
            rows_by_kind = _each(part, kinds)
            kind = np.repeat(kinds, len(part))
            copies = part.take(rows_by_kind)
            parted = Sketches(
                _inserted(copies.cuts, stage + 1, cut[rows_by_kind]),
                _inserted(copies.first, stage, kind),
                _inserted(copies.second, stage, kind),
                _inserted(copies.num_second, stage, np.zeros_like(kind)),
            )
            yield parted
            # Both parts of the other kind: two stages of half the degree take as many GPUs.
            yield _with_kind(parted, stage + 1, kind)


def _inserted(rows: Ints, at: int, column: Ints) -> Ints:
    """Return rows with one more column in front of column `at`."""
    found: Ints = np.concatenate([rows[:, :at], column[:, None], rows[:, at:]], axis=1)
    return found


def _with_kind(sketches: Sketches, stage: int, kind: Ints) -> Sketches:
    """Return the sketches with a stage all of one kind [B]."""
    first, count = sketches.first.copy(), sketches.num_second.copy()
    first[:, stage] = kind
    count[:, stage] = 0
    return Sketches(sketches.cuts, first, sketches.second, count)


def _merged(sketches: Sketches, kinds: Ints) -> Iterator[Sketches]:
    for stage in range(sketches.num_stages - 1):
        for gone in (stage, stage + 1):
            joined = Sketches(
                np.delete(sketches.cuts, stage + 1, axis=1),
                np.delete(sketches.first, gone, axis=1),
                np.delete(sketches.second, gone, axis=1),
                np.delete(sketches.num_second, gone, axis=1),
            )
            yield joined
        kind = np.repeat(kinds, len(joined))
        yield _with_kind(joined.take(_each(joined, kinds)), stage, kind)


def _each(sketches: Sketches, kinds: Ints) -> Ints:
    """Return the rows of all sketches, once for every kind."""
    return np.tile(np.arange(len(sketches)), len(kinds))


def _mixed(cell: Cell, sketches: Sketches, kinds: Ints) -> Iterator[Sketches]:
    """Give a stage a second kind, for as many pipelines as its pool lacks GPUs for.

    Either the stage's own kind overdraws its pool and the rest goes to another, or a stage moves
    to a better kind as far as that kind's pool has room.
    """
    search = cell.search
    pool, tp, room = search.pool, search.tables.tp, search.room
    used = np.zeros((len(sketches), len(room)), dtype=np.int64)
    for number in range(len(room)):
        mine = np.where(pool[sketches.first] == number, tp[sketches.first], 0)
        theirs = np.where(pool[sketches.second] == number, tp[sketches.second], 0)
        used[:, number] = (
            mine * (cell.dp - sketches.num_second) + theirs * sketches.num_second
        ).sum(axis=1)
    for stage in range(sketches.num_stages):
        own, count = sketches.first[:, stage], sketches.num_second[:, stage]
        old = sketches.second[:, stage]
        without = used.copy()
        rows = np.arange(len(sketches))
        np.subtract.at(without, (rows, pool[own]), tp[own] * (cell.dp - count))
        np.subtract.at(without, (rows, pool[old]), tp[old] * count)
        for kind in kinds:
            # As many pipelines of `kind` as still fit; the others keep the stage's own kind.
            fit = (room[pool[kind]] - without[:, pool[kind]]) // tp[kind]
            for first, second, num_second in (
                (np.full_like(own, kind), own, cell.dp - np.minimum(fit, cell.dp)),
                (own, np.full_like(own, kind), cell.dp - _fits(own, without, room, pool, tp, cell)),
            ):
                legal = (num_second > 0) & (num_second < cell.dp) & (first != second)
                legal &= search.mixable[first, second]
                if not legal.any():
                    continue
                part = sketches.take(legal)
                changed = Sketches(
                    part.cuts, part.first.copy(), part.second.copy(), part.num_second.copy()
                )
                changed.first[:, stage] = first[legal]
                changed.second[:, stage] = second[legal]
                changed.num_second[:, stage] = num_second[legal]
                yield changed


def _fits(own: Ints, without: Ints, room: Ints, pool: Ints, tp: Ints, cell: Cell) -> Ints:
    free = room[pool[own]] - without[np.arange(len(own)), pool[own]]
    fit: Ints = np.clip(free // tp[own], 0, cell.dp)
    return fit
