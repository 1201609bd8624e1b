"""Planner `auto`: the dynamic programme where that is enough, `cpsat` where it isn't.

It stops at a gap of 2 %, after 30 seconds, or when nothing is gained any more, and says what it
used and why it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.problem import Problem
from sailor.solve.certified_search import Effort
from sailor.solve.cpsat import CpSatPlanner
from sailor.solve.crew import search_cpu_s
from sailor.solve.patience import Patience
from sailor.solve.work import counted_s

DEFAULT_WALL_S = 30.0
GOOD_GAP = 0.02
_LEAST_PATIENCE_S, _PATIENCE_SHARE = 2.0, 1.0


class AutoPlanner:
    """Dynamic programme, bound, and as much of `cpsat` as the gap asks for."""

    name = "auto"
    default_wall_s = DEFAULT_WALL_S
    default_gap = GOOD_GAP

    def unsupported(self, problem: Problem) -> Sequence[str]:
        """Return nothing: any problem can be taken."""
        return ()

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> SearchOutcome:
        """Return a plan within 2 % of its bound, or the best one of the time limit."""
        counted = limits.work_s is not None
        wall_s = DEFAULT_WALL_S if limits.wall_s is None and not counted else limits.wall_s
        gap = GOOD_GAP if limits.gap is None else limits.gap
        types = {problem.node(place.node_type).gpu for place in problem.placements}
        zones = {place.zone for place in problem.placements}
        homogeneous = len(types) <= 1 and len(zones) <= 1
        planner = CpSatPlanner(Effort(gap=gap))
        watch = Patience(
            on_progress,
            should_stop,
            least_s=_LEAST_PATIENCE_S,
            share=_PATIENCE_SHARE,
            clock=counted_s if counted else search_cpu_s,
        )
        outcome = planner.solve(
            problem, replace(limits, wall_s=wall_s, gap=gap), watch.on_progress, watch.should_stop
        )
        used = (
            "auto: one GPU type in one zone: the dynamic programme, and cpsat for the bound"
            if homogeneous
            else f"auto: dynamic programme, then cpsat until the gap is {gap:.2%}"
        )
        told = should_stop()
        late = outcome.stopped_early and not watch.stalled and not told
        # A limit that auto chose for itself is no interruption.
        early = told or (late and (counted or limits.wall_s is not None))
        return replace(
            outcome,
            rules=(used, *outcome.rules),
            stopped_early=early,
            stop_reason=_reason(outcome, gap, wall_s, watch, told=told, late=late),
        )


def _reason(
    outcome: SearchOutcome,
    gap: float,
    wall_s: float | None,
    watch: Patience,
    *,
    told: bool,
    late: bool,
) -> str | None:
    """Return why the search ended, in words; None where the status says it all."""
    if told:
        return "told to by the caller"
    if watch.stalled:
        return f"nothing gained for {watch.patience_s:.2g} CPU s"
    if late:
        return "the limit of work" if wall_s is None else f"the time limit of {wall_s:g} s"
    if outcome.plan is None or outcome.proven or watch.gap is None:
        return None
    if watch.gap <= gap + 1e-9:
        return f"within the wanted gap of {gap:.2%}"
    return "its steps are done"
