"""The built-in catalogue: real figures, and names that resolve."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from sailor.errors import InputError, UnknownNameError
from sailor.model.catalog import Catalog
from sailor.model.hardware import GpuType, Zone
from sailor.model.job import CatalogAdditions

SHARED = Path(__file__).parents[2].parent / "shared"
GIB = 2**30


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.builtin()


@pytest.mark.parametrize(
    ("alias", "name", "memory_bytes"),
    [
        ("A100-40", "A100-40GB", 42338615296),
        ("A100-80", "A100-80GB", 85899345920),
        ("V100-16", "V100-16GB", 17179869184),
        ("GH-96", "GH200-96GB", 102625181696),
        ("Titan-RTX", "TitanRTX-24GB", 25769803776),
        ("RTX-2080", "RTX2080Ti-11GB", 11811160064),
        ("RTX-3090", "RTX3090-24GB", 25769803776),
    ],
)
def test_names_of_the_sosp25_study_lead_to_its_memory_sizes(
    catalog: Catalog, alias: str, name: str, memory_bytes: int
) -> None:
    assert catalog.gpu(alias).name == name
    assert catalog.gpu(name).memory_bytes == memory_bytes


def test_sosp25_memory_sizes_are_those_of_the_artifact(catalog: Catalog) -> None:
    config = SHARED / "reference/sosp25_artifact/configs/basic_cluster_config.json"
    if not config.exists():
        pytest.skip("the SOSP'25 artifact is not here")
    for alias, entry in json.loads(config.read_text()).items():
        if isinstance(entry, dict):
            assert catalog.gpu(alias).memory_bytes == entry["mem_per_gpu"], alias


def test_every_gpu_has_at_most_its_marketed_memory_and_most_of_it(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        assert 0.93 <= gpu.memory_bytes / (gpu.marketed_gib * GIB) <= 1.0, gpu.name


@pytest.mark.parametrize(
    ("name", "fp32", "half", "bandwidth", "bf16"),
    [
        ("V100-16GB", 15.7e12, 125e12, 900e9, False),
        ("A100-40GB", 19.5e12, 312e12, 1555e9, True),
        ("A100-80GB", 19.5e12, 312e12, 2039e9, True),
        ("H100-80GB", 67e12, 989e12, 3350e9, True),
        ("H200-141GB", 67e12, 989e12, 4800e9, True),
        ("L4-24GB", 30.3e12, 121e12, 300e9, True),
        ("T4-16GB", 8.1e12, 65e12, 320e9, False),
    ],
)
def test_rates_are_the_dense_ones_of_the_data_sheet(
    catalog: Catalog, name: str, fp32: float, half: float, bandwidth: float, bf16: bool
) -> None:
    gpu = catalog.gpu(name)
    assert gpu.fp32_flop_per_s == pytest.approx(fp32)
    assert gpu.half_flop_per_s == pytest.approx(half)
    assert gpu.memory_bandwidth == pytest.approx(bandwidth)
    assert gpu.bf16 is bf16


def test_every_node_type_has_a_gpu_of_the_catalogue(catalog: Catalog) -> None:
    assert {node.gpu for node in catalog.nodes.values()} <= set(catalog.gpus)


@pytest.mark.parametrize(
    ("name", "gpu", "num_gpus", "nic_gbit", "intra_gb"),
    [
        ("a2-highgpu-4g", "A100-40GB", 4, 50, 300),
        ("a2-megagpu-16g", "A100-40GB", 16, 100, 300),
        ("a3-highgpu-8g", "H100-80GB", 8, 1000, 450),
        ("a3-ultragpu-8g", "H200-141GB", 8, 3600, 450),
        ("n1-v100-4", "V100-16GB", 4, 32, 150),
        ("p4d.24xlarge", "A100-40GB", 8, 400, 300),
        ("Standard_ND96isr_H100_v5", "H100-80GB", 8, 3200, 450),
        ("gh200-4", "GH200-96GB", 4, 800, 450),
    ],
)
def test_node_types(
    catalog: Catalog, name: str, gpu: str, num_gpus: int, nic_gbit: float, intra_gb: float
) -> None:
    node = catalog.node(name)
    assert (node.gpu, node.num_gpus) == (gpu, num_gpus)
    assert node.nic_bandwidth == pytest.approx(nic_gbit * 1e9 / 8)
    assert node.intra_node_bandwidth == pytest.approx(intra_gb * 1e9)


def test_gcp_shapes_of_a_gpu_come_small_ones_first(catalog: Catalog) -> None:
    shapes = [node.name for node in catalog.nodes_with_gpu("A100-40GB", "gcp")]
    assert shapes == [
        "a2-highgpu-1g", "a2-highgpu-2g", "a2-highgpu-4g", "a2-highgpu-8g", "a2-megagpu-16g",
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["gcp_gpu_zones_skypilot_v8", "gcp_accelerator_zones_2023-05"])
def test_zones_of_the_gcp_price_extracts_are_there(catalog: Catalog, file: str) -> None:
    path = SHARED / "prices" / f"{file}.csv"
    if not path.exists():
        pytest.skip("the price extracts are not here")
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert rows
    for row in rows:
        zone = catalog.zone(row["zone"])
        assert (zone.provider, zone.region) == ("gcp", row["zone"].rpartition("-")[0])


def test_node_network_bandwidths_are_those_of_the_provider_pages(catalog: Catalog) -> None:
    path = SHARED / "prices/machine_network_facts.csv"
    if not path.exists():
        pytest.skip("the network facts are not here")
    known = {"a4x": "a4x-highgpu-4g", "a4": "a4-highgpu-8g"}
    checked = 0
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            node = catalog.nodes.get(known.get(row["machine"], row["machine"]))
            if node is None or not row["node_network_gbps"].isdigit():
                continue
            assert node.nic_bandwidth == pytest.approx(float(row["node_network_gbps"]) * 1e9 / 8)
            assert str(node.num_gpus) == row["gpus_per_node"]
            checked += 1
    assert checked >= 8


def test_zones_of_us_central1(catalog: Catalog) -> None:
    names = [zone.name for zone in catalog.zones_of_region("us-central1")]
    assert names == ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
    assert catalog.zone("local") == Zone(name="local", region="local", provider="local")


def test_misspelt_names_get_a_suggestion(catalog: Catalog) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'A100-40GB'"):
        catalog.gpu("A100-40gb")
    with pytest.raises(UnknownNameError, match="'a2-highgpu-8g'"):
        catalog.node("a2-higgpu-8g")
    with pytest.raises(UnknownNameError, match="'us-central1'"):
        catalog.zones_of_region("us-centrall")


def test_a_jobs_own_gpu_comes_before_the_built_in_one(catalog: Catalog) -> None:
    mine = GpuType.model_validate({**catalog.gpu("L4").model_dump(), "memory_bytes": "20 GiB"})
    assert catalog.with_additions(CatalogAdditions(gpus=(mine,))).gpu("L4") == mine
    assert catalog.gpu("L4").memory_bytes != mine.memory_bytes
    with pytest.raises(InputError, match=r"catalog\.gpus\[1\]"):
        catalog.with_additions(CatalogAdditions(gpus=(mine, mine)))


def test_names_and_aliases_do_not_clash() -> None:
    folder = Path(__file__).parents[2] / "sailor/model/data"
    rows = json.loads((folder / "gpus.json").read_text())
    names = [name for row in rows for name in (row["name"], *row.get("aliases", ()))]
    assert len(names) == len(set(names))
    for file in ("nodes", "zones"):
        listed = [row["name"] for row in json.loads((folder / f"{file}.json").read_text())]
        assert len(listed) == len(set(listed)), file
