"""A plug-in for tests: planners whose behaviour the job's name decides.

Each search appends the job's name to the file that TOY_LOG names, so that tests can count runs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sailor.hookspecs import hookimpl
from sailor.interfaces import Limits, Planner, Progress, SearchOutcome
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.problem import Problem


def one_gpu(problem: Problem) -> Plan:
    """Return the plan of one GPU of the first placement, microbatch 1."""
    place = problem.placements[0]
    replica = Replica(
        gpu=problem.node(place.node_type).gpu,
        node_type=place.node_type,
        zone=place.zone,
        market=place.market,
        tp=1,
        microbatch=1,
        num_microbatches=problem.training.global_batch,
    )
    units = problem.arch.num_units
    return Plan(
        model=problem.arch.name,
        num_units=units,
        global_batch=problem.training.global_batch,
        stages=(Stage(start=0, stop=units, replicas=(replica,)),),
    )


class Toy:
    """Plans at once; names that hold crash, boom, nope, none, slow or wait do what they say."""

    name = "toy"

    def unsupported(self, problem: Problem) -> Sequence[str]:
        return ("it refuses",) if "refuse" in problem.job else ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        name = problem.job
        if log := os.environ.get("TOY_LOG"):
            with Path(log).open("a") as file:
                file.write(f"{name}\n")
        on_progress(Progress("toy search", 1.0, 1))
        if "crash" in name:
            os.kill(os.getpid(), signal.SIGKILL)
        if "boom" in name:
            raise ZeroDivisionError("toy planner\nfell over")
        if "nope" in name:
            return SearchOutcome(None, proven=True, reasons=("the toy says no",))
        if "none" in name:
            return SearchOutcome(None, reasons=("the toy found none",))
        if "slow" in name:
            time.sleep(0.1)
        while "wait" in name and not should_stop():
            time.sleep(0.01)
        if "empty" in name:
            return SearchOutcome(None, stopped_early=should_stop())
        return SearchOutcome(
            one_gpu(problem), proven=True, rules=("toy-rule",), stopped_early=should_stop()
        )


class Lines:
    """A report format of one line a result."""

    name = "lines"

    def write(self, results: Iterable[object]) -> str:
        return "".join(f"line: {getattr(result, 'job', '')}\n" for result in results)


@hookimpl
def sailor_planners() -> Iterable[Planner]:
    return (Toy(),)


@hookimpl
def sailor_report_sinks() -> Iterable[Lines]:
    return (Lines(),)
