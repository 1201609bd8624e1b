"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])

OBJECTIVES = ("max_throughput", "min_cost")


def _positive(
    _ctx: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None and (not math.isfinite(value) or value <= 0):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0")
    return value


OUT_FILE = click.Path(path_type=Path)


def search_options(function: _F) -> _F:
    """Add the options that say what to look for, and how."""
    for option in reversed(
        (
            click.option(
                "--objective", type=click.Choice(OBJECTIVES), help="Instead of the job's objective."
            ),
            click.option(
                "--planner",
                default="dynamic",
                show_default=True,
                metavar="NAME",
                help="The search; `sailor plugins` names them.",
            ),
            click.option(
                "--time-limit",
                type=float,
                callback=_positive,
                metavar="S",
                help="Stop searching after S seconds with the best plan so far.",
            ),
            click.option(
                "--seed",
                type=click.IntRange(min=0, max=2**31 - 1),
                default=0,
                show_default=True,
                metavar="N",
                help="Seed of searches that use chance.",
            ),
            click.option(
                "--strict", is_flag=True, help="Refuse figures that are assumed, not known."
            ),
            click.option(
                "--without-rule",
                "without_rules",
                multiple=True,
                metavar="NAME",
                help="Switch off one heuristic of the planner. May be given several times.",
            ),
        )
    ):
        function = option(function)
    return function


def table_or_json(function: _F) -> _F:
    """Add `--format table|json`."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice(("table", "json")),
        default="table",
        show_default=True,
        help="Text for people, or JSON.",
    )(function)
