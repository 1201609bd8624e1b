"""Bounds over many zones: rings by brute force, and groups of all regions against `exhaustive`."""

from __future__ import annotations

import itertools
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_problems import TYPES, two_regions

from sailor.interfaces import Limits
from sailor.model.problem import Problem
from sailor.sim.closed_form import MANY
from sailor.sim.estimate import estimate
from sailor.solve.bounds import lagrange_tables
from sailor.solve.bounds.lagrange_tables import EVERYWHERE, BoundTables, bound_tables, groups_of
from sailor.solve.certificate import Certificate
from sailor.solve.exhaustive import ExhaustivePlanner


def by_brute_force(tables: BoundTables, degrees: list[int]) -> np.ndarray:
    """Return [K, U, U + 1]: the least ring, hop by hop of all pairs of members."""
    units = tables.num_units
    out = np.full((tables.num_kinds, units, units + 1), np.inf)
    zone = tables.zone_of
    everyone = range(len(tables.real.tp))

    def ring(a: int, b: int, tp: int, dp: int, start: int, stop: int) -> float:
        run = dp if a == b else MANY
        return float(
            tables.real.sync.seconds(
                np.asarray(start), np.asarray(stop), np.asarray(tp), dp,
                np.asarray(a), np.asarray(b), np.asarray(run),
            )
        )  # fmt: skip

    for kind, start, stop in itertools.product(
        range(tables.num_kinds), range(units), range(1, units + 1)
    ):
        if stop <= start:
            continue
        mine = set(tables.members[kind].tolist())
        for tp, dp in itertools.product(sorted(set(tables.tp.tolist())), degrees):
            if tp > tables.tp[kind]:
                continue
            hops = [
                (a, b)
                for a, b in itertools.product(everyone, everyone)
                if {a, b} & mine and min(tables.real.tp[a], tables.real.tp[b]) >= tp
            ]
            inside = min(ring(a, b, tp, dp, start, stop) for a, b in hops)
            if dp * tp > tables.largest_zone:
                # Somewhere in the ring zones change.
                apart = [
                    ring(a, b, tp, dp, start, stop)
                    for a, b in itertools.product(everyone, everyone)
                    if zone[a] != zone[b]
                ]
                inside = max(inside, min(apart))
            out[kind, start, stop] = min(out[kind, start, stop], inside)
    return out


@pytest.mark.parametrize("degrees", [[1], [3], [5, 6, 7, 8]])
def test_rings_are_those_of_all_pairs(degrees: list[int]) -> None:
    """Pairs that are evaluated once for all that are alike."""
    problem = two_regions({"A100-40GB": [4, 0, 4], "V100-16GB": [4, 0, 4]})
    tables = bound_tables(problem, groups_of(problem), 1)
    assert tables is not None
    assert tables.largest_zone == 8
    assert len(tables.hops.src) < len(tables.real.tp) ** 2
    expected = by_brute_force(tables, degrees)
    assert np.array_equal(tables.sync_s(degrees), expected)


def test_groups_of_all_regions_have_their_room_together() -> None:
    each = [4, 4, 4]
    few = two_regions({"A100-40GB": each, "V100-16GB": each})
    many = two_regions({"A100-40GB": each, "V100-16GB": each, "T4-16GB": each})
    assert [(g.gpu, g.region, g.room) for g in groups_of(few)] == [
        ("A100-40GB", "us-central1", 8), ("A100-40GB", "us-west1", 4),
        ("V100-16GB", "us-central1", 8), ("V100-16GB", "us-west1", 4),
    ]  # fmt: skip
    assert [(g.gpu, g.region, g.room) for g in groups_of(many)] == [
        ("A100-40GB", EVERYWHERE, 12), ("T4-16GB", EVERYWHERE, 12), ("V100-16GB", EVERYWHERE, 12),
    ]  # fmt: skip
    assert "zones of all regions are one pool" in " ".join(Certificate(many, 8).rules())
    assert "zones of a region are one pool" in " ".join(Certificate(few, 8).rules())


def test_a_search_that_is_stopped_at_once_still_has_a_bound() -> None:
    problem = two_regions({"A100-40GB": [8], "V100-16GB": [8]})
    certificate = Certificate(problem, 8)
    certificate.first_look(1e3, lambda: True)
    expected = []
    for part in certificate.parts:
        # 16 GPUs hold 16 pipelines at most, and each microbatch passes the heaviest unit.
        fewest = 64 // part.tables.microbatch // 16
        units = range(part.tables.num_units)
        expected.append(fewest * max(part.tables.compute_s[:, u, u + 1].min() for u in units))
    assert certificate.value == pytest.approx(min(expected), rel=1e-12)


def generated(seed: int) -> Problem | None:
    """Return a problem of a few GPUs of two or three types in two regions; None: too large."""
    rng = random.Random(seed)
    types = rng.sample(sorted(TYPES), rng.choice((2, 2, 3)))
    quotas = {
        gpu: [rng.choice((0, 1, 2, 3)), rng.choice((0, 0, 1, 2)), rng.choice((1, 2, 3))]
        for gpu in types
    }
    problem = two_regions(
        quotas,
        rng.choice(("sailor", "published", "published")),
        training={"global_batch": rng.choice((4, 4, 6, 7, 12)), "precision": "fp32"},
        search_space={
            "tp": rng.choice(([1], [1, 2])),
            "microbatch": rng.choice(([1], [1, 2], [2, 4])),
            "max_pp": rng.choice((2, 3)),
        },
    )
    return None if ExhaustivePlanner(20_000).unsupported(problem) else problem


def relative_bound(seed: int) -> float | None:
    """Return bound over optimum of one generated problem; None: too large, or no plan."""
    problem = generated(seed)
    if problem is None:
        return None
    plan = ExhaustivePlanner().solve(problem, Limits(), lambda p: None, lambda: False).plan
    if plan is None:
        return None
    best = estimate(problem, plan).iteration_s
    certificate = Certificate(problem, 24)
    certificate.first_look(best * 1.3, lambda: False)
    certificate.improve(best * 1.3, 1e-4, 60, lambda: False)
    return certificate.value / best


@pytest.mark.parametrize("most_groups", [0, 99])
def test_the_bound_holds_over_regions(most_groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagrange_tables, "_MOST_GROUPS", most_groups)
    ratios = [ratio for seed in range(12) if (ratio := relative_bound(seed)) is not None]
    assert len(ratios) >= 4
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) > 0.4


def bounds_step_by_step(seed: int) -> list[float] | None:
    """Return bounds over optimum as a search goes on from its boxes with ever lower limits."""
    problem = generated(seed)
    if problem is None:
        return None
    plan = ExhaustivePlanner().solve(problem, Limits(), lambda p: None, lambda: False).plan
    if plan is None:
        return None
    best = estimate(problem, plan).iteration_s
    certificate = Certificate(problem, 24)
    certificate.first_look(best * 1.5, lambda: False)
    found = []
    for times in (1.5, 1.2, 1.2, 1.0, 1.0):
        certificate.improve(best * times, 1e-3, 8, lambda: False)
        found.append(certificate.value / best)
    return found


def test_a_search_goes_on_from_its_boxes() -> None:
    ratios = [found for seed in range(12) if (found := bounds_step_by_step(seed)) is not None]
    assert len(ratios) >= 4
    assert all(later >= sooner - 1e-12 for own in ratios for sooner, later in pairwise(own))
    assert max(own[-1] for own in ratios) <= 1 + 1e-9
    # Two steps with the same limit: the second is no repetition.
    assert sum(own[2] > own[1] + 1e-6 for own in ratios) >= 2
