"""Local search: the best sketches of a cell, improved until no neighbour is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sailor.solve.cell import Cell, Scorer
from sailor.solve.heuristics.neighbours import neighbours, reinserted
from sailor.solve.heuristics.rebalance import rebalanced
from sailor.solve.heuristics.sketch import Sketches, to_batch
from sailor.solve.heuristics.stage_dp import Pipeline, StageRules

_RELATIVE_GAIN = 1e-9
_MOVED = 4  # sketches with other boundaries, for each sequence of kinds


@dataclass(frozen=True)
class Scored:
    """One sketch with its cell and score."""

    score: float
    cell: Cell
    sketch: Sketches  # of length 1


def score_pipelines(cell: Cell, pipelines: Sequence[Pipeline], scorer: Scorer) -> list[Scored]:
    """Return the pipelines of one cell with their exact scores, best first."""
    found: list[Scored] = []
    for stages in sorted({len(pipeline.kinds) for pipeline in pipelines}):
        group = [pipeline for pipeline in pipelines if len(pipeline.kinds) == stages]
        sketches = Sketches.pure(group)
        scores = scorer(cell.search, to_batch(cell, sketches))
        found.extend(
            Scored(float(score), cell, sketches.take([row])) for row, score in enumerate(scores)
        )
    return sorted(found, key=lambda scored: scored.score)


def refine(
    seeds: Sequence[Scored],
    scorer: Scorer,
    rules: StageRules,
    *,
    mixed: bool,
    width: int,
    max_rounds: int,
    should_stop: Callable[[], bool],
) -> list[Scored]:
    """Return the best sketches around seeds of one cell, best first.

    A beam of `width` sketches is replaced by the best of itself and all its neighbours, until a
    round brings nothing better or `max_rounds` are over. Then all boundaries of a sketch are moved
    at once, as it is and with a stage put elsewhere, and where that helps, the search goes on.
    """
    if not seeds:
        return []
    cell = seeds[0].cell
    beam = list(seeds)[:width]
    expanded: set[tuple[tuple[int, ...], ...]] = set()
    laid: set[tuple[tuple[int, ...], ...]] = set()
    for _ in range(max_rounds):
        fresh = [scored for scored in beam if scored.sketch.row(0) not in expanded]
        for others in (list, _reordered) if not rules.even else ():
            if not fresh and not should_stop():
                beam = _distinct_best(beam + with_moved_cuts(others(beam), scorer, laid), width)
                fresh = [scored for scored in beam if scored.sketch.row(0) not in expanded]
        if not fresh or should_stop():
            break
        expanded.update(scored.sketch.row(0) for scored in fresh)
        candidates = list(beam)
        for stages in sorted({scored.sketch.num_stages for scored in fresh}):
            group = Sketches.join([s.sketch for s in fresh if s.sketch.num_stages == stages])
            candidates.extend(_best_neighbours(cell, group, scorer, rules, mixed, width))
        beam = _distinct_best(candidates, width)
    return beam


def _reordered(beam: Sequence[Scored]) -> list[Scored]:
    """Return the best sketch with each stage put elsewhere; the scores are still those before."""
    best = beam[0]
    return [replace(best, sketch=moved) for moved in reinserted(best.sketch, 1)]


def with_moved_cuts(
    sketches: Sequence[Scored], scorer: Scorer, laid: set[tuple[tuple[int, ...], ...]]
) -> list[Scored]:
    """Return sketches of the same kinds as those given, with the best boundaries for them.

    Kinds that are in `laid` are left out, and those that are looked at join it.
    """
    found: list[Scored] = []
    for scored in sketches:
        kinds = scored.sketch.row(0)[1:]
        if kinds in laid or scored.sketch.num_stages == 1:
            continue
        laid.add(kinds)
        moved = rebalanced(scored.cell, scored.sketch, _MOVED, scorer.headroom_bytes)
        if moved is not None:
            scores = scorer(scored.cell.search, to_batch(scored.cell, moved))
            found.extend(
                Scored(float(score), scored.cell, moved.take([row]))
                for row, score in enumerate(scores)
            )
    return found


def _best_neighbours(
    cell: Cell, group: Sketches, scorer: Scorer, rules: StageRules, mixed: bool, width: int
) -> list[Scored]:
    by_stages: dict[int, list[Sketches]] = {}
    for changed in neighbours(cell, group, rules, mixed=mixed):
        by_stages.setdefault(changed.num_stages, []).append(changed)
    found: list[Scored] = []
    for parts in by_stages.values():
        everything = Sketches.join(parts)
        pure = ~(everything.num_second > 0).any(axis=1)
        for rows in (np.flatnonzero(pure), np.flatnonzero(~pure)):
            if not len(rows):
                continue
            sketches = everything.take(rows)
            scores = scorer(cell.search, to_batch(cell, sketches))
            keep = min(2 * width, len(rows))
            found.extend(
                Scored(float(scores[row]), cell, sketches.take([row]))
                for row in np.argpartition(scores, keep - 1)[:keep]
            )
    return found


def _distinct_best(candidates: Sequence[Scored], width: int) -> list[Scored]:
    beam: list[Scored] = []
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for scored in sorted(candidates, key=lambda scored: scored.score):
        key = scored.sketch.row(0)
        if key in seen:
            continue
        # Plans of equal score are mostly the same plan with its stages in another order.
        alike = sum(
            abs(scored.score - other.score) <= _RELATIVE_GAIN * scored.score for other in beam
        )
        if alike >= 2:
            continue
        seen.add(key)
        beam.append(scored)
        if len(beam) >= width:
            break
    return beam
