"""Networks `measured`, `store` and `zones`: measured figures, said assumptions, None if unknown."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import NetworkModel, SourceContext, WorkerGroup
from sailor.model.catalog import Catalog
from sailor.model.cluster import Cluster
from sailor.model.hardware import NodeType, Zone
from sailor.sources.embedded import embedded_store
from sailor.sources.network_measured import MeasuredNetwork, StoreNetwork
from sailor.sources.network_zones import ZonesNetwork, region_links

PRICES = Path(__file__).parents[3] / "shared/prices"


def _node(name: str, provider: str, nic_gbit_per_s: float) -> NodeType:
    return NodeType.model_validate(
        {
            "name": name,
            "provider": provider,
            "gpu": "A100-40GB",
            "num_gpus": 8,
            "intra_node_bandwidth": "300 GB/s",
            "nic_bandwidth": f"{nic_gbit_per_s} Gbit/s",
            "source": "test sheet",
        }
    )


ZONES = {
    name: Zone(name=name, region=region, provider=provider)
    for name, region, provider in (
        ("us-central1-a", "us-central1", "gcp"),
        ("us-central1-b", "us-central1", "gcp"),
        ("us-west1-b", "us-west1", "gcp"),
        ("europe-west4-a", "europe-west4", "gcp"),
        ("us-south1-a", "us-south1", "gcp"),
        ("australia-southeast2-a", "australia-southeast2", "gcp"),
        ("southamerica-west1-a", "southamerica-west1", "gcp"),
        ("us-east-1a", "us-east-1", "aws"),
        ("us-west-2a", "us-west-2", "aws"),
        ("rack", "cellar", "local"),
        ("shelf", "attic", "local"),
    )
}
NODES = {node.name: node for node in (_node("big", "gcp", 100), _node("small", "gcp", 8))}
CONTEXT = SourceContext(Catalog(gpus={}, nodes=NODES, zones=ZONES, gpu_aliases={}))


def _group(zone: str, node: str = "big", gpu: str = "A100-40GB", workers: int = 4) -> WorkerGroup:
    return WorkerGroup(zone=zone, gpu=gpu, node_type=node, workers=workers)


def test_all_are_network_models() -> None:
    for model, name in (
        (MeasuredNetwork(), "measured"), (StoreNetwork(), "store"), (ZonesNetwork(), "zones")
    ):  # fmt: skip
        assert isinstance(model, NetworkModel)
        assert model.name == name


@pytest.mark.parametrize(
    ("src", "dst", "coefficients", "peak"),
    [
        (
            _group("us-central1-a", workers=1),
            _group("us-central1-a", workers=1),
            (-0.0024414231124647644, 0.1408627339370467, 1.1168227571263461),
            2420367713.517156,
        ),
        (
            _group("us-central1-a", gpu="GH200-96GB", workers=1),
            _group("us-central1-a", gpu="GH200-96GB", workers=1),
            (-0.16570216, 2.79431173, 11.74409677),
            22934533176.529446,
        ),
        (  # the slower, V100, side stands for the pair
            _group("us-central1-a", workers=1),
            _group("us-central1-a", gpu="V100-16GB", workers=1),
            None,
            1719640629.4376425,
        ),
    ],
)
def test_measured_curves(
    src: WorkerGroup,
    dst: WorkerGroup,
    coefficients: tuple[float, float, float] | None,
    peak: float,
) -> None:
    link = MeasuredNetwork().link(src, dst, CONTEXT)
    assert link is not None
    assert link.curve is not None
    if coefficients is not None:
        assert link.curve.coefficients == pytest.approx(coefficients, rel=1e-15)
    assert link.curve.peak_bytes_per_s == peak


def test_measured_latency_grows_with_distance() -> None:
    here = _group("us-central1-a")
    latencies = []
    for zone in ("us-central1-a", "us-central1-b", "us-west1-b"):
        link = MeasuredNetwork().link(here, _group(zone), CONTEXT)
        assert link is not None
        latencies.append(link.latency_s)
    assert latencies == pytest.approx([60e-6, 0.5e-3, 18.139e-3])


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (_group("us-central1-a", workers=8), _group("us-central1-a", workers=8)),
        (_group("us-central1-a"), _group("europe-west4-a")),
        (_group("us-central1-a", gpu="H100-80GB"), _group("us-central1-a", gpu="H100-80GB")),
        (
            _group("us-central1-b", gpu="GH200-96GB"),
            _group("us-central1-a", gpu="GH200-96GB"),
        ),
        (_group("us-central1-a", gpu="A100-80GB"), _group("us-central1-a", gpu="A100-80GB")),
    ],
)
def test_what_was_not_measured_has_no_link(src: WorkerGroup, dst: WorkerGroup) -> None:
    assert MeasuredNetwork().link(src, dst, CONTEXT) is None


def test_a_store_file_gives_its_links(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    embedded_store().save(file)
    context = SourceContext(CONTEXT.catalog, file)
    src, dst = _group("us-central1-a"), _group("us-west1-b")
    assert StoreNetwork().link(src, dst, context) == MeasuredNetwork().link(src, dst, CONTEXT)
    with pytest.raises(InputError, match=r"sources\.network: .*write network"):
        StoreNetwork().link(src, dst, CONTEXT)


def test_zones_within_a_zone_is_the_slower_card() -> None:
    link = ZonesNetwork().link(_group("us-central1-a"), _group("us-central1-a", "small"), CONTEXT)
    assert link is not None
    # A cluster that nobody described reaches 0.8 of its cards.
    assert link.bandwidth == pytest.approx(0.8 * 8e9 / 8)
    assert link.latency_s == 60e-6
    assert link.assumed
    assert "0.8 of the line rate of small's network card (test sheet)" in link.source
    # A gigabyte takes 1.25006 s.
    assert link.transfer_s(1e9) == pytest.approx(1.25006)


def test_zones_take_the_share_of_the_job_s_cluster() -> None:
    slow = SourceContext(CONTEXT.catalog, cluster=Cluster(nic_share=0.25))
    link = ZonesNetwork().link(_group("us-central1-a"), _group("us-central1-b"), slow)
    assert link is not None
    assert link.bandwidth == 0.25 * 100e9 / 8
    assert "0.25 of the line rate of big's network card" in link.source
    # Between regions Skyplane measured 13.721 Gbit/s: the card's 25 are more, 0.1 of it are less.
    for share, wanted, assumed in ((0.25, 13.721e9 / 8, False), (0.1, 0.1 * 100e9 / 8, True)):
        context = SourceContext(CONTEXT.catalog, cluster=Cluster(nic_share=share))
        far = ZonesNetwork().link(_group("us-central1-a"), _group("us-west1-b"), context)
        assert far is not None
        assert (far.bandwidth, far.assumed) == (pytest.approx(wanted), assumed)


def test_zones_one_gpu_can_fill_its_node_s_card() -> None:
    model = ZonesNetwork()
    one = model.link(_group("us-central1-a", workers=1), _group("us-central1-b"), CONTEXT)
    assert one is not None
    assert one.bandwidth == 0.8 * 100e9 / 8
    assert (one.src_workers, one.dst_workers, one.latency_s) == (1, 4, 0.5e-3)


def test_zones_between_regions_is_the_measured_rate() -> None:
    model = ZonesNetwork()
    link = model.link(_group("us-central1-a"), _group("us-west1-b"), CONTEXT)
    assert link is not None
    assert link.bandwidth == 13.721e9 / 8
    assert link.latency_s == pytest.approx(0.018139)
    assert not link.assumed
    assert "Skyplane measurement of 2022-04" in link.source
    back = model.link(_group("us-west1-b"), _group("us-central1-a"), CONTEXT)
    assert back is not None
    assert back.bandwidth == 19.415e9 / 8


def test_zones_between_regions_no_faster_than_the_card() -> None:
    link = ZonesNetwork().link(_group("us-central1-a", "small"), _group("us-west1-b"), CONTEXT)
    assert link is not None
    # 0.8 of 8 Gbit/s are less than the 13.721 that were measured.
    assert link.bandwidth == pytest.approx(0.8 * 8e9 / 8)
    assert link.assumed
    assert "line rate of small" in link.source
    assert link.latency_s == pytest.approx(0.018139)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("us-central1-a", "us-south1-a"),  # a region nobody measured
        ("us-central1-a", "us-east-1a"),  # another provider
        ("australia-southeast2-a", "southamerica-west1-a"),  # its pings contradict each other
        ("rack", "shelf"),
        ("us-central1-a", "rack"),
    ],
)
def test_zones_unknown_pairs_have_no_link(src: str, dst: str) -> None:
    assert ZonesNetwork().link(_group(src), _group(dst), CONTEXT) is None
    assert ZonesNetwork().link(_group(dst), _group(src), CONTEXT) is None


def test_zones_an_own_cluster_has_links_inside_itself() -> None:
    link = ZonesNetwork().link(_group("rack"), _group("rack"), CONTEXT)
    assert link is not None
    assert link.assumed


def test_zones_knows_aws_regions() -> None:
    link = ZonesNetwork().link(_group("us-east-1a"), _group("us-west-2a"), CONTEXT)
    assert link is not None
    assert link.bandwidth is not None
    assert link.bandwidth < 5e9 / 8  # the provider's cap on these machines


def _rows(name: str) -> list[dict[str, str]]:
    file = PRICES / name
    if not file.is_file():
        pytest.skip(f"{name} is not here")
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def _region(end: str) -> tuple[str, str]:
    provider, place = end.split(":")
    return provider, place.rsplit("-", 1)[0] if provider == "gcp" else place


def test_region_table_has_every_measured_google_pair() -> None:
    rows = _rows("net_throughput_gcp_internal_skyplane_2022-04.csv")
    table = region_links()
    missing = []
    for row in rows:
        (provider, src), (_, dst) = _region(row["src"]), _region(row["dst"])
        known = table.get((provider, src, dst))
        if known is None:
            missing.append({src, dst})
        else:
            assert known.bytes_per_s == pytest.approx(float(row["gbps_received"]) * 1e9 / 8)
    assert len(rows) == 702
    assert missing == [{"australia-southeast2", "southamerica-west1"}] * 2


def test_region_latencies_lie_within_the_measured_pings() -> None:
    lowest: dict[tuple[str, frozenset[str]], float] = {}
    highest: dict[tuple[str, frozenset[str]], float] = {}
    for row in _rows("net_latency_skyplane_2022.csv"):
        (provider, src), (other, dst) = _region(row["src"]), _region(row["dst"])
        if provider == other:
            key = (provider, frozenset((src, dst)))
            lowest[key] = min(lowest.get(key, 1e9), float(row["min_rtt_ms"]))
            highest[key] = max(highest.get(key, 0.0), float(row["max_rtt_ms"]))
    for (provider, src, dst), link in region_links().items():
        key = (provider, frozenset((src, dst)))
        assert lowest[key] - 1e-9 <= 2e3 * link.latency_s <= highest[key] + 1e-9
    # No pair is nearer than light in fibre allows: London to Sydney is 17,000 km, 85 ms one way.
    assert region_links()["gcp", "australia-southeast1", "europe-west2"].latency_s > 0.085
