"""Profiles and footprints of a job's model on the GPU types of its pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sailor.errors import InputError
from sailor.interfaces import ProfileSource, SourceContext
from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.job import Job
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance
from sailor.registry import Registry
from sailor.resolve.interpolation import between_measured
from sailor.resolve.pool import context_of
from sailor.sim.clusters import cluster_of


@dataclass
class Profiles:
    """What is known of the model, and what is assumed."""

    profiles: list[LayerProfile] = field(default_factory=list)
    footprints: list[LayerFootprint] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

    def tp_by_gpu(self) -> dict[str, tuple[int, ...]]:
        """Return the profiled tp degrees of each GPU type."""
        gpus = sorted({profile.gpu for profile in self.profiles})
        return {gpu: tuple(sorted({p.tp for p in self.profiles if p.gpu == gpu})) for gpu in gpus}


_Sources = Sequence[tuple[ProfileSource, SourceContext]]


def resolve_profiles(
    job: Job,
    arch: ModelSpec,
    catalog: Catalog,
    registry: Registry,
    max_tp_by_gpu: Mapping[str, int],
) -> Profiles:
    """Ask the profile sources in order; for each GPU type the first that knows it answers.

    Sources are not mixed on one GPU type: a modelled time beside a measured one would decide by
    the model's error.
    """
    sources: _Sources = [
        (
            registry.profile_source(ref.name, where="sources.profiles"),
            context_of(catalog, ref, cluster_of(job.cluster)),
        )
        for ref in job.sources.profiles
    ]
    _check_degrees(job, arch)
    found = Profiles()
    for gpu, max_tp in sorted(max_tp_by_gpu.items()):
        _profiles_of_gpu(job, arch, gpu, max_tp, sources, found)
    tps = sorted({profile.tp for profile in found.profiles} | {1})
    for tp in tps:
        footprint = _footprint(job, arch, tp, sources)
        if footprint is not None:
            found.footprints.append(footprint)
        elif tp == 1:
            names = ", ".join(ref.name for ref in job.sources.profiles)
            raise InputError(
                f"no profile source ({names}) knows the size of {arch.name}'s layers at "
                f"{job.training.precision}",
                where="sources.profiles",
                hint="add 'analytic' to sources.profiles",
            )
    known = {footprint.tp for footprint in found.footprints}
    for tp in tps:
        if tp not in known:
            found.excluded.append(f"tp {tp}: the bytes of {arch.name}'s layers are unknown")
    found.profiles = [profile for profile in found.profiles if profile.tp in known]
    modelled = sorted({p.gpu for p in found.profiles if p.provenance is not Provenance.MEASURED})
    if modelled:
        found.assumptions.append(
            f"layer times of {arch.name} ({job.training.precision}) on {', '.join(modelled)} are "
            "modelled from shapes, not measured"
        )
    return found


def _check_degrees(job: Job, arch: ModelSpec) -> None:
    for where, tps in (
        ("search_space.tp", job.search_space.tp),
        ("constraints.tp", None if job.constraints.tp is None else (job.constraints.tp,)),
    ):
        for tp in tps or ():
            if not arch.allows_tp(tp):
                raise InputError(
                    f"tp {tp} doesn't divide {arch.num_heads} heads and {arch.num_kv_heads} "
                    f"key-value heads of {arch.name}",
                    where=where,
                    hint=f"allowed: {', '.join(str(n) for n in _divisors(arch))}",
                )
    for where, sizes in (
        ("search_space.microbatch", job.search_space.microbatch),
        (
            "constraints.microbatch",
            None if job.constraints.microbatch is None else (job.constraints.microbatch,),
        ),
    ):
        for size in sizes or ():
            if size > job.training.global_batch:
                raise InputError(
                    f"microbatch {size} is larger than the global batch "
                    f"{job.training.global_batch}",
                    where=where,
                    hint="take at most the global batch",
                )
    for where, pp in (
        ("constraints.pp", job.constraints.pp),
        ("search_space.max_pp", job.search_space.max_pp),
    ):
        if pp is not None and pp > arch.num_units:
            raise InputError(
                f"{pp} stages are more than the {arch.num_units} units of {arch.name} "
                f"(embedding, {arch.num_layers} blocks, head)",
                where=where,
                hint=f"take at most {arch.num_units}",
            )
    if job.constraints.dp is not None and job.constraints.dp > job.training.global_batch:
        raise InputError(
            f"dp {job.constraints.dp} is more than the global batch {job.training.global_batch}",
            where="constraints.dp",
            hint="every pipeline needs at least one sample",
        )


def _divisors(arch: ModelSpec) -> list[int]:
    return [tp for tp in range(1, min(arch.num_heads, 64) + 1) if arch.allows_tp(tp)]


def _profiles_of_gpu(
    job: Job, arch: ModelSpec, gpu: str, max_tp: int, sources: _Sources, found: Profiles
) -> None:
    for source, context in sources:

        def measured(
            tp: int,
            size: int,
            source: ProfileSource = source,
            context: SourceContext = context,
        ) -> LayerProfile | None:
            return source.profile(arch, job.training, gpu, tp, size, context)

        grid = [
            (tp, size)
            for tp, size in source.grid(arch, job.training, gpu, context)
            if tp <= max_tp and _wanted_tp(job, arch, tp)
        ]
        answers = [measured(tp, size) for tp, size in grid if _wanted_size(job, size)]
        profiles = [answer for answer in answers if answer is not None]
        more, outside = between_measured(
            grid,
            [size for size in _named_sizes(job) if _wanted_size(job, size)],
            {tp for tp, _ in grid},
            measured,
        )
        if profiles or more:
            found.profiles.extend([*profiles, *more])
            found.excluded.extend(f"{gpu}: {text}" for text in outside)
            found.assumptions.extend(
                f"{gpu}, microbatch {profile.microbatch}, tp {profile.tp}: layer times are "
                f"{profile.source.split(':', 1)[0]}"
                for profile in more
            )
            return
    names = ", ".join(ref.name for ref in job.sources.profiles)
    found.excluded.append(
        f"{gpu}: no profile of {arch.name} at {job.training.precision} is known to {names} "
        "for the allowed tp and microbatch"
    )


def _wanted_tp(job: Job, arch: ModelSpec, tp: int) -> bool:
    space, limits = job.search_space, job.constraints
    return arch.allows_tp(tp) and (space.tp is None or tp in space.tp) and limits.tp in (None, tp)


def _wanted_size(job: Job, microbatch: int) -> bool:
    space, limits = job.search_space, job.constraints
    return (
        microbatch <= job.training.global_batch
        and (space.microbatch is None or microbatch in space.microbatch)
        and limits.microbatch in (None, microbatch)
    )


def _named_sizes(job: Job) -> list[int]:
    """Return the microbatch sizes that the job names."""
    pinned = job.constraints.microbatch
    return sorted({*(job.search_space.microbatch or ()), *(() if pinned is None else (pinned,))})


def _footprint(job: Job, arch: ModelSpec, tp: int, sources: _Sources) -> LayerFootprint | None:
    for source, context in sources:
        answer = source.footprint(arch, job.training, tp, context)
        if answer is not None:
            return answer
    return None
