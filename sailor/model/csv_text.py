"""CSV tables with a header line: rows by column name, each knowing the line it stands on."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from sailor.errors import InputError, did_you_mean
from sailor.model.document import one_line, shown


@dataclass(frozen=True)
class CsvRow:
    """One line of a table; `place` is `file:line`, for messages."""

    place: str
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a value without surrounding blanks; "" where the table lacks the column."""
        return self.values.get(column, "").strip()

    def number(self, column: str) -> float | None:
        """Return a finite number, or None where the field is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{column} should be a number, not {shown(text)}")
        return number

    def day(self, column: str) -> date:
        """Return a date written as 2026-11-01."""
        return read_day(self.text(column), column, self.place)

    def error(self, message: str, *, hint: str | None = None) -> InputError:
        """Return an error placed at this row."""
        return InputError(one_line(message), where=self.place, hint=hint)


@dataclass(frozen=True)
class CsvTable:
    """A table and the notes before its header: lines of the form `# key: value`."""

    name: str
    notes: Mapping[str, str]
    rows: Sequence[CsvRow]


def read_csv(text: str, name: str, required: Sequence[str], *, hint: str | None = None) -> CsvTable:
    """Return the table in a text; `hint` says what to do when a required column is missing."""
    lines = io.StringIO(text).readlines()
    notes: dict[str, str] = {}
    skipped = 0
    while skipped < len(lines) and lines[skipped].startswith("#"):
        key, colon, value = lines[skipped][1:].partition(":")
        if colon:
            notes[key.strip()] = value.strip()
        skipped += 1
    reader = csv.reader(lines[skipped:], strict=True)
    rows: list[CsvRow] = []
    header: list[str] | None = None
    try:
        for fields in reader:
            place = f"{name}:{reader.line_num + skipped}"
            if header is None:
                header = [field.strip() for field in fields]
                _check_header(header, required, place, hint)
            elif any(field.strip() for field in fields):
                rows.append(CsvRow(place, _by_column(header, fields, place)))
    except csv.Error as error:
        raise InputError(
            f"this is not a CSV table: {error}",
            where=f"{name}:{reader.line_num + skipped}",
            hint="check the quotes there",
        ) from None
    if header is None:
        raise InputError("the file has no table", where=name, hint=hint)
    return CsvTable(name, notes, rows)


def read_day(text: str, what: str, place: str) -> date:
    """Return a date written as 2026-11-01."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{what} should be a date such as 2026-11-01, not {shown(text)}", where=place
        ) from None


def _check_header(
    header: Sequence[str], required: Sequence[str], place: str, hint: str | None
) -> None:
    missing = [column for column in required if column not in header]
    if missing:
        near = did_you_mean(missing[0], header)
        raise InputError(
            f"the table has no column {missing[0]!r}",
            where=place,
            hint=hint or (near if near.startswith("did you mean") else None),
        )
    for index, column in enumerate(header):
        if column in header[:index]:
            raise InputError(
                f"the column {shown(column)} is there twice", where=place, hint="keep one of them"
            )


def _by_column(header: Sequence[str], fields: Sequence[str], place: str) -> Mapping[str, str]:
    if len(fields) != len(header):
        raise InputError(
            f"{len(fields)} fields in a table of {len(header)} columns",
            where=place,
            hint="put texts that hold commas in double quotes",
        )
    return dict(zip(header, fields, strict=True))
