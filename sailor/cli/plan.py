"""`sailor plan`: one job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor.cli import endings
from sailor.cli.interrupt import Interrupt
from sailor.cli.options import OUT_FILE, processes_option, search_options
from sailor.cli.output import check_writable, deliver, note
from sailor.cli.search_progress import ProgressLine
from sailor.cli.session import Session

if TYPE_CHECKING:
    from sailor.model.result import Result

_FORMAT_OF_SUFFIX = {".json": "json", ".csv": "csv"}


@click.command()
@click.argument("job", metavar="JOB")
@search_options(planner="auto")
@processes_option
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="table, json, csv or a plug-in's format.  [default: table, or by the suffix of --out]",
)
@click.option("--out", type=OUT_FILE, metavar="FILE", help="Write there instead of to stdout.")
@click.pass_obj
def command(
    session: Session,
    job: str,
    objective: str | None,
    planner: str,
    time_limit: float | None,
    gap: float | None,
    seed: int,
    work_limit: float | None,
    strict: bool,
    without_rules: tuple[str, ...],
    processes: int | None,
    format_: str | None,
    out: Path | None,
) -> int:
    """Plan one job: what to rent, how to split the model, what it takes.

    JOB is a YAML or JSON file (`-`: standard input). The first Ctrl-C ends the search and gives
    the best plan so far.
    """
    from sailor.api import optimize
    from sailor.cli.jobs import JobFile
    from sailor.interfaces import Limits
    from sailor.solve.crew import default_processes

    check_writable(out)
    registry = session.registry()
    by_suffix = _FORMAT_OF_SUFFIX.get(out.suffix, "table") if out else "table"
    sink = registry.report_sink(format_ or by_suffix, where="--format")
    registry.planner(planner, where="--planner")
    file = JobFile.load(job)
    limits = Limits(
        wall_s=time_limit,
        seed=seed,
        disabled_rules=without_rules,
        gap=gap,
        work_s=work_limit,
    )
    line = ProgressLine(shown=sink.name != "json")
    with Interrupt("stopping with the best plan so far") as interrupt, line as show:
        result = file.placed(
            lambda: optimize(
                file.job,
                objective=objective,
                planner=planner,
                processes=processes or default_processes(),
                limits=limits,
                registry=registry,
                strict=strict,
                on_progress=show,
                should_stop=interrupt.asked,
            )
        )
    if gap is not None and result.plan is not None and result.bound is None:
        note(f"--gap {gap:g} had no effect: {result.planner} proved no bound for this job")
    deliver(sink.write([result]), out)
    if out is not None:
        note(f"{result.summary()}; written to {out}")
    return exit_code(result, interrupted=interrupt.asked())


def exit_code(result: Result, *, interrupted: bool = False) -> int:
    """Return the exit code that a result stands for."""
    from sailor.model.result import Status

    if result.plan is not None:
        return endings.PLAN_FOUND
    if result.status is Status.INFEASIBLE:
        return endings.INFEASIBLE
    return endings.INTERRUPTED if interrupted else endings.NO_PLAN
