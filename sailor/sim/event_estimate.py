"""The iteration of one plan in the event engine: time by parts, memory by parts, timeline.

Pipelines run one iteration; replicas of a stage wait for the slowest of them (a barrier), reduce
their gradients, copy them back, and step the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from sailor.errors import InputError
from sailor.model.estimate import WorkerMemory
from sailor.model.execution import Framework
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.sim.columns import Column, columns_of
from sailor.sim.engine import PipelineWork, Route, simulate
from sailor.sim.event_costs import EventCosts
from sailor.sim.event_memory import event_memory
from sailor.sim.kinds import kinds_of_plan
from sailor.sim.placement import Node, Placed, placed
from sailor.sim.platforms import Platform, platform_of
from sailor.sim.schedule import PipelineOrder, pipeline_order
from sailor.sim.timeline import Timeline


@dataclass(frozen=True)
class PipelineTime:
    """A run of like pipelines, from the first computation to the last.

    `waiting_s` is how long they stand still until the slowest pipeline of the plan is done.
    The other parts are those of its busiest stage: `bubble_s` is what that stage would wait if
    transfers took no time, `p2p_s` what transfers and the receivers' work on them add to the
    pipeline.
    """

    first_pipeline: int
    width: int
    busiest_stage: int
    compute_s: float
    bubble_s: float
    p2p_s: float
    total_s: float
    waiting_s: float


@dataclass(frozen=True)
class StageStep:
    """A stage's end of the iteration: gradient all-reduce, local copies, optimizer step."""

    stage: int
    allreduce_s: float
    local_s: float
    update_s: float


@dataclass(frozen=True)
class Closing:
    """What a stage does after its pipelines are done, from `start_s` to `stop_s`."""

    stage: int
    name: str
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class EventEstimate:
    """Seconds of one iteration; `compute_s` to `update_s` add up to `total_s`.

    The pipeline's parts are those of the slowest pipeline. `waiting_s` is not part of the sum: it
    is what the fastest pipeline loses to the slowest, that is what a measured reduction contains
    beside the reduction itself.
    """

    compute_s: float
    bubble_s: float
    p2p_s: float
    allreduce_s: float
    local_s: float
    update_s: float
    total_s: float
    waiting_s: float
    pipelines: tuple[PipelineTime, ...]
    stages: tuple[StageStep, ...]
    memory: tuple[WorkerMemory, ...]
    schedule: str
    assumptions: tuple[str, ...]
    timeline: Timeline | None = None

    @property
    def pipeline_s(self) -> float:
        """Return the seconds until the slowest pipeline is done."""
        return self.compute_s + self.bubble_s + self.p2p_s

    def closings(self) -> tuple[Closing, ...]:
        """Return all-reduce, local copies and optimizer step of every stage, in time.

        All stages start together, when the slowest pipeline is done, and step together.
        """
        update_from_s = self.pipeline_s + self.allreduce_s + self.local_s
        found: list[Closing] = []
        for step in self.stages:
            copy_from_s = self.pipeline_s + step.allreduce_s
            found += [
                Closing(step.stage, "all-reduce", self.pipeline_s, copy_from_s),
                Closing(step.stage, "copy gradients", copy_from_s, copy_from_s + step.local_s),
                Closing(step.stage, "optimizer", update_from_s, update_from_s + step.update_s),
            ]
        return tuple(closing for closing in found if closing.stop_s > closing.start_s)

    def reduction_s(self, pipeline: int, stage: int) -> float:
        """Return what a rank spends in its gradient reduction, waiting included.

        This is the figure that trainers log: the wait for the slowest pipeline, its stage's
        all-reduce and local copies.
        """
        own = [
            group
            for group in self.pipelines
            if group.first_pipeline <= pipeline < group.first_pipeline + group.width
        ]
        if not own or not 0 <= stage < len(self.stages):
            raise InputError(f"there is no stage {stage} of pipeline {pipeline}", where="plan")
        step = self.stages[stage]
        return own[0].waiting_s + step.allreduce_s + step.local_s


