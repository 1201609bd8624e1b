"""Prices of GCP's GPU machines and of traffic between its zones, from dated snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sailor.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from sailor.interfaces import PriceSource


@hookimpl
def sailor_price_sources() -> Iterable[PriceSource]:
    """Return the source `gcp`."""
    from sailor_gcp_pricing.prices import GcpPrices

    return (GcpPrices(),)


@hookimpl
def sailor_commands(group: click.Group) -> None:
    """Add `sailor gcp`."""
    from sailor_gcp_pricing.commands import gcp

    group.add_command(gcp)
