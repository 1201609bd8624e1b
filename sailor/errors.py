"""Every error a user can cause: one sentence, where it is, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class SailorError(Exception):
    """Base of all errors shown to people as one sentence.

    `where` is a place (file:line, or a field of a record); `hint` says what would be right.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.hint}" if self.hint else text


class InputError(SailorError):
    """A job, plan, price or profile file says something that can't be right."""


class UnknownNameError(InputError):
    """A name that nothing in the catalogue or registry carries; suggests the nearest ones."""

    def __init__(
        self, what: str, name: str, known: Iterable[str], *, where: str | None = None
    ) -> None:
        names = sorted(known)
        super().__init__(f"unknown {what} {name!r}", where=where, hint=did_you_mean(name, names))


class PluginError(SailorError):
    """A plug-in or backend failed."""

    exit_code: ClassVar[int] = 6


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest known names, or the whole list when none is near."""
    names = list(known)
    folded = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), list(folded), n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(folded[key]) for key in near) + "?"
    if not names:
        return "none is defined"
    shown = ", ".join(names[:12])
    return f"known: {shown}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")
