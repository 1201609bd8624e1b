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


def _fraction(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    number, percent = (value[:-1], 0.01) if value.endswith("%") else (value, 1.0)
    try:
        found = float(number) * percent
    except ValueError:
        found = math.nan
    if not 0 <= found < 1:  # also false for what is no number
        raise click.BadParameter(f"{value!r} is neither a percentage nor a number from 0 to 1")
    return found


OUT_FILE = click.Path(path_type=Path)


def search_options(*, planner: str, planner_note: str = "") -> Callable[[_F], _F]:
    """Return a decorator that adds the options that say what to look for, and how.

    `planner` is the default one; `planner_note` says why, where that isn't plain.
    """

    def decorate(function: _F) -> _F:
        for option in reversed(_search_options(planner, planner_note)):
            function = option(function)
        return function

    return decorate


def _search_options(planner: str, planner_note: str) -> tuple[Callable[[_F], _F], ...]:
    return (
        click.option(
            "--objective", type=click.Choice(OBJECTIVES), help="Instead of the job's objective."
        ),
        planner_option(planner, planner_note),
        *bound_options(),
        click.option(
            "--seed",
            type=click.IntRange(min=0, max=2**31 - 1),
            default=0,
            show_default=True,
            metavar="N",
            help="Seed of searches that use chance.",
        ),
        click.option(
            "--work-limit",
            type=float,
            callback=_positive,
            metavar="W",
            help="Stop after W counted units of work, one to three seconds each. With it one"
            " process searches, and gives the same answer on every machine.",
        ),
        click.option("--strict", is_flag=True, help="Refuse figures that are assumed, not known."),
        click.option(
            "--without-rule",
            "without_rules",
            multiple=True,
            metavar="NAME",
            help="Switch off one heuristic of the planner. May be given several times.",
        ),
    )


def processes_option(function: _F) -> _F:
    """Add `--processes`."""
    return click.option(
        "--processes",
        type=click.IntRange(min=1),
        metavar="N",
        help="Processes of a search that takes longer.  [default: one a core, four at most]",
    )(function)


def planner_option(default: str, more: str = "") -> Callable[[_F], _F]:
    """Return `--planner`."""
    return click.option(
        "--planner",
        default=default,
        show_default=True,
        metavar="NAME",
        help="The search; `sailor plugins` names them." + more,
    )


def bound_options() -> tuple[Callable[[_F], _F], Callable[[_F], _F]]:
    """Return `--time-limit` and `--gap`."""
    return (
        click.option(
            "--time-limit",
            type=float,
            callback=_positive,
            metavar="S",
            help="Stop searching after S seconds with the best plan so far.",
        ),
        click.option(
            "--gap",
            callback=_fraction,
            metavar="G",
            help="Stop when the plan is within G of the bound: 0.5% or 0.005.",
        ),
    )


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


probe_time_limit = click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Give up after S seconds.",
)
