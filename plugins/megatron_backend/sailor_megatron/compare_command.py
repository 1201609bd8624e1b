"""The command `sailor compare-run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sailor_megatron.compare import Comparison, Row


@click.command("compare-run")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--own-profile",
    is_flag=True,
    help="Simulate with the times, bytes and links that the run measured (train --measure).",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="Text for people, or JSON.",
)
@click.pass_obj
def compare(session: Any, /, run: Path, own_profile: bool, format_: str) -> None:
    """Compare a run of `sailor train` with the simulator, part by part.

    RUN is the run's folder. Errors are simulated over measured: +10 % is too slow or too large by
    a tenth.
    """
    from sailor_megatron.compare import compare_run

    registry = session.registry() if session else None
    found = compare_run(run, own_profile=own_profile, registry=registry)
    click.echo(as_json(found) if format_ == "json" else as_table(found))


def as_json(found: Comparison) -> str:
    """Return a comparison as JSON."""
    rows = [
        {
            "what": row.what,
            "place": row.place,
            "unit": row.unit,
            "simulated": row.simulated,
            "measured": row.measured,
            "error_pct": row.error_pct,
        }
        for row in found.rows
    ]
    return json.dumps(
        {
            "schema_version": 1,
            "run": found.run,
            "simulated_with": found.simulated_with,
            "iterations": found.iterations,
            "rows": rows,
            "remarks": list(found.remarks),
        },
        indent=1,
    )


def as_table(found: Comparison) -> str:
    """Return a comparison as text: one line a row, remarks below."""
    lines = [("", "", "simulated", "measured", "error")]
    lines += [
        (row.what, row.place, _shown(row, row.simulated), _shown(row, row.measured), _error(row))
        for row in found.rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    text = [f"{found.run}, simulated with {found.simulated_with}"]
    for line in lines:
        names = [line[column].ljust(widths[column]) for column in range(2)]
        figures = [line[column].rjust(widths[column]) for column in range(2, 5)]
        text.append("  ".join((*names, *figures)).rstrip())
    return "\n".join([*text, *found.remarks])


def _shown(row: Row, value: float | None) -> str:
    if value is None:
        return "not known"
    if row.unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value * 1e3:.3f} ms"


def _error(row: Row) -> str:
    return "" if row.error_pct is None else f"{row.error_pct:+.0f} %"
