"""The price source `file`: prices that a person wrote down, in YAML, JSON or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.errors import InputError, UnknownNameError
from sailor.interfaces import PriceAnswer, PriceQuery, SourceContext
from sailor.model.base import Record
from sailor.model.catalog import Catalog
from sailor.model.csv_text import CsvRow, read_csv
from sailor.model.document import DocumentPath
from sailor.model.files import load_document, load_text
from sailor.model.hardware import EgressPrice, Market, Name, NodeType, Price, Zone
from sailor.model.parse import parse_record
from sailor.model.units import UsdPerHour

ANY = "*"
_BYTES_PER_GB = 1e9
_CSV_HINT = (
    "columns: zone, node_type or gpu, market, usd_per_hour or usd_per_gpu_hour, source, as_of"
)


class PriceRule(Record):
    """What nodes cost: of a node type or with a GPU, in a zone, in a region or anywhere.

    `usd_per_gpu_hour` is multiplied by the GPUs of the node. Of several rules that fit, one for
    the zone goes before one for the region and one for anywhere; then one for the node type
    before one for the GPU and one for any node.
    """

    zone: Name = ANY
    region: Name | None = None
    node_type: Name | None = None
    gpu: Name | None = None
    market: Market = Market.ON_DEMAND
    usd_per_hour: UsdPerHour | None = None  # of one node
    usd_per_gpu_hour: UsdPerHour | None = None
    source: str | None = Field(default=None, min_length=1)  # None: the file's
    as_of: date | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.usd_per_hour is None) == (self.usd_per_gpu_hour is None):
            raise ValueError("a price needs either usd_per_hour or usd_per_gpu_hour, and not both")
        if (self.node_type is None) == (self.gpu is None):
            raise ValueError("a price needs either node_type or gpu, and not both")
        if self.gpu is not None and self.usd_per_hour is not None:
            raise ValueError("a price by gpu is per GPU: write it as usd_per_gpu_hour")
        if self.region is not None and self.zone != ANY:
            raise ValueError("a price is for a zone or for a region, not both")
        return self

    @property
    def rank(self) -> tuple[int, int]:
        """Return how closely the rule names its place and its machine; the greater goes first."""
        place = 2 if self.zone != ANY else 1 if self.region else 0
        machine = 0 if self.node_type == ANY else 2 if self.node_type else 1
        return place, machine


class EgressRule(Record):
    """What traffic from `src` to `dst` costs; each is a zone, a region or any. Directed."""

    src: Name = ANY
    dst: Name = ANY
    usd_per_gb: float = Field(ge=0)  # of 1e9 bytes


class EgressTable(Record):
    """What traffic costs by distance, in USD for 1e9 bytes, and for pairs of their own."""

    same_zone: float | None = Field(default=None, ge=0)
    same_region: float | None = Field(default=None, ge=0)  # to another zone of it
    other: float | None = Field(default=None, ge=0)  # to another region
    pairs: tuple[EgressRule, ...] = ()


class PriceFile(Record):
    """A file of prices. What it doesn't say is unknown."""

    schema_version: Literal[1] = 1
    source: str = Field(min_length=1)
    as_of: date
    prices: tuple[PriceRule, ...] = ()
    egress: EgressTable | tuple[EgressRule, ...] = ()


