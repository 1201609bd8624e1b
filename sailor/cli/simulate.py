"""`sailor simulate`: the estimate of a given plan."""

from __future__ import annotations

from pathlib import Path

import click

from sailor.cli import endings
from sailor.cli.options import OUT_FILE, table_or_json
from sailor.cli.output import check_writable, deliver
from sailor.cli.session import Session


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("plan", metavar="PLAN")
@table_or_json
@click.option("--out", type=OUT_FILE, metavar="FILE", help="Write there instead of to stdout.")
@click.pass_obj
def command(session: Session, job: str, plan: str, format_: str, out: Path | None) -> int:
    """Estimate a given plan on a job's pool, part by part.

    PLAN is a plan, or a result that holds one. Exit code 3: the plan can't be run on this pool;
    the violations say why.
    """
    from sailor.api import load_plan, simulate
    from sailor.cli.jobs import JobFile
    from sailor.report.tables import estimate_text

    if job == plan == "-":
        raise click.UsageError("JOB and PLAN can't both be standard input")
    check_writable(out)
    file = JobFile.load(job)
    given = load_plan(plan)
    registry = session.registry()
    estimate = file.placed(lambda: simulate(file.job, given, registry=registry))
    as_json = format_ == "json" or (out is not None and out.suffix == ".json")
    text = (
        estimate.model_dump_json(indent=2) + "\n"
        if as_json
        else estimate_text(file.job.name, given, estimate)
    )
    deliver(text, out)
    return endings.INFEASIBLE if estimate.violations else endings.PLAN_FOUND
