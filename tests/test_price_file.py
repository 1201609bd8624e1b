"""The price source `file`."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import PriceAnswer, PriceQuery, PriceSource, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import Market
from sailor.sources.price_file import FilePrices

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
SOSP25 = ROOT / "examples/jobs/sosp25/prices.yaml"
ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
HEAD = "source: hand\nas_of: 2026-10-01\n"


def context(path: Path | None) -> SourceContext:
    return SourceContext(Catalog.builtin(), path)


def ask(path: Path, *queries: tuple[str, str, Market]) -> PriceAnswer:
    return FilePrices().prices([PriceQuery(*query) for query in queries], context(path))


def usd(path: Path, zone: str, node_type: str, market: Market = ON_DEMAND) -> float | None:
    answer = ask(path, (zone, node_type, market))
    return answer.prices[0].usd_per_hour if answer.prices else None


def usd_per_gb(path: Path, src: str, dst: str) -> float | None:
    found = FilePrices().egress([(src, dst)], context(path))
    return found[0].usd_per_byte * 1e9 if found else None


def written(tmp_path: Path, text: str, name: str = "prices.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_it_is_a_price_source() -> None:
    assert isinstance(FilePrices(), PriceSource)


@pytest.mark.parametrize(
    ("node_type", "usd_per_hour"),
    [
        ("a2-highgpu-1g", 3.673385),
        ("a2-highgpu-4g", 14.69354),
        ("a2-megagpu-16g", 58.77416),
        ("p4d.24xlarge", 29.38708),
        ("n1-v100-4", 11.439992),
        ("gh200-4", 44.24),
    ],
)
@pytest.mark.parametrize("zone", ["us-central1-a", "us-west1-b", "local"])
def test_the_table_of_the_sosp25_study(zone: str, node_type: str, usd_per_hour: float) -> None:
    (price,) = ask(SOSP25, (zone, node_type, ON_DEMAND)).prices
    assert price.usd_per_hour == pytest.approx(usd_per_hour, rel=1e-12)
    assert price.as_of == date(2025, 8, 14)
    assert "SOSP'25" in price.source


def test_what_the_sosp25_table_lacks_is_excluded() -> None:
    answer = ask(SOSP25, ("us-central1-a", "a2-ultragpu-4g", ON_DEMAND))
    assert answer.prices == ()
    (text,) = answer.excluded.values()
    assert text == "prices.yaml has no on-demand price of a2-ultragpu-4g in us-central1-a"
    assert ask(SOSP25, ("us-central1-a", "a2-highgpu-4g", SPOT)).prices == ()


def test_egress_of_the_sosp25_study_is_that_of_the_artifact() -> None:
    path = SHARED / "reference/sosp25_artifact/network/communication_cost.json"
    if not path.exists():
        pytest.skip("the SOSP'25 artifact is not here")
    for src, row in json.loads(path.read_text()).items():
        for dst, expected in row.items():
            assert usd_per_gb(SOSP25, src, dst) == pytest.approx(expected, rel=1e-12)


def test_egress_that_is_not_listed_is_unknown() -> None:
    assert usd_per_gb(SOSP25, "us-central1-a", "europe-west4-a") is None
    assert usd_per_gb(SOSP25, "us-central1-a", "us-central1-a") == 0


RULES = (
    HEAD
    + """
prices:
  - {node_type: "*", usd_per_gpu_hour: 9, market: on_demand}
  - {gpu: A100-40, usd_per_gpu_hour: 4}
  - {gpu: A100-40GB, region: us-central1, usd_per_gpu_hour: 3.5}
  - {gpu: A100-40GB, region: us-central1, usd_per_gpu_hour: 1.5, market: spot}
  - {node_type: a2-highgpu-8g, usd_per_hour: 30}
  - zone: us-central1-a
    node_type: a2-highgpu-8g
    usd_per_hour: 25 USD/h
    source: offer 17
    as_of: 2026-10-31
