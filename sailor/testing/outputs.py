"""Contracts of what is made from a plan or a result."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from sailor.errors import SailorError
from sailor.interfaces import Backend, CostTermSource, LaunchSpec, ReportSink
from sailor.model.estimate import Estimate
from sailor.model.job import Job
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.result import Result
from sailor.testing.contract import Contract, require


class CostTermContract(Contract[CostTermSource]):
    """A cost term is a finite number of dollars, the same each time."""

    protocol = CostTermSource

    @abstractmethod
    def case(self) -> tuple[Problem, Plan, Estimate]:
        """Return a plan with its problem and estimate."""

    def test_the_term_is_finite_and_repeats(self) -> None:
        """Neither NaN nor infinite, and the same on a second call."""
        first, second = (self.provided().usd_per_iteration(*self.case()) for _ in range(2))
        require(math.isfinite(first) and first == second, f"first {first}, then {second}")


class BackendContract(Contract[Backend]):
    """A backend renders as data, or says why it can't."""

    protocol = Backend

    @abstractmethod
    def runnable(self) -> tuple[Job, Plan]:
        """Return a plan that the backend can run."""

    def not_runnable(self) -> tuple[Job, Plan] | None:
        """Return a plan that the backend can't run, if there is any."""
        return None

    def test_a_runnable_plan_renders_the_same_twice(self) -> None:
        """Commands, files and environment are text, and rendering is pure."""
        backend, (job, plan) = self.provided(), self.runnable()
        reasons = list(backend.unsupported(job, plan))
        require(not reasons, f"it can't run the plan that it should: {reasons}")
        spec = backend.render(job, plan)
        require(bool(spec.commands), "it renders no command")
        require(all(isinstance(text, str) for text in _texts(spec)), f"not all text: {spec}")
        require(spec == backend.render(job, plan), "rendering twice gives two things")

    def test_a_plan_that_it_cannot_run_is_refused_in_words(self) -> None:
        """`unsupported` has reasons, and `render` raises an error for people."""
        case = self.not_runnable()
        if case is None:
            return
        reasons = self.provided().unsupported(*case)
        require(bool(reasons) and all(reasons), f"the reasons are {list(reasons)}")
        try:
            self.provided().render(*case)
        except SailorError:
            return
        require(False, "it renders a plan that it says it can't run")


class ReportSinkContract(Contract[ReportSink]):
    """A report sink turns any number of results into text."""

    protocol = ReportSink

    @abstractmethod
    def results(self) -> Sequence[Result]:
        """Return results to write: with a plan and without one."""

    def test_none_one_and_several_results_are_text(self) -> None:
        """Each is text, one result's ends with a line break, and none is an error."""
        for results in ((), self.results()[:1], self.results()):
            text = self.provided().write(iter(results))
            require(isinstance(text, str), f"{len(results)} results gave {type(text)}")
            require(not results or text.endswith("\n"), f"no line break at the end: {text!r}")

    def test_writing_twice_gives_the_same(self) -> None:
        """No clock, no state."""
        sink, results = self.provided(), self.results()
        require(sink.write(results) == sink.write(results), "two writes, two texts")


def _texts(spec: LaunchSpec) -> Iterable[object]:
    for command in spec.commands:
        yield from command
    for mapping in (spec.files, spec.env):
        yield from mapping
        yield from mapping.values()
