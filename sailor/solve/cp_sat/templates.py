"""Stage templates: what a stage of a cell can be, up to where it stands in the pipeline.

A template has a role (the first stage, the last, one between, the only one), a number of units
and a set of kinds, at most one of each group: of two degrees of one group the smaller one can
take all of the stage's replicas, which then cost no more time and fewer GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange import BoundCell
from sailor.solve.bounds.lagrange_dp import ChainProgramme

Floats = NDArray[np.float64]
KindSet = tuple[int, ...]

FIRST, MIDDLE, LAST, ONLY = "first", "middle", "last", "only"


@dataclass(frozen=True)
class Template:
    """One way to be a stage; seconds are lower bounds over its neighbours."""

    role: str
    units: int
    kinds: KindSet
    compute_s: float
    stage_s: float  # with the least transfers
    sync_s: float  # with the update
    furthest: int  # largest distance from the end (last: 1) at which it fits in memory

    @property
    def name(self) -> str:
        """Return a name for variables."""
        return f"{self.role}_{self.units}u_" + "+".join(str(kind) for kind in self.kinds)


def kind_sets(programme: ChainProgramme) -> list[KindSet]:
    """Return every set with at most one kind of each group, smallest sets first."""
    tables = programme.tables
    usable = np.isfinite(tables.compute_s).any(axis=(1, 2))
    choices: list[list[int | None]] = [
        [None, *(int(k) for k in np.flatnonzero((tables.group == group) & usable))]
        for group in range(len(tables.room))
    ]
    sets = [tuple(k for k in pick if k is not None) for pick in product(*choices)]
    return sorted({kinds for kinds in sets if kinds}, key=lambda kinds: (len(kinds), kinds))


def uniform(programme: ChainProgramme) -> bool:
    """Return whether the units from the third to the last but one are alike.

    Templates assume that; the first block may differ from the others, as measured ones do.
    """
    tables = programme.tables
    if tables.num_units < 5:
        return True
    inner = np.arange(2, tables.num_units - 1)
    compute = tables.compute_s[:, inner, inner + 1]
    finite = np.isfinite(compute).all(axis=1)
    rows = compute[finite]
    # Prefix sums differ in the last digits.
    return bool(np.allclose(rows, rows[:, :1], rtol=1e-9, atol=0.0))


def templates(
    programme: ChainProgramme,
    cell: BoundCell,
    sets: Sequence[KindSet],
    high_s: float,
    high_g: float,
) -> Iterator[Template]:
    """Yield the templates of a cell whose stage takes at most `high_s` and syncs in `high_g`."""
    tables = programme.tables
    units = tables.num_units
    single = programme.tables.longest(1, single=True)
    update = {kinds: tables.update_s[list(kinds)].max(axis=0) for kinds in sets}
    of_set = {
        kinds: np.maximum(
            tables.sync_of_set_s(kinds, cell.degrees) + update[kinds],
            cell.sync_s[list(kinds)].max(axis=0),
        )
        for kinds in sets
    }
    for role in (FIRST, MIDDLE, LAST, ONLY):
        for size in range(1, units + 1):
            start, stop = _place(role, size, units)
            if start < 0 or stop > units:
                continue
            for kinds in sets:
                if len(kinds) > cell.dp:
                    continue
                own = list(kinds)
                compute = float(tables.compute_s[own, start, stop].max())
                sync = float(of_set[kinds][start, stop])
                if role == MIDDLE and stop + 1 < units:
                    # The stage may hold the first block, or only later ones.
                    later = tables.compute_s[own, start + 1, stop + 1].max()
                    compute = min(compute, float(later))
                    sync = min(sync, float(of_set[kinds][start + 1, stop + 1]))
                stage = compute + _least_transfer(programme, role, own, start, stop)
                if stage > high_s or sync > high_g:
                    continue
                if role == ONLY:
                    furthest = int((single[own, 0] >= units).all())
                else:
                    furthest = _furthest(programme, cell, own, start, stop)
                if furthest >= (1 if role in (LAST, ONLY) else 2):
                    yield Template(role, size, kinds, compute, stage, sync, furthest)


def _place(role: str, size: int, units: int) -> tuple[int, int]:
    """Return where a template's units stand for its terms; (-1, -1): no such template."""
    if role == ONLY:
        return (0, units) if size == units else (-1, -1)
    if role == FIRST:
        return (0, size) if size < units else (-1, -1)
    if role == LAST:
        return (units - size, units) if size < units else (-1, -1)
    return (1, 1 + size) if size <= units - 2 else (-1, -1)


def _least_transfer(
    programme: ChainProgramme, role: str, own: Sequence[int], start: int, stop: int
) -> float:
    tables, units = programme.tables, programme.units
    if role == ONLY:
        return 0.0
    middle = slice(2, units - 1) if units > 3 else slice(1, units)
    at_front = slice(start, start + 1) if role == LAST else middle
    at_back = slice(stop, stop + 1) if role == FIRST else middle
    forward = float(tables.forward_s[own][:, :, at_back].min(axis=(1, 2)).max())
    backward = float(tables.backward_s[:, own][:, :, at_front].min(axis=(0, 2)).max())
    if role == FIRST:
        return min(2.0, tables.real.short_pipeline_factor[1]) * forward
    return 2.0 * backward if role == LAST else forward + backward


def _furthest(
    programme: ChainProgramme, cell: BoundCell, own: Sequence[int], start: int, stop: int
) -> int:
    count = np.array([cell.num_microbatches])
    furthest = 0
    for from_end in range(1, programme.max_stages + 1):
        reach = programme.memory_reach(from_end, count)[0]
        if not (reach[list(own), start] >= stop).all():
            break
        furthest = from_end
    return furthest
