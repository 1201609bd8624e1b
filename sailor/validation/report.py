"""The scores as text: a table, every row, JSON, and the page docs/validation.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sailor.validation.score import Errors, GroupScore, RowScore, ValidationReport

_HEAD = (
    "table", "rows", "refused", "time: mean", "median", "bias", "worst",
    "memory: mean", "median", "bias", "worst", "above bound", "OOM foreseen",
)  # fmt: skip


def as_json(report: ValidationReport, *, rows: bool = False) -> str:
    """Return the report as JSON: `{"groups": [{"name", "rows", "refused", ...}]}`."""
    groups = [_group_json(group, rows=rows) for group in report.groups]
    whole = {
        "groups": groups,
        "refused_pct": round(report.refused_pct, 2),
        "rows_without_figure": report.without_figure,
    }
    return json.dumps(whole, indent=2)


def _group_json(group: GroupScore, *, rows: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": group.name,
        "rows": group.used,
        "refused": group.refused.total(),
        "refused_reasons": dict(group.refused),
    }
    figures = {
        "time": group.time,
        "memory": group.memory,
        "states": group.part("states"),
        "activations": group.part("activation"),
    }
    for name, errors in figures.items():
        if errors:
            found |= _errors_json(name, errors)
    if group.memory:
        found["memory_above_bound"] = group.above_bound
    caught, all_oom = group.out_of_memory
    if all_oom:
        found |= {"oom_rows": all_oom, "oom_foreseen": caught}
    if rows:
        found["detail"] = [_row_json(row) for row in group.rows]
    return found


def _errors_json(name: str, errors: Errors) -> dict[str, Any]:
    return {
        f"{name}_rows": errors.count,
        f"{name}_mean_abs_error_pct": round(errors.mean_abs_pct, 3),
        f"{name}_median_abs_error_pct": round(errors.median_abs_pct, 3),
        f"{name}_bias_pct": round(errors.bias_pct, 3),
        f"{name}_worst_error_pct": round(errors.worst_pct, 3),
        f"{name}_worst_row": errors.worst_row,
    }


def _row_json(row: RowScore) -> dict[str, Any]:
    found: dict[str, Any] = {"place": row.fields.place, "model": row.fields.model}
    if row.refused or not row.subject or not row.prediction:
        return found | {"refused": row.refused}
    subject, prediction = row.subject, row.prediction
    figures = {
        "measured_s": subject.measured_s,
        "predicted_s": prediction.seconds,
        "time_error_pct": row.time_error_pct,
        "measured_bytes": subject.measured_bytes,
        "predicted_bytes": prediction.memory_bytes,
        "bound_bytes": prediction.bound_bytes,
        "memory_error_pct": row.memory_error_pct,
    }
    found |= {name: value for name, value in figures.items() if value is not None}
    if subject.oom:
        found |= {"oom": True, "fits": prediction.fits}
    if subject.fields.remarks:
        found["remarks"] = subject.fields.remarks
    return found


def table_rows(report: ValidationReport) -> Sequence[Sequence[str]]:
    """Return the table's lines, its heading first; errors in percent."""
    return [_HEAD, *(_line(group) for group in report.groups)]


def _line(group: GroupScore) -> Sequence[str]:
    caught, all_oom = group.out_of_memory
    return (
        group.name,
        str(group.used),
        str(group.refused.total()),
        *_cells(group.time),
        *_cells(group.memory),
        str(group.above_bound) if group.memory else "",
        f"{caught} of {all_oom}" if all_oom else "",
    )


def _cells(errors: Errors | None) -> Sequence[str]:
    if errors is None:
        return ("", "", "", "")
    return (
        f"{errors.mean_abs_pct:.1f}",
        f"{errors.median_abs_pct:.1f}",
        f"{errors.bias_pct:+.1f}",
        f"{errors.worst_pct:+.0f}",
    )


def as_text(report: ValidationReport, *, rows: bool = False) -> str:
    """Return the table for people; with `rows` every row as well."""
    lines = [list(line) for line in table_rows(report)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(_HEAD))]
    text = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text += ["", _footing(report)]
    text += [f"  {reason}" for reason in refusals(report)]
    if rows:
        text += ["", *(line for group in report.groups for line in map(row_text, group.rows))]
    return "\n".join(text)


def _footing(report: ValidationReport) -> str:
    return (
        f"Errors in percent of the measured figure. {report.refused_pct:.1f} % of the rows with a "
        f"figure were refused; {report.without_figure} rows hold no figure."
    )


def refusals(report: ValidationReport) -> Sequence[str]:
    """Return each group's reasons of refusal with their counts."""
    return [
        f"{group.name}: {count} refused, {reason}"
        for group in report.groups
        for reason, count in group.refused.most_common()
    ]


def row_text(row: RowScore) -> str:
    """Return one row in a line."""
    start = f"{row.fields.place} {row.fields.model}:"
    if row.refused or not row.subject or not row.prediction:
        return f"{start} refused, {row.refused}"
    subject, prediction = row.subject, row.prediction
    found = []
    if row.time_error_pct is not None:
        found.append(
            f"{prediction.seconds:.4g} s against {subject.measured_s:.4g} s measured "
            f"({row.time_error_pct:+.1f} %)"
        )
    if row.memory_error_pct is not None and prediction.memory_bytes and subject.measured_bytes:
        found.append(
            f"{prediction.memory_bytes / 2**30:.2f} GiB against "
            f"{subject.measured_bytes / 2**30:.2f} GiB ({row.memory_error_pct:+.1f} %)"
        )
    if subject.oom:
        verdict = "fits, wrongly" if prediction.fits else "does not fit, rightly"
        found.append(f"ran out of memory: {verdict}")
    return " ".join([start, "; ".join(found), *(f"[{text}]" for text in subject.fields.remarks)])
