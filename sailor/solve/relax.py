"""What would make a job feasible: the limits in conflict, and the least change of each.

Every suggestion comes with a plan that was found under it, so it works; a smaller change than the
one named may work too where the dynamic programme misses a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sailor.interfaces import Limits
from sailor.model.job import Constraints, Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.solve.dynamic import DynamicPlanner
from sailor.solve.search import Budget
from sailor.solve.zone_sets import zone_sets

_SEARCH_S = 1.0  # of one search
_MOST_TIMES = 64  # so many times the pool is tried at most
_MOST_OFFERS = 6
_PINNED = ("tp", "pp", "dp", "microbatch")
_COUNTED = ("max_gpus", "max_nodes", "max_zones")
_LIMITS = ("max_usd_per_iteration", "min_iterations_per_s", *_COUNTED, *_PINNED, "memory_headroom")


@dataclass(frozen=True)
class Relaxed:
    """Which limits are in conflict, and sentences that each name a change that would do."""

    conflict: str | None = None
    changes: tuple[str, ...] = ()
    plan: Plan | None = None  # a plan that the search missed: then there is nothing to relax


def relaxed(
    problem: Problem,
    variants: Mapping[str, Callable[[], Problem | None]],
    *,
    most_s: float,
    should_stop: Callable[[], bool],
) -> Relaxed:
    """Return what stands in the way of a plan, after `most_s` seconds at most.

    `variants` are other problems by what was changed ("without constraints.zones"): where nothing
    else helps, those that have a plan are named; None where there is no such problem.
    """
    return _Relaxation(problem, Budget(most_s, should_stop)).run(variants)


class _Relaxation:
    """One job that has no plan."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget = problem, budget

    def run(self, variants: Mapping[str, Callable[[], Problem | None]]) -> Relaxed:
        """Find the conflict, then the least change of each limit in it."""
        limits = self.problem.constraints
        active = [name for name in _LIMITS if getattr(limits, name) not in (None, 0)]
        missed = self._plan(self.problem)
        if missed is not None:
            return Relaxed(plan=missed)
        if active and self._plan(self._without(active)) is not None:
            return self._limits_at_fault(active)
        changes = [*self._more_nodes(), *self._variants(variants)]
        return Relaxed(None, tuple(changes))

    def _limits_at_fault(self, active: Sequence[str]) -> Relaxed:
        core = list(active)
        for name in active:
            rest = [other for other in core if other != name]
            if rest and self._plan(self._only(rest)) is None and not self.budget.over():
                core = rest  # in conflict without it too
        changes = [change for name in core if (change := self._change(name)) is not None]
        named = [_shown(name, getattr(self.problem.constraints, name)) for name in core]
        if len(named) == 1:
            conflict = f"{named[0]} can't be met on this pool"
        else:
            conflict = f"{' and '.join(named)} are in conflict: no plan was found that meets all"
        return Relaxed(conflict, tuple(changes))

    def _change(self, name: str) -> str | None:
        """Return the least change of one limit that leaves the others as they are."""
        old = getattr(self.problem.constraints, name)
        plan = self._plan(self._without([name], self._objective_of(name)))
        if plan is None:
            return None
        new = self._value(name, old, plan)
        return None if new is None else f"{_shown(name, old)} -> {_text(name, new)}"

    def _objective_of(self, name: str) -> Objective | None:
        """Return what to look for so that the limit is broken by as little as can be."""
        return {
            "max_usd_per_iteration": Objective.MIN_COST,
            "min_iterations_per_s": Objective.MAX_THROUGHPUT,
        }.get(name)

    def _value(self, name: str, old: float, plan: Plan) -> float | None:
        found = estimate(self.problem, plan)
        if name == "max_usd_per_iteration":
            return _rounded(found.usd_per_iteration, up=True)
        if name == "min_iterations_per_s":
            return _rounded(found.iterations_per_s, up=False)
        if name == "memory_headroom":
            room = min(worker.capacity_bytes - worker.bound_bytes for worker in found.memory)
            return float(math.floor(room / 2**20) * 2**20)
        if name in _COUNTED:
            taken = {
                "max_gpus": sum(node.gpus_rented for node in found.nodes),
                "max_nodes": sum(node.count for node in found.nodes),
                "max_zones": len({node.zone for node in found.nodes}),
            }[name]
            return self._least(int(old), taken, lambda number: self._with(name, number))
        own = {
            "tp": [r.tp for stage in plan.stages for r in stage.replicas],
            "pp": [plan.pp],
            "dp": [plan.dp],
            "microbatch": [plan.stages[0].replicas[0].microbatch],
        }[name]
        return self._nearest(name, int(old), own)

    def _nearest(self, name: str, old: int, own: Sequence[int]) -> float | None:
        """Return the value nearest to a pinned one that has a plan; only one if it is pinned."""
        tried = {value for k in (1, 2, 4) for value in (old - k, old + k, old * 2 * k)}
        tried |= {old // 2, old // 4, *own}
        for value in sorted(tried, key=lambda value: (abs(value - old), value)):
            if value >= 1 and value != old and self._plan(self._with(name, value)) is not None:
                return value
        return None

    def _least(self, low: int, high: int, case: Callable[[int], Problem]) -> int:
        """Return the least number above `low` with a plan, by bisection; `high` has one."""
        while high - low > 1 and not self.budget.over():
            middle = (low + high) // 2
            if self._plan(case(middle)) is None:
                low = middle
            else:
                high = middle
        return high

    def _more_nodes(self) -> list[str]:
        """Return how many more nodes or GPUs of each offer would do, the fewest first."""
        found: list[tuple[int, str]] = []
        for number, capacity in enumerate(self.problem.capacities[:_MOST_OFFERS]):
            have = capacity.max_nodes or capacity.max_gpus or 0
            step = 1 if capacity.max_nodes is not None else self._node_gpus(number)
            more = step
            while more <= _MOST_TIMES * have and not self.budget.over():
                if self._plan(self._grown(number, more)) is not None:
                    low = more // 2 // step
                    least = self._least(low, more // step, self._grown_by(number, step)) * step
                    what = "more nodes" if capacity.max_nodes is not None else "more GPUs"
                    found.append((least, f"{least} {what} of {capacity.label}"))
                    break
                more *= 2
        return [sentence for _, sentence in sorted(found)]

    def _grown_by(self, number: int, step: int) -> Callable[[int], Problem]:
        return lambda steps: self._grown(number, steps * step)

    def _node_gpus(self, number: int) -> int:
        places = self.problem.capacities[number].placements
        nodes = [self.problem.node(self.problem.placements[n].node_type) for n in places]
        return min(node.num_gpus for node in nodes)

    def _grown(self, number: int, more: int) -> Problem:
        capacities = list(self.problem.capacities)
        old = capacities[number]
        name = "max_gpus" if old.max_nodes is None else "max_nodes"
        capacities[number] = old.model_copy(update={name: (getattr(old, name) or 0) + more})
        return self.problem.model_copy(update={"capacities": tuple(capacities)})

    def _variants(self, variants: Mapping[str, Callable[[], Problem | None]]) -> list[str]:
        found: list[str] = []
        for change, build in variants.items():
            if self.budget.over():
                break
            other = build()
            plan = None if other is None else self._plan(other)
            if plan is not None:
                found.append(f"{change} (a plan with {_degrees(plan)} was found)")
        return found

    def _with(self, name: str, value: float) -> Problem:
        return self._constrained({name: value})

    def _without(self, names: Sequence[str], objective: Objective | None = None) -> Problem:
        return self._constrained({name: _off(name) for name in names}, objective)

    def _only(self, names: Sequence[str]) -> Problem:
        return self._without([name for name in _LIMITS if name not in names])

    def _constrained(
        self, changes: Mapping[str, float | None], objective: Objective | None = None
    ) -> Problem:
        limits: Constraints = self.problem.constraints.model_copy(update=dict(changes))
        goal = objective or self.problem.objective
        return self.problem.model_copy(update={"constraints": limits, "objective": goal})

    def _plan(self, case: Problem) -> Plan | None:
        """Return a plan of a changed problem, or None when searches of a second find none."""
        for other in _searches(case):
            left_s = self.budget.left_s()
            if self.budget.over():
                return None
            found = DynamicPlanner().solve(
                other,
                Limits(wall_s=_SEARCH_S if left_s is None else min(_SEARCH_S, left_s)),
                lambda progress: None,
                self.budget.over,
            )
            plan = found.plan
            if plan is not None and not estimate(case, plan).violations:
                return plan
        return None


def _searches(case: Problem) -> list[Problem]:
    """Return the problem and others whose best plan may be one of it.

    Near the edge of what is possible a limit leaves a search nothing to start from; the fastest or
    the cheapest plan without that limit may keep it.
    """
    sets = zone_sets(case)
    if sets is not None:
        return [other for _, own in sets.problems for other in _searches_within(own)]
    return _searches_within(case)


def _searches_within(case: Problem) -> list[Problem]:
    limits = case.constraints
    money = ("max_usd_per_iteration", "min_iterations_per_s")
    if all(getattr(limits, name) is None for name in money):
        return [case]
    free = limits.model_copy(update=dict.fromkeys(money))
    others = [
        case.model_copy(update={"objective": goal, "constraints": kept})
        for kept in (free, limits)
        for goal in Objective
    ]
    return [case, *(other for other in others if other != case)]


def _degrees(plan: Plan) -> str:
    """Return a plan's tp and microbatch, which a job may have ruled out."""
    tps = sorted({replica.tp for stage in plan.stages for replica in stage.replicas})
    sizes = sorted({replica.microbatch for replica in plan.stages[0].replicas})
    return f"tp {'/'.join(map(str, tps))} and microbatch {'/'.join(map(str, sizes))}"


def _off(name: str) -> float | None:
    return 0 if name == "memory_headroom" else None


def _rounded(value: float, *, up: bool) -> float:
    """Return a value with three significant digits, rounded to the side that is still met."""
    digits = 2 - math.floor(math.log10(abs(value)))
    scale = 10.0**digits
    return (math.ceil(value * scale) if up else math.floor(value * scale)) / scale


def _text(name: str, value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if name == "memory_headroom" else f"{value:g}"


def _shown(name: str, value: float) -> str:
    return f"{name} {_text(name, value)}"
