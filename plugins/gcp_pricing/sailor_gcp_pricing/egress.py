"""What traffic between GCP zones costs, by where they lie; the sender pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files

from sailor.model.csv_text import read_csv
from sailor.model.hardware import EgressPrice, Zone

_GIB = 2**30
# The areas of GCP's price list by the start of a region's name, the longer start first. Regions
# in no area (Mexico, the Middle East, Africa) have no price here.
_AREAS = (
    ("asia-southeast2", "oceania"),  # Jakarta: GCP prices Indonesia with Oceania
    ("australia-", "oceania"),
    ("asia-", "asia"),
    ("europe-", "europe"),
    ("northamerica-northeast", "us_canada"),
    ("southamerica-", "south_america"),
    ("us-", "us_canada"),
)


@dataclass(frozen=True)
class EgressRule:
    """USD a byte between two areas, with source and date."""

    usd_per_byte: float
    source: str
    as_of: date


def egress_price(src: Zone, dst: Zone) -> EgressPrice | None:
    """Return what a byte from `src` to `dst` costs, None when no rule covers the pair."""
    if (src.provider, dst.provider) != ("gcp", "gcp"):
        return None
    if src.name == dst.name:
        key = ("zone", "zone")
    elif src.region == dst.region:
        key = ("region", "region")
    else:
        key = (area_of(src.region), area_of(dst.region))
    rule = _rules().get(key)
    if rule is None:
        return None
    return EgressPrice(
        src=src.name,
        dst=dst.name,
        usd_per_byte=rule.usd_per_byte,
        source=f"gcp: {rule.source}",
        as_of=rule.as_of,
    )


def area_of(region: str) -> str:
    """Return the area of GCP's price list in which a region lies, "" for one without."""
    return next((area for start, area in _AREAS if region.startswith(start)), "")


@cache
def _rules() -> Mapping[tuple[str, str], EgressRule]:
    text = files("sailor_gcp_pricing").joinpath("data", "egress.csv").read_text(encoding="utf-8")
    table = read_csv(text, "egress.csv", ("from", "to", "usd_per_gib", "as_of", "source"))
    return {
        (row.text("from"), row.text("to")): EgressRule(
            (row.number("usd_per_gib") or 0.0) / _GIB, row.text("source"), row.day("as_of")
        )
        for row in table.rows
    }
