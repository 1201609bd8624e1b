"""Asking a running run for another plan: what is checked before any worker hears of it."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from sailor.errors import PluginError
from sailor.model.files import write_atomic
from sailor.model.plan import Plan
from sailor_megatron.layout import PlanLayout
from sailor_megatron.machine import check_machine
from sailor_megatron.models.factory import chosen_stages
from sailor_megatron.run_folder import LOCK_FILE, change_file, read_run


def ask_for(folder: Path, plan: Plan) -> tuple[int, int]:
    """Ask the run in a folder for another plan; return the number of the change and the workers."""
    run = read_run(folder)
    check_running(folder)
    layout = PlanLayout(run.spec, plan)
    if run.measure:
        raise PluginError(
            "the run measures its plan, which stays the same",
            where=str(folder),
            hint="change the plan of a run without --measure",
        )
    chosen_stages(run.spec, plan, run.options)
    check_machine(run.spec, plan, run.options)
    number = 1
    while change_file(folder, number).exists():
        number += 1
    write_atomic(change_file(folder, number), plan.model_dump_json(indent=1) + "\n")
    return number, len(layout.workers)


def check_running(folder: Path) -> None:
    """Refuse a folder in which no run goes on."""
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return
    lock.release()
    raise PluginError(
        "no run goes on in this folder",
        where=str(folder),
        hint="start one with sailor train, or let it go on from a checkpoint with --load",
    )
