"""`sailor validate`: its table, JSON, rows and page."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from sailor.validation.command import validate


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(validate, arguments)
    assert result.exception is None, result.output
    assert result.exit_code == 0
    return result.output


def test_table_of_the_excerpt() -> None:
    lines = _run().splitlines()
    assert lines[0].startswith("table")
    assert any(line.startswith("vtrain_single_a100") for line in lines)
    assert "0.0 % of the rows" in "\n".join(lines)


def test_json_has_the_promised_names() -> None:
    report = json.loads(_run("--format", "json"))
    groups = {group["name"]: group for group in report["groups"]}
    bloom = groups["bloom_prequel_a100"]
    assert bloom["refused"] == 0
    assert bloom["time_mean_abs_error_pct"] > 0
    assert bloom["memory_mean_abs_error_pct"] > 0
    assert "detail" not in bloom
    assert "memory_mean_abs_error_pct" not in groups["vtrain_single_a100"]


def test_rows_are_printed_on_demand() -> None:
    text = _run("--rows")
    assert text.count("excerpt.csv:") >= 60
    report = json.loads(_run("--rows", "--format", "json"))
    row = report["groups"][0]["detail"][0]
    error = 100 * (row["predicted_s"] / row["measured_s"] - 1)
    assert abs(row["time_error_pct"] - error) < 1e-9


def test_the_page_holds_table_and_constants(tmp_path: Path) -> None:
    page = tmp_path / "validation.md"
    _run("--page", str(page))
    text = page.read_text(encoding="utf-8")
    assert "| vtrain_single_a100 | 14 | 0 |" in text
    assert "| jean-zay | 0.26 |" in text
    assert "no measured runs of this GPU type" in text
