"""The price source `gcp`: known prices, unknown ones with a reason, dirty rows refused."""

from __future__ import annotations

import csv
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import PriceAnswer, PriceQuery, PriceSource, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import Market
from sailor_gcp_pricing.prices import GcpPrices
from sailor_gcp_pricing.snapshot import builtin_snapshots, format_snapshot, parse_snapshot

SHARED = Path(__file__).parents[2].parent / "shared"
ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
HEAD = (
    "# source: hand\n# as_of: 2026-10-01\n"
    "region,zone,node_type,gpus,on_demand_usd_per_hour,spot_usd_per_hour,remark\n"
)


def ask(zone: str, node_type: str, market: Market, path: Path | None = None) -> PriceAnswer:
    query = PriceQuery(zone, node_type, market)
    return GcpPrices().prices([query], SourceContext(Catalog.builtin(), path))


def reason(answer: PriceAnswer) -> str:
    assert answer.prices == ()
    (text,) = answer.excluded.values()
    return text


def test_it_is_a_price_source() -> None:
    assert isinstance(GcpPrices(), PriceSource)
    assert GcpPrices().name == "gcp"


@pytest.mark.parametrize(
    ("zone", "node_type", "market", "usd_per_hour", "as_of"),
    [
        # 3.673385 USD a GPU hour: four times that.
        ("us-central1-a", "a2-highgpu-4g", ON_DEMAND, 14.69354, date(2026, 7, 30)),
        ("us-central1-f", "a2-highgpu-8g", SPOT, 15.42416, date(2026, 7, 30)),
        ("us-central1-c", "a2-megagpu-16g", ON_DEMAND, 55.739504, date(2026, 7, 30)),
        # GPU 19.84 / 8 = 2.48, host 0.379998 a GPU.
        ("us-central1-a", "n1-v100-4", ON_DEMAND, 4 * 2.859998, date(2025, 8, 14)),
        ("us-west1-b", "n1-v100-8", ON_DEMAND, 8 * 2.859998, date(2025, 8, 14)),
        ("us-central1-b", "n1-t4-4", ON_DEMAND, 1.4 + 4 * 0.379998, date(2025, 8, 14)),
        ("us-central1-a", "g2-standard-48", ON_DEMAND, 4.001665, date(2026, 7, 30)),
    ],
)
def test_known_prices(
    zone: str, node_type: str, market: Market, usd_per_hour: float, as_of: date
) -> None:
    (price,) = ask(zone, node_type, market).prices
    assert price.usd_per_hour == pytest.approx(usd_per_hour, abs=1e-6)
    assert price.as_of == as_of
    assert (price.zone, price.node_type, price.market) == (zone, node_type, market)
    assert price.source.startswith("gcp: ")


def test_prices_by_region_are_those_of_the_price_list() -> None:
    path = SHARED / "prices/gcp_gpu_machines_2026-07-30.csv"
    if not path.exists():
        pytest.skip("the price extracts are not here")
    with path.open(newline="") as lines:
        listed = {(row["region"], row["machine_type"]): row for row in csv.DictReader(lines)}
    snapshot = next(s for s in builtin_snapshots() if s.name == "gcosts")
    assert len(snapshot.prices) > 250
    for price in snapshot.prices:
        row = listed[price.region, price.node_type]
        assert price.on_demand == pytest.approx(float(row["ondemand_usd_h"]), abs=1e-6)
        assert price.spot == pytest.approx(float(row["spot_usd_h"]), abs=1e-6)
        assert price.num_gpus == float(row["gpu_count"])


def test_prices_by_zone_are_gpu_and_host_of_that_zone() -> None:
    path = SHARED / "prices/gcp_gpu_zones_skypilot_v8.csv"
    if not path.exists():
        pytest.skip("the price extracts are not here")
    family = {"a2-highgpu-8g": "A100", "a2-ultragpu-8g": "A100-80GB", "a3-highgpu-8g": "H100"}
    with path.open(newline="") as lines:
        listed = {(row["zone"], row["gpu"]): row for row in csv.DictReader(lines)}
    snapshot = next(s for s in builtin_snapshots() if s.name == "skypilot")
    assert len(snapshot.prices) == 50
    for price in snapshot.prices:
        row = listed[price.place, family[price.node_type]]
        parts = float(row["gpu_part_ondemand_usd_h"]) + float(row["host_ondemand_usd_h"])
        assert price.on_demand == pytest.approx(parts, abs=1e-6)


