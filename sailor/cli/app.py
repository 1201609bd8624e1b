"""The command group: verbs are imported when they run, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from sailor.cli.output import note
from sailor.cli.session import Session
from sailor.errors import SailorError

# Verb: module and what help says about it. The text stands here so that help imports no verb.
VERBS: Mapping[str, tuple[str, str]] = {
    "plan": ("plan", "Plan one job: what to rent, how to split the model, what it takes."),
    "pareto": ("pareto", "Show what speed costs: plans from the cheapest to the fastest."),
    "simulate": ("simulate", "Estimate a given plan on a job's pool, part by part."),
    "batch": ("batch", "Plan many jobs: one result each, resumable."),
    "validate": ("validate", "Compare the simulator with measurements, row by row."),
    "catalog": ("catalog", "Show models, hardware, zones, clusters and prices."),
    "profile": ("profile", "Layer profiles, links, clusters: measure or import them."),
    "plugins": ("plugins", "Show what is loaded, from where, and what is broken."),
    "schema": ("schema", "Print the JSON Schema of a job, plan or result file."),
    "doctor": ("doctor", "Print versions and devices, to paste into a bug report."),
}


class VerbGroup(click.Group):
    """The verbs of sailor and, after them, the commands of plug-ins."""

    _plugins_added = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of a user's day, then the plug-ins' commands."""
        return [*VERBS, *sorted(name for name in self.commands if name not in VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, importing its module; plug-ins are asked only for other names."""
        if cmd_name in VERBS:
            return verb(cmd_name)
        self._add_plugins(ctx)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for `--help`, without importing the verbs."""
        try:
            self._add_plugins(ctx)
        except SailorError as error:  # help is shown all the same
            note(str(error))
        rows = [(name, text) for name, (_, text) in VERBS.items()]
        added = [
            (name, command.get_short_help_str(70))
            for name, command in sorted(self.commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if added:
            with formatter.section("Commands of plug-ins"):
                formatter.write_dl(added)

    def _add_plugins(self, ctx: click.Context) -> None:
        session = ctx.find_object(Session)
        if session is not None and not self._plugins_added:
            self._plugins_added = True
            session.registry().add_commands(self)


def verb(name: str) -> click.Command:
    """Return one of sailor's own commands."""
    module, _ = VERBS[name]
    command: click.Command = import_module(f"sailor.cli.{module}").command
    return command


def _set_plugins(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    session = ctx.find_object(Session)
    if session is not None:
        session.plugin_files = tuple(value)


def _set_debug(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    session = ctx.find_object(Session)
    if session is not None:
        session.debug = bool(value)


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"sailor {version('sailor-planner')}")
        ctx.exit()


_EPILOG = (
    "Exit codes: 0 a plan was found; 1 a bug; 2 bad input or usage; 3 proven infeasible; 4 limit "
    "reached without a plan; 5 some jobs of a batch failed; 6 a plug-in or backend failed; 130 "
    "interrupted without a plan."
)


def build() -> click.Group:
    """Return the command group, new for each run: plug-ins add to it."""
    return VerbGroup(
        "sailor",
        help="Plan, simulate and run the training of large models over mixed pools of GPUs.",
        epilog=_EPILOG,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        params=[
            click.Option(
                ["--plugin"],
                type=click.Path(path_type=Path),
                multiple=True,
                metavar="FILE.py",
                is_eager=True,
                expose_value=False,
                callback=_set_plugins,
                help="Load one plug-in from a file. May be given several times.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_set_debug,
                help="Show tracebacks.",
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                callback=_show_version,
                help="Print the version and exit.",
            ),
        ],
    )
