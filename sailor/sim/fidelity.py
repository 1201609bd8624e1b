"""The estimate of a plan at two fidelities: the closed form, or every operation in the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sailor.errors import InputError
from sailor.model.estimate import CostTerm, Estimate, TimeBreakdown
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.check import constraint_violations, plan_violations
from sailor.sim.estimate import estimate
from sailor.sim.event_estimate import EventEstimate, event_time
from sailor.sim.provenance import figures

Fidelity = Literal["closed_form", "event"]


@dataclass(frozen=True)
class EventResult:
    """An estimate whose time and memory are the engine's, and the engine's own account."""

    estimate: Estimate
    events: EventEstimate


def estimate_events(problem: Problem, plan: Plan, *, with_timeline: bool = False) -> EventResult:
    """Simulate every operation of one iteration and put the result in an estimate's form.

    Raises InputError for a cost model that has no operations ("published" is a formula).
    """
    if problem.cost_model != "sailor":
        raise InputError(
            f"cost model {problem.cost_model!r} is a closed form and has no events",
            where="fidelity",
            hint="use cost_model: sailor, or fidelity closed_form",
        )
    base = estimate(problem, plan)
    events = event_time(problem, plan, with_timeline=with_timeline)
    time = TimeBreakdown(
        compute_s=events.compute_s,
        p2p_s=events.p2p_s,
        bubble_s=events.bubble_s,
        dp_sync_s=events.allreduce_s + events.local_s,
        update_s=events.update_s,
        total_s=events.total_s,
    )
    rent = sum(node.usd_per_hour for node in base.nodes) / 3600.0 * time.total_s
    others = tuple(term for term in base.cost if term.name != "compute")
    cost = (CostTerm(name="compute", usd_per_iteration=rent), *others)
    found = base.model_copy(
        update={
            "fidelity": "event",
            "time": time,
            "memory": events.memory,
            "cost": cost,
            "usd_per_iteration": sum(term.usd_per_iteration for term in cost),
            "figures": figures(problem, plan, "event"),
            "assumptions": tuple(dict.fromkeys((*problem.assumptions, *events.assumptions))),
        }
    )
    violations = plan_violations(problem, plan, found) + constraint_violations(problem, plan, found)
    return EventResult(found.model_copy(update={"violations": tuple(violations)}), events)
