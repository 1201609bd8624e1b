"""Snapshots: dated tables of what GCP machines cost, in sailor's own CSV format."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path

from sailor.errors import InputError
from sailor.model.csv_text import CsvRow, read_csv, read_day
from sailor.model.document import shown
from sailor.model.files import load_text
from sailor.model.hardware import Market

TITLE = "sailor GCP machine prices, format 1"
COLUMNS = (
    "region", "zone", "node_type", "gpus", "on_demand_usd_per_hour", "spot_usd_per_hour", "remark",
)  # fmt: skip
_HOW = "write a snapshot with `sailor gcp refresh --from FILE --as-of DATE --out SNAPSHOT`"
_BUILTIN = ("gcosts_2026-07-30.csv", "skypilot_2026-07-22.csv", "n1_2025-08-14.csv")


@dataclass(frozen=True)
class MachinePrice:
    """What one machine costs, GPUs and host together, in USD an hour; None is unknown.

    With `zone` None it is the price list of a whole region, which also names prices for regions
    that have no such machine.
    """

    region: str
    zone: str | None
    node_type: str
    num_gpus: float  # as the price list says it, which may be wrong
    on_demand: float | None
    spot: float | None
    remark: str = ""

    def usd_per_hour(self, market: Market) -> float | None:
        """Return the price on a market, None when it isn't known."""
        return {Market.ON_DEMAND: self.on_demand, Market.SPOT: self.spot}.get(market)

    @property
    def place(self) -> str:
        """Return the zone, or the region where the price holds for all of it."""
        return self.zone or self.region


@dataclass(frozen=True)
class Snapshot:
    """One price list as of one day."""

    name: str
    source: str
    as_of: date
    prices: Sequence[MachinePrice]


@dataclass(frozen=True)
class Offering:
    """The zones in which a machine family is known to be offered, as of a day."""

    as_of: date
    zones: frozenset[str]


def family_of(node_type: str) -> str:
    """Return the family of a machine: `a2-highgpu` of `a2-highgpu-8g`."""
    return node_type.rpartition("-")[0]


@cache
def builtin_snapshots() -> Sequence[Snapshot]:
    """Return the price lists that ship with the plug-in, the newest first.

    `gcosts` covers A2, A3 and G2 machines by region; `skypilot` the big ones by zone, GPU and
    host part added up; `n1` V100 and T4 on hosts of 8 vCPUs a GPU, where a host price is known.
    """
    found = [parse_snapshot(_data(name), name.partition("_")[0]) for name in _BUILTIN]
    return tuple(sorted(found, key=lambda snapshot: snapshot.as_of, reverse=True))


@cache
def offerings() -> Mapping[str, Offering]:
    """Return where each machine family is known to be offered."""
    table = read_csv(_data("offered.csv"), "offered.csv", ("family", "as_of", "zones"))
    return {
        row.text("family"): Offering(row.day("as_of"), frozenset(row.text("zones").split()))
        for row in table.rows
    }


def read_snapshot(path: Path) -> Snapshot:
    """Return a snapshot file of the user's own."""
    return parse_snapshot(load_text(path), path.name)


def parse_snapshot(text: str, name: str) -> Snapshot:
    """Return the snapshot that a text holds; `name` is how messages call it."""
    table = read_csv(text, name, COLUMNS, hint=_HOW)
    for note in ("source", "as_of"):
        if not table.notes.get(note):
            raise InputError(f"the line `# {note}: ...` is missing", where=f"{name}:1", hint=_HOW)
    as_of = read_day(table.notes["as_of"], "as_of", f"{name}:1")
    prices = tuple(_machine_price(row) for row in table.rows)
    _refuse_repeats(table.rows, prices)
    return Snapshot(name, table.notes["source"], as_of, prices)


def format_snapshot(snapshot: Snapshot) -> str:
    """Return a snapshot as text, sorted by place and machine."""
    out = io.StringIO()
    out.write(f"# {TITLE}\n# source: {snapshot.source}\n# as_of: {snapshot.as_of}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for price in sorted(snapshot.prices, key=lambda p: (p.region, p.zone or "", p.node_type)):
        writer.writerow(
            (
                price.region,
                price.zone or "",
                price.node_type,
                f"{price.num_gpus:g}",
                _figure(price.on_demand),
                _figure(price.spot),
                price.remark,
            )
        )
    return out.getvalue()


def _figure(usd_per_hour: float | None) -> str:
    if usd_per_hour is None:
        return ""
    return f"{usd_per_hour:.6f}".rstrip("0").rstrip(".")


def _machine_price(row: CsvRow) -> MachinePrice:
    region, zone, node_type = row.text("region"), row.text("zone"), row.text("node_type")
    for column in ("region", "node_type"):
        if not row.text(column):
            raise row.error(f"{column} is empty", hint=f"give every row a {column}")
    if zone and not zone.startswith(f"{region}-"):
        raise row.error(f"zone {shown(zone)} is not a zone of region {shown(region)}")
    num_gpus = row.number("gpus")
    if num_gpus is None or num_gpus <= 0:
        raise row.error(f"gpus should be greater than 0, not {shown(row.text('gpus'))}")
    return MachinePrice(
        region=region,
        zone=zone or None,
        node_type=node_type,
        num_gpus=num_gpus,
        on_demand=_positive(row, "on_demand_usd_per_hour"),
        spot=_positive(row, "spot_usd_per_hour"),
        remark=row.text("remark"),
    )


def _positive(row: CsvRow, column: str) -> float | None:
    value = row.number(column)
    if value is not None and value <= 0:
        raise row.error(
            f"{column} should be greater than 0, not {shown(row.text(column))}",
            hint="leave the field empty when the price is not known",
        )
    return value


def _refuse_repeats(rows: Sequence[CsvRow], prices: Sequence[MachinePrice]) -> None:
    first: dict[tuple[str, str], CsvRow] = {}
    for row, price in zip(rows, prices, strict=True):
        key = (price.place, price.node_type)
        if key in first:
            raise row.error(
                f"{price.node_type} in {price.place} is there twice (first at {first[key].place})",
                hint="keep one of them",
            )
        first[key] = row


def _data(name: str) -> str:
    return files("sailor_gcp_pricing").joinpath("data", name).read_text(encoding="utf-8")
