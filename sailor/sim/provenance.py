"""Where the figures of an estimate come from, and how far such figures have been off.

Error bands are mean absolute errors of the validation tables of the same regime
(docs/validation.md, tests/validation/test_sosp25_rows.py), in percent.
"""

from __future__ import annotations

from collections.abc import Iterator

from sailor.model.estimate import Figure
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.profile import Provenance

# 19 SOSP'25 runs on GH200 and RTX nodes, with their layer profiles. Modelled layers have the band
# of whole runs on their cluster (`sailor validate`), of ones that took no part in the fit where it
# isn't known; a test holds closed form and engine near the model of those runs.
_EVENT_TIME_PCT = 3.2
_CLOSED_FORM_TIME_PCT = 10.6
_MEASURED_MEMORY_PCT = 1.7
# The largest mean of the memory tables whose layers are modelled: a user's system took no part in
# any of them.
_MODELLED_MEMORY_PCT = 8.1


def figures(problem: Problem, plan: Plan, fidelity: str) -> tuple[Figure, ...]:
    """Return entries for layer times, memory and links; prices carry their own source."""
    found = (*_time(problem, plan, fidelity), _memory(problem, plan), *_links(problem))
    if problem.cost_model == "sailor":
        return found
    # The bands are those of our own model.
    return tuple(figure.model_copy(update={"error_pct": None}) for figure in found)


def _used(plan: Plan) -> set[tuple[str, int, int]]:
    return {(r.gpu, r.tp, r.microbatch) for stage in plan.stages for r in stage.replicas}


def _time(problem: Problem, plan: Plan, fidelity: str) -> Iterator[Figure]:
    used = _used(plan)
    profiles = [p for p in problem.profiles if (p.gpu, p.tp, p.microbatch) in used]
    measured = _EVENT_TIME_PCT if fidelity == "event" else _CLOSED_FORM_TIME_PCT
    for provenance in Provenance:
        mine = [profile for profile in profiles if profile.provenance is provenance]
        if mine:
            gpus = ", ".join(sorted({profile.gpu for profile in mine}))
            yield Figure(
                name=f"time of layers on {gpus}",
                provenance=provenance,
                source="; ".join(sorted({profile.source for profile in mine})),
                error_pct=(
                    measured if provenance is Provenance.MEASURED else problem.cluster.error_pct
                ),
            )


def _memory(problem: Problem, plan: Plan) -> Figure:
    degrees = {tp for _, tp, _ in _used(plan)}
    footprints = [footprint for footprint in problem.footprints if footprint.tp in degrees]
    modelled = any(footprint.provenance is Provenance.MODELLED for footprint in footprints)
    sources = sorted({footprint.source for footprint in footprints})
    unfused = sorted({gpu for gpu, _, _ in _used(plan) if not problem.gpu(gpu).bf16})
    if modelled and unfused:
        sources.append(f"the scores of unfused attention added on {', '.join(unfused)}")
    return Figure(
        name="memory of a worker",
        provenance=Provenance.MODELLED if modelled else Provenance.MEASURED,
        source="; ".join(sources),
        error_pct=_MODELLED_MEMORY_PCT if modelled else _MEASURED_MEMORY_PCT,
    )


def _links(problem: Problem) -> Iterator[Figure]:
    for assumed in (False, True):
        mine = sorted({link.source for link in problem.links if link.assumed is assumed})
        if mine:
            yield Figure(
                name="links that are assumed" if assumed else "links",
                provenance=Provenance.MODELLED if assumed else Provenance.MEASURED,
                source="; ".join(mine),
                error_pct=None,
            )