def test_an_unknown_price_excludes_the_offer() -> None:
    text = reason(ask("us-central1-a", "n1-v100-4", SPOT))
    assert text.startswith("no spot price of n1-v100-4 in us-central1-a is known")
    # The V100's own price is known in europe-west4, that of its host is not.
    assert "no on-demand price" in reason(ask("europe-west4-a", "n1-v100-4", ON_DEMAND))


def test_a_region_price_is_no_price_where_the_machine_is_not_offered() -> None:
    text = reason(ask("us-central1-b", "a2-ultragpu-8g", ON_DEMAND))
    assert text == (
        "a2-ultragpu-8g is not known to be offered in us-central1-b (list of 2026-07-22), so the "
        "price of region us-central1 is not used"
    )
    assert ask("us-central1-a", "a2-ultragpu-8g", ON_DEMAND).prices


def test_the_newest_list_is_used_and_a_disagreement_is_said() -> None:
    answer = ask("us-central1-a", "a2-ultragpu-8g", ON_DEMAND)
    assert answer.prices[0].usd_per_hour == pytest.approx(40.550383)
    (remark,) = answer.remarks
    assert "40.5504 USD/h" in remark
    assert "23.5666 USD/h" in remark


def test_the_dirty_row_of_the_newest_catalogue_never_gives_a_spot_price() -> None:
    """T12: 8 x A100-80GB in us-central1, GPU part 14.77 on demand and 15.71 on spot."""
    snapshot = next(s for s in builtin_snapshots() if s.name == "skypilot")
    dirty = [p for p in snapshot.prices if p.place == "us-central1-a" and "ultra" in p.node_type]
    assert [(p.spot, p.on_demand) for p in dirty] == [(None, pytest.approx(23.56656))]
    assert "15.712" in dirty[0].remark


@pytest.mark.parametrize(
    ("zone", "node_type", "market", "expected"),
    [
        ("eastus", "Standard_ND96asr_v4", ON_DEMAND, "eastus is not a zone of GCP"),
        ("us-central1-a", "gh200-4", ON_DEMAND, "gh200-4 is no machine of GCP"),
        ("us-central1-a", "a2-highgpu-8g", Market.RESERVED, "has no reserved prices"),
        ("nowhere", "a2-highgpu-8g", ON_DEMAND, "nowhere is not a zone of GCP"),
    ],
)
def test_what_is_not_gcps_is_excluded(
    zone: str, node_type: str, market: Market, expected: str
) -> None:
    assert expected in reason(ask(zone, node_type, market))