"""
)


def test_the_closest_rule_is_used(tmp_path: Path) -> None:
    path = written(tmp_path, RULES)
    assert usd(path, "us-central1-a", "a2-highgpu-8g") == 25  # zone and node type
    assert usd(path, "us-central1-b", "a2-highgpu-8g") == 28  # region goes before node type
    assert usd(path, "europe-west4-a", "a2-highgpu-8g") == 30  # node type
    assert usd(path, "europe-west4-a", "a2-highgpu-4g") == 16  # GPU, by its alias
    assert usd(path, "us-central1-a", "n1-v100-4") == 36  # any node
    assert usd(path, "us-central1-f", "a2-highgpu-2g", SPOT) == 3
    assert usd(path, "us-west1-b", "a2-highgpu-2g", SPOT) is None
    (price,) = ask(path, ("us-central1-a", "a2-highgpu-8g", ON_DEMAND)).prices
    assert (price.source, price.as_of) == ("offer 17", date(2026, 10, 31))


def test_json_says_the_same(tmp_path: Path) -> None:
    data = {
        "source": "hand",
        "as_of": "2026-10-01",
        "prices": [{"gpu": "L4", "usd_per_gpu_hour": 0.7}],
        "egress": [{"src": "us-central1", "usd_per_gb": 0.03}],
    }
    path = written(tmp_path, json.dumps(data), "prices.json")
    assert usd(path, "us-central1-a", "g2-standard-48") == pytest.approx(2.8)
    assert usd_per_gb(path, "us-central1-a", "us-east4-c") == pytest.approx(0.03)
    assert usd_per_gb(path, "us-east4-c", "us-central1-a") is None  # the sender pays: directed


def test_a_csv_table(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "zone,node_type,gpu,market,usd_per_hour,usd_per_gpu_hour,source,as_of\n"
        "us-central1-a,a2-highgpu-8g,,spot,11.5,,offer 3,2026-10-02\n"
        ",,V100-16GB,,,2.5,list,2026-10-01\n",
        "prices.csv",
    )
    (price,) = ask(path, ("us-central1-a", "a2-highgpu-8g", SPOT)).prices
    assert (price.usd_per_hour, price.source, price.as_of) == (11.5, "offer 3", date(2026, 10, 2))
    assert usd(path, "us-west1-b", "n1-v100-8") == 20
    assert usd(path, "us-central1-a", "a2-highgpu-8g") is None
    assert usd_per_gb(path, "us-central1-a", "us-central1-a") is None


EGRESS = (
    HEAD
    + """
egress:
  same_zone: 0
  same_region: 0.01
  other: 0.12
  pairs:
    - {src: us-central1, usd_per_gb: 0.05}
    - {src: us-central1, dst: us-west1, usd_per_gb: 0.02}
    - {src: us-central1-b, dst: us-west1, usd_per_gb: 0.03}
    - {src: us-central1-a, dst: us-central1-b, usd_per_gb: 0.004}
    - {dst: us-west1, usd_per_gb: 0.07}
