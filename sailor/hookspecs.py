"""Every hook that sailor calls. All hooks register; none is called while a search runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import click

    from sailor.interfaces import (
        AvailabilitySource,
        Backend,
        CostTermSource,
        NetworkModel,
        Planner,
        PriceSource,
        Profiler,
        ProfileSource,
        ReportSink,
    )

PROJECT = "sailor"  # also the entry-point group
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def sailor_price_sources() -> Iterable[PriceSource]:  # type: ignore[empty-body]
    """Price sources, chosen in a job by `sources.prices: NAME`."""


@hookspec
def sailor_profile_sources() -> Iterable[ProfileSource]:  # type: ignore[empty-body]
    """Layer profile sources, chosen by `sources.profiles: NAME`."""


@hookspec
def sailor_profilers() -> Iterable[Profiler]:  # type: ignore[empty-body]
    """Profilers, chosen by `sailor profile measure --profiler NAME`."""


@hookspec
def sailor_network_models() -> Iterable[NetworkModel]:  # type: ignore[empty-body]
    """Link models, chosen by `sources.network: NAME`."""


@hookspec
def sailor_availability_sources() -> Iterable[AvailabilitySource]:  # type: ignore[empty-body]
    """Quota and capacity sources, chosen by `sources.availability: NAME`."""


@hookspec
def sailor_planners() -> Iterable[Planner]:  # type: ignore[empty-body]
    """Planners, chosen by `--planner NAME`."""


@hookspec
def sailor_cost_terms() -> Iterable[CostTermSource]:  # type: ignore[empty-body]
    """Extra cost terms, reported beside compute and egress."""


@hookspec
def sailor_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Training runtimes, chosen by `--backend NAME`."""


@hookspec
def sailor_report_sinks() -> Iterable[ReportSink]:  # type: ignore[empty-body]
    """Report writers, chosen by `--format NAME`."""


@hookspec
def sailor_commands(group: click.Group) -> None:
    """Add commands to the `sailor` group."""
