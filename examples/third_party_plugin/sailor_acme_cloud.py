"""A whole small cloud as a sailor plug-in: its prices, and the links between its zones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from sailor.hookspecs import hookimpl
from sailor.interfaces import (
    NetworkModel,
    PriceAnswer,
    PriceQuery,
    PriceSource,
    SourceContext,
    WorkerGroup,
)
from sailor.model.hardware import EgressPrice, Link, Market, Price

PROVIDER = "acme"
SOURCE = "Acme price list"
AS_OF = date(2026, 11, 1)

USD_PER_HOUR = {  # of one node
    ("acme-a100-4", Market.ON_DEMAND): 12.0,
    ("acme-a100-4", Market.SPOT): 4.8,
    ("acme-v100-4", Market.ON_DEMAND): 7.2,
}
EGRESS_USD_PER_BYTE = 0.01e-9  # between zones; inside a zone it is free
BANDWIDTH_BYTES_PER_S = {True: 12.5e9, False: 1.25e9}  # by whether both ends are in one zone
LATENCY_S = {True: 20e-6, False: 2e-3}


class AcmePrices:
    """Prices of Acme's nodes; of what Acme does not rent it says why."""

    name = "acme"

    def prices(self, queries: Sequence[PriceQuery], context: SourceContext) -> PriceAnswer:
        prices: list[Price] = []
        excluded: dict[PriceQuery, str] = {}
        for query in queries:
            if context.catalog.zone(query.zone).provider != PROVIDER:
                continue  # another price source may know
            usd_per_hour = USD_PER_HOUR.get((query.node_type, query.market))
            if usd_per_hour is None:
                excluded[query] = f"Acme does not rent {query.node_type} {query.market}"
                continue
            prices.append(
                Price(
                    zone=query.zone,
                    node_type=query.node_type,
                    market=query.market,
                    usd_per_hour=usd_per_hour,
                    source=SOURCE,
                    as_of=AS_OF,
                )
            )
        return PriceAnswer(prices=prices, excluded=excluded)

    def egress(
        self, pairs: Sequence[tuple[str, str]], context: SourceContext
    ) -> Sequence[EgressPrice]:
        return [
            EgressPrice(
                src=src,
                dst=dst,
                usd_per_byte=0.0 if src == dst else EGRESS_USD_PER_BYTE,
                source=SOURCE,
                as_of=AS_OF,
            )
            for src, dst in pairs
            if context.catalog.zone(src).provider == context.catalog.zone(dst).provider == PROVIDER
        ]


class AcmeNetwork:
    """Links between Acme's nodes; it knows nothing of other clouds."""

    name = "acme"

    def link(self, src: WorkerGroup, dst: WorkerGroup, context: SourceContext) -> Link | None:
        zones = [context.catalog.zone(group.zone) for group in (src, dst)]
        if any(zone.provider != PROVIDER for zone in zones):
            return None
        near = src.zone == dst.zone
        return Link(
            src=src.zone,
            dst=dst.zone,
            latency_s=LATENCY_S[near],
            bandwidth=BANDWIDTH_BYTES_PER_S[near],
            source=SOURCE,
        )


@hookimpl
def sailor_price_sources() -> Iterable[PriceSource]:
    return (AcmePrices(),)


@hookimpl
def sailor_network_models() -> Iterable[NetworkModel]:
    return (AcmeNetwork(),)
