"""The shipped excerpt keeps its recorded bounds."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from sailor.validation.command import excerpt_report
from sailor.validation.report import as_json
from sailor.validation.score import ValidationReport

BOUNDS = json.loads(files("sailor.validation").joinpath("data", "bounds.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def report() -> ValidationReport:
    return excerpt_report()


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_no_group_is_worse_than_its_bound(report: ValidationReport, name: str) -> None:
    scores = {group["name"]: group for group in json.loads(as_json(report))["groups"]}
    group = scores[name]
    for figure, bound in BOUNDS[name].items():
        if figure == "rows":
            assert group["rows"] == bound
        else:
            assert group[figure] <= bound, figure


def test_every_group_has_a_bound_and_no_row_is_refused(report: ValidationReport) -> None:
    assert {group.name for group in report.groups} == set(BOUNDS)
    assert report.refused_pct == 0
    assert sum(len(group.rows) for group in report.groups) >= 60


def test_no_measured_peak_is_above_the_upper_bound(report: ValidationReport) -> None:
    assert [group.name for group in report.groups if group.above_bound] == []


def test_every_row_names_its_source(report: ValidationReport) -> None:
    for group in report.groups:
        for row in group.rows:
            assert len(row.fields.source) > 10
