"""What traffic between GCP zones costs."""

from __future__ import annotations

from datetime import date

import pytest

from sailor.interfaces import SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import EgressPrice
from sailor_gcp_pricing.egress import area_of
from sailor_gcp_pricing.prices import GcpPrices

GIB = 2**30


def egress(*pairs: tuple[str, str]) -> list[EgressPrice]:
    return list(GcpPrices().egress(pairs, SourceContext(Catalog.builtin())))


@pytest.mark.parametrize(
    ("src", "dst", "usd_per_gib"),
    [
        ("us-central1-a", "us-central1-a", 0.0),
        ("us-central1-a", "us-central1-b", 0.01),
        ("us-central1-a", "us-west1-b", 0.02),  # 0.01 until 2023
        ("us-central1-a", "northamerica-northeast1-a", 0.02),
        ("europe-west4-a", "europe-west1-b", 0.02),
        ("asia-northeast1-a", "asia-northeast3-a", 0.08),  # 0.05 until 2023
        ("europe-north1-b", "asia-southeast1-a", 0.08),
        ("us-central1-a", "europe-west4-a", 0.08),
        ("australia-southeast1-a", "asia-southeast2-a", 0.10),  # 0.15 until 2023
        ("us-central1-a", "australia-southeast1-a", 0.10),
    ],
)
def test_prices_by_distance(src: str, dst: str, usd_per_gib: float) -> None:
    (price,) = egress((src, dst))
    assert price.usd_per_byte * GIB == pytest.approx(usd_per_gib, rel=1e-12)
    assert (price.src, price.dst) == (src, dst)
    assert price.source.startswith("gcp: ")
    assert price.as_of >= date(2024, 7, 1)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("us-central1-a", "me-west1-a"),
        ("us-central1-a", "southamerica-east1-a"),
        ("us-central1-a", "local"),
        ("eastus", "eastus"),
        ("us-central1-a", "nowhere"),
    ],
)
def test_a_pair_without_rule_is_unknown_and_not_free(src: str, dst: str) -> None:
    assert egress((src, dst)) == []


def test_zones_of_one_region_need_no_area() -> None:
    (price,) = egress(("me-west1-a", "me-west1-b"))
    assert price.usd_per_byte * GIB == pytest.approx(0.01)


def test_areas() -> None:
    assert area_of("asia-southeast2") == "oceania"
    assert area_of("asia-southeast1") == "asia"
    assert area_of("northamerica-south1") == ""
    assert area_of("africa-south1") == ""