"""
)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("us-central1-a", "us-central1-a", 0),
        ("us-central1-a", "us-central1-b", 0.004),  # a pair of zones goes before all
        ("us-central1-b", "us-central1-a", 0.01),  # directed
        ("us-central1-a", "us-west1-b", 0.02),
        ("us-central1-b", "us-west1-b", 0.03),
        ("us-central1-a", "us-east4-c", 0.05),
        ("us-east4-c", "us-west1-b", 0.07),
        ("us-west1-b", "us-east4-c", 0.12),
    ],
)
def test_egress_rules(tmp_path: Path, src: str, dst: str, expected: float) -> None:
    assert usd_per_gb(written(tmp_path, EGRESS), src, dst) == pytest.approx(expected)


def test_spot_above_on_demand_is_remarked(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + "prices:\n  - {node_type: a2-highgpu-8g, usd_per_hour: 20}\n"
        "  - {node_type: a2-highgpu-8g, usd_per_hour: 21, market: spot}\n",
    )
    zone = "us-central1-a"
    answer = ask(path, (zone, "a2-highgpu-8g", ON_DEMAND), (zone, "a2-highgpu-8g", SPOT))
    assert len(answer.prices) == 2
    (remark,) = answer.remarks
    assert "21 USD/h, is above on-demand, 20 USD/h" in remark


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("as_of: 2026-10-01\n", "", "source"),
        ("source: hand\n", "", "as_of"),
        (HEAD + "pricez: []\n", ":3", "did you mean 'prices'"),
        (HEAD + "prices:\n  - {gpu: A100-41GB, usd_per_gpu_hour: 3}\n", ":4", "'A100-40GB'"),
        (HEAD + "prices:\n  - {gpu: L4, usd_per_gpu_hour: 0}\n", ":4", "greater than 0"),
        (HEAD + "prices:\n  - {gpu: L4, usd_per_gpu_hour: .nan}\n", ":4", "usd_per_gpu_hour"),
        (HEAD + "prices:\n  - {gpu: L4, usd_per_gpu_hour: 3 EUR/h}\n", ":4", "EUR/h"),
        (HEAD + "prices:\n  - {gpu: L4, usd_per_hour: 3}\n", ":4", "usd_per_gpu_hour"),
        (HEAD + "prices:\n  - {usd_per_hour: 3}\n", ":4", "either node_type or gpu"),
        (HEAD + "prices:\n  - {gpu: L4}\n", ":4", "either usd_per_hour or usd_per_gpu_hour"),
        (
            HEAD + "prices:\n  - {zone: us-central1-a, region: us-central1, gpu: L4, "
            "usd_per_gpu_hour: 3}\n",
            ":4",
            "not both",
        ),
        (
            HEAD + "prices:\n  - {node_type: a2, usd_per_hour: 3}\n",
            ":4",
            "unknown node type 'a2'",
        ),
        (HEAD + "prices:\n  - {zone: us-centra1-a, gpu: L4, usd_per_gpu_hour: 3}\n", ":4", "zone"),
        (
            HEAD + "prices:\n  - {gpu: A100-40, usd_per_gpu_hour: 3}\n"
            "  - {gpu: A100-40GB, usd_per_gpu_hour: 3}\n",
            ":5",
            "there twice (first at",
        ),
        (HEAD + "egress:\n  same_zone: -1\n", ":4", "at least 0"),
        (HEAD + "egress:\n  - {src: us-centrall, usd_per_gb: 1}\n", ":4", "'us-central1'"),
        (HEAD + "egress:\n  pairs:\n    - {dst: mars, usd_per_gb: 1}\n", ":5", "zone or region"),
        (
            HEAD + "egress:\n  - {src: us-west1, usd_per_gb: 1}\n"
            "  - {src: us-west1, usd_per_gb: 2}\n",
            ":5",
            "there twice",
        ),
        ("- a list\n", ":1", "mapping"),
        ("", "", "empty"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        ask(path, ("us-central1-a", "a2-highgpu-8g", ON_DEMAND))
    sentence = str(caught.value)
    assert f"prices.yaml{place}" in sentence
    assert message in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("us-central1-a,a2-highgpu-8g,dear,list,2026-10-01", ":2: usd_per_hour should be a number"),
        ("us-central1-a,a2-highgpu-8g,0,list,2026-10-01", ":2: usd_per_hour should be greater"),
        ("us-central1-a,a2-highgpu-8g,3,,2026-10-01", ":2: source is empty"),
        ("us-central1-a,a2-highgpu-8g,3,list,soon", ":2: as_of should be a date"),
        ("us-central1-a,a2-highgpu-8h,3,list,2026-10-01", ":2: unknown node type"),
        ("us-central1-a,a2-highgpu-8g,3,list", ":2: 4 fields"),
    ],
)
def test_bad_csv_rows_are_placed(tmp_path: Path, row: str, message: str) -> None:
    path = written(tmp_path, f"zone,node_type,usd_per_hour,source,as_of\n{row}\n", "prices.csv")
    with pytest.raises(InputError) as caught:
        ask(path, ("us-central1-a", "a2-highgpu-8g", ON_DEMAND))
    assert f"prices.csv{message}" in str(caught.value)


def test_a_source_without_file_says_how_to_name_one() -> None:
    with pytest.raises(InputError, match=r"prices: \{file: prices\.yaml\}"):
        FilePrices().prices([], context(None))


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        FilePrices().egress([], context(tmp_path / "none.yaml"))
