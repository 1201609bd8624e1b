"""Write docs/cli.md from the commands themselves: `python docs/cli_page.py > docs/cli.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import click

from sailor.cli.app import build
from sailor.cli.session import Session

INTRO = """# Command line

Written from the commands by `docs/cli_page.py`; a test keeps it current. stdout carries data,
stderr what is for people. `-h` or `--help` explains any command.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([INTRO, *_sections(build(), "sailor", None)])


def _sections(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=path.split()[-1], parent=parent, obj=Session())
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    named = " ".join([path, *(_named(argument) for argument in arguments)])
    yield f"## `{named}`\n"
    for text in (command.help, command.epilog):
        if text:
            yield f"{_paragraphs(text)}\n"
    rows = [_row(p) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"
    if isinstance(command, click.Group):
        command.get_help(context)  # the top group asks plug-ins for commands when it needs them
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _sections(found, f"{path} {name}", context)


def _named(argument: click.Argument) -> str:
    choices = _choices(argument)
    name = choices or argument.metavar or (argument.name or "").upper()
    return f"{name}..." if argument.nargs == -1 and not name.endswith("...") else name


def _row(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _choices(option) or 'VALUE'}"
    flags = ", ".join(option.opts)
    told = " ".join((option.help or "").split())
    if option.required:
        told += " Required."
    elif isinstance(option.show_default, str):
        told += f" Default: {option.show_default}."
    elif option.show_default and option.default not in (None, ()):
        told += f" Default: {option.default}."
    return f"| `{flags}{value.replace('|', chr(92) + '|')}` | {told} |"


def _choices(parameter: click.Parameter) -> str:
    if not isinstance(parameter.type, click.Choice):
        return ""
    return "|".join(str(choice) for choice in parameter.type.choices)


def _paragraphs(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", inspect.cleandoc(text).replace("\b\n", ""))


if __name__ == "__main__":
    sys.stdout.write(page())
