"""Layouts of pipelines in zones: rings, transfers and rooms, by hand and against enumeration."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.bounds.lagrange import CellBound
from sailor.solve.bounds.layouts import (
    CellRings,
    Layout,
    ZoneSends,
    layouts,
    room_of_zones,
)
from sailor.solve.certificate import Certificate, Part
from sailor.solve.closing import decide_cell, decide_cells
from sailor.solve.crew import Workers
from sailor.solve.dynamic import Search, scopes
from sailor.solve.exhaustive import ExhaustivePlanner
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.rules import active_rules
from sailor.solve.search import Budget

REGISTRY = Registry.load(entry_points=False)


def part_of(zones: int, a100: int = 4, v100: int = 0) -> Part:
    job = tiny_job(a100=a100, v100=v100, zones=zones, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    certificate = Certificate(build_problem(job, registry=REGISTRY), 24)
    certificate.first_look(1e6, lambda: False)
    return certificate.parts[0]


def test_one_zone_has_no_layouts() -> None:
    assert layouts(part_of(1).tables, 4) == (None,)


def test_layouts_are_one_for_each_number_of_zones_and_one_that_crosses() -> None:
    tables = part_of(3).tables
    assert layouts(tables, 8) == (Layout(1), Layout(2), Layout(3), Layout(None))
    # Two pipelines are in two zones at most, unless they cross.
    assert layouts(tables, 2) == (Layout(1), Layout(2), Layout(None))


def test_zones_that_two_groups_share_have_no_layouts() -> None:
    assert layouts(part_of(2, v100=4).tables, 4) == (None,)


def test_a_ring_is_as_slow_as_the_slowest_hop_of_the_best_way_through_the_zones() -> None:
    tables = part_of(3).tables
    degrees = np.array([3, 4])
    real = tables.real
    zones = sorted(set(tables.zone_of))
    ones = {name: [k for k, zone in enumerate(tables.zone_of) if zone == name] for name in zones}
    start, stop = 0, tables.num_units

    def hop(a: str, b: str, dp: int, tp: int) -> float:
        return min(
            float(real.sync.seconds(*(np.array(x) for x in (start, stop, tp, dp, src, dst))))
            for src in ones[a] for dst in ones[b]
            if real.tp[src] >= tp and real.tp[dst] >= tp
        )  # fmt: skip

    tps = sorted({int(t) for t in tables.tp})
    # From replica to replica, with no hop back to the first, in either direction.
    expected = min(
        max(min(hop(a, b, dp, tps[0]), hop(b, a, dp, tps[0])) for a, b in ((x, y), (y, z)))
        for x, y, z in permutations(zones)
        for dp in degrees.tolist()
    )
    rings = CellRings(tables, degrees.tolist())
    assert rings.round_zones_s(tps[0], 3, exactly=True)[start, stop] == pytest.approx(expected)
    two = rings.round_zones_s(tps[0], 2, exactly=True)[start, stop]
    assert two <= expected
    assert rings.round_zones_s(tps[0], 2, exactly=False)[start, stop] == min(two, expected)


def test_transfers_inside_zones_are_sorted_from_fast_to_slow() -> None:
    tables = part_of(3).tables
    sends = ZoneSends(tables, cut_down=False)
    largest = int(tables.tp.argmax())  # a smaller degree stands for this one, too
    one, two, three = (sends.least([largest], [largest], count) for count in (1, 2, 3))
    assert (one <= two).all()
    assert (two <= three).all()
    real = tables.real
    cut = tables.num_units // 2
    here = sorted(
        float(real.send_s[real.forward_size[cut - 1], member, member])
        for member in tables.members[largest].tolist()
    )
    assert [float(found[0][cut]) for found in (one, two, three)] == pytest.approx(here)
    # More zones than there are can't be asked for: the slowest counts.
    assert (sends.least([largest], [largest], 9) == three).all()


def test_rooms_and_sets_of_a_layout() -> None:
    part = part_of(3)
    tables = part.tables
    assert room_of_zones(tables, 2) == sum(sorted(gpus for _, gpus in tables.zone_gpus)[1:])
    cell = next(cell for cell in part.cells if cell.dp == 3)
    within, crossing, any_ = (
        KindSets(part.programme, cell, None, layout) for layout in (Layout(3), Layout(None), None)
    )
    assert within.spread.all()
    assert not within.flagged.any()
    assert within.ends.all()
    # What crosses is told from what doesn't, and the last stage sends nothing on.
    half = len(crossing.sets) // 2
    assert crossing.sets[:half] == crossing.sets[half:]
    assert set(crossing.sets) == set(any_.sets)
    assert crossing.flagged.tolist() == [False] * half + [True] * half
    assert (crossing.ends == ~crossing.flagged).all()
    assert not crossing.whole.any()
    assert crossing.need_flag
    # Every stage syncs round three zones, which takes no less than round two.
    best = {kinds: any_.sync_s[j] for j, kinds in enumerate(any_.sets) if any_.spread[j]}
    for j, kinds in enumerate(within.sets):
        assert (within.sync_s[j] >= best[kinds] - 1e-12)[np.isfinite(best[kinds])].all()


def test_stages_that_fill_their_zones_are_told_apart_by_them() -> None:
    part = part_of(3, a100=2)
    cell = next(cell for cell in part.cells if cell.dp == 2)
    space = KindSets(part.programme, cell, None, Layout(None))
    tables, largest = part.tables, int(part.tables.tp.max())
    wide = [j for j, kinds in enumerate(space.sets) if tables.tp[kinds[0]] == largest]
    # Two replicas of two GPUs fill two of the three zones of two; or they lie in all three.
    within = {space.within[j] for j in wide if space.spread[j] and not space.flagged[j]}
    assert within == {(0, 1), (0, 2), (1, 2), ()}
    rows = space.use[:, -3:]
    for j in wide:
        zones = space.within[j]
        assert rows[j].tolist() == [int(zone in zones) for zone in range(3)]
        assert space.zones[j] == (2 if zones else 3 if space.spread[j] else 1)
    assert space.room[-3:].tolist() == [1, 1, 1]
    here, there = (
        next(j for j in wide if space.within[j] == zones and not space.flagged[j])
        for zones in ((0, 1), (0, 2))
    )
    # Between stages in other zones some transfer crosses, so it can't be one that doesn't.
    assert np.isinf(space.fore_s[here, there]).all()
    assert np.isfinite(space.fore_s[here, here]).any()


def spread_problem(rng: random.Random) -> Problem:
    """Return a problem of two or three zones with one GPU type each, some of them far away."""
    zones = rng.sample(["us-central1-a", "us-central1-b", "us-central1-c", "us-west1-b"],
                       rng.choice((2, 2, 3)))  # fmt: skip
    types = {
        "A100-40GB": ["a2-highgpu-1g", "a2-highgpu-2g"],
        "V100-16GB": ["n1-v100-1", "n1-v100-2"],
    }
    one = rng.choice(sorted(types))
    job = tiny_job(a100=1, v100=1, zones=1, batch=rng.choice((3, 4, 6, 8, 12)),
                   objective="max_throughput", cost_model="published")  # fmt: skip
    gpus = [one if rng.random() < 0.7 else rng.choice(sorted(types)) for _ in zones]
    job["pool"] = [
        {"zone": zone, "gpu": gpu, "quota": rng.choice((1, 2, 2, 3)), "node_types": types[gpu]}
        for zone, gpu in zip(zones, gpus, strict=True)
    ]
    prices, egress = job["catalog"]["prices"], job["catalog"]["egress"]
    job["catalog"]["prices"] = [{**price, "zone": zone} for price in prices for zone in zones]
    job["catalog"]["egress"] = [
        {**egress[0], "src": a, "dst": b, "usd_per_byte": 0.0 if a == b else 1e-11}
        for a in zones for b in zones
    ]  # fmt: skip
    return build_problem(job, registry=REGISTRY)


def bounds_over_optima(count: int, seed: int) -> list[float]:
    """Return bound over optimum of generated problems, and check that none is above."""
    rng, found = random.Random(seed), []
    planner = ExhaustivePlanner(60_000)
    while len(found) < count:
        problem = spread_problem(rng)
        if planner.unsupported(problem):
            continue
        plan = planner.solve(problem, Limits(), lambda progress: None, lambda: False).plan
        if plan is None:
            continue
        best_s = estimate(problem, plan).iteration_s
        certificate = Certificate(problem, 24)
        certificate.first_look(best_s * 1.25, lambda: False)
        rules = active_rules(())
        scope = scopes(problem, rules)[0]
        budget = Budget(None, lambda: False)
        search = Search(problem, scope, rules, budget, lambda progress: None)
        for _ in decide_cells(certificate, search, 1e-6, budget, Workers(1, certificate)):
            pass
        assert certificate.value <= best_s * (1 + 1e-9), problem.placements
        found.append(certificate.value / best_s)
    return found


def test_bounds_over_layouts_are_below_the_optimum_and_near_it() -> None:
    found = bounds_over_optima(12, seed=0)
    assert np.mean(found) > 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bounds_over_layouts_of_many_problems() -> None:
    found = bounds_over_optima(60, seed=1)
    assert np.median(found) > 0.98


def test_cells_that_are_put_off_keep_a_bound_below_the_optimum() -> None:
    rng, planner, put_off, again = random.Random(3), ExhaustivePlanner(60_000), 0, 0
    for _ in range(14):
        problem = spread_problem(rng)
        if planner.unsupported(problem):
            continue
        plan = planner.solve(problem, Limits(), lambda progress: None, lambda: False).plan
        if plan is None:
            continue
        best_s = estimate(problem, plan).iteration_s
        certificate = Certificate(problem, 24)
        certificate.first_look(best_s * 1.4, lambda: False)
        for part in certificate.parts:
            for number in part.open(certificate.cutoff):
                for turn in range(4):
                    looks = iter(range(rng.randrange(1, 12) * 2**turn))
                    budget = Budget(None, lambda looks=looks: next(looks, None) is None)
                    closed = decide_cell(part, number, certificate, 1e-6, budget)
                    if closed is None:
                        break
                    put_off += not closed.done
                    if closed.partly and not closed.done:
                        # Something was found, so what is left isn't all that may be better.
                        again += 1
                        assert closed.boxes == part.found[number].boxes
                    bound = max(part.found[number].bound, closed.bound)
                    part.found[number] = CellBound(bound, closed.boxes)
                    if closed.done:
                        break
        assert certificate.value <= best_s * (1 + 1e-9), problem.placements
    assert put_off > again > 0


def test_boxes_left_at_one_gap_are_not_taken_for_all_at_another() -> None:
    rng, left = random.Random(4), 0
    for _ in range(8):
        problem = spread_problem(rng)
        certificate = Certificate(problem, 24)
        certificate.first_look(1e4, lambda: False)
        certificate.improve(1e4, 1e-4, 6, lambda: False)
        rules = active_rules(())
        scope = scopes(problem, rules)[0]
        for looks in (2, 40):
            before = [[one.boxes for one in part.found] for part in certificate.parts]
            bounds = [[one.bound for one in part.found] for part in certificate.parts]
            few = iter(range(looks))
            budget = Budget(None, lambda few=few: next(few, None) is None)
            search = Search(problem, scope, rules, budget, lambda p: None)
            for _ in decide_cells(certificate, search, 0.3, budget, Workers(1, certificate)):
                pass
            for part, old, known in zip(certificate.parts, before, bounds, strict=True):
                for one, boxes, bound in zip(part.found, old, known, strict=True):
                    assert one.bound >= bound
                    assert one.boxes in (boxes, ())
                    left += one.boxes == boxes and one.bound > bound
    assert left > 0
