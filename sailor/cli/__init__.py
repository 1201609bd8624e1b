"""The `sailor` command. Light to import: each verb loads what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command line with these arguments and return its exit code."""
    from sailor.cli.app import build
    from sailor.cli.endings import Ending
    from sailor.cli.session import Session

    session = Session()
    ending = Ending(session)
    with ending:
        code = build().main(list(arguments), prog_name="sailor", standalone_mode=False, obj=session)
        ending.code = code if isinstance(code, int) else 0
        sys.stdout.flush()
    return ending.code
