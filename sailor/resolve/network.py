"""Links between all workers that a pool can hold."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.interfaces import NetworkModel, SourceContext, WorkerGroup
from sailor.model.catalog import Catalog
from sailor.model.hardware import Link, NodeType
from sailor.model.job import Job
from sailor.model.problem import Placement
from sailor.registry import Registry
from sailor.resolve.pool import context_of
from sailor.sim.clusters import cluster_of


def resolve_links(
    job: Job,
    catalog: Catalog,
    registry: Registry,
    placements: Sequence[Placement],
    tp_by_gpu: dict[str, tuple[int, ...]],
) -> tuple[tuple[Link, ...], list[str]]:
    """Return every known link between worker groups, and remarks on pairs of zones without one.

    Groups are those of the smallest node that holds tp GPUs: shapes of one family differ only in
    how many replicas share the node.
    """
    models = [
        (
            registry.network_model(source.name, where="sources.network"),
            context_of(catalog, source, cluster_of(job.cluster)),
        )
        for source in job.sources.network
    ]
    groups = _groups(catalog, placements, tp_by_gpu)
    found: dict[tuple[object, ...], Link] = {}
    for link in job.catalog.links:
        found.setdefault(_key(link), link)
    unlinked: dict[tuple[str, str], None] = {}
    own_zone_only = {key[:2] for key in found if key[2:] == (None, None, None, None)}
    for src in groups:
        for dst in groups:
            if (src.zone, dst.zone) in own_zone_only:
                continue
            answer = _ask(models, src, dst)
            if answer is None:
                unlinked[src.zone, dst.zone] = None
            else:
                found.setdefault(_key(answer), answer)
    linked = {key[:2] for key in found}
    remarks = [
        f"{src} to {dst}: no link is known, no plan sends anything there"
        for src, dst in unlinked
        if (src, dst) not in linked
    ]
    return tuple(found.values()), remarks


def _ask(
    models: Sequence[tuple[NetworkModel, SourceContext]], src: WorkerGroup, dst: WorkerGroup
) -> Link | None:
    for model, context in models:
        link = model.link(src, dst, context)
        if link is not None:
            return link
    return None


def _key(link: Link) -> tuple[object, ...]:
    return (link.src, link.dst, link.src_gpu, link.dst_gpu, link.src_workers, link.dst_workers)


def _groups(
    catalog: Catalog, placements: Sequence[Placement], tp_by_gpu: dict[str, tuple[int, ...]]
) -> list[WorkerGroup]:
    chosen: dict[tuple[str, str, int], NodeType] = {}
    for placement in placements:
        node = catalog.node(placement.node_type)
        # One GPU at a time is asked for too: the published all-reduce uses that link.
        for workers in sorted({1, *tp_by_gpu.get(node.gpu, ())}):
            if workers > node.num_gpus:
                continue
            key = (placement.zone, node.gpu, workers)
            if key not in chosen or node.num_gpus < chosen[key].num_gpus:
                chosen[key] = node
    return [
        WorkerGroup(zone, gpu, node.name, workers)
        for (zone, gpu, workers), node in sorted(chosen.items(), key=lambda item: item[0])
    ]