def event_time(
    problem: Problem,
    plan: Plan,
    *,
    framework: Framework | None = None,
    schedule: str | None = None,
    windows: Sequence[int] | None = None,
    platforms: Mapping[str, Platform] | None = None,
    with_timeline: bool = False,
) -> EventEstimate:
    """Simulate one iteration of a plan.

    `framework` None is the job's, `schedule` None the plan's, which for 1F1B has the framework's
    own order of waits. `platforms` replaces the built-in ones by GPU type.
    Raises InputError where a profile, a size or a link is unknown.
    """
    _refuse_unknown(problem, plan)
    kinds = kinds_of_plan(plan)
    known = {
        gpu: (platforms or {}).get(gpu) or platform_of(gpu, framework or problem.training.framework)
        for gpu in sorted({kind.gpu for kind in kinds})
    }
    name = schedule or _schedule_of(plan, known[kinds[0].gpu])
    if name == "interleaved" and plan.vpp == 1:
        raise InputError(
            "every stage of the plan is one run of units, so that it can't be interleaved",
            where="schedule", hint="choose another schedule, or give the plan a vpp above 1",
        )  # fmt: skip
    costs = EventCosts(problem, plan, known)
    columns, homes = columns_of(plan), placed(problem, plan)
    cuts = [0, *(stage.stop for stage in plan.stages)]
    orders = {
        count: pipeline_order(name, plan.pp, count, num_chunks=plan.vpp, windows=windows)
        for count in sorted({column.num_microbatches for column in columns})
    }
    runs = _runs(columns, homes)
    groups = [
        _parts(_work(costs, run, cuts, orders[run.column.num_microbatches], 0)) for run in runs
    ]
    slowest_s = max(group.total_s for group in groups)
    pipelines = tuple(
        PipelineTime(
            first_pipeline=run.first_pipeline,
            width=run.width,
            busiest_stage=group.busiest_stage,
            compute_s=group.compute_s,
            bubble_s=group.bubble_s,
            p2p_s=group.p2p_s,
            total_s=group.total_s,
            waiting_s=slowest_s - group.total_s,
        )
        for run, group in zip(runs, groups, strict=True)
    )
    stages = tuple(_stage_step(costs, columns, plan, stage, homes) for stage in range(plan.pp))
    slow = max(pipelines, key=lambda pipeline: pipeline.total_s)
    sync = max(stages, key=lambda stage: stage.allreduce_s + stage.local_s)
    update_s = max(stage.update_s for stage in stages)
    assumptions = [text for platform in known.values() for text in platform.assumptions()]
    if orders[columns[0].num_microbatches].splits_backward:
        assumptions.append("input and weight gradients take half of the backward pass each")
    return EventEstimate(
        compute_s=slow.compute_s,
        bubble_s=slow.bubble_s,
        p2p_s=slow.p2p_s,
        allreduce_s=sync.allreduce_s,
        local_s=sync.local_s,
        update_s=update_s,
        total_s=slow.total_s + sync.allreduce_s + sync.local_s + update_s,
        waiting_s=max(pipeline.waiting_s for pipeline in pipelines),
        pipelines=pipelines,
        stages=stages,
        memory=event_memory(problem, columns, plan, kinds, known),
        schedule=name,
        assumptions=tuple(assumptions),
        timeline=_timeline(costs, runs, cuts, orders) if with_timeline else None,
    )


def _schedule_of(plan: Plan, platform: Platform) -> str:
    """Return the engine's name of a plan's schedule: 1F1B has the framework's order of waits."""
    return platform.schedule if plan.schedule == "1f1b" else plan.schedule


@dataclass(frozen=True)
class _Run:
    """Pipelines of a column that are alike down to which neighbours share a node."""

    column: Column
    nodes: tuple[Node, ...]  # of the first of them, by rank
    first_pipeline: int
    width: int


def _runs(columns: Sequence[Column], homes: Placed) -> list[_Run]:
    found: list[_Run] = []
    pipeline = 0
    for column in columns:
        for _, members in groupby(range(pipeline, pipeline + column.width), key=homes.pattern):
            own = list(members)
            nodes = tuple(rank[own[0]] for rank in homes.nodes)
            found.append(_Run(column, nodes, own[0], len(own)))
        pipeline += column.width
    return found


def _refuse_unknown(problem: Problem, plan: Plan) -> None:
    if plan.num_units != problem.arch.num_units:
        raise InputError(
            f"the plan has {plan.num_units} units and {problem.arch.name} has "
            f"{problem.arch.num_units}",
            where="plan", hint="units are the embedding, every block, and the head",
        )  # fmt: skip
    sizes = {footprint.tp for footprint in problem.footprints}
    gpu_of = {node.name: node.gpu for node in problem.nodes}
    for index, stage in enumerate(plan.stages):
        for number, replica in enumerate(stage.replicas):
            if gpu_of.get(replica.node_type) != replica.gpu:
                raise InputError(
                    f"the job has no node type {replica.node_type} that holds {replica.gpu}",
                    where=f"stages[{index}].replicas[{number}]",
                    hint=f"its node types: {', '.join(sorted(gpu_of))}",
                )
            if replica.tp not in sizes:
                raise InputError(
                    f"the bytes of {problem.arch.name}'s layers at tp {replica.tp} are unknown",
                    where="problem.footprints",
                )


