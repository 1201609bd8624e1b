"""Links by how far two zones are apart: network cards in a region, measured rates between regions.

Within a region the figure is the data sheet's line rate of the slower node (assumed). Between
regions of one provider it is what two machines were measured to exchange, or the slower node's
line rate where that is less. Regions without a measurement have no link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sailor.interfaces import SourceContext, WorkerGroup
from sailor.model.hardware import Link
from sailor.profiling.latency import SAME_REGION, SAME_ZONE


@dataclass(frozen=True)
class RegionLink:
    """What was measured from one region to another."""

    bytes_per_s: float
    latency_s: float  # one way
    source: str


@cache
def region_links() -> Mapping[tuple[str, str, str], RegionLink]:
    """Return the measured links by (provider, sending region, receiving region)."""
    text = files("sailor.sources").joinpath("data", "region_links.json").read_text(encoding="utf-8")
    found: dict[tuple[str, str, str], RegionLink] = {}
    for table in json.loads(text)["providers"]:
        for i, src in enumerate(table["regions"]):
            for j, dst in enumerate(table["regions"]):
                gbit_per_s = table["gbit_per_s"][i][j]
                round_trip_ms = table["round_trip_ms"][i][j]
                if gbit_per_s is not None and round_trip_ms is not None:
                    found[table["provider"], src, dst] = RegionLink(
                        gbit_per_s * 1e9 / 8, round_trip_ms / 2e3, table["source"]
                    )
    return found


class ZonesNetwork:
    """Line rates within a region, measured rates between regions, None for unknown pairs.

    A node's card is shared by its GPUs, and one GPU alone can fill it: the bandwidth is the
    node's, for however many of its GPUs send together.
    """

    name = "zones"

    def link(self, src: WorkerGroup, dst: WorkerGroup, context: SourceContext) -> Link | None:
        """Return the link between nodes of the groups' types, or None: regions not measured."""
        catalog = context.catalog
        here, there = catalog.zone(src.zone), catalog.zone(dst.zone)
        slower = min(
            (catalog.node(group.node_type) for group in (src, dst)),
            key=lambda node: node.nic_bandwidth,
        )
        share = context.cluster.nic_share
        bandwidth = share * slower.nic_bandwidth
        source = f"{share:g} of the line rate of {slower.name}'s network card ({slower.source})"
        assumed = True
        if here.provider == there.provider and here.region == there.region:
            latency = SAME_ZONE if here.name == there.name else SAME_REGION
            latency_s, source = latency.seconds, f"{source}; {latency.source}"
        else:
            between = region_links().get((here.provider, here.region, there.region))
            if between is None or here.provider != there.provider:
                return None
            latency_s = between.latency_s
            source = f"{source}; latency half of the measured round trip"
            if between.bytes_per_s <= bandwidth:
                bandwidth, source, assumed = between.bytes_per_s, between.source, False
        return Link(
            src=src.zone,
            dst=dst.zone,
            src_gpu=src.gpu,
            dst_gpu=dst.gpu,
            src_workers=src.workers,
            dst_workers=dst.workers,
            latency_s=latency_s,
            bandwidth=bandwidth,
            source=source,
            assumed=assumed,
        )
