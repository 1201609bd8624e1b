"""The price source `gcp`: one price for a machine in a zone, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.interfaces import PriceAnswer, PriceQuery, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import EgressPrice, Market, Price, Zone
from sailor_gcp_pricing.egress import egress_price
from sailor_gcp_pricing.snapshot import (
    MachinePrice,
    Snapshot,
    builtin_snapshots,
    family_of,
    offerings,
    read_snapshot,
)

_NOTABLE_DIFFERENCE = 0.10  # of two price lists, as a fraction, before a remark says so


class GcpPrices:
    """GCP prices from the snapshots in the plug-in, or from the one file that the job names.

    Of several price lists the newest that knows a price is used; one by zone goes before one by
    region of the same day. A region's price counts only in zones that are known to offer the
    machine.
    """

    name = "gcp"

    def prices(self, queries: Sequence[PriceQuery], context: SourceContext) -> PriceAnswer:
        """Return a price for each query, or the reason why the offer can't be used."""
        snapshots = builtin_snapshots() if context.path is None else (read_snapshot(context.path),)
        lists = _PriceLists(snapshots)
        prices: list[Price] = []
        excluded: dict[PriceQuery, str] = {}
        remarks: list[str] = []
        for query in queries:
            found = _foreign(query, context.catalog) or _answer(
                query, context.catalog, lists, remarks
            )
            if isinstance(found, Price):
                prices.append(found)
            else:
                excluded[query] = found
        return PriceAnswer(tuple(prices), excluded, tuple(dict.fromkeys(remarks)))

    def egress(
        self, pairs: Sequence[tuple[str, str]], context: SourceContext
    ) -> Sequence[EgressPrice]:
        """Return the price of each pair that a rule covers."""
        zones = context.catalog.zones
        found = (
            egress_price(zones[src], zones[dst])
            for src, dst in pairs
            if src in zones and dst in zones
        )
        return tuple(price for price in found if price is not None)


@dataclass(frozen=True)
class _Quote:
    """A price and the list that it stands in."""

    price: MachinePrice
    snapshot: Snapshot

    def usd(self, market: Market) -> float | None:
        return self.price.usd_per_hour(market)

    def cited(self, market: Market) -> str:
        usd = self.usd(market)
        figure = "no price" if usd is None else f"{usd:.6g} USD/h"
        return f"{figure} ({self.price.place}, {self.snapshot.name} of {self.snapshot.as_of})"


class _PriceLists:
    """All quotes by machine and place, the one to prefer first."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self.snapshots = tuple(snapshots)
        self._quotes: dict[tuple[str, str], list[_Quote]] = {}
        for snapshot in self.snapshots:
            for price in snapshot.prices:
                quote = _Quote(price, snapshot)
                self._quotes.setdefault((price.node_type, price.place), []).append(quote)

    def in_zone(self, node_type: str, zone: Zone) -> Sequence[_Quote]:
        """Return the quotes of the zone, and of its region where the machine is offered."""
        quotes = list(self._quotes.get((node_type, zone.name), ()))
        if _is_offered(node_type, zone.name):
            quotes += self.in_region(node_type, zone)
        return sorted(
            quotes, key=lambda q: (q.snapshot.as_of, q.price.zone is not None), reverse=True
        )

    def in_region(self, node_type: str, zone: Zone) -> Sequence[_Quote]:
        """Return the quotes for all of a zone's region."""
        return self._quotes.get((node_type, zone.region), ())

    def named(self) -> str:
        """Return the names and dates of the lists, for messages."""
        return ", ".join(f"{s.name} of {s.as_of}" for s in self.snapshots)


