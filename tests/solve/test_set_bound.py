"""The bound over kind sets: below every pipeline of a box, and the same with and without numba."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.certificate import Certificate
from sailor.solve.kernels.compiled import compiled
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.prices import Rest
from sailor.solve.positional.programme import Limits, PositionalProgramme
from sailor.solve.positional.set_bound import Ranges, SetProgramme

REGISTRY = Registry.load(entry_points=False)
EVERYTHING = Ranges(0.0, np.inf, 0.0, np.inf)


def never() -> bool:
    return False


def programmes(a100: int, v100: int, zones: int, batch: int) -> Iterator[SetProgramme]:
    job = tiny_job(a100=a100, v100=v100, zones=zones, batch=batch, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    certificate = Certificate(build_problem(job, registry=REGISTRY), 24)
    certificate.first_look(1e6, never)
    for part in certificate.parts:
        for cell in part.cells:
            space = KindSets(part.programme, cell, None)
            if space.usable:
                yield SetProgramme(space)


@dataclass(frozen=True)
class Free:
    """Nothing costs anything, in front of a stage neither."""

    sets: int
    units: int

    @property
    def price(self) -> NDArray[np.float64]:
        return np.zeros((self.sets, 1))

    def ahead(self, place: int) -> NDArray[np.float64]:
        return np.zeros((self.sets, self.units, 1))

    def of(self, use: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.zeros((len(use), 1))

    def learn(self, rest: Rest, place: int, target_s: float) -> NDArray[np.bool_]:
        return np.ones(len(rest.unit), dtype=np.bool_)


def best_s(programme: SetProgramme, box: Ranges) -> float:
    """Return the best pipeline of a box by the positional programme, without prices."""
    limits = Limits(box.low_s, box.high_s, box.low_g, box.high_g, 1e6)
    free = Free(len(programme.space.sets), programme.units)
    found = PositionalProgramme(programme.space).run(limits, free, 300_000, never)
    return np.inf if found is None else found.seconds


def boxes_of(programme: SetProgramme, rng: random.Random) -> Iterator[Ranges]:
    """Yield the box of everything, and smaller ones around the best pipeline."""
    yield EVERYTHING
    least = best_s(programme, EVERYTHING)
    if np.isfinite(least):
        pace = least / max(programme.further, 1)
        for _ in range(3):
            low_s, low_g = rng.uniform(0.0, 0.5) * pace, rng.uniform(0.0, 0.2) * least
            yield Ranges(low_s, low_s + rng.uniform(0.3, 1.0) * pace, low_g, low_g + least)


def tiled_bound(programme: SetProgramme, best: float) -> float:
    """Return the least bound over boxes that cover every time of interest."""
    of_s = np.linspace(0.0, best / max(programme.further, 1) * (1 + 1e-6), 25)
    of_g = np.linspace(0.0, best * (1 + 1e-6), 17)
    prices = np.zeros(len(programme.room))
    return min(
        programme.bound(Ranges(low_s, high_s, low_g, high_g), prices, best * 1.5, 80)[0]
        for low_s, high_s in pairwise(of_s)
        for low_g, high_g in pairwise(of_g)
    )


@pytest.mark.parametrize(
    ("a100", "v100", "zones", "batch"), [(2, 3, 1, 12), (5, 7, 1, 24), (4, 4, 2, 16), (6, 0, 1, 24)]
)
def test_the_bound_is_below_the_best_pipeline_of_a_box(
    a100: int, v100: int, zones: int, batch: int
) -> None:
    rng, near = random.Random(0), []
    for programme in programmes(a100, v100, zones, batch):
        for box in boxes_of(programme, rng):
            best = best_s(programme, box)
            prices = np.zeros(len(programme.room))
            cutoff = best * 1.5 if np.isfinite(best) else 1e6
            bound, found = programme.bound(box, prices, cutoff, 80)
            assert bound <= best * (1 + 1e-9)
            assert (found >= 0).all()
            # What lies in front of nothing costs nothing, and prices only add to what does.
            free, priced = (programme.ahead_by_place(box, p) for p in (prices, found))
            assert all((one[:, 0] == 0).all() for one in free)
            assert all((a <= b + 1e-12).all() for a, b in zip(free, priced, strict=True))
        best = best_s(programme, EVERYTHING)
        if np.isfinite(best):
            near.append(tiled_bound(programme, best) / best)
    assert len(near) > 4
    assert np.mean(near) > 0.85
    assert max(near) > 0.9


@pytest.mark.skipif(not compiled(), reason="numba isn't installed")
@pytest.mark.parametrize(("a100", "v100", "zones"), [(5, 7, 1), (4, 4, 2)])
def test_compiled_and_numpy_give_the_same_numbers(a100: int, v100: int, zones: int) -> None:
    rng, compared = random.Random(1), 0
    for programme in programmes(a100, v100, zones, 24):
        fast = programme.kernels
        assert fast is not None
        for box in boxes_of(programme, rng):
            prices = np.array([rng.choice((0.0, rng.random())) for _ in programme.room])
            answers = []
            for kernels in (fast, None):
                programme.kernels = kernels
                bound, found = programme.bound(box, prices, 3.0, 12)
                answers.append((bound, found, programme.ahead_by_place(box, prices)))
            programme.kernels = fast
            (bound, found, ahead), (same_bound, same_found, same_ahead) = answers
            assert bound == same_bound
            assert (found == same_found).all()
            assert all((a == b).all() for a, b in zip(ahead, same_ahead, strict=True))
            compared += 1
    assert compared > 20


def test_rooms_are_rounded_down_to_what_a_pipeline_can_take() -> None:
    for programme in programmes(5, 7, 1, 24):
        space = programme.space
        rows = len(space.room)
        tables = space.programme.tables
        assert (
            programme.room[: len(tables.room)].tolist() == (tables.room // space.cell.dp).tolist()
        )
        if space.paired:
            assert len(programme.room) == rows
        else:
            # One more row counts kinds beyond one of each stage.
            assert programme.room[rows] == space.extra
            assert programme.use[:, rows].tolist() == [len(kinds) - 1 for kinds in space.sets]
