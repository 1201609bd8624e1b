"""The command `sailor change-plan`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("change-plan")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("plan", metavar="PLAN")
def change_plan(run: Path, plan: str) -> None:
    """Let a run of `sailor train` that goes on on this machine follow another plan.

    RUN is the run's folder, PLAN a plan of the same model, or a result that holds one. After its
    present step each worker hands over what others need; workers that the plan has no more end,
    more ones are started. No sample is repeated or left out, and nothing is read from a disk.
    """
    import sailor
    from sailor_megatron.changes import ask_for

    number, workers = ask_for(run, sailor.load_plan(plan))
    click.echo(f"change {number}, to {workers} workers, will follow the present step")
