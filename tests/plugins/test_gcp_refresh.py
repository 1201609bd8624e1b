"""`sailor gcp refresh`: public price lists into snapshots."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sailor_gcp_pricing
from sailor.errors import InputError
from sailor.interfaces import PriceQuery, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import Market
from sailor_gcp_pricing.commands import gcp
from sailor_gcp_pricing.gcosts import read_gcosts
from sailor_gcp_pricing.prices import GcpPrices
from sailor_gcp_pricing.refresh import make_snapshot
from sailor_gcp_pricing.skypilot import read_skypilot
from sailor_gcp_pricing.snapshot import MachinePrice

HEAD = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,"
    "Region,AvailabilityZone\n"
)


def skypilot(*rows: str) -> dict[tuple[str, str], MachinePrice]:
    found = read_skypilot(HEAD + "\n".join(rows) + "\n", "vms.csv", Catalog.builtin())
    return {(price.place, price.node_type): price for price in found}


def host(machine: str, zone: str, price: str, spot: str = "") -> str:
    return f"{machine},96,1360,,,,{price},{spot},{zone.rpartition('-')[0]},{zone}"


def gpus(name: str, count: int, zone: str, price: str, spot: str = "") -> str:
    return f",,,{name},{float(count)},,{price},{spot},{zone.rpartition('-')[0]},{zone}"


# T13: the cheapest host is in us-central1, the cheapest GPUs are in europe-west4.
T13 = (
    host("a2-megagpu-16g", "us-central1-a", "8.79698", "4.39824"),
    host("a2-megagpu-16g", "europe-west4-a", "9.68403", "3.78624"),
    gpus("A100", 16, "us-central1-a", "46.94252", "22.9456"),
    gpus("A100", 16, "europe-west4-a", "25.81839", "17.02"),
    host("a2-highgpu-1g", "us-central1-b", "0.9394", "0.4697"),
)


def test_host_and_gpus_are_never_mixed_across_zones() -> None:
    found = skypilot(*T13)
    prices = {place: price.on_demand for (place, name), price in found.items() if "16g" in name}
    assert prices == {
        "us-central1-a": pytest.approx(55.7395),
        "europe-west4-a": pytest.approx(35.50242),
    }
    assert min(prices.values()) == pytest.approx(35.50, abs=0.005)  # not 34.62


def test_a_host_row_alone_is_no_price() -> None:
    lone = skypilot(*T13)["us-central1-b", "a2-highgpu-1g"]
    assert (lone.on_demand, lone.spot) == (None, None)
    assert "only the host" in lone.remark


def test_gpus_without_a_host_in_the_zone_are_no_price() -> None:
    found = skypilot(
        gpus("V100", 8, "europe-west4-a", "20.832"), host("n1-standard-64", "us-central1-a", "3.04")
    )
    price = found["europe-west4-a", "n1-v100-8"]
    assert price.on_demand is None
    assert price.remark == "the price of the host n1-standard-64 is not listed for this zone"


def test_n1_machines_are_gpus_and_a_host_of_eight_vcpus_a_gpu() -> None:
    found = skypilot(
        gpus("V100", 4, "us-central1-a", "9.92", "4.354"),
        host("n1-standard-32", "us-central1-a", "1.519992", "0.32"),
        host("n1-standard-8", "us-central1-a", "0.379998", "0.08"),
    )
    assert set(found) == {("us-central1-a", "n1-v100-4")}
    price = found["us-central1-a", "n1-v100-4"]
    assert price.on_demand == pytest.approx(4 * 2.859998)
    assert price.spot == pytest.approx(4.674)


def test_a_spot_part_above_its_on_demand_part_gives_no_spot_price() -> None:
    """T12: the sum is below on-demand, yet one of the two figures must be wrong."""
    found = skypilot(
        gpus("A100-80GB", 8, "us-central1-a", "14.76958", "15.712"),
        host("a2-ultragpu-8g", "us-central1-a", "8.79698", "4.39824"),
    )
    price = found["us-central1-a", "a2-ultragpu-8g"]
    assert price.on_demand == pytest.approx(23.56656)
    assert price.spot is None
    assert price.remark == "the GPU part is 15.712 USD/h on spot and 14.7696 on demand"


@pytest.mark.parametrize("unknown", ["", "0", "0.0", "nan", "NaN"])
def test_missing_zero_and_nan_prices_are_unknown(unknown: str) -> None:
    """T12: H100-MEGA without spot, and rows with 0 in place of NaN."""
    found = skypilot(
        gpus("H100-MEGA", 8, "asia-northeast3-a", "35.39149", unknown),
        host("a3-megagpu-8g", "asia-northeast3-a", "10", "5"),
    )
    price = found["asia-northeast3-a", "a3-megagpu-8g"]
    assert price.spot is None
    assert price.on_demand == pytest.approx(45.39149)


def test_a_wrong_gpu_count_is_kept_as_printed_and_refused_by_the_source(tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    path.write_text(
        HEAD + "a3-highgpu-8g,208,1872,H100,12,,98.32,98.32,us-central1,us-central1-a\n"
    )
    out = tmp_path / "mine.csv"
    run(["refresh", "--from", str(path), "--as-of", "2026-11-01", "--out", str(out)])
    query = PriceQuery("us-central1-a", "a3-highgpu-8g", Market.ON_DEMAND)
    answer = GcpPrices().prices([query], SourceContext(Catalog.builtin(), out))
    assert answer.prices == ()
    assert "with 12 GPUs; the machine has 8" in answer.excluded[query]


def test_whole_machines() -> None:
    row = "a3-highgpu-8g,208,1872,H100,8,,88.49,50.5,us-central1,us-central1-a"
    assert skypilot(row)["us-central1-a", "a3-highgpu-8g"].on_demand == 88.49
    both = skypilot(row, gpus("H100", 8, "us-central1-a", "78"))["us-central1-a", "a3-highgpu-8g"]
    assert both.on_demand is None
    assert "is open" in both.remark
    other = skypilot(row.replace("H100", "H200"))["us-central1-a", "a3-highgpu-8g"]
    assert (other.on_demand, other.remark) == (None, "listed with H200, it has H100")


def test_of_two_prices_for_one_part_the_dearer_is_used_and_said() -> None:
    found = skypilot(
        gpus("A100", 8, "us-central1-a", "23.4", "11"),
        gpus("A100", 8, "us-central1-a", "20.0", "12"),
        host("a2-highgpu-8g", "us-central1-a", "5", "2"),
    )
    price = found["us-central1-a", "a2-highgpu-8g"]
    assert (price.on_demand, price.spot) == (pytest.approx(28.4), pytest.approx(14))
    assert "listed twice" in price.remark


def test_a_bad_number_is_placed() -> None:
    with pytest.raises(InputError, match=r"^vms\.csv:3: Price should be a number, not 'cheap'"):
        skypilot(T13[0], gpus("A100", 16, "us-central1-a", "cheap"))
    with pytest.raises(InputError, match=r"^vms\.csv:2: Price is negative: -1"):
        skypilot(gpus("A100", 16, "us-central1-a", "-1"))


# The anchor stands in a part that is not read: sailor's YAML has none.
PRICING = """\
about:
  generated: 2026-07-30
  prose: "compute: instance:"
