"""`sailor catalog`: the models, hardware, clusters and prices that jobs may name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor.cli.options import table_or_json
from sailor.cli.output import data, note
from sailor.cli.session import Session
from sailor.errors import SailorError

if TYPE_CHECKING:
    from sailor.interfaces import PriceQuery, PriceSource, SourceContext
    from sailor.model.arch import ModelSpec
    from sailor.model.base import Record
    from sailor.model.catalog import Catalog
    from sailor.model.cluster import Cluster
    from sailor.model.hardware import GpuType, NodeType, Price, Zone

KINDS = ("models", "gpus", "nodes", "zones", "clusters", "prices")


@click.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="|".join(KINDS))
@click.option("--gpu", metavar="NAME", help="Only what has this GPU type (gpus, nodes, prices).")
@click.option("--zone", metavar="NAME", help="Only this zone (zones and prices).")
@click.option("--source", metavar="NAME", help="prices: ask only this price source.")
@click.option(
    "--price-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="prices: the file that the source of --source reads.",
)
@table_or_json
@click.pass_obj
def command(
    session: Session,
    kind: str,
    gpu: str | None,
    zone: str | None,
    source: str | None,
    price_file: Path | None,
    format_: str,
) -> None:
    """Show the models, GPU types, node types, zones, clusters or prices that jobs may name.

    `prices` asks the price sources for every node type in every zone of its provider; what none
    of them knows is left out and counted on stderr.
    """
    from sailor.model.catalog import Catalog

    if price_file is not None and source is None:
        raise click.UsageError("--price-file goes with --source NAME")
    if kind in ("models", "clusters"):
        _show_named(kind, format_)
        return
    catalog = Catalog.builtin()
    if gpu is not None:
        gpu = catalog.gpu(gpu, where="--gpu").name
    if zone is not None:
        catalog.zone(zone, where="--zone")
    if kind == "prices":
        prices = _ask(session, catalog, _queries(catalog, gpu, zone), source, price_file)
        _show(prices, _price_table(catalog, prices), format_)
    elif kind == "gpus":
        gpus = [found for found in catalog.gpus.values() if gpu in (None, found.name)]
        _show(gpus, _gpu_table(gpus), format_)
    elif kind == "nodes":
        nodes = [found for found in catalog.nodes.values() if gpu in (None, found.gpu)]
        _show(nodes, _node_table(nodes), format_)
    else:
        zones = [found for found in catalog.zones.values() if zone in (None, found.name)]
        _show(zones, _zone_table(zones), format_)


def _show(records: Sequence[Record], text: str, format_: str) -> None:
    if format_ == "json":
        rows = [record.model_dump(mode="json") for record in records]
        data(json.dumps(rows, indent=2) + "\n")
    else:
        data(text + "\n")


def _show_named(kind: str, format_: str) -> None:
    """Show what has neither a GPU type nor a zone."""
    from sailor.model.cluster import ClusterRef
    from sailor.model.presets import presets
    from sailor.sim.clusters import CLUSTERS, cluster_of

    if kind == "models":
        models = list(presets().values())
        _show(models, _model_table(models), format_)
        return
    clusters = [cluster_of(ClusterRef(name=name)) for name in CLUSTERS]
    _show(clusters, _cluster_table(clusters), format_)


def _queries(catalog: Catalog, gpu: str | None, zone: str | None) -> list[PriceQuery]:
    from sailor.interfaces import PriceQuery
    from sailor.model.hardware import Market

    return [
        PriceQuery(place.name, node.name, market)
        for node in catalog.nodes.values()
        for place in catalog.zones.values()
        for market in (Market.ON_DEMAND, Market.SPOT)
        if node.provider == place.provider
        and gpu in (None, node.gpu)
        and zone in (None, place.name)
    ]


def _ask(
    session: Session,
    catalog: Catalog,
    queries: Sequence[PriceQuery],
    source: str | None,
    price_file: Path | None,
) -> list[Price]:
    from sailor.interfaces import SourceContext

    registry = session.registry()
    if source is not None:
        chosen = {source: registry.price_source(source, where="--source")}
    else:
        chosen = dict(sorted(registry.price_sources.items()))
    found: dict[PriceQuery, Price] = {}
    for name, asked in chosen.items():
        try:
            answer = _answer(asked, queries, SourceContext(catalog, price_file))
        except SailorError as error:
            if source is not None:
                raise
            note(f"price source {name} is left out: {error}")
            continue
        for price in answer:
            found.setdefault(price_query(price), price)
    if len(found) < len(queries):
        note(f"{len(queries) - len(found)} of {len(queries)} prices are not known")
    return [found[query] for query in queries if query in found]


def _answer(
    source: PriceSource, queries: Sequence[PriceQuery], context: SourceContext
) -> Sequence[Price]:
    return source.prices(queries, context).prices


def price_query(price: Price) -> PriceQuery:
    """Return the question that a price answers."""
    from sailor.interfaces import PriceQuery

    return PriceQuery(price.zone, price.node_type, price.market)


def _price_table(catalog: Catalog, prices: Sequence[Price]) -> str:
    from sailor.report.layout import Footnotes, number, table

    notes = Footnotes()
    shown = table(
        ("zone", "node type", "GPUs", "market", "USD/h", "as of", "source"),
        [
            (
                price.zone, price.node_type,
                f"{catalog.nodes[price.node_type].num_gpus} {catalog.nodes[price.node_type].gpu}",
                str(price.market), number(price.usd_per_hour), str(price.as_of),
                notes.mark(price.source),
            )
            for price in prices
        ],
        left="llllrll",
    )  # fmt: skip
    return notes.under(shown)


def _model_table(models: Sequence[ModelSpec]) -> str:
    from sailor.report.layout import Footnotes, number, table

    notes = Footnotes()
    shown = table(
        ("model", "blocks", "hidden", "heads", "experts", "sequence", "1e9 params", "visited",
         "source"),
        [
            (
                model.name, str(model.num_layers), str(model.hidden),
                f"{model.num_heads}/{model.num_kv_heads}",
                f"{model.experts.top_k} of {model.experts.num_experts}" if model.experts else "",
                str(model.seq_len), number(model.num_params() / 1e9),
                number(model.active_params() / 1e9), notes.mark(model.source),
            )
            for model in models
        ],
        left="lrrrrrrrl",
    )  # fmt: skip
    return notes.under(shown)


def _cluster_table(clusters: Sequence[Cluster]) -> str:
    from sailor.report.layout import Footnotes, number, table

    notes = Footnotes()
    shown = table(
        ("cluster", "link share", "step us", "network share", "host factor", "time error %",
         "source"),
        [
            (
                cluster.name, number(cluster.link_share), number(cluster.link_step_s * 1e6),
                number(cluster.nic_share), number(cluster.host_factor), number(cluster.error_pct),
                notes.mark(cluster.source),
            )
            for cluster in clusters
        ],
        left="lrrrrrl",
    )  # fmt: skip
    return notes.under(shown)


def _gpu_table(gpus: Sequence[GpuType]) -> str:
    from sailor.report.layout import Footnotes, gib, number, table

    notes = Footnotes()
    shown = table(
        ("GPU", "GiB", "fp32 TFLOP/s", "half TFLOP/s", "memory GB/s", "bf16", "source"),
        [
            (
                gpu.name, gib(gpu.memory_bytes), number(gpu.fp32_flop_per_s / 1e12),
                number(gpu.half_flop_per_s / 1e12), number(gpu.memory_bandwidth / 1e9),
                "yes" if gpu.bf16 else "no", notes.mark(gpu.source),
            )
            for gpu in gpus
        ],
        left="lrrrrll",
    )  # fmt: skip
    return notes.under(shown)


def _node_table(nodes: Sequence[NodeType]) -> str:
    from sailor.report.layout import Footnotes, number, table

    notes = Footnotes()
    shown = table(
        ("node type", "provider", "GPUs", "in node GB/s", "network Gbit/s", "source"),
        [
            (
                node.name, node.provider, f"{node.num_gpus} {node.gpu}",
                number(node.intra_node_bandwidth / 1e9), number(node.nic_bandwidth * 8 / 1e9),
                notes.mark(node.source),
            )
            for node in nodes
        ],
        left="lllrrl",
    )  # fmt: skip
    return notes.under(shown)


def _zone_table(zones: Sequence[Zone]) -> str:
    from sailor.report.layout import table

    rows = [(zone.name, zone.region, zone.provider) for zone in zones]
    return table(("zone", "region", "provider"), rows, left="lll")
