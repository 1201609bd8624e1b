"""Everything that ships with sailor, registered through the same hooks as a stranger's plug-in.

Imports stand inside the hooks: asking for a price source loads no planner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sailor.hookspecs import hookimpl

if TYPE_CHECKING:
    from sailor.interfaces import (
        AvailabilitySource,
        NetworkModel,
        Planner,
        PriceSource,
        Profiler,
        ProfileSource,
        ReportSink,
    )


@hookimpl
def sailor_price_sources() -> Iterable[PriceSource]:
    """Return `file` (a price list)."""
    from sailor.sources.price_file import FilePrices

    return (FilePrices(),)


@hookimpl
def sailor_profile_sources() -> Iterable[ProfileSource]:
    """Return `embedded` (measured figures), `analytic` (formulas) and `store` (a file)."""
    from sailor.sources.analytic import AnalyticProfiles
    from sailor.sources.embedded import EmbeddedProfiles, StoreProfiles

    return (EmbeddedProfiles(), AnalyticProfiles(), StoreProfiles())


@hookimpl
def sailor_profilers() -> Iterable[Profiler]:
    """Return `torch` (times on this machine's device) and `counted` (bytes, from shapes)."""
    from sailor.profiling.profilers import CountedProfiler, TorchProfiler

    return (TorchProfiler(), CountedProfiler())


@hookimpl
def sailor_network_models() -> Iterable[NetworkModel]:
    """Return `measured` (figures that ship), `zones` (by distance) and `store` (a file)."""
    from sailor.sources.network_measured import MeasuredNetwork, StoreNetwork
    from sailor.sources.network_zones import ZonesNetwork

    return (MeasuredNetwork(), ZonesNetwork(), StoreNetwork())


@hookimpl
def sailor_availability_sources() -> Iterable[AvailabilitySource]:
    """Return `static` (the job's pool) and `file` (a quota file)."""
    from sailor.sources.availability import FileAvailability, StaticAvailability

    return (StaticAvailability(), FileAvailability())


@hookimpl
def sailor_planners() -> Iterable[Planner]:
    """Return `dynamic`, `cpsat` and `auto` with a bound, `exhaustive` for tiny jobs."""
    from sailor.solve.auto import AutoPlanner
    from sailor.solve.cpsat import CpSatPlanner
    from sailor.solve.dynamic import DynamicPlanner
    from sailor.solve.exhaustive import ExhaustivePlanner

    return (DynamicPlanner(), CpSatPlanner(), AutoPlanner(), ExhaustivePlanner())


@hookimpl
def sailor_report_sinks() -> Iterable[ReportSink]:
    """Return `table`, `json` and `csv`."""
    from sailor.report.sinks import builtin_sinks

    return builtin_sinks()
