"""The metrics of a run as CSV: written by rank 0 line by line, read by the launcher."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from sailor_megatron.engine import StepReport


@dataclass(frozen=True)
class StepMetrics:
    """One iteration. Loss in nats a token; seconds as rank 0 sees them."""

    step: int
    loss: float
    gradient_norm: float
    tokens_per_s: float
    iteration_s: float
    pipeline_s: float
    sync_s: float
    update_s: float
    skipped: int

    @classmethod
    def of(cls, report: StepReport, tokens: int) -> Self:
        """Return the metrics of an iteration that processed so many tokens."""
        return cls(
            step=report.iteration,
            loss=report.loss,
            gradient_norm=report.gradient_norm,
            tokens_per_s=tokens / report.total_s,
            iteration_s=report.total_s,
            pipeline_s=report.pipeline_s,
            sync_s=report.sync_s,
            update_s=report.update_s,
            skipped=int(report.skipped),
        )


_NAMES = [field.name for field in fields(StepMetrics)]


class MetricsWriter:
    """Writes whole lines, so that a reader never sees half an iteration."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._write(_NAMES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, metrics: StepMetrics) -> None:
        """Write one iteration."""
        self._write([repr(getattr(metrics, name)) for name in _NAMES])

    def _write(self, values: list[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(values)
        self._file.write(line.getvalue())
        self._file.flush()


class MetricsReader:
    """Reads what has been added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = ""

    def new(self) -> Iterator[StepMetrics]:
        """Yield the iterations that have been written since the last call."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", newline="") as file:
            file.seek(self._position)
            text = self._rest + file.read()
            self._position = file.tell()
        *lines, self._rest = text.split("\n")
        for row in csv.reader(lines):
            if row != _NAMES:
                yield _parsed(row)


def _parsed(row: list[str]) -> StepMetrics:
    whole = {"step", "skipped"}
    values = {name: int(text) if name in whole else float(text)
              for name, text in zip(_NAMES, row, strict=True)}  # fmt: skip
    return StepMetrics(**values)  # type: ignore[arg-type]
