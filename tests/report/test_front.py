"""The front of cost and throughput as text, JSON and plot."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from tiny_jobs import tiny_job

import sailor
from sailor.model.job import Objective
from sailor.registry import Registry
from sailor.report.front import front_json, front_svg, front_text
from sailor.solve.pareto import ParetoPoint

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def points() -> tuple[ParetoPoint, ...]:
    job = tiny_job(a100=3, v100=2, zones=1, batch=12, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    found = sailor.pareto(
        job, points=5, planner="exhaustive", registry=Registry.load(entry_points=False)
    )
    assert len(found) >= 3
    return found


def test_the_table_has_a_line_a_point(points: tuple[ParetoPoint, ...]) -> None:
    lines = front_text("job", points).splitlines()
    assert lines[0] == "job: what speed costs"
    assert len(lines) == 2 + len(points)
    for line, point in zip(lines[2:], points, strict=True):
        assert line.split()[0] == f"{point.estimate.iterations_per_s:.3f}"
        assert line.split()[-1] == "0.0%"  # the oracle proves every point


def test_json_has_plans_estimates_floors_and_gaps(points: tuple[ParetoPoint, ...]) -> None:
    document = json.loads(front_json("job", points))
    assert document["job"] == "job"
    assert len(document["points"]) == len(points)
    for row, point in zip(document["points"], points, strict=True):
        assert row["plan"] == point.plan.model_dump(mode="json")
        assert row["min_iterations_per_s"] == point.min_iterations_per_s
        assert row["gap"] == point.gap


def test_the_plot_places_points_by_speed_and_price(points: tuple[ParetoPoint, ...]) -> None:
    point = points[0]
    assert point.objective is Objective.MIN_COST
    usd = point.estimate.usd_per_iteration
    wide = ParetoPoint(point.plan, point.estimate, point.objective, None, usd * 0.8, 0.25)
    root = ElementTree.fromstring(front_svg("a <b> & c", (wide, *points[1:])))
    circles = root.findall(f"{SVG}circle")
    at = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles]
    assert len(at) == len(points)
    assert at == sorted(at)  # faster is further right
    assert [y for _, y in at] == sorted((y for _, y in at), reverse=True)  # dearer is higher up
    # Pixels are linear in the values.
    (x0, _), (x1, _), (x2, _) = at[0], at[1], at[-1]
    rates = [p.estimate.iterations_per_s for p in points]
    part = (rates[1] - rates[0]) / (rates[-1] - rates[0])
    assert (x1 - x0) / (x2 - x0) == pytest.approx(part, abs=0.01)
    # The line of the first point goes straight down to its bound.
    line = next(p.attrib["d"] for p in root.findall(f"{SVG}path") if "L" in p.attrib["d"])
    start, end = (part.split() for part in line.removeprefix("M").split("L"))
    assert start[0] == end[0]
    assert float(end[1]) > float(start[1])
    assert root.findall(f"{SVG}text")[0].text == "a <b> & c: what speed costs"
    title = circles[0].find(f"{SVG}title")
    assert title is not None
    assert title.text is not None
    assert title.text.endswith("gap 25.0%")


def test_one_point_has_a_plot_too(points: tuple[ParetoPoint, ...]) -> None:
    root = ElementTree.fromstring(front_svg("one", points[:1]))
    (circle,) = root.findall(f"{SVG}circle")
    assert 90 <= float(circle.attrib["cx"]) <= 690
    assert 50 <= float(circle.attrib["cy"]) <= 420
