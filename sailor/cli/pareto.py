"""`sailor pareto`: what speed costs."""

from __future__ import annotations

import json

import click

from sailor.cli import endings
from sailor.cli.interrupt import Interrupt
from sailor.cli.options import table_or_json
from sailor.cli.output import deliver, note
from sailor.cli.session import Session


@click.command()
@click.argument("job", metavar="JOB")
@click.option(
    "--points",
    type=click.IntRange(2, 100),
    default=8,
    show_default=True,
    help="How many plans to look for.",
)
@click.option("--planner", default="dynamic", show_default=True, metavar="NAME")
@table_or_json
@click.pass_obj
def command(session: Session, job: str, points: int, planner: str, format_: str) -> int:
    """Show plans between the cheapest and the fastest, none beaten by another.

    Each is the cheapest plan found that is at least so fast. The first Ctrl-C gives those found
    so far.
    """
    from sailor.api import pareto
    from sailor.cli.jobs import JobFile
    from sailor.report.layout import number, table

    registry = session.registry()
    file = JobFile.load(job)
    with Interrupt("stopping with the plans so far") as interrupt:
        found = file.placed(
            lambda: pareto(
                file.job,
                points=points,
                planner=planner,
                registry=registry,
                should_stop=interrupt.asked,
            )
        )
    if not found:
        note(f"{file.job.name}: no plan was found; `sailor plan` says why")
        return endings.NO_PLAN
    if format_ == "json":
        rows = [
            {
                "plan": point.plan.model_dump(mode="json"),
                "estimate": point.estimate.model_dump(mode="json"),
                "objective": point.objective.value,
                "bound": point.bound,
                "gap": point.gap,
            }
            for point in found
        ]
        deliver(json.dumps({"job": file.job.name, "points": rows}, indent=2) + "\n", None)
        return endings.PLAN_FOUND
    headings = ("it/s", "s/iteration", "USD/iteration", "USD/h", "pp", "dp", "GPUs", "gap")
    lines = [
        (
            number(point.estimate.iterations_per_s),
            number(point.estimate.iteration_s),
            number(point.estimate.usd_per_iteration),
            number(point.estimate.usd_per_hour),
            str(point.plan.pp),
            str(point.plan.dp),
            str(point.plan.num_gpus),
            "" if point.gap is None else f"{point.gap:.1%}",
        )
        for point in found
    ]
    deliver(f"{file.job.name}: what speed costs\n" + table(headings, lines, left="") + "\n", None)
    return endings.PLAN_FOUND
