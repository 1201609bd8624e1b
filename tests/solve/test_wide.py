"""Rings and rows of stages in several zones, against all orders of their replicas."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.bounds.layouts import (
    CellRings,
    Layout,
    closer,
    room_of_a_pipeline,
    room_of_zones,
)
from sailor.solve.certificate import Certificate, Part
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.wide import rows, wide_in

REGISTRY = Registry.load(entry_points=False)
DP, MOST = 6, 3  # replicas of a stage, and how many of them a zone can have


def part_of(zones: int, a100: int) -> Part:
    job = tiny_job(a100=a100, v100=0, zones=zones, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    certificate = Certificate(build_problem(job, registry=REGISTRY), 24)
    certificate.first_look(1e6, lambda: False)
    return certificate.parts[0]


def random_rings(part: Part, seed: int) -> tuple[CellRings, np.ndarray]:
    """Return rings whose hops between zones take random times, and these [Z, Z]."""
    rings = CellRings(part.tables, [DP])
    rings.gpus = [MOST] * 3
    hop = np.random.default_rng(seed).integers(1, 9, (3, 3)).astype(float)
    segments = len(part.tables.hops.segments[0])
    least = int(part.tables.tp.min())
    rings._hops = {least: np.broadcast_to(hop[:, :, None, None], (3, 3, segments, 1))}
    return rings, hop


def slowest_hops(hop: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return, by how many replicas the zones have, the least slowest hop of all their orders."""
    found: dict[tuple[int, ...], float] = {}
    for order in product(range(3), repeat=DP):
        count = tuple(order.count(zone) for zone in range(3))
        if max(count) <= MOST:
            slowest = max(hop[a, b] for a, b in pairwise(order))
            found[count] = min(found.get(count, np.inf), slowest)
    return found


def test_no_order_of_the_replicas_has_a_faster_ring_and_most_bounds_are_reached() -> None:
    part = part_of(3, 4)
    tp, exact, bounds = int(part.tables.tp.min()), 0, 0
    for seed in range(25):
        rings, hop = random_rings(part, seed)
        by_count = slowest_hops(hop)
        wide: dict[tuple[int, ...], float] = {}
        within: dict[tuple[int, ...], float] = {}
        for count, seconds in by_count.items():
            twice_in = tuple(zone for zone in range(3) if count[zone] >= 2)
            own = tuple(zone for zone in range(3) if count[zone])
            wide[twice_in] = min(wide.get(twice_in, np.inf), seconds)
            within[own] = min(within.get(own, np.inf), seconds)
        assert set(wide) == set(wide_in_of(rings))
        for twice_in, seconds in wide.items():
            others = tuple(zone for zone in range(3) if zone not in twice_in)
            bound = rings.round_wide_s(tp, twice_in, others)[0, 1]
            assert bound <= seconds
            bounds, exact = bounds + 1, exact + (bound == seconds)
        for own, seconds in within.items():
            twice = rings.twice_in(own, tp)
            assert twice == all(
                c[z] >= 2
                for c in by_count
                for z in own
                if sum(c[a] for a in own) == DP and all(c[a] for a in own)
            )
            assert rings.round_these_s(tp, own, twice=twice)[0, 1] <= seconds
        all_twice = rings.round_zones_s(tp, 3, exactly=True, twice=True)[0, 1]
        assert rings.round_zones_s(tp, 3, exactly=True)[0, 1] <= all_twice <= by_count[2, 2, 2]
        exact, bounds = exact + (all_twice == by_count[2, 2, 2]), bounds + 1
    assert exact > 0.8 * bounds


def wide_in_of(rings: CellRings) -> list[tuple[int, ...]]:
    return wide_in(rings, 0, 1, DP)


def test_stages_that_one_zone_is_enough_for_are_not_wide() -> None:
    rings = CellRings(part_of(3, 4).tables, [DP])
    rings.gpus = [4, 4, 4]
    # Four replicas here and one in each of the others.
    assert wide_in(rings, 0, 1, 6) == []
    assert wide_in(rings, 0, 1, 7) == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    assert wide_in(rings, 0, 2, 5) == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    assert wide_in(rings, 0, 2, 6) == [(0, 1, 2)]
    assert wide_in(rings, 0, 4, 3) == []  # one in each
    assert wide_in(rings, 0, 4, 4) == []  # there is no room


def test_rows_hold_for_all_numbers_of_replicas_in_the_zones() -> None:
    rings, _ = random_rings(part_of(3, 4), 0)
    sets = wide_in_of(rings)
    found = rows(rings, 0, [*((1, zones) for zones in sets), None], DP)
    assert found
    for count in product(range(MOST + 1), repeat=3):
        twice_in = tuple(zone for zone in range(3) if count[zone] >= 2)
        if sum(count) != DP:
            continue
        # Of one stage alone: what a row says that it takes is what it takes, or less.
        for within, (use, room) in zip(
            [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], found, strict=True
        ):
            assert use[sets.index(twice_in)] * MOST * len(within) <= room * sum(
                count[zone] for zone in within
            )
            assert use[-1] == 0
    by_name = dict(zip([(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], found, strict=True))
    # Three of three in zones 0 and 1, less one that may be in zone 2: two at least in each.
    assert by_name[0,][0][sets.index((0, 1))] == 2
    assert by_name[0, 1][0][sets.index((0, 1))] * MOST * 2 == by_name[0, 1][1] * 5


def test_closer_layouts_tell_zones_with_one_pipeline_from_those_with_more() -> None:
    tables = part_of(3, 4).tables
    rings = CellRings(tables, [3, 4])
    assert closer(None, rings) == ()
    assert closer(Layout(1), rings) == ()
    assert closer(Layout(2), rings) == (Layout(2, twice=True), Layout(2, twice=False))
    assert closer(Layout(3), rings) == (Layout(3, twice=False),)  # of four one is alone
    assert closer(Layout(None), rings) == (Layout(None, told=True),)
    assert closer(Layout(None, told=True), rings) == ()
    assert closer(Layout(2, twice=True), rings) == ()
    four, eight, twelve = (room_of_zones(tables, zones) for zones in (1, 2, 3))
    assert (four, eight, twelve) == (4, 8, 12)
    # Of five pipelines in three zones, one alone: four share two zones.
    assert room_of_a_pipeline(tables, Layout(3), 5) == 2
    assert room_of_a_pipeline(tables, Layout(3, twice=False), 5) == 2
    assert room_of_a_pipeline(tables, Layout(2, twice=False), 4) == 1
    assert room_of_a_pipeline(tables, Layout(2), 4) == 2


def test_rings_of_wide_stages_are_no_faster_than_those_of_any() -> None:
    part, seen = part_of(3, 4), False
    for cell in part.cells:
        if cell.dp < 3:
            continue
        plain, told = (
            KindSets(part.programme, cell, None, layout)
            for layout in (Layout(None), Layout(None, told=True))
        )
        for j, kinds in enumerate(told.sets):
            if not told.within[j]:
                continue
            seen = True
            least = np.min(
                [plain.sync_s[k] for k, own in enumerate(plain.sets)
                 if own == kinds and plain.spread[k]],
                axis=0,
            )  # fmt: skip
            assert (told.sync_s[j] >= least - 1e-12)[np.isfinite(least)].all()
    assert seen
