"""Simulated against measured, part by part, for one run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sailor.errors import InputError
from sailor.model.estimate import Estimate
from sailor.model.job import Job, SourceRef
from sailor.model.plan import Plan
from sailor_megatron.measured import WorkerFigures, read_workers
from sailor_megatron.options import RunOptions
from sailor_megatron.own_profile import write_profile
from sailor_megatron.run_folder import JOB_FILE, PROFILE_FILE, RunSpec, change_file, read_run

UNMEASURED = "stages, sums and transfers were not timed: that takes `sailor train --measure`"


@dataclass(frozen=True)
class Row:
    """One figure twice: seconds, or bytes of one worker. None: not known on that side."""

    what: str
    place: str
    unit: Literal["s", "bytes"]
    simulated: float | None
    measured: float | None

    @property
    def error_pct(self) -> float | None:
        """Return by how many percent the simulator is above the measurement."""
        if not self.simulated or not self.measured:
            return None
        return (self.simulated / self.measured - 1.0) * 100.0


@dataclass(frozen=True)
class Comparison:
    """All rows of a run, what they were simulated with, and what to know about them."""

    run: str
    simulated_with: str
    iterations: int
    rows: Sequence[Row]
    remarks: Sequence[str]


@dataclass(frozen=True)
class _Simulated:
    """What the simulator says; the engine's parts only where the cost model has operations."""

    closed_form: Estimate
    events: Any = None
    forward_s: Mapping[tuple[int, int], float] | None = None  # by (stage, replica)
    backward_s: Mapping[tuple[int, int], float] | None = None
    transfer_s: Mapping[tuple[int, int], float] | None = None  # by (sending stage, replica)


def compare_run(folder: Path, *, own_profile: bool = False, registry: Any = None) -> Comparison:
    """Simulate a run's plan on its job and set that beside what its workers measured.

    With `own_profile` layer times, bytes and links are those that the run itself measured: what
    is left is the simulator's own error.
    """
    import sailor

    run = read_run(folder)
    if change_file(folder, 1).exists():
        raise InputError(
            "the run changed its plan while it went on",
            where=str(folder),
            hint="compare a run of one plan",
        )
    workers = read_workers(folder, run)
    job = as_run(sailor.load_job(folder / JOB_FILE), run.options)
    remarks = [
        f"seconds are medians of iterations after the first, {workers[0].iterations} in all",
        f"memory: {workers[0].memory}; simulated without the reserve for driver and libraries",
    ]
    if run.options.precision == "fp64":
        remarks.append("the simulator knows no fp64: simulated as fp32")
    if not run.measure:
        remarks.append(UNMEASURED)
    simulated_with = "the job's own sources"
    if own_profile:
        job = with_profile(job, folder, run)
        simulated_with = "the profile that the run measured"
    simulated = _simulated(job, run.plan, registry)
    return Comparison(
        run=str(folder),
        simulated_with=simulated_with,
        iterations=workers[0].iterations,
        rows=tuple(_rows(run, workers, simulated)),
        remarks=tuple(remarks),
    )


def as_run(job: Job, options: RunOptions) -> Job:
    """Return the job with the precision, recomputation and ZeRO stage that a run used."""
    precision = "fp32" if options.precision == "fp64" else options.precision
    recompute = "selective" if options.recompute_attention else "none"
    recompute = "full" if options.recompute else recompute
    return job.model_copy(
        update={
            "training": job.training.model_copy(
                update={
                    "precision": precision,
                    "optimizer": options.optimizer,
                    "zero": 1 if options.zero1 else 0,
                    "recompute": recompute,
                    "sequence_parallel": options.sequence_parallel,
                    "dropout": options.dropout > 0,
                }
            )
        }
    )


def with_profile(job: Job, folder: Path, run: RunSpec) -> Job:
    """Return the job with a run's own profile and links before its sources."""
    import sailor

    path = folder / PROFILE_FILE
    if not run.measure:
        raise InputError(
            "the run measured no profile", where=str(folder), hint="run `sailor train --measure`"
        )
    if not job.training.usual or run.options.precision == "fp64":
        raise InputError(
            "the run recomputed activations, split norms or computed in fp64, and the simulator "
            "takes measured profiles of none of these",
            where=str(folder),
            hint="compare without --own-profile",
        )
    # After a run on several hosts there is none yet: no launcher has seen the end of all workers.
    store = sailor.ProfileStore.load(path) if path.exists() else write_profile(folder, run)
    own = SourceRef(name="store", path=str(path.absolute()))
    return job.model_copy(
        update={
            "sources": job.sources.model_copy(update={"profiles": (own, *job.sources.profiles)}),
            "catalog": job.catalog.model_copy(update={"links": (*store.links, *job.catalog.links)}),
        }
    )


