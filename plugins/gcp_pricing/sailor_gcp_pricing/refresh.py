"""A public price list into a snapshot of the user's own."""

from __future__ import annotations

from pathlib import Path

from sailor.errors import InputError
from sailor.model.catalog import Catalog
from sailor.model.csv_text import read_day
from sailor.model.files import load_text, write_atomic
from sailor_gcp_pricing.gcosts import read_gcosts
from sailor_gcp_pricing.skypilot import read_skypilot
from sailor_gcp_pricing.snapshot import Snapshot, format_snapshot

_READERS = {"skypilot": read_skypilot, "gcosts": read_gcosts}
_BY_SUFFIX = {".csv": "skypilot", ".yml": "gcosts", ".yaml": "gcosts", ".json": "gcosts"}
_TITLES = {"skypilot": "SkyPilot catalogue", "gcosts": "gcosts pricing file"}


def write_snapshot(path: Path, kind: str | None, as_of: str, out: Path) -> str:
    """Write the snapshot of a public price list, and return a sentence about it."""
    snapshot = make_snapshot(path, kind, as_of)
    if out.exists() and path.exists() and out.samefile(path):
        raise InputError("--out is the file to read", where=str(out), hint="name another file")
    write_atomic(out, format_snapshot(snapshot))
    prices = snapshot.prices
    unknown = sum(1 for price in prices if price.on_demand is None and price.spot is None)
    remarks = sum(1 for price in prices if price.remark)
    places = len({price.place for price in prices})
    return (
        f"wrote {out}: {len(prices) - unknown} prices of machines in {places} zones or regions, "
        f"{unknown} without a price, {remarks} with a remark"
    )


def make_snapshot(path: Path, kind: str | None, as_of: str) -> Snapshot:
    """Return the prices in a public price list; `kind` None: the suffix of the file tells it."""
    chosen = kind or _BY_SUFFIX.get(path.suffix.lower())
    if chosen is None:
        raise InputError(
            f"the suffix {path.suffix!r} does not tell the format", where=str(path),
            hint="say it with --format skypilot or --format gcosts",
        )  # fmt: skip
    day = read_day(as_of, "--as-of", str(path))
    prices = _READERS[chosen](load_text(path), path.name, Catalog.builtin())
    if not prices:
        raise InputError(
            "no price of a GCP GPU machine in it", where=str(path),
            hint="see `sailor catalog nodes` for the machines that sailor knows",
        )  # fmt: skip
    return Snapshot(path.name, f"{_TITLES[chosen]} {path.name}", day, prices)
