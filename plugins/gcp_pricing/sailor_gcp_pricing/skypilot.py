"""SkyPilot's GCP catalogue (`vms.csv`) into machine prices.

Its rows price a GPU part (AcceleratorName without InstanceType), a host (InstanceType without
AcceleratorName) or a whole machine (both). A machine's price is the sum of the two parts of one
zone: the cheapest host of one zone with the cheapest GPUs of another is a machine nobody sells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sailor.model.catalog import Catalog
from sailor.model.csv_text import CsvRow, read_csv
from sailor.model.hardware import NodeType
from sailor_gcp_pricing.snapshot import MachinePrice, family_of

COLUMNS = (
    "InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region",
    "AvailabilityZone",
)  # fmt: skip
# SkyPilot's accelerator name by machine family.
_ACCELERATORS = {
    "a2-highgpu": "A100",
    "a2-megagpu": "A100",
    "a2-ultragpu": "A100-80GB",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA",
    "a3-ultragpu": "H200",
    "a4-highgpu": "B200",
    "a4x-highgpu": "GB200",
    "g2-standard": "L4",
    "n1-t4": "T4",
    "n1-v100": "V100",
}
_HOST_VCPUS_PER_GPU = 8  # of the n1 hosts behind sailor's n1-v100-* and n1-t4-* shapes

_Key = TypeVar("_Key")


@dataclass
class _Part:
    """Prices of a host, of GPUs, or of a machine, in USD an hour; None is unknown."""

    on_demand: float | None
    spot: float | None
    remarks: list[str] = field(default_factory=list)


@dataclass
class _ZoneRows:
    """What the catalogue says about one zone."""

    region: str
    hosts: dict[str, _Part] = field(default_factory=dict)  # by machine
    gpus: dict[tuple[str, float], _Part] = field(default_factory=dict)  # by accelerator and count
    machines: dict[tuple[str, str, float], _Part] = field(default_factory=dict)  # machine, GPUs


def read_skypilot(text: str, name: str, catalog: Catalog) -> list[MachinePrice]:
    """Return the prices of the GCP machines that `catalog` has, by zone."""
    zones: dict[str, _ZoneRows] = {}
    for row in read_csv(text, name, COLUMNS).rows:
        zone = row.text("AvailabilityZone")
        if zone:
            _take(row, zones.setdefault(zone, _ZoneRows(row.text("Region"))))
    nodes = [
        node
        for node in catalog.nodes.values()
        if node.provider == "gcp" and family_of(node.name) in _ACCELERATORS
    ]
    return [
        price
        for zone, rows in sorted(zones.items())
        for node in nodes
        for price in _machine_prices(node, zone, rows)
    ]


def _take(row: CsvRow, rows: _ZoneRows) -> None:
    machine, accelerator = row.text("InstanceType"), row.text("AcceleratorName")
    count = row.number("AcceleratorCount") or 0.0
    part = _Part(_price(row, "Price"), _price(row, "SpotPrice"))
    if machine and accelerator:
        _add(rows.machines, (machine, accelerator, count), part)
    elif machine:
        _add(rows.hosts, machine, part)
    elif accelerator:
        _add(rows.gpus, (accelerator, count), part)


def _price(row: CsvRow, column: str) -> float | None:
    """Return a price; empty, NaN and 0 (written in place of NaN) all mean unknown."""
    if row.text(column).lower() == "nan":
        return None
    value = row.number(column)
    if value is not None and value < 0:
        raise row.error(f"{column} is negative: {row.text(column)}")
    return value or None


def _add(parts: dict[_Key, _Part], key: _Key, new: _Part) -> None:
    old = parts.setdefault(key, new)
    if old is new or (old.on_demand, old.spot) == (new.on_demand, new.spot):
        return
    old.remarks.append("listed twice with unlike prices, the dearer are used")
    old.on_demand = _dearer(old.on_demand, new.on_demand)
    old.spot = _dearer(old.spot, new.spot)


def _dearer(first: float | None, second: float | None) -> float | None:
    known = [price for price in (first, second) if price is not None]
    return max(known, default=None)


def _machine_prices(node: NodeType, zone: str, rows: _ZoneRows) -> Iterator[MachinePrice]:
    accelerator = _ACCELERATORS[family_of(node.name)]
    gpus = rows.gpus.get((accelerator, float(node.num_gpus)))
    host_name, host = _host(node, rows.hosts)
    whole = [(key, part) for key, part in rows.machines.items() if key[0] == node.name]
    if whole:
        (_, named, count), part = whole[0]
        problem = _whole_problem(len(whole), named, accelerator, gpus is not None)
        if problem:
            part = _Part(None, None, [problem])
        yield _priced(node, zone, rows.region, count, part)
    elif gpus is not None:
        summed = _sum(gpus, host, host_name)
        yield _priced(node, zone, rows.region, float(node.num_gpus), summed)
    elif host is not None and host_name == node.name:
        only_host = _Part(None, None, ["only the host's price is listed, not that of its GPUs"])
        yield _priced(node, zone, rows.region, float(node.num_gpus), only_host)


def _host(node: NodeType, hosts: Mapping[str, _Part]) -> tuple[str, _Part | None]:
    is_n1 = node.name.startswith("n1-")
    name = f"n1-standard-{_HOST_VCPUS_PER_GPU * node.num_gpus}" if is_n1 else node.name
    return name, hosts.get(name)


def _whole_problem(num_rows: int, named: str, accelerator: str, has_gpu_part: bool) -> str:
    if num_rows > 1:
        return "listed with several kinds or numbers of GPUs"
    if named != accelerator:
        return f"listed with {named}, it has {accelerator}"
    if has_gpu_part:
        return "listed with its GPUs and its GPUs also alone: whether they are in its price is open"
    return ""


def _sum(gpus: _Part, host: _Part | None, host_name: str) -> _Part:
    if host is None:
        return _Part(None, None, [f"the price of the host {host_name} is not listed for this zone"])
    remarks = [*gpus.remarks, *host.remarks]
    spot = _plus(gpus.spot, host.spot)
    for what, part in (("GPU part", gpus), ("host", host)):
        if part.spot is not None and part.on_demand is not None and part.spot > part.on_demand:
            remarks.append(
                f"the {what} is {part.spot:g} USD/h on spot and {part.on_demand:g} on demand"
            )
            spot = None
    return _Part(_plus(gpus.on_demand, host.on_demand), spot, remarks)


def _plus(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _priced(node: NodeType, zone: str, region: str, num_gpus: float, part: _Part) -> MachinePrice:
    return MachinePrice(
        region=region or zone.rpartition("-")[0],
        zone=zone,
        node_type=node.name,
        num_gpus=num_gpus or float(node.num_gpus),
        on_demand=part.on_demand,
        spot=part.spot,
        remark="; ".join(part.remarks),
    )
