"""The command `sailor gcp refresh`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def gcp() -> None:
    """Prices of Google Cloud."""


@gcp.command()
@click.option(
    "--from", "path", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="A SkyPilot catalogue (gcp/vms.csv) or a gcosts pricing.yml.",
)  # fmt: skip
@click.option(
    "--format", "kind", type=click.Choice(["gcosts", "skypilot"]),
    help="What FILE is. Without it, its suffix tells: .csv is skypilot, .yml is gcosts.",
)  # fmt: skip
@click.option(
    "--as-of", required=True, metavar="DATE", help="The day of the prices, such as 2026-11-01."
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="SNAPSHOT",
    help="The file to write.",
)  # fmt: skip
def refresh(path: Path, kind: str | None, as_of: str, out: Path) -> None:
    """Make a price snapshot from a public price list.

    A job uses it with `sources: {prices: {gcp: SNAPSHOT}}`. No network is used.
    """
    # Imported here: the group is built for every `sailor --help`.
    from sailor_gcp_pricing.refresh import write_snapshot

    click.echo(write_snapshot(path, kind, as_of, out))
