"""`sailor plan`: one job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor.cli import endings
from sailor.cli.interrupt import Interrupt
from sailor.cli.options import OUT_FILE, search_options
from sailor.cli.output import check_writable, deliver, note, on_terminal
from sailor.cli.session import Session

if TYPE_CHECKING:
    from sailor.interfaces import Progress
    from sailor.model.result import Result

_REDRAW_S = 0.1
_FORMAT_OF_SUFFIX = {".json": "json", ".csv": "csv"}


@click.command()
@click.argument("job", metavar="JOB")
@search_options
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
    seed: int,
    strict: bool,
    without_rules: tuple[str, ...],
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

    check_writable(out)
    registry = session.registry()
    by_suffix = _FORMAT_OF_SUFFIX.get(out.suffix, "table") if out else "table"
    sink = registry.report_sink(format_ or by_suffix, where="--format")
    registry.planner(planner, where="--planner")
    file = JobFile.load(job)
    limits = Limits(wall_s=time_limit, seed=seed, disabled_rules=without_rules)
    with Interrupt("stopping with the best plan so far") as interrupt, _Progress() as show:
        result = file.placed(
            lambda: optimize(
                file.job,
                objective=objective,
                planner=planner,
                limits=limits,
                registry=registry,
                strict=strict,
                on_progress=show,
                should_stop=interrupt.asked,
            )
        )
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


class _Progress:
    """A line on the terminal that says how the search is going; nothing elsewhere."""

    def __init__(self) -> None:
        self._status: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> Callable[[Progress], None]:
        if not on_terminal():
            return _quiet
        from rich.console import Console
        from rich.text import Text

        self._status = Console(stderr=True).status("searching")
        shown = self._status.__enter__()
        next_s = 0.0

        def show(progress: Progress) -> None:
            nonlocal next_s
            if time.monotonic() < next_s:  # planners report more often than anyone can read
                return
            next_s = time.monotonic() + _REDRAW_S
            text = progress.message
            if progress.objective_value is not None:
                text += f", best {progress.objective_value:.4g}"
            if progress.evaluations:
                text += f", {progress.evaluations:,} plans"
            shown.update(Text(text))

        return show

    def __exit__(self, *raised: Any) -> None:
        self._status.__exit__(*raised)


def _quiet(progress: Progress) -> None:
    """Show nothing: stderr is not a terminal."""
