"""The report formats that ship with sailor."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sailor.interfaces import ReportSink
from sailor.model.result import Result
from sailor.report.rows import results_csv
from sailor.report.tables import results_text


class TableSink:
    """Tables for people."""

    name = "table"

    def write(self, results: Iterable[Result]) -> str:
        """Return the results as text."""
        return results_text(results)


class JsonSink:
    """The Result record itself; a list of them when there are several (or none)."""

    name = "json"

    def write(self, results: Iterable[Result]) -> str:
        """Return the results as JSON."""
        records = list(results)
        if len(records) == 1:
            return records[0].model_dump_json(indent=2) + "\n"
        return json.dumps([record.model_dump(mode="json") for record in records], indent=2) + "\n"


class CsvSink:
    """One row a result."""

    name = "csv"

    def write(self, results: Iterable[Result]) -> str:
        """Return the results as CSV with headings."""
        return results_csv(results)


def builtin_sinks() -> tuple[ReportSink, ...]:
    """Return `table`, `json` and `csv`."""
    return (TableSink(), JsonSink(), CsvSink())
