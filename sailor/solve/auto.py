"""Planner `auto`: the dynamic programme where that is enough, `cpsat` where it isn't.

It stops at a gap of 2 % or after 30 seconds, and says in its rules what was used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.problem import Problem
from sailor.solve.cpsat import CpSatPlanner, Effort

DEFAULT_WALL_S = 30.0
GOOD_GAP = 0.02


class AutoPlanner:
    """Dynamic programme, bound, and as much of `cpsat` as the gap asks for."""

    name = "auto"

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
        wall_s = DEFAULT_WALL_S if limits.wall_s is None else limits.wall_s
        types = {problem.node(place.node_type).gpu for place in problem.placements}
        homogeneous = len(types) <= 1
        planner = CpSatPlanner(Effort(gap=GOOD_GAP, thorough=not homogeneous))
        outcome = planner.solve(problem, replace(limits, wall_s=wall_s), on_progress, should_stop)
        used = (
            "auto: one GPU type, so the dynamic programme and a bound"
            if homogeneous
            else f"auto: dynamic programme, then cpsat until the gap is {GOOD_GAP:.0%} or "
            f"{wall_s:g} s are over"
        )
        # A limit that auto chose for itself is no interruption.
        early = outcome.stopped_early and limits.wall_s is not None
        return replace(outcome, rules=(used, *outcome.rules), stopped_early=early or should_stop())
