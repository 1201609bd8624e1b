"""What varies by cluster: NVLink share, network, host speed; named, with a default and a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterFacts:
    """One cluster.

    `link_share`: bus bandwidth of an all-reduce inside a node over the link's one-way bandwidth.
    `nic_bandwidth`: of a node, all NICs, one direction, bytes/s. `nic_share`: of it that a
    collective reaches. `host_factor`: time of the host to launch kernels, against the framework's
    usual one. `error_pct`: mean error of iteration times when these figures are the defaults.
    """

    name: str
    gpus_per_node: int = 8
    link_share: float = 0.75
    nic_bandwidth: float = 100e9
    nic_share: float = 0.75
    host_factor: float = 1.0
    source: str = "defaults: the middle of the clusters below"


DEFAULT_CLUSTER = ClusterFacts("unknown")

CLUSTERS: Mapping[str, ClusterFacts] = {
    cluster.name: cluster
    for cluster in (
        DEFAULT_CLUSTER,
        ClusterFacts("selene", link_share=0.85, nic_bandwidth=200e9, nic_share=0.95,
                     source="8 HDR InfiniBand NICs a node; shares fitted to SC21 tables"),
        ClusterFacts("vtrain", link_share=0.85, nic_bandwidth=100e9, nic_share=0.90,
                     source="800 Gbit/s a node as its repository says; shares fitted"),
        ClusterFacts("jean-zay", link_share=0.26, nic_bandwidth=50e9, nic_share=0.57,
                     source="4 Omni-Path NICs of 100 Gbit/s a node; shares fitted"),
        ClusterFacts("internevo", link_share=0.50, nic_bandwidth=50e9, nic_share=0.52,
                     source="4 RoCE NICs of 100 Gbit/s a node as printed; shares fitted"),
        ClusterFacts("mosaic-a100", link_share=0.63, nic_bandwidth=200e9, nic_share=0.72,
                     source="1600 Gbit/s a node as printed; shares fitted"),
        ClusterFacts("mosaic-h100", link_share=0.63, nic_bandwidth=400e9, nic_share=0.83,
                     source="3200 Gbit/s a node assumed; shares fitted"),
        ClusterFacts("eos", link_share=0.77, nic_bandwidth=400e9, nic_share=0.83,
                     source="8 NDR InfiniBand NICs a node; shares fitted"),
        ClusterFacts("hf-h100", link_share=0.77, nic_bandwidth=400e9, nic_share=0.5,
                     source="EFA, 3200 Gbit/s a node; shares fitted"),
        ClusterFacts("dgx2", gpus_per_node=16, link_share=0.65, nic_bandwidth=100e9,
                     source="16 V100 on NVSwitch; share fitted"),
    )
}  # fmt: skip
