"""The event engine has the last word on a search's best plans.

The closed form knows neither the order of operations nor what they wait for. So the best few
plans of a search, from several cells, are simulated operation by operation, and the best one
there is returned. The plan that the closed form likes best is among them: the answer is never
worse than it, as the engine sees both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sailor.errors import InputError
from sailor.model.estimate import Estimate
from sailor.model.job import Objective
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.estimate import estimate
from sailor.sim.fidelity import estimate_events
from sailor.solve.decide import Decided
from sailor.solve.heuristics.finish import finish
from sailor.solve.heuristics.refine import Scored
from sailor.solve.interleave import interleaved_forms
from sailor.solve.pools import Pool

MODEL = "sailor"  # the cost model that has operations
_FINALISTS = 16
_OF_A_CELL = 2
# Closed form and events differ by a few percent: what is further behind can't win.
_WINDOW = 1.05
MOST_S = 5.0  # seconds to pick finalists, and again to simulate them


@dataclass(frozen=True)
class LastWord:
    """The plan to return, and its estimate by the event engine where there is one."""

    plan: Plan
    event: Estimate | None = None
    note: str | None = None  # in words: why it is not the closed form's best


def finalists(
    problem: Problem,
    scopes: Iterable[tuple[Sequence[Scored], Sequence[Pool]]],
    best: Plan | None,
    most_s: float = MOST_S,
) -> tuple[Plan, ...]:
    """Return the best other plans of a search, from several cells, best first.

    `scopes` are sketches, best first, with their pools; `best` is the plan that is known already.
    Empty for cost models without operations.
    """
    if problem.cost_model != MODEL or best is None:
        return ()
    deadline_s = time.monotonic() + most_s
    chosen = [(one, pools) for sketches, pools in scopes for one in _spread(sketches)]
    chosen.sort(key=lambda item: item[0].score)
    found: list[tuple[float, Plan]] = []
    for scored, pools in chosen[: 2 * _FINALISTS]:
        if time.monotonic() > deadline_s:
            break
        done = finish(problem, [scored], pools)
        if done is not None and all(done[1] != plan for _, plan in found):
            found.append(done)
    found.sort(key=lambda item: item[0])
    least = found[0][0] if found else 0.0
    return tuple(p for value, p in found if value <= least * _WINDOW and p != best)[:_FINALISTS]


def _spread(sketches: Sequence[Scored]) -> list[Scored]:
    """Return the best few sketches of each cell that is near the best."""
    if not sketches:
        return []
    count: dict[tuple[int, int], int] = {}
    kept: list[Scored] = []
    for scored in sketches:
        cell = (scored.cell.search.tables.microbatch, scored.cell.dp)
        if scored.score <= sketches[0].score * _WINDOW and count.get(cell, 0) < _OF_A_CELL:
            count[cell] = count.get(cell, 0) + 1
            kept.append(scored)
    return kept


def last_word(decided: Decided, most_s: float = MOST_S) -> LastWord | None:
    """Return the plan that the event engine likes best, with its estimate there.

    None without a plan. Plans that break a limit in the engine come after those that don't. The
    interleaved forms that `search_space.vpp` allows are looked at too. A search that was told to
    stop has its last word all the same: it takes a fraction of a second. After `most_s` seconds
    no further plan is looked at.
    """
    first = decided.outcome.plan
    if first is None:
        return None
    own = _events(decided.problem_of(first), first)
    if own is None:
        return _by_closed_form(decided, first)
    objective = decided.problems[0].objective
    best, plan = own, first
    deadline_s = time.monotonic() + most_s
    forms = chain(*(interleaved(decided, one) for one in (first, *decided.outcome.finalists)))
    for other in chain(decided.outcome.finalists, forms):
        if time.monotonic() > deadline_s:
            break
        found = _events(decided.problem_of(other), other)
        if found is not None and _rank(objective, found) < _rank(objective, best):
            best, plan = found, other
    if plan is first:
        return LastWord(first, own)
    return LastWord(plan, best, _note(objective, own, best))


def interleaved(decided: Decided, plan: Plan) -> Iterator[Plan]:
    """Yield the interleaved forms of a plan that can be run."""
    problem = decided.problem_of(plan)
    for form in interleaved_forms(problem, plan):
        if not estimate(problem, form).violations:
            yield form


def _by_closed_form(decided: Decided, first: Plan) -> LastWord:
    """Return the best of a plan and its interleaved forms where there are no events."""
    problem, best = decided.problem_of(first), first
    for form in interleaved(decided, first):
        if _rank(problem.objective, estimate(problem, form)) < _rank(
            problem.objective, estimate(problem, best)
        ):
            best = form
    note = None if best is first else f"interleaved: {best.vpp} chunks of each worker are faster"
    return LastWord(best, None, note)


def _events(problem: Problem, plan: Plan) -> Estimate | None:
    """Return the engine's estimate; None where it can't simulate the plan."""
    if problem.cost_model != MODEL:
        return None
    try:
        return estimate_events(problem, plan).estimate
    except InputError:
        return None


def _rank(objective: Objective, found: Estimate) -> tuple[bool, float]:
    time_counts = objective is Objective.MAX_THROUGHPUT
    return bool(found.violations), found.iteration_s if time_counts else found.usd_per_iteration


def _note(objective: Objective, first: Estimate, best: Estimate) -> str:
    if first.violations and not best.violations:
        return (
            "the closed form's best plan breaks a limit in the event engine "
            f"({first.violations[0]}); this one doesn't"
        )
    unit = "s" if objective is Objective.MAX_THROUGHPUT else "USD"
    values = (_rank(objective, best)[1], _rank(objective, first)[1])
    return (
        f"chosen by the event engine: {values[0]:.4g} {unit} an iteration there, against "
        f"{values[1]:.4g} {unit} of the closed form's best plan"
    )