class FilePrices:
    """Prices from the file that the job names: `sources: {prices: {file: prices.yaml}}`."""

    name = "file"

    def prices(self, queries: Sequence[PriceQuery], context: SourceContext) -> PriceAnswer:
        """Return a price for each query that a rule fits; the others are excluded."""
        book = _read(context)
        prices: list[Price] = []
        excluded: dict[PriceQuery, str] = {}
        for query in queries:
            price = _price(query, book, context.catalog)
            if price is None:
                market = query.market.value.replace("_", "-")
                excluded[query] = (
                    f"{book.name} has no {market} price of {query.node_type} in {query.zone}"
                )
            else:
                prices.append(price)
        return PriceAnswer(tuple(prices), excluded, tuple(_spot_remarks(prices, book.name)))

    def egress(
        self, pairs: Sequence[tuple[str, str]], context: SourceContext
    ) -> Sequence[EgressPrice]:
        """Return the price of each pair of zones that the file covers."""
        book = _read(context)
        zones = context.catalog.zones
        found: list[EgressPrice] = []
        for src, dst in pairs:
            if src not in zones or dst not in zones:
                continue
            usd_per_gb = _usd_per_gb(book.egress, zones[src], zones[dst])
            if usd_per_gb is not None and book.as_of is not None:
                found.append(
                    EgressPrice(
                        src=src, dst=dst, usd_per_byte=usd_per_gb / _BYTES_PER_GB,
                        source=book.source, as_of=book.as_of,
                    )
                )  # fmt: skip
        return found


@dataclass(frozen=True)
class _PlacedRule:
    """A rule with its GPU's name in the catalogue, its source, and the way to its line."""

    rule: PriceRule
    gpu: str | None
    source: str
    as_of: date
    place: Callable[[], str]


@dataclass(frozen=True)
class _PriceBook:
    """A price file, checked against the catalogue; the closest rule first."""

    name: str
    rules: Sequence[_PlacedRule]
    egress: EgressTable
    source: str = ""
    as_of: date | None = None  # None: a table, which has no egress prices


def _read(context: SourceContext) -> _PriceBook:
    if context.path is None:
        raise InputError(
            "the price source file needs the name of a file",
            where="sources.prices",
            hint="write `prices: {file: prices.yaml}`",
        )
    is_table = context.path.suffix.lower() == ".csv"
    return (_from_csv if is_table else _from_document)(context.path, context.catalog)


def _from_document(path: Path, catalog: Catalog) -> _PriceBook:
    document = load_document(path)
    content = parse_record(PriceFile, document)
    rules = [
        _placed(
            rule, partial(document.place, ("prices", i)), catalog, content.source, content.as_of
        )
        for i, rule in enumerate(content.prices)
    ]
    egress = content.egress
    start: DocumentPath = ("egress", "pairs")
    if not isinstance(egress, EgressTable):
        egress, start = EgressTable(pairs=egress), ("egress",)
    places = [partial(document.place, (*start, i)) for i in range(len(egress.pairs))]
    for pair, place in zip(egress.pairs, places, strict=True):
        _check_end(pair.src, place, catalog)
        _check_end(pair.dst, place, catalog)
    _refuse_repeats(((p.src, p.dst), at) for p, at in zip(egress.pairs, places, strict=True))
    return _book(path, rules, egress, content.source, content.as_of)


def _from_csv(path: Path, catalog: Catalog) -> _PriceBook:
    table = read_csv(load_text(path), path.name, ("source", "as_of"), hint=_CSV_HINT)
    rules: list[_PlacedRule] = []
    for row in table.rows:
        fields: dict[str, object] = {
            column: _cell(row, column) for column in row.values if row.text(column)
        }
        rule = parse_record(PriceRule, fields, where=row.place)
        for column in ("source", "as_of"):
            if column not in fields:
                raise row.error(f"{column} is empty", hint="every price has a source and a date")
        rules.append(_placed(rule, partial(str, row.place), catalog, "", date.min))
    if not rules:
        raise InputError("the table has no rows", where=path.name, hint=_CSV_HINT)
    return _book(path, rules)


def _cell(row: CsvRow, column: str) -> object:
    return row.number(column) if column.startswith("usd_per_") else row.text(column)


def _placed(
    rule: PriceRule, place: Callable[[], str], catalog: Catalog, source: str, as_of: date
) -> _PlacedRule:
    try:
        if rule.zone != ANY:
            catalog.zone(rule.zone)
        if rule.region is not None:
            catalog.zones_of_region(rule.region)
        if rule.node_type not in (None, ANY):
            catalog.node(str(rule.node_type))
        gpu = None if rule.gpu is None else catalog.gpu(rule.gpu).name
    except UnknownNameError as error:
        error.where = place()  # found only now: in a long file it takes a while
        raise
    return _PlacedRule(rule, gpu, rule.source or source, rule.as_of or as_of, place)


