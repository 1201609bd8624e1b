"""The pool of a job as placements and shared capacities, with prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sailor.errors import InputError
from sailor.interfaces import PriceQuery, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.cluster import Cluster
from sailor.model.hardware import EgressPrice, NodeType, Offer, Price, Zone
from sailor.model.job import Job, SourceRef
from sailor.model.problem import Capacity, Placement
from sailor.registry import Registry
from sailor.sim.clusters import cluster_of


@dataclass
class Pool:
    """Placements and capacities, and what could not be used."""

    placements: list[Placement] = field(default_factory=list)
    capacities: list[Capacity] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Wanted:
    """One offer, spread over the places it can come from."""

    offer: Offer
    places: tuple[tuple[Zone, NodeType], ...]


def context_of(catalog: Catalog, source: SourceRef, cluster: Cluster) -> SourceContext:
    """Return what a source may look at."""
    return SourceContext(catalog, None if source.path is None else Path(source.path), cluster)


def resolve_pool(job: Job, catalog: Catalog, registry: Registry) -> Pool:
    """Ask availability and prices; an offer without a price is excluded with the reason."""
    pool = Pool()
    wanted = [
        _Wanted(offer, tuple(_places(offer, catalog, where)))
        for where, offer in _offers(job, catalog, registry)
    ]
    queries: dict[PriceQuery, None] = {}
    for want in wanted:
        for zone, node in want.places:
            if reason := _unwanted(job, zone, node):
                pool.excluded.append(f"{node.name} in {zone.name}: {reason}")
            else:
                queries[PriceQuery(zone.name, node.name, want.offer.market)] = None
    prices = _prices(job, catalog, registry, list(queries), pool)
    index: dict[PriceQuery, int] = {}
    for query in queries:
        if query in prices:
            index[query] = len(pool.placements)
            price = prices[query]
            pool.placements.append(
                Placement(
                    zone=query.zone,
                    node_type=query.node_type,
                    market=query.market,
                    usd_per_hour=price.usd_per_hour,
                    price_source=f"{price.source}, {price.as_of}",
                )
            )
    for want in wanted:
        places = tuple(
            index[query]
            for query in (
                PriceQuery(zone.name, node.name, want.offer.market) for zone, node in want.places
            )
            if query in index
        )
        if places:
            pool.capacities.append(
                Capacity(
                    label=want.offer.label(),
                    placements=places,
                    max_nodes=want.offer.count,
                    max_gpus=want.offer.quota,
                )
            )
    pool.excluded = list(dict.fromkeys(pool.excluded))
    return pool


def _offers(job: Job, catalog: Catalog, registry: Registry) -> Iterator[tuple[str, Offer]]:
    for source in job.sources.availability:
        found = registry.availability_source(source.name, where="sources.availability")
        for index, offer in enumerate(
            found.offers(job, context_of(catalog, source, cluster_of(job.cluster)))
        ):
            if (offer.count or 0) + (offer.quota or 0) > 0:
                yield f"pool[{index}]" if source.name == "static" else source.name, offer


def _places(offer: Offer, catalog: Catalog, where: str) -> Iterator[tuple[Zone, NodeType]]:
    if offer.node_type is not None:
        zone = catalog.zone(offer.zone or "", where=f"{where}.zone")
        node = catalog.node(offer.node_type, where=f"{where}.node_type")
        _same_provider(zone, node, where)
        yield zone, node
        return
    gpu = catalog.gpu(offer.gpu or "", where=f"{where}.gpu")
    if offer.zone is not None:
        zones: Sequence[Zone] = (catalog.zone(offer.zone, where=f"{where}.zone"),)
    else:
        zones = catalog.zones_of_region(offer.region or "", where=f"{where}.region")
    for zone in zones:
        if offer.node_types is not None:
            nodes: Sequence[NodeType] = [
                catalog.node(name, where=f"{where}.node_types") for name in offer.node_types
            ]
            for node in nodes:
                _same_provider(zone, node, where)
                if node.gpu != gpu.name:
                    raise InputError(
                        f"{node.name} holds {node.gpu}, not {gpu.name}",
                        where=f"{where}.node_types",
                        hint="name shapes with the offer's GPU type",
                    )
        else:
            nodes = catalog.nodes_with_gpu(gpu.name, zone.provider)
            if not nodes:
                raise InputError(
                    f"{zone.provider} has no node type with {gpu.name} in the catalogue",
                    where=f"{where}.gpu",
                    hint="add one under catalog.nodes of the job",
                )
        yield from ((zone, node) for node in nodes)


def _same_provider(zone: Zone, node: NodeType, where: str) -> None:
    if zone.provider != node.provider:
        raise InputError(
            f"{node.name} is a node type of {node.provider}, and zone {zone.name} belongs to "
            f"{zone.provider}",
            where=where,
            hint="name a node type and a zone of one provider",
        )


def _unwanted(job: Job, zone: Zone, node: NodeType) -> str | None:
    limits = job.constraints
    for name, value, allowed in (
        ("zones", zone.name, limits.zones),
        ("regions", zone.region, limits.regions),
        ("gpu_types", node.gpu, limits.gpu_types),
    ):
        if allowed is not None and value not in allowed:
            return f"{value} is not among constraints.{name}"
    return None


def _prices(
    job: Job, catalog: Catalog, registry: Registry, queries: Sequence[PriceQuery], pool: Pool
) -> Mapping[PriceQuery, Price]:
    found: dict[PriceQuery, Price] = {}
    reasons: dict[PriceQuery, str] = {}
    for price in job.catalog.prices:
        query = PriceQuery(price.zone, price.node_type, price.market)
        if query in found:
            raise InputError(
                f"the price of {price.node_type} ({price.market}) in {price.zone} is given twice",
                where="catalog.prices",
                hint="keep one",
            )
        found[query] = price
    for source in job.sources.prices:
        open_queries = [query for query in queries if query not in found]
        if not open_queries:
            break
        plugin = registry.price_source(source.name, where="sources.prices")
        answer = plugin.prices(open_queries, context_of(catalog, source, cluster_of(job.cluster)))
        for price in answer.prices:
            found.setdefault(PriceQuery(price.zone, price.node_type, price.market), price)
        for query, reason in answer.excluded.items():
            reasons.setdefault(query, reason)
        pool.remarks.extend(answer.remarks)
    names = ", ".join(source.name for source in job.sources.prices)
    for query in queries:
        if query not in found:
            reason = reasons.get(query, f"no price is known to {names}")
            pool.excluded.append(f"{query.node_type} ({query.market}) in {query.zone}: {reason}")
    return found


def resolve_egress(
    job: Job, catalog: Catalog, registry: Registry, zones: Sequence[str]
) -> tuple[tuple[EgressPrice, ...], list[str]]:
    """Return the price of bytes between all pairs of zones, and remarks on unknown ones."""
    pairs = [(src, dst) for src in zones for dst in zones]
    found = {(price.src, price.dst): price for price in job.catalog.egress}
    for source in job.sources.prices:
        missing = [pair for pair in pairs if pair not in found]
        if not missing:
            break
        plugin = registry.price_source(source.name, where="sources.prices")
        for price in plugin.egress(missing, context_of(catalog, source, cluster_of(job.cluster))):
            found.setdefault((price.src, price.dst), price)
    remarks = [
        f"{src} to {dst}: the price of egress is unknown, no plan sends bytes there"
        for src, dst in pairs
        if (src, dst) not in found
    ]
    return tuple(found[pair] for pair in pairs if pair in found), remarks
