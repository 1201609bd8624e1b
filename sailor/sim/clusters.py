"""What varies by cluster: NVLink share, network, host speed; named, with a default and a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sailor.errors import UnknownNameError
from sailor.model.cluster import Cluster, ClusterRef
from sailor.model.hardware import NodeType


@dataclass(frozen=True)
class ClusterFacts:
    """One cluster.

    `link_share`: bus bandwidth of an all-reduce inside a node over the link's one-way bandwidth.
    `nic_bandwidth`: of a node, all NICs, one direction, bytes/s. `nic_share`: of it that a
    collective reaches. `host_factor`: time of the host to launch kernels, against the framework's
    usual one. `link_step_s`: time of a collective inside a node for each doubling of its ranks,
    whatever its size: launch, synchronisation, first bytes. `error_pct`: mean error of iteration
    times with these figures; for the defaults, that of tables whose cluster was left out.
    `link_bandwidth`: of one GPU to its node's others, one direction; None: its data sheet's.
    """

    name: str
    error_pct: float
    gpus_per_node: int = 8
    link_share: float = 0.80
    nic_bandwidth: float = 100e9
    nic_share: float = 0.80
    host_factor: float = 1.0
    link_step_s: float = 15e-6
    source: str = "defaults: the middle of the clusters below"
    link_bandwidth: float | None = None


DEFAULT_CLUSTER = ClusterFacts("unknown", error_pct=7.6)

CLUSTERS: Mapping[str, ClusterFacts] = {
    cluster.name: cluster
    for cluster in (
        DEFAULT_CLUSTER,
        ClusterFacts("selene", error_pct=2.9, link_share=0.90, nic_bandwidth=200e9,
                     nic_share=0.79,
                     source="8 HDR InfiniBand NICs a node; shares fitted to SC21's tables"),
        ClusterFacts("vtrain-node", error_pct=5.9, link_share=0.85, link_step_s=156e-6,
                     source="one node of 8 A100; the step fitted: a block takes 0.6 ms more for "
                     "each doubling of tp, whatever its size"),
        ClusterFacts("vtrain", error_pct=6.6, link_share=0.99, nic_bandwidth=100e9,
                     nic_share=0.93,
                     source="800 Gbit/s a node as its repository says; shares fitted"),
        ClusterFacts("jean-zay", error_pct=4.0, link_share=0.26, nic_bandwidth=50e9,
                     nic_share=0.60,
                     source="4 Omni-Path NICs of 100 Gbit/s a node; shares fitted"),
        ClusterFacts("jean-zay-v100", error_pct=24.2, gpus_per_node=4, link_share=0.43,
                     nic_bandwidth=50e9,
                     nic_share=0.41,
                     source="4 V100 a node, 4 Omni-Path NICs of 100 Gbit/s; shares fitted"),
        ClusterFacts("internevo", error_pct=2.7, link_share=0.40, nic_bandwidth=50e9,
                     nic_share=0.65,
                     source="4 RoCE NICs of 100 Gbit/s a node as printed; shares fitted"),
        ClusterFacts("mosaic-a100", error_pct=3.6, link_share=0.66, nic_bandwidth=200e9,
                     nic_share=0.99,
                     source="1600 Gbit/s a node as printed; shares fitted"),
        ClusterFacts("mosaic-h100", error_pct=2.3, link_share=0.96, nic_bandwidth=400e9,
                     nic_share=0.94,
                     host_factor=1.63,
                     source="3200 Gbit/s a node assumed; shares and host fitted"),
        ClusterFacts("eos", error_pct=4.0, link_share=0.92, nic_bandwidth=400e9,
                     nic_share=0.74,
                     source="8 NDR InfiniBand NICs a node assumed; shares fitted"),
        ClusterFacts("hf-h100", error_pct=8.3, link_share=0.99, nic_bandwidth=400e9,
                     nic_share=0.62,
                     source="3200 Gbit/s of EFA a node assumed; shares fitted"),
        ClusterFacts("dgx2", error_pct=1.5, gpus_per_node=16, link_share=0.65, nic_bandwidth=100e9,
                     source="16 V100 on NVSwitch, 8 InfiniBand NICs; share fitted"),
    )
}  # fmt: skip


def cluster_of(ref: ClusterRef) -> Cluster:
    """Return the figures of a job's cluster; raises UnknownNameError for a name without any."""
    if ref.name not in CLUSTERS:
        raise UnknownNameError("cluster", ref.name, sorted(CLUSTERS), where="cluster")
    facts = CLUSTERS[ref.name]
    given = ref.given()
    source = facts.source
    if given:
        source = f"{', '.join(given)} as the job states; the rest: {source}"
    figures = {
        name: getattr(facts, name)
        for name in ("link_share", "nic_share", "host_factor", "link_step_s", "error_pct")
    }
    return Cluster.model_validate({"name": ref.name, **figures, **given, "source": source})


def in_nodes(cluster: Cluster, node: NodeType) -> ClusterFacts:
    """Return what collectives and hosts reach in nodes of a type."""
    return replace(
        DEFAULT_CLUSTER,
        name=cluster.name,
        error_pct=cluster.error_pct,
        gpus_per_node=node.num_gpus,
        link_share=cluster.link_share,
        nic_bandwidth=node.nic_bandwidth,
        nic_share=cluster.nic_share,
        host_factor=cluster.host_factor,
        link_step_s=cluster.link_step_s,
        source=cluster.source,
        link_bandwidth=node.intra_node_bandwidth,
    )