def _check_end(name: str, place: Callable[[], str], catalog: Catalog) -> None:
    if name == ANY or name in catalog.zones:
        return
    regions = {zone.region for zone in catalog.zones.values()}
    if name not in regions:
        known = {*catalog.zones, *regions}
        raise UnknownNameError("zone or region", name, known, where=place())


def _refuse_repeats(keys: Iterable[tuple[tuple[object, ...], Callable[[], str]]]) -> None:
    first: dict[tuple[object, ...], Callable[[], str]] = {}
    for key, place in keys:
        if key in first:
            raise InputError(
                f"this price is there twice (first at {first[key]()})", where=place(),
                hint="keep one of them",
            )  # fmt: skip
        first[key] = place


def _book(
    path: Path,
    rules: Sequence[_PlacedRule],
    egress: EgressTable | None = None,
    source: str = "",
    as_of: date | None = None,
) -> _PriceBook:
    _refuse_repeats(
        ((r.rule.zone, r.rule.region, r.rule.node_type, r.gpu, r.rule.market), r.place)
        for r in rules
    )
    ordered = sorted(rules, key=lambda placed: placed.rule.rank, reverse=True)
    return _PriceBook(path.name, ordered, egress or EgressTable(), source, as_of)


def _price(query: PriceQuery, book: _PriceBook, catalog: Catalog) -> Price | None:
    zone, node = catalog.zone(query.zone), catalog.node(query.node_type)
    fits = (placed for placed in book.rules if _fits(placed, query.market, zone, node))
    chosen = next(fits, None)
    if chosen is None:
        return None
    rule = chosen.rule
    usd_per_hour = rule.usd_per_hour or (rule.usd_per_gpu_hour or 0.0) * node.num_gpus
    return Price(
        zone=zone.name, node_type=node.name, market=query.market, usd_per_hour=usd_per_hour,
        source=chosen.source, as_of=chosen.as_of,
    )  # fmt: skip


def _fits(placed: _PlacedRule, market: Market, zone: Zone, node: NodeType) -> bool:
    rule = placed.rule
    return (
        rule.market is market
        and rule.zone in (ANY, zone.name)
        and rule.region in (None, zone.region)
        and rule.node_type in (None, ANY, node.name)
        and placed.gpu in (None, node.gpu)
    )


def _spot_remarks(prices: Sequence[Price], name: str) -> Iterator[str]:
    on_demand = {
        (p.zone, p.node_type): p.usd_per_hour for p in prices if p.market is Market.ON_DEMAND
    }
    for price in prices:
        usual = on_demand.get((price.zone, price.node_type))
        if price.market is Market.SPOT and usual is not None and price.usd_per_hour > usual:
            yield (
                f"{name}: the spot price of {price.node_type} in {price.zone}, "
                f"{price.usd_per_hour:.6g} USD/h, is above on-demand, {usual:.6g} USD/h"
            )


def _usd_per_gb(egress: EgressTable, src: Zone, dst: Zone) -> float | None:
    fits = [
        rule
        for rule in egress.pairs
        if rule.src in (ANY, src.name, src.region) and rule.dst in (ANY, dst.name, dst.region)
    ]
    for rule in fits:
        if (rule.src, rule.dst) == (src.name, dst.name):
            return rule.usd_per_gb
    near = egress.same_zone if src.name == dst.name else egress.same_region
    if src.region == dst.region and near is not None:
        return near
    if fits:
        return max(fits, key=lambda rule: _closeness(rule, src, dst)).usd_per_gb
    return egress.other if src.region != dst.region else None


def _closeness(rule: EgressRule, src: Zone, dst: Zone) -> tuple[int, int]:
    ends = [
        2 if name == zone.name else 1 if name == zone.region else 0
        for name, zone in ((rule.src, src), (rule.dst, dst))
    ]
    return sum(ends), ends[0]