def own(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def test_a_file_of_the_users_own_is_used_alone(tmp_path: Path) -> None:
    path = own(tmp_path, "us-central1,us-central1-b,a2-ultragpu-8g,8,30.5,12.25,")
    (price,) = ask("us-central1-b", "a2-ultragpu-8g", SPOT, path).prices
    assert (price.usd_per_hour, price.source, price.as_of) == (
        12.25, "gcp: hand", date(2026, 10, 1),
    )  # fmt: skip
    missing = reason(ask("us-central1-a", "a2-highgpu-8g", ON_DEMAND, path))
    assert "looked in mine.csv of 2026-10-01" in missing


def test_a_zone_price_goes_before_that_of_its_region(tmp_path: Path) -> None:
    path = own(
        tmp_path,
        "us-central1,,a2-highgpu-8g,8,29,,",
        "us-central1,us-central1-a,a2-highgpu-8g,8,28,,",
    )
    assert ask("us-central1-a", "a2-highgpu-8g", ON_DEMAND, path).prices[0].usd_per_hour == 28
    assert ask("us-central1-b", "a2-highgpu-8g", ON_DEMAND, path).prices[0].usd_per_hour == 29


def test_spot_above_on_demand_is_flagged_and_not_used(tmp_path: Path) -> None:
    path = own(tmp_path, "us-south1,us-south1-b,a3-ultragpu-8g,8,36.60258,43.9512,")
    answer = ask("us-south1-b", "a3-ultragpu-8g", SPOT, path)
    text = reason(answer)
    assert "43.9512 USD/h" in text
    assert "is above on-demand, 36.6026 USD/h" in text
    assert answer.remarks == (text,)
    assert ask("us-south1-b", "a3-ultragpu-8g", ON_DEMAND, path).prices[0].usd_per_hour == 36.60258


def test_spot_equal_to_on_demand_is_used(tmp_path: Path) -> None:
    path = own(tmp_path, "us-south1,us-south1-b,a3-ultragpu-8g,8,36.5,36.5,")
    assert ask("us-south1-b", "a3-ultragpu-8g", SPOT, path).prices[0].usd_per_hour == 36.5


def test_a_wrong_number_of_gpus_is_flagged_and_refused(tmp_path: Path) -> None:
    path = own(tmp_path, "us-central1,us-central1-a,a3-highgpu-8g,12,98.32,98.32,")
    answer = ask("us-central1-a", "a3-highgpu-8g", ON_DEMAND, path)
    text = reason(answer)
    assert "with 12 GPUs; the machine has 8" in text
    assert answer.remarks == (text,)


def test_the_remark_of_a_row_without_price_is_the_reason(tmp_path: Path) -> None:
    path = own(tmp_path, "us-central1,us-central1-a,a3-highgpu-8g,8,88,,quota of spot is closed")
    text = reason(ask("us-central1-a", "a3-highgpu-8g", SPOT, path))
    assert text.endswith("in mine.csv of 2026-10-01: quota of spot is closed")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (HEAD + "us-central1,us-central1-a,a2-highgpu-8g,8,0,,\n", "mine.csv:4", "greater than 0"),
        (HEAD + "us-central1,us-central1-a,a2-highgpu-8g,8,-3,,\n", "mine.csv:4", "greater than 0"),
        (HEAD + "us-central1,us-central1-a,a2-highgpu-8g,8,nan,,\n", "mine.csv:4", "a number"),
        (HEAD + "us-central1,us-central1-a,a2-highgpu-8g,,3,,\n", "mine.csv:4", "gpus"),
        (HEAD + "us-central1,us-east1-a,a2-highgpu-8g,8,3,,\n", "mine.csv:4", "not a zone of"),
        (HEAD + "us-central1,,a2-highgpu-8g,8,3\n", "mine.csv:4", "5 fields"),
        (HEAD + "u,u-a,n,8,3,,\nu,u-a,n,8,4,,\n", "mine.csv:5", "there twice"),
        (HEAD + ",,n,8,3,,\n", "mine.csv:4", "region is empty"),
        (HEAD.replace("# as_of: 2026-10-01\n", ""), "mine.csv:1", "as_of"),
        (HEAD.replace("2026-10-01", "last week"), "mine.csv:1", "a date such as"),
        ("InstanceType,Price\na,1\n", "mine.csv:1", "sailor gcp refresh"),
        ("", "mine.csv", "no table"),
        (HEAD + 'us-central1,,"a2\n', "mine.csv:4", "not a CSV table"),
    ],
)
def test_a_bad_snapshot_is_refused_in_one_sentence(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        ask("us-central1-a", "a2-highgpu-8g", ON_DEMAND, path)
    sentence = str(caught.value)
    assert sentence.startswith(place + ":")
    assert message in sentence
    assert "\n" not in sentence


def test_snapshots_survive_writing_and_reading() -> None:
    for snapshot in builtin_snapshots():
        again = parse_snapshot(format_snapshot(snapshot), snapshot.name)
        assert (again.source, again.as_of) == (snapshot.source, snapshot.as_of)
        assert sorted(map(repr, again.prices)) == sorted(map(repr, snapshot.prices))


def test_importing_the_plugin_reads_no_file_and_no_price_module() -> None:
    code = (
        "import sys, sailor_gcp_pricing\n"
        "late = [m for m in sys.modules if m.startswith('sailor_gcp_pricing.')]\n"
        "sys.exit(repr(late) if late or 'click' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
