"""A measured run as a profile: what its workers timed, in sailor's own format."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sailor.errors import InputError
from sailor.model.arch import UnitKind
from sailor.model.hardware import Link
from sailor.model.plan import Replica
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor_megatron.measured import HandOver, UnitFigures, WorkerFigures, read_workers
from sailor_megatron.run_folder import PROFILE_FILE, RunSpec

if TYPE_CHECKING:
    from sailor import ProfileStore

LICENCE = "own figures, no licence of others"

_Kind = tuple[str, int, int]  # GPU type, tp, microbatch


def profile_of(run: RunSpec, workers: Sequence[WorkerFigures], as_of: date) -> ProfileStore:
    """Return the profile of a measured run.

    A worker's stages are timed as a whole while the run goes on, and its units alone after it.
    The profile has the units' times, scaled so that those of a stage add up to the stage's: it
    says what the run took, divided over units as they divide when they run alone. Units that a
    worker's stages don't hold are scaled alike.
    """
    from sailor import ProfileStore

    if not all(worker.units and worker.stages for worker in workers):
        raise InputError(
            "the run ended before its units were timed",
            where="profile",
            hint="let a run of `sailor train --measure` come to its end",
        )
    devices = ", ".join(sorted({worker.device for worker in workers}))
    source = f"sailor train --measure of {run.spec.name} ({run.options.precision}) on {devices}"
    groups: dict[_Kind, list[WorkerFigures]] = defaultdict(list)
    for worker in workers:
        replica = _replica(run, worker)
        groups[replica.gpu, replica.tp, replica.microbatch].append(worker)
    footprints: dict[int, LayerFootprint] = {}
    for (_, tp, _), members in sorted(groups.items()):
        footprints.setdefault(tp, _footprint(run, tp, members[0], source))
    remarks = [
        "stage times are those of the run, with everything that its processes shared; units are "
        "divided as they divide when they run alone",
        "links are half of a round trip between two replicas on links that are otherwise idle",
    ]
    if run.options.recompute:
        remarks.append(
            "the run recomputed activations: backward times are those of units alone, scaled as "
            "the forward times are"
        )
    return ProfileStore(
        source=source,
        licence=LICENCE,
        as_of=as_of,
        remarks=tuple(remarks),
        models=(run.spec,),
        profiles=tuple(
            _profile(run, kind, members, source, as_of) for kind, members in sorted(groups.items())
        ),
        footprints=tuple(footprints.values()),
        links=tuple(_links(run, workers, source)),
    )


def write_profile(folder: Path, run: RunSpec) -> ProfileStore:
    """Write the profile of a measured run into its folder and return it."""
    store = profile_of(run, read_workers(folder, run), datetime.now().astimezone().date())
    store.save(folder / PROFILE_FILE)
    return store


def scales(run: RunSpec, worker: WorkerFigures) -> tuple[float, float]:
    """Return what the run took over what the units alone take, forward and backward."""
    alone = {figures.kind: figures for figures in worker.units}
    forward_s = backward_s = 0.0
    for stage in worker.stages:
        for unit in range(stage.start, stage.stop):
            figures = alone[_kind_alone(run, unit)]
            forward_s += figures.forward_s
            backward_s += figures.backward_s
    forward = sum(stage.forward_s for stage in worker.stages) / forward_s
    if run.options.recompute:
        return forward, forward
    return forward, sum(stage.backward_s for stage in worker.stages) / backward_s


def _kind_alone(run: RunSpec, unit: int) -> UnitKind:
    kind = run.spec.unit_kind(unit)
    return "block" if kind == "first_block" else kind


def _replica(run: RunSpec, worker: WorkerFigures) -> Replica:
    return run.plan.stages[worker.stage].replicas[worker.replica]


def _profile(
    run: RunSpec, kind: _Kind, members: Sequence[WorkerFigures], source: str, as_of: date
) -> LayerProfile:
    gpu, tp, microbatch = kind
    times: dict[UnitKind, list[UnitTime]] = defaultdict(list)
    for worker in members:
        forward, backward = scales(run, worker)
        for figures in worker.units:
            times[figures.kind].append(
                UnitTime(
                    forward_s=figures.forward_s * forward,
                    backward_s=figures.backward_s * backward,
                )
            )
    middle = {unit: _median_time(found) for unit, found in times.items()}
    # The optimizer's time and parameters are those of one worker, the one in the middle.
    steps = sorted((worker.update_s or 0.0, worker.optimizer_params or 1) for worker in members)
    optimizer_s, optimizer_params = steps[len(steps) // 2]
    return LayerProfile(
        model=run.spec.name,
        gpu=gpu,
        tp=tp,
        microbatch=microbatch,
        precision=run.options.precision,
        embedding=middle["embedding"],
        first_block=middle["block"],
        block=middle["block"],
        head=middle["head"],
        optimizer_s=optimizer_s,
        optimizer_params=optimizer_params,
        provenance=Provenance.MEASURED,
        source=source,
        as_of=as_of,
    )


def _median_time(times: Sequence[UnitTime]) -> UnitTime:
    return UnitTime(
        forward_s=statistics.median(time.forward_s for time in times),
        backward_s=statistics.median(time.backward_s for time in times),
    )


def _footprint(run: RunSpec, tp: int, worker: WorkerFigures, source: str) -> LayerFootprint:
    units: Mapping[UnitKind, UnitFigures] = {figures.kind: figures for figures in worker.units}

    def of(kind: UnitKind) -> UnitBytes:
        figures = units[kind]
        return UnitBytes(
            params=figures.params,
            activation_bytes=figures.activation_bytes,
            output_bytes=figures.output_bytes,
        )

    return LayerFootprint(
        model=run.spec.name,
        tp=tp,
        precision=run.options.precision,
        embedding=of("embedding"),
        first_block=of("block"),
        block=of("block"),
        head=of("head"),
        provenance=Provenance.COUNTED,
        source=f"{source}: what autograd keeps",
    )


def _links(run: RunSpec, workers: Sequence[WorkerFigures], source: str) -> list[Link]:
    """Return a link for each two kinds of replicas that talk, both ways alike."""
    found: dict[tuple[str, str, str, str, int, int], list[HandOver]] = defaultdict(list)
    for worker in workers:
        for moved in worker.hand_overs:
            src = run.plan.stages[moved.stage].replicas[moved.replica]
            dst = run.plan.stages[moved.to_stage].replicas[moved.to_replica]
            for a, b in ((src, dst), (dst, src)):
                found[a.zone, b.zone, a.gpu, b.gpu, a.tp, b.tp].append(moved)
    return [
        Link(
            src=key[0],
            dst=key[1],
            src_gpu=key[2],
            dst_gpu=key[3],
            src_workers=key[4],
            dst_workers=key[5],
            latency_s=statistics.median(moved.latency_s for moved in group),
            bandwidth=statistics.median(moved.bytes_per_s for moved in group),
            source=source,
        )
        for key, group in sorted(found.items())
    ]
