"""`sailor profile`: layer profiles."""

from __future__ import annotations

from pathlib import Path

import click

from sailor.cli.options import OUT_FILE
from sailor.cli.output import check_writable, note

SOURCES = ("sosp25",)


@click.group()
def command() -> None:
    """Layer profiles: import measured ones."""


@command.command("import", short_help="Import measured profiles of another project.")
@click.option("--from", "origin", type=click.Choice(SOURCES), required=True, help="Whose files.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=OUT_FILE, required=True, metavar="FILE", help="The store to write.")
def import_(origin: str, folder: Path, out: Path) -> None:
    """Import measured profiles of another project into a file of sailor's own format.

    sosp25: the layer times, memory and bandwidth files of the SOSP'25 artifact. A job names the
    written FILE by `sources: {profiles: {store: FILE}}`.
    """
    from sailor.profiling.sosp25 import import_sosp25

    del origin  # there is one so far, and click has refused others
    check_writable(out)
    store = import_sosp25(folder)
    store.save(out)
    for remark in store.remarks:
        note(remark)
    note(
        f"{len(store.profiles)} layer profiles, {len(store.footprints)} footprints and "
        f"{len(store.links)} links of {len(store.models)} models written to {out}"
    )
