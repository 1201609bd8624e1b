"""Generated problems that `exhaustive` can enumerate, with limits that bind."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from datetime import date
from typing import Any

from tiny_jobs import TINY_MODEL, tiny_job

from sailor.api import build_problem
from sailor.interfaces import Limits, Planner, SearchOutcome
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.sim.estimate import estimate
from sailor.solve.decide import decide
from sailor.solve.exhaustive import ExhaustivePlanner

REGISTRY = Registry.load(entry_points=False)
MOST_PLANS = 60_000
MOST_GPUS = 16

# GPU type: (its node types of one and two GPUs, dollars an hour of a GPU)
TYPES = {
    "A100-40GB": (("a2-highgpu-1g", "a2-highgpu-2g"), 3.7),
    "V100-16GB": (("n1-v100-1", "n1-v100-2"), 2.8),
    "T4-16GB": (("n1-t4-1", "n1-t4-2"), 0.6),
}
ZONES = ("us-central1-a", "us-central1-b", "us-west1-b")


def two_regions(
    quotas: dict[str, list[int]], cost_model: str = "published", **more: Any
) -> Problem:
    """Return a tiny model over so many GPUs of each type in each of the zones."""
    told = {"source": "test", "as_of": date(2026, 1, 1)}
    nodes = {gpu: TYPES[gpu][0] for gpu in quotas}
    job = tiny_job(a100=1, v100=0, zones=1, batch=64, objective="max_throughput",
                   cost_model=cost_model)  # fmt: skip
    job["pool"] = [
        {"zone": zone, "gpu": gpu, "quota": quota, "node_types": nodes[gpu]}
        for gpu, own in quotas.items()
        for zone, quota in zip(ZONES, own, strict=False)
        if quota
    ]
    job["sources"]["network"] = ["measured", "zones"]
    job["catalog"] = {
        "prices": [
            {"zone": zone, "node_type": node, "market": "on_demand", "usd_per_hour": 2.0, **told}
            for zone in ZONES
            for own in nodes.values()
            for node in own
        ],
        "egress": [{"src": a, "dst": b, "usd_per_byte": 0.0, **told} for a in ZONES for b in ZONES],
    }
    return build_problem({**job, **more}, registry=REGISTRY)


def small_problem(seed: int) -> Problem:
    """Return a problem of at most 16 GPUs of two or three types in one to three zones.

    Half of them have a floor, a budget or both, between what the pool can do at best and twice as
    bad. The same seed gives the same problem.
    """
    rng = random.Random(seed)
    while True:
        problem = _problem(rng)
        if not ExhaustivePlanner(MOST_PLANS).unsupported(problem):
            break
    return _limited(problem, rng) if rng.random() < 0.5 else problem


def _problem(rng: random.Random) -> Problem:
    zones = ZONES[: rng.choice((1, 1, 2, 2, 3))]
    types = rng.sample(sorted(TYPES), rng.choice((2, 2, 3)))
    pool: list[dict[str, Any]] = []
    left = MOST_GPUS
    for gpu in types:
        for zone in zones:
            quota = rng.choice((0, 1, 2, 2, 3, 4, 6, 8))
            if 0 < quota <= left:
                left -= quota
                offer = {"zone": zone, "gpu": gpu, "quota": quota, "node_types": TYPES[gpu][0]}
                pool.append(offer)
    if len({offer["gpu"] for offer in pool}) < 2:
        return _problem(rng)
    told = {"source": "test", "as_of": date(2026, 1, 1)}
    prices = [
        {"zone": zone, "node_type": node, "market": "on_demand", **told,
         "usd_per_hour": usd * gpus * rng.choice((0.9, 1.0, 1.1))}
        for nodes, usd in TYPES.values() for gpus, node in enumerate(nodes, 1) for zone in zones
    ]  # fmt: skip
    egress = [
        {"src": a, "dst": b, "usd_per_byte": 0.0 if a == b else rng.choice((1e-11, 2e-11)), **told}
        for a in zones for b in zones
    ]  # fmt: skip
    job = {
        "name": "small",
        "model": {**TINY_MODEL, "num_layers": rng.choice((2, 2, 3))},
        "training": {"global_batch": rng.choice((4, 6, 7, 12, 16)), "precision": "fp32"},
        "pool": pool,
        "objective": rng.choice(("max_throughput", "min_cost")),
        "cost_model": rng.choice(("sailor", "published")),
        "sources": {"prices": "file", "profiles": "analytic", "network": ["measured", "zones"]},
        "catalog": {"prices": prices, "egress": egress},
        "search_space": {"tp": rng.choice(([1], [1, 2])),
                         "microbatch": rng.choice(([1], [1, 2], [2, 4])),
                         "max_pp": rng.choice((2, 3))},
    }  # fmt: skip
    return build_problem(job, registry=REGISTRY)


def _limited(problem: Problem, rng: random.Random) -> Problem:
    """Return the problem with limits that its fastest and cheapest plans nearly meet, or don't."""
    limits: dict[str, float] = {}
    fast, cheap = (best_value(problem, objective) for objective in Objective)
    if fast is None or cheap is None:
        return problem
    if rng.random() < 0.6:
        limits["min_iterations_per_s"] = fast * rng.choice((0.5, 0.7, 0.9, 1.01))
    if rng.random() < 0.6:
        limits["max_usd_per_iteration"] = cheap * rng.choice((0.99, 1.1, 1.5, 2.0))
    if rng.random() < 0.3:
        limits["max_gpus"] = rng.choice((2, 4, 6))
    if rng.random() < 0.2:
        limits["max_nodes"] = rng.choice((1, 2, 3))
    if len(problem.zones) > 1 and rng.random() < 0.4:
        limits["max_zones"] = 1
    constraints = problem.constraints.model_copy(update=limits)
    return problem.model_copy(update={"constraints": constraints})


