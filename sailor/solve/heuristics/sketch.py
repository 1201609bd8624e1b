"""Sketches: plans during the search, many at once, all with one number of stages.

Stage i is held by kind `first[i]`, except for the last `num_second[i]` pipelines, where kind
`second[i]` holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.sim.closed_form import PlanBatch
from sailor.solve.cell import Cell
from sailor.solve.heuristics.stage_dp import Pipeline

Ints = NDArray[np.int64]

_FIELDS = ("cuts", "first", "second", "num_second")


@dataclass(frozen=True)
class Sketches:
    """B sketches of P stages: `cuts` [B, P + 1], the others [B, P]."""

    cuts: Ints
    first: Ints
    second: Ints
    num_second: Ints

    def __len__(self) -> int:
        return len(self.cuts)

    @property
    def num_stages(self) -> int:
        """Return P."""
        return int(self.first.shape[1])

    def take(self, rows: object) -> Sketches:
        """Return some of the sketches."""
        return Sketches(*(getattr(self, name)[rows] for name in _FIELDS))

    def row(self, index: int) -> tuple[tuple[int, ...], ...]:
        """Return one sketch as a hashable key."""
        return tuple(tuple(getattr(self, name)[index].tolist()) for name in _FIELDS)

    @classmethod
    def pure(cls, pipelines: Sequence[Pipeline]) -> Sketches:
        """Return pipelines (all of one number of stages) as sketches without a second kind."""
        first = np.array([pipeline.kinds for pipeline in pipelines], dtype=np.int64)
        return cls(
            cuts=np.array([pipeline.cuts for pipeline in pipelines], dtype=np.int64),
            first=first,
            second=first.copy(),
            num_second=np.zeros_like(first),
        )

    @classmethod
    def join(cls, parts: Sequence[Sketches]) -> Sketches:
        """Return all sketches of several sets with the same number of stages."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))

    def distinct(self) -> Sketches:
        """Return the sketches without repetition (a second kind that holds nothing is ignored)."""
        second = np.where(self.num_second > 0, self.second, self.first)
        flat = np.concatenate([self.cuts, self.first, second, self.num_second], axis=1)
        _, rows = np.unique(flat, axis=0, return_index=True)
        rows = np.sort(rows)
        return Sketches(self.cuts[rows], self.first[rows], second[rows], self.num_second[rows])


@dataclass(frozen=True)
class Mixture(Sketches):
    """Sketches with any pipelines side by side: `kinds` [B, P, C] of `width` [B, C] each.

    As plain sketches they are the first of their pipelines alone.
    """

    kinds: Ints
    width: Ints

    @classmethod
    def of(cls, cuts: Ints, kinds: Ints, width: Ints) -> Mixture:
        """Return pipelines over splits [B, P + 1]."""
        first = np.ascontiguousarray(kinds[:, :, 0])
        return cls(cuts, first, first.copy(), np.zeros_like(first), kinds, width)


def to_batch(cell: Cell, sketches: Sketches) -> PlanBatch:
    """Return the sketches as columns; at most two distinct `num_second` a sketch are kept.

    A sketch with more gets its further ones raised to the larger of the two: it uses more of the
    second kinds than written, which the pool check then counts.
    """
    if isinstance(sketches, Mixture):
        counts = np.full(sketches.width.shape, cell.num_microbatches, dtype=np.int64)
        return PlanBatch(sketches.cuts, sketches.kinds, sketches.width, counts)
    count = sketches.num_second
    most = count.max(axis=1)
    least = np.where(count > 0, count, np.iinfo(np.int64).max).min(axis=1)
    least = np.minimum(least, most)
    if not most.any():
        width = np.full((len(sketches), 1), cell.dp, dtype=np.int64)
        kinds = sketches.first[:, :, None]
    else:
        width = np.stack([cell.dp - most, most - least, least], axis=1)
        in_middle = count > least[:, None]
        in_last = count > 0
        kinds = np.stack(
            [
                sketches.first,
                np.where(in_middle, sketches.second, sketches.first),
                np.where(in_last, sketches.second, sketches.first),
            ],
            axis=2,
        )
    counts = np.full(width.shape, cell.num_microbatches, dtype=np.int64)
    return PlanBatch(cuts=sketches.cuts, kinds=kinds, width=width, num_microbatches=counts)