def _foreign(query: PriceQuery, catalog: Catalog) -> str:
    """Return why a query is none of this source's business, "" when it is."""
    zone, node = catalog.zones.get(query.zone), catalog.nodes.get(query.node_type)
    if zone is None or zone.provider != "gcp":
        return f"{query.zone} is not a zone of GCP, and the price source gcp knows no other"
    if node is None or node.provider != "gcp":
        return f"{query.node_type} is no machine of GCP, and the price source gcp knows no other"
    if query.market is Market.RESERVED:
        return (
            f"the price source gcp has no reserved prices; give that of {query.node_type} in "
            "catalog.prices or in a price file"
        )
    return ""


def _answer(
    query: PriceQuery, catalog: Catalog, lists: _PriceLists, remarks: list[str]
) -> Price | str:
    zone, node = catalog.zones[query.zone], catalog.nodes[query.node_type]
    found = lists.in_zone(node.name, zone)
    wrong = [
        f"{quote.snapshot.name} gives {node.name} in {quote.price.place} with "
        f"{quote.price.num_gpus:g} GPUs; the machine has {node.num_gpus}, so the row is not used"
        for quote in found
        if quote.price.num_gpus != node.num_gpus
    ]
    remarks.extend(wrong)
    quotes = [quote for quote in found if quote.price.num_gpus == node.num_gpus]
    priced = [quote for quote in quotes if quote.usd(query.market) is not None]
    if not priced:
        return wrong[0] if wrong and not quotes else _unknown(query, zone, quotes, lists)
    best = priced[0]
    if query.market is Market.SPOT:
        dearer = _dearer_than_on_demand(query, best, quotes)
        if dearer:
            remarks.append(dearer)
            return dearer
    remarks.extend(_disagreements(query, best, priced[1:]))
    return Price(
        zone=query.zone,
        node_type=query.node_type,
        market=query.market,
        usd_per_hour=best.usd(query.market) or 0.0,
        source=f"gcp: {best.snapshot.source}",
        as_of=best.snapshot.as_of,
    )


def _is_offered(node_type: str, zone: str) -> bool:
    offering = offerings().get(family_of(node_type))
    return offering is not None and zone in offering.zones


def _unknown(query: PriceQuery, zone: Zone, quotes: Sequence[_Quote], lists: _PriceLists) -> str:
    what = f"{query.market.value.replace('_', '-')} price of {query.node_type} in {query.zone}"
    remark = next((quote.price.remark for quote in quotes if quote.price.remark), "")
    if remark:
        return f"no usable {what} in {lists.named()}: {remark}"
    if not quotes and lists.in_region(query.node_type, zone):
        offering = offerings().get(family_of(query.node_type))
        known = f" (list of {offering.as_of})" if offering else ""
        return (
            f"{query.node_type} is not known to be offered in {query.zone}{known}, so the price "
            f"of region {zone.region} is not used"
        )
    return f"no {what} is known (looked in {lists.named()}); give one in a price file"


def _dearer_than_on_demand(query: PriceQuery, best: _Quote, quotes: Sequence[_Quote]) -> str:
    """Return the sentence about a spot price above on-demand, "" when it is not above."""
    spot = best.usd(Market.SPOT) or 0.0
    for quote in (best, *quotes):  # the same list's own pair of prices first
        on_demand = quote.usd(Market.ON_DEMAND)
        if on_demand is not None:
            if spot <= on_demand:
                return ""
            return (
                f"the spot price of {query.node_type} in {query.zone}, {best.cited(Market.SPOT)}, "
                f"is above on-demand, {quote.cited(Market.ON_DEMAND)}: spot is not used"
            )
    return ""


def _disagreements(query: PriceQuery, best: _Quote, others: Sequence[_Quote]) -> list[str]:
    used = best.usd(query.market) or 0.0
    return [
        f"{query.node_type} in {query.zone}, {query.market.value.replace('_', '-')}: "
        f"{best.cited(query.market)} is used, though an older list says "
        f"{other.cited(query.market)}"
        for other in others
        if abs((other.usd(query.market) or 0.0) - used) > _NOTABLE_DIFFERENCE * used
    ]