region:
  us-central1:
    location: Iowa
compute:
  instance:
    a2-highgpu-1g:
      type: a2
      cpu: 12
      cost:
        us-central1:
          hour: 1
    e2-small:
      cost: &shared
        us-central1:
          hour: 0.0167
    a2-ultragpu-8g:
      cost:
        us-central1:
          hour: 40.5503832876712
          hour_spot: 22.0763704109589
          month: 29601.7798
        us-east4:
          hour: 45.6618
          hour_spot: 0
        us-east5:
          month: 1
  storage:
    a2-highgpu-1g:
      cost: {}
"""


def test_gcosts_prices_by_region() -> None:
    found = {
        (price.place, price.node_type): price
        for price in read_gcosts(PRICING, "pricing.yml", Catalog.builtin())
    }
    assert set(found) == {
        ("us-central1", "a2-highgpu-1g"),
        ("us-central1", "a2-ultragpu-8g"),
        ("us-east4", "a2-ultragpu-8g"),
        ("us-east5", "a2-ultragpu-8g"),
    }
    ultra = found["us-central1", "a2-ultragpu-8g"]
    assert (ultra.on_demand, ultra.spot) == (40.5503832876712, 22.0763704109589)
    assert (ultra.zone, ultra.num_gpus) == (None, 8)
    assert found["us-east4", "a2-ultragpu-8g"].spot is None
    assert found["us-east5", "a2-ultragpu-8g"].on_demand is None


@pytest.mark.parametrize(
    "text",
    [
        "compute: {instance: {a2-highgpu-1g: {cost: {us-central1: {hour: 3.67}}}}}",
        "compute:\n  {instance: {a2-highgpu-1g:\n {cost: {us-central1: {hour: 3.67}}}}}",
        '{"compute": {"instance": {"a2-highgpu-1g": {"cost": {"us-central1": {"hour": 3.67}}}}}}',
        "'compute':\n  \"instance\":\n    a2-highgpu-1g:\n      cost:\n"
        "        us-central1:\n          hour: 3.67\n",
    ],
)
def test_gcosts_in_other_layouts(text: str) -> None:
    (price,) = read_gcosts(text, "pricing.yml", Catalog.builtin())
    assert (price.region, price.on_demand) == ("us-central1", 3.67)


def test_a_bad_gcosts_price_is_placed_on_its_line_of_the_file() -> None:
    text = PRICING.replace("45.6618", "call us")
    with pytest.raises(InputError, match=r"^pricing\.yml:26: .*hour should be USD an hour, not"):
        read_gcosts(text, "pricing.yml", Catalog.builtin())
    with pytest.raises(InputError, match=r"compute\.instance is nothing, not a mapping"):
        read_gcosts("region: {}\n", "pricing.yml", Catalog.builtin())


def test_four_megabytes_of_gcosts_are_read_in_seconds() -> None:
    other = "".join(
        f"    e2-custom-{i}:\n      cost:\n        us-central1:\n          hour: 0.1\n"
        for i in range(60_000)
    )
    text = PRICING.replace("    e2-small:\n", other + "    e2-small:\n")
    assert len(text) > 4_000_000
    assert len(read_gcosts(text, "pricing.yml", Catalog.builtin())) == 4


def run(arguments: list[str]) -> str:
    group = click.Group("sailor")
    sailor_gcp_pricing.sailor_commands(group)
    result = CliRunner().invoke(group, ["gcp", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_refreshed_snapshot_prices_a_job(tmp_path: Path) -> None:
    path, out = tmp_path / "vms.csv", tmp_path / "mine.csv"
    path.write_text(HEAD + "\n".join(T13) + "\n")
    said = run(["refresh", "--from", str(path), "--as-of", "2026-11-01", "--out", str(out)])
    assert "2 prices of machines in 3 zones or regions, 1 without a price, 1 with a remark" in said
    query = PriceQuery("europe-west4-a", "a2-megagpu-16g", Market.ON_DEMAND)
    (price,) = GcpPrices().prices([query], SourceContext(Catalog.builtin(), out)).prices
    assert price.usd_per_hour == pytest.approx(35.50242)
    assert price.source == "gcp: SkyPilot catalogue vms.csv"
    assert price.as_of.isoformat() == "2026-11-01"


def test_gcosts_prices_hold_in_zones_that_offer_the_machine(tmp_path: Path) -> None:
    path, out = tmp_path / "pricing.yml", tmp_path / "mine.csv"
    path.write_text(PRICING)
    run(["refresh", "--from", str(path), "--as-of", "2026-11-01", "--out", str(out)])
    queries = [
        PriceQuery(zone, "a2-ultragpu-8g", Market.ON_DEMAND)
        for zone in ("us-central1-a", "us-central1-b")
    ]
    answer = GcpPrices().prices(queries, SourceContext(Catalog.builtin(), out))
    assert [(p.zone, p.usd_per_hour) for p in answer.prices] == [
        ("us-central1-a", pytest.approx(40.550383))
    ]
    assert "not known to be offered in us-central1-b" in answer.excluded[queries[1]]


@pytest.mark.parametrize(
    ("name", "text", "as_of", "kind", "message"),
    [
        ("vms.txt", HEAD, "2026-11-01", None, "does not tell the format"),
        ("vms.csv", HEAD, "2026-11-01", None, "no price of a GCP GPU machine"),
        ("vms.csv", "a,b\n1,2\n", "2026-11-01", None, "no column 'InstanceType'"),
        ("vms.csv", HEAD, "yesterday", None, "--as-of should be a date"),
        ("vms.csv", HEAD, "2026-11-01", "gcosts", "top level|not valid YAML|compute"),
    ],
)
def test_bad_price_lists_are_refused(
    tmp_path: Path, name: str, text: str, as_of: str, kind: str | None, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        make_snapshot(path, kind, as_of)


def test_the_file_read_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    path.write_text(HEAD + "\n".join(T13) + "\n")
    with pytest.raises(InputError, match="--out is the file to read"):
        run(["refresh", "--from", str(path), "--as-of", "2026-11-01", "--out", str(path)])
    assert path.read_text().startswith("InstanceType")


def test_help_tells_the_options() -> None:
    said = CliRunner().invoke(gcp, ["refresh", "--help"]).output
    for option in ("--from", "--format", "--as-of", "--out"):
        assert option in said
