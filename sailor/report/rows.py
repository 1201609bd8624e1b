"""Results as CSV rows: one result a row, units in the headings."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from sailor.model.result import Result

HEADINGS = (
    "job",
    "status",
    "objective",
    "planner",
    "cost_model",
    "iteration_s",
    "iterations_per_s",
    "samples_per_s",
    "tokens_per_s",
    "usd_per_iteration",
    "usd_per_hour",
    "pp",
    "dp",
    "gpus_used",
    "gpus_rented",
    "objective_value",
    "bound",
    "gap",
    "stopped_early",
    "search_wall_s",
    "search_cpu_s",
    "evaluations",
    "reasons",
    "problem_digest",
    "sailor_version",
)


def results_csv(results: Iterable[Result]) -> str:
    """Return the headings and one row a result; what a result doesn't have is left empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, HEADINGS, lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerow(_row(result))
    return buffer.getvalue()


def _row(result: Result) -> dict[str, object]:
    return {
        "job": result.job,
        "status": str(result.status),
        "objective": str(result.objective),
        "planner": result.planner,
        "cost_model": result.cost_model,
        "objective_value": result.objective_value,
        "bound": result.bound,
        "gap": result.gap,
        "stopped_early": result.stopped_early,
        "search_wall_s": result.search_wall_s,
        "search_cpu_s": result.search_cpu_s,
        "evaluations": result.evaluations,
        "reasons": "; ".join(result.reasons),
        "problem_digest": result.problem_digest,
        "sailor_version": result.sailor_version,
        **_plan_cells(result),
    }


def _plan_cells(result: Result) -> dict[str, object]:
    plan, estimate = result.plan, result.estimate
    if plan is None or estimate is None:
        return {}
    tokens = estimate.tokens
    return {
        "iteration_s": estimate.iteration_s,
        "iterations_per_s": estimate.iterations_per_s,
        "samples_per_s": estimate.samples / estimate.iteration_s,
        "tokens_per_s": None if tokens is None else tokens / estimate.iteration_s,
        "usd_per_iteration": estimate.usd_per_iteration,
        "usd_per_hour": estimate.usd_per_hour,
        "pp": plan.pp,
        "dp": plan.dp,
        "gpus_used": plan.num_gpus,
        "gpus_rented": sum(node.gpus_rented for node in estimate.nodes),
    }
