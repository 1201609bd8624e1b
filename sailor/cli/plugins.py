"""`sailor plugins`: what is loaded, from where, and what is broken."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sailor.cli.options import table_or_json
from sailor.cli.output import data
from sailor.cli.session import Session

if TYPE_CHECKING:
    from sailor.registry import Registry


@click.command()
@table_or_json
@click.pass_obj
def command(session: Session, format_: str) -> None:
    """Show what is loaded, from where, and what is broken."""
    from sailor.registry import Registry
    from sailor.report.layout import blocks, listing, section, table

    # Not the session's registry: here a broken plug-in is the answer, not a reason to stop.
    registry = Registry.load(files=session.plugin_files)
    plugins = registry.plugins(check=True)
    provided = names(registry)
    if format_ == "json":
        rows = {"plugins": [asdict(info) for info in plugins], "provided": provided}
        data(json.dumps(rows, indent=2) + "\n")
        return
    shown = table(
        ("plug-in", "version", "from", "state"),
        [
            (info.name, info.version or "", info.origin, "broken" if info.error else "ok")
            for info in plugins
        ],
        left="llll",
    )
    faults = [f"{info.name}: {info.error}" for info in plugins if info.error]
    kinds = table(
        ("kind", "names"),
        [(kind, ", ".join(names) or "none") for kind, names in provided.items()],
        left="ll",
    )
    data(
        blocks(
            section("Plug-ins", shown),
            section("Broken", listing(faults)),
            section("Names to use", kinds),
        )
    )


def names(registry: Registry) -> dict[str, list[str]]:
    """Return what can be asked for by name, by kind, in the words of job files and options."""
    return {
        "--planner": sorted(registry.planners),
        "sources.prices": sorted(registry.price_sources),
        "sources.profiles": sorted(registry.profile_sources),
        "--profiler": sorted(registry.profilers),
        "sources.network": sorted(registry.network_models),
        "sources.availability": sorted(registry.availability_sources),
        "--format": sorted(registry.report_sinks),
        "--backend": sorted(registry.backends),
        "cost terms": sorted(term.name for term in registry.cost_terms()),
    }
