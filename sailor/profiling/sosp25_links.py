"""The SOSP'25 artifact's bandwidth file as links.

{SRC_ZONE: {SRC_GPU: {SRC_COUNT: {DST_ZONE: {DST_GPU: {DST_COUNT: [[c2, c1, c0], peak]}}}}}}: the
aggregate GB/s of COUNT GPUs as a polynomial of log2(MB), fitted over 64 KiB to 1 GiB; peak in
bytes/s. Entries between unlike types or counts are not measured: the artifact took the smaller
count's, or the slower type's, entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.profiling.latency import SAME_REGION, SAME_ZONE, AssumedLatency
from sailor.profiling.sosp25_tables import bad, count, gpu_name, items
from sailor.profiling.store_format import first_error

# Half of the smallest round trip between VMs; the region table of `zones` has the same figure.
_BETWEEN_REGIONS: Mapping[frozenset[str], AssumedLatency] = {
    frozenset(("us-central1", "us-west1")): AssumedLatency(
        36.278e-3 / 2, "latency half of the 36.278 ms round trip that Skyplane measured in 2022"
    )
}
# These GPUs stood in clusters of their own; the artifact files them under a zone's name.
_OWN_CLUSTERS = ("GH-96", "Titan-RTX", "RTX-2080", "RTX-3090")


def read_links(document: object, where: str, source: str, remarks: list[str]) -> tuple[Link, ...]:
    """Return the links of a bandwidth file in its order; what is left out goes to `remarks`."""
    tables = {
        (zone, gpu): table
        for zone, by_gpu in items(document, where)
        for gpu, table in items(by_gpu, f"{where}: {zone}")
    }
    links: list[Link] = []
    for (zone, gpu), table in tables.items():
        place = f"{where}: {zone}/{gpu}"
        name = gpu_name(gpu, place)
        if _is_copy(zone, gpu, tables):
            remarks.append(
                f"{name} sending from {zone} left out: its entries are a copy of another zone's"
            )
            continue
        if gpu in _OWN_CLUSTERS:
            remarks.append(
                f"{name} was measured in a cluster of its own, which the artifact calls "
                f"{zone}; its links to other types there are not measured"
            )
        try:
            links.extend(_links_from(zone, gpu, table, place, source))
        except ValidationError as error:
            raise bad(first_error(error), place) from error
    return tuple(links)


def _links_from(zone: str, gpu: str, table: object, where: str, source: str) -> Iterator[Link]:
    for workers, by_zone in items(table, where):
        for dst, by_gpu in items(by_zone, where):
            latency = _latency(zone, dst, where)
            for dst_gpu, by_workers in items(by_gpu, where):
                for dst_workers, fit in items(by_workers, where):
                    measured = (gpu, workers) == (dst_gpu, dst_workers)
                    how = (
                        "measured bandwidth"
                        if measured
                        else "bandwidth of the slower or smaller side, not measured for this pair"
                    )
                    yield Link(
                        src=zone,
                        dst=dst,
                        src_gpu=gpu_name(gpu, where),
                        dst_gpu=gpu_name(dst_gpu, where),
                        src_workers=count(workers, where),
                        dst_workers=count(dst_workers, where),
                        latency_s=latency.seconds,
                        curve=_curve(fit, f"{where}, {workers} to {dst}/{dst_gpu}/{dst_workers}"),
                        source=f"{source}: {how}; {latency.source}",
                        assumed=not measured,
                    )


def _is_copy(zone: str, gpu: str, tables: Mapping[tuple[str, str], Any]) -> bool:
    """Return whether a sender's table lacks its own zone and repeats another zone's figures."""
    own = _flat(tables[zone, gpu])
    if any(dst == zone for _, dst, *_ in own):
        return False
    return any(
        own.items() <= _flat(table).items()
        for (other, kind), table in tables.items()
        if kind == gpu and other != zone and any(dst == other for _, dst, *_ in _flat(table))
    )


def _flat(table: object) -> dict[tuple[str, str, str, str], str]:
    """Return the fits of one sender by (count, receiver's zone, GPU type, count)."""
    found: dict[tuple[str, str, str, str], str] = {}
    for workers, by_zone in items(table, "bandwidth file"):
        for dst, by_gpu in items(by_zone, "bandwidth file"):
            for gpu, by_workers in items(by_gpu, "bandwidth file"):
                for dst_workers, fit in items(by_workers, "bandwidth file"):
                    found[workers, dst, gpu, dst_workers] = repr(fit)
    return found


def _latency(src: str, dst: str, where: str) -> AssumedLatency:
    if src == dst:
        return SAME_ZONE
    regions = (src.rsplit("-", 1)[0], dst.rsplit("-", 1)[0])
    if regions[0] == regions[1]:
        return SAME_REGION
    known = _BETWEEN_REGIONS.get(frozenset(regions))
    if known is None:
        raise InputError(
            f"no latency is known between {regions[0]} and {regions[1]}",
            where=where,
            hint="take the pair out of the file and give it as a link in the job's catalog",
        )
    return known


def _curve(fit: object, where: str) -> BandwidthCurve:
    match fit:
        case [[c2, c1, c0], peak]:
            try:
                return BandwidthCurve(coefficients=(c2, c1, c0), peak_bytes_per_s=peak)
            except ValidationError as error:
                raise _bad_fit(fit, where) from error
    raise _bad_fit(fit, where)


def _bad_fit(fit: object, where: str) -> InputError:
    return InputError(
        f"a fit is {fit!r}",
        where=where,
        hint="expected [[c2, c1, c0], peak], numbers, with a peak above 0 bytes/s",
    )
