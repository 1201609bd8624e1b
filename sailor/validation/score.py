"""Errors of rows and of groups: the simulator's figures against the measured ones."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sailor.validation.families import draft_of
from sailor.validation.fields import Fields, Refused, read_table
from sailor.validation.simulate import Prediction, predict
from sailor.validation.subject import Subject, subject_of


@dataclass(frozen=True)
class RowScore:
    """One row: measured and predicted, or the reason why there is no prediction."""

    fields: Fields
    subject: Subject | None = None
    prediction: Prediction | None = None
    refused: str | None = None

    @property
    def time_error_pct(self) -> float | None:
        """Return predicted over measured seconds, less one, in percent."""
        if not self.subject or not self.prediction:
            return None
        return _error(self.prediction.seconds, self.subject.measured_s)

    @property
    def memory_error_pct(self) -> float | None:
        """Return predicted over measured bytes, less one, in percent."""
        if not self.subject or not self.prediction:
            return None
        return _error(self.prediction.memory_bytes, self.subject.measured_bytes)

    def part_error_pct(self, part: str) -> float | None:
        """Return the error of states or activations where the source prints them."""
        if not self.subject or not self.prediction:
            return None
        return _error(self.prediction.parts_bytes.get(part), self.subject.parts.get(part))

    @property
    def above_bound(self) -> bool:
        """Return whether the measured peak lies above the simulator's upper bound."""
        if not self.subject or not self.prediction or self.prediction.bound_bytes is None:
            return False
        measured = self.subject.measured_bytes
        return measured is not None and measured > self.prediction.bound_bytes


@dataclass(frozen=True)
class Errors:
    """Errors of one figure over a group, in percent."""

    count: int
    mean_abs_pct: float
    median_abs_pct: float
    bias_pct: float
    worst_pct: float
    worst_row: str


@dataclass(frozen=True)
class GroupScore:
    """One group of rows: usually a file."""

    name: str
    rows: Sequence[RowScore]

    @property
    def used(self) -> int:
        """Return how many rows were scored or judged."""
        return sum(row.prediction is not None for row in self.rows)

    @property
    def refused(self) -> Counter[str]:
        """Return the reasons of refused rows and how often each."""
        return Counter(row.refused for row in self.rows if row.refused)

    @property
    def time(self) -> Errors | None:
        """Return the errors of iteration times."""
        return _errors(self.rows, lambda row: row.time_error_pct)

    @property
    def memory(self) -> Errors | None:
        """Return the errors of peak memory."""
        return _errors(self.rows, lambda row: row.memory_error_pct)

    def part(self, part: str) -> Errors | None:
        """Return the errors of "states" or "activation", where printed."""
        return _errors(self.rows, lambda row: row.part_error_pct(part))

    @property
    def above_bound(self) -> int:
        """Return the rows whose measured peak lies above the upper bound."""
        return sum(row.above_bound for row in self.rows)

    @property
    def out_of_memory(self) -> tuple[int, int]:
        """Return the runs that ended for want of memory: those foreseen, and all."""
        judged = [row for row in self.rows if row.subject and row.subject.oom and row.prediction]
        caught = sum(row.prediction is not None and not row.prediction.fits for row in judged)
        return caught, len(judged)


@dataclass(frozen=True)
class ValidationReport:
    """The scores of all tables; rows that measured nothing are counted, not refused."""

    groups: Sequence[GroupScore]
    without_figure: int = 0
    sources: Sequence[str] = field(default_factory=tuple)

    @property
    def refused_pct(self) -> float:
        """Return the refused share of all rows with a figure, in percent."""
        rows = sum(len(group.rows) for group in self.groups)
        refused = sum(group.refused.total() for group in self.groups)
        return 100 * refused / rows if rows else 0.0


def validate(paths: Iterable[Path]) -> ValidationReport:
    """Return the scores of truth tables: CSV files, or folders that hold some."""
    groups: dict[str, list[RowScore]] = {}
    without = 0
    files = [file for path in paths for file in _files(path)]
    for file in files:
        for fields in read_table(file):
            if not fields.has_figure:
                without += 1
                continue
            groups.setdefault(fields.group, []).append(score_row(fields))
    scores = [GroupScore(name, rows) for name, rows in groups.items()]
    return ValidationReport(scores, without, tuple(file.name for file in files))


def score_row(fields: Fields) -> RowScore:
    """Return the score of one row."""
    try:
        fields.check_sizes()
        draft, _ = draft_of(fields)
        subject = subject_of(fields, draft)
    except Refused as refusal:
        return RowScore(fields, refused=str(refusal))
    measured = (subject.measured_s, subject.measured_bytes, subject.parts or None)
    if not subject.oom and all(figure is None for figure in measured):
        return RowScore(fields, refused="its figure can't be turned into a time or a memory")
    return RowScore(fields, subject, predict(subject))


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return (path,)
    return [file for file in sorted(path.glob("*.csv")) if "measured_iter_s" in _header(file)]


def _header(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return next((line for line in lines if not line.startswith("#")), "")


def _error(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    return 100 * (predicted / measured - 1)


def _errors(rows: Sequence[RowScore], figure: Callable[[RowScore], float | None]) -> Errors | None:
    found = [(error, row) for row in rows if (error := figure(row)) is not None]
    if not found:
        return None
    sizes = [abs(error) for error, _ in found]
    worst, row = max(found, key=lambda pair: abs(pair[0]))
    return Errors(
        count=len(found),
        mean_abs_pct=statistics.fmean(sizes),
        median_abs_pct=statistics.median(sizes),
        bias_pct=statistics.fmean(error for error, _ in found),
        worst_pct=worst,
        worst_row=row.fields.place,
    )
