"""The contract of a planner."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from sailor.interfaces import Limits, Planner, SearchOutcome
from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.testing.contract import Contract, require

_SOLVED: dict[type, Sequence[tuple[Problem, SearchOutcome]]] = {}


class PlannerContract(Contract[Planner]):
    """A planner's plans can be run, repeat for a seed, and are never better than the best."""

    protocol = Planner

    @abstractmethod
    def problems(self) -> Sequence[Problem]:
        """Return problems to solve in a second or so each, at least one without any plan."""

    def oracle(self) -> Planner | None:
        """Return a planner that finds the best plan of these problems, if there is one."""
        return None

    def test_plans_can_be_run(self) -> None:
        """The cost kernel finds no violation, and every worker has room."""
        require(any(outcome.plan for _, outcome in self._solved()), "no problem has a plan")
        for problem, outcome in self._solved():
            if outcome.plan is not None:
                found = estimate(problem, outcome.plan)
                require(not found.violations and found.fits, f"{problem.job}: {found.violations}")

    def test_no_plan_comes_with_reasons(self) -> None:
        """At least one problem has no plan, and each such outcome says why."""
        empty = [(p.job, o.reasons) for p, o in self._solved() if o.plan is None]
        require(bool(empty), "give at least one problem that has no plan")
        require(all(reasons for _, reasons in empty), f"no reasons: {empty}")

    def test_a_seed_repeats(self) -> None:
        """Two searches with one seed find plans of the same value."""
        for problem, outcome in self._solved():
            first = _value(problem, outcome)
            second = _value(problem, _solve(self.provided(), problem))
            require(first == second, f"{problem.job}: first {first}, then {second}")

    def test_it_does_not_beat_the_oracle(self) -> None:
        """A plan better than the best one is scored wrongly or breaks a rule."""
        oracle = self.oracle()
        if oracle is None:
            return
        for problem, outcome in self._solved():
            best = _value(problem, _solve(oracle, problem))
            mine = _value(problem, outcome)
            require(mine <= best * (1 + 1e-9) if best > 0 else mine <= best * (1 - 1e-9),
                     f"{problem.job}: {mine} against the oracle's {best}")  # fmt: skip

    def test_it_stops_when_it_is_told_to(self) -> None:
        """Told to stop at once it returns, and claims no proof that it did not finish."""
        for problem, full in self._solved():
            outcome = self.provided().solve(problem, Limits(), lambda _: None, lambda: True)
            require(
                outcome.plan is not None or not outcome.proven or full.plan is None,
                f"{problem.job}: stopped at once, it calls a feasible problem infeasible",
            )

    def _solved(self) -> Sequence[tuple[Problem, SearchOutcome]]:
        """Return the problems that the planner takes, each solved once for the whole suite."""
        suite = type(self)
        if suite not in _SOLVED:
            planner = self.provided()
            _SOLVED[suite] = tuple(
                (problem, _solve(planner, problem))
                for problem in self.problems()
                if not planner.unsupported(problem)
            )
        return _SOLVED[suite]


def _solve(planner: Planner, problem: Problem) -> SearchOutcome:
    return planner.solve(problem, Limits(), lambda _: None, lambda: False)


def _value(problem: Problem, outcome: SearchOutcome) -> float:
    """Return what the objective makes of an outcome, more being better; no plan is worst."""
    if outcome.plan is None:
        return -math.inf
    found = estimate(problem, outcome.plan)
    if problem.objective is Objective.MAX_THROUGHPUT:
        return found.iterations_per_s
    return -found.usd_per_iteration