def _simulated(job: Job, plan: Plan, registry: Any) -> _Simulated:
    import sailor

    closed_form = sailor.simulate(job, plan, registry=registry)
    if job.cost_model != "sailor":  # the others are formulas, without operations
        return _Simulated(closed_form)
    events = sailor.simulate_events(job, plan, registry=registry).events
    timeline = events.timeline
    if timeline is None:
        return _Simulated(closed_form, events)
    forward, backward = _span_seconds(timeline)
    return _Simulated(closed_form, events, forward, backward, _transfer_seconds(timeline))


_Seconds = Mapping[tuple[int, int], float]


def _span_seconds(timeline: Any) -> tuple[_Seconds, _Seconds]:
    found: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for worker in range(timeline.num_workers):
        pipeline = int(timeline.worker_pipeline[worker])
        for span in timeline.spans_of(worker):
            found[span.op.name][span.stage, pipeline].append(span.stop_s - span.start_s)
    return _medians(found["FORWARD"]), _medians(found["BACKWARD"])


def _transfer_seconds(timeline: Any) -> _Seconds:
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in range(len(timeline.transfers)):
        moved = timeline.transfer(row)
        if moved.op.name == "SEND_ACTIVATION":
            pipeline = int(timeline.worker_pipeline[moved.src])
            found[moved.stage, pipeline].append(moved.arrival_s - moved.start_s)
    return _medians(found)


def _medians(found: Mapping[tuple[int, int], Sequence[float]]) -> _Seconds:
    return {key: statistics.median(values) for key, values in found.items()}


def _rows(run: RunSpec, workers: Sequence[WorkerFigures], simulated: _Simulated) -> Iterator[Row]:
    events, closed_form = simulated.events, simulated.closed_form
    measured_s = workers[0].iteration_s
    yield Row("iteration, closed form", "", "s", closed_form.iteration_s, measured_s)
    if events is not None:
        yield Row("iteration, events", "", "s", events.total_s, measured_s)
    time = closed_form.time
    parts = (
        (time.compute_s + time.p2p_s + time.bubble_s, time.dp_sync_s, time.update_s)
        if events is None
        else (events.pipeline_s, events.allreduce_s + events.local_s, events.update_s)
    )
    yield Row("pipeline", "slowest", "s", parts[0], _most(worker.pipeline_s for worker in workers))
    yield Row("gradient sums", "slowest", "s", parts[1], _most(w.sync_s for w in workers))
    yield Row("optimizer", "slowest", "s", parts[2], _most(worker.update_s for worker in workers))
    yield from _stage_rows(run, workers, simulated)
    yield from _transfer_rows(run, workers, simulated)
    yield from _memory_rows(workers, closed_form)


def _stage_rows(
    run: RunSpec, workers: Sequence[WorkerFigures], simulated: _Simulated
) -> Iterator[Row]:
    for way, known in (("forward", simulated.forward_s), ("backward", simulated.backward_s)):
        for chunk, stage in enumerate(run.plan.stages):
            rank, position = chunk % run.plan.pp, chunk // run.plan.pp
            for number, replica in enumerate(stage.replicas):
                taken = [
                    getattr(worker.stages[position], f"{way}_s")
                    for worker in workers
                    if (worker.stage, worker.replica) == (rank, number) and worker.stages
                ]
                place = f"stage {chunk}, replica {number}: {replica.gpu} x{replica.tp}"
                yield Row(way, place, "s", (known or {}).get((chunk, number)), _most(taken))


def _transfer_rows(
    run: RunSpec, workers: Sequence[WorkerFigures], simulated: _Simulated
) -> Iterator[Row]:
    measured = {
        (moved.stage, moved.replica): moved.seconds
        for worker in workers
        for moved in worker.hand_overs
        if moved.to_stage == moved.stage + 1
    }
    for stage in range(run.plan.pp - 1):
        for replica in range(run.plan.dp):
            yield Row(
                "transfer",
                f"stage {stage} to {stage + 1}, replica {replica}",
                "s",
                (simulated.transfer_s or {}).get((stage, replica)),
                measured.get((stage, replica)),
            )


def _memory_rows(workers: Sequence[WorkerFigures], estimate: Estimate) -> Iterator[Row]:
    for group in estimate.memory:
        taken = [
            worker.model_bytes
            for worker in workers
            if worker.stage == group.stage and worker.replica in group.replicas
        ]
        names = ", ".join(str(replica) for replica in group.replicas)
        place = f"stage {group.stage}, replica {names}: {group.gpu} x{group.tp}"
        yield Row("memory", place, "bytes", group.total_bytes - group.reserve_bytes, _most(taken))


def _most(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
