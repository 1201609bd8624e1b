"""Where text goes: data to stdout, everything for people to stderr."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sailor.errors import InputError


class ReaderGoneError(Exception):
    """Whoever read stdout has stopped, as `head` does. (click would end with 1, a bug's code.)"""


def data(text: str) -> None:
    """Write data to stdout."""
    try:
        click.echo(printable(text), nl=not text.endswith("\n"))
    except BrokenPipeError:
        raise ReaderGoneError from None


def note(sentence: str) -> None:
    """Write one sentence for people to stderr."""
    click.echo(f"sailor: {sentence}", err=True)


def printable(text: str) -> str:
    """Return text that stdout's encoding can hold: what it can't is written as an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def on_terminal() -> bool:
    """Return whether stderr is a terminal, so that progress may be drawn there."""
    return sys.stderr.isatty()


def check_writable(path: Path | None) -> None:
    """Refuse an output file that can't be written, before any work is done for it."""
    if path is None:
        return
    if path.is_dir():
        raise InputError("is a folder", where=str(path), hint="name a file in it")
    if not path.absolute().parent.is_dir():
        raise InputError(
            "the folder of this file does not exist", where=str(path), hint="create it first"
        )


def deliver(text: str, out: Path | None) -> None:
    """Write data to a file, whole or not at all, or to stdout."""
    if out is None:
        data(text)
        return
    from sailor.model.files import write_atomic

    write_atomic(out, text)
