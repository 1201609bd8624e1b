"""Rows for whose runs measured layer profiles ship: simulated with them, operation by operation."""

from __future__ import annotations

import json
import re
from datetime import date
from functools import cache
from itertools import accumulate

from sailor.model.catalog import Catalog
from sailor.model.hardware import EgressPrice, Market
from sailor.model.job import BatchTolerance, Constraints, Objective, SearchSpace, Training
from sailor.model.plan import Plan
from sailor.model.presets import preset
from sailor.model.problem import Placement, Problem
from sailor.sim.columns import Column, plan_of
from sailor.sim.event_estimate import EventEstimate, event_time
from sailor.sim.kinds import WorkerKind
from sailor.sources.embedded import embedded_store
from sailor.validation.fields import Fields

_MODEL = "opt-350m"
_ZONE = "us-central1-a"  # where the artifact files its bandwidths
_NODES = {"GH200-96GB": "gh200-4"}


def profiled_run(fields: Fields, gpu: str) -> EventEstimate | None:
    """Return the engine's iteration of a row, or None where no profile belongs to it.

    The row gives layers per stage, degrees and batch; all replicas are alike.
    """
    if gpu not in _NODES or not re.search(r"simulations/validation", fields.source):
        return None
    problem = _problem(gpu)
    plan = _plan(fields, gpu, problem)
    if plan is None:
        return None
    known = {(p.tp, p.microbatch) for p in problem.profiles}
    first = plan.stages[0].replicas[0]
    return event_time(problem, plan) if (first.tp, first.microbatch) in known else None


def _plan(fields: Fields, gpu: str, problem: Problem) -> Plan | None:
    listed = fields.note(r"layers per stage (\[[\d, ]+\])")
    units = problem.arch.num_units
    sizes = json.loads(listed) if listed else []
    dp, size = fields.need("dp"), fields.need("mbs")
    batch = fields.need("gbs")
    if sum(sizes) != units or batch % (dp * size):
        return None
    kind = WorkerKind(gpu, _ZONE, Market.ON_DEMAND, _NODES[gpu], fields.need("tp"))
    column = Column((kind,) * len(sizes), dp, size, batch // (dp * size))
    return plan_of(_MODEL, (0, *accumulate(sizes)), [column], batch)


@cache
def _problem(gpu: str) -> Problem:
    store, catalog = embedded_store(), Catalog.builtin()
    node = catalog.node(_NODES[gpu])
    return Problem(
        job="validation",
        arch=preset(_MODEL),
        training=Training(global_batch=1, precision="fp32", framework="megatron-deepspeed"),
        batch=BatchTolerance(),
        objective=Objective.MAX_THROUGHPUT,
        constraints=Constraints(),
        search_space=SearchSpace(),
        cost_model="sailor",
        gpus=(catalog.gpu(gpu),),
        nodes=(node,),
        zones=(catalog.zone(_ZONE),),
        placements=(
            # Only the time counts; the price is any.
            Placement(
                zone=_ZONE,
                node_type=node.name,
                market=Market.ON_DEMAND,
                usd_per_hour=1.0,
                price_source="none: money is not validated",
            ),
        ),
        capacities=(),
        links=tuple(
            link
            for link in store.links
            if link.src_gpu == link.dst_gpu == gpu and link.src == link.dst == _ZONE
        ),
        egress=(
            EgressPrice(
                src=_ZONE, dst=_ZONE, usd_per_byte=0.0, source="same zone", as_of=date(2025, 8, 14)
            ),
        ),
        profiles=tuple(p for p in store.profiles if (p.model, p.gpu) == (_MODEL, gpu)),
        footprints=tuple(f for f in store.footprints if f.model == _MODEL),
    )
