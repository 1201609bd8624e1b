"""Put the parts of a problem together."""

from __future__ import annotations

from pathlib import Path

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.huggingface import read_config
from sailor.model.job import HuggingFaceModel, Job, Objective, Training
from sailor.model.presets import preset
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.resolve.network import resolve_links
from sailor.resolve.pool import resolve_egress, resolve_pool
from sailor.resolve.profiles import resolve_profiles
from sailor.sim.clusters import cluster_of
from sailor.sim.models import cost_model


def resolve(job: Job, registry: Registry, *, objective: Objective | None = None) -> Problem:
    """Return the closed problem of a job. Asks every source once.

    Raises InputError for names that nothing knows and for wishes that contradict the model.
    Offers without a price and GPU types without a profile are left out, with a reason each in
    `Problem.excluded`; a problem without any placement is legal and infeasible.
    """
    model = cost_model(job.cost_model, where="cost_model")
    if model.name == "published" and (job.training.precision, job.training.optimizer) != (
        "fp32",
        "adam",
    ):
        raise InputError(
            f"cost model 'published' counts fp32 training with Adam, the job asks for "
            f"{job.training.precision} with {job.training.optimizer}",
            where="cost_model",
            hint="use cost_model: sailor, or precision: fp32 and optimizer: adam",
        )
    if model.name == "published":
        _refuse_unpublished(job)
    arch = resolve_arch(job)
    try:
        job.training.check_model(arch)
    except ValueError as error:
        raise InputError(
            str(error), where="training", hint="choose an ep that divides the model's experts"
        ) from error
    catalog = Catalog.builtin().with_additions(job.catalog)
    _check_limits(job, catalog)
    pool = resolve_pool(job, catalog, registry)
    nodes = {p.node_type: catalog.node(p.node_type) for p in pool.placements}
    max_tp: dict[str, int] = {}
    for node in nodes.values():
        max_tp[node.gpu] = max(max_tp.get(node.gpu, 0), node.num_gpus)
    # What lies inside a node is that of the pool's nodes, not of others with the same GPU.
    profiles = resolve_profiles(job, arch, catalog.only_nodes(nodes), registry, max_tp)
    zones = sorted({placement.zone for placement in pool.placements})
    links, unlinked = resolve_links(job, catalog, registry, pool.placements, profiles.tp_by_gpu())
    egress, unpriced = resolve_egress(job, catalog, registry, zones)
    assumptions = list(profiles.assumptions)
    assumed = sorted({link.source for link in links if link.assumed})
    assumptions.extend(f"link figures that are not measured: {source}" for source in assumed)
    divisor = job.training.vocab_divisor
    if arch.vocab % divisor:
        assumptions.append(
            f"the vocabulary of {arch.vocab} rows is padded to a multiple of {divisor} x tp"
        )
    return Problem(
        job=job.name,
        arch=arch,
        training=job.training,
        batch=job.batch,
        objective=objective or job.objective,
        constraints=job.constraints,
        search_space=job.search_space,
        cost_model=model.name,
        cluster=cluster_of(job.cluster),
        gpus=tuple(catalog.gpu(name) for name in sorted({n.gpu for n in nodes.values()})),
        nodes=tuple(nodes[name] for name in sorted(nodes)),
        zones=tuple(catalog.zone(name) for name in zones),
        placements=tuple(pool.placements),
        capacities=tuple(pool.capacities),
        links=links,
        egress=egress,
        profiles=tuple(profiles.profiles),
        footprints=tuple(profiles.footprints),
        excluded=(*pool.excluded, *profiles.excluded, *unlinked, *unpriced, *pool.remarks),
        assumptions=tuple(assumptions),
    )


def _refuse_unpublished(job: Job) -> None:
    """Raise InputError where the training has an option that the published model ignores."""
    usual = Training(global_batch=1)
    ignored = [
        name
        for name in Training.model_fields
        if name not in ("global_batch", "precision", "optimizer")
        and getattr(job.training, name) != getattr(usual, name)
    ]
    if ignored:
        raise InputError(
            f"cost model 'published' knows nothing of {', '.join(ignored)}",
            where=f"training.{ignored[0]}",
            hint="use cost_model: sailor, or leave it out",
        )


def resolve_arch(job: Job) -> ModelSpec:
    """Return the shape of the job's model: a preset, a local config.json, or given inline."""
    if isinstance(job.model, ModelSpec):
        return job.model
    if isinstance(job.model, HuggingFaceModel):
        return read_config(Path(job.model.huggingface), seq_len=job.model.seq_len)
    return preset(job.model, where="model")


def _check_limits(job: Job, catalog: Catalog) -> None:
    limits = job.constraints
    for name in limits.zones or ():
        catalog.zone(name, where="constraints.zones")
    for name in limits.regions or ():
        catalog.zones_of_region(name, where="constraints.regions")
    for name in limits.gpu_types or ():
        catalog.gpu(name, where="constraints.gpu_types")
