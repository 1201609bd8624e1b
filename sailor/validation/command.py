"""The command `sailor validate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import click

from sailor.validation.page import as_markdown
from sailor.validation.report import as_json, as_text
from sailor.validation.score import ValidationReport
from sailor.validation.score import validate as score_tables


def excerpt_report() -> ValidationReport:
    """Return the scores of the public rows that ship with sailor."""
    with as_file(files("sailor.validation").joinpath("data", "excerpt.csv")) as path:
        return score_tables([path])


def left_out() -> Sequence[Sequence[str]]:
    """Return the recorded errors of tables that took no part in a fit: table, mean, bias."""
    text = files("sailor.validation").joinpath("data", "left_out.json").read_text("utf-8")
    lines: list[list[str]] = json.loads(text)["lines"]
    return lines


@click.command("validate")
@click.argument("tables", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--rows", is_flag=True, help="Print every row as well.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the scores as a page of Markdown.",
)
def validate(tables: tuple[Path, ...], rows: bool, form: str, page: Path | None) -> None:
    """Compare the simulator with measurements: CSV tables, or folders of them.

    Without TABLES the excerpt of public figures that ships with sailor is used.
    """
    report = score_tables(tables) if tables else excerpt_report()
    if page is not None:
        page.write_text(as_markdown(report, left_out()), encoding="utf-8")
    text = as_json(report, rows=rows) if form == "json" else as_text(report, rows=rows)
    click.echo(text)
