"""Plain text in columns: no more than 100 wide, no colour, nothing that a log can't hold."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

WIDTH = 100
MAX_LISTED = 12
MAX_NOTE = 180  # characters of one note
MAX_IN_ROW = 16  # characters of a text that is repeated in each row
_INDENT = "  "
_GAP = "      "


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: str = "") -> str:
    """Return rows in columns under headings, numbers to the right.

    `left` names the columns (by their first letters in order: "l" or "r") that hold text.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headings))
    sides = left.ljust(len(headings), "r")
    for heading, side in zip(headings, sides, strict=True):
        shown.add_column(Text(heading), justify="left" if side == "l" else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=WIDTH - len(_INDENT),
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    console.print(shown)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(_INDENT + line if line else "" for line in lines)


def section(title: str, body: str) -> str:
    """Return a titled block; empty when there is nothing in it."""
    return f"{title}\n{body}" if body else ""


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Return one line a row, in columns, however wide: what holds paths is not folded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        _INDENT
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


class Footnotes:
    """Long texts that many rows share: a number in the row, the text once below the table."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def mark(self, text: str) -> str:
        """Return the number of a text, in brackets; a short text stands for itself."""
        if len(text) <= MAX_IN_ROW:
            return text
        return f"[{self._texts.setdefault(text, len(self._texts) + 1)}]"

    def under(self, body: str) -> str:
        """Return a table with the texts below it."""
        notes = [wrapped(text, bullet=f"[{n}] ") for text, n in self._texts.items()]
        return "\n".join((body, *notes))


def beside(left: str, right: str) -> str:
    """Return two blocks side by side where both fit, otherwise one below the other."""
    pairs = list(zip_longest(left.splitlines(), right.splitlines(), fillvalue=""))
    at = max((len(line) for line, _ in pairs), default=0) + len(_GAP)
    if at + max((len(line) for _, line in pairs), default=0) > WIDTH:
        return f"{left}\n\n{right}"
    return "\n".join(f"{first:<{at}}{second}".rstrip() for first, second in pairs)


def listing(sentences: Sequence[str]) -> str:
    """Return sentences as a list, wrapped, all of them in full."""
    return "\n".join(wrapped(sentence, bullet="- ") for sentence in sentences)


def digest(sentences: Sequence[str]) -> str:
    """Return the start of a list that may be long: the first sentences, two lines of each."""
    kept = list(sentences if len(sentences) <= MAX_LISTED + 1 else sentences[:MAX_LISTED])
    short = [text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 3] + "..." for text in kept]
    if len(kept) < len(sentences):
        short.append(f"and {len(sentences) - len(kept)} more")
    if short != list(sentences):
        short[-1] += " (--format json has all of it)"
    return listing(short)


def wrapped(sentence: str, *, bullet: str = "") -> str:
    """Return one sentence, wrapped and indented."""
    return textwrap.fill(
        sentence,
        WIDTH,
        initial_indent=_INDENT + bullet,
        subsequent_indent=_INDENT + " " * len(bullet),
        break_on_hyphens=False,
    )


def blocks(*parts: str) -> str:
    """Return the parts that are not empty, an empty line between them, one newline at the end."""
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits: 0.0123, 12.3, 1,234,000."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    if abs(rounded) >= 10**digits:
        return f"{value:,.0f}"
    if abs(rounded) < 1e-4:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - _exponent(rounded))
    return f"{rounded:.{places}f}"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def share(part: float, whole: float) -> str:
    """Return a part in percent of the whole."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else ""


def gib(num_bytes: float) -> str:
    """Return bytes as GiB with two decimals."""
    return f"{num_bytes / 2**30:.2f}"