@dataclass(frozen=True)
class _Parts:
    busiest_stage: int
    compute_s: float
    bubble_s: float
    p2p_s: float
    total_s: float


def _work(
    costs: EventCosts, run: _Run, cuts: Sequence[int], order: PipelineOrder, first_lane: int
) -> PipelineWork:
    """Return one pipeline of a run; each rank has a lane out and a lane in."""
    column, pp = run.column, order.num_stages
    num_chunks = len(cuts) - 1
    activations: list[Route] = []
    gradients: list[Route] = []
    for chunk in range(num_chunks - 1):
        src, dst = chunk % pp, (chunk + 1) % pp
        here, there = column.kinds[src], column.kinds[dst]
        ends = (run.nodes[src], run.nodes[dst])
        # The gradient of a stage's input is as large as the output of the stage before it.
        size = costs.boundary_bytes(cuts[chunk + 1] - 1, column.microbatch)
        # A rank's lanes: out, in. What goes forward comes in on the next rank's.
        ahead = (first_lane + 2 * src, first_lane + 2 * dst + 1)
        back = (first_lane + 2 * dst, first_lane + 2 * src + 1)
        activations.append(costs.route(here, there, size, ahead, ends=ends))
        gradients.append(costs.route(there, here, size, back, ends=ends[::-1]))
    return PipelineWork(
        order=order,
        compute_s=np.stack(
            [
                costs.compute_s(
                    column.kinds[chunk % pp], column.microbatch, cuts[chunk], cuts[chunk + 1]
                )
                for chunk in range(num_chunks)
            ],
            axis=1,
        ),
        activation_routes=tuple(activations),
        gradient_routes=tuple(gradients),
    )


def _lane_names(num_pipelines: int, num_stages: int) -> list[str]:
    return [
        f"pipeline {pipeline} stage {stage} {way}"
        for pipeline in range(num_pipelines)
        for stage in range(num_stages)
        for way in ("out", "in")
    ]


def _parts(work: PipelineWork) -> _Parts:
    """Split one pipeline's time into its busiest stage's work, waits, and what transfers add."""
    lanes = [""] * (2 * work.order.num_stages)
    full = simulate([work], lanes)
    free = replace(
        work,
        activation_routes=tuple(Route(0.0) for _ in work.activation_routes),
        gradient_routes=tuple(Route(0.0) for _ in work.gradient_routes),
    )
    without_s = simulate([free]).makespan_s if work.routes else full.makespan_s
    busiest = int(np.argmax(full.compute_s))
    compute_s = float(full.compute_s[busiest])
    # First come, first served can make a transfer help by a hair: never less than nothing.
    p2p_s = max(0.0, full.makespan_s - without_s)
    return _Parts(
        busiest_stage=busiest,
        compute_s=compute_s,
        bubble_s=full.makespan_s - compute_s - p2p_s,
        p2p_s=p2p_s,
        total_s=full.makespan_s,
    )


def _stage_step(
    costs: EventCosts, columns: Sequence[Column], plan: Plan, stage: int, homes: Placed
) -> StageStep:
    """Return a rank's end of the iteration: its chunks are reduced and updated one by one."""
    spans = [(chunk.start, chunk.stop) for chunk in plan.stages[stage :: plan.pp]]
    ring = [column.kinds[stage] for column in columns for _ in range(column.width)]
    nodes = homes.nodes[stage]
    reduced_s = sum(costs.allreduce_s(ring, start, stop, nodes) for start, stop in spans)
    if stage in (0, plan.pp - 1):
        reduced_s += costs.tied_s(columns, plan.pp)
    return StageStep(
        stage=stage,
        allreduce_s=reduced_s,
        local_s=max(
            sum(costs.local_s(column.kinds[stage], *span) for span in spans) for column in columns
        ),
        update_s=max(
            costs.update_s(column.kinds[stage], column.microbatch, spans) for column in columns
        ),
    )


def _timeline(
    costs: EventCosts,
    runs: Sequence[_Run],
    cuts: Sequence[int],
    orders: Mapping[int, PipelineOrder],
) -> Timeline:
    """Return the timeline of all pipelines."""
    every = [run for run in runs for _ in range(run.width)]
    num_ranks = len(every[0].nodes)
    works = [
        _work(costs, run, cuts, orders[run.column.num_microbatches], 2 * num_ranks * pipeline)
        for pipeline, run in enumerate(every)
    ]
    return simulate(works, _lane_names(len(every), num_ranks))
