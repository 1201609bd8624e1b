"""Results and estimates as text for people, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterable

from sailor.model.estimate import Estimate
from sailor.model.plan import Plan
from sailor.model.result import Result, Status
from sailor.report.layout import beside, blocks, digest, listing, number, section
from sailor.report.parts import (
    cost_section,
    headline,
    memory_section,
    rent_section,
    shape,
    stage_section,
    time_section,
)

_STATUS_WORDS = {
    Status.OPTIMAL: "the best plan of the search space",
    Status.FEASIBLE: "a plan, not proven to be the best",
    Status.INFEASIBLE: "no plan exists",
    Status.NO_PLAN: "no plan found within the limit",
}


def result_text(result: Result) -> str:
    """Return a result: what to rent, how to split the model, what it takes; or why not."""
    title = (
        f"{result.job}: {result.status}, {_STATUS_WORDS[result.status]}\n"
        f"  {result.objective} by {result.planner}, cost model {result.cost_model}; "
        f"{_search(result)}"
    )
    notes = (
        section("Assumptions", digest(_assumptions(result))),
        section("Not used, and remarks", digest(result.excluded)),
        section("Rules of the search", digest(result.rules)),
    )
    if result.plan is None or result.estimate is None:
        return blocks(
            title,
            section("Why", listing(result.reasons)),
            section("Any one of these would help", listing(result.relaxations)),
            *notes,
        )
    return blocks(
        title,
        headline(result.estimate, result.event) + "\n" + shape(result.plan, result.estimate),
        section("This plan can't be run", listing(result.estimate.violations)),
        rent_section(result.estimate),
        section("Left unused", digest(result.unused)),
        stage_section(result.plan, result.estimate),
        beside(time_section(result.estimate), cost_section(result.estimate)),
        section("How sure", listing(_bands(result.estimate))),
        *notes,
    )


def results_text(results: Iterable[Result]) -> str:
    """Return several results, one after the other."""
    return "\n".join(result_text(result) for result in results)


def estimate_text(name: str, plan: Plan, estimate: Estimate) -> str:
    """Return the estimate of a given plan, part by part, with its violations."""
    verdict = "this plan can't be run" if estimate.violations else "this plan can be run"
    return blocks(
        f"{name}: {verdict} (cost model {estimate.cost_model})",
        section("Violations", listing(estimate.violations)),
        headline(estimate) + "\n" + shape(plan, estimate),
        rent_section(estimate),
        stage_section(plan, estimate),
        beside(time_section(estimate), cost_section(estimate)),
        memory_section(estimate),
        section("How sure", listing(_bands(estimate))),
        section("Assumptions", digest(estimate.assumptions)),
    )


def _bands(estimate: Estimate) -> list[str]:
    """Return what is known of the error of each kind of figure."""
    return [
        f"{figure.name}: {figure.provenance}; such estimates were {figure.error_pct:g} % off on "
        "average"
        for figure in estimate.figures
        if figure.error_pct is not None
    ]


def _assumptions(result: Result) -> list[str]:
    more = result.estimate.assumptions if result.estimate is not None else ()
    return list(dict.fromkeys((*result.assumptions, *more)))


def _search(result: Result) -> str:
    text = f"searched {number(result.search_wall_s, 3)} s"
    if result.evaluations:
        text += f", {result.evaluations:,} plans"
    if result.gap:
        text += f", gap to the bound {result.gap:.2%}"
    if result.stop_reason is not None:
        return f"{text}; stopped: {result.stop_reason}"
    return text + (", stopped early" if result.stopped_early else "")
