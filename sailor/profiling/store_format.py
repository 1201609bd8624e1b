"""The text of a profile store: JSON with one row a line.

Rows are arrays under named columns; texts and curves that many rows share are written once and
numbered. Numbers are written so that they read back bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.model.profile import LayerFootprint, LayerProfile, UnitBytes, UnitTime

FORMAT = "sailor profile store"
VERSION = 1

_UNITS = ("embedding", "first_block", "block", "head")
_PROFILE_COLUMNS = (
    "model", "gpu", "tp", "microbatch", "precision",
    *(f"{unit}_{way}_s" for unit in _UNITS for way in ("forward", "backward")),
    "optimizer_s", "optimizer_params", "provenance", "source", "as_of",
)  # fmt: skip
_FOOTPRINT_COLUMNS = (
    "model", "tp", "precision",
    *(f"{unit}_{what}" for unit in _UNITS for what in UnitBytes.model_fields),
    "provenance", "source",
)  # fmt: skip
_LINK_COLUMNS = (
    "src", "dst", "src_gpu", "dst_gpu", "src_workers", "dst_workers", "latency_s", "bandwidth",
    "curve", "source", "assumed",
)  # fmt: skip

_Item = TypeVar("_Item", str, BandwidthCurve)
_Cells = Mapping[str, Any]


class _Pool(Generic[_Item]):
    """Distinct items in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[_Item, int] = {}

    def number(self, item: _Item) -> int:
        """Return the item's place, taking it in if it is new."""
        return self._numbers.setdefault(item, len(self._numbers))

    def items(self) -> Iterable[_Item]:
        """Return the items by place."""
        return self._numbers.keys()


