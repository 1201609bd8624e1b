"""Planner `cpsat`: the best plan that can be found, with a proven bound on what is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sailor.interfaces import Limits, Progress, SearchOutcome
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.solve.certified_search import CertifiedSearch, Effort


class CpSatPlanner:
    """Incumbents, bounds, and a CP-SAT model for what they leave open."""

    name = "cpsat"

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort or Effort()

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
        """Return the best plan found, and the bound; see the module."""
        effort = self.effort if limits.gap is None else replace(self.effort, gap=limits.gap)
        if problem.objective is Objective.MIN_COST:
            # A gap is relative to the bound; the search takes it of the plan, which is above.
            effort = replace(effort, gap=effort.gap / (1 + effort.gap))
        return CertifiedSearch(problem, limits, effort, on_progress, should_stop).run()
