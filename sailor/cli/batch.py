"""`sailor batch`: many jobs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor.cli import endings
from sailor.cli.interrupt import Interrupt
from sailor.cli.options import search_options
from sailor.cli.output import data
from sailor.cli.session import Session

if TYPE_CHECKING:
    from sailor.batch.run import Tally
    from sailor.batch.work import Outcome


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Folder of the results and of manifest.jsonl.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=1024),
    metavar="N",
    help="Worker processes.  [default: the CPU cores]",
)
@click.option("--retry", type=click.Choice(("failed",)), help="Run jobs again that failed before.")
@click.option("--dry-run", is_flag=True, help="Say what would run, and why.")
@search_options(planner="dynamic", planner_note=" The quickest is the default here.")
@click.pass_obj
def command(
    session: Session,
    inputs: tuple[str, ...],
    out: Path,
    workers: int | None,
    retry: str | None,
    dry_run: bool,
    objective: str | None,
    planner: str,
    time_limit: float | None,
    gap: float | None,
    seed: int,
    work_limit: float | None,
    strict: bool,
    without_rules: tuple[str, ...],
) -> int:
    """Plan many jobs: one result each, resumable.

    INPUT is a job file, a folder of them (searched recursively) or a .jsonl file with one job a
    line. A job that is done is run again only when it, a price or profile that it uses, or an
    option changed. The first Ctrl-C lets running jobs finish, the second stops them.
    """
    from sailor.batch.inputs import expand
    from sailor.batch.run import run_batch
    from sailor.batch.slots import Setup
    from sailor.batch.work import Options
    from sailor.cli.batch_progress import Progress
    from sailor.interfaces import Limits

    registry = session.registry()
    registry.planner(planner, where="--planner")
    options = Options(
        planner=planner,
        limits=Limits(
            wall_s=time_limit,
            seed=seed,
            disabled_rules=without_rules,
            gap=gap,
            work_s=work_limit,
        ),
        objective=objective,
        strict=strict,
        retry_failed=retry == "failed",
        dry_run=dry_run,
    )
    jobs = expand(inputs, out)
    setup = Setup(out, options, session.plugin_files)
    promise = "finishing the running jobs"
    with Interrupt(promise) as interrupt, Progress(len(jobs)) as progress:
        tally = run_batch(
            jobs,
            setup,
            workers=workers or _cores(),
            on_outcome=progress.show,
            should_stop=interrupt.asked,
        )
    data(dry_run_text(tally) if dry_run else summary_text(tally, out))
    if tally.stopped:
        return endings.INTERRUPTED
    failed = bool(tally.failures()) and not dry_run
    return endings.SOME_JOBS_FAILED if failed else endings.PLAN_FOUND


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def summary_text(tally: Tally, out: Path) -> str:
    """Return the counts, and each job without an answer with its sentence."""
    from sailor.report.layout import blocks, listing, section

    counts = ", ".join(f"{count} {word}" for word, count in sorted(tally.counts().items()))
    left = tally.total - tally.done
    title = f"{tally.done} of {tally.total} jobs: {counts or 'none ended'}; results in {out}"
    unplanned = [
        _sentence(outcome)
        for outcome in tally.outcomes
        if outcome.entry is not None and outcome.entry.exit_code == endings.INFEASIBLE
    ]
    return blocks(
        title,
        section("Failed", listing([_sentence(o) for o in tally.failures()])),
        section("Infeasible", listing(unplanned)),
        f"{left} jobs are left: run the same command to go on" if tally.stopped else "",
    )


def _sentence(outcome: Outcome) -> str:
    error = outcome.entry.error if outcome.entry is not None and outcome.entry.error else ""
    return error if outcome.origin in error else f"{outcome.origin}: {error}"


def dry_run_text(tally: Tally) -> str:
    """Return what would run, and why; what would not, and why not."""
    from sailor.report.layout import blocks, lines, section

    rows = []
    for outcome in tally.outcomes:
        if outcome.what == "would_run":
            error = f": {outcome.entry.error}" if outcome.entry is not None else ""
            rows.append(("run", outcome.name, outcome.origin, outcome.why + error))
        elif outcome.what == "up_to_date":
            rows.append(("skip", outcome.name, outcome.origin, "up to date"))
        elif outcome.what == "failed_before":
            rows.append(("skip", outcome.name, outcome.origin, "failed before (--retry failed)"))
        else:
            rows.append(("skip", outcome.name, outcome.origin, outcome.what.replace("_", " ")))
    would = sum(1 for row in rows if row[0] == "run")
    return blocks(section(f"{would} of {tally.total} jobs would run", lines(rows)))
