"""`sailor simulate`: the estimate of a given plan."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor.cli import endings
from sailor.cli.options import OUT_FILE, table_or_json
from sailor.cli.output import check_writable, deliver
from sailor.cli.session import Session

if TYPE_CHECKING:
    from sailor.cli.jobs import JobFile
    from sailor.model.plan import Plan
    from sailor.registry import Registry
    from sailor.sim.fidelity import Fidelity


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("plan", metavar="PLAN")
@table_or_json
@click.option(
    "--fidelity",
    type=click.Choice(["closed_form", "event"]),
    default="closed_form",
    show_default=True,
    help="Take the closed form, or simulate every operation.",
)
@click.option(
    "--trace",
    type=OUT_FILE,
    metavar="FILE",
    help="Write the timeline of every worker and link for Perfetto (fidelity event).",
)
@click.option("--out", type=OUT_FILE, metavar="FILE", help="Write there instead of to stdout.")
@click.pass_obj
def command(
    session: Session,
    job: str,
    plan: str,
    format_: str,
    fidelity: Fidelity,
    trace: Path | None,
    out: Path | None,
) -> int:
    """Estimate a given plan on a job's pool, part by part.

    PLAN is a plan, or a result that holds one. Exit code 3: the plan can't be run on this pool;
    the violations say why.
    """
    from sailor.api import load_plan, simulate
    from sailor.cli.jobs import JobFile as LoadedJob
    from sailor.report.tables import estimate_text

    if job == plan == "-":
        raise click.UsageError("JOB and PLAN can't both be standard input")
    if trace is not None and fidelity != "event":
        raise click.UsageError("--trace needs --fidelity event: the closed form has no timeline")
    check_writable(out)
    check_writable(trace)
    file = LoadedJob.load(job)
    given = load_plan(plan)
    registry = session.registry()
    estimate = file.placed(lambda: simulate(file.job, given, fidelity=fidelity, registry=registry))
    if trace is not None:
        _write_trace(file, given, registry, trace)
    as_json = format_ == "json" or (out is not None and out.suffix == ".json")
    text = (
        estimate.model_dump_json(indent=2) + "\n"
        if as_json
        else estimate_text(file.job.name, given, estimate)
    )
    deliver(text, out)
    return endings.INFEASIBLE if estimate.violations else endings.PLAN_FOUND


def _write_trace(file: JobFile, plan: Plan, registry: Registry, trace: Path) -> None:
    from sailor.api import simulate_events
    from sailor.model.files import write_atomic
    from sailor.report.perfetto import write_trace

    found = file.placed(lambda: simulate_events(file.job, plan, registry=registry))
    text = io.StringIO()
    write_trace(found.events, plan, text)
    write_atomic(trace, text.getvalue())
