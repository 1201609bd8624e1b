"""Probes: simple pipelines of every cell at once, to find an incumbent and an order of cells.

Even stages of one kind, and pipelines of two kinds in which each kind's stages hold units in
proportion to its speed. All cells of one microbatch size are scored together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.sim.closed_form import PlanBatch
from sailor.solve.cell import Cell, Scorer, SearchTables
from sailor.solve.heuristics.paced_probes import paced
from sailor.solve.heuristics.refine import Scored
from sailor.solve.heuristics.sketch import Sketches

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_STAGES = 14
# Pipelines of two kinds are tried at few dp degrees: the fewer, the more pairs of kinds there are.
_MOST_DEGREES, _MOST_PAIRS = (8, 28), 2800


@dataclass(frozen=True)
class _Rows:
    """Probes of one number of stages: cell index, unit boundaries, kinds."""

    cell: Ints  # [B]
    cuts: Ints  # [B, P + 1]
    kinds: Ints  # [B, P]


def probe(
    cells: Sequence[Cell],
    scorer: Scorer,
    *,
    max_stages: int,
    stages: int | None,
    same_tp: bool,
    even: bool,
    keep: int,
) -> dict[int, list[Scored]]:
    """Return, by index of the cell, its best probes (up to `keep`), best first."""
    found: dict[int, list[Scored]] = {}
    by_search: dict[int, list[int]] = {}
    for number, cell in enumerate(cells):
        by_search.setdefault(id(cell.search), []).append(number)
    for members in by_search.values():
        search = cells[members[0]].search
        degrees = np.array([cells[number].dp for number in members], dtype=np.int64)
        counts = np.array([cells[number].num_microbatches for number in members], dtype=np.int64)
        deepest = min(max_stages, search.tables.num_units, _MOST_STAGES)
        by_pace = {} if same_tp or even else _by_pace(search, degrees, counts, deepest)
        for depth in [stages] if stages is not None else range(1, deepest + 1):
            # One call for everything of a depth: many small ones cost more than the arithmetic.
            parts = list(_probes(search, degrees, depth, same_tp=same_tp, even=even))
            parts += by_pace.get(depth, [])
            if parts:
                rows = _Rows(
                    np.concatenate([part.cell for part in parts]),
                    np.concatenate([part.cuts for part in parts]),
                    np.concatenate([part.kinds for part in parts]),
                )
                batch = PlanBatch(
                    cuts=rows.cuts,
                    kinds=rows.kinds[:, :, None],
                    width=degrees[rows.cell][:, None],
                    num_microbatches=counts[rows.cell][:, None],
                )
                scores = scorer(search, batch)
                _keep_best(found, cells, members, rows, scores, keep)
    return found


def _by_pace(
    search: SearchTables, degrees: Ints, counts: Ints, deepest: int
) -> dict[int, list[_Rows]]:
    """Return the probes by pace, by number of stages."""
    found: dict[int, list[_Rows]] = {}
    for cell, units, kinds in paced(search, degrees, counts, deepest):
        rows = _Rows(cell, _cuts(units.astype(float), search.tables.num_units), kinds)
        found.setdefault(kinds.shape[1], []).append(rows)
    return found


def _keep_best(
    found: dict[int, list[Scored]],
    cells: Sequence[Cell],
    members: Sequence[int],
    rows: _Rows,
    scores: Floats,
    keep: int,
) -> None:
    order = np.lexsort((scores, rows.cell))
    first = np.searchsorted(rows.cell[order], np.arange(len(members)))
    place = np.arange(len(order)) - first[rows.cell[order]]
    for row in order[place < keep]:
        number = members[int(rows.cell[row])]
        if len(found.get(number, ())) >= keep and scores[row] >= found[number][-1].score:
            continue
        kinds = rows.kinds[row : row + 1]
        sketch = Sketches(rows.cuts[row : row + 1], kinds, kinds, np.zeros_like(kinds))
        best = found.setdefault(number, [])
        best.append(Scored(float(scores[row]), cells[number], sketch))
        best.sort(key=lambda scored: scored.score)
        del best[keep:]


def _probes(
    search: SearchTables, degrees: Ints, depth: int, *, same_tp: bool, even: bool
) -> Iterator[_Rows]:
    usable = np.flatnonzero(search.tables.usable)
    units = search.tables.num_units
    if depth > units:
        return
    even_cuts = np.round(np.linspace(0, units, depth + 1)).astype(np.int64)
    cell = np.repeat(np.arange(len(degrees)), len(usable))
    kind = np.tile(usable, len(degrees))
    enough = search.num_replicas[kind] >= depth * degrees[cell]
    cell, kind = cell[enough], kind[enough]
    if len(cell):
        yield _Rows(
            cell,
            np.repeat(even_cuts[None], len(cell), axis=0),
            np.repeat(kind[:, None], depth, axis=1),
        )
    if depth > 1 and len(usable) > 1:
        yield from _two_kinds(search, degrees, depth, usable, same_tp=same_tp, even=even)


def _two_kinds(
    search: SearchTables, degrees: Ints, depth: int, usable: Ints, *, same_tp: bool, even: bool
) -> Iterator[_Rows]:
    tables = search.tables
    first, second = (side.ravel() for side in np.meshgrid(usable, usable, indexing="ij"))
    allowed = search.pool[first] != search.pool[second]
    if same_tp:
        allowed &= tables.tp[first] == tables.tp[second]
    first, second = first[allowed], second[allowed]
    most_degrees = int(np.clip(_MOST_PAIRS // max(len(first), 1), *_MOST_DEGREES))
    some = np.arange(len(degrees))
    if len(some) > most_degrees:
        some = np.unique(np.linspace(0, len(degrees) - 1, most_degrees).astype(np.int64))
    speed = 1.0 / np.maximum(tables.compute_prefix_s[:, -1], 1e-12)
    position = np.arange(depth)
    dp = degrees[some]
    most = np.minimum(search.num_replicas[first][:, None] // dp, depth - 1)
    for fewer in (0, 1, 2):
        of_first = most - fewer
        enough = of_first >= 1
        enough &= (depth - of_first) * dp <= search.num_replicas[second][:, None]
        pair, degree = np.nonzero(enough)
        if not len(pair):
            continue
        in_front = position[None, :] < of_first[pair, degree][:, None]
        kinds = np.where(in_front, first[pair][:, None], second[pair][:, None])
        share = np.ones_like(kinds, dtype=float) if even else speed[kinds]
        yield _Rows(some[degree], _cuts(share, tables.num_units), kinds)


def _cuts(share: Floats, units: int) -> Ints:
    """Return [B, P + 1] boundaries of units in proportion to `share` [B, P], at least one each."""
    depth = share.shape[1]
    ends = np.cumsum(share, axis=1) / share.sum(axis=1, keepdims=True) * units
    cuts = np.zeros((len(share), depth + 1), dtype=np.int64)
    cuts[:, 1:] = np.round(ends).astype(np.int64)
    least = np.arange(depth + 1)
    cuts = np.maximum.accumulate(cuts - least, axis=1) + least
    capped: Ints = np.minimum(cuts, units - least[::-1])
    return capped
