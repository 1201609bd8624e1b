"""How a run ends: exit codes, and one sentence for whatever went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

import click

from sailor.cli.output import ReaderGoneError
from sailor.errors import SailorError

if TYPE_CHECKING:
    from sailor.cli.session import Session

PLAN_FOUND = 0
BAD_INPUT = 2
INFEASIBLE = 3
NO_PLAN = 4
SOME_JOBS_FAILED = 5
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


class Ending:
    """Turns whatever leaves a run into an exit code and one sentence on stderr.

    The outermost border of the program, so every exception is taken but SystemExit. An unexpected
    one ends with 1 (a bug) or 6 (a plug-in failed).
    """

    def __init__(self, session: Session) -> None:
        self.code = PLAN_FOUND
        self._session = session

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or isinstance(error, (SystemExit, GeneratorExit)):
            return False
        self.code = self._end(error)
        return True

    def _end(self, error: BaseException) -> int:
        if isinstance(error, (BrokenPipeError, ReaderGoneError)):
            # The reader has gone: what is left in the buffer must not be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        if self._session.debug:
            traceback.print_exception(error, file=sys.stderr)
        if isinstance(error, (KeyboardInterrupt, click.Abort)):
            _say("interrupted")
            return INTERRUPTED
        if isinstance(error, click.exceptions.Exit):
            return error.exit_code
        if isinstance(error, SailorError):
            _say(str(error))
            return error.exit_code
        if isinstance(error, click.ClickException):
            _say(_usage(error))
            return BAD_INPUT
        from sailor.batch.blame import blamed

        sentence, code = blamed(error)
        more = "" if self._session.debug else "; --debug shows the traceback"
        _say(sentence + more)
        return code


def _say(sentence: str) -> None:
    click.echo(f"sailor: {sentence}", err=True)


def _usage(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"no command is given\n\n{error.format_message()}"
    message = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else None
    if message[1:2].islower():
        message = f"{message[:1].lower()}{message[1:]}"
    return f"{message}; see `{command or 'sailor'} --help`"
