"""`sailor pareto`: what speed costs."""

from __future__ import annotations

from pathlib import Path

import click

from sailor.cli import endings
from sailor.cli.interrupt import Interrupt
from sailor.cli.options import OUT_FILE, bound_options, planner_option, processes_option
from sailor.cli.output import check_writable, deliver, note
from sailor.cli.search_progress import ProgressLine
from sailor.cli.session import Session

_FORMATS = ("table", "json", "svg")
_TIME_LIMIT, _GAP = bound_options()


@click.command()
@click.argument("job", metavar="JOB")
@click.option(
    "--points",
    type=click.IntRange(2, 100),
    default=8,
    show_default=True,
    metavar="N",
    help="How many plans to look for.",
)
@planner_option("auto")
@_TIME_LIMIT
@_GAP
@processes_option
@click.option(
    "--format",
    "format_",
    type=click.Choice(_FORMATS),
    help="Text for people, JSON, or a plot.  [default: table, or by the suffix of --out]",
)
@click.option("--out", type=OUT_FILE, metavar="FILE", help="Write there instead of to stdout.")
@click.pass_obj
def command(
    session: Session,
    job: str,
    points: int,
    planner: str,
    time_limit: float | None,
    gap: float | None,
    processes: int | None,
    format_: str | None,
    out: Path | None,
) -> int:
    """Show plans between the cheapest and the fastest, none beaten by another.

    Each is the cheapest plan found that is at least so fast, with its gap to what is possible. The
    time limit (100 s by default) is that of all points together. The first Ctrl-C gives those
    found so far.
    """
    from sailor.api import FRONT_S, pareto
    from sailor.cli.jobs import JobFile
    from sailor.report.front import front_json, front_svg, front_text

    check_writable(out)
    suffix = "" if out is None else out.suffix.removeprefix(".")
    shown = format_ or (suffix if suffix in _FORMATS else "table")
    registry = session.registry()
    registry.planner(planner, where="--planner")
    file = JobFile.load(job)
    line = ProgressLine(shown=shown != "json")
    with Interrupt("stopping with the plans so far") as interrupt, line as show:
        found = file.placed(
            lambda: pareto(
                file.job,
                points=points,
                planner=planner,
                gap=gap,
                time_limit_s=time_limit or FRONT_S,
                processes=processes,
                registry=registry,
                on_progress=show,
                should_stop=interrupt.asked,
            )
        )
    if not found:
        note(f"{file.job.name}: no plan was found; `sailor plan` says why")
        return endings.NO_PLAN
    written = {"table": front_text, "json": front_json, "svg": front_svg}[shown]
    deliver(written(file.job.name, found), out)
    if out is not None:
        note(f"{file.job.name}: {len(found)} plans; written to {out}")
    return endings.PLAN_FOUND