def best_value(problem: Problem, objective: Objective) -> float | None:
    """Return the best value of an objective, by the oracle; None without any plan."""
    case = problem.model_copy(update={"objective": objective})
    plan = _searched(case, ExhaustivePlanner(), Limits(), lambda: False).plan
    if plan is None:
        return None
    found = estimate(case, plan)
    throughput = objective is Objective.MAX_THROUGHPUT
    return found.iterations_per_s if throughput else found.usd_per_iteration


def _searched(
    problem: Problem, planner: Planner, limits: Limits, should_stop: Callable[[], bool]
) -> SearchOutcome:
    """Search as the API does: within each set of zones, where their number is limited."""
    return decide([problem], planner, limits, lambda p: None, should_stop, chosen=False).outcome


class Outcome:
    """What one planner says of a problem, in seconds or dollars (less is better)."""

    def __init__(self, problem: Problem, planner: str, cpu_s: float = math.inf) -> None:
        """Search for `cpu_s` seconds of this process at most."""
        end_s = time.process_time() + cpu_s
        found = _searched(
            problem,
            REGISTRY.planner(planner),
            Limits(wall_s=600.0),
            lambda: time.process_time() > end_s,
        )
        self.planner = planner
        self.proven = found.proven
        self.value = _less(problem, _value(problem, found.plan))
        self.bound = _less(problem, found.bound)


def _value(problem: Problem, plan: Plan | None) -> float | None:
    if plan is None:
        return None
    found = estimate(problem, plan)
    if found.violations:
        raise AssertionError(f"a plan that breaks a limit: {found.violations}")
    throughput = problem.objective is Objective.MAX_THROUGHPUT
    return found.iterations_per_s if throughput else found.usd_per_iteration


def _less(problem: Problem, value: float | None) -> float | None:
    if value is None or problem.objective is Objective.MIN_COST:
        return value
    return 1.0 / value


def faults(exact: Outcome, found: Outcome) -> list[str]:
    """Return what contradicts the oracle: bound <= optimum <= plan, and proofs that are none."""
    if exact.value is None:
        return [f"{found.planner} has a plan where there is none"] if found.value else []
    said = []
    if found.value is None:
        if found.proven:
            said.append(f"{found.planner} calls a feasible problem infeasible")
    elif found.value < exact.value * (1 - 1e-9):
        said.append(f"{found.planner} beats the oracle: {found.value} < {exact.value}")
    elif found.proven and found.value > exact.value * (1 + 1.1e-4):
        said.append(f"{found.planner} calls {found.value} the best, it is {exact.value}")
    if found.bound is not None and found.bound > exact.value * (1 + 1e-9):
        said.append(f"{found.planner} has the bound {found.bound} above {exact.value}")
    return said


def dearer(problem: Problem, rng: random.Random) -> Problem:
    """Return the problem with one price raised by a fifth."""
    places = list(problem.placements)
    number = rng.randrange(len(places))
    price = places[number].usd_per_hour
    places[number] = places[number].model_copy(update={"usd_per_hour": 1.2 * price})
    return problem.model_copy(update={"placements": tuple(places)})


def larger(problem: Problem, rng: random.Random) -> Problem:
    """Return the problem with one more GPU of one offer."""
    capacities = list(problem.capacities)
    number = rng.randrange(len(capacities))
    more = (capacities[number].max_gpus or 0) + 1
    capacities[number] = capacities[number].model_copy(update={"max_gpus": more})
    return problem.model_copy(update={"capacities": tuple(capacities)})


def renamed(problem: Problem) -> Problem:
    """Return the problem with other zone names, which sort the other way round."""
    text = problem.model_dump_json()
    for number, zone in enumerate(ZONES):
        text = text.replace(zone, f"place-{len(ZONES) - number}")
    return Problem.model_validate_json(text)
