"""A document: what a file or a mapping says, and on which line it says it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sailor.errors import InputError, SailorError

Step = str | int
DocumentPath = tuple[Step, ...]  # keys and list positions from the top: ("pool", 0, "zone")

MAX_TEXT = 80  # characters of a user's value that a message repeats
MAX_SENTENCE = 1000
MAX_DEPTH = 64
MAX_INTEGER = 2**63 - 1


def no_lines(path: DocumentPath) -> int | None:
    """Know no line: the data did not come from a file."""
    del path
    return None


@dataclass(frozen=True)
class Document:
    """Plain data (dicts, lists, scalars) with the place of every key.

    `name` is how messages call the file; `line_of` gives the line of a key or list entry, counted
    from 1, or None. It may be slow: it is asked only to place an error. Paths in the data are
    relative to `folder`.
    """

    name: str
    data: Mapping[str, object]
    line_of: Callable[[DocumentPath], int | None] = no_lines
    folder: Path = field(default_factory=Path.cwd)

    def place(self, path: DocumentPath = ()) -> str:
        """Return `file:line` of the nearest enclosing key that has a line."""
        for length in range(len(path), 0, -1):
            line = self.line_of(path[:length])
            if line is not None:
                return f"{self.name}:{line}" if self.name else f"line {line}"
        return self.name

    def error(
        self, message: str, path: DocumentPath = (), *, hint: str | None = None
    ) -> InputError:
        """Return an error placed at `path`."""
        return InputError(one_line(message), where=self.place(path) or None, hint=hint)


_FIELD = re.compile(r"[a-z_]+(\.[a-z_]+|\[\d+\])*")


def relocated(error: SailorError, document: Document, keys: Collection[str]) -> SailorError:
    """Return the error with file and line, where its place is a field such as `pool[1].zone`.

    `keys` are the top-level fields that a place may start with; other places stay as they are,
    and an error without a place gets the document's name.
    """
    if error.where is None:
        error.where = document.name or None
        return error
    steps = re.findall(r"[a-z_]+|\d+", error.where)
    if not _FIELD.fullmatch(error.where) or steps[0] not in keys:
        return error
    path = tuple(int(step) if step.isdigit() else step for step in steps)
    place = document.place(path)
    error.where = f"{place}: {error.where}" if place else error.where
    return error


def dotted(path: DocumentPath) -> str:
    """Return a path as people write it: `pool[0].zone`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            key = one_line(step if len(step) <= MAX_TEXT else step[:MAX_TEXT] + "...")
            text += f".{key}" if text else key
    return text


def shown(value: object) -> str:
    """Return a user's value as a message repeats it: short, on one line, printable."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _clipped(repr(value[:MAX_TEXT] + ("..." if len(value) > MAX_TEXT else "")))
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "a number of more than 18 digits"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "a list" if value else "an empty list"
    return _clipped(repr(value))


def _clipped(text: str) -> str:
    return one_line(text if len(text) <= 2 * MAX_TEXT else text[: 2 * MAX_TEXT] + "...")


def one_line(text: str) -> str:
    """Return text without line breaks, control characters and lone surrogates."""
    clipped = text if len(text) <= MAX_SENTENCE else text[:MAX_SENTENCE] + "..."
    if clipped.isprintable():
        return clipped
    return "".join(
        char if char.isprintable() else " " if char in "\n\t" else ascii(char)[1:-1]
        for char in clipped
    )


def is_odd_text(text: str) -> bool:
    """Return whether a string holds what no name or note needs: control codes, surrogates."""
    return not text.isprintable() and any(
        (ord(char) < 32 and char not in "\n\t\r")
        or 127 <= ord(char) < 160
        or 0xD800 <= ord(char) < 0xE000
        for char in text
    )
