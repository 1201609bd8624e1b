"""At most so many zones: each set of zones that a plan may lie in is a problem of its own."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from itertools import combinations

from sailor.model.problem import Problem
from sailor.solve.pools import slots_of

MOST_SETS = 64


@dataclass(frozen=True)
class ZoneSets:
    """The problem within each set of zones, and how many sets are left out."""

    problems: tuple[tuple[str, Problem], ...]  # by the names of the zones
    left_out: int = 0


def zone_sets(problem: Problem) -> ZoneSets | None:
    """Return the problem within every set of `max_zones` zones; None where that is no limit.

    Sets of which the GPUs compute most come first, and are the ones to keep where there are more
    than MOST_SETS.
    """
    most = problem.constraints.max_zones
    rates: dict[str, float] = {}
    for slot in slots_of(problem):
        gpu = problem.gpu(slot.kinds[0].gpu)
        rate = slot.num_gpus * gpu.flop_per_s(problem.training.precision)
        rates[slot.zone] = rates.get(slot.zone, 0.0) + rate
    if most is None or most >= len(rates):
        return None
    fastest = sorted(rates, key=lambda zone: (-rates[zone], zone))
    looked_at = most
    while looked_at < len(fastest) and math.comb(looked_at, most) < MOST_SETS:
        looked_at += 1
    ranked = sorted(
        combinations(sorted(fastest[:looked_at]), most),
        key=lambda zones: -sum(rates[zone] for zone in zones),
    )[:MOST_SETS]
    return ZoneSets(
        tuple((", ".join(zones), inside(problem, set(zones))) for zones in ranked),
        math.comb(len(rates), most) - len(ranked),
    )


def inside(problem: Problem, zones: Set[str]) -> Problem:
    """Return the problem with the offers of some zones alone."""
    capacities = []
    for capacity in problem.capacities:
        own = tuple(n for n in capacity.placements if problem.placements[n].zone in zones)
        if own:
            capacities.append(capacity.model_copy(update={"placements": own}))
    return problem.model_copy(update={"capacities": tuple(capacities)})
