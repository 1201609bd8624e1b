"""Plain text in columns: no more than 100 wide, no colour, nothing that a log can't hold."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
MAX_LISTED = 12
_INDENT = "  "


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


def listing(sentences: Sequence[str], *, most: int | None = MAX_LISTED) -> str:
    """Return sentences as a list, wrapped; after `most` of them only how many more there are."""
    kept = list(sentences if most is None or len(sentences) <= most + 1 else sentences[:most])
    if len(kept) < len(sentences):
        kept.append(f"and {len(sentences) - len(kept)} more (--format json has them all)")
    return "\n".join(wrapped(sentence, bullet="- ") for sentence in kept)


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
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - _exponent(value))
    return f"{value:.{places}f}"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def share(part: float, whole: float) -> str:
    """Return a part in percent of the whole."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else ""


def gib(num_bytes: float) -> str:
    """Return bytes as GiB with two decimals."""
    return f"{num_bytes / 2**30:.2f}"