def dump(
    head: Mapping[str, str | Sequence[object] | None],
    profiles: Sequence[LayerProfile],
    footprints: Sequence[LayerFootprint],
    links: Sequence[Link],
) -> str:
    """Return the text of a store; `head` holds source, licence, as_of, remarks and models."""
    texts, curves = _Pool[str](), _Pool[BandwidthCurve]()
    tables = {
        "profiles": (_PROFILE_COLUMNS, [_profile_row(row, texts) for row in profiles]),
        "footprints": (_FOOTPRINT_COLUMNS, [_footprint_row(row, texts) for row in footprints]),
        "links": (_LINK_COLUMNS, [_link_row(row, texts, curves) for row in links]),
    }
    lists: Mapping[str, Sequence[object]] = {
        "sources": list(texts.items()),
        "curves": [
            (*c.coefficients, c.min_bytes, c.max_bytes, c.peak_bytes_per_s) for c in curves.items()
        ],
    }
    parts = [f'"format": {_cell(FORMAT)}', f'"schema_version": {VERSION}']
    for key, value in {**head, **lists}.items():
        plain = value is None or isinstance(value, str)
        parts.append(f"{_cell(key)}: {_cell(value) if plain else _lines(value or ())}")
    for key, (columns, rows) in tables.items():
        parts.append(f'"{key}": {{"columns": {_cell(columns)}, "rows": {_lines(rows)}}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def parse(text: str, where: str) -> dict[str, object]:
    """Return the fields of the store in `text`; `where` names the file in messages."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(f"is not JSON ({error})", where) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise damaged("is not a profile store", where)
    if document.get("schema_version") != VERSION:
        raise damaged(
            f"is a profile store of version {document.get('schema_version')!r}; this sailor reads "
            f"version {VERSION}",
            where,
        )
    wanted = {"format", "schema_version", "source", "licence", "as_of", "remarks", "models",
              "sources", "curves", "profiles", "footprints", "links"}  # fmt: skip
    if set(document) != wanted:
        missing, extra = sorted(wanted - set(document)), sorted(set(document) - wanted)
        raise damaged(
            f"lacks {', '.join(missing)}" if missing else f"has unknown {', '.join(extra)}", where
        )
    fields = {key: document[key] for key in ("source", "licence", "as_of", "remarks", "models")}
    try:
        texts = [str(item) for item in document["sources"]]
        curves = [_curve(cells) for cells in document["curves"]]
    except (TypeError, ValueError) as error:
        raise damaged(f"sources or curves: {_reason(error)}", where) from error
    for key, columns, read in (
        ("profiles", _PROFILE_COLUMNS, lambda cells: _profile(cells, texts)),
        ("footprints", _FOOTPRINT_COLUMNS, lambda cells: _footprint(cells, texts)),
        ("links", _LINK_COLUMNS, lambda cells: _link(cells, texts, curves)),
    ):
        fields[key] = _rows(document[key], key, columns, read, where)
    return fields


def damaged(message: str, where: str) -> InputError:
    """Return the error for a file that isn't a sound store."""
    return InputError(message, where=where, hint="import the profile store again")


def first_error(error: ValidationError) -> str:
    """Return the first complaint of a record as one phrase."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def _rows(
    table: object,
    key: str,
    columns: Sequence[str],
    read: Callable[[_Cells], object],
    where: str,
) -> tuple[object, ...]:
    if not isinstance(table, dict) or table.get("columns") != list(columns):
        raise damaged(f"{key}: the columns are not {', '.join(columns)}", where)
    rows = table.get("rows")
    if not isinstance(rows, list):
        raise damaged(f"{key}: there are no rows", where)
    records = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise damaged(f"{key}[{number}] doesn't have {len(columns)} cells", where)
        try:
            records.append(read(dict(zip(columns, row, strict=True))))
        except (TypeError, ValueError, IndexError) as error:
            raise damaged(f"{key}[{number}]: {_reason(error)}", where) from error
    return tuple(records)


def _reason(error: Exception) -> str:
    return first_error(error) if isinstance(error, ValidationError) else str(error)


def _profile_row(profile: LayerProfile, texts: _Pool[str]) -> list[object]:
    times = (getattr(profile, unit) for unit in _UNITS)
    return [
        profile.model, profile.gpu, profile.tp, profile.microbatch, profile.precision,
        *(seconds for time in times for seconds in (time.forward_s, time.backward_s)),
        profile.optimizer_s, profile.optimizer_params, profile.provenance,
        texts.number(profile.source), profile.as_of.isoformat() if profile.as_of else None,
    ]  # fmt: skip


def _profile(cells: _Cells, texts: Sequence[str]) -> LayerProfile:
    times = {
        unit: UnitTime(forward_s=cells[f"{unit}_forward_s"], backward_s=cells[f"{unit}_backward_s"])
        for unit in _UNITS
    }
    plain = {key: cells[key] for key in _PROFILE_COLUMNS if key in LayerProfile.model_fields}
    return LayerProfile.model_validate({**plain, **times, "source": texts[cells["source"]]})


def _footprint_row(footprint: LayerFootprint, texts: _Pool[str]) -> list[object]:
    units = (getattr(footprint, unit) for unit in _UNITS)
    return [
        footprint.model, footprint.tp, footprint.precision,
        *(n for unit in units for n in (unit.params, unit.activation_bytes, unit.output_bytes)),
        footprint.provenance, texts.number(footprint.source),
    ]  # fmt: skip


def _footprint(cells: _Cells, texts: Sequence[str]) -> LayerFootprint:
    units = {
        unit: UnitBytes(
            params=cells[f"{unit}_params"],
            activation_bytes=cells[f"{unit}_activation_bytes"],
            output_bytes=cells[f"{unit}_output_bytes"],
        )
        for unit in _UNITS
    }
    plain = {key: cells[key] for key in _FOOTPRINT_COLUMNS if key in LayerFootprint.model_fields}
    return LayerFootprint.model_validate({**plain, **units, "source": texts[cells["source"]]})


def _link_row(link: Link, texts: _Pool[str], curves: _Pool[BandwidthCurve]) -> list[object]:
    return [
        link.src, link.dst, link.src_gpu, link.dst_gpu, link.src_workers, link.dst_workers,
        link.latency_s, link.bandwidth, None if link.curve is None else curves.number(link.curve),
        texts.number(link.source), link.assumed,
    ]  # fmt: skip


def _link(cells: _Cells, texts: Sequence[str], curves: Sequence[BandwidthCurve]) -> Link:
    curve = None if cells["curve"] is None else curves[cells["curve"]]
    return Link.model_validate({**cells, "source": texts[cells["source"]], "curve": curve})


def _curve(cells: Sequence[float]) -> BandwidthCurve:
    c2, c1, c0, min_bytes, max_bytes, peak = cells
    return BandwidthCurve(
        coefficients=(c2, c1, c0), min_bytes=min_bytes, max_bytes=max_bytes, peak_bytes_per_s=peak
    )


def _cell(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _lines(rows: Iterable[object]) -> str:
    return "[\n" + ",\n".join(_cell(row) for row in rows) + "\n]"
